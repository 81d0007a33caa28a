//! Descriptors that a forked child closes at once: sockets whose names and connections would outlive this process in it.
//!
//! To make such a descriptor and to note it is one step for `fork`, which waits until it is done; so is to forget it and to close it.
//! A child is forked with every descriptor in the list, or without it. `exec` closes them by itself. What is left is the moment
//! until a child has run: until then it has what its parent had.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

const CHUNK: usize = 512;

/// A descriptor of this process alone.
#[derive(Debug)]
pub(crate) struct Private {
    fd: ManuallyDrop<OwnedFd>,
    place: usize,
}

impl Private {
    /// Makes one by a system call that returns a descriptor, or a negative number and `errno`. The call must not wait for anything:
    /// all forks wait for it.
    pub(crate) fn make(call: impl FnOnce() -> RawFd) -> io::Result<Self> {
        in_one_step(|places| {
            let fd = call();
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: the caller's system call just returned it.
            let fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            let place = places.enter(fd.as_raw_fd());
            Ok(Self { fd, place })
        })
    }
}

impl AsFd for Private {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Private {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        in_one_step(|places| {
            places.leave(self.place);
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        });
    }
}

/// The descriptors, or -1. A child's handler reads atomics only: chunks are linked once and never freed.
struct Chunk {
    fds: [AtomicI32; CHUNK],
    next: AtomicPtr<Self>,
}

static FIRST: Chunk = Chunk { fds: [const { AtomicI32::new(-1) }; CHUNK], next: AtomicPtr::new(ptr::null_mut()) };
static PLACES: Mutex<Places> = Mutex::new(Places { free: Vec::new(), used: 0 });

/// Places that are free, and how many were ever used. Locked while there is a descriptor that is in no place.
#[derive(Debug)]
struct Places {
    free: Vec<usize>,
    used: usize,
}

impl Places {
    fn enter(&mut self, fd: RawFd) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        entry(place).store(fd, Ordering::Relaxed);
        place
    }

    fn leave(&mut self, place: usize) {
        entry(place).store(-1, Ordering::Relaxed);
        self.free.push(place);
    }
}

thread_local! {
    /// Whether this thread is in the middle of a step.
    static IN_STEP: Cell<bool> = const { Cell::new(false) };
    /// The lock, between the handlers of a fork in this thread. Without a destructor, which a thread that ends might have run already.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, Places>>>> = const { Cell::new(None) };
}

fn places() -> MutexGuard<'static, Places> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something that no fork of another thread comes between.
fn in_one_step<R>(work: impl FnOnce(&mut Places) -> R) -> R {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: registers functions that live as long as the program and only do what is allowed around a fork. Where there is no
        // memory for that, a child keeps what it has.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    });
    IN_STEP.set(true);
    let mut guard = places();
    let result = work(&mut guard);
    drop(guard);
    IN_STEP.set(false);
    result
}

fn next(chunk: &'static Chunk) -> Option<&'static Chunk> {
    let next = chunk.next.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that was leaked before it was linked.
    unsafe { next.as_ref() }
}

/// Only called under the lock of `PLACES`.
fn entry(place: usize) -> &'static AtomicI32 {
    let mut chunk = &FIRST;
    for _ in 0..place / CHUNK {
        chunk = next(chunk).unwrap_or_else(|| {
            let fds = [const { AtomicI32::new(-1) }; CHUNK];
            let new = Box::leak(Box::new(Chunk { fds, next: AtomicPtr::new(ptr::null_mut()) }));
            chunk.next.store(new, Ordering::Release);
            new
        });
    }
    &chunk.fds[place % CHUNK]
}

extern "C" fn before() {
    // A signal's handler that forks in the middle of a step of its own thread's would wait for ever.
    if !IN_STEP.get() {
        HELD.set(Some(ManuallyDrop::new(places())));
    }
}

extern "C" fn after() {
    if let Some(guard) = HELD.take() {
        drop(ManuallyDrop::into_inner(guard));
    }
}

extern "C" fn in_child() {
    let mut chunk = Some(&FIRST);
    while let Some(here) = chunk {
        for fd in &here.fds {
            let fd = fd.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                // SAFETY: close is safe after fork. The descriptor is one of the device's or the connection manager's, which do
                // nothing in a child but to leak.
                unsafe { libc::close(fd) };
            }
        }
        chunk = next(here);
    }
    after();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    fn bind(socket: RawFd, name: &str) -> bool {
        let (address, len) = super::super::slot::abstract_address(name);
        // SAFETY: bind reads `len` bytes, which is at most the size, of a live sockaddr_un.
        unsafe { libc::bind(socket, (&raw const address).cast(), len) == 0 }
    }

    fn socket() -> Private {
        // SAFETY: socket has no conditions.
        Private::make(|| unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) }).unwrap()
    }

    /// Children that are forked while another thread makes and closes sockets, and that live on.
    #[test]
    fn a_child_has_nothing_whenever_it_is_forked() {
        const CHILDREN: usize = 256;
        let name = |number: usize| format!("rdma-soft-test-{}-private-{number}", std::process::id());
        let mut gate = [0; 2];
        // SAFETY: valid for writes of two descriptors.
        assert_eq!(unsafe { libc::pipe(gate.as_mut_ptr()) }, 0);
        let stop = AtomicBool::new(false);
        let (children, count) = thread::scope(|scope| {
            let names = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let socket = socket();
                    assert!(bind(socket.as_raw_fd(), &name(count)));
                    count += 1;
                }
                count
            });
            let fork = || {
                // SAFETY: the child does nothing but to wait for the end of the pipe, and `_exit`.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let mut byte = 0_u8;
                    // SAFETY: closes the child's copy, so that the parent's is the last.
                    unsafe { libc::close(gate[1]) };
                    // SAFETY: valid for writes of a byte.
                    unsafe { libc::read(gate[0], (&raw mut byte).cast(), 1) };
                    // SAFETY: ends the child without running anything else.
                    unsafe { libc::_exit(0) };
                }
                child
            };
            let children: Vec<_> = (0..CHILDREN).map(|_| fork()).collect();
            stop.store(true, Ordering::Relaxed);
            (children, names.join().unwrap())
        });
        // A child that has not run yet still has what it was forked with.
        let patience = Instant::now() + Duration::from_secs(20);
        let busy = |number: &usize| !bind(socket().as_raw_fd(), &name(*number));
        let mut left: Vec<usize> = (0..count).filter(busy).collect();
        while !left.is_empty() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(10));
            left.retain(busy);
        }
        // SAFETY: an open descriptor of this test.
        unsafe { libc::close(gate[1]) };
        for child in children {
            let mut status = 0;
            // SAFETY: a valid out parameter.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
        }
        // SAFETY: an open descriptor of this test.
        unsafe { libc::close(gate[0]) };
        assert!(left.is_empty(), "{} of {count} names are kept by children", left.len());
    }
}
