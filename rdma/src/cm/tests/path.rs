//! Options of the path: what librdmacm and the provider get of them.

use rdma_sys::{
    RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_TOS, ibv_ah_attr, ibv_global_route, ibv_mtu, ibv_qp_attr_mask as Mask,
};

use super::blocking::{ResolveOptions, Resolved, resolve_with};
use super::*;
use crate::error::Failed;
use crate::qp::InitializedQueuePair;
use crate::types::{AckTimeout, Mtu, PathOptions, RnrTimer};

/// What the kernel says of a route.
fn agreed() -> ibv_qp_attr {
    let grh = ibv_global_route { sgid_index: 3, hop_limit: 1, traffic_class: 0x20, ..ibv_global_route::default() };
    let ah_attr = ibv_ah_attr { grh, is_global: 1, sl: 1, static_rate: 2, port_num: 2, ..ibv_ah_attr::default() };
    let path_mtu = ibv_mtu::IBV_MTU_1024;
    ibv_qp_attr { ah_attr, path_mtu, timeout: 20, retry_cnt: 6, rnr_retry: 5, ..ibv_qp_attr::default() }
}

fn all() -> PathOptions {
    PathOptions::new()
        .traffic_class(0x6a)
        .service_level(5)
        .ack_timeout(AckTimeout::from_code(17).unwrap())
        .retry_count(3)
        .rnr_retry_count(2)
        .min_rnr_timer(RnrTimer::from_code(9).unwrap())
        .mtu(Mtu::MTU_512)
        .flow_label(0xabcde)
        .hop_limit(7)
}

/// The attributes of the last change to RTR and to RTS, as the provider got them.
fn ready_attributes() -> [ibv_qp_attr; 2] {
    let all = testing::modified();
    [QpState::RTR, QpState::RTS].map(|state| {
        let is_to =
            |attr: &ibv_qp_attr, mask: u32| attr.qp_state.0 == state.as_raw() && mask & Mask::IBV_QP_STATE.0 != 0;
        all.iter().rfind(|(attr, mask)| is_to(attr, *mask)).unwrap().0
    })
}

/// Traffic class, flow label, hop limit, service level, MTU and RNR timer.
type OfRtr = (u8, u32, u8, u8, u32, u8);
/// Timeout, retries and RNR retries.
type OfRts = (u8, u8, u8);

fn values() -> (OfRtr, OfRts) {
    let [rtr, rts] = ready_attributes();
    let (ah, grh) = (rtr.ah_attr, rtr.ah_attr.grh);
    // The rest of the route stays librdmacm's.
    assert_eq!((grh.sgid_index, ah.static_rate, ah.is_global), (3, 2, 1));
    let first = (grh.traffic_class, grh.flow_label, grh.hop_limit, ah.sl, rtr.path_mtu.0, rtr.min_rnr_timer);
    (first, (rts.timeout, rts.retry_cnt, rts.rnr_retry))
}

const ALL: (OfRtr, OfRts) = ((0x6a, 0xabcde, 7, 5, 2, 9), (17, 3, 2));

fn ready(path: PathOptions) -> (Resolved, InitializedQueuePair<Rc>) {
    fake::answer();
    fake::set_attr(agreed());
    let context = testing::context();
    let options = ResolveOptions::new().path(path);
    let route = resolve_with::<Rc>(&context, None, address(), TIMEOUT, &options).unwrap();
    let qp = route.init(End::new(&context).qp()).unwrap();
    (route, qp)
}

fn accept(listening: PathOptions, options: &ConnOptions) -> Result<QueuePair<Rc>> {
    let context = testing::context();
    let options_of_listener = ListenOptions::new().path(listening);
    let listener = Listener::<Rc>::bind(&context, address(), &options_of_listener).unwrap();
    fake::answer();
    fake::set_attr(agreed());
    let channel = EventChannel { inner: std::sync::Arc::clone(&listener.id().raw.channel) };
    request(&channel, listener.id());
    let incoming = listener.next_request(Some(TIMEOUT)).unwrap().unwrap();
    let qp = incoming.init(End::new(&context).qp()).unwrap();
    Ok(incoming.accept(qp, options, TIMEOUT).map_err(|failed| failed.error)?.1)
}

#[test]
fn the_side_that_connects_has_its_options_and_tells_them() {
    let (route, qp) = ready(all());
    let connected = route.connect(qp, &ConnOptions::new(), TIMEOUT).unwrap();
    assert_eq!(values(), ALL);
    let tos = i32::try_from(RDMA_OPTION_ID_TOS).unwrap();
    let timeout = i32::try_from(RDMA_OPTION_ID_ACK_TIMEOUT).unwrap();
    assert_eq!(fake::options(), [(tos, 0x6a), (timeout, 17)]);
    assert_eq!((fake::given().retry_count, fake::given().rnr_retry_count), (3, 2));
    drop(connected);
}

