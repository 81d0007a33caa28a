//! The multicast groups of a datagram queue pair.
//!
//! # Safety
//!
//! 1. [`Groups`] holds its queue pair's pointer only while the queue pair is not destroyed. The
//!    pointer is used, and the queue pair is destroyed, under one lock. So an attachment may
//!    outlive its queue pair, or be forgotten: the queue pair detaches from all groups before it is
//!    destroyed.
//! 2. No provider function is called in a forked child, and the lock is not taken there: its holder
//!    may be a thread that the child lacks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::ibv_qp;

use crate::context::ContextInner;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::Handle;
use crate::types::{Gid, Lid};

/// The queue pair number that multicast datagrams are sent to.
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// The groups of one queue pair.
#[derive(Clone)]
pub(super) struct Groups {
    shared: Arc<Mutex<Shared>>,
    fork: u32,
}

struct Shared {
    /// None once the queue pair is destroyed (1).
    qp: Option<LiveQueuePair>,
    members: Vec<Member>,
    /// The serial number of the latest member.
    serial: u64,
}

struct LiveQueuePair {
    raw: *mut ibv_qp,
    context: Arc<Handle<ContextInner>>,
}

struct Member {
    gid: Gid,
    lid: Lid,
    /// Tells this member from an earlier one of the same group, whose attachments are left over
    /// from a failed destroy.
    serial: u64,
    attachments: usize,
}

// SAFETY: moving the pointer to another thread is sound: libibverbs' functions may be called on one
// queue pair from any thread.
unsafe impl Send for LiveQueuePair {}

impl LiveQueuePair {
    fn attach(&self, gid: Gid, lid: Lid) -> Result<()> {
        let raw = gid.to_raw();
        // SAFETY: ibv_attach_mcast requires a live queue pair and a GID that lives during the call:
        // the queue pair is not destroyed yet (1), and the GID is a local. Callers run in no forked
        // child (2).
        let call = || unsafe { (self.context.table.ibv_attach_mcast)(self.raw, &raw const raw, lid.0) };
        Error::check(Verb::AttachMulticast, call)
    }

    fn detach(&self, gid: Gid, lid: Lid) -> Result<()> {
        let raw = gid.to_raw();
        // SAFETY: ibv_detach_mcast requires a live queue pair and a GID that lives during the call:
        // the queue pair is not destroyed yet (1), and the GID is a local. Callers run in no forked
        // child (2).
        let call = || unsafe { (self.context.table.ibv_detach_mcast)(self.raw, &raw const raw, lid.0) };
        Error::check(Verb::DetachMulticast, call)
    }
}

impl Groups {
    /// Creates the groups of a new queue pair, which must call [`end`](Self::end) to be destroyed.
    pub(super) fn new(raw: *mut ibv_qp, context: &Arc<Handle<ContextInner>>) -> Self {
        let qp = Some(LiveQueuePair { raw, context: Arc::clone(context) });
        Self { shared: Arc::new(Mutex::new(Shared { qp, members: Vec::new(), serial: 0 })), fork: context.fork }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Every change under the lock is complete before any call that could panic.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches the queue pair to a group, or counts one more attachment. The caller has checked
    /// that this is not a forked child (2).
    pub(super) fn attach(&self, gid: Gid, lid: Lid) -> Result<MulticastAttachment> {
        if !gid.is_multicast() {
            return Err(Error::new(Verb::AttachMulticast, ErrorKind::InvalidInput));
        }
        let mut shared = self.lock();
        let gone = Error::new(Verb::AttachMulticast, ErrorKind::NoDevice);
        let member = shared.members.iter_mut().find(|member| (member.gid, member.lid) == (gid, lid));
        let serial = if let Some(member) = member {
            member.attachments += 1;
            member.serial
        } else {
            shared.qp.as_ref().ok_or(gone)?.attach(gid, lid)?;
            shared.serial += 1;
            let serial = shared.serial;
            shared.members.push(Member { gid, lid, serial, attachments: 1 });
            serial
        };
        drop(shared);
        Ok(MulticastAttachment { groups: self.clone(), gid, lid, serial, detached: false })
    }

    /// Drops one attachment of a member. Does nothing if the queue pair has left the group or was
    /// destroyed.
    fn detach(&self, serial: u64) -> Result<()> {
        if crate::fork::check(self.fork, Verb::DetachMulticast).is_err() {
            return Err(Error::new(Verb::DetachMulticast, ErrorKind::Forked));
        }
        let mut shared = self.lock();
        let Some(at) = shared.members.iter().position(|member| member.serial == serial) else { return Ok(()) };
        if shared.members[at].attachments > 1 {
            shared.members[at].attachments -= 1;
            return Ok(());
        }
        if let Some(qp) = &shared.qp {
            qp.detach(shared.members[at].gid, shared.members[at].lid)?;
        }
        shared.members.swap_remove(at);
        Ok(())
    }

    /// Detaches from all groups and destroys the queue pair with `destroy`. Attachments that are
    /// left do nothing afterwards.
    pub(super) fn end(&self, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut shared = self.lock();
        let Shared { qp, members, .. } = &mut *shared;
        if let Some(handle) = qp {
            // A group that cannot be detached makes the destroy fail, which reports the error.
            members.retain(|member| handle.detach(member.gid, member.lid).is_err());
        }
        destroy()?;
        members.clear();
        // Dropping the handle may close the context, so do it after the lock is released.
        let handle = qp.take();
        drop(shared);
        drop(handle);
        Ok(())
    }
}

/// A queue pair's attachment to a multicast group:
/// [`QueuePair::attach_multicast`](super::QueuePair::attach_multicast).
///
/// Dropping the attachment detaches. Forgetting it is harmless: the queue pair detaches when it is
/// destroyed.
#[must_use = "the queue pair is detached again when this is dropped"]
pub struct MulticastAttachment {
    groups: Groups,
    gid: Gid,
    lid: Lid,
    serial: u64,
    detached: bool,
}

impl MulticastAttachment {
    /// The group's GID.
    #[must_use]
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The group's LID, on InfiniBand.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.lid
    }

    /// Detaches from the group. Dropping does the same; this function also returns whether it
    /// succeeded.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports, with the attachment.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach(mut self) -> Result<(), Failed<Self>> {
        match self.groups.detach(self.serial) {
            Ok(()) => {
                self.detached = true;
                Ok(())
            }
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

impl Drop for MulticastAttachment {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        match self.groups.detach(self.serial) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Forked => {}
            Err(error) => {
                tracing::warn!(
                    name: "detach_failed", target: "rdma",
                    %error, gid = %self.gid, "a queue pair could not be detached from a multicast group"
                );
            }
        }
    }
}

debug_by_methods!(MulticastAttachment: gid, lid);
