"""Ranks of two hosts, which are network namespaces of this machine."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from conftest import PRELUDE, TORCH

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root and iproute2"
)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Two network namespaces with the addresses 10.77.0.1 and 10.77.0.2."""
    names = [f"rdma-py-{os.getpid()}-{number}" for number in (1, 2)]
    made = [ip("netns", "add", name) for name in names]
    try:
        if any(one.returncode for one in made):
            pytest.skip(f"no network namespaces here: {made[0].stderr}")
        ends = [f"vp{os.getpid() % 100000}{end}" for end in "ab"]
        assert ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1]).returncode == 0
        for number, (name, end) in enumerate(zip(names, ends), 1):
            ip("link", "set", end, "netns", name)
            for command in (
                ("addr", "add", f"10.77.0.{number}/24", "dev", end),
                ("link", "set", end, "up"),
                ("link", "set", "lo", "up"),
            ):
                done = ip("-n", name, *command)
                assert done.returncode == 0, done.stderr
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def run(hosts, program, **variables):
    environment = {**os.environ, "RDMA_TEST_ROOT": "10.77.0.1:29511", "RDMA_TEST_WORLD": "2", **variables}
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-c", PRELUDE + program],
            env={**environment, "RDMA_TEST_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()


def test_a_key_of_rank_0_or_of_a_file_connects_hosts(hosts, tmp_path):
    program = textwrap.dedent(
        """
        import array
        comm = meet()
        assert "TCP" in comm.transports, comm.transports
        numbers = array.array("f", [rank + 1.0] * 100_000)
        comm.all_reduce(numbers)
        assert set(numbers) == {3.0}
        came = bytearray(100_000)
        work = comm.recv(came, 1 - rank, async_op=True)
        comm.send(bytes([rank]) * 100_000, 1 - rank)
        assert work.wait() == 1 - rank and came == bytes([1 - rank]) * 100_000
        comm.close()
        """
    )
    run(hosts, program, RDMA_SOFT_TCP="auto", RDMA_JOB_KEY="1")
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    run(hosts, program, RDMA_SOFT_TCP="auto", RDMA_SOFT_KEY=str(key))


def test_without_a_key_the_exception_names_both_ways(hosts):
    program = textwrap.dedent(
        """
        error = refused(RdmaError, "RDMA_SOFT_KEY", meet)
        assert "RDMA_JOB_KEY" in str(error), error
        """
    )
    run(hosts, program, RDMA_SOFT_TCP="auto")


def test_pytorch_between_hosts(hosts):
    pytest.importorskip("torch")
    program = TORCH + textwrap.dedent(
        """
        begin()
        t = torch.full((1000,), rank + 1.0)
        dist.all_reduce(t)
        assert (t == 3).all()
        assert "TCP" in dist.distributed_c10d._get_default_group()._comm.transports
        dist.destroy_process_group()
        """
    )
    run(hosts, program, RDMA_SOFT_TCP="auto", RDMA_JOB_KEY="store", GLOO_SOCKET_IFNAME="lo")
