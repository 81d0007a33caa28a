//! Where reports and memory go.

use super::*;
use crate::error::ErrorKind;
use crate::testing::BadWr;
use crate::types::WcStatus;

#[test]
fn a_completion_wakes_the_one_task_that_waits() {
    let mut rig = Rig::new();
    let (mut first, mut second) = (rig.start(), rig.start());
    let tasks = [Task::new(), Task::new()];
    assert!(poll(&mut first, &tasks[0].1).is_pending() && poll(&mut second, &tasks[1].1).is_pending());
    rig.succeed(0);
    assert_eq!(rig.turn(), 1);
    assert_eq!((tasks[0].0.wakes(), tasks[1].0.wakes()), (1, 0));
    let Poll::Ready(finished) = poll(&mut first, &tasks[0].1) else { panic!("it was woken") };
    assert_eq!(finished.status.unwrap().opcode, op::Opcode::Send);
    assert_eq!(finished.local.unwrap().len(), 16);
    assert!(poll(&mut second, &tasks[1].1).is_pending());
}

#[test]
fn a_failed_request_gives_its_memory_back() {
    let mut rig = Rig::new();
    let sent = rig.start();
    rig.complete(0, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    rig.turn();
    let finished = ready(sent);
    let Err(Error::Failed(error)) = finished.status else { panic!("it failed") };
    assert_eq!((error.status, finished.local.is_some()), (WcStatus::RETRY_EXC_ERR, true));
}

#[test]
fn a_future_that_nobody_polls_occupies_no_slot() {
    let mut rig = Rig::new();
    let mut kept = Vec::new();
    for at in 0..4 * DEPTH as usize {
        kept.push(rig.start());
        rig.succeed(at);
        rig.turn();
    }
    assert_eq!(regions(), 4 * DEPTH as isize);
    for sent in kept {
        drop(ready(sent).into_memory().unwrap());
    }
    assert_eq!(regions(), 0);
}

#[test]
fn an_abandoned_request_keeps_its_memory_until_its_completion() {
    let mut rig = Rig::new();
    drop(rig.start());
    assert_eq!((regions(), rig.qp.abandoned()), (1, 1));
    rig.succeed(0);
    rig.turn();
    assert_eq!((regions(), rig.qp.abandoned()), (0, 0));
    // A finished request that was never polled.
    let sent = rig.start();
    rig.succeed(1);
    rig.turn();
    assert_eq!(regions(), 1);
    drop(sent);
    assert_eq!(regions(), 0);
}

#[test]
fn lists_come_back_in_their_shape() {
    let mut rig = Rig::new();
    let [a, b, c] = std::array::from_fn(|len| rig.pd.allocate(len + 1).unwrap());
    let sent = rig.qp.start(op::send((a.part(..1), [b, c]))).unwrap();
    rig.succeed(0);
    rig.turn();
    let (a, [b, c]) = ready(sent).into_memory().unwrap();
    assert_eq!((a.len(), b.len(), c.len()), (1, 2, 3));
    let sent = rig.qp.start(op::send((a, vec![b, c]))).unwrap();
    rig.succeed(1);
    rig.turn();
    let (a, rest) = ready(sent).into_memory().unwrap();
    assert_eq!((a.len(), rest.iter().map(|buffer| buffer.len()).collect::<Vec<_>>()), (1, vec![2, 3]));
    let sent = rig.qp.start(op::send(())).unwrap();
    rig.succeed(2);
    rig.turn();
    assert_eq!(ready(sent).into_memory(), Ok(()));
}

#[test]
fn received_messages_wait_in_order() {
    let mut rig = Rig::new();
    let (task, waker) = Task::new();
    assert!(rig.qp.poll_received(&mut Context::from_waker(&waker)).is_pending());
    for _ in 0..3 {
        let buffer = rig.buffer();
        rig.qp.post_recv(buffer).unwrap();
    }
    rig.succeed(0);
    rig.succeed(1);
    rig.turn();
    assert_eq!(task.wakes(), 1);
    for _ in 0..2 {
        let mut received = ready(rig.qp.next_received()).unwrap();
        assert_eq!((received.status(), received.byte_len()), (Ok(()), 5));
        assert!(received.take_buffer().is_some() && received.take_buffer().is_none());
    }
    assert!(is_pending(rig.qp.next_received()));
    assert_eq!(regions(), 1);
}

#[test]
fn the_second_part_of_a_message_is_no_message() {
    let mut rig = Rig::new();
    let parts = [rig.pd.allocate(3).unwrap(), rig.buffer()];
    rig.qp.post_recv(parts).unwrap();
    rig.succeed(0);
    rig.turn();
    let mut received = ready(rig.qp.next_received()).unwrap();
    assert_eq!((received.byte_len(), received.received().unwrap().len()), (5, 3));
    assert!(received.received().is_none());
    assert_eq!(received.take_buffer().unwrap().len(), 16);
}

/// A queue pair that is not connected yet, with two receives. The first has got a message.
fn with_an_early_message(rig: &mut Rig) -> crate::InitializedQueuePair<Rc> {
    let cq = rig.handle.completion_queue().clone();
    let mut early = crate::QueuePair::builder(&rig.pd).cq(&cq).build().unwrap().init(&InitOptions::new()).unwrap();
    for _ in 0..2 {
        let buffer = rig.buffer();
        rig.handle.post_recv(&mut early, buffer).unwrap();
    }
    let wr_id = testing::posted(early.qp.as_raw())[0].wr_id;
    testing::complete(cq.as_raw(), ibv_wc { wr_id, byte_len: 5, ..ibv_wc::default() });
    rig.turn();
    early
}

#[test]
fn a_message_that_comes_before_the_connection_is_kept() {
    let mut rig = Rig::new();
    let early = with_an_early_message(&mut rig);
    let qp = early.connect(&peer(), &ConnectOptions::new()).unwrap();
    let mut qp = rig.handle.queue_pair(qp).unwrap();
    assert_eq!(ready(qp.next_received()).unwrap().byte_len(), 5);
    assert!(is_pending(qp.next_received()));
}

#[test]
fn a_queue_pair_that_is_never_connected_keeps_no_memory() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        let early = with_an_early_message(&mut rig);
        assert_eq!(regions(), 2);
        drop(early);
        assert_eq!(regions(), 0);
    }
}

