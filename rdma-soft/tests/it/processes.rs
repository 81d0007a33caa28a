//! Two processes: messages, one-sided operations while the target does not poll, and the death of a
//! peer.

use std::time::{Duration, Instant};

use rdma_sys::*;

use crate::common::puppet::{self, Puppet};
use crate::common::{self, Config, Endpoint, Request, Side};

type Op = ibv_wr_opcode;
type Status = ibv_wc_status;

/// The other process runs only this test.
#[test]
fn other_process() {
    puppet::play();
}

fn connected(config: Config, options: &str) -> (Side, Puppet) {
    let mut other = Puppet::start("processes::other_process", options);
    let side = Side::new(config);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    (side, other)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..=250_u8).cycle().skip(seed).take(len).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_go_both_ways() {
    let (side, mut other) = connected(Config::default(), "");
    let mut sizes = vec![0, 1, 64, 4096, 60_000];
    sizes.extend(1..20);
    for (round, &len) in sizes.iter().enumerate() {
        let id = round as u64;
        let data: Vec<u8> = pattern(len, round);
        side.put(0, &data);
        assert_eq!(other.ask(&format!("recv {id} 0 65536")), "0");
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, id, &[side.sge(0, len)])), 0);
        side.success(id);
        assert_eq!(other.ask("wait"), format!("{id} 0 {len}"));
        assert_eq!(other.ask(&format!("peek 0 {len}")), hex(&data));
        // In the other direction.
        side.put(0, &vec![0; len]);
        assert_eq!(side.post_recv(id, &[side.sge(0, len)]), 0);
        assert_eq!(other.ask(&format!("send {id} 0 {len}")), "0");
        assert_eq!(side.success(id).byte_len as usize, len);
        assert_eq!(side.peek(0, len), data);
        assert!(other.ask("wait").starts_with(&format!("{id} 0 ")));
    }
    other.finish();
}

#[test]
fn one_sided_operations_need_no_poll_at_the_target() {
    for options in ["", "shared"] {
        let (side, mut other) = connected(Config::default(), options);
        let to = other.endpoint;
        // The other process waits for its next command and does not poll.
        for round in 0..20_u8 {
            let data: Vec<u8> = pattern(5000, usize::from(round));
            side.put(0, &data);
            let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 5000)]).remote(to.addr + 8, to.rkey);
            assert_eq!(side.post(&write), 0);
            side.success(1);
            let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[side.sge(10_000, 5000)]).remote(to.addr + 8, to.rkey);
            assert_eq!(side.post(&read), 0);
            side.success(2);
            assert_eq!(side.peek(10_000, 5000), data);
            let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &[side.sge(0, 8)]);
            assert_eq!(side.post(&add.remote(to.addr, to.rkey).operands(2, 0)), 0);
            side.success(3);
            assert_eq!(side.word(0), u64::from(round) * 2);
        }
        assert_eq!(other.ask("word 0"), "40");
        let swap = Request::new(Op::IBV_WR_ATOMIC_CMP_AND_SWP, 4, &[side.sge(0, 8)]);
        assert_eq!(side.post(&swap.remote(to.addr, to.rkey).operands(40, 7)), 0);
        side.success(4);
        assert_eq!(other.ask("word 0"), "7");
        other.finish();
    }
}

#[test]
fn rights_are_checked_by_the_target() {
    for options in ["", "shared"] {
        let (side, mut other) = connected(Config::default(), options);
        let to = other.endpoint;
        let good = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 8)]).remote(to.addr, to.rkey);
        for _ in 0..10 {
            assert_eq!(side.post(&good), 0);
            side.success(1);
        }
        let beyond = Request::new(Op::IBV_WR_RDMA_WRITE, 2, &[side.sge(0, 8)]).remote(to.addr + (1 << 16) - 4, to.rkey);
        assert_eq!(side.post(&beyond), 0);
        side.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(side.state(), ibv_qp_state::IBV_QPS_ERR);
        assert_eq!(other.ask("state"), ibv_qp_state::IBV_QPS_ERR.0.to_string());
        other.finish();
    }
}

