"""The process group and its work."""

from __future__ import annotations

import collections
import queue
import threading
import weakref

import torch

from .. import Communicator, InvalidArgument, RdmaError, RdmaTimeout
from .._memory import of_tensor
from . import _compat
from ._store import Exchange

#: Works that a group keeps although they may have ended.
_KEPT = 64
#: Seconds for which a group that is destroyed waits for its other ranks.
_FAREWELL = 10.0


class RdmaWork(_compat.Work):
    """Started operations of one call, and what is done when they have ended."""

    def __init__(self, group, started, outputs, finish=None):
        super().__init__()
        self._completer = group._completer
        self._started = started
        self._outputs = outputs
        self._finish = finish
        self._error = None
        self._source = -1
        self._is_ended = False
        self._future = None
        self._lock = threading.Lock()

    def wait(self, timeout=None):
        seconds = None
        if timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        self._end(seconds)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._is_ended or all(work.is_done() for work in self._started)

    def is_success(self):
        if not self.is_completed():
            return False
        self._end(None)
        return self._error is None

    def exception(self):
        if self.is_completed():
            self._end(None)
        return self._error

    def result(self):
        self.wait()
        return self._outputs

    def source_rank(self):
        return self._source

    def _source_rank(self):
        return self._source

    def get_future(self):
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                self._completer.add(self)
            return self._future

    def _end(self, seconds):
        """Waits for the operations, and does what follows them, once."""
        if self._is_ended:
            return
        error = None
        for work in self._started:
            try:
                value = work.wait(seconds)
            except RdmaTimeout as failure:
                if failure.cause == "wait":
                    # The operation goes on.
                    raise
                error = error or failure
            except RdmaError as failure:
                error = error or failure
            else:
                if isinstance(value, int):
                    self._source = value
        with self._lock:
            if self._is_ended:
                return
            if error is None and self._finish is not None:
                try:
                    with torch.no_grad():
                        self._finish()
                except Exception as failure:
                    error = failure
            self._error, self._finish, self._started = error, None, []
            self._is_ended = True

    def _complete(self):
        """Gives the future its value, in the thread of the group."""
        try:
            self._end(None)
            error = self._error
        except BaseException as failure:
            error = failure
        if error is None:
            self._future.set_result(self._outputs)
        else:
            self._future.set_exception(error)


class _Completer:
    """A thread that gives futures their values, in the order in which they were asked for; it is
    started for the first one.
    """

    def __init__(self):
        self._works = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()

    def add(self, work):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(self._works,), name="rdma-futures", daemon=True)
                self._thread.start()
        self._works.put(work)

    def end(self):
        self._works.put(None)

    @staticmethod
    def _run(works):
        while (work := works.get()) is not None:
            work._complete()
            del work


