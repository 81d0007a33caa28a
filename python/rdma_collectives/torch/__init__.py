"""The backend `rdma` of `torch.distributed`.

    import torch.distributed as dist
    import rdma_collectives.torch

    dist.init_process_group("rdma")

The import registers the backend. The newest PyTorch does that by itself.
"""

from __future__ import annotations

from . import _compat
from ._group import RdmaProcessGroup, RdmaWork, create

__all__ = ["RdmaProcessGroup", "RdmaWork", "register"]


def register():
    """Registers the backend; a second call does nothing."""
    _compat.register("rdma", create)


register()
