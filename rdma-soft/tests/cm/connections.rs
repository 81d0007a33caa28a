//! Connections within one process: the effects of the calls, and the events that they cause.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rdma_sys::*;

use crate::cm_support::*;

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const UDP: rdma_port_space = rdma_port_space::RDMA_PS_UDP;
/// Time to wait for an event that must not come.
const A_WHILE: Duration = Duration::from_millis(30);

#[test]
fn a_connection_from_its_request_to_its_end() {
    let (listener, passive_channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.peer(), Some(to));
    assert_eq!(active.connect(b"hello", 17), 0);
    let request = passive_channel.next();
    assert_eq!(request.listen_id, listener.0);
    assert_eq!(&request.private[..6], b"hello\0");
    assert_eq!(request.private.len(), 56);
    // The active side's initiator depth is the passive side's responder resources, and the reverse.
    assert_eq!((request.conn.responder_resources, request.conn.initiator_depth), (2, 4));
    assert_eq!((request.conn.retry_count, request.conn.rnr_retry_count, request.conn.qp_num), (5, 6, 17));
    let passive = request.request();
    assert_eq!((passive.local(), passive.peer()), (Some(to), active.local()));
    assert_eq!(passive.accept(b"welcome", 18), 0);
    let response = active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(&response.private[..8], b"welcome\0");
    assert_eq!((response.private.len(), response.conn.qp_num), (196, 18));
    assert_eq!((response.conn.responder_resources, response.conn.initiator_depth), (2, 4));
    passive_channel.expect_silence(A_WHILE);
    assert_eq!(active.establish(), 0);
    assert_eq!(active.establish(), libc::EINVAL);
    assert_eq!(passive_channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED).id, passive.0);
    // The side that disconnects gets its event after the peer has agreed.
    assert_eq!(active.disconnect(), 0);
    assert_eq!(passive_channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED).id, passive.0);
    active_channel.expect_silence(A_WHILE);
    assert_eq!(passive.disconnect(), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    // Further disconnects have no effect.
    assert_eq!((active.disconnect(), passive.disconnect()), (0, 0));
    active_channel.expect(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT);
    passive_channel.expect(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

#[test]
fn ids_show_where_they_are() {
    let Pair { active: (active, _a), passive: (passive, _p), listener } = connected();
    for id in [&active, &passive, &listener] {
        let public = id.public();
        assert!(!public.verbs.is_null() && !public.pd.is_null());
        assert_eq!((public.port_num, public.ps, public.qp_type), (1, TCP, ibv_qp_type::IBV_QPT_RC));
    }
    let public = active.public();
    assert_eq!(public.verbs, passive.public().verbs, "the device's context is one");
    assert_eq!((public.route.num_paths, passive.public().route.num_paths), (1, 1));
    // SAFETY: one path, as just seen, which lives as long as the id.
    let path = unsafe { *public.route.path_rec };
    // SAFETY: every bit pattern is valid.
    let shown = unsafe { public.route.addr.addr.ibaddr };
    // SAFETY: every bit pattern is a valid GID.
    let raw = unsafe { path.dgid.raw };
    // SAFETY: every bit pattern is a valid GID.
    assert_eq!(raw, unsafe { shown.dgid.raw });
    assert_eq!((u16::from_be(path.pkey), path.reversible), (0xffff, 1));
    assert!((1..=5).contains(&path.mtu), "{}", path.mtu);
    // SAFETY: alive.
    let port = unsafe { (cm().rdma_get_dst_port)(active.0) };
    assert_eq!(u16::from_be(port), listener.port());
}

#[test]
fn rejections() {
    let (_listener, passive_channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(&[7; 56], 1), 0);
    let passive = passive_channel.next().request();
    assert_eq!(passive.reject(b"not today"), 0);
    let told = active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!((&told.private[..10], told.private.len()), (&b"not today\0"[..], 148));
    // After the rejection no call changes the connection.
    assert_eq!(passive.reject(b""), libc::EINVAL);
    assert_eq!(passive.accept(b"", 1), libc::EINVAL);
    assert_eq!(active.connect(b"", 1), libc::EINVAL);

    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = passive_channel.next().request();
    // SAFETY: alive, no data.
    assert_eq!(unsafe { (cm().rdma_reject_ece)(passive.0, ptr::null(), 0) }, 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 35);

    // The active side may reject too.
    let (active, _active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = passive_channel.next().request();
    assert_eq!(passive.accept(b"", 1), 0);
    until("the answer has come", || active.reject(b"no") == 0);
    passive_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn nobody_listens() {
    let channel = Channel::new();
    let bound = channel.tcp();
    assert_eq!(bound.bind(loopback(0)), 0);
    // A request to an id that is bound but does not listen is rejected.
    let (active, active_channel) = resolved(TCP, loopback(bound.port()));
    assert_eq!(active.connect(b"", 1), 0);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 8);
}

/// perftest's server makes a new listener for each test, so a request may come between two of them.
#[test]
fn a_request_waits_for_a_listener_that_is_away_for_a_moment() {
    if on_system() {
        return;
    }
    for space in [TCP, UDP] {
        let (before, passive_channel, to) = listener(space, 8);
        let (active, active_channel) = resolved(space, to);
        drop(before);
        assert_eq!(active.connect(b"again", 1), 0);
        active_channel.expect_silence(Duration::from_millis(50));
        let again = passive_channel.id(space);
        // A process that another test starts holds the old socket until it runs its program.
        until("the name is free", || again.bind(to) == 0);
        assert_eq!(again.listen(8), 0);
        let told = passive_channel.next();
        assert_eq!(told.request().accept(b"", 1), 0);
        assert_eq!(told.private[..5], *b"again");
        assert_eq!(active_channel.next().status, 0);
    }
}

#[test]
fn private_data_has_its_limits() {
    let (_listener, passive_channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(&[1; 57], 1), libc::EINVAL);
    // The failed call left the id unchanged.
    assert_eq!(active.connect(&[1; 56], 1), 0);
    let passive = passive_channel.next().request();
    assert_eq!(passive.reject(&[2; 149]), libc::EINVAL);
    assert_eq!(passive.accept(&[2; 196], 1), 0);
    let told = active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(told.private, [2; 196]);

    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(&[], 1), 0);
    let passive = passive_channel.next().request();
    assert_eq!(passive.accept(&[2; 197], 1), libc::EINVAL);
    // A failed accept rejects the request, as in the kernel.
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    drop(passive);
}

#[test]
fn parameters_have_their_limits() {
    let (_listener, passive_channel, to) = listener(TCP, 8);
    let (active, _active_channel) = resolved(TCP, to);
    // Without a queue pair of the id, the caller must pass a queue pair number.
    assert_eq!(active.connect_with(ptr::null_mut()), libc::EINVAL);
    for (responder, initiator) in [(200, 1), (1, 200)] {
        let mut asked = param(b"", 1).0;
        (asked.responder_resources, asked.initiator_depth) = (responder, initiator);
        assert_eq!(active.connect_with(&raw mut asked), libc::EINVAL);
    }
    let mut asked = param(b"", 1).0;
    (asked.responder_resources, asked.initiator_depth) = (255, 255);
    (asked.retry_count, asked.rnr_retry_count, asked.flow_control) = (99, 99, 1);
    assert_eq!(active.connect_with(&raw mut asked), 0);
    let request = passive_channel.next();
    let conn = request.conn;
    assert!(conn.responder_resources >= 16 && conn.initiator_depth >= 16, "as many as there can be");
    assert_eq!((conn.retry_count, conn.rnr_retry_count, conn.flow_control), (7, 7, 1));
    drop(request.request());
}

#[test]
fn who_destroys_an_id_tells_the_other() {
    // The listener is destroyed while the request waits in its queue.
    let (asked, channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    assert!(channel.is_readable(PATIENCE));
    drop(asked);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    channel.expect_silence(A_WHILE);

    // The passive side is destroyed before it answers.
    let (_listener, channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    drop(channel.next().request());
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);

    // The active side is destroyed before the answer: the passive side gets no event, and its
    // answer fails.
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    drop((active, active_channel));
    channel.expect_silence(A_WHILE);
    assert_eq!(passive.accept(b"", 1), libc::EINVAL);

    // Either side is destroyed after the answer and before its confirmation.
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    assert_eq!(passive.accept(b"", 1), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    drop((active, active_channel));
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    assert_eq!(passive.accept(b"", 1), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    drop(passive);
    active_channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!(active.establish(), libc::EINVAL);

    // Either side of an established connection is destroyed.
    let pair = connected();
    drop(pair.active);
    pair.passive.1.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    let pair = connected();
    drop(pair.passive.0);
    pair.active.1.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    // A side is destroyed after it asked to disconnect.
    let pair = connected();
    assert_eq!(pair.active.0.disconnect(), 0);
    pair.passive.1.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    drop(pair.passive.0);
    pair.active.1.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn both_disconnect_at_once() {
    let Pair { active, passive, listener: _listener } = connected();
    let both = [&active, &passive];
    thread::scope(|scope| {
        for (id, _) in both {
            scope.spawn(|| assert_eq!(id.disconnect(), 0));
        }
    });
    for (id, channel) in both {
        assert_eq!(channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED).id, id.0);
        assert_eq!(id.disconnect(), 0);
    }
}

#[test]
fn a_queue_pair_that_hears_something_establishes() {
    let (_listener, channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    assert_eq!(passive.notify(ibv_event_type::IBV_EVENT_COMM_EST), libc::EINVAL);
    assert_eq!(passive.accept(b"", 1), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(passive.notify(ibv_event_type::IBV_EVENT_COMM_EST), 0);
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(passive.notify(ibv_event_type::IBV_EVENT_COMM_EST), libc::EISCONN);
    assert_eq!(passive.notify(ibv_event_type::IBV_EVENT_CQ_ERR), libc::EINVAL);
    assert_eq!(active.establish(), 0);
    channel.expect_silence(A_WHILE);
}

#[test]
fn a_channel_is_readable_while_events_wait_and_does_not_block_if_asked() {
    let channel = Channel::new();
    channel.set_nonblocking();
    let mut event = ptr::null_mut();
    // SAFETY: alive; valid for writes.
    assert_eq!(outcome(unsafe { (cm().rdma_get_cm_event)(channel.0, &raw mut event) }), libc::EAGAIN);
    // SAFETY: null is refused.
    assert_eq!(outcome(unsafe { (cm().rdma_get_cm_event)(channel.0, ptr::null_mut()) }), libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(outcome(unsafe { (cm().rdma_ack_cm_event)(ptr::null_mut()) }), libc::EINVAL);
    assert!(!channel.is_readable(Duration::ZERO));
    let id = channel.tcp();
    assert_eq!(id.resolve_addr(loopback(5)), 0);
    assert!(channel.is_readable(PATIENCE));
    channel.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(!channel.is_readable(Duration::ZERO));
    // Destroying an id removes its queued events.
    assert_eq!(id.resolve_route(), 0);
    assert!(channel.is_readable(PATIENCE));
    drop(id);
    assert!(!channel.is_readable(Duration::ZERO));
    // SAFETY: alive; valid for writes.
    assert_eq!(outcome(unsafe { (cm().rdma_get_cm_event)(channel.0, &raw mut event) }), libc::EAGAIN);
}

#[test]
fn destroying_an_id_waits_for_acknowledgements() {
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.resolve_addr(loopback(5)), 0);
    let event = channel.take();
    let gone = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(id);
            gone.store(true, Ordering::SeqCst);
        });
        thread::sleep(A_WHILE);
        assert!(!gone.load(Ordering::SeqCst));
        ack(event);
    });
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn ids_move_between_channels_with_their_events() {
    let (listener, channel, to) = listener(TCP, 8);
    let (first, second) = (Channel::new(), Channel::new());
    let active = first.tcp();
    assert_eq!(active.resolve_addr(to), 0);
    assert!(first.is_readable(PATIENCE));
    assert_eq!(active.migrate(Some(&second)), 0);
    assert!(!first.is_readable(Duration::ZERO));
    second.expect(Event::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(active.public().channel, second.0);
    assert_eq!(active.resolve_route(), 0);
    second.expect(Event::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(active.connect(b"", 1), 0);
    // The id of a request moves to another channel.
    let passive = channel.next().request();
    assert_eq!(passive.migrate(Some(&first)), 0);
    assert_eq!(passive.accept(b"", 1), 0);
    second.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(active.establish(), 0);
    first.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    // Migration waits until the events taken from the old channel are acknowledged.
    assert_eq!(active.disconnect(), 0);
    let event = first.take();
    let moved = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(passive.migrate(Some(&channel)), 0);
            moved.store(true, Ordering::SeqCst);
        });
        thread::sleep(A_WHILE);
        assert!(!moved.load(Ordering::SeqCst));
        ack(event);
    });
    if on_system() {
        // Linux 6.1 loses the queued requests of a listener that migrates.
        return;
    }
    // A listener's queued requests migrate with it, and so do their ids.
    let (active, _active_channel) = resolved(TCP, to);
    assert_eq!(active.connect(b"", 1), 0);
    assert!(channel.is_readable(PATIENCE));
    assert_eq!(listener.migrate(Some(&first)), 0);
    let told = first.next();
    let late = told.request();
    assert_eq!(late.accept(b"", 1), 0);
    drop(late);
}

/// Another thread may keep an event from the new channel until the call has returned.
#[test]
fn a_migration_waits_for_the_events_of_the_old_channel_alone() {
    let (first, second) = (Channel::new(), Channel::new());
    let id = first.tcp();
    assert_eq!(id.resolve_addr(loopback(5)), 0);
    let old = first.take();
    assert_eq!(id.resolve_route(), 0);
    assert!(first.is_readable(PATIENCE));
    let (sender, moved) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| sender.send(id.migrate(Some(&second))));
        let new = second.take();
        ack(old);
        let moved = moved.recv_timeout(PATIENCE);
        ack(new);
        assert_eq!(moved, Ok(0));
    });
}

