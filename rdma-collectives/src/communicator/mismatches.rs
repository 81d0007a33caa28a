//! Ranks that do different operations are told, and ranks that do the same are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bootstrap::{Group, Place, Roles, Root, Terms, listen_locally};
use crate::testing::{LONG, ranks, soft0, start, tuning};
use crate::{
    Algorithm, Cause, Collective, Communicator, DataType, Element, Error, ErrorKind, Job, Reduction, Request, Schedule,
    Transport, Tuning, build,
};

/// An operation of a rank.
type Operation = fn(&mut Communicator) -> Result<(), Error>;

fn all_reduce<T: Element>(comm: &mut Communicator, count: usize, reduction: Reduction) -> Result<(), Error> {
    comm.all_reduce_in_place(&mut vec![T::from_small(1); count], reduction)
}

fn sums(comm: &mut Communicator) -> Result<(), Error> {
    all_reduce::<f32>(comm, 1024, Reduction::Sum)
}

fn by_ring(comm: &mut Communicator) -> Result<(), Error> {
    let request = Request { algorithm: Some(Algorithm::Ring), ..Request::new(Collective::AllGather, 100) };
    all_gather_by(comm, request)
}

fn by_bruck(comm: &mut Communicator) -> Result<(), Error> {
    let request = Request { algorithm: Some(Algorithm::Bruck), ..Request::new(Collective::AllGather, 100) };
    all_gather_by(comm, request)
}

fn all_gather_by(comm: &mut Communicator, request: Request) -> Result<(), Error> {
    let (input, output) = (comm.allocate::<f32>(100)?, comm.allocate::<f32>(300)?);
    let operation = comm.prepare::<f32>(request)?;
    comm.perform(&operation, &input, &output)
}

/// What the first ranks do, what the last one does, and how the operations are named.
const CASES: &[(Operation, Operation, [&str; 2])] = &[
    (
        sums,
        |comm| comm.broadcast(&mut [1.0_f64; 16], 1),
        ["all_reduce of 1024 x f32 by sum", "broadcast of 16 x f64 from rank 1"],
    ),
    (
        sums,
        |comm| all_reduce::<f32>(comm, 1025, Reduction::Sum),
        ["all_reduce of 1024 x f32 by sum", "all_reduce of 1025 x f32 by sum"],
    ),
    (
        sums,
        |comm| all_reduce::<u32>(comm, 1024, Reduction::Sum),
        ["all_reduce of 1024 x f32 by sum", "all_reduce of 1024 x u32 by sum"],
    ),
    (
        sums,
        |comm| all_reduce::<f32>(comm, 1024, Reduction::Max),
        ["all_reduce of 1024 x f32 by sum", "all_reduce of 1024 x f32 by max"],
    ),
    (
        |comm| all_reduce::<u8>(comm, 8, Reduction::Sum),
        |comm| all_reduce::<u64>(comm, 1, Reduction::Sum),
        ["all_reduce of 8 x u8 by sum", "all_reduce of 1 x u64 by sum"],
    ),
    (
        |comm| comm.broadcast(&mut [1.0_f32; 16], 0),
        |comm| comm.broadcast(&mut [1.0_f32; 16], 1),
        ["broadcast of 16 x f32 from rank 0", "broadcast of 16 x f32 from rank 1"],
    ),
    (sums, Communicator::barrier, ["all_reduce of 1024 x f32 by sum", "barrier"]),
    (
        |comm| {
            let tensor = comm.allocate::<i32>(10)?;
            comm.all_reduce_in_place(&tensor, Reduction::Sum)
        },
        |comm| {
            let _tensor = comm.allocate::<i32>(10)?;
            comm.all_reduce_in_place(&mut [1; 10], Reduction::Sum)
        },
        ["all_reduce of 10 x i32 by sum in tensors", "all_reduce of 10 x i32 by sum in slices"],
    ),
    (
        by_ring,
        by_bruck,
        ["all_gather of 100 x f32 in tensors (by ring, ", "all_gather of 100 x f32 in tensors (by bruck, "],
    ),
    (sums, |comm| comm.allocate::<u8>(10).map(drop), ["all_reduce of 1024 x f32 by sum", "the allocation of a tensor"]),
    (sums, |comm| comm.split(0, 0).map(drop), ["all_reduce of 1024 x f32 by sum", "a split of the communicator"]),
    (
        |comm| comm.allocate::<u8>(10).map(drop),
        |comm| comm.split(0, 0).map(drop),
        ["the allocation of a tensor", "a split of the communicator"],
    ),
    (|comm| comm.subset(&[0]).map(drop), Communicator::barrier, ["a split of the communicator", "barrier"]),
    (
        |comm| {
            comm.all_to_all_v(&[1.0_f32; 3][..comm.ranks()], &[1; 3][..comm.ranks()], &mut [0.0; 3][..comm.ranks()])
                .map(drop)
        },
        Communicator::barrier,
        ["all_to_all_v of f32", "barrier"],
    ),
    // In another order.
    (
        |comm| sums(comm).and_then(|()| comm.barrier()),
        |comm| comm.barrier().and_then(|()| sums(comm)),
        ["all_reduce of 1024 x f32 by sum", "barrier"],
    ),
];

