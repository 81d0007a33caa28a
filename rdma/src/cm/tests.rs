//! Ids, events and connections over a fake librdmacm that returns hostile values.

mod devices;
mod path;
mod steps;

use std::net::SocketAddr;
use std::time::Duration;

use rdma_sys::{
    ibv_qp_attr, rdma_cm_event, rdma_cm_event__bindgen_ty_1, rdma_cm_event_type as Code, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};

use super::blocking::{ListenOptions, Listener, resolve};
use super::*;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::qp::QueuePair;
use crate::testing::{self, cm as fake};
use crate::types::{QpState, RemoteAccess};
use crate::{CompletionQueue, ProtectionDomain};

const TIMEOUT: Duration = Duration::from_secs(5);

fn address() -> SocketAddr {
    "192.0.2.1:7".parse().unwrap()
}

fn channel() -> EventChannel {
    EventChannel::of(&testing::context()).unwrap()
}

#[test]
fn a_call_of_librdmacm_that_fails_without_a_reason_is_not_given_an_earlier_one() {
    let channel = channel();
    testing::fails_silently("create_event_channel", || EventChannel::of(&testing::context()));
    testing::fails_silently("create_id", || channel.create_id::<Rc>());
    testing::fails_silently("get_cm_event", || channel.try_next_event());
    let mut id = channel.create_id::<Rc>().unwrap();
    testing::fails_silently("bind_addr", || id.bind_addr(address()));
    testing::fails_silently("migrate_id", || id.migrate(&self::channel()));
}

fn raw_channel(channel: &EventChannel) -> *mut rdma_event_channel {
    channel.inner.raw.as_ptr()
}

fn raw_id<T: PortSpace>(id: &Id<T>) -> *mut rdma_cm_id {
    id.raw.lock(Verb::Connect).unwrap().raw
}

fn event(id: *mut rdma_cm_id, code: Code) -> rdma_cm_event {
    rdma_cm_event { id, event: code, ..rdma_cm_event::default() }
}

fn conn(private_data_len: u8) -> rdma_cm_event__bindgen_ty_1 {
    rdma_cm_event__bindgen_ty_1 {
        conn: rdma_conn_param {
            private_data_len,
            responder_resources: 255,
            initiator_depth: 255,
            qp_num: 9,
            ..Default::default()
        },
    }
}

fn raise(channel: &EventChannel, event: rdma_cm_event, data: &[u8]) {
    fake::raise(raw_channel(channel), event, data);
}

fn next(channel: &EventChannel) -> Event {
    channel.try_next_event().unwrap().expect("an event")
}

fn calls(name: &str) -> usize {
    testing::calls().iter().filter(|&&call| call == name).count()
}

fn request(channel: &EventChannel, listener: &Id<Rc>) -> *mut rdma_cm_id {
    let new = fake::newborn(raw_channel(channel));
    let raw = rdma_cm_event {
        listen_id: raw_id(listener),
        param: conn(5),
        ..event(new, Code::RDMA_CM_EVENT_CONNECT_REQUEST)
    };
    raise(channel, raw, b"hello");
    new
}

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl End {
    fn new(context: &Context) -> Self {
        Self { pd: context.alloc_pd().unwrap(), cq: context.create_cq(64).unwrap() }
    }

    fn qp(&self) -> crate::PreparedQueuePair<Rc> {
        QueuePair::builder(&self.pd).cq(&self.cq).build().unwrap()
    }
}

#[test]
fn events_are_acknowledged_before_they_are_returned() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    for code in [Code::RDMA_CM_EVENT_ADDR_RESOLVED, Code::RDMA_CM_EVENT_DISCONNECTED, Code(77)] {
        raise(&channel, event(raw_id(&id), code), b"");
    }
    let first = next(&channel);
    assert_eq!(calls("ack_cm_event"), 1);
    assert_eq!(first.id, id.key());
    assert!(matches!(first.kind, EventKind::AddrResolved));
    assert!(matches!(next(&channel).kind, EventKind::Disconnected));
    assert!(matches!(next(&channel).kind, EventKind::Unknown { event: 77, status: 0 }));
    assert!(channel.try_next_event().unwrap().is_none());
    assert!(channel.next_event(Some(Duration::from_millis(1))).unwrap().is_none());
    // The provider checks that no unacknowledged event is left.
    drop(id);
    drop(channel);
    assert_eq!((testing::live("id"), testing::live("event_channel")), (0, 0));
}

