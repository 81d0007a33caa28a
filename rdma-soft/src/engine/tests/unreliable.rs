//! Unreliable connections: messages arrive in order and whole, or are lost without an error.

use rdma_sys::{ibv_event_type as event, ibv_sge, ibv_wc_opcode as completed, ibv_wr_opcode};

use super::datagrams::{end, send, to};
use super::statuses::*;
use super::world::*;
use crate::engine::*;

/// Bytes of a message that travels in several pieces.
const LONG: usize = 1000;
const PIECE: usize = 256;

/// Two connected queue pairs with memory at both sides.
struct Fixture {
    world: World,
    a: End,
    b: End,
    memory: [Memory; 2],
    keys: [u32; 2],
}

impl Fixture {
    fn new() -> Self {
        Self::with(|_, _| {}, |_, _| {})
    }

    fn with(tune: impl Fn(usize, &mut QpInit), attrs: impl Fn(usize, &mut ModifyQp)) -> Self {
        let memory = [Memory::new(1 << 14), Memory::new(1 << 14)];
        memory[0].fill(3);
        let mut world = World::with_wires(64, PIECE);
        let tune = |index, init: &mut QpInit| {
            init.service = ServiceType::Uc;
            tune(index, init);
        };
        let [a, b] = world.connect_with([0, 1], tune, attrs);
        let keys = [0, 1].map(|at| world.register(at, &memory[at], ALL));
        Self { world, a, b, memory, keys }
    }

    fn here(&self, len: usize) -> [ibv_sge; 1] {
        [sge(&self.memory[0], self.keys[0], 0, len)]
    }

    fn recv(&mut self, wr_id: u64, len: usize) {
        let list = [sge(&self.memory[1], self.keys[1], 0, len)];
        self.world.recv(self.b, wr_id, &list).unwrap();
    }

    fn send(&mut self, wr_id: u64, len: usize) {
        let list = self.here(len);
        self.world.send(self.a, &request(SEND, wr_id, &list)).unwrap();
    }

    /// Posts a write of `len` bytes to the start of the receiver's memory.
    fn write(&mut self, opcode: ibv_wr_opcode, wr_id: u64, len: usize) {
        let list = self.here(len);
        let post = Post { imm: 7, ..remote(request(opcode, wr_id, &list), &self.memory[1], 0, self.keys[1]) };
        self.world.send(self.a, &post).unwrap();
    }

    /// Sends the first piece of a long message, and no more.
    fn begin(&mut self, wr_id: u64) {
        self.world.batch = 1;
        self.send(wr_id, LONG);
        self.world.step(0);
        self.world.step(1);
        self.world.batch = usize::MAX;
    }

    fn arrived(&self, len: usize) -> bool {
        self.memory[1].read(0, len) == self.memory[0].read(0, len)
    }

    fn states(&self) -> [QpState; 2] {
        [self.world.state(self.a), self.world.state(self.b)]
    }
}

#[test]
fn sends_and_writes_arrive_in_order() {
    for len in [0, 1, PIECE, LONG] {
        let mut f = Fixture::new();
        f.recv(1, LONG);
        f.recv(2, 0);
        f.send(10, len);
        f.write(WRITE, 11, len);
        f.write(WRITE_IMM, 12, len);
        f.world.settle();
        assert_eq!(f.world.statuses(0), [(10, OK), (11, OK), (12, OK)]);
        let received = f.world.poll(1);
        let of = |wc: &Wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len as usize, wc.imm);
        let (send, write) = (completed::IBV_WC_RECV.0, completed::IBV_WC_RECV_RDMA_WITH_IMM.0);
        assert_eq!(
            received.iter().map(of).collect::<Vec<_>>(),
            [(1, OK, send, len, None), (2, OK, write, len, Some(7))]
        );
        assert_eq!((received[0].qpn, received[0].src), (f.b.qpn, f.a.qpn));
        assert!(f.arrived(len), "{len} bytes");
    }
}

