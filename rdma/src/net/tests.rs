//! Connections on the software device, between two nodes of one process.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::*;
use crate::aio::{Strategy, block_on};
use crate::context::Context;

/// Time for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

fn context() -> Context {
    crate::open(&"soft0".parse().unwrap()).unwrap().context
}

fn options() -> NodeOptions {
    NodeOptions::new().window(4).payload(256).timeout(LONG).linger(LONG).rnr_retry_count(0).max_connections(8)
}

/// Options for each way to set up connections.
fn by_each_exchange() -> [NodeOptions; 2] {
    [Exchange::ConnectionManager, Exchange::Tcp].map(|exchange| options().exchange(exchange))
}

/// A node whose driver runs on a thread of its own, until the last handle is dropped.
fn node(options: &NodeOptions) -> (Node, JoinHandle<crate::Result<()>>) {
    let (node, driver) = Node::new(&context(), options).unwrap();
    (node, thread::spawn(move || driver.run_blocking()))
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A client and a server with a listener.
struct World {
    client: Node,
    server: Node,
    listener: Listener,
    drivers: Vec<JoinHandle<crate::Result<()>>>,
}

impl World {
    fn new(options: &NodeOptions) -> Self {
        Self::with(options, options, &ListenOptions::new())
    }

    fn with(client: &NodeOptions, server: &NodeOptions, listen: &ListenOptions) -> Self {
        let ((client, one), (server, two)) = (node(client), node(server));
        let listener = server.listen(any_port(), listen).unwrap();
        Self { client, server, listener, drivers: vec![one, two] }
    }

    /// Connects; returns the client's end and the server's.
    fn pair(&mut self) -> (Connection, Connection) {
        let (to, client) = (self.listener.local_addr(), self.client.clone());
        let connecting = thread::spawn(move || block_on(client.connect(to)).unwrap());
        let accepted = block_on(async { self.listener.accept().await?.accept().await }).unwrap();
        (connecting.join().unwrap(), accepted)
    }

    /// Drops all handles; the drivers must end by themselves.
    fn end(self) {
        let Self { client, server, listener, drivers } = self;
        drop((client, server, listener));
        for driver in drivers {
            driver.join().unwrap().unwrap();
        }
    }
}

/// Waits for both futures.
async fn join<A: Future, B: Future>(one: A, two: B) -> (A::Output, B::Output) {
    let (mut one, mut two) = (std::pin::pin!(one), std::pin::pin!(two));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none() {
            first = ready(one.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(two.as_mut().poll(cx));
        }
        let is_done = first.is_some() && second.is_some();
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

fn ready<T>(poll: std::task::Poll<T>) -> Option<T> {
    if let std::task::Poll::Ready(output) = poll { Some(output) } else { None }
}

/// Answers each message with the same bytes until the peer ends its data.
fn echo(connection: Connection) -> Result<(), Failure> {
    let (to, mut from) = connection.split();
    block_on(async {
        while let Some(message) = from.next().await? {
            to.send(&message).await?;
        }
        Ok(())
    })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

#[test]
fn messages_of_all_lengths_come_back_whole() {
    for options in by_each_exchange() {
        let mut world = World::new(&options);
        let (mut client, server) = world.pair();
        let server = thread::spawn(move || echo(server));
        block_on(async {
            for len in [0, 1, 239, 240, 241, 256, 257, 1000, 100_000, 1 << 20] {
                client.send(bytes(len)).await.unwrap();
                let answer = client.next().await.unwrap().expect("an answer");
                assert!(answer[..] == bytes(len), "{len} bytes");
            }
            let long = client.send(bytes((1 << 20) + 1)).await.unwrap_err();
            assert_eq!(long.kind(), FailureKind::TooLong);
            assert_eq!(client.close(3).await, Ok(0));
        });
        server.join().unwrap().unwrap();
        world.end();
    }
}

#[test]
fn long_messages_go_in_fragments_if_the_program_wants_it() {
    let mut world = World::with(&options().eager_limit(u32::MAX), &options(), &ListenOptions::new());
    let (mut client, server) = world.pair();
    let server = thread::spawn(move || echo(server));
    block_on(async {
        for len in [480, 481, 100_000] {
            client.send(bytes(len)).await.unwrap();
            assert!(client.next().await.unwrap().expect("an answer")[..] == bytes(len), "{len} bytes");
        }
    });
    drop(client);
    server.join().unwrap().unwrap();
    world.end();
}

#[test]
fn short_and_long_messages_stay_in_order() {
    let mut world = World::new(&options().max_message(10_000));
    let (client, mut server) = world.pair();
    let lens = || (0..300).map(|number| number * 7919 % 10_001);
    let sending = thread::spawn(move || {
        block_on(async {
            for len in lens() {
                client.send(bytes(len)).await.unwrap();
            }
            client.close(0).await
        })
    });
    block_on(async {
        let mut held = Vec::new();
        for (number, len) in lens().enumerate() {
            let message = server.next().await.unwrap().expect("a message");
            assert!(message[..] == bytes(len), "message {number} of {len} bytes");
            // The memory of a message that is held is not used for the next.
            held.push((message, len));
            if held.len() > 3 {
                let (message, len) = held.remove(0);
                assert!(message[..] == bytes(len), "held");
            }
        }
        assert!(server.next().await.unwrap().is_none());
    });
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn exposed_memory_is_sent_without_a_copy_and_held_until_it_is_read() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let region = world.client.domain().allocate_exposed(100_000, crate::RemoteAccess::READ).unwrap();
    let (to, _from) = client.split();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    block_on(async {
        for len in [0, 1, 300, 100_000] {
            region.copy_in(0, &bytes(len)).unwrap();
            let (sent, received) = join(to.send_exposed(region.slice(..len).unwrap()), server.next()).await;
            sent.unwrap();
            assert!(received.unwrap().expect("a message")[..] == bytes(len), "{len} bytes");
        }
        // The futures are dropped after their first poll: the messages are sent, or held back.
        for _ in 0..40 {
            let mut sending = Box::pin(to.send_exposed(region.slice(..1000).unwrap()));
            drop(sending.as_mut().poll(&mut cx));
        }
        drop(to);
        let mut count = 0;
        while let Some(message) = server.next().await.unwrap() {
            assert!(message[..] == bytes(1000));
            count += 1;
        }
        assert!((1..=40).contains(&count), "{count}");
    });
    drop((server, _from));
    world.end();
    region.revoke().unwrap();
}

#[test]
fn exposed_memory_is_given_back_when_the_peer_does_not_read_it() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let region = world.client.domain().allocate_exposed(4096, crate::RemoteAccess::READ).unwrap();
    let (to, from) = client.split();
    // The peer sends on, but has no receiver any more.
    let (to_client, gone) = server.split();
    drop(gone);
    let discarded = block_on(to.send_exposed(region.slice(..).unwrap())).unwrap_err();
    assert_eq!(discarded.kind(), FailureKind::Closed);

    let foreign = world.server.domain().allocate_exposed(64, crate::RemoteAccess::READ).unwrap();
    let unreadable = world.client.domain().allocate_exposed(64, crate::RemoteAccess::WRITE).unwrap();
    for slice in [foreign.slice(..).unwrap(), unreadable.slice(..).unwrap()] {
        assert_eq!(block_on(to.send_exposed(slice)).unwrap_err().kind(), FailureKind::Local);
    }
    drop((to, from, to_client));
    world.end();
    region.revoke().unwrap();
}

#[test]
fn a_peer_that_does_not_take_long_messages_stops_the_sender() {
    let mut world = World::new(&options().max_message(10_000));
    let (client, mut server) = world.pair();
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for _ in 0..20 {
                client.send(bytes(10_000)).await.unwrap();
                report.send(()).unwrap();
            }
            client.close(0).await
        })
    });
    // The peer reads one message, and two more fit the staging region.
    for _ in 0..3 {
        reports.recv_timeout(LONG).unwrap();
    }
    assert!(reports.recv_timeout(Duration::from_millis(50)).is_err(), "the memory of both ends is bounded");
    block_on(async {
        for _ in 0..20 {
            assert!(server.next().await.unwrap().unwrap()[..] == bytes(10_000));
        }
        assert!(server.next().await.unwrap().is_none());
    });
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn a_driver_may_never_sleep_or_sleep_at_once() {
    for strategy in [Strategy::BusyPoll, Strategy::EventDriven] {
        let mut world = World::new(&options().strategy(strategy));
        let (mut client, server) = world.pair();
        let server = thread::spawn(move || echo(server));
        block_on(async {
            // Without answers meanwhile, so that only completions make room.
            for _ in 0..10 {
                for len in 0..20 {
                    client.send(bytes(50 * len)).await.unwrap();
                }
                for len in 0..20 {
                    assert!(client.next().await.unwrap().expect("an answer")[..] == bytes(50 * len), "{strategy:?}");
                }
            }
            assert_eq!(client.close(0).await, Ok(0));
        });
        server.join().unwrap().unwrap();
        world.end();
    }
}