#[test]
fn events_of_nobody_are_passed_over() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    let nobody = |address| std::ptr::without_provenance_mut(address);
    for address in [0, 8, 4096] {
        raise(&channel, event(nobody(address), Code::RDMA_CM_EVENT_ESTABLISHED), b"");
        raise(&channel, event(nobody(address), Code(u32::MAX)), b"");
    }
    // Requests without an id, with a living id, and for a listener that is gone.
    raise(&channel, event(nobody(0), Code::RDMA_CM_EVENT_CONNECT_REQUEST), b"");
    raise(&channel, event(raw_id(&id), Code::RDMA_CM_EVENT_CONNECT_REQUEST), b"");
    let orphan = fake::newborn(raw_channel(&channel));
    raise(&channel, event(orphan, Code::RDMA_CM_EVENT_CONNECT_REQUEST), b"");
    raise(&channel, event(raw_id(&id), Code::RDMA_CM_EVENT_ROUTE_RESOLVED), b"");
    assert!(matches!(next(&channel).kind, EventKind::RouteResolved));
    assert_eq!(calls("ack_cm_event"), 10);
    assert_eq!(testing::live("id"), 1, "the orphan has been destroyed, and nobody else");
    drop((id, channel));
    assert_eq!((testing::live("id"), testing::live("event_channel")), (0, 0));
}

#[test]
fn a_request_whose_id_is_on_another_channel_is_left_alone() {
    // The provider checks that no channel ends before its ids.
    let (channel, other) = (channel(), std::mem::ManuallyDrop::new(channel()));
    let listener = channel.create_id::<Rc>().unwrap();
    let new = fake::newborn(raw_channel(&other));
    let raw = rdma_cm_event { listen_id: raw_id(&listener), ..event(new, Code::RDMA_CM_EVENT_CONNECT_REQUEST) };
    raise(&channel, raw, b"");
    raise(&channel, event(raw_id(&listener), Code::RDMA_CM_EVENT_ADDR_CHANGE), b"");
    assert!(matches!(next(&channel).kind, EventKind::AddrChange));
    drop((listener, channel));
    assert_eq!((testing::live("id"), calls("destroy_id")), (1, 1), "its channel could be gone by the time it is used");
}

#[test]
fn private_data_is_what_is_there() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    let lengths = |code, len, data: &[u8]| {
        raise(&channel, rdma_cm_event { param: conn(len), ..event(raw_id(&id), code) }, data);
        next(&channel).kind
    };
    // A length, but no data.
    let EventKind::ConnectResponse(none) = lengths(Code::RDMA_CM_EVENT_CONNECT_RESPONSE, 255, b"") else { panic!() };
    assert!(none.private_data.is_empty());
    assert_eq!(none.parameters.qpn, 9);
    let EventKind::Established(none) = lengths(Code::RDMA_CM_EVENT_ESTABLISHED, 0, b"unsaid") else { panic!() };
    assert!(none.private_data.is_empty());
    let EventKind::Rejected(said) = lengths(Code::RDMA_CM_EVENT_REJECTED, 255, &[7; 255]) else { panic!() };
    assert_eq!(&said.private_data[..], [7; 255]);
    assert_eq!(
        (said.reason, said.to_error().kind()),
        (RejectReason::from_raw(0), { ErrorKind::Rejected(RejectReason::from_raw(0)) })
    );
    // The private data of events that carry none is not read, whatever its fields hold.
    let kind = lengths(Code::RDMA_CM_EVENT_DISCONNECTED, 255, b"");
    assert!(matches!(kind, EventKind::Disconnected));
}

