//! Event channels. Numbers cite the invariants of [`super`].

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{RdmaCm, rdma_event_channel};

use super::manager::Manager;
use super::reason;
use crate::context::Context;
use crate::errno;
use crate::error::{Result, Verb};
use crate::fork;
use crate::handle::{Handle, Object, Raw};
use crate::types::PathOptions;
use crate::wait::EventDescriptor;

/// Key of an id in its events. Keys are unique in a process, so a late event cannot name a newer
/// id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey(u64);

impl IdKey {
    /// A key that no id has or will have.
    ///
    /// For a program that also sets up connections in a way of its own, and keeps all in one table.
    #[must_use]
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The key as a number, for example as the data of a descriptor in an epoll.
    #[must_use]
    pub fn to_token(self) -> u64 {
        self.0
    }

    /// The key of a [token](Self::to_token).
    #[must_use]
    pub fn from_token(token: u64) -> Self {
        Self(token)
    }
}

impl fmt::Display for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Delivers the events of any number of ids, on all devices of a connection manager.
///
/// A channel is of no device. An id gets its device when it is bound to a local address, when its
/// address is resolved, or with the request that it comes from: [`Id::context`](super::Id::context)
/// tells it, as `cm_id->verbs` does in C.
///
/// The descriptor ([`AsFd`](std::os::fd::AsFd)) is readable while events wait. It suits poll, epoll
/// and async runtimes and has no other use: it is an epoll descriptor that watches librdmacm's. An
/// event is acknowledged before it is returned and names its id by [`IdKey`]. Clones are handles to
/// the same channel; its ids keep the channel alive.
///
/// One lock guards the channel and its ids. It is held for the length of a system call. On iWARP
/// the system call of a [`connect`](super::Id::connect) may take as long as TCP needs to reach the
/// peer: give each connecting id a channel of its own there.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::cm::EventChannel;
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let channel = match EventChannel::of(&context) {
///     Ok(channel) => channel,
///     Err(error) => return Ok(println!("no connection manager: {error}")),
/// };
/// let event = channel.next_event(Some(Duration::from_millis(1)))?;
/// assert!(event.is_none(), "nothing was asked for");
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    pub(super) inner: Arc<Handle<EventChannelInner>>,
}

/// The owner of the C channel (1).
pub(crate) struct EventChannelInner {
    pub(super) raw: Raw<rdma_event_channel>,
    pub(super) table: &'static RdmaCm,
    pub(super) manager: Manager,
    pub(super) fork: u32,
    state: Mutex<ChannelState>,
    /// An epoll descriptor that watches librdmacm's own, which is not lent (9).
    pub(super) events: EventDescriptor,
}

/// The state under the channel's lock, which also guards librdmacm's own data (3).
#[derive(Default)]
pub(super) struct ChannelState {
    /// The living ids of this channel by their addresses (5).
    pub(super) ids: HashMap<usize, Known>,
    /// Whether taking events has become unsound (8).
    pub(super) broken: bool,
}

/// A living id.
pub(super) struct Known {
    pub(super) key: IdKey,
    pub(super) datagram: bool,
    /// The options of the path, which ids of requests have from their listener.
    pub(super) path: PathOptions,
    /// The multicast groups that the id joined, with the number that names each in events.
    pub(super) groups: Vec<(u64, SocketAddr)>,
}

