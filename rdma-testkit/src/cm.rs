//! A fake librdmacm for unit tests: ids live in memory, and the test makes the events. Numbers cite
//! the invariants of the crate.
//!
//! The fake checks for errors that would harm the real library: an id destroyed while it has
//! unacknowledged events, a channel destroyed while it has ids, and any object destroyed twice.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;

use libc::sockaddr;
use rdma_sys::*;

use super::world::{born, called, died, set_errno};

pub(crate) static TABLE: RdmaCm = RdmaCm {
    rdma_create_event_channel: create_event_channel,
    rdma_destroy_event_channel: destroy_event_channel,
    rdma_create_id: create_id,
    rdma_destroy_id: destroy_id,
    rdma_bind_addr: bind_addr,
    rdma_resolve_addr: resolve_addr,
    rdma_resolve_route: resolve_route,
    rdma_listen: listen,
    rdma_connect: connect,
    rdma_accept: accept,
    rdma_establish: establish,
    rdma_reject: reject,
    rdma_disconnect: disconnect,
    rdma_notify: notify,
    rdma_join_multicast: join_multicast,
    rdma_leave_multicast: leave_multicast,
    rdma_get_cm_event: get_cm_event,
    rdma_ack_cm_event: ack_cm_event,
    rdma_set_option: set_option,
    rdma_migrate_id: migrate_id,
    rdma_init_qp_attr: init_qp_attr,
    rdma_set_local_ece: set_local_ece,
    rdma_get_remote_ece: get_remote_ece,
    ..RdmaCm::UNSUPPORTED
};

/// The library's private data of an id.
#[repr(C)]
struct FakeId {
    base: rdma_cm_id,
    unacknowledged: Cell<u32>,
}

/// The library's private data of a channel.
#[repr(C)]
struct FakeChannel {
    base: rdma_event_channel,
    ids: Cell<u32>,
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    /// The private data.
    pub private_data: Vec<u8>,
    /// The reads and atomic operations that this side serves at a time.
    pub responder_resources: u8,
    /// The reads and atomic operations that this side has in flight at a time.
    pub initiator_depth: u8,
    /// The number of the queue pair.
    pub qpn: u32,
    /// The retries without an answer.
    pub retry_count: u8,
    /// The retries while no receive is posted.
    pub rnr_retry_count: u8,
}

#[derive(Default)]
struct CmWorld {
    events: VecDeque<(usize, rdma_cm_event, Vec<u8>)>,
    given: Option<Given>,
    /// The numbers and values of the options of one byte that were set, in order.
    options: Vec<(c_int, u8)>,
    /// The contexts given to joins of groups.
    joined: Vec<usize>,
    local_ece: Option<ibv_ece>,
    remote_ece: ibv_ece,
    /// The name of the device that ids get bound to.
    device: Option<&'static str>,
    attr: ibv_qp_attr,
    /// Whether requests succeed and raise the event of their success.
    answers: bool,
    /// The provider's ECE options, if it has any, and the options that it was told to use.
    provider_ece: Option<ibv_ece>,
    told_ece: Vec<ibv_ece>,
    /// An event that every channel returns while no other event waits, and how many times more.
    flood: Option<(rdma_cm_event, u32)>,
}

thread_local! {
    static CM: RefCell<CmWorld> = RefCell::default();
}

fn cm<R>(f: impl FnOnce(&mut CmWorld) -> R) -> R {
    CM.with_borrow_mut(f)
}

/// Sets the name of the device that ids are bound to from now on.
pub fn bind_to(device: &'static str) {
    cm(|cm| cm.device = Some(device));
}

/// The arguments of the last connect, accept or reject.
#[must_use]
pub fn given() -> Given {
    cm(|cm| cm.given.clone()).unwrap_or_default()
}

/// The numbers and values of the options of one byte that were set, in order.
#[must_use]
pub fn options() -> Vec<(c_int, u8)> {
    cm(|cm| cm.options.clone())
}

/// The contexts of the groups that were joined.
#[must_use]
pub fn joined() -> Vec<usize> {
    cm(|cm| cm.joined.clone())
}

/// The ECE options of this side, once they are set.
#[must_use]
pub fn local_ece() -> Option<ibv_ece> {
    cm(|cm| cm.local_ece)
}

/// Sets the ECE options of the peer.
pub fn set_remote_ece(ece: ibv_ece) {
    cm(|cm| cm.remote_ece = ece);
}

/// Makes requests succeed from now on: addresses and routes are resolved, peers accept, connections
/// are established.
pub fn answer() {
    cm(|cm| cm.answers = true);
}

/// Gives the provider ECE options.
pub fn set_provider_ece(ece: ibv_ece) {
    cm(|cm| cm.provider_ece = Some(ece));
}

