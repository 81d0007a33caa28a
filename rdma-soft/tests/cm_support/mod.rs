//! Connection managers driven as a C program would, through the function table.
//!
//! An [`Id`] is destroyed when it is dropped, and a [`Channel`] when the last id that used it is
//! dropped; the `SAFETY` comments call an object "alive" until then.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma_sys::*;

/// Time to wait for an event that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Event = rdma_cm_event_type;

/// Whether the tests run on the system's librdmacm, as an oracle, with the device that has the
/// address in `RDMA_TEST_ADDRESS`.
pub(crate) fn on_system() -> bool {
    std::env::var_os("RDMA_SOFT_TEST_SYSTEM").is_some()
}

/// Runs an ignored test, given by its full name, in its own process, whose connection manager has
/// short timeouts.
pub(crate) fn with_short_times(test: &str) {
    rdma_test_support::passes_alone(&[test], &[("RDMA_SOFT_CM_TIMEOUT", "100")]);
}

/// The table under test.
pub(crate) fn cm() -> &'static RdmaCm {
    if on_system() { RdmaCm::system().unwrap() } else { rdma_soft::rdmacm() }
}

/// The address of the device under test.
fn home() -> IpAddr {
    match std::env::var("RDMA_TEST_ADDRESS") {
        Ok(address) if on_system() => address.parse().unwrap(),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The error number of a call that failed, or 0.
pub(crate) fn outcome(result: c_int) -> i32 {
    if result == 0 { 0 } else { errno() }
}

/// The device's own address.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(home(), port)
}

/// A socket address in C form.
#[repr(C)]
pub(crate) union Raw {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    storage: libc::sockaddr_storage,
}

pub(crate) fn raw(address: SocketAddr) -> Raw {
    // SAFETY: all-zero bytes are a valid value of this plain structure.
    let mut raw: Raw = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            raw.v4 = libc::sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
        }
        SocketAddr::V6(v6) => {
            raw.v6 = libc::sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).unwrap(),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
        }
    }
    raw
}

