//! The engine's objects: domains, regions, queues and queue pairs.

use rdma_sys::ibv_sge;

use super::foreign::ForeignRegistration;
use super::memory::Region;
use super::service::{QueuePair, Service};
use super::tables::Tables;
use super::{
    CqId, Engine, Errno, Gid, ModifyQp, MrKeys, PdId, QpId, QpInit, QpState, QpStatus, Registration, SrqId, SrqInit,
    SrqStatus, Time, limits,
};

impl Engine {
    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: too many protection domains.
    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, Errno> {
        self.tables.pds.alloc()
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain. `EBUSY`: an object is in the domain.
    pub(crate) fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        self.tables.pds.dealloc(pd)
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain, or the range wraps around or is longer than `isize::MAX`.
    /// `ENOMEM`: too many regions.
    ///
    /// # Safety
    ///
    /// Until [`deregister`](Self::deregister) returns, the memory stays mapped: readable, and
    /// writable if `access` has LOCAL_WRITE, REMOTE_WRITE or REMOTE_ATOMIC. This process accesses
    /// the memory only by atomic accesses, or while no work request or peer may access it.
    #[allow(unsafe_code, reason = "it takes the caller's promise, and passes it on")]
    pub(crate) unsafe fn register(&mut self, pd: PdId, what: &Registration) -> Result<MrKeys, Errno> {
        let end = what.iova.checked_add(what.len as u64);
        if end.is_none() || what.addr.addr().checked_add(what.len).is_none() || isize::try_from(what.len).is_err() {
            return Err(Errno::INVAL);
        }
        self.tables.pds.enter(pd)?;
        // SAFETY: `Region::new` requires invariant 2 of `memory` until the region is dropped, and a
        // length of at most `isize::MAX`. The caller of `register` promises the memory until
        // `deregister`, which drops the region; the length was checked above.
        let region = unsafe { Region::new(what.addr, what.len, what.iova, what.access) };
        let tables = &mut self.tables;
        let keys = tables.mrs.insert(pd, region, what.backing.clone(), &tables.directory);
        if keys.is_err() {
            tables.pds.leave(pd);
        }
        keys
    }

    /// Registers foreign memory: the copier, and not the engine, accesses the memory until
    /// [`deregister`](Self::deregister) returns.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); any length is allowed.
    pub(crate) fn register_foreign(&mut self, pd: PdId, what: &ForeignRegistration) -> Result<MrKeys, Errno> {
        if [what.address, what.iova].iter().any(|start| start.checked_add(what.len as u64).is_none()) {
            return Err(Errno::INVAL);
        }
        self.tables.pds.enter(pd)?;
        let keys = self.tables.mrs.insert_foreign(pd, what);
        if keys.is_err() {
            self.tables.pds.leave(pd);
        }
        keys
    }

    /// Returns the address, for its copier, of the foreign memory that an entry of a list names;
    /// `None` if the entry names no foreign memory of `pd` with all of `rights`.
    pub(crate) fn foreign_address(&self, pd: PdId, sge: &ibv_sge, rights: u32) -> Option<u64> {
        let range = self.tables.mrs.foreign(sge.lkey, pd, rights, sge.addr, sge.length as usize)?;
        Some(range.address)
    }

    /// Deregisters memory; the engine does not touch the memory again.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no region has this key. `EAGAIN`: a copy of the region is running; no further one
    /// begins. `EBUSY`: a copy of the region may go on for ever.
    pub(crate) fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        self.tables.deregister(lkey)
    }

    /// Deregisters memory, as [`deregister`](Self::deregister) does, and gives its key to the
    /// region with the key `by`.
    ///
    /// # Errors
    ///
    /// As `deregister`.
    pub(crate) fn replace_region(&mut self, lkey: u32, by: u32) -> Result<(), Errno> {
        self.tables.replace_region(lkey, by)
    }

    /// Gives up a deregistration that [`deregister`](Self::deregister) has answered with `EAGAIN`:
    /// requests can use the region again.
    pub(crate) fn keep_region(&mut self, lkey: u32) {
        self.tables.mrs.keep(lkey);
    }