#[test]
fn whoever_fetches_a_completion_delivers_it() {
    let mut rig = Rig::new();
    let mut poller = rig.handle.completion_queue().poller();
    // One alone, and several together.
    for batch in [1, 3] {
        let first = testing::posted(rig.qp.queue_pair().as_raw()).len();
        let sent: Vec<_> = (0..batch).map(|_| rig.start()).collect();
        (first..first + batch).for_each(|at| rig.succeed(at));
        assert!(poller.poll().unwrap().is_none());
        for sent in sent {
            drop(ready(sent).into_memory().unwrap());
        }
    }
    assert_eq!((rig.stale(), regions()), (0, 0));
}

#[test]
fn a_driver_leaves_other_completions_to_their_pollers() {
    let mut rig = Rig::new();
    let mut other = connect(&rig.pd, &rig.handle);
    let mut poller = rig.handle.completion_queue().poller();
    other.post_send(op::send(rig.buffer()).token(9)).unwrap();
    let wr_id = testing::posted(other.as_raw())[0].wr_id;
    testing::complete(rig.handle.completion_queue().as_raw(), ibv_wc { wr_id, ..ibv_wc::default() });
    rig.turn();
    assert_eq!(poller.poll().unwrap().map(|completion| completion.token()), Some(9));
    assert_eq!(rig.stale(), 0);
}

#[test]
fn a_full_queue_is_waited_for() {
    let mut rig = Rig::new();
    let sent: Vec<_> = (0..DEPTH).map(|_| rig.start()).collect();
    let buffer = rig.buffer();
    let refused = rig.qp.start(op::send(buffer)).unwrap_err();
    assert_eq!((refused.kind(), refused.into_memory().is_some()), (ErrorKind::QueueFull, true));
    let (task, waker) = Task::new();
    assert!(rig.qp.poll_room(&mut Context::from_waker(&waker)).is_pending());
    rig.succeed(0);
    rig.turn();
    assert_eq!(task.wakes(), 1);
    let buffer = rig.buffer();
    let more = ready(rig.qp.reserve()).unwrap().start(op::send(buffer)).unwrap();
    drop((sent, more));
}

#[test]
fn a_refused_post_returns_its_memory_and_its_sink() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        testing::fail_post(0, libc::EINVAL, BadWr::Chain);
        let buffer = rig.buffer();
        assert!(rig.qp.start(op::send(buffer)).unwrap_err().into_memory().is_some());
    }
    testing::fail_post(0, libc::EINVAL, BadWr::Chain);
    let buffer = rig.buffer();
    assert!(rig.qp.post_recv(buffer).unwrap_err().into_memory().is_some());
    assert_eq!((regions(), rig.qp.abandoned()), (0, 0));
    let sent = rig.start();
    rig.succeed(0);
    rig.turn();
    assert!(ready(sent).into_memory().is_ok());
}

