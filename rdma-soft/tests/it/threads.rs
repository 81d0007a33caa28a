//! Many threads at once: on separate objects, on shared ones, and while objects are created and
//! destroyed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_sys::*;

use crate::common::{Config, Request, Side, pair, verbs};

type Op = ibv_wr_opcode;

/// A side that several threads use at once, as verbs allows.
struct Shared<'a>(&'a Side);
// SAFETY: the device's verbs may be called from any thread, also on the same objects.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn side(&self) -> &Side {
        self.0
    }
}

/// Exchanges messages in both directions for a while and checks them.
fn traffic(rounds: u64) {
    let (a, b) = pair(Config { memory: 1 << 14, ..Config::default() });
    let to = b.endpoint();
    for round in 0..rounds {
        a.put(0, &round.to_ne_bytes());
        assert_eq!(b.post_recv(round, &[b.sge(8, 8)]), 0);
        let write = Request::new(Op::IBV_WR_RDMA_WRITE, round, &[a.sge(0, 8)]).remote(to.addr, to.rkey).flags(0);
        let send = Request::new(Op::IBV_WR_SEND, round, &[a.sge(0, 8)]);
        assert_eq!(a.post_chain(&[write, send]), Ok(()));
        b.success(round);
        assert_eq!((b.word(0), b.word(8)), (round, round));
        a.success(round);
    }
}

#[test]
fn threads_with_objects_of_their_own() {
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| traffic(500));
        }
    });
}

#[test]
fn objects_that_come_and_go() {
    let stop = Instant::now() + Duration::from_millis(500);
    thread::scope(|scope| {
        scope.spawn(|| traffic(1000));
        for _ in 0..3 {
            scope.spawn(|| {
                while Instant::now() < stop {
                    traffic(3);
                }
            });
        }
        scope.spawn(|| {
            // The sides are dropped while requests are outstanding.
            while Instant::now() < stop {
                let (a, b) = pair(Config::default());
                assert_eq!(a.post_recv(1, &[a.sge(0, 8)]), 0);
                let sends: Vec<_> = (0..10).map(|id| Request::new(Op::IBV_WR_SEND, id, &[a.sge(0, 64)])).collect();
                assert_eq!(a.post_chain(&sends), Ok(()));
                drop(b);
                assert_eq!(a.set_state(ibv_qp_state::IBV_QPS_ERR), 0);
                for _ in 0..11 {
                    a.wait();
                }
            }
        });
    });
}

#[test]
fn threads_on_the_same_queue_pair() {
    const EACH: u64 = 2000;
    const THREADS: u64 = 4;
    // The slot of a request is free when it is done, before its completion is polled, so the CQ
    // needs space for the completions of all requests.
    let cq_depth = i32::try_from(EACH * THREADS).unwrap();
    let (a, b) = pair(Config { depth: 32, cq_depth, ..Config::default() });
    let to = b.endpoint();
    let a = Shared(&a);
    let posted = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, posted) = (&a, &posted);
            scope.spawn(move || {
                let side = a.side();
                let offset = usize::try_from(thread).unwrap() * 8;
                let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, thread, &[side.sge(offset, 8)])
                    .remote(to.addr, to.rkey)
                    .operands(1, 0);
                for _ in 0..EACH {
                    loop {
                        match side.post(&add) {
                            0 => break,
                            errno => assert_eq!(errno, libc::ENOMEM),
                        }
                        thread::yield_now();
                    }
                    posted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..EACH * THREADS {
            assert_eq!(a.side().wait().status, ibv_wc_status::IBV_WC_SUCCESS);
        }
    });
    assert_eq!((b.word(0), posted.into_inner()), (EACH * THREADS, EACH * THREADS));
}

#[test]
fn more_queue_pairs_than_one_slot_has_numbers_for() {
    let side = Side::new(Config { depth: 1, ..Config::default() });
    let queue_pairs: Vec<_> = (0..4200).map(|_| side.make_qp()).collect();
    // SAFETY: live queue pairs.
    let mut numbers: Vec<u32> = queue_pairs.iter().map(|&qp| unsafe { (*qp).qp_num }).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4200);
    for qp in queue_pairs {
        // SAFETY: alive, and not used any more.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0);
    }
}
