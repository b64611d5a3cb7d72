/* Does what its arguments say, one after the other; ends with the status of the first call that fails, and prints its text. */
#include <penstock.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    penstock_job *job = NULL;
    int at;

    for (at = 1; at < count; at++) {
        const char *word = words[at];
        penstock_status status = PENSTOCK_OK;

        if (!strcmp(word, "init"))
            status = penstock_init(NULL, &job);
        else if (!strcmp(word, "say"))
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
