//! Descriptors that a forked child closes at once. A copy in a child would keep a socket's name and
//! connections alive after this process has closed them or died.
//!
//! A descriptor is made and listed in one [step](fork::uninterrupted), and unlisted and closed in
//! one step, so in every child all open descriptors are listed. `exec` closes the descriptors by
//! itself (close-on-exec). Until a child has run for the first time it has its parent's
//! descriptors.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use super::{Result, fork};

const CHUNK: usize = 512;

/// A descriptor that forked children close.
#[derive(Debug)]
pub(crate) struct Private {
    /// `Some` until the drop.
    fd: Option<OwnedFd>,
    place: usize,
}

impl Private {
    /// Makes a descriptor by a system call. `call` must not block, since all forks wait for it.
    pub(crate) fn make(call: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| fork::run_in_children(close_all));
        fork::uninterrupted(|| {
            let fd = call()?;
            let place = with_places(|places| places.enter(fd.as_raw_fd()));
            Ok(Self { fd: Some(fd), place })
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
            with_places(|places| places.leave(self.place));
            self.fd = None;
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
/// Locked only in a step, so that no child is forked while the lock is held.
static PLACES: Mutex<Places> = Mutex::new(Places { free: Vec::new(), used: 0 });

/// The free places, and the number of places ever used.
#[derive(Debug)]
struct Places {
    free: Vec<usize>,
    used: usize,
}

fn with_places<R>(work: impl FnOnce(&mut Places) -> R) -> R {
    work(&mut PLACES.lock().unwrap_or_else(PoisonError::into_inner))
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
/// parent, which do nothing in a child. The places stay taken, because the parent's objects still
/// refer to them.
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
    use super::super::fork::tests::Sleeper;
    use super::super::socket::Socket;
    use std::sync::atomic::{AtomicBool, Ordering};
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
}
