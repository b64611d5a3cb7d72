/* Filters, rows, elements and factors: wrong calls, and right ones that have a corner. For one worker. Prints the line of each surprise. */
#include "expect.h"
#include <math.h>

enum { ROWS = 6, WIDTH = 2, ALL = ROWS * WIDTH };

static const uint64_t shape[2] = {ROWS, WIDTH};

static penstock_tensor_options named(const char *name)
{
    penstock_tensor_options options = {0};
    options.name = name;
    options.dimensions = 2;
    options.shape = shape;
    return options;
}

static penstock_call asked(void)
{
    penstock_call call = {0};
    call.struct_size = sizeof call;
    return call;
}

/* What no filter can be. The words of numbers are the core's. */
static void wrong_filters(penstock_job *job)
{
    const penstock_filter none = {0};
    penstock_tensor_options options = named("wrong");
    penstock_filters filters = {{0}, {0}};
    penstock_tensor *tensor = NULL;
    penstock_filter *each[2];
    const char *const which[2] = {"`push`", "`broadcast`"};
    int at;

    options.filters = &filters;
    each[0] = &filters.push;
    each[1] = &filters.broadcast;
    for (at = 0; at < 2; at++) {
        penstock_filter *const filter = each[at];
#define WRONG(status, text) REFUSED(status, text, penstock_tensor_create(job, &options, &tensor))
        filter->kind = 9; /* a program's own: Python has it */
        WRONG(PENSTOCK_BAD_ARGUMENT, which[at]);
        *filter = penstock_dvf(-1);
        WRONG(PENSTOCK_BAD_SETTINGS, "expected a number of at least 0 for `low` of the filter `DVF`, got -1");
        *filter = penstock_dvf(NAN);
        WRONG(PENSTOCK_BAD_SETTINGS, "expected a finite number for `low` of the filter `DVF`, got NaN");
        *filter = penstock_dvf(2);
        filter->up = 1;
        WRONG(PENSTOCK_BAD_SETTINGS, "expected a number of at least `low` for `up` of the filter `DVF`, got 1");
        filter->up = INFINITY;
        WRONG(PENSTOCK_BAD_SETTINGS, "expected a finite number for `up`");
        *filter = penstock_dvf(2);
        filter->sufficient = 1e6;
        WRONG(PENSTOCK_BAD_SETTINGS, "expected `up` beside `sufficient`, got 1000000 alone");
        filter->up = 3;
        filter->sufficient = -1;
        WRONG(PENSTOCK_BAD_SETTINGS, "bytes a second");
        *filter = penstock_top_k(0);
        WRONG(PENSTOCK_BAD_SETTINGS, "expected a number above 0 and at most 1 for `fraction` of the filter `TopK`, got 0");
        *filter = penstock_top_k(1.5);
        WRONG(PENSTOCK_BAD_SETTINGS, "`fraction`");
        filter->fraction = 0.5;
        filter->threshold = 1;
        WRONG(PENSTOCK_BAD_SETTINGS, "TopK has no `threshold`, so it must be 0, got 1");
        *filter = penstock_random_k(NAN, 0);
        WRONG(PENSTOCK_BAD_SETTINGS, "`fraction`");
        *filter = penstock_random_k(0.5, (uint64_t)1 << 53);
        WRONG(PENSTOCK_BAD_SETTINGS, "a whole number from 0 to 2^53 - 1 for `seed`");
        *filter = penstock_random_k(0.5, 7);
        filter->relative = 1;
        WRONG(PENSTOCK_BAD_SETTINGS, "RandomK has no `relative`");
        *filter = none;
        filter->without_decay = 1;
        WRONG(PENSTOCK_BAD_SETTINGS, "`wrong`: everything has no `without_decay`");
        *filter = penstock_dvf(1);
        filter->reserved_too[1] = 1;
        WRONG(PENSTOCK_BAD_ARGUMENT, "reserved");
        *filter = none;
    }
    filters.push.kind = PENSTOCK_QUANTIZE_2BIT;
    filters.push.threshold = -0.5;
    WRONG(PENSTOCK_BAD_SETTINGS, "expected a number above 0 that an element can hold for `threshold`");
    options.dtype = PENSTOCK_F16;
    filters.push.threshold = 1e-30;
    WRONG(PENSTOCK_BAD_SETTINGS, "`threshold`");
    options.dtype = PENSTOCK_F32;
    filters.push = none;
    filters.broadcast = penstock_dvf(1);
    options.optimizer.rule = PENSTOCK_REPLACE;
    WRONG(PENSTOCK_BAD_SETTINGS, "no filter of values where each contribution replaces the value");
    filters.broadcast = none;
    options.low_rank = 2000;
    WRONG(PENSTOCK_BAD_SETTINGS, "expected 0 to 1024 for `low_rank`, got 2000");
    options.low_rank = 4;
    options.dimensions = 1;
    WRONG(PENSTOCK_BAD_SETTINGS, "expected a matrix");
    HOLDS(tensor == NULL);
#undef WRONG
}

