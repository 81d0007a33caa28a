//! Requests that succeed.

use rdma_sys::ibv_event_type;

use super::world::*;
use crate::engine::*;

/// Runs a test with two sides and registered memory at each, on two nodes and on one.
fn each_way(test: impl Fn(&mut World, [End; 2], [&Memory; 2], [u32; 2])) {
    for (ends, room, max_payload) in [([0, 1], 64, 4096), ([1, 0], 1, 256), ([0, 0], 64, 4096), ([1, 1], 2, 300)] {
        let memory = [Memory::new(1 << 16), Memory::new(1 << 16)];
        let mut world = World::with_wires(room, max_payload);
        let pair = world.connect(ends);
        let keys = [world.register(ends[0], &memory[0], ALL), world.register(ends[1], &memory[1], ALL)];
        test(&mut world, pair, [&memory[0], &memory[1]], keys);
    }
}

#[test]
fn sends_of_all_sizes_arrive_whole_and_in_order() {
    each_way(|world, [a, b], [here, there], [lkey, rkey]| {
        for (id, len) in [(1, 0), (2, 1), (3, 64), (4, 255), (5, 256), (6, 257), (7, 5000), (8, 1 << 16)] {
            here.fill(len);
            world.recv(b, id + 100, &[sge(there, rkey, 0, 1 << 16)]).unwrap();
            world.send(a, &request(SEND, id, &[sge(here, lkey, 0, len)])).unwrap();
            world.settle();
            let mut wcs = world.poll(a.at);
            if a.at != b.at {
                wcs.append(&mut world.poll(b.at));
            }
            wcs.sort_by_key(|wc| wc.wr_id);
            let expected = [
                Wc { wr_id: id, status: 0, opcode: 0, byte_len: 0, imm: None, qpn: a.qpn, src: 0 },
                Wc { wr_id: id + 100, status: 0, opcode: 128, byte_len: len as u32, imm: None, qpn: b.qpn, src: a.qpn },
            ];
            assert_eq!(wcs, expected);
            assert_eq!(there.read(0, len), here.read(0, len), "{len}");
        }
    });
}

#[test]
fn lists_gather_and_scatter() {
    each_way(|world, [a, b], [here, there], [lkey, rkey]| {
        here.fill(3);
        let from =
            [sge(here, lkey, 10, 7), sge(here, lkey, 100, 0), sge(here, lkey, 200, 1000), sge(here, lkey, 50, 1)];
        let to = [sge(there, rkey, 3, 500), sge(there, rkey, 1000, 2), sge(there, rkey, 2000, 600)];
        world.recv(b, 1, &to).unwrap();
        world.send(a, &request(SEND, 2, &from)).unwrap();
        world.settle();
        let mut sent = here.read(10, 7);
        sent.extend(here.read(200, 1000));
        sent.extend(here.read(50, 1));
        let mut got = there.read(3, 500);
        got.extend(there.read(1000, 2));
        got.extend(there.read(2000, 506));
        assert_eq!(got, sent);
        assert_eq!(there.read(2506, 94), vec![0; 94], "nothing beyond the message");
    });
}

#[test]
fn inline_data_is_copied_when_posted() {
    each_way(|world, [a, b], [_, there], [_, rkey]| {
        world.recv(b, 1, &[sge(there, rkey, 0, 100)]).unwrap();
        let mut data = *b"hello, world";
        let parts = [Source::of(&data[..5]), Source::of(&data[5..])];
        world.send(a, &Post { data: SendData::Inline(&parts), ..request(SEND, 2, &[]) }).unwrap();
        data.fill(0);
        world.settle();
        assert_eq!(there.read(0, 12), b"hello, world");
        let long = [0_u8; 65];
        let parts = [Source::of(&long)];
        let too_long = Post { data: SendData::Inline(&parts), ..request(SEND, 3, &[]) };
        assert_eq!(world.send(a, &too_long), Err(Errno::INVAL));
    });
}

