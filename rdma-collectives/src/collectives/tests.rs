use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::bootstrap::{Group, Roles, Terms};
use crate::placement::run_threads;
use crate::testing::ranks;
use crate::transport::Transport;
use crate::tuning::Tuning;
use crate::ways::PRETENDED;
use crate::{Algorithm, Cause, ErrorKind, Executor, Transfer};

/// An element of a rank's input, which no other element equals by chance.
fn element(rank: usize, index: usize) -> i64 {
    i64::try_from((rank + 1) * 1_000_003 + index * 7919).unwrap()
}

fn input(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|index| element(rank, index)).collect()
}

/// The sum of the ranks' elements of an index.
fn sum(ranks: usize, index: usize) -> i64 {
    (0..ranks).map(|rank| element(rank, index)).sum()
}

/// The position of a rank's block.
fn block(counts: &[usize], rank: usize) -> Range<usize> {
    let start = counts[..rank].iter().sum();
    start..start + counts[rank]
}

/// Memory of the program, or a tensor with the same elements.
enum Memory {
    Slice(Vec<i64>),
    Tensor(Tensor<i64>, usize),
}

impl Memory {
    /// A tensor where `is_tensor`; all ranks have one then, of a common length.
    fn new(comm: &mut Communicator, elements: &[i64], is_tensor: bool, most: usize) -> Self {
        if !is_tensor {
            return Self::Slice(elements.to_vec());
        }
        let tensor = comm.allocate(most).unwrap();
        tensor.write(0, elements).unwrap();
        Self::Tensor(tensor, elements.len())
    }

    fn source(&self) -> Source<'_, i64> {
        match self {
            Self::Slice(elements) => elements.into(),
            Self::Tensor(tensor, count) => tensor.source(*count),
        }
    }

    fn target(&mut self) -> Target<'_, i64> {
        match self {
            Self::Slice(elements) => elements.into(),
            Self::Tensor(tensor, count) => tensor.target(*count),
        }
    }

    fn elements(&self) -> Vec<i64> {
        match self {
            Self::Slice(elements) => elements.clone(),
            Self::Tensor(tensor, count) => {
                let mut elements = vec![0; *count];
                tensor.read(0, &mut elements).unwrap();
                elements
            }
        }
    }
}

/// Runs every operation on blocks of these lengths, and compares with what it should give.
fn check(comm: &mut Communicator, counts: &[usize], root: usize, is_tensor: [bool; 2]) {
    let (rank, n, total) = (comm.rank(), comm.ranks(), counts.iter().sum::<usize>());
    let (own, mine, at_root) = (counts[rank], block(counts, rank), rank == root);
    let all: Vec<i64> = (0..n).flat_map(|rank| input(rank, counts[rank])).collect();
    let sums: Vec<i64> = (0..total).map(|index| sum(n, index)).collect();
    let [source, target] = is_tensor;
    let memory = |comm: &mut Communicator, elements: &[i64], is_tensor| Memory::new(comm, elements, is_tensor, total);
    let whole = memory(comm, &input(rank, total), source);
    let part = memory(comm, &input(rank, own), source);
    let mut all_out = memory(comm, &vec![-1; total], target);
    let mut own_out = memory(comm, &vec![-1; own], target);
    let nothing = || Vec::<i64>::new();

    comm.all_reduce(whole.source(), all_out.target(), Reduction::Sum).unwrap();
    assert_eq!(all_out.elements(), sums, "all_reduce");
    let mut both = memory(comm, &input(rank, total), target);
    comm.all_reduce_in_place(both.target(), Reduction::Sum).unwrap();
    assert_eq!(both.elements(), sums, "all_reduce in place");
    comm.all_gather_v(part.source(), all_out.target(), counts).unwrap();
    assert_eq!(all_out.elements(), all, "all_gather_v");
    comm.reduce_scatter_v(whole.source(), own_out.target(), counts, Reduction::Sum).unwrap();
    assert_eq!(own_out.elements(), sums[mine.clone()], "reduce_scatter_v");
    let mut both = memory(comm, &input(rank, total), target);
    comm.broadcast(both.target(), root).unwrap();
    assert_eq!(both.elements(), input(root, total), "broadcast");
    let mut out = if at_root { vec![-1; total] } else { nothing() };
    comm.reduce(whole.source(), &mut out, root, Reduction::Max).unwrap();
    assert_eq!(out, if at_root { input(n - 1, total) } else { nothing() }, "reduce");
    comm.gather_v(part.source(), &mut out, counts, root).unwrap();
    assert_eq!(out, if at_root { all.clone() } else { nothing() }, "gather_v");
    let from = if at_root { input(root, total) } else { nothing() };
    comm.scatter_v(&from, own_out.target(), counts, root).unwrap();
    assert_eq!(own_out.elements(), input(root, total)[mine], "scatter_v");

    // Rank `a` sends `counts[b]` elements to rank `b` in one direction, and its own count to each
    // in the other.
    let to_each: Vec<i64> = (0..n * own).map(|index| element(rank, index)).collect();
    let mut from_each = vec![-1; total];
    let came = comm.all_to_all_v(&to_each, &vec![own; n], &mut from_each).unwrap();
    let expected: Vec<i64> = (0..n)
        .flat_map(|from| input(from, n * counts[from])[rank * counts[from]..(rank + 1) * counts[from]].to_vec())
        .collect();
    assert_eq!((from_each, came), (expected, counts.to_vec()), "all_to_all_v");
    comm.barrier().unwrap();
}

