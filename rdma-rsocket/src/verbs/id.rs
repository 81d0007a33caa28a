//! Connection identifiers and their event channels.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use libc::c_int;
use nix::errno::Errno;
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rdma_sys::{
    ibv_context, ibv_pd, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_get_local_addr,
    rdma_get_peer_addr, rdma_port_space,
};

use super::{Libraries, minus_one, pointer, set_nonblocking};

/// The requests of an id that has not been answered wait in a queue of this channel. Its descriptor
/// is readable while it has events, and never blocks.
#[derive(Debug)]
pub(crate) struct EventChannel {
    libraries: Libraries,
    raw: NonNull<rdma_event_channel>,
    fd: RawFd,
}

// SAFETY: Send requires that another thread may use and drop the value: calls on a channel may run
// in any thread (4), and the value owns it (2).
unsafe impl Send for EventChannel {}
// SAFETY: Sync requires that several threads may use the value: the library lets each of them take
// events of one channel (4).
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(crate) fn new(libraries: Libraries) -> Result<Self, Errno> {
        // SAFETY: the function has no requirement.
        let raw = pointer(|| unsafe { (libraries.cm.rdma_create_event_channel)() })?;
        // SAFETY: the read requires a live channel, which was just made.
        let fd = unsafe { raw.read() }.fd;
        let channel = Self { libraries, raw, fd };
        set_nonblocking(fd)?;
        Ok(channel)
    }

    /// Takes the next event and acknowledges it.
    pub(crate) fn next(&self) -> Result<Option<Event>, Errno> {
        let mut event = ptr::null_mut();
        // SAFETY: rdma_get_cm_event requires a live channel (2) and space for a pointer, a local.
        match minus_one(|| unsafe { (self.libraries.cm.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) }) {
            Ok(()) => (),
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // SAFETY: the borrow requires a live event that nobody changes: the library lends it until
        // it is acknowledged, below.
        let taken = Event::of(unsafe { &*event });
        // SAFETY: rdma_ack_cm_event requires an event that was taken and not acknowledged: this
        // one. `taken` holds copies.
        let _ignored = unsafe { (self.libraries.cm.rdma_ack_cm_event)(event) };
        Ok(Some(taken))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: rdma_destroy_event_channel requires a live channel without ids: an id holds its
        // channel (3).
        unsafe { (self.libraries.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// A copy of an event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: rdma_cm_event_type,
    status: c_int,
    id: *mut rdma_cm_id,
    /// The peer's private data of a connection event.
    pub(crate) private: Vec<u8>,
}

impl Event {
    fn of(event: &rdma_sys::rdma_cm_event) -> Self {
        let has_parameters =
            [rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED];
        let mut private = Vec::new();
        if has_parameters.contains(&event.event) {
            // SAFETY: the read requires the union's connection parameters, which these events have.
            let parameters = unsafe { event.param.conn };
            if !parameters.private_data.is_null() {
                let (data, len) = (parameters.private_data.cast(), parameters.private_data_len.into());
                // SAFETY: from_raw_parts requires `len` readable bytes: the event has so much
                // private data until it is acknowledged.
                private.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
            }
        }
        Self { kind: event.event, status: event.status, id: event.id, private }
    }

    /// The reason of a failed connection.
    pub(crate) fn errno(&self) -> Errno {
        match (self.kind, self.status) {
            (rdma_cm_event_type::RDMA_CM_EVENT_REJECTED, _) => Errno::ECONNREFUSED,
            (_, status) if status < 0 => Errno::from_raw(status.saturating_neg()),
            (rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE, _) => Errno::ETIMEDOUT,
            _ => Errno::ECONNRESET,
        }
    }
}

/// A connection identifier with a channel of its own.
#[derive(Debug)]
pub(crate) struct Id {
    raw: Arc<RawId>,
    channel: Arc<EventChannel>,
}

/// An identifier, which is destroyed on drop. The objects on its device hold it.
#[derive(Debug)]
pub(super) struct RawId {
    libraries: Libraries,
    raw: NonNull<rdma_cm_id>,
    /// The channel that the identifier is on.
    channel: Mutex<Arc<EventChannel>>,
}

// SAFETY: Send requires that another thread may use and drop the value: calls on an id may run in
// any thread, one at a time (4), and the value owns it (2).
unsafe impl Send for RawId {}
// SAFETY: Sync requires that several threads may use the value: a shared reference gives the
// pointer only, and calls with it need `&mut` of the `Id`, or of the queue pair that the same lock
// protects (4).
unsafe impl Sync for RawId {}

impl RawId {
    fn new(libraries: Libraries, raw: *mut rdma_cm_id, channel: Arc<EventChannel>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { libraries, raw: pointer(|| raw)?, channel: Mutex::new(channel) }))
    }

    pub(super) fn libraries(&self) -> Libraries {
        self.libraries
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        // SAFETY: rdma_destroy_id requires a live id (2) without queue pair: the pair holds its id
        // (3). All its events are acknowledged by `EventChannel::next`.
        let _ignored = unsafe { (self.libraries.cm.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

impl Id {
    /// A new identifier in a port space.
    pub(crate) fn new(libraries: Libraries, ports: rdma_port_space) -> Result<Self, Errno> {
        let channel = Arc::new(EventChannel::new(libraries)?);
        let mut id = ptr::null_mut();
        // SAFETY: rdma_create_id requires a live channel (2) and space for a pointer, a local.
        minus_one(|| unsafe {
            (libraries.cm.rdma_create_id)(channel.raw.as_ptr(), &raw mut id, ptr::null_mut(), ports)
        })?;
        Ok(Self { raw: RawId::new(libraries, id, Arc::clone(&channel))?, channel })
    }

    /// The channel's descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.fd
    }

    /// The channel's descriptor, open as long as the id exists.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: borrow_raw requires an open descriptor for the borrow's time: that of a live
        // channel (2), which the id holds (3).
        unsafe { BorrowedFd::borrow_raw(self.channel.fd) }
    }

    pub(crate) fn libraries(&self) -> Libraries {
        self.raw.libraries
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    /// The identifier for an object on its device, which keeps it alive.
    pub(super) fn share(&self) -> Arc<RawId> {
        Arc::clone(&self.raw)
    }

    fn cm(&self) -> &'static rdma_sys::RdmaCm {
        self.raw.libraries.cm
    }

    /// Takes the next event of the channel.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, Errno> {
        self.channel.next()
    }

    /// The new identifier of a connection request. It stays on this identifier's channel.
    pub(crate) fn requested(&self, request: &Event) -> Result<Request, Errno> {
        if request.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(Errno::EINVAL);
        }
        let raw = RawId::new(self.raw.libraries, request.id, Arc::clone(&self.channel))?;
        Ok(Request(Self { raw, channel: Arc::clone(&self.channel) }))
    }

    pub(crate) fn bind(&mut self, address: SocketAddr) -> Result<(), Errno> {
        let address = SockaddrStorage::from(address);
        // SAFETY: rdma_bind_addr requires a live id (2) and an address, which it only reads.
        minus_one(|| unsafe { (self.cm().rdma_bind_addr)(self.as_ptr(), address.as_ptr().cast_mut()) })
    }

    pub(crate) fn listen(&mut self, backlog: c_int) -> Result<(), Errno> {
        // SAFETY: rdma_listen requires a live id (2).
        minus_one(|| unsafe { (self.cm().rdma_listen)(self.as_ptr(), backlog) })
    }

    /// Begins to resolve an address, from a source address if one is given.
    pub(crate) fn resolve_address(
        &mut self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: c_int,
    ) -> Result<(), Errno> {
        let source = source.map(SockaddrStorage::from);
        let source = source.as_ref().map_or(ptr::null(), SockaddrLike::as_ptr).cast_mut();
        let destination = SockaddrStorage::from(destination);
        let to = destination.as_ptr().cast_mut();
        // SAFETY: rdma_resolve_addr requires a live id (2), NULL or an address, and an address;
        // both are locals, which it only reads.
        minus_one(|| unsafe { (self.cm().rdma_resolve_addr)(self.as_ptr(), source, to, timeout) })
    }

    pub(crate) fn resolve_route(&mut self, timeout: c_int) -> Result<(), Errno> {
        // SAFETY: rdma_resolve_route requires a live id (2).
        minus_one(|| unsafe { (self.cm().rdma_resolve_route)(self.as_ptr(), timeout) })
    }

    /// Sends a connection request with private data.
    pub(crate) fn connect(&mut self, private: &[u8]) -> Result<(), Errno> {
        let mut parameters = parameters(private)?;
        // SAFETY: rdma_connect requires a live id (2) and parameters, whose private data is
        // borrowed for the call.
        minus_one(|| unsafe { (self.cm().rdma_connect)(self.as_ptr(), &raw mut parameters) })
    }

    /// Accepts a connection request with private data.
    pub(crate) fn accept(&mut self, private: &[u8]) -> Result<(), Errno> {
        let mut parameters = parameters(private)?;
        // SAFETY: rdma_accept requires a live id (2) and parameters, whose private data is borrowed
        // for the call.
        minus_one(|| unsafe { (self.cm().rdma_accept)(self.as_ptr(), &raw mut parameters) })
    }

    pub(crate) fn reject(&mut self) {
        // SAFETY: rdma_reject requires a live id (2), and no data.
        let _ignored = unsafe { (self.cm().rdma_reject)(self.as_ptr(), ptr::null(), 0) };
    }

    pub(crate) fn disconnect(&mut self) {
        // SAFETY: rdma_disconnect requires a live id (2).
        let _ignored = unsafe { (self.cm().rdma_disconnect)(self.as_ptr()) };
    }

    pub(crate) fn set_option(&mut self, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        let [level, name] = [level, name].map(|number| c_int::try_from(number).unwrap_or(c_int::MAX));
        let data = value.as_ptr().cast_mut().cast();
        // SAFETY: rdma_set_option requires a live id (2) and a value of the length, which it only
        // reads.
        minus_one(|| unsafe { (self.cm().rdma_set_option)(self.as_ptr(), level, name, data, value.len()) })
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the function requires a live id (2).
        socket_address(unsafe { rdma_get_local_addr(self.as_ptr()) })
    }

    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the function requires a live id (2).
        socket_address(unsafe { rdma_get_peer_addr(self.as_ptr()) })
    }

    /// The port of the device; 0 before the id has one.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: the read requires a live id (2).
        unsafe { (*self.as_ptr()).port_num }
    }

    /// The context of the device and its domain. `ENODEV` before the id has a device.
    pub(super) fn device(&self) -> Result<(NonNull<ibv_context>, NonNull<ibv_pd>), Errno> {
        // SAFETY: the reference requires a live id (2) that nobody changes during the borrow: only
        // calls on it do (4).
        let id = unsafe { self.raw.raw.as_ref() };
        NonNull::new(id.verbs).zip(NonNull::new(id.pd)).ok_or(Errno::ENODEV)
    }
}

