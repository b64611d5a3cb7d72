/* What the C interface answers to wrong calls, and to right ones that have a corner. Prints the line of each surprise. */
#include "expect.h"
#include <math.h>
#include <stddef.h>

static void by_structure(void)
{
    struct {
        penstock_init_options known;
        uint64_t later;
    } newer;
    const char *server = "tcp://a:1,tcp://b:2";
    penstock_option option = {"shards", "1"};
    penstock_init_options options = {0};
    penstock_job *job = NULL;
    uint64_t clock = 0;

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options`", penstock_init_with(NULL, &job));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_init_with(&options, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "struct_size", penstock_init_with(&options, &job));
    options.struct_size = sizeof options;
    options.rank = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "a size with rank 1", penstock_init_with(&options, &job));
    options.size = 1;
    REFUSED(PENSTOCK_JOB_FULL, "rank 1 is outside", penstock_init_with(&options, &job));
    options.rank = 0;
    options.deadline = -1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_init_with(&options, &job));
    options.deadline = 20;
    options.secret = "hush";
    REFUSED(PENSTOCK_BAD_OPTION, "got 4 characters", penstock_init_with(&options, &job));
    options.secret = NULL;
    options.server_count = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->servers`", penstock_init_with(&options, &job));
    options.servers = &server;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "one server in each", penstock_init_with(&options, &job));
    options.server_count = 0;
    options.count = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->list`", penstock_init_with(&options, &job));
    options.list = &option;
    HOLDS(job == NULL);

    /* A program that is newer than the library, and one that is older. */
    memset(&newer, 0, sizeof newer);
    newer.known = options;
    newer.known.struct_size = sizeof newer;
    newer.later = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "does not know", penstock_init_with(&newer.known, &job));
    newer.later = 0;
    OK(penstock_init_with(&newer.known, &job));
    OK(penstock_finish(job));
    options.struct_size = offsetof(penstock_init_options, deadline);
    OK(penstock_init_with(&options, &job));
    HOLDS(penstock_rank(job) == 0 && penstock_size(job) == 1);
    OK(penstock_clock(job, &clock));
    OK(penstock_finish(job));
}

static void joining(void)
{
    penstock_option option = {"nonsense", "1"};
    penstock_options options = {NULL, 1};
    penstock_job *job = NULL;

    HOLDS(strcmp(penstock_last_error(), "") == 0);
    HOLDS(strchr(penstock_version(), '.') != NULL);
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_init(NULL, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->list`", penstock_init(&options, &job));
    options.list = &option;
    REFUSED(PENSTOCK_BAD_OPTION, "there is no option `nonsense`", penstock_init(&options, &job));
    REFUSED(PENSTOCK_BAD_OPTION, "hint: the options are", penstock_init(&options, &job));
    option.value = NULL;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "value", penstock_init(&options, &job));
    option.name = "deadline";
    option.value = "-3";
    REFUSED(PENSTOCK_BAD_OPTION, "`deadline`", penstock_init(&options, &job));
    option.value = "\xff";
    REFUSED(PENSTOCK_BAD_ARGUMENT, "UTF-8", penstock_init(&options, &job));
    HOLDS(job == NULL);
    by_structure();
    OK(penstock_finish(NULL));
    OK(penstock_fail(NULL, NULL));
}

static void handles(penstock_job *job)
{
    uint64_t clock = 7;

    HOLDS(penstock_rank(NULL) == UINT32_MAX && penstock_size(NULL) == 0 && penstock_iteration(NULL) == 0);
    HOLDS(penstock_rank(job) == 0 && penstock_size(job) == 1 && penstock_iteration(job) == 0);
    HOLDS(penstock_tensor_bytes(NULL) == 0 && penstock_row_bytes(NULL) == 0);
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_clock(NULL, &clock));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_barrier(NULL, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_barrier(job, -1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_barrier(job, NAN));
    HOLDS(clock == 7);
    OK(penstock_barrier(job, 5));
    OK(penstock_clock(job, &clock));
    HOLDS(clock == 1 && penstock_iteration(job) == 1);
    OK(penstock_clock(job, NULL));
}

