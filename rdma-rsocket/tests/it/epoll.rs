//! `repoll_create`, `repoll_ctl`, `repoll_wait` over the software device.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::thread;
use std::time::Duration;

use libc::{EBADF, EEXIST, EFAULT, EINVAL, ENOENT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, c_int, epoll_event};
use rdma_rsocket::Descriptors;
use rdma_test_support::until;

use crate::common::{connected, errno};

const IN: u32 = 1;
const OUT: u32 = 4;
const ONE_SHOT: u32 = 1 << 30;
/// Milliseconds that no event needs.
const LONG: c_int = 20_000;

/// A list, and two sockets that are connected with each other.
struct Fixture {
    sockets: Descriptors,
    list: c_int,
    client: c_int,
    server: c_int,
}

/// The result of C, or its error.
fn result(value: c_int) -> std::io::Result<usize> {
    usize::try_from(value).map_err(|_| std::io::Error::last_os_error())
}

impl Fixture {
    fn new() -> Self {
        let sockets = Descriptors::new();
        let [listener, client] = connected(&sockets);
        // SAFETY: `raccept` allows NULL for the address.
        let server = unsafe { sockets.raccept(listener, ptr::null_mut(), ptr::null_mut()) };
        assert!(server >= 0);
        assert_eq!(sockets.rclose(listener), 0);
        let list = sockets.repoll_create(libc::EPOLL_CLOEXEC);
        assert!(list >= 0);
        Self { sockets, list, client, server }
    }

    fn control(&self, op: c_int, fd: c_int, events: u32, data: u64) -> std::io::Result<usize> {
        let event = epoll_event { events, u64: data };
        // SAFETY: `repoll_ctl` requires a valid event.
        result(unsafe { self.sockets.repoll_ctl(self.list, op, fd, &raw const event) })
    }

    fn add(&self, fd: c_int, events: u32, data: u64) {
        self.control(EPOLL_CTL_ADD, fd, events, data).expect("a new entry");
    }

    /// The events and data of at most `most` entries.
    fn wait_for(&self, most: usize, timeout: c_int) -> std::io::Result<Vec<(u32, u64)>> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; most];
        let room = c_int::try_from(most).expect("a small number");
        // SAFETY: `repoll_wait` requires space for as many events.
        let count = result(unsafe { self.sockets.repoll_wait(self.list, events.as_mut_ptr(), room, timeout) })?;
        Ok(events[..count].iter().map(|event| (event.events, event.u64)).collect())
    }

    fn wait(&self, timeout: c_int) -> Vec<(u32, u64)> {
        self.wait_for(4, timeout).expect("a list")
    }

    fn write(&self, fd: c_int) {
        // SAFETY: `rwrite` requires a readable buffer.
        assert_eq!(unsafe { self.sockets.rwrite(fd, b"x".as_ptr().cast(), 1) }, 1);
    }

    fn read(&self, fd: c_int) {
        let mut byte = 0_u8;
        // SAFETY: `rread` requires a writable buffer.
        assert_eq!(unsafe { self.sockets.rread(fd, (&raw mut byte).cast(), 1) }, 1);
    }
}

#[test]
fn entries_are_reported_as_long_as_they_are_ready() {
    let fixture = Fixture::new();
    fixture.add(fixture.server, IN, 7);
    assert_eq!(fixture.wait(0), []);
    fixture.write(fixture.client);
    assert_eq!(fixture.wait(LONG), [(IN, 7)]);
    assert_eq!(fixture.wait(0), [(IN, 7)]);
    fixture.control(EPOLL_CTL_MOD, fixture.server, IN | OUT, u64::MAX).expect("an entry");
    assert_eq!(fixture.wait(0), [(IN | OUT, u64::MAX)]);
    fixture.read(fixture.server);
    assert_eq!(fixture.wait(0), [(OUT, u64::MAX)]);
    fixture.control(EPOLL_CTL_DEL, fixture.server, 0, 0).expect("an entry");
    assert_eq!(fixture.wait(1), []);
}

#[test]
fn rsockets_and_descriptors_share_a_list() {
    let fixture = Fixture::new();
    let (mut there, mut here) = UnixStream::pair().expect("a pair");
    fixture.add(fixture.server, IN, 1);
    fixture.add(here.as_raw_fd(), IN, 2);
    let sender = thread::spawn(move || there.write_all(b"x").map(|()| there));
    assert_eq!(fixture.wait(LONG), [(IN, 2)]);
    fixture.write(fixture.client);
    until("both are ready", || fixture.wait(LONG).len() == 2);
    here.read_exact(&mut [0]).expect("a byte");
    assert_eq!(fixture.wait(LONG), [(IN, 1)]);
    drop(sender.join().expect("the thread"));
}

