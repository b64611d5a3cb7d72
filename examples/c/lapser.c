/*
 * Lapser's program in five calls: init, table, set, get, finish. Every worker produces one item and reads all others,
 * which are never more than SLACK versions behind.
 *
 *     cc -o lapser lapser.c $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./lapser
 *
 * prints "10000 iterations, no item more than 5 versions late (at most S here)" from worker 0, S being what the run has seen.
 */
#include "check.h"

enum { WIDTH = 32, SLACK = 5, ITERATIONS = 10000 };

int main(void)
{
    penstock_job *job;
    penstock_table *items;
    penstock_table_options options = {0};
    penstock_range all = {0, 0};
    double item[WIDTH];
    uint64_t t, other, rank, size, most = 0;
    int i;

    check(penstock_init(NULL, &job));
    rank = penstock_rank(job);
    size = penstock_size(job);

    all.end = size;
    options.name = "items";
    options.rows = size;
    options.row_bytes = sizeof item;
    options.produce = &rank;
    options.produce_count = 1;
    options.consume_ranges = &all;
    options.consume_range_count = 1;
    check(penstock_table_create(job, &options, &items));

    for (t = 1; t <= ITERATIONS; t++) {
        for (i = 0; i < WIDTH; i++)
            item[i] = (double)t;
        check(penstock_set_row(items, rank, item, t));
        for (other = 0; other < size; other++) {
            check(penstock_get_row(items, other, item, t, SLACK)); /* waits while it is too old */
            for (i = 1; i < WIDTH; i++)
                if (item[i] != item[0] || item[0] + SLACK < (double)t)
                    return 1; /* never: torn, or too old */
            if (item[0] < (double)t && t - (uint64_t)item[0] > most)
                most = t - (uint64_t)item[0];
        }
    }
    if (rank == 0)
        printf("%d iterations, no item more than %d versions late (at most %d here)\n", ITERATIONS, SLACK, (int)most);
    check(penstock_finish(job));
    return 0;
}
