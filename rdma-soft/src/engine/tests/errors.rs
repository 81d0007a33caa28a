//! Requests that fail: which side gets which completion, event and state.

use rdma_sys::{ibv_event_type as event, ibv_wc, ibv_wr_opcode};

use super::pair::Pair;
use super::statuses::*;
use super::world::*;
use crate::engine::*;

fn both(test: impl Fn(Pair)) {
    test(Pair::new([0, 1]));
    test(Pair::new([0, 0]));
}

#[test]
fn a_request_executed_before_is_no_progress_of_a_repeated_attempt() {
    let mut f = Pair::new([0, 0]);
    let [a, b] = f.ends;
    let list = [sge(&f.here, f.keys[0], 0, 8)];
    // No receive is posted, so the message waits, and the write after it is executed directly.
    f.world.send(a, &request(SEND, 1, &list)).unwrap();
    f.world.send(a, &remote(request(WRITE, 2, &list), &f.there, 0, f.keys[1])).unwrap();
    f.world.settle();
    f.world.set_state(b, QpState::Err);
    f.world.run_for(60_000_000_000);
    assert_eq!(f.world.statuses(0).first(), Some(&(1, RETRY)));
}

/// Posts a one-sided request that the responder must refuse, between two correct requests.
fn refused(opcode: ibv_wr_opcode, spoil: impl Fn(&mut Pair, &mut Post<'_>), expected: (u32, u32)) {
    both(|mut f| {
        let [a, b] = f.ends;
        let list = [sge(&f.here, f.keys[0], 0, 8)];
        let before = remote(request(WRITE, 1, &list), &f.there, 0, f.keys[1]);
        let mut bad = remote(request(opcode, 2, &list), &f.there, 64, f.keys[1]);
        spoil(&mut f, &mut bad);
        let after = Post { flags: 0, ..request(SEND, 3, &list) };
        f.world.recv(b, 10, &[]).unwrap();
        f.world.send(a, &before).unwrap();
        f.world.send(a, &bad).unwrap();
        f.world.send(a, &after).unwrap();
        f.world.settle();
        let mut statuses = f.world.statuses(a.at);
        if a.at != b.at {
            statuses.append(&mut f.world.statuses(b.at));
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [(1, OK), (2, expected.0), (3, FLUSH), (10, FLUSH)]);
        assert_eq!(f.states(), [QpState::Err; 2]);
        let mut events = f.world.events(b.at);
        events.retain(|it| *it != event::IBV_EVENT_COMM_EST.0);
        assert_eq!(events, [expected.1]);
    });
}

const ACCESS: (u32, u32) = (REM_ACCESS, event::IBV_EVENT_QP_ACCESS_ERR.0);

#[test]
fn a_wrong_key_is_a_remote_access_error() {
    for opcode in [WRITE, READ, ADD, SWAP, WRITE_IMM] {
        refused(opcode, |_, bad| bad.rkey ^= 1, ACCESS);
        refused(opcode, |_, bad| bad.rkey = 0, ACCESS);
    }
}

#[test]
fn a_key_that_was_given_back_is_a_remote_access_error() {
    for opcode in [WRITE, READ, ADD] {
        let stale = |f: &mut Pair, bad: &mut Post<'_>| {
            let at = f.ends[1].at;
            let old = f.world.register(at, &f.there, ALL);
            f.world.nodes[at].engine.deregister(old).unwrap();
            let new = f.world.register(at, &f.there, ALL);
            assert_ne!(old, new);
            bad.rkey = old;
        };
        refused(opcode, stale, ACCESS);
    }
}

#[test]
fn what_lies_outside_of_the_region_is_a_remote_access_error() {
    for opcode in [WRITE, READ, ADD] {
        refused(opcode, |f, bad| bad.remote_addr = f.there.addr() + f.there.len() as u64, ACCESS);
        refused(opcode, |f, bad| bad.remote_addr = f.there.addr() - 8, ACCESS);
        refused(opcode, |_, bad| bad.remote_addr = u64::MAX - 7, ACCESS);
    }
    refused(WRITE, |f, bad| bad.remote_addr = f.there.addr() + f.there.len() as u64 - 7, ACCESS);
}

