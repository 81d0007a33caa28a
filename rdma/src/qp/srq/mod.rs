//! Shared receive queues: receives that several queue pairs take from one queue.
//!
//! # Safety
//!
//! 1. A [`SrqInner`] owns a queue that its context's function table created, or has it from the
//!    caller of `from_raw`, who keeps it. Each queue pair that uses the queue keeps it alive.
//! 2. Buffers in flight are released only by completions, or after the queue was destroyed. A queue
//!    pair may have taken a receive that it never completes: if the queue pair ends, the receive's
//!    buffer stays with the queue. A queue that other code destroys is let go of when no receive is
//!    in flight; otherwise it leaks.
//! 3. The memory of a posted receive is parked in the queue's ring. It is returned without a
//!    completion only if the device cannot have accepted the receive.
//! 4. In each completion queue of its queue pairs, as many entries are reserved as the ring has
//!    slots. A resize changes the depth of the C queue alone: the ring has slots for the largest
//!    depth from the start, and bounds the receives in flight whatever depth the provider grants.

mod foreign;
mod post;
mod poster;
mod stats;

pub use post::SrqBatch;
pub use poster::SrqPoster;
pub use stats::SrqStats;

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::{ibv_device_cap_flags, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr};

use super::chain::Chain;
use super::chain::MAX_BATCH;
use super::{Rc, Transport, Uc, Ud, scatter};
use crate::context::ContextInner;
use crate::cq::{CqInner, Reservation};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw};
use crate::pd::{PdInner, ProtectionDomain};
use crate::ring::{MAX_SLOTS, SharedProducer, Staged, attach_shared, detach_shared};
use crate::types::SrqId;
use stats::Counts;

/// A receive queue from which several queue pairs of one domain take their receives.
///
/// A server with many clients posts as many receives as messages may arrive at a time, not as many
/// for each client. Receives are posted to this handle, of which there is one
/// ([`into_poster`](Self::into_poster) makes one for several threads); messages take them in order,
/// and complete on the completion queue of the queue pair that took them.
/// [`Completion::qpn`](crate::Completion::qpn) tells from which connection a message came.
///
/// Dropping the handle does not end the queue: the queue pairs that use it keep it, and the
/// receives that are posted.
///
/// # Examples
///
/// ```
/// use rdma::{DeviceSelector, QueuePair, SharedReceiveQueue};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = rdma::open(&DeviceSelector::Any)?.context;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(512)?);
/// let mut receives = SharedReceiveQueue::builder(&pd).max_wr(64).build()?;
/// for token in 0..64 {
///     receives.post_recv(pd.allocate(4096)?, token)?;
/// }
/// // One queue pair for each client.
/// let first = QueuePair::builder(&pd).cq(&cq).shared_receives(&receives).build()?;
/// let second = QueuePair::builder(&pd).cq(&cq).shared_receives(&receives).build()?;
/// # let _ = (first, second);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue<T: Transport = Rc> {
    /// `None` only while the handle ends.
    held: Option<Held>,
    chain: Chain<ibv_recv_wr>,
    /// The slots of the batch that is staged, or was not posted.
    batch: Vec<Staged>,
    counts: Counts,
    /// Fork generation that may post; `NEVER` after a post whose outcome is unknown.
    live_in: u32,
    /// Whether the provider may write received data with the processor.
    processor_writes: bool,
    depth: u32,
    /// The largest depth: at most half of the ring's slots.
    max_depth: u32,
    transport: PhantomData<T>,
}

/// The queue, and the producer of its ring.
struct Held {
    producer: SharedProducer,
    inner: Arc<Handle<SrqInner>>,
}

impl Held {
    /// Hands the ring over to the inner object, which may outlive the handle.
    fn surrender(self) -> Arc<Handle<SrqInner>> {
        *self.inner.parked.lock() = Some(self.producer);
        self.inner
    }
}

/// The owned C queue (1).
pub(crate) struct SrqInner {
    raw: Raw<ibv_srq>,
    pd: Arc<Handle<PdInner>>,
    id: SrqId,
    /// The largest depth, and the slots of the ring.
    max_depth: u32,
    slots: u32,
    /// The reservations in completion queues (4), each alive while a queue pair uses both queues.
    reservations: Mutex<Vec<Weak<Reservation>>>,
    ownership: Ownership,
    /// Declared last: dropped after the queue was destroyed.
    parked: Parked,
}

/// The ring's producer, once the handle that posts is gone. Dropping it releases the receives in
/// flight (2).
struct Parked(Mutex<Option<SharedProducer>>);

impl Parked {
    fn lock(&self) -> MutexGuard<'_, Option<SharedProducer>> {
        // Nothing under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // Memory is dropped below, under no lock.
        let producer = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(producer) = producer {
            producer.reclaim();
            detach_shared(&producer);
        }
    }
}

