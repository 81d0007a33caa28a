"""Trains a small model by DDP over the backend `rdma`; rank 0 prints the first and the last loss."""

import torch
import torch.distributed as dist

import rdma_collectives.torch

dist.init_process_group("rdma")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
inputs = torch.randn(64 * world, 16)[rank::world]
wanted = inputs[:, :4].sum(1, keepdim=True).sin()
losses = []
for _ in range(60):
    optimizer.zero_grad()
    loss = (model(inputs) - wanted).square().mean()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    losses.append(mean.item())
if rank == 0:
    print(losses[0], losses[-1])
dist.destroy_process_group()
