//! Waiting: for receive requests, for peers that are absent or not ready, for drains and fences.

use rdma_sys::ibv_event_type as event;

use super::statuses::*;
use super::world::*;
use crate::engine::timer::DEATH_NANOS;
use crate::engine::*;

const MILLI: u64 = 1_000_000;

#[test]
fn a_send_without_a_receive_waits_and_then_arrives() {
    for ends in [[0, 1], [0, 0]] {
        let (here, there) = (Memory::new(1 << 14), Memory::new(1 << 14));
        let mut world = World::new();
        let [a, b] = world.connect(ends);
        let key = world.register(ends[0], &here, ALL);
        let rkey = world.register(ends[1], &there, ALL);
        for id in 0..3 {
            let list = [sge(&here, key, 0, 10_000)];
            let write = Post { imm: 1, ..request(WRITE_IMM, id, &list) };
            let sends = [request(SEND, id, &list), remote(write, &there, 0, rkey), request(SEND, id, &list)];
            world.send(a, &sends[id as usize]).unwrap();
        }
        world.run_for(100 * MILLI);
        assert!(world.poll(a.at).is_empty(), "rnr_retry 7 is for ever");
        // The payload is read only when the request is sent.
        here.fill(5);
        for id in 10..13 {
            world.recv(b, id, &[sge(&there, rkey, 0, 10_000)]).unwrap();
            world.run_for(MILLI);
        }
        let mut statuses = world.statuses(a.at);
        statuses.extend(world.statuses(b.at));
        statuses.sort_unstable();
        assert_eq!(statuses, [(0, OK), (1, OK), (2, OK), (10, OK), (11, OK), (12, OK)]);
        assert_eq!(there.read(0, 10_000), here.read(0, 10_000));
    }
}