/// Its first step is an all-gather of the counts.
#[test]
fn an_all_to_all_of_different_lengths_is_named_from_its_begin() {
    for compares in [false, true] {
        start(2, Transport::Auto, move |mut comm, group| {
            comm.compare_operations(compares);
            let is_barrier = comm.rank() == 1;
            let error = repeat(&mut comm, |comm| match is_barrier {
                true => comm.barrier(),
                false => comm.all_to_all_v(&[1_i32, 2], &[1, 1], &mut [0, 0]).map(drop),
            });
            let Cause::Mismatch { operations, .. } = error.cause() else { panic!("{error}") };
            let named = if compares { "all_to_all_v of elements of type i32 in slices" } else { "all_to_all_v of i32" };
            assert_eq!(operations[0], named);
            assert!(is_barrier || error.operation() == Some(Collective::AllToAllV), "{:?}", error.operation());
            group.conclude(Ok(())).unwrap();
        });
    }
}

#[test]
fn an_operation_that_is_refused_has_not_scaled() {
    for compares in [true, false] {
        start(2, Transport::Auto, move |mut comm, group| {
            comm.compare_operations(compares);
            let tensor = comm.allocate::<f32>(8).unwrap();
            if !compares {
                // The ranks learn it by an operation before.
                repeat(&mut comm, if group.rank() == 0 { sums } else { Communicator::barrier });
            }
            let (mut memory, mut elements) = ([3.0_f32; 8], [0.0; 8]);
            tensor.write(0, &memory).unwrap();
            let refused = match comm.rank() {
                0 => [
                    comm.all_reduce_scaled(&mut memory, 2.0, Reduction::Sum),
                    comm.all_reduce_scaled(&tensor, 2.0, Reduction::Sum),
                ],
                _ => [comm.barrier(), comm.barrier()],
            };
            assert!(refused.iter().all(|refused| is_mismatch(refused.as_ref().unwrap_err())), "{refused:?}");
            tensor.read(0, &mut elements).unwrap();
            assert_eq!((memory, elements), ([3.0; 8], [3.0; 8]));
            group.conclude(Ok(())).unwrap();
        });
    }
}

/// Whether an error names the operations of two ranks.
fn is_mismatch(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidInput && matches!(error.cause(), Cause::Mismatch { .. })
}

/// Does an operation until the ranks are told that theirs differ. An operation may fail before, for
/// example with a message of another length, and rank 0 may not have compared by then.
fn repeat(comm: &mut Communicator, mut operation: impl FnMut(&mut Communicator) -> Result<(), Error>) -> Error {
    let began = Instant::now();
    loop {
        match operation(comm) {
            Err(error) if is_mismatch(&error) => return error,
            Err(error) => assert!(began.elapsed() < LONG, "{error}"),
            Ok(()) => assert!(began.elapsed() < LONG),
        }
    }
}

fn differences_are_told(world: usize, transport: Transport) {
    for &(first, last, [one, other]) in CASES {
        start(world, transport, move |mut comm, group| {
            let is_last = comm.rank() == world - 1;
            comm.barrier().unwrap();
            let error = repeat(&mut comm, if is_last { last } else { first });
            let text = error.to_string();
            let (one, other) = (format!(" does {one}"), format!(", and rank {} does {other}", world - 1));
            assert!(text.contains(&one) && text.contains(&other) && text.contains(", as operation "), "{text}");
            // To a third rank, it is not one rank alone.
            match error.rank() {
                Some(rank) => assert!((rank < world - 1) == is_last && error.host().is_some(), "{rank}: {text}"),
                None => assert!(world > 2 && !is_last, "{text}"),
            }
            // So do all later ones of this communicator, and the job itself goes on.
            assert!(is_mismatch(&comm.barrier().unwrap_err()));
            assert!(comm.allocate::<u8>(1).is_err());
            group.conclude(Ok(())).unwrap();
        });
    }
}