/// The same for blocks of one length, in place too.
fn check_even(comm: &mut Communicator, count: usize, root: usize, is_tensor: bool) {
    let (rank, n) = (comm.rank(), comm.ranks());
    let (total, mine) = (n * count, rank * count..(rank + 1) * count);
    let all: Vec<i64> = (0..n).flat_map(|rank| input(rank, count)).collect();
    let memory = |comm: &mut Communicator, elements: &[i64]| Memory::new(comm, elements, is_tensor, total);
    let (whole, part) = (memory(comm, &input(rank, total)), memory(comm, &input(rank, count)));
    let (mut out, mut own_out) = (memory(comm, &vec![-1; total]), memory(comm, &vec![-1; count]));
    comm.all_gather(part.source(), out.target()).unwrap();
    assert_eq!(out.elements(), all, "all_gather");
    comm.reduce_scatter(whole.source(), own_out.target(), Reduction::Avg).unwrap();
    let means: Vec<i64> = (0..total).map(|index| sum(n, index) / i64::try_from(n).unwrap()).collect();
    assert_eq!(own_out.elements(), means[mine.clone()], "reduce_scatter");
    comm.all_to_all(whole.source(), out.target()).unwrap();
    let blocks: Vec<i64> = (0..n).flat_map(|from| input(from, total)[mine.clone()].to_vec()).collect();
    assert_eq!(out.elements(), blocks, "all_to_all");
    comm.gather(part.source(), out.target(), root).unwrap();
    assert_eq!(out.elements(), if rank == root { all.clone() } else { blocks.clone() }, "gather");
    comm.scatter(whole.source(), own_out.target(), root).unwrap();
    assert_eq!(own_out.elements(), input(root, total)[mine.clone()], "scatter");

    let mut elements = vec![-1; total];
    elements[mine.clone()].copy_from_slice(&input(rank, count));
    let mut both = memory(comm, &elements);
    comm.all_gather_in_place(both.target()).unwrap();
    assert_eq!(both.elements(), all, "all_gather in place");
    let mut both = memory(comm, &input(rank, total));
    comm.reduce_scatter_in_place(both.target(), Reduction::Sum).unwrap();
    let mut expected = input(rank, total);
    expected[mine.clone()].copy_from_slice(&mine.map(|index| sum(n, index)).collect::<Vec<_>>());
    assert_eq!(both.elements(), expected, "reduce_scatter in place");
    let mut both = memory(comm, &input(rank, total));
    comm.all_to_all_in_place(both.target()).unwrap();
    assert_eq!(both.elements(), blocks, "all_to_all in place");
}

/// Blocks that fit into one piece of the copies, and blocks that do not; some have no elements.
fn cases(world: usize) -> Vec<Vec<usize>> {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let lengths = prop_oneof![Just(0_usize), 1..9_usize, 9..2000_usize];
    let blocks = proptest::collection::vec(lengths, world);
    let mut cases: Vec<Vec<usize>> = (0..12).map(|_| blocks.new_tree(&mut runner).unwrap().current()).collect();
    cases.push(vec![0; world]);
    cases
}

