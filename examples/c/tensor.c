/*
 * Least squares by two or more workers, each with its own share of the rows: tensors from C.
 *
 *     cc -o tensor tensor.c $(pkg-config --cflags --libs penstock)
 *     mpirun -n 2 ./tensor
 *
 * prints, from worker 0, weights within 0.01 of 2 -1 0.5 3.
 */
#include "check.h"

enum { WEIGHTS = 4, ROWS = 32, ITERATIONS = 200 };

/* A number between -1 and 1, each worker its own. */
static float draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1u << 23) - 1.0f;
}

int main(void)
{
    static const float truth[WEIGHTS] = {2.0f, -1.0f, 0.5f, 3.0f};
    const uint64_t shape[1] = {WEIGHTS};
    penstock_tensor_options options = {0};
    penstock_job *job;
    penstock_tensor *tensor;
    uint32_t state;
    int i, j, row;

    check(penstock_init(NULL, &job));
    state = penstock_rank(job) + 1;
    options.name = "w";
    options.dimensions = 1;
    options.shape = shape;
    options.optimizer = penstock_sgd(0.3);
    options.optimizer.momentum = 0.5;
    check(penstock_tensor_create(job, &options, &tensor));

    for (i = 0; i < ITERATIONS; i++) {
        float gradient[WEIGHTS] = {0};
        const void *value;
        const float *w;

        if (i == ITERATIONS / 2)
            check(penstock_set_lr(tensor, 0.1));
        check(penstock_pull(tensor, &value, PENSTOCK_SLACK_DEFAULT)); /* in place: nothing is copied */
        w = value;
        for (row = 0; row < ROWS; row++) {
            float x[WEIGHTS], error = 0;
            for (j = 0; j < WEIGHTS; j++) {
                x[j] = draw(&state);
                error += x[j] * (w[j] - truth[j]);
            }
            for (j = 0; j < WEIGHTS; j++)
                gradient[j] += x[j] * error / ROWS;
        }
        check(penstock_push(tensor, gradient, sizeof gradient)); /* returns at once */
        check(penstock_clock(job, NULL));
    }

    if (penstock_rank(job) == 0) {
        float w[WEIGHTS];
        check(penstock_pull_into(tensor, w, sizeof w, 0));
        printf("weights %.2f %.2f %.2f %.2f\n", w[0], w[1], w[2], w[3]);
    }
    check(penstock_finish(job));
    return 0;
}
