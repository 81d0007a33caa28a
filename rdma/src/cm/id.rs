//! Ids: ends of connections, and listeners. Numbers cite the invariants of [`super`].

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rdma_sys::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
    RdmaCm, ibv_event_type, rdma_cm_id,
};

use super::PortSpace;
use super::channel::{ChannelInner, EventChannel, IdKey, Known, State, lock_both};
use super::reason;
use super::sockaddr::{self, RawAddr};
use crate::context::AsyncEventKind;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::handle::{Handle, Object, Raw};
use crate::types::{AckTimeout, WrongDevice};

/// An id of librdmacm (2).
pub(crate) struct RawId {
    raw: Raw<rdma_cm_id>,
    pub(super) channel: Arc<Handle<ChannelInner>>,
    pub(super) key: IdKey,
}

/// An id under its channel's lock (3).
pub(super) struct Locked<'a> {
    pub(super) state: MutexGuard<'a, State>,
    pub(super) table: &'static RdmaCm,
    pub(super) raw: *mut rdma_cm_id,
}

impl Locked<'_> {
    /// The name of the device that the id is bound to.
    fn device_name(&self) -> Option<&CStr> {
        // SAFETY: the id lives (2) and nobody writes to it now (3).
        let verbs = unsafe { (*self.raw).verbs };
        // SAFETY: librdmacm keeps the context of an id open as long as the id; its device does not
        // change.
        let device = NonNull::new(verbs).map(|verbs| unsafe { (*verbs.as_ptr()).device })?;
        let device = NonNull::new(device)?;
        // SAFETY: an open context keeps its device.
        let name = unsafe { &raw const (*device.as_ptr()).name };
        // SAFETY: a device's name does not change and ends with a zero; it is used while the lock
        // keeps the id.
        Some(unsafe { CStr::from_ptr(name.cast()) })
    }

    /// What is known of the id.
    pub(super) fn known(&mut self) -> Option<&mut Known> {
        self.state.ids.get_mut(&self.raw.addr())
    }

    /// An error if the id is not bound to a device yet: librdmacm would look at it (6).
    pub(super) fn require_device(&self, operation: Operation) -> Result<()> {
        match self.device_name() {
            Some(_) => Ok(()),
            None => Err(Error::new(operation, ErrorKind::InvalidInput)),
        }
    }

    /// Whether the call worked; else `errno` says why.
    pub(super) fn done(&self, operation: Operation, result: c_int) -> Result<()> {
        match result {
            0 => Ok(()),
            -1 => Err(reason::last(operation)),
            errno => Err(reason::from_errno(operation, errno)),
        }
    }
}

