//! `wait.rs` for systems other than Linux, where no node can be made: every call fails.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rdma::{Error, ErrorKind, Result, Verb};

pub(crate) struct ReadySet(Infallible);

impl ReadySet {
    pub(crate) fn new() -> Result<Self> {
        Err(Error::new(Verb::WatchDescriptor, ErrorKind::NotSupported))
    }

    pub(crate) fn add(&self, _socket: BorrowedFd<'_>, _token: u64) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn remove(&self, _socket: BorrowedFd<'_>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn take(&self) -> Result<Vec<u64>> {
        match self.0 {}
    }
}

impl AsFd for ReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

pub(crate) fn start_to_connect(_to: SocketAddr) -> io::Result<TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) struct Spare(Infallible);

pub(crate) fn spare_descriptor() -> Result<Spare> {
    Err(Error::new(Verb::WatchDescriptor, ErrorKind::NotSupported))
}