fn every_operation_is_right(world: usize, transport: Transport) {
    ranks(world, transport, move |mut comm, _| {
        for (at, counts) in cases(world).iter().enumerate() {
            let is_tensor = [[false, false], [true, true], [true, false], [false, true]][at % 4];
            check(&mut comm, counts, at % world, is_tensor);
            check_even(&mut comm, counts[0], at % world, at % 2 == 1);
        }
    });
}

#[test]
fn a_rank_alone_does_every_operation() {
    every_operation_is_right(1, Transport::Auto);
}

#[test]
fn ranks_that_share_memory_do_every_operation() {
    every_operation_is_right(2, Transport::Shm);
    every_operation_is_right(5, Transport::Shm);
}

#[test]
fn ranks_that_are_connected_by_verbs_do_every_operation() {
    every_operation_is_right(2, Transport::Verbs);
    every_operation_is_right(3, Transport::Verbs);
}

/// Some pairs are connected by their own devices, and others by the software device in place of
/// these. All are soft0: each rank pretends to have a kind of hardware, or none.
#[test]
fn ranks_with_different_hardware_do_every_operation() {
    for (kinds, transport) in [
        (&[Some(1), Some(1), None][..], Transport::Verbs),
        // Nobody uses the device of its own.
        (&[Some(1), Some(2), None], Transport::Verbs),
        // Ranks of one kind share memory as far as they can, which is all of them.
        (&[Some(1), None], Transport::Auto),
        (&[Some(1), None, Some(1), Some(2)], Transport::Verbs),
    ] {
        let world = kinds.len();
        let terms = Terms::new("test", &(), Roles::Ranks, crate::testing::LONG);
        let connected = run_threads(world, &terms, |group| {
            let rank = group.rank();
            PRETENDED.set(kinds[rank]);
            let tuning = Tuning { transport, chunk: 4096, ..crate::testing::tuning() };
            let mut comm = Communicator::new(&crate::testing::soft0(), group, tuning)?;
            for (at, counts) in cases(world).iter().enumerate() {
                let is_tensor = [[false, false], [true, true], [true, false], [false, true]][at % 4];
                check(&mut comm, counts, at % world, is_tensor);
                check_even(&mut comm, counts[0], at % world, at % 2 == 1);
            }
            check_even(&mut comm, 100_000, 0, true);
            // A part chooses anew.
            let mut part = comm.split(rank % 2, 0)?;
            let alike = part.ranks();
            check_even(&mut part, 1000, alike - 1, true);
            Ok::<_, Error>((comm.connections(), comm.transports().to_string()))
        });
        let connections = if transport == Transport::Auto { 1 } else { 2 };
        for (counted, transports) in connected.unwrap() {
            assert_eq!(counted, connections, "{kinds:?}: {transports}");
        }
    }
}

