"""Runs ranks as processes."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """Processes that run a program as the ranks of a job."""

    def __init__(self, program, world, arguments=(), **variables):
        self.processes = []
        environment = {**os.environ, "RDMA_TEST_ROOT": f"127.0.0.1:{free_port()}", **variables}
        for rank in range(world):
            own = {**environment, "RDMA_TEST_RANK": str(rank), "RDMA_TEST_WORLD": str(world)}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments],
                    env=own,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def wait(self, timeout=120):
        """The status, the output and the errors of each rank."""
        try:
            ended = [process.communicate(timeout=timeout) for process in self.processes]
        finally:
            self.kill()
        return [(process.returncode, *texts) for process, texts in zip(self.processes, ended)]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()


PRELUDE = """
import os, sys, time
import rdma_collectives
from rdma_collectives import InvalidArgument, RdmaError, RdmaTimeout
rank, world = int(os.environ["RDMA_TEST_RANK"]), int(os.environ["RDMA_TEST_WORLD"])

def meet(**options):
    options.setdefault("timeout", 60.0)
    return rdma_collectives.init(rank, world, os.environ["RDMA_TEST_ROOT"], **options)

def refused(kind, text, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"{call} was not refused: {text}")
"""

TORCH = """
import os, datetime
import torch, torch.distributed as dist
import rdma_collectives.torch
rank, world = int(os.environ["RDMA_TEST_RANK"]), int(os.environ["RDMA_TEST_WORLD"])

def begin(backend="rdma", seconds=60, method=None):
    method = method or os.environ.get("RDMA_TEST_METHOD") or "tcp://" + os.environ["RDMA_TEST_ROOT"]
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=seconds))
"""


@pytest.fixture
def ranks():
    """Runs a program at each rank, and fails if a rank fails."""
    running = []

    def run(world, program, prelude=PRELUDE, timeout=120, **variables):
        job = Ranks(prelude + textwrap.dedent(program), world, **variables)
        running.append(job)
        for rank, (status, _, errors) in enumerate(job.wait(timeout)):
            assert status == 0, f"rank {rank} of {world}: {errors}"

    yield run
    for job in running:
        job.kill()


#: Makes ranks of one process that has imported PyTorch, which takes longer than the tests.
FORK = """
children = []
for rank in range(int(os.environ["RDMA_TEST_RANKS"])):
    child = os.fork()
    if child == 0:
        break
    children.append(child)
else:
    status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.stderr.write(f"the ranks ended with {status}")
    os._exit(int(any(status)))
world = int(os.environ["RDMA_TEST_RANKS"])
"""


@pytest.fixture
def torch_ranks(ranks):
    pytest.importorskip("torch")

    def run(world, program, **options):
        ranks(1, program, prelude=PRELUDE + TORCH + FORK, RDMA_TEST_RANKS=str(world), **options)

    return run


@pytest.fixture
def started():
    """Starts a program at each rank, without waiting."""
    running = []

    def start(world, program, prelude=PRELUDE, arguments=(), **variables):
        job = Ranks(prelude + textwrap.dedent(program), world, arguments, **variables)
        running.append(job)
        return job

    yield start
    for job in running:
        job.kill()
