/* Does what its arguments say, one after the other; ends with the status of the first call that fails, and prints its text. */
#include <penstock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "with JOB RANK SIZE [SERVER SECRET]": rank, size and all else by a structure. */
static penstock_status with(char **words, int count, penstock_job **job)
{
    const char *server = count > 3 ? words[3] : NULL;
    penstock_init_options options = {0};

    options.struct_size = sizeof options;
    options.job = words[0];
    options.rank = (uint32_t)atoi(words[1]);
    options.size = (uint32_t)atoi(words[2]);
    options.deadline = 60;
    if (server) {
        options.servers = &server;
        options.server_count = 1;
        options.secret = words[4];
    }
    return penstock_init_with(&options, job);
}

int main(int count, char **words)
{
    penstock_job *job = NULL;
    int at;

    for (at = 1; at < count; at++) {
        const char *word = words[at];
        penstock_status status = PENSTOCK_OK;

        if (!strcmp(word, "init"))
            status = penstock_init(NULL, &job);
        else if (!strcmp(word, "with") && at + 3 < count) {
            const int more = at + 5 < count && strchr(words[at + 4], '/') ? 5 : 3;
            status = with(&words[at + 1], more, &job);
            at += more;
        } else if (!strcmp(word, "say"))
            printf("rank %u of %u\n", (unsigned)penstock_rank(job), (unsigned)penstock_size(job));
        else if (!strcmp(word, "barrier"))
            status = penstock_barrier(job, 0);
        else if (!strcmp(word, "fail"))
            status = penstock_fail(job, "it had enough");
        else if (!strcmp(word, "finish"))
            status = penstock_finish(job);
        else if (!strcmp(word, "vanish"))
            return 0;
        if (status != PENSTOCK_OK) {
            printf("%s\n", penstock_last_error());
            return (int)status;
        }
    }
    return 0;
}
