/* A load that worker 0 has to put off: the others see what is loaded in the end, and not that they were loaded before. */
#include "expect.h"

int main(void)
{
    penstock_job *job;
    penstock_tensor *tensor;
    penstock_tensor_options options = {0};
    penstock_call more = {0};
    const uint64_t shape[1] = {4};
    const float zero[4] = {0}, one[4] = {1, 1, 1, 1}, loaded[4] = {100, 100, 100, 100};
    float out[4];
    void *lane;
    uint32_t rank;

    OK(penstock_init(NULL, &job));
    rank = penstock_rank(job);
    options.name = "w";
    options.dimensions = 1;
    options.shape = shape;
    options.reduce = PENSTOCK_SUM;
    OK(penstock_tensor_create(job, &options, &tensor));
    if (rank == 0) {
        more.struct_size = sizeof more;
        more.more = 1;
        OK(penstock_push_with(tensor, one, sizeof one, &more));
        REFUSED(PENSTOCK_BAD_OPTION, "has not been sent", penstock_load(job, tensor, loaded, sizeof loaded, 0));
        OK(penstock_clock(job, NULL)); /* which drops it */
        REFUSED(PENSTOCK_BAD_ARGUMENT, "in the lane", penstock_push(tensor, NULL, 0));
        OK(penstock_load(job, tensor, loaded, sizeof loaded, 0));
        REFUSED(PENSTOCK_BAD_ARGUMENT, "in the lane", penstock_push(tensor, NULL, 0));
        OK(penstock_push(tensor, zero, sizeof zero));
    } else {
        OK(penstock_lane(tensor, &lane));
        OK(penstock_load(job, tensor, NULL, 0, 0));
        REFUSED(PENSTOCK_BAD_ARGUMENT, "in the lane", penstock_push(tensor, NULL, 0)); /* as on worker 0 */
        OK(penstock_pull_into(tensor, out, sizeof out, 0));
        HOLDS(out[0] == 100 && out[3] == 100);
        OK(penstock_clock(job, NULL));
        OK(penstock_push(tensor, zero, sizeof zero));
    }
    OK(penstock_clock(job, NULL));
    OK(penstock_pull_into(tensor, out, sizeof out, 0));
    HOLDS(out[0] == 100 && out[3] == 100);
    OK(penstock_finish(job));
    return surprises != 0;
}
