//! Requests of several tasks: turns, ends in any order, and attacks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::error::ErrorKind;
use crate::testing::{BadWr, Random, run_random};
use crate::types::WcStatus;

/// A queue pair of the test provider that several tasks post to.
pub(super) struct Tasks {
    pd: ProtectionDomain,
    driver: Driver,
    handle: Handle,
    raw: *mut rdma_sys::ibv_qp,
    requester: Requester<Rc>,
    recv: RecvHalf<Rc>,
    completed: usize,
}

impl Tasks {
    fn new() -> Self {
        let Rig { pd, driver, handle, qp } = Rig::new();
        let raw = qp.queue_pair().as_raw();
        let (send, recv) = qp.into_split();
        Self { pd, driver, handle, raw, requester: send.into_requester(), recv, completed: 0 }
    }

    fn buffer(&self) -> Buffer {
        self.pd.allocate(16).unwrap()
    }

    fn start(&self) -> InFlight<Buffer> {
        self.requester.start(op::send(self.buffer())).unwrap()
    }

    /// As many requests as the queue holds.
    fn fill(&self) -> Vec<InFlight<Buffer>> {
        (0..DEPTH).map(|_| self.start()).collect()
    }

    /// Makes the completion of the oldest request in flight, and delivers it.
    fn complete(&mut self, status: ibv_wc_status) {
        let wr_id = testing::posted(self.raw)[self.completed].wr_id;
        self.completed += 1;
        let opcode = ibv_wc_opcode::IBV_WC_SEND;
        let wc = ibv_wc { wr_id, status, opcode, ..ibv_wc::default() };
        testing::complete(self.handle.completion_queue().as_raw(), wc);
        self.driver.turn(usize::MAX).unwrap();
    }

    fn succeed(&mut self) {
        self.complete(ibv_wc_status::IBV_WC_SUCCESS);
    }

    fn posted(&self) -> usize {
        testing::posted(self.raw).len()
    }
}

fn step<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn several_tasks_post_and_each_has_its_own_result() {
    let mut tasks = Tasks::new();
    let clones = [tasks.requester.clone(), tasks.requester.clone()];
    let [(one, first), (two, second)] = [Task::new(), Task::new()];
    let [a, b] = [tasks.pd.allocate(1).unwrap(), tasks.pd.allocate(2).unwrap()];
    let mut sends = [Box::pin(clones[0].post(op::send(a))), Box::pin(clones[1].post(op::send(b)))];
    assert!(step(sends[0].as_mut(), &first).is_pending() && step(sends[1].as_mut(), &second).is_pending());
    tasks.succeed();
    assert_eq!((one.wakes(), two.wakes()), (1, 0));
    let Poll::Ready(finished) = step(sends[0].as_mut(), &first) else { panic!("it was woken") };
    assert_eq!(finished.into_memory().unwrap().len(), 1);
    tasks.complete(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    let Poll::Ready(finished) = step(sends[1].as_mut(), &second) else { panic!("it was woken") };
    assert!(matches!(finished.status, Err(Error::Failed(error)) if error.status == WcStatus::RETRY_EXC_ERR));
    assert_eq!(finished.local.unwrap().len(), 2);
}

#[test]
fn slots_are_granted_in_the_order_of_waiting() {
    let mut tasks = Tasks::new();
    let sent = tasks.fill();
    let requester = tasks.requester.clone();
    let mut waits: Vec<_> = (0..3).map(|_| (Task::new(), Box::pin(requester.reserve()))).collect();
    for ((_, waker), wait) in &mut waits {
        assert!(step(wait.as_mut(), waker).is_pending());
    }
    let wakes =
        |waits: &[((Arc<Task>, Waker), _)]| -> Vec<usize> { waits.iter().map(|((task, _), _)| task.wakes()).collect() };
    tasks.succeed();
    assert_eq!(wakes(&waits), [1, 0, 0]);
    // The slot is the first task's although it has not been polled: nobody overtakes it.
    let refused = requester.start(op::send(tasks.buffer())).unwrap_err();
    assert_eq!((refused.kind(), refused.into_memory().is_some()), (ErrorKind::QueueFull, true));
    let ((_, waker), wait) = &mut waits[0];
    let Poll::Ready(Ok(slot)) = step(wait.as_mut(), waker) else { panic!("it was woken") };
    let first = slot.start(op::send(tasks.buffer())).unwrap();
    tasks.succeed();
    tasks.succeed();
    assert_eq!(wakes(&waits), [1, 1, 1]);
    drop(waits);
    drop((sent, first));
}

#[test]
fn a_wait_that_is_dropped_passes_its_turn_on() {
    let mut tasks = Tasks::new();
    let sent = tasks.fill();
    let requester = tasks.requester.clone();
    let [(_, waker), (second, second_waker), (third, third_waker)] = [Task::new(), Task::new(), Task::new()];
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(requester.reserve())).collect();
    for (wait, waker) in waits.iter_mut().zip([&waker, &second_waker, &third_waker]) {
        assert!(step(wait.as_mut(), waker).is_pending());
    }
    // The first is dropped while it waits, the second after it was granted a slot, and the third
    // with its slot: the next task has it.
    drop(waits.remove(0));
    tasks.succeed();
    assert_eq!((second.wakes(), third.wakes()), (1, 0));
    drop(waits.remove(0));
    assert_eq!(third.wakes(), 1);
    let Poll::Ready(Ok(slot)) = step(waits[0].as_mut(), &third_waker) else { panic!("it was woken") };
    let mut fourth = Box::pin(requester.reserve());
    let (task, waker) = Task::new();
    assert!(step(fourth.as_mut(), &waker).is_pending());
    drop(slot);
    assert_eq!(task.wakes(), 1);
    assert!(step(fourth.as_mut(), &waker).is_ready());
    drop(sent);
}