#[test]
fn calls_out_of_order() {
    if on_system() {
        // Linux 6.1 hangs in one of these calls.
        return;
    }
    let channel = Channel::new();
    let id = channel.tcp();
    // SAFETY: alive.
    assert_eq!(unsafe { (cm().rdma_get_src_port)(id.0) }, 0);
    assert_eq!(id.connect(b"", 1), libc::EINVAL);
    assert_eq!(id.reject(b""), libc::EINVAL);
    assert_eq!(id.notify(ibv_event_type::IBV_EVENT_COMM_EST), libc::EINVAL);
    assert_eq!(id.disconnect(), libc::EINVAL);
    assert_eq!(id.attributes(ibv_qp_state::IBV_QPS_INIT).err(), Some(libc::EINVAL));
    assert_eq!(id.bind(loopback(0)), 0);
    assert_eq!(id.bind(loopback(0)), libc::EINVAL);
    assert_eq!(id.resolve_route(), libc::EINVAL);
    assert_eq!(id.listen(1), 0);
    assert_eq!(id.listen(1), libc::EINVAL);
    assert_eq!(id.resolve_addr(loopback(5)), libc::EINVAL);
    let (id, _channel) = resolved(TCP, loopback(5));
    assert_eq!(id.resolve_addr(loopback(5)), libc::EINVAL);
    assert_eq!(id.resolve_route(), libc::EINVAL);
    assert_eq!(id.listen(1), libc::EINVAL);
    assert_eq!(id.accept(b"", 1), libc::EINVAL);
}

