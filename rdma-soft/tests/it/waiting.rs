//! Threads that sleep in `ibv_get_cq_event` while another process sends: they run the device
//! themselves, and the agent takes over when they leave.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{SaFlags, Signal};
use rdma_sys::*;
use rdma_test_support::{passes_alone, signals, until};

use crate::common::datagram::Datagrams;
use crate::common::puppet::{self, Puppet};
use crate::common::{Config, Request, Side};

type Op = ibv_wr_opcode;

/// The other process runs only this test.
#[test]
fn other_process() {
    puppet::play();
}

/// A side that several threads use, as verbs allows. It is never dropped: a failed test leaves
/// threads that wait.
#[derive(Clone, Copy)]
struct Shared(&'static Side);
// SAFETY: the device's objects may be used from any thread; the tests order what they must.
unsafe impl Send for Shared {}

impl Shared {
    fn side(self) -> &'static Side {
        self.0
    }

    /// Starts a thread that waits for `count` messages.
    fn receive(self, count: usize) -> JoinHandle<()> {
        self.side().arm(false);
        thread::spawn(move || {
            let mut received = 0;
            while received < count {
                received += self.take_messages().unwrap();
            }
        })
    }

    /// Waits for an event, and takes the messages that are there then. Returns their number.
    fn take_messages(self) -> io::Result<usize> {
        let side = self.side();
        side.take_event()?;
        // Arming a queue that holds a completion fires at once: take those first.
        let count = self.poll_messages();
        side.arm(false);
        Ok(count + self.poll_messages())
    }

    fn poll_messages(self) -> usize {
        let side = self.side();
        let mut count = 0;
        while let Some(wc) = side.poll() {
            assert_eq!((wc.wr_id, wc.status), (1, ibv_wc_status::IBV_WC_SUCCESS));
            assert_eq!(side.post_recv(1, &[side.sge(0, 8)]), 0);
            count += 1;
        }
        count
    }
}

/// A side with receives, connected to a side in a process of its own.
fn connected() -> (Shared, Puppet) {
    let mut other = Puppet::start("waiting::other_process", "");
    let side = Box::leak(Box::new(Side::new(Config::default())));
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    for _ in 0..4 {
        assert_eq!(side.post_recv(1, &[side.sge(0, 8)]), 0);
    }
    (Shared(side), other)
}

/// Has the other process send a message.
fn send(other: &mut Puppet) {
    assert_eq!(other.ask("send 1 0 8"), "0");
    assert!(other.ask("wait").starts_with("1 0 "));
}

/// Joins a thread that has what it waits for.
fn join<T>(thread: JoinHandle<T>) -> T {
    until("the waiting thread has its events", || thread.is_finished());
    thread.join().unwrap()
}

/// Long enough for a thread to fall asleep, on an idle machine; the tests pass without.
fn let_sleep() {
    thread::sleep(Duration::from_millis(20));
}

#[test]
fn each_message_wakes_the_thread_that_waits() {
    let (side, mut other) = connected();
    let waiter = side.receive(100);
    for _ in 0..100 {
        send(&mut other);
    }
    join(waiter);
    other.finish();
}

#[test]
fn threads_that_wait_on_channels_of_their_own_all_get_their_events() {
    let mut connections: Vec<_> = (0..3).map(|_| connected()).collect();
    let waiters: Vec<_> = connections.iter().map(|(side, _)| side.receive(20)).collect();
    let_sleep();
    for round in 0..20 {
        let count = connections.len();
        for at in 0..count {
            send(&mut connections[(at + round) % count].1);
        }
    }
    for waiter in waiters {
        join(waiter);
    }
    for (_, other) in connections {
        other.finish();
    }
}

#[test]
fn threads_that_wait_on_one_channel_share_its_events() {
    let (side, mut other) = connected();
    side.side().arm(false);
    let taken: &AtomicUsize = Box::leak(Box::default());
    for _ in 0..3 {
        // The threads wait until the test's process ends.
        thread::spawn(move || {
            loop {
                taken.fetch_add(side.take_messages().unwrap(), Ordering::Relaxed);
            }
        });
    }
    for sent in 1..=30 {
        send(&mut other);
        until("a thread takes the message", || taken.load(Ordering::Relaxed) == sent);
    }
    other.finish();
}

#[test]
fn the_agent_serves_the_process_when_nobody_waits_any_more() {
    let (side, mut other) = connected();
    let waiter = side.receive(1);
    let_sleep();
    send(&mut other);
    join(waiter);
    // The other process's messages are acknowledged although no thread here calls a verb.
    for _ in 0..3 {
        send(&mut other);
    }
    other.finish();
}

