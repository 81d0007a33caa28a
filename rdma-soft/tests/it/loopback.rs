//! Two queue pairs of one process: every operation, signaling, and every error of the
//! specification.

use rdma_sys::*;

use crate::common::{self, Config, Request, Side, pair};

type Op = ibv_wr_opcode;
type Status = ibv_wc_status;

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..=255_u8).cycle().take(len).map(|byte| byte.wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn send_and_receive() {
    let (a, b) = pair(Config::default());
    let data = pattern(5000, 1);
    a.put(0, &data);
    assert_eq!(b.post_recv(7, &[b.sge(100, 6000)]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 3, &[a.sge(0, 5000)])), 0);
    let sent = a.success(3);
    assert_eq!(sent.opcode, ibv_wc_opcode::IBV_WC_SEND);
    assert_eq!(sent.qp_num, a.endpoint().qpn);
    let received = b.success(7);
    assert_eq!((received.opcode, received.byte_len), (ibv_wc_opcode::IBV_WC_RECV, 5000));
    assert_eq!(received.qp_num, b.endpoint().qpn);
    assert_eq!(b.peek(100, 5000), data);
    assert!(a.poll().is_none() && b.poll().is_none());
}

#[test]
fn lists_are_gathered_and_scattered() {
    let (a, b) = pair(Config::default());
    let data = pattern(300, 2);
    a.put(0, &data);
    assert_eq!(b.post_recv(1, &[b.sge(0, 1), b.sge(1000, 150), b.sge(2000, 0), b.sge(3000, 500)]), 0);
    let list = [a.sge(200, 100), a.sge(0, 0), a.sge(0, 100), a.sge(100, 100)];
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &list)), 0);
    a.success(2);
    assert_eq!(b.success(1).byte_len, 300);
    let mut expected = data[200..].to_vec();
    expected.extend_from_slice(&data[..200]);
    let mut seen = b.peek(0, 1);
    seen.extend(b.peek(1000, 150));
    seen.extend(b.peek(3000, 149));
    assert_eq!(seen, expected);
}

#[test]
fn empty_messages_and_immediate_data() {
    let (a, b) = pair(Config::default());
    assert_eq!(b.post_recv(1, &[]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND_WITH_IMM, 2, &[]).imm(0xdead_beef)), 0);
    a.success(2);
    let received = b.success(1);
    assert_eq!((received.byte_len, received.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0), (0, 2));
    // SAFETY: both variants are a `u32`.
    assert_eq!(u32::from_be(unsafe { received.__bindgen_anon_1.imm_data }), 0xdead_beef);

    let to = b.endpoint();
    a.put(0, b"written");
    assert_eq!(b.post_recv(3, &[]), 0);
    let request = Request::new(Op::IBV_WR_RDMA_WRITE_WITH_IMM, 4, &[a.sge(0, 7)]).remote(to.addr + 50, to.rkey).imm(9);
    assert_eq!(a.post(&request), 0);
    assert_eq!(a.success(4).opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    let received = b.success(3);
    assert_eq!((received.opcode, received.byte_len), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 7));
    assert_eq!(b.peek(50, 7), b"written");
}

#[test]
fn one_sided_operations() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    let data = pattern(9000, 3);
    a.put(0, &data);
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 4000), a.sge(4000, 5000)]);
    assert_eq!(a.post(&write.remote(to.addr + 8, to.rkey)), 0);
    a.success(1);
    assert_eq!(b.peek(8, 9000), data);
    let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[a.sge(20000, 100), a.sge(30000, 8900)]);
    assert_eq!(a.post(&read.remote(to.addr + 8, to.rkey)), 0);
    let done = a.success(2);
    assert_eq!((done.opcode, done.byte_len), (ibv_wc_opcode::IBV_WC_RDMA_READ, 9000));
    assert_eq!((a.peek(20000, 100), a.peek(30000, 8900)), (data[..100].to_vec(), data[100..].to_vec()));
    assert!(b.poll().is_none());
}

