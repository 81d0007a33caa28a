#define _GNU_SOURCE
#include <dlfcn.h>

#include "verbs.h"

struct verbs verbs;

int load_verbs(void)
{
	void *library, *found;
	int count = 0;

	/* A machine with the files for development has both names. */
	if (!(library = dlopen("libibverbs.so", RTLD_NOW)))
		CHECK(library = dlopen("libibverbs.so.1", RTLD_NOW));
#define LOAD(name, version, needed, result, parameters) \
	found = dlvsym(library, "ibv_" #name, version); \
	if (!found && needed) { \
		fprintf(stderr, "no ibv_" #name "@" version ": %s\n", dlerror()); \
		exit(1); \
	} \
	count += found != NULL; \
	*(void **)&verbs.name = found;
	SYMBOLS(LOAD)
	return count;
}
