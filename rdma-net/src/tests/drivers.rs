//! Nodes with several drivers.

use std::task::{Poll, Waker};

use super::wakers::poll;
use super::*;
use rdma::RemoteAccess;

/// A node, and its drivers on threads of their own, which end when they are told, or with the node.
fn node_with(count: usize, options: &NodeOptions) -> (Node, Vec<Running>) {
    let (node, drivers) = Node::with_drivers(&context(), options, count).unwrap();
    (node, drivers.into_iter().map(Running::new).collect())
}

/// A driver in a loop of its own.
struct Running {
    end: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Running {
    fn new(mut driver: Driver) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&end);
        let thread = thread::spawn(move || {
            while driver.is_used() && !asked.load(Ordering::Relaxed) {
                driver.wait(Some(Duration::from_millis(1))).unwrap();
            }
        });
        Self { end, thread }
    }

    /// Drops the driver.
    fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// The connections of each driver of a node.
fn loads(node: &Node) -> Vec<usize> {
    node.handle.all().map(|tables| tables.connections()).collect()
}

fn connect(node: &Node, listener: &mut Listener) -> (Connection, Connection) {
    let (node, to) = (node.clone(), listener.local_addr());
    let connecting = thread::spawn(move || block_on(node.connect(to)).unwrap());
    let accepted = block_on(async { listener.accept().await?.accept().await }).unwrap();
    (connecting.join().unwrap(), accepted)
}

fn check(client: &mut Connection, server: &mut Connection) {
    block_on(async {
        client.send(bytes(3000)).await.unwrap();
        assert!(server.next().await.unwrap().unwrap()[..] == bytes(3000));
        server.send("answer").await.unwrap();
        assert_eq!(&client.next().await.unwrap().unwrap()[..], b"answer");
    });
}

#[test]
fn connections_are_spread_over_drivers_at_both_sides() {
    for options in by_each_exchange() {
        let (client, client_drivers) = node_with(3, &options);
        let (server, server_drivers) = node_with(2, &options);
        let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
        let mut pairs: Vec<_> = (0..6).map(|_| connect(&client, &mut listener)).collect();
        assert_eq!((loads(&client), loads(&server)), (vec![2; 3], vec![3; 2]));
        assert_eq!((client.connections(), server.connections()), (6, 6));
        for (client, server) in &mut pairs {
            check(client, server);
        }
        // Those that are left have place for the next ones.
        let (one, other) = pairs.remove(0);
        let (one, other) = block_on(join(one.close(), other.close()));
        assert_eq!((one, other), (Ok(0), Ok(0)));
        drop((pairs, listener, client, server));
        client_drivers.into_iter().chain(server_drivers).for_each(|driver| driver.thread.join().unwrap());
    }
}

#[test]
fn a_driver_that_ends_takes_its_connections_with_it_and_others_go_on() {
    for options in by_each_exchange() {
        let (client, driver) = node(&options);
        let (server, mut drivers) = node_with(2, &options);
        let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
        let mut pairs: Vec<_> = (0..4).map(|_| connect(&client, &mut listener)).collect();
        drivers.pop().unwrap().end();
        let gone = |pair: &(Connection, Connection)| pair.1.core().failure().is_some();
        assert_eq!(pairs.iter().filter(|pair| gone(pair)).count(), 2);
        for (client, server) in &mut pairs {
            match server.core().failure() {
                None => check(client, server),
                Some(failure) => {
                    assert_eq!(failure.kind(), FailureKind::DriverGone);
                    assert_eq!(block_on(server.next()).unwrap_err(), failure);
                    // The peer learns of it.
                    let failure = block_on(client.next()).unwrap_err();
                    assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
                }
            }
        }
        // New connections go to the driver that lives.
        for _ in 0..2 {
            let (mut client, mut server) = connect(&client, &mut listener);
            check(&mut client, &mut server);
            pairs.push((client, server));
        }
        assert_eq!(loads(&server)[1], 0);
        drop((pairs, listener, client, server));
        drivers.into_iter().for_each(|driver| driver.thread.join().unwrap());
        driver.join().unwrap().unwrap();
    }
}