#[test]
fn a_region_without_the_right_is_a_remote_access_error() {
    for (opcode, access) in [(WRITE, 15 - 2), (READ, 15 - 4), (ADD, 15 - 8), (SWAP, 15 - 8)] {
        refused(opcode, |f, bad| bad.rkey = f.world.register(f.ends[1].at, &f.there, access), ACCESS);
    }
}

#[test]
fn a_queue_pair_without_the_right_is_a_remote_access_error() {
    for (opcode, access) in [(READ, 15 - 4), (ADD, 15 - 8)] {
        let spoil = |f: &mut Pair, _: &mut Post<'_>| {
            f.world.modify(f.ends[1], &ModifyQp { access: Some(access), ..ModifyQp::default() });
        };
        refused(opcode, spoil, ACCESS);
    }
}

#[test]
fn a_region_of_another_domain_is_a_remote_access_error() {
    let spoil = |f: &mut Pair, bad: &mut Post<'_>| {
        let node = &mut f.world.nodes[f.ends[1].at];
        let pd = core::mem::replace(&mut node.pd, PdId(0));
        node.pd = node.engine.alloc_pd().unwrap();
        assert_ne!(node.pd, pd);
        bad.rkey = f.world.register(f.ends[1].at, &f.there, ALL);
    };
    refused(WRITE, spoil, ACCESS);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for opcode in [ADD, SWAP] {
        refused(opcode, |_, bad| bad.remote_addr += 4, (REM_INV, event::IBV_EVENT_QP_REQ_ERR.0));
    }
}

#[test]
fn more_reads_than_the_responder_takes_are_an_invalid_request() {
    let spoil = |f: &mut Pair, _: &mut Post<'_>| {
        // Let the responder take no reads or atomics.
        let [a, b] = f.ends;
        for (end, dest) in [(a, b), (b, a)] {
            f.world.set_state(end, QpState::Reset);
            f.world.bring_up(end, dest.qpn, |change| change.max_dest_rd_atomic = Some(0));
        }
    };
    refused(READ, spoil, (REM_INV, event::IBV_EVENT_QP_REQ_ERR.0));
}

#[test]
fn zero_bytes_need_no_key() {
    both(|mut f| {
        let [a, _] = f.ends;
        f.world.send(a, &request(WRITE, 1, &[])).unwrap();
        f.world.send(a, &request(READ, 2, &[])).unwrap();
        f.world.settle();
        assert_eq!(f.world.statuses(a.at), [(1, OK), (2, OK)]);
    });
}

#[test]
fn a_receive_that_is_too_small_fails_at_both_ends() {
    both(|mut f| {
        let [a, b] = f.ends;
        f.world.recv(b, 1, &[sge(&f.there, f.keys[1], 0, 8), sge(&f.there, f.keys[1], 8, 8)]).unwrap();
        f.world.recv(b, 2, &[]).unwrap();
        f.world.send(a, &request(SEND, 3, &[sge(&f.here, f.keys[0], 0, 17)])).unwrap();
        f.world.send(a, &request(SEND, 4, &[])).unwrap();
        f.world.settle();
        let mut statuses = f.world.statuses(a.at);
        statuses.extend(f.world.statuses(b.at));
        statuses.sort_unstable();
        assert_eq!(statuses, [(1, LOC_LEN), (2, FLUSH), (3, REM_INV), (4, FLUSH)]);
        assert_eq!(f.states(), [QpState::Err; 2]);
        assert_eq!(f.there.read(0, 16), [0; 16], "nothing was written");
    });
}

