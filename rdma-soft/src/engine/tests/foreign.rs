//! Requests on foreign memory.

use std::sync::Arc;

use rdma_mem::CopyFailed;
use rdma_sys::ibv_sge;

use super::super::wire::{Frame, Kind};
use super::world::*;
use crate::engine::timer::DEATH_NANOS;
use crate::engine::*;

/// The statuses that these tests see.
const OK: u32 = 0;
const LOC_PROT: u32 = 4;
const FLUSHED: u32 = 5;
const REM_ACCESS: u32 = 10;
const REM_OP: u32 = 11;
const NO_ANSWER: u32 = 12;

/// The rights that foreign memory may have.
const RIGHTS: u32 = 7;
const LEN: usize = 1 << 20;

/// A connection whose sides both have foreign memory.
struct Rig {
    world: World,
    ends: [End; 2],
    vrams: [Arc<Vram>; 2],
    keys: [u32; 2],
}

impl Rig {
    fn new(ends: [usize; 2]) -> Self {
        Self::with_wires(ends, 64, 4096)
    }

    fn with_wires(ends: [usize; 2], room: usize, max_payload: usize) -> Self {
        let mut world = World::with_wires(room, max_payload);
        let pair = world.connect(ends);
        let vrams = [Vram::new(1 << 40, LEN), Vram::new(1 << 41, LEN)];
        let keys = [0, 1].map(|index| world.register_foreign(ends[index], &vrams[index], RIGHTS));
        Self { world, ends: pair, vrams, keys }
    }

    fn sge(&self, index: usize, at: usize, len: usize) -> ibv_sge {
        self.vrams[index].sge(self.keys[index], at, len)
    }

    /// Posts a write, or a read, between the fronts of the memories.
    fn post(&mut self, opcode: rdma_sys::ibv_wr_opcode, wr_id: u64, len: usize) {
        let list = [self.sge(0, 0, len)];
        let request = self.vrams[1].remote(request(opcode, wr_id, &list), 0, self.keys[1]);
        self.world.send(self.ends[0], &request).unwrap();
    }

    /// Runs until nothing moves but the copies of one side, which are held back.
    fn hold_copies_of(&mut self, index: usize) {
        self.world.holds_copies = true;
        while self.world.copy(1 - index) || self.world.step(0) || self.world.step(1) {}
    }

    fn statuses(&mut self, index: usize) -> Vec<(u64, u32)> {
        self.world.statuses(self.ends[index].at)
    }
}

/// Runs a test on two nodes and on one, on links of several sizes.
fn each_way(test: impl Fn(&mut Rig)) {
    for (ends, room, max_payload) in [([0, 1], 64, 4096), ([1, 0], 1, 256), ([0, 0], 64, 4096), ([1, 1], 2, 300)] {
        test(&mut Rig::with_wires(ends, room, max_payload));
    }
}

#[test]
fn messages_of_all_sizes_move_between_foreign_memories() {
    each_way(|rig| {
        let [a, b] = rig.ends;
        for (id, len) in [(1, 0), (2, 1), (3, 256), (4, 5000), (5, 66_000), (6, 600_000)] {
            rig.vrams[0].fill(len);
            let list = [rig.sge(0, 7, len)];
            let into = [rig.sge(1, 100, 600_000)];
            rig.world.recv(b, id + 100, &into).unwrap();
            rig.world.send(a, &request(SEND, id, &list)).unwrap();
            rig.world.settle();
            let mut statuses = rig.statuses(0);
            statuses.extend(rig.statuses(1));
            statuses.sort_unstable();
            assert_eq!(statuses, [(id, OK), (id + 100, OK)]);
            assert!(rig.vrams[1].read(100, len) == rig.vrams[0].read(7, len), "sent {len}");

            rig.vrams[0].fill(len + 1);
            rig.world.send(a, &rig.vrams[1].remote(request(WRITE, id, &list), 333, rig.keys[1])).unwrap();
            rig.world.settle();
            assert_eq!(rig.statuses(0), [(id, OK)]);
            assert!(rig.vrams[1].read(333, len) == rig.vrams[0].read(7, len), "written {len}");

            rig.vrams[1].fill(len + 2);
            rig.world.send(a, &rig.vrams[1].remote(request(READ, id, &list), 55, rig.keys[1])).unwrap();
            rig.world.settle();
            assert_eq!(rig.statuses(0), [(id, OK)]);
            assert!(rig.vrams[1].read(55, len) == rig.vrams[0].read(7, len), "read {len}");
        }
    });
}

