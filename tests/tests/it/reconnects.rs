//! Many short connections whose completions all go to one completion queue.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use rdma::op;
use rdma::{ConnectOptions, InitOptions, QueuePair};
use rdma_tests::{MANAGED, open, wait};

/// A queue of so few entries overruns unless each destroyed queue pair gives its own back.
const ENTRIES: u32 = 16;
const RECONNECTS: u32 = 100_000;
/// How long a build without optimization tries; a release build makes all reconnects.
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn a_hundred_thousand_queue_pairs_share_one_small_completion_queue() {
    let opened = open();
    let context = &opened.context;
    if !context.capabilities().manual_connect {
        rdma_tests::skip(MANAGED);
        return;
    }
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(ENTRIES).unwrap();
    let mut poller = cq.poller();
    let options = InitOptions::new().port(opened.port);
    let start = Instant::now();
    let mut done = 0;
    while done < RECONNECTS && (!cfg!(debug_assertions) && context.is_software() || start.elapsed() < PATIENCE) {
        let qp = QueuePair::builder(&pd).cq(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
        let qp = qp.init(&options).unwrap();
        let itself = qp.endpoint();
        let mut qp = qp.connect(&itself, &ConnectOptions::new()).unwrap();
        // Two receives are left; every other queue pair is destroyed before they are fetched.
        for tag in 0..3 {
            qp.post_recv((), tag).unwrap();
        }
        qp.post_send(op::send(())).unwrap();
        if done % 2 == 0 {
            assert!(wait(&mut poller).status.is_ok());
            assert!(wait(&mut poller).status.is_ok());
            qp.close().unwrap();
        } else {
            qp.set_error().unwrap();
        }
        done += 1;
    }
    println!("{done} reconnects in {:?}, {} stale completions", start.elapsed(), cq.stale_completions());
    // Nothing is reserved any more: a queue pair of the whole depth fits.
    let half = cq.depth() / 2;
    QueuePair::builder(&pd).cq(&cq).max_send_wr(half).max_recv_wr(half).build().unwrap();
}