#[test]
fn an_unbound_listener_gets_a_port_on_every_address() {
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.listen(4), 0);
    assert_ne!(id.port(), 0);
    assert!(id.public().verbs.is_null(), "it is on no device");
    let (active, _active_channel) = resolved(TCP, loopback(id.port()));
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    assert_eq!(passive.local(), Some(loopback(id.port())));
    assert!(!passive.public().verbs.is_null());
    assert_eq!(passive.reject(b""), 0);
}

#[test]
fn ports_are_had_once() {
    let channel = Channel::new();
    let (one, two) = (channel.tcp(), channel.tcp());
    assert_eq!(one.bind(loopback(0)), 0);
    let port = one.port();
    assert_eq!(one.local(), Some(loopback(port)));
    assert_eq!(two.bind(loopback(port)), libc::EADDRINUSE);
    // A wildcard conflicts with every address that it covers, in both directions.
    let wild = std::net::SocketAddr::from(([0, 0, 0, 0], port));
    assert_eq!(two.bind(wild), libc::EADDRNOTAVAIL);
    // The UDP port space has its own ports.
    assert_eq!(channel.udp().bind(loopback(port)), 0);
    drop(one);
    // A process that another test starts holds the socket until it runs its program.
    until("the port is free", || two.bind(wild) == 0);
    let three = channel.tcp();
    assert_eq!(three.bind(wild), libc::EADDRNOTAVAIL);
    assert_eq!(three.bind(loopback(port)), libc::EADDRNOTAVAIL);
    // An address of another host.
    assert_eq!(three.bind("192.0.2.1:0".parse().unwrap()), libc::ENODEV);
}

