/* Times a collective of MPI the way nccl-tests times one: warm-up, barrier, then iterations back to back, the mean of
 * which is averaged over the ranks. Verifies every element of the last result.
 *
 *   collectives OP PLACE BYTES ITERATIONS WARMUP [BYTES ITERATIONS WARMUP]...
 *
 * OP: a name in `operations`; elements are floats, reductions are sums, and rank 0 is the root. A send goes to the next
 * rank. PLACE: out or in (MPI_IN_PLACE); a broadcast is always in place, and the operations that the project compares out
 * of place only know no other. BYTES: the larger one of input and output.
 *
 * Rank 0 prints a line for each size: bytes, microseconds, wrong elements.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static int count; /* elements of the whole operation */
static int block; /* elements of one rank's block */
static float *in, *out;
static int in_place;

static void all_reduce(void)
{
	MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(void)
{
	if (in_place)
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, block, MPI_FLOAT, MPI_COMM_WORLD);
	else
		MPI_Allgather(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(void)
{
	MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : in, out, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(void)
{
	if (in_place)
		MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, block, MPI_FLOAT, MPI_COMM_WORLD);
	else
		MPI_Alltoall(in, block, MPI_FLOAT, out, block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void broadcast(void)
{
	MPI_Bcast(out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void reduce(void)
{
	MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void gather(void)
{
	MPI_Gather(in, block, MPI_FLOAT, out, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void scatter(void)
{
	MPI_Scatter(in, block, MPI_FLOAT, out, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void sendrecv(void)
{
	MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT, (rank + ranks - 1) % ranks, 0,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* The input of a rank: small whole numbers, whose sums are exact in whatever order they are taken. */
static float input(int r, int i)
{
	return (float)((i + 5 * r) % 64);
}

static float sum(int i)
{
	float total = 0;
	for (int r = 0; r < ranks; r++)
		total += input(r, i);
	return total;
}

/* The output at index i. */
static float sum_of_all(int i) { return sum(i); }
static float sum_of_block(int i) { return sum(rank * block + i); }
static float gathered(int i) { return input(i / block, i % block); }
static float exchanged(int i) { return input(i / block, rank * block + i % block); }
static float of_root(int i) { return input(0, i); }
static float scattered(int i) { return input(0, rank * block + i); }
static float of_neighbour(int i) { return input((rank + ranks - 1) % ranks, i); }

static const struct operation {
	const char *name;
	void (*run)(void);
	float (*expected)(int);
	int in_block, out_block; /* whether the input and the output are one block */
	int blocks;              /* whether the size is that of a block of each rank */
	int root_only;           /* whether only the root has an output */
	int out_only;            /* whether it is compared out of place only */
} operations[] = {
	{ "all_reduce", all_reduce, sum_of_all, 0, 0, 0, 0, 0 },
	{ "all_gather", all_gather, gathered, 1, 0, 1, 0, 0 },
	{ "reduce_scatter", reduce_scatter, sum_of_block, 0, 1, 1, 0, 0 },
	{ "all_to_all", all_to_all, exchanged, 0, 0, 1, 0, 0 },
	{ "broadcast", broadcast, of_root, 0, 0, 0, 0, 0 },
	{ "reduce", reduce, sum_of_all, 0, 0, 0, 1, 1 },
	{ "gather", gather, gathered, 1, 0, 1, 1, 1 },
	{ "scatter", scatter, scattered, 0, 1, 1, 0, 1 },
	{ "sendrecv", sendrecv, of_neighbour, 0, 0, 0, 0, 1 },
};

static void fill(const struct operation *op)
{
	float *to = in_place ? out : in;
	int first = in_place && op->in_block ? rank * block : 0;
	int length = op->in_block ? block : count;

	if (in_place && op->run == broadcast && rank != 0)
		return;
	for (int i = 0; i < length; i++)
		to[first + i] = input(rank, i);
}

static long count_wrong(const struct operation *op)
{
	long wrong = 0, total = 0;
	int length = op->out_block ? block : count;

	if (op->root_only && rank != 0)
		length = 0;
	for (int i = 0; i < length; i++)
		wrong += out[i] != op->expected(i);
	MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	return total;
}

static void *allocate(size_t bytes)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 4096, bytes))
		MPI_Abort(MPI_COMM_WORLD, 3);
	memset(memory, 0xff, bytes);
	return memory;
}

/* Measures one size. */
static void measure(const struct operation *op, long bytes, long iterations, long warmup)
{
	int whole = (int)(bytes / (long)sizeof(float));

	block = whole / ranks;
	count = op->blocks ? block * ranks : whole;
	in = allocate((size_t)count * sizeof(float) + 1);
	out = allocate((size_t)count * sizeof(float) + 1);

	fill(op);
	for (long i = 0; i < warmup; i++)
		op->run();
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (long i = 0; i < iterations; i++)
		op->run();
	double mine = (MPI_Wtime() - start) / (double)iterations, all = 0;
	MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);

	/* In place, repeated operations have changed the input. */
	fill(op);
	MPI_Barrier(MPI_COMM_WORLD);
	op->run();
	long wrong = count_wrong(op);
	if (rank == 0)
		printf("%ld %.4f %ld\n", (long)count * (long)sizeof(float), all / ranks * 1e6, wrong);
	free(in);
	free(out);
}

int main(int argc, char **argv)
{
	const struct operation *op = NULL;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (size_t i = 0; argc > 5 && argc % 3 == 0 && i < sizeof operations / sizeof *operations; i++)
		if (!strcmp(operations[i].name, argv[1]))
			op = &operations[i];
	if (!op || (op->out_only && strcmp(argv[2], "out"))) {
		if (rank == 0)
			fprintf(stderr, "usage: collectives OP out|in BYTES ITERATIONS WARMUP [...]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
		return 2;
	}
	in_place = !strcmp(argv[2], "in") || op->run == broadcast;
	for (int i = 3; i < argc; i += 3)
		measure(op, atol(argv[i]), atol(argv[i + 1]), atol(argv[i + 2]));
	MPI_Finalize();
	return 0;
}
