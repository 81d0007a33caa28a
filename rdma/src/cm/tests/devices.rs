//! Ids on several devices, and their contexts.

use super::*;
use crate::cm::blocking::{ResolveOptions, resolve_on};

/// A request that arrives on a device.
fn request_on(device: &'static str, channel: &EventChannel, listener: &Id<Rc>) -> ConnectRequest<Rc> {
    fake::bind_to(device);
    request(channel, listener);
    let EventKind::ConnectRequest(request) = next(channel).kind else { panic!() };
    request
}

#[test]
fn an_id_has_no_context_before_it_has_a_device() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    assert_eq!(id.context().unwrap_err().kind(), ErrorKind::InvalidInput);
    id.bind_addr(address()).unwrap();
    assert_eq!(id.context().unwrap().name(), "fake0");
}

#[test]
fn each_request_tells_the_context_of_its_device() {
    testing::add_device("nic_a0");
    let own = testing::context();
    let channel = EventChannel::of(&own).unwrap();
    let listener = channel.create_id::<Rc>().unwrap();
    let first = request_on("fake0", &channel, &listener);
    assert_eq!(first.context().unwrap().as_raw(), own.as_raw(), "the context that the channel is made of");
    let second = request_on("nic_a0", &channel, &listener);
    let other = second.context().unwrap();
    assert_eq!(other.name(), "nic_a0");
    let third = request_on("nic_a0", &channel, &listener);
    assert_eq!(third.context().unwrap().as_raw(), other.as_raw());
    assert_eq!(testing::live("context"), 2);
    for (request, context) in [(first, &own), (second, &other), (third, &other)] {
        let qp = request.init(End::new(context).qp(), RemoteAccess::READ).unwrap();
        request.accept(qp, &ConnOptions::new()).unwrap();
    }
}

#[test]
fn a_context_of_an_id_lives_as_long_as_what_is_made_of_it() {
    testing::add_device("nic_b0");
    let channel = channel();
    let listener = channel.create_id::<Rc>().unwrap();
    let request = request_on("nic_b0", &channel, &listener);
    let end = End::new(&request.context().unwrap());
    let qp = request.init(end.qp(), RemoteAccess::READ).unwrap();
    // The ids and their channel are gone, and the context is still there.
    drop((request, listener, channel));
    assert_eq!(testing::live("context"), 1);
    let again = self::channel();
    let id = again.create_id::<Rc>().unwrap();
    id.bind_addr(address()).unwrap();
    assert_eq!(id.context().unwrap().as_raw(), end.pd.context().as_raw(), "another channel finds it");
    drop((qp, end));
    // The channel's own context is left. The device is opened anew.
    assert_eq!(testing::live("context"), 1);
    assert_eq!(id.context().unwrap().name(), "nic_b0");
    drop((id, again));
    assert_eq!(testing::live("context"), 0);
}

#[test]
fn a_queue_pair_of_another_device_is_refused_by_name() {
    testing::add_device("nic_c0");
    let channel = channel();
    let listener = channel.create_id::<Rc>().unwrap();
    let request = request_on("nic_c0", &channel, &listener);
    let names = |error: Error| {
        let ErrorKind::WrongDevice(devices) = error.kind() else { panic!("{error}") };
        (devices.open(), devices.found())
    };
    let failed = request.init(End::new(&testing::context()).qp(), RemoteAccess::READ).unwrap_err();
    assert_eq!(names(failed.error), ("fake0", "nic_c0"));
    assert!(failed.error.to_string().contains("nic_c0") && failed.error.to_string().contains("fake0"));
    let qp = failed.object.init(&crate::InitOptions::new().port(2)).unwrap();
    let failed = request.accept(qp, &ConnOptions::new()).unwrap_err();
    assert_eq!(names(failed.error), ("fake0", "nic_c0"));
    assert_eq!((calls("init_qp_attr"), calls("accept")), (0, 0));
}

#[test]
#[cfg(feature = "soft")]
fn a_device_of_another_library_is_another_device() {
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    // The same name, but not the same device.
    fake::bind_to("soft0");
    id.bind_addr(address()).unwrap();
    let soft0 = crate::open(&"soft0".parse().unwrap()).unwrap().context;
    let failed = id.init(End::new(&soft0).qp(), RemoteAccess::READ).unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::WrongDevice(_)), "{}", failed.error);
    assert_eq!(id.context().unwrap_err().kind(), ErrorKind::NoDevice, "the library does not list it");
}