#[test]
fn differences_in_shared_memory_are_told_to_two_ranks() {
    differences_are_told(2, Transport::Shm);
}

#[test]
fn differences_in_shared_memory_are_told_to_three_ranks() {
    differences_are_told(3, Transport::Shm);
}

#[test]
fn differences_over_verbs_are_told_to_two_ranks() {
    differences_are_told(2, Transport::Verbs);
}

#[test]
fn differences_over_verbs_are_told_to_three_ranks() {
    differences_are_told(3, Transport::Verbs);
}

/// One operation differs, and those after it do not. Nobody waits for anybody.
#[test]
fn one_difference_that_stops_nobody_is_found() {
    for transport in [Transport::Shm, Transport::Verbs] {
        start(2, transport, |mut comm, group| {
            let rank = comm.rank();
            let (integers, floats) = (comm.allocate::<u32>(2).unwrap(), comm.allocate::<f32>(2).unwrap());
            let mut number = 0;
            let error = repeat(&mut comm, |comm| {
                number += 1;
                if rank == 1 && number == 1000 {
                    comm.all_reduce_in_place(&floats, Reduction::Sum)
                } else {
                    comm.all_reduce_in_place(&integers, Reduction::Sum)
                }
            });
            let text = error.to_string();
            assert!(text.starts_with("rank 0 ") && text.contains(" and rank 1 "), "{text}");
            assert_eq!(error.rank(), Some(1 - rank));
            group.conclude(Ok(())).unwrap();
        });
    }
}

/// The last operation differs, and nobody waits for anybody, so that only the end of the job tells.
#[test]
fn a_difference_in_the_last_operation_is_told_at_the_end_of_the_job() {
    for transport in [Transport::Shm, Transport::Verbs] {
        for (world, is_dropped) in [(2, true), (2, false), (3, true)] {
            start(world, transport, move |mut comm, group| {
                let rank = comm.rank();
                let (integers, floats) = (comm.allocate::<u32>(2).unwrap(), comm.allocate::<f32>(2).unwrap());
                for _ in 0..100 {
                    comm.all_reduce_in_place(&integers, Reduction::Max).unwrap();
                }
                let last = match rank {
                    1 => comm.all_reduce_in_place(&floats, Reduction::Max),
                    _ => comm.all_reduce_in_place(&integers, Reduction::Max),
                };
                let comm = (!is_dropped).then_some(comm);
                // On a slow machine the ranks have compared already.
                let error = last.and_then(|()| group.conclude(Ok(()))).unwrap_err();
                let Cause::Mismatch { ranks, operations, .. } = error.cause() else { panic!("{error}") };
                // Rank 1, and whichever other one has reported first.
                let expected = ranks.map(|rank| if rank == 1 { "f32" } else { "u32" });
                assert!(ranks.contains(&1), "{error}");
                assert_eq!(*operations, expected.map(|element| format!("all_reduce of 2 x {element} by max")));
                drop(comm);
            });
        }
    }
}

/// Where rank 0 is late, the others differ from each other.
#[test]
fn a_difference_is_told_while_rank_0_is_busy() {
    start(3, Transport::Auto, |mut comm, mut group| {
        let rank = comm.rank();
        if rank == 0 {
            // It does nothing until the others have been told.
            group.barrier("the difference").unwrap();
            assert!(is_mismatch(&comm.barrier().unwrap_err()));
            return group.conclude(Ok(())).unwrap();
        }
        let error = if rank == 1 { repeat(&mut comm, sums) } else { repeat(&mut comm, Communicator::barrier) };
        let text = "rank 1 does all_reduce of 1024 x f32 by sum, and rank 2 does barrier, as operation 1; \
                    all ranks do the same operations in the same order";
        assert_eq!(error.to_string(), text);
        let operations = ["all_reduce of 1024 x f32 by sum".to_owned(), "barrier".to_owned()];
        assert_eq!(error.cause(), &Cause::Mismatch { number: 1, ranks: [1, 2], operations });
        assert_eq!((error.rank(), error.operation()), (Some(3 - rank), Some(Collective::AllReduce)));
        group.barrier("the difference").unwrap();
        group.conclude(Ok(())).unwrap();
    });
}

