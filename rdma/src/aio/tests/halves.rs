//! Halves: random programs that drop their futures, halves that end in any order or never.

use super::*;
use crate::testing::{Random, run_random};

/// The halves of a queue pair of the test provider. Each may be gone.
struct Halves {
    pd: ProtectionDomain,
    driver: Driver,
    handle: Handle,
    raw: *mut rdma_sys::ibv_qp,
    send: Option<SendHalf<Rc>>,
    recv: Option<RecvHalf<Rc>>,
    completed: usize,
}

impl Halves {
    fn new() -> Self {
        let Rig { pd, driver, handle, qp } = Rig::new();
        let raw = qp.queue_pair().as_raw();
        let (send, recv) = qp.into_split();
        Self { pd, driver, handle, raw, send: Some(send), recv: Some(recv), completed: 0 }
    }

    fn buffer(&self) -> Buffer {
        self.pd.allocate(16).unwrap()
    }

    fn start(&mut self) -> Option<InFlight<Buffer>> {
        let buffer = self.buffer();
        self.send.as_mut()?.start(op::send(buffer)).ok()
    }

    fn post_recv(&mut self) {
        let buffer = self.buffer();
        if let Some(recv) = &mut self.recv {
            drop(recv.post_recv(buffer));
        }
    }

    /// Makes the completion of the oldest request in flight. The queue pair is there while a half
    /// is.
    fn complete(&mut self, status: ibv_wc_status) -> bool {
        if self.send.is_none() && self.recv.is_none() {
            return false;
        }
        let Some(posted) = testing::posted(self.raw).into_iter().nth(self.completed) else { return false };
        self.completed += 1;
        let opcode = if posted.recv { ibv_wc_opcode::IBV_WC_RECV } else { ibv_wc_opcode::IBV_WC_SEND };
        let wc = ibv_wc { wr_id: posted.wr_id, status, opcode, byte_len: 5, ..ibv_wc::default() };
        testing::complete(self.handle.completion_queue().as_raw(), wc);
        true
    }

    fn turn(&mut self) {
        self.driver.turn(usize::MAX).unwrap();
    }

    /// Shuts down both halves, in polls that are given up between completions, until both have
    /// ended. A half may be dropped before that.
    fn shut_down(&mut self, random: &mut Random, futures: &mut Vec<InFlight<Buffer>>) {
        let (mut sends, mut receives) = (self.send.is_some(), self.recv.is_some());
        while sends || receives {
            match random.below(20) {
                0..=4 => _ = self.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
                5..=8 => self.turn(),
                9..=12 if sends => {
                    let Some(ended) = self.send.as_mut().and_then(|send| once(send.shutdown())) else { continue };
                    // Each request has given its memory back.
                    futures.drain(..).for_each(|future| assert!(ready(future).local.is_some()));
                    assert!(ended.is_ok());
                    sends = false;
                }
                13..=16 if receives => {
                    let Some(recv) = &mut self.recv else { continue };
                    let Some(ended) = once(recv.shutdown()) else { continue };
                    // A shutdown leaves the memory that was received.
                    while let Some(mut received) = received(recv) {
                        assert!(received.take_buffer().is_some());
                    }
                    assert_eq!((ended.is_ok(), recv.recv_queue().room()), (true, DEPTH));
                    receives = false;
                }
                17 if sends => futures.extend(self.start()),
                18 if random.below(4) == 0 => (self.send, sends) = (None, false),
                19 if random.below(4) == 0 => (self.recv, receives) = (None, false),
                _ => {}
            }
        }
    }

    /// All requests complete, and what has been received is taken.
    fn drain(&mut self, futures: Vec<InFlight<Buffer>>) {
        while self.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR) {}
        self.turn();
        futures.into_iter().for_each(|future| assert!(ready(future).local.is_some()));
        while let Some(mut received) = self.recv.as_mut().and_then(received) {
            assert!(received.take_buffer().is_some());
        }
    }
}

/// The next message, if it is there.
fn received(recv: &mut RecvHalf<Rc>) -> Option<Received> {
    let mut cx = Context::from_waker(Waker::noop());
    match pin!(recv.next_received()).poll(&mut cx) {
        Poll::Ready(received) => Some(received.unwrap()),
        Poll::Pending => None,
    }
}