#[test]
fn inline_data_and_own_queue_pairs() {
    let mut world = World::new();
    let [a, b] = world.connect_with([0, 0], |_, init| init.service = ServiceType::Uc, |_, _| {});
    let memory = Memory::new(64);
    let key = world.register(0, &memory, ALL);
    world.recv(b, 1, &[sge(&memory, key, 0, 64)]).unwrap();
    let inline = [Source::of(b"inline data")];
    world.send(a, &Post { data: SendData::Inline(&inline), ..request(SEND, 2, &[]) }).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(2, OK), (1, OK)]);
    assert_eq!(memory.read(0, 11), b"inline data");
}

#[test]
fn reads_and_atomics_are_refused() {
    let mut f = Fixture::new();
    let list = f.here(8);
    for opcode in [READ, SWAP, ADD] {
        let post = remote(request(opcode, 1, &list), &f.memory[1], 0, f.keys[1]);
        assert_eq!(f.world.send(f.a, &post), Err(Errno::INVAL), "{opcode:?}");
    }
}

#[test]
fn the_receiver_drops_a_message_that_it_cannot_execute() {
    for attempt in [
        |f: &mut Fixture| f.send(1, LONG),
        |f: &mut Fixture| f.write(WRITE_IMM, 1, LONG),
        |f: &mut Fixture| {
            f.recv(7, LONG - 1);
            f.send(1, LONG);
        },
        |f: &mut Fixture| {
            f.keys[1] ^= 1;
            f.write(WRITE, 1, LONG);
            f.keys[1] ^= 1;
        },
    ] {
        let mut f = Fixture::new();
        attempt(&mut f);
        f.world.run_for(1_000_000_000);
        assert_eq!(f.world.statuses(0), [(1, OK)], "the sender learns nothing");
        assert_eq!(f.world.poll(1), []);
        assert_eq!(f.memory[1].read(0, LONG), vec![0; LONG]);
        assert_eq!(f.world.events(1), [], "no event but those of the connection");
        // The queue pair stays usable, and a receive request waits for the next message.
        f.recv(7, LONG);
        f.send(2, 10);
        f.world.settle();
        assert_eq!(f.world.statuses(1), [(7, OK)]);
        assert_eq!(f.states(), [QpState::Rts; 2]);
    }
}

#[test]
fn a_peer_cannot_try_out_secret_keys() {
    for (is_secret, wrong) in [(true, 63), (true, 64), (false, 1000)] {
        let mut f = Fixture::new();
        f.world.nodes[1].engine.keep_keys_secret(is_secret);
        f.keys[1] ^= 1;
        for id in 0..wrong {
            f.write(WRITE, id, 10);
            f.world.settle();
            f.world.poll(0);
        }
        f.keys[1] ^= 1;
        f.write(WRITE, 5000, 10);
        f.world.settle();
        assert_eq!(f.arrived(10), !is_secret || wrong < 64, "{wrong} wrong keys");
        // Sends need no key.
        f.recv(7, LONG);
        f.send(6000, 10);
        f.world.settle();
        assert_eq!(f.world.statuses(1), [(7, OK)]);
        // The queue pair's next life begins anew.
        f.world.set_state(f.b, QpState::Reset);
        f.world.bring_up(f.b, f.a.qpn, |_| {});
        f.world.set_state(f.a, QpState::Reset);
        f.world.bring_up(f.a, f.b.qpn, |_| {});
        f.memory[0].fill(9);
        f.write(WRITE, 7000, 10);
        f.world.settle();
        assert!(f.arrived(10));
    }
}

#[test]
fn a_write_without_the_right_is_dropped() {
    let mut f = Fixture::with(|_, _| {}, |_, change| change.access = Some(0));
    f.write(WRITE, 1, LONG);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(1, OK)]);
    assert_eq!(f.memory[1].read(0, LONG), vec![0; LONG]);
    assert_eq!(f.states(), [QpState::Rts; 2]);
}

#[test]
fn a_receive_request_whose_memory_is_gone_fails_the_receiver() {
    let mut f = Fixture::new();
    f.recv(1, LONG);
    f.recv(2, LONG);
    f.world.nodes[1].engine.deregister(f.keys[1]).unwrap();
    f.send(5, LONG);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(5, OK)]);
    assert_eq!(f.world.statuses(1), [(1, LOC_PROT), (2, FLUSH)]);
    assert_eq!(f.states(), [QpState::Rts, QpState::Err]);
}