#[test]
fn a_receive_whose_memory_is_not_ours_to_write_fails_at_both_ends() {
    for spoil in [0, 1, 2] {
        both(|mut f| {
            let [a, b] = f.ends;
            let key = match spoil {
                0 => f.keys[1] ^ 1,
                1 => f.world.register(b.at, &f.there, 0),
                _ => f.keys[1],
            };
            f.world.recv(b, 1, &[sge(&f.there, key, 0, 64)]).unwrap();
            if spoil == 2 {
                f.world.nodes[b.at].engine.deregister(key).unwrap();
            }
            f.here.fill(1);
            f.world.send(a, &request(SEND, 3, &[sge(&f.here, f.keys[0], 0, 17)])).unwrap();
            f.world.settle();
            let mut statuses = f.world.statuses(a.at);
            statuses.extend(f.world.statuses(b.at));
            statuses.sort_unstable();
            assert_eq!(statuses, [(1, LOC_PROT), (3, REM_OP)]);
            assert_eq!(f.states(), [QpState::Err; 2]);
            assert_eq!(f.there.read(0, 64), [0; 64], "nothing was written");
        });
    }
}

/// Checks a request that fails before it is sent, after a request that succeeds.
fn local_failure(expected: u32, post: impl Fn(&mut Pair, End)) {
    both(|mut f| {
        let [a, b] = f.ends;
        let fine = request(WRITE, 1, &[]);
        f.world.send(a, &fine).unwrap();
        post(&mut f, a);
        f.world.send(a, &Post { flags: 0, ..request(SEND, 3, &[]) }).unwrap();
        f.world.settle();
        assert_eq!(f.world.statuses(a.at), [(1, OK), (2, expected), (3, FLUSH)]);
        assert_eq!(f.states(), [QpState::Err, QpState::Rts], "the responder has heard nothing");
        assert!(f.world.events(b.at).iter().all(|it| *it == event::IBV_EVENT_COMM_EST.0));
    });
}

#[test]
fn bad_local_keys_are_protection_errors_when_executed() {
    for opcode in [SEND, WRITE, READ, ADD] {
        local_failure(LOC_PROT, |f, a| {
            let list = [sge(&f.here, f.keys[0] ^ 1, 0, 8)];
            f.world.send(a, &remote(request(opcode, 2, &list), &f.there, 0, f.keys[1])).unwrap();
        });
        local_failure(LOC_PROT, |f, a| {
            let end = f.here.len();
            let mut list = [sge(&f.here, f.keys[0], 0, 8)];
            list[0].addr += end as u64 - 7;
            f.world.send(a, &remote(request(opcode, 2, &list), &f.there, 0, f.keys[1])).unwrap();
        });
    }
    local_failure(LOC_PROT, |f, a| {
        // The first entry is valid, but must not be sent either.
        let list = [sge(&f.here, f.keys[0], 0, 10_000), sge(&f.here, 0, 0, 1)];
        f.world.send(a, &request(SEND, 2, &list)).unwrap();
    });
}

#[test]
fn a_read_into_memory_without_local_write_is_a_protection_error() {
    for opcode in [READ, ADD, SWAP] {
        local_failure(LOC_PROT, |f, a| {
            let key = f.world.register(a.at, &f.here, 0);
            let list = [sge(&f.here, key, 0, 8)];
            f.world.send(a, &remote(request(opcode, 2, &list), &f.there, 0, f.keys[1])).unwrap();
        });
    }
}

#[test]
fn an_atomic_needs_eight_bytes_for_its_result() {
    for len in [0, 4, 16] {
        local_failure(LOC_LEN, |f, a| {
            let list = [sge(&f.here, f.keys[0], 0, len)];
            f.world.send(a, &remote(request(ADD, 2, &list), &f.there, 0, f.keys[1])).unwrap();
        });
    }
}

#[test]
fn a_message_beyond_the_maximum_is_a_length_error() {
    local_failure(LOC_LEN, |f, a| {
        let mut list = [sge(&f.here, f.keys[0], 0, 8); 3];
        for entry in &mut list {
            entry.length = limits::MAX_MESSAGE / 2;
        }
        f.world.send(a, &request(SEND, 2, &list)).unwrap();
    });
}

#[test]
fn a_read_without_initiator_depth_is_an_operation_error() {
    let memory = Memory::new(64);
    let mut world = World::new();
    let [a, _] = world.connect_with([0, 1], |_, _| {}, |_, change| change.max_rd_atomic = Some(0));
    let key = world.register(0, &memory, ALL);
    world.send(a, &request(READ, 1, &[sge(&memory, key, 0, 8)])).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(1, LOC_QP_OP)]);
}

