//! The operations of `rdma_collectives` between ranks that the device under test connects, against
//! plain arithmetic.

use rdma_collectives::bootstrap::{Group, Roles, Terms};
use rdma_collectives::{Communicator, Error, ErrorKind, Queue, Reduction, Transfer, Transport, placement};
use rdma_tests::{LIMIT, VARIABLE};

/// Elements of a block: none, one, a few, and more than one message holds.
const BLOCKS: [usize; 4] = [0, 1, 37, 40_000];

/// Runs ranks of this process, which only the device connects.
fn run<T: Send>(ranks: usize, work: impl Fn(Communicator) -> Result<T, Error> + Sync) -> Vec<T> {
    run_in_group(ranks, |comm, _| work(comm))
}

/// The same for ranks that use their group too.
fn run_in_group<T: Send>(ranks: usize, work: impl Fn(Communicator, &mut Group) -> Result<T, Error> + Sync) -> Vec<T> {
    let device = std::env::var(VARIABLE).unwrap_or_else(|_| "soft0".into());
    let terms = Terms::new("device-tests", &(), Roles::Ranks, LIMIT);
    let results = placement::run_threads(ranks, &terms, |group: &mut Group| {
        let device = device.parse().expect("a device's name");
        let comm = Communicator::builder(group).device(device).transport(Transport::Verbs).stall(LIMIT).open()?;
        work(comm, group)
    });
    results.unwrap()
}

/// An element of a rank's input.
fn element(rank: usize, index: usize) -> i64 {
    i64::try_from((rank + 1) * 1_000_003 + index * 7919).unwrap()
}

fn input(rank: usize, count: usize) -> Vec<i64> {
    (0..count).map(|index| element(rank, index)).collect()
}

fn sums(ranks: usize, count: usize) -> Vec<i64> {
    (0..count).map(|index| (0..ranks).map(|rank| element(rank, index)).sum()).collect()
}

fn check(comm: &mut Communicator, count: usize, root: usize) -> Result<(), Error> {
    let (rank, n) = (comm.rank(), comm.ranks());
    let (total, mine) = (n * count, rank * count..(rank + 1) * count);
    let gathered: Vec<i64> = (0..n).flat_map(|rank| input(rank, count)).collect();
    let exchanged: Vec<i64> = (0..n).flat_map(|from| input(from, total)[mine.clone()].to_vec()).collect();
    let (mut out, mut own) = (vec![-1; total], vec![-1; count]);

    comm.all_reduce(&input(rank, total), &mut out, Reduction::Sum)?;
    assert_eq!(out, sums(n, total), "all_reduce");
    let mut both = input(rank, total);
    comm.all_reduce_in_place(&mut both, Reduction::Max)?;
    assert_eq!(both, input(n - 1, total), "all_reduce in place");
    comm.all_gather(&input(rank, count), &mut out)?;
    assert_eq!(out, gathered, "all_gather");
    comm.reduce_scatter(&input(rank, total), &mut own, Reduction::Sum)?;
    assert_eq!(own, sums(n, total)[mine.clone()], "reduce_scatter");
    comm.all_to_all(&input(rank, total), &mut out)?;
    assert_eq!(out, exchanged, "all_to_all");
    let mut both = input(rank, total);
    comm.broadcast(&mut both, root)?;
    assert_eq!(both, input(root, total), "broadcast");
    comm.scatter(&input(rank, total), &mut own, root)?;
    assert_eq!(own, input(root, total)[mine], "scatter");
    out.fill(-1);
    comm.gather(&input(rank, count), &mut out, root)?;
    assert_eq!(out, if rank == root { gathered } else { vec![-1; total] }, "gather");
    out.fill(-1);
    comm.reduce(&input(rank, total), &mut out, root, Reduction::Sum)?;
    assert_eq!(out, if rank == root { sums(n, total) } else { vec![-1; total] }, "reduce");

    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let message = input(rank, count);
    comm.exchange(&mut [Transfer::send(&message, right), Transfer::recv(&mut own, left)])?;
    assert_eq!(own, input(left, count), "exchange");
    comm.barrier()
}

#[test]
fn every_operation_is_right() {
    for ranks in [2, 3] {
        run(ranks, |mut comm| {
            for (at, count) in BLOCKS.into_iter().enumerate() {
                check(&mut comm, count, at % ranks)?;
            }
            Ok(())
        });
    }
}

#[test]
fn started_operations_give_their_memory_back() {
    let results = run(2, |comm| {
        let rank = comm.rank();
        let queue = Queue::new(comm)?;
        let started: Vec<_> =
            BLOCKS.map(|count| queue.all_reduce_in_place(input(rank, count), Reduction::Sum)).into_iter().collect();
        let mut results = Vec::new();
        for pending in started {
            results.push(pending.wait().map_err(|failed| failed.error)?);
        }
        queue.finish()?;
        Ok(results)
    });
    for result in results {
        assert_eq!(result, BLOCKS.map(|count| sums(2, count)));
    }
}

#[test]
fn a_part_goes_on_beside_the_whole() {
    run(3, |mut comm| {
        let mut pair = comm.subset(&[2, 0])?;
        assert_eq!(pair.as_ref().map(Communicator::rank), [Some(1), None, Some(0)][comm.rank()]);
        for _ in 0..3 {
            if let Some(pair) = &mut pair {
                check(pair, 37, 1)?;
            }
            check(&mut comm, 37, 1)?;
        }
        Ok(())
    });
}

/// iWARP ends the connections of a rank that has gone, at the others too.
#[test]
fn a_rank_that_has_done_its_part_may_go() {
    run_in_group(3, |mut comm, group| {
        check(&mut comm, 37, 1)?;
        let rank = comm.rank();
        if rank == 2 {
            drop(comm);
            return group.barrier("the end of a rank");
        }
        group.barrier("the end of a rank")?;
        for count in BLOCKS.into_iter().cycle().take(20) {
            let (sent, mut came) = (input(rank, count), vec![-1; count]);
            comm.exchange(&mut [Transfer::send(&sent, 1 - rank), Transfer::recv(&mut came, 1 - rank)])?;
            assert_eq!(came, input(1 - rank, count));
        }
        Ok(())
    });
}

#[test]
fn ranks_that_do_different_operations_are_told() {
    let kinds = run(2, |mut comm| {
        // One waits for the other's elements, which never come.
        let mut both = vec![0_i64; 64];
        let failed = match comm.rank() {
            0 => comm.all_reduce_in_place(&mut both, Reduction::Sum),
            _ => comm.broadcast(&mut both, 0).and_then(|()| comm.barrier()),
        };
        let error = failed.expect_err("the ranks do different operations");
        let text = error.to_string();
        assert!(text.contains("all_reduce") && text.contains("broadcast"), "{text}");
        Ok(error.kind())
    });
    assert_eq!(kinds, [ErrorKind::InvalidInput; 2]);
}