#[test]
fn a_listener_ends_with_its_driver_and_the_node_listens_by_another() {
    let (client, driver) = node(&options());
    let (server, mut drivers) = node_with(2, &options());
    let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
    let (mut to_first, mut first) = connect(&client, &mut listener);
    let (mut to_second, mut second) = connect(&client, &mut listener);
    drivers.remove(0).end();
    assert_eq!(block_on(listener.accept()).unwrap_err().kind(), FailureKind::DriverGone);
    assert_eq!(block_on(first.next()).unwrap_err().kind(), FailureKind::DriverGone);
    assert_eq!(block_on(to_first.next()).unwrap_err().kind(), FailureKind::PeerGone);
    check(&mut to_second, &mut second);
    // At the same port, once the first listener is gone.
    let at = listener.local_addr();
    drop(listener);
    let mut listener = server.listen(at, &ListenOptions::new()).unwrap();
    let (mut to_third, mut third) = connect(&client, &mut listener);
    check(&mut to_third, &mut third);
    // The node connects by the driver that lives, too.
    let mut other = client.listen(any_port(), &ListenOptions::new()).unwrap();
    let (mut fourth, mut to_fourth) = connect(&server, &mut other);
    check(&mut fourth, &mut to_fourth);
    drivers.remove(0).end();
    let gone = block_on(server.connect(at)).unwrap_err();
    assert_eq!(gone.kind(), FailureKind::DriverGone, "no driver is left");
    drop((client, other));
    drop((to_first, first, to_second, second, to_third, third, fourth, to_fourth));
    driver.join().unwrap().unwrap();
}

#[test]
fn memory_that_is_exposed_once_serves_the_peers_of_all_drivers() {
    let (client, driver) = node(&options());
    let (node, drivers) = node_with(2, &options());
    let region = node.domain().allocate_exposed(64, RemoteAccess::READ).unwrap();
    region.copy_in(0, b"once").unwrap();
    let mut listener = node.listen(any_port(), &ListenOptions::new()).unwrap();
    let pairs: Vec<_> = (0..2).map(|_| connect(&client, &mut listener)).collect();
    assert_eq!(loads(&node), [1, 1]);
    for (client, server) in &pairs {
        assert_eq!(server.domain().as_raw(), node.domain().as_raw());
        let read = block_on(client.remote().fetch(region.remote(..4).unwrap())).unwrap();
        assert_eq!(&read[..], b"once");
    }
    drop((pairs, listener, client, node));
    drivers.into_iter().for_each(|driver| driver.thread.join().unwrap());
    driver.join().unwrap().unwrap();
}

#[test]
fn a_shutdown_ends_the_connections_of_all_drivers() {
    let (client, driver) = node(&options());
    let (server, drivers) = node_with(2, &options());
    let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
    let pairs: Vec<_> = (0..4).map(|_| connect(&client, &mut listener)).collect();
    // The peers stay: all are cut off.
    let cut_off = block_on(server.shutdown(Duration::from_millis(5))).unwrap();
    assert_eq!((cut_off.len(), server.connections()), (4, 0));
    assert_eq!(block_on(listener.accept()).unwrap_err().kind(), FailureKind::Closed);
    assert_eq!(block_on(server.connect(any_port())).unwrap_err().kind(), FailureKind::Closed);
    drop((pairs, listener, client, server));
    drivers.into_iter().for_each(|driver| driver.thread.join().unwrap());
    driver.join().unwrap().unwrap();
}

#[test]
fn a_connection_whose_driver_ends_before_it_is_accepted_fails_alone() {
    let (server, mut drivers) = Node::with_drivers(&context(), &options(), 2).unwrap();
    let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
    let (client, mut client_driver) = Node::new(&context(), &options()).unwrap();
    let mut connecting: Vec<_> = (0..2).map(|_| Box::pin(client.connect(listener.local_addr()))).collect();
    let mut pending = Vec::new();
    while pending.len() < 2 {
        for one in &mut connecting {
            assert!(poll(one.as_mut(), Waker::noop()).is_pending());
        }
        client_driver.turn(64).unwrap();
        drivers[0].turn(64).unwrap();
        if let Poll::Ready(incoming) = poll(std::pin::pin!(listener.accept()), Waker::noop()) {
            pending.push(incoming.unwrap());
        }
    }
    drop(drivers.pop());
    let results: Vec<_> = pending
        .into_iter()
        .map(|incoming| {
            let mut accepting = Box::pin(incoming.accept());
            loop {
                if let Poll::Ready(result) = poll(accepting.as_mut(), Waker::noop()) {
                    break result;
                }
                connecting.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
                client_driver.turn(64).unwrap();
                drivers[0].turn(64).unwrap();
            }
        })
        .collect();
    let failures: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(failures.iter().map(|failure| failure.kind()).collect::<Vec<_>>(), [FailureKind::DriverGone]);
}

#[test]
fn a_node_without_drivers_is_refused() {
    for (count, options) in [(0, options()), (2, options().completion_vector(u32::MAX))] {
        assert!(Node::with_drivers(&context(), &options, count).is_err(), "{count} drivers");
    }
    let none = Node::with_drivers(&context(), &options(), 0).unwrap_err();
    assert_eq!(none.kind(), rdma::ErrorKind::InvalidInput);
}