#[test]
fn lists_may_name_host_and_foreign_memory() {
    each_way(|rig| {
        let [a, b] = rig.ends;
        let hosts = [Memory::new(LEN), Memory::new(LEN)];
        let keys = [0, 1].map(|index| rig.world.register(rig.ends[index].at, &hosts[index], ALL));
        hosts[0].fill(1);
        rig.vrams[0].fill(2);
        let from = [sge(&hosts[0], keys[0], 9, 1000), rig.sge(0, 5, 3000), sge(&hosts[0], keys[0], 3, 70)];
        let to = [rig.sge(1, 10, 700), sge(&hosts[1], keys[1], 20, 900), rig.sge(1, 5000, 5000)];
        let mut sent = hosts[0].read(9, 1000);
        sent.extend(rig.vrams[0].read(5, 3000));
        sent.extend(hosts[0].read(3, 70));
        rig.world.recv(b, 1, &to).unwrap();
        rig.world.send(a, &request(SEND, 2, &from)).unwrap();
        rig.world.settle();
        let mut got = rig.vrams[1].read(10, 700);
        got.extend(hosts[1].read(20, 900));
        got.extend(rig.vrams[1].read(5000, 2470));
        assert!(got == sent);

        let back = rig.vrams[1].remote(request(READ, 3, &from), 0, rig.keys[1]);
        rig.world.send(a, &back).unwrap();
        rig.world.settle();
        assert!(rig.vrams[0].read(5, 3000) == rig.vrams[1].read(1000, 3000));
        assert!(hosts[0].read(3, 70) == rig.vrams[1].read(4000, 70));
        // The engine must not outlive the memory.
        *rig = Rig::new([0, 1]);
    });
}

#[test]
fn atomic_results_arrive_in_foreign_memory() {
    each_way(|rig| {
        let word = Memory::new(8);
        word.write(0, &41_u64.to_ne_bytes());
        let key = rig.world.register(rig.ends[1].at, &word, ALL);
        let list = [rig.sge(0, 16, 8)];
        let add = Post { compare_add: 1, ..remote(request(ADD, 1, &list), &word, 0, key) };
        rig.world.send(rig.ends[0], &add).unwrap();
        rig.world.settle();
        assert_eq!(rig.statuses(0), [(1, OK)]);
        assert_eq!(rig.vrams[0].read(16, 8), 41_u64.to_ne_bytes());
        assert_eq!(word.word(0), 42);
        // Foreign memory itself has no atomics.
        rig.post(ADD, 2, 8);
        rig.world.settle();
        assert_eq!(rig.statuses(0), [(2, REM_ACCESS)]);
        // The engine must not outlive the memory.
        *rig = Rig::new([0, 1]);
    });
}

#[test]
fn a_copy_that_is_held_back_holds_up_its_queue_pair_alone_and_in_order() {
    let mut rig = Rig::new([0, 1]);
    let [a, b] = rig.ends;
    let others = rig.world.connect([0, 1]);
    let (here, there) = (Memory::new(64), Memory::new(64));
    let keys = [rig.world.register(0, &here, ALL), rig.world.register(1, &there, ALL)];
    here.fill(5);
    rig.world.holds_copies = true;
    rig.post(READ, 1, 50_000);
    let list = [sge(&here, keys[0], 0, 64)];
    for (end, first) in [(a, 2), (others[0], 10)] {
        let write = remote(request(WRITE, first, &list), &there, 0, keys[1]);
        rig.world.send(end, &write).unwrap();
        rig.world.recv(if end.qp == a.qp { b } else { others[1] }, first + 100, &[]).unwrap();
        rig.world.send(end, &request(SEND_IMM, first + 1, &[])).unwrap();
    }
    rig.world.run_for(60_000_000_000);
    assert_eq!(rig.statuses(0), [(10, OK), (11, OK)], "the other queue pair goes on, for a minute");
    rig.world.poll(1);
    rig.world.holds_copies = false;
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_receive_completes_when_its_payload_is_stored() {
    let mut rig = Rig::new([0, 1]);
    rig.world.holds_copies = true;
    let (host, into) = (Memory::new(4096), [rig.sge(1, 0, 4096)]);
    host.fill(3);
    let key = rig.world.register(0, &host, ALL);
    rig.world.recv(rig.ends[1], 7, &into).unwrap();
    rig.world.send(rig.ends[0], &request(SEND, 1, &[sge(&host, key, 0, 4096)])).unwrap();
    rig.world.settle();
    assert_eq!((rig.statuses(0), rig.statuses(1)), (vec![], vec![]));
    assert!(rig.world.copy(1));
    assert_eq!(rig.statuses(1), [(7, OK)]);
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, OK)]);
    assert!(rig.vrams[1].read(0, 4096) == host.read(0, 4096));
}