#[test]
fn receiver_not_ready_ends_after_the_retries_and_timers_that_were_asked_for() {
    for (retries, timer, nanos) in [(0, 12, 0), (1, 12, 640_000), (6, 14, 6 * 1_280_000)] {
        let mut world = World::new();
        let tune = |index: usize, change: &mut ModifyQp| {
            change.rnr_retry = Some(retries);
            change.min_rnr_timer = Some(if index == 1 { timer } else { 31 });
        };
        let [a, b] = world.connect_with([0, 1], |_, _| {}, tune);
        world.send(a, &request(SEND, 1, &[])).unwrap();
        world.send(a, &Post { flags: 0, ..request(SEND, 2, &[]) }).unwrap();
        if nanos > 0 {
            world.run_for(nanos - 1);
            assert!(world.poll(0).is_empty(), "not before its time");
        }
        world.run_for(1);
        assert_eq!(world.statuses(0), [(1, RNR_RETRY), (2, FLUSH)]);
        assert_eq!((world.state(a), world.state(b)), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn nobody_at_the_slot_ends_in_retry_exceeded() {
    for (timeout, retries) in [(14, 7), (10, 0), (0, 1)] {
        let mut world = World::new();
        world.nodes[1].alive = false;
        let init = init(&world.nodes[0]);
        let (qp, qpn) = world.nodes[0].engine.create_qp(&init).unwrap();
        let a = End { at: 0, qp, qpn };
        world.bring_up(a, 4094 << 12 | 5, |change| {
            change.timeout = Some(timeout);
            change.retry_cnt = Some(retries);
        });
        world.send(a, &request(SEND, 1, &[])).unwrap();
        let total = (4096_u64 << if timeout == 0 { 14 } else { timeout }) * (u64::from(retries) + 1);
        world.run_for(total - 1);
        assert!(world.poll(0).is_empty());
        world.run_for(1);
        assert_eq!(world.statuses(0), [(1, RETRY)]);
    }
}

/// Both sides may connect at the same time. If this side's attempt fails while the peer's succeeds,
/// the failure has no effect.
#[test]
fn a_failed_attempt_to_connect_is_no_matter_when_there_is_a_link() {
    let mut world = World::with_wires(3, 4096);
    let [a, b] = world.connect([0, 1]);
    world.settle();
    for id in 0..8 {
        world.recv(b, id, &[]).unwrap();
        world.send(a, &request(SEND, id, &[])).unwrap();
    }
    world.step(0);
    world.nodes[0].engine.handle_unreachable(PeerId::local(Slot(4094)));
    // The peer is slower than the timer.
    for _ in 0..4 {
        world.step(0);
        world.now = world.now.after(4096 << 14);
    }
    world.run_for(8 * (4096 << 14));
    assert_eq!(world.statuses(0), (0..8).map(|id| (id, 0)).collect::<Vec<_>>());
}

#[test]
fn a_queue_pair_that_does_not_hear_ends_in_retry_exceeded() {
    for state in [QpState::Reset, QpState::Err] {
        let mut world = World::new();
        let [a, b] = world.connect([0, 1]);
        world.set_state(b, state);
        for id in 0..5 {
            world.send(a, &request(SEND, id, &[])).unwrap();
        }
        world.run_for(8 * (4096 << 14) - 1);
        assert!(world.poll(0).is_empty());
        world.run_for(1);
        assert_eq!(world.statuses(0), [(0, RETRY), (1, FLUSH), (2, FLUSH), (3, FLUSH), (4, FLUSH)]);
    }
}

#[test]
fn a_destroyed_or_different_queue_pair_ends_in_retry_exceeded() {
    for destroy in [true, false] {
        let mut world = World::new();
        let [a, b] = world.connect([0, 1]);
        if destroy {
            world.nodes[1].engine.destroy_qp(b.qp).unwrap();
        } else {
            world.modify(b, &ModifyQp { dest_qpn: Some(a.qpn + 1), ..ModifyQp::default() });
        }
        world.send(a, &request(SEND, 0, &[])).unwrap();
        world.run_for(8 * (4096 << 14));
        assert_eq!(world.statuses(0), [(0, RETRY)]);
    }
}

#[test]
fn numbers_that_do_not_agree_end_in_retry_exceeded() {
    let mut world = World::new();
    let [a, b] =
        world.connect_with([0, 1], |_, _| {}, |index, change| change.sq_psn = Some(if index == 0 { 7 } else { 9 }));
    world.recv(b, 1, &[]).unwrap();
    world.send(a, &request(SEND, 0, &[])).unwrap();
    world.run_for(8 * (4096 << 14));
    assert_eq!(world.statuses(0), [(0, RETRY)]);
    assert!(world.poll(1).is_empty());
}

#[test]
fn a_peer_that_gets_ready_later_is_reached_by_a_retry() {
    let memory = Memory::new(1 << 16);
    let mut world = World::with_wires(4, 1000);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &memory, ALL);
    let rkey = world.register(1, &memory, ALL);
    world.set_state(b, QpState::Reset);
    for id in 0..3 {
        world.send(a, &request(SEND, id, &[sge(&memory, key, 0, 5000)])).unwrap();
    }
    world.run_for(100 * MILLI);
    world.bring_up(b, a.qpn, |_| {});
    for id in 10..13 {
        world.recv(b, id, &[sge(&memory, rkey, 10_000, 6000)]).unwrap();
    }
    world.run_for(100 * MILLI);
    assert_eq!(world.statuses(0), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(world.statuses(1), [(10, OK), (11, OK), (12, OK)]);
}

#[test]
fn a_death_ends_everything_that_was_posted() {
    for lose_frames in [true, false] {
        let memory = Memory::new(1 << 16);
        let mut world = World::with_wires(2, 1000);
        let [a, b] = world.connect_with([0, 1], |_, _| {}, |_, change| change.timeout = Some(0));
        let [c, d] = world.connect([0, 1]);
        let key = world.register(0, &memory, ALL);
        let rkey = world.register(1, &memory, ALL);
        world.recv(a, 1, &[]).unwrap();
        world.recv(b, 1, &[sge(&memory, rkey, 32 << 10, 32 << 10)]).unwrap();
        world.send(a, &request(SEND, 2, &[sge(&memory, key, 0, 32 << 10)])).unwrap();
        world.send(a, &remote(request(READ, 3, &[sge(&memory, key, 0, 8000)]), &memory, 0, rkey)).unwrap();
        for _ in 0..5 {
            world.step(0);
            world.step(1);
        }
        world.kill(1, lose_frames);
        world.run_for(DEATH_NANOS - MILLI);
        assert_eq!(world.statuses(0), [], "a program has some time to end by itself");
        world.run_for(MILLI);
        assert_eq!(world.statuses(0), [(2, RETRY), (3, FLUSH), (1, FLUSH)]);
        assert_eq!(
            (world.state(a), world.state(c)),
            (QpState::Err, QpState::Rts),
            "the idle one learns it when it sends"
        );
        world.send(c, &request(SEND, 4, &[])).unwrap();
        world.run_for(8 * (4096 << 14));
        assert_eq!(world.statuses(0), [(4, RETRY)]);
        let _ = d;
    }
}

#[test]
fn a_death_waits_no_longer_than_retries_would() {
    for (timeout, retries, nanos) in [(8, 0, 4096 << 8), (10, 3, 4 * (4096 << 10)), (20, 7, DEATH_NANOS)] {
        let mut world = World::with_wires(2, 1000);
        let set = |change: &mut ModifyQp| {
            change.timeout = Some(timeout);
            change.retry_cnt = Some(retries);
        };
        let [a, _] = world.connect_with([0, 1], |_, _| {}, |_, change| set(change));
        world.send(a, &request(SEND, 1, &[])).unwrap();
        world.kill(1, true);
        world.run_for(nanos - 1000);
        assert_eq!(world.statuses(0), []);
        world.run_for(1000);
        assert_eq!(world.statuses(0), [(1, RETRY)]);
    }
}

#[test]
fn a_requester_that_dies_in_the_middle_leaves_the_responder_usable() {
    let memory = Memory::new(1 << 16);
    let mut world = World::with_wires(2, 1000);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &memory, ALL);
    let rkey = world.register(1, &memory, ALL);
    world.recv(b, 1, &[sge(&memory, rkey, 32 << 10, 32 << 10)]).unwrap();
    world.send(a, &request(SEND, 2, &[sge(&memory, key, 0, 32 << 10)])).unwrap();
    world.step(0);
    world.step(1);
    world.kill(0, false);
    world.run_for(1000 * MILLI);
    assert_eq!(world.state(b), QpState::Rts);
    assert!(world.poll(1).is_empty());
    world.set_state(b, QpState::Err);
    assert_eq!(world.statuses(1), [(1, FLUSH)]);
}

#[test]
fn an_error_state_in_the_middle_of_a_message_is_found_out() {
    for (opcode, state) in [(SEND, QpState::Err), (READ, QpState::Err), (SEND, QpState::Reset), (READ, QpState::Reset)]
    {
        let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
        let mut world = World::with_wires(2, 1000);
        let [a, b] = world.connect([0, 1]);
        let key = world.register(0, &here, ALL);
        let rkey = world.register(1, &there, ALL);
        world.recv(b, 1, &[sge(&there, rkey, 0, 1 << 16)]).unwrap();
        world.send(a, &request(WRITE, 1, &[])).unwrap();
        let list = [sge(&here, key, 0, 1 << 16)];
        world.send(a, &remote(request(opcode, 2, &list), &there, 0, rkey)).unwrap();
        world.step(0);
        world.step(1);
        world.step(0);
        world.step(1);
        world.set_state(b, state);
        world.run_for(8 * (4096 << 14));
        assert_eq!(world.statuses(0), [(1, OK), (2, RETRY)], "{opcode:?} {state:?}");
    }
}

#[test]
fn reads_in_flight_are_limited_and_fences_wait_for_them() {
    let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let mut world = World::new();
    let [a, _] = world.connect_with(
        [0, 1],
        |_, _| {},
        |_, change| {
            change.max_rd_atomic = Some(2);
            change.max_dest_rd_atomic = Some(2);
        },
    );
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    there.fill(1);
    let list = [sge(&here, key, 0, 64)];
    for id in 0..8 {
        world.send(a, &remote(request(READ, id, &list), &there, 0, rkey)).unwrap();
        world.step(0);
        assert!(world.in_flight(0) <= 2);
    }
    world.settle();
    let expected: Vec<_> = (0..8).map(|id| (id, OK)).collect();
    assert_eq!(world.statuses(0), expected);
    for (flags, fenced) in [(SIGNALED, false), (SIGNALED | FENCE, true)] {
        here.write(0, &[0; 64]);
        world.send(a, &remote(request(READ, 8, &list), &there, 0, rkey)).unwrap();
        let write = Post { flags, ..request(WRITE, 9, &list) };
        world.send(a, &remote(write, &there, 128, rkey)).unwrap();
        world.settle();
        assert_eq!(world.statuses(0), [(8, OK), (9, OK)]);
        // A fenced write sends the data that the read has brought; an unfenced one need not wait
        // for them.
        assert_eq!(there.read(128, 64) == there.read(0, 64), fenced);
    }
}

#[test]
fn an_answer_to_an_earlier_life_of_the_queue_pair_is_not_taken_for_one_to_this() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    world.recv(b, 1, &[]).unwrap();
    world.send(a, &request(SEND, 2, &[])).unwrap();
    world.step(0);
    world.step(1);
    assert_eq!(world.in_flight(1), 1, "the acknowledgement is on its way");
    world.set_state(a, QpState::Reset);
    world.bring_up(a, b.qpn, |_| {});
    world.send(a, &request(SEND, 3, &[])).unwrap();
    world.step(0);
    assert!(world.poll(0).is_empty());
}

#[test]
fn a_read_that_was_cut_off_starts_again_from_its_beginning() {
    let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let mut world = World::with_wires(2, 1000);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    there.fill(4);
    world.send(a, &remote(request(READ, 1, &[sge(&here, key, 0, 20_000)]), &there, 0, rkey)).unwrap();
    for _ in 0..4 {
        world.step(0);
        world.step(1);
    }
    assert_eq!(here.read(0, 1000), there.read(0, 1000), "it has begun");
    world.set_state(b, QpState::Reset);
    world.bring_up(b, a.qpn, |_| {});
    world.run_for(100 * MILLI);
    assert_eq!(world.statuses(0), [(1, OK)]);
    assert_eq!(here.read(0, 20_000), there.read(0, 20_000));
}

#[test]
fn a_drain_finishes_what_was_begun_and_says_so() {
    let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let mut world = World::with_wires(2, 1000);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    let list = [sge(&here, key, 0, 5000)];
    for id in 0..3 {
        world.send(a, &remote(request(WRITE, id, &list), &there, 0, rkey)).unwrap();
    }
    world.step(0);
    let drain = ModifyQp { state: Some(QpState::Sqd), sqd_notify: Some(true), ..ModifyQp::default() };
    world.modify(a, &drain);
    assert!(world.nodes[0].engine.query_qp(a.qp).unwrap().sq_draining);
    world.send(a, &request(WRITE, 3, &[])).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(0, OK)]);
    assert_eq!(world.events(0), [event::IBV_EVENT_SQ_DRAINED.0]);
    assert!(!world.nodes[0].engine.query_qp(a.qp).unwrap().sq_draining);
    world.set_state(a, QpState::Rts);
    world.settle();
    assert_eq!(world.statuses(0), [(1, OK), (2, OK), (3, OK)]);
    // Nothing is left to drain, so the event comes at once.
    world.modify(a, &drain);
    assert_eq!(world.events(0), [event::IBV_EVENT_SQ_DRAINED.0]);
    let _ = b;
}