#[test]
fn the_name_of_a_group_is_not_read_as_data() {
    let channel = channel();
    let id = channel.create_id::<Ud>().unwrap();
    id.bind_addr(address()).unwrap();
    let groups: [SocketAddr; 2] = ["239.1.1.1:0".parse().unwrap(), "[ff12::1]:0".parse().unwrap()];
    for group in groups {
        id.join_multicast(group, Membership::Full).unwrap();
    }
    let names = fake::joined();
    assert!(names.iter().all(|&name| name != 0));
    let ud = |name: usize| rdma_cm_event__bindgen_ty_1 {
        ud: rdma_ud_param {
            // librdmacm puts the context of the join here.
            private_data: std::ptr::without_provenance(name),
            private_data_len: 200,
            qp_num: 0xff_ffff,
            qkey: 5,
            ..Default::default()
        },
    };
    let raised = |code, name, status| {
        raise(&channel, rdma_cm_event { param: ud(name), status, ..event(raw_id(&id), code) }, b"");
        next(&channel).kind
    };
    let EventKind::MulticastJoined(joined) = raised(Code::RDMA_CM_EVENT_MULTICAST_JOIN, names[1], 0) else { panic!() };
    assert_eq!((joined.address, joined.qpn, joined.qkey), (Some(groups[1]), 0xff_ffff, 5));
    let lost = raised(Code::RDMA_CM_EVENT_MULTICAST_ERROR, names[0], -libc::ENETUNREACH);
    let EventKind::MulticastError { group, error } = lost else { panic!() };
    assert_eq!((group, error.kind()), (Some(groups[0]), ErrorKind::NoRoute));
    let EventKind::MulticastJoined(unknown) = raised(Code::RDMA_CM_EVENT_MULTICAST_JOIN, 1 << 40, 0) else { panic!() };
    assert_eq!(unknown.address, None);
    assert_eq!(id.leave_multicast("239.9.9.9:0".parse().unwrap()).unwrap_err().kind(), ErrorKind::NotFound);
    id.leave_multicast(groups[0]).unwrap();
    drop(id);
    assert_eq!(calls("leave_multicast"), 2, "the other is left with the id");
}

#[test]
fn a_group_that_cannot_be_left_ends_its_channel() {
    let channel = channel();
    let id = channel.create_id::<Ud>().unwrap();
    let group = "239.1.1.1:0".parse().unwrap();
    id.join_multicast(group, Membership::Full).unwrap();
    testing::fail("leave_multicast", libc::ENXIO);
    assert!(id.leave_multicast(group).is_err());
    // librdmacm has freed the object that this event would point to.
    raise(&channel, event(raw_id(&id), Code::RDMA_CM_EVENT_DISCONNECTED), b"");
    assert_eq!(channel.try_next_event().unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(calls("get_cm_event"), 0);
    // Other channels still work.
    let other = channel.another().unwrap();
    assert!(other.try_next_event().unwrap().is_none());
}

#[test]
fn statuses_of_events_become_errors() {
    let channel = channel();
    let (id, datagram) = (channel.create_id::<Rc>().unwrap(), channel.create_id::<Ud>().unwrap());
    let raised = |raw, code, status| {
        raise(&channel, rdma_cm_event { status, ..event(raw, code) }, b"");
        next(&channel).kind
    };
    let kind = |kind| match kind {
        EventKind::AddrError(error)
        | EventKind::RouteError(error)
        | EventKind::ConnectError(error)
        | EventKind::Unreachable(error) => error.kind(),
        EventKind::Rejected(rejection) => rejection.to_error().kind(),
        other => panic!("{other:?}"),
    };
    let raw = raw_id(&id);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV)), ErrorKind::NoRoute);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_ADDR_ERROR, -1)), ErrorKind::NoRoute);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_ADDR_ERROR, i32::MIN)), ErrorKind::Unknown);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_ROUTE_ERROR, -libc::ETIMEDOUT)), ErrorKind::Timeout);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)), ErrorKind::Timeout);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_UNREACHABLE, 0)), ErrorKind::NoRoute);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_CONNECT_ERROR, i32::MAX)), ErrorKind::Os);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_REJECTED, 8)), ErrorKind::NotListening);
    let stale = ErrorKind::Rejected(RejectReason::STALE_CONNECTION);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_REJECTED, 10)), stale);
    // The answers to datagram requests have status codes of their own.
    let raw = raw_id(&datagram);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_UNREACHABLE, 1)), ErrorKind::NotListening);
    let no = ErrorKind::Rejected(RejectReason::CONSUMER);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_UNREACHABLE, 2)), no);
    assert_eq!(kind(raised(raw, Code::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)), ErrorKind::Timeout);
}

