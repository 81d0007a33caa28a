//! The control path on a device: listing, selection, attributes, bring-up, destruction.

use std::time::Duration;

use rdma::{
    ConnectOptions, Context, Device, DeviceSelector, Endpoint, ErrorKind, InitOptions, LinkLayer, Mtu, OpenError,
    PortState, QpAttr, QpState, QueuePair, RemoteAccess,
};
use rdma_test_support::passes_alone;
use rdma_tests::{open, skipped_on_iwarp};

#[test]
fn the_device_is_listed_and_says_what_it_is() {
    let opened = open();
    let listed = Device::list().unwrap();
    let device = listed.iter().find(|device| device.name() == opened.context.name()).unwrap();
    assert_eq!(device.is_software(), device.name().starts_with("soft"));
    assert_eq!(device.guid(), opened.context.device().guid());
    // The list has hardware before software devices.
    assert!(listed.is_sorted_by_key(Device::is_software));
    assert_eq!(opened.choice.is_software(), device.is_software());
    assert!(opened.choice.to_string().contains(&device.name()));
}

#[test]
fn names_select_ports_and_mistakes_are_named() {
    let opened = open();
    let name = opened.context.name();
    let select = |port| DeviceSelector::Named { name: name.clone(), port: Some(port) };
    assert_eq!(rdma::open(&select(opened.port)).unwrap().port, opened.port);
    let error = rdma::open(&select(200)).unwrap_err();
    assert!(matches!(error, OpenError::NoPort { port: 200, .. }), "{error}");
}

#[test]
fn the_software_device_can_be_switched_off() {
    passes_alone(&["control::without_software"], &[("RDMA_SOFT", "off")]);
}

#[test]
#[ignore = "run by the_software_device_can_be_switched_off"]
fn without_software() {
    assert!(Device::list().unwrap().iter().all(|device| !device.is_software()));
    let soft: DeviceSelector = "soft0".parse().unwrap();
    assert!(matches!(rdma::open(&soft).unwrap_err(), OpenError::Unknown { .. }));
    if let Ok(opened) = rdma::open(&DeviceSelector::Any) {
        assert!(!opened.choice.is_software());
    }
}

#[test]
fn an_environment_that_means_nothing_is_an_error() {
    for (name, value) in [
        ("RDMA_SOFT", "maybe"),
        ("RDMA_SOFT_DEVICES", "0"),
        ("RDMA_SOFT_LINK_LAYER", "foo"),
        ("RDMA_IBVERBS_PATH", "/nonexistent/verbs.so"),
    ] {
        passes_alone(&["control::environment_means_nothing"], &[(name, value)]);
    }
}

#[test]
#[ignore = "run by an_environment_that_means_nothing_is_an_error"]
fn environment_means_nothing() {
    let error = Device::list().unwrap_err();
    let ErrorKind::InvalidVariable(variable) = error.kind() else { panic!("{error}") };
    assert!(std::env::var_os(variable.name).is_some());
    assert!(matches!(rdma::open(&DeviceSelector::Any), Err(OpenError::List(other)) if other == error));
}

#[test]
fn the_environment_selects_and_its_mistakes_are_named() {
    passes_alone(&["control::environment_is_wrong"], &[("RDMA_DEVICE", "mlx5_0:zero")]);
    passes_alone(&["control::environment_is_soft"], &[("RDMA_DEVICE", "soft0:1")]);
}

#[test]
#[ignore = "run by the_environment_selects_and_its_mistakes_are_named"]
fn environment_is_wrong() {
    let text = DeviceSelector::from_env().unwrap_err().to_string();
    assert!(text.contains("RDMA_DEVICE") && text.contains("mlx5_0:zero"), "{text}");
}

#[test]
#[ignore = "run by the_environment_selects_and_its_mistakes_are_named"]
fn environment_is_soft() {
    let selector = DeviceSelector::from_env().unwrap();
    assert_eq!(selector, DeviceSelector::Named { name: "soft0".into(), port: Some(1) });
}

#[test]
fn any_device_is_hardware_or_says_why_not() {
    let Ok(opened) = rdma::open(&DeviceSelector::Any) else { return rdma_tests::skip("no device at all") };
    if opened.choice.is_software() {
        assert!(opened.choice.to_string().contains("software device"), "{}", opened.choice);
        assert!(opened.choice.reason().starts_with("no usable RDMA hardware: "), "{}", opened.choice);
        assert!(matches!(rdma::open(&DeviceSelector::Hardware), Err(OpenError::NoHardware { .. })));
    } else {
        assert_eq!(opened.context.port_attr(opened.port).unwrap().state(), PortState::ACTIVE);
    }
}

#[test]
fn the_port_reports_sane_values() {
    let opened = open();
    let context = &opened.context;
    let port = context.port_attr(opened.port).unwrap();
    assert_eq!(port.state(), PortState::ACTIVE);
    assert!(port.active_mtu() <= port.max_mtu());
    assert!(port.active_mtu().bytes().is_some());
    assert!(port.max_message_size() > 0);
    let table = context.gid_table(opened.port).unwrap();
    for entry in &table {
        assert_eq!(context.gid(opened.port, entry.index).unwrap(), entry.gid);
    }
    if port.link_layer() == LinkLayer::ETHERNET {
        assert!(context.best_gid(opened.port).unwrap().is_some());
    }
    // iWARP has no partition keys.
    if port.pkey_table_len() > 0 {
        assert_ne!(context.pkey(opened.port, 0).unwrap(), 0);
    }
    let attr = context.device_attr();
    assert!(attr.max_qp_wr() > 0 && attr.max_cqe() > 0 && attr.max_sge() > 0 && attr.max_mr_size() > 0);
}

