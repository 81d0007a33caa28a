//! One-sided operations under one doorbell.

use std::task::{Poll, Waker};

use rdma::{ErrorKind, ExposedRegion, RemoteAccess, RemoteSlice};

use super::wakers::{Driven, poll};
use super::*;

fn exposed(node: &Node, len: usize) -> (ExposedRegion, RemoteSlice) {
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let region = node.domain().allocate_exposed(len, access).unwrap();
    let slice = region.remote(..).unwrap();
    (region, slice)
}

#[test]
fn the_results_of_a_batch_come_in_the_order_of_its_operations() {
    let mut world = World::new(&options().operations(64));
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server, 64 * 64);
    region.copy_in(0, &bytes(64 * 64)).unwrap();
    let (remote, domain) = (client.remote(), world.client.domain());
    assert_eq!(remote.max_operations(), 64);
    for _ in 0..3 {
        region.copy_in(0, &[0; 8]).unwrap();
        let mut batch = remote.batch();
        assert!(batch.is_empty());
        batch.fetch_add(at, 5).unwrap();
        for row in 1..61 {
            batch.fetch(at.slice(64 * row..64 * row + 32).unwrap()).unwrap();
        }
        let mut buffer = domain.allocate(16).unwrap();
        buffer.copy_from_slice(&[7; 16]);
        batch.write(at.slice(61 * 64..).unwrap(), buffer, 10).unwrap();
        batch.read(at.slice(62 * 64..).unwrap(), domain.allocate(64).unwrap()).unwrap();
        batch.compare_swap(at.slice(63 * 64..).unwrap(), 1, 2).unwrap();
        assert_eq!(batch.len(), 64);
        let results = block_on(batch.submit()).unwrap();
        assert_eq!(results.len(), 64);
        assert_eq!(results[0].old_value(), Some(0));
        for (row, result) in results.iter().enumerate().take(61).skip(1) {
            assert!(result.fetched().unwrap()[..] == bytes(64 * 64)[64 * row..64 * row + 32], "{row}");
        }
        assert!(results[63].old_value().is_some() && results[63].fetched().is_none());
        let mut buffers = results.into_iter().skip(61).filter_map(Outcome::into_buffer);
        assert_eq!(buffers.next().unwrap()[..], [7; 16]);
        assert!(buffers.next().unwrap()[..] == bytes(64 * 64)[62 * 64..63 * 64]);
        assert!(buffers.next().is_none());
        let mut written = [0; 11];
        region.copy_out(61 * 64, &mut written).unwrap();
        assert_eq!(written[..10], [7; 10]);
    }
    assert!(block_on(remote.batch().submit()).unwrap().is_empty());
    drop((client, server, region));
    world.end();
}

#[test]
fn a_batch_that_does_not_fit_is_refused_before_anything_is_posted() {
    let mut world = World::new(&options().operations(3));
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server, 64);
    let (remote, domain) = (client.remote(), world.client.domain());
    let mut batch = remote.batch();
    (0..3).for_each(|_| batch.fetch_add(at, 1).unwrap());
    let refused = [
        batch.fetch_add(at, 1),
        batch.compare_swap(at, 1, 2),
        batch.fetch(at),
        batch.read(at, domain.allocate(1).unwrap()),
        batch.write(at, domain.allocate(1).unwrap(), 1),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Local);
        let Some(ErrorKind::InvalidOption(limit)) = refused.as_error().map(|error| error.kind()) else {
            panic!("{refused}")
        };
        assert_eq!(limit.name, "operations");
    }
    // A mistake is refused alone, and the batch stays as it is.
    let mut other = remote.batch();
    let short = at.slice(..4).unwrap();
    let refused = [
        other.fetch_add(short, 1),
        other.compare_swap(short, 1, 2),
        other.read(short, domain.allocate(5).unwrap()),
        other.write(short, domain.allocate(5).unwrap(), 5),
        other.write(at, domain.allocate(5).unwrap(), 6),
    ];
    for refused in refused {
        let error = refused.unwrap_err().as_error().unwrap();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
    }
    drop(other);
    // The peer takes no notifications.
    let refused = remote.batch().write_imm(at, domain.allocate(8).unwrap(), 8, 1).unwrap_err();
    assert_eq!(refused.as_error().unwrap().kind(), ErrorKind::NotSupported);
    assert_eq!(block_on(remote.fetch_add(at, 0)), Ok(0), "nothing was posted");
    assert_eq!(block_on(batch.submit()).unwrap().len(), 3);
    assert_eq!(block_on(remote.fetch_add(at, 0)), Ok(3));
    // Reads of any number are split.
    let many = block_on(remote.fetch_all((0..10).map(|byte| at.slice(byte..=byte).unwrap()))).unwrap();
    assert_eq!((many.len(), many[0][0], many[1][0]), (10, 3, 0));
    assert!(block_on(remote.fetch_all([])).unwrap().is_empty());
    drop((client, server, region, many));
    world.end();
}