#[test]
fn a_task_that_is_not_polled_holds_one_slot_and_nobody_up() {
    let mut tasks = Tasks::new();
    let sent = tasks.fill();
    let requester = tasks.requester.clone();
    let (mut lazy, mut other) = (Box::pin(requester.reserve()), Box::pin(requester.reserve()));
    let (task, waker) = Task::new();
    assert!(step(lazy.as_mut(), Waker::noop()).is_pending() && step(other.as_mut(), &waker).is_pending());
    tasks.succeed();
    tasks.succeed();
    assert_eq!(task.wakes(), 1);
    assert!(step(other.as_mut(), &waker).is_ready());
    // Forgotten, it costs that one slot.
    #[allow(clippy::mem_forget, reason = "the attack")]
    std::mem::forget(lazy);
    for _ in 2..DEPTH {
        tasks.succeed();
    }
    for _ in 1..DEPTH {
        drop(tasks.start());
    }
    assert_eq!(requester.start(op::send(tasks.buffer())).unwrap_err().kind(), ErrorKind::QueueFull);
    drop(sent);
}

#[test]
fn a_refused_request_gives_its_slot_and_its_memory_back() {
    let tasks = Tasks::new();
    for _ in 0..3 * DEPTH {
        testing::fail_post(0, libc::EINVAL, BadWr::Chain);
        let finished = ready(tasks.requester.post(op::send(tasks.buffer())));
        let Err(Error::Refused(error)) = finished.status else { panic!("it was refused") };
        assert_eq!((error.errno(), finished.local.is_some()), (Some(libc::EINVAL), true));
    }
    assert_eq!(tasks.fill().len(), DEPTH as usize);
}