impl Object for SrqInner {
    const DESTROY: Verb = Verb::DestroySrq;
    const NAME: &'static str = "a shared receive queue";

    fn made_in(&self) -> u32 {
        self.pd.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_srq requires a live queue of this table, which nothing uses any more:
        // this function's contract, since each queue pair keeps the handle (1). It refuses while a
        // kept queue pair of other code is still there, and the queue leaks (promise 2 of
        // `Ownership`). The events of the queue are acknowledged as they are taken, so the call
        // does not block.
        let call = || unsafe { (self.pd.context.table.ibv_destroy_srq)(self.raw.as_ptr()) };
        if self.ownership.is_kept() && self.parked.lock().as_ref().is_some_and(|producer| producer.busy() > 0) {
            // The device may still write to the memory of the receives (2).
            return Err(Error::new(Self::DESTROY, ErrorKind::InUse));
        }
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

impl SrqInner {
    fn new(raw: Raw<ibv_srq>, pd: &Arc<Handle<PdInner>>, id: SrqId, max_depth: u32, ownership: Ownership) -> Self {
        let slots = (2 * max_depth).next_power_of_two();
        let (reservations, parked) = (Mutex::default(), Parked(Mutex::default()));
        Self { raw, pd: Arc::clone(pd), id, max_depth, slots, reservations, ownership, parked }
    }

    pub(super) fn as_raw(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    fn context(&self) -> &Arc<Handle<ContextInner>> {
        &self.pd.context
    }

    fn modify(&self, attr: ibv_srq_attr, ibv_srq_attr_mask(mask): ibv_srq_attr_mask) -> Result<()> {
        self.context().check(Verb::ModifySrq)?;
        let mut attr = attr;
        let mask = i32::try_from(mask).map_err(|_| Error::new(Verb::ModifySrq, ErrorKind::InvalidInput))?;
        // SAFETY: ibv_modify_srq requires a live queue of this table (1), and attributes that live
        // during the call: a local.
        let call = || unsafe { (self.context().table.ibv_modify_srq)(self.raw.as_ptr(), &raw mut attr, mask) };
        Error::check(Verb::ModifySrq, call)
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        let attr = ibv_srq_attr { srq_limit: limit, ..ibv_srq_attr::default() };
        self.modify(attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT)
    }

    fn query(&self) -> Result<ibv_srq_attr> {
        self.context().check(Verb::QuerySrq)?;
        let mut attr = ibv_srq_attr::default();
        // SAFETY: ibv_query_srq requires a live queue of this table (1), and space for the
        // attributes: a local.
        let call = || unsafe { (self.context().table.ibv_query_srq)(self.raw.as_ptr(), &raw mut attr) };
        Error::check(Verb::QuerySrq, call)?;
        Ok(attr)
    }

    /// Reserves entries of a completion queue for the receives of this queue (4), unless another
    /// queue pair has done so.
    fn reserve(&self, cq: &Arc<Handle<CqInner>>) -> Result<Arc<Reservation>> {
        // Dropped after the lock: the last user of a reservation may have gone meanwhile, and its
        // end may log.
        let alive: Vec<Arc<Reservation>>;
        let mut reservations = self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        alive = reservations.iter().filter_map(Weak::upgrade).collect();
        if let Some(shared) = alive.iter().find(|reservation| reservation.is_of(cq)) {
            return Ok(Arc::clone(shared));
        }
        let reservation = Arc::new(Reservation::new(cq, self.slots)?);
        reservations.retain(|reservation| reservation.strong_count() > 0);
        reservations.push(Arc::downgrade(&reservation));
        Ok(reservation)
    }
}

/// A queue pair's use of a shared receive queue: keeps both the queue and the reservation.
#[derive(Clone)]
pub(crate) struct SrqUse {
    inner: Arc<Handle<SrqInner>>,
    reservation: Arc<Reservation>,
}

impl SrqUse {
    /// Uses a queue of the domain `pd` for receives that complete on `cq`.
    pub(super) fn new(
        inner: &Arc<Handle<SrqInner>>,
        pd: &Arc<Handle<PdInner>>,
        cq: &Arc<Handle<CqInner>>,
    ) -> Result<Self> {
        if !Arc::ptr_eq(&inner.pd, pd) {
            // Devices differ in whose domain they check a receive's memory against.
            return Err(Error::new(Verb::CreateQp, ErrorKind::InvalidInput));
        }
        Ok(Self { inner: Arc::clone(inner), reservation: inner.reserve(cq)? })
    }

    pub(super) fn as_raw(&self) -> *mut ibv_srq {
        self.inner.raw.as_ptr()
    }

    /// Fetches the completions of receives, before the queue pair ends.
    pub(super) fn rescue(&self) {
        self.reservation.rescue();
    }
}

/// Configuration of a new [`SharedReceiveQueue`].
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// let receives = rdma::SharedReceiveQueue::builder(&pd).max_wr(128).max_sge(2).build()?;
/// assert!(receives.depth() >= 128);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_srq_init_attr")]
#[derive(Debug, Clone)]
#[must_use]
pub struct SrqBuilder<T: Transport> {
    pd: ProtectionDomain,
    max_wr: Option<u32>,
    max_sge: Option<u32>,
    resizable_to: u32,
    transport: PhantomData<T>,
}

impl SharedReceiveQueue<Rc> {
    /// Starts the configuration of a queue for reliable connected queue pairs.
    pub fn builder(pd: &ProtectionDomain) -> SrqBuilder<Rc> {
        SrqBuilder::new(pd)
    }
}

impl SharedReceiveQueue<Uc> {
    /// Starts the configuration of a queue for unreliable connected queue pairs.
    pub fn unreliable(pd: &ProtectionDomain) -> SrqBuilder<Uc> {
        SrqBuilder::new(pd)
    }
}

impl SharedReceiveQueue<Ud> {
    /// Starts the configuration of a queue for datagram queue pairs.
    pub fn datagram(pd: &ProtectionDomain) -> SrqBuilder<Ud> {
        SrqBuilder::new(pd)
    }
}

impl<T: Transport> SrqBuilder<T> {
    fn new(pd: &ProtectionDomain) -> Self {
        Self { pd: pd.clone(), max_wr: None, max_sge: None, resizable_to: 0, transport: PhantomData }
    }

    setters! {
        /// The number of receives that the device holds; 16 by default.
        max_wr(count: u32) = Some(count);

        /// The number of segments that a receive can scatter to; 1 by default.
        max_sge(count: u32) = Some(count);

        /// The largest number of receives to which the queue may be
        /// [resized](SharedReceiveQueue::resize); `max_wr` by default.
        resizable_to(count: u32) = count;
    }

    /// Creates the queue.
    ///
    /// Each queue pair that uses the queue needs space in its completion queue for twice the
    /// largest number of receives, rounded up to a power of two; queue pairs that share both queues
    /// need it once.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for more than the device supports; `NotSupported` if the device has no shared
    /// receive queues, and for datagrams and unreliable connections on iWARP; `OutOfMemory`.
    #[doc(alias = "ibv_create_srq")]
    pub fn build(self) -> Result<SharedReceiveQueue<T>> {
        let pd = &self.pd.inner;
        let context = &pd.context;
        let refused = |kind| Error::new(Verb::CreateSrq, kind);
        context.check(Verb::CreateSrq)?;
        let device = context.device_attr.as_raw();
        let limit = |device: i32| u32::try_from(device).unwrap_or(0);
        if limit(device.max_srq) == 0 || !T::is_supported(&context.capabilities()) {
            return Err(refused(ErrorKind::NotSupported));
        }
        let (max_wr, max_sge) = (self.max_wr.unwrap_or(16).max(1), self.max_sge.unwrap_or(1).max(1));
        let most = self.resizable_to.max(max_wr);
        // The ring has twice as many slots.
        if most > limit(device.max_srq_wr).min(MAX_SLOTS / 2) || max_sge > limit(device.max_srq_sge) {
            return Err(refused(ErrorKind::InvalidInput));
        }
        let id = SrqId::fresh();
        let name = usize::try_from(id.0).map_err(|_| refused(ErrorKind::InvalidInput))?;
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::without_provenance_mut(name),
            attr: ibv_srq_attr { max_wr, max_sge, srq_limit: 0 },
        };
        // SAFETY: ibv_create_srq requires a live domain, which the new value keeps alive (1), and
        // attributes that live during the call: a local. The library never dereferences the context
        // pointer, which is a number here.
        let call = || unsafe { (context.table.ibv_create_srq)(pd.raw.as_ptr(), &raw mut init) };
        let raw = Raw::created(Verb::CreateSrq, call)?;
        // The provider may grant more than was asked for.
        let depth = init.attr.max_wr.clamp(max_wr, MAX_SLOTS / 2);
        let inner = Handle::new(SrqInner::new(raw, pd, id, most.max(depth), Ownership::Destroy));
        SharedReceiveQueue::assemble(inner, depth, max_sge).map_err(|failed| refused(failed.error.kind()))
    }
}

impl<T: Transport> SharedReceiveQueue<T> {
    /// The handle of a queue.
    fn assemble(inner: Handle<SrqInner>, depth: u32, max_sge: u32) -> Result<Self, Failed<Handle<SrqInner>>> {
        let producer = match attach_shared(inner.slots, max_sge) {
            Ok(producer) => producer,
            Err(error) => return Err(Failed::new(error, inner)),
        };
        let context = inner.context();
        // The ring has twice as many slots as the device takes receives.
        let batch = (inner.slots / 2).min(MAX_BATCH) as usize;
        Ok(Self {
            chain: Chain::new(batch, max_sge as usize, inner.pd.identity()),
            batch: Vec::with_capacity(batch),
            counts: Counts::default(),
            live_in: context.fork,
            processor_writes: scatter::processor_writes(context),
            depth,
            max_depth: inner.max_depth,
            transport: PhantomData,
            held: Some(Held { producer, inner: Arc::new(inner) }),
        })
    }
}

impl<T: Transport> SharedReceiveQueue<T> {
    /// The number of receives that the device holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Changes the number of receives that the device holds, to `depth` or more, while the queue is
    /// in use. [`depth`](Self::depth) then returns the new number.
    ///
    /// The completion queues of the queue's users have space for the depth that
    /// [`SrqBuilder::resizable_to`] allows: it is the limit.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, without a change, for 0, for more than the limit, or for less than the
    /// receives that are posted or the limit that is armed; `NotSupported` if the device cannot
    /// resize such queues; errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut receives = rdma::SharedReceiveQueue::builder(&pd).max_wr(16).resizable_to(256).build()?;
    /// // More clients have come.
    /// receives.resize(64)?;
    /// assert!(receives.depth() >= 64);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&mut self, depth: u32) -> Result<()> {
        const RESIZES: u32 = ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0;
        let refused = |kind| Error::new(Verb::ModifySrq, kind);
        let context = self.inner().context();
        context.check(Verb::ModifySrq)?;
        if context.device_attr.as_raw().device_cap_flags & RESIZES == 0 {
            return Err(refused(ErrorKind::NotSupported));
        }
        if depth == 0 || depth > self.max_depth {
            return Err(refused(ErrorKind::InvalidInput));
        }
        let attr = ibv_srq_attr { max_wr: depth, ..ibv_srq_attr::default() };
        self.inner().modify(attr, ibv_srq_attr_mask::IBV_SRQ_MAX_WR)?;
        // The provider may grant more than was asked for.
        let granted = self.inner().query().map_or(depth, |attr| attr.max_wr);
        self.depth = granted.clamp(depth, self.max_depth);
        Ok(())
    }

    /// The identifier of the queue in events.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.inner().id
    }