#[test]
fn many_messages_in_both_directions_at_once_arrive_in_order() {
    const COUNT: u32 = 2000;
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let sides = [client, server].map(|connection| {
        let (to, mut from) = connection.split();
        let sending = thread::spawn(move || {
            block_on(async {
                for number in 0..COUNT {
                    let len = usize::try_from(number).unwrap() % 700;
                    to.send([&number.to_le_bytes()[..], &bytes(len)].concat()).await.unwrap();
                }
            });
        });
        let receiving = thread::spawn(move || {
            block_on(async {
                for number in 0..COUNT {
                    let message = from.next().await.unwrap().expect("a message");
                    assert_eq!(message[..4], number.to_le_bytes());
                }
                assert!(from.next().await.unwrap().is_none(), "the end of the data");
            });
        });
        [sending, receiving]
    });
    for thread in sides.into_iter().flatten() {
        thread.join().unwrap();
    }
    world.end();
}

#[test]
fn a_slow_reader_stops_the_sender_and_loses_nothing() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for number in 0..200_u32 {
                client.send(number.to_le_bytes()).await.unwrap();
                report.send(number).unwrap();
            }
            client.close(0).await
        })
    });
    // The window and as many spares: the rest waits for the reader.
    let first: Vec<_> = (0..8).map(|_| reports.recv_timeout(LONG).unwrap()).collect();
    assert_eq!(first, (0..8).collect::<Vec<_>>());
    block_on(async {
        for number in 0..200_u32 {
            assert_eq!(server.next().await.unwrap().unwrap()[..], number.to_le_bytes());
        }
        assert!(server.next().await.unwrap().is_none());
    });
    assert!(reports.try_iter().count() <= 192);
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn a_program_may_hold_messages_up_to_twice_the_window() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    block_on(async {
        let mut held = Vec::new();
        for number in 0..8_u8 {
            client.send([number]).await.unwrap();
            held.push(server.next().await.unwrap().unwrap());
        }
        let numbers: Vec<_> = held.iter().map(|message| message[0]).collect();
        assert_eq!(numbers, (0..8).collect::<Vec<_>>());
        drop(held);
        client.send([8]).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap()[..], [8]);
    });
    drop((client, server));
    world.end();
}