#[test]
fn a_closed_queue_pair_says_so() {
    let mut tasks = Tasks::new();
    let mut sent = tasks.fill();
    let (task, waker) = Task::new();
    let requester = tasks.requester.clone();
    let mut wait = Box::pin(requester.reserve());
    assert!(step(wait.as_mut(), &waker).is_pending());
    tasks.requester.close().unwrap();
    assert_eq!(task.wakes(), 1);
    let Poll::Ready(Err(Error::Refused(error))) = step(wait.as_mut(), &waker) else { panic!("it was woken") };
    assert!(error.kind() == ErrorKind::Ended && error.to_string().contains("was closed"), "{error}");
    assert_eq!(requester.control().state().unwrap(), crate::QpState::ERR);
    let refused = requester.start(op::send(tasks.buffer())).unwrap_err();
    assert_eq!((refused.kind(), refused.into_memory().is_some()), (ErrorKind::Ended, true));
    let finished = ready(requester.post(op::send(tasks.buffer())));
    assert!(matches!(finished.status, Err(Error::Refused(error)) if error.kind() == ErrorKind::Ended));
    assert!(finished.local.is_some());
    tasks.complete(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    assert!(ready(sent.remove(0)).status.is_err());
}

#[test]
fn a_slot_that_was_reserved_before_the_end_is_refused() {
    let mut tasks = Tasks::new();
    let requester = tasks.requester.clone();
    let slot = ready(requester.reserve()).unwrap();
    assert!(ready(tasks.recv.shutdown()).is_ok());
    assert_eq!(slot.start(op::send(tasks.buffer())).unwrap_err().kind(), ErrorKind::Ended);
    assert_eq!(regions(), 0);
}

#[test]
fn without_a_driver_tasks_stop_waiting() {
    let Tasks { driver, requester, pd, recv, .. } = Tasks::new();
    let sent: Vec<_> = (0..DEPTH).map(|_| requester.start(op::send(pd.allocate(16).unwrap())).unwrap()).collect();
    let [(one, first), (two, second)] = [Task::new(), Task::new()];
    let (mut a, mut b) = (Box::pin(requester.reserve()), Box::pin(requester.reserve()));
    assert!(step(a.as_mut(), &first).is_pending() && step(b.as_mut(), &second).is_pending());
    drop(driver);
    assert_eq!((one.wakes(), two.wakes()), (1, 1));
    assert!(matches!(step(a.as_mut(), &first), Poll::Ready(Err(Error::DriverGone))));
    assert!(matches!(step(b.as_mut(), &second), Poll::Ready(Err(Error::DriverGone))));
    assert!(ready(requester.reserve()).is_err_and(|error| error == Error::DriverGone));
    assert!(sent.into_iter().all(|sent| ready(sent).status == Err(Error::DriverGone)));
    drop((a, b));
    drop((requester, recv));
    assert_eq!(regions(), 0);
}

#[test]
fn the_last_handle_ends_the_queue_pair() {
    for order in 0..3 {
        let Tasks { pd, driver: _driver, handle: _handle, requester, recv, .. } = Tasks::new();
        let (task, waker) = Task::new();
        let mut sent = requester.start(op::send(pd.allocate(16).unwrap())).unwrap();
        assert!(poll(&mut sent, &waker).is_pending());
        let mut handles: Vec<Box<dyn Send>> = vec![Box::new(requester.clone()), Box::new(requester), Box::new(recv)];
        handles.rotate_left(order);
        while let Some(handle) = handles.pop() {
            assert_eq!(task.wakes(), 0);
            drop(handle);
        }
        assert_eq!(task.wakes(), 1);
        let finished = ready(sent);
        assert!(matches!(finished.status, Err(Error::Failed(error)) if error.status == WcStatus::WR_FLUSH_ERR));
        drop(finished);
        assert_eq!(regions(), 0);
    }
}

#[test]
fn a_requester_outlives_every_other_object() {
    let Tasks { pd, driver, handle, requester, recv, .. } = Tasks::new();
    let buffer = pd.allocate(16).unwrap();
    drop((pd, driver, handle, recv));
    drop(requester.start(op::send(buffer)).unwrap());
    assert_eq!(regions(), 1);
    drop(requester);
    assert_eq!(regions(), 0);
}

#[test]
fn the_halves_of_two_tasks_are_reunited() {
    let mut rig = Rig::new();
    let other = rig.handle.queue_pair(connect(&rig.pd, &rig.handle)).unwrap();
    let (mut send, mut recv) = rig.qp.into_split();
    let (other_send, other_recv) = other.into_split();
    recv.post_recv(rig.pd.allocate(16).unwrap()).unwrap();
    let sent = ready(send.reserve()).unwrap().start(op::send(rig.pd.allocate(16).unwrap())).unwrap();
    let error = send.reunite(other_recv).unwrap_err();
    let (send, other_recv) = (error.send, error.recv);
    rig.qp = send.reunite(recv).unwrap();
    rig.succeed(0);
    rig.succeed(1);
    assert_eq!(rig.turn(), 2);
    assert!(ready(rig.qp.next_received()).is_ok() && ready(sent).into_memory().is_ok());
    drop((other_send, other_recv));
}

#[test]
fn halves_shut_down_and_wait_for_their_own_requests() {
    let rig = Rig::new();
    let raw = rig.qp.queue_pair().as_raw();
    let (mut send, mut recv) = rig.qp.into_split();
    recv.post_recv(rig.pd.allocate(16).unwrap()).unwrap();
    let sent = send.start(op::send(rig.pd.allocate(16).unwrap())).unwrap();
    let mut driver = rig.driver;
    let mut flush = |at: usize| {
        let wr_id = testing::posted(raw)[at].wr_id;
        let wc = ibv_wc { wr_id, status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() };
        testing::complete(rig.handle.completion_queue().as_raw(), wc);
        driver.turn(usize::MAX).unwrap();
    };
    assert!(is_pending(send.shutdown()) && is_pending(recv.shutdown()));
    flush(0);
    assert!(is_pending(send.shutdown()) && !is_pending(recv.shutdown()));
    flush(1);
    assert!(!is_pending(send.shutdown()));
    assert!(ready(sent).local.is_some() && ready(recv.next_received()).unwrap().take_buffer().is_some());
}

#[test]
fn a_task_that_panics_when_it_is_woken_leaves_the_turns_of_others() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker panics");
        }
    }
    let mut tasks = Tasks::new();
    let sent = tasks.fill();
    let requester = tasks.requester.clone();
    let (mut bad, mut good) = (Box::pin(requester.reserve()), Box::pin(requester.reserve()));
    let (task, waker) = Task::new();
    assert!(step(bad.as_mut(), &Waker::from(Arc::new(Panics))).is_pending());
    assert!(step(good.as_mut(), &waker).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| tasks.succeed())).is_err());
    tasks.succeed();
    assert_eq!(task.wakes(), 1);
    assert!(step(good.as_mut(), &waker).is_ready());
    drop((bad, sent));
}

