/* What a test in C expects of calls. Whatever is otherwise is printed with its line, and counted. */
#ifndef EXPECT_H
#define EXPECT_H

#include <penstock.h>
#include <stdio.h>
#include <string.h>

static int surprises = 0;

static inline void expect(int line, penstock_status expected, const char *text, penstock_status got)
{
    const char *said = got == PENSTOCK_OK ? "" : penstock_last_error();
    if (got != expected || (text && !strstr(said, text))) {
        printf("line %d: expected status %d and \"%s\", got %d: %s\n", line, (int)expected, text ? text : "", (int)got, said);
        surprises++;
    }
}

static inline void hold(int line, int condition)
{
    if (!condition) {
        printf("line %d: does not hold\n", line);
        surprises++;
    }
}

#define REFUSED(status, text, call) expect(__LINE__, status, text, call)
#define OK(call) expect(__LINE__, PENSTOCK_OK, NULL, call)
#define HOLDS(condition) hold(__LINE__, condition)

#endif
