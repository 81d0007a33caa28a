//! Ids: sides of connections, and listeners. Numbers cite the invariants of [`super`].

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rdma_sys::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
    RdmaCm, ibv_device, ibv_event_type, rdma_cm_id,
};

use super::PortSpace;
use super::channel::{ChannelState, EventChannel, EventChannelInner, IdKey, Known, lock_both};
use super::reason;
use super::sockaddr::{self, RawAddr};
use crate::context::AsyncEventKind;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::{Handle, Object, Raw};
use crate::types::{AckTimeout, PathOptions, TransportType, WrongDevice};

/// The owner of a librdmacm id (2).
pub(crate) struct RawId {
    raw: Raw<rdma_cm_id>,
    pub(super) channel: Arc<Handle<EventChannelInner>>,
    pub(super) key: IdKey,
}

/// An id, with its channel's lock held (3).
pub(super) struct Locked<'a> {
    pub(super) state: MutexGuard<'a, ChannelState>,
    pub(super) table: &'static RdmaCm,
    pub(super) raw: *mut rdma_cm_id,
}

impl Locked<'_> {
    /// The device that the id is bound to, which lives as long as the lock is held.
    fn device(&self) -> Option<NonNull<ibv_device>> {
        // SAFETY: the read requires a live id that nobody writes to: (2), and the lock is held (3).
        let verbs = unsafe { (*self.raw).verbs };
        // SAFETY: the read requires an open context: librdmacm keeps the context of an id open as
        // long as the id lives (2), and the context's device does not change.
        let device = NonNull::new(verbs).map(|verbs| unsafe { (*verbs.as_ptr()).device })?;
        NonNull::new(device)
    }

    /// The name of the device that the id is bound to.
    fn device_name(&self) -> Option<&CStr> {
        let device = self.device()?;
        // SAFETY: the place must be in bounds of a live device: an open context keeps its device.
        let name = unsafe { &raw const (*device.as_ptr()).name };
        // SAFETY: from_ptr requires a NUL-terminated string that does not change while borrowed: a
        // device's name is constant, and the borrow of `self` holds the lock, which keeps the id.
        Some(unsafe { CStr::from_ptr(name.cast()) })
    }

    /// The channel's record of the id.
    pub(super) fn known(&mut self) -> Option<&mut Known> {
        self.state.ids.get_mut(&self.raw.addr())
    }

    /// Fails if the id is not bound to a device yet: librdmacm would dereference NULL (6).
    pub(super) fn require_device(&self, operation: Verb) -> Result<()> {
        match self.device_name() {
            Some(_) => Ok(()),
            None => Err(Error::new(operation, ErrorKind::InvalidInput)),
        }
    }
}

