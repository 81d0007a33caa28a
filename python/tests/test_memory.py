"""Operations on objects of Python, and objects that they refuse."""

import pytest

numpy = pytest.importorskip("numpy")


def test_every_operation_of_arrays(ranks):
    ranks(
        3,
        """
        import numpy as np
        comm = meet()
        assert (comm.rank, comm.ranks) == (rank, world)
        for dtype in "f2 f4 f8 i1 u1 i4 u4 i8 u8".split():
            ones = np.full(7, rank + 1, dtype)
            comm.all_reduce(ones)
            assert (ones == 6).all()
            out = np.zeros(7, dtype)
            comm.all_reduce(np.full(7, rank + 1, dtype), out, "max")
            assert (out == 3).all()
            out = np.zeros((3, 2), dtype)
            comm.all_gather(np.full(2, rank, dtype), out)
            assert (out == np.arange(3)[:, None]).all()
            out = np.zeros(3, dtype)
            comm.all_gather(np.full(rank, rank, dtype), out, [0, 1, 2])
            assert (out == [1, 2, 2]).all()
            out = np.zeros(2, dtype)
            comm.reduce_scatter(np.arange(6).astype(dtype), out)
            assert (out == [6 * rank, 6 * rank + 3]).all()
            out = np.zeros(rank, dtype)
            comm.reduce_scatter(np.ones(3, dtype), out, counts=[0, 1, 2])
            assert (out == 3).all()
            out = np.zeros(3, dtype)
            comm.all_to_all(np.arange(3).astype(dtype) + 10 * rank, out)
            assert (out == np.arange(3) * 10 + rank).all()
            came = comm.all_to_all(np.full(3, rank, dtype), out, [1, 1, 1])
            assert came == [1, 1, 1] and (out == [0, 1, 2]).all()
            out = np.full(5, rank, dtype)
            comm.broadcast(out, 2)
            assert (out == 2).all()
            out = np.zeros(4, dtype) if rank == 1 else None
            comm.reduce(np.full(4, 2, dtype), out, 1, "prod")
            assert rank != 1 or (out == 8).all()
            out = np.zeros(3, dtype) if rank == 1 else None
            comm.gather(np.full(1, rank, dtype), out, 1)
            assert rank != 1 or (out == [0, 1, 2]).all()
            out = np.zeros(2, dtype)
            comm.scatter(np.arange(6).astype(dtype) if rank == 2 else None, out, 2)
            assert (out == [2 * rank, 2 * rank + 1]).all()
            comm.barrier()
        comm.close()
        """,
    )


def test_memory_of_other_kinds(ranks):
    ranks(
        2,
        """
        import array
        import numpy as np
        with meet() as comm:
            numbers = array.array("d", [rank, 1.0])
            comm.all_reduce(numbers)
            assert numbers.tolist() == [1.0, 2.0]
            memory = bytearray([rank] * 5)
            comm.broadcast(memory, 1)
            assert memory == bytes([1] * 5)
            gathered = bytearray(6)
            comm.all_gather(b"abc" if rank == 0 else b"xyz", gathered)
            assert gathered == b"abcxyz"
            # Items without a reduction are moved: booleans, complex numbers, records.
            for dtype in ("?", "c16", "i2", [("a", "i4"), ("b", "f8")]):
                own = np.zeros(3, dtype)
                own.view("u1")[:] = rank + 1
                out = np.zeros(6, dtype)
                comm.all_gather(own, out)
                assert (out.view("u1") == np.repeat([1, 2], own.nbytes)).all()
                refused(InvalidArgument, "`input`", comm.all_reduce, own)
            bits = np.array([0x3f80, 0x4000], "u2")  # 1 and 2 as bf16
            comm.all_reduce(bits, dtype="bf16")
            assert bits.tolist() == [0x4000, 0x4080]
            empty = np.zeros(0, "f4")
            comm.all_reduce(empty)
            # An object with DLPack alone.
            class Foreign:
                def __init__(self, array): self.array = array
                def __dlpack__(self, **options): return self.array.__dlpack__(**options)
                def __dlpack_device__(self): return self.array.__dlpack_device__()
            owner = np.arange(4, dtype="f4")
            comm.all_reduce(Foreign(owner))
            assert owner.tolist() == [0, 2, 4, 6]
            refused(InvalidArgument, "contiguous", comm.all_reduce, Foreign(np.zeros((4, 4), "f4").T))
        """,
    )