/// Reads a C socket address.
pub(crate) fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer = ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family is that of a `sockaddr_in`, and the storage is large enough and
            // aligned.
            let v4 = unsafe { pointer.cast::<libc::sockaddr_in>().read() };
            Some(SocketAddr::new(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that a sockaddr_in6 is there.
            let v6 = unsafe { pointer.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// An event channel.
#[derive(Debug)]
pub(crate) struct Channel(pub(crate) *mut rdma_event_channel, Arc<Owned>);

/// Destroys a channel with its last user.
#[derive(Debug)]
pub(crate) struct Owned(*mut rdma_event_channel);

// SAFETY: librdmacm's objects may be used by any thread.
unsafe impl Send for Channel {}
// SAFETY: a channel may be used by any thread.
unsafe impl Sync for Channel {}
// SAFETY: an object of librdmacm may be used by any thread.
unsafe impl Send for Owned {}
// SAFETY: an object of librdmacm may be used by any thread.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: alive until here.
        unsafe { (cm().rdma_destroy_event_channel)(self.0) };
    }
}

impl Channel {
    pub(crate) fn new() -> Self {
        // SAFETY: the function has no requirement.
        let channel = unsafe { (cm().rdma_create_event_channel)() };
        assert!(!channel.is_null(), "{}", io::Error::last_os_error());
        Self(channel, Arc::new(Owned(channel)))
    }

    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: alive, and nobody writes to it.
        unsafe { (*self.0).fd }
    }

    pub(crate) fn set_nonblocking(&self) {
        // SAFETY: F_GETFL takes no argument.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        // SAFETY: F_SETFL takes an int.
        assert_eq!(unsafe { libc::fcntl(self.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
    }

    /// Whether an event comes within `patience`.
    pub(crate) fn is_readable(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            let left = end.saturating_duration_since(Instant::now());
            let timeout = c_int::try_from(left.as_micros().div_ceil(1000)).unwrap();
            // SAFETY: one valid pollfd.
            match unsafe { libc::poll(&raw mut poll, 1, timeout) } {
                -1 if errno() == libc::EINTR => {}
                ready => return ready == 1 && poll.revents & libc::POLLIN != 0,
            }
        }
    }

    pub(crate) fn id(&self, ps: rdma_port_space) -> Id {
        let mut id = ptr::null_mut();
        // SAFETY: alive; `id` is valid for writes.
        let result = unsafe { (cm().rdma_create_id)(self.0, &raw mut id, ptr::null_mut(), ps) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        Id(id, Mutex::new(vec![Arc::clone(&self.1)]))
    }

    pub(crate) fn tcp(&self) -> Id {
        self.id(rdma_port_space::RDMA_PS_TCP)
    }

    pub(crate) fn udp(&self) -> Id {
        self.id(rdma_port_space::RDMA_PS_UDP)
    }

    /// The next event, not acknowledged.
    pub(crate) fn take(&self) -> *mut rdma_cm_event {
        assert!(self.is_readable(PATIENCE), "no event has come");
        let mut event = ptr::null_mut();
        // SAFETY: alive; `event` is valid for writes.
        assert_eq!(unsafe { (cm().rdma_get_cm_event)(self.0, &raw mut event) }, 0);
        event
    }

    /// The next event, copied and acknowledged.
    pub(crate) fn next(&self) -> Told {
        let event = self.take();
        let told = Told { keep: Some(Arc::clone(&self.1)), ..Told::of(event) };
        ack(event);
        told
    }

    /// The next event, which must be this one, with status 0.
    pub(crate) fn expect(&self, code: Event) -> Told {
        let told = self.next();
        assert_eq!((name(told.code), told.status), (name(code), 0));
        told
    }

    /// The next event, which must be this one, with this status.
    pub(crate) fn expect_status(&self, code: Event, status: i32) -> Told {
        let told = self.next();
        assert_eq!((name(told.code), told.status), (name(code), status));
        told
    }

    /// Fails if an event comes within `time`.
    pub(crate) fn expect_silence(&self, time: Duration) {
        if self.is_readable(time) {
            panic!("{:?}", self.next());
        }
    }
}

pub(crate) fn name(code: Event) -> String {
    // SAFETY: the function has no requirement.
    let text = unsafe { (cm().rdma_event_str)(code) };
    // SAFETY: a C string that stays.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub(crate) fn ack(event: *mut rdma_cm_event) {
    // SAFETY: an event that was taken and not acknowledged.
    assert_eq!(unsafe { (cm().rdma_ack_cm_event)(event) }, 0);
}

/// A copy of an event.
#[derive(Clone)]
pub(crate) struct Told {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) code: Event,
    pub(crate) status: i32,
    pub(crate) private: Vec<u8>,
    pub(crate) conn: rdma_conn_param,
    pub(crate) ud: rdma_ud_param,
    keep: Option<Arc<Owned>>,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} status {}", name(self.code), self.status)
    }
}

impl Told {
    pub(crate) fn of(event: *mut rdma_cm_event) -> Self {
        // SAFETY: taken and not acknowledged.
        let event = unsafe { &*event };
        // SAFETY: plain data of which every bit pattern is valid.
        let conn = unsafe { event.param.conn };
        // SAFETY: the event's kind says that this is the variant it has.
        let ud = unsafe { event.param.ud };
        let is_join = event.event == Event::RDMA_CM_EVENT_MULTICAST_JOIN;
        let private = if conn.private_data_len == 0 || is_join {
            Vec::new()
        } else {
            let len = usize::from(conn.private_data_len);
            // SAFETY: both kinds begin with the private data, which lives as long as the event.
            unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) }.to_vec()
        };
        let (id, listen_id) = (event.id, event.listen_id);
        Self { id, listen_id, code: event.event, status: event.status, private, conn, ud, keep: None }
    }

    /// The new id of a connection request.
    pub(crate) fn request(&self) -> Id {
        assert_eq!(name(self.code), "RDMA_CM_EVENT_CONNECT_REQUEST");
        Id(self.id, Mutex::new(self.keep.iter().cloned().collect()))
    }
}

