"""Ranks that meet, wait and end."""

import os
import signal
import subprocess
import sys
import threading

import pytest


def test_messages_go_on_in_any_order(ranks):
    ranks(
        2,
        """
        comm, peer = meet(), 1 - rank
        first, second = bytearray(3), bytearray(300_000)
        works = [comm.recv(second, peer, 2, async_op=True), comm.recv(first, None, 1, async_op=True)]
        comm.send(bytes([rank]) * 300_000, peer, 2, async_op=True)
        comm.send(bytes([rank]) * 3, peer, 1)
        assert [work.wait() for work in works] == [peer, peer]
        assert first == bytes([peer]) * 3 and second == bytes([peer]) * 300_000
        comm.close()
        """,
    )


def test_started_operations_are_awaited(ranks):
    ranks(
        2,
        """
        import array, asyncio
        comm = meet()

        async def main():
            numbers = [array.array("d", [rank + step]) for step in range(10)]
            works = [comm.all_reduce(one, async_op=True) for one in numbers]
            await asyncio.gather(*(wait(work) for work in works))
            assert [one[0] for one in numbers] == [1.0 + 2 * step for step in range(10)]
            # An awaited message comes later; the loop goes on.
            came = bytearray(4)
            if rank == 0:
                receive = asyncio.ensure_future(wait(comm.recv(came, 1, async_op=True)))
                await asyncio.sleep(0)
                assert not receive.done()
                await wait(comm.barrier(async_op=True))
                assert await receive == 1 and came == b"late"
            else:
                await wait(comm.barrier(async_op=True))
                await wait(comm.send(b"late", 0, async_op=True))

        async def wait(work):
            return await work

        asyncio.run(main())
        comm.close()
        """,
    )


def test_a_wait_ends_in_time_and_the_operation_goes_on(ranks):
    ranks(
        2,
        """
        comm = meet()
        if rank == 0:
            memory = bytearray(4)
            work = comm.recv(memory, 1, async_op=True)
            error = refused(RdmaTimeout, "it goes on", work.wait, 0.05)
            assert isinstance(error, TimeoutError) and error.cause == "wait"
            comm.barrier()
            assert work.wait(60.0) == 1 and memory == b"1234"
        else:
            comm.barrier()
            comm.send(b"1234", 0)
        comm.close()
        """,
    )


def test_control_c_ends_a_wait(started):
    job = started(
        2,
        """
        comm = meet()
        if rank == 0:
            memory = bytearray(4)
            work = comm.recv(memory, 1, async_op=True)
            try:
                print("waits", flush=True)
                work.wait()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("no interrupt")
            # The operation has gone on.
            comm.barrier()
            assert work.wait() == 1 and memory == b"1234"
        else:
            comm.barrier()
            comm.send(b"1234", 0)
        comm.close()
        """,
    )
    assert job.processes[0].stdout.readline() == "waits\n"
    job.processes[0].send_signal(signal.SIGINT)
    for status, _, errors in job.wait():
        assert status == 0, errors


def test_the_death_of_a_rank_is_told_with_its_number(started):
    job = started(
        3,
        """
        import array
        comm = meet()
        comm.barrier()
        print("connected", flush=True)
        if rank == 1:
            time.sleep(1000)
        error = refused(RdmaError, "rank 1", comm.all_reduce, array.array("d", [1.0]))
        assert (error.rank, error.cause) == (1, "ended"), (error.rank, error.cause)
        error = refused(RdmaError, "rank 1", comm.recv, bytearray(4), 1)
        """,
    )
    for process in job.processes:
        assert process.stdout.readline() == "connected\n"
    job.processes[1].kill()
    statuses = job.wait()
    assert [statuses[rank][0] for rank in (0, 2)] == [0, 0], statuses


def test_an_exception_of_a_rank_is_the_reason_for_the_others(started):
    for leave in ("raise KeyError('no paper')", "with comm: raise KeyError('no paper')"):
        job = started(
            2,
            f"""
            comm = meet()
            if rank == 1:
                {leave}
            error = refused(RdmaError, "no paper", comm.barrier)
            assert error.cause == "aborted" and error.rank == 1, (error.cause, error.rank)
            """,
        )
        (status, _, errors), (other, _, text) = job.wait()
        assert status == 0, errors
        assert other == 1 and "no paper" in text


def test_the_interpreter_ends_with_operations_in_flight(ranks):
    ranks(
        2,
        """
        comm = meet()
        memory = bytearray(1 << 20)
        comm.recv(memory, 1 - rank, 7, async_op=True)
        comm._native.leave()
        """,
    )
    ranks(
        2,
        """
        rdma_collectives._FAREWELL = 0.5
        comm = meet()
        memory = bytearray(1 << 20)
        work = comm.recv(memory, 1 - rank, 7, async_op=True)
        """,
    )


