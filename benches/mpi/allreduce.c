/* Times MPI_Allreduce (float, sum, out of place) the way nccl-tests times a collective: warm-up, barrier, then iterations
 * back to back, the mean of which is averaged over the ranks. Verifies every element of the last result.
 *
 *   allreduce BYTES ITERATIONS WARMUP BLOCKS
 *
 * Rank 0 prints one line per block: size in bytes, microseconds, wrong elements.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc != 5) {
		if (rank == 0)
			fprintf(stderr, "usage: allreduce BYTES ITERATIONS WARMUP BLOCKS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}

	long bytes = atol(argv[1]), iterations = atol(argv[2]), warmup = atol(argv[3]), blocks = atol(argv[4]);
	int count = (int)(bytes / (long)sizeof(float));
	void *in_memory = NULL, *out_memory = NULL;

	if (posix_memalign(&in_memory, 4096, (size_t)bytes) || posix_memalign(&out_memory, 4096, (size_t)bytes))
		MPI_Abort(MPI_COMM_WORLD, 3);
	/* Small whole numbers: their sums are exact, in whatever order they are taken. */
	float *in = in_memory, *out = out_memory;
	for (int i = 0; i < count; i++) {
		in[i] = (float)((i + rank) % 64);
		out[i] = -1.0f;
	}

	for (long i = 0; i < warmup; i++)
		MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);

	for (long block = 0; block < blocks; block++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double start = MPI_Wtime();
		for (long i = 0; i < iterations; i++)
			MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
		double mine = (MPI_Wtime() - start) / (double)iterations, sum = 0;
		MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);

		long wrong = 0, total = 0;
		for (int i = 0; i < count; i++) {
			float expected = 0;
			for (int r = 0; r < ranks; r++)
				expected += (float)((i + r) % 64);
			wrong += out[i] != expected;
		}
		MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0)
			printf("%ld %.4f %ld\n", bytes, sum / ranks * 1e6, total);
	}
	MPI_Finalize();
	return 0;
}
