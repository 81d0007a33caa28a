//! Calls in a storm of signals: those that wait for an event may end with `EINTR`, and no other.

use std::thread;

use nix::sys::signal::SaFlags;
use rdma_sys::*;
use rdma_test_support::{passes_alone, signals};

use crate::cm_support::*;

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;

#[test]
fn only_the_waits_of_the_connection_manager_are_interrupted() {
    passes_alone(&["signals::asynchronous_calls"], &[]);
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by only_the_waits_of_the_connection_manager_are_interrupted"]
fn asynchronous_calls() {
    signals::in_storm(SaFlags::empty(), || {
        for _ in 0..50 {
            // Each call is checked; events are there before they are asked for.
            let pair = connected();
            assert_eq!(pair.active.0.disconnect(), 0);
            pair.passive.1.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
            drop(pair);
        }
    });
}

#[test]
fn synchronous_calls_are_interrupted_as_a_read_is() {
    passes_alone(&["signals::calls_that_are_repeated"], &[]);
    passes_alone(&["signals::calls_that_are_interrupted"], &[]);
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by synchronous_calls_are_interrupted_as_a_read_is"]
fn calls_that_are_repeated() {
    const ROUNDS: usize = 50;
    let (listener, channel, to) = listener(TCP, 8);
    let server = thread::spawn(move || {
        for _ in 0..ROUNDS {
            let id = channel.next().request();
            assert_eq!(id.accept(b"", 1), 0);
            channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
            channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
        }
        drop(listener);
    });
    signals::in_storm(SaFlags::SA_RESTART, || {
        for _ in 0..ROUNDS {
            let id = Id::sync(TCP);
            assert_eq!((id.resolve_addr(to), id.resolve_route()), (0, 0));
            assert_eq!((id.connect(b"", 1), id.establish(), id.disconnect()), (0, 0, 0));
        }
    });
    server.join().unwrap();
}

/// Runs in a process of its own, because signal handlers belong to the process.
#[test]
#[ignore = "run by synchronous_calls_are_interrupted_as_a_read_is"]
fn calls_that_are_interrupted() {
    let (_listener, _channel, to) = listener(TCP, 8);
    // Nobody answers the request, so the call ends by a signal or not at all.
    signals::in_storm(SaFlags::empty(), || {
        for _ in 0..20 {
            let id = Id::sync(TCP);
            let resolved = [id.resolve_addr(to), id.resolve_route()];
            assert!(resolved.iter().all(|&errno| errno == 0 || errno == libc::EINTR), "{resolved:?}");
            if resolved == [0, 0] {
                assert_eq!(id.connect(b"", 1), libc::EINTR);
            }
        }
    });
}
