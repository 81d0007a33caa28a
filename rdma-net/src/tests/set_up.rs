//! Setting connections up: limits, refusals, and peers that are silent or early.

use rdma::ErrorKind;
use rdma::QueuePair;

use super::*;

#[test]
fn a_driver_may_never_sleep_or_sleep_at_once() {
    for strategy in [Strategy::BusyPoll, Strategy::EventDriven] {
        let mut world = World::new(&options().strategy(strategy));
        let (mut client, server) = world.pair();
        let server = thread::spawn(move || echo(server));
        block_on(async {
            // Without answers meanwhile, so that only completions free space.
            for _ in 0..10 {
                for len in 0..20 {
                    client.send(bytes(50 * len)).await.unwrap();
                }
                for len in 0..20 {
                    assert!(client.next().await.unwrap().expect("an answer")[..] == bytes(50 * len), "{strategy:?}");
                }
            }
            assert_eq!(client.close().await, Ok(0));
        });
        server.join().unwrap().unwrap();
        world.end();
    }
}

#[test]
fn the_reason_of_a_refusal_reaches_the_peer() {
    for options in by_each_exchange() {
        let limits = ListenOptions::new().max_connections(1);
        let mut world = World::with(&options, &options, &limits);
        let (to, client) = (world.listener.local_addr(), world.client.clone());
        let refused = thread::spawn(move || block_on(client.connect(to)).unwrap_err());
        block_on(world.listener.accept()).unwrap().refuse("try another day");
        let failure = refused.join().unwrap();
        assert_eq!(failure.to_string(), "the peer refused the connection (Application): try another day");

        let connected = world.pair();
        let busy = block_on(world.client.connect(to)).unwrap_err();
        assert_eq!(busy.refuse_code(), Some(RefuseCode::Busy), "{busy}");
        drop(connected);
        world.end();
    }
}

#[test]
fn nothing_listens_at_a_free_port() {
    let world = World::new(&options());
    let free = world.server.listen(any_port(), &ListenOptions::new()).unwrap().local_addr();
    let failure = block_on(world.client.connect(free)).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Refused, "{failure}");
    world.end();
}

#[test]
fn a_peer_of_another_protocol_is_refused() {
    use rdma::cm::{ConnOptions, blocking};
    let world = World::new(&options());
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(32).unwrap());
    let route = blocking::resolve::<rdma::transport::Rc>(&context, None, world.listener.local_addr(), LONG).unwrap();
    let qp = route.init(QueuePair::builder(&pd).cq(&cq).build().unwrap()).unwrap();
    let failed = route.connect(qp, &ConnOptions::new().private_data(b"GET /"), LONG).unwrap_err();
    let refuse = protocol::Refuse::from_bytes(&failed.private_data).unwrap();
    assert_eq!((refuse.code, &*refuse.text), (RefuseCode::Version, "the private data is no HELLO"));
    world.end();
}

#[test]
fn both_ends_use_the_smaller_limits() {
    let small = options().window(1).payload(240).max_message(10_000);
    let mut world = World::with(&options().payload(4096), &small, &ListenOptions::new());
    let (mut client, server) = world.pair();
    assert_eq!((client.max_message(), server.max_message()), (10_000, 10_000));
    let server = thread::spawn(move || echo(server));
    block_on(async {
        client.send(bytes(10_000)).await.unwrap();
        assert!(client.next().await.unwrap().unwrap()[..] == bytes(10_000));
    });
    drop(client);
    server.join().unwrap().unwrap();
    world.end();
}

#[test]
fn a_listener_without_a_port_leaves_nothing() {
    for options in by_each_exchange() {
        let (node, driver) = node(&options);
        let listener = node.listen(any_port(), &ListenOptions::new()).unwrap();
        let error = node.listen(listener.local_addr(), &ListenOptions::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddressInUse, "{error}");
        assert_eq!(node.routes(), 1);
        drop((node, listener));
        driver.join().unwrap().unwrap();
    }
}