/// Polls a future once, as the task of its own, and drops it if it is not ready.
fn once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(&Task::new().1)) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// One random program of two halves, each of whose futures is dropped at any point.
fn run(random: &mut Random) {
    let mut halves = Halves::new();
    let mut poller = halves.handle.completion_queue().poller();
    let mut futures: Vec<InFlight<Buffer>> = Vec::new();
    for _ in 0..200 {
        match random.below(14) {
            0..=2 => futures.extend(halves.start()),
            3 | 4 => halves.post_recv(),
            5 => _ = halves.complete(ibv_wc_status::IBV_WC_SUCCESS),
            6 => _ = halves.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
            7 => halves.turn(),
            8 => assert!(poller.poll().unwrap().is_none()),
            9 if !futures.is_empty() => drop(futures.swap_remove(random.below(futures.len()))),
            10 if !futures.is_empty() => {
                let at = random.below(futures.len());
                if let Poll::Ready(finished) = poll(&mut futures[at], &Task::new().1) {
                    assert!(finished.local.is_some());
                    drop(futures.swap_remove(at));
                }
            }
            11 => {
                let buffer = halves.buffer();
                let Some(send) = &mut halves.send else { continue };
                // A slot that is reserved is used, or dropped.
                if let Some(slot) = once(send.reserve()) {
                    let slot = slot.unwrap();
                    if random.below(2) == 0 {
                        futures.push(slot.start(op::send(buffer)).unwrap());
                    }
                }
            }
            12 => {
                if let Some(mut received) = halves.recv.as_mut().and_then(|recv| once(recv.next_received())) {
                    assert!(received.as_mut().unwrap().take_buffer().is_some());
                }
            }
            _ => match random.below(20) {
                0 => _ = halves.send.as_mut().and_then(|send| once(send.shutdown())),
                1 => _ = halves.recv.as_mut().and_then(|recv| once(recv.shutdown())),
                2 if random.below(4) == 0 => halves.send = None,
                3 if random.below(4) == 0 => halves.recv = None,
                4..=9 => {
                    let (Some(send), Some(recv)) = (halves.send.take(), halves.recv.take()) else { break };
                    let whole = send.reunite(recv).unwrap();
                    let (send, recv) = whole.into_split();
                    (halves.send, halves.recv) = (Some(send), Some(recv));
                }
                _ => {}
            },
        }
    }
    // The end: everything completes, or the halves go with requests in flight.
    let end = random.below(3);
    if end == 0 {
        halves.shut_down(random, &mut futures);
    }
    if end <= 1 {
        halves.drain(std::mem::take(&mut futures));
        if let Some(send) = &halves.send {
            assert_eq!((send.abandoned(), send.send_queue().room()), (0, DEPTH));
        }
        if let Some(recv) = &halves.recv {
            assert_eq!((recv.recv_queue().room(), regions()), (DEPTH, 0));
        }
    }
    let is_first = random.below(2) == 0;
    let late = if is_first { futures.split_off(futures.len() / 2) } else { Vec::new() };
    drop(futures);
    if is_first {
        halves.send = None;
    }
    halves.recv = None;
    halves.send = None;
    // The destroy has ended what was in flight.
    late.into_iter().for_each(|future| assert!(ready(future).local.is_some()));
    halves.turn();
    assert!(poller.poll().unwrap().is_none());
    assert_eq!((regions(), testing::live("qp")), (0, 0));
}

#[test]
fn random_halves_lose_no_buffer_and_no_slot() {
    run_random(if cfg!(miri) { 2 } else { 200 }, run);
}

#[test]
fn halves_end_in_any_order_around_their_futures() {
    // 0: the send half, 1: the receive half, 2: the future of a request, 3: the driver.
    for order in permutations() {
        let mut halves = Halves::new();
        halves.post_recv();
        let mut future = halves.start();
        let (task, waker) = Task::new();
        assert!(poll(future.as_mut().unwrap(), &waker).is_pending());
        assert!(is_pending(halves.recv.as_mut().unwrap().next_received()));
        assert_eq!(regions(), 2);
        let Halves { pd, driver, handle, mut send, mut recv, .. } = halves;
        let mut driver = Some(driver);
        for part in order {
            match part {
                0 => send = None,
                1 => recv = None,
                2 => future = None,
                _ => driver = None,
            }
            if let Some(pending) = &mut future {
                // The second half to go ends the request, and the driver's end the wait.
                let is_over = (send.is_none() && recv.is_none()) || driver.is_none();
                assert_eq!(task.wakes() > 0, is_over, "{order:?}");
                if is_over {
                    drop(poll(pending, Waker::noop()));
                    future = None;
                }
            }
        }
        assert_eq!((regions(), testing::live("qp")), (0, 0), "{order:?}");
        assert_eq!(Arc::strong_count(&task), 2, "this, and the waker of the test");
        drop((pd, handle, waker));
    }
}

/// All orders of four parts.
fn permutations() -> Vec<[usize; 4]> {
    let all = (0..256).map(|number| [number & 3, number >> 2 & 3, number >> 4 & 3, number >> 6]);
    all.filter(|order| (0..4).all(|part| order.contains(&part))).collect()
}

