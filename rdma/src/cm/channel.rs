//! Event channels. Numbers cite the invariants of [`super`].

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma_sys::{RdmaCm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};

use super::event::{self, ConnectionParameters, Event, EventKind, PrivateData};
use super::id::{Id, RawId};
use super::reason;
use super::request::ConnectRequest;
use super::{PortSpace, table};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::handle::{Handle, Object, Raw};
use crate::wait::{Deadline, EventDescriptor};

/// Names an id in its events. Never used twice in a process, so a late event cannot name a newer id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdKey(u64);

impl IdKey {
    fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Display for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the events of any number of ids arrive, of the connection manager that the context's device belongs to.
///
/// The descriptor ([`AsFd`]) is readable while events wait: it fits poll, epoll and async runtimes, and is good for nothing else (it is an
/// epoll that watches librdmacm's). An event is acknowledged before it is returned and names its id by [`IdKey`]. Clones are handles
/// to the same channel; its ids keep it.
///
/// One lock guards the channel and its ids. It is held for the length of a system call; on iWARP that of a
/// [`connect`](Id::connect) may take as long as TCP needs to reach the peer, so that ids which connect want channels of their own there.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::cm::EventChannel;
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let channel = match EventChannel::new(&context) {
///     Ok(channel) => channel,
///     Err(error) => return Ok(println!("no connection manager: {error}")),
/// };
/// assert!(channel.next_event(Some(Duration::from_millis(1)))?.is_none(), "nobody has asked for anything");
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_event_channel")]
#[derive(Clone)]
pub struct EventChannel {
    pub(super) inner: Arc<Handle<ChannelInner>>,
}

/// The channel itself (1).
pub(crate) struct ChannelInner {
    pub(super) raw: Raw<rdma_event_channel>,
    pub(super) table: &'static RdmaCm,
    pub(super) context: Context,
    state: Mutex<State>,
    /// librdmacm's descriptor (9).
    events: EventDescriptor,
}

/// What the lock guards, besides librdmacm's own data (3).
#[derive(Default)]
pub(super) struct State {
    /// The living ids of this channel by their addresses (5).
    pub(super) ids: HashMap<usize, Known>,
    /// No event can be taken any more (8).
    pub(super) broken: bool,
}

/// An id that lives.
pub(super) struct Known {
    pub(super) key: IdKey,
    pub(super) datagram: bool,
    /// The multicast groups that it joined, by the number that events name them with.
    pub(super) groups: Vec<(u64, SocketAddr)>,
}

impl ChannelInner {
    pub(super) fn check(&self, operation: Operation) -> Result<()> {
        self.context.inner.check(operation)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics with the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for ChannelInner {
    const DESTROY: Operation = Operation::DestroyEventChannel;
    const NAME: &'static str = "an event channel";

    fn made_in(&self) -> u32 {
        self.context.inner.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: rdma_destroy_event_channel wants a live channel of this table without ids: this function's contract.
        unsafe { (self.table.rdma_destroy_event_channel)(self.raw.as_ptr()) };
        Ok(())
    }
}

/// What came out of the channel.
enum Taken {
    Nothing,
    Event(Event),
    /// Of an id that is gone. The request that it may have brought ends when this is dropped, after the lock.
    Stray(#[allow(dead_code, reason = "its drop is what it is for")] Option<Handle<RawId>>),
    /// A request whose id uses another channel (5).
    Elsewhere,
}

impl EventChannel {
    /// Opens a channel to the connection manager of the context's device: the system's librdmacm, or that of the software device.
    ///
    /// # Errors
    ///
    /// `NotSupported` without librdmacm; `NotFound` or `PermissionDenied` without `/dev/infiniband/rdma_cm`.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new(context: &Context) -> Result<Self> {
        context.inner.check(Operation::CreateEventChannel)?;
        let table = table(context)?;
        // SAFETY: rdma_create_event_channel asks for nothing.
        let raw = unsafe { (table.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(|| reason::last(Operation::CreateEventChannel))?;
        // SAFETY: just made, so alive; this field does not change.
        let fd = unsafe { raw.as_ref() }.fd;
        // SAFETY: EventDescriptor::new wants a descriptor that stays open: the new value keeps the channel (1).
        let events = unsafe { EventDescriptor::new(fd) }.inspect_err(|_| {
            // SAFETY: rdma_destroy_event_channel wants a channel of this table without ids: just made.
            unsafe { (table.rdma_destroy_event_channel)(raw.as_ptr()) };
        })?;
        let raw = Raw::new(raw.as_ptr());
        let inner = Handle::new(ChannelInner { raw, table, context: context.clone(), state: Mutex::default(), events });
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes an id: one end of a connection to be, or a listener.
    ///
    /// # Errors
    ///
    /// What librdmacm reports.
    #[doc(alias = "rdma_create_id")]
    pub fn create_id<T: PortSpace>(&self) -> Result<Id<T>> {
        let channel = &self.inner;
        channel.check(Operation::CreateId)?;
        let mut state = channel.lock();
        let mut raw: *mut rdma_cm_id = ptr::null_mut();
        // SAFETY: rdma_create_id wants a channel (1), whose lock is held (3), room for a pointer, and any context.
        let result = unsafe {
            (channel.table.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), T::PORT_SPACE)
        };
        if result != 0 {
            return Err(reason::last(Operation::CreateId));
        }
        let raw = NonNull::new(raw).ok_or(Error::new(Operation::CreateId, ErrorKind::Unknown))?;
        Ok(Id::new(adopt(channel, &mut state, raw, T::DATAGRAM)))
    }

    /// Takes an event if there is one.
    ///
    /// With edge-triggered epoll, call it until there is none.
    ///
    /// # Errors
    ///
    /// What librdmacm reports; `NoDevice` once the channel has lost a device that had joined groups.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        loop {
            match self.take()? {
                Taken::Nothing => return Ok(None),
                Taken::Event(event) => return Ok(Some(event)),
                Taken::Stray(_) => {}
                Taken::Elsewhere => {
                    tracing::warn!("a request came while its listener moved to another channel; it is left unanswered");
                }
            }
        }
    }

    /// Waits for the next event; none after the timeout. Without a timeout it waits for ever.
    ///
    /// # Errors
    ///
    /// As for [`try_next_event`](Self::try_next_event).
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        self.next_event_until(Deadline::after(timeout))
    }

    pub(super) fn next_event_until(&self, deadline: Deadline) -> Result<Option<Event>> {
        self.inner.events.next(Operation::GetCmEvent, deadline, || self.try_next_event())
    }

    /// The open device that it was made for.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Takes one event, copies what is in it, and acknowledges it (4).
    fn take(&self) -> Result<Taken> {
        let channel = &self.inner;
        channel.check(Operation::GetCmEvent)?;
        let mut state = channel.lock();
        if state.broken {
            return Err(Error::new(Operation::GetCmEvent, ErrorKind::NoDevice));
        }
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: rdma_get_cm_event wants a channel (1), whose lock is held (3), and room for a pointer; the descriptor is
        // non-blocking. The ids that it writes to live: destroying one takes its events with it.
        let result = unsafe { (channel.table.rdma_get_cm_event)(channel.raw.as_ptr(), &raw mut event) };
        if result != 0 {
            return reason::last(Operation::GetCmEvent).or_nothing().map(|event| event.unwrap_or(Taken::Nothing));
        }
        if event.is_null() {
            return Err(Error::new(Operation::GetCmEvent, ErrorKind::Unknown));
        }
        // SAFETY: the event just taken lives until it is acknowledged (4); all its fields are integers and pointers.
        let copy = unsafe { *event };
        // SAFETY: as above; the private data that it points to, too.
        let data = unsafe { event::private_data(&copy) };
        // SAFETY: rdma_ack_cm_event wants an event that was taken, once.
        unsafe { (channel.table.rdma_ack_cm_event)(event) };
        Ok(sort(channel, &mut state, &copy, data))
    }
}

/// Whose event this is, and what it says.
fn sort(channel: &Arc<Handle<ChannelInner>>, state: &mut State, raw: &rdma_cm_event, data: PrivateData) -> Taken {
    if raw.event != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
        return match state.ids.get(&raw.id.addr()) {
            Some(known) => Taken::Event(Event { id: known.key, kind: event::decode(raw, data, known) }),
            None => Taken::Stray(None),
        };
    }
    let listener = state.ids.get(&raw.listen_id.addr()).map(|listener| (listener.key, listener.datagram));
    // A second owner of an id that lives would destroy it twice (5).
    let Some(new) = NonNull::new(raw.id).filter(|new| !state.ids.contains_key(&new.as_ptr().addr())) else {
        return Taken::Stray(None);
    };
    // SAFETY: librdmacm has just made the id, and nobody else knows it.
    let on = unsafe { (*new.as_ptr()).channel };
    if on != channel.raw.as_ptr() {
        return Taken::Elsewhere;
    }
    let datagram = listener.is_some_and(|(_, datagram)| datagram);
    let id = adopt(channel, state, new, datagram);
    let Some((listener, _)) = listener else {
        return Taken::Stray(Some(id));
    };
    let kind = if datagram {
        EventKind::UdConnectRequest(ConnectRequest::new(Id::new(id), listener, data, ConnectionParameters::default()))
    } else {
        EventKind::ConnectRequest(ConnectRequest::new(Id::new(id), listener, data, event::parameters(raw)))
    };
    Taken::Event(Event { id: listener, kind })
}

/// Takes over an id that librdmacm has just made on this channel (2, 5).
fn adopt(
    channel: &Arc<Handle<ChannelInner>>,
    state: &mut State,
    raw: NonNull<rdma_cm_id>,
    datagram: bool,
) -> Handle<RawId> {
    let key = IdKey::fresh();
    state.ids.insert(raw.as_ptr().addr(), Known { key, datagram, groups: Vec::new() });
    Handle::new(RawId::new(Raw::new(raw.as_ptr()), Arc::clone(channel), key))
}

/// The locks of two channels, in the order of their addresses (3).
pub(super) fn lock_both<'a>(
    first: &'a ChannelInner,
    second: &'a ChannelInner,
) -> (MutexGuard<'a, State>, MutexGuard<'a, State>) {
    if ptr::from_ref(first) < ptr::from_ref(second) {
        let first = first.lock();
        (first, second.lock())
    } else {
        let second = second.lock();
        (first.lock(), second)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.events.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> i32 {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}
