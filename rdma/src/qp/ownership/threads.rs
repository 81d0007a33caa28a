//! One thread posts, others poll, and the queue pair is reset meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

const ROUNDS: u32 = if cfg!(miri) { 200 } else { 20_000 };

#[test]
fn each_buffer_comes_back_once_with_what_was_in_it() {
    let Rig { pd, cq, mut qp, poller } = Rig::new();
    drop(poller);
    // Free buffers, and the tokens that came back.
    let mut memory = pd.allocate(8 * 64).unwrap();
    let free = Mutex::new(Vec::new());
    while !memory.is_empty() {
        free.lock().unwrap().push(memory.split_to(8));
    }
    drop(memory);
    let seen = Mutex::new(vec![0_u8; ROUNDS as usize]);
    let done = AtomicBool::new(false);
    let poll = || {
        let mut poller = cq.poller();
        loop {
            let last = done.load(Ordering::Acquire);
            while let Some(mut completion) = poller.poll().unwrap() {
                while let Some(mut released) = completion.next_unsignaled() {
                    let token = released.token();
                    let buffer = released.take_buffer().unwrap();
                    assert_eq!(buffer[..], token.to_ne_bytes());
                    seen.lock().unwrap()[usize::try_from(token).unwrap()] += 1;
                    free.lock().unwrap().push(buffer);
                }
                let token = completion.token();
                let buffer = completion.take_buffer().unwrap();
                assert_eq!(buffer[..], token.to_ne_bytes());
                seen.lock().unwrap()[usize::try_from(token).unwrap()] += 1;
                free.lock().unwrap().push(buffer);
            }
            if last {
                break;
            }
            thread::yield_now();
        }
    };
    // Tokens that a reset released: they may have come back before, but need not.
    let mut taken = Vec::new();
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    thread::scope(|scope| {
        // Set also when this thread panics.
        let _done = Done(&done);
        scope.spawn(poll);
        scope.spawn(poll);
        let mut in_flight = Vec::new();
        for token in 0..u64::from(ROUNDS) {
            // Resets free buffers for good.
            let free = free.lock().unwrap().pop();
            let mut buffer = free.unwrap_or_else(|| pd.allocate(8).unwrap());
            buffer.copy_from_slice(&token.to_ne_bytes());
            loop {
                let Some(wr_id) = qp.send.next_wr_id() else {
                    thread::yield_now();
                    continue;
                };
                let signaled = token % 3 == 0 || qp.send.is_next_forced();
                match qp.post_send(op::send(buffer).token(token).signaled(token % 3 == 0)) {
                    Ok(()) => {
                        in_flight.push(token);
                        if signaled {
                            in_flight.clear();
                            let wc = wc(wr_id, ibv_wc_status::IBV_WC_SUCCESS, 0);
                            testing::complete(cq.as_raw(), wc);
                        }
                        break;
                    }
                    Err(error) => {
                        buffer = error.into_memory().unwrap();
                        thread::yield_now();
                    }
                }
            }
            if token % 1000 == 999 {
                qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
                // The reset released all requests that had not been polled yet.
                taken.extend(token.saturating_sub(64)..=token);
            }
        }
        taken.extend(in_flight);
    });
    let seen = seen.into_inner().unwrap();
    for (token, &count) in seen.iter().enumerate() {
        assert!(count <= 1, "token {token} came back {count} times");
        assert!(count == 1 || taken.contains(&(token as u64)), "token {token} never came back");
    }
}

#[test]
fn handles_may_be_moved_and_shared() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    fn both<T: Send + Sync>() {}
    // Handles: their fields are reference-counted, and the provider locks.
    both::<(crate::Device, Context, ProtectionDomain, CompletionQueue, crate::CompletionChannel)>();
    both::<(QueuePair<Rc>, PreparedQueuePair<Rc>, InitializedQueuePair<Rc>, QpBuilder<Rc>, crate::CqBuilder)>();
    both::<(RawCompletionQueue, RawQueuePair<Rc>, SendQueue, RecvQueue)>();
    both::<(SendHalf<'static>, RecvHalf<'static>, Batch<'static, 'static>, BatchError<'static>)>();
    both::<(Poller, crate::Completion<'static>, crate::Released<'static>, Scope<'static, 'static, Rc>)>();
    // Memory: access is exclusive or atomic.
    both::<(Buffer, Buffer<crate::Gpu>, crate::ExposedRegion, crate::ExposedSlice, RemoteSlice)>();
    both::<(crate::LentSlice<'static>, crate::LentSliceMut<'static>, op::SendRequest<Buffer>)>();
    // The owner need not be Sync, since no reference to it is reachable.
    both::<(crate::Memory, crate::Memory<crate::Gpu>)>();
    send::<Failed<Buffer>>();
    sync::<PostError<op::SendRequest<Buffer>>>();
}