impl RawId {
    pub(super) fn lock(&self, operation: Operation) -> Result<Locked<'_>> {
        self.channel.check(operation)?;
        Ok(Locked { state: self.channel.lock(), table: self.channel.table, raw: self.raw.as_ptr() })
    }

    /// Calls a function of librdmacm that wants a live id (2), under its channel's lock (3).
    pub(super) fn call(
        &self,
        operation: Operation,
        function: impl FnOnce(&'static RdmaCm, *mut rdma_cm_id) -> c_int,
    ) -> Result<()> {
        let locked = self.lock(operation)?;
        locked.done(operation, function(locked.table, locked.raw))
    }

    /// The same, of a function that looks at the id's device: `InvalidInput` if it has none (6).
    pub(super) fn call_bound(
        &self,
        operation: Operation,
        function: impl FnOnce(&'static RdmaCm, *mut rdma_cm_id) -> c_int,
    ) -> Result<()> {
        let locked = self.lock(operation)?;
        locked.require_device(operation)?;
        locked.done(operation, function(locked.table, locked.raw))
    }

    pub(super) fn device_name(&self) -> Option<String> {
        let locked = self.lock(Operation::ResolveAddr).ok()?;
        locked.device_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// An error if the id is bound to another device than the one that `context` is open on, or to
    /// none.
    pub(super) fn check_device(&self, operation: Operation, context: &Context) -> Result<()> {
        self.channel.check(operation)?;
        let found = self.device_name().ok_or(Error::new(operation, ErrorKind::InvalidInput))?;
        let open = context.name();
        if found == open && context.is_software() == self.channel.context.is_software() {
            return Ok(());
        }
        Err(Error::new(operation, ErrorKind::WrongDevice(WrongDevice::new(&open, &found))))
    }

    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let Ok(locked) = self.lock(Operation::BindAddr) else { return (None, None) };
        // SAFETY: the id lives (2) and nobody writes to it now (3).
        let addr = unsafe { (*locked.raw).route.addr };
        // SAFETY: integers, which may have any value; librdmacm allocated all of it as zeros.
        let source = unsafe { addr.__bindgen_anon_1.src_storage };
        // SAFETY: a union of C structures of integers, for which zeros and any other bytes are
        // values.
        let destination = unsafe { addr.__bindgen_anon_2.dst_storage };
        (sockaddr::from_storage(&source), sockaddr::from_storage(&destination))
    }

    fn port(&self) -> Option<u8> {
        let locked = self.lock(Operation::BindAddr).ok()?;
        // SAFETY: the id lives (2) and nobody writes to it now (3).
        let port = unsafe { (*locked.raw).port_num };
        locked.device_name().map(|_| port)
    }

    pub(super) fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        let new = &channel.inner;
        self.channel.check(Operation::MigrateId)?;
        new.check(Operation::MigrateId)?;
        if !ptr::eq(self.channel.table, new.table) {
            // The other implementation does not know this id.
            return Err(Error::new(Operation::MigrateId, ErrorKind::InvalidInput));
        }
        if Arc::ptr_eq(&self.channel, new) {
            return Ok(());
        }
        let (mut from, mut to) = lock_both(&self.channel, new);
        if from.broken {
            // The events of a group that was not left would come along (8).
            return Err(Error::new(Operation::MigrateId, ErrorKind::NoDevice));
        }
        // SAFETY: rdma_migrate_id wants an id (2) and a channel (1) of this table, whose locks are
        // held (3). All events of the id were acknowledged as they were taken (4), so it does not
        // wait. No forked child (7).
        let result = unsafe { (self.channel.table.rdma_migrate_id)(self.raw.as_ptr(), new.raw.as_ptr()) };
        if result != 0 {
            return Err(reason::last(Operation::MigrateId));
        }
        let address = self.raw.as_ptr().addr();
        if let Some(known) = from.ids.remove(&address) {
            to.ids.insert(address, known);
        }
        drop((from, to));
        self.channel = Arc::clone(new);
        Ok(())
    }

    fn set_option<T>(&self, option: u32, mut value: T) -> Result<()> {
        #[allow(clippy::cast_possible_wrap, reason = "small constants")]
        let (level, option) = (RDMA_OPTION_ID as c_int, option as c_int);
        let value: *mut c_void = (&raw mut value).cast();
        // SAFETY: rdma_set_option wants an id (2), whose lock is held (3), and a value of the size
        // that it is told.
        self.call(Operation::SetOption, |cm, id| unsafe {
            (cm.rdma_set_option)(id, level, option, value, size_of::<T>())
        })
    }
}

impl Object for RawId {
    const DESTROY: Operation = Operation::DestroyId;
    const NAME: &'static str = "an id of the connection manager";

    fn made_in(&self) -> u32 {
        self.channel.context.inner.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        let mut state = self.channel.lock();
        let groups = state.ids.remove(&self.raw.as_ptr().addr()).map(|known| known.groups).unwrap_or_default();
        let mut stuck = false;
        for (_, address) in groups {
            let mut address = RawAddr::new(address);
            // SAFETY: rdma_leave_multicast wants a live id (this function's contract), whose lock
            // is held (3), and an address. If it fails, the destroy below takes the events of the
            // group with it; if that fails, too, no event is taken any more (8).
            let left = unsafe { (self.channel.table.rdma_leave_multicast)(self.raw.as_ptr(), address.as_mut_ptr()) };
            stuck |= left != 0;
        }
        // SAFETY: rdma_destroy_id wants a live id (this function's contract), whose lock is held
        // (3). All its events were acknowledged as they were taken (4), so it does not wait.
        let result = unsafe { (self.channel.table.rdma_destroy_id)(self.raw.as_ptr()) };
        let done = if result == 0 { Ok(()) } else { Err(reason::last(Operation::DestroyId)) };
        state.broken |= stuck && done.is_err();
        done
    }
}

/// Takes over an id that librdmacm has just made on this channel (2, 5).
pub(super) fn adopt(
    channel: &Arc<Handle<ChannelInner>>,
    state: &mut State,
    raw: NonNull<rdma_cm_id>,
    datagram: bool,
) -> Handle<RawId> {
    let key = IdKey::fresh();
    state.ids.insert(raw.as_ptr().addr(), Known { key, datagram, groups: Vec::new() });
    Handle::new(RawId { raw: Raw::new(raw.as_ptr()), channel: Arc::clone(channel), key })
}