    /// Creates a completion queue of exactly `depth` entries. `token` comes back in the queue's
    /// events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a depth of 0 or beyond [`limits::MAX_CQE`]. `ENOMEM`: no memory, or too many
    /// queues.
    pub(crate) fn create_cq(&mut self, depth: u32, token: u64) -> Result<CqId, Errno> {
        self.tables.cqs.create(depth, token)
    }

    /// Gives the completions of a new queue the time at which they are added, by this clock.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue. `ENOMEM`: no memory.
    pub(crate) fn keep_times(&mut self, cq: CqId, clock: fn() -> Time) -> Result<(), Errno> {
        self.tables.cqs.keep_times(cq, clock)
    }

    /// Destroys a completion queue and drops its unpolled events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue. `EBUSY`: a queue pair uses the queue.
    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), Errno> {
        self.tables.cqs.destroy(cq)?;
        self.tables.events.forget_cq(cq);
        Ok(())
    }

    /// Changes a completion queue's depth.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue, a depth of 0 or beyond [`limits::MAX_CQE`], or more unpolled
    /// completions than the new depth. `ENOMEM`: no memory.
    pub(crate) fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), Errno> {
        self.tables.cqs.resize(cq, depth)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// `EINVAL`: beyond the [`limits`], or no such domain. `ENOMEM`: no memory, or too many queues.
    pub(crate) fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, Errno> {
        self.tables.pds.check(init.pd)?;
        let srq = self.tables.srqs.create(init)?;
        self.tables.pds.enter(init.pd)?;
        Ok(srq)
    }

    /// Destroys a shared receive queue and drops its unpolled events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue. `EBUSY`: a queue pair uses the queue.
    pub(crate) fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Errno> {
        let pd = self.tables.srqs.destroy(srq)?;
        self.tables.pds.leave(pd);
        self.tables.events.forget_srq(srq);
        Ok(())
    }

    /// Changes the depth of a shared receive queue, arms its limit event, or both; a call that
    /// fails changes nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue, a depth that is too small for the posted requests, for the limit or
    /// beyond [`limits::MAX_SRQ_WR`], or a limit beyond the depth. `ENOMEM`: no memory.
    pub(crate) fn modify_srq(&mut self, srq: SrqId, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let Tables { srqs, events, .. } = &mut self.tables;
        srqs.modify(srq, max_wr, limit, events)
    }

    /// Returns the attributes of a shared receive queue; `EINVAL` if there is no such queue.
    pub(crate) fn query_srq(&self, srq: SrqId) -> Result<SrqStatus, Errno> {
        self.tables.srqs.query(srq)
    }

    /// Creates a queue pair in RESET; returns its identifier and its number.
    ///
    /// # Errors
    ///
    /// `EINVAL`: beyond the [`limits`], or no such domain or queue. `ENOMEM`: no memory, or no
    /// number is free.
    pub(crate) fn create_qp(&mut self, init: &QpInit) -> Result<(QpId, u32), Errno> {
        let tables = &mut self.tables;
        let max_sge = init.max_send_sge.max(init.max_recv_sge) as usize;
        let max_wr = init.max_send_wr.max(init.max_recv_wr);
        if max_sge > limits::MAX_SGE || max_wr > limits::MAX_QP_WR || init.max_inline_data > limits::MAX_INLINE {
            return Err(Errno::INVAL);
        }
        tables.pds.check(init.pd)?;
        tables.cqs.check(init.send_cq)?;
        tables.cqs.check(init.recv_cq)?;
        let created = self.qps.create(init, tables)?;
        tables.pds.enter(init.pd)?;
        tables.cqs.enter(init.send_cq);
        tables.cqs.enter(init.recv_cq);
        if let Some(srq) = init.srq {
            tables.srqs.enter(srq);
        }
        tables.peers.reserve(self.qps.len());
        tables.deferred.reserve(self.qps.len().saturating_sub(tables.deferred.len()));
        Ok(created)
    }

    /// Whether a queue pair number of this process is free.
    pub(crate) fn has_free_number(&self) -> bool {
        self.qps.has_free_number()
    }

    /// Destroys a queue pair; removes its completions from the completion queues and drops its
    /// unpolled events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair. `EBUSY`: the queue pair is in a multicast group. `EAGAIN`: a
    /// copy is running for the queue pair, which is in ERR now.
    pub(crate) fn destroy_qp(&mut self, qp: QpId) -> Result<(), Errno> {
        let tables = &mut self.tables;
        let it = self.qps.get_mut(qp)?;
        if tables.groups.group_of(qp.0).is_some() {
            return Err(Errno::BUSY);
        }
        it.end_copies(tables)?;
        it.reset(tables);
        tables.cqs.leave(it.qp.send_cq);
        tables.cqs.leave(it.qp.recv_cq);
        if let Some(srq) = it.qp.rq.srq() {
            tables.srqs.leave(srq);
        }
        tables.pds.leave(it.qp.pd);
        tables.events.forget_qp(qp);
        self.qps.remove(qp);
        Ok(())
    }

    /// Applies a change that the caller has checked against the mask table. Drain the links first.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair. `EAGAIN`, for a change to RESET: a copy is running for the
    /// queue pair, which is in ERR now.
    pub(crate) fn modify_qp(&mut self, qp: QpId, change: &ModifyQp) -> Result<(), Errno> {
        let it = self.qps.get_mut(qp)?;
        if change.state == Some(QpState::Reset) {
            it.end_copies(&mut self.tables)?;
        }
        it.modify(change, &mut self.tables);
        self.fail_overrun();
        Ok(())
    }

    /// Returns the attributes that only the engine knows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair.
    pub(crate) fn query_qp(&self, qp: QpId) -> Result<QpStatus, Errno> {
        Ok(self.qps.get(qp)?.status())
    }

    /// Attaches a datagram queue pair to a multicast group; attaching it twice has no further
    /// effect. True if the queue pair is the first one of this process in the group: the driver
    /// must then tell other processes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, not a datagram queue pair, or `gid` is no group address.
    /// `ENOMEM`: beyond the [`limits`].
    pub(crate) fn attach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        if !matches!(self.qps.get(qp)?.service, Service::Ud(_)) || !gid.is_multicast() {
            return Err(Errno::INVAL);
        }
        self.tables.groups.attach(gid, qp.0)
    }

    /// Detaches a queue pair from a multicast group; true if it was the last one of this process
    /// there.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the queue pair was not in the group.
    pub(crate) fn detach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        self.tables.groups.detach(gid, qp.0)
    }

    /// Whether a datagram queue pair has requests that are neither sent nor lost, because the way
    /// to their destination is being looked up or a link has no space.
    pub(crate) fn has_unsent_datagrams(&self, qp: QpId) -> bool {
        self.qps.get(qp).is_ok_and(|QueuePair { qp, service }| {
            matches!(service, Service::Ud(_)) && qp.state == QpState::Rts && !qp.sq.is_empty()
        })
    }

    /// Returns a group that the queue pair is in.
    pub(crate) fn group_of(&self, qp: QpId) -> Option<Gid> {
        self.tables.groups.group_of(qp.0)
    }

    /// Counts an address handle. Its domain cannot be destroyed before the matching `release_ah`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain. `ENOMEM`: beyond [`limits::MAX_AH`].
    pub(crate) fn hold_ah(&mut self, pd: PdId) -> Result<(), Errno> {
        if self.tables.ahs >= limits::MAX_AH {
            return Err(Errno::NOMEM);
        }
        self.tables.pds.enter(pd)?;
        self.tables.ahs += 1;
        Ok(())
    }

    /// Ends one [`hold_ah`](Self::hold_ah).
    pub(crate) fn release_ah(&mut self, pd: PdId) {
        self.tables.pds.leave(pd);
        self.tables.ahs -= 1;
    }
}
