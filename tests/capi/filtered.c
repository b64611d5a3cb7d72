/* One of a job's workers, which pushes through every filter, and rows, elements and factors; filtered.py is the same in Python. Prints
 * what it read, which is the same on every worker. With "conflict": one whose filter is not the others'. */
#include "expect.h"

enum { ROWS = 70, WIDTH = 11, ELEMENTS = ROWS * WIDTH, RANK = 2, ITERATIONS = 7, FILTERED = 17 };

static const char *const names[FILTERED] = {"dvf",  "follows", "relative", "top",      "random",        "f16",      "bf16", "int8",
                                            "2bit", "1bit",    "b.dvf",    "b.random", "b.int8", "b.streamed", "auto",   "b.f16",    "b.2bit"};

static penstock_filters filters_of(int which)
{
    penstock_filters filters = {{0}, {0}};

    switch (which) {
    case 0: filters.push = penstock_dvf(0.5); break;
    case 1: filters.push = penstock_dvf(0.25); filters.push.up = 0.5; filters.push.sufficient = 1; break;
    case 2: filters.push = penstock_dvf(1); filters.push.relative = filters.push.without_decay = 1; break;
    case 3: filters.push = penstock_top_k(0.1); break;
    case 4: filters.push = penstock_random_k(0.25, 7); break;
    case 8: filters.push.threshold = 0.25; filters.push.kind = PENSTOCK_QUANTIZE_2BIT; break;
    case 10: filters.broadcast = penstock_dvf(0.5); filters.broadcast.without_decay = 1; break;
    case 11: filters.broadcast = penstock_random_k(0.25, 3); break;
    case 12: filters.broadcast.kind = PENSTOCK_QUANTIZE_INT8; break;
    case 13: filters.push = penstock_top_k(0.5); filters.broadcast = penstock_top_k(0.5); break;
    case 14: filters = penstock_auto(); break;
    case 15: filters.broadcast.kind = PENSTOCK_QUANTIZE_F16; break;
    case 16: filters.broadcast.kind = PENSTOCK_QUANTIZE_2BIT; filters.broadcast.threshold = 0.75; break;
    default: filters.push.kind = PENSTOCK_QUANTIZE_F16 + (uint32_t)which - 5; break;
    }
    return filters;
}

/* Exact in every form of a float. */
static float number(uint32_t rank, int iteration, int at)
{
    return (float)((int)(rank * 7 + (uint32_t)iteration * 13 + (uint32_t)at * 29) % 41 - 20) / 8;
}

static uint32_t seen = 2166136261u;

static void note(const void *bytes, size_t count)
{
    size_t at;
    for (at = 0; at < count; at++)
        seen = (seen ^ ((const unsigned char *)bytes)[at]) * 16777619u;
}

static void filtered(penstock_job *job, penstock_tensor *const *tensors, int iteration)
{
    static float gradient[ELEMENTS], value[ELEMENTS];
    int which, at;

    for (at = 0; at < ELEMENTS; at++)
        gradient[at] = number(penstock_rank(job), iteration, at);
    for (which = 0; which < FILTERED; which++)
        OK(penstock_push(tensors[which], gradient, sizeof gradient));
    for (which = 0; which < FILTERED; which++) {
        OK(penstock_pull_into(tensors[which], value, sizeof value, 0));
        note(value, sizeof value);
    }
}

static void some(penstock_job *job, penstock_tensor *tensor, penstock_tensor *product, int iteration)
{
    const uint32_t rank = penstock_rank(job);
    const uint64_t rows[3] = {(rank + (uint64_t)iteration) % ROWS, ROWS - 1, (rank + (uint64_t)iteration) % ROWS};
    const uint64_t read[2] = {ROWS - 1, (uint64_t)iteration}, places[2] = {ELEMENTS - 1, (uint64_t)iteration * 3};
    static float values[3 * WIDTH], out[2 * WIDTH], u[ROWS * RANK], v[RANK * WIDTH], whole[ELEMENTS];
    penstock_call more = {0};
    penstock_request *requests[3] = {NULL, NULL, NULL};
    int at;

    for (at = 0; at < 3 * WIDTH; at++)
        values[at] = number(rank, iteration, at);
    for (at = 0; at < ROWS * RANK; at++)
        u[at] = number(rank, iteration, at);
    for (at = 0; at < RANK * WIDTH; at++)
        v[at] = number(rank, iteration + 1, at);
    more.struct_size = sizeof more;
    more.more = 1;
    if (iteration % 2) {
        OK(penstock_start_push_rows(tensor, rows, 3, values, sizeof values, &more, &requests[0]));
        OK(penstock_start_push_elements(tensor, places, 2, values, 2 * sizeof *values, NULL, &requests[1]));
        OK(penstock_start_push_factors(product, u, sizeof u, v, sizeof v, RANK, NULL, &requests[2]));
        for (at = 0; at < 3; at++)
            OK(penstock_wait(&requests[at], 0));
        OK(penstock_start_pull_rows(tensor, read, 2, out, sizeof out, 0, NULL, &requests[0]));
        OK(penstock_wait(&requests[0], 0));
        note(out, sizeof out);
        OK(penstock_start_pull_elements(tensor, places, 2, out, 2 * sizeof *out, 0, NULL, &requests[1]));
        OK(penstock_wait(&requests[1], 0));
    } else {
        OK(penstock_push_rows(tensor, rows, 3, values, sizeof values, &more));
        OK(penstock_push_elements(tensor, places, 2, values, 2 * sizeof *values, NULL));
        OK(penstock_push_factors(product, u, sizeof u, v, sizeof v, RANK, NULL));
        OK(penstock_pull_rows(tensor, read, 2, out, sizeof out, 0, NULL));
        note(out, sizeof out);
        OK(penstock_pull_elements(tensor, places, 2, out, 2 * sizeof *out, 0, NULL));
    }
    note(out, 2 * sizeof *out);
    OK(penstock_pull_into(product, whole, sizeof whole, 0));
    note(whole, sizeof whole);
}