#[test]
fn immediates_arrive_with_sends_and_writes() {
    each_way(|world, [a, b], [here, there], [lkey, rkey]| {
        here.fill(9);
        world.recv(b, 1, &[sge(there, rkey, 0, 100)]).unwrap();
        world.recv(b, 2, &[]).unwrap();
        world.recv(b, 3, &[]).unwrap();
        let list = [sge(here, lkey, 0, 64)];
        world.send(a, &Post { imm: 0xabcd_ef01, flags: 0, ..request(SEND_IMM, 4, &list) }).unwrap();
        let write = Post { imm: 7, flags: 0, ..request(WRITE_IMM, 5, &list) };
        world.send(a, &remote(write, there, 4096, rkey)).unwrap();
        world.send(a, &Post { imm: 8, flags: 0, ..request(WRITE_IMM, 6, &[]) }).unwrap();
        world.settle();
        let wcs = world.poll(b.at);
        let received: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm)).collect();
        let expected = [(1, 128, 64, Some(0xabcd_ef01)), (2, 129, 64, Some(7)), (3, 129, 0, Some(8))];
        assert_eq!(received, expected);
        assert_eq!(there.read(4096, 64), here.read(0, 64));
    });
}

#[test]
fn writes_and_reads_move_memory() {
    each_way(|world, [a, b], [here, there], [lkey, rkey]| {
        here.fill(1);
        there.fill(2);
        let from = [sge(here, lkey, 0, 10_001)];
        let write = request(WRITE, 1, &from);
        world.send(a, &remote(write, there, 3, rkey)).unwrap();
        let list = [sge(here, lkey, 20_000, 3), sge(here, lkey, 30_000, 9_997)];
        world.send(a, &remote(request(READ, 2, &list), there, 20_000, rkey)).unwrap();
        world.send(a, &remote(request(READ, 3, &[]), there, 0, 0)).unwrap();
        world.settle();
        let wcs = world.poll(a.at);
        let done: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
        assert_eq!(done, [(1, 0, 1, 0), (2, 0, 2, 10_000), (3, 0, 2, 0)]);
        assert_eq!(there.read(3, 10_001), here.read(0, 10_001));
        let mut got = here.read(20_000, 3);
        got.extend(here.read(30_000, 9_997));
        assert_eq!(got, there.read(20_000, 10_000));
        assert!(world.poll(b.at).is_empty());
    });
}

#[test]
fn atomics_return_what_was_there() {
    each_way(|world, [a, _], [here, there], [lkey, rkey]| {
        there.write(16, &40_u64.to_ne_bytes());
        let list = [sge(here, lkey, 0, 8)];
        let add = Post { compare_add: 2, ..request(ADD, 1, &list) };
        world.send(a, &remote(add, there, 16, rkey)).unwrap();
        let list = [sge(here, lkey, 8, 8)];
        let swap = Post { compare_add: 42, swap: 7, ..request(SWAP, 2, &list) };
        world.send(a, &remote(swap, there, 16, rkey)).unwrap();
        let list = [sge(here, lkey, 16, 8)];
        let swap = Post { compare_add: 42, swap: 9, ..request(SWAP, 3, &list) };
        world.send(a, &remote(swap, there, 16, rkey)).unwrap();
        world.settle();
        assert_eq!((here.word(0), here.word(8), here.word(16)), (40, 42, 7));
        assert_eq!(there.word(16), 7);
        let done: Vec<_> = world.poll(a.at).iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
        assert_eq!(done, [(1, 4, 8), (2, 3, 8), (3, 3, 8)]);
    });
}

