//! Contexts, ports, GIDs, domains and events, over the test provider.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rdma_sys::{ibv_async_event, ibv_event_type};

use super::*;
use crate::QueuePair;
use crate::context::{AsyncEvent, AsyncEventKind, EventSource};
use crate::error::Verb;
use crate::testing;
use crate::types::{LinkLayer, Mtu};

#[test]
fn what_the_device_reports_is_what_is_shown() {
    let context = testing::context();
    assert_eq!(context.name(), "fake0");
    assert_eq!(context.device().guid().to_string(), "0102:0304:0506:0708");
    assert!(!context.is_software());
    assert_eq!(context.port_count(), 2);
    assert_eq!(context.device_attr().max_qp_wr(), 1024);
    assert_eq!(context.pkey(2, 0).unwrap(), 0xffff);
    let port = context.port_attr(2).unwrap();
    assert_eq!((port.active_mtu(), port.link_layer()), (Mtu::MTU_1024, LinkLayer::ETHERNET));
}

#[test]
fn ports_that_do_not_exist_are_not_asked_for() {
    let context = testing::context();
    for port in [0, 3, 255] {
        assert_eq!(context.port_attr(port).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(context.gid_table(port).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(context.gid(2, 4).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(context.pkey(2, 1).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn no_port_number_is_assumed() {
    // Port 1 is down; the search must go on to port 2.
    assert_eq!(testing::context().first_active_port().unwrap(), Some(2));
}

#[test]
fn the_gid_table_works_with_old_libraries_too() {
    let context = testing::context();
    let table = context.gid_table(2).unwrap();
    assert_eq!(table.len(), 3);
    assert_eq!(context.best_gid(2).unwrap().unwrap().index, 2);
    testing::fail("query_gid_table", libc::EOPNOTSUPP);
    let old = context.gid_table(2).unwrap();
    assert_eq!(old.len(), 3);
    assert!(old.iter().zip(&table).all(|(old, new)| old.gid == new.gid && old.index == new.index));
}

#[test]
fn opening_reports_the_errno() {
    let device = testing::device();
    testing::fail("open_device", libc::EACCES);
    let error = device.open().unwrap_err();
    assert_eq!((error.verb(), error.kind()), (Verb::OpenDevice, ErrorKind::PermissionDenied));
    testing::fail("query_device", libc::EIO);
    assert_eq!(device.open().unwrap_err().verb(), Verb::QueryDevice);
    assert_eq!(testing::live("context"), 0);
}

#[test]
fn a_provider_that_fails_without_a_reason_is_not_given_an_earlier_one() {
    let device = testing::device();
    testing::fails_silently("get_device_list", testing::devices);
    testing::fails_silently("open_device", || device.open());
    testing::fails_silently("query_device", || device.open());
    let context = device.open().unwrap();
    testing::fails_silently("query_port", || context.port_attr(2));
    testing::fails_silently("query_gid", || gid::query(&context, 2, 0));
    testing::fails_silently("query_pkey", || context.pkey(2, 0));
    testing::fails_silently("get_async_event", || context.try_next_event());
    testing::fails_silently("alloc_pd", || context.alloc_pd());
    testing::fails_silently("create_channel", || context.create_completion_channel());
    testing::fails_silently("create_cq", || context.create_cq(4));
    let channel = context.create_completion_channel().unwrap();
    testing::fails_silently("get_cq_event", || channel.try_next_event());
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    testing::fails_silently("resize_cq", || cq.resize(65));
    testing::fails_silently("reg_mr", || pd.allocate(64));
    testing::fails_silently("reg_dmabuf_mr", || pd.probe_dmabuf());
    testing::fails_silently("create_qp", || QueuePair::builder(&pd).cq(&cq).build());
    testing::fails_silently("create_srq", || crate::SharedReceiveQueue::builder(&pd).max_wr(4).build());
    let qp = QueuePair::builder(&pd).cq(&cq).build().unwrap();
    testing::fails_silently("modify_qp", || qp.init(&crate::InitOptions::new().port(2)));
    testing::fails_silently("dealloc_pd", || context.alloc_pd().unwrap().close());
}

#[test]
fn children_keep_their_parents_open() {
    let device = testing::device();
    let context = device.open().unwrap();
    let pd = context.alloc_pd().unwrap();
    drop((device, context));
    assert_eq!(testing::live("context"), 1);
    drop(pd);
    for kind in ["pd", "context", "device"] {
        assert_eq!(testing::live(kind), 0, "{kind}");
    }
}

#[test]
fn close_says_what_is_in_use_and_gives_the_handle_back() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let failed = context.close().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    let context = failed.object;
    testing::fail("dealloc_pd", libc::EBUSY);
    let pd = pd.close().unwrap_err().object;
    pd.close().unwrap();
    context.close().unwrap();
    assert_eq!(testing::live("context"), 0);
}

#[test]
fn a_domain_that_cannot_be_freed_keeps_its_device_open() {
    let pd = testing::context().alloc_pd().unwrap();
    testing::fail("dealloc_pd", libc::EBUSY);
    drop(pd);
    assert_eq!((testing::live("pd"), testing::live("context")), (1, 1));
    assert!(!testing::calls().contains(&"close_device"));
}

#[test]
fn events_are_acknowledged_before_they_are_returned() {
    let context = testing::context();
    assert_eq!(context.next_event(Some(Duration::from_millis(1))).unwrap(), None);
    let mut raw = ibv_async_event { event_type: ibv_event_type::IBV_EVENT_PORT_ERR, ..ibv_async_event::default() };
    raw.element.port_num = 2;
    testing::raise(context.as_raw(), raw);
    let event = context.next_event(None).unwrap().unwrap();
    assert_eq!(event, AsyncEvent { kind: AsyncEventKind::PORT_ERR, source: EventSource::Port(2) });
    assert_eq!(testing::calls().last(), Some(&"ack_async_event"));
    let unknown = ibv_async_event { event_type: ibv_event_type(4711), ..ibv_async_event::default() };
    testing::raise(context.as_raw(), unknown);
    let event = context.try_next_event().unwrap().unwrap();
    assert_eq!((event.kind.as_raw(), event.source), (4711, EventSource::Other));
    assert_eq!(context.try_next_event().unwrap(), None);
}

#[test]
fn the_descriptor_that_is_lent_can_neither_be_filled_nor_made_to_block() {
    let context = testing::context();
    let mut file = std::fs::File::from(context.as_fd().try_clone_to_owned().unwrap());
    assert!(std::io::Write::write_all(&mut file, &u64::MAX.to_ne_bytes()).is_err(), "it cannot be written");
    // SAFETY: fcntl with F_SETFL requires a descriptor and flags; no flags make it blocking.
    assert_eq!(unsafe { libc::fcntl(context.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    let now = || crate::wait::Deadline::after(Some(Duration::ZERO));
    let readable = || crate::wait::readable(Verb::GetAsyncEvent, context.as_fd(), now()).unwrap();
    assert_eq!(context.try_next_event().unwrap(), None);
    assert!(!readable());
    let event = ibv_async_event { event_type: ibv_event_type::IBV_EVENT_DEVICE_FATAL, ..ibv_async_event::default() };
    testing::raise(context.as_raw(), event);
    assert!(readable());
    assert_eq!(context.next_event(None).unwrap().unwrap().kind, AsyncEventKind::DEVICE_FATAL);
    assert!(!readable());
}

#[test]
fn events_name_queue_pairs_by_number() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let qp = QueuePair::builder(&pd).cq(&cq).build().unwrap();
    let mut raw = ibv_async_event { event_type: ibv_event_type::IBV_EVENT_QP_ACCESS_ERR, ..ibv_async_event::default() };
    raw.element.qp = qp.as_raw();
    testing::raise(context.as_raw(), raw);
    raw.event_type = ibv_event_type::IBV_EVENT_CQ_ERR;
    raw.element.cq = cq.as_raw();
    testing::raise(context.as_raw(), raw);
    let sources: Vec<_> = std::iter::from_fn(|| context.try_next_event().unwrap()).map(|event| event.source).collect();
    assert_eq!(sources, [EventSource::QueuePair(qp.qpn()), EventSource::CompletionQueue(cq.id())]);
}

#[test]
#[cfg(not(miri))]
fn handles_are_inert_in_a_forked_child() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let path = crate::Path { port: 2, ..crate::Path::default() };
    let address = pd.create_ah(&path).unwrap();
    let options = crate::DatagramOptions::new(1);
    let qp = QueuePair::datagram(&pd).cq(&cq).build().unwrap().init(&options).unwrap();
    let group: Gid = "ff12::1".parse().unwrap();
    let attachment = qp.attach_multicast(group, crate::Lid::NONE).unwrap();
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which do nothing there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inert = context.port_attr(2).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && context.alloc_pd().is_err_and(|error| error.kind() == ErrorKind::Forked)
            && cq.request_notify(false).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && pd.create_ah(&path).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && qp.attach_multicast(group, crate::Lid::NONE).is_err_and(|error| error.kind() == ErrorKind::Forked)
            && attachment.detach().is_err_and(|failed| failed.error.kind() == ErrorKind::Forked);
        drop((address, qp, cq, pd, context));
        let calls = ["dealloc_pd", "destroy_cq", "close_device", "destroy_ah", "detach_mcast", "destroy_qp"];
        let destroyed = testing::calls().iter().any(|call| calls.contains(call));
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if inert && !destroyed { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(context.port_attr(2).is_ok());
    attachment.detach().unwrap();
    address.close().unwrap();
}

#[test]
fn handles_go_to_any_thread() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Device>();
    shared::<Context>();
    shared::<crate::ProtectionDomain>();
    shared::<crate::CompletionQueue>();
    shared::<crate::CompletionChannel>();
    fn sent<T: Send + 'static>() {}
    sent::<QueuePair<crate::transport::Rc>>();
    sent::<crate::InitializedQueuePair<crate::transport::Rc>>();
    sent::<QueuePair<crate::transport::Ud>>();
    sent::<crate::Datagram>();
    shared::<crate::AddressHandle>();
    shared::<crate::MulticastAttachment>();
}

#[test]
fn an_entry_of_the_gid_table_is_found_by_its_index() {
    let context = testing::context();
    let entries = context.gid_table(2).unwrap();
    for entry in &entries {
        assert_eq!(context.gid_entry(2, entry.index).unwrap(), *entry);
    }
    assert_eq!(context.gid_entry(2, 1 << 20).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(context.gid_entry(3, 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_program_and_each_tap_see_every_event_once() {
    let context = testing::context();
    let taps = [(); 2].map(|()| EventTap::new(&context).unwrap());
    fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
        crate::wait::is_readable(Verb::GetAsyncEvent, fd).unwrap()
    }
    let raise = |port| {
        let mut raw = ibv_async_event { event_type: ibv_event_type::IBV_EVENT_PORT_ERR, ..ibv_async_event::default() };
        raw.element.port_num = port;
        testing::raise(context.as_raw(), raw);
    };
    let port = |event: Result<Option<AsyncEvent>>| event.unwrap().map(|event| event.source);
    // The taker of an event leaves a copy for each other reader, and all read in one order.
    raise(1);
    assert_eq!(port(taps[0].try_next_event()), Some(EventSource::Port(1)));
    raise(2);
    assert!(is_readable(context.as_fd()), "a copy and an event");
    assert_eq!(port(context.next_event(None)), Some(EventSource::Port(1)));
    assert_eq!(port(context.next_event(None)), Some(EventSource::Port(2)));
    assert!(!is_readable(context.as_fd()));
    for expected in [Some(EventSource::Port(1)), Some(EventSource::Port(2)), None] {
        assert_eq!(is_readable(taps[1].as_fd()), expected.is_some());
        assert_eq!(port(taps[1].try_next_event()), expected);
    }
    assert_eq!(port(taps[0].try_next_event()), Some(EventSource::Port(2)));
    // A program that never asks costs no memory without end.
    for _ in 0..1000 {
        raise(3);
        assert!(port(taps[0].try_next_event()).is_some());
    }
    drop(taps);
    let mut copies = 0;
    while port(context.try_next_event()).is_some() {
        copies += 1;
    }
    assert_eq!(copies, 256);
    assert!(!is_readable(context.as_fd()));
}

#[test]
fn a_thread_that_waits_for_an_event_gets_the_copy_of_a_tap() {
    // The test provider belongs to one thread.
    let context = crate::open(&"soft0".parse().unwrap()).unwrap().context;
    let tap = EventTap::new(&context).unwrap();
    let waiting = std::thread::spawn({
        let context = context.clone();
        move || context.next_event(Some(Duration::from_secs(60))).unwrap().is_some()
    });
    context.inner.sharing.copy_to_program(AsyncEvent { kind: AsyncEventKind::SM_CHANGE, source: EventSource::Port(1) });
    assert!(waiting.join().unwrap());
    assert_eq!(tap.try_next_event().unwrap(), None);
}