#[test]
fn a_peer_pauses_before_the_inbox_overflows() {
    for ends in [[0, 1], [0, 0]] {
        let mut rig = Rig::new(ends);
        let host = Memory::new(LEN);
        host.fill(1);
        let key = rig.world.register(rig.ends[0].at, &host, ALL);
        rig.world.holds_copies = true;
        let list = [sge(&host, key, 0, LEN)];
        for id in 0..16 {
            let write = rig.vrams[1].remote(request(WRITE, id, &list), 0, rig.keys[1]);
            rig.world.send(rig.ends[0], &write).unwrap();
        }
        rig.world.settle();
        let waiting = rig.world.nodes[ends[1]].engine.waiting_bytes(rig.ends[1].qp);
        assert!((1 << 20..4 << 20).contains(&waiting), "{waiting}");
        rig.world.holds_copies = false;
        rig.world.settle();
        let expected: Vec<_> = (0..16).map(|id| (id, OK)).collect();
        assert_eq!(rig.statuses(0), expected);
        assert!(rig.vrams[1].read(0, LEN) == host.read(0, LEN));
    }
}

#[test]
fn a_reader_pauses_the_answers() {
    let mut rig = Rig::new([0, 1]);
    rig.vrams[1].fill(9);
    for id in 0..4 {
        rig.post(READ, id, LEN);
    }
    rig.hold_copies_of(0);
    let waiting = rig.world.nodes[0].engine.waiting_bytes(rig.ends[0].qp);
    assert!((1 << 20..3 << 20).contains(&waiting), "{waiting}");
    rig.world.holds_copies = false;
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(0, OK), (1, OK), (2, OK), (3, OK)]);
    assert!(rig.vrams[0].read(0, LEN) == rig.vrams[1].read(0, LEN));
}

#[test]
fn a_stranger_cannot_fill_the_inbox() {
    let mut rig = Rig::new([0, 1]);
    let stranger = rig.world.connect([0, 1])[0];
    rig.post(WRITE, 1, 100);
    rig.hold_copies_of(1);
    let mut frame = Frame::new(Kind::Write, rig.ends[1].qpn, stranger.qpn, 0, 0);
    frame.total = 1000;
    let engine = &mut rig.world.nodes[1].engine;
    engine.handle_frame(LINK, &frame.encode(), Source::of(&[0; 1000]));
    assert_eq!(engine.waiting_bytes(rig.ends[1].qp), 0);
    rig.world.holds_copies = false;
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, OK)]);
}

#[test]
fn a_region_ends_after_its_copies() {
    for (index, expected) in [(0, LOC_PROT), (1, REM_ACCESS)] {
        let mut rig = Rig::new([0, 1]);
        rig.post(WRITE, 1, 100_000);
        rig.hold_copies_of(index);
        let key = rig.keys[index];
        assert_eq!(rig.world.nodes[index].engine.deregister(key), Err(Errno::AGAIN));
        assert_eq!(rig.world.nodes[index].engine.deregister(key), Err(Errno::AGAIN));
        assert!(rig.world.copy(index));
        assert_eq!(rig.world.nodes[index].engine.deregister(key), Ok(()));
        assert_eq!(rig.world.nodes[index].engine.deregister(key), Err(Errno::INVAL));
        rig.world.settle();
        assert_eq!(rig.statuses(0), [(1, expected)]);
    }
}

