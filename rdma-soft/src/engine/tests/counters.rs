//! The counters of what queue pairs did.

use super::pair::Pair;
use super::statuses::*;
use super::world::*;
use crate::engine::*;

fn counters(world: &World, at: usize) -> Counters {
    world.nodes[at].engine.counters()
}

#[test]
fn requests_and_receives_are_counted_with_their_bytes_where_they_complete() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    let memory = [Memory::new(256), Memory::new(256)];
    let keys = [0, 1].map(|at| world.register(at, &memory[at], ALL));
    let (here, there) = ([sge(&memory[0], keys[0], 0, 100)], [sge(&memory[1], keys[1], 0, 256)]);
    world.recv(b, 1, &there).unwrap();
    world.recv(b, 2, &there).unwrap();
    world.send(a, &request(SEND, 10, &here)).unwrap();
    // Without a completion, and a notice.
    world.send(a, &Post { flags: 0, ..remote(request(WRITE, 11, &here), &memory[1], 0, keys[1]) }).unwrap();
    world.send(a, &remote(request(WRITE_IMM, 12, &here), &memory[1], 0, keys[1])).unwrap();
    world.settle();
    world.send(a, &remote(request(READ, 13, &here), &memory[1], 0, keys[1])).unwrap();
    world.send(a, &remote(request(ADD, 14, &[sge(&memory[0], keys[0], 0, 8)]), &memory[1], 0, keys[1])).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [10, 12, 13, 14].map(|wr_id| (wr_id, OK)));
    assert_eq!(counters(&world, 0), Counters { requests: 5, request_bytes: 408, ..Counters::default() });
    assert_eq!(counters(&world, 1), Counters { receives: 2, receive_bytes: 200, ..Counters::default() });
}

#[test]
fn waits_failures_and_flushes_are_counted() {
    let mut world = World::new();
    let [a, b] = world.connect_with([0, 1], |_, _| {}, |_, change| change.rnr_retry = Some(2));
    world.send(a, &request(SEND, 1, &[])).unwrap();
    world.send(a, &request(SEND, 2, &[])).unwrap();
    world.run_for(10_000_000_000);
    assert_eq!(world.statuses(0), [(1, RNR_RETRY), (2, FLUSH)]);
    assert_eq!(counters(&world, 0), Counters { rnr_waits: 2, failed: 1, flushed: 1, ..Counters::default() });
    world.recv(b, 3, &[]).unwrap();
    world.set_state(b, QpState::Err);
    assert_eq!(counters(&world, 1), Counters { flushed: 1, ..Counters::default() });
}

#[test]
fn attempts_without_an_answer_are_counted() {
    let mut world = World::new();
    let [a, _b] = world.connect_with([0, 1], |_, _| {}, |_, change| change.retry_cnt = Some(3));
    world.nodes[0].engine.set_faults(Some(&"loss=2:send:nth=1".parse().unwrap()));
    world.send(a, &request(SEND, 1, &[])).unwrap();
    world.run_for(60_000_000_000);
    assert_eq!(counters(&world, 0).retries, 2);
}

#[test]
fn messages_without_a_receive_are_counted_where_they_are_dropped() {
    let mut pair = Pair::with([0, 1], ServiceType::Uc, |_| {});
    pair.world.send(pair.ends[0], &request(SEND, 1, &[])).unwrap();
    pair.world.settle();
    assert_eq!(counters(&pair.world, 0), Counters { requests: 1, ..Counters::default() });
    assert_eq!(counters(&pair.world, 1), Counters { dropped: 1, ..Counters::default() });
}
