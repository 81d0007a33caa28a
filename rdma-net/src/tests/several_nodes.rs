//! Listeners for several nodes.

use super::*;

/// Nodes on `soft0` with a listener for all of them, and a client.
fn world(count: usize, limits: &ListenOptions) -> (Vec<Node>, Listener, Node, Vec<JoinHandle<rdma::Result<()>>>) {
    let (mut nodes, mut drivers): (Vec<_>, Vec<_>) = (0..=count).map(|_| node(&options())).unzip();
    drivers.truncate(count + 1);
    let client = nodes.pop().unwrap();
    let listener = Listener::bind(&nodes, any_port(), limits).unwrap();
    (nodes, listener, client, drivers)
}

fn connect(client: &Node, to: SocketAddr) -> JoinHandle<Result<Connection, Failure>> {
    let client = client.clone();
    thread::spawn(move || block_on(client.connect(to)))
}

fn end(parts: impl Sized, drivers: Vec<JoinHandle<rdma::Result<()>>>) {
    drop(parts);
    for driver in drivers {
        driver.join().unwrap().unwrap();
    }
}

#[test]
fn nodes_on_one_device_take_turns() {
    let (nodes, mut listener, client, drivers) = world(3, &ListenOptions::new());
    let to = listener.local_addr();
    let mut held = Vec::new();
    for turn in 0..6 {
        let connecting = connect(&client, to);
        let incoming = block_on(listener.accept()).unwrap();
        assert_eq!(incoming.node().domain().as_raw(), nodes[turn % 3].domain().as_raw());
        let server = block_on(incoming.accept()).unwrap();
        assert_eq!(server.domain().as_raw(), nodes[turn % 3].domain().as_raw());
        let mut client = connecting.join().unwrap().unwrap();
        let server = thread::spawn(move || echo(server));
        block_on(async {
            client.send("hello").await.unwrap();
            assert_eq!(&client.next().await.unwrap().expect("an answer")[..], b"hello");
        });
        held.push((client, server));
    }
    assert_eq!(nodes.iter().map(Node::connections).collect::<Vec<_>>(), [2, 2, 2]);
    for (client, server) in held {
        block_on(client.close()).unwrap();
        server.join().unwrap().unwrap();
    }
    end((nodes, listener, client), drivers);
}

#[test]
fn each_node_has_shared_receives_of_its_own() {
    // Each queue has receives for two connections.
    let (nodes, mut listener, client, drivers) = world(2, &ListenOptions::new().shared_receives(14));
    let to = listener.local_addr();
    let mut held = Vec::new();
    for _ in 0..4 {
        let connecting = connect(&client, to);
        let server = block_on(async { listener.accept().await?.accept().await }).unwrap();
        held.push((connecting.join().unwrap().unwrap(), server));
    }
    assert_eq!(nodes.iter().map(Node::connections).collect::<Vec<_>>(), [2, 2]);
    let busy = connect(&client, to).join().unwrap().unwrap_err();
    assert_eq!(busy.refuse_code(), Some(RefuseCode::Busy), "{busy}");
    end((held, nodes, listener, client), drivers);
}

#[test]
fn requests_go_to_the_nodes_that_have_not_ended() {
    let (nodes, mut listener, client, drivers) = world(2, &ListenOptions::new());
    let to = listener.local_addr();
    // A request that waits while its node ends is refused.
    let [first, second] = [(); 2].map(|()| {
        let connecting = connect(&client, to);
        (connecting, block_on(listener.accept()).unwrap())
    });
    block_on(nodes[1].shutdown(LONG)).unwrap();
    assert_eq!(block_on(second.1.accept()).unwrap_err().kind(), FailureKind::Closed);
    assert_eq!(second.0.join().unwrap().unwrap_err().refuse_code(), Some(RefuseCode::Unavailable));
    let accepted = block_on(first.1.accept()).unwrap();
    drop(first.0.join().unwrap().unwrap());
    block_on(accepted.close()).unwrap();
    for _ in 0..4 {
        let connecting = connect(&client, to);
        let accepted = block_on(async { listener.accept().await.unwrap().accept().await });
        drop(connecting.join().unwrap().unwrap());
        block_on(accepted.unwrap().close()).unwrap();
    }
    block_on(nodes[0].shutdown(LONG)).unwrap();
    assert_eq!(block_on(listener.accept()).unwrap_err().kind(), FailureKind::Closed);
    end((nodes, listener, client), drivers);
}

#[test]
fn a_request_on_a_device_without_a_node_is_refused() {
    // A node of the provider in memory beside soft0's would be of another connection manager; a
    // seat of a name that no device has stands for a device without a node.
    let seat = requests::Seat::new("nic7".into(), None, Arc::default());
    let requests = requests::Requests::new(ListenOptions::new(), vec![seat]);
    let (node, driver) = node(&options());
    let channel = rdma::cm::EventChannel::of(&context()).unwrap();
    let listening = channel.create_id::<rdma::transport::Rc>().unwrap();
    listening.bind_addr(any_port()).unwrap();
    listening.listen(1).unwrap();
    let connecting = connect(&node, listening.local_addr().unwrap());
    let event = channel.next_event(Some(LONG)).unwrap().unwrap();
    let rdma::cm::EventKind::ConnectRequest(request) = event.kind else { panic!("{event:?}") };
    requests.push(exchange::Request::Manager(request));
    let refused = connecting.join().unwrap().unwrap_err();
    assert_eq!(refused.refuse_code(), Some(RefuseCode::Unavailable), "{refused}");
    assert!(refused.to_string().contains("does not serve the device"), "{refused}");
    end(node, vec![driver]);
}

#[test]
fn nodes_that_cannot_share_a_listener_are_refused() {
    let refusal = |nodes: &[Node]| Listener::bind(nodes, any_port(), &ListenOptions::new()).unwrap_err().kind();
    assert_eq!(refusal(&[]), rdma::ErrorKind::InvalidInput);
    let tcp = options().exchange(Exchange::Tcp);
    let ((one, first), (two, second), (three, third)) = (node(&tcp), node(&tcp), node(&options()));
    assert_eq!(refusal(&[one.clone(), two.clone()]), rdma::ErrorKind::NotSupported);
    assert_eq!(refusal(&[one.clone(), three.clone()]), rdma::ErrorKind::InvalidInput);
    let (other, driver) = Node::new(&rdma_testkit::context(), &options()).unwrap();
    assert_eq!(refusal(&[three.clone(), other.clone()]), rdma::ErrorKind::InvalidInput);
    drop((other, driver));
    end((one, two, three), vec![first, second, third]);
}