#[test]
fn what_librdmacm_does_not_check_is_checked_here() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    let end = End::new(&testing::context());
    // librdmacm would dereference the missing device; the fake one asserts that there is one.
    assert_eq!(id.resolve_route(TIMEOUT).unwrap_err().kind(), ErrorKind::InvalidInput);
    let failed = id.init(end.qp(), RemoteAccess::READ).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let qp = failed.object.init(&crate::InitOptions::new().port(2)).unwrap();
    assert_eq!(id.connect(&qp, &ConnOptions::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(id.tell_disconnected().unwrap_err().kind(), ErrorKind::Disconnected);
    let datagram = channel.create_id::<Ud>().unwrap();
    assert_eq!(datagram.connect(&UdOptions::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(datagram.qkey().unwrap_err().kind(), ErrorKind::InvalidInput);
    // A request that arrived on no device.
    let listener = channel.create_id::<Rc>().unwrap();
    let new = request(&channel, &listener);
    // SAFETY: the write requires a live id that nobody else uses: the provider's, used by this test
    // only.
    unsafe { (*new).verbs = std::ptr::null_mut() };
    let EventKind::ConnectRequest(request) = next(&channel).kind else { panic!() };
    let Failed { error, .. } = request.accept(qp, &ConnOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for call in ["resolve_route", "connect", "accept", "init_qp_attr", "disconnect"] {
        assert_eq!(calls(call), 0, "{call}");
    }
    // Timeouts are at least one millisecond, and never negative.
    for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        id.resolve_addr(None, address(), timeout).unwrap();
    }
}

#[test]
fn a_request_ends_once() {
    let channel = channel();
    let listener = channel.create_id::<Rc>().unwrap();
    let take = || {
        request(&channel, &listener);
        let event = next(&channel);
        assert_eq!(event.id, listener.key());
        let EventKind::ConnectRequest(request) = event.kind else { panic!() };
        request
    };
    let dropped = take();
    assert_eq!(&dropped.private_data()[..], b"hello");
    assert_ne!(dropped.key(), listener.key());
    assert_eq!(dropped.listener(), listener.key());
    drop(dropped);
    assert_eq!((testing::live("id"), calls("reject")), (1, 0), "destroying it rejects");
    take().reject(b"no").unwrap();
    assert_eq!((fake::given().private_data, testing::live("id")), (b"no".to_vec(), 1));
    testing::fail("reject", libc::EINVAL);
    assert_eq!(take().reject(&[]).unwrap_err().kind(), ErrorKind::Disconnected);
    assert_eq!(take().reject(&[0; 149]).unwrap_err().kind(), ErrorKind::TooLong);
    assert_eq!(testing::live("id"), 1);
    // The listener may be dropped while a request is open.
    let request = take();
    drop((listener, channel));
    assert_eq!((testing::live("id"), testing::live("event_channel")), (1, 1));
    drop(request);
    assert_eq!((testing::live("id"), testing::live("event_channel")), (0, 0));
}

#[test]
fn absurd_numbers_of_a_peer_are_bounded_by_the_device() {
    let channel = channel();
    let listener = channel.create_id::<Rc>().unwrap();
    let end = End::new(&testing::context());
    fake::set_attr(ibv_qp_attr { max_dest_rd_atomic: 255, max_rd_atomic: 255, ..ibv_qp_attr::default() });
    request(&channel, &listener);
    let EventKind::ConnectRequest(request) = next(&channel).kind else { panic!() };
    assert_eq!(request.parameters().responder_resources, 255);
    let qp = request.init(end.qp(), RemoteAccess::READ).unwrap();
    let (id, qp) = request.accept(qp, &ConnOptions::new().private_data(b"yes")).unwrap();
    let given = fake::given();
    // The provider's limit is 16 for both.
    assert_eq!((given.responder_resources, given.initiator_depth, given.qpn), (16, 16, qp.qpn()));
    assert_eq!(given.private_data, b"yes");
    let attr = *qp.query().unwrap().as_raw();
    assert_eq!((attr.max_rd_atomic, QpState::from_raw(attr.qp_state.0)), (16, QpState::RTS));
    id.disconnect(&qp).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::ERR);
    let too_long = ConnOptions::new().private_data(&[0; 57]);
    let qp = id.init(end.qp(), RemoteAccess::READ).unwrap();
    assert_eq!(id.connect(&qp, &too_long).unwrap_err().kind(), ErrorKind::TooLong);
    id.connect(&qp, &ConnOptions::new().initiator_depth(255).responder_resources(3)).unwrap();
    assert_eq!((fake::given().responder_resources, fake::given().initiator_depth), (3, 16));
}

#[test]
fn another_device_is_named() {
    let context = testing::context();
    fake::bind_to("other0");
    let error = Listener::<Rc>::bind(&context, address(), &ListenOptions::new()).unwrap_err();
    let ErrorKind::WrongDevice(devices) = error.kind() else { panic!("{error}") };
    assert_eq!((devices.open(), devices.found()), ("fake0", "other0"));
    assert!(error.to_string().contains("the address belongs to other0, and fake0 is open"), "{error}");
    let channel = EventChannel::of(&context).unwrap();
    let id = channel.create_id::<Rc>().unwrap();
    id.bind_addr(address()).unwrap();
    assert_eq!(id.device_name().as_deref(), Some("other0"));
    let failed = id.init(End::new(&context).qp(), RemoteAccess::READ).unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::WrongDevice(_)));
    assert_eq!(calls("init_qp_attr"), 0);
}

