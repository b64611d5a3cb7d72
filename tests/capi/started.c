/* What the program does later changes nothing of what it has started, and nothing waits longer than it says. For two workers. Prints the
 * line of each surprise. With "stuck": a push that never leaves. */
#include "expect.h"

/* Versions of rows from FAR on: a row that is not set in an iteration is as new as its worker's clock. */
enum { ELEMENTS = 4, MANY = 64, FAR = 1000 };

static const uint64_t four = ELEMENTS;
static const float one[ELEMENTS] = {1, 1, 1, 1};

static penstock_tensor *declare(penstock_job *job, const char *name)
{
    penstock_tensor_options options = {0};
    penstock_tensor *tensor = NULL;

    options.name = name;
    options.dimensions = 1;
    options.shape = &four;
    options.reduce = PENSTOCK_SUM;
    options.optimizer = penstock_sgd(1);
    OK(penstock_tensor_create(job, &options, &tensor));
    return tensor;
}

static penstock_call within(double seconds)
{
    penstock_call call = {0};
    call.struct_size = sizeof call;
    call.timeout = seconds;
    return call;
}

/* A push stands in the line because the other worker is late; what is called behind it waits as long as its call says. */
static void a_late_worker(penstock_job *job, penstock_tensor *w, penstock_table *table, uint64_t rank)
{
    uint64_t ready = 1;
    penstock_call hasty = within(0.05);
    penstock_request *push = NULL, *pull = NULL;
    float out[ELEMENTS] = {0};
    void *lane;

    if (rank == 0) {
        OK(penstock_push(w, one, sizeof one));
        OK(penstock_clock(job, NULL));
        OK(penstock_start_push(w, one, sizeof one, NULL, &push));
        OK(penstock_start_pull(w, out, sizeof out, 0, NULL, &pull));
        REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "`w` waited", penstock_push_with(w, one, sizeof one, &hasty));
        REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "2 requests", penstock_pull_into_with(w, out, sizeof out, 0, &hasty));
        REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "hint: ", penstock_lane_with(w, &lane, &hasty));
        OK(penstock_set_lr(w, 3)); /* from the next push on: the one that was started keeps its rate */
        OK(penstock_set_row(table, rank, &ready, FAR));
    } else {
        OK(penstock_get_row(table, 0, &ready, FAR, 0));
        OK(penstock_push(w, one, sizeof one));
        OK(penstock_clock(job, NULL));
        OK(penstock_push(w, one, sizeof one));
    }
    OK(penstock_wait(&push, 0));
    OK(penstock_wait(&pull, 0));
    if (rank == 0)
        HOLDS(out[0] == -4 && out[3] == -4);
    OK(penstock_clock(job, NULL));
    OK(penstock_set_lr(w, 3));
    OK(penstock_push(w, one, sizeof one));
    OK(penstock_pull_into(w, out, sizeof out, 0));
    HOLDS(out[0] == -10);
    OK(penstock_clock(job, NULL));
}

/* The clock waits for no pull: each asks for what was so when it was started. */
static void pulls_and_the_clock(penstock_job *job, penstock_tensor *w, uint64_t rank)
{
    float out[2][ELEMENTS] = {{0}};
    penstock_request *pulls[2] = {NULL, NULL};
    int at;

    if (rank == 0) {
        OK(penstock_push(w, one, sizeof one));
        for (at = 0; at < 2; at++)
            OK(penstock_start_pull(w, out[at], sizeof one, 0, NULL, &pulls[at]));
        OK(penstock_clock(job, NULL)); /* the second one has not begun */
        OK(penstock_barrier(job, 0));
    } else {
        OK(penstock_barrier(job, 0));
        OK(penstock_push(w, one, sizeof one));
        OK(penstock_clock(job, NULL));
    }
    for (at = 0; at < 2; at++) {
        OK(penstock_wait(&pulls[at], 0));
        HOLDS(rank == 1 || (out[at][0] == -16 && out[at][3] == -16));
    }
}

