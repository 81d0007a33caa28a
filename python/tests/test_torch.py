"""The backend `rdma` of `torch.distributed`."""

import os
import re
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

HERE = os.path.dirname(__file__)


def test_all_reduce_of_every_type_and_reduction(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        op = dist.ReduceOp
        types = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8,
                 torch.int16, torch.int32, torch.int64]
        for dtype in types:
            for reduction, expected in ((op.SUM, 5), (op.PRODUCT, 6), (op.MAX, 3), (op.MIN, 2), (op.AVG, 2.5)):
                t = torch.full((3, 5), 2 + rank, dtype=dtype)
                dist.all_reduce(t, reduction)
                wanted = expected if dtype.is_floating_point else int(expected)
                assert (t == wanted).all(), (dtype, reduction, t)
        for dtype in (torch.int32, torch.uint8):
            for reduction, expected in ((op.BAND, 2), (op.BOR, 3), (op.BXOR, 1)):
                t = torch.full((4,), 2 + rank, dtype=dtype)
                dist.all_reduce(t, reduction)
                assert (t == expected).all()
        t = torch.tensor([rank == 0, True, False])
        dist.all_reduce(t)
        assert t.tolist() == [True, True, False]
        t = torch.tensor([1 + 2j]) * (rank + 1)
        dist.all_reduce(t)
        assert t.item() == 3 + 6j
        scalar = torch.tensor(1.0)
        dist.all_reduce(scalar)
        assert scalar.item() == 2
        """,
    )


def test_all_reduce_coalesced(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        tensors = [torch.full((n,), float(rank)) for n in (1, 100, 3)]
        dist.all_reduce_coalesced(tensors)
        assert all((t == 1).all() for t in tensors)
        """,
    )


def test_broadcast_and_reduce(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16, torch.bfloat16):
            t = torch.ones(5).to(dtype) if rank == 1 else torch.zeros(5).to(dtype)
            dist.broadcast(t, 1)
            assert (t == torch.ones(5).to(dtype)).all()
        parameter = torch.nn.Parameter(torch.full((2, 2), float(rank)))
        dist.broadcast(parameter.data, 2)
        assert (parameter == 2).all()
        for root in range(3):
            t = torch.full((4,), float(rank + 1))
            dist.reduce(t, root)
            assert (t == (6 if rank == root else rank + 1)).all()
        """,
    )


def test_all_gather_into_a_list(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        for dtype in (torch.float32, torch.bool, torch.int16):
            out = [torch.zeros(2, 3).to(dtype) for _ in range(3)]
            dist.all_gather(out, torch.full((2, 3), rank).to(dtype))
            assert all((out[r] == torch.tensor(r).to(dtype)).all() for r in range(3))
        # Views of one tensor, and lists with gaps.
        whole = torch.zeros(6)
        dist.all_gather(list(whole.chunk(3)), torch.full((2,), float(rank)))
        assert whole.tolist() == [0, 0, 1, 1, 2, 2]
        lengths = [torch.zeros(r + 1) for r in range(3)]
        dist.all_gather(lengths, torch.full((rank + 1,), float(rank)))
        assert [t.tolist() for t in lengths] == [[0], [1, 1], [2, 2, 2]]
        objects = [None] * 3
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": r} for r in range(3)]
        lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(3)]
        dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), 10.0 + rank)])
        assert all((lists[r][0] == r).all() and (lists[r][1] == 10 + r).all() for r in range(3))
        """,
    )


def test_all_gather_into_a_tensor(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        out = torch.zeros(2, 3)
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        gather(out, torch.full((3,), float(rank)))
        assert out.tolist() == [[0] * 3, [1] * 3]
        """,
    )


def test_gather_and_scatter(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        for root in range(3):
            out = [torch.zeros(2) for _ in range(3)] if rank == root else None
            dist.gather(torch.full((2,), float(rank)), out, root)
            assert rank != root or [t.tolist() for t in out] == [[0, 0], [1, 1], [2, 2]]
            t = torch.zeros(2)
            dist.scatter(t, [torch.full((2,), 5.0 + r) for r in range(3)] if rank == root else None, root)
            assert (t == 5 + rank).all()
        """,
    )


def test_reduce_scatter_of_a_list_and_of_a_tensor(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        out = torch.zeros(3)
        dist.reduce_scatter(out, [torch.full((3,), 1.0 + rank), torch.full((3,), 10.0 + rank)])
        assert (out == (3 if rank == 0 else 21)).all()
        out = torch.zeros(rank + 1)
        dist.reduce_scatter(out, [torch.ones(1), torch.ones(2)])
        assert (out == 2).all()
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        out = torch.zeros(2, dtype=torch.bfloat16)
        scatter(out, torch.arange(4, dtype=torch.bfloat16), op=dist.ReduceOp.MAX)
        assert out.tolist() == [2 * rank, 2 * rank + 1]
        """,
    )


def test_all_to_all_of_lists(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        ins = [torch.full((rank + 1, 2), 10.0 * rank + to) for to in range(2)]
        outs = [torch.zeros(of + 1, 2) for of in range(2)]
        dist.all_to_all(outs, ins)
        assert all((outs[of] == 10 * of + rank).all() for of in range(2))
        """,
    )


