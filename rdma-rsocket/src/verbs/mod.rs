//! Verbs objects and connection identifiers as owned Rust values: the only module of the crate that
//! calls the libraries.
//!
//! # Safety
//!
//! Invariants that the blocks in this module's files cite:
//!
//! 1. The tables of a [`Libraries`] are one implementation of libibverbs and librdmacm: the
//!    condition of [`Libraries::new`].
//! 2. The raw pointer of a value is a live object of those libraries, which the value alone
//!    destroys, on drop.
//! 3. An object lives until its users are gone: an id holds its channel; queue pairs, completion
//!    queues, registrations and address handles hold the id whose device they use. A queue pair is
//!    declared before its completion queue, and so dropped before it.
//! 4. Calls on one object need `&mut self`, or may run at any time in any thread (`verbs(7)`).
//! 5. Memory of a region is accessed through `rdma-mem` only, because the device and the peer may
//!    access it at any time.

mod datagram;
mod id;
mod queues;
mod region;

use std::ptr::NonNull;

use nix::errno::Errno;
use rdma_sys::{Ibverbs, LoadError, RdmaCm};

pub(crate) use datagram::Handle;
pub(crate) use id::{Event, Id, Request, ids_match};
pub(crate) use queues::{Completion, Limits, Queues, Target, Transport, datagram_limit};
pub(crate) use region::{Access, Region, Registration};

/// The libraries on which sockets run.
#[derive(Clone, Copy, Debug)]
pub struct Libraries {
    pub(crate) verbs: &'static Ibverbs,
    pub(crate) cm: &'static RdmaCm,
}

impl Libraries {
    /// Libraries by their function tables.
    ///
    /// # Safety
    ///
    /// The functions do what the manual pages of libibverbs and librdmacm say, and `cm` makes its
    /// objects by `verbs`.
    #[must_use]
    pub const unsafe fn new(verbs: &'static Ibverbs, cm: &'static RdmaCm) -> Self {
        Self { verbs, cm }
    }

    /// The system's libraries.
    ///
    /// # Errors
    ///
    /// A library cannot be loaded.
    pub fn system() -> Result<Self, LoadError> {
        Ok(Self { verbs: Ibverbs::system()?, cm: RdmaCm::system()? })
    }
}

/// The result of a function that returns -1 with the reason in `errno`.
fn minus_one(result: libc::c_int) -> Result<(), Errno> {
    Errno::result(result).map(drop)
}

/// The result of a function that returns an error number.
fn number(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw(result)) }
}

/// The result of a function that returns NULL with the reason in `errno`.
fn pointer<T>(result: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(result).ok_or_else(|| match Errno::last() {
        // The function failed without a reason.
        Errno::UnknownErrno => Errno::ENOMEM,
        errno => errno,
    })
}

/// Makes a descriptor of the libraries non-blocking.
fn set_nonblocking(fd: std::os::fd::RawFd) -> Result<(), Errno> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::os::fd::BorrowedFd;
    // SAFETY: borrow_raw requires an open descriptor for the borrow's time: the callers pass that
    // of a live object (2), and the borrow ends with this call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}