/* It was lost if no call waited for its request: the clock, and the end of the job, said that all was well. */
static void a_push_that_fails(penstock_job *job, penstock_tensor *w)
{
    penstock_request *push = NULL;
    uint64_t clock = 0;

    OK(penstock_start_push(w, one, sizeof one[0], NULL, &push));
    REFUSED(PENSTOCK_BAD_SHAPE, "", penstock_clock(job, &clock));
    HOLDS(clock == 0);
    OK(penstock_clock(job, &clock)); /* it was told */
    HOLDS(clock > 0);
    REFUSED(PENSTOCK_BAD_SHAPE, "", penstock_wait(&push, 0));
}

/* Each of several is told, once, whichever way: the clock told of one, and the others were lost; and where one failed later, it told
 * again of one whose request still lay there. */
static void pushes_that_fail(penstock_job *job)
{
    enum { SOME = 4 };
    static const char *const names[SOME] = {"f0", "f1", "f2", "f3"};
    penstock_tensor *tensors[SOME];
    penstock_request *pushes[SOME], *again = NULL;
    int at;

    for (at = 0; at < SOME; at++) {
        tensors[at] = declare(job, names[at]);
        OK(penstock_start_push(tensors[at], one, sizeof one[0], NULL, &pushes[at]));
    }
    REFUSED(PENSTOCK_BAD_SHAPE, "`f1`", penstock_wait(&pushes[1], 0));
    REFUSED(PENSTOCK_BAD_SHAPE, "`f0`", penstock_clock(job, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "`f2`", penstock_clock(job, NULL));
    OK(penstock_start_push(tensors[1], one, sizeof one[0], NULL, &again));
    REFUSED(PENSTOCK_BAD_SHAPE, "`f3`", penstock_clock(job, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "`f1`", penstock_clock(job, NULL));
    OK(penstock_clock(job, NULL));
    for (at = 0; at < SOME; at++)
        REFUSED(at == 1 ? PENSTOCK_OK : PENSTOCK_BAD_SHAPE, NULL, penstock_wait(&pushes[at], 0));
    REFUSED(PENSTOCK_BAD_SHAPE, "`f1`", penstock_wait(&again, 0));
    OK(penstock_clock(job, NULL));
}

/* Gets go on, however many tensors wait, and however many gets. */
static void gets_beside(penstock_job *job, penstock_table *table, uint64_t rank)
{
    penstock_tensor *tensors[MANY];
    penstock_request *pulls[MANY], *gets[MANY], *get = NULL;
    float out[MANY][ELEMENTS];
    uint64_t values[MANY], value = 0, turn, row = 1 - rank;
    size_t index;
    char name[16];
    int at, done = 0;

    for (at = 0; at < MANY; at++) {
        sprintf(name, "t%d", at);
        tensors[at] = declare(job, name);
        if (rank == 0) {
            OK(penstock_push(tensors[at], one, sizeof one));
            OK(penstock_start_pull(tensors[at], out[at], sizeof one, 0, NULL, &pulls[at]));
        }
    }
    if (rank == 0)
        OK(penstock_start_get(table, &row, 1, &value, FAR, 0, NULL, &get));
    OK(penstock_barrier(job, 0));
    if (rank == 1) {
        value = 1;
        OK(penstock_set_row(table, rank, &value, FAR));
    } else {
        OK(penstock_wait_any(&get, 1, &index, 20));
        HOLDS(index == 0 && value == 1);
    }
    OK(penstock_barrier(job, 0));
    for (at = 0; at < MANY; at++) {
        if (rank == 1)
            OK(penstock_push(tensors[at], one, sizeof one));
        else
            OK(penstock_wait(&pulls[at], 20));
    }

    /* As many gets as there are threads wait for a version that is late; one more waits for less. */
    for (turn = 0; turn < 3; turn++) {
        const uint64_t soon = FAR + 10 * turn + 2, late = FAR + 10 * turn + 9;
        for (at = 0; rank == 0 && at < MANY; at++)
            OK(penstock_start_get(table, &row, 1, &values[at], late, 0, NULL, &gets[at]));
        if (rank == 0)
            OK(penstock_start_get(table, &row, 1, &value, soon, 0, NULL, &get));
        OK(penstock_barrier(job, 0)); /* not done at once, */
        if (rank == 1)
            OK(penstock_set_row(table, rank, &soon, soon));
        OK(penstock_barrier(job, 0)); /* and done when it is looked at */
        if (rank == 0 && turn == 0)
            OK(penstock_wait(&get, 20));
        if (rank == 0 && turn == 1)
            OK(penstock_wait_any(&get, 1, &index, 20));
        if (rank == 0 && turn == 2) {
            OK(penstock_test(&get, &done));
            HOLDS(done == 1);
        }
        HOLDS(get == NULL && (rank == 1 || value == soon));
        if (rank == 0)
            REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "continue", penstock_wait_any(gets, MANY, &index, 0.01));
        OK(penstock_barrier(job, 0));
        if (rank == 1)
            OK(penstock_set_row(table, rank, &late, late));
        for (at = 0; rank == 0 && at < MANY; at++) {
            OK(penstock_wait(&gets[at], 20));
            HOLDS(values[at] == late);
        }
        OK(penstock_barrier(job, 0));
    }
}

/* It was lost for good, its name with it. */
static void a_table_that_one_was_late_for(penstock_job *job, penstock_table_options shape, uint64_t rank)
{
    penstock_table *table = NULL;
    uint64_t value = 7 + rank, other = 1 - rank;

    shape.name = "late";
    if (rank == 0) {
        shape.timeout = 0.1;
        REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "workers [1]", penstock_table_create(job, &shape, &table));
        HOLDS(table == NULL);
        shape.timeout = 0;
    }
    OK(penstock_barrier(job, 0)); /* the other one comes when it was too late */
    OK(penstock_table_create(job, &shape, &table));
    OK(penstock_set_row(table, rank, &value, FAR));
    OK(penstock_get_row(table, other, &value, FAR, 0));
    HOLDS(value == 7 + other);
}