#[test]
fn unsignaled_requests_complete_silently_and_free_their_places() {
    each_way(|world, [a, b], [here, there], [lkey, rkey]| {
        for round in 0..10 {
            for id in 0..16 {
                let signaled = if id == 15 { SIGNALED } else { 0 };
                let list = [sge(here, lkey, 0, 8)];
                let write = Post { flags: signaled, ..request(WRITE, id, &list) };
                world.send(a, &remote(write, there, 0, rkey)).unwrap();
            }
            world.settle();
            assert_eq!(world.statuses(a.at), [(15, 0)], "round {round}");
        }
        let _ = b;
    });
}

#[test]
fn a_message_of_many_frames_shares_the_link_with_others() {
    let (big, small) = (Memory::new(8 << 20), Memory::new(64));
    let target = Memory::new(8 << 20);
    let mut world = World::with_wires(8, 4096);
    let [a, b] = world.connect([0, 1]);
    let [c, d] = world.connect([0, 1]);
    let key = world.register(0, &big, ALL);
    let small_key = world.register(0, &small, ALL);
    let rkey = world.register(1, &target, ALL);
    big.fill(77);
    world.send(a, &remote(request(WRITE, 1, &[sge(&big, key, 0, 8 << 20)]), &target, 0, rkey)).unwrap();
    world.recv(d, 3, &[sge(&target, rkey, 0, 64)]).unwrap();
    world.send(c, &request(SEND, 2, &[sge(&small, small_key, 0, 64)])).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(2, 0), (1, 0)], "the small one did not wait for the big one");
    assert_eq!(target.read(64, (8 << 20) - 64), big.read(64, (8 << 20) - 64));
    let _ = b;
}

#[test]
fn completion_events_come_once_for_each_arming() {
    let memory = Memory::new(64);
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    let key = world.register(1, &memory, ALL);
    let cq = world.nodes[1].cq;
    for id in 0..8 {
        world.recv(b, id, &[sge(&memory, key, 0, 8)]).unwrap();
    }
    let send = |world: &mut World, flags| {
        world.send(a, &Post { flags, ..request(SEND, 0, &[]) }).unwrap();
        world.settle();
    };
    send(&mut world, SOLICITED);
    assert_eq!(world.completion_events(1), 0, "not armed");
    world.nodes[1].engine.arm_cq(cq, false).unwrap();
    assert_eq!(world.completion_events(1), 1, "a completion waits");
    send(&mut world, 0);
    assert_eq!(world.completion_events(1), 0, "one event for one arming");
    world.poll(1);
    world.nodes[1].engine.arm_cq(cq, false).unwrap();
    assert_eq!(world.completion_events(1), 0, "no completion waits");
    send(&mut world, 0);
    send(&mut world, 0);
    assert_eq!(world.completion_events(1), 1);
    world.nodes[1].engine.arm_cq(cq, true).unwrap();
    send(&mut world, 0);
    assert_eq!(world.completion_events(1), 0, "not solicited");
    send(&mut world, SOLICITED);
    assert_eq!(world.completion_events(1), 1);
    world.nodes[1].engine.arm_cq(cq, true).unwrap();
    world.set_state(b, QpState::Err);
    assert_eq!(world.completion_events(1), 1, "a failed completion is solicited");
}

#[test]
fn communication_is_reported_established_once() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    world.set_state(b, QpState::Reset);
    world.set_state(a, QpState::Reset);
    world.bring_up(a, b.qpn, |_| {});
    let change = ModifyQp {
        access: Some(ALL),
        dest_qpn: Some(a.qpn),
        rq_psn: Some(0xff_fffe),
        max_dest_rd_atomic: Some(1),
        ..ModifyQp::default()
    };
    for state in [QpState::Init, QpState::Rtr] {
        world.modify(b, &ModifyQp { state: Some(state), ..change });
    }
    for id in 1..3 {
        world.recv(b, id, &[]).unwrap();
        world.send(a, &request(SEND, id, &[])).unwrap();
    }
    world.settle();
    assert_eq!(world.statuses(1), [(1, 0), (2, 0)], "received in RTR");
    assert_eq!(world.events(1), [ibv_event_type::IBV_EVENT_COMM_EST.0]);
}
