//! What ends a sleep, and what a reactor asks its handler.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::*;
use crate::error::Result;
use crate::wait::is_readable;

/// Longer than any sleep of these tests.
const LONG: Option<Duration> = Some(Duration::from_secs(600));

/// A handler that counts what it is asked.
#[derive(Default)]
struct Counts {
    turns: usize,
    woken: Vec<bool>,
    deadline: Option<Instant>,
}

impl Handler for Counts {
    fn turn(&mut self, _: usize) -> Result<usize> {
        self.turns += 1;
        Ok(0)
    }

    fn is_over(&self) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn woken(&mut self, by_completions: bool) {
        self.deadline = None;
        self.woken.push(by_completions);
    }
}

fn reactor() -> Reactor {
    let options = DriverOptions::new().depth(8).strategy(Strategy::EventDriven);
    Reactor::new(&testing::context(), &options).unwrap()
}

fn is_awake(reactor: &Reactor) -> bool {
    is_readable(crate::Verb::WatchDescriptor, reactor.as_fd()).unwrap()
}

#[test]
fn an_event_a_bell_a_time_and_a_source_end_a_sleep_each() {
    let mut reactor = reactor();
    let mut counts = Counts::default();
    let (near, mut far) = UnixStream::pair().unwrap();
    reactor.watch(&near).unwrap();
    assert!(reactor.arm(&mut counts).unwrap() && !is_awake(&reactor));
    testing::complete(reactor.completion_queue().as_raw(), ibv_wc::default());
    assert_eq!(reactor.wait(&mut counts, LONG).unwrap(), 0);
    reactor.bell().ring();
    reactor.wait(&mut counts, LONG).unwrap();
    assert!(!is_awake(&reactor), "the bell is silent again");
    counts.deadline = Some(Instant::now() + Duration::from_millis(1));
    reactor.wait(&mut counts, LONG).unwrap();
    assert!(!is_awake(&reactor), "the timer has stopped");
    far.write_all(b"x").unwrap();
    reactor.wait(&mut counts, LONG).unwrap();
    assert_eq!(counts.woken, [false, true, false, false, false]);
    assert!(is_awake(&reactor), "the handler has not read the source");
}

#[test]
fn a_turn_follows_each_arming_and_no_armed_queue_is_armed() {
    let mut reactor = reactor();
    let mut counts = Counts::default();
    let arms = || testing::calls().iter().filter(|&&call| call == "req_notify_cq").count();
    for turns in 1..4 {
        assert!(reactor.arm(&mut counts).unwrap());
        assert_eq!((arms(), counts.turns), (1, turns));
    }
    testing::complete(reactor.completion_queue().as_raw(), ibv_wc::default());
    assert!(reactor.arm(&mut counts).unwrap());
    assert_eq!((arms(), counts.turns), (2, 4));
}

#[test]
fn the_end_of_the_last_handle_makes_a_driver_readable() {
    let Rig { mut driver, handle, qp, .. } = Rig::new();
    let is_awake = |driver: &Driver| is_readable(crate::Verb::WatchDescriptor, driver.as_fd()).unwrap();
    assert!(driver.arm().unwrap());
    drop(handle);
    assert!(driver.is_used() && !is_awake(&driver));
    drop(qp);
    assert!(!driver.is_used() && is_awake(&driver));
}

#[test]
fn no_program_sleeps_on_what_a_turn_has_left() {
    let mut reactor = reactor();
    let mut counts = Counts::default();
    let (near, mut far) = UnixStream::pair().unwrap();
    reactor.watch(&near).unwrap();
    assert!(reactor.arm(&mut counts).unwrap());
    far.write_all(b"x").unwrap();
    // Watched by edge, the descriptor says once that there is a byte.
    assert!(!reactor.arm(&mut counts).unwrap());
    assert!(!reactor.arm(&mut counts).unwrap());
    drop(near);
    assert!(reactor.arm(&mut counts).unwrap());
}

#[test]
#[cfg(not(miri))]
fn a_forked_child_adds_no_source_to_its_parent() {
    let mut reactor = reactor();
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the call under test, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = reactor.watch(&near).is_err_and(|error| error.kind() == crate::ErrorKind::Forked);
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(reactor.arm(&mut Counts::default()).unwrap() && !is_awake(&reactor));
}