def test_a_second_init_is_refused_until_the_first_is_closed(ranks):
    ranks(
        2,
        """
        comm = meet()
        refused(RuntimeError, "close() it first", meet)
        other = rdma_collectives.Communicator.meet(rank, world, os.environ["RDMA_TEST_ROOT"].replace("127.0.0.1", "127.0.0.2"))
        for each in (comm, other):
            each.barrier()
            each.close()
        meet().close()
        """,
    )


def test_a_forked_child_is_refused(ranks):
    ranks(
        2,
        """
        comm = meet()
        child = os.fork()
        if child == 0:
            refused(InvalidArgument, "forked child", comm.barrier)
            refused(InvalidArgument, "forked child", comm.send, b"1", 1 - rank)
            comm.close()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        comm.barrier()
        comm.close()
        """,
    )


def test_threads_share_a_communicator(ranks):
    ranks(
        2,
        """
        import array, threading
        comm, peer = meet(), 1 - rank
        def swap(tag):
            for _ in range(20):
                came = bytearray(1000)
                work = comm.recv(came, peer, tag, async_op=True)
                comm.send(bytes([tag]) * 1000, peer, tag)
                work.wait()
                assert came == bytes([tag]) * 1000
        threads = [threading.Thread(target=swap, args=(tag,)) for tag in range(4)]
        for thread in threads: thread.start()
        for _ in range(50):
            one = array.array("d", [1.0])
            comm.all_reduce(one)
            assert one[0] == 2.0
        for thread in threads: thread.join()
        comm.close()
        """,
    )


def test_ranks_meet_by_a_store_a_directory_and_a_launcher(ranks, tmp_path):
    ranks(
        2,
        f"""
        import pathlib
        class Store:
            def __init__(self, path): self.path = pathlib.Path(path)
            def file(self, key): return self.path / key.replace("/", "_")
            def set(self, key, value): (self.path / f"tmp{{rank}}").write_bytes(value); (self.path / f"tmp{{rank}}").rename(self.file(key))
            def get(self, key, seconds):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    if self.file(key).exists(): return self.file(key).read_bytes()
                    time.sleep(0.01)
            def delete(self, key): self.file(key).unlink(missing_ok=True)
        for _ in range(2):
            with rdma_collectives.init(rank, world, store=Store({str(tmp_path)!r})) as comm:
                comm.barrier()
        (by_directory := pathlib.Path({str(tmp_path)!r}) / "directory").mkdir(exist_ok=True)
        with rdma_collectives.init(rank, world, directory=str(by_directory)) as comm:
            comm.barrier()
        class Broken(Store):
            def set(self, key, value): raise OSError("no paper")
            def get(self, key, seconds): raise OSError("no paper")
        refused(RdmaError, "no paper", rdma_collectives.init, rank, world, store=Broken("/"))
        host, port = os.environ["RDMA_TEST_ROOT"].split(":")
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR=host, MASTER_PORT=port)
        with rdma_collectives.init() as comm:
            comm.barrier()
        refused(RdmaError, "`root`", rdma_collectives.init, rank, world)
        refused(InvalidArgument, "ranks count from 0", rdma_collectives.init, 2, 2, "127.0.0.1:1")
        refused(InvalidArgument, "give one of", rdma_collectives.init, 0, 1, "127.0.0.1:1", transport="pigeon")
        refused(InvalidArgument, "`device`", rdma_collectives.init, 0, 1, "127.0.0.1:1", device="a b:c")
        """,
    )


def test_over_tcp_and_verbs(ranks):
    for transport in ("verbs", "tcp"):
        ranks(
            2,
            f"""
            import array
            comm = meet(transport={transport!r}, job_key=True)
            numbers = array.array("f", [rank] * 100_000)
            comm.all_reduce(numbers)
            assert set(numbers) == {{1.0}}
            came = bytearray(200_000)
            work = comm.recv(came, 1 - rank, async_op=True)
            comm.send(bytes([rank + 1]) * 200_000, 1 - rank)
            work.wait()
            assert came == bytes([2 - rank]) * 200_000
            comm.close()
            """,
        )


def test_a_job_whose_ranks_do_not_come_ends_in_time(ranks):
    ranks(
        1,
        """
        error = refused(RdmaError, "did not come", rdma_collectives.init, 0, 2, os.environ["RDMA_TEST_ROOT"], timeout=1.0)
        """,
    )
