//! Hostile safe code on a device: every refusal is an error, and nothing hangs.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{QpAttr, QpState, QueuePair, RemoteSlice};
use rdma_tests::{Options, all_rights, open, pair, skipped_on_iwarp, wait};

#[test]
fn sizes_without_measure_are_errors() {
    let opened = open();
    let (context, pd) = (&opened.context, opened.context.alloc_pd().unwrap());
    assert!(context.create_cq(i32::MAX.unsigned_abs()).is_err());
    assert!(context.create_cq(u32::MAX).is_err());
    for len in [0, usize::MAX, isize::MAX as usize, isize::MAX as usize - 4096, 1 << 46] {
        assert!(pd.allocate(len).is_err(), "{len}");
        assert!(pd.allocate_exposed(len, all_rights()).is_err(), "{len}");
    }
    let cq = context.create_cq(64).unwrap();
    let builder = || QueuePair::builder(&pd).cq(&cq);
    assert!(builder().max_send_sge(u32::MAX).build().is_err());
    assert!(builder().max_recv_sge(1 << 20).build().is_err());
    assert!(builder().max_send_wr(u32::MAX).build().is_err());
    assert!(builder().max_inline_data(u32::MAX).build().is_err());
    builder().max_send_wr(0).max_recv_wr(0).max_send_sge(0).build().map(drop).ok();
    builder().build().unwrap();
}

#[test]
fn addresses_that_wrap_around_are_refused_by_the_target() {
    let bad: [fn(u64) -> (u64, u64); 6] = [
        |_| (u64::MAX, u64::MAX),
        |_| (u64::MAX - 7, 8),
        |_| (0, u64::MAX),
        |address| (address + 4096, 8),
        |address| (address.wrapping_sub(8), u64::MAX),
        |address| (address + (1 << 63), u64::MAX),
    ];
    for make in bad {
        for kind in 0..4 {
            let (mut a, b) = pair(Options::default());
            // Without an acknowledgement the write completes, whatever the peer does.
            if kind == 0 && !a.context.capabilities().acknowledged {
                continue;
            }
            let region = b.pd.allocate_exposed(4096, all_rights()).unwrap();
            let real = region.remote(..).unwrap();
            let (address, len) = make(real.address());
            let remote = RemoteSlice::new(address, len, real.rkey());
            let local = a.pd.allocate(8).unwrap();
            // A fault that is visible on this side may be refused at once.
            let posted = match kind {
                0 => a.qp.post_send(op::write(local, remote)).is_ok(),
                1 => a.qp.post_send(op::read(local, remote)).is_ok(),
                2 => a.qp.post_send(op::fetch_add(local, remote, 1)).is_ok(),
                _ => a.qp.post_send(op::compare_swap(local, remote, 0, 1)).is_ok(),
            };
            assert!(!posted || wait(&mut a.sends).status.is_err(), "{remote:?} {kind}");
        }
    }
    let region = open().context.alloc_pd().unwrap().allocate_exposed(4096, all_rights()).unwrap();
    assert!(region.slice(..=usize::MAX).is_err());
    assert!(region.copy_in(usize::MAX, &[1]).is_err());
    assert!(region.copy_in(4096, &[1]).is_err());
    assert!(region.copy_in(4096, &[]).is_ok());
    assert!(region.fill(1, usize::MAX, 0).is_err());
    assert!(region.load_u64(usize::MAX - 3, Ordering::Relaxed).is_err());
    assert!(region.load_u64(4089, Ordering::Relaxed).is_err());
    assert!(region.load_u64(1, Ordering::Relaxed).is_err());
}

#[test]
fn who_writes_to_an_event_descriptor_makes_nobody_wait_for_ever() {
    if !open().context.is_software() {
        return;
    }
    let context = open().context;
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    let start = Instant::now();
    // Safe functions lend descriptors, so safe code can write to those whose kind permits writing.
    for fd in [channel.as_fd(), context.as_fd()] {
        let mut file = File::from(fd.try_clone_to_owned().unwrap());
        let _refused = file.write_all(&(u64::MAX - 1).to_ne_bytes());
    }
    assert_eq!(channel.next_event(Some(Duration::from_millis(20))).ok().flatten(), None);
    assert_eq!(context.next_event(Some(Duration::from_millis(20))).ok().flatten(), None);
    // The device still accepts a request for events afterwards.
    cq.request_notify(false).unwrap();
    assert!(start.elapsed() < Duration::from_secs(10));
    cq.close().unwrap();
    channel.close().unwrap();
}

