// Matrix factorization by stochastic gradient descent: R is about U V', each worker with its own share of the ratings.
//
//     c++ -o mf mf.cpp $(pkg-config --cflags --libs penstock)
//     mpirun -n 2 ./mf
//
// prints the error of worker 0's share before and after, about "rmse 1.06 -> 0.09"; the ratings' own noise is 0.10. U and V
// are tables that every worker adds to (PENSTOCK_FOLD_SUM), read at most one iteration behind: stale synchronous parallel,
// without a barrier.
#include <penstock.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

constexpr std::uint64_t users = 120, movies = 80;
constexpr std::size_t rank_of_model = 4;
constexpr std::int64_t slack = 1;
constexpr int iterations = 60;
constexpr double noise = 0.1;

void check(penstock_status status)
{
    if (status != PENSTOCK_OK)
        throw std::runtime_error(penstock_last_error());
}

// A job that is left when the scope is: politely, or because of an exception.
class Job {
public:
    Job() { check(penstock_init(nullptr, &job_)); }
    ~Job() { penstock_fail(job_, "an exception"); }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    operator penstock_job *() const { return job_; }

    void finish()
    {
        penstock_job *job = job_;
        job_ = nullptr;
        check(penstock_finish(job));
    }

private:
    penstock_job *job_ = nullptr;
};

// Rows of doubles that every worker reads, and adds to.
class Factors {
public:
    Factors(const Job &job, const char *name, std::uint64_t rows) : values_(rows * rank_of_model), step_(values_.size())
    {
        for (std::uint64_t row = 0; row < rows; row++)
            rows_.push_back(row);
        const penstock_range all = {0, rows};
        penstock_table_options options = {};
        options.name = name;
        options.rows = rows;
        options.row_bytes = rank_of_model * sizeof(double);
        options.dtype = PENSTOCK_F64;
        options.produce_ranges = options.consume_ranges = &all;
        options.produce_range_count = options.consume_range_count = 1;
        options.fold = PENSTOCK_FOLD_SUM;
        options.slack = slack;
        check(penstock_table_create(job, &options, &table_));
    }

    // All rows; waits for workers that are more than `slack` behind.
    void read(std::int64_t slack_of_read = PENSTOCK_SLACK_DEFAULT)
    {
        check(penstock_get(table_, rows_.data(), rows_.size(), values_.data(), PENSTOCK_CLOCK_AUTO, slack_of_read));
    }

    // Adds the step to the rows, all together, and begins a new one.
    void write()
    {
        check(penstock_add(table_, rows_.data(), rows_.size(), step_.data(), PENSTOCK_CLOCK_AUTO));
        step_.assign(step_.size(), 0.0);
    }

    const double *row(std::uint64_t at) const { return &values_[at * rank_of_model]; }
    double *step(std::uint64_t at) { return &step_[at * rank_of_model]; }

private:
    penstock_table *table_ = nullptr;
    std::vector<std::uint64_t> rows_;
    std::vector<double> values_, step_;
};

struct Rating {
    std::uint64_t user, movie;
    double stars;
};

// The whole matrix, of known rank; every worker makes the same and keeps its share.
std::vector<Rating> ratings(std::uint32_t rank, std::uint32_t size)
{
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    const double scale = std::pow(double(rank_of_model), -0.25); // so that the stars' variance is 1
    std::vector<double> u(users * rank_of_model), v(movies * rank_of_model);
    for (double &x : u)
        x = scale * normal(random);
    for (double &x : v)
        x = scale * normal(random);
    std::vector<Rating> share;
    for (std::uint64_t i = 0; i < users; i++)
        for (std::uint64_t j = 0; j < movies; j++) {
            double stars = noise * normal(random);
            for (std::size_t k = 0; k < rank_of_model; k++)
                stars += u[i * rank_of_model + k] * v[j * rank_of_model + k];
            if ((i * movies + j) % size == rank)
                share.push_back({i, j, stars});
        }
    return share;
}

double error_of(const Rating &rating, const Factors &u, const Factors &v)
{
    double guess = 0;
    for (std::size_t k = 0; k < rank_of_model; k++)
        guess += u.row(rating.user)[k] * v.row(rating.movie)[k];
    return rating.stars - guess;
}

double rmse(const std::vector<Rating> &share, const Factors &u, const Factors &v)
{
    double sum = 0;
    for (const Rating &rating : share)
        sum += std::pow(error_of(rating, u, v), 2);
    return std::sqrt(sum / double(share.size()));
}

void train()
{
    Job job;
    const std::uint32_t rank = penstock_rank(job), size = penstock_size(job);
    const std::vector<Rating> share = ratings(rank, size);
    Factors u(job, "U", users), v(job, "V", movies);

    if (rank == 0) { // a start that is not flat; the others add nothing yet
        std::mt19937 random(11);
        std::normal_distribution<double> small(0.0, 0.3);
        for (std::uint64_t at = 0; at < users * rank_of_model; at++)
            u.step(0)[at] = small(random);
        for (std::uint64_t at = 0; at < movies * rank_of_model; at++)
            v.step(0)[at] = small(random);
    }
    u.write();
    v.write();
    check(penstock_clock(job, nullptr));
    u.read(0);
    v.read(0);
    const double before = rmse(share, u, v);

    const double rate_u = 0.8 / movies, rate_v = 0.8 / users;
    for (int i = 0; i < iterations; i++) {
        u.read();
        v.read();
        for (const Rating &rating : share) {
            const double error = error_of(rating, u, v);
            for (std::size_t k = 0; k < rank_of_model; k++) {
                u.step(rating.user)[k] += rate_u * error * v.row(rating.movie)[k];
                v.step(rating.movie)[k] += rate_v * error * u.row(rating.user)[k];
            }
        }
        u.write();
        v.write();
        check(penstock_clock(job, nullptr));
    }

    u.read(0);
    v.read(0);
    if (rank == 0)
        std::printf("rmse %.2f -> %.2f\n", before, rmse(share, u, v));
    job.finish();
}

} // namespace

int main()
{
    try {
        train();
        return EXIT_SUCCESS;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return EXIT_FAILURE;
    }
}
