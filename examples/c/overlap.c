/*
 * Gets that wait while the program works: every worker relaxes its cells of a ring, the inner ones while the neighbours' edges are
 * still under way, and takes whichever edge comes first.
 *
 *     cc -o overlap overlap.c $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./overlap
 *
 * prints, from worker 0, how far the cells still are apart after 200 iterations: below 0.01.
 */
#include "check.h"
#include <string.h>

enum { CELLS = 8, ITERATIONS = 200, LEFT = 0, RIGHT = 1 };

int main(void)
{
    penstock_job *job;
    penstock_table *edges;
    penstock_table_options options = {0};
    penstock_range own, all = {0, 0};
    double cells[CELLS], next[CELLS], edge[2], least, most;
    uint64_t t, rank, size, neighbour[2];
    int i;

    check(penstock_init(NULL, &job));
    rank = penstock_rank(job);
    size = penstock_size(job);

    /* Two rows for each worker: its first cell and its last one. */
    own.first = 2 * rank;
    own.end = own.first + 2;
    all.end = 2 * size;
    options.name = "edges";
    options.rows = all.end;
    options.row_bytes = sizeof(double);
    options.produce_ranges = &own;
    options.consume_ranges = &all;
    options.produce_range_count = options.consume_range_count = 1;
    check(penstock_table_create(job, &options, &edges));
    neighbour[LEFT] = 2 * ((rank + size - 1) % size) + 1;
    neighbour[RIGHT] = 2 * ((rank + 1) % size);

    for (i = 0; i < CELLS; i++)
        cells[i] = (double)((rank * CELLS + (uint64_t)i) % 5);
    for (t = 1; t <= ITERATIONS; t++) {
        penstock_request *requests[2];
        double mine[2];
        int left;

        mine[LEFT] = cells[0];
        mine[RIGHT] = cells[CELLS - 1];
        check(penstock_set_ranges(edges, &own, 1, mine, t));
        for (i = LEFT; i <= RIGHT; i++)
            check(penstock_start_get(edges, &neighbour[i], 1, &edge[i], t, 0, NULL, &requests[i]));
        for (i = 1; i < CELLS - 1; i++) /* meanwhile */
            next[i] = (cells[i - 1] + cells[i] + cells[i + 1]) / 3;
        for (left = 2; left > 0; left--) {
            size_t which;
            check(penstock_wait_any(requests, 2, &which, 0));
            if (which == LEFT)
                next[0] = (edge[LEFT] + cells[0] + cells[1]) / 3;
            else
                next[CELLS - 1] = (cells[CELLS - 2] + cells[CELLS - 1] + edge[RIGHT]) / 3;
        }
        memcpy(cells, next, sizeof cells);
        check(penstock_clock(job, NULL));
    }
    least = most = cells[0];
    for (i = 1; i < CELLS; i++) {
        least = cells[i] < least ? cells[i] : least;
        most = cells[i] > most ? cells[i] : most;
    }
    if (rank == 0)
        printf("apart by %.4f\n", most - least);
    check(penstock_table_drop(edges, 0)); /* its memory is free here, in case the job goes on */
    check(penstock_finish(job));
    return 0;
}
