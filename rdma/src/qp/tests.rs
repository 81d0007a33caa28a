//! Bring-up, modify and destroy, over the test provider.

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask};

use super::*;
use crate::error::ErrorKind;
use crate::testing;
use crate::types::{AckTimeout, Gid, Lid, Mtu, PathOptions, RemoteAccess, RnrTimer};

struct Bench {
    context: Context,
    pd: ProtectionDomain,
    cq: crate::CompletionQueue,
}

impl Bench {
    fn new() -> Self {
        let context = testing::context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        Self { context, pd, cq }
    }

    fn prepared(&self) -> PreparedQueuePair<Rc> {
        QueuePair::builder(&self.pd).cq(&self.cq).build().unwrap()
    }
}

fn peer() -> Endpoint {
    Endpoint {
        qpn: 0x42,
        psn: 7,
        gid: Some("::ffff:10.0.0.2".parse().unwrap()),
        lid: Lid::NONE,
        mtu: Mtu::MTU_512,
        responder_resources: 4,
    }
}

#[test]
fn bring_up_chooses_from_what_the_device_reports() {
    let bench = Bench::new();
    let qp = bench.prepared().init(&InitOptions::new()).unwrap();
    assert_eq!(qp.port(), 2);
    let endpoint = qp.endpoint();
    assert_eq!(endpoint.gid, Some("::ffff:10.0.0.1".parse().unwrap()));
    assert_eq!((endpoint.mtu, endpoint.responder_resources), (Mtu::MTU_1024, 16));
    assert!(endpoint.psn < 1 << 24);
    let qp = qp.connect(&peer(), &ConnectOptions::new()).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::RTS);
}

#[test]
fn the_path_takes_the_smaller_of_everything() {
    let bench = Bench::new();
    let qp = bench.prepared().init(&InitOptions::new().port(2).gid_index(1).psn(5)).unwrap();
    assert_eq!(qp.endpoint().psn, 5);
    // Stop between RTR and RTS to inspect the attributes of RTR.
    testing::fail("modify_qp", 0);
    testing::fail("modify_qp", libc::ETIMEDOUT);
    let failed = qp.connect(&peer(), &ConnectOptions::new().mtu(Mtu::MTU_4096)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Timeout);
    let info = failed.object.into_manual().query().unwrap();
    let raw = info.as_raw();
    assert_eq!(info.path_mtu(), Mtu::MTU_512);
    assert_eq!((raw.dest_qp_num, raw.rq_psn, raw.max_dest_rd_atomic), (0x42, 7, 16));
    assert_eq!((raw.ah_attr.is_global, raw.ah_attr.grh.sgid_index, raw.ah_attr.port_num), (1, 1, 2));
    assert_eq!(Gid::from_raw(raw.ah_attr.grh.dgid), peer().gid.unwrap());
}

#[test]
fn the_requester_keeps_to_what_the_peer_serves() {
    let bench = Bench::new();
    let options = ConnectOptions::new().initiator_depth(200).rnr_retry_count(3);
    let qp = bench.prepared().init(&InitOptions::new()).unwrap().connect(&peer(), &options).unwrap();
    let info = qp.query().unwrap();
    assert_eq!((info.as_raw().max_rd_atomic, info.as_raw().rnr_retry), (4, 3));
}

/// The attributes of RTR and of RTS, as the provider got them.
fn ready_attributes() -> (ibv_qp_attr, ibv_qp_attr) {
    let all = testing::modified();
    let to = |state: QpState| {
        let found =
            all.iter().rfind(|(attr, mask)| attr.qp_state.0 == state.as_raw() && mask & Mask::IBV_QP_STATE.0 != 0);
        found.unwrap().0
    };
    (to(QpState::RTR), to(QpState::RTS))
}

#[test]
fn every_option_of_the_path_reaches_the_provider() {
    let bench = Bench::new();
    let options = ConnectOptions::new()
        .traffic_class(0x6a)
        .service_level(5)
        .ack_timeout(AckTimeout::from_code(17).unwrap())
        .retry_count(3)
        .rnr_retry_count(2)
        .min_rnr_timer(RnrTimer::from_code(9).unwrap())
        .mtu(Mtu::MTU_256)
        .flow_label(0xabcde)
        .hop_limit(7);
    let connected = bench.prepared().init(&InitOptions::new()).unwrap().connect(&peer(), &options).unwrap();
    let (rtr, rts) = ready_attributes();
    let grh = rtr.ah_attr.grh;
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit, rtr.ah_attr.sl), (0x6a, 0xabcde, 7, 5));
    assert_eq!((rtr.path_mtu.0, rtr.min_rnr_timer), (Mtu::MTU_256.as_raw(), 9));
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (17, 3, 2));
    drop(connected);

    let port = ConnectOptions::new().path(PathOptions::new().udp_source_port(50000));
    let connected = bench.prepared().init(&InitOptions::new()).unwrap().connect(&peer(), &port).unwrap();
    let (rtr, rts) = ready_attributes();
    let grh = rtr.ah_attr.grh;
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit, rtr.ah_attr.sl), (0, 50000 - 49152, 64, 0));
    assert_eq!((rtr.path_mtu.0, rtr.min_rnr_timer), (Mtu::MTU_512.as_raw(), 12), "the defaults");
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (14, 7, 7), "the defaults");
    drop(connected);
}