#[test]
fn atomics() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    b.put(64, &10_u64.to_ne_bytes());
    let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &[a.sge(0, 8)]).remote(to.addr + 64, to.rkey);
    assert_eq!(a.post(&add.clone().operands(5, 0)), 0);
    assert_eq!(a.success(1).opcode, ibv_wc_opcode::IBV_WC_FETCH_ADD);
    assert_eq!((a.word(0), b.word(64)), (10, 15));
    let swap = Request::new(Op::IBV_WR_ATOMIC_CMP_AND_SWP, 2, &[a.sge(8, 8)]).remote(to.addr + 64, to.rkey);
    assert_eq!(a.post(&swap.clone().operands(15, 100)), 0);
    assert_eq!(a.success(2).opcode, ibv_wc_opcode::IBV_WC_COMP_SWAP);
    assert_eq!((a.word(8), b.word(64)), (15, 100));
    assert_eq!(a.post(&swap.operands(15, 200)), 0);
    a.success(2);
    assert_eq!((a.word(8), b.word(64)), (100, 100));
    // A misaligned atomic is an invalid request at the responder.
    let crooked = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &[a.sge(0, 8)]).remote(to.addr + 4, to.rkey);
    assert_eq!(a.post(&crooked), 0);
    a.expect(3, Status::IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn inline_data_may_change_at_once() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    assert_eq!(b.post_recv(9, &[b.sge(0, 64)]), 0);
    let local = [1_u8, 2, 3, 4, 5];
    // Inline data needs neither registration nor an lkey.
    let piece = |from: usize, length| ibv_sge { addr: local[from..].as_ptr().addr() as u64, length, lkey: 0 };
    let list = [piece(3, 2), piece(0, 3)];
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 1, &list).flags(SIGNALED | INLINE)), 0);
    a.success(1);
    b.success(9);
    assert_eq!(b.peek(0, 5), [4, 5, 1, 2, 3]);
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 2, &list).flags(SIGNALED | INLINE).remote(to.addr + 10, to.rkey);
    assert_eq!(a.post(&write), 0);
    a.success(2);
    assert_eq!(b.peek(10, 5), [4, 5, 1, 2, 3]);
    let long = [0_u8; 300];
    let sge = ibv_sge { addr: long.as_ptr().addr() as u64, length: 300, lkey: 0 };
    assert_ne!(a.post(&Request::new(Op::IBV_WR_SEND, 1, &[sge]).flags(INLINE)), 0);
    let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &list).flags(INLINE).remote(to.addr, to.rkey);
    assert_eq!(a.post(&read), libc::EINVAL);
}

#[test]
fn only_signaled_requests_and_failures_complete() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    let write =
        |id, flags| Request::new(Op::IBV_WR_RDMA_WRITE, id, &[a.sge(0, 8)]).remote(to.addr, to.rkey).flags(flags);
    let chain = [write(1, 0), write(2, 0), write(3, SIGNALED), write(4, FENCE | SIGNALED)];
    assert_eq!(a.post_chain(&chain), Ok(()));
    a.success(3);
    a.success(4);
    let mut wrong = write(5, 0);
    wrong.remote.1 ^= 0x5555;
    assert_eq!(a.post(&wrong), 0);
    a.expect(5, Status::IBV_WC_REM_ACCESS_ERR);

    let (c, d) = pair(Config { sq_sig_all: true, ..Config::default() });
    let to = d.endpoint();
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 6, &[c.sge(0, 8)]).remote(to.addr, to.rkey).flags(0);
    assert_eq!(c.post(&write), 0);
    c.success(6);
}

#[test]
fn a_chain_stops_at_the_first_bad_request() {
    let (a, b) = pair(Config { depth: 3, ..Config::default() });
    let to = b.endpoint();
    let write = |id| Request::new(Op::IBV_WR_RDMA_WRITE, id, &[a.sge(0, 8)]).remote(to.addr, to.rkey);
    let mut foreign = write(2);
    foreign.opcode = Op::IBV_WR_TSO;
    assert_eq!(a.post_chain(&[write(1), foreign, write(3)]), Err((libc::EOPNOTSUPP, Some(1))));
    a.success(1);
    let mut many = write(2);
    many.list = vec![a.sge(0, 1); 5];
    assert_eq!(a.post_chain(&[write(1), write(2), many]), Err((libc::EINVAL, Some(2))));
    a.success(1);
    a.success(2);
    assert!(a.poll().is_none());
    // The receive queue has exactly the requested depth.
    for id in 0..3 {
        assert_eq!(b.post_recv(id, &[]), 0);
    }
    assert_eq!(b.post_recv(3, &[]), libc::ENOMEM);
}

