// Logistic regression over words with a vector for each, by two or more workers: of a large model only the rows that a batch names are
// pulled and pushed, while the next batch is drawn.
//
//     c++ -o words words.cpp $(pkg-config --cflags --libs penstock)
//     mpirun -n 2 ./words
//
// prints, from worker 0, which part of its texts it told right at first and in the end, about "right 0.8 -> 1.0".
#include <penstock.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

constexpr std::uint64_t words = 20000, common = 300; // of which most texts are made
constexpr std::size_t width = 16, in_a_text = 12, texts = 32;
constexpr int iterations = 300, some = 20;

void check(penstock_status status)
{
    if (status != PENSTOCK_OK)
        throw std::runtime_error(penstock_last_error());
}

// The texts of a batch: the words of each, and of which kind it is, which its words tell.
struct Batch {
    std::vector<std::uint64_t> rows;
    std::vector<float> kinds;

    explicit Batch(std::mt19937 &random)
    {
        for (std::size_t text = 0; text < texts; text++) {
            int sum = 0;
            for (std::size_t at = 0; at < in_a_text; at++) {
                rows.push_back(random() % (random() % 50 ? common : words));
                sum += rows.back() * 2654435761u >> 31 & 1 ? 1 : -1;
            }
            kinds.push_back(sum > 0 ? 1.0f : 0.0f);
        }
    }
};

// What the model says of a batch whose rows it is given: the gradient of each row, and which part is told right.
float gradients(const Batch &batch, const std::vector<float> &rows, std::vector<float> &gradient)
{
    int right = 0;
    for (std::size_t text = 0; text < texts; text++) {
        float sum = 0;
        for (std::size_t at = text * in_a_text * width; at < (text + 1) * in_a_text * width; at++)
            sum += rows[at];
        const float off = 1 / (1 + std::exp(-sum)) - batch.kinds[text];
        right += (sum > 0) == (batch.kinds[text] > 0.5f);
        for (std::size_t at = text * in_a_text * width; at < (text + 1) * in_a_text * width; at++)
            gradient[at] = off / float(texts);
    }
    return float(right) / float(texts);
}

void train()
{
    const std::uint64_t shape[2] = {words, width};
    penstock_job *job = nullptr;
    penstock_tensor *model = nullptr;
    penstock_request *request = nullptr;
    std::vector<float> rows(texts * in_a_text * width), gradient(rows.size());

    check(penstock_init(nullptr, &job));
    penstock_tensor_options options = {};
    options.name = "words";
    options.dimensions = 2;
    options.shape = shape;
    options.optimizer = penstock_sgd(0.5);
    options.sparse = 1; // between hosts what is not zero travels
    check(penstock_tensor_create(job, &options, &model));

    std::mt19937 random(7 + penstock_rank(job));
    float first = 0, last = 0;
    Batch batch(random);
    for (int i = 0; i < iterations; i++) {
        const std::size_t count = batch.rows.size(), bytes = rows.size() * sizeof(float);
        check(penstock_start_pull_rows(model, batch.rows.data(), count, rows.data(), bytes, PENSTOCK_SLACK_DEFAULT, nullptr, &request));
        Batch next(random);
        check(penstock_wait(&request, 0));
        const float right = gradients(batch, rows, gradient);
        first += i < some ? right / some : 0;
        last += i >= iterations - some ? right / some : 0;
        // A word that comes twice counts twice: its gradients are summed.
        check(penstock_push_rows(model, batch.rows.data(), count, gradient.data(), bytes, nullptr));
        check(penstock_clock(job, nullptr));
        batch = next;
    }
    if (penstock_rank(job) == 0)
        std::printf("right %.1f -> %.1f\n", first, last);
    check(penstock_finish(job));
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
