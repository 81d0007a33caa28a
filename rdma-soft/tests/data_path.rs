//! A program of its own, because it counts the allocations of the whole process: the data path
//! makes none, on any thread, after its queues are created.

mod common;

use common::datagram::Datagrams;
use common::{Config, Request, pair};
use rdma_sys::*;
use rdma_test_support::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn posting_and_polling_allocate_nothing() {
    connections();
    datagrams();
}

/// Runs `round` until all caches are warm, then counts the allocations of further rounds. The other
/// threads of the process may still be starting, so one series of several has to be without any.
fn count_during(what: &str, mut round: impl FnMut()) {
    let mut counts = Vec::new();
    for _ in 0..5 {
        for _ in 0..1000 {
            round();
        }
        let before = allocations::of_process();
        let start = std::time::Instant::now();
        for _ in 0..10_000 {
            round();
        }
        let elapsed = start.elapsed();
        let counted = allocations::of_process() - before;
        println!("{} ns for {what}", elapsed.as_nanos() / 10_000);
        counts.push(counted);
        if counts.last() == Some(&0) {
            return;
        }
    }
    panic!("{what}: {counts:?} allocations");
}

fn datagrams() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    let to = a.handle();
    let mut list = [a.side.sge(0, 64)];
    let mut requests = [1, 2].map(|id| a.request(id, &mut list, &to, b.qpn()));
    requests[1].send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    let mut sink = [b.side.sge(0, 4096)];
    let mut recv = ibv_recv_wr { wr_id: 4, sg_list: sink.as_mut_ptr(), num_sge: 1, ..Default::default() };
    count_during("two datagrams and their completions", || {
        for request in &mut requests {
            let mut bad = std::ptr::null_mut();
            // SAFETY: a live queue pair; the request and its list are valid, the memory is
            // registered.
            assert_eq!(unsafe { ibv_post_recv(b.side.qp, &raw mut recv, &raw mut bad) }, 0);
            // SAFETY: its list and its handle are alive.
            assert_eq!(unsafe { a.post(request) }, 0);
        }
        for _ in 0..2 {
            a.side.wait();
            assert_eq!(b.side.wait().byte_len, 104);
        }
    });
}

fn connections() {
    let (a, b) = pair(Config::default());
    let to = b.endpoint();
    let mut list = [a.sge(0, 64)];
    let mut sink = [b.sge(0, 4096)];
    let mut requests = [
        Request::new(ibv_wr_opcode::IBV_WR_SEND, 1, &[]).raw(),
        Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 2, &[]).remote(to.addr, to.rkey).raw(),
        Request::new(ibv_wr_opcode::IBV_WR_RDMA_READ, 3, &[]).remote(to.addr, to.rkey).raw(),
    ];
    for request in &mut requests {
        request.sg_list = list.as_mut_ptr();
        request.num_sge = 1;
    }
    requests[1].send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    let mut recv = ibv_recv_wr { wr_id: 4, sg_list: sink.as_mut_ptr(), num_sge: 1, ..Default::default() };
    let mut wc = [ibv_wc::default(); 4];
    count_during("a send, a receive, a write, a read and their completions", || {
        let (mut bad, mut bad_recv) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live queue pair; the request and its list are valid, the memory is registered.
        assert_eq!(unsafe { ibv_post_recv(b.qp, &raw mut recv, &raw mut bad_recv) }, 0);
        for request in &mut requests {
            // SAFETY: a live queue pair, and a request that lives during the call.
            assert_eq!(unsafe { ibv_post_send(a.qp, request, &raw mut bad) }, 0);
        }
        let (mut sent, mut received) = (0, 0);
        while sent < 3 || received < 1 {
            // SAFETY: a live queue, and space for four completions.
            sent += unsafe { ibv_poll_cq(a.cq, 4, wc.as_mut_ptr()) };
            // SAFETY: a live queue, and space for four completions.
            received += unsafe { ibv_poll_cq(b.cq, 4, wc.as_mut_ptr()) };
        }
        assert_eq!((sent, received), (3, 1));
    });
}