/// In milliseconds, at least one: 0 would be no time at all, and a time too long to be counted is
/// the longest.
fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// One end of a connection, from before it exists, or a listener: on the port space of `T`, TCP for
/// [`Rc`](crate::Rc).
///
/// Methods start things; their outcome arrives as an [`Event`](super::Event) of the channel, which
/// names the id by [`key`](Self::key). Dropping an id ends its connection: the peer sees
/// `Disconnected`, and requests that wait at a listener are rejected.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// use rdma::{Rc, cm::EventChannel};
///
/// let channel = EventChannel::new(&context)?;
/// let listener = channel.create_id::<Rc>()?;
/// listener.bind_addr("127.0.0.1:0".parse()?)?;
/// listener.listen(16)?;
/// println!("listening at {:?}", listener.local_addr());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "rdma_cm_id")]
pub struct Id<T: PortSpace> {
    pub(super) raw: Handle<RawId>,
    space: PhantomData<T>,
}

impl EventChannel {
    /// Makes an id: one end of a connection to be, or a listener.
    ///
    /// # Errors
    ///
    /// What librdmacm reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// let id = channel.create_id::<rdma::Rc>()?;
    /// assert_eq!(id.context().name(), context.name());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_create_id")]
    pub fn create_id<T: PortSpace>(&self) -> Result<Id<T>> {
        let channel = &self.inner;
        channel.check(Operation::CreateId)?;
        let mut state = channel.lock();
        let mut raw: *mut rdma_cm_id = ptr::null_mut();
        // SAFETY: rdma_create_id wants a channel (1), whose lock is held (3), room for a pointer,
        // and any context.
        let result = unsafe {
            (channel.table.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), T::PORT_SPACE)
        };
        if result != 0 {
            return Err(reason::last(Operation::CreateId));
        }
        let raw = NonNull::new(raw).ok_or(Error::new(Operation::CreateId, ErrorKind::Unknown))?;
        Ok(Id::new(adopt(channel, &mut state, raw, T::DATAGRAM)))
    }
}

impl<T: PortSpace> Id<T> {
    pub(super) fn new(raw: Handle<RawId>) -> Self {
        Self { raw, space: PhantomData }
    }