#[test]
fn permits_send_without_waiting_and_keep_messages_whole() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let (to, _from) = client.split();
    block_on(async {
        let permit = to.reserve().await.unwrap();
        drop(to.reserve().await.unwrap());
        // A long message is under way while the permit is used.
        to.send(bytes(5000)).await.unwrap();
        permit.send(b"short").unwrap();
        assert!(server.next().await.unwrap().unwrap()[..] == bytes(5000));
        assert_eq!(&server.next().await.unwrap().unwrap()[..], b"short");
        let mut permit = to.reserve().await.unwrap();
        permit.payload_mut()[..3].copy_from_slice(b"abc");
        permit.send_filled(3).unwrap();
        assert_eq!(&server.next().await.unwrap().unwrap()[..], b"abc");
        let long = to.reserve().await.unwrap().send(&bytes(257)).unwrap_err();
        assert_eq!(long.kind(), FailureKind::TooLong);
    });
    drop((to, _from, server));
    world.end();
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
    use crate::cm::{ConnOptions, blocking};
    let world = World::new(&options());
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(32).unwrap());
    let route = blocking::resolve::<crate::Rc>(&context, None, world.listener.local_addr(), LONG).unwrap();
    let qp = route.init(pd.queue_pair().cq(&cq).build().unwrap()).unwrap();
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
    let alert = options().keep_alive(Duration::from_millis(100));
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