#[test]
fn both_ends_may_send_at_once_through_a_link_with_hardly_any_room() {
    let (here, there) = (Memory::new(1 << 18), Memory::new(1 << 18));
    let mut world = World::with_wires(1, 256);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    for id in 0..4 {
        let list = [sge(&here, key, 0, 30_000)];
        world.send(a, &remote(request(WRITE, id, &list), &there, 0, rkey)).unwrap();
        world.send(a, &remote(request(READ, id + 4, &list), &there, 100_000, rkey)).unwrap();
        let list = [sge(&there, rkey, 200_000, 30_000)];
        world.send(b, &remote(request(WRITE, id, &list), &here, 100_000, key)).unwrap();
        world.send(b, &remote(request(READ, id + 4, &list), &here, 200_000, key)).unwrap();
    }
    world.settle();
    assert_eq!(world.statuses(0).len(), 8);
    assert_eq!(world.statuses(1).len(), 8);
}

#[test]
fn numbers_of_destroyed_queue_pairs_are_used_again_last() {
    let mut world = World::new();
    let init = init(&world.nodes[0]);
    let engine = &mut world.nodes[0].engine;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..limits::QPS_PER_SLOT {
        let (qp, qpn) = engine.create_qp(&init).unwrap();
        assert_eq!(Slot::of_qpn(qpn), Slot(5));
        assert!(seen.insert(qpn));
        engine.destroy_qp(qp).unwrap();
    }
    let small = QpInit { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0, ..init };
    for _ in 0..limits::QPS_PER_SLOT {
        engine.create_qp(&small).unwrap();
    }
    assert_eq!(engine.create_qp(&small), Err(Errno::NOMEM));
    engine.add_slot(Slot(17));
    assert_eq!(Slot::of_qpn(engine.create_qp(&small).unwrap().1), Slot(17));
}