#[test]
fn a_queue_pair_ends_after_its_copies() {
    let mut rig = Rig::new([0, 1]);
    let [a, b] = rig.ends;
    rig.world.holds_copies = true;
    let into = [rig.sge(1, 0, 8192)];
    let host = Memory::new(8192);
    let key = rig.world.register(0, &host, ALL);
    rig.world.recv(b, 7, &into).unwrap();
    rig.world.recv(b, 8, &into).unwrap();
    rig.world.send(a, &request(SEND, 1, &[sge(&host, key, 0, 8192)])).unwrap();
    rig.world.settle();
    assert_eq!(rig.world.nodes[1].engine.destroy_qp(b.qp), Err(Errno::AGAIN));
    let reset = ModifyQp { state: Some(QpState::Reset), ..ModifyQp::default() };
    assert_eq!(rig.world.nodes[1].engine.modify_qp(b.qp, &reset), Err(Errno::AGAIN));
    assert_eq!(rig.world.state(b), QpState::Err);
    rig.world.recv(b, 9, &into).unwrap();
    assert_eq!(rig.statuses(1), [], "a copy may still write to the first receive's memory");
    rig.world.copy(1);
    assert_eq!(rig.statuses(1), [(7, FLUSHED), (8, FLUSHED), (9, FLUSHED)]);
    assert_eq!(rig.world.nodes[1].engine.destroy_qp(b.qp), Ok(()));
    // The sender learns that its request was dropped, and tries again until it gives up.
    rig.world.run_for(10_000_000_000);
    assert_eq!(rig.statuses(0), [(1, 12)]);
}

#[test]
fn requests_are_flushed_after_the_copy_that_may_write_to_their_memory() {
    let mut rig = Rig::new([0, 1]);
    let a = rig.ends[0];
    rig.post(READ, 1, 8192);
    rig.hold_copies_of(0);
    rig.world.set_state(a, QpState::Err);
    rig.post(WRITE, 2, 10);
    assert_eq!(rig.statuses(0), []);
    rig.world.copy(0);
    assert_eq!(rig.statuses(0), [(1, FLUSHED), (2, FLUSHED)]);
    rig.post(WRITE, 3, 10);
    assert_eq!(rig.statuses(0), [(3, FLUSHED)]);
}

#[test]
fn a_failed_copy_fails_its_request() {
    let failing = |opcode, of: usize, failure| {
        let mut rig = Rig::new([0, 1]);
        if opcode == SEND {
            let into = [rig.sge(1, 0, 100)];
            rig.world.recv(rig.ends[1], 7, &into).unwrap();
        }
        rig.post(opcode, 1, 100);
        rig.hold_copies_of(of);
        rig.world.failure = Some(failure);
        assert!(rig.world.copy(of));
        rig.world.settle();
        rig.world.nodes[of].engine.deregister(rig.keys[of]).unwrap();
        (rig.statuses(0), rig.statuses(1))
    };
    // The second status is that of a request whose copy has failed at the peer.
    for (failure, refused) in [(CopyFailed::Ended, REM_OP), (CopyFailed::Fault, REM_ACCESS)] {
        for opcode in [WRITE, READ, SEND] {
            assert_eq!(failing(opcode, 0, failure), (vec![(1, LOC_PROT)], vec![]));
        }
        assert_eq!(failing(WRITE, 1, failure), (vec![(1, refused)], vec![]));
        assert_eq!(failing(READ, 1, failure), (vec![(1, refused)], vec![]));
        assert_eq!(failing(SEND, 1, failure), (vec![(1, REM_OP)], vec![(7, LOC_PROT)]));
    }
}

#[test]
fn a_region_of_a_copy_that_may_go_on_for_ever_never_ends() {
    let mut rig = Rig::new([0, 1]);
    rig.world.failure = Some(CopyFailed::Unknown);
    rig.post(WRITE, 1, 100);
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, LOC_PROT)]);
    assert_eq!(rig.world.nodes[0].engine.deregister(rig.keys[0]), Err(Errno::BUSY));
    // The queue pair does.
    let a = rig.ends[0].qp;
    assert_eq!(rig.world.nodes[0].engine.destroy_qp(a), Ok(()));
}

#[test]
fn a_region_whose_deregistration_is_given_up_can_be_used() {
    let mut rig = Rig::new([0, 1]);
    rig.post(WRITE, 1, 100);
    rig.hold_copies_of(1);
    assert_eq!(rig.world.nodes[1].engine.deregister(rig.keys[1]), Err(Errno::AGAIN));
    rig.world.nodes[1].engine.keep_region(rig.keys[1]);
    rig.world.holds_copies = false;
    rig.world.settle();
    rig.post(WRITE, 2, 100);
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, OK), (2, OK)]);
    assert_eq!(rig.world.nodes[1].engine.deregister(rig.keys[1]), Ok(()));
}