#[test]
fn a_waker_may_use_the_requester_that_wakes_it() {
    let mut tasks = Tasks::new();
    let sent = tasks.fill();
    struct Reenters(Requester<Rc>, AtomicUsize);
    impl Wake for Reenters {
        fn wake(self: Arc<Self>) {
            // The slot is the task's own, so others find none.
            let refused = self.0.start(op::send(())).is_err();
            self.1.store(usize::from(refused && is_pending(self.0.reserve())), Ordering::Relaxed);
        }
    }
    let task = Arc::new(Reenters(tasks.requester.clone(), AtomicUsize::new(9)));
    let requester = tasks.requester.clone();
    let mut wait = Box::pin(requester.reserve());
    assert!(step(wait.as_mut(), &Waker::from(Arc::clone(&task))).is_pending());
    tasks.succeed();
    assert_eq!(task.1.load(Ordering::Relaxed), 1);
    assert!(step(wait.as_mut(), Waker::noop()).is_ready());
    drop(sent);
}

#[test]
fn the_handles_of_tasks_go_to_any_thread() {
    fn shared<T: Send + Sync + 'static>() {}
    fn cloned<T: Clone>() {}
    shared::<Requester<Rc>>();
    shared::<SendHalf<Rc>>();
    shared::<RecvHalf<Rc>>();
    cloned::<Requester<Rc>>();
    fn sent<T: Send>(_: T) {}
    let tasks = Tasks::new();
    sent(tasks.requester.post(op::send(())));
    sent(tasks.requester.reserve());
}