    /// Has the device raise [`SRQ_LIMIT_REACHED`](crate::AsyncEventKind::SRQ_LIMIT_REACHED) once,
    /// when fewer than `limit` receives are left. 0 disarms the event.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the limit is more than the queue holds; errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{AsyncEventKind, Context, Error, EventSource, SharedReceiveQueue};
    /// # fn f(context: &Context, receives: &SharedReceiveQueue) -> Result<(), Error> {
    /// receives.arm_limit(16)?;
    /// while let Some(event) = context.next_event(None)? {
    ///     if event.source == EventSource::SharedReceiveQueue(receives.id()) {
    ///         println!("fewer than 16 receives are left");
    ///         receives.arm_limit(16)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.inner().arm_limit(limit)
    }

    /// The limit that is armed; 0 if none is.
    ///
    /// # Errors
    ///
    /// Errors of the provider.
    #[doc(alias = "ibv_query_srq")]
    pub fn limit(&self) -> Result<u32> {
        Ok(self.inner().query()?.srq_limit)
    }

    /// Destroys the queue and frees the memory of the receives that are posted.
    ///
    /// Dropping the handle and all queue pairs does the same; this function reports errors.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a queue pair uses the queue; errors of the provider.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn close(mut self) -> Result<(), Failed<Self>> {
        if let Err(error) = self.inner().context().check(Verb::DestroySrq) {
            return Err(Failed::new(error, self));
        }
        let Some(held) = self.held.take() else { return Ok(()) };
        let Err(Failed { error, object: inner }) = Handle::close(held.surrender()) else { return Ok(()) };
        let producer = inner.parked.lock().take();
        self.held = producer.map(|producer| Held { producer, inner });
        Err(Failed::new(error, self))
    }

    pub(super) fn inner(&self) -> &Arc<Handle<SrqInner>> {
        &self.held.as_ref().expect("only `close` and the drop take it").inner
    }

    /// The C object, valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_srq {
        self.inner().raw.as_ptr()
    }
}

impl<T: Transport> Drop for SharedReceiveQueue<T> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // In a forked child another thread of the parent may have held the lock at the time of the
        // fork, and the parent's device uses the memory in flight: the producer is only forgotten,
        // and leaves it parked.
        if !held.inner.context().is_forked() {
            drop(held.surrender());
        }
    }
}

debug_by_methods!(SharedReceiveQueue<T: Transport>: depth);

#[cfg(test)]
mod tests;