/// Writes until the other process's shared memory is mapped here, which happens in the background.
fn warmed_up(side: &Side, to: Endpoint) {
    for id in 0..20 {
        let write = Request::new(Op::IBV_WR_RDMA_WRITE, id, &[side.sge(0, 8)]).remote(to.addr, to.rkey);
        assert_eq!(side.post(&write), 0);
        side.success(id);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn shared_memory_is_reached_while_its_process_stands_still() {
    let (side, mut other) = connected(Config::default(), "shared");
    let to = other.endpoint;
    warmed_up(&side, to);
    other.stop();
    side.put(0, b"written meanwhile");
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 17)]).remote(to.addr + 101, to.rkey);
    assert_eq!(side.post(&write), 0);
    side.success(1);
    let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[side.sge(1000, 17)]).remote(to.addr + 101, to.rkey);
    assert_eq!(side.post(&read), 0);
    side.success(2);
    assert_eq!(side.peek(1000, 17), b"written meanwhile");
    let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &[side.sge(0, 8)]).operands(1, 0);
    assert_eq!(side.post(&add.remote(to.addr + 512, to.rkey)), 0);
    side.success(3);
    other.resume();
    assert_eq!(other.ask("peek 101 17"), hex(b"written meanwhile"));
    assert_eq!(other.ask("word 512"), "1");
    other.finish();
}

#[test]
fn a_region_that_is_no_more_is_not_reached() {
    for options in ["", "shared"] {
        let (side, mut other) = connected(Config::default(), options);
        let to = other.endpoint;
        warmed_up(&side, to);
        assert_eq!(other.ask("dereg"), "0");
        side.put(0, b"too late");
        let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 8)]).remote(to.addr + 8, to.rkey);
        assert_eq!(side.post(&write), 0);
        side.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(other.ask("word 8"), "0");
        other.finish();
    }
}

#[test]
fn a_killed_peer_ends_what_is_outstanding() {
    // A timeout of 0 means to wait for ever, but the device knows that a dead process never
    // answers.
    for timeout in [0, 12] {
        let (side, mut other) = connected(Config { timeout, ..Config::default() }, "");
        // The first message sets up the link. After it no receive is posted, so the sends stay
        // outstanding.
        assert_eq!(other.ask("recv 0 0 8"), "0");
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 0, &[])), 0);
        side.success(0);
        for id in 1..4 {
            assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, id, &[])), 0);
        }
        assert_eq!(side.post_recv(9, &[]), 0);
        other.kill();
        let start = Instant::now();
        side.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        assert!(start.elapsed() < Duration::from_secs(5));
        let mut flushed: Vec<u64> = (0..3)
            .map(|_| side.wait())
            .map(|wc| {
                assert_eq!(wc.status, Status::IBV_WC_WR_FLUSH_ERR);
                wc.wr_id
            })
            .collect();
        flushed.sort_unstable();
        assert_eq!(flushed, [2, 3, 9]);
        assert_eq!(side.state(), ibv_qp_state::IBV_QPS_ERR);
    }
}