#[test]
fn a_thread_waits_while_another_polls() {
    let (waiting, mut other) = connected();
    let (polling, mut third) = connected();
    let waiter = waiting.receive(20);
    for _ in 0..20 {
        send(&mut other);
        assert_eq!(third.ask("send 1 0 8"), "0");
        polling.side().success(1);
        assert_eq!(polling.side().post_recv(1, &[polling.side().sge(0, 8)]), 0);
        assert!(third.ask("wait").starts_with("1 0 "));
    }
    join(waiter);
    other.finish();
    third.finish();
}

#[test]
fn a_completion_that_a_timer_allows_wakes_the_thread() {
    let (side, mut other) = connected();
    let side = side.side();
    side.arm(false);
    // The other process has no receive: the request is repeated after a while.
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 2, &[side.sge(0, 8)])), 0);
    let shared = Shared(side);
    let waiter = thread::spawn(move || {
        shared.side().take_event().unwrap();
        shared.side().success(2);
    });
    let_sleep();
    assert_eq!(other.ask("recv 1 0 8"), "0");
    join(waiter);
    other.finish();
}

#[test]
fn the_death_of_the_peer_wakes_the_thread() {
    let (side, mut other) = connected();
    other.stop();
    let side = side.side();
    side.arm(false);
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 2, &[side.sge(0, 8)])), 0);
    let shared = Shared(side);
    let waiter = thread::spawn(move || shared.side().take_event().unwrap());
    let_sleep();
    other.kill();
    join(waiter);
    side.expect(2, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_child_that_is_forked_meanwhile_does_not_disturb_the_thread() {
    let (side, mut other) = connected();
    let waiter = side.receive(2);
    let_sleep();
    // SAFETY: the child only sleeps and ends, which is async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: `usleep` has no requirement.
        unsafe { libc::usleep(200_000) };
        // SAFETY: `_exit` has no requirement.
        unsafe { libc::_exit(0) };
    }
    send(&mut other);
    // SAFETY: a child of this process, and no place for its status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    send(&mut other);
    join(waiter);
    other.finish();
}

/// Sends a signal to a thread that waits in the call, until `done`.
fn signal(thread: &JoinHandle<io::Result<usize>>, signal: libc::c_int, mut done: impl FnMut() -> bool) {
    use std::os::unix::thread::JoinHandleExt;
    until("the signal has its effect", || {
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), signal) };
        done()
    });
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by signals_interrupt_as_they_interrupt_a_read"]
fn interrupted_by_signals() {
    let (side, mut other) = connected();
    let wait = || {
        side.side().arm(false);
        let waiter = thread::spawn(move || side.take_messages());
        let_sleep();
        waiter
    };
    signals::handle(Signal::SIGUSR1, SaFlags::SA_RESTART);
    let waiter = wait();
    let mut signals = 0;
    signal(&waiter, libc::SIGUSR1, || {
        signals += 1;
        signals == 20
    });
    assert!(!waiter.is_finished(), "the wait goes on");
    send(&mut other);
    join(waiter).unwrap();

    signals::handle(Signal::SIGUSR1, SaFlags::empty());
    for _ in 0..3 {
        let waiter = wait();
        signal(&waiter, libc::SIGUSR1, || waiter.is_finished());
        assert_eq!(join(waiter).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }
    // The agent has taken over.
    send(&mut other);
    side.side().take_event().unwrap();
    other.finish();
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by a_handler_that_resets_itself_interrupts_too"]
fn interrupted_once() {
    let (side, other) = connected();
    side.side().arm(false);
    let waiter = thread::spawn(move || side.take_messages());
    let_sleep();
    // No wait has read this handler, and none sees it afterwards.
    until("the signal has its effect", || {
        use std::os::unix::thread::JoinHandleExt;
        signals::handle(Signal::SIGUSR2, SaFlags::SA_RESETHAND);
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR2) };
        let_sleep();
        waiter.is_finished()
    });
    assert_eq!(join(waiter).unwrap_err().kind(), io::ErrorKind::Interrupted);
    other.finish();
}

#[test]
fn a_handler_that_resets_itself_interrupts_too() {
    passes_alone(&["waiting::interrupted_once"], &[]);
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by only_the_calls_that_wait_for_events_are_interrupted"]
fn in_a_storm_of_signals() {
    signals::in_storm(SaFlags::empty(), || {
        for _ in 0..50 {
            // Each call that makes, connects or destroys an object is checked.
            let side = Side::new(Config { shared: true, ..Config::default() });
            side.connect(side.endpoint());
            assert_eq!(side.post_recv(1, &[side.sge(0, 8)]), 0);
            assert_eq!(side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[side.sge(8, 8)])), 0);
            assert_ne!(side.wait().wr_id, side.wait().wr_id);
            drop(side);
            drop(Datagrams::new());
        }
    });
}

#[test]
fn only_the_calls_that_wait_for_events_are_interrupted() {
    passes_alone(&["waiting::in_a_storm_of_signals"], &[]);
}

#[test]
fn signals_interrupt_as_they_interrupt_a_read() {
    passes_alone(&["waiting::interrupted_by_signals"], &[]);
}