#[test]
fn a_port_is_shared_by_those_who_say_so() {
    let channel = Channel::new();
    let ids = [channel.tcp(), channel.tcp(), channel.tcp()];
    for id in &ids[..2] {
        assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1_i32), 0);
    }
    assert_eq!(ids[0].bind(loopback(0)), 0);
    let port = ids[0].port();
    assert_eq!(ids[1].bind(loopback(port)), 0);
    assert_eq!(ids[2].bind(loopback(port)), libc::EADDRINUSE);
    // One of several ids that share an address can listen after the others are destroyed.
    assert_eq!(ids[0].listen(1), libc::EADDRINUSE);
    let [first, second, third] = ids;
    drop(second);
    assert_eq!(first.listen(1), 0);
    assert_eq!(third.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 1_i32), 0);
    assert_eq!(third.bind(loopback(port)), libc::EADDRINUSE);
}

#[test]
fn options() {
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x20_u8), 0);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 0x20_i32), libc::EINVAL);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 14_u8), 0);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 14_i32), libc::EINVAL);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1_i32), 0);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1_u8), libc::EINVAL);
    assert_eq!(id.set_option(RDMA_OPTION_ID, 77, 1_i32), libc::ENOSYS);
    assert_eq!(id.set_option(77, RDMA_OPTION_ID_TOS, 1_u8), libc::ENOSYS);
    assert_eq!(channel.udp().set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 14_u8), libc::EINVAL);
    let (_listener, passive_channel, to) = listener(TCP, 4);
    resolve(&id, &channel, to);
    assert_eq!(id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 1_i32), libc::EINVAL);
    assert_eq!(id.connect(b"", 1), 0);
    let passive = passive_channel.next().request();
    assert_eq!(passive.accept(b"", 2), 0);
    channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    let (attr, _) = id.attributes(ibv_qp_state::IBV_QPS_RTS).unwrap();
    assert_eq!(attr.timeout, 14);
    let (attr, _) = id.attributes(ibv_qp_state::IBV_QPS_RTR).unwrap();
    assert_eq!(attr.ah_attr.grh.traffic_class, 0x20);
}

