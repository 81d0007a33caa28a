"""Times operations of the backend `rdma` beside Gloo's, in one run, in turns.

    python3 -m torch.distributed.run -r 1 -t 1 --nproc_per_node 2 bench/beside_gloo.py

Each line has an operation, its size in bytes, the median times in microseconds and their ratio. The
last lines are the times of one call of the library without PyTorch.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist

import rdma_collectives
import rdma_collectives.torch

SIZES = (1 << 10, 1 << 20, 64 << 20)


def operations(size, world):
    count = size // 4
    one, all_, part = torch.ones(count), torch.zeros(count), torch.zeros(count // world)
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    scatter = getattr(dist, "reduce_scatter_tensor", None)
    gathered = [torch.zeros(count // world) for _ in range(world)]
    blocks = list(one.chunk(world))
    yield "all_reduce", lambda group, _: dist.all_reduce(one, dist.ReduceOp.MAX, group=group)
    # Gloo of 1.13 lacks the operations on one tensor: it does them by lists.
    yield (
        "all_gather_into_tensor",
        lambda group, ours: gather(all_, part, group=group) if ours else dist.all_gather(gathered, part, group=group),
    )
    if scatter is not None:
        yield (
            "reduce_scatter",
            lambda group, ours: scatter(part, one, group=group)
            if ours
            else dist.all_reduce(one, dist.ReduceOp.MAX, group=group),
        )


def times(call, group, ours, rounds):
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call(group, ours)
        taken.append(1e6 * (time.perf_counter() - began))
    return taken


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    ours, gloo = dist.new_group(backend="rdma"), dist.new_group(backend="gloo")
    for size in SIZES:
        rounds = 400 if size < 1 << 20 else 40 if size < 64 << 20 else 4
        for name, call in operations(size, world):
            taken = {True: [], False: []}
            for group, is_ours in ((ours, True), (gloo, False)):
                times(call, group, is_ours, max(rounds // 10, 1))
            for _ in range(5):
                for group, is_ours in ((ours, True), (gloo, False)):
                    dist.barrier(group)
                    taken[is_ours] += times(call, group, is_ours, rounds // 4)
            if rank == 0:
                median = {key: statistics.median(values) for key, values in taken.items()}
                ratio = median[False] / median[True]
                print(f"{name:24} {size:10} rdma {median[True]:12.1f} us gloo {median[False]:12.1f} us {ratio:6.2f} x")
                sys.stdout.flush()
    comm = ours._comm
    small = bytearray(1024)
    for _ in range(100):
        comm.all_reduce(small, dtype="u8")
    taken = []
    for _ in range(2000):
        began = time.perf_counter()
        comm.all_reduce(small, dtype="u8")
        taken.append(1e6 * (time.perf_counter() - began))
    if rank == 0:
        print(f"{'all_reduce, no PyTorch':24} {1024:10} rdma {statistics.median(taken):12.1f} us")
    dist.barrier(gloo)


if __name__ == "__main__":
    main()