/// The ECE options that the provider was told to use, in order.
#[must_use]
pub fn told_ece() -> Vec<ibv_ece> {
    cm(|cm| cm.told_ece.clone())
}

pub(crate) unsafe extern "C" fn query_ece(_: *mut ibv_qp, out: *mut ibv_ece) -> c_int {
    let Some(ece) = cm(|cm| cm.provider_ece) else { return libc::EOPNOTSUPP };
    // SAFETY: the caller gives space for the options.
    unsafe { *out = ece };
    0
}

pub(crate) unsafe extern "C" fn set_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller gives valid options.
    let ece = unsafe { *ece };
    cm(|cm| {
        cm.told_ece.push(ece);
        cm.provider_ece = Some(ece);
    });
    0
}

/// Raises the event of a call's success, if the call worked and requests succeed.
fn then(id: *mut rdma_cm_id, result: c_int, event: rdma_cm_event_type) -> c_int {
    if result == 0 && cm(|cm| cm.answers) {
        // SAFETY: the caller gives a live id of this fake (1).
        let channel = unsafe { (*id).channel };
        raise(channel, rdma_cm_event { id, event, ..rdma_cm_event::default() }, b"");
    }
    result
}

/// Sets the attributes that `rdma_init_qp_attr` returns besides state and port.
pub fn set_attr(attr: ibv_qp_attr) {
    cm(|cm| cm.attr = attr);
}

/// Raises an event of an id, with private data that lives until the event is acknowledged.
pub fn raise(channel: *mut rdma_event_channel, event: rdma_cm_event, data: &[u8]) {
    cm(|cm| cm.events.push_back((channel.addr(), event, data.to_vec())));
    // SAFETY: the caller gives a live channel of this fake (1).
    super::objects::ring(unsafe { (*channel).fd });
}

/// Makes an id as librdmacm makes one for a request.
#[must_use]
pub fn newborn(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let mut id = ptr::null_mut();
    // SAFETY: create_id requires a live channel of this fake (1) and space for a pointer.
    unsafe { create_id(channel, &raw mut id, ptr::null_mut(), rdma_port_space::RDMA_PS_TCP) };
    bind(id);
    id
}

/// Binds an id to a device, as the real library does once it knows the device.
pub fn bind(id: *mut rdma_cm_id) {
    let name = cm(|cm| cm.device.unwrap_or("fake0"));
    let mut device = ibv_device::default();
    super::table::name_device(&mut device, name);
    // Leaked, because the real library keeps devices too.
    let device = Box::into_raw(Box::new(device));
    let verbs = Box::into_raw(Box::new(ibv_context { device, ..ibv_context::default() }));
    // SAFETY: the caller gives a live id of this fake (1).
    unsafe { (*id).verbs = verbs };
    // SAFETY: the caller gives a live id of this fake (1).
    unsafe { (*id).port_num = 2 };
}

/// Makes all channels return `event` while no other event waits, `count` times.
pub fn flood(event: rdma_cm_event, count: u32) {
    cm(|cm| cm.flood = Some((event, count)));
}

/// How many events of [`flood`] are left.
#[must_use]
pub fn flood_left() -> u32 {
    cm(|cm| cm.flood.map_or(0, |(_, left)| left))
}

fn next_of_flood() -> Option<rdma_cm_event> {
    cm(|cm| {
        let (event, left) = cm.flood.as_mut()?;
        *left = left.checked_sub(1)?;
        Some(*event)
    })
}

fn fail(errno: i32) -> c_int {
    set_errno(errno);
    -1
}

/// Records a call that has no effect but to succeed or fail.
fn simple(operation: &'static str) -> c_int {
    match called(operation) {
        0 => 0,
        errno => fail(errno),
    }
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let errno = called("create_event_channel");
    if errno != 0 {
        set_errno(errno);
        return ptr::null_mut();
    }
    born("event_channel");
    // SAFETY: eventfd has no requirements.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    Box::into_raw(Box::new(FakeChannel { base: rdma_event_channel { fd }, ids: Cell::new(0) })).cast()
}

unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    called("destroy_event_channel");
    died("event_channel");
    // SAFETY: from_raw requires a pointer that into_raw returned, once: made by
    // create_event_channel (1).
    let channel = unsafe { Box::from_raw(channel.cast::<FakeChannel>()) };
    assert_eq!(channel.ids.get(), 0, "ids live on a channel that is destroyed");
    // SAFETY: close requires a descriptor that nobody else uses: the channel owns it.
    unsafe { libc::close(channel.base.fd) };
}