#[test]
fn an_operation_that_is_refused_fails_its_batch_and_no_other() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server, 64);
    let remote = client.remote();
    // Of a domain that is not the connection's.
    let foreign = || context().alloc_pd().unwrap().allocate(8).unwrap();
    for place in 0..3 {
        let mut batch = remote.batch();
        for entry in 0..3 {
            match entry == place {
                true => batch.write(at.slice(8..).unwrap(), foreign(), 8).unwrap(),
                false => batch.fetch_add(at, 1).unwrap(),
            }
        }
        let refused = block_on(batch.submit()).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Local, "{refused}");
    }
    // The operations beside it have happened.
    assert_eq!(block_on(remote.fetch_add(at, 0)), Ok(6));
    let refused = block_on(remote.write(at, foreign(), 8)).unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Local);
    drop((client, server, region));
    world.end();
}

#[test]
fn a_batch_waits_for_its_slots_and_others_wait_behind_it() {
    let mut world = Driven::new(&options().operations(4));
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.nodes[1], 64);
    let remote = client.remote();
    let mut one = Box::pin(remote.fetch_add(at, 1));
    assert!(poll(one.as_mut(), Waker::noop()).is_pending());
    let mut batch = remote.batch();
    (0..4).for_each(|_| batch.fetch_add(at, 1).unwrap());
    let mut batch = Box::pin(batch.submit());
    let mut last = Box::pin(remote.fetch_add(at, 0));
    // The batch wants all slots, so the last one must not overtake it.
    assert!(poll(batch.as_mut(), Waker::noop()).is_pending());
    assert!(poll(last.as_mut(), Waker::noop()).is_pending());
    assert_eq!(world.run(one), Ok(0));
    assert_eq!(world.run(batch).unwrap().iter().filter_map(Outcome::old_value).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(world.run(last), Ok(5));
    // One that gives up passes its turn on.
    let mut one = Box::pin(remote.fetch_add(at, 0));
    let mut batch = remote.batch();
    (0..4).for_each(|_| batch.fetch_add(at, 1).unwrap());
    let mut batch = Box::pin(batch.submit());
    let mut last = Box::pin(remote.fetch_add(at, 0));
    assert!(poll(one.as_mut(), Waker::noop()).is_pending());
    assert!(poll(batch.as_mut(), Waker::noop()).is_pending());
    assert!(poll(last.as_mut(), Waker::noop()).is_pending());
    drop(batch);
    assert!(poll(last.as_mut(), Waker::noop()).is_pending());
    assert_eq!(world.run(last), Ok(5));
    assert_eq!(world.run(one), Ok(5));
    drop((client, server, region));
}

#[test]
fn batches_that_are_dropped_give_their_slots_back() {
    let mut world = Driven::new(&options());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.nodes[1], 64);
    let remote = client.remote();
    for round in 0..20 {
        let batch = || {
            let mut batch = remote.batch();
            (0..9).for_each(|_| batch.fetch_add(at, 1).unwrap());
            batch.fetch(at).unwrap();
            Box::pin(batch.submit())
        };
        // The first is posted, the second waits for slots.
        let mut batches = [batch(), batch()];
        for batch in &mut batches {
            assert!(poll(batch.as_mut(), Waker::noop()).is_pending());
        }
        (0..round % 4).for_each(|_| world.turn());
        drop(batches);
    }
    let mut batch = remote.batch();
    (0..16).for_each(|_| batch.fetch_add(at, 0).unwrap());
    let last = world.run(batch.submit()).unwrap().pop().unwrap().old_value().unwrap();
    // One that met no free slots has not happened.
    assert!(last >= 5 * 9 && last % 9 == 0, "{last}: a batch happens as a whole");
    drop((client, server, region));
}

#[test]
fn batches_end_with_their_connection() {
    let mut world = Driven::new(&options());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.nodes[1], 64);
    let remote = client.remote();
    let mut waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut batch = remote.batch();
            (0..16).for_each(|_| batch.fetch_add(at, 1).unwrap());
            Box::pin(batch.submit())
        })
        .collect();
    waiting.iter_mut().for_each(|batch| assert!(poll(batch.as_mut(), Waker::noop()).is_pending()));
    client.core().fail(Failure::new(FailureKind::PeerGone));
    for mut batch in waiting {
        let Poll::Ready(ended) = poll(batch.as_mut(), Waker::noop()) else { panic!("waits for ever") };
        assert_eq!(ended.unwrap_err().kind(), FailureKind::PeerGone);
    }
    let mut late = remote.batch();
    late.fetch_add(at, 1).unwrap();
    let Poll::Ready(ended) = poll(Box::pin(late.submit()).as_mut(), Waker::noop()) else { panic!("waits for ever") };
    assert_eq!(ended.unwrap_err().kind(), FailureKind::PeerGone);
    drop((client, server, region));
}

#[test]
fn the_number_of_operations_in_flight_is_an_option() {
    for count in [1, 4096] {
        let mut world = World::new(&options().operations(count));
        let (client, server) = world.pair();
        let (region, at) = exposed(&world.server, 64);
        let remote = client.remote();
        let mut batch = remote.batch();
        (0..count).for_each(|_| batch.fetch_add(at, 1).unwrap());
        assert!(batch.fetch_add(at, 1).is_err());
        assert_eq!(block_on(batch.submit()).unwrap().len(), usize::from(count));
        assert_eq!(block_on(remote.fetch_add(at, 0)), Ok(count.into()));
        drop((client, server, region));
        world.end();
    }
    for count in [0, 4097] {
        let refused = Node::new(&context(), &options().operations(count)).unwrap_err();
        assert!(refused.to_string().contains("operations"), "{refused}");
    }
}
