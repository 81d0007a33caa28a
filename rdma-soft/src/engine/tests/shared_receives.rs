//! Shared receive queues.

use rdma_sys::ibv_event_type as event;

use super::datagrams::{end_with, to};
use super::statuses::*;
use super::world::*;
use crate::engine::*;

const LIMIT: u32 = event::IBV_EVENT_SRQ_LIMIT_REACHED.0;
const LAST: u32 = event::IBV_EVENT_QP_LAST_WQE_REACHED.0;
/// Bytes of the memory for one message.
const PART: usize = 1 << 12;

/// Two connections from one process to another, whose receiving sides share a queue.
struct Fixture {
    world: World,
    pairs: [[End; 2]; 2],
    srq: SrqId,
    keys: [u32; 2],
    from: Memory,
    to: Memory,
}

impl Fixture {
    fn new(depth: u32) -> Self {
        let (from, to) = (Memory::new(16 * PART), Memory::new(16 * PART));
        from.fill(3);
        let mut world = World::with_wires(64, 256);
        let pd = world.nodes[1].pd;
        let srq = world.nodes[1].engine.create_srq(&SrqInit { pd, max_wr: depth, max_sge: 2, token: 5 }).unwrap();
        let share = |index, init: &mut QpInit| init.srq = (index == 1).then_some(srq);
        let pairs = [(); 2].map(|()| world.connect_with([0, 1], share, |_, _| {}));
        let keys = [world.register(0, &from, ALL), world.register(1, &to, ALL)];
        world.events(1);
        Self { world, pairs, srq, keys, from, to }
    }

    fn engine(&mut self) -> &mut Engine {
        &mut self.world.nodes[1].engine
    }

    /// Posts the part of the receiver's memory with this number, in two entries.
    fn post(&mut self, part: usize) -> Result<(), Errno> {
        let list = [0, 1].map(|half| sge(&self.to, self.keys[1], part * PART + half * PART / 2, PART / 2));
        let srq = self.srq;
        self.engine().post_srq_recv(srq, part as u64, &list)
    }

    /// Sends a part of the sender's memory over a connection.
    fn send(&mut self, pair: usize, part: usize) {
        let list = [sge(&self.from, self.keys[0], part * PART, PART)];
        self.world.send(self.pairs[pair][0], &request(SEND, part as u64, &list)).unwrap();
    }

    /// Polls the receiver's completions: queue pair, request and status of each.
    fn received(&mut self) -> Vec<(usize, u64, u32)> {
        let pairs = self.pairs;
        let pair = |qpn| pairs.iter().position(|pair| pair[1].qpn == qpn).unwrap();
        self.world.poll(1).iter().map(|wc| (pair(wc.qpn), wc.wr_id, wc.status)).collect()
    }
}

#[test]
fn messages_that_arrive_at_the_same_time_have_a_request_each() {
    let mut f = Fixture::new(8);
    (0..4).for_each(|part| f.post(part).unwrap());
    // The frames of both messages alternate.
    f.send(0, 8);
    f.send(1, 9);
    f.world.settle();
    let mut received = f.received();
    received.sort_unstable();
    let [(0, first, OK), (1, second, OK)] = received[..] else { panic!("{received:?}") };
    assert_ne!(first, second);
    for (part, request) in [(8, first), (9, second)] {
        let at = usize::try_from(request).unwrap() * PART;
        assert!(f.to.read(at, PART) == f.from.read(part * PART, PART), "{part}");
    }
}

#[test]
fn a_message_waits_until_a_request_is_posted() {
    let mut f = Fixture::new(2);
    f.send(0, 1);
    f.world.settle();
    assert_eq!(f.received(), []);
    f.post(0).unwrap();
    f.world.run_for(1_000_000_000);
    assert_eq!(f.received(), [(0, 0, OK)]);
    assert_eq!(f.world.statuses(0), [(1, OK)]);
}

#[test]
fn the_limit_event_is_raised_once() {
    let mut f = Fixture::new(4);
    (0..4).for_each(|part| f.post(part).unwrap());
    assert_eq!(f.post(4), Err(Errno::NOMEM));
    let srq = f.srq;
    assert_eq!(f.engine().modify_srq(srq, None, Some(5)), Err(Errno::INVAL));
    f.engine().modify_srq(srq, None, Some(3)).unwrap();
    for (sent, events) in [(0, &[][..]), (1, &[LIMIT]), (2, &[])] {
        f.send(sent % 2, sent);
        f.world.settle();
        assert_eq!(f.world.events(1), events, "after {} messages", sent + 1);
    }
    assert_eq!(f.engine().query_srq(srq), Ok(SrqStatus { max_wr: 4, limit: 0 }));
    // Armed while fewer requests are left.
    f.engine().modify_srq(srq, None, Some(2)).unwrap();
    assert_eq!(f.world.events(1), [LIMIT]);
}

