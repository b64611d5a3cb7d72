/* A child of fork() has nothing of its parent's job: every call says so, and none hangs. A job of its own works. Prints the line of each
 * surprise. */
#define _POSIX_C_SOURCE 200112L
#include "expect.h"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t two = 2, row = 0;
static const float one[2] = {1, 1};

static void start(penstock_job **job, penstock_tensor **tensor, penstock_table **table)
{
    penstock_tensor_options options = {0};
    penstock_table_options shape = {0};

    OK(penstock_init(NULL, job));
    options.name = "w";
    options.dimensions = 1;
    options.shape = &two;
    options.optimizer = penstock_sgd(1);
    OK(penstock_tensor_create(*job, &options, tensor));
    shape.name = "U";
    shape.rows = 1;
    shape.row_bytes = sizeof(uint64_t);
    shape.produce = &row;
    shape.produce_count = 1;
    OK(penstock_table_create(*job, &shape, table));
}

/* A push by a thread of the library, which stays for a while. */
static void use(penstock_job *job, penstock_tensor *tensor)
{
    penstock_request *request = NULL;
    float out[2] = {0};

    OK(penstock_start_push(tensor, one, sizeof one, NULL, &request));
    OK(penstock_wait(&request, 20));
    OK(penstock_start_pull(tensor, out, sizeof out, 0, NULL, &request));
    OK(penstock_wait(&request, 20));
    HOLDS(out[1] == -1.0f * (float)(penstock_iteration(job) + 1));
    OK(penstock_clock(job, NULL));
}

static void in_the_child(penstock_job *job, penstock_tensor *tensor, penstock_table *table, penstock_request *request)
{
    penstock_table_counters counters = {0};
    penstock_tensor_options options = {0};
    penstock_table_options shape = {0};
    penstock_request *mine = NULL;
    uint64_t value = 0;
    double norm;
    float out[2];
    const void *seen;
    void *lane;
    int done;
    size_t index;

    options.name = "w";
    shape.name = "U";
    counters.struct_size = sizeof counters;
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_push(tensor, one, sizeof one, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_pull(tensor, out, sizeof out, 0, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_push_rows(tensor, &row, 1, one, sizeof *one, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_push_elements(tensor, &row, 1, one, sizeof *one, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_push_factors(tensor, one, 8, one, 4, 1, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_pull_rows(tensor, &row, 1, out, sizeof *out, 0, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_pull_elements(tensor, &row, 1, out, sizeof *out, 0, NULL, &mine));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_start_get(table, &row, 1, &value, 0, 0, NULL, &mine));
    HOLDS(mine == NULL);
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_wait(&request, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_test(&request, &done));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_wait_any(&request, 1, &index, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_push(tensor, one, sizeof one));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_lane(tensor, &lane));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_pull(tensor, &seen, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_pull_into(tensor, out, sizeof out, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_push_rows(tensor, &row, 1, one, sizeof *one, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_push_elements(tensor, &row, 1, one, sizeof *one, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_push_factors(tensor, one, 8, one, 4, 1, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_pull_rows(tensor, &row, 1, out, sizeof *out, 0, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_pull_elements(tensor, &row, 1, out, sizeof *out, 0, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_flush(job, tensor, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_held_back(tensor, &norm, &value));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_pressure(tensor, NULL, 0, &index, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_load(job, tensor, one, sizeof one, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_set_lr(tensor, 2));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_set_row(table, 0, &value, 9));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_get_row(table, 0, &value, 0, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_prefetch(table, &row, 1, 0, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_versions(table, &row, 1, &value));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_table_stats(table, &counters));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_table_drop(table, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_table_create(job, &shape, &table));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_tensor_create(job, &options, &tensor));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_clock(job, NULL));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_barrier(job, 0));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_finish(job));
    REFUSED(PENSTOCK_JOB_CLOSED, "forked", penstock_fail(job, "never"));

    start(&job, &tensor, &table);
    use(job, tensor);
    OK(penstock_finish(job));
}

int main(void)
{
    penstock_job *job;
    penstock_tensor *tensor;
    penstock_table *table;
    penstock_request *request;
    pid_t child;
    int status;

    start(&job, &tensor, &table);
    if (surprises)
        return 1;
    use(job, tensor);
    OK(penstock_start_push(tensor, one, sizeof one, NULL, &request)); /* not waited for */
    child = fork();
    if (child == 0) {
        alarm(60); /* only ends a child that hangs */
        in_the_child(job, tensor, table, request);
        fflush(stdout);
        _exit(surprises != 0);
    }
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(penstock_wait(&request, 20));
    OK(penstock_clock(job, NULL));
    use(job, tensor);
    OK(penstock_finish(job));
    return surprises != 0;
}