#[test]
fn a_difference_in_a_part_does_not_end_other_communicators() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(3, transport, |mut comm, _| {
            let rank = comm.rank();
            let mut part = comm.split(usize::from(rank > 0), 0).unwrap();
            let mut copy = comm.split(0, 0).unwrap();
            if rank == 0 {
                part.barrier().unwrap();
            } else {
                let error = repeat(&mut part, if rank == 1 { sums } else { Communicator::barrier });
                let text = "rank 0 (rank 1 of the job) does all_reduce of 1024 x f32 by sum, and rank 1 (rank 2 of \
                            the job) does barrier, as operation 1;";
                assert!(error.to_string().contains(text), "{error}");
                assert_eq!(error.rank(), Some(3 - rank));
            }
            for _ in 0..10 {
                comm.barrier().unwrap();
                copy.barrier().unwrap();
            }
        });
    }
}

/// The operations that ranks have done are compared several times in the meantime.
#[test]
fn ranks_that_are_late_are_not_accused() {
    for transport in [Transport::Shm, Transport::Verbs] {
        let late = Arc::new(AtomicUsize::new(0));
        ranks(3, transport, move |mut comm, _| {
            let rank = comm.rank();
            for turn in 0..3 {
                comm.broadcast(&mut [1_u8; 3], turn).unwrap();
                if turn == rank {
                    std::thread::sleep(Duration::from_secs(3));
                    late.fetch_add(1, Ordering::Relaxed);
                }
                sums(&mut comm).unwrap();
                assert_eq!(late.load(Ordering::Relaxed), turn + 1);
            }
        });
    }
}

fn run(comm: &mut Communicator, algorithm: Algorithm, count: usize) -> Result<(), Error> {
    let (input, output) = (comm.allocate::<f32>(100)?, comm.allocate::<f32>(300)?);
    let schedule = build(Collective::AllGather, algorithm, &Job::new(comm.rank(), comm.ranks(), count));
    let schedule = schedule.map_err(|error| Error::invalid(error.to_string()))?;
    comm.run(&schedule, &input.part(0..100), &output.part(0..300), Reduction::Sum)
}

#[test]
fn schedules_of_the_program_are_compared() {
    let own: [(Operation, [&str; 2]); 3] = [
        (|comm| run(comm, Algorithm::Ring, 100), ["all_gather by ring", "all_gather by bruck"]),
        (|comm| run(comm, Algorithm::Bruck, 50), ["(identity ", "(identity "]),
        (
            |comm| comm.allocate::<f32>(100).and(comm.allocate::<f32>(300)).and_then(|_| comm.barrier()),
            ["barrier", "a schedule of all_gather by bruck, of f32"],
        ),
    ];
    for (operation, named) in own {
        start(3, Transport::Auto, move |mut comm, group| {
            let bruck: Operation = |comm| run(comm, Algorithm::Bruck, 100);
            let is_last = comm.rank() == 2;
            let error = repeat(&mut comm, if is_last { bruck } else { operation });
            let Cause::Mismatch { operations, .. } = error.cause() else { panic!("{error}") };
            assert!(operations.iter().zip(named).all(|(text, named)| text.contains(named)), "{error}");
            group.conclude(Ok(())).unwrap();
        });
    }
}

