//! What moves bytes into another process without a device: the kernel's cross-process write, and `memcpy` to shared pages.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::pair::{Channel, Contender, Role};
use crate::shared::SharedPages;

/// The follower's memory that the copies go to: shared pages, at `address` in the follower.
#[derive(Debug)]
pub struct Target {
    pages: SharedPages,
    pid: libc::pid_t,
    address: usize,
}

impl Target {
    /// Connects the two ends; the follower makes `len` bytes.
    ///
    /// # Errors
    ///
    /// When the pages cannot be shared.
    pub fn connect(role: Role, channel: &mut Channel, len: usize) -> io::Result<Rc<Self>> {
        let target = match role {
            Role::Leader => {
                let (path, pid, address) = (channel.receive()?, channel.receive()?, channel.receive()?);
                Self {
                    pages: SharedPages::open(&path)?,
                    pid: pid.parse().map_err(io::Error::other)?,
                    address: address.parse().map_err(io::Error::other)?,
                }
            }
            Role::Follower => {
                let pages = SharedPages::new(len)?;
                let address = pages.as_ptr().addr();
                channel.send(&pages.path())?;
                channel.send(&std::process::id().to_string())?;
                channel.send(&address.to_string())?;
                Self { pages, pid: 0, address }
            }
        };
        Ok(Rc::new(target))
    }
}

/// `process_vm_writev`: one system call per write, page by page.
#[derive(Debug)]
pub struct CrossProcessWrite {
    target: Rc<Target>,
    source: SharedPages,
}

impl CrossProcessWrite {
    /// Writes of `size` bytes to `target`.
    ///
    /// # Errors
    ///
    /// When there is no memory for the source.
    pub fn new(target: Rc<Target>, size: usize) -> io::Result<Self> {
        Ok(Self { target, source: SharedPages::new(size)? })
    }
}

impl Contender for CrossProcessWrite {
    fn name(&self) -> String {
        "process_vm_writev".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let len = self.source.len().min(self.target.pages.len());
        let local = libc::iovec { iov_base: self.source.as_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(self.target.address), iov_len: len };
        let start = Instant::now();
        for _ in 0..iterations {
            // SAFETY: one local and one remote vector, as the counts say; the local one is `self.source`, which is alive and
            // only read; the remote range belongs to the follower, where the kernel checks it.
            let n = unsafe { libc::process_vm_writev(self.target.pid, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(n) {
                Ok(n) if n == len => {}
                Ok(n) => return Err(io::Error::other(format!("process_vm_writev wrote {n} bytes of {len}"))),
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(start.elapsed())
    }
}

/// The C library's `memcpy` to the same pages, mapped here: what memory itself allows.
#[derive(Debug)]
pub struct Memcpy {
    target: Rc<Target>,
    source: SharedPages,
}

impl Memcpy {
    /// Copies of `size` bytes to `target`.
    ///
    /// # Errors
    ///
    /// When there is no memory for the source.
    pub fn new(target: Rc<Target>, size: usize) -> io::Result<Self> {
        Ok(Self { target, source: SharedPages::new(size)? })
    }
}

impl Contender for Memcpy {
    fn name(&self) -> String {
        "memcpy to shared pages".into()
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let len = self.source.len().min(self.target.pages.len());
        let start = Instant::now();
        for _ in 0..iterations {
            // SAFETY: `source` holds `len` readable bytes, the mapping `len` writable ones; they are different memory; no
            // reference to the mapping exists, and the follower does not touch it while the leader copies.
            unsafe { libc::memcpy(self.target.pages.as_ptr().cast(), self.source.as_ptr().cast(), len) };
        }
        Ok(start.elapsed())
    }
}