def test_all_to_all_single_with_split_sizes(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        out = torch.zeros(4)
        dist.all_to_all_single(out, torch.arange(4.0) + 10 * rank)
        assert out.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
        sent = [[1, 3], [2, 0]][rank]
        came = [[1, 2], [3, 0]][rank]
        out = torch.zeros(sum(came), 2)
        dist.all_to_all_single(out, torch.full((sum(sent), 2), float(rank)), came, sent)
        assert out[: came[0]].eq(0).all() and out[came[0] :].eq(1).all()
        refused(ValueError, "whose sum is", dist.all_to_all_single, out, torch.zeros(4, 2), came, [4, 1])
        """,
    )


def test_send_and_recv_with_tags(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        peer = 1 - rank
        t = torch.zeros(1000)
        if rank == 0:
            dist.send(torch.full((1000,), 7.0), 1)
            dist.recv(t, 1)
        else:
            dist.recv(t, 0)
            dist.send(torch.full((1000,), 7.0), 0)
        assert (t == 7).all()
        first, second = torch.zeros(100_000), torch.zeros(3)
        later = dist.irecv(first, peer, tag=2)
        sooner = dist.irecv(second, peer, tag=1)
        one = dist.isend(torch.full((3,), 1.0), peer, tag=1)
        two = dist.isend(torch.full((100_000,), 2.0), peer, tag=2)
        for work in (sooner, later, one, two):
            work.wait()
        assert (first == 2).all() and (second == 1).all()
        """,
    )


def test_recv_from_any_rank(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        if rank == 0:
            seen = set()
            for _ in range(2):
                t = torch.zeros(4)
                source = dist.recv(t)
                assert (t == source).all()
                seen.add(source)
            assert seen == {1, 2}
        else:
            dist.send(torch.full((4,), float(rank)), 0)
        """,
    )


def test_batch_isend_irecv(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        came = torch.zeros(50_000)
        right, left = (rank + 1) % 3, (rank - 1) % 3
        ops = [dist.P2POp(dist.isend, torch.full((50_000,), float(rank)), right), dist.P2POp(dist.irecv, came, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert (came == left).all()
        """,
    )


def test_barrier_waits_for_all(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        t = torch.zeros(1)
        began = time.monotonic()
        if rank == 1:
            dist.recv(t, 0)
            time.sleep(0.3)
        else:
            dist.send(t, 1)
        dist.barrier()
        assert rank == 1 or time.monotonic() - began > 0.25
        dist.barrier(async_op=True).wait()
        """,
    )


def test_work_and_futures(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        t = torch.ones(10)
        work = dist.all_reduce(t, async_op=True)
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
        assert (work.result()[0] == 2).all()
        futures = []
        for step in range(20):
            t = torch.full((1000,), float(step))
            futures.append(dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0].sum().item()))
        assert [f.wait() for f in futures] == [2000.0 * step for step in range(20)]
        came = torch.zeros(2)
        if rank == 0:
            work = dist.irecv(came, 1)
            assert not work.is_completed()
            refused(RdmaTimeout, "it goes on", work.wait, datetime.timedelta(milliseconds=20))
            dist.barrier()
            work.wait()
            assert work.source_rank() == 1
        else:
            dist.barrier()
            dist.send(came, 0)
        """,
    )


def test_new_group(torch_ranks):
    torch_ranks(
        3,
        """
        begin()
        pair, other = dist.new_group([0, 2]), dist.new_group([1])
        if rank != 1:
            t = torch.full((3,), float(rank))
            dist.all_reduce(t, group=pair)
            assert (t == 2).all()
            t = torch.zeros(1)
            dist.send(t, 2, group=pair) if rank == 0 else dist.recv(t, 0, group=pair)
            dist.broadcast(t, 2, group=pair)
            dist.destroy_process_group(pair)
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 3
        """,
    )


