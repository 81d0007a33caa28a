//! Reliable connections by the connection manager's blocking interface, on a device.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rdma::cm::blocking::{self, ConnectError, ListenOptions, Listener, ResolveOptions, Resolved};
use rdma::cm::{ConnOptions, EventChannel, RejectReason};
use rdma::op;
use rdma::transport::Rc;
use rdma::{AckTimeout, Context, ErrorKind, PathOptions, QpState, QueuePair};
use rdma_test_support::{Peer, first, role};
use rdma_tests::cm::{
    End, MOMENT, accept, address, address6, any_port, available, connect, connect_pair, listen, wait_accepted,
};
use rdma_tests::{LIMIT, buffer, is_iwarp, open, skip, wait};

/// The open device, if it has a connection manager.
fn device() -> Option<Context> {
    let context = open().context;
    available(&context).then_some(context)
}

fn resolve(context: &Context, to: SocketAddr) -> Resolved<Rc> {
    blocking::resolve(context, None, to, LIMIT).unwrap()
}

fn try_connect(context: &Context, to: SocketAddr, options: &ConnOptions) -> Result<(), Box<ConnectError>> {
    let (end, route) = (End::new(context), resolve(context, to));
    let qp = route.init(end.qp()).unwrap();
    route.connect(qp, options, LIMIT).map(drop).map_err(Box::new)
}

/// Sends a message in each direction.
fn talk((a, a_qp): (&End, &mut QueuePair<Rc>), (b, b_qp): (&End, &mut QueuePair<Rc>)) {
    one_way(a, a_qp, b, b_qp);
    one_way(b, b_qp, a, a_qp);
}

fn one_way(from: &End, sender: &mut QueuePair<Rc>, to: &End, receiver: &mut QueuePair<Rc>) {
    receiver.post_recv(to.pd.allocate(64).unwrap(), 1).unwrap();
    sender.post_send(op::send(buffer(&from.pd, b"over here"))).unwrap();
    assert_eq!(wait(&mut from.cq.poller()).status, Ok(()));
    let done = wait(&mut to.cq.poller());
    assert_eq!((done.status, done.byte_len), (Ok(()), 9));
    assert_eq!(done.buffer()[..9], *b"over here");
}

#[test]
fn two_ends_connect_and_talk() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    let accepted = AtomicBool::new(false);
    assert_ne!(to.port(), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = End::new(&context);
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            assert!(request.private_data().starts_with(b"hello"), "{request:?}");
            assert_eq!(request.local_addr(), Some(to));
            assert_eq!(request.peer_addr().map(|peer| peer.ip()), Some(to.ip()));
            let mut qp = request.init(end.qp()).unwrap();
            qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
            let (connection, mut qp) = request.accept(qp, &ConnOptions::new().private_data(b"welcome"), LIMIT).unwrap();
            accepted.store(true, Ordering::Release);
            let done = wait(&mut end.cq.poller());
            assert_eq!((done.status, done.token, done.byte_len), (Ok(()), 1, 4));
            qp.post_send(op::send(buffer(&end.pd, b"pong"))).unwrap();
            assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
            assert!(connection.private_data().starts_with(b"hello"));
        });
        let end = End::new(&context);
        let route = resolve(&context, to);
        assert_eq!(route.peer_addr(), Some(to));
        assert_eq!(route.id().device_name(), Some(context.name()));
        let mut qp = route.init(end.qp()).unwrap();
        qp.post_recv(end.pd.allocate(64).unwrap(), 2).unwrap();
        let (connection, mut qp) = route.connect(qp, &ConnOptions::new().private_data(b"hello"), LIMIT).unwrap();
        assert!(connection.private_data().starts_with(b"welcome"), "{connection:?}");
        wait_accepted(&context, &accepted);
        qp.post_send(op::send(buffer(&end.pd, b"ping")).token(3)).unwrap();
        let mut poller = end.cq.poller();
        let mut tokens = [wait(&mut poller), wait(&mut poller)].map(|done| (done.status, done.token));
        tokens.sort_by_key(|&(_, token)| token);
        assert_eq!(tokens, [(Ok(()), 2), (Ok(()), 3)]);
        assert!(!connection.wait_disconnected(Some(Duration::ZERO)).unwrap());
        connection.disconnect(&qp).unwrap();
        assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
        // The disconnected state is final.
        assert!(connection.wait_disconnected(None).unwrap());
    });
}

