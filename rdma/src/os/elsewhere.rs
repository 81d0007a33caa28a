//! `os.rs` for systems other than Linux: no descriptor can be made.

use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use nix::errno::Errno;

/// Makes types of descriptors that do not exist.
macro_rules! missing {
    ($($type:ident)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $type(Infallible);

        impl $type {
            pub(crate) fn new() -> nix::Result<Self> {
                Err(Errno::ENOSYS)
            }
        }

        impl AsFd for $type {
            fn as_fd(&self) -> BorrowedFd<'_> {
                match self.0 {}
            }
        }
    )*};
}

missing! { Epoll EventFd TimerFd }

impl Epoll {
    pub(crate) fn watch(&self, _fd: BorrowedFd<'_>) -> nix::Result<()> {
        match self.0 {}
    }
}

impl EventFd {
    pub(crate) fn semaphore() -> nix::Result<Self> {
        Err(Errno::ENOSYS)
    }

    pub(crate) fn add(&self, _count: u64) {
        match self.0 {}
    }

    pub(crate) fn take(&self) {
        match self.0 {}
    }
}

impl TimerFd {
    pub(crate) fn set(&self, _after: Option<Duration>) -> nix::Result<()> {
        match self.0 {}
    }
}

pub(crate) fn poll(_polled: &mut [libc::pollfd], _timeout: Option<Duration>) -> nix::Result<bool> {
    Err(Errno::ENOSYS)
}

pub(crate) fn memlock_limit() -> Option<u64> {
    None
}

pub(crate) fn populate(_start: usize, _len: usize, _writes: bool) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub(crate) fn bind(_start: NonNull<u8>, _len: usize, _node: u32) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}