#[test]
fn each_entry_has_its_turn() {
    let fixture = Fixture::new();
    fixture.add(fixture.client, OUT, 1);
    fixture.add(fixture.server, OUT, 2);
    let one = || fixture.wait_for(1, LONG).expect("a list")[0].1;
    assert_eq!([one(), one(), one(), one()].into_iter().sum::<u64>(), 6);
}

#[test]
fn a_one_shot_entry_is_reported_once() {
    let fixture = Fixture::new();
    fixture.add(fixture.client, OUT | ONE_SHOT, 1);
    assert_eq!(fixture.wait(LONG), [(OUT, 1)]);
    assert_eq!(fixture.wait(1), []);
    fixture.control(EPOLL_CTL_MOD, fixture.client, OUT | ONE_SHOT, 2).expect("an entry");
    assert_eq!(fixture.wait(LONG), [(OUT, 2)]);
    assert_eq!(fixture.wait(1), []);
}

#[test]
fn changes_reach_threads_that_wait() {
    let fixture = Fixture::new();
    fixture.add(fixture.server, IN, 1);
    thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| fixture.wait(LONG)));
        thread::sleep(Duration::from_millis(20));
        fixture.add(fixture.client, OUT, 2);
        for waits in waits {
            assert_eq!(waits.join().expect("the thread"), [(OUT, 2)]);
        }
        fixture.control(EPOLL_CTL_DEL, fixture.client, 0, 0).expect("an entry");
        let waits = scope.spawn(|| fixture.wait_for(1, LONG));
        thread::sleep(Duration::from_millis(20));
        assert_eq!(fixture.sockets.rclose(fixture.list), 0);
        assert_eq!(errno(waits.join().expect("the thread")), EBADF);
    });
    assert_eq!(errno(fixture.wait_for(1, 0)), EBADF);
}

#[test]
fn closed_entries_leave_the_list() {
    let fixture = Fixture::new();
    fixture.add(fixture.client, OUT, 1);
    let (here, _there) = UnixStream::pair().expect("a pair");
    let fd = here.as_raw_fd();
    fixture.add(fd, OUT, 2);
    assert_eq!(fixture.wait(LONG).len(), 2);
    assert_eq!(fixture.sockets.rclose(fixture.client), 0);
    assert_eq!(fixture.wait(LONG), [(OUT, 2)]);
    assert_eq!(errno(fixture.control(EPOLL_CTL_DEL, fixture.client, 0, 0)), ENOENT);
    // Another test may get the number of the plain descriptor, so this one only leaves the list.
    fixture.control(EPOLL_CTL_DEL, fd, 0, 0).expect("an entry");
    assert_eq!(fixture.wait(1), []);
}

#[test]
fn wrong_arguments_are_refused() {
    let fixture = Fixture::new();
    let Fixture { sockets, list, client, .. } = &fixture;
    fixture.add(*client, IN, 1);
    assert_eq!(errno(fixture.control(EPOLL_CTL_ADD, *client, IN, 1)), EEXIST);
    assert_eq!(errno(fixture.control(EPOLL_CTL_MOD, fixture.server, IN, 1)), ENOENT);
    assert_eq!(errno(fixture.control(EPOLL_CTL_DEL, fixture.server, IN, 1)), ENOENT);
    assert_eq!(errno(fixture.control(9, *client, IN, 1)), EINVAL);
    assert_eq!(errno(fixture.control(EPOLL_CTL_ADD, -1, IN, 1)), EBADF);
    assert_eq!(errno(fixture.control(EPOLL_CTL_ADD, *list, IN, 1)), EINVAL);
    // SAFETY: `repoll_ctl` allows NULL for the event.
    let control = |list, op| result(unsafe { sockets.repoll_ctl(list, op, fixture.server, ptr::null()) });
    assert_eq!(errno(control(*list, EPOLL_CTL_ADD)), EFAULT);
    assert_eq!(errno(control(*client, EPOLL_CTL_DEL)), EBADF);
    assert_eq!(errno(fixture.wait_for(0, 0)), EINVAL);
    // SAFETY: `repoll_wait` allows NULL for the events.
    assert_eq!(errno(result(unsafe { sockets.repoll_wait(*list, ptr::null_mut(), 1, 0) })), EFAULT);
    assert_eq!(sockets.rclose(*list), 0);
    assert_eq!(sockets.rclose(*list), -1);
}
