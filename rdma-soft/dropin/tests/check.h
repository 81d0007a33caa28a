/* A check of the C test programs: a failure prints its line and ends the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) ((condition) ? (void)0 : failed(__FILE__, __LINE__, #condition))

static inline void failed(const char *file, int line, const char *condition)
{
	fprintf(stderr, "%s:%d: %s (errno %d)\n", file, line, condition, errno);
	exit(1);
}