#[test]
fn a_keep_alive_may_be_as_long_as_it_likes() {
    let (longest, never) = (options().keep_alive(Duration::MAX), options().keep_alive(Duration::ZERO));
    let mut world = World::with(&longest, &never, &ListenOptions::new());
    let (client, mut server) = world.pair();
    block_on(async {
        client.send("hello").await.unwrap();
        assert_eq!(server.next().await.unwrap().as_deref(), Some(&b"hello"[..]));
    });
    drop((client, server));
    world.end();
}

#[test]
fn a_dropped_driver_fails_all_waits() {
    for options in by_each_exchange() {
        let (node, driver) = Node::new(&context(), &options).unwrap();
        let mut listener = node.listen(any_port(), &ListenOptions::new()).unwrap();
        let accepting = thread::spawn(move || block_on(listener.accept()).map(drop).unwrap_err());
        drop(driver);
        assert_eq!(accepting.join().unwrap().kind(), FailureKind::DriverGone);
        let failure = block_on(node.connect("127.0.0.1:1".parse().unwrap())).unwrap_err();
        assert_eq!(failure.kind(), FailureKind::DriverGone);
    }
}

#[test]
fn a_silent_peer_is_found() {
    let silent = options().keep_alive(Duration::ZERO);
    let alert = options().keep_alive(Duration::from_secs(1));
    let (server, driver) = Node::new(&context(), &silent).unwrap();
    let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
    let (client, client_driver) = node(&alert);
    let to = listener.local_addr();
    let connecting = thread::spawn(move || block_on(client.connect(to)).unwrap());
    let mut driver = driver;
    let accepted = drive(&mut driver, async { listener.accept().await?.accept().await }).unwrap();
    // Nobody drives the server any more, so nobody answers.
    let mut connection = connecting.join().unwrap();
    let failure = block_on(connection.next()).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PeerGone);
    drop((connection, accepted, driver));
    client_driver.join().unwrap().unwrap();
}

/// Runs a future on the thread of its driver.
fn drive<F: Future>(driver: &mut Driver, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        driver.turn(64).unwrap();
    }
}

#[test]
fn a_peer_that_never_speaks_is_cut_off() {
    let limits = ListenOptions::new().first_message(Duration::from_millis(50));
    let mut world = World::with(&options(), &options(), &limits);
    let (client, mut server) = world.pair();
    let failure = block_on(server.next()).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Timeout);
    drop((client, server));
    world.end();
}

#[test]
fn a_fragment_is_no_first_message() {
    let (server, server_driver) = node(&options());
    let limits = ListenOptions::new().first_message(Duration::from_millis(50)).idle(LONG * 10);
    let mut listener = server.listen(any_port(), &limits).unwrap();
    let to = listener.local_addr();
    let accepting = thread::spawn(move || block_on(async { listener.accept().await?.accept().await }));
    let (client, mut driver) = Node::new(&context(), &options().eager_limit(u32::MAX)).unwrap();
    let connection = drive(&mut driver, client.connect(to)).unwrap();
    while !accepting.is_finished() {
        driver.turn(64).unwrap();
    }
    let mut accepted = accepting.join().unwrap().unwrap();
    // The first fragments leave, and nobody drives the client for the others.
    let mut sending = std::pin::pin!(connection.send(bytes(100_000)));
    let _begun = sending.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(block_on(accepted.next()).map(drop).unwrap_err().kind()));
    assert_eq!(told.recv_timeout(LONG).expect("a fragment counts as a message"), FailureKind::Timeout);
    drop((server, driver));
    server_driver.join().unwrap().unwrap();
}

#[test]
fn a_peer_that_falls_silent_after_its_first_message_is_cut_off() {
    let limits = ListenOptions::new().first_message(LONG).idle(Duration::from_millis(200));
    let mut world = World::with(&options(), &options(), &limits);
    let (client, mut server) = world.pair();
    block_on(client.send("first")).unwrap();
    assert_eq!(block_on(server.next()).unwrap().as_deref(), Some(&b"first"[..]));
    let failure = block_on(server.next()).map(drop).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Timeout, "{failure}");
    drop(client);
    // One that has ended its data may wait for an answer as long as it likes.
    let (client, mut server) = world.pair();
    let (to, mut from) = client.split();
    drop(to);
    assert!(block_on(server.next()).unwrap().is_none());
    thread::sleep(Duration::from_millis(300));
    block_on(server.send("answer")).unwrap();
    assert_eq!(block_on(from.next()).unwrap().as_deref(), Some(&b"answer"[..]));
    drop((server, from));
    world.end();
}