#[test]
fn what_cannot_be_destroyed_is_leaked() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    testing::fail("destroy_id", libc::EINVAL);
    drop((id, channel));
    assert_eq!((testing::live("id"), testing::live("event_channel")), (1, 1));
}

#[test]
fn a_failed_migration_leaves_the_id_where_it_is() {
    let (from, to) = (channel(), channel());
    let mut id = from.create_id::<Rc>().unwrap();
    testing::fail("migrate_id", libc::EINVAL);
    assert!(id.migrate(&to).is_err());
    raise(&from, event(raw_id(&id), Code::RDMA_CM_EVENT_ADDR_CHANGE), b"");
    assert_eq!(next(&from).id, id.key());
    id.migrate(&to).unwrap();
    id.migrate(&to).unwrap();
    assert_eq!(calls("migrate_id"), 2);
    raise(&to, event(raw_id(&id), Code::RDMA_CM_EVENT_TIMEWAIT_EXIT), b"");
    assert_eq!(next(&to).id, id.key());
    drop(from);
    assert_eq!(testing::live("event_channel"), 1);
    drop((id, to));
    assert_eq!((testing::live("id"), testing::live("event_channel")), (0, 0));
}

#[test]
fn failures_before_the_first_event_are_told() {
    let context = testing::context();
    testing::fail("create_event_channel", libc::ENOENT);
    let error = EventChannel::of(&context).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("modprobe rdma_ucm"), "{error}");
    testing::fail("create_id", libc::ENOMEM);
    let channel = EventChannel::of(&context).unwrap();
    assert_eq!(channel.create_id::<Rc>().unwrap_err().kind(), ErrorKind::OutOfMemory);
    testing::fail("bind_addr", libc::EADDRNOTAVAIL);
    testing::fail("bind_addr", libc::EADDRNOTAVAIL);
    let id = channel.create_id::<Rc>().unwrap();
    assert_eq!(id.bind_addr(address()).unwrap_err().kind(), ErrorKind::NoRoute);
    assert_eq!(id.bind_addr("[::]:5".parse().unwrap()).unwrap_err().kind(), ErrorKind::AddressInUse);
    testing::fail("get_cm_event", libc::EIO);
    testing::fail("get_cm_event", libc::EINTR);
    assert_eq!(channel.try_next_event().unwrap_err().kind(), ErrorKind::Os);
    assert!(channel.try_next_event().unwrap().is_none());
    testing::fail("resolve_addr", libc::ENETUNREACH);
    let error = resolve::<Rc>(&context, None, address(), TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRoute);
    testing::fail("set_option", libc::EINVAL);
    assert!(Listener::<Rc>::bind(&context, address(), &ListenOptions::new().reuse_addr(true)).is_err());
    drop((id, channel));
    assert_eq!((testing::live("id"), testing::live("event_channel")), (0, 0));
}