#[test]
fn vendors_options_are_exchanged() {
    let ece = |vendor_id, options| ibv_ece { vendor_id, options, comp_mask: 0 };
    let set = |id: &Id, mut ece: ibv_ece| {
        // SAFETY: alive; valid.
        outcome(unsafe { (cm().rdma_set_local_ece)(id.0, &raw mut ece) })
    };
    let remote = |id: &Id| {
        let mut ece = ece(0, 0);
        // SAFETY: alive; valid.
        assert_eq!(unsafe { (cm().rdma_get_remote_ece)(id.0, &raw mut ece) }, 0);
        (ece.vendor_id, ece.options)
    };
    let (_listener, channel, to) = listener(TCP, 4);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(set(&active, ece(0, 1)), libc::EINVAL);
    assert_eq!(set(&active, ibv_ece { comp_mask: 1, ..ece(7, 1) }), libc::EINVAL);
    assert_eq!(set(&active, ece(0x15b3, 0xf0f0)), 0);
    assert_eq!(active.connect(b"", 1), 0);
    let passive = channel.next().request();
    assert_eq!(remote(&passive), (0x15b3, 0xf0f0));
    assert_eq!(set(&passive, ece(0x15b3, 0x00f0)), 0);
    assert_eq!(passive.accept(b"", 1), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(remote(&active), (0x15b3, 0x00f0));
}

#[test]
fn the_device_s_contexts() {
    let mut count = -1;
    // SAFETY: valid for writes.
    let list = unsafe { (cm().rdma_get_devices)(&raw mut count) };
    assert!(!list.is_null() && count == 1);
    // SAFETY: a list of one and an end.
    let [first, end] = unsafe { list.cast::<[*mut ibv_context; 2]>().read() };
    assert!(!first.is_null() && end.is_null());
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.bind(loopback(0)), 0);
    assert_eq!(id.public().verbs, first);
    // SAFETY: a list that was just made.
    unsafe { (cm().rdma_free_devices)(list) };
}