def test_arguments_that_make_no_sense_are_refused_and_the_job_goes_on(ranks):
    ranks(
        2,
        """
        import numpy as np
        comm = meet()
        a = np.zeros((4, 4), "f4")
        refused(InvalidArgument, "`input`", comm.all_reduce, a.T[1:])
        refused(InvalidArgument, "contiguous", comm.all_reduce, a[:, ::2])
        refused(ValueError, "cannot be written", comm.all_reduce, b"12345678")
        read_only = np.zeros(3); read_only.flags.writeable = False
        refused(InvalidArgument, "cannot be written", comm.broadcast, read_only)
        refused(InvalidArgument, "neither the buffer protocol nor DLPack", comm.all_reduce, [1.0, 2.0])
        refused(InvalidArgument, "neither", comm.send, None, 1 - rank)
        refused(InvalidArgument, "`output` has 7 elements", comm.all_gather, np.zeros(4), np.zeros(7))
        refused(InvalidArgument, "`input` has elements of f32, and `output` of f64", comm.all_gather, np.zeros(1, "f4"), np.zeros(2))
        refused(InvalidArgument, "and", comm.all_reduce, np.zeros(4), None, "and")
        refused(InvalidArgument, "give one of sum", comm.all_reduce, np.zeros(4), None, "mean")
        refused(InvalidArgument, "`root` is 2", comm.broadcast, np.zeros(4), 2)
        refused(InvalidArgument, "`counts` has 3 numbers", comm.all_gather, np.zeros(1), np.zeros(2), [1, 1, 1])
        refused(InvalidArgument, "cannot share", comm.all_to_all, np.zeros(3), np.zeros(3))
        refused(InvalidArgument, "no f64", lambda: comm.all_reduce(np.zeros(4, "f4"), dtype="f64"))
        refused(InvalidArgument, "give one of", lambda: comm.all_reduce(np.zeros(4, "f4"), dtype="f9"))
        refused(InvalidArgument, "this one", comm.send, np.zeros(1), rank)
        refused(InvalidArgument, "`timeout`", comm.barrier(async_op=True).wait, -1.0)
        one = np.ones(1)
        comm.all_reduce(one)
        assert one[0] == 2
        comm.close()
        refused(InvalidArgument, "closed", comm.all_reduce, one)
        refused(InvalidArgument, "closed", comm.send, one, 1 - rank)
        comm.close()
        """,
    )


def test_memory_is_held_until_the_operation_has_ended(ranks):
    ranks(
        2,
        """
        comm = meet()
        memory = bytearray(1000)
        if rank == 0:
            work = comm.recv(memory, 1, async_op=True)
            refused(BufferError, "re-sized", memory.extend, b"x")
            assert not work.is_done()
            comm.barrier()
            assert work.wait() == 1
            memory.extend(b"x")
            assert memory == b"7" * 1000 + b"x"
        else:
            comm.barrier()
            comm.send(b"7" * 1000, 0)
        # A work that nobody waits for gives its memory back, too.
        lost = bytearray(8)
        work = comm.all_reduce(lost, async_op=True)
        comm.barrier()
        del work
        comm.barrier()
        lost.extend(b"x")
        comm.close()
        """,
    )


def test_ranks_with_different_operations_are_told(ranks):
    ranks(
        2,
        """
        import numpy as np
        comm = meet(compare=True)
        error = refused(InvalidArgument, "all_reduce", comm.all_reduce, np.zeros(4 + rank))
        assert error.cause == "mismatch", error.cause
        comm.barrier()
        """,
    )
    ranks(
        2,
        """
        import numpy as np
        comm = meet()
        def repeat():
            # A rank may have what it needs before the ranks have compared what they do.
            end = time.monotonic() + 30
            while time.monotonic() < end:
                comm.all_reduce(np.zeros(4 + rank))
        error = refused(InvalidArgument, "all_reduce of", repeat)
        assert error.cause == "mismatch", error.cause
        """,
    )


def test_many_operations_do_not_grow(ranks):
    ranks(
        2,
        """
        import resource
        import numpy as np
        comm = meet()
        memory, done = np.zeros(16, "f4"), 0
        def some(count):
            for _ in range(count):
                comm.all_reduce(memory)
                comm.all_reduce(memory, async_op=True).wait()
        some(2000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        some(int(os.environ.get("RDMA_TEST_OPERATIONS", 4000)) // 2)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 2048, f"{grown} KiB more"
        comm.close()
        """,
        timeout=600,
    )