impl RawId {
    pub(super) fn lock(&self, operation: Verb) -> Result<Locked<'_>> {
        self.channel.check(operation)?;
        Ok(Locked { state: self.channel.lock(), table: self.channel.table, raw: self.raw.as_ptr() })
    }

    /// Calls a function of librdmacm that requires a live id (2), with the channel's lock held (3).
    pub(super) fn call(
        &self,
        operation: Verb,
        function: impl FnOnce(&'static RdmaCm, *mut rdma_cm_id) -> c_int,
    ) -> Result<()> {
        let locked = self.lock(operation)?;
        reason::check(operation, || function(locked.table, locked.raw))
    }

    /// Like `call`, for a function that dereferences the id's device: `InvalidInput`
    /// if the id is not bound to one (6).
    pub(super) fn call_bound(
        &self,
        operation: Verb,
        function: impl FnOnce(&'static RdmaCm, *mut rdma_cm_id) -> c_int,
    ) -> Result<()> {
        let locked = self.lock(operation)?;
        locked.require_device(operation)?;
        reason::check(operation, || function(locked.table, locked.raw))
    }

    pub(super) fn device_name(&self) -> Option<String> {
        let locked = self.lock(Verb::ResolveAddr).ok()?;
        locked.device_name().map(|name| name.to_string_lossy().into_owned())
    }

    /// The transport of the device that the id is bound to.
    pub(super) fn transport(&self, operation: Verb) -> Result<Option<TransportType>> {
        let locked = self.lock(operation)?;
        // SAFETY: the read requires a live device, whose transport is constant: the lock is held.
        let transport = locked.device().map(|device| unsafe { (*device.as_ptr()).transport_type });
        Ok(transport.map(|transport| TransportType::from_raw(transport.0)))
    }

    /// The context of the device that the id is bound to.
    pub(super) fn context(&self) -> Result<Context> {
        self.channel.check(Verb::OpenDevice)?;
        let name = self.device_name().ok_or(Error::new(Verb::OpenDevice, ErrorKind::InvalidInput))?;
        self.channel.manager.context_of(&name)
    }

    /// Fails if the id is not bound to the device that `context` is open on.
    pub(super) fn check_device(&self, operation: Verb, context: &Context) -> Result<()> {
        self.channel.check(operation)?;
        let found = self.device_name().ok_or(Error::new(operation, ErrorKind::InvalidInput))?;
        let open = context.name();
        if found == open && self.channel.manager.serves(context) {
            return Ok(());
        }
        Err(Error::new(operation, ErrorKind::WrongDevice(WrongDevice::new(&open, &found))))
    }

    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let Ok(locked) = self.lock(Verb::BindAddr) else { return (None, None) };
        // SAFETY: the read requires a live id that nobody writes to: (2), and the lock is held (3).
        let addr = unsafe { (*locked.raw).route.addr };
        // SAFETY: a union read requires initialized bytes that are a valid value: librdmacm
        // allocated the id as zeros, and integers may have any value.
        let source = unsafe { addr.__bindgen_anon_1.src_storage };
        // SAFETY: a union read requires initialized bytes that are a valid value: librdmacm
        // allocated the id as zeros, and `sockaddr_storage` is integers, which may have any value.
        let destination = unsafe { addr.__bindgen_anon_2.dst_storage };
        (sockaddr::from_storage(&source), sockaddr::from_storage(&destination))
    }

    fn port(&self) -> Option<u8> {
        let locked = self.lock(Verb::BindAddr).ok()?;
        // SAFETY: the read requires a live id that nobody writes to: (2), and the lock is held (3).
        let port = unsafe { (*locked.raw).port_num };
        locked.device_name().map(|_| port)
    }

    pub(super) fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        let new = &channel.inner;
        self.channel.check(Verb::MigrateId)?;
        new.check(Verb::MigrateId)?;
        if !ptr::eq(self.channel.table, new.table) {
            // Another implementation of the connection manager does not know this id.
            return Err(Error::new(Verb::MigrateId, ErrorKind::InvalidInput));
        }
        if Arc::ptr_eq(&self.channel, new) {
            return Ok(());
        }
        let (mut from, mut to) = lock_both(&self.channel, new);
        if from.broken {
            // The pending events of a group that could not be left would move along (8).
            return Err(Error::new(Verb::MigrateId, ErrorKind::NoDevice));
        }
        // SAFETY: rdma_migrate_id requires an id (2) and a channel (1) of this table, whose locks
        // are held (3). It does not wait: all events of the id were acknowledged as they were taken
        // (4). This is no forked child (7): `check` above.
        let call = || unsafe { (self.channel.table.rdma_migrate_id)(self.raw.as_ptr(), new.raw.as_ptr()) };
        reason::check(Verb::MigrateId, call)?;
        let address = self.raw.as_ptr().addr();
        if let Some(known) = from.ids.remove(&address) {
            to.ids.insert(address, known);
        }
        drop((from, to));
        self.channel = Arc::clone(new);
        Ok(())
    }

    /// The options of the path: those given, and those of the id where these are not set.
    pub(super) fn path(&self, given: PathOptions, operation: Verb) -> Result<PathOptions> {
        let mut locked = self.lock(operation)?;
        Ok(locked.known().map_or(given, |known| given.or(known.path)))
    }

    fn set_path(&self, path: &PathOptions) -> Result<()> {
        Error::check_option(Verb::SetOption, path.check())?;
        if let Some(class) = path.traffic_class {
            self.set_option(RDMA_OPTION_ID_TOS, class)?;
        }
        if let Some(timeout) = path.ack_timeout {
            self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, timeout.code())?;
        }
        self.update_path(|known| *known = *path)
    }

    /// Changes the recorded options of the path.
    fn update_path(&self, change: impl FnOnce(&mut PathOptions)) -> Result<()> {
        if let Some(known) = self.lock(Verb::SetOption)?.known() {
            change(&mut known.path);
        }
        Ok(())
    }

    fn set_option<T>(&self, option: u32, mut value: T) -> Result<()> {
        #[allow(clippy::cast_possible_wrap, reason = "small constants")]
        let (level, option) = (RDMA_OPTION_ID as c_int, option as c_int);
        let value: *mut c_void = (&raw mut value).cast();
        // SAFETY: rdma_set_option requires an id (2), whose lock is held (3), and a value of the
        // given size: `size_of::<T>()` bytes of `value`.
        self.call(Verb::SetOption, |cm, id| unsafe { (cm.rdma_set_option)(id, level, option, value, size_of::<T>()) })
    }
}