#[test]
fn nobody_listens() {
    let Some(context) = device() else { return };
    let to = listen(&context).local_addr();
    let (end, route) = (End::new(&context), resolve(&context, to));
    let failed = route.connect(route_qp(&end, &context, to), &ConnOptions::new(), LIMIT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotListening, "{failed}");
    assert!(failed.to_string().contains("start the server first"), "{failed}");
    // The queue pair can be used again.
    let qp = failed.qp.reset().unwrap();
    let ((active, _), (passive, _)) = connect_pair(&context, qp, End::new(&context).qp());
    assert_eq!(active.peer_addr(), passive.local_addr());
    assert_eq!(active.local_addr().map(|it| it.ip()), passive.peer_addr().map(|it| it.ip()));
}

#[test]
fn what_was_posted_before_a_reset_receives_nothing() {
    let Some(context) = device() else { return };
    let to = listen(&context).local_addr();
    let (a, b) = (End::new(&context), End::new(&context));
    let route = resolve(&context, to);
    let mut qp = route.init(a.qp()).unwrap();
    // Two receives, so that the queue is not empty after the single message.
    for token in [7, 8] {
        qp.post_recv(a.pd.allocate(64).unwrap(), token).unwrap();
    }
    let failed = route.connect(qp, &ConnOptions::new(), LIMIT).unwrap_err();
    let qp = match failed.qp.reset() {
        // The buffers are freed here: a device that still used them would write to memory of
        // others.
        Ok(qp) => qp,
        Err(failed) => {
            assert!(is_iwarp(&context), "{failed}");
            assert_eq!(failed.error.kind(), ErrorKind::InUse);
            // Destroying the queue pair ends the requests that a reset does not.
            failed.object.into_manual().close().unwrap();
            a.qp()
        }
    };
    let ((_active, mut a_qp), (_passive, mut b_qp)) = connect_pair(&context, qp, b.qp());
    talk((&a, &mut a_qp), (&b, &mut b_qp));
}

fn route_qp(end: &End, context: &Context, to: SocketAddr) -> rdma::InitializedQueuePair<Rc> {
    resolve(context, to).init(end.qp()).unwrap()
}

#[test]
fn a_rejection_says_why() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            request.reject(b"not today").unwrap();
        });
        let failed = try_connect(&context, listener.local_addr(), &ConnOptions::new()).unwrap_err();
        assert!(failed.private_data.starts_with(b"not today"), "{failed:?}");
        let ErrorKind::Rejected(reason) = failed.error.kind() else { panic!("{failed}") };
        let said = [RejectReason::CONSUMER, RejectReason::RESET, RejectReason::REFUSED];
        assert!(said.contains(&reason), "{reason}");
    });
}

#[test]
fn a_dropped_request_is_rejected() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    thread::scope(|scope| {
        scope.spawn(|| drop(listener.next_request(Some(LIMIT)).unwrap().unwrap()));
        let failed = try_connect(&context, listener.local_addr(), &ConnOptions::new()).unwrap_err();
        assert!(matches!(failed.error.kind(), ErrorKind::Rejected(_)), "{failed}");
    });
}

#[test]
fn a_dropped_listener_rejects_who_waits() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| try_connect(&context, to, &ConnOptions::new()))).collect();
        // One request is served, and the others wait.
        let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
        thread::sleep(MOMENT);
        drop(listener);
        drop(request);
        for client in clients {
            let failed = client.join().unwrap().unwrap_err();
            let kind = failed.error.kind();
            assert!(matches!(kind, ErrorKind::Rejected(_) | ErrorKind::NotListening), "{failed}");
        }
    });
}

