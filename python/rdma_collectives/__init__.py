"""Collective operations over RDMA, shared memory and TCP.

The ranks of a job meet by `init`, and do operations together on any memory of the host: arrays of
NumPy, tensors of PyTorch, `bytearray`, and whatever else has the buffer protocol or DLPack. Nothing
is copied in Python.

    import numpy
    import rdma_collectives

    with rdma_collectives.init() as comm:  # under torchrun, mpirun or srun
        sums = numpy.full(4, comm.rank, dtype="float32")
        comm.all_reduce(sums)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref

from ._errors import InvalidArgument, RdmaError, RdmaTimeout
from ._native import VERSION as __version__
from ._native import Communicator as _Communicator
from ._native import Work

__all__ = ["Communicator", "InvalidArgument", "RdmaError", "RdmaTimeout", "Work", "init"]

#: Seconds that a rank waits for the others to come.
TIMEOUT = 300.0
#: Seconds that the other ranks may make no progress.
STALL = 300.0

_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()
_default: "weakref.ref[Communicator] | None" = None
_lock = threading.Lock()


class Communicator:
    """The ranks of a job, connected to each other: `init` makes one, and so does `meet`, for a
    program that has several at a time.

    Every rank does the same operations in the same order. An operation returns when it has ended;
    with `async_op=True` it returns a `Work` at once, and keeps its memory until it has ended. The
    reduction `op` is "sum", "prod", "max", "min", "avg", or of integers "and", "or", "xor".
    `dtype` names the type of elements, such as "bf16", of memory that does not tell it.
    """

    def __init__(self, native) -> None:
        self._native = native
        #: The number of this rank, from 0.
        self.rank = native.rank
        #: The number of ranks.
        self.ranks = native.ranks
        #: How the ranks reach each other, as text.
        self.transports = native.transports
        for name in _OPERATIONS:
            setattr(self, name, getattr(native, name))
        _open.add(self)

    @classmethod
    def meet(
        cls,
        rank=None,
        world=None,
        root=None,
        *,
        store=None,
        directory=None,
        name=None,
        transport="auto",
        device="any",
        timeout=TIMEOUT,
        stall=STALL,
        limit=None,
        compare=False,
        job_key=None,
    ):
        """Meets the other ranks, and connects to them: as `init`, any number of times."""
        if job_key is None:
            job_key = os.environ.get("RDMA_JOB_KEY", "") in ("1", "store")
        native = _Communicator.meet(
            rank, world, root, store, directory, name, transport, device, timeout, stall, limit, compare, job_key
        )
        return cls(native)

    def abort(self, reason):
        """Ends the job, for a reason that every rank gets: what waits for another rank raises."""
        self._native.abort(reason)

    def close(self, timeout=None):
        """Waits for the operations that were started, and ends the job with the other ranks: for
        `timeout` seconds at most, after which the rest goes on until the process ends.
        """
        _open.discard(self)
        self._native.close(timeout)

    def _end(self, seconds):
        """Closes the communicator if the other ranks do so in time, and leaves them if not."""
        try:
            self.close(seconds)
        except RdmaError:
            # They have failed before, of which their operations have told.
            pass

    @property
    def is_closed(self):
        """Whether `close` was called."""
        return self._native.is_closed

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            # The other ranks get the reason, and do not wait.
            self.abort(f"{kind.__name__}: {error}")
            _open.discard(self)
            self._native.leave()
        else:
            self.close()

    def __repr__(self):
        return f"<rdma_collectives.Communicator: rank {self.rank} of {self.ranks}>"


#: The methods that a communicator has of the native module, which documents them.
_OPERATIONS = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
)


def init(rank=None, world=None, root=None, **options):
    """Meets the other ranks of the job, and returns the communicator.

    Without arguments, mpirun, mpiexec, srun or torchrun has started the ranks, and says where they
    meet. Otherwise `rank` of `world` ranks is given, and `root`, HOST:PORT where rank 0 listens;
    or `store`, an object with `set(key, bytes)`, `get(key, seconds)`, which returns `None` for a
    key that is not set in time, and `delete(key)`; or `directory`, a path that all ranks see.

    `timeout` is how many seconds a rank waits for the others to come, and `stall` how long they may
    make no progress; `limit` is the longest time of an operation. `transport` is "auto", "shm",
    "verbs" or "tcp", and `device` a device such as "mlx5_0:1". `name` tells jobs at one address
    apart. With `compare=True` the ranks compare each operation before they begin it, for programs
    that are being written. `job_key=True` says that nobody else can read the connections to rank 0,
    which may then hand out the key for TCP between hosts (RDMA_JOB_KEY=1).

    Raises `RuntimeError` if an earlier communicator of `init` is still open.
    """
    global _default
    with _lock:
        earlier = _default() if _default is not None else None
        if earlier is not None and not earlier.is_closed:
            raise RuntimeError(f"{earlier!r} of an earlier init() is open: close() it first")
        comm = Communicator.meet(rank, world, root, **options)
        _default = weakref.ref(comm)
    return comm


#: Seconds for which the end of the interpreter waits for the other ranks.
_FAREWELL = 10.0


def _leave():
    # An interactive session goes on after an exception.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for comm in list(_open):
        if error is not None:
            # The program has ended with this exception, which is the reason for the other ranks.
            comm.abort(f"{type(error).__name__}: {error}")
            comm._native.leave()
        else:
            comm._end(_FAREWELL)


def _forked():
    global _default, _lock
    _default, _lock = None, threading.Lock()
    _open.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forked)
