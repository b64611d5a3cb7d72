/*
 * Least squares over words, by two or more workers that send few of their numbers: a filter of pushes sends the largest twentieth of
 * each contribution and carries the rest, a filter of broadcasts sends what has changed by more than a bound.
 *
 *     cc -o filter filter.c $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./filter
 *
 * prints, from worker 0, about "error 1.00 -> 0.00, 90 % held back": how far the weights are from the true ones, before and after, and of
 * how many elements its pushes held something back until they were flushed.
 */
#include "check.h"

enum { WORDS = 1000, IN_A_TEXT = 8, TEXTS = 64, ITERATIONS = 1500 };

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* What each word counts: 1 or -1. */
static float truth(uint32_t word)
{
    return word * 2654435761u >> 31 ? 1.0f : -1.0f;
}

/* The mean of squares. */
static float error_of(const float *weights)
{
    float sum = 0;
    uint32_t word;
    for (word = 0; word < WORDS; word++)
        sum += (weights[word] - truth(word)) * (weights[word] - truth(word));
    return sum / WORDS;
}

int main(void)
{
    static float weights[WORDS], gradient[WORDS];
    const uint64_t shape[1] = {WORDS};
    penstock_tensor_options options = {0};
    penstock_filters filters = {{0}, {0}};
    penstock_call exact = {0};
    penstock_job *job;
    penstock_tensor *tensor;
    uint32_t state;
    uint64_t held;
    float before;
    double norm;
    int i, text, at;

    check(penstock_init(NULL, &job));
    state = penstock_rank(job) + 1;
    filters.push = penstock_top_k(0.05);
    filters.broadcast = penstock_dvf(0.01);
    options.name = "w";
    options.dimensions = 1;
    options.shape = shape;
    options.optimizer = penstock_sgd(4);
    options.filters = &filters; /* every worker declares the same */
    check(penstock_tensor_create(job, &options, &tensor));
    before = error_of(weights);

    for (i = 0; i < ITERATIONS; i++) {
        check(penstock_pull_into(tensor, weights, sizeof weights, PENSTOCK_SLACK_DEFAULT)); /* what was let pass so far */
        for (at = 0; at < WORDS; at++)
            gradient[at] = 0;
        for (text = 0; text < TEXTS; text++) {
            uint32_t words[IN_A_TEXT];
            float error = 0;
            for (at = 0; at < IN_A_TEXT; at++) {
                words[at] = draw(&state) % WORDS;
                error += weights[words[at]] - truth(words[at]);
            }
            for (at = 0; at < IN_A_TEXT; at++)
                gradient[words[at]] += error / TEXTS;
        }
        check(penstock_push(tensor, gradient, sizeof gradient)); /* the rest goes with a later push */
        check(penstock_clock(job, NULL));
    }

    check(penstock_held_back(tensor, &norm, &held));
    check(penstock_flush(job, tensor, NULL)); /* every worker: all that was held back, of pushes and of the value */
    exact.struct_size = sizeof exact;
    exact.exact = 1;
    check(penstock_pull_into_with(tensor, weights, sizeof weights, 0, &exact)); /* behind a flush any pull reads the same */
    if (penstock_rank(job) == 0)
        printf("error %.2f -> %.2f, %d %% held back\n", before, error_of(weights), (int)(held * 100 / WORDS));
    check(penstock_clock(job, NULL));
    check(penstock_finish(job));
    return 0;
}