type Connected = QueuePair<rdma::transport::Rc>;

fn pair(context: &Context, port: u8) -> (Connected, Connected) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64).unwrap();
    let end = || QueuePair::builder(&pd).cq(&cq).build().unwrap().init(&InitOptions::new().port(port)).unwrap();
    let (a, b) = (end(), end());
    let travels = |endpoint: Endpoint| Endpoint::from_bytes(&endpoint.to_bytes()).unwrap();
    let (to_a, to_b) = (travels(a.endpoint()), travels(b.endpoint()));
    let options = ConnectOptions::new();
    (a.connect(&to_b, &options).unwrap(), b.connect(&to_a, &options).unwrap())
}

#[test]
fn two_queue_pairs_connect() {
    let opened = open();
    if skipped_on_iwarp(&opened.context, rdma_tests::MANAGED) {
        return;
    }
    let (a, b) = pair(&opened.context, opened.port);
    assert_ne!(a.qpn(), b.qpn());
    let info = a.query().unwrap();
    assert_eq!((info.state(), info.dest_qpn()), (QpState::RTS, b.qpn()));
    assert_eq!(info.path_mtu(), opened.context.port_attr(opened.port).unwrap().active_mtu());
    assert!(info.max_send_wr() >= 16);
    a.writes_in_order().unwrap();
}

#[test]
fn error_and_reset_lead_back_to_the_start() {
    let opened = open();
    if skipped_on_iwarp(&opened.context, rdma_tests::MANAGED) {
        return;
    }
    let (a, b) = pair(&opened.context, opened.port);
    a.set_error().unwrap();
    assert_eq!(a.state().unwrap(), QpState::ERR);
    let a = a.reset().unwrap().init(&InitOptions::new().port(opened.port)).unwrap();
    assert_eq!(a.endpoint().qpn, a.qpn());
    b.close().unwrap();
}

#[test]
fn a_refused_change_is_explained() {
    let opened = open();
    let pd = opened.context.alloc_pd().unwrap();
    let cq = opened.context.create_cq(64).unwrap();
    let mut qp = QueuePair::builder(&pd).cq(&cq).build().unwrap().into_manual();
    let error = qp.modify(&QpAttr::to(QpState::INIT).port(opened.port).path_mtu(Mtu::MTU_256)).unwrap_err();
    let ErrorKind::InvalidTransition { from, to, missing, not_allowed } = error.kind() else { panic!("{error}") };
    assert_eq!((from, to), (QpState::RESET, QpState::INIT));
    assert_eq!(missing.to_string(), "ACCESS_FLAGS | PKEY_INDEX");
    assert_eq!(not_allowed.to_string(), "PATH_MTU");
    let error = qp.modify(&QpAttr::to(QpState::RTS)).unwrap_err();
    assert!(error.to_string().contains("no such transition"), "{error}");
    // iWARP allows a change from RESET to ERR.
    if !rdma_tests::is_iwarp(&opened.context) {
        let error = qp.modify(&QpAttr::to(QpState::ERR)).unwrap_err();
        assert!(error.to_string().contains("from RESET to ERR: there is no such transition"), "{error}");
    }
    qp.modify(&QpAttr::to(QpState::INIT).port(opened.port).pkey_index(0).access(RemoteAccess::READ)).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::INIT);
}

#[test]
fn more_than_the_device_has_is_an_error() {
    let opened = open();
    let too_deep = opened.context.device_attr().max_cqe() + 1;
    let error = opened.context.create_cq(too_deep).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory), "{error}");
    let vectors = opened.context.completion_vectors();
    assert!(opened.context.cq_builder(8).completion_vector(vectors + 1000).build().is_err());
}

#[test]
fn parents_can_go_first() {
    let opened = open();
    if skipped_on_iwarp(&opened.context, rdma_tests::MANAGED) {
        return;
    }
    let (a, b) = pair(&opened.context, opened.port);
    drop(opened);
    assert_eq!(a.state().unwrap(), QpState::RTS);
    drop(a);
    b.close().unwrap();
}

#[test]
fn waiting_for_nothing_ends_at_the_deadline() {
    let opened = open();
    let channel = opened.context.create_completion_channel().unwrap();
    let cq = opened.context.cq_builder(8).channel(&channel).build().unwrap();
    cq.request_notify(false).unwrap();
    assert_eq!(channel.next_event(Some(Duration::from_millis(5))).unwrap(), None);
    assert_eq!(opened.context.next_event(Some(Duration::from_millis(5))).unwrap(), None);
    drop(channel);
    cq.close().unwrap();
}
#[test]
fn requests_beyond_the_completion_queue_are_refused_at_creation() {
    let opened = open();
    let pd = opened.context.alloc_pd().unwrap();
    let cq = opened.context.create_cq(8).unwrap();
    let depth = cq.depth();
    let error = QueuePair::builder(&pd).cq(&cq).max_send_wr(depth).max_recv_wr(1).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::CompletionQueueTooSmall { .. }), "{error}");
    let fits = QueuePair::builder(&pd).cq(&cq).max_send_wr(depth - 1).max_recv_wr(1);
    // Dropping a queue pair returns its reserved CQ entries.
    for _ in 0..3 {
        let qp = fits.clone().build().unwrap();
        assert!(fits.clone().build().is_err());
        drop(qp);
    }
}

#[test]
fn a_device_says_whether_it_imports_dma_bufs() {
    let opened = open();
    let pd = opened.context.alloc_pd().unwrap();
    match pd.probe_dmabuf() {
        Ok(()) => assert!(!opened.choice.is_software()),
        // soft0, rxe and siw cannot.
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}"),
    }
}