#[test]
fn a_full_send_queue_says_so() {
    let (a, b) = pair(Config { depth: 4, ..Config::default() });
    // No receive is posted, so the sends wait.
    let send = |id| Request::new(Op::IBV_WR_SEND, id, &[]);
    let chain: Vec<_> = (0..5).map(send).collect();
    assert_eq!(a.post_chain(&chain), Err((libc::ENOMEM, Some(4))));
    for id in 0..4 {
        assert_eq!(b.post_recv(id, &[]), 0);
    }
    for id in 0..4 {
        a.success(id);
        b.success(id);
    }
    assert_eq!(a.post(&send(9)), 0);
    assert_eq!(b.post_recv(9, &[]), 0);
    a.success(9);
}

/// Checks that the given requests are flushed and nothing else completes.
fn flushes(side: &Side, ids: &[u64]) {
    for &id in ids {
        side.expect(id, Status::IBV_WC_WR_FLUSH_ERR);
    }
    assert!(side.poll().is_none());
    assert_eq!(side.state(), ibv_qp_state::IBV_QPS_ERR);
}

#[test]
fn remote_access_errors_end_both_sides_and_tell_the_responder() {
    type Spoil = fn(&mut Request);
    let spoilt: [Spoil; 4] = [
        |r| r.remote.1 ^= 0x0101_0101,
        |r| r.remote.0 -= 1,
        |r| r.remote.0 += (1 << 16) - 7,
        |r| r.remote = (u64::MAX - 3, r.remote.1),
    ];
    for opcode in [Op::IBV_WR_RDMA_WRITE, Op::IBV_WR_RDMA_READ] {
        for spoil in spoilt {
            let (a, b) = pair(Config::default());
            let to = b.endpoint();
            assert_eq!(b.post_recv(50, &[]), 0);
            let mut request = Request::new(opcode, 1, &[a.sge(0, 8)]).remote(to.addr, to.rkey);
            spoil(&mut request);
            assert_eq!(a.post(&request), 0);
            a.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
            flushes(&a, &[]);
            flushes(&b, &[50]);
            let event = b.async_event().unwrap();
            assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
            // SAFETY: an event about a queue pair.
            assert_eq!(unsafe { event.element.qp }, b.qp);
            let mut event = event;
            // SAFETY: an event that was just read.
            unsafe { (common::verbs().ibv_ack_async_event)(&raw mut event) };
            // SAFETY: a live queue pair.
            assert_eq!(unsafe { (*b.qp).events_completed }, 1);
        }
    }
}

#[test]
fn rights_are_those_of_the_region_and_of_the_queue_pair() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    // The queue pair revokes the right to write.
    let mut attr = ibv_qp_attr { qp_access_flags: 4, ..Default::default() };
    assert_eq!(b.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_RDMA_READ, 1, &[a.sge(0, 8)]).remote(to.addr, to.rkey)), 0);
    a.success(1);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_RDMA_WRITE, 2, &[a.sge(0, 8)]).remote(to.addr, to.rkey)), 0);
    a.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_receive_that_is_too_small() {
    let (a, b) = pair(Config::default());
    assert_eq!(b.post_recv(1, &[b.sge(0, 10)]), 0);
    assert_eq!(b.post_recv(2, &[b.sge(0, 10)]), 0);
    let chain: Vec<_> = (3..6).map(|id| Request::new(Op::IBV_WR_SEND, id, &[a.sge(0, 11)])).collect();
    assert_eq!(a.post_chain(&chain), Ok(()));
    b.expect(1, Status::IBV_WC_LOC_LEN_ERR);
    a.expect(3, Status::IBV_WC_REM_INV_REQ_ERR);
    flushes(&a, &[4, 5]);
    flushes(&b, &[2]);
}