#[test]
fn a_task_waits_past_a_refused_receive() {
    let mut rig = Rig::new();
    let (task, waker) = Task::new();
    assert!(rig.qp.poll_received(&mut Context::from_waker(&waker)).is_pending());
    testing::fail_post(0, libc::EINVAL, BadWr::Chain);
    let buffer = rig.buffer();
    let refused = rig.qp.post_recv(buffer).unwrap_err();
    rig.qp.post_recv(refused.into_memory().unwrap()).unwrap();
    rig.succeed(0);
    rig.turn();
    assert_eq!(task.wakes(), 1);
}

#[test]
fn a_post_with_an_unknown_outcome_is_abandoned() {
    let mut rig = Rig::new();
    testing::fail_post(1, libc::EIO, BadWr::Null);
    let buffer = rig.buffer();
    assert!(rig.qp.start(op::send(buffer)).unwrap_err().into_memory().is_none());
    assert_eq!((regions(), rig.qp.abandoned()), (1, 1));
    rig.complete(0, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    rig.turn();
    assert_eq!((regions(), rig.qp.abandoned()), (0, 0));
}

#[test]
fn a_dropped_queue_pair_ends_its_requests() {
    let mut rig = Rig::new();
    let (mut sent, task) = (rig.start(), Task::new());
    let buffer = rig.buffer();
    rig.qp.post_recv(buffer).unwrap();
    drop(rig.start());
    assert!(poll(&mut sent, &task.1).is_pending());
    let Rig { qp, .. } = rig;
    drop(qp);
    assert_eq!((task.0.wakes(), regions()), (1, 1));
    let finished = ready(sent);
    assert!(matches!(finished.status, Err(Error::Failed(error)) if error.status == WcStatus::WR_FLUSH_ERR));
    assert!(finished.local.is_some());
}

#[test]
fn without_a_driver_futures_end() {
    let mut rig = Rig::new();
    let (mut sent, task) = (rig.start(), Task::new());
    let unpolled = rig.start();
    assert!(poll(&mut sent, &task.1).is_pending());
    let Rig { driver, handle, mut qp, pd } = rig;
    drop(driver);
    assert_eq!(task.0.wakes(), 1);
    for sent in [sent, unpolled] {
        let finished = ready(sent);
        assert_eq!((finished.status, finished.local.is_none()), (Err(Error::DriverGone), true));
    }
    assert_eq!(ready(qp.next_received()).unwrap_err(), Error::DriverGone);
    // The requests are still in flight.
    assert_eq!((regions(), qp.abandoned()), (2, 2));
    let late = handle.queue_pair(connect(&pd, &handle)).unwrap();
    assert!(
        ready({
            let mut late = late;
            async move { late.next_received().await }
        })
        .is_err()
    );
    drop(qp);
    assert_eq!(regions(), 0);
}

#[test]
fn a_result_that_came_before_the_driver_went_is_kept() {
    let mut rig = Rig::new();
    let sent = rig.start();
    rig.succeed(0);
    rig.turn();
    drop(rig.driver);
    assert!(ready(sent).into_memory().is_ok());
}

#[test]
fn shutdown_waits_for_the_last_request() {
    let mut rig = Rig::new();
    let sent = rig.start();
    let buffer = rig.buffer();
    rig.qp.post_recv(buffer).unwrap();
    let (task, waker) = Task::new();
    for (at, wakes) in [(0, 1), (1, 2)] {
        let Rig { qp, .. } = &mut rig;
        assert!(pin!(qp.shutdown()).poll(&mut Context::from_waker(&waker)).is_pending());
        rig.complete(at, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        rig.turn();
        assert_eq!(task.wakes(), wakes);
    }
    ready(rig.qp.shutdown()).unwrap();
    assert!(ready(rig.qp.next_received()).unwrap().status().is_err());
    assert!(ready(sent).local.is_some());
}

#[test]
fn a_queue_pair_of_another_queue_is_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    let foreign = connect(&other.pd, &other.handle);
    let refused = rig.handle.queue_pair(foreign).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_ring_that_is_used_again_starts_afresh() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        let sent = rig.start();
        let buffer = rig.buffer();
        rig.qp.post_recv(buffer).unwrap();
        rig.qp = rig.handle.queue_pair(connect(&rig.pd, &rig.handle)).unwrap();
        assert!(ready(sent).status.is_err());
        assert!(is_pending(rig.qp.next_received()));
    }
    assert_eq!(regions(), 0);
}

