//! `rselect` over the software device.

#[allow(dead_code, reason = "the helpers for other tests")]
mod common;

use std::io::Write;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

use common::libraries;
use libc::{AF_INET, EBADF, EINVAL, FD_ISSET, FD_SET, SOCK_STREAM, c_int, fd_set, socklen_t, timeval};
use rdma_rsocket::Descriptors;

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

/// A stream that listens, and one that is connected to it.
fn connected(sockets: &Descriptors) -> [c_int; 2] {
    let [listener, client] = [(); 2].map(|()| sockets.rsocket(libraries(), AF_INET, SOCK_STREAM, 0));
    let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
    let mut address = libc::sockaddr_in {
        sin_family: AF_INET.try_into().expect("a family"),
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: loopback },
        sin_zero: [0; 8],
    };
    let mut len = socklen_t::try_from(size_of_val(&address)).expect("a length");
    let pointer = (&raw mut address).cast();
    // SAFETY: `rbind` requires an address that is valid for its length.
    assert_eq!(unsafe { sockets.rbind(listener, pointer, len) }, 0);
    assert_eq!(sockets.rlisten(listener, 1), 0);
    // SAFETY: `rgetsockname` requires room for an address, and its length.
    assert_eq!(unsafe { sockets.rgetsockname(listener, pointer, &raw mut len) }, 0);
    // SAFETY: `rconnect` requires an address that is valid for its length.
    assert_eq!(unsafe { sockets.rconnect(client, pointer, len) }, 0);
    [listener, client]
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