#[test]
fn addresses_that_lead_nowhere_are_named() {
    let Some(context) = device() else { return };
    let nowhere: IpAddr = "192.0.2.77".parse().unwrap();
    let error = Listener::<Rc>::bind(&context, any_port(nowhere), &ListenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRoute, "{error}");
    assert!(error.to_string().contains("bind to an address of this host"), "{error}");
    let to = SocketAddr::new(nowhere, 7174);
    let error = blocking::resolve::<Rc>(&context, None, to, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoRoute | ErrorKind::Timeout), "{error}");
    // The source address is not an address of this host.
    let from = Some(any_port(nowhere));
    let error = blocking::resolve::<Rc>(&context, from, listen(&context).local_addr(), LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoRoute, "{error}");
}

#[test]
fn a_port_is_taken_once() {
    let Some(context) = device() else { return };
    let first = listen(&context);
    let error = Listener::<Rc>::bind(&context, first.local_addr(), &ListenOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
    assert_ne!(listen(&context).local_addr(), first.local_addr());
    let to = first.local_addr();
    drop(first);
    let again: Listener = Listener::bind(&context, to, &ListenOptions::new()).unwrap();
    assert_eq!(again.local_addr(), to);
    // The unspecified address covers every address.
    let error = Listener::<Rc>::bind(&context, SocketAddr::new([0, 0, 0, 0].into(), to.port()), &ListenOptions::new());
    assert_eq!(error.unwrap_err().kind(), ErrorKind::AddressInUse);
}

#[test]
fn addresses_are_shared_by_who_allows_it() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let bound = |reuse, to| {
        let id = channel.create_id::<Rc>().unwrap();
        id.set_reuse_addr(reuse).unwrap();
        id.bind_addr(to).map(|()| id)
    };
    let first = bound(true, any_port(address(&context))).unwrap();
    let to = first.local_addr().unwrap();
    let second = bound(true, to).unwrap();
    assert_eq!(second.local_addr(), Some(to));
    assert_eq!(bound(false, to).unwrap_err().kind(), ErrorKind::AddressInUse);
    drop((first, second));
    bound(false, to).unwrap();
}

#[test]
fn every_address_of_the_host_is_listened_to() {
    let Some(context) = device() else { return };
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let listener: Listener = Listener::bind(&context, any, &ListenOptions::new().backlog(4)).unwrap();
    let to = SocketAddr::new(address(&context), listener.local_addr().port());
    thread::scope(|scope| {
        scope.spawn(|| accept(&listener, End::new(&context).qp(), &ConnOptions::new()));
        let (connection, _qp) = connect(&context, to, End::new(&context).qp(), &ConnOptions::new());
        assert_eq!(connection.peer_addr(), Some(to));
    });
}

/// A link-local address of the interface under the device, with its scope.
fn link_local() -> Option<SocketAddr> {
    let interface = std::env::var("RDMA_TEST_NETDEV").ok()?;
    let table = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    let line = table.lines().find(|line| line.starts_with("fe80") && line.ends_with(&format!(" {interface}")))?;
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let scope = u32::from_str_radix(words.next()?, 16).ok()?;
    Some(std::net::SocketAddrV6::new(address.into(), 0, 0, scope).into())
}

#[test]
fn version_six_addresses_connect() {
    let Some(context) = device() else { return };
    let Some(address) = address6(&context) else { return skip("the device has no IPv6 address that we know of") };
    for at in [Some(any_port(address)), link_local()].into_iter().flatten() {
        let listener: Listener = Listener::bind(&context, at, &ListenOptions::new().af_only(true)).unwrap();
        let to = listener.local_addr();
        assert_eq!((to.ip(), to.is_ipv6()), (at.ip(), true));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (connection, _qp) = accept(&listener, End::new(&context).qp(), &ConnOptions::new());
                assert_eq!(connection.peer_addr().unwrap().ip(), to.ip());
                assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
            });
            let (connection, _qp) = connect(&context, to, End::new(&context).qp(), &ConnOptions::new());
            assert_eq!(connection.peer_addr(), Some(to));
            assert_eq!(connection.local_addr().unwrap().ip(), to.ip());
        });
    }
}

