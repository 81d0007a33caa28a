//! A program of its own, because it sets a signal's handler and forks: threads, signals and
//! children that share a socket.

#[allow(dead_code, reason = "the helpers for other tests")]
mod common;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{errno, listener, pair};
use libc::{EBADF, EINTR, POLLIN, POLLNVAL, c_int};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rdma_rsocket::{Descriptors, PollEntry, Socket, poll};
use rdma_test_support::until;

/// A call on a shared socket, in a thread of its own.
fn spawn<T: Send + 'static>(socket: &Arc<Socket>, call: impl FnOnce(&Socket) -> T + Send + 'static) -> JoinHandle<T> {
    let socket = Arc::clone(socket);
    thread::spawn(move || call(&socket))
}

fn join<T>(what: &str, thread: JoinHandle<T>) -> T {
    until(what, || thread.is_finished());
    thread.join().expect("the thread")
}

#[test]
fn one_thread_reads_and_another_writes_until_a_third_closes() {
    let (client, server) = pair();
    let (client, server) = (Arc::new(client), Arc::new(server));
    let echo = spawn(&server, |mut server| {
        let mut data = [0; 8192];
        while let Ok(len @ 1..) = server.read(&mut data) {
            if server.write_all(&data[..len]).is_err() {
                break;
            }
        }
    });
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let reader = spawn(&client, move |mut client| {
        let mut data = [0; 5000];
        while let Ok(len @ 1..) = client.read(&mut data) {
            count.fetch_add(len, Ordering::Relaxed);
        }
    });
    let writer = spawn(&client, |mut client| while client.write(&[7; 3000]).is_ok_and(|len| len > 0) {});
    until("data flows", || received.load(Ordering::Relaxed) > 1 << 20);
    let closer = spawn(&client, |client| client.close().is_ok());
    assert!(join("the close", closer));
    join("the reader", reader);
    join("the writer", writer);
    join("the peer", echo);
}

extern "C" fn ignore(_signal: c_int) {}

/// Sends a signal to a thread until its call has returned.
fn interrupted<T: Send + 'static>(
    call: impl FnOnce(&Socket) -> std::io::Result<T> + Send + 'static,
    socket: &Arc<Socket>,
) {
    let thread = spawn(socket, move |socket| call(socket).map(drop).map_err(|error| error.raw_os_error()));
    until("the call ends", || {
        // SAFETY: pthread_kill requires a thread that is not joined yet: it is below.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        thread.is_finished()
    });
    assert_eq!(thread.join().expect("the thread"), Err(Some(EINTR)));
}

fn handle_signals() {
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: sigaction requires a handler that may run at any time: it does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.expect("a handler");
}

/// shutdown(2) has no `EINTR`.
#[test]
fn a_signal_does_not_interrupt_a_shutdown() {
    handle_signals();
    let (client, mut server) = pair();
    let a_minute = [1, 60].map(c_int::to_ne_bytes).concat();
    client.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &a_minute).expect("an option");
    client.set_nonblocking(true).expect("a mode");
    // No message finds space any more, so the end of the stream finds none.
    while (&client).write(&[0; 4096]).is_ok() {}
    let client = Arc::new(client);
    let thread = spawn(&client, |socket| socket.shutdown(Shutdown::Write).map_err(|error| error.raw_os_error()));
    for _ in 0..50 {
        // SAFETY: pthread_kill requires a thread that is not joined yet: it is below.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(1));
    }
    let reader = thread::spawn(move || server.read_to_end(&mut Vec::new()).map(|_| server));
    assert_eq!(thread.join().expect("the thread"), Ok(()));
    drop(reader.join().expect("the reader").expect("the end"));
}

#[test]
fn a_signal_interrupts_the_calls_that_wait() {
    handle_signals();
    let (client, server) = pair();
    let [client, server, listener] = [client, server, listener().0].map(Arc::new);
    interrupted(|mut socket| socket.read(&mut [0]), &client);
    interrupted(|socket| poll(&mut [PollEntry::socket(socket, POLLIN)], None), &server);
    interrupted(Socket::accept, &listener);
}

/// Runs a function in a forked child, and returns its result.
fn in_child(call: impl FnOnce() -> bool) -> bool {
    // SAFETY: fork requires that the child calls nothing that depends on other threads: it makes
    // calls that fail at once, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let status = c_int::from(!call());
        // SAFETY: _exit has no requirement.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: waitpid requires space for a status, a local.
    until("the child ends", || unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child);
    status == 0
}

fn exchange(mut from: &Socket, mut to: &Socket) {
    let mut data = [0; 5];
    from.write_all(b"hello").expect("a send");
    to.read_exact(&mut data).expect("the data");
    assert_eq!(&data, b"hello");
}

#[test]
fn a_child_leaves_the_sockets_of_its_parent_alone() {
    let (client, server) = pair();
    let (listener, address) = listener();
    let sockets = [client, server, listener];
    exchange(&sockets[0], &sockets[1]);
    // The child drops what it has captured; its parent keeps these.
    let copies = sockets.each_ref().map(std::ptr::from_ref);
    assert!(in_child(|| {
        let refused = sockets.iter().all(|socket| {
            let mut entry = [PollEntry::socket(socket, POLLIN)];
            let results = [(&mut &*socket).write(&[0]), (&mut &*socket).read(&mut [0])];
            let polled = poll(&mut entry, Some(Duration::ZERO)).is_ok_and(|count| count == 1);
            results.into_iter().all(|result| result.is_err_and(|error| error.raw_os_error() == Some(EBADF)))
                && socket.close().is_err_and(|error| error.raw_os_error() == Some(EBADF))
                && polled
                && entry[0].found() == POLLNVAL
        });
        // SAFETY: each read makes a second owner; this process ends before the first is dropped.
        copies.into_iter().for_each(|socket| drop(unsafe { socket.read() }));
        refused
    }));
    let [client, server, listener] = sockets;
    exchange(&client, &server);
    exchange(&server, &client);
    let another = common::stream();
    another.connect(address).expect("a connection");
    let (accepted, _) = listener.accept().expect("the connection");
    exchange(&another, &accepted);
}

#[test]
fn a_child_has_sockets_of_its_own_whatever_threads_did() {
    static SOCKETS: Descriptors = Descriptors::new();
    let make = || SOCKETS.rsocket(common::libraries(), libc::AF_INET, libc::SOCK_DGRAM, 0);
    let inherited = make();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // These threads hold the lock of the numbers most of the time.
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(SOCKETS.rclose(make()), 0);
                }
            });
        }
        for _ in 0..30 {
            assert!(in_child(|| {
                let number = make();
                SOCKETS.rclose(inherited) == -1 && number >= 0 && SOCKETS.rclose(number) == 0
            }));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(SOCKETS.rclose(inherited), 0);
}

#[test]
fn a_child_leaves_the_datagrams_of_its_parent_alone() {
    let [(client, _), (server, there)] = [(); 2].map(|()| common::datagram(false));
    let exchange = || {
        let mut data = [0; 5];
        client.send_to(&[IoSlice::new(b"hello")], there, 0).expect("a send");
        server.receive_from(&mut [IoSliceMut::new(&mut data)], 0).expect("a datagram");
        assert_eq!(&data, b"hello");
    };
    exchange();
    assert!(in_child(|| {
        let sent = client.send_to(&[IoSlice::new(b"child")], there, 0);
        [sent.map(drop), server.close()].into_iter().all(|result| errno(result) == EBADF)
    }));
    exchange();
}