impl EventChannelInner {
    pub(super) fn check(&self, operation: Verb) -> Result<()> {
        fork::check(self.fork, operation)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ChannelState> {
        // A poisoned lock is usable: no code under the lock panics with the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for EventChannelInner {
    const DESTROY: Verb = Verb::DestroyEventChannel;
    const NAME: &'static str = "an event channel";

    fn made_in(&self) -> u32 {
        self.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: rdma_destroy_event_channel requires a live channel of this table without ids:
        // this function's contract, and the ids' `Arc` of the channel (1).
        unsafe { (self.table.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        Ok(())
    }
}

impl EventChannel {
    /// Opens a channel to the connection manager of this host's devices: the system's librdmacm, or
    /// the software device's on a host without RDMA hardware.
    ///
    /// # Errors
    ///
    /// `NotSupported` without librdmacm; `NoDevice` without any device; `NotFound` or
    /// `PermissionDenied` without `/dev/infiniband/rdma_cm`.
    ///
    /// # Examples
    ///
    /// A server makes what it needs on a device when the first request comes there:
    ///
    /// ```no_run
    /// use std::collections::HashMap;
    /// use rdma::cm::{EventChannel, EventKind};
    /// use rdma::{Error, QueuePair, RemoteAccess};
    /// use rdma::transport::Rc;
    ///
    /// let channel = EventChannel::new()?;
    /// let listener = channel.create_id::<Rc>()?;
    /// // All addresses of all devices.
    /// listener.bind_addr("0.0.0.0:7174".parse()?)?;
    /// listener.listen(128)?;
    /// let mut domains = HashMap::new();
    /// while let Some(event) = channel.next_event(None)? {
    ///     let EventKind::ConnectRequest(request) = event.kind else { continue };
    ///     let context = request.context()?;
    ///     if !domains.contains_key(&context.name()) {
    ///         domains.insert(context.name(), (context.alloc_pd()?, context.create_cq(1024)?));
    ///     }
    ///     let (pd, cq) = &domains[&context.name()];
    ///     let qp = QueuePair::builder(pd).cq(cq).build()?;
    ///     let qp = request.init(qp, RemoteAccess::empty()).map_err(Error::from)?;
    ///     // Post receives, and accept.
    ///     # drop(qp);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        fork::watch();
        Self::with(Manager::of_host()?)
    }

    /// Opens a channel to the connection manager that serves a context's device, and other devices
    /// beside it: the system's librdmacm, or the software device's.
    ///
    /// Ids on the context's device tell this context.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    #[doc(alias = "rdma_create_event_channel")]
    pub fn of(context: &Context) -> Result<Self> {
        context.inner.check(Verb::CreateEventChannel)?;
        Self::with(Manager::of(context)?)
    }

    /// Opens another channel to the same connection manager.
    pub(super) fn another(&self) -> Result<Self> {
        self.inner.check(Verb::CreateEventChannel)?;
        Self::with(self.inner.manager.clone())
    }

    /// Makes the channel's descriptor readable while another one is, too.
    #[cfg(feature = "aio")]
    pub(crate) fn watch_too(&self, other: std::os::fd::BorrowedFd<'_>) -> Result<()> {
        self.inner.events.watch_too(other)
    }

    fn with(manager: Manager) -> Result<Self> {
        let table = manager.table;
        // SAFETY: rdma_create_event_channel has no requirements.
        let call = || unsafe { (table.rdma_create_event_channel)() };
        let raw = errno::created(call).map_err(|errno| reason::from_errno(Verb::CreateEventChannel, errno))?;
        // SAFETY: as_ref requires a live channel, which nobody changes: just made, and its `fd` is
        // constant.
        let fd = unsafe { raw.as_ref() }.fd;
        // SAFETY: EventDescriptor::new requires a descriptor that stays open: the new value owns
        // the channel (1).
        let events = unsafe { EventDescriptor::new(fd) }.inspect_err(|_| {
            // SAFETY: rdma_destroy_event_channel requires a live channel of this table without ids:
            // it was just made, and no other owner exists.
            unsafe { (table.rdma_destroy_event_channel)(raw.as_ptr()) };
        })?;
        let (raw, fork) = (Raw::new(raw.as_ptr()), fork::generation());
        let inner = Handle::new(EventChannelInner { raw, table, manager, fork, state: Mutex::default(), events });
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// Locks two channels, in the order of their addresses (3), so that two migrations cannot deadlock.
pub(super) fn lock_both<'a>(
    first: &'a EventChannelInner,
    second: &'a EventChannelInner,
) -> (MutexGuard<'a, ChannelState>, MutexGuard<'a, ChannelState>) {
    if ptr::from_ref(first) < ptr::from_ref(second) {
        let first = first.lock();
        (first, second.lock())
    } else {
        let second = second.lock();
        (first.lock(), second)
    }
}

lends_descriptor! {
    EventChannel, inner.events
}

debug_by_methods!(EventChannel: as_raw_fd);
