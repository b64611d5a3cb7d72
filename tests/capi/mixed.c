/* One of a job's workers; mixed.py is the same in Python. Prints the bits of what it pulls last. */
#include "expect.h"

enum { ELEMENTS = 5, ITERATIONS = 7 };

int main(void)
{
    const uint64_t shape[1] = {ELEMENTS};
    penstock_tensor_options options = {0};
    penstock_job *job = NULL;
    penstock_tensor *tensor = NULL;
    float w[ELEMENTS] = {0};
    int i, j;

    OK(penstock_init(NULL, &job));
    if (surprises)
        return 1;
    options.name = "w";
    options.dimensions = 1;
    options.shape = shape;
    options.optimizer = penstock_sgd(0.1);
    OK(penstock_tensor_create(job, &options, &tensor));
    for (i = 0; i < ITERATIONS; i++) {
        float gradient[ELEMENTS];
        OK(penstock_pull_into(tensor, w, sizeof w, 0));
        for (j = 0; j < ELEMENTS; j++)
            gradient[j] = 0.5f * w[j] + (float)(1 + (int)penstock_rank(job) + j) / 7.0f;
        OK(penstock_push(tensor, gradient, sizeof gradient));
        OK(penstock_clock(job, NULL));
    }
    OK(penstock_pull_into(tensor, w, sizeof w, 0));
    printf("%u of %u:", (unsigned)penstock_rank(job), (unsigned)penstock_size(job));
    for (j = 0; j < ELEMENTS; j++) {
        uint32_t bits;
        memcpy(&bits, &w[j], sizeof bits);
        printf(" %08x", (unsigned)bits);
    }
    printf("\n");
    OK(penstock_finish(job));
    return surprises != 0;
}
