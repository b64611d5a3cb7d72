/* Leaves a job that has failed: at once, and with the failure unless a call has told it. "told" hears it from a call; "untold FILE" calls
 * nothing until the file is there. The others call nothing until then either, and hear it from a request, which a thread of the library's
 * carries out ("wait", "test", "any"), from a push that was started ("clock"), in another thread ("thread"), or not, although a request
 * has failed with it ("unheard"). */
#define _POSIX_C_SOURCE 200112L
#include "expect.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { ELEMENTS = 4 };

static const uint64_t four = ELEMENTS;
static const float one[ELEMENTS] = {1, 1, 1, 1};

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void wait_shortly(void)
{
    const struct timespec soon = {0, 1000000};
    nanosleep(&soon, NULL);
}

static penstock_tensor *declare(penstock_job *job)
{
    penstock_tensor_options options = {0};
    penstock_tensor *tensor = NULL;

    options.name = "w";
    options.dimensions = 1;
    options.shape = &four;
    OK(penstock_tensor_create(job, &options, &tensor));
    return tensor;
}

static void *barriers(void *job)
{
    static penstock_status heard = PENSTOCK_OK;

    while (heard == PENSTOCK_OK)
        heard = penstock_barrier(job, 0);
    return &heard;
}

/* What a request says of the job, once it says something; it is asked for in the way that `how` says. */
static penstock_status told_by_a_request(penstock_tensor *tensor, const char *how)
{
    penstock_status heard = PENSTOCK_OK;
    float out[ELEMENTS];
    int done;
    size_t which;

    while (heard == PENSTOCK_OK) {
        penstock_request *pull = NULL;

        OK(penstock_start_pull(tensor, out, sizeof out, PENSTOCK_SLACK_DEFAULT, NULL, &pull));
        if (!strcmp(how, "wait"))
            heard = penstock_wait(&pull, 0);
        else if (!strcmp(how, "any"))
            heard = penstock_wait_any(&pull, 1, &which, 0);
        else
            for (done = 0; !done; wait_shortly())
                heard = penstock_test(&pull, &done);
    }
    return heard;
}

static penstock_status told(penstock_job *job, penstock_tensor *tensor, const char *how)
{
    penstock_status heard = PENSTOCK_OK;
    penstock_request *push = NULL;
    pthread_t other;
    void *there = &heard;

    if (!strcmp(how, "thread")) {
        HOLDS(pthread_create(&other, NULL, barriers, job) == 0 && pthread_join(other, &there) == 0);
        return *(penstock_status *)there;
    }
    if (strcmp(how, "clock") != 0)
        return told_by_a_request(tensor, how);
    while (heard == PENSTOCK_OK) {
        OK(penstock_start_push(tensor, one, sizeof one, NULL, &push));
        heard = penstock_clock(job, NULL);
    }
    return heard;
}

/* A request meets the failure, and no call asks what became of it. */
static void ask_in_vain(penstock_tensor *tensor)
{
    static float out[ELEMENTS];
    penstock_request *pull = NULL;
    int i;

    OK(penstock_start_pull(tensor, out, sizeof out, PENSTOCK_SLACK_DEFAULT, NULL, &pull));
    for (i = 0; i < 500; i++)
        wait_shortly();
}

int main(int count, char **words)
{
    const char *how = words[1], *file = count > 2 ? words[2] : NULL;
    const int hears = strcmp(how, "untold") != 0 && strcmp(how, "unheard") != 0;
    penstock_status heard = PENSTOCK_OK;
    penstock_tensor *tensor;
    penstock_job *job;
    double since;

    OK(penstock_init(NULL, &job));
    tensor = declare(job);
    printf("here\n");
    fflush(stdout);
    while (!file && heard == PENSTOCK_OK)
        heard = penstock_barrier(job, 0);
    while (file && access(file, F_OK) != 0)
        wait_shortly();
    if (file && hears)
        heard = told(job, tensor, how);
    if (!strcmp(how, "unheard"))
        ask_in_vain(tensor);
    since = now();
    if (hears) {
        HOLDS(heard == PENSTOCK_SERVER_LOST);
        OK(penstock_finish(job));
    } else
        REFUSED(PENSTOCK_SERVER_LOST, "server 1", penstock_finish(job));
    /* Less than it takes to ask a single server in vain. */
    HOLDS(now() - since < 4);
    return surprises != 0;
}
