/* Threads that set, get and fail at the same time, each its own rows. Prints what is wrong, and ends with 0 if nothing is. */
#include <penstock.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 2000 };

static penstock_table *table;

static void *work(void *argument)
{
    const uint64_t row = *(const uint64_t *)argument, foreign = 100 + row;
    char expected[32];
    uint64_t round, value;

    sprintf(expected, "row %d ", (int)foreign);
    for (round = 1; round <= ROUNDS; round++) {
        if (penstock_set_row(table, row, &round, round) || penstock_get_row(table, row, &value, round, 0)) {
            printf("%s\n", penstock_last_error());
            return argument;
        }
        if (value != round) {
            printf("row %d: expected %d, got %d\n", (int)row, (int)round, (int)value);
            return argument;
        }
        if (penstock_get_row(table, foreign, &value, 0, 0) != PENSTOCK_UNKNOWN_ROW
            || !strstr(penstock_last_error(), expected)) {
            printf("expected %s, got %s\n", expected, penstock_last_error());
            return argument;
        }
    }
    return NULL;
}

int main(void)
{
    const penstock_range all = {0, THREADS};
    uint64_t rows[THREADS];
    penstock_table_options options = {0};
    pthread_t threads[THREADS];
    penstock_job *job;
    int at, wrong = 0;

    options.name = "rows";
    options.rows = 1000;
    options.row_bytes = sizeof(uint64_t);
    options.produce_ranges = &all;
    options.produce_range_count = 1;
    if (penstock_init(NULL, &job) || penstock_table_create(job, &options, &table)) {
        printf("%s\n", penstock_last_error());
        return 1;
    }
    for (at = 0; at < THREADS; at++) {
        rows[at] = (uint64_t)at;
        wrong |= pthread_create(&threads[at], NULL, work, &rows[at]) != 0;
    }
    for (at = 0; at < THREADS; at++) {
        void *result = NULL;
        wrong |= pthread_join(threads[at], &result) != 0 || result != NULL;
    }
    wrong |= penstock_finish(job) != PENSTOCK_OK;
    return wrong;
}