/// # Safety
///
/// `channel` is a live channel of this fake.
unsafe fn count(channel: *mut rdma_event_channel, by: i32) {
    // SAFETY: the cast requires a live channel of this fake: this function's contract (1).
    let ids = unsafe { &(*channel.cast::<FakeChannel>()).ids };
    ids.set(ids.get().checked_add_signed(by).unwrap());
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    if simple("create_id") != 0 {
        return -1;
    }
    born("id");
    // SAFETY: count requires a live channel of this fake: the caller gives one.
    unsafe { count(channel, 1) };
    let base = rdma_cm_id { channel, context, ps, ..rdma_cm_id::default() };
    // SAFETY: the caller gives space for a pointer.
    unsafe { *out = Box::into_raw(Box::new(FakeId { base, unacknowledged: Cell::new(0) })).cast() };
    0
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    if simple("destroy_id") != 0 {
        return -1;
    }
    died("id");
    // SAFETY: from_raw requires a pointer that into_raw returned, once: made by create_id (1).
    let id = unsafe { Box::from_raw(id.cast::<FakeId>()) };
    assert_eq!(id.unacknowledged.get(), 0, "this would wait for ever");
    // SAFETY: count requires a live channel of this fake: the channel outlives its ids.
    unsafe { count(id.base.channel, -1) };
    0
}

unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    if simple("bind_addr") != 0 {
        return -1;
    }
    // SAFETY: the read requires a whole sockaddr_storage: the crate's addresses are that large.
    let storage: libc::sockaddr_storage = unsafe { *address.cast() };
    // SAFETY: the caller gives a live id of this fake (1).
    unsafe { (*id).route.addr.__bindgen_anon_1 = rdma_addr__bindgen_ty_1 { src_storage: storage } };
    bind(id);
    0
}

unsafe extern "C" fn resolve_addr(id: *mut rdma_cm_id, _: *mut sockaddr, _: *mut sockaddr, timeout: c_int) -> c_int {
    assert!(timeout > 0);
    if cm(|cm| cm.answers) {
        bind(id);
    }
    then(id, simple("resolve_addr"), rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED)
}

unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _: c_int) -> c_int {
    // SAFETY: the caller gives a live id of this fake (1).
    let verbs = unsafe { (*id).verbs };
    // The real library dereferences the device without a check.
    assert!(!verbs.is_null(), "NULL would be followed");
    then(id, simple("resolve_route"), rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED)
}

unsafe extern "C" fn listen(_: *mut rdma_cm_id, _: c_int) -> c_int {
    simple("listen")
}

/// # Safety
///
/// The parameters' private data is as long as they say.
unsafe fn take(id: *mut rdma_cm_id, param: *mut rdma_conn_param, operation: &'static str) -> c_int {
    // SAFETY: the caller gives a live id of this fake (1).
    let verbs = unsafe { (*id).verbs };
    // The real library dereferences the device without a check.
    assert!(!verbs.is_null(), "NULL would be followed");
    // SAFETY: the caller gives valid parameters.
    let param = unsafe { *param };
    // SAFETY: from_raw_parts requires as many readable bytes: this function's contract.
    let data = unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), param.private_data_len.into()) };
    let given = Given {
        private_data: data.to_vec(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        qpn: param.qp_num,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
    };
    cm(|cm| cm.given = Some(given));
    simple(operation)
}

unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: take requires private data as long as it says: the caller gives valid parameters.
    let result = unsafe { take(id, param, "connect") };
    then(id, result, rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE)
}

unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: take requires private data as long as it says: the caller gives valid parameters.
    let result = unsafe { take(id, param, "accept") };
    then(id, result, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED)
}

unsafe extern "C" fn establish(_: *mut rdma_cm_id) -> c_int {
    simple("establish")
}

unsafe extern "C" fn reject(_: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: from_raw_parts requires as many readable bytes: the caller gives `len` of them.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) };
    cm(|cm| cm.given = Some(Given { private_data: data.to_vec(), ..Given::default() }));
    simple("reject")
}

unsafe extern "C" fn disconnect(_: *mut rdma_cm_id) -> c_int {
    simple("disconnect")
}

unsafe extern "C" fn notify(_: *mut rdma_cm_id, _: ibv_event_type) -> c_int {
    simple("notify")
}

unsafe extern "C" fn join_multicast(_: *mut rdma_cm_id, _: *mut sockaddr, context: *mut c_void) -> c_int {
    let result = simple("join_multicast");
    if result == 0 {
        cm(|cm| cm.joined.push(context.addr()));
    }
    result
}

unsafe extern "C" fn leave_multicast(_: *mut rdma_cm_id, _: *mut sockaddr) -> c_int {
    simple("leave_multicast")
}

