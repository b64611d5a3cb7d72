/* Leaves a job that has failed: at once, and with the failure unless a call has told it. "told" hears it from a call; "untold FILE" calls
   nothing until the file is there. */
#define _POSIX_C_SOURCE 200112L
#include "expect.h"
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char **words)
{
    const int told = count < 3;
    penstock_status heard = PENSTOCK_OK;
    penstock_job *job;
    double since;

    OK(penstock_init(NULL, &job));
    printf("here\n");
    fflush(stdout);
    while (told && heard == PENSTOCK_OK)
        heard = penstock_barrier(job, 0);
    while (!told && access(words[2], F_OK) != 0) {
        const struct timespec soon = {0, 1000000};
        nanosleep(&soon, NULL);
    }
    since = now();
    if (told) {
        HOLDS(heard == PENSTOCK_SERVER_LOST);
        OK(penstock_finish(job));
    } else
        REFUSED(PENSTOCK_SERVER_LOST, "server 1", penstock_finish(job));
    /* Less than it takes to ask a single server in vain. */
    HOLDS(now() - since < 4);
    return surprises != 0;
}