#[test]
fn a_peer_that_speaks_before_the_accept_returns_is_kept() {
    let limit = Duration::from_secs(1);
    let mut world = World::with(&options(), &options(), &ListenOptions::new().first_message(limit));
    let (to, client) = (world.listener.local_addr(), world.client.clone());
    let connecting = thread::spawn(move || {
        block_on(async {
            let client = client.connect(to).await.unwrap();
            client.send("early").await.unwrap();
            client
        })
    });
    let accepting = block_on(world.listener.accept()).unwrap().accept();
    let mut accepting = std::pin::pin!(accepting);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    // Hardly ever ready: the client must still answer.
    let accepted = accepting.as_mut().poll(&mut cx);
    let client = connecting.join().unwrap();
    // Most likely, the message arrives meanwhile.
    thread::sleep(limit / 10);
    let accepted = if let std::task::Poll::Ready(accepted) = accepted { accepted } else { block_on(accepting) };
    let mut server = accepted.unwrap();
    thread::sleep(limit + limit / 5);
    block_on(async {
        client.send("late").await.unwrap();
        for expected in ["early", "late"] {
            assert_eq!(server.next().await.unwrap().as_deref(), Some(expected.as_bytes()));
        }
    });
    drop((client, server));
    world.end();
}

#[test]
fn two_hundred_connections_share_a_node() {
    const COUNT: usize = 200;
    let options = options().window(1).payload(240).max_connections(256);
    let World { client, server, mut listener, drivers } = World::new(&options);
    let to = listener.local_addr();
    let serving = thread::spawn(move || {
        for _ in 0..COUNT {
            let accepted = block_on(async { listener.accept().await?.accept().await }).unwrap();
            thread::spawn(move || echo(accepted));
        }
    });
    let mut connections: Vec<_> = (0..COUNT).map(|_| block_on(client.connect(to)).unwrap()).collect();
    serving.join().unwrap();
    assert_eq!(server.connections(), COUNT);
    block_on(async {
        for (number, connection) in connections.iter().enumerate() {
            connection.send(number.to_le_bytes()).await.unwrap();
        }
        for (number, connection) in connections.iter_mut().enumerate() {
            assert_eq!(connection.next().await.unwrap().unwrap()[..], number.to_le_bytes());
        }
    });
    drop((connections, client, server));
    for driver in drivers {
        driver.join().unwrap().unwrap();
    }
}

/// A client connects, sends and closes while nobody drives the server. `turn` drives it before the
/// accept is polled again.
fn close_before_the_accept_ends(options: &NodeOptions, turn: impl Fn(&mut Driver)) {
    let (server, mut driver) = Node::new(&context(), options).unwrap();
    let (client, client_driver) = node(&options.clone().linger(Duration::from_millis(200)));
    let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
    let (to, connecting) = (listener.local_addr(), client.clone());
    let connecting = thread::spawn(move || block_on(connecting.connect(to)).unwrap());
    let incoming = drive(&mut driver, listener.accept()).unwrap();
    let mut accepting = std::pin::pin!(incoming.accept());
    let answered = accepting.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(answered.is_pending());
    let connection = connecting.join().unwrap();
    block_on(connection.send("early")).unwrap();
    drop(connection);
    // Nobody answers the client's CLOSE, so it gives up.
    drop(client);
    client_driver.join().unwrap().unwrap();
    turn(&mut driver);
    let mut accepted = drive(&mut driver, accepting).unwrap();
    let mut next = || drive(&mut driver, accepted.next()).map(|message| message.as_deref().map(<[u8]>::to_vec));
    assert_eq!(next().unwrap().as_deref(), Some(&b"early"[..]));
    assert_eq!(next().unwrap(), None);
}

#[test]
fn a_peer_that_closes_before_the_accept_returns_is_heard() {
    for options in by_each_exchange() {
        // Completions come before the events.
        close_before_the_accept_ends(&options, |_| ());
        // Completions come with the events.
        close_before_the_accept_ends(&options, |driver| {
            for _ in 0..100 {
                driver.turn(0).unwrap();
            }
        });
    }
}