#[test]
fn a_resized_queue_keeps_its_requests() {
    let mut f = Fixture::new(3);
    let srq = f.srq;
    (0..3).for_each(|part| f.post(part).unwrap());
    assert_eq!(f.engine().modify_srq(srq, Some(2), None), Err(Errno::INVAL));
    assert_eq!(f.engine().modify_srq(srq, Some(limits::MAX_SRQ_WR + 1), None), Err(Errno::INVAL));
    f.engine().modify_srq(srq, Some(5), None).unwrap();
    (3..5).for_each(|part| f.post(part).unwrap());
    assert_eq!(f.post(5), Err(Errno::NOMEM));
    (0..5).for_each(|part| f.send(part % 2, part));
    f.world.settle();
    let mut requests: Vec<u64> = f.received().iter().map(|(_, request, _)| *request).collect();
    requests.sort_unstable();
    assert_eq!(requests, [0, 1, 2, 3, 4]);
}

#[test]
fn a_queue_pair_that_fails_leaves_the_queue_to_the_others() {
    let mut f = Fixture::new(4);
    (0..3).for_each(|part| f.post(part).unwrap());
    let [[_, first], _] = f.pairs;
    f.world.set_state(first, QpState::Err);
    assert_eq!(f.received(), [], "requests of the shared queue are not flushed");
    assert_eq!(f.world.events(1), [LAST]);
    f.send(1, 7);
    f.world.settle();
    assert_eq!(f.received(), [(1, 0, OK)]);
    assert_eq!(f.world.recv(first, 1, &[]), Err(Errno::INVAL), "it has no queue of its own");
}

#[test]
fn a_message_in_progress_flushes_its_request() {
    let mut f = Fixture::new(4);
    (0..2).for_each(|part| f.post(part).unwrap());
    f.world.batch = 1;
    f.send(0, 7);
    // The first frames of the message arrive.
    for _ in 0..3 {
        f.world.step(0);
        f.world.step(1);
    }
    let [[_, first], _] = f.pairs;
    f.world.set_state(first, QpState::Err);
    assert_eq!(f.received(), [(0, 0, FLUSH)]);
    assert_eq!(f.world.events(1), [LAST]);
}

#[test]
fn a_queue_in_use_is_not_destroyed() {
    let mut f = Fixture::new(4);
    f.post(0).unwrap();
    let (srq, cq, pd) = (f.srq, f.world.nodes[1].cq, f.world.nodes[1].pd);
    assert_eq!(f.engine().destroy_srq(srq), Err(Errno::BUSY));
    for [_, end] in f.pairs {
        f.engine().destroy_qp(end.qp).unwrap();
    }
    f.engine().modify_srq(srq, None, Some(4)).unwrap();
    f.engine().destroy_srq(srq).unwrap();
    assert_eq!(f.world.events(1), [], "the events of a destroyed queue are dropped");
    assert_eq!(f.engine().destroy_srq(srq), Err(Errno::INVAL));
    assert_eq!(f.engine().post_srq_recv(srq, 0, &[]), Err(Errno::INVAL));
    let init = QpInit { srq: Some(srq), ..init(&f.world.nodes[1]) };
    assert_eq!(f.engine().create_qp(&init).map(drop), Err(Errno::INVAL));
    f.engine().destroy_cq(cq).unwrap();
    assert_eq!(f.engine().create_srq(&SrqInit { pd, max_wr: 1, max_sge: 17, token: 0 }), Err(Errno::INVAL));
}

#[test]
fn datagrams_take_requests_of_a_shared_queue() {
    let mut f = Fixture::new(4);
    let srq = f.srq;
    let a = end_with(&mut f.world, 0, |init| init);
    let b = end_with(&mut f.world, 1, |init| QpInit { srq: Some(srq), ..init });
    f.post(2).unwrap();
    let address = to(b);
    let list = [sge(&f.from, f.keys[0], 0, 100)];
    let datagram = Post { address: Some(&address), ..request(SEND, 1, &list) };
    f.world.send(a, &datagram).unwrap();
    f.world.settle();
    assert_eq!(f.world.statuses(1), [(2, OK)]);
    assert!(f.to.read(2 * PART + 40, 100) == f.from.read(0, 100));
}