#[test]
fn the_objects_of_a_task_go_to_any_thread() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Send + Sync + Clone + 'static>() {}
    sent::<Driver>();
    sent::<QueuePair<Rc>>();
    sent::<InFlight<Buffer>>();
    sent::<Finished<Buffer>>();
    sent::<Received>();
    shared::<Handle>();
}

#[test]
#[cfg(not(miri))]
fn futures_are_inert_in_a_forked_child() {
    let mut rig = Rig::new();
    let (mut sent, mut other) = (rig.start(), rig.start());
    assert!(is_pending(&mut sent));
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = rig.qp.start(op::send(()));
        let inert = ready(&mut sent).status == Err(Error::Forked)
            && ready(rig.qp.next_received()).is_err_and(|error| error == Error::Forked)
            && ready(rig.qp.reserve()).is_err_and(|error| error == Error::Forked)
            && rig.driver.turn(1).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && !rig.driver.is_used()
            && refused.is_err_and(|error| error.kind() == ErrorKind::Forked);
        drop((sent, other, rig));
        let destroyed = testing::calls().contains(&"destroy_qp");
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if inert && !destroyed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    rig.succeed(0);
    rig.succeed(1);
    rig.turn();
    assert!(ready(&mut sent).into_memory().is_ok() && ready(&mut other).into_memory().is_ok());
}

#[test]
fn the_driver_runs_until_no_handle_is_left() {
    let rig = Rig::new();
    let Rig { driver, handle, qp, .. } = rig;
    let mut sleeps = 0;
    struct Never<'a>(&'a mut usize);
    impl Readiness for Never<'_> {
        fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            *self.0 += 1;
            Poll::Pending
        }
    }
    let (task, waker) = Task::new();
    let mut run = Box::pin(driver.run(Never(&mut sleeps)));
    let mut cx = Context::from_waker(&waker);
    assert!(run.as_mut().poll(&mut cx).is_pending());
    drop(handle);
    assert_eq!(task.wakes(), 0);
    drop(qp);
    assert_eq!(task.wakes(), 1);
    assert!(matches!(run.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
    drop(run);
    assert_eq!(sleeps, 1);
}

#[test]
fn a_sleeping_driver_is_armed_once_and_wakes_by_its_event() {
    let mut rig = Rig::new();
    let sent = rig.start();
    let completing = rig.wr_id(0);
    let arms = || testing::calls().iter().filter(|&&call| call == "req_notify_cq").count();
    let brief = Some(std::time::Duration::from_millis(1));
    for _ in 0..3 {
        assert_eq!(rig.driver.wait(brief).unwrap(), 0);
    }
    assert_eq!(arms(), 1);
    let cq = rig.handle.completion_queue().as_raw();
    testing::complete(cq, ibv_wc { wr_id: completing, ..ibv_wc::default() });
    assert_eq!(rig.driver.wait(None).unwrap(), 1);
    assert!(ready(sent).into_memory().is_ok());
}

#[test]
fn a_poller_leaves_the_events_of_a_driver_to_the_driver() {
    use std::os::fd::AsFd;

    use crate::error::Verb;
    use crate::wait::is_readable;
    let mut rig = Rig::new();
    let sent = rig.start();
    let mut poller = rig.handle.completion_queue().poller();
    poller.set_backoff(crate::Backoff::SLEEP);
    let brief = Some(std::time::Duration::from_millis(1));
    assert_eq!(rig.driver.wait(brief).unwrap(), 0);
    rig.succeed(0);
    assert!(is_readable(Verb::WatchDescriptor, rig.driver.as_fd()).unwrap());
    // Delivers the completion. Others may have arrived with it, which the driver must find.
    assert!(poller.wait(brief).unwrap().is_none());
    assert!(ready(sent).into_memory().is_ok());
    assert!(is_readable(Verb::WatchDescriptor, rig.driver.as_fd()).unwrap(), "the poller has taken the event");
    assert!(poller.completion_queue().channel().is_none());
    drop(rig.driver);
    assert!(poller.completion_queue().channel().is_some());
}
