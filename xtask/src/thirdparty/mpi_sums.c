// Checks MPI_Allreduce on messages of 8 bytes to 2 MiB.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int rank, int size, int count) {
    long *mine = malloc(count * sizeof *mine), *sums = malloc(count * sizeof *sums);
    for (int i = 0; i < count; i++) mine[i] = (long)i * (rank + 1);
    MPI_Allreduce(mine, sums, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        if (sums[i] != (long)i * size * (size + 1) / 2) {
            fprintf(stderr, "rank %d: element %d of %d is %ld\n", rank, i, count, sums[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(mine);
    free(sums);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int count = 1; count <= 1 << 18; count *= 8) check(rank, size, count);
    MPI_Finalize();
    return 0;
}