#[test]
fn a_lost_piece_drops_its_message_and_keeps_the_request() {
    for lost in 0..4 {
        let mut f = Fixture::new();
        f.recv(1, LONG);
        f.send(10, LONG);
        f.world.step(0);
        f.world.lose(0, lost);
        f.world.settle();
        assert_eq!((f.world.statuses(0), f.world.poll(1)), (vec![(10, OK)], vec![]), "piece {lost}");
        f.memory[0].fill(4);
        f.send(11, LONG);
        f.world.settle();
        assert_eq!(f.world.statuses(1), [(1, OK)], "piece {lost}");
        assert!(f.arrived(LONG), "piece {lost}");
    }
}

#[test]
fn a_dropped_message_keeps_its_request_of_a_shared_queue() {
    let mut world = World::with_wires(64, PIECE);
    let pd = world.nodes[1].pd;
    let srq = world.nodes[1].engine.create_srq(&SrqInit { pd, max_wr: 4, max_sge: 1, token: 5 }).unwrap();
    let [a, b] = world.connect_with(
        [0, 1],
        |index, init| (init.service, init.srq) = (ServiceType::Uc, (index == 1).then_some(srq)),
        |_, _| {},
    );
    let memory = [Memory::new(LONG), Memory::new(LONG)];
    let keys = [0, 1].map(|at| world.register(at, &memory[at], ALL));
    world.nodes[1].engine.post_srq_recv(srq, 1, &[sge(&memory[1], keys[1], 0, LONG)]).unwrap();
    let list = [sge(&memory[0], keys[0], 0, LONG)];
    world.send(a, &request(SEND, 10, &list)).unwrap();
    world.step(0);
    world.lose(0, 2);
    world.settle();
    world.send(a, &request(SEND, 11, &list)).unwrap();
    world.settle();
    assert_eq!(world.statuses(1), [(1, OK)]);
    world.set_state(b, QpState::Err);
    assert_eq!(world.events(1), [event::IBV_EVENT_QP_LAST_WQE_REACHED.0]);
}

#[test]
fn a_message_that_is_dropped_at_once_takes_no_request_of_a_shared_queue() {
    let memory = [Memory::new(LONG), Memory::new(LONG)];
    for (opcode, len, key) in [(SEND, LONG, 0), (WRITE_IMM, LONG, 1)] {
        let mut world = World::with_wires(64, PIECE);
        let pd = world.nodes[1].pd;
        let srq = world.nodes[1].engine.create_srq(&SrqInit { pd, max_wr: 4, max_sge: 1, token: 5 }).unwrap();
        let share =
            |index, init: &mut QpInit| (init.service, init.srq) = (ServiceType::Uc, (index == 1).then_some(srq));
        let pairs = [(); 2].map(|()| world.connect_with([0, 1], share, |_, _| {}));
        let keys = [0, 1].map(|at| world.register(at, &memory[at], ALL));
        let request_of = |world: &mut World, id, len| {
            let list = [sge(&memory[1], keys[1], 0, len)];
            world.nodes[1].engine.post_srq_recv(srq, id, &list).unwrap();
        };
        // The only request is too short for the send, and the write has a wrong key.
        request_of(&mut world, 1, PIECE);
        let list = [sge(&memory[0], keys[0], 0, len)];
        let wrong = remote(request(opcode, 10, &list), &memory[1], 0, keys[1] ^ key);
        world.send(pairs[0][0], &wrong).unwrap();
        world.settle();
        assert_eq!((world.statuses(0), world.statuses(1)), (vec![(10, OK)], vec![]), "{opcode:?}");
        // The request is left to the other queue pair.
        let short = [sge(&memory[0], keys[0], 0, PIECE)];
        world.send(pairs[1][0], &request(SEND, 11, &short)).unwrap();
        world.settle();
        assert_eq!(world.statuses(1), [(1, OK)], "{opcode:?}");
    }
}