#[test]
fn rights_and_bounds_are_checked() {
    for (access, opcode, at, expected) in [
        (3, READ, 0, REM_ACCESS),
        (5, WRITE, 0, REM_ACCESS),
        (7, WRITE, LEN - 99, REM_ACCESS),
        (7, READ, LEN, REM_ACCESS),
        (7, READ, LEN - 100, OK),
    ] {
        let mut rig = Rig::new([0, 1]);
        let vram = Vram::new(1 << 50, LEN);
        let key = rig.world.register_foreign(1, &vram, access);
        let list = [rig.sge(0, 0, 100)];
        rig.world.send(rig.ends[0], &vram.remote(request(opcode, 1, &list), at, key)).unwrap();
        rig.world.settle();
        assert_eq!(rig.statuses(0), [(1, expected)], "{opcode:?} at {at}");
    }
    // A local list that may not be written, and one beyond the end.
    for (access, opcode, at) in [(0, READ, 0), (1, WRITE, LEN - 9)] {
        let mut rig = Rig::new([0, 1]);
        let vram = Vram::new(1 << 50, LEN);
        let key = rig.world.register_foreign(0, &vram, access);
        let list = [vram.sge(key, at, 10)];
        rig.world.send(rig.ends[0], &rig.vrams[1].remote(request(opcode, 1, &list), 0, rig.keys[1])).unwrap();
        rig.world.settle();
        assert_eq!(rig.statuses(0), [(1, LOC_PROT)], "{opcode:?}");
    }
}

#[test]
fn datagrams_have_no_foreign_memory() {
    let mut rig = Rig::new([0, 1]);
    let list = [rig.sge(0, 0, 10)];
    let mut init = init(&rig.world.nodes[0]);
    init.service = ServiceType::Ud;
    let (qp, qpn) = rig.world.nodes[0].engine.create_qp(&init).unwrap();
    let end = End { at: 0, qp, qpn };
    rig.world.bring_up(end, 0, |_| {});
    let address = Address {
        path: Path { host: Host::LOCAL, grh: Grh::NONE, group: None, sl: 0, slid: 0 },
        qpn: rig.ends[1].qpn,
        qkey: 1,
    };
    rig.world.send(end, &Post { address: Some(&address), ..request(SEND, 1, &list) }).unwrap();
    rig.world.settle();
    assert_eq!(rig.statuses(0), [(1, LOC_PROT)]);
}

#[test]
fn a_peer_that_dies_while_a_copy_runs_leaves_nothing_behind() {
    for index in [0, 1] {
        let mut rig = Rig::new([0, 1]);
        rig.post(WRITE, 1, 300_000);
        rig.hold_copies_of(index);
        rig.world.kill(1 - index, false);
        rig.world.holds_copies = false;
        rig.world.run_for(60_000_000_000);
        rig.statuses(index);
        let (engine, key, qp) = (&mut rig.world.nodes[index].engine, rig.keys[index], rig.ends[index].qp);
        assert_eq!((engine.destroy_qp(qp), engine.deregister(key)), (Ok(()), Ok(())));
    }
}

/// The link ends while the answer to a read is fetched, and the fetch fails.
#[test]
fn a_failed_copy_of_an_answer_that_was_given_up_refuses_no_other_read() {
    let mut rig = Rig::new([0, 1]);
    let [a, b] = rig.ends;
    rig.vrams[1].fill(3);
    rig.post(READ, 1, 5000);
    rig.hold_copies_of(1);
    rig.world.cut();
    rig.world.run_for(DEATH_NANOS);
    assert_eq!(rig.statuses(0), [(1, NO_ANSWER)]);
    rig.world.failure = Some(CopyFailed::Fault);
    assert!(rig.world.copy(1));
    rig.world.failure = None;
    rig.world.holds_copies = false;
    // The reader connects to the same queue pair again, where that one is.
    rig.world.set_state(a, QpState::Reset);
    rig.world.bring_up(a, b.qpn, |change| change.sq_psn = Some(0xff_ffff));
    rig.post(READ, 2, 5000);
    rig.world.run_for(1_000_000_000);
    assert_eq!(rig.statuses(0), [(2, OK)]);
    assert!(rig.vrams[0].read(0, 5000) == rig.vrams[1].read(0, 5000));
}
