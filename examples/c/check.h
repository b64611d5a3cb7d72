/* What the examples do with a call that fails: they say why, and end. */
#ifndef CHECK_H
#define CHECK_H

#include <penstock.h>
#include <stdio.h>
#include <stdlib.h>

static void check(penstock_status status)
{
    if (status != PENSTOCK_OK) {
        fprintf(stderr, "error: %s\n", penstock_last_error());
        exit(1);
    }
}

#endif
