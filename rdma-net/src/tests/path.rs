//! Options of the path: what the queue pairs of both sides get.

use rdma::{AckTimeout, ErrorKind, Mtu, RnrTimer};
use rdma_sys::{ibv_qp_attr, ibv_qp_state};
use rdma_testkit as testing;

use super::wakers::on_test_provider_with;
use super::*;

fn path() -> PathOptions {
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

/// What a queue pair has of [`path`], from its attributes in RTR and in RTS.
fn has_all(rtr: &ibv_qp_attr, rts: &ibv_qp_attr) {
    let grh = rtr.ah_attr.grh;
    assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit, rtr.ah_attr.sl), (0x6a, 0xabcde, 7, 5));
    assert_eq!((rtr.path_mtu.0, rtr.min_rnr_timer), (Mtu::MTU_512.as_raw(), 9));
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry), (17, 3, 2));
}

#[test]
fn both_sides_have_the_options_of_their_node() {
    for options in by_each_exchange() {
        let mut world = World::new(&options.path(path()));
        let (client, server) = world.pair();
        for side in [&client, &server] {
            let attributes = side.core().attributes().unwrap();
            has_all(&attributes, &attributes);
        }
        drop((client, server));
        world.end();
    }
}

#[test]
fn the_provider_gets_the_options_of_both_sides() {
    let ends = on_test_provider_with(&options().path(path()), &ListenOptions::new());
    let all = testing::modified();
    let to = |state: ibv_qp_state| all.iter().filter(move |(attr, _)| attr.qp_state == state).map(|(attr, _)| attr);
    let changes: Vec<_> = to(ibv_qp_state::IBV_QPS_RTR).zip(to(ibv_qp_state::IBV_QPS_RTS)).collect();
    assert_eq!(changes.len(), 2, "the client's and the server's");
    for (rtr, rts) in changes {
        has_all(rtr, rts);
    }
    drop(ends);
}

#[test]
fn without_options_a_connection_has_the_defaults() {
    let mut world = World::new(&NodeOptions::new().exchange(Exchange::Tcp));
    let (client, server) = world.pair();
    for side in [&client, &server] {
        let attributes = side.core().attributes().unwrap();
        assert_eq!((attributes.timeout, attributes.retry_cnt, attributes.rnr_retry), (14, 7, 6));
        assert_eq!((attributes.ah_attr.grh.traffic_class, attributes.ah_attr.grh.hop_limit), (0, 64));
    }
    drop((client, server));
    world.end();
}

/// The connection manager tells the traffic class and the timeout of the side that connects. The
/// side that accepts has its own where it has set it.
#[test]
fn a_side_without_options_takes_the_peers() {
    let class = |class| options().path(PathOptions::new().traffic_class(class));
    for (client, server, expected) in
        [(class(0x20), options(), [0x20, 0x20]), (options(), class(0x68), [0, 0x68]), (class(4), class(8), [4, 8])]
    {
        let mut world = World::with(&client, &server, &ListenOptions::new());
        let (client, server) = world.pair();
        let classes = [&client, &server].map(|side| side.core().attributes().unwrap().ah_attr.grh.traffic_class);
        assert_eq!(classes, expected);
        drop((client, server));
        world.end();
    }
}

#[test]
fn an_option_out_of_range_is_named_when_the_node_is_made() {
    let path = PathOptions::new;
    for (path, text) in [
        (path().service_level(16), "the option service_level has an invalid value: it may be 0 to 15"),
        (path().retry_count(8), "the option retry_count has an invalid value: it may be 0 to 7"),
        (path().rnr_retry_count(7), "the option rnr_retry_count has an invalid value: it may be 0 to 6"),
        (path().flow_label(1 << 20), "the option flow_label has an invalid value: it may be 0 to 1048575"),
        (path().udp_source_port(4791), "the option udp_source_port has an invalid value: it may be 49152 to 65535"),
    ] {
        let error = Node::new(&context(), &options().path(path)).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption(_)) && error.to_string().contains(text), "{error}");
    }
}

#[test]
fn a_completion_vector_wakes_the_driver() {
    let vectors = context().completion_vectors();
    let error = Node::new(&context(), &options().completion_vector(vectors)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCompletionVector(vectors));
    let text = format!("the option completion_vector has an invalid value: it may be 0 to {}", vectors - 1);
    assert!(error.to_string().contains(&text), "{error}");
    let mut world = World::new(&options().completion_vector(vectors - 1).strategy(Strategy::EventDriven));
    let (client, mut server) = world.pair();
    block_on(async {
        client.send("awake").await.unwrap();
        assert_eq!(&server.next().await.unwrap().unwrap()[..], b"awake");
    });
    drop((client, server));
    world.end();
}