/// The questions of programs of two processes, which use verbs alone.
#[test]
fn ranks_ask_for_their_route_without_shared_memory() {
    for (kinds, is_fallback, why) in [
        ([None, None], false, None),
        ([Some(1), Some(1)], false, None),
        ([Some(1), None], true, Some("rank 1 has no hardware")),
        (
            [Some(2), Some(1)],
            true,
            Some("soft0:1 of rank 0 and soft0:1 of rank 1 do not reach each other (they are RoCE and InfiniBand)"),
        ),
    ] {
        let terms = Terms::new("test", &(), Roles::Ranks, crate::testing::LONG);
        let routes = run_threads(2, &terms, |group| {
            PRETENDED.set(kinds[group.rank()]);
            crate::tcp::route(&crate::testing::soft0(), group)
        });
        let expected = crate::tcp::Route { is_fallback, is_tcp: false, why: why.map(str::to_owned) };
        assert_eq!(routes.unwrap(), [expected.clone(), expected], "{kinds:?}");
    }
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let (mut two, mut three) = ([0_i32; 2], [0_i32; 3]);
        let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
        let text = "all_reduce: an output of 2 elements, and the operation has 3";
        assert_eq!(refused(comm.all_reduce(&three, &mut two, Reduction::Sum)), text);
        let text = "3 elements cannot be divided among 2 ranks";
        assert_eq!(refused(comm.all_gather_in_place(&mut three)), text);
        let text = "root 2 is not below the number of ranks, 2";
        assert_eq!(refused(comm.broadcast(&mut two, 2)), text);
        let text = "1 counts for 2 ranks: all_gather takes none, or one for each rank";
        assert_eq!(refused(comm.all_gather_v(&[1], &mut two, &[1])), text);
        let tensor = comm.allocate::<i32>(4).unwrap();
        let text = "input and output of all_to_all are one tensor: use the call in place";
        assert_eq!(refused(comm.all_to_all(&tensor, &tensor)), text);
        let text = "all_reduce: an output of 2 elements, and the operation has 0";
        assert_eq!(refused(comm.all_reduce(&[], &mut two, Reduction::Sum)), text);
        let text = "all_gather: an output of 2 elements, and the operation has 0";
        assert_eq!(refused(comm.all_gather(&[], &mut two)), text);
        let text = "reduce_scatter: an input of 2 elements, and the operation has 0";
        assert_eq!(refused(comm.reduce_scatter(&[1, 2], &mut [0_i32; 0], Reduction::Sum)), text);
        let text = "all_gather: 0 counts for 2 ranks: give one for each";
        assert_eq!(refused(comm.all_gather_v(&[1], &mut two, &[])), text);
        let mut untouched = [1.5_f32; 2];
        assert!(comm.all_reduce_scaled(&mut untouched, 2.0, Reduction::Xor).is_err());
        assert_eq!(untouched, [1.5; 2]);
        let tensor = comm.allocate::<f32>(2).unwrap();
        tensor.write(0, &untouched).unwrap();
        assert!(comm.all_reduce_scaled(tensor.target(3), 2.0, Reduction::Sum).is_err());
        let mut other = comm.split(0, comm.rank()).unwrap();
        assert!(other.all_reduce_scaled(&tensor, 2.0, Reduction::Sum).is_err());
        tensor.read(0, &mut untouched).unwrap();
        assert_eq!(untouched, [1.5; 2]);
        // Nothing of this has reached the other rank.
        comm.barrier().unwrap();
    });
}

#[test]
fn parts_of_a_communicator_work_at_the_same_time() {
    ranks(4, Transport::Auto, |mut comm, _| {
        let (rank, color) = (comm.rank(), comm.rank() % 2);
        let mut part = comm.split(color, 10 - rank).unwrap();
        // The keys turn the order round.
        assert_eq!((part.rank(), part.ranks()), (1 - rank / 2, 2));
        for round in 0..20 {
            let mut sums = [i64::try_from(rank).unwrap() + round; 3];
            part.all_reduce_in_place(&mut sums, Reduction::Sum).unwrap();
            assert_eq!(sums, [i64::try_from(2 * color + 2).unwrap() + 2 * round; 3]);
            let mut all = [1_u8];
            comm.all_reduce_in_place(&mut all, Reduction::Sum).unwrap();
            assert_eq!(all, [4]);
        }
    });
}

#[test]
fn the_choice_can_be_asked_and_forced() {
    let check = |comm: &mut Communicator, _: &mut Group| {
        let is_shared = comm.transports().main() == Transport::Shm;
        let prepared = |comm: &Communicator, op, algorithm| {
            let operation = comm.prepare::<f32>(Request { algorithm, ..Request::new(op, 1 << 20) }).unwrap();
            (operation.algorithm(), operation.executor())
        };
        let fused = prepared(comm, Collective::AllReduce, None);
        assert_eq!(fused, (Algorithm::TwoStep, Executor::Fused));
        let direct = if is_shared { Executor::Reads } else { Executor::Steps };
        assert_eq!(prepared(comm, Collective::AllGather, Some(Algorithm::Direct)), (Algorithm::Direct, direct));
        let tree = prepared(comm, Collective::AllReduce, Some(Algorithm::Tree));
        assert_eq!(tree, (Algorithm::Tree, Executor::Steps));
        let refused = comm.prepare::<f32>(Request {
            algorithm: Some(Algorithm::Bruck),
            counts: vec![1, 2],
            ..Request::new(Collective::AllGather, 0)
        });
        assert!(refused.unwrap_err().to_string().starts_with("bruck needs blocks of equal lengths"));
    };
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, move |mut comm, group| check(&mut comm, group));
    }
}

