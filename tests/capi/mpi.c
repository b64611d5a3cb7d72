/* An MPI program that also uses Penstock: what each rank gives to a table, all ranks find there and in MPI's own sum. */
#include <mpi.h>
#include <penstock.h>
#include <stdio.h>
#include <stdlib.h>

static void check(penstock_status status)
{
    if (status != PENSTOCK_OK) {
        fprintf(stderr, "error: %s\n", penstock_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int count, char **words)
{
    const uint64_t row = 0;
    penstock_table_options options = {0};
    penstock_table *table;
    penstock_job *job;
    double own, all, sum;
    int rank;

    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    check(penstock_init(NULL, &job));
    own = rank + 1;

    options.name = "sum";
    options.rows = 1;
    options.row_bytes = sizeof own;
    options.dtype = PENSTOCK_F64;
    options.produce = options.consume = &row;
    options.produce_count = options.consume_count = 1;
    options.fold = PENSTOCK_FOLD_SUM;
    check(penstock_table_create(job, &options, &table));
    check(penstock_add(table, &row, 1, &own, PENSTOCK_CLOCK_AUTO));
    check(penstock_clock(job, NULL));
    check(penstock_get_row(table, row, &all, PENSTOCK_CLOCK_AUTO, 0));
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    printf("%d %d %g %g\n", rank == (int)penstock_rank(job), (int)penstock_size(job), all, sum);
    check(penstock_finish(job));
    MPI_Finalize();
    return 0;
}
