//! The blocking form over the fake librdmacm: ECE options, failures on the way, floods of events.

use rdma_sys::ibv_ece;

use super::*;

const fn ece(vendor_id: u32, options: u32) -> ibv_ece {
    ibv_ece { vendor_id, options, comp_mask: 0 }
}

/// Connects to a peer with these ECE options.
fn connect(theirs: ibv_ece) -> Result<blocking::Connection> {
    fake::answer();
    fake::set_remote_ece(theirs);
    let context = testing::context();
    let route = resolve::<Rc>(&context, None, address(), TIMEOUT)?;
    let qp = route.init(End::new(&context).qp())?;
    let (connection, _qp) = route.connect(qp, &ConnOptions::new(), TIMEOUT)?;
    Ok(connection)
}

#[test]
fn enhanced_connections_are_offered_and_agreed_on() {
    fake::set_provider_ece(ece(7, 0b11));
    connect(ece(7, 0b01)).unwrap();
    assert_eq!((fake::local_ece(), fake::told_ece()), (Some(ece(7, 0b11)), vec![ece(7, 0b01)]));
    // A peer without ECE options, and one that answers with another vendor's.
    connect(ece(0, 0)).unwrap();
    assert_eq!(fake::told_ece().last(), Some(&ece(7, 0)));
    assert_eq!(connect(ece(8, 1)).unwrap_err().kind(), ErrorKind::Incompatible);
}

#[test]
fn providers_without_enhanced_connections_are_not_asked_for_them() {
    connect(ece(7, 1)).unwrap();
    assert_eq!((fake::local_ece(), fake::told_ece()), (None, Vec::new()));
    assert_eq!((calls("establish"), calls("set_local_ece"), calls("get_remote_ece")), (1, 0, 0));
}

/// Accepts a peer with these ECE options; returns the options that the provider was told to use,
/// and those sent to the peer.
fn accept(theirs: ibv_ece) -> (Vec<ibv_ece>, Option<ibv_ece>) {
    fake::set_provider_ece(ece(7, 0b11));
    fake::set_remote_ece(theirs);
    let context = testing::context();
    let listener = Listener::<Rc>::bind(&context, address(), &ListenOptions::new()).unwrap();
    fake::answer();
    let channel = EventChannel { inner: std::sync::Arc::clone(&listener.id().raw.channel) };
    request(&channel, listener.id());
    let incoming = listener.next_request(Some(TIMEOUT)).unwrap().unwrap();
    let qp = incoming.init(End::new(&context).qp()).unwrap();
    let (connection, _qp) = incoming.accept(qp, &ConnOptions::new(), TIMEOUT).unwrap();
    assert_eq!(connection.private_data(), b"hello");
    assert!(!connection.wait_disconnected(Some(Duration::ZERO)).unwrap());
    (fake::told_ece(), fake::local_ece())
}

#[test]
fn enhanced_connections_are_answered() {
    assert_eq!(accept(ece(7, 0b01)), (vec![ece(7, 0b01)], Some(ece(7, 0b01))));
}

#[test]
fn enhanced_connections_of_another_maker_are_declined() {
    assert_eq!(accept(ece(9, 1)), (vec![ece(7, 0)], Some(ece(7, 0))));
}

#[test]
fn who_offers_no_enhanced_connection_is_not_answered() {
    assert_eq!(accept(ece(0, 0)), (Vec::new(), None));
}

#[test]
fn what_fails_on_the_way_gives_the_queue_pair_back() {
    fake::answer();
    let context = testing::context();
    let end = End::new(&context);
    let tries = [
        ("connect", libc::ECONNREFUSED, ErrorKind::NotListening),
        ("init_qp_attr", libc::EINVAL, ErrorKind::Disconnected),
        ("modify_qp", libc::ETIMEDOUT, ErrorKind::Timeout),
        ("establish", libc::ENOMEM, ErrorKind::OutOfMemory),
    ];
    for (call, errno, kind) in tries {
        let route = resolve::<Rc>(&context, None, address(), TIMEOUT).unwrap();
        let qp = route.init(end.qp()).unwrap();
        testing::fail(call, errno);
        let failed = route.connect(qp, &ConnOptions::new(), TIMEOUT).unwrap_err();
        assert_eq!(failed.error.kind(), kind, "{call}");
        failed.qp.reset().unwrap();
    }
    assert_eq!(testing::live("id"), 0);
}

#[test]
fn events_without_end_do_not_keep_waiting_calls_from_their_deadlines() {
    let context = testing::context();
    let listener = Listener::<Rc>::bind(&context, address(), &ListenOptions::new()).unwrap();
    fake::flood(event(raw_id(listener.id()), Code::RDMA_CM_EVENT_ADDR_CHANGE), FLOOD);
    assert!(listener.next_request(Some(SHORT)).unwrap().is_none());
    assert_ne!(fake::flood_left(), 0);

    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    fake::flood(event(raw_id(&id), Code::RDMA_CM_EVENT_ADDR_CHANGE), FLOOD);
    let nothing = |_| None::<()>;
    let deadline = crate::wait::Deadline::after(Some(SHORT));
    let (error, _) = blocking::wait_for((&channel, id.key()), Verb::Connect, deadline, nothing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_ne!(fake::flood_left(), 0);

    let connection = blocking::Connection::new(id, channel, PrivateData::default(), ConnectionParameters::default());
    fake::flood(event(raw_id(connection.id()), Code::RDMA_CM_EVENT_ADDR_CHANGE), FLOOD);
    assert!(!connection.wait_disconnected(Some(SHORT)).unwrap());
    assert_ne!(fake::flood_left(), 0);
    fake::flood(rdma_cm_event::default(), 0);
}
