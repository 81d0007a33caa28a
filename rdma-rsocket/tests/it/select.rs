//! `rselect` over the software device.

use std::io::Write;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

use libc::{EBADF, EINVAL, FD_ISSET, FD_SET, c_int, fd_set, timeval};
use rdma_rsocket::Descriptors;

use crate::common::connected;

fn set_of(fd: c_int) -> fd_set {
    // SAFETY: zeroed requires that zeros are a value: they are the empty set.
    let mut set = unsafe { mem::zeroed() };
    // SAFETY: FD_SET requires a set and a small descriptor.
    unsafe { FD_SET(fd, &raw mut set) };
    set
}

fn contains(set: &fd_set, fd: c_int) -> bool {
    // SAFETY: FD_ISSET requires a set and a small descriptor.
    unsafe { FD_ISSET(fd, set) }
}

/// Selects a socket for reads and writes without waiting: the result, and what it is ready for.
fn select(sockets: &Descriptors, fd: c_int) -> (c_int, bool, bool) {
    let (mut reads, mut writes) = (set_of(fd), set_of(fd));
    let mut at_once = timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: `rselect` requires sets and a time that are valid or NULL.
    let count = unsafe { sockets.rselect(fd + 1, &raw mut reads, &raw mut writes, ptr::null_mut(), &raw mut at_once) };
    (count, contains(&reads, fd), contains(&writes, fd))
}

#[test]
fn each_set_keeps_the_sockets_that_are_ready() {
    let sockets = Descriptors::new();
    let [listener, client] = connected(&sockets);
    assert_eq!(select(&sockets, client), (1, false, true));
    // SAFETY: `raccept` allows NULL for the address.
    let server = unsafe { sockets.raccept(listener, ptr::null_mut(), ptr::null_mut()) };
    assert!(server >= 0);
    // SAFETY: `rwrite` requires a readable buffer.
    assert_eq!(unsafe { sockets.rwrite(server, b"x".as_ptr().cast(), 1) }, 1);
    rdma_test_support::until("the byte is there", || select(&sockets, client) == (2, true, true));
    [client, server, listener].into_iter().for_each(|fd| assert_eq!(sockets.rclose(fd), 0));
}

#[test]
fn a_plain_descriptor_ends_the_wait_for_a_socket() {
    let sockets = Descriptors::new();
    let [listener, client] = connected(&sockets);
    let (mut there, here) = UnixStream::pair().expect("a pair");
    let sender = std::thread::spawn(move || there.write_all(b"x").map(|()| there));
    let mut reads = set_of(client);
    // SAFETY: FD_SET requires a set and a small descriptor.
    unsafe { FD_SET(here.as_raw_fd(), &raw mut reads) };
    let none = ptr::null_mut();
    let most = client.max(here.as_raw_fd()) + 1;
    // SAFETY: `rselect` requires sets and a time that are valid or NULL.
    assert_eq!(unsafe { sockets.rselect(most, &raw mut reads, none, none, ptr::null_mut()) }, 1);
    assert!(contains(&reads, here.as_raw_fd()) && !contains(&reads, client));
    drop(sender.join().expect("the thread"));
    [client, listener].into_iter().for_each(|fd| assert_eq!(sockets.rclose(fd), 0));
}

#[test]
fn wrong_arguments_are_errors() {
    let sockets = Descriptors::new();
    let errno = || std::io::Error::last_os_error().raw_os_error();
    let closed = 1000;
    assert_eq!((select(&sockets, closed).0, errno()), (-1, Some(EBADF)));
    let mut time = timeval { tv_sec: 0, tv_usec: -1 };
    for (count, time) in [(-1, ptr::null_mut()), (c_int::MAX, ptr::null_mut()), (0, &raw mut time)] {
        let none = ptr::null_mut();
        // SAFETY: `rselect` requires sets and a time that are valid or NULL.
        assert_eq!((unsafe { sockets.rselect(count, none, none, none, time) }, errno()), (-1, Some(EINVAL)));
    }
}