#[test]
fn whoever_goes_first_is_noticed() {
    let Some(context) = device() else { return };
    for order in 0..4 {
        let (a, b) = (End::new(&context), End::new(&context));
        let ((active, mut a_qp), (passive, mut b_qp)) = connect_pair(&context, a.qp(), b.qp());
        talk((&a, &mut a_qp), (&b, &mut b_qp));
        match order {
            0 => active.disconnect(&a_qp).unwrap(),
            1 => drop(active),
            2 => {
                drop(a_qp);
                drop(active);
            }
            _ => {
                passive.disconnect(&b_qp).unwrap();
                assert!(active.wait_disconnected(Some(LIMIT)).unwrap());
                drop(active);
            }
        }
        assert!(passive.wait_disconnected(Some(LIMIT)).unwrap(), "{order}");
        // The requests in flight are flushed once both sides have disconnected.
        if b_qp.state().unwrap() == QpState::RTS {
            passive.disconnect(&b_qp).ok();
            b_qp.set_error().unwrap();
        }
        b_qp.reset().unwrap();
    }
}

#[test]
fn reads_and_atomics_are_agreed_on() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            let asked = *request.parameters();
            assert_eq!((asked.responder_resources, asked.initiator_depth), (2, 4), "the peer's numbers, from our side");
            let qp = request.init(End::new(&context).qp()).unwrap();
            let (_connection, qp) = request.accept(qp, &ConnOptions::new().responder_resources(1), LIMIT).unwrap();
            if context.device().transport() != rdma::TransportType::IWARP {
                let info = qp.query().unwrap();
                assert_eq!((info.as_raw().max_dest_rd_atomic, info.as_raw().max_rd_atomic), (1, 4));
            }
        });
        let options = ConnOptions::new().responder_resources(4).initiator_depth(2).retry_count(5);
        let (_connection, qp) = connect(&context, listener.local_addr(), End::new(&context).qp(), &options);
        if context.device().transport() != rdma::TransportType::IWARP {
            let info = qp.query().unwrap();
            assert_eq!((info.as_raw().max_dest_rd_atomic, info.as_raw().max_rd_atomic), (4, 1));
            assert_eq!(info.as_raw().retry_cnt, 5);
        }
    });
}

#[test]
fn private_data_is_limited_by_the_transport() {
    let Some(context) = device() else { return };
    let limit = if context.device().transport() == rdma::TransportType::IWARP { 251 } else { 56 };
    let listener = listen(&context);
    let (end, route) = (End::new(&context), resolve(&context, listener.local_addr()));
    let qp = route.init(end.qp()).unwrap();
    let failed = route.connect(qp, &ConnOptions::new().private_data(&vec![1; limit + 1]), LIMIT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::TooLong, "{failed}");
    let longest = rdma_tests::pattern(limit, 5);
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            assert_eq!(request.private_data(), longest);
            assert_eq!(request.reject(&[0; 256]).unwrap_err().kind(), ErrorKind::TooLong);
        });
        let options = ConnOptions::new().private_data(&longest);
        let failed = route_error(&context, listener.local_addr(), failed.qp, &options);
        // The rejection's private data was too long, so the request was dropped instead.
        assert!(matches!(failed.error.kind(), ErrorKind::Rejected(_)), "{failed}");
    });
}

fn route_error(
    context: &Context,
    to: SocketAddr,
    qp: rdma::InitializedQueuePair<Rc>,
    options: &ConnOptions,
) -> ConnectError {
    resolve(context, to).connect(qp, options, LIMIT).unwrap_err()
}

#[test]
fn waiting_ends_at_the_deadline() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    assert!(listener.next_request(Some(Duration::from_millis(1))).unwrap().is_none());
    let (end, route) = (End::new(&context), resolve(&context, listener.local_addr()));
    let qp = route.init(end.qp()).unwrap();
    let failed = route.connect(qp, &ConnOptions::new(), MOMENT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Timeout, "{failed}");
    // The peer has given up by the time the request is accepted, so the accept fails at once or for
    // lack of an answer. On iWARP the failure may come later.
    let Some(request) = listener.next_request(Some(MOMENT)).unwrap() else { return };
    let accepted = match request.init(End::new(&context).qp()) {
        Ok(qp) => request.accept(qp, &ConnOptions::new(), MOMENT).map_err(|failed| failed.error),
        Err(failed) => Err(failed.error),
    };
    match accepted {
        Ok((connection, _qp)) => assert!(connection.wait_disconnected(Some(LIMIT)).unwrap()),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::Timeout), "{error}"),
    }
}

