//! Copies into another process without a device: the kernel's cross-process write, and `memcpy` to
//! shared pages.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use crate::pair::{Channel, Contender, Role};
use crate::shared::SharedPages;

/// The destination of the copies: the follower's shared pages, at `address` in the follower.
#[derive(Debug)]
pub struct Target {
    pages: SharedPages,
    pid: Pid,
    address: usize,
}

impl Target {
    /// Connects the two sides; the follower allocates `len` bytes.
    ///
    /// # Errors
    ///
    /// If the pages cannot be shared.
    pub fn connect(role: Role, channel: &mut Channel, len: usize) -> io::Result<Rc<Self>> {
        let target = match role {
            Role::Leader => {
                let pages = SharedPages::open(&channel.receive()?)?;
                let pid = Pid::from_raw(channel.receive()?.parse().map_err(io::Error::other)?);
                Self { pages, pid, address: channel.receive()?.parse().map_err(io::Error::other)? }
            }
            Role::Follower => {
                let pages = SharedPages::new(len)?;
                let (pid, address) = (Pid::this(), pages.as_ptr().addr());
                for line in [pages.path(), pid.to_string(), address.to_string()] {
                    channel.send(&line)?;
                }
                Self { pages, pid, address }
            }
        };
        Ok(Rc::new(target))
    }
}

/// The method of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `process_vm_writev`: one system call per write, which copies page by page.
    CrossProcessWrite,
    /// The C library's `memcpy` to the same pages, mapped here: the speed limit of the memory
    /// itself.
    Memcpy,
}

/// Repeated copies to a [`Target`].
#[derive(Debug)]
pub struct Copy {
    target: Rc<Target>,
    source: Vec<u8>,
    method: Method,
}

impl Copy {
    /// Creates copies of the whole size of `target`.
    #[must_use]
    pub fn new(target: &Rc<Target>, method: Method) -> Self {
        Self { target: Rc::clone(target), source: vec![0x5a; target.pages.len()], method }
    }

    fn write(&self) -> io::Result<()> {
        let len = self.source.len();
        match self.method {
            Method::CrossProcessWrite => {
                let remote = RemoteIoVec { base: self.target.address, len };
                match process_vm_writev(self.target.pid, &[IoSlice::new(&self.source)], &[remote])? {
                    written if written == len => {}
                    written => return Err(io::Error::other(format!("{written} bytes of {len} written"))),
                }
            }
            Method::Memcpy => {
                // SAFETY: memcpy requires `len` readable bytes and `len` writable bytes that do not
                // overlap, and no other access to the latter. `source` has `len` bytes, the size of
                // the target. The target is a mapping to which no reference exists, and the
                // follower does not touch it.
                unsafe { libc::memcpy(self.target.pages.as_ptr().cast(), self.source.as_ptr().cast(), len) };
            }
        }
        Ok(())
    }
}

impl Contender for Copy {
    fn name(&self) -> String {
        match self.method {
            Method::CrossProcessWrite => "process_vm_writev".into(),
            Method::Memcpy => "memcpy to shared pages".into(),
        }
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            self.write()?;
        }
        Ok(start.elapsed())
    }
}
