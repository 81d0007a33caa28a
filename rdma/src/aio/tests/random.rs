//! Random programs: futures are polled, dropped and completed in any order, and no buffer is lost.

use super::*;
use crate::testing::{Random, run_random};

/// One random program: up to eight requests and receives at a time, fetched by the driver or by a
/// poller.
fn run(random: &mut Random) {
    let mut rig = Rig::new();
    let mut poller = rig.handle.completion_queue().poller();
    let mut futures: Vec<InFlight<Buffer>> = Vec::new();
    let mut completed = 0;
    let pick = |random: &mut Random, futures: &mut Vec<InFlight<Buffer>>| {
        (!futures.is_empty()).then(|| futures.swap_remove(random.below(futures.len())))
    };
    for _ in 0..200 {
        match random.below(9) {
            0 | 1 => {
                let buffer = rig.buffer();
                futures.extend(rig.qp.start(op::send(buffer)));
            }
            2 => {
                let buffer = rig.buffer();
                drop(rig.qp.post_recv(buffer));
            }
            3 if completed < testing::posted(rig.qp.queue_pair().as_raw()).len() => {
                rig.succeed(completed);
                completed += 1;
            }
            4 => drop(rig.turn()),
            5 => assert!(poller.poll().unwrap().is_none()),
            6 => drop(pick(random, &mut futures)),
            7 => {
                if let Some(mut future) = pick(random, &mut futures) {
                    match poll(&mut future, &Task::new().1) {
                        Poll::Ready(finished) => assert!(finished.into_memory().is_ok()),
                        Poll::Pending => futures.push(future),
                    }
                }
            }
            _ => drop(rig.qp.poll_received(&mut Context::from_waker(&Task::new().1))),
        }
    }
    // A drain: everything completes and is taken.
    (completed..testing::posted(rig.qp.queue_pair().as_raw()).len()).for_each(|at| rig.succeed(at));
    rig.turn();
    assert!(poller.poll().unwrap().is_none());
    futures.into_iter().for_each(|future| assert!(ready(future).into_memory().is_ok()));
    while let Poll::Ready(received) = rig.qp.poll_received(&mut Context::from_waker(Waker::noop())) {
        assert!(received.unwrap().take_buffer().is_some());
    }
    assert_eq!((regions(), rig.stale(), rig.qp.abandoned()), (0, 0, 0));
    assert_eq!(rig.qp.queue_pair().send_queue().room(), DEPTH);
}

#[test]
fn random_programs_lose_no_buffer() {
    run_random(if cfg!(miri) { 2 } else { 100 }, run);
}

/// The halves of a queue pair, and the requests of both that the provider has not completed.
struct Halves {
    pd: ProtectionDomain,
    driver: Driver,
    handle: Handle,
    raw: *mut rdma_sys::ibv_qp,
    send: Option<SendHalf<Rc>>,
    recv: Option<RecvHalf<Rc>>,
    futures: Vec<InFlight<Buffer>>,
    completed: usize,
}

impl Halves {
    fn new() -> Self {
        let Rig { pd, driver, handle, qp } = Rig::new();
        let raw = qp.queue_pair().as_raw();
        let (send, recv) = qp.into_split();
        Self { pd, driver, handle, raw, send: Some(send), recv: Some(recv), futures: Vec::new(), completed: 0 }
    }

    fn is_alive(&self) -> bool {
        self.send.is_some() || self.recv.is_some()
    }

    /// Completes the oldest request in flight, if there is one and the queue pair lives.
    fn complete(&mut self, status: ibv_wc_status) -> bool {
        if !self.is_alive() || self.completed == testing::posted(self.raw).len() {
            return false;
        }
        let wr_id = testing::posted(self.raw)[self.completed].wr_id;
        self.completed += 1;
        let wc = ibv_wc { wr_id, status, byte_len: 5, ..ibv_wc::default() };
        testing::complete(self.handle.completion_queue().as_raw(), wc);
        true
    }

    /// A step of the task of either half; its future is dropped after one poll.
    fn work(&mut self, random: &mut Random) {
        let buffer = self.pd.allocate(16).unwrap();
        match (random.below(4), &mut self.send, &mut self.recv) {
            (0, Some(send), _) => {
                let mut reserving = pin!(send.reserve());
                let polled = reserving.as_mut().poll(&mut Context::from_waker(&Task::new().1));
                match polled {
                    // A slot that is not used stays free.
                    Poll::Ready(Ok(slot)) if random.below(4) > 0 => self.futures.extend(slot.start(op::send(buffer))),
                    _ => {}
                }
            }
            (1, _, Some(recv)) => drop(recv.post_recv(buffer)),
            (2, _, Some(recv)) => drop(pin!(recv.next_received()).poll(&mut Context::from_waker(&Task::new().1))),
            _ if !self.futures.is_empty() => {
                let at = random.below(self.futures.len());
                let mut future = self.futures.swap_remove(at);
                // Dropped, or polled and kept.
                if random.below(2) == 0 && poll(&mut future, &Task::new().1).is_pending() {
                    self.futures.push(future);
                }
            }
            _ => {}
        }
    }

    /// A step of the end of a half: a shutdown that is given up after one poll, or a drop.
    fn end(&mut self, random: &mut Random) {
        let (_, waker) = Task::new();
        let mut cx = Context::from_waker(&waker);
        match (random.below(10), &mut self.send, &mut self.recv) {
            (0..4, Some(send), _) => {
                if pin!(send.shutdown()).poll(&mut cx).is_pending() {
                    return;
                }
                // Each request has given its memory back.
                self.futures.drain(..).for_each(|future| assert!(ready(future).local.is_some()));
            }
            (4..8, _, Some(recv)) => {
                if pin!(recv.shutdown()).poll(&mut cx).is_pending() {
                    return;
                }
                while let Poll::Ready(Ok(received)) = pin!(recv.next_received()).poll(&mut cx) {
                    drop(received);
                }
            }
            (8, _, _) => drop(self.send.take()),
            (9, _, _) => drop(self.recv.take()),
            _ => {}
        }
    }
}

/// One random program of the tasks of two halves, which end in any order.
fn run_halves(random: &mut Random) {
    let mut halves = Halves::new();
    for _ in 0..200 {
        match random.below(6) {
            0 => drop(halves.complete(ibv_wc_status::IBV_WC_SUCCESS)),
            1 => drop(halves.driver.turn(usize::MAX).unwrap()),
            _ => halves.work(random),
        }
    }
    while halves.is_alive() {
        match random.below(5) {
            0 => drop(halves.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR)),
            1 => drop(halves.driver.turn(usize::MAX).unwrap()),
            2 => halves.work(random),
            _ => halves.end(random),
        }
    }
    // The end of the second half gives all memory back.
    halves.futures.drain(..).for_each(|future| drop(ready(future)));
    halves.driver.turn(usize::MAX).unwrap();
    assert_eq!(regions(), 0);
}

#[test]
fn random_halves_lose_no_buffer_in_whatever_order_they_end() {
    run_random(if cfg!(miri) { 2 } else { 200 }, run_halves);
}