/// Parameters of a call, with private data.
pub(crate) struct Param<'a>(pub(crate) rdma_conn_param, std::marker::PhantomData<&'a [u8]>);

pub(crate) fn param(private: &[u8], mut qp_num: u32) -> Param<'_> {
    if on_system() && qp_num < 16 {
        // The kernel treats a recently seen queue pair number as a stale connection.
        static NEXT: AtomicU32 = AtomicU32::new(1000);
        qp_num = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    let param = rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).unwrap(),
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry_count: 6,
        qp_num,
        ..Default::default()
    };
    Param(param, std::marker::PhantomData)
}

/// An id and the channels that it has used.
#[derive(Debug)]
pub(crate) struct Id(pub(crate) *mut rdma_cm_id, Mutex<Vec<Arc<Owned>>>);

// SAFETY: librdmacm's objects may be used by any thread.
unsafe impl Send for Id {}
// SAFETY: an id may be used by any thread.
unsafe impl Sync for Id {}

impl Id {
    /// An id that C made, with a channel of its own.
    pub(crate) fn adopt(id: *mut rdma_cm_id) -> Self {
        Self(id, Mutex::default())
    }

    /// An id with a channel of its own.
    pub(crate) fn sync(ps: rdma_port_space) -> Self {
        let mut id = ptr::null_mut();
        // SAFETY: without a channel; `id` is valid for writes.
        assert_eq!(unsafe { (cm().rdma_create_id)(ptr::null_mut(), &raw mut id, ptr::null_mut(), ps) }, 0);
        Self::adopt(id)
    }

    /// The public part.
    pub(crate) fn public(&self) -> rdma_cm_id {
        // SAFETY: alive, and no call is under way that writes to it.
        unsafe { *self.0 }
    }

    pub(crate) fn bind(&self, to: SocketAddr) -> i32 {
        let mut to = raw(to);
        // SAFETY: alive; an address.
        outcome(unsafe { (cm().rdma_bind_addr)(self.0, (&raw mut to).cast()) })
    }

    pub(crate) fn resolve_addr(&self, to: SocketAddr) -> i32 {
        let mut to = raw(to);
        // SAFETY: alive; no source, an address.
        outcome(unsafe { (cm().rdma_resolve_addr)(self.0, ptr::null_mut(), (&raw mut to).cast(), 1000) })
    }

    pub(crate) fn resolve_addr_from(&self, from: SocketAddr, to: SocketAddr) -> i32 {
        let (mut from, mut to) = (raw(from), raw(to));
        // SAFETY: alive; addresses.
        outcome(unsafe { (cm().rdma_resolve_addr)(self.0, (&raw mut from).cast(), (&raw mut to).cast(), 1000) })
    }

