//! Descriptors that a forked child closes at once. A copy in a child would keep a socket's name and
//! connections alive after this process has closed them or died.
//!
//! A descriptor is made and listed in one [step](fork::uninterrupted), and unlisted and closed in
//! one step, so in every child all open descriptors are listed. `exec` closes the descriptors by
//! itself (close-on-exec). Until a child has run for the first time it has its parent's
//! descriptors.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use rdma_mem::process::ForkHandlers;

use super::Result;
use super::fork::{self, PerProcess};
use super::lock::Lock;

const CHUNK: usize = 512;

/// A descriptor that forked children close.
#[derive(Debug)]
pub(crate) struct Private {
    /// `Some` until the drop.
    fd: Option<OwnedFd>,
    place: usize,
    /// The [number](fork::process) of the process that made the descriptor.
    process: u64,
}

impl Private {
    /// Makes a descriptor by a system call. `call` must not block, since all forks wait for it.
    pub(crate) fn make(call: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        // SAFETY: `ForkHandlers::new` requires a function that may run at any fork, several times:
        // `close_all` makes system calls and accesses atomics only, and what it has closed it does
        // not close again.
        static HANDLERS: ForkHandlers = unsafe { ForkHandlers::new(None, None, Some(close_all)) };
        // If the registration fails for lack of memory, children keep the descriptors.
        let _registered = HANDLERS.register();
        fork::uninterrupted(|| {
            let fd = call()?;
            let place = PLACES.get_or_default().lock().enter(fd.as_raw_fd());
            Ok(Self { fd: Some(fd), place, process: fork::process() })
        })
    }
}

impl AsFd for Private {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("present until the drop").as_fd()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        fork::uninterrupted(|| {
            if self.process == fork::process() {
                PLACES.get_or_default().lock().leave(self.place);
                self.fd = None;
            } else {
                // Closed already: the number may be another descriptor of this child.
                let _closed = self.fd.take().map(IntoRawFd::into_raw_fd);
            }
        });
    }
}

/// The descriptors, or -1 in free places. The handler in a child reads atomics only: chunks are
/// linked once and never freed.
struct Chunk {
    fds: [AtomicI32; CHUNK],
    next: OnceLock<Box<Self>>,
}

impl Chunk {
    const fn new() -> Self {
        Self { fds: [const { AtomicI32::new(-1) }; CHUNK], next: OnceLock::new() }
    }
}

static FIRST: Chunk = Chunk::new();
/// Locked only in a step.
static PLACES: PerProcess<Lock<Places>> = PerProcess::new();

/// The free places, and the number of places ever used.
#[derive(Debug, Default)]
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

fn entry(place: usize) -> &'static AtomicI32 {
    let mut chunk = &FIRST;
    for _ in 0..place / CHUNK {
        chunk = chunk.next.get_or_init(|| Box::new(Chunk::new()));
    }
    &chunk.fds[place % CHUNK]
}

/// Closes the parent's descriptors in a child. The owners of the descriptors are objects of the
/// parent, which do nothing in a child.
extern "C" fn close_all() {
    let mut chunk = Some(&FIRST);
    while let Some(here) = chunk {
        for fd in &here.fds {
            let fd = fd.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                let _closed: nix::Result<()> = nix::unistd::close(fd);
            }
        }
        chunk = here.next.get().map(Box::as_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fork::tests::{Sleeper, in_child, interrupted};
    use super::super::socket::Socket;
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Forks children that live on while another thread makes and closes sockets.
    #[test]
    fn a_child_has_nothing_whenever_it_is_forked() {
        let _alone = super::super::FORKING.lock();
        const CHILDREN: usize = 256;
        let name = |number: usize| format!("rdma-soft-test-{}-private-{number}", std::process::id());
        let stop = AtomicBool::new(false);
        let (children, count) = thread::scope(|scope| {
            let names = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    Socket::new().unwrap().bind(&name(count)).unwrap();
                    count += 1;
                }
                count
            });
            let children: Vec<_> = (0..CHILDREN).map(|_| Sleeper::fork()).collect();
            stop.store(true, Ordering::Relaxed);
            (children, names.join().unwrap())
        });
        // A child that has not run yet still has its parent's descriptors.
        let patience = Instant::now() + Duration::from_secs(20);
        let busy = |number: &usize| Socket::new().unwrap().bind(&name(*number)).is_err();
        let mut left: Vec<usize> = (0..count).filter(busy).collect();
        while !left.is_empty() && Instant::now() < patience {
            thread::sleep(Duration::from_millis(10));
            left.retain(busy);
        }
        drop(children);
        assert!(left.is_empty(), "{} of {count} names are kept by children", left.len());
    }

    #[test]
    fn a_child_whose_fork_has_interrupted_a_step_makes_descriptors_of_its_own() {
        let _alone = super::super::FORKING.lock();
        let with_places = |here: &dyn Fn()| {
            let _places = PLACES.get_or_default().lock();
            here();
        };
        interrupted(with_places, || Socket::new().is_ok());
    }

    #[test]
    fn a_parents_descriptor_that_a_child_drops_closes_nothing_of_the_child() {
        let _alone = super::super::FORKING.lock();
        let mut parents = Some(Private::make(|| Ok(std::fs::File::open("/dev/null").unwrap().into())).unwrap());
        in_child(|| {
            let number = parents.as_ref().map_or(-1, |fd| fd.as_fd().as_raw_fd());
            let Ok(null) = std::fs::File::open("/dev/null") else { return false };
            // SAFETY: dup2 takes two numbers. Nobody uses the second: the child has closed it.
            let ours = unsafe { libc::dup2(null.as_raw_fd(), number) };
            drop(parents.take());
            // SAFETY: this fcntl takes a number, and says whether it is an open descriptor.
            ours == number && unsafe { libc::fcntl(ours, libc::F_GETFD) } != -1
        });
    }
}