impl Object for RawId {
    const DESTROY: Verb = Verb::DestroyId;
    const NAME: &'static str = "an id of the connection manager";

    fn made_in(&self) -> u32 {
        self.channel.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        let mut state = self.channel.lock();
        let groups = state.ids.remove(&self.raw.as_ptr().addr()).map(|known| known.groups).unwrap_or_default();
        let mut stuck = false;
        for (_, address) in groups {
            let mut address = RawAddr::new(address);
            // SAFETY: rdma_leave_multicast requires a live id (this function's contract), whose
            // lock is held (3), and an address. If leaving fails, the destroy below removes the
            // group's events; if the destroy fails too, no event is taken any more (8).
            let left = unsafe { (self.channel.table.rdma_leave_multicast)(self.raw.as_ptr(), address.as_mut_ptr()) };
            stuck |= left != 0;
        }
        // SAFETY: rdma_destroy_id requires a live id (this function's contract), whose lock is held
        // (3). It does not wait: all events of the id were acknowledged as they were taken (4).
        let call = || unsafe { (self.channel.table.rdma_destroy_id)(self.raw.as_ptr()) };
        let done = reason::check(Verb::DestroyId, call);
        state.broken |= stuck && done.is_err();
        done
    }
}

/// Takes ownership of an id that librdmacm has just made on this channel (2, 5).
pub(super) fn adopt(
    channel: &Arc<Handle<EventChannelInner>>,
    state: &mut ChannelState,
    raw: NonNull<rdma_cm_id>,
    (datagram, path): (bool, PathOptions),
) -> Handle<RawId> {
    let key = IdKey::fresh();
    state.ids.insert(raw.as_ptr().addr(), Known { key, datagram, path, groups: Vec::new() });
    Handle::new(RawId { raw: Raw::new(raw.as_ptr()), channel: Arc::clone(channel), key })
}

/// Converts a timeout to whole milliseconds, at least 1, because librdmacm takes 0 as no time at
/// all; a timeout out of range becomes the longest one.
fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// One end of a connection, from before the connection exists, or a listener. `T` gives the port
/// space: TCP for [`Rc`](crate::transport::Rc).
///
/// Methods start steps. The outcome of a step arrives as an [`Event`](super::Event) of the channel,
/// which names the id by its [`key`](Self::key). Dropping an id ends its connection: the peer sees
/// `Disconnected`, and requests that wait at a listener are rejected.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// use rdma::cm::EventChannel;
/// use rdma::transport::Rc;
///
/// let channel = EventChannel::of(&context)?;
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
    /// Makes an id: one side of a future connection, or a listener.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// let id = channel.create_id::<rdma::transport::Rc>()?;
    /// assert!(id.local_addr().is_none(), "it is not bound");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_create_id")]
    pub fn create_id<T: PortSpace>(&self) -> Result<Id<T>> {
        let channel = &self.inner;
        channel.check(Verb::CreateId)?;
        let mut state = channel.lock();
        let mut raw: *mut rdma_cm_id = ptr::null_mut();
        // SAFETY: rdma_create_id requires a channel (1), whose lock is held (3), space for a
        // pointer, and any context pointer.
        let call = || unsafe {
            (channel.table.rdma_create_id)(channel.raw.as_ptr(), &raw mut raw, ptr::null_mut(), T::PORT_SPACE)
        };
        reason::check(Verb::CreateId, call)?;
        let raw = NonNull::new(raw).ok_or(Error::new(Verb::CreateId, ErrorKind::Unknown))?;
        Ok(Id::new(adopt(channel, &mut state, raw, (T::DATAGRAM, PathOptions::new()))))
    }
}

impl<T: PortSpace> Id<T> {
    pub(super) fn new(raw: Handle<RawId>) -> Self {
        Self { raw, space: PhantomData }
    }

    /// The id's key in events.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use rdma::cm::Id;
    /// use rdma::transport::Rc;
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