#[test]
fn messages_to_a_process_wait_a_second_for_a_link() {
    let mut f = Fixture::new();
    let absent = |qpn: u32| 77 << 12 | qpn;
    let tune = |_, init: &mut QpInit| init.service = ServiceType::Uc;
    let [lone, _] = f.world.connect_with([0, 0], tune, |_, attrs| attrs.dest_qpn = Some(absent(3)));
    let from = end(&mut f.world, 0);
    let list = f.here(8);
    f.world.send(lone, &request(SEND, 1, &list)).unwrap();
    send(&mut f.world, from, 2, &list, &Address { qpn: absent(4), ..to(from) });
    // The driver does not answer.
    assert_eq!(f.world.nodes[0].engine.poll_lookup(), Some(Lookup::Link(PeerId::local(Slot(77)))));
    f.world.run_for(900_000_000);
    assert_eq!(f.world.statuses(0), []);
    f.world.run_for(101_000_000);
    let mut statuses = f.world.statuses(0);
    statuses.sort_unstable();
    assert_eq!(statuses, [(1, OK), (2, OK)]);
}

#[test]
fn a_dead_peer_is_not_reported() {
    let mut f = Fixture::new();
    f.begin(1);
    f.world.kill(1, true);
    f.send(2, LONG);
    f.world.run_for(1_000_000_000);
    assert_eq!(f.world.statuses(0), [(1, OK), (2, OK)]);
    assert_eq!(f.world.state(f.a), QpState::Rts);
}

#[test]
fn a_sender_that_dies_within_a_message_leaves_the_request() {
    let mut f = Fixture::new();
    f.recv(1, LONG);
    f.world.batch = 1;
    f.send(1, LONG);
    f.world.step(0);
    f.world.step(1);
    f.world.kill(0, true);
    f.world.settle();
    assert_eq!(f.world.poll(1), []);
    f.world.set_state(f.b, QpState::Err);
    assert_eq!(f.world.statuses(1), [(1, FLUSH)]);
}

#[test]
fn a_peer_that_makes_no_room_does_not_hold_up_the_sender() {
    const COUNT: u64 = 16;
    let mut f = Fixture::new();
    f.recv(99, LONG);
    for round in 0..2 {
        (0..COUNT).for_each(|id| f.send(id, 8 * LONG));
        f.world.nodes[1].alive = false;
        f.world.run_for(1_100_000_000);
        f.world.nodes[1].alive = true;
        assert_eq!(f.world.statuses(0), (0..COUNT).map(|id| (id, OK)).collect::<Vec<_>>(), "round {round}");
        f.world.settle();
    }
    // The messages were too long for the request.
    assert_eq!(f.world.poll(1), []);
    f.send(1, LONG);
    f.world.settle();
    assert_eq!(f.world.statuses(1), [(99, OK)]);
}

#[test]
fn a_wrong_request_stops_the_send_queue_only() {
    let mut f = Fixture::new();
    f.recv(1, LONG);
    let mut list = f.here(LONG);
    list[0].lkey ^= 1;
    f.world.send(f.a, &request(SEND, 1, &list)).unwrap();
    f.send(2, 8);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(1, LOC_PROT), (2, FLUSH)]);
    assert_eq!(f.world.state(f.a), QpState::Sqe);
    f.world.set_state(f.a, QpState::Rts);
    f.send(3, 8);
    f.world.settle();
    assert_eq!((f.world.statuses(0), f.world.statuses(1)), (vec![(3, OK)], vec![(1, OK)]));
}

#[test]
fn a_reset_ends_the_message_in_progress() {
    let mut f = Fixture::new();
    f.recv(1, LONG);
    f.begin(10);
    f.world.set_state(f.a, QpState::Reset);
    f.world.settle();
    let (a, b) = (f.a, f.b);
    f.world.bring_up(a, b.qpn, |_| {});
    f.world.poll(0);
    f.send(11, LONG);
    f.world.settle();
    assert_eq!((f.world.statuses(0), f.world.statuses(1)), (vec![(11, OK)], vec![(1, OK)]));
    assert!(f.arrived(LONG));
}

#[test]
fn reliable_and_unreliable_queue_pairs_do_not_understand_each_other() {
    for unreliable in [0, 1] {
        let mut f = Fixture::with(
            |index, init| {
                if index != unreliable {
                    init.service = ServiceType::Rc;
                }
            },
            |_, change| change.retry_cnt = Some(0),
        );
        f.recv(1, LONG);
        f.send(2, LONG);
        f.world.run_for(10_000_000_000);
        assert_eq!(f.world.poll(1), []);
        let expected = if unreliable == 0 { OK } else { RETRY };
        assert_eq!(f.world.statuses(0), [(2, expected)]);
    }
}