def test_tensors_that_make_no_sense_are_refused(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        refused(ValueError, "`tensor` is not contiguous", dist.all_reduce, torch.zeros(4, 4).t())
        refused(ValueError, "`tensor` is not contiguous", dist.broadcast, torch.zeros(8)[::2], 0)
        refused(ValueError, "device meta", dist.all_reduce, torch.zeros(4, device="meta"))
        refused(ValueError, "sparse", dist.all_reduce, torch.zeros(4).to_sparse())
        refused(ValueError, "bitwise", dist.all_reduce, torch.zeros(4), dist.ReduceOp.BAND)
        refused(ValueError, "elements", dist.gather, torch.zeros(4), [torch.zeros(4), torch.zeros(5)] if rank == 0 else None, 0) if rank == 0 else None
        gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        refused(ValueError, "elements", gather, torch.zeros(7), torch.zeros(3))
        refused(ValueError, "torch.float64", gather, torch.zeros(6), torch.zeros(3, dtype=torch.float64))
        t = torch.ones(3)
        dist.all_reduce(t)
        assert (t == 2).all()
        # Memory in use is not resized.
        t = torch.zeros(10)
        alias = t[:]
        work = dist.irecv(t, 1 - rank)
        refused(RuntimeError, "resiz", t.resize_, 1000)
        dist.send(torch.ones(10), 1 - rank)
        work.wait()
        assert (alias == 1).all()
        """,
    )


def test_ranks_with_tensors_of_different_sizes_are_told(torch_ranks):
    torch_ranks(
        2,
        """
        begin()
        def repeat():
            # A rank may have what it needs before the ranks have compared what they do.
            end = time.monotonic() + 30
            while time.monotonic() < end:
                dist.all_reduce(torch.zeros(4 + rank))
        error = refused(RdmaError, "all_reduce", repeat)
        assert error.cause == "mismatch"
        """,
    )
    torch_ranks(
        2,
        """
        begin()
        error = refused(ValueError, "all_reduce", dist.all_reduce, torch.zeros(4 + rank))
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 2
        """,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
    )


def test_init_methods_and_destroy(torch_ranks, tmp_path):
    torch_ranks(
        2,
        f"""
        host, port = os.environ["RDMA_TEST_ROOT"].split(":")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        for method in ("file://{tmp_path}/store", "env://"):
            begin(method=method)
            assert dist.get_backend() == "rdma" and (dist.get_rank(), dist.get_world_size()) == (rank, world)
            t = torch.ones(1)
            dist.all_reduce(t)
            assert t.item() == 2
            dist.destroy_process_group()
            assert not dist.is_initialized()
        """,
    )


STEPS = """
def steps(backend, wrap):
    begin(backend)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    model, optimizer = wrap(model)
    torch.manual_seed(2 + rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().sum().backward()
        optimizer.step()
    dist.barrier()
    weights = torch.cat([parameter.detach().reshape(-1).clone() for parameter in model.parameters()])
    dist.destroy_process_group()
    return weights

ddp = torch.nn.parallel.DistributedDataParallel
"""


def test_steps_of_ddp_are_those_of_gloo(torch_ranks):
    torch_ranks(
        2,
        STEPS
        + """
def wrap(model):
    model = ddp(model, bucket_cap_mb=0.002)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

os.environ["RDMA_TEST_ROOT"], other = os.environ["RDMA_TEST_ROOT"], os.environ["RDMA_TEST_OTHER"]
ours = steps("rdma", wrap)
os.environ["RDMA_TEST_ROOT"] = other
torch.testing.assert_close(ours, steps("gloo", wrap))
""",
        RDMA_TEST_OTHER=f"127.0.0.1:{_port()}",
    )


def test_steps_of_zero_are_those_of_gloo(torch_ranks):
    torch_ranks(
        2,
        STEPS
        + """
from torch.distributed.optim import ZeroRedundancyOptimizer

def wrap(model):
    model = ddp(model)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)

other = os.environ["RDMA_TEST_OTHER"]
ours = steps("rdma", wrap)
os.environ["RDMA_TEST_ROOT"] = other
torch.testing.assert_close(ours, steps("gloo", wrap))
""",
        RDMA_TEST_OTHER=f"127.0.0.1:{_port()}",
    )


def test_training_under_torchrun(tmp_path):
    program = os.path.join(HERE, "train.py")
    # The options of outputs of torchrun 1.13 may be nothing but 1 under Python 3.11.
    copies = ("--redirects", "1", "--tee", "1", "--log_dir", str(tmp_path))
    command = [sys.executable, "-m", "torch.distributed.run", *copies, "--nproc_per_node", "4"]
    command += ["--master_port", str(_port()), program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(word) for word in re.findall(r"\d+\.\d+(?:e-\d+)?", done.stdout)]
    assert len(losses) == 2 and losses[1] < 0.2 * losses[0], done.stdout


def test_a_rank_that_is_killed_at_any_moment_is_told(started):
    from conftest import PRELUDE, TORCH

    job = """
    import signal

    def job(write):
        begin(seconds=60)
        os.write(write, b"began")
        count = 0
        try:
            while True:
                t = torch.ones(1 + count % 5000)
                dist.all_reduce(t)
                works = [dist.isend(t, 1 - rank), dist.irecv(torch.zeros_like(t), 1 - rank)]
                for work in works: work.wait()
                count += 1
        except RdmaError as error:
            assert error.rank == 1 and error.cause == "ended", (error, error.rank, error.cause)
            os._exit(7)

    world = 2
    for moment in range(int(os.environ.get("RDMA_TEST_KILLS", 20))):
        read, write = os.pipe()
        store = f"file:///tmp/rdma-py-{os.getpid()}-{moment}"
        children = []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                os.environ["RDMA_TEST_METHOD"] = store
                try:
                    job(write)
                finally:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
        assert os.read(read, 5) == b"began"
        time.sleep(0.007 * moment)
        os.kill(children[1], signal.SIGKILL)
        status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert status == [7, -9], (moment, status)
        os.unlink(store[7:]) if os.path.exists(store[7:]) else None
    """
    ((status, _, errors),) = started(1, job, prelude=PRELUDE + TORCH).wait(240)
    assert status == 0, errors


def _port():
    from conftest import free_port

    return free_port()
