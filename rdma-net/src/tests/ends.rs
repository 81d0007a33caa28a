//! The end of a node, with clients that are idle, slow or late.

use super::*;

/// A short time in which nothing good happens.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_node_with_an_idle_client_ends() {
    for options in by_each_exchange() {
        let mut world = World::new(&options.linger(SHORT));
        let (mut client, server) = world.pair();
        let peer = server.peer_addr();
        let serving = thread::spawn(move || echo(server));
        block_on(async {
            client.send("request").await.unwrap();
            assert_eq!(client.next().await.unwrap().as_deref(), Some(&b"request"[..]));
        });
        // The task that answers requests ends, and so does the connection, long before the time.
        let cut_off = block_on(world.server.shutdown(LONG)).unwrap();
        assert_eq!(cut_off.iter().map(|it| it.peer_addr).collect::<Vec<_>>(), [peer]);
        serving.join().unwrap().unwrap();
        assert_eq!(block_on(client.next()).unwrap().as_deref(), None, "the client learns of the end");
        drop(client);
        world.end();
    }
}

#[test]
fn a_connection_that_nobody_drops_is_cut_off() {
    let mut world = World::new(&options().linger(SHORT));
    let (mut client, server) = world.pair();
    let node = world.server.clone();
    let cut_off = block_on(node.shutdown(SHORT)).unwrap();
    assert_eq!(cut_off.len(), 1);
    assert_eq!(node.connections(), 0);
    let failure = block_on(server.send("late")).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Closed, "{failure}");
    assert!(block_on(client.next()).unwrap().is_none(), "the client learns of the end");
    drop((client, server, node));
    world.end();
}

#[test]
fn a_peer_that_has_gone_is_not_cut_off() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let serving = thread::spawn(move || echo(server));
    assert_eq!(block_on(client.close_with(3)), Ok(0));
    serving.join().unwrap().unwrap();
    assert_eq!(block_on(world.server.shutdown(LONG)), Ok(Vec::new()));
    // Again, and of a node without connections.
    assert_eq!(block_on(world.server.shutdown(Duration::MAX)), Ok(Vec::new()));
    assert_eq!(block_on(world.client.shutdown(Duration::ZERO)), Ok(Vec::new()));
    world.end();
}

#[test]
fn a_shutdown_refuses_peers_and_lets_the_last_answer_go() {
    for options in by_each_exchange() {
        let mut world = World::new(&options.linger(SHORT));
        let (mut client, mut server) = world.pair();
        let (begun, may_answer) = mpsc::channel();
        let (received, has_request) = mpsc::channel();
        let serving = thread::spawn(move || {
            block_on(async {
                let request = server.next().await?.expect("a request");
                received.send(()).unwrap();
                may_answer.recv().unwrap();
                server.send(&request).await?;
                // No further request comes.
                server.next().await.map(|message| message.is_some())
            })
        });
        block_on(client.send("request")).unwrap();
        has_request.recv().unwrap();
        let node = world.server.clone();
        let ending = thread::spawn(move || block_on(node.shutdown(LONG)));
        let failure = block_on(world.listener.accept()).map(drop).unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Closed, "{failure}");
        let failure = block_on(world.server.connect(world.listener.local_addr())).unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Closed, "{failure}");
        let refused = block_on(world.client.connect(world.listener.local_addr())).unwrap_err();
        assert_eq!(refused.refuse_code(), Some(RefuseCode::Unavailable), "{refused}");
        begun.send(()).unwrap();
        assert_eq!(block_on(client.next()).unwrap().as_deref(), Some(&b"request"[..]));
        assert_eq!(serving.join().unwrap(), Ok(false));
        ending.join().unwrap().unwrap();
        drop(client);
        world.end();
    }
}

#[test]
fn requests_that_wait_are_refused_by_a_shutdown() {
    let world = World::new(&options());
    let (to, client) = (world.listener.local_addr(), world.client.clone());
    let connecting = thread::spawn(move || block_on(client.connect(to)).map(drop));
    while world.listener.waiting() == 0 {
        thread::yield_now();
    }
    assert_eq!(block_on(world.server.shutdown(LONG)), Ok(Vec::new()));
    let refused = connecting.join().unwrap().unwrap_err();
    assert_eq!(refused.refuse_code(), Some(RefuseCode::Unavailable), "{refused}");
    world.end();
}

#[test]
fn a_shutdown_ends_with_the_driver() {
    let (node, driver) = Node::new(&context(), &options()).unwrap();
    drop(driver);
    assert_eq!(block_on(node.shutdown(LONG)), Ok(Vec::new()));
}
