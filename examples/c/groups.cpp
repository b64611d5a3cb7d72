/*
 * C++: the processes of one launch in two jobs at a time. All are one job; the even ones and the odd ones have another each, by rank and
 * size of their own, as a communicator of MPI would give them.
 *
 *     c++ -o groups groups.cpp $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./groups
 *
 * prints, from worker 0, "2 workers, 1 in its group, sum 2, in the group 1" (3, 2, 3 and 2 under mpirun -n 3).
 */
#include <penstock.h>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>

static void check(penstock_status status)
{
    if (status != PENSTOCK_OK)
        throw std::runtime_error(penstock_last_error());
}

struct Leave {
    void operator()(penstock_job *job) const { penstock_finish(job); }
};
using Job = std::unique_ptr<penstock_job, Leave>;

/* What all workers of a job add up to, each adding 1. */
static float count(penstock_job *job)
{
    penstock_tensor_options options = {};
    options.name = "sum";
    options.reduce = PENSTOCK_SUM;
    penstock_tensor *sum;
    check(penstock_tensor_create(job, &options, &sum));
    const float one = 1;
    float all = 0;
    check(penstock_push(sum, &one, sizeof one));
    check(penstock_pull_into(sum, &all, sizeof all, 0));
    check(penstock_clock(job, nullptr));
    return all;
}

static Job all_of_them()
{
    penstock_job *job;
    check(penstock_init(nullptr, &job));
    return Job(job);
}

static Job group(std::uint32_t rank, std::uint32_t size)
{
    penstock_init_options options = {};
    options.struct_size = sizeof options;
    options.job = rank % 2 == 0 ? "even" : "odd";
    options.rank = rank / 2;
    options.size = rank % 2 == 0 ? (size + 1) / 2 : size / 2;
    penstock_job *job;
    check(penstock_init_with(&options, &job));
    return Job(job);
}

int main()
{
    try {
        const Job all = all_of_them();
        const std::uint32_t rank = penstock_rank(all.get()), size = penstock_size(all.get());
        const Job mine = group(rank, size);
        const float whole = count(all.get()), part = count(mine.get());
        if (rank == 0)
            std::printf("%u workers, %u in its group, sum %g, in the group %g\n", size, penstock_size(mine.get()), whole, part);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
    return 0;
}