#[test]
fn a_peer_killed_at_any_moment_leaves_no_request_behind() {
    for round in 0..24_u32 {
        let options = if round % 2 == 0 { "" } else { "shared" };
        let config = Config { timeout: 10, retry_cnt: 2, rnr_retry: 3, ..Config::default() };
        let (side, mut other) = connected(config, options);
        let to = other.endpoint;
        for id in 0..32 {
            assert_eq!(other.ask(&format!("recv {id} 0 65536")), "0");
        }
        let requests = [
            Request::new(Op::IBV_WR_SEND, 0, &[side.sge(0, 20_000)]),
            Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, 65_000)]).remote(to.addr, to.rkey),
            Request::new(Op::IBV_WR_RDMA_READ, 2, &[side.sge(0, 65_000)]).remote(to.addr, to.rkey),
            Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &[side.sge(0, 8)]).remote(to.addr, to.rkey),
        ];
        let (mut posted, mut done, mut failed) = (0_usize, 0, 0);
        let mut take = |wc: ibv_wc| {
            done += 1;
            failed += usize::from(wc.status != Status::IBV_WC_SUCCESS);
            let first = if failed == 1 { Status::IBV_WC_RETRY_EXC_ERR } else { Status::IBV_WC_WR_FLUSH_ERR };
            assert!(wc.status == Status::IBV_WC_SUCCESS && failed == 0 || wc.status == first, "{:?}", wc.status);
            done
        };
        let mut completed = 0;
        let (start, mut dead) = (Instant::now(), false);
        // Until the queue pair is in the error state and every request has completed.
        while !dead || completed < posted || side.state() != ibv_qp_state::IBV_QPS_ERR {
            assert!(start.elapsed() < common::PATIENCE, "{completed} of {posted}");
            if !dead && start.elapsed() > Duration::from_micros(u64::from(round) * 150) {
                other.kill();
                dead = true;
            }
            if posted - completed < 16 && (!dead || completed == posted) {
                // At most as many sends as the peer has receives.
                let next = if posted < 120 { &requests[posted % 4] } else { &requests[1] };
                assert_eq!(side.post(next), 0);
                posted += 1;
            }
            while let Some(wc) = side.poll() {
                completed = take(wc);
            }
        }
    }
}

#[test]
fn a_peer_that_is_gone_before_the_first_message() {
    let (side, mut other) = connected(Config { timeout: 8, retry_cnt: 1, ..Config::default() }, "");
    other.kill();
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
    side.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_stopped_peer_is_waited_for() {
    let (side, mut other) = connected(Config { timeout: 18, retry_cnt: 7, ..Config::default() }, "");
    assert_eq!(other.ask("recv 0 0 8"), "0");
    assert_eq!(other.ask("recv 1 0 8"), "0");
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 0, &[])), 0);
    side.success(0);
    other.stop();
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        assert!(side.poll().is_none());
        std::thread::yield_now();
    }
    other.resume();
    side.success(1);
    other.finish();
}

#[test]
fn a_blocked_process_is_woken_by_its_channel() {
    let (side, mut other) = connected(Config::default(), "");
    for id in 0..5 {
        assert_eq!(side.post_recv(id, &[side.sge(0, 8)]), 0);
        side.arm(false);
        assert!(side.poll().is_none());
        assert_eq!(other.ask(&format!("send {id} 0 8")), "0");
        assert!(common::readable(side.channel_fd(), common::PATIENCE));
        side.take_event().unwrap();
        side.success(id);
        assert!(other.ask("wait").starts_with(&format!("{id} 0 ")));
    }
    other.finish();
}

#[test]
fn a_forked_child_can_do_nothing() {
    let side = Side::new(Config::default());
    side.connect(side.endpoint());
    // SAFETY: the child calls verbs that are refused before they take a lock, and `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut wc = ibv_wc::default();
        // SAFETY: live objects; the verbs see that this is another process.
        let polled = unsafe { ibv_poll_cq(side.cq, 1, &raw mut wc) };
        let refused = side.post_recv(1, &[]) != 0 && side.set_state(ibv_qp_state::IBV_QPS_ERR) != 0;
        // SAFETY: a live queue pair that no other thread uses.
        let kept = unsafe { (common::verbs().ibv_destroy_qp)(side.qp) } != 0;
        // SAFETY: `_exit` has no requirement; the child ends without running destructors.
        unsafe { libc::_exit(i32::from(!(polled < 0 && refused && kept))) };
    }
    let mut status = 0;
    // SAFETY: a valid out parameter.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    assert_eq!(side.post_recv(1, &[]), 0);
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 2, &[])), 0);
    side.wait();
    side.wait();
}