#[test]
fn a_context_that_cannot_be_opened_is_an_error_and_is_opened_later() {
    testing::add_device("nic_e0");
    let channel = channel();
    let id = channel.create_id::<Rc>().unwrap();
    fake::bind_to("nic_e0");
    id.bind_addr(address()).unwrap();
    testing::fail("open_device", libc::EMFILE);
    assert_eq!(id.context().unwrap_err().errno(), Some(libc::EMFILE));
    testing::fail("get_device_list", libc::ENOMEM);
    assert!(id.context().is_err());
    assert_eq!(id.context().unwrap().name(), "nic_e0");
}

#[test]
fn a_listener_of_one_context_rejects_requests_on_other_devices() {
    testing::add_device("nic_f0");
    let own = testing::context();
    let listener = Listener::<Rc>::bind(&own, address(), &ListenOptions::new()).unwrap();
    let channel = EventChannel { inner: listener.id().raw.channel.clone() };
    fake::bind_to("nic_f0");
    request(&channel, listener.id());
    assert!(listener.next_request(Some(Duration::ZERO)).unwrap().is_none());
    fake::bind_to("fake0");
    request(&channel, listener.id());
    let accepted = listener.next_request(Some(TIMEOUT)).unwrap().unwrap();
    assert_eq!(accepted.context().unwrap().as_raw(), own.as_raw());
}

#[test]
fn a_listener_on_a_channel_serves_every_device() {
    testing::add_device("nic_g0");
    let own = testing::context();
    let listener = Listener::<Rc>::on(EventChannel::of(&own).unwrap(), address(), &ListenOptions::new()).unwrap();
    let channel = EventChannel { inner: listener.id().raw.channel.clone() };
    for device in ["nic_g0", "fake0"] {
        fake::bind_to(device);
        request(&channel, listener.id());
        let request = listener.next_request(Some(TIMEOUT)).unwrap().unwrap();
        assert_eq!(request.context().unwrap().name(), device);
        assert_eq!(request.context().unwrap().as_raw() == own.as_raw(), device == "fake0");
    }
}

#[test]
fn a_route_may_lead_through_any_device() {
    testing::add_device("nic_h0");
    fake::answer();
    fake::bind_to("nic_h0");
    let options = ResolveOptions::new();
    let error = resolve::<Rc>(&testing::context(), None, address(), TIMEOUT).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongDevice(_)), "{error}");
    let channel = channel();
    let route = resolve_on::<Rc>(channel, None, address(), TIMEOUT, &options).unwrap();
    assert_eq!(route.context().unwrap().name(), "nic_h0");
}

#[test]
fn the_events_of_other_ids_of_a_channel_are_not_taken_for_ones_own() {
    let channel = channel();
    let listener = Listener::<Rc>::on(channel.clone(), address(), &ListenOptions::new()).unwrap();
    let others = [channel.create_id::<Rc>().unwrap(), channel.create_id::<Rc>().unwrap()];
    raise(&channel, event(raw_id(&others[0]), Code::RDMA_CM_EVENT_DEVICE_REMOVAL), b"");
    request(&channel, &others[1]);
    assert!(listener.next_request(Some(Duration::ZERO)).unwrap().is_none());
    request(&channel, listener.id());
    assert_eq!(listener.next_request(Some(TIMEOUT)).unwrap().unwrap().request().listener(), listener.id().key());

    raise(&channel, event(raw_id(&others[0]), Code::RDMA_CM_EVENT_ADDR_RESOLVED), b"");
    let failed = resolve_on::<Rc>(channel.clone(), None, address(), Duration::from_millis(1), &ResolveOptions::new())
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Timeout);

    let [other, own] = others;
    let connection =
        blocking::Connection::new(own, channel.clone(), PrivateData::default(), ConnectionParameters::default());
    raise(&channel, event(raw_id(&other), Code::RDMA_CM_EVENT_DISCONNECTED), b"");
    assert!(!connection.wait_disconnected(Some(Duration::ZERO)).unwrap());
    raise(&channel, event(raw_id(connection.id()), Code::RDMA_CM_EVENT_DISCONNECTED), b"");
    assert!(connection.wait_disconnected(Some(TIMEOUT)).unwrap());
}