/// A schedule without an identity may be run by some ranks alone.
#[test]
fn schedules_that_need_not_be_run_together_are_not_accused() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let tensor = comm.allocate::<f32>(10).unwrap();
        for _ in 0..8 {
            if comm.rank() == 0 {
                let part = tensor.part(0..10);
                comm.run(&Schedule::default(), &part, &part, Reduction::Max).unwrap();
            }
            comm.barrier().unwrap();
            // The ranks compare meanwhile.
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn an_aggregator_that_does_something_else_is_named() {
    start(3, Transport::Auto, |mut comm, group| {
        comm.set_aggregators(1, 8).unwrap();
        // Nobody waits for the aggregator, so that the end of the job tells.
        let done = match comm.rank() {
            2 => comm.broadcast(&mut [0_u8; 0], 0),
            _ => comm.all_reduce_in_place(&mut [1_u8; 8], Reduction::Sum),
        };
        let error = done.and_then(|()| group.conclude(Ok(()))).unwrap_err();
        let Cause::Mismatch { ranks, operations, .. } = error.cause() else { panic!("{error}") };
        assert_eq!((ranks[1], operations[0].as_str()), (2, "all_reduce of u8 by sum"), "{error}");
        assert_eq!(operations[1], "broadcast of u8 from rank 0");
    });
}

/// Ranks that do different things where they may.
#[test]
fn what_may_differ_is_not_accused() {
    ranks(3, Transport::Auto, |mut comm, _| {
        comm.set_aggregators(1, 8).unwrap();
        let rank = comm.rank();
        for _ in 0..8 {
            // The aggregator has neither input nor output.
            let has_part = rank < 2;
            let mut output = vec![0_u8; if has_part { 4 } else { 0 }];
            comm.all_gather(&[1_u8; 2][..if has_part { 2 } else { 0 }], &mut output).unwrap();
            // Messages are between two ranks.
            match rank {
                0 => comm.send(&[7_u8; 5], 1).unwrap(),
                1 => comm.recv(&mut [0_u8; 5], 0).unwrap(),
                _ => {}
            }
            // The ranks compare meanwhile.
            std::thread::sleep(Duration::from_millis(300));
        }
    });
}

/// Whether a rank works in place is its own affair, as far as the others do not read its memory.
#[test]
fn ranks_that_work_in_place_are_not_accused() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, |mut comm, _| {
            let is_in_place = comm.rank() == 1;
            let long = comm.allocate::<f32>(1 << 20).unwrap();
            let other = comm.allocate::<f32>(1 << 20).unwrap();
            for _ in 0..6 {
                let (mut sums, mut blocks) = ([1.0_f32; 1000], [1.0_f32; 1000]);
                if is_in_place {
                    comm.all_reduce_in_place(&mut sums, Reduction::Sum).unwrap();
                    comm.all_to_all_in_place(&mut blocks).unwrap();
                    comm.all_reduce_in_place(&long, Reduction::Max).unwrap();
                } else {
                    comm.all_reduce(&[1.0_f32; 1000], &mut sums, Reduction::Sum).unwrap();
                    comm.all_to_all(&[1.0_f32; 1000], &mut blocks).unwrap();
                    comm.all_reduce(&long, &other, Reduction::Max).unwrap();
                }
                assert_eq!((sums, blocks), ([2.0; 1000], [1.0; 1000]));
                // The ranks compare meanwhile.
                std::thread::sleep(Duration::from_millis(300));
            }
        });
    }
}

/// The variable that tells a second process where its parent listens.
const ADDRESS: &str = "RDMA_TEST_MISMATCH_ADDRESS";

fn job_of(address: &str) -> u64 {
    u64::from_str_radix(address.rsplit('-').next().unwrap(), 16).unwrap()
}

/// All-reduces until rank 0 has enough.
fn work_together(root: Root, job: u64, rank: usize, is_enough: impl Fn() -> bool) {
    let terms = Terms::new("test", &serde_json::json!({}), Roles::Ranks, LONG);
    let mut group = Group::meet(Place { rank, ranks: 2, root, job }, &terms).unwrap();
    let mut comm = Communicator::new(&soft0(), &mut group, Tuning { transport: Transport::Auto, ..tuning() }).unwrap();
    loop {
        let mut flag = [u32::from(is_enough())];
        comm.all_reduce_in_place(&mut flag, Reduction::Max).unwrap();
        if flag[0] > 0 {
            break;
        }
    }
    group.conclude(Ok(())).unwrap();
}

#[test]
fn a_rank_that_is_stopped_for_a_while_is_not_accused() {
    let job = u64::from(std::process::id()) << 32 | 0xa_0000;
    let (socket, address) = listen_locally(job).unwrap();
    let mut command = rdma_test_support::alone(&["communicator::mismatches::a_rank_that_its_parent_stops"]);
    let mut child = command.env(ADDRESS, &address).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let began = std::cell::Cell::new(None);
    work_together(Root::Listener(socket), job, 0, || {
        if began.get().is_none() {
            began.set(Some(Instant::now()));
            std::thread::spawn(move || {
                for _ in 0..3 {
                    kill(pid, Signal::SIGSTOP).unwrap();
                    std::thread::sleep(Duration::from_millis(1500));
                    kill(pid, Signal::SIGCONT).unwrap();
                    std::thread::sleep(Duration::from_millis(300));
                }
            });
        }
        began.get().is_some_and(|began| began.elapsed() > Duration::from_secs(7))
    });
    assert!(child.wait().unwrap().success());
}

/// Runs in a process of its own, which is stopped.
#[test]
#[ignore = "run by a_rank_that_is_stopped_for_a_while_is_not_accused"]
fn a_rank_that_its_parent_stops() {
    let address = std::env::var(ADDRESS).unwrap();
    let job = job_of(&address);
    work_together(Root::Address(address), job, 1, || false);
}

/// Each field of a signature has space for all values.
#[test]
fn all_values_have_space_in_a_signature() {
    assert!(Collective::ALL.len() < 253 && DataType::ALL.len() < 256 && Algorithm::ALL.len() < 256);
}
