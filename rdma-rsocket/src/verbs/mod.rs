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
pub(crate) use id::{Event, EventChannel, Id, Request, ids_match};
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

/// Calls a function that returns -1 with the reason in `errno`.
fn minus_one(call: impl FnOnce() -> libc::c_int) -> Result<(), Errno> {
    with_reason(|| Errno::result(call()).ok().map(drop), Errno::EIO)
}

/// The result of a function that returns an error number.
fn number(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw(result)) }
}

/// Calls a function that returns NULL with the reason in `errno`.
fn pointer<T>(call: impl FnOnce() -> *mut T) -> Result<NonNull<T>, Errno> {
    with_reason(|| NonNull::new(call()), Errno::ENOMEM)
}

/// Calls a function that may leave the reason of its failure in `errno`. Some providers do not: an
/// earlier call's error must not pass for the reason.
fn with_reason<T>(call: impl FnOnce() -> Option<T>, none: Errno) -> Result<T, Errno> {
    Errno::clear();
    call().ok_or_else(|| match Errno::last_raw() {
        0 => none,
        errno => Errno::from_raw(errno),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_error_is_not_the_reason_of_a_failure() {
        Errno::EEXIST.set();
        assert_eq!(minus_one(|| -1), Err(Errno::EIO));
        Errno::EEXIST.set();
        assert_eq!(pointer(std::ptr::null_mut::<u8>), Err(Errno::ENOMEM));
        let fails = || {
            Errno::EBUSY.set();
            -1
        };
        assert_eq!((minus_one(fails), minus_one(|| 0)), (Err(Errno::EBUSY), Ok(())));
    }
}
