"""The differences between the versions of PyTorch, from 1.13 on."""

from __future__ import annotations

import inspect

import torch.distributed as dist
from torch.distributed import distributed_c10d as _c10d

try:
    from torch._C._distributed_c10d import Work
except ImportError:  # pragma: no cover
    Work = dist.Work

ProcessGroup = dist.ProcessGroup


def register(name, create):
    """Registers a backend of tensors of the host, unless it is."""
    if hasattr(dist.Backend, name.upper()):
        return
    parameters = inspect.signature(dist.Backend.register_backend).parameters
    # From 2.1 on, a backend says for which devices it is.
    options = {"devices": ["cpu"]} if "devices" in parameters else {}
    dist.Backend.register_backend(name, create, **options)


_REDUCTIONS = {
    "SUM": "sum",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
    "BAND": "and",
    "BOR": "or",
    "BXOR": "xor",
    "AVG": "avg",
}


def reduction(op):
    """The library's name of a `ReduceOp`, which is a class of its own from 1.13 on."""
    for name, ours in _REDUCTIONS.items():
        known = getattr(dist.ReduceOp, name, None)
        if known is not None and op == known:
            return ours
    raise ValueError(f"the backend rdma has no reduction {op}: give one of {', '.join(_REDUCTIONS)}")


def is_detailed():
    """Whether PyTorch is asked to compare the operations of ranks (TORCH_DISTRIBUTED_DEBUG)."""
    level = getattr(dist, "get_debug_level", None) or getattr(_c10d, "get_debug_level", None)
    detail = getattr(dist, "DebugLevel", None)
    return level is not None and detail is not None and level() == detail.DETAIL


def storage(tensor):
    """The address of the memory that a tensor is a part of."""
    untyped = getattr(tensor, "untyped_storage", None) or tensor.storage
    return untyped().data_ptr()