/* What was held back, all of it. */
static void flush(penstock_job *job, penstock_tensor *const *tensors)
{
    static float value[ELEMENTS], exact[ELEMENTS];
    penstock_call call = {0};
    uint64_t elements = 9, held = 0;
    double norm = 9;
    int which;

    call.struct_size = sizeof call;
    call.exact = 1;
    for (which = 0; which < FILTERED; which++) {
        OK(penstock_held_back(tensors[which], &norm, &elements));
        held += elements > 0;
        OK(penstock_flush(job, tensors[which], NULL));
        OK(penstock_held_back(tensors[which], &norm, &elements));
        HOLDS(norm == 0 && elements == 0);
        OK(penstock_pull_into(tensors[which], value, sizeof value, 0));
        OK(penstock_pull_into_with(tensors[which], exact, sizeof exact, 0, &call));
        HOLDS(memcmp(value, exact, sizeof value) == 0);
        note(value, sizeof value);
    }
    HOLDS(held > 4);
    OK(penstock_clock(job, NULL));
}

static void conflict(penstock_job *job)
{
    penstock_filters filters = {{0}, {0}};
    penstock_tensor_options options = {0};
    penstock_tensor *tensor = NULL;

    options.name = "same";
    options.filters = &filters;
    filters.push = penstock_dvf(penstock_rank(job) == 0 ? 0.5 : 0.25);
    if (penstock_rank(job) == 0)
        OK(penstock_tensor_create(job, &options, &tensor));
    OK(penstock_barrier(job, 0));
    if (penstock_rank(job) == 1)
        REFUSED(PENSTOCK_DECLARATION_CONFLICT, "DVF with low 0.25", penstock_tensor_create(job, &options, &tensor));
    OK(penstock_barrier(job, 0));
}

int main(int count, char **words)
{
    const uint64_t shape[2] = {ROWS, WIDTH};
    penstock_tensor_options options = {0};
    penstock_filters filters;
    penstock_job *job = NULL;
    penstock_tensor *tensors[FILTERED], *few, *product;
    int which, iteration;

    OK(penstock_init(NULL, &job));
    if (surprises)
        return 1;
    if (count > 1 && strcmp(words[1], "conflict") == 0) {
        conflict(job);
        OK(penstock_finish(job));
        return surprises != 0;
    }
    options.dimensions = 2;
    options.shape = shape;
    options.optimizer = penstock_sgd(0.5);
    options.filters = &filters;
    for (which = 0; which < FILTERED; which++) {
        filters = filters_of(which);
        options.name = names[which];
        options.propagation = which == 13 ? "broadcast" : NULL;
        OK(penstock_tensor_create(job, &options, &tensors[which]));
    }
    options.propagation = NULL;
    options.filters = NULL;
    options.name = "some";
    options.sparse = 1;
    OK(penstock_tensor_create(job, &options, &few));
    options.name = "product";
    options.sparse = 0;
    options.low_rank = RANK;
    OK(penstock_tensor_create(job, &options, &product));
    if (surprises)
        return 1;
    for (iteration = 0; iteration < ITERATIONS; iteration++) {
        filtered(job, tensors, iteration);
        some(job, few, product, iteration);
        OK(penstock_clock(job, NULL));
    }
    flush(job, tensors);
    printf("%u of %u: %08x\n", (unsigned)penstock_rank(job), (unsigned)penstock_size(job), (unsigned)seen);
    OK(penstock_finish(job));
    return surprises != 0;
}