class RdmaProcessGroup(_compat.ProcessGroup):
    """Ranks that are connected by a communicator of `rdma_collectives`."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        seconds = timeout.total_seconds()
        self._rank, self._size = rank, size
        self._completer = _Completer()
        self._sequence = 0
        self._comm = Communicator.meet(
            rank,
            size,
            store=Exchange(store),
            timeout=min(seconds, 24 * 3600.0),
            stall=seconds,
            limit=seconds,
            compare=_compat.is_detailed(),
        )
        # C++ code may hold a work of which Python has no reference left.
        self._works = collections.deque(maxlen=_KEPT)
        self._ended = weakref.finalize(self, _destroy, self._comm, self._completer)
        # At the end of the interpreter, the package itself ends the communicator.
        self._ended.atexit = False

    # Names

    def getBackendName(self):
        return "rdma"

    def _get_backend_name(self):
        return "rdma"

    def name(self):
        return "rdma"

    def _set_sequence_number_for_group(self):
        self._sequence = 0

    def _get_sequence_number_for_group(self):
        return self._sequence

    def shutdown(self):
        self._ended()

    def abort(self):
        self._comm.abort("the process group was aborted")

    # Operations

    def _work(self, started, outputs, finish=None):
        self._sequence += 1
        work = RdmaWork(self, started if isinstance(started, list) else [started], outputs, finish)
        works = self._works
        while works and works[0]._is_ended:
            works.popleft()
        works.append(work)
        return work

    def allreduce(self, tensors, opts=None):
        return self._all_reduce(_list(tensors), opts)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors, opts):
        op = _op(opts)
        prepared = [_Reduced(tensor, op, "tensor") for tensor in tensors]
        started = [self._comm.all_reduce(one.array, None, one.op, dtype=one.dtype, async_op=True) for one in prepared]
        finishes = [one.finish for one in prepared if one.finish is not None]
        return self._work(started, tensors, _all(finishes))

    def broadcast(self, tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        started = [
            self._comm.broadcast(_moved(tensor, "tensor"), root, dtype="items", async_op=True)
            for tensor in _list(tensors)
        ]
        return self._work(started, tensors)

    def reduce(self, tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        started, finishes = [], []
        for tensor in _list(tensors):
            one = _Reduced(tensor, _op(opts), "tensor")
            output = one.array if root == self._rank else None
            started.append(self._comm.reduce(one.array, output, root, one.op, dtype=one.dtype, async_op=True))
            if one.finish is not None and root == self._rank:
                finishes.append(one.finish)
        return self._work(started, tensors, _all(finishes))

    def allgather(self, output_tensors, input_tensors, opts=None):
        started, finishes = [], []
        for outputs, tensor in zip(output_tensors, input_tensors):
            self._check_length(outputs, "tensor_list")
            flat, finish = _joined(outputs, "tensor_list")
            counts = [output.numel() for output in outputs]
            if counts[self._rank] != tensor.numel():
                raise InvalidArgument(
                    f"`tensor` has {tensor.numel()} elements, and this rank's place in `tensor_list` {counts[self._rank]}"
                )
            counts = counts if len(set(counts)) > 1 else None
            _check_types(tensor, outputs)
            started.append(
                self._comm.all_gather(_moved(tensor, "tensor"), _moved(flat, "tensor_list"), counts, dtype="items", async_op=True)
            )
            finishes.append(finish)
        return self._work(started, output_tensors[0] if len(output_tensors) == 1 else output_tensors, _all(finishes))

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        # One list of outputs for each rank, here; one for each input, there.
        return self.allgather([list(outputs) for outputs in zip(*output_lists)], input_list, opts)

    def _allgather_base(self, output, tensor, opts=None):
        _check_types(tensor, [output])
        started = self._comm.all_gather(
            _moved(tensor, "input_tensor"), _moved(output, "output_tensor"), dtype="items", async_op=True
        )
        return self._work(started, [output])

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        works = [self._allgather_base(output, tensor) for output, tensor in zip(outputs, inputs)]
        return self._work([started for work in works for started in work._started], outputs)

    def gather(self, output_tensors, input_tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        (tensor,) = _list(input_tensors)
        flat, finish, outputs = None, None, []
        if root == self._rank:
            outputs = output_tensors[0]
            self._check_length(outputs, "gather_list")
            _check_types(tensor, outputs)
            _check_equal(tensor, outputs, "gather_list")
            flat, finish = _joined(outputs, "gather_list")
            flat = _moved(flat, "gather_list")
        started = self._comm.gather(_moved(tensor, "tensor"), flat, root, dtype="items", async_op=True)
        return self._work(started, outputs, finish)

    def scatter(self, output_tensors, input_tensors, opts=None):
        root = opts.rootRank if opts is not None else 0
        (output,) = _list(output_tensors)
        flat = None
        if root == self._rank:
            inputs = input_tensors[0]
            self._check_length(inputs, "scatter_list")
            _check_types(output, inputs)
            _check_equal(output, inputs, "scatter_list")
            flat = _moved(_concatenated(inputs, "scatter_list"), "scatter_list")
        started = self._comm.scatter(flat, _moved(output, "tensor"), root, dtype="items", async_op=True)
        return self._work(started, [output])

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        started, finishes = [], []
        for output, inputs in zip(_list(output_tensors), input_tensors):
            self._check_length(inputs, "input_list")
            _check_types(output, inputs)
            counts = [tensor.numel() for tensor in inputs]
            one = self._reduce_scatter(output, _concatenated(inputs, "input_list"), opts, counts)
            started.append(one[0])
            finishes.append(one[1])
        return self._work(started, output_tensors, _all(finishes))

    def _reduce_scatter_base(self, output, tensor, opts=None):
        _check_types(output, [tensor])
        started, finish = self._reduce_scatter(output, tensor, opts, None)
        return self._work(started, [output], finish)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        both = [self._reduce_scatter(output, tensor, opts, None) for output, tensor in zip(outputs, inputs)]
        return self._work([one[0] for one in both], outputs, _all([one[1] for one in both]))

    def _reduce_scatter(self, output, tensor, opts, counts):
        given = _Reduced(tensor, _op(opts), "input")
        result = _Reduced(output, _op(opts), "output")
        unit = given.unit
        if counts is not None:
            counts = [count * unit for count in counts] if len(set(counts)) > 1 else None
        started = self._comm.reduce_scatter(given.array, result.array, given.op, counts, dtype=given.dtype, async_op=True)
        return started, result.finish

    def alltoall_base(self, output, tensor, output_splits=(), input_splits=(), opts=None):
        _check_types(output, [tensor])
        if not output_splits and not input_splits:
            rows = tensor.shape[0] if tensor.dim() else 1
            if rows % self._size:
                raise InvalidArgument(f"`input` has {rows} rows, which {self._size} ranks cannot share equally")
            started = self._comm.all_to_all(_moved(tensor, "input"), _moved(output, "output"), dtype="items", async_op=True)
            return self._work(started, [output])
        sent = _splits(tensor, input_splits, self._size, "input_split_sizes")
        wanted = _splits(output, output_splits, self._size, "output_split_sizes")
        return self._all_to_all_v(_moved(tensor, "input"), sent, _moved(output, "output"), wanted, [output], None)

    def alltoall(self, output_tensors, input_tensors, opts=None):
        self._check_length(output_tensors, "output_tensor_list")
        self._check_length(input_tensors, "input_tensor_list")
        _check_types(output_tensors[0], [*output_tensors, *input_tensors])
        flat = _concatenated(input_tensors, "input_tensor_list")
        into, finish = _joined(output_tensors, "output_tensor_list")
        sent = [tensor.numel() for tensor in input_tensors]
        wanted = [tensor.numel() for tensor in output_tensors]
        into = _moved(into, "output_tensor_list")
        return self._all_to_all_v(_moved(flat, "input_tensor_list"), sent, into, wanted, output_tensors, finish)

    def _all_to_all_v(self, flat, sent, into, wanted, outputs, finish):
        started = self._comm.all_to_all(flat, into, sent, dtype="items", async_op=True)
        came = _Came(started)

        def check():
            if came.counts != wanted:
                raise InvalidArgument(f"the ranks sent {came.counts} elements, and {wanted} are to be received")
            if finish is not None:
                finish()

        return self._work([came], outputs, check)

    def send(self, tensors, destination, tag=0):
        (tensor,) = _list(tensors)
        self._check_peer(destination, "dst")
        return self._work(self._comm.send(_moved(tensor, "tensor"), destination, tag, async_op=True), [tensor])

    def recv(self, tensors, source, tag=0):
        (tensor,) = _list(tensors)
        self._check_peer(source, "src")
        return self._work(self._comm.recv(_moved(tensor, "tensor"), source, tag, async_op=True), [tensor])

    def recv_anysource(self, tensors, tag=0):
        (tensor,) = _list(tensors)
        return self._work(self._comm.recv(_moved(tensor, "tensor"), None, tag, async_op=True), [tensor])

    def barrier(self, opts=None):
        return self._work(self._comm.barrier(async_op=True), [])

    def _start_coalescing(self, *_):
        """Messages go on beside each other in any case."""

    def _end_coalescing(self, *_):
        return None

    def _check_length(self, tensors, name):
        if len(tensors) != self._size:
            raise InvalidArgument(f"`{name}` has {len(tensors)} tensors, and there are {self._size} ranks")

    def _check_peer(self, peer, name):
        if not 0 <= peer < self._size or peer == self._rank:
            raise InvalidArgument(f"`{name}` is {peer}: give another rank, from 0 to {self._size - 1}")


def create(store, rank, size, timeout):
    """Makes a process group, as `register_backend` wants it."""
    return RdmaProcessGroup(store, rank, size, timeout)


def _destroy(comm, completer):
    completer.end()
    comm._end(_FAREWELL)


class _Came:
    """A started all-to-all of different lengths, which returns the lengths that came."""

    def __init__(self, started):
        self._started = started
        self.counts = None

    def is_done(self):
        return self._started.is_done()

    def wait(self, timeout=None):
        self.counts = self._started.wait(timeout)


#: Types without a reduction of their own: the type in which they are reduced.
_WIDER = {torch.int16: torch.int32}
#: Reductions of booleans, whose bytes are 0 or 1.
_BOOLEAN = {"sum": "max", "prod": "min", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}


class _Reduced:
    """A tensor that is reduced: its memory, the reduction, and what follows."""

    def __init__(self, tensor, op, name):
        self.op, self.finish, self.dtype, self.unit = op, None, None, 1
        if tensor.is_sparse:
            raise InvalidArgument(f"`{name}` is sparse: make it dense first")
        view = tensor
        if tensor.dtype is torch.bool:
            if op not in _BOOLEAN:
                raise InvalidArgument(f"`{name}`: booleans have no reduction {op}")
            self.op, view = _BOOLEAN[op], tensor.view(torch.uint8)
        elif tensor.is_complex():
            if op not in ("sum", "avg"):
                raise InvalidArgument(f"`{name}`: complex numbers have no reduction {op}")
            view, self.unit = torch.view_as_real(tensor.detach()), 2
        elif tensor.dtype in _WIDER:
            if not tensor.is_contiguous():
                raise InvalidArgument(f"`{name}` is not contiguous: give `{name}.contiguous()`")
            view = tensor.detach().to(_WIDER[tensor.dtype])
            target = tensor.detach()
            self.finish = lambda: target.copy_(view)
        self.array, self.dtype = of_tensor(torch, view, name)


def _op(opts):
    return "sum" if opts is None else _compat.reduction(opts.reduceOp)


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _all(finishes):
    finishes = [finish for finish in finishes if finish is not None]
    if not finishes:
        return None

    def finish():
        for one in finishes:
            one()

    return finish


def _moved(tensor, name):
    """The memory of a tensor that is only moved, in which a type does not matter."""
    if tensor.is_sparse:
        raise InvalidArgument(f"`{name}` is sparse: make it dense first")
    return of_tensor(torch, tensor, name)[0]


def _check_types(tensor, others):
    for other in others:
        if other.dtype is not tensor.dtype:
            raise InvalidArgument(f"tensors of {tensor.dtype} and of {other.dtype} in one operation")


def _check_equal(tensor, others, name):
    for other in others:
        if other.numel() != tensor.numel():
            raise InvalidArgument(
                f"`{name}` has a tensor of {other.numel()} elements, and `tensor` has {tensor.numel()}"
            )


def _splits(tensor, splits, size, name):
    """Elements of each part of a tensor that is cut along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = tensor.numel() // rows if rows else 0
    if not splits:
        if rows % size:
            raise InvalidArgument(f"`{name}` is not given, and {size} ranks cannot share {rows} rows equally")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise InvalidArgument(f"`{name}` is {list(splits)}: give {size} numbers whose sum is {rows}")
    return [part * row for part in splits]


def _consecutive(tensors):
    """The tensors as one, if their elements lie one after the other."""
    first = tensors[0]
    if any(not tensor.is_contiguous() or tensor.device.type != "cpu" for tensor in tensors):
        return None
    at = first.data_ptr()
    # Tensors of other memory may lie there by chance.
    memory = _compat.storage(first)
    for tensor in tensors:
        if tensor.data_ptr() != at or _compat.storage(tensor) != memory:
            return None
        at += tensor.numel() * tensor.element_size()
    count = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((count,), (1,), first.storage_offset())


def _concatenated(tensors, name):
    """The elements of tensors one after the other, in their own memory if they lie so."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            of_tensor(torch, tensor, name)
    flat = _consecutive(tensors)
    return flat if flat is not None else torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _joined(tensors, name):
    """Memory for the elements of tensors one after the other, and what copies them to the tensors
    in the end, if it is not their own.
    """
    for tensor in tensors:
        of_tensor(torch, tensor, name)
    flat = _consecutive(tensors)
    if flat is not None:
        return flat, None
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)

    def finish():
        at = 0
        for tensor in tensors:
            tensor.detach().view(-1).copy_(flat[at : at + tensor.numel()])
            at += tensor.numel()

    return flat, finish