#[test]
fn an_acknowledgement_without_room_is_unsent_even_if_its_queue_pair_is_gone() {
    for is_destroyed in [false, true] {
        let mut world = World::new();
        let [a, b] = world.connect([0, 1]);
        world.recv(b, 1, &[]).unwrap();
        world.settle();
        // The other node does not read, so b's answers have no room.
        world.limit_frames(1, 0);
        world.send(a, &request(SEND, 2, &[])).unwrap();
        world.settle();
        assert_eq!(world.statuses(1).len(), 1, "the message has arrived");
        assert!(world.nodes[1].engine.has_unsent_answers());
        if is_destroyed {
            world.nodes[1].engine.destroy_qp(b.qp).unwrap();
            world.settle();
        }
        assert!(world.nodes[1].engine.has_unsent_answers());
        world.limit_frames(1, 64);
        world.settle();
        assert!(!world.nodes[1].engine.has_unsent_answers());
        assert_eq!(world.statuses(0), [(2, OK)]);
    }
}

#[test]
fn acknowledgements_that_were_put_off_travel_with_requests() {
    let mut world = World::new();
    let ends = world.connect([0, 1]);
    world.lazy = true;
    for end in ends {
        for id in 0..10 {
            world.recv(end, id, &[]).unwrap();
        }
    }
    let [a, b] = ends;
    for round in 0..5 {
        world.send(a, &request(SEND, 100 + round, &[])).unwrap();
        world.step(0);
        assert_eq!(world.in_flight(0), 1);
        world.step(1);
        assert_eq!(world.in_flight(1), 0, "the acknowledgement waits");
        world.send(b, &request(SEND, 200 + round, &[])).unwrap();
        world.step(1);
        assert_eq!(world.in_flight(1), 1, "one frame for both");
        world.step(0);
        let expected = if round == 0 { vec![(100, OK), (0, OK)] } else { vec![(100 + round, OK), (round, OK)] };
        assert_eq!(world.statuses(0), expected);
    }
    // No request follows, so the last acknowledgement is sent on its own.
    world.settle();
    assert_eq!(world.statuses(1).last(), Some(&(204, OK)));
    // A post on one queue pair also releases the deferred acknowledgements of another one.
    let [c, d] = world.connect([0, 1]);
    world.recv(d, 1, &[]).unwrap();
    world.send(c, &request(SEND, 1, &[])).unwrap();
    world.step(0);
    world.nodes[1].engine.defer_acks(true);
    world.step(1);
    world.send(b, &request(WRITE, 2, &[])).unwrap();
    world.step(1);
    world.step(0);
    assert_eq!(world.statuses(0), [(1, OK)]);
}

#[test]
fn acknowledgements_of_unsignaled_requests_can_be_deferred_on() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    world.lazy = true;
    // An unsignaled request behind a signaled one does not take its acknowledgement away.
    for (flags, is_deferred) in
        [(&[0][..], true), (&[SIGNALED], false), (&[SIGNALED, 0], false), (&[0, SIGNALED], false)]
    {
        for &flags in flags {
            world.recv(b, 1, &[]).unwrap();
            world.send(a, &Post { flags, ..request(SEND, 2, &[]) }).unwrap();
        }
        world.step(0);
        world.step(1);
        let engine = &mut world.nodes[1].engine;
        engine.release_requested_acks();
        assert_eq!(engine.has_deferred_acks(), is_deferred, "{flags:?}");
        world.settle();
    }
    assert_eq!(world.statuses(0), [(2, OK); 3]);
}
