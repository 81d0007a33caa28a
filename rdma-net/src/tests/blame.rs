//! What a failure says about the side that has failed.

use std::pin::pin;
use std::task::{Poll, Waker};

use rdma::AsyncEventKind;
use rdma_sys::{ibv_async_event, ibv_event_type, ibv_wc, ibv_wc_status};
use rdma_testkit as testing;

use super::wakers::{Driven, on_test_provider, poll};
use super::*;

/// Raises an asynchronous event of a node's device.
fn raise(node: &Node, event_type: ibv_event_type, fill: impl FnOnce(&mut ibv_async_event)) {
    let mut event = ibv_async_event { event_type, ..ibv_async_event::default() };
    fill(&mut event);
    testing::raise(node.domain().context().as_raw(), event);
}

/// Waits for the failure of a connection.
fn failure_of(world: &mut Driven, connection: &mut Connection) -> Failure {
    world.run(connection.next()).map(drop).unwrap_err()
}

#[test]
fn a_device_that_has_failed_is_not_a_peer_that_is_gone() {
    let (mut world, mut client, mut server) = on_test_provider(&ListenOptions::new());
    raise(&world.nodes[0], ibv_event_type::IBV_EVENT_DEVICE_FATAL, |_| ());
    let failure = failure_of(&mut world, &mut client);
    assert_eq!(failure.kind(), FailureKind::Local, "{failure}");
    assert_eq!(failure.to_string(), "this end failed: the device reports: device fatal error");
    // Later attempts say the same, and the program gets the event too.
    let to = world.listener.local_addr();
    let node = world.nodes[0].clone();
    assert_eq!(world.run(node.connect(to)).unwrap_err(), failure);
    let event = node.domain().context().next_event(Some(LONG)).unwrap().unwrap();
    assert_eq!(event.kind, AsyncEventKind::DEVICE_FATAL);
    assert_eq!(node.connections(), 0);
    // The peer has another device.
    assert!(poll(pin!(server.send("alive")), Waker::noop()).is_ready());
    let refused = failure_of(&mut world, &mut server);
    assert_eq!(refused.kind(), FailureKind::PeerGone, "{refused}");
}

#[test]
fn a_completion_queue_that_breaks_ends_its_connections_and_listeners() {
    let (mut world, _client, mut server) = on_test_provider(&ListenOptions::new());
    let cq = world.nodes[1].tables().shared.cq.as_raw();
    raise(&world.nodes[1], ibv_event_type::IBV_EVENT_CQ_ERR, |event| event.element.cq = cq);
    let failure = failure_of(&mut world, &mut server);
    assert_eq!(failure.to_string(), "this end failed: the device reports: completion queue error");
    let Driven { mut listener, .. } = world;
    assert_eq!(block_on(listener.accept()).map(drop).unwrap_err(), failure);
}

#[test]
fn an_event_names_the_reason_of_flushed_requests() {
    for (event_type, kind, text) in [
        (ibv_event_type::IBV_EVENT_QP_FATAL, FailureKind::Local, "queue pair fatal error"),
        (ibv_event_type::IBV_EVENT_QP_ACCESS_ERR, FailureKind::PeerGone, "the peer broke the connection"),
    ] {
        let (mut world, _client, mut server) = on_test_provider(&ListenOptions::new());
        let core = server.core().clone();
        let (qp, cq) = (core.raw_queue_pair().unwrap(), world.nodes[1].tables().shared.cq.as_raw());
        let posted = testing::posted(qp).remove(0);
        raise(&world.nodes[1], event_type, |event| event.element.qp = qp);
        // The driver polls the completion queue before it looks at events.
        let status = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        testing::complete(cq, ibv_wc { wr_id: posted.wr_id, status, ..ibv_wc::default() });
        let failure = failure_of(&mut world, &mut server);
        assert_eq!(failure.kind(), kind, "{failure}");
        assert!(failure.to_string().contains(text), "{failure}");
    }
}

#[test]
fn an_error_of_this_end_is_not_blamed_on_the_peer() {
    for (status, kind) in [
        (ibv_wc_status::IBV_WC_LOC_PROT_ERR, FailureKind::Local),
        (ibv_wc_status::IBV_WC_FATAL_ERR, FailureKind::Local),
        (ibv_wc_status::IBV_WC_RETRY_EXC_ERR, FailureKind::PeerGone),
    ] {
        let (mut world, _client, mut server) = on_test_provider(&ListenOptions::new());
        let (qp, cq) = (server.core().raw_queue_pair().unwrap(), world.nodes[1].tables().shared.cq.as_raw());
        let posted = testing::posted(qp).remove(0);
        testing::complete(cq, ibv_wc { wr_id: posted.wr_id, status, ..ibv_wc::default() });
        let failure = failure_of(&mut world, &mut server);
        assert_eq!(failure.kind(), kind, "{failure}");
    }
}

