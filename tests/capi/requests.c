/* What is started, tested and waited for, alone and beside other workers. Prints the line of each surprise. */
#include "expect.h"
#include <pthread.h>

enum { ROWS = 100 };

static void wrong_calls(penstock_table *table, penstock_tensor *tensor)
{
    const uint64_t row = 0, foreign = 5000;
    uint64_t value = 9;
    penstock_request *request = NULL, *copy, *none[2] = {NULL, NULL};
    penstock_request *never = (penstock_request *)(void *)&value;
    size_t index = 7;
    int done = 0;

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`table`", penstock_start_get(NULL, &row, 1, &value, 0, 0, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`rows`", penstock_start_get(table, NULL, 1, &value, 0, 0, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_start_get(table, &row, 1, NULL, 0, 0, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`request`", penstock_start_get(table, &row, 1, &value, 0, 0, NULL, NULL));
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_start_get(table, &row, 1, &value, 0, -9, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_start_push(NULL, &value, 8, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`data`", penstock_start_push(tensor, NULL, 8, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_start_pull(tensor, NULL, 8, 0, NULL, &request));
    HOLDS(request == NULL);

    /* A request that is NULL is done, as in MPI. */
    OK(penstock_wait(&request, 0));
    OK(penstock_test(&request, &done));
    HOLDS(done == 1);
    OK(penstock_wait_any(none, 2, &index, 0));
    HOLDS(index == SIZE_MAX);
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`request`", penstock_wait(NULL, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`done`", penstock_test(&request, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`requests`", penstock_wait_any(NULL, 2, &index, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`index`", penstock_wait_any(none, 2, NULL, 0));
    REFUSED(PENSTOCK_UNKNOWN_REQUEST, "not done", penstock_wait(&never, 0));
    REFUSED(PENSTOCK_UNKNOWN_REQUEST, "not done", penstock_test(&never, &done));

    /* An error comes with the end, and the handle is worth nothing behind it. */
    OK(penstock_start_get(table, &foreign, 1, &value, 0, 0, NULL, &request));
    copy = request;
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 5000", penstock_wait(&request, 0));
    HOLDS(request == NULL && value == 9);
    REFUSED(PENSTOCK_UNKNOWN_REQUEST, "hint: ", penstock_wait(&copy, 0));
    none[1] = copy;
    REFUSED(PENSTOCK_UNKNOWN_REQUEST, "not done", penstock_wait_any(none, 2, &index, 0));
    HOLDS(index == 1);
}

static void several(penstock_job *job, penstock_table *table, uint64_t rank)
{
    penstock_request *requests[ROWS], *late;
    uint64_t values[ROWS], row, other = 1 - rank, versions[2] = {0, 0}, both[2], pair[2] = {0, 0};
    penstock_call call = {0};
    size_t index;
    int done = 1, left;

    /* Row ROWS is set by the other worker when it has seen what this one sets meanwhile: nothing else may wait for it. */
    both[0] = rank * ROWS;
    OK(penstock_start_get(table, &both[0], 1, &values[0], 0, PENSTOCK_SLACK_UNBOUNDED, NULL, &late));
    OK(penstock_wait(&late, 0));

    /* More than there are threads for. All are of clock 1, which no worker has reached. */
    for (row = 0; row < ROWS; row++) {
        const uint64_t wanted = other * ROWS + row;
        OK(penstock_start_get(table, &wanted, 1, &values[row], 1, 0, NULL, &requests[row]));
    }
    OK(penstock_test(&requests[0], &done));
    HOLDS(done == 0 && requests[0] != NULL);
    REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "continue", penstock_wait(&requests[0], 0.001));
    REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "none of 100", penstock_wait_any(requests, ROWS, &index, 0.001));
    OK(penstock_barrier(job, 0));
    for (row = 0; row < ROWS; row++) {
        const uint64_t value = 1000 + row, mine = rank * ROWS + row;
        OK(penstock_set_row(table, mine, &value, 1));
    }
    OK(penstock_wait(&requests[ROWS - 1], 0)); /* the last one, which no thread has taken up perhaps */
    HOLDS(values[ROWS - 1] == 1000 + ROWS - 1);
    for (left = ROWS - 1; left > 0; left--) {
        OK(penstock_wait_any(requests, ROWS, &index, 0));
        HOLDS(index < ROWS - 1 && requests[index] == NULL && values[index] == 1000 + index);
    }
    OK(penstock_wait_any(requests, ROWS, &index, 0));
    HOLDS(index == SIZE_MAX);

    /* Versions, and a time of its own. */
    both[1] = other * ROWS + 1;
    call.struct_size = sizeof call;
    call.versions = versions;
    OK(penstock_start_get(table, both, 2, pair, 1, 0, &call, &late));
    OK(penstock_wait(&late, 0));
    HOLDS(versions[0] == 1 && versions[1] == 1 && pair[0] == 1000 && pair[1] == 1001);
    call.timeout = 0.02;
    OK(penstock_start_get(table, &both[1], 1, pair, 99, 0, &call, &late));
    REFUSED(PENSTOCK_GET_TIMEOUT, "version 99", penstock_wait(&late, 0));
    REFUSED(PENSTOCK_GET_TIMEOUT, "version 99", penstock_get_with(table, &both[1], 1, pair, 99, 0, &call));
}

static void tensors(penstock_job *job, penstock_tensor *tensor, uint64_t rank)
{
    enum { ELEMENTS = 4 };
    float one[ELEMENTS] = {1, 1, 1, 1}, two[ELEMENTS] = {2, 2, 2, 2}, out[ELEMENTS], again[ELEMENTS];
    const void *value = NULL;
    uint64_t stamp = 9, version = 9;
    penstock_call stamped = {0}, more = {0};
    penstock_request *all[3];
    size_t index;
    int turn, left;

    stamped.struct_size = more.struct_size = sizeof stamped;
    more.more = 1;
    for (turn = 0; turn < 50; turn++) {
        /* In this order, whichever thread carries them out; the clock waits for the pushes, and not for the pull. */
        const float expected = (float)(turn + 1) * 6;
        stamped.versions = &stamp;
        OK(penstock_start_push(tensor, one, sizeof one, &more, &all[0]));
        OK(penstock_start_push(tensor, two, sizeof two, &stamped, &all[1]));
        OK(penstock_start_pull(tensor, out, sizeof out, 0, NULL, &all[2]));
        OK(penstock_clock(job, NULL));
        HOLDS(stamp == (uint64_t)turn);
        for (left = 3; left > 0; left--)
            OK(penstock_wait_any(all, 3, &index, 0));
        HOLDS(out[0] == expected && out[ELEMENTS - 1] == expected);
        stamped.versions = &version;
        OK(penstock_pull_into_with(tensor, again, sizeof again, 0, &stamped));
        HOLDS(version == (uint64_t)turn + 1 && again[0] == expected);
        version = 9;
        OK(penstock_pull_with(tensor, &value, 0, &stamped));
        HOLDS(version == (uint64_t)turn + 1 && ((const float *)value)[ELEMENTS - 1] == expected);
    }
    /* A push of a wrong size is reported at the end, and nothing has changed. */
    OK(penstock_start_push(tensor, one, 3, NULL, &all[0]));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 16 bytes", penstock_wait(&all[0], 0));
    /* A worker that is late. */
    OK(penstock_barrier(job, 0));
    if (rank == 0) {
        penstock_call hasty = {0};
        hasty.struct_size = sizeof hasty;
        hasty.timeout = 0.02;
        OK(penstock_push(tensor, one, sizeof one));
        REFUSED(PENSTOCK_PULL_TIMEOUT, "1]", penstock_pull_into_with(tensor, out, sizeof out, 0, &hasty));
        REFUSED(PENSTOCK_PULL_TIMEOUT, "1]", penstock_pull_with(tensor, &value, 0, &hasty));
        hasty.exact = 1;
        REFUSED(PENSTOCK_BAD_ARGUMENT, "`exact`", penstock_pull_with(tensor, &value, 0, &hasty));
        REFUSED(PENSTOCK_BAD_ARGUMENT, "`value`", penstock_pull_with(tensor, NULL, 0, NULL));
    }
    OK(penstock_barrier(job, 0));
    if (rank == 1)
        OK(penstock_push(tensor, one, sizeof one));
    OK(penstock_clock(job, NULL));

    /* What was saved comes back, on every worker. */
    OK(penstock_load(job, tensor, rank == 0 ? two : NULL, rank == 0 ? sizeof two : 0, 0));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(out[0] == 2 && out[3] == 2);
}

/* Several threads wait for requests of their own. */
static penstock_table *shared_table;

static void *own_requests(void *argument)
{
    const uint64_t row = *(const uint64_t *)argument;
    uint64_t value, turn;

    for (turn = 2; turn < 300; turn++) {
        penstock_request *request;
        if (penstock_set_row(shared_table, row, &turn, turn)
            || penstock_start_get(shared_table, &row, 1, &value, turn, 0, NULL, &request)
            || penstock_wait(&request, 0) || value != turn)
            return argument;
    }
    return NULL;
}

int main(void)
{
    penstock_table_options options = {0};
    penstock_tensor_options shape = {0};
    penstock_job *job;
    penstock_table *table;
    penstock_tensor *tensor;
    penstock_range mine, all = {0, 0};
    penstock_request *left_over;
    const uint64_t four = 4;
    uint64_t rank, rows[2], never = 0, other;
    pthread_t threads[2];
    void *result;
    int at;

    OK(penstock_init(NULL, &job));
    rank = penstock_rank(job);
    all.end = penstock_size(job) * (uint64_t)ROWS;
    mine.first = rank * ROWS;
    mine.end = mine.first + ROWS;
    options.name = "U";
    options.rows = all.end;
    options.row_bytes = sizeof(uint64_t);
    options.produce_ranges = &mine;
    options.consume_ranges = &all;
    options.produce_range_count = options.consume_range_count = 1;
    OK(penstock_table_create(job, &options, &table));
    shape.name = "w";
    shape.dimensions = 1;
    shape.shape = &four;
    shape.reduce = PENSTOCK_SUM;
    OK(penstock_tensor_create(job, &shape, &tensor));
    if (surprises)
        return 1;

    if (penstock_size(job) == 2) {
        several(job, table, rank);
        tensors(job, tensor, rank);
    } else {
        wrong_calls(table, tensor);
    }
    shared_table = table;
    for (at = 0; at < 2; at++) {
        rows[at] = mine.first + (uint64_t)at;
        HOLDS(pthread_create(&threads[at], NULL, own_requests, &rows[at]) == 0);
    }
    for (at = 0; at < 2; at++)
        HOLDS(pthread_join(threads[at], &result) == 0 && result == NULL);

    /* A request that is not waited for ends with the job, and writes nothing after it. */
    OK(penstock_barrier(job, 0));
    other = all.end - 1 - mine.first;
    OK(penstock_start_get(table, &other, 1, &never, 1u << 20, 0, NULL, &left_over));
    OK(penstock_finish(job));
    REFUSED(PENSTOCK_UNKNOWN_REQUEST, "with its job", penstock_wait(&left_over, 0));
    return surprises != 0;
}