#[test]
#[cfg(not(miri))]
fn requesters_are_inert_in_a_forked_child() {
    let tasks = Tasks::new();
    let sent = tasks.fill();
    let mut wait = Box::pin(tasks.requester.reserve());
    assert!(step(wait.as_mut(), Waker::noop()).is_pending());
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inert = matches!(step(wait.as_mut(), Waker::noop()), Poll::Ready(Err(Error::Forked)))
            && tasks.requester.start(op::send(())).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && tasks.requester.close().is_err_and(|error| error.kind() == ErrorKind::Forked);
        drop(wait);
        drop((sent, tasks));
        let destroyed = testing::calls().contains(&"destroy_qp");
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if inert && !destroyed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

type Post<'a> = Pin<Box<dyn Future<Output = Finished<Buffer>> + 'a>>;

/// One random program of tasks that post, wait, and are dropped at any point.
fn run(random: &mut Random) {
    let mut tasks = Tasks::new();
    let requesters = [tasks.requester.clone(), tasks.requester.clone()];
    let mut posts: Vec<(Arc<Task>, Waker, Post<'_>)> = Vec::new();
    let mut slots = Vec::new();
    for _ in 0..300 {
        match random.below(8) {
            0..=2 => {
                let (task, waker) = Task::new();
                let requester = &requesters[random.below(2)];
                posts.push((task, waker, Box::pin(requester.post(op::send(tasks.buffer())))));
            }
            3 if !posts.is_empty() => drop(posts.swap_remove(random.below(posts.len()))),
            4 | 5 if !posts.is_empty() => {
                let at = random.below(posts.len());
                let (_, waker, post) = &mut posts[at];
                if let Poll::Ready(finished) = step(post.as_mut(), waker) {
                    assert!(finished.into_memory().is_ok());
                    drop(posts.swap_remove(at));
                }
            }
            6 => {
                let mut wait = Box::pin(requesters[0].reserve());
                match step(wait.as_mut(), Waker::noop()) {
                    Poll::Ready(slot) => slots.push(slot.unwrap()),
                    Poll::Pending if random.below(2) == 0 => drop(slots.pop()),
                    Poll::Pending => {}
                }
            }
            _ if tasks.completed < tasks.posted() => tasks.succeed(),
            _ => {}
        }
    }
    drop(slots);
    // All tasks that are left run when they are woken, as an executor runs them.
    let mut wakes = vec![usize::MAX; posts.len()];
    while !posts.is_empty() {
        let mut is_stuck = true;
        for at in (0..posts.len()).rev() {
            let (task, waker, post) = &mut posts[at];
            if wakes[at] == task.wakes() {
                continue;
            }
            (wakes[at], is_stuck) = (task.wakes(), false);
            if let Poll::Ready(finished) = step(post.as_mut(), waker) {
                assert!(finished.into_memory().is_ok());
                drop(posts.swap_remove(at));
                wakes.swap_remove(at);
            }
        }
        if tasks.completed < tasks.posted() {
            tasks.succeed();
            is_stuck = false;
        }
        assert!(!is_stuck, "a task was not woken");
    }
    while tasks.completed < tasks.posted() {
        tasks.succeed();
    }
    assert_eq!((regions(), tasks.requester.abandoned()), (0, 0));
    assert_eq!(tasks.fill().len(), DEPTH as usize);
}

#[test]
fn random_tasks_lose_no_buffer_slot_or_turn() {
    run_random(if cfg!(miri) { 2 } else { 200 }, run);
}