#[test]
fn without_options_everything_is_as_librdmacm_says() {
    let (route, qp) = ready(PathOptions::new());
    let connected = route.connect(qp, &ConnOptions::new(), TIMEOUT).unwrap();
    assert_eq!(values(), ((0x20, 0, 1, 1, 3, 12), (20, 6, 5)));
    assert_eq!(fake::options(), []);
    assert_eq!((fake::given().retry_count, fake::given().rnr_retry_count), (7, 7));
    drop(connected);
}

#[test]
fn a_listener_gives_its_options_to_its_connections() {
    let qp = accept(all(), &ConnOptions::new()).unwrap();
    assert_eq!(values(), ALL);
    assert_eq!((fake::given().retry_count, fake::given().rnr_retry_count), (3, 2));
    drop(qp);
}

#[test]
fn the_options_of_a_connection_go_before_those_of_its_id() {
    let options = ConnOptions::new().traffic_class(1).hop_limit(2).retry_count(1).mtu(Mtu::MTU_4096);
    let ((_, flow_label, _, level, ..), (timeout, _, rnr_retries)) = ALL;
    let expected = ((1, flow_label, 2, level, 3, 9), (timeout, 1, rnr_retries));
    let qp = accept(all(), &options).unwrap();
    assert_eq!(values(), expected, "a larger MTU than the route's has no effect");
    drop(qp);
    let (route, qp) = ready(all());
    let connected = route.connect(qp, &options, TIMEOUT).unwrap();
    assert_eq!(values(), expected);
    drop(connected);
}

#[test]
fn options_out_of_range_are_refused_before_anything_is_done() {
    let wrong = PathOptions::new().service_level(16);
    let context = testing::context();
    let refused = |error: Error| {
        assert!(matches!(error.kind(), ErrorKind::InvalidOption(_)), "{error}");
        assert!(
            error.to_string().ends_with("the option service_level has an invalid value: it may be 0 to 15"),
            "{error}"
        );
    };
    refused(Listener::<Rc>::bind(&context, address(), &ListenOptions::new().path(wrong)).unwrap_err());
    let options = ResolveOptions::new().path(wrong.traffic_class(1));
    refused(resolve_with::<Rc>(&context, None, address(), TIMEOUT, &options).unwrap_err());
    for call in ["set_option", "bind_addr", "listen", "resolve_addr"] {
        assert_eq!(calls(call), 0, "{call}");
    }
    let (route, qp) = ready(PathOptions::new());
    let changes = testing::modified().len();
    let failed = route.connect(qp, &ConnOptions::new().path(wrong), TIMEOUT).unwrap_err();
    refused(failed.error);
    assert_eq!((calls("connect"), testing::modified().len()), (0, changes));
    refused(accept(PathOptions::new(), &ConnOptions::new().path(wrong)).unwrap_err());
    assert_eq!((calls("accept"), testing::modified().len()), (0, changes + 1), "only to INIT");

    let id = channel().create_id::<Rc>().unwrap();
    refused(id.set_path(&wrong).unwrap_err());
    let (_, qp) = ready(PathOptions::new());
    let Failed { error, .. } = id.establish(qp, &ConnOptions::new().path(wrong)).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidOption(_)), "{error}");
}

#[test]
fn a_single_option_replaces_that_of_the_path() {
    let id = channel().create_id::<Rc>().unwrap();
    id.set_path(&all()).unwrap();
    id.set_tos(8).unwrap();
    let timeout = AckTimeout::from_code(14).unwrap();
    id.set_ack_timeout(timeout).unwrap();
    let known = || id.raw.path(PathOptions::new(), Verb::Connect).unwrap();
    assert_eq!(known(), all().traffic_class(8).ack_timeout(timeout));
    testing::fail("set_option", libc::EINVAL);
    assert!(id.set_tos(9).is_err());
    assert_eq!(known().traffic_class, Some(8), "librdmacm did not take the other");
}

#[test]
fn the_path_of_datagrams_has_the_options_of_its_id() {
    let channel = channel();
    let id = channel.create_id::<Ud>().unwrap();
    let established = || {
        let ud = rdma_ud_param { ah_attr: agreed().ah_attr, qp_num: 9, ..Default::default() };
        let param = rdma_cm_event__bindgen_ty_1 { ud };
        raise(&channel, rdma_cm_event { param, ..event(raw_id(&id), Code::RDMA_CM_EVENT_ESTABLISHED) }, b"");
        let EventKind::UdEstablished(peer) = next(&channel).kind else { panic!() };
        let route = peer.path.route.unwrap();
        (peer.path.service_level, route.traffic_class, route.flow_label, route.hop_limit, route.source_index)
    };
    assert_eq!(established(), (1, 0x20, 0, 1, 3));
    id.set_path(&PathOptions::new().service_level(5).flow_label(0xabcde).hop_limit(7)).unwrap();
    assert_eq!(established(), (5, 0x20, 0xabcde, 7, 3));
}