#[test]
fn options_are_taken() {
    let Some(context) = device() else { return };
    let listening = ListenOptions::new().reuse_addr(true).path(PathOptions::new().traffic_class(8));
    let listener: Listener = Listener::bind(&context, any_port(address(&context)), &listening).unwrap();
    let options = PathOptions::new().traffic_class(8).ack_timeout(AckTimeout::at_least(Duration::from_millis(500)));
    let options = ResolveOptions::new().path(options);
    thread::scope(|scope| {
        scope.spawn(|| accept(&listener, End::new(&context).qp(), &ConnOptions::new()));
        let from = Some(any_port(address(&context)));
        let route = blocking::resolve_with::<Rc>(&context, from, listener.local_addr(), LIMIT, &options).unwrap();
        let end = End::new(&context);
        let qp = route.init_with(end.qp(), rdma::RemoteAccess::WRITE).unwrap();
        let (_connection, qp) = route.connect(qp, &ConnOptions::new(), LIMIT).unwrap();
        if context.device().transport() != rdma::TransportType::IWARP {
            assert_eq!(qp.query().unwrap().as_raw().timeout, 17);
        }
    });
}

#[test]
fn many_connect_at_the_same_time() {
    const CLIENTS: usize = 4;
    const EACH: usize = 6;
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    let served = AtomicUsize::new(0);
    let accepted = [(); CLIENTS].map(|()| [(); EACH].map(|()| AtomicBool::new(false)));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while served.fetch_add(1, Ordering::Relaxed) < CLIENTS * EACH {
                    let end = End::new(&context);
                    let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
                    let name = request.private_data()[..4].to_vec();
                    let mut qp = request.init(end.qp()).unwrap();
                    let options = ConnOptions::new().private_data(&name);
                    qp.post_recv(end.pd.allocate(8).unwrap(), 0).unwrap();
                    let (connection, mut qp) = request.accept(qp, &options, LIMIT).unwrap();
                    accepted[usize::from(name[1])][usize::from(name[2])].store(true, Ordering::Release);
                    // On iWARP the active side must send first.
                    assert_eq!(wait(&mut end.cq.poller()).buffer()[..4], name);
                    qp.post_send(op::send(buffer(&end.pd, &name))).unwrap();
                    assert_eq!(wait(&mut end.cq.poller()).status, Ok(()));
                    assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
                }
            });
        }
        for client in 0..CLIENTS {
            let (context, accepted) = (&context, &accepted[client]);
            scope.spawn(move || {
                for (turn, accepted) in accepted.iter().enumerate() {
                    let name = [b'c', u8::try_from(client).unwrap(), u8::try_from(turn).unwrap(), 1];
                    let end = End::new(context);
                    let route = resolve(context, to);
                    let mut qp = route.init(end.qp()).unwrap();
                    qp.post_recv(end.pd.allocate(8).unwrap(), 0).unwrap();
                    let options = ConnOptions::new().private_data(&name);
                    let (connection, mut qp) = route.connect(qp, &options, LIMIT).unwrap();
                    assert!(connection.private_data().starts_with(&name));
                    wait_accepted(context, accepted);
                    qp.post_send(op::send(buffer(&end.pd, &name)).token(1)).unwrap();
                    let mut poller = end.cq.poller();
                    for _ in 0..2 {
                        let done = wait(&mut poller);
                        assert_eq!(done.status, Ok(()));
                        assert_eq!(done.buffer()[..4], name);
                    }
                    connection.disconnect(&qp).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_killed_peer_is_noticed() {
    if role().is_some() {
        let Some(context) = device() else { return };
        let mut channel = first();
        let listener = listen(&context);
        channel.tell(&listener.local_addr().to_string());
        let _connected = accept(&listener, End::new(&context).qp(), &ConnOptions::new());
        channel.tell("connected");
        channel.hear();
        unreachable!("the parent kills us first");
    }
    let Some(context) = device() else { return };
    let mut running = Peer::start("cm::a_killed_peer_is_noticed", "peer");
    let to = running.hear().parse().unwrap();
    let (connection, _qp) = connect(&context, to, End::new(&context).qp(), &ConnOptions::new());
    assert_eq!(running.hear(), "connected");
    assert!(!connection.wait_disconnected(Some(Duration::ZERO)).unwrap());
    running.kill();
    assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
}

/// The numbers of this process's descriptors and threads.
fn held() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|path| std::fs::read_dir(path).unwrap().count())
}

#[test]
fn what_ends_leaves_nothing_behind() {
    const WARM: usize = 3;
    // Runs in a process of its own: other tests open and close descriptors too.
    if role().is_none() {
        if device().is_some() {
            Peer::start("cm::what_ends_leaves_nothing_behind", "peer").finish();
        }
        return;
    }
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    let mut before = [0; 2];
    // Emulated guests are slow.
    let rounds = if context.is_software() { 100 } else { 10 };
    for round in 0..WARM + rounds {
        if round == WARM {
            before = held();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                let _connected = accept(&listener, End::new(&context).qp(), &ConnOptions::new());
                drop(listener.next_request(Some(LIMIT)).unwrap().unwrap());
            });
            let _connected = connect(&context, to, End::new(&context).qp(), &ConnOptions::new());
            try_connect(&context, to, &ConnOptions::new()).unwrap_err();
        });
        // Drops an identifier that was only resolved, and a listener without a request.
        drop((resolve(&context, to), listen(&context)));
    }
    // Joined threads may still exist for a moment, and count in both numbers.
    let patience = std::time::Instant::now() + LIMIT;
    while held().iter().zip(before).any(|(&now, before)| now > before) {
        assert!(std::time::Instant::now() < patience, "{:?} descriptors and threads, {before:?} before", held());
        thread::yield_now();
    }
}