#[test]
fn no_peer_answers_while_the_own_port_is_down() {
    let (mut world, _client, mut server) = on_test_provider(&ListenOptions::new());
    let (qp, cq) = (server.core().raw_queue_pair().unwrap(), world.nodes[1].tables().shared.cq.as_raw());
    let posted = testing::posted(qp).remove(0);
    let status = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
    testing::complete(cq, ibv_wc { wr_id: posted.wr_id, status, ..ibv_wc::default() });
    testing::set_port_down(true);
    let failure = failure_of(&mut world, &mut server);
    testing::set_port_down(false);
    assert_eq!(failure.kind(), FailureKind::Local, "{failure}");
    assert!(failure.to_string().contains("port"), "{failure}");
}

#[test]
fn a_node_that_cannot_accept_says_why() {
    for (errno, code, text) in [
        (libc::ENOMEM, RefuseCode::Busy, "the node has no room for another connection"),
        (libc::ENETDOWN, RefuseCode::Unavailable, "ibv_modify_qp"),
    ] {
        let options = options().exchange(Exchange::Tcp);
        let (client, one) = Node::new(&context(), &options).unwrap();
        let (server, two) = Node::new(&testing::context(), &options).unwrap();
        let listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
        let mut world = Driven { nodes: [client, server], drivers: [one, two], listener };
        let (to, node) = (world.listener.local_addr(), world.nodes[0].clone());
        let mut connecting = pin!(node.connect(to));
        loop {
            assert!(poll(connecting.as_mut(), Waker::noop()).is_pending());
            world.turn();
            if let Poll::Ready(incoming) = poll(pin!(world.listener.accept()), Waker::noop()) {
                testing::fail("modify_qp", errno);
                let failure = block_on(incoming.unwrap().accept()).map(drop).unwrap_err();
                assert_eq!(failure.kind(), FailureKind::Local, "{failure}");
                break;
            }
        }
        let refused = world.run(connecting).map(drop).unwrap_err();
        assert_eq!((refused.kind(), refused.refuse_code()), (FailureKind::Refused, Some(code)), "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

#[test]
fn a_close_waits_longer_than_a_dropped_connection_lingers() {
    let options = options().linger(Duration::from_millis(10));
    let mut world = Driven::new(&options);
    let (client, mut server) = world.pair();
    block_on(client.send("last")).unwrap();
    let mut closing = pin!(client.close_with(1));
    assert!(poll(closing.as_mut(), Waker::noop()).is_pending());
    // The peer is under load: the client's driver runs for longer than it lingers, the peer's not.
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        world.drivers[0].turn(64).unwrap();
        assert!(poll(closing.as_mut(), Waker::noop()).is_pending());
    }
    assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"last"[..]));
    let (one, other) = world.run(join(closing, server.close_with(2)));
    assert_eq!((one, other), (Ok(2), Ok(1)));
}

#[test]
fn no_event_is_left_to_a_descriptor_that_is_watched_by_edge() {
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    let (mut world, mut client, _server) = on_test_provider(&ListenOptions::new());
    let cq = world.nodes[0].tables().shared.cq.as_raw();
    let driver = &mut world.drivers[0];
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll.add(&*driver, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
    let sleep =
        |time: Duration| epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::try_from(time).unwrap()).unwrap() > 0;
    while !driver.arm().unwrap() || sleep(Duration::ZERO) {}
    // Both come before the program wakes, which gives the driver a turn before it arms.
    testing::complete(cq, ibv_wc::default());
    raise(&world.nodes[0], ibv_event_type::IBV_EVENT_DEVICE_FATAL, |_| ());
    assert!(sleep(LONG));
    driver.turn(64).unwrap();
    while !driver.arm().unwrap() || sleep(Duration::ZERO) {}
    let failed = poll(pin!(client.next()), Waker::noop());
    assert!(matches!(failed, Poll::Ready(Err(failure)) if failure.kind() == FailureKind::Local));
}