/// Waits until no connection uses the shared receives.
fn wait_for_receives(listener: &Listener, count: i64) {
    let end = std::time::Instant::now() + LONG;
    while listener.free_receives() != count {
        assert!(std::time::Instant::now() < end, "{} receives are free", listener.free_receives());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn connections_of_a_listener_share_receives() {
    for options in by_each_exchange() {
        const CLIENTS: usize = 8;
        let options = options.clone().max_connections(32);
        // Just enough for all, and enough for windows that grow.
        for total in [51, 51, 120] {
            let limits = ListenOptions::new().shared_receives(total);
            let mut world = World::with(&options, &options, &limits);
            let pairs: Vec<_> = (0..CLIENTS).map(|_| world.pair()).collect();
            let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let servers: Vec<_> = servers.into_iter().map(|server| thread::spawn(move || echo(server))).collect();
            let clients = clients.into_iter().enumerate().map(|(number, client)| {
                thread::spawn(move || {
                    let (to, mut from) = client.split();
                    let sending = thread::spawn(move || {
                        block_on(async {
                            for round in 0..60 {
                                to.send(bytes((number + 1) * round * 13)).await.unwrap();
                            }
                        });
                    });
                    block_on(async {
                        for round in 0..60 {
                            let answer = from.next().await.unwrap().expect("an answer");
                            assert!(answer[..] == bytes((number + 1) * round * 13), "{number}, round {round}");
                        }
                    });
                    sending.join().unwrap();
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.join().unwrap();
            }
            for server in servers {
                server.join().unwrap().unwrap();
            }
            wait_for_receives(&world.listener, total.into());
            world.end();
        }
    }
}

#[test]
fn a_listener_without_free_receives_is_busy() {
    let mut world = World::with(&options(), &options(), &ListenOptions::new().shared_receives(14));
    let first = world.pair();
    let second = world.pair();
    let busy = block_on(world.client.connect(world.listener.local_addr())).unwrap_err();
    assert_eq!(busy.refuse_code(), Some(RefuseCode::Busy), "{busy}");
    drop(first);
    wait_for_receives(&world.listener, 8);
    drop((world.pair(), second));
    world.end();
}

#[test]
fn messages_that_are_held_slow_their_connection_alone() {
    let mut world = World::with(&options(), &options(), &ListenOptions::new().shared_receives(12));
    let (holding, mut holder) = world.pair();
    let (mut client, server) = world.pair();
    let server = thread::spawn(move || echo(server));
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for number in 0..40_u8 {
                holding.send([number]).await.unwrap();
                report.send(()).unwrap();
            }
        });
        holding
    });
    let mut held = vec![block_on(holder.next()).unwrap().unwrap()];
    block_on(async {
        for round in 0..200_usize {
            client.send(bytes(round)).await.unwrap();
            assert!(client.next().await.unwrap().unwrap()[..] == bytes(round));
        }
    });
    assert!(reports.try_iter().count() < 10, "the sender waits for the holder");
    while held.last().is_none_or(|message| message[0] < 39) {
        let next = block_on(holder.next()).unwrap().unwrap();
        // What is released is used again.
        held.clear();
        held.push(next);
    }
    drop((sending.join().unwrap(), client, holder));
    server.join().unwrap().unwrap();
    // A message may outlive its connection.
    wait_for_receives(&world.listener, 11);
    drop(held);
    wait_for_receives(&world.listener, 12);
    world.end();
}

#[test]
fn one_sided_operations_reach_exposed_memory_until_it_is_revoked() {
    use crate::RemoteAccess;
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let region = world.client.domain().allocate_exposed(4096, access).unwrap();
    let domain = world.server.domain().clone();
    block_on(async {
        client.send(region.remote(..).unwrap().to_bytes()).await.unwrap();
        let slice = server.next().await.unwrap().unwrap();
        let slice = crate::RemoteSlice::from_bytes(slice[..].try_into().unwrap());
        let remote = server.remote();

        let mut buffer = domain.allocate(100).unwrap();
        buffer[..5].copy_from_slice(b"hello");
        let buffer = remote.write(slice.slice(64..).unwrap(), buffer, 5).await.unwrap();
        let mut seen = [0; 5];
        region.copy_out(64, &mut seen).unwrap();
        assert_eq!(&seen, b"hello");

        region.copy_in(1000, b"world").unwrap();
        let buffer = remote.read(slice.slice(1000..).unwrap(), buffer).await.unwrap();
        assert_eq!(&buffer[..5], b"world");

        for old in 0..40 {
            assert_eq!(remote.fetch_add(slice, 1).await, Ok(old));
        }
        assert_eq!(remote.compare_swap(slice, 40, 7).await, Ok(40));
        assert_eq!(remote.compare_swap(slice, 40, 8).await, Ok(7));

        // A mistake of this end harms nothing.
        let short = remote.read(slice.slice(..50).unwrap(), buffer).await.unwrap_err();
        assert_eq!(short.kind(), FailureKind::Local);
        assert_eq!(remote.fetch_add(slice, 0).await, Ok(7));

        drop(region);
        let revoked = remote.fetch_add(slice, 1).await.unwrap_err();
        assert_eq!(revoked.kind(), FailureKind::PeerGone, "{revoked}");
        assert_eq!(server.next().await.unwrap_err(), revoked);
    });
    drop((client, server));
    world.end();
}

#[test]
fn dropped_operations_give_their_slots_back() {
    use std::task::{Context, Waker};
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let region = world.client.domain().allocate_exposed(64, crate::RemoteAccess::ATOMIC).unwrap();
    let (slice, remote) = (region.remote(..).unwrap(), server.remote());
    for _ in 0..10 {
        // More than there are slots; each is polled once.
        let mut operations: Vec<_> = (0..40).map(|_| Box::pin(remote.fetch_add(slice, 1))).collect();
        for operation in &mut operations {
            drop(operation.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        }
        drop(operations);
    }
    assert!(block_on(remote.fetch_add(slice, 0)).unwrap() >= 16);
    drop((client, server, region));
    world.end();
}

/// Reads until the end of the stream.
async fn read_all(stream: &mut Stream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 777]);
    while let len @ 1.. = stream.read(&mut part).await.unwrap() {
        all.extend_from_slice(&part[..len]);
    }
    all
}