    /// The context of the device that the id is bound to: `cm_id->verbs` of C. Domains, queues and
    /// queue pairs for the id are made of it, or of any other context of the device.
    ///
    /// An id of a channel that was made [of a context](EventChannel::of), on the context's device,
    /// tells that one. Else the first call for a device opens it. The context stays open while a
    /// handle to it or an object of it lives, and until then all ids on the device tell the same,
    /// whatever their channels.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the id is not bound to a device: before its address is resolved, and for
    /// the unspecified address, which stands for all devices; `NoDevice` if the device is gone; the
    /// errors of [`Device::open`](crate::Device::open).
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma::cm::EventChannel;
    ///
    /// # let soft0 = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = EventChannel::of(&soft0)?;
    /// let id = channel.create_id::<rdma::transport::Rc>()?;
    /// assert!(id.context().is_err(), "nothing says yet which device it will be");
    /// id.bind_addr("127.0.0.1:0".parse()?)?;
    /// let pd = id.context()?.alloc_pd()?;
    /// # drop(pd);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn context(&self) -> Result<Context> {
        self.raw.context()
    }

    /// Binds to a local address. Port 0 chooses a free port: [`local_addr`](Self::local_addr) then
    /// returns it.
    ///
    /// The address of one interface binds the id to the interface's device; the unspecified address
    /// stands for the addresses of all devices.
    ///
    /// # Errors
    ///
    /// `NoRoute` if no RDMA device of this host has the address, or if another id has the port on
    /// all addresses; `AddressInUse`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// let id = channel.create_id::<rdma::transport::Rc>()?;
    /// id.bind_addr("127.0.0.1:0".parse()?)?;
    /// assert_ne!(id.local_addr().expect("it is bound").port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut raw = RawAddr::new(address);
        // SAFETY: rdma_bind_addr requires an id (2), whose lock is held (3), and an address as long
        // as its family says: `RawAddr` has space for every family.
        let done = self.raw.call(Verb::BindAddr, |cm, id| unsafe { (cm.rdma_bind_addr)(id, raw.as_mut_ptr()) });
        done.map_err(|error| match error.errno() {
            // The kernel returns EADDRNOTAVAIL also for an address that the host does not have; the
            // unspecified address always exists, so its port must be taken.
            Some(libc::EADDRNOTAVAIL) if address.ip().is_unspecified() => error.with_kind(ErrorKind::AddressInUse),
            _ => error,
        })
    }

    /// Starts to resolve an address, and binds the id to the device that leads there:
    /// `AddrResolved` or `AddrError` follows.
    ///
    /// # Errors
    ///
    /// `NoRoute` if librdmacm knows at once that no route leads to the address.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use std::time::Duration;
    /// use rdma::cm::EventKind;
    ///
    /// let id = channel.create_id::<rdma::transport::Rc>()?;
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
        // SAFETY: rdma_resolve_addr requires an id (2), whose lock is held (3), a source address or
        // NULL, and a destination address: both live during the call.
        self.raw.call(Verb::ResolveAddr, |cm, id| unsafe {
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
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use std::time::Duration;
    /// use rdma::cm::EventKind;
    ///
    /// let id = channel.create_id::<rdma::transport::Rc>()?;
    /// id.resolve_addr(None, "127.0.0.1:7174".parse()?, Duration::from_secs(2))?;
    /// channel.next_event(None)?;
    /// id.resolve_route(Duration::from_secs(2))?;
    /// let event = channel.next_event(None)?.expect("no time limit");
    /// assert!(matches!(event.kind, EventKind::RouteResolved));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: rdma_resolve_route requires an id (2), whose lock is held (3), that is bound to a
        // device (6).
        self.raw.call_bound(Verb::ResolveRoute, |cm, id| unsafe { (cm.rdma_resolve_route)(id, milliseconds(timeout)) })
    }

    /// Starts to listen: each peer that requests a connection makes an event. `backlog` is how many
    /// requests may wait for an answer; 0 means as many as the system allows.
    ///
    /// # Errors
    ///
    /// `AddressInUse` if another id listens at the address.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// let listener = channel.create_id::<rdma::transport::Rc>()?;
    /// listener.bind_addr("127.0.0.1:0".parse()?)?;
    /// listener.listen(64)?;
    /// assert!(channel.try_next_event()?.is_none(), "nobody has connected yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: rdma_listen requires an id (2), whose lock is held (3).
        self.raw.call(Verb::Listen, |cm, id| unsafe { (cm.rdma_listen)(id, backlog) })
    }

    getters! { |this|
        /// The local address, once known.
        #[doc(alias = "rdma_get_local_addr")]
        #[doc(alias = "rdma_get_src_port")]
        local_addr: Option<SocketAddr> = this.raw.addresses().0;
        /// The peer's address, once known.
        #[doc(alias = "rdma_get_peer_addr")]
        #[doc(alias = "rdma_get_dst_port")]
        peer_addr: Option<SocketAddr> = this.raw.addresses().1;
        /// The name of the device that the id is bound to, if it is bound.
        device_name: Option<String> = this.raw.device_name();
        /// The device's port that the id is bound to, if it is bound.
        port: Option<u8> = this.raw.port();
    }

    /// Sets the options of the path, in place of those set before. Call it before the route is
    /// resolved, or before listening: the requests of a listener have its options.
    ///
    /// The traffic class and the timeout are told to librdmacm, which tells the peer. librdmacm
    /// cannot be told to forget them: options without them leave the values of an earlier call with
    /// it. All options that are set hold for the queue pair of this side, unless those of
    /// [`ConnOptions`] say otherwise.
    ///
    /// For datagrams, the options of a route ([`apply_to`](PathOptions::apply_to)) change the path
    /// of [`UdPeer`](super::UdPeer), and the others have no effect. The path of a
    /// [`MulticastGroup`](super::MulticastGroup) is the group's: only the traffic class, as
    /// librdmacm applies it, holds there.
    ///
    /// # Errors
    ///
    /// `InvalidOption`, before anything is done; errors of librdmacm: `NotSupported` for a timeout
    /// on Linux before 5.1, and `InvalidInput` for a timeout of datagrams.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use rdma::{PathOptions, transport::Rc};
    ///
    /// let id = channel.create_id::<Rc>()?;
    /// // DSCP 26 is a class of its own on many lossless networks.
    /// id.set_path(&PathOptions::new().traffic_class(26 << 2))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`ConnOptions`]: super::ConnOptions
    #[doc(alias = "rdma_set_option")]
    pub fn set_path(&self, path: &PathOptions) -> Result<()> {
        self.raw.set_path(path)
    }

    /// Sets the type of service: the TOS byte of the IP header, or its translation on InfiniBand.
    /// It replaces the traffic class of [`set_path`](Self::set_path). Call it before the route is
    /// resolved.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_TOS, tos)?;
        self.raw.update_path(|path| path.traffic_class = Some(tos))
    }

    /// Sets how long the queue pair waits for an acknowledgement. It replaces the timeout of
    /// [`set_path`](Self::set_path). Call it before connecting or accepting.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for [`AckTimeout::INFINITE`] on some kernels.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, timeout: AckTimeout) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, timeout.code())?;
        self.raw.update_path(|path| path.ack_timeout = Some(timeout))
    }

    /// Sets whether other ids that allow it too may bind to the same address. Call it before
    /// binding.
    ///
    /// # Errors
    ///
    /// `InvalidInput` once the id is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_REUSEADDR, c_int::from(reuse))
    }

    /// Sets whether the unspecified IPv6 address stands for IPv6 only. Call it before binding.
    ///
    /// # Errors
    ///
    /// `InvalidInput` once the id is bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_af_only(&self, only: bool) -> Result<()> {
        self.raw.set_option(RDMA_OPTION_ID_AFONLY, c_int::from(only))
    }

    /// Moves the id, with its pending events, to another channel.
    ///
    /// On some kernels a listener moves without its pending requests: take them first.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a channel of another connection manager; `NoDevice` if the id's channel
    /// has lost a device that had joined groups. On error the id stays on its channel.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use rdma::cm::EventChannel;
    ///
    /// let mut id = channel.create_id::<rdma::transport::Rc>()?;
    /// let own = EventChannel::of(&context)?;
    /// id.migrate(&own)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.raw.migrate(channel)
    }

    /// Reports an asynchronous event of the connection's queue pair to librdmacm. Use it for
    /// [`COMM_EST`](AsyncEventKind::COMM_EST), which means that the peer's last connection message
    /// was lost. Nothing happens if the connection is established already.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for events that librdmacm does not handle.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: AsyncEventKind) -> Result<()> {
        let locked = self.raw.lock(Verb::Notify)?;
        // SAFETY: rdma_notify requires an id (2), whose lock is held (3), and takes any event
        // number.
        let call = || unsafe { (locked.table.rdma_notify)(locked.raw, ibv_event_type(event.as_raw())) };
        match reason::check(Verb::Notify, call) {
            // EISCONN: the connection was established meanwhile.
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
