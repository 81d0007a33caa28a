//! Many threads on one completion queue: some post, some take completions, some run scopes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rdma::op;
use rdma::transport::Rc;
use rdma::{Buffer, CompletionQueue, InitOptions, Opened, ProtectionDomain, QueuePair, RemoteAccess};
use rdma_tests::{LIMIT, open, skip};

const MESSAGES: u64 = 1500;
const SCOPES: u32 = 300;
const DEPTH: u32 = 8;
const POSTERS: usize = 3;
const SCOPERS: usize = 2;

/// Two connected queue pairs of this process that report to one CQ.
fn pair(opened: &Opened, pd: &ProtectionDomain, cq: &CompletionQueue) -> [QueuePair<Rc>; 2] {
    let end = || {
        let qp = QueuePair::builder(pd).cq(cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).build().unwrap();
        qp.init(&InitOptions::new().port(opened.port).remote_access(RemoteAccess::WRITE)).unwrap()
    };
    rdma_testkit::join(end(), end()).unwrap().into()
}

/// Takes completions until `done`, and returns each buffer to the sender that its token names.
fn collect(cq: &CompletionQueue, home: &[Sender<Buffer>], done: &AtomicBool, taken: &AtomicU64, sleep: bool) {
    let mut poller = cq.poller();
    while !done.load(Ordering::Acquire) {
        let timeout = if sleep { Duration::from_millis(50) } else { Duration::ZERO };
        let Some(mut completion) = poller.wait(Some(timeout)).unwrap() else { continue };
        completion.status().unwrap();
        let home = &home[usize::try_from(completion.token()).unwrap()];
        let buffer = completion.take_buffer().unwrap();
        taken.fetch_add(1, Ordering::Relaxed);
        // Sending fails if the owner of the last buffers has ended.
        let _ended = home.send(buffer);
        if sleep && taken.load(Ordering::Relaxed) % 64 == 0 {
            // Completions that this poller has fetched but not handed out stay visible to other
            // pollers.
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends messages from one side to the other, each with a buffer that some collector returned.
fn post([mut a, mut b]: [QueuePair<Rc>; 2], pd: &ProtectionDomain, token: u64, back: &Receiver<Buffer>) {
    let mut buffers = vec![pd.allocate(16).unwrap(), pd.allocate(16).unwrap()];
    for _ in 0..MESSAGES {
        let mut next = || buffers.pop().unwrap_or_else(|| back.recv_timeout(LIMIT).expect("a buffer in time"));
        b.post_recv(next(), token).unwrap();
        a.post_send(op::send(next()).token(token)).unwrap();
    }
    for _ in buffers.len()..2 {
        back.recv_timeout(LIMIT).expect("the last buffers");
    }
}

fn run_scopes([mut a, b]: [QueuePair<Rc>; 2], pd: &ProtectionDomain, cq: &CompletionQueue) {
    let mut poller = cq.poller();
    let target = pd.allocate_exposed(8, RemoteAccess::WRITE).unwrap();
    let remote = target.remote(..).unwrap();
    let mut source = pd.allocate(8).unwrap();
    for round in 0..SCOPES {
        source.fill(u8::try_from(round % 256).unwrap());
        a.scope(&mut poller, LIMIT, |scope| {
            for _ in 0..4 {
                scope.post_send(op::write(source.lend(..), remote)).unwrap();
            }
        })
        .expect("others poll the same queue, and the scope's completions still come to it");
    }
    drop((a, b));
}

#[test]
fn posters_collectors_and_scopes_share_a_queue() {
    let opened = open();
    if !opened.context.capabilities().manual_connect {
        return skip(rdma_tests::MANAGED);
    }
    let pd = opened.context.alloc_pd().unwrap();
    let events = opened.context.create_completion_channel().unwrap();
    let cq = opened.context.cq_builder(1024).channel(&events).build().unwrap();
    let (done, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let (home, back): (Vec<_>, Vec<_>) = (0..POSTERS).map(|_| channel()).unzip();
    thread::scope(|scope| {
        for sleep in [true, true, true, false] {
            let home = home.clone();
            let (cq, done, taken) = (&cq, &done, &taken);
            scope.spawn(move || collect(cq, &home, done, taken, sleep));
        }
        let mut workers = Vec::new();
        for _ in 0..SCOPERS {
            let ends = pair(&opened, &pd, &cq);
            let (pd, cq) = (&pd, &cq);
            workers.push(scope.spawn(move || run_scopes(ends, pd, cq)));
        }
        for (token, back) in (0..).zip(back) {
            let ends = pair(&opened, &pd, &cq);
            let pd = &pd;
            workers.push(scope.spawn(move || post(ends, pd, token, &back)));
        }
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Release);
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
    assert_eq!(taken.into_inner(), 2 * MESSAGES * POSTERS as u64);
    assert_eq!(cq.stale_completions(), 0);
}
