/* Two processes sum a vector by NCCL on one GPU. Without a GPU the program says so, and ends with
 * the status 77. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* NCCL's numbers of the type and of the operation, and the limit in seconds. */
enum { RANKS = 2, FLOAT = 7, SUM = 0, NO_GPU = 77, LIMIT = 300 };

struct identity {
	char bytes[128];
};

static void *cuda, *nccl;

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "no %s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}

/* The result of a function of the driver or of NCCL, which is 0 if it has succeeded. */
#define CALL(library, name, parameters, ...) \
	do { \
		int (*call) parameters; \
		int result; \
		*(void **)&call = function(library, name); \
		if ((result = call(__VA_ARGS__)) != 0) { \
			fprintf(stderr, "%s: error %d\n", name, result); \
			exit(1); \
		} \
	} while (0)

static int has_gpu(void)
{
	int (*init)(unsigned), (*count)(int *), gpus = 0;

	if (!(cuda = dlopen("libcuda.so.1", RTLD_NOW)))
		return 0;
	*(void **)&init = function(cuda, "cuInit");
	*(void **)&count = function(cuda, "cuDeviceGetCount");
	return init(0) == 0 && count(&gpus) == 0 && gpus > 0;
}

static void all_reduce(void *communicator, int rank, size_t count)
{
	float *values = malloc(count * sizeof *values);
	uint64_t memory;

	CHECK(values);
	for (size_t i = 0; i < count; i++)
		values[i] = (rank + 1) * (float)(i % 1000);
	CALL(cuda, "cuMemAlloc_v2", (uint64_t *, size_t), &memory, count * sizeof *values);
	CALL(cuda, "cuMemcpyHtoD_v2", (uint64_t, const void *, size_t), memory, values, count * sizeof *values);
	CALL(nccl, "ncclAllReduce", (uint64_t, uint64_t, size_t, int, int, void *, void *), memory, memory, count, FLOAT,
	     SUM, communicator, NULL);
	CALL(cuda, "cuCtxSynchronize", (void), );
	CALL(cuda, "cuMemcpyDtoH_v2", (void *, uint64_t, size_t), values, memory, count * sizeof *values);
	for (size_t i = 0; i < count; i++)
		CHECK(values[i] == 3 * (float)(i % 1000));
	CALL(cuda, "cuMemFree_v2", (uint64_t), memory);
	free(values);
}

/* all_reduce LIBRARY, as transport is started: the next argument is without a meaning. */
int main(int argc, char **argv)
{
	struct identity identity;
	int sockets[2], rank, device, status = 0;
	void *context, *communicator;
	pid_t child;

	CHECK(argc >= 2);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	/* A forked child cannot use its parent's driver. */
	CHECK((child = fork()) >= 0);
	rank = child == 0;
	alarm(LIMIT);
	close(sockets[!rank]);
	if (!has_gpu()) {
		if (rank == 0)
			printf("there is no GPU\n");
		return NO_GPU;
	}
	if (!(nccl = dlopen(argv[1], RTLD_NOW))) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	CALL(cuda, "cuDeviceGet", (int *, int), &device, 0);
	CALL(cuda, "cuDevicePrimaryCtxRetain", (void **, int), &context, device);
	CALL(cuda, "cuCtxSetCurrent", (void *), context);
	if (rank == 0) {
		CALL(nccl, "ncclGetUniqueId", (struct identity *), &identity);
		CHECK(write(sockets[0], &identity, sizeof identity) == sizeof identity);
	} else {
		CHECK(recv(sockets[1], &identity, sizeof identity, MSG_WAITALL) == sizeof identity);
	}
	CALL(nccl, "ncclCommInitRank", (void **, int, struct identity, int), &communicator, RANKS, identity, rank);
	for (size_t count = 1; count <= 1 << 22; count *= 64)
		all_reduce(communicator, rank, count);
	CALL(nccl, "ncclCommDestroy", (void *), communicator);
	if (rank == 0) {
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		printf("all sums are right\n");
	}
	return 0;
}