unsafe extern "C" fn get_cm_event(channel: *mut rdma_event_channel, out: *mut *mut rdma_cm_event) -> c_int {
    if simple("get_cm_event") != 0 {
        return -1;
    }
    let found = cm(|cm| {
        let at = cm.events.iter().position(|(of, ..)| *of == channel.addr())?;
        cm.events.remove(at)
    });
    let Some((_, mut event, data)) = found else {
        let Some(event) = next_of_flood() else { return fail(libc::EAGAIN) };
        note(&event, 1);
        // SAFETY: the caller gives space for a pointer.
        unsafe { *out = Box::into_raw(Box::new(event)) };
        return 0;
    };
    let mut value = 0;
    // SAFETY: the caller gives a live channel of this fake (1).
    let fd = unsafe { (*channel).fd };
    // SAFETY: eventfd_read requires an eventfd and space for the value.
    unsafe { libc::eventfd_read(fd, &raw mut value) };
    if !data.is_empty() {
        let data: &'static mut [u8] = Box::leak(data.into_boxed_slice());
        // The private data comes first in every kind of parameters.
        event.param.conn.private_data = data.as_ptr().cast();
    }
    note(&event, 1);
    // SAFETY: the caller gives space for a pointer.
    unsafe { *out = Box::into_raw(Box::new(event)) };
    0
}

/// Counts the unacknowledged events of an id that the test made with this fake.
fn note(event: &rdma_cm_event, by: i32) {
    let request = event.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
    let id = if request { event.listen_id } else { event.id };
    // Tests invent ids at addresses up to 4096.
    if id.addr() > 4096 {
        // SAFETY: the cast requires a live id of this fake (1): invented ids are excluded above.
        let counter = unsafe { &(*id.cast::<FakeId>()).unacknowledged };
        counter.set(counter.get().checked_add_signed(by).unwrap());
    }
}

unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    called("ack_cm_event");
    // SAFETY: from_raw requires a pointer that into_raw returned, once: get_cm_event made the
    // event, and it is acknowledged once.
    let event = unsafe { Box::from_raw(event) };
    note(&event, -1);
    0
}

unsafe extern "C" fn set_option(_: *mut rdma_cm_id, _: c_int, option: c_int, value: *mut c_void, len: usize) -> c_int {
    assert!(len == 1 || len == 4);
    let result = simple("set_option");
    if result == 0 && len == 1 {
        // SAFETY: the caller gives a value of this length.
        let value = unsafe { *value.cast::<u8>() };
        cm(|cm| cm.options.push((option, value)));
    }
    result
}

unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    if simple("migrate_id") != 0 {
        return -1;
    }
    // SAFETY: the caller gives a live id of this fake (1).
    let old = unsafe { (*id).channel };
    // SAFETY: count requires a live channel of this fake: the channel outlives its ids.
    unsafe { count(old, -1) };
    // SAFETY: count requires a live channel of this fake: the caller gives one.
    unsafe { count(channel, 1) };
    // SAFETY: the caller gives a live id of this fake (1).
    unsafe { (*id).channel = channel };
    0
}

unsafe extern "C" fn init_qp_attr(_: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    if simple("init_qp_attr") != 0 {
        return -1;
    }
    use ibv_qp_attr_mask as M;
    // SAFETY: the caller gives valid attributes.
    let state = unsafe { (*attr).qp_state };
    let bits = match state {
        ibv_qp_state::IBV_QPS_INIT => M::IBV_QP_STATE | M::IBV_QP_ACCESS_FLAGS | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT,
        ibv_qp_state::IBV_QPS_RTR => {
            M::IBV_QP_STATE
                | M::IBV_QP_AV
                | M::IBV_QP_PATH_MTU
                | M::IBV_QP_DEST_QPN
                | M::IBV_QP_RQ_PSN
                | M::IBV_QP_MAX_DEST_RD_ATOMIC
                | M::IBV_QP_MIN_RNR_TIMER
        }
        _ => {
            M::IBV_QP_STATE
                | M::IBV_QP_TIMEOUT
                | M::IBV_QP_RETRY_CNT
                | M::IBV_QP_RNR_RETRY
                | M::IBV_QP_SQ_PSN
                | M::IBV_QP_MAX_QP_RD_ATOMIC
        }
    };
    let values = cm(|cm| cm.attr);
    // SAFETY: the caller gives space for the attributes.
    unsafe { *attr = ibv_qp_attr { qp_state: state, port_num: 2, ..values } };
    // Old kernels set bits that verbs.h does not define.
    #[allow(clippy::cast_possible_wrap, reason = "a set of bits")]
    let bits = (bits.0 | 0xe0_0000) as c_int;
    // SAFETY: the caller gives space for the mask.
    unsafe { *mask = bits };
    0
}

unsafe extern "C" fn set_local_ece(_: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller gives valid options.
    let ece = unsafe { *ece };
    cm(|cm| cm.local_ece = Some(ece));
    simple("set_local_ece")
}

unsafe extern "C" fn get_remote_ece(_: *mut rdma_cm_id, out: *mut ibv_ece) -> c_int {
    // SAFETY: the caller gives space for the options.
    unsafe { *out = cm(|cm| cm.remote_ece) };
    simple("get_remote_ece")
}
