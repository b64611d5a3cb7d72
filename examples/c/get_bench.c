/*
 * What a get costs that finds a fresh row, through the C interface.
 *
 *     cc -O2 -o get_bench get_bench.c $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./get_bench         # rows of another process; alone: the own ones
 *
 * prints a line for each row size: nanoseconds of penstock_get_row(), and of a memcpy of the same bytes from as many rows,
 * which is the machine's limit; from the process that produces them, nanoseconds of penstock_set_row(). Medians of ROUNDS
 * rounds, and in brackets the least and the most. Rows are taken in a scattered order.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <string.h>
#include <time.h>

enum { ROWS = 1024, STRIDE = 389, ROUNDS = 31, CALLS = 20000, MOST_BYTES = 65536 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

typedef void work(penstock_table *table, uint64_t row, char *buffer, size_t bytes);

static char *plain;

static void get(penstock_table *table, uint64_t row, char *buffer, size_t bytes)
{
    (void)bytes;
    check(penstock_get_row(table, row, buffer, 1, 0));
}

static void set(penstock_table *table, uint64_t row, char *buffer, size_t bytes)
{
    (void)bytes;
    check(penstock_set_row(table, row, buffer, 1));
}

static void copy(penstock_table *table, uint64_t row, char *buffer, size_t bytes)
{
    (void)table;
    memcpy(buffer, plain + row * bytes, bytes);
}

static void measure(const char *name, work *one, penstock_table *table, char *buffer, size_t bytes)
{
    double times[ROUNDS];
    const int calls = bytes > 4096 ? CALLS / 16 : CALLS;
    uint64_t row = 0;
    int round, call;

    for (round = 0; round < ROUNDS; round++) {
        const double start = now();
        for (call = 0; call < calls; call++) {
            row = (row + STRIDE) % ROWS;
            one(table, row, buffer, bytes);
            __asm__ volatile("" : : "r"(buffer) : "memory"); /* the copy is wanted */
        }
        times[round] = (now() - start) / calls;
    }
    qsort(times, ROUNDS, sizeof times[0], ascending);
    printf("  %s %7.0f ns [%.0f to %.0f]", name, times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
}

int main(void)
{
    static const uint32_t sizes[] = {8, 64, 256, 1024, 4096, MOST_BYTES};
    char *buffer = malloc(MOST_BYTES), *expected = malloc(MOST_BYTES);
    const penstock_range all = {0, ROWS};
    penstock_job *job;
    int produces, consumes;
    size_t i;

    plain = malloc((size_t)ROWS * MOST_BYTES);
    if (!buffer || !expected || !plain)
        return 1;
    memset(plain, 1, (size_t)ROWS * MOST_BYTES); /* first touch is not what is measured */
    check(penstock_init(NULL, &job));
    produces = penstock_rank(job) == 0;
    consumes = penstock_rank(job) == penstock_size(job) - 1;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        penstock_table_options options = {0};
        penstock_table *table;
        char name[16];
        uint64_t row;

        sprintf(name, "rows%u", (unsigned)sizes[i]);
        options.name = name;
        options.rows = ROWS;
        options.row_bytes = sizes[i];
        options.produce_ranges = options.consume_ranges = &all;
        options.produce_range_count = produces;
        options.consume_range_count = consumes;
        check(penstock_table_create(job, &options, &table));
        for (row = 0; produces && row < ROWS; row++) {
            memset(buffer, (int)(row % 251), sizes[i]);
            check(penstock_set_row(table, row, buffer, 1));
        }
        for (row = 0; consumes && row < ROWS; row++) { /* what is measured is right */
            memset(expected, (int)(row % 251), sizes[i]);
            check(penstock_get_row(table, row, buffer, 1, 0));
            if (memcmp(buffer, expected, sizes[i]) != 0)
                return 1;
        }
        check(penstock_barrier(job, 0));
        if (consumes) {
            printf("%6u B", (unsigned)sizes[i]);
            measure("get", get, table, buffer, sizes[i]);
            measure("memcpy", copy, table, buffer, sizes[i]);
            printf(produces ? "" : "\n");
            fflush(stdout);
        }
        check(penstock_barrier(job, 0));
        if (produces) {
            if (!consumes)
                printf("%6u B", (unsigned)sizes[i]);
            measure("set", set, table, buffer, sizes[i]);
            printf("\n");
            fflush(stdout);
        }
        check(penstock_barrier(job, 0));
    }
    check(penstock_finish(job));
    free(plain);
    free(expected);
    free(buffer);
    return 0;
}