#[test]
fn a_queue_pair_that_another_route_or_request_has_initialized_connects() {
    let Some(context) = device() else { return };
    let (one, other) = (listen(&context), listen(&context));
    let accepted = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let [first, second] = [&one, &other].map(|it| it.next_request(Some(LIMIT)).unwrap().unwrap());
            let ends = [End::new(&context), End::new(&context)];
            let [mut a, mut b] = [first.init(ends[0].qp()).unwrap(), second.init(ends[1].qp()).unwrap()];
            for (end, qp) in [(&ends[0], &mut a), (&ends[1], &mut b)] {
                qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
            }
            let (_first, _b) = first.accept(b, &ConnOptions::new(), LIMIT).unwrap();
            let (_second, _a) = second.accept(a, &ConnOptions::new(), LIMIT).unwrap();
            accepted.store(true, Ordering::Release);
            for end in &ends {
                assert_eq!(wait(&mut end.cq.poller()).byte_len, 4);
            }
        });
        let ends = [End::new(&context), End::new(&context)];
        let [first, second] = [&one, &other].map(|it| resolve(&context, it.local_addr()));
        let [a, b] = [first.init(ends[0].qp()).unwrap(), second.init(ends[1].qp()).unwrap()];
        let second = scope.spawn(|| second.connect(a, &ConnOptions::new(), LIMIT).unwrap());
        let (_first, mut b) = first.connect(b, &ConnOptions::new(), LIMIT).unwrap();
        let (_second, mut a) = second.join().unwrap();
        wait_accepted(&context, &accepted);
        for (end, qp) in [(&ends[1], &mut b), (&ends[0], &mut a)] {
            qp.post_send(op::send(buffer(&end.pd, b"ping"))).unwrap();
            assert_eq!(wait(&mut end.cq.poller()).status, Ok(()));
        }
    });
}