#[test]
fn ranks_that_do_not_do_the_same_are_told() {
    ranks(3, Transport::Auto, |mut comm, _| {
        comm.compare_operations(true);
        let (rank, mut memory) = (comm.rank(), vec![1_i32; 6]);
        comm.all_reduce_in_place(&mut memory, Reduction::Sum).unwrap();
        let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
        let count = if rank == 2 { 5 } else { 6 };
        let told = refused(comm.all_reduce_in_place(&mut memory[..count], Reduction::Sum));
        let sum = |count| format!("all_reduce of {count} elements of type i32 by sum in slices");
        assert_eq!(told, format!("rank 0 does {}, and rank 2 does {}", sum(6), sum(5)));
        let told = match rank {
            1 => refused(comm.broadcast(&mut [1_u8; 3], 2)),
            _ => refused(comm.all_reduce_in_place(&mut memory, Reduction::Sum)),
        };
        let broadcast = "broadcast of 3 elements of type u8 with root 2 in slices";
        assert_eq!(told, format!("rank 0 does {}, and rank 1 does {broadcast}", sum(6)));
        let tensor = comm.allocate::<i32>(6).unwrap();
        let told = match rank {
            0 => refused(comm.all_reduce_in_place(&tensor, Reduction::Sum)),
            _ => refused(comm.all_reduce_in_place(&mut memory, Reduction::Sum)),
        };
        assert!(told.contains("by sum in tensors, and rank 1") && told.ends_with("by sum in slices"), "{told}");
        // What differs comes after the part of a text that fits into a message.
        let counts: Vec<usize> = (0..9).map(|at| at % 3).collect();
        let request = Request { counts: [counts, vec![0; 600]].concat(), ..Request::new(Collective::AllToAllV, 0) };
        let request = Request { root: rank, op: Collective::Scatter, ..request };
        assert_eq!(comm.compare(|| request.describe::<i32>("slices")).unwrap_err().kind(), ErrorKind::InvalidInput);
        // No rank has begun, so the ranks can go on.
        comm.all_reduce_in_place(&mut memory, Reduction::Sum).unwrap();
        assert_eq!(memory, [9; 6]);
    });
}

#[test]
fn a_forked_child_gets_an_error() {
    rdma_test_support::passes_alone(&["collectives::tests::a_child_that_uses_its_parents_communicator"], &[]);
}

/// Runs in a process of its own, which forks.
#[test]
#[ignore = "run by a_forked_child_gets_an_error"]
fn a_child_that_uses_its_parents_communicator() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks(2, transport, move |mut comm, group| {
            let tensor = comm.allocate::<i32>(16).unwrap();
            let mut memory = [1_i32; 16];
            if comm.rank() == 0 {
                let is_refused = |result: Result<(), Error>| {
                    result.is_err_and(|error| error.to_string().starts_with("this is a forked child"))
                };
                assert!(rdma_test_support::holds_in_child(|| {
                    is_refused(comm.all_reduce_in_place(&mut memory, Reduction::Sum))
                        && is_refused(comm.all_reduce_in_place(&tensor, Reduction::Sum))
                        && is_refused(comm.send(&memory, 1))
                        && is_refused(comm.allocate::<u8>(1).map(drop))
                        // The other memory is the child's own, as any memory is.
                        && (transport == Transport::Verbs
                            || tensor.read(0, &mut memory).is_err() && tensor.write(0, &memory).is_err())
                }));
            }
            group.barrier("the child").unwrap();
            comm.all_reduce_in_place(&mut memory, Reduction::Sum).unwrap();
            assert_eq!(memory, [2; 16]);
        });
    }
}