#[test]
fn resets_under_load_hand_out_every_buffer_once() {
    const SIZE: usize = 64;
    let (a, mut b) = pair(Options::default());
    if skipped_on_iwarp(&a.context, rdma_tests::MANAGED) {
        return;
    }
    let rdma_tests::Side { pd, mut qp, sends, .. } = a;
    let cq = sends.completion_queue();
    drop(sends);
    let region = b.pd.allocate_exposed(SIZE, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    let done = AtomicBool::new(false);
    let returned = AtomicU64::new(0);
    let free = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut poller = cq.poller();
                while !done.load(Ordering::Acquire) {
                    while let Some(mut completion) = poller.poll().unwrap() {
                        let token = completion.token();
                        let mut buffer = completion.take_buffer().unwrap();
                        // The buffer is exclusive: neither the device nor another thread writes to
                        // it.
                        assert_eq!(buffer[..8], token.to_ne_bytes());
                        buffer.fill(0xee);
                        thread::yield_now();
                        assert!(buffer.iter().all(|&byte| byte == 0xee));
                        returned.fetch_add(1, Ordering::Relaxed);
                        free.lock().unwrap().push(buffer);
                    }
                    thread::yield_now();
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(2);
        let mut token = 0_u64;
        while Instant::now() < end {
            let buffer = free.lock().unwrap().pop();
            let mut buffer = buffer.unwrap_or_else(|| pd.allocate(SIZE).unwrap());
            buffer.fill(0);
            buffer[..8].copy_from_slice(&token.to_ne_bytes());
            if qp.post_send(op::write(buffer, remote).token(token)).is_err() {
                thread::yield_now();
            }
            token += 1;
            if token % 500 == 0 {
                // Resets the queue pair with requests in flight.
                let (qpn, endpoint) = (qp.qpn(), b.qp.qpn());
                let init = qp.reset().unwrap().init(&rdma::InitOptions::new()).unwrap();
                let near = init.endpoint();
                assert_eq!(near.qpn, qpn);
                let far = b.qp.reset().unwrap().init(&rdma::InitOptions::new().remote_access(all_rights())).unwrap();
                assert_eq!(far.qpn(), endpoint);
                let to_far = far.endpoint();
                qp = init.connect(&to_far, &rdma::ConnectOptions::new()).unwrap().into();
                b.qp = far.connect(&near, &rdma::ConnectOptions::new()).unwrap().into();
            }
        }
        done.store(true, Ordering::Release);
        qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    });
    assert!(returned.load(Ordering::Relaxed) > 0);
}

#[test]
fn forgetting_everything_leaks_and_nothing_else() {
    #![allow(clippy::mem_forget, reason = "that is what is tested")]
    for _ in 0..20 {
        let (mut a, mut b) = pair(Options::default());
        let region = b.pd.allocate_exposed(64, all_rights()).unwrap();
        b.qp.post_recv(b.pd.allocate(64).unwrap(), 1).unwrap();
        a.qp.post_send(op::send(a.pd.allocate(8).unwrap())).unwrap();
        a.qp.post_send(op::write(a.pd.allocate(8).unwrap(), region.remote(..).unwrap()).unsignaled()).unwrap();
        let mut batch = a.qp.batch();
        batch.push(op::send(a.pd.allocate(8).unwrap())).unwrap();
        std::mem::forget(batch);
        let mut completion = loop {
            if let Some(completion) = a.sends.poll().unwrap() {
                break completion;
            }
        };
        assert!(completion.next_unsignaled().is_none());
        std::mem::forget(a.sends);
        std::mem::forget(region.slice(..).unwrap());
        let error = region.revoke().unwrap_err();
        std::mem::forget(error);
        drop(a.qp);
        std::mem::forget(b.qp);
        drop(b.receives);
        drop((a.pd, b.pd, a.context, b.context));
    }
}