#[test]
fn events_have_names() {
    assert_eq!(name(Event::RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
    assert_eq!(name(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
    assert_eq!(name(rdma_cm_event_type(999)), "UNKNOWN EVENT");
}

#[test]
fn ids_of_no_port_space() {
    let channel = Channel::new();
    let mut id = ptr::null_mut();
    // SAFETY: alive; valid for writes.
    let made = unsafe { (cm().rdma_create_id)(channel.0, &raw mut id, ptr::null_mut(), rdma_port_space(5)) };
    assert_eq!(outcome(made), libc::EINVAL);
}

#[test]
fn many_at_once() {
    const THREADS: usize = 8;
    const EACH: usize = 25;
    let (listener, channel, to) = listener(TCP, 1000);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut ids, mut established) = (Vec::new(), 0);
            while established < THREADS * EACH {
                let told = channel.next();
                if told.code == Event::RDMA_CM_EVENT_CONNECT_REQUEST {
                    let id = told.request();
                    assert_eq!(id.accept(&told.private[..8], 5), 0);
                    ids.push(id);
                } else {
                    assert_eq!(name(told.code), "RDMA_CM_EVENT_ESTABLISHED");
                    established += 1;
                }
            }
            ids
        });
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let connect = |number: usize| {
                        let (id, channel) = resolved(TCP, to);
                        let number = (thread * EACH + number) as u64;
                        assert_eq!(id.connect(&number.to_le_bytes(), 5), 0);
                        let told = channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
                        assert_eq!(told.private[..8], number.to_le_bytes());
                        assert_eq!(id.establish(), 0);
                        (id, channel)
                    };
                    (0..EACH).map(connect).collect::<Vec<_>>()
                })
            })
            .collect();
        let passive = server.join().unwrap();
        let active: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        drop(passive);
        for (id, channel) in &active {
            assert_eq!(channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED).id, id.0);
        }
    });
    drop(listener);
}

/// Ends connections in every way at random times: each call returns whatever the order, and no
/// connection remains.
#[test]
fn races_of_ends() {
    let (_listener, channel, to) = listener(TCP, 1000);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut ids = Vec::new();
            let mut round = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                if !channel.is_readable(Duration::from_millis(1)) {
                    continue;
                }
                let told = channel.next();
                if told.code != Event::RDMA_CM_EVENT_CONNECT_REQUEST {
                    continue;
                }
                let id = told.request();
                round += 1;
                // The calls may fail because the peer may have ended.
                match round % 4 {
                    0 => drop(id),
                    1 => drop(id.reject(b"")),
                    2 => {
                        let _result = id.accept(b"", 1);
                        drop(id);
                    }
                    _ => {
                        let _result = id.accept(b"", 1);
                        ids.push(id);
                        if ids.len() > 8 {
                            drop(ids.remove(0));
                        }
                    }
                }
            }
        });
        let clients: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    for round in 0..40_u32 {
                        let (id, channel) = resolved(TCP, to);
                        assert_eq!(id.connect(b"", 1), 0);
                        match (round + thread) % 3 {
                            0 => {}
                            1 => drop(channel.is_readable(Duration::from_millis(2))),
                            _ => {
                                let told = channel.next();
                                if told.code == Event::RDMA_CM_EVENT_CONNECT_RESPONSE {
                                    // The calls may fail because the peer may have ended.
                                    let _result = id.establish();
                                    let _result = id.disconnect();
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn the_application_s_own_events() {
    let channel = Channel::new();
    let id = channel.tcp();
    let write = |code, arg| {
        // SAFETY: alive.
        outcome(unsafe { (cm().rdma_write_cm_event)(id.0, code, 5, arg) })
    };
    if on_system() && write(Event::RDMA_CM_EVENT_USER, 1) != 0 {
        return;
    }
    assert_eq!(write(Event::RDMA_CM_EVENT_ESTABLISHED, 1), libc::EINVAL);
    assert_eq!(write(Event::RDMA_CM_EVENT_USER, 0x1122_3344_5566_7788), 0);
    let event = channel.take();
    // SAFETY: taken and not acknowledged.
    let rdma_cm_event { event: code, status, param, .. } = unsafe { event.read() };
    // SAFETY: the event is of a kind whose parameter is a number.
    let arg = unsafe { param.arg };
    assert_eq!((code, status, arg), (Event::RDMA_CM_EVENT_USER, 5, 0x1122_3344_5566_7788));
    ack(event);
}