#[test]
fn what_was_done_is_counted() {
    ranks(2, Transport::Verbs, |mut comm, _| {
        let tensor = comm.allocate::<f32>(1000).unwrap();
        for _ in 0..3 {
            comm.all_reduce_in_place(&tensor, Reduction::Sum).unwrap();
        }
        let mut both = [0_u8; 20];
        comm.all_gather(&[1; 10], &mut both).unwrap();
        let peer = 1 - comm.rank();
        comm.exchange(&mut [Transfer::send(&[1_u8; 5], peer), Transfer::recv(&mut [0_u8; 5], peer)]).unwrap();
        let stats = comm.stats();
        let count = |op| {
            let of_op = stats.operations.iter().filter(|one| one.op == op);
            of_op.map(|one| (one.count, one.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(count(Collective::AllReduce), [(3, 12_000)]);
        assert_eq!(count(Collective::AllGather), [(1, 20)]);
        assert_eq!(stats.messages, 2);
        // The bytes of ten elements, and of the message.
        assert_eq!((stats.traffic.sent, stats.traffic.received), (15, 15));
        assert!(stats.rails[0].0.starts_with("soft0") && stats.rails[0].1 > 12_000);
    });
}

#[test]
fn an_operation_that_is_late_ends_at_every_rank_with_the_reason() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks_that_fail(transport, |mut comm, _| {
            if comm.rank() == 1 {
                comm.set_limit(Some(Duration::from_millis(50)));
                let error = comm.recv(&mut [0_u8; 3], 0).unwrap_err();
                let known = (error.kind(), error.rank(), error.operation());
                assert_eq!(known, (ErrorKind::TimedOut, Some(0), Some(Collective::SendRecv)), "{error}");
                assert!(error.to_string().ends_with("the operation has not ended in time"), "{error}");
                assert_eq!(error.cause(), &Cause::TimedOut { limit: Duration::from_millis(50) });
                return;
            }
            // Its limit is another rank's.
            let error = comm.barrier().unwrap_err();
            let known = (error.kind(), error.rank(), error.operation());
            assert_eq!(known, (ErrorKind::Peer, Some(1), Some(Collective::AllReduce)), "{error}");
            assert_eq!(error.cause(), &Cause::TimedOut { limit: Duration::from_millis(50) });
            assert_eq!(error.host(), Some(nix::unistd::gethostname().unwrap().to_string_lossy().as_ref()));
            let reason = "rank 1 has aborted the job: waiting for rank 0 to send a message: the operation has not ended in time (50ms)";
            assert!(error.to_string().ends_with(reason), "{error}");
        });
    }
}

#[test]
fn an_abort_ends_what_all_ranks_do() {
    for transport in [Transport::Shm, Transport::Verbs] {
        ranks_that_fail(transport, |mut comm, group| {
            let (rank, aborter) = (comm.rank(), comm.aborter());
            group.barrier("the start").unwrap();
            let other = std::thread::spawn(move || {
                if rank == 2 {
                    aborter.abort("no more money");
                }
            });
            // Rank 0 never sends.
            let error = if rank == 0 { comm.recv(&mut [0_u8], 1) } else { comm.recv(&mut [0_u8], 0) }.unwrap_err();
            assert!(error.to_string().ends_with("rank 2 has aborted the job: no more money"), "{error}");
            assert_eq!(error.cause(), &Cause::Aborted);
            other.join().unwrap();
        });
    }
}

/// Runs `body` in three ranks, whose job does not end well.
fn ranks_that_fail(transport: Transport, body: impl Fn(Communicator, &mut Group) + Clone + Send + 'static) {
    crate::testing::start(3, transport, move |comm, mut group| body(comm, &mut group));
}

#[test]
fn elements_are_scaled_before_the_sum_and_bits_are_combined() {
    ranks(2, Transport::Auto, |mut comm, _| {
        let rank = comm.rank();
        let mut slice = [1.0_f32, 2.0, 3.0];
        comm.all_reduce_scaled(&mut slice, if rank == 0 { 0.5 } else { 2.0 }, Reduction::Sum).unwrap();
        assert_eq!(slice, [2.5, 5.0, 7.5]);
        let tensor = comm.allocate::<i64>(1000).unwrap();
        tensor.write(0, &[3; 1000]).unwrap();
        comm.all_reduce_scaled(&tensor, 10, Reduction::Sum).unwrap();
        let mut sums = [0; 1000];
        tensor.read(0, &mut sums).unwrap();
        assert_eq!(sums, [60; 1000]);
        let mut bits = [if rank == 0 { 0b1100_u8 } else { 0b1010 }; 3];
        comm.all_reduce_in_place(&mut bits, Reduction::Xor).unwrap();
        assert_eq!(bits, [0b0110; 3]);
        let refused = comm.all_reduce_in_place(&mut slice, Reduction::And).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        comm.barrier().unwrap();
    });
}