    pub(crate) fn resolve_route(&self) -> i32 {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_resolve_route)(self.0, 1000) })
    }

    pub(crate) fn listen(&self, backlog: c_int) -> i32 {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_listen)(self.0, backlog) })
    }

    pub(crate) fn connect(&self, private: &[u8], qp_num: u32) -> i32 {
        self.connect_with(&mut param(private, qp_num).0)
    }

    pub(crate) fn connect_with(&self, param: *mut rdma_conn_param) -> i32 {
        // SAFETY: alive; parameters or null.
        outcome(unsafe { (cm().rdma_connect)(self.0, param) })
    }

    pub(crate) fn accept(&self, private: &[u8], qp_num: u32) -> i32 {
        self.accept_with(&mut param(private, qp_num).0)
    }

    pub(crate) fn accept_with(&self, param: *mut rdma_conn_param) -> i32 {
        // SAFETY: alive; parameters or null.
        outcome(unsafe { (cm().rdma_accept)(self.0, param) })
    }

    pub(crate) fn establish(&self) -> i32 {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_establish)(self.0) })
    }

    pub(crate) fn reject(&self, private: &[u8]) -> i32 {
        let len = u8::try_from(private.len()).unwrap();
        // SAFETY: alive; the bytes and their length.
        outcome(unsafe { (cm().rdma_reject)(self.0, private.as_ptr().cast(), len) })
    }

    pub(crate) fn disconnect(&self) -> i32 {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_disconnect)(self.0) })
    }

    pub(crate) fn notify(&self, event: ibv_event_type) -> i32 {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_notify)(self.0, event) })
    }

    pub(crate) fn migrate(&self, channel: Option<&Channel>) -> i32 {
        self.1.lock().unwrap().extend(channel.map(|channel| Arc::clone(&channel.1)));
        let channel = channel.map_or(ptr::null_mut(), |channel| channel.0);
        // SAFETY: both are alive.
        outcome(unsafe { (cm().rdma_migrate_id)(self.0, channel) })
    }

    pub(crate) fn set_option<T>(&self, level: u32, option: u32, mut value: T) -> i32 {
        let value: *mut c_void = (&raw mut value).cast();
        // SAFETY: alive; a value of that length.
        outcome(unsafe { (cm().rdma_set_option)(self.0, level as c_int, option as c_int, value, size_of::<T>()) })
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let public = self.public();
        // SAFETY: every bit pattern is a storage.
        address(unsafe { &public.route.addr.__bindgen_anon_1.src_storage })
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        let public = self.public();
        // SAFETY: every bit pattern is a storage.
        address(unsafe { &public.route.addr.__bindgen_anon_2.dst_storage })
    }

    pub(crate) fn port(&self) -> u16 {
        // SAFETY: alive.
        u16::from_be(unsafe { (cm().rdma_get_src_port)(self.0) })
    }

    /// The attributes and mask for a transition to `state`, or the error number.
    pub(crate) fn attributes(&self, state: ibv_qp_state) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), i32> {
        let mut attr = ibv_qp_attr { qp_state: state, ..Default::default() };
        let mut mask = 0;
        // SAFETY: alive; both are valid for reads and writes.
        match unsafe { (cm().rdma_init_qp_attr)(self.0, &raw mut attr, &raw mut mask) } {
            0 => Ok((attr, ibv_qp_attr_mask(mask as u32))),
            _ => Err(errno()),
        }
    }

    /// Returns the raw id without destroying it.
    pub(crate) fn leak(self) -> *mut rdma_cm_id {
        self.1.lock().unwrap().clear();
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: alive until here, its events acknowledged.
        let destroyed = unsafe { (cm().rdma_destroy_id)(self.0) };
        assert!(destroyed == 0 || std::thread::panicking());
    }
}

/// A listener on any port of the loopback address, with its channel.
pub(crate) fn listener(ps: rdma_port_space, backlog: c_int) -> (Id, Channel, SocketAddr) {
    let channel = Channel::new();
    let id = channel.id(ps);
    assert_eq!(id.bind(loopback(0)), 0);
    assert_eq!(id.listen(backlog), 0);
    let address = loopback(id.port());
    (id, channel, address)
}

/// An id with the route to an address resolved, with its channel.
pub(crate) fn resolved(ps: rdma_port_space, to: SocketAddr) -> (Id, Channel) {
    let channel = Channel::new();
    let id = channel.id(ps);
    resolve(&id, &channel, to);
    (id, channel)
}

pub(crate) fn resolve(id: &Id, channel: &Channel, to: SocketAddr) {
    assert_eq!(id.resolve_addr(to), 0);
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(id.resolve_route(), 0);
    channel.expect(Event::RDMA_CM_EVENT_ROUTE_RESOLVED);
}

/// Both sides of a connection without queue pairs, each with its own channel.
pub(crate) struct Pair {
    pub(crate) active: (Id, Channel),
    pub(crate) passive: (Id, Channel),
    pub(crate) listener: Id,
}

pub(crate) fn connected() -> Pair {
    let (listener, channel, to) = listener(rdma_port_space::RDMA_PS_TCP, 8);
    let active = resolved(rdma_port_space::RDMA_PS_TCP, to);
    assert_eq!(active.0.connect(b"hello", 1), 0);
    let passive = channel.next().request();
    assert_eq!(passive.accept(b"welcome", 1), 0);
    active.1.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(active.0.establish(), 0);
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    Pair { active, passive: (passive, channel), listener }
}

/// Waits until `holds` returns true.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