/* Another declaration of the same tensor. */
static void conflicts(penstock_job *job)
{
    penstock_tensor_options options = named("once"), others = named("once");
    penstock_filters filters = {{0}, {0}}, different = {{0}, {0}};
    penstock_tensor *tensor = NULL, *same = NULL;

    options.filters = &filters;
    filters.push = penstock_dvf(0.5);
    filters.broadcast = penstock_top_k(0.5);
    OK(penstock_tensor_create(job, &options, &tensor));
    OK(penstock_tensor_create(job, &options, &same));
    HOLDS(tensor == same);
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "filter of values TopK with fraction 0.5", penstock_tensor_create(job, &others, &same));
    others.filters = &different;
    different = filters;
    different.push.low = 0.25;
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "low 0.25", penstock_tensor_create(job, &others, &same));
    different = filters;
    different.push.up = 0.5; /* which is what it is without */
    OK(penstock_tensor_create(job, &others, &same));
    others.sparse = 1; /* encodings are there already */
    OK(penstock_tensor_create(job, &others, &same));
    others.low_rank = 1;
    REFUSED(PENSTOCK_DECLARATION_CONFLICT, "low_rank 0", penstock_tensor_create(job, &others, &same));
}

/* What is held back, until it is flushed; each direction by itself. */
static void held_back(penstock_job *job)
{
    const float first[ALL] = {4, -3, 2, 1, 0.5f, 0.25f};
    const uint64_t second[1] = {1}, fourth[1] = {3};
    float out[ALL] = {0}, exact[ALL] = {0};
    penstock_request *request = NULL;
    penstock_tensor_options options = named("held");
    penstock_filters filters = {{0}, {0}};
    penstock_call call = asked();
    penstock_tensor *pushed = NULL, *read = NULL, *plain = NULL;
    penstock_job *other = NULL;
    const void *value = NULL;
    uint64_t elements = 9, stamp = 9;
    double norm = 9;
    size_t count = 9;

    options.filters = &filters;
    filters.push = penstock_dvf(1);
    OK(penstock_tensor_create(job, &options, &pushed));
    options.name = "read";
    filters.push.kind = PENSTOCK_EVERYTHING;
    filters.push.low = 0;
    filters.broadcast = penstock_dvf(1);
    filters.broadcast.without_decay = 1;
    OK(penstock_tensor_create(job, &options, &read));
    options.name = "plain";
    options.filters = NULL;
    OK(penstock_tensor_create(job, &options, &plain));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`norm`", penstock_held_back(pushed, NULL, &elements));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`elements`", penstock_held_back(pushed, &norm, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_held_back(NULL, &norm, &elements));
    OK(penstock_held_back(pushed, &norm, &elements));
    HOLDS(norm == 0 && elements == 0);
    OK(penstock_push(pushed, first, sizeof first));
    OK(penstock_pull_into(pushed, out, sizeof out, 0));
    HOLDS(out[0] == 4 && out[1] == -3 && out[2] == 2 && out[3] == 0 && out[4] == 0);
    OK(penstock_held_back(pushed, &norm, &elements));
    HOLDS(elements == 3 && fabs(norm * norm - 1.3125) < 1e-12);
    OK(penstock_held_back(plain, &norm, &elements));
    HOLDS(norm == 0 && elements == 0);
    call.versions = &stamp;
    REFUSED(PENSTOCK_ALREADY_PUSHED, "penstock_clock()", penstock_flush(job, pushed, &call));
    HOLDS(stamp == 9);
    OK(penstock_clock(job, NULL));
    OK(penstock_flush(job, pushed, &call));
    HOLDS(stamp == penstock_iteration(job));
    OK(penstock_flush(job, pushed, &call)); /* nothing more */
    HOLDS(stamp == penstock_iteration(job));
    OK(penstock_pull_into(pushed, out, sizeof out, 0));
    HOLDS(memcmp(out, first, sizeof first) == 0);
    OK(penstock_held_back(pushed, &norm, &elements));
    HOLDS(norm == 0 && elements == 0);

    /* The value is there, and readers lack some of it. */
    OK(penstock_push(read, first, sizeof first));
    OK(penstock_pull_into(read, out, sizeof out, 0));
    HOLDS(out[0] == 4 && out[2] == 2 && out[3] == 0);
    OK(penstock_held_back(read, &norm, &elements));
    HOLDS(norm == 0 && elements == 0);
    call.exact = 1;
    OK(penstock_pull_into_with(read, exact, sizeof exact, 0, &call));
    HOLDS(memcmp(exact, first, sizeof first) == 0 && stamp == penstock_iteration(job) + 1);
    memset(exact, 0, sizeof exact);
    OK(penstock_pull_rows(read, second, 1, exact, 8, 0, &call));
    OK(penstock_pull_rows(read, second, 1, out, 8, 0, NULL));
    HOLDS(exact[0] == 2 && exact[1] == 1 && out[0] == 2 && out[1] == 0);
    OK(penstock_start_pull(read, exact, sizeof exact, 0, &call, &request));
    OK(penstock_wait(&request, 20));
    HOLDS(memcmp(exact, first, sizeof first) == 0);
    memset(exact, 0, sizeof exact);
    OK(penstock_start_pull_elements(read, fourth, 1, exact, 4, 0, &call, &request));
    OK(penstock_wait(&request, 20));
    HOLDS(exact[0] == 1);
    REFUSED(PENSTOCK_BAD_ARGUMENT, "penstock_pull_into_with()", penstock_pull_with(read, &value, 0, &call));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 48 bytes", penstock_pull_into_with(read, exact, 4, 0, &call));
    OK(penstock_pull_into_with(plain, exact, sizeof exact, 0, &call));
    HOLDS(exact[0] == 0);
    OK(penstock_flush(job, read, &call));
    HOLDS(stamp == UINT64_MAX);
    OK(penstock_pull_into(read, out, sizeof out, 0));
    HOLDS(memcmp(out, first, sizeof first) == 0);
    OK(penstock_flush(job, plain, NULL));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`job`", penstock_flush(NULL, read, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_flush(job, NULL, NULL));
    call.timeout = -1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_flush(job, read, &call));
    OK(penstock_init(NULL, &other));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`read` of another", penstock_flush(other, read, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`read` of another", penstock_load(other, read, first, sizeof first, 0));
    OK(penstock_finish(other));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_pressure(NULL, NULL, 0, &count, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`changes`", penstock_pressure(read, NULL, 1, &count, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`count`", penstock_pressure(read, NULL, 0, NULL, 0));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_pressure(read, NULL, 0, &count, NAN));
    HOLDS(count == 9);
    OK(penstock_pressure(read, NULL, 0, &count, 0));
    HOLDS(count == 0);
    OK(penstock_clock(job, NULL));
}