    /// Its name in events.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// use rdma::{Rc, cm::Id};
    ///
    /// // Events name ids, so that a server finds the connection that an event belongs to.
    /// let mut connections = std::collections::HashMap::new();
    /// let id: Id<Rc> = channel.create_id()?;
    /// connections.insert(id.key(), id);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(&self) -> IdKey {
        self.raw.key
    }

    /// The open device of its channel.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.raw.channel.context
    }

    /// Takes a local address. Port 0 takes a free one, which [`local_addr`](Self::local_addr) then
    /// tells.
    ///
    /// An address of one interface binds the id to its device; the unspecified address stands for
    /// all of them.
    ///
    /// # Errors
    ///
    /// `NoRoute` if the address is no RDMA device's of this host, or somebody has taken its port on
    /// all addresses; `AddressInUse`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// let id = channel.create_id::<rdma::Rc>()?;
    /// id.bind_addr("127.0.0.1:0".parse()?)?;
    /// assert_ne!(id.local_addr().expect("it is bound").port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut raw = RawAddr::new(address);
        // SAFETY: rdma_bind_addr wants an id (2), whose lock is held (3), and an address as long as
        // its family says.
        let done = self.raw.call(Operation::BindAddr, |cm, id| unsafe { (cm.rdma_bind_addr)(id, raw.as_mut_ptr()) });
        done.map_err(|error| match error.errno() {
            // The kernel says the same of an address that is not the host's, which the unspecified
            // one never is.
            Some(libc::EADDRNOTAVAIL) if address.ip().is_unspecified() => error.with_kind(ErrorKind::AddressInUse),
            _ => error,
        })
    }

    /// Starts to resolve an address, and binds to the device that leads there: `AddrResolved` or
    /// `AddrError` follows.
    ///
    /// # Errors
    ///
    /// `NoRoute` if it is already clear that there is no way there.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// use std::time::Duration;
    /// use rdma::cm::EventKind;
    ///
    /// let id = channel.create_id::<rdma::Rc>()?;
    /// id.resolve_addr(None, "127.0.0.1:7174".parse()?, Duration::from_secs(2))?;
    /// let event = channel.next_event(None)?.expect("no time limit");
    /// assert!(matches!(event.kind, EventKind::AddrResolved) && event.id == id.key());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(&self, source: Option<SocketAddr>, destination: SocketAddr, timeout: Duration) -> Result<()> {
        let mut source = source.map(RawAddr::new);
        let mut destination = RawAddr::new(destination);
        let source = source.as_mut().map_or(ptr::null_mut(), RawAddr::as_mut_ptr);
        // SAFETY: rdma_resolve_addr wants an id (2), whose lock is held (3), an address or NULL,
        // and an address.
        self.raw.call(Operation::ResolveAddr, |cm, id| unsafe {
            (cm.rdma_resolve_addr)(id, source, destination.as_mut_ptr(), milliseconds(timeout))
        })
    }

    /// Starts to resolve the route to a resolved address: `RouteResolved` or `RouteError` follows.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no address was resolved.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// use std::time::Duration;
    /// use rdma::cm::EventKind;
    ///
    /// let id = channel.create_id::<rdma::Rc>()?;
    /// id.resolve_addr(None, "127.0.0.1:7174".parse()?, Duration::from_secs(2))?;
    /// channel.next_event(None)?;
    /// id.resolve_route(Duration::from_secs(2))?;
    /// let event = channel.next_event(None)?.expect("no time limit");
    /// assert!(matches!(event.kind, EventKind::RouteResolved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: rdma_resolve_route wants an id (2), whose lock is held (3), that is bound to a
        // device (6).
        self.raw
            .call_bound(Operation::ResolveRoute, |cm, id| unsafe { (cm.rdma_resolve_route)(id, milliseconds(timeout)) })
    }

    /// Starts to listen: each peer that wants to connect makes an event. The backlog is how many
    /// may wait for an answer; 0 stands for as many as the system allows.
    ///
    /// # Errors
    ///
    /// `AddressInUse` if somebody else listens there.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// let listener = channel.create_id::<rdma::Rc>()?;
    /// listener.bind_addr("127.0.0.1:0".parse()?)?;
    /// listener.listen(64)?;
    /// assert!(channel.try_next_event()?.is_none(), "nobody has connected yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: rdma_listen wants an id (2), whose lock is held (3).
        self.raw.call(Operation::Listen, |cm, id| unsafe { (cm.rdma_listen)(id, backlog) })
    }

    getters! { |this|
        /// Our own address, once there is one.
        #[doc(alias = "rdma_get_local_addr")]
        #[doc(alias = "rdma_get_src_port")]
        local_addr: Option<SocketAddr> = this.raw.addresses().0;
        /// The peer's address, once there is one.
        #[doc(alias = "rdma_get_peer_addr")]
        #[doc(alias = "rdma_get_dst_port")]
        peer_addr: Option<SocketAddr> = this.raw.addresses().1;
        /// The name of the device that it is bound to, once it is.
        device_name: Option<String> = this.raw.device_name();
        /// The device's port that it is bound to, once it is.
        port: Option<u8> = this.raw.port();
    }

    /// The type of service, in IP's header or translated for InfiniBand. Set it before the route is
    /// resolved.
    ///
    /// # Errors
    ///
    /// What librdmacm reports.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_TOS, tos)
    }

    /// How long the queue pair shall wait for an acknowledgement. Set it before connecting or
    /// accepting.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for [`AckTimeout::INFINITE`] on some kernels.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, timeout: AckTimeout) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, timeout.code())
    }

    /// Whether others that allow it too may bind to the same address. Set it before binding.
    ///
    /// # Errors
    ///
    /// `InvalidInput` once it is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_REUSEADDR, c_int::from(reuse))
    }

    /// Whether the unspecified IPv6 address stands for IPv6 only. Set it before binding.
    ///
    /// # Errors
    ///
    /// `InvalidInput` once it is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_af_only(&self, only: bool) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_AFONLY, c_int::from(only))
    }

    /// Moves the id to another channel, with the events that wait.
    ///
    /// A listener moves without the requests that wait at it on some kernels: take them first.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a channel of another connection manager; `NoDevice` if the id's channel
    /// has lost a device that had joined groups. The id then stays where it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::new(&context)?;
    /// use rdma::cm::EventChannel;
    ///
    /// let mut id = channel.create_id::<rdma::Rc>()?;
    /// let own = EventChannel::new(&context)?;
    /// id.migrate(&own)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.raw.migrate(channel)
    }

    /// Tells librdmacm of an asynchronous event of the connection's queue pair: of
    /// [`COMM_EST`](AsyncEventKind::COMM_EST), which says that the peer's last message of the
    /// connection was lost. Nothing happens if the connection is established already.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for events that it has no use for.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: AsyncEventKind) -> Result<()> {
        let locked = self.raw.lock(Operation::Notify)?;
        // SAFETY: rdma_notify wants an id (2), whose lock is held (3), and passes the number on.
        let result = unsafe { (locked.table.rdma_notify)(locked.raw, ibv_event_type(event.as_raw())) };
        match locked.done(Operation::Notify, result) {
            // It came by itself meanwhile.
            Err(error) if error.errno() == Some(libc::EISCONN) => Ok(()),
            done => done,
        }
    }
}

impl<T: PortSpace> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, peer) = self.raw.addresses();
        f.debug_struct("Id")
            .field("key", &self.key())
            .field("local", &local)
            .field("peer", &peer)
            .finish_non_exhaustive()
    }
}