#[test]
#[cfg(not(miri))]
#[allow(clippy::mem_forget, reason = "the attack")]
fn a_forgotten_half_keeps_what_is_in_flight_and_nothing_that_has_ended() {
    for is_send in [true, false] {
        let mut halves = Halves::new();
        let before = (regions(), testing::live("qp"));
        halves.post_recv();
        let first = halves.start().unwrap();
        halves.post_recv();
        // The first receive and the send complete; a second receive is in flight.
        assert!(halves.complete(ibv_wc_status::IBV_WC_SUCCESS) && halves.complete(ibv_wc_status::IBV_WC_SUCCESS));
        halves.turn();
        assert!(ready(first).into_memory().is_ok());
        assert!(received(halves.recv.as_mut().unwrap()).unwrap().take_buffer().is_some());
        if is_send {
            std::mem::forget(halves.send.take());
            // The other half works on, and its drop ends nothing.
            halves.post_recv();
            halves.recv = None;
            assert_eq!(regions() - before.0, 2);
        } else {
            std::mem::forget(halves.recv.take());
            let sent = halves.start().unwrap();
            assert!(
                halves.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR) && halves.complete(ibv_wc_status::IBV_WC_SUCCESS)
            );
            halves.turn();
            assert!(ready(sent).into_memory().is_ok());
            halves.send = None;
            // The receive that was flushed waits for whoever would take it.
            assert_eq!(regions() - before.0, 1);
        }
        assert_eq!(testing::live("qp"), before.1, "it is not destroyed");
        // The driver goes all the same.
        let Halves { driver, handle, .. } = halves;
        drop((driver, handle));
    }
}

#[test]
#[cfg(not(miri))]
#[allow(clippy::mem_forget, reason = "the attack")]
fn forgotten_futures_of_halves_hold_nobody_up() {
    let mut halves = Halves::new();
    let (task, waker) = Task::new();
    for _ in 0..DEPTH {
        std::mem::forget(halves.start().unwrap());
    }
    {
        // A wait for a slot and one for a message, which nobody drops.
        let mut waits = Box::pin(halves.send.as_mut().unwrap().reserve());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        std::mem::forget(waits);
        let mut waits = Box::pin(halves.recv.as_mut().unwrap().next_received());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        std::mem::forget(waits);
    }
    // Later ones of the same halves are served.
    halves.post_recv();
    while halves.complete(ibv_wc_status::IBV_WC_SUCCESS) {}
    halves.turn();
    assert_eq!(task.wakes(), 2, "each wait woke its task");
    let slot = once(halves.send.as_mut().unwrap().reserve()).expect("a free slot").unwrap();
    drop(slot);
    assert!(received(halves.recv.as_mut().unwrap()).unwrap().take_buffer().is_some());
    assert_eq!(halves.send.as_ref().unwrap().send_queue().room(), DEPTH);
    (halves.send, halves.recv) = (None, None);
    assert_eq!(testing::live("qp"), 0);
    // The reports of the forgotten requests keep their memory.
    assert_eq!(regions(), isize::try_from(DEPTH).unwrap());
}

#[test]
fn a_requester_of_an_ended_queue_pair_says_so_whoever_has_ended_it() {
    type End = fn(&Requester<Rc>, &mut RecvHalf<Rc>);
    let ends: [End; 3] = [
        |requester, _| requester.close().unwrap(),
        |_, recv| _ = once(recv.shutdown()),
        |requester, recv| {
            _ = once(recv.shutdown());
            requester.close().unwrap();
        },
    ];
    for end in ends {
        let mut halves = Halves::new();
        let requester = halves.send.take().unwrap().into_requester();
        let other = requester.clone();
        let mut sent = requester.start(op::send(halves.buffer())).unwrap();
        let slot = ready(other.reserve()).unwrap();
        end(&requester, halves.recv.as_mut().unwrap());
        let is_ended = |error: crate::Error| error.kind() == crate::ErrorKind::Ended;
        assert!(is_ended(slot.start(op::send(halves.buffer())).unwrap_err().error()));
        assert!(is_ended(other.start(op::send(halves.buffer())).unwrap_err().error()));
        assert!(matches!(ready(other.reserve()), Err(Error::Refused(error)) if is_ended(error)));
        let finished = ready(other.post(op::send(halves.buffer())));
        assert!(matches!(finished.status, Err(Error::Refused(error)) if is_ended(error)) && finished.local.is_some());
        drop(finished);
        // The request in flight ends by its completion.
        assert!(poll(&mut sent, Waker::noop()).is_pending());
        assert!(halves.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
        halves.turn();
        assert!(ready(sent).local.is_some());
        halves.recv = None;
        drop((requester, other));
        assert_eq!((regions(), testing::live("qp")), (0, 0));
    }
}