/* "auto" holds nothing back on one host. */
static void by_itself(penstock_job *job)
{
    const float given[ALL] = {1e-6f, 5, -7};
    float out[ALL] = {0};
    const penstock_filters filters = penstock_auto();
    penstock_pressed changes[32];
    penstock_tensor_options options = named("auto");
    penstock_tensor *tensor = NULL;
    size_t count = 9;

    options.filters = &filters;
    OK(penstock_tensor_create(job, &options, &tensor));
    OK(penstock_push(tensor, given, sizeof given));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(memcmp(out, given, sizeof given) == 0);
    OK(penstock_pressure(tensor, changes, 32, &count, 5));
    HOLDS(count == 0);
    OK(penstock_clock(job, NULL));
}

static void some(penstock_job *job)
{
    const uint64_t rows[3] = {5, 0, 5}, places[3] = {1, 11, 1}, beyond[2] = {0, ROWS}, far[2] = {ALL, 0};
    const float values[6] = {1, 2, 3, 4, 5, 6}, bad[2] = {1, NAN};
    float out[6] = {0};
    uint64_t crooked[3], version = 9;
    penstock_tensor_options options = named("some");
    penstock_call call = asked(), more = asked();
    penstock_tensor *tensor = NULL, *scalar = NULL;
    penstock_request *request = NULL;

    options.sparse = 1;
    options.refuse_nonfinite = 1;
    OK(penstock_tensor_create(job, &options, &tensor));
    options.name = "scalar";
    options.dimensions = 0;
    OK(penstock_tensor_create(job, &options, &scalar));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_push_rows(NULL, rows, 3, values, sizeof values, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`rows`", penstock_push_rows(tensor, NULL, 3, values, sizeof values, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`values`", penstock_push_rows(tensor, rows, 3, NULL, sizeof values, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "at most", penstock_push_rows(tensor, rows, SIZE_MAX / 2, values, sizeof values, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "at most", penstock_push_rows(tensor, rows, 3, values, SIZE_MAX, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "aligned",
            penstock_push_rows(tensor, (const uint64_t *)(const void *)((char *)crooked + 1), 1, values, 8, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 24 bytes", penstock_push_rows(tensor, rows, 3, values, 20, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 8 bytes for `some`, got 0", penstock_push_rows(tensor, rows, 1, NULL, 0, NULL));
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "expected indices from 0 to 5, got 6 at place 1",
            penstock_push_rows(tensor, beyond, 2, values, 16, NULL));
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "expected indices from 0 to 11, got 12 at place 0",
            penstock_push_elements(tensor, far, 2, values, 8, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`indices`", penstock_push_elements(tensor, NULL, 3, values, 12, NULL));
    REFUSED(PENSTOCK_NON_FINITE, "element 11", penstock_push_elements(tensor, places, 2, bad, sizeof bad, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "no rows", penstock_push_rows(scalar, beyond, 1, values, 4, NULL));
    more.timeout = -1;
    REFUSED(PENSTOCK_BAD_ARGUMENT, "timeout", penstock_push_rows(tensor, rows, 3, values, sizeof values, &more));

    /* What is named twice is summed; parts too. */
    more = asked();
    more.more = 1;
    call.versions = &version;
    OK(penstock_push_rows(tensor, rows, 3, values, sizeof values, &more));
    OK(penstock_push_elements(tensor, places, 3, values, 12, &call));
    HOLDS(version == penstock_iteration(job));
    REFUSED(PENSTOCK_ALREADY_PUSHED, "penstock_clock()", penstock_push_rows(tensor, rows, 3, values, sizeof values, NULL));
    OK(penstock_pull_rows(tensor, rows, 3, out, sizeof out, 0, &call));
    HOLDS(version == penstock_iteration(job) + 1);
    HOLDS(out[0] == 6 && out[1] == 10 && out[2] == 3 && out[3] == 8 && out[4] == 6 && out[5] == 10);
    OK(penstock_pull_elements(tensor, places, 3, out, 12, PENSTOCK_SLACK_DEFAULT, NULL));
    HOLDS(out[0] == 8 && out[1] == 10 && out[2] == 8);
    OK(penstock_clock(job, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "in the lane", penstock_push(tensor, NULL, 0));
    OK(penstock_push_rows(tensor, NULL, 0, NULL, 0, NULL)); /* zeros */
    OK(penstock_push_elements(scalar, beyond, 1, values, 4, NULL));
    OK(penstock_pull_elements(scalar, beyond, 1, out, 4, 0, NULL));
    HOLDS(out[0] == 1);

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_pull_rows(NULL, rows, 3, out, sizeof out, 0, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`rows`", penstock_pull_rows(tensor, NULL, 3, out, sizeof out, 0, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_pull_rows(tensor, rows, 3, NULL, sizeof out, 0, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 24 bytes", penstock_pull_rows(tensor, rows, 3, out, 12, 0, NULL));
    REFUSED(PENSTOCK_BAD_OPTION, "slack", penstock_pull_rows(tensor, rows, 3, out, sizeof out, -5, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "no rows", penstock_pull_rows(scalar, beyond, 1, out, 4, 0, NULL));
    out[0] = 77;
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "hint: indices count from 0", penstock_pull_rows(tensor, beyond, 2, out, 16, 0, NULL));
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "got 12", penstock_pull_elements(tensor, far, 2, out, 8, 0, NULL));
    HOLDS(out[0] == 77);
    OK(penstock_pull_rows(tensor, NULL, 0, NULL, 0, 0, NULL));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`rows`", penstock_start_push_rows(tensor, NULL, 3, values, sizeof values, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`values`", penstock_start_push_elements(tensor, places, 3, NULL, 12, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`request`", penstock_start_push_rows(tensor, rows, 3, values, sizeof values, NULL, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`out`", penstock_start_pull_rows(tensor, rows, 3, NULL, sizeof out, 0, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`indices`", penstock_start_pull_elements(tensor, NULL, 3, out, 12, 0, NULL, &request));
    REFUSED(PENSTOCK_BAD_SHAPE, "no rows", penstock_start_pull_rows(scalar, beyond, 1, out, 4, 0, NULL, &request));
    HOLDS(request == NULL);
    OK(penstock_clock(job, NULL));
    OK(penstock_start_push_rows(tensor, beyond, 2, values, 16, NULL, &request));
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "got 6", penstock_wait(&request, 20));
    OK(penstock_start_pull_elements(tensor, far, 2, out, 8, 0, NULL, &request));
    REFUSED(PENSTOCK_UNKNOWN_ELEMENT, "got 12", penstock_wait(&request, 20));
    OK(penstock_clock(job, NULL));
}

static void factors(penstock_job *job)
{
    const float u[ROWS] = {1, 2, 3, 4, 5, 6}, v[WIDTH] = {1, -1};
    float out[ALL] = {0};
    penstock_tensor_options options = named("factors");
    penstock_tensor *tensor = NULL, *flat = NULL;
    penstock_request *request = NULL;

    options.low_rank = 2;
    OK(penstock_tensor_create(job, &options, &tensor));
    options.name = "flat";
    options.low_rank = 0;
    options.dimensions = 1;
    OK(penstock_tensor_create(job, &options, &flat));

    REFUSED(PENSTOCK_BAD_ARGUMENT, "`tensor`", penstock_push_factors(NULL, u, sizeof u, v, sizeof v, 1, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`u`", penstock_push_factors(tensor, NULL, sizeof u, v, sizeof v, 1, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`v`", penstock_push_factors(tensor, u, sizeof u, NULL, sizeof v, 1, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 24 bytes for `factors`, got 20", penstock_push_factors(tensor, u, 20, v, sizeof v, 1, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 8 bytes for `factors`, got 24", penstock_push_factors(tensor, u, sizeof u, u, sizeof u, 1, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "expected 48 bytes", penstock_push_factors(tensor, u, sizeof u, v, sizeof v, 2, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "got 24", penstock_push_factors(tensor, u, sizeof u, v, sizeof v, SIZE_MAX, NULL));
    REFUSED(PENSTOCK_BAD_SHAPE, "push the product", penstock_push_factors(flat, u, sizeof u, v, sizeof v, 1, NULL));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`v`", penstock_start_push_factors(tensor, u, sizeof u, NULL, 8, 1, NULL, &request));
    REFUSED(PENSTOCK_BAD_ARGUMENT, "`request`", penstock_start_push_factors(tensor, u, sizeof u, v, 8, 1, NULL, NULL));
    OK(penstock_push_factors(tensor, u, sizeof u, v, sizeof v, 1, NULL));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(out[0] == 1 && out[1] == -1 && out[10] == 6 && out[11] == -6);
    OK(penstock_clock(job, NULL));
    OK(penstock_push_factors(tensor, NULL, 0, NULL, 0, 0, NULL)); /* zeros */
    OK(penstock_clock(job, NULL));
    OK(penstock_start_push_factors(tensor, u, sizeof u, v, sizeof v, 1, NULL, &request));
    OK(penstock_wait(&request, 20));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(out[10] == 12 && out[11] == -12);
    OK(penstock_clock(job, NULL));
}

int main(void)
{
    penstock_job *job = NULL;

    OK(penstock_init(NULL, &job));
    if (job) {
        wrong_filters(job);
        conflicts(job);
        held_back(job);
        by_itself(job);
        some(job);
        factors(job);
        OK(penstock_finish(job));
    }
    return surprises != 0;
}