/* What stands in front of the push is never taken: the clock and the end say so, each in its time. */
static void stuck(penstock_job *job, penstock_tensor *w, uint64_t rank)
{
    penstock_call patient = within(600);
    penstock_request *push;
    uint64_t clock = 9;

    if (rank == 1) {
        const penstock_status heard = penstock_barrier(job, 100);
        HOLDS(heard == PENSTOCK_WORKER_LOST || heard == PENSTOCK_JOB_FAILED);
        OK(penstock_finish(job));
        return;
    }
    OK(penstock_push(w, one, sizeof one));
    OK(penstock_clock(job, NULL));
    OK(penstock_start_push(w, one, sizeof one, &patient, &push));
    REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "1 push that was started", penstock_clock(job, &clock));
    HOLDS(clock == 9 && penstock_iteration(job) == 1);
    REFUSED(PENSTOCK_DEADLINE_EXCEEDED, "leaving the job", penstock_finish(job));
}

int main(int count, char **words)
{
    const penstock_option hasty[] = {{"deadline", "2"}};
    const penstock_options options = {hasty, count > 1};
    const penstock_range all = {0, 2};
    penstock_table_options shape = {0};
    penstock_table *table;
    penstock_tensor *w;
    penstock_job *job;
    uint64_t rank;

    OK(penstock_init(&options, &job));
    rank = penstock_rank(job);
    w = declare(job, "w");
    if (count > 1 && strcmp(words[1], "stuck") == 0) {
        stuck(job, w, rank);
        return surprises != 0;
    }
    shape.name = "U";
    shape.rows = 2;
    shape.row_bytes = sizeof(uint64_t);
    shape.produce = &rank;
    shape.produce_count = 1;
    shape.consume_ranges = &all;
    shape.consume_range_count = 1;
    OK(penstock_table_create(job, &shape, &table));
    a_late_worker(job, w, table, rank);
    pulls_and_the_clock(job, w, rank);
    gets_beside(job, table, rank);
    a_table_that_one_was_late_for(job, shape, rank);
    a_push_that_fails(job, w);
    pushes_that_fail(job);
    OK(penstock_finish(job));
    return surprises != 0;
}