#[test]
fn a_stream_carries_bytes_both_ways_at_once() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let ends = [client, server].map(|connection| {
        thread::spawn(move || {
            let mut stream = connection.into_stream();
            block_on(async {
                // As many bytes as the receives of the peer take: nobody reads yet.
                stream.write_all(&bytes(1500)).await.unwrap();
                assert_eq!(stream.write(&[]).await.unwrap(), 0);
                stream.write_all(b"end").await.unwrap();
                stream.finish();
                assert!(stream.write(b"more").await.is_err(), "after the end");
                assert!(read_all(&mut stream).await == [&bytes(1500)[..], b"end"].concat());
                assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0, "the end stays");
            });
        })
    });
    for end in ends {
        end.join().unwrap();
    }
    world.end();
}

#[cfg(feature = "futures-io")]
#[test]
fn a_stream_has_the_traits_of_futures_io() {
    use std::future::poll_fn;
    use std::io::IoSlice;
    use std::pin::Pin;

    use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let (mut to, mut from) = (client.into_stream(), server.into_stream());
    block_on(async {
        let slices = [IoSlice::new(b"hello, "), IoSlice::new(b"world")];
        let written = poll_fn(|cx| Pin::new(&mut to).poll_write_vectored(cx, &slices)).await.unwrap();
        assert_eq!(written, 12);
        poll_fn(|cx| AsyncWrite::poll_close(Pin::new(&mut to), cx)).await.unwrap();
        let mut five = [0; 5];
        let read = poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut from), cx, &mut five)).await.unwrap();
        assert_eq!(&five[..read], b"hello");
        let rest = poll_fn(|cx| Pin::new(&mut from).poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await.unwrap();
        assert_eq!(rest, b", world");
        AsyncBufRead::consume(Pin::new(&mut from), rest.len());
        assert_eq!(from.read(&mut five).await.unwrap(), 0);
    });
    drop((to, from));
    world.end();
}