#[test]
fn a_region_that_goes_away_under_a_request_is_a_protection_error() {
    let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let mut world = World::with_wires(2, 1024);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    world.recv(b, 1, &[sge(&there, rkey, 0, 1 << 16)]).unwrap();
    world.send(a, &request(SEND, 2, &[sge(&here, key, 0, 1 << 16)])).unwrap();
    world.step(0);
    world.step(1);
    world.step(0);
    world.nodes[0].engine.deregister(key).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(2, LOC_PROT)]);
    assert_eq!(world.state(b), QpState::Rts, "the message just stops");
    world.set_state(b, QpState::Err);
    assert_eq!(world.statuses(1), [(1, FLUSH)]);
}

#[test]
fn a_region_that_goes_away_under_a_read_is_a_remote_access_error() {
    let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
    let mut world = World::with_wires(2, 1024);
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    world.send(a, &remote(request(READ, 2, &[sge(&here, key, 0, 1 << 16)]), &there, 0, rkey)).unwrap();
    for _ in 0..3 {
        world.step(0);
        world.step(1);
    }
    world.nodes[1].engine.deregister(rkey).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(2, REM_ACCESS)]);
    assert_eq!(world.state(b), QpState::Err);
    assert_eq!(world.events(1), [event::IBV_EVENT_COMM_EST.0, event::IBV_EVENT_QP_ACCESS_ERR.0][1..]);
}

#[test]
fn an_error_state_flushes_everything_in_order_and_whatever_comes_after() {
    both(|mut f| {
        let [a, b] = f.ends;
        for id in 0..3 {
            f.world.recv(a, id, &[]).unwrap();
        }
        f.world.nodes[a.at].engine.poll_event();
        // The other side has no receive request, so the sends wait.
        for id in 10..14 {
            f.world.send(a, &Post { flags: 0, ..request(SEND, id, &[]) }).unwrap();
        }
        f.world.settle();
        f.world.set_state(a, QpState::Err);
        f.world.recv(a, 3, &[]).unwrap();
        f.world.send(a, &Post { flags: 0, ..request(SEND, 14, &[]) }).unwrap();
        let expected: Vec<_> = [10, 11, 12, 13, 0, 1, 2, 3, 14].map(|id| (id, FLUSH)).to_vec();
        assert_eq!(f.world.statuses(a.at), expected);
        f.world.settle();
        assert_eq!(f.world.state(b), QpState::Rts);
    });
}

#[test]
fn reset_drops_silently_and_takes_its_completions_along() {
    both(|mut f| {
        let [a, b] = f.ends;
        let [c, d] = f.world.connect([a.at, b.at]);
        for (x, y, id) in [(a, b, 1), (c, d, 2), (a, b, 3)] {
            f.world.recv(y, id + 10, &[]).unwrap();
            f.world.send(x, &request(SEND, id, &[])).unwrap();
            f.world.settle();
        }
        f.world.recv(a, 4, &[]).unwrap();
        f.world.set_state(a, QpState::Reset);
        f.world.set_state(b, QpState::Reset);
        let mut left = f.world.statuses(a.at);
        left.extend(f.world.statuses(b.at));
        left.sort_unstable();
        assert_eq!(left, [(2, OK), (12, OK)]);
        // Both queue pairs can be used again.
        f.world.bring_up(a, b.qpn, |_| {});
        f.world.bring_up(b, a.qpn, |_| {});
        f.world.recv(b, 5, &[]).unwrap();
        f.world.send(a, &request(SEND, 6, &[])).unwrap();
        f.world.settle();
        let mut statuses = f.world.statuses(a.at);
        statuses.extend(f.world.statuses(b.at));
        statuses.sort_unstable();
        assert_eq!(statuses, [(5, OK), (6, OK)]);
    });
}