/// The identifier of a connection request, on the channel of its listener.
#[derive(Debug)]
pub(crate) struct Request(Id);

impl Request {
    pub(crate) fn id(&mut self) -> &mut Id {
        &mut self.0
    }

    /// Moves the identifier to a channel of its own, whose descriptor is the socket's number.
    /// Events that nobody has taken move too.
    pub(crate) fn migrate(self, channel: EventChannel) -> Result<Id, Errno> {
        let Self(Id { raw, .. }) = self;
        let channel = Arc::new(channel);
        let migrate = raw.libraries.cm.rdma_migrate_id;
        // SAFETY: rdma_migrate_id requires a live id and a live channel (2), and no event that is
        // not acknowledged: `EventChannel::next` acknowledges each.
        minus_one(|| unsafe { migrate(raw.as_ptr(), channel.raw.as_ptr()) })?;
        *raw.channel.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&channel);
        Ok(Id { raw, channel })
    }
}

/// Whether an event is of this identifier.
pub(crate) fn ids_match(event: &Event, id: &Id) -> bool {
    event.id == id.as_ptr()
}

/// The parameters of a stream's connection: no reads, and endless retries while a receive is
/// missing.
fn parameters(private: &[u8]) -> Result<rdma_conn_param, Errno> {
    Ok(rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len().try_into().map_err(|_| Errno::EINVAL)?,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..rdma_conn_param::default()
    })
}

/// An address of an id.
fn socket_address(address: *mut libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: from_raw requires an address of the length that its family has: the place is a
    // `sockaddr_storage` of a live id, which is large enough for each, and zero if it is not set.
    let address = unsafe { SockaddrStorage::from_raw(address, None) }?;
    to_std(&address)
}

/// An IPv4 or IPv6 address.
pub(crate) fn to_std(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}