#[test]
fn bad_local_keys_fail_when_they_are_used() {
    let (a, b) = pair(Config::default());
    assert_eq!(b.post_recv(1, &[]), 0);
    let mut wrong = a.sge(0, 8);
    wrong.lkey ^= 0x00ff_00ff;
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &[wrong])), 0);
    a.expect(2, Status::IBV_WC_LOC_PROT_ERR);
    flushes(&a, &[]);

    let (a, b) = pair(Config::default());
    let mut wrong = b.sge(0, 8);
    wrong.addr -= 8;
    assert_eq!(b.post_recv(1, &[wrong]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &[a.sge(0, 8)])), 0);
    b.expect(1, Status::IBV_WC_LOC_PROT_ERR);
    a.expect(2, Status::IBV_WC_REM_OP_ERR);
}

#[test]
fn no_receive_in_time() {
    let config = Config { rnr_retry: 2, min_rnr_timer: 1, ..Config::default() };
    let (a, b) = pair(config);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
    a.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    flushes(&a, &[]);
    assert_eq!(b.state(), ibv_qp_state::IBV_QPS_RTS);
}

#[test]
fn a_queue_pair_that_does_not_answer() {
    let (a, b) = pair(Config { timeout: 8, retry_cnt: 1, ..Config::default() });
    assert_eq!(b.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
    a.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    flushes(&a, &[]);
}

#[test]
fn error_flushes_and_reset_forgets() {
    let (a, b) = pair(Config::default());
    for id in 0..3 {
        assert_eq!(a.post_recv(id, &[a.sge(0, 8)]), 0);
    }
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 10, &[])), 0);
    assert_eq!(a.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
    let mut ids: Vec<u64> = (0..4)
        .map(|_| a.wait())
        .map(|wc| {
            assert_eq!(wc.status, Status::IBV_WC_WR_FLUSH_ERR);
            wc.wr_id
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 10]);
    // In the error state requests are accepted and flushed at once.
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 11, &[])), 0);
    assert_eq!(a.post_recv(12, &[]), 0);
    a.expect(11, Status::IBV_WC_WR_FLUSH_ERR);
    a.expect(12, Status::IBV_WC_WR_FLUSH_ERR);
    // In RESET requests are refused, and the queue pair's completions are removed from the CQ.
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 13, &[])), 0);
    assert_eq!(a.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
    assert!(a.poll().is_none());
    assert_ne!(a.post(&Request::new(Op::IBV_WR_SEND, 14, &[])), 0);
    assert_ne!(a.post_recv(15, &[]), 0);
    // Both queue pairs connect again.
    assert_eq!(b.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
    a.connect(b.endpoint());
    b.connect(a.endpoint());
    assert_eq!(b.post_recv(1, &[]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &[])), 0);
    a.success(2);
    b.success(1);
}

#[test]
fn a_queue_pair_may_talk_to_itself() {
    let a = Side::new(Config::default());
    a.connect(a.endpoint());
    let to = a.endpoint();
    a.put(0, b"to myself");
    assert_eq!(a.post_recv(1, &[a.sge(100, 9)]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &[a.sge(0, 9)])), 0);
    let mut ids = [a.wait().wr_id, a.wait().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_RDMA_WRITE, 3, &[a.sge(0, 9)]).remote(to.addr + 200, to.rkey)), 0);
    a.success(3);
    assert_eq!((a.peek(100, 9), a.peek(200, 9)), (b"to myself".to_vec(), b"to myself".to_vec()));
}

#[test]
fn a_large_message() {
    let len = (8 << 20) + 5;
    let (a, b) = pair(Config { memory: len + 64, ..Config::default() });
    let data = pattern(len, 9);
    a.put(3, &data);
    assert_eq!(b.post_recv(1, &[b.sge(1, len)]), 0);
    assert_eq!(a.post(&Request::new(Op::IBV_WR_SEND, 2, &[a.sge(3, len)])), 0);
    assert_eq!(b.success(1).byte_len as usize, len);
    a.success(2);
    assert!(b.peek(1, len) == data);
}