#[test]
fn an_option_out_of_range_gives_the_queue_pair_back_before_anything_is_done() {
    let bench = Bench::new();
    let mut qp = bench.prepared().init(&InitOptions::new()).unwrap();
    let changes = testing::modified().len();
    let options = ConnectOptions::new;
    for (options, text) in [
        (options().service_level(16), "the option service_level has an invalid value: it may be 0 to 15"),
        (options().retry_count(8), "the option retry_count has an invalid value: it may be 0 to 7"),
        (options().rnr_retry_count(255), "the option rnr_retry_count has an invalid value: it may be 0 to 7"),
        (options().flow_label(1 << 20), "the option flow_label has an invalid value: it may be 0 to 1048575"),
        (options().udp_source_port(1024), "the option udp_source_port has an invalid value: it may be 49152 to 65535"),
    ] {
        let failed = qp.connect(&peer(), &options).unwrap_err();
        assert!(matches!(failed.error.kind(), ErrorKind::InvalidOption(_)), "{failed}");
        assert!(failed.to_string().contains(text), "{failed}");
        qp = failed.object;
    }
    assert_eq!(testing::modified().len(), changes, "the provider was asked");
}

#[test]
fn bad_ports_and_gids_give_the_queue_pair_back() {
    let bench = Bench::new();
    let qp = bench.prepared();
    let failed = qp.init(&InitOptions::new().port(1)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::PortDown);
    let failed = failed.object.init(&InitOptions::new().port(9)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotFound);
    let failed = failed.object.init(&InitOptions::new().gid_index(77)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotFound);
    // The GID at index 3 is empty.
    let failed = failed.object.init(&InitOptions::new().gid_index(3)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotFound);
    assert!(!testing::calls().contains(&"modify_qp"));
    let qp = failed.object.init(&InitOptions::new()).unwrap();
    let failed = qp.connect(&Endpoint { gid: None, ..peer() }, &ConnectOptions::new()).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Incompatible);
}

#[test]
fn a_refused_change_says_which_attribute() {
    let bench = Bench::new();
    let mut qp = bench.prepared().into_manual();
    testing::fail("modify_qp", libc::EINVAL);
    let error = qp.modify(&QpAttr::to(QpState::INIT).port(2).path_mtu(Mtu::MTU_256)).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        "ibv_modify_qp: from RESET to INIT: missing ACCESS_FLAGS | PKEY_INDEX: not allowed PATH_MTU (os error 22)"
    );
    testing::fail("modify_qp", libc::EINVAL);
    let complete = QpAttr::to(QpState::INIT).port(2).pkey_index(9).access(RemoteAccess::READ);
    let error = qp.modify(&complete).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("a value is not"), "{error}");
    assert_eq!(
        complete.mask().bits(),
        (Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_ACCESS_FLAGS.0)
    );
}

#[test]
fn creation_fails_before_the_provider_is_asked() {
    let bench = Bench::new();
    let error = QueuePair::builder(&bench.pd).send_cq(&bench.cq).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCompletionQueue);
    let other = testing::context().create_cq(64).unwrap();
    let error = QueuePair::builder(&bench.pd).cq(&other).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(!testing::calls().contains(&"create_qp"));
}

#[test]
fn a_queue_pair_keeps_its_parents() {
    let bench = Bench::new();
    let qp = bench.prepared();
    drop(bench);
    assert_eq!((testing::live("pd"), testing::live("cq"), testing::live("context")), (1, 1, 1));
    drop(qp);
    for kind in ["qp", "pd", "cq", "context", "device"] {
        assert_eq!(testing::live(kind), 0, "{kind}");
    }
    let order: Vec<_> =
        testing::calls().into_iter().filter(|call| call.starts_with("de") || call.starts_with("close")).collect();
    assert_eq!(order.first(), Some(&"destroy_qp"));
    assert_eq!(order.last(), Some(&"close_device"));
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_everything() {
    let bench = Bench::new();
    let qp = bench.prepared().into_manual();
    testing::fail("destroy_qp", libc::EBUSY);
    let qp = qp.close().unwrap_err().object;
    testing::fail("destroy_qp", libc::EBUSY);
    drop(qp);
    drop(bench);
    assert_eq!((testing::live("qp"), testing::live("pd"), testing::live("cq"), testing::live("context")), (1, 1, 1, 1));
    assert!(!testing::calls().contains(&"destroy_cq"));
}

#[test]
fn a_failed_creation_leaves_nothing_behind() {
    let bench = Bench::new();
    for _ in 0..10 {
        testing::fail("create_qp", libc::ENOMEM);
        let error = QueuePair::builder(&bench.pd).cq(&bench.cq).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
    // Each failed creation freed its space in the completion queue.
    let _qp = bench.prepared();
    assert_eq!(bench.context.device_attr().max_cqe(), 4096);
}

#[test]
fn reset_goes_back_to_the_start() {
    let bench = Bench::new();
    let qp = bench.prepared().init(&InitOptions::new()).unwrap().connect(&peer(), &ConnectOptions::new()).unwrap();
    let prepared = qp.reset().unwrap();
    let qp = prepared.init(&InitOptions::new()).unwrap().connect(&peer(), &ConnectOptions::new()).unwrap();
    qp.set_error().unwrap();
    assert_eq!(qp.state().unwrap(), QpState::ERR);
    testing::fail("modify_qp", libc::EIO);
    let failed = qp.reset().unwrap_err();
    assert_eq!(failed.object.state().unwrap(), QpState::ERR);
}