static void tensors(penstock_job *job)
{
    const uint64_t shape[2] = {2, 3}, hollow[2] = {2, 0};
    const float start[6] = {1, 2, 3, 4, 5, 6};
    float gradient[6] = {1, 1, 1, 1, 1, 1}, out[6] = {0};
    const penstock_tensor_options none = {0};
    penstock_tensor_options options = none;
    penstock_call more = {0};
    penstock_tensor *tensor = NULL, *same = NULL;
    const void *value = NULL;
    void *lane = NULL;

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->name`", penstock_tensor_create(job, &options, &tensor));
    options.name = "";
    REFUSED(PENSTOCK_BAD_NAME, "name", penstock_tensor_create(job, &options, &tensor));
    options.name = "w";
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_tensor_create(NULL, &options, &tensor));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options`", penstock_tensor_create(job, NULL, &tensor));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_tensor_create(job, &options, NULL));
    options.dimensions = 2;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->shape`", penstock_tensor_create(job, &options, &tensor));
    options.shape = hollow;
    REFUSED(PENSTOCK_BAD_SHAPE, "[2, 0]", penstock_tensor_create(job, &options, &tensor));
    options.shape = shape;
    options.dimensions = 1u << 31;
    REFUSED(PENSTOCK_BAD_SHAPE, "dimensions", penstock_tensor_create(job, &options, &tensor));
    options.dimensions = 2;
    options.dtype = 9;
    REFUSED(PENSTOCK_BAD_DTYPE, "got 9", penstock_tensor_create(job, &options, &tensor));
    options.dtype = PENSTOCK_F32;
    options.consistency = "ssp:auto:3:2";
    REFUSED(PENSTOCK_BAD_OPTION, "3:2", penstock_tensor_create(job, &options, &tensor));
    options.consistency = "ssp:-1";
    REFUSED(PENSTOCK_BAD_OPTION, "ssp:-1", penstock_tensor_create(job, &options, &tensor));
    options.consistency = NULL;
    options.reduce = 2;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "PENSTOCK_SUM", penstock_tensor_create(job, &options, &tensor));
    options.reduce = PENSTOCK_MEAN;
    options.optimizer.rule = 99;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "got 99", penstock_tensor_create(job, &options, &tensor));
    options.optimizer = penstock_sgd(-1);
    REFUSED(PENSTOCK_BAD_SETTINGS, "`lr`", penstock_tensor_create(job, &options, &tensor));
    options.optimizer = penstock_adam(0.1);
    options.optimizer.momentum = 0.9;
    REFUSED(PENSTOCK_BAD_SETTINGS, "no `momentum`", penstock_tensor_create(job, &options, &tensor));
    options.optimizer = penstock_sgd(0.5);
    options.propagation = "push";
    REFUSED(PENSTOCK_BAD_OPTION, "expected propagation `pull`, `broadcast` or `update`, got `push`",
            penstock_tensor_create(job, &options, &tensor));
    options.propagation = NULL;
    options.reserved = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "reserved", penstock_tensor_create(job, &options, &tensor));
    options.reserved = 0;
    options.timeout = -2;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_tensor_create(job, &options, &tensor));
    options.timeout = 0;
    HOLDS(tensor == NULL);

    options.refuse_nonfinite = 1;
    options.value = start;
    OK(penstock_tensor_create(job, &options, &tensor));
    OK(penstock_tensor_create(job, &options, &same));
    HOLDS(tensor == same && penstock_tensor_bytes(tensor) == sizeof start);
    options.optimizer = penstock_sgd(0.25);
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "`w` was declared before with lr 0.5", penstock_tensor_create(job, &options, &same));
    options.optimizer = penstock_sgd(0.5);
    options.clip = 1;
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "`w` was declared before with clip none", penstock_tensor_create(job, &options, &same));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_push(NULL, gradient, sizeof gradient));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`data`", penstock_push(tensor, NULL, sizeof gradient));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "at most", penstock_push(tensor, gradient, SIZE_MAX));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 24 bytes", penstock_push(tensor, gradient, 20));
    gradient[4] = NAN;
    REFUSED(PENSTOCK_NON_FINITE, "element 4", penstock_push(tensor, gradient, sizeof gradient));
    gradient[4] = 1;
    OK(penstock_push(tensor, gradient, sizeof gradient));
    REFUSED(PENSTOCK_ALREADY_PUSHED, "penstock_clock()", penstock_push(tensor, gradient, sizeof gradient));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`value`", penstock_pull(tensor, NULL, 0));
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_pull(tensor, &value, -7));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 24 bytes", penstock_pull_into(tensor, out, 4, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_pull_into(tensor, NULL, sizeof out, 0));
    HOLDS(value == NULL);
    OK(penstock_pull(tensor, &value, PENSTOCK_SLACK_DEFAULT));
    HOLDS(((const float *)value)[0] == 0.5f && ((const float *)value)[5] == 5.5f);
    OK(penstock_pull_into(tensor, out, sizeof out, PENSTOCK_SLACK_UNBOUNDED));
    OK(penstock_pull(tensor, &value, 3));
    OK(penstock_clock(job, NULL));

    REFUSED(PENSTOCK_BAD_SETTINGS, "`lr`", penstock_set_lr(tensor, -1));
    OK(penstock_set_lr(tensor, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`lane`", penstock_lane(tensor, NULL));
    OK(penstock_lane(tensor, &lane));
    memcpy(lane, gradient, sizeof gradient);
    more.struct_size = sizeof more;
    more.more = 1;
    OK(penstock_push_with(tensor, NULL, 0, &more));
    REFUSED(PENSTOCK_BAD_OPTION, "waits in the lane", penstock_lane(tensor, &lane));
    REFUSED(PENSTOCK_BAD_OPTION, "a push of NULL sends it", penstock_lane_with(tensor, &lane, NULL));
    OK(penstock_push(tensor, NULL, 0));
    options = none;
    options.name = "sums";
    options.dimensions = 1;
    options.shape = shape;
    OK(penstock_tensor_create(job, &options, &same));
    REFUSED(PENSTOCK_BAD_SETTINGS, "no learning rate", penstock_set_lr(same, 0.1));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(out[0] == -0.5f && out[5] == 4.5f);
    OK(penstock_clock(job, NULL));
}

static void rows(penstock_job *job)
{
    const penstock_range first = {0, 4}, backwards = {3, 1};
    const uint64_t far = (uint64_t)1 << 40, some[3] = {2, 0, 2}, foreign[2] = {1, 7};
    uint64_t versions[3] = {9, 9, 9}, crooked[3];
    double values[3] = {5, 6, 7}, out[3] = {0};
    penstock_table_options options = {0};
    penstock_table *table = NULL, *again = NULL;
    penstock_view *view = NULL;
    const void *bytes = NULL;
    int turn;

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`options->name`", penstock_table_create(job, &options, &table));
    options.name = "U";
    REFUSED(PENSTOCK_BAD_SHAPE, "bytes", penstock_table_create(job, &options, &table));
    options.row_bytes = sizeof(double);
    options.rows = (uint64_t)1 << 41;
    options.produce_range_count = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`produce`", penstock_table_create(job, &options, &table));
    options.produce_ranges = &backwards;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "3 to 1", penstock_table_create(job, &options, &table));
    options.produce_ranges = &first;
    options.produce = &far;
    options.produce_count = 1;
    options.fold = 2;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "PENSTOCK_FOLD_SUM", penstock_table_create(job, &options, &table));
    options.fold = PENSTOCK_FOLD_SUM;
    options.dtype = PENSTOCK_F16;
    REFUSED(PENSTOCK_BAD_DTYPE, "PENSTOCK_F64", penstock_table_create(job, &options, &table));
    options.fold = PENSTOCK_FOLD_NONE;
    options.propagation = 3;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "propagation", penstock_table_create(job, &options, &table));
    options.propagation = PENSTOCK_LAZY;
    options.slack = -3;
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_table_create(job, &options, &table));
    options.slack = 0;
    options.reserved[0] = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "reserved", penstock_table_create(job, &options, &table));
    options.reserved[0] = 0;
    HOLDS(table == NULL);
    OK(penstock_table_create(job, &options, &table));
    OK(penstock_table_create(job, &options, &again));
    HOLDS(again == table);
    options.slack = 2;
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "slack: 0 then, 2 now", penstock_table_create(job, &options, &again));
    options.slack = 0;
    options.produce_count = 0;
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "row 1099511627776", penstock_table_create(job, &options, &again));
    options.produce_count = 1;
    options.adaptive_min = 3;
    REFUSED(PENSTOCK_BAD_OPTION, "at most", penstock_table_create(job, &options, &again));
    options.adaptive_max = 5;
    options.slack = 1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "adaptive_max", penstock_table_create(job, &options, &again));
    options.adaptive_min = options.adaptive_max = 0;
    options.slack = 0;
    HOLDS(again == table);
    HOLDS(penstock_row_bytes(table) == sizeof(double));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`table`", penstock_set(NULL, some, 2, values, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`rows`", penstock_set(table, NULL, 2, values, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`values`", penstock_set(table, some, 2, NULL, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "", penstock_set(table, some, SIZE_MAX / 8, values, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "", penstock_get(table, some, SIZE_MAX, out, 1, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "aligned", penstock_set(table, (const uint64_t *)(const void *)((char *)crooked + 1), 1, values, 1));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_get_row(table, 0, NULL, 0, 0));
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_get_row(table, 0, out, 0, -3));
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_get_row(table, 0, out, 0, INT64_MAX));
    REFUSED(PENSTOCK_BAD_OPTION, "not a sum", penstock_add(table, some, 2, values, 1));
    OK(penstock_set(table, NULL, 0, NULL, 1));
    OK(penstock_get(table, NULL, 0, NULL, 1, 0));

    /* A row that was not set counts as unchanged in the iterations that were completed. */
    OK(penstock_get_row(table, 0, out, PENSTOCK_CLOCK_AUTO, 0));
    REFUSED(PENSTOCK_NEVER_SET, "row 0", penstock_get_row(table, 0, out, penstock_iteration(job) + 1, 0));
    OK(penstock_get_row(table, 0, out, penstock_iteration(job) + 1, 1));
    HOLDS(out[0] == 0);
    REFUSED(PENSTOCK_NOT_PRODUCER, "row 7", penstock_set(table, foreign, 2, values, 1));
    const uint64_t twice[2] = {2, 2};
    REFUSED(PENSTOCK_ROW_TWICE, "row 2", penstock_set(table, twice, 2, values, 1));
    OK(penstock_get(table, foreign, 1, out, 0, 0));
    HOLDS(out[0] == 0); /* nothing of a call that was refused is seen */
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 7", penstock_get_row(table, 7, out, 1, 0));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 7", penstock_prefetch(table, foreign, 2, 1, 0));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 7", penstock_versions(table, foreign, 2, versions));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`versions`", penstock_versions(table, some, 2, NULL));
    OK(penstock_set(table, some, 2, values, 8));
    OK(penstock_set_row(table, far, &values[2], 8));
    REFUSED(PENSTOCK_CLOCK_BACKWARDS, "at least 8", penstock_set_row(table, 2, values, 7));
    OK(penstock_get(table, some, 3, out, 8, 0));
    HOLDS(out[0] == 5 && out[1] == 6 && out[2] == 5);
    OK(penstock_get_row(table, far, out, 8, PENSTOCK_SLACK_DEFAULT));
    HOLDS(out[0] == 7);
    OK(penstock_get_row(table, 3, out, 1000, PENSTOCK_SLACK_UNBOUNDED));
    OK(penstock_prefetch(table, some, 3, 8, 0));
    OK(penstock_versions(table, some, 3, versions));
    HOLDS(versions[0] == 8 && versions[2] == 8);

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`view`", penstock_view_begin(table, 2, 8, 0, NULL, &bytes));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`bytes`", penstock_view_begin(table, 2, 8, 0, &view, NULL));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 7", penstock_view_begin(table, 7, 8, 0, &view, &bytes));
    HOLDS(view == NULL && bytes == NULL);
    OK(penstock_view_begin(table, 2, 8, 0, &view, &bytes));
    HOLDS(*(const double *)bytes == 5);
    OK(penstock_view_end(view));
    OK(penstock_view_end(NULL));
    OK(penstock_view_begin(table, 2, 8, 0, &view, &bytes));
    for (turn = 9; turn < 13; turn++)
        OK(penstock_set_row(table, 2, values, (uint64_t)turn));
    REFUSED(PENSTOCK_TORN_VIEW, "row 2 of `U`", penstock_view_end(view));
}

/* Ranges, versions, a time for each call, counters. */
static void calls(penstock_job *job)
{
    const penstock_range some[2] = {{4, 6}, {0, 2}}, one = {2, 5}, far = {7, 9}, endless = {0, UINT64_MAX}, none = {3, 3};
    const uint64_t rows[2] = {5, 0}, row = 1, now = penstock_iteration(job);
    const double values[4] = {40, 50, 0.5, 10};
    double out[4] = {0};
    uint64_t versions[4] = {9, 9, 9, 9};
    penstock_table_options options = {0};
    penstock_table_counters counters = {0};
    penstock_job_counters all = {0};
    penstock_call call = {0};
    penstock_table *table = NULL, *again = NULL;
    penstock_view *view = NULL;
    const void *bytes = NULL;

    options.name = "calls";
    options.rows = 8;
    options.row_bytes = sizeof(double);
    options.produce_ranges = &endless;
    options.produce_range_count = 1;
    REFUSED(PENSTOCK_UNKNOWN_ROW, "rows below 8", penstock_table_create(job, &options, &table));
    options.name = "calls again"; /* the other one has failed for good */
    options.produce_ranges = some;
    options.produce_range_count = 2;
    options.adaptive_max = 4;
    OK(penstock_table_create(job, &options, &table));
    OK(penstock_set_ranges(table, some, 2, values, 3));
    OK(penstock_set_ranges(table, &none, 1, NULL, 3));
    OK(penstock_set_ranges(table, NULL, 0, NULL, 3));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`ranges`", penstock_set_ranges(table, NULL, 1, values, 3));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`values`", penstock_set_ranges(table, some, 2, NULL, 3));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "7 to 9", penstock_set_ranges(table, &far, 1, values, 3));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "rows below 8", penstock_set_ranges(table, &endless, 1, values, 3));
    REFUSED(PENSTOCK_NOT_PRODUCER, "row 2", penstock_set_ranges(table, &one, 1, values, 3));
    REFUSED(PENSTOCK_CLOCK_BACKWARDS, "at least 3", penstock_set_ranges(table, some, 2, values, 2));
    REFUSED(PENSTOCK_BAD_OPTION, "not a sum", penstock_add_ranges(table, some, 2, values, 3));
    OK(penstock_set_row(table, 1, &values[3], 7));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "struct_size", penstock_get_ranges(table, some, 2, out, 3, 0, &call));
    call.struct_size = sizeof call;
    call.versions = versions;
    OK(penstock_get_ranges(table, some, 2, out, 3, 0, &call));
    HOLDS(out[0] == 40 && out[1] == 50 && out[2] == 0.5 && out[3] == 10);
    /* What was not set in an iteration counts as unchanged in it. */
    HOLDS(versions[0] == now && versions[1] == now && versions[2] == now && versions[3] == 7);
    OK(penstock_get_ranges(table, some, 1, out, 3, 0, NULL));
    REFUSED(PENSTOCK_UNKNOWN_ROW, "row 2", penstock_get_ranges(table, &one, 1, out, 3, 0, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "5 to 4", penstock_get_ranges(table, (const penstock_range[]){{5, 4}}, 1, out, 3, 0, NULL));
    OK(penstock_get_with(table, rows, 2, out, 3, 0, &call));
    HOLDS(out[0] == 50 && out[1] == 0.5 && versions[0] == now && versions[1] == now);
    OK(penstock_get_with(table, &row, 1, out, 7, 0, &call));
    HOLDS(out[0] == 10 && versions[0] == 7);
    OK(penstock_view_begin_with(table, 1, 7, 0, &view, &bytes, &call));
    HOLDS(versions[0] == 7 && *(const double *)bytes == 10);
    OK(penstock_view_end(view));
    call.timeout = -1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_get_with(table, rows, 2, out, 3, 0, &call));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "struct_size", penstock_table_stats(table, &counters));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`counters`", penstock_table_stats(table, NULL));
    counters.struct_size = offsetof(penstock_table_counters, gets);
    counters.gets = 77;
    OK(penstock_table_stats(table, &counters));
    HOLDS(counters.sets == 2 && counters.rows_set == 5 && counters.gets == 77); /* an older program's structure is shorter */
    counters.struct_size = sizeof counters;
    OK(penstock_table_stats(table, &counters));
    HOLDS(counters.gets >= 4 && counters.slack == 0 && counters.struct_size == sizeof counters);
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_job_stats(NULL, &all));
    all.struct_size = sizeof all;
    OK(penstock_job_stats(job, &all));
    HOLDS(all.pushes == 2 && all.pushed_bytes == 48);

    /* Dropped: everything is answered, and the name is free. */
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`table`", penstock_table_drop(NULL, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_table_drop(table, -1));
    OK(penstock_view_begin(table, 1, 7, 0, &view, &bytes));
    OK(penstock_table_drop(table, 0));
    HOLDS(*(const double *)bytes == 10);
    OK(penstock_view_end(view));
    REFUSED(PENSTOCK_TABLE_DROPPED, "`calls again` was dropped", penstock_table_drop(table, 0));
    REFUSED(PENSTOCK_TABLE_DROPPED, "hint: ", penstock_get_row(table, 1, out, 0, 0));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_set_row(table, 1, values, 9));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_add(table, rows, 2, values, 9));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_get_ranges(table, some, 2, out, 3, 0, NULL));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_prefetch(table, rows, 2, 0, 0));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_versions(table, rows, 2, versions));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_view_begin(table, 1, 7, 0, &view, &bytes));
    REFUSED(PENSTOCK_TABLE_DROPPED, NULL, penstock_table_stats(table, &counters));
    HOLDS(penstock_row_bytes(table) == sizeof(double));
    options.row_bytes = 2 * sizeof(double);
    OK(penstock_table_create(job, &options, &again));
    HOLDS(again != table && penstock_row_bytes(again) == 2 * sizeof(double));
}

static void sums(penstock_job *job)
{
    const penstock_range all = {0, 2};
    const uint64_t twice[3] = {0, 1, 0};
    const float parts[3] = {1, 2, 4};
    float out[2] = {0};
    penstock_table_options options = {0};
    penstock_table *table = NULL;

    options.name = "sum";
    options.rows = 2;
    options.row_bytes = sizeof(float);
    options.produce_ranges = options.consume_ranges = &all;
    options.produce_range_count = options.consume_range_count = 1;
    options.fold = PENSTOCK_FOLD_SUM;
    OK(penstock_table_create(job, &options, &table));
    REFUSED(PENSTOCK_BAD_OPTION, "is a sum", penstock_set(table, twice, 2, parts, 1));
    OK(penstock_add(table, twice, 3, parts, PENSTOCK_CLOCK_AUTO));
    OK(penstock_get(table, twice, 2, out, PENSTOCK_CLOCK_AUTO, 0));
    HOLDS(out[0] == 5 && out[1] == 2);
    OK(penstock_add_ranges(table, &all, 1, parts, PENSTOCK_CLOCK_AUTO));
    OK(penstock_get_ranges(table, &all, 1, out, PENSTOCK_CLOCK_AUTO, 0, NULL));
    HOLDS(out[0] == 6 && out[1] == 4);
}

int main(void)
{
    penstock_job *job = NULL;

    joining();
    OK(penstock_init(NULL, &job));
    if (job) {
        handles(job);
        tensors(job);
        rows(job);
        calls(job);
        sums(job);
        OK(penstock_finish(job));
    }
    return surprises != 0;
}