#[test]
#[cfg(not(miri))]
fn a_forked_child_cannot_touch_its_parents_ids() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    let listener = channel.create_id::<Rc>().unwrap();
    request(&channel, &listener);
    let before = testing::calls().len();
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |error: Error| error.kind() == ErrorKind::Forked;
        let mut id = id;
        let inert = id.bind_addr(address()).is_err_and(forked)
            && channel.try_next_event().is_err_and(forked)
            && channel.create_id::<Rc>().is_err_and(forked)
            && channel.another().is_err_and(forked)
            && id.migrate(&channel).is_err_and(forked)
            && id.local_addr().is_none();
        drop((id, listener, channel));
        let quiet = testing::calls().len() == before;
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if inert && quiet { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(matches!(next(&channel).kind, EventKind::ConnectRequest(_)));
}

#[test]
fn handles_go_to_any_thread() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<EventChannel>();
    shared::<Id<Rc>>();
    shared::<Id<Ud>>();
    shared::<Event>();
    shared::<ConnectRequest<Rc>>();
    shared::<Listener>();
    shared::<blocking::IncomingConnection>();
    shared::<blocking::Connection>();
    shared::<blocking::Joined>();
}

/// Joins a group that cannot be left: the next leave fails.
fn stuck_in_a_group(channel: &EventChannel) -> Id<Ud> {
    let id = channel.create_id::<Ud>().unwrap();
    let group = "239.1.1.1:0".parse().unwrap();
    id.join_multicast(group, Membership::Full).unwrap();
    testing::fail("leave_multicast", libc::EACCES);
    id
}

#[test]
fn events_of_a_group_that_cannot_be_left_do_not_move_to_another_channel() {
    let (channel, other) = (channel(), channel());
    let mut id = stuck_in_a_group(&channel);
    assert!(id.leave_multicast("239.1.1.1:0".parse().unwrap()).is_err());
    assert_eq!(id.migrate(&other).unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(calls("migrate_id"), 0);
    drop(id);
    assert!(other.try_next_event().unwrap().is_none());
}

#[test]
fn an_id_that_can_neither_leave_its_group_nor_be_destroyed_ends_its_channel() {
    let channel = channel();
    let id = stuck_in_a_group(&channel);
    testing::fail("destroy_id", libc::EACCES);
    drop(id);
    // The kernel still has the group, and librdmacm has freed the object that its events point to.
    assert_eq!(channel.try_next_event().unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(calls("get_cm_event"), 0);
    // If destroying works, no event is left that could point to freed memory.
    let channel = self::channel();
    drop(stuck_in_a_group(&channel));
    assert!(channel.try_next_event().unwrap().is_none());
}

/// More events than a test can take within `SHORT`.
const FLOOD: u32 = 1_000_000;
const SHORT: Duration = Duration::from_millis(1);

#[test]
fn a_notice_that_comes_late_is_no_error() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    testing::fail("notify", libc::EISCONN);
    id.notify(crate::AsyncEventKind::COMM_EST).unwrap();
    testing::fail("notify", libc::EINVAL);
    assert_eq!(id.notify(crate::AsyncEventKind::COMM_EST).unwrap_err().kind(), ErrorKind::InvalidInput);
}