#[test]
fn posting_is_refused_where_the_state_or_the_queue_does_not_allow_it() {
    let mut world = World::new();
    let init = init(&world.nodes[0]);
    let (qp, qpn) = world.nodes[0].engine.create_qp(&init).unwrap();
    let end = End { at: 0, qp, qpn };
    assert_eq!(world.recv(end, 1, &[]), Err(Errno::INVAL), "RESET");
    assert_eq!(world.send(end, &request(SEND, 1, &[])), Err(Errno::INVAL));
    assert_eq!(world.nodes[0].engine.send_room(qp), Err(Errno::INVAL));
    world.set_state(end, QpState::Init);
    assert_eq!(world.recv(end, 1, &[]), Ok(()));
    assert_eq!(world.send(end, &request(SEND, 1, &[])), Err(Errno::INVAL), "INIT");
    world.modify(end, &ModifyQp { state: Some(QpState::Rtr), dest_qpn: Some(qpn), ..ModifyQp::default() });
    assert_eq!(world.send(end, &request(SEND, 1, &[])), Err(Errno::INVAL), "RTR");
    for id in 2..17 {
        assert_eq!(world.recv(end, id, &[]), Ok(()));
    }
    assert_eq!(world.recv(end, 17, &[]), Err(Errno::NOMEM));
    let memory = Memory::new(8);
    let long = [sge(&memory, 0, 0, 0); 5];
    assert_eq!(world.recv(end, 17, &long), Err(Errno::INVAL));
    world.set_state(end, QpState::Rts);
    assert_eq!(world.send(end, &request(SEND, 1, &long)), Err(Errno::INVAL));
    let bad = Post { opcode: ibv_wr_opcode::IBV_WR_BIND_MW, ..request(SEND, 1, &[]) };
    assert_eq!(world.send(end, &bad), Err(Errno::INVAL));
    assert_eq!(world.send(end, &Post { data: SendData::Inline(&[]), ..request(READ, 1, &[]) }), Err(Errno::INVAL));
    for id in 0..16 {
        assert_eq!(world.nodes[0].engine.send_room(qp), Ok(16 - id));
        assert_eq!(world.send(end, &request(SEND, u64::from(id), &[])), Ok(()));
    }
    assert_eq!(world.send(end, &request(SEND, 99, &[])), Err(Errno::NOMEM));
}

#[test]
fn a_completion_queue_that_overruns_takes_its_queue_pairs_with_it() {
    let mut world = World::new();
    world.nodes[0].cq = world.nodes[0].engine.create_cq(3, 5).unwrap();
    let [a, b] = world.connect([0, 1]);
    for id in 0..5 {
        world.recv(b, id, &[]).unwrap();
        world.send(a, &request(SEND, id, &[])).unwrap();
    }
    world.settle();
    assert_eq!(world.state(a), QpState::Err);
    assert_eq!(world.events(0), [event::IBV_EVENT_CQ_ERR.0, event::IBV_EVENT_QP_FATAL.0]);
    assert_eq!(world.statuses(0), [(0, OK), (1, OK), (2, OK)]);
    let (cq, mut out) = (world.nodes[0].cq, [ibv_wc::default()]);
    assert_eq!(world.nodes[0].engine.poll_cq(cq, &mut out), Err(Errno::IO));
    assert_eq!(world.state(b), QpState::Rts);
}

#[test]
fn objects_in_use_are_busy() {
    let memory = Memory::new(64);
    let mut world = World::new();
    let [a, _] = world.connect([0, 1]);
    let key = world.register(0, &memory, ALL);
    let Node { engine, pd, cq, .. } = &mut world.nodes[0];
    assert_eq!(engine.destroy_cq(*cq), Err(Errno::BUSY));
    engine.destroy_qp(a.qp).unwrap();
    assert_eq!(engine.destroy_qp(a.qp), Err(Errno::INVAL));
    assert_eq!(engine.dealloc_pd(*pd), Err(Errno::BUSY));
    engine.deregister(key).unwrap();
    assert_eq!(engine.deregister(key), Err(Errno::INVAL));
    assert_eq!(engine.dealloc_pd(*pd), Ok(()));
    assert_eq!(engine.destroy_cq(*cq), Ok(()));
    assert_eq!(engine.destroy_cq(*cq), Err(Errno::INVAL));
}
