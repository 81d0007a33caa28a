//! A program of its own, because a test takes most of the process's descriptors and measures its
//! memory: connections of `rdma_net` on a device, between two processes, with a killed peer, with
//! a hostile peer.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdma::aio::block_on;
use rdma::cm::{ConnOptions, blocking};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Context, ErrorKind, PathOptions, QueuePair, RemoteAccess, RemoteSlice};
use rdma_net::{Connection, Exchange, Failure, FailureKind, ListenOptions, Listener, Node, NodeOptions, Violation};
use rdma_test_support::{Peer, first, role};
use rdma_tests::cm::{address, any_port, available};
use rdma_tests::{LIMIT, buffer, open};

/// The role of a client that connects by an exchange over TCP.
const BY_TCP: &str = "client by TCP";

/// The open device, if it has a connection manager.
fn device() -> Option<Context> {
    let context = open().context;
    available(&context).then_some(context)
}

fn options() -> NodeOptions {
    NodeOptions::new()
        .window(8)
        .timeout(LIMIT)
        .linger(LIMIT)
        .path(PathOptions::new().rnr_retry_count(0))
        .max_connections(16)
}

/// A node whose driver runs on a thread of its own, until the last handle is dropped.
fn node(context: &Context, options: &NodeOptions) -> (Node, JoinHandle<rdma::Result<()>>) {
    let (node, driver) = Node::new(context, options).unwrap();
    (node, thread::spawn(move || driver.run_blocking()))
}

fn accept(listener: &mut Listener) -> Connection {
    block_on(async { listener.accept().await?.accept().await }).unwrap()
}

/// Connects a node to its own listener; returns the connecting side and the other.
fn connect(node: &Node, listener: &mut Listener) -> (Connection, Connection) {
    let (node, to) = (node.clone(), listener.local_addr());
    let connecting = thread::spawn(move || block_on(node.connect(to)).unwrap());
    let accepted = accept(listener);
    (connecting.join().unwrap(), accepted)
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

/// The part of a second process: connects to the address that the first one tells, and sends until
/// it is told to end, or killed.
fn client_process() {
    let mut channel = first();
    let exchange = if role().as_deref() == Some(BY_TCP) { Exchange::Tcp } else { Exchange::ConnectionManager };
    let (node, driver) = node(&open().context, &options().exchange(exchange));
    let to: SocketAddr = channel.hear().parse().unwrap();
    let mut connection = block_on(node.connect(to)).unwrap();
    let mut rounds = 0;
    let telling = thread::spawn(move || {
        channel.tell("connected");
        channel.hear()
    });
    block_on(async {
        while !telling.is_finished() {
            rounds += 1;
            // Some fit a fragment, some have several, some are offered.
            let len = rounds * 997 % 40_000;
            connection.send(vec![7; len]).await.unwrap();
            assert_eq!(connection.next().await.unwrap().unwrap().len(), len);
        }
        assert_eq!(connection.close().await, Ok(0));
    });
    assert_eq!(telling.join().unwrap(), "end");
    drop(node);
    driver.join().unwrap().unwrap();
}

#[test]
fn a_peer_killed_under_load_harms_no_other_connection() {
    kill_one_of_two("a_peer_killed_under_load_harms_no_other_connection", &ListenOptions::new(), "client");
}

#[test]
fn a_peer_killed_under_load_by_tcp_harms_no_other_connection() {
    kill_one_of_two("a_peer_killed_under_load_by_tcp_harms_no_other_connection", &ListenOptions::new(), BY_TCP);
}

#[test]
fn a_killed_peer_harms_no_other_connection_that_shares_receives() {
    let limits = ListenOptions::new().shared_receives(24);
    kill_one_of_two("a_killed_peer_harms_no_other_connection_that_shares_receives", &limits, "client");
}

/// Serves two peers, of which one is killed.
fn kill_one_of_two(test: &str, limits: &ListenOptions, peers: &str) {
    if role().is_some() {
        return client_process();
    }
    let Some(context) = device() else { return };
    // Longer than a loaded machine lets a thread wait.
    let options = options().keep_alive(Duration::from_secs(2));
    let is_by_tcp = peers == BY_TCP;
    if is_by_tcp && !context.capabilities().manual_connect {
        let failure = Node::new(&context, &options.exchange(Exchange::Tcp)).unwrap_err();
        return assert_eq!(failure.kind(), ErrorKind::NotSupported, "{failure}");
    }
    let exchange = if is_by_tcp { Exchange::Tcp } else { Exchange::ConnectionManager };
    let (node, driver) = node(&context, &options.exchange(exchange));
    let mut listener = node.listen(any_port(address(&context)), limits).unwrap();
    let mut start = || {
        let mut peer = Peer::start(test, peers);
        peer.tell(&listener.local_addr().to_string());
        let connection = accept(&mut listener);
        assert_eq!(peer.hear(), "connected");
        (peer, thread::spawn(move || echo(connection)))
    };
    let (mut victim, of_victim) = start();
    let (mut survivor, of_survivor) = start();
    victim.kill();
    let failure = of_victim.join().unwrap().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
    survivor.tell("end");
    of_survivor.join().unwrap().unwrap();
    survivor.finish();
    drop((listener, node));
    driver.join().unwrap().unwrap();
}

/// A HELLO of version 2: 8 receives of 4112 bytes, messages of up to 1 MiB, offers, no
/// keep-alive.
fn hello() -> [u8; 32] {
    let mut hello = [0; 32];
    hello[..8].copy_from_slice(b"RDN1\x02\x02\x20\x00");
    hello[11] = 1;
    hello[13..15].copy_from_slice(&[8, 4]);
    hello[16..20].copy_from_slice(&4112_u32.to_be_bytes());
    hello[20..28].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    hello
}

/// What a hostile peer does.
enum Message {
    Sent(Vec<u8>),
    /// A write with immediate data.
    Written(Vec<u8>, RemoteSlice),
}

/// Connects with a queue pair that follows no protocol, and sends the messages, on iWARP once
/// `accepted` says so: siw may leave a message unread that arrives before its accept has ended.
fn attack(context: &Context, to: SocketAddr, messages: &[Message], accepted: &mpsc::Receiver<()>) {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let route = blocking::resolve::<Rc>(context, None, to, LIMIT).unwrap();
    let mut qp = route.init(QueuePair::builder(&pd).cq(&cq).max_send_wr(32).build().unwrap()).unwrap();
    for _ in 0..16 {
        qp.post_recv(pd.allocate(8192).unwrap(), 0).unwrap();
    }
    let options = ConnOptions::new().private_data(&hello());
    let (connection, mut qp) = route.connect(qp, &options, LIMIT).unwrap();
    if !context.capabilities().waits_for_receives {
        accepted.recv_timeout(LIMIT).unwrap();
    }
    for message in messages {
        match message {
            Message::Sent(bytes) => qp.post_send(op::send(buffer(&pd, bytes))).unwrap(),
            Message::Written(bytes, to) => qp.post_send(op::write_imm(buffer(&pd, bytes), *to, 7)).unwrap(),
        }
    }
    assert!(connection.wait_disconnected(Some(LIMIT)).unwrap(), "the victim ends the connection");
}

/// Receives until the connection fails. Keeps the messages: no spare is left to replace their
/// receives.
async fn failure_of(mut connection: Connection) -> Failure {
    let mut held = Vec::new();
    loop {
        match connection.next().await {
            Ok(Some(message)) => held.push(message),
            Ok(None) => {
                if let Err(failure) = connection.send("are you there?").await {
                    return failure;
                }
            }
            Err(failure) => return failure,
        }
    }
}

#[test]
fn a_hostile_peer_fails_its_connection_alone() {
    let Some(context) = device() else { return };
    survive(&context, &ListenOptions::new());
}

#[test]
fn a_hostile_peer_fails_its_connection_alone_although_it_shares_receives() {
    let Some(context) = device() else { return };
    // The peer takes receives of others, whose messages must be repeated.
    if context.capabilities().waits_for_receives {
        survive(&context, &ListenOptions::new().shared_receives(12));
    }
}

/// Connects an honest peer, then hostile ones, one after the other.
fn survive(context: &Context, limits: &ListenOptions) {
    // A peer that ignores credits meets RNR: its device must repeat the message.
    let (node, driver) = node(context, &options().path(PathOptions::new().rnr_retry_count(6)));
    let mut listener = node.listen(any_port(address(context)), limits).unwrap();
    let to = listener.local_addr();
    let (mut honest, echoing) = connect(&node, &mut listener);
    let echoing = thread::spawn(move || echo(echoing));

    let message =
        |kind: u8, flags: u8, limit: u8, rest: u8| vec![kind, flags, 0, 0, 0, 0, 0, limit, 0, 0, 0, rest, 0, 0, 0, 0];
    let empty = message(0, 3, 8, 0);
    let with_payload = |kind: u8, payload: &[u8]| {
        let mut header = message(kind, 0, 8, 0);
        header[3] = 16;
        [&header[..], payload].concat()
    };
    let offer = |address: u64, len: u64| with_payload(5, &RemoteSlice::new(address, len, 0x1234_5600).to_bytes());
    // Without the right reads, no offers are agreed.
    let has_offers = !context.capabilities().read_needs_exposed_sink;
    let unreadable = if has_offers { Violation::UnreadableOffer } else { Violation::WrongOffer };
    let sent = |messages: Vec<Vec<u8>>| messages.into_iter().map(Message::Sent).collect();
    let mut attacks: Vec<(_, Vec<_>)> = [
        (Violation::TooShort, vec![b"GET / HTTP/1.1"[..4].to_vec()]),
        (Violation::UnknownKind, vec![message(9, 0, 8, 0)]),
        (Violation::WrongLimit, vec![message(0, 3, 99, 0)]),
        (Violation::UnexpectedPong, vec![message(3, 0, 8, 0)]),
        (Violation::NoCredit, vec![empty.clone(); 17]),
        (Violation::DataAfterEnd, vec![message(0, 7, 8, 0), message(0, 3, 8, 0)]),
        (Violation::TooLong, vec![offer(4096, (1 << 20) + 1)]),
        (Violation::WrongOffer, vec![offer(u64::MAX, 2)]),
        (Violation::UnexpectedDone, vec![with_payload(6, &[0; 4])]),
        (unreadable, vec![offer(4096, 1000)]),
    ]
    .map(|(violation, messages)| (violation, sent(messages)))
    .into();
    // A write with immediate data takes a receive, in which an earlier message still lies.
    let exposed = node.domain().allocate_exposed(64, RemoteAccess::WRITE).unwrap();
    if context.capabilities().write_with_immediate {
        let write = Message::Written(vec![0; 32], exposed.remote(..).unwrap());
        attacks.push((Violation::UnexpectedNotification, vec![Message::Sent(empty), write]));
    }
    for (violation, messages) in attacks {
        let (accepted, is_accepted) = mpsc::channel();
        let attacking = thread::spawn({
            let context = context.clone();
            move || attack(&context, to, &messages, &is_accepted)
        });
        let failure = block_on(async {
            // The messages may arrive before the connection is accepted.
            let incoming = listener.accept().await.unwrap();
            match incoming.accept().await {
                Ok(victim) => {
                    // Without iWARP the attacker may be through already.
                    let _waits = accepted.send(());
                    failure_of(victim).await
                }
                Err(failure) => failure,
            }
        });
        // A device whose peers do not wait for receives ends the connection when there is none.
        let may_end = violation == Violation::NoCredit && !context.capabilities().waits_for_receives;
        if !may_end || failure.kind() != FailureKind::PeerGone {
            assert_eq!(failure.as_violation(), Some(violation), "{failure}");
        }
        attacking.join().unwrap();
        block_on(async {
            honest.send("still there?").await.unwrap();
            assert_eq!(&honest.next().await.unwrap().unwrap()[..], b"still there?");
        });
    }
    drop(honest);
    echoing.join().unwrap().unwrap();
    drop((listener, node));
    driver.join().unwrap().unwrap();
}

#[test]
fn long_messages_and_exposed_memory_arrive_whole() {
    const LEN: usize = 1 << 20;
    let Some(context) = device() else { return };
    let (node, driver) = node(&context, &options());
    let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new()).unwrap();
    let (connection, echoing) = connect(&node, &mut listener);
    let echoing = thread::spawn(move || echo(echoing));
    let (to, mut from) = connection.split();
    let region = node.domain().allocate_exposed(LEN, RemoteAccess::READ).unwrap();
    block_on(async {
        for round in 1..9_u8 {
            region.fill(0, LEN, round).unwrap();
            to.send_exposed(region.slice(..).unwrap()).await.unwrap();
            let answer = from.next().await.unwrap().expect("an answer");
            assert!(answer[..] == [round; LEN], "round {round}");
        }
    });
    drop((to, from));
    echoing.join().unwrap().unwrap();
    drop((listener, node));
    driver.join().unwrap().unwrap();
    region.revoke().unwrap();
}

#[test]
fn a_key_of_one_peer_opens_nothing_on_the_connection_of_another() {
    let Some(context) = device() else { return };
    let (node, driver) = node(&context, &options().separate_domains(true));
    let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new()).unwrap();
    let [(one, at_one), (two, at_two)] = [(); 2].map(|()| connect(&node, &mut listener));
    let region = at_one.domain().allocate_exposed(64, RemoteAccess::WRITE).unwrap();
    let slice = region.remote(..).unwrap();
    let write = |connection: &Connection, byte| {
        let mut buffer = connection.domain().allocate(64).unwrap();
        buffer.fill(byte);
        block_on(connection.remote().write(slice, buffer, 64)).map(drop)
    };
    let content = || {
        let mut bytes = [0; 64];
        region.copy_out(0, &mut bytes).unwrap();
        bytes
    };
    write(&one, 1).unwrap();
    // iWARP has completed a write before the peer refuses it.
    let refused = write(&two, 2).err().unwrap_or_else(|| block_on(at_two.split().1.next()).map(drop).unwrap_err());
    assert_eq!(refused.kind(), FailureKind::PeerGone, "{refused}");
    write(&one, 3).unwrap();
    block_on(async {
        one.send("written").await.unwrap();
        at_one.split().1.next().await.unwrap();
    });
    assert_eq!(content(), [3; 64]);
    drop((one, two, listener, node));
    driver.join().unwrap().unwrap();
}

#[test]
fn batches_reach_memory_and_notifications_the_program() {
    let Some(context) = device() else { return };
    let (node, driver) = node(&context, &options().operations(32).notifications(8));
    let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new()).unwrap();
    let (one, other) = connect(&node, &mut listener);
    let region = other.domain().allocate_exposed(32 * 64, RemoteAccess::READ | RemoteAccess::WRITE).unwrap();
    let (at, remote) = (region.remote(..).unwrap(), one.remote());
    let row = |row: usize| at.slice(64 * row..64 * (row + 1)).unwrap();
    let filled = |byte| buffer(one.domain(), &[byte; 64]);
    let mut batch = remote.batch();
    (0..32_u8).for_each(|byte| batch.write(row(byte.into()), filled(byte), 64).unwrap());
    let (to, mut from) = other.split();
    block_on(async {
        assert_eq!(batch.submit().await.unwrap().len(), 32);
        // On iWARP the message says that the writes have arrived.
        one.send("written").await.unwrap();
        from.next().await.unwrap();
    });
    let mut bytes = [0; 32 * 64];
    region.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.chunks(64).enumerate().all(|(row, bytes)| bytes.iter().all(|&byte| usize::from(byte) == row)));
    if remote.can_read() {
        // More than fit into a batch.
        let rows = block_on(remote.fetch_all((0..80).map(|number| row(number % 32)))).unwrap();
        assert_eq!(rows.len(), 80);
        assert!(rows.iter().enumerate().all(|(number, bytes)| usize::from(bytes[63]) == number % 32));
    }
    let capable = context.capabilities().write_with_immediate;
    assert_eq!(remote.can_notify(), capable);
    if capable {
        let notifications = from.notifications();
        let mut batch = remote.batch();
        (0..32).for_each(|number| batch.write_imm(row(number), filled(7), 64, 9).unwrap());
        let writing = thread::spawn(move || block_on(batch.submit()).unwrap().len());
        block_on(notifications.count(9, 32)).unwrap();
        region.copy_out(0, &mut bytes).unwrap();
        assert_eq!((bytes, writing.join().unwrap()), ([7; 32 * 64], 32));
    } else {
        let refused = block_on(remote.write_imm(row(0), filled(7), 64, 9)).unwrap_err();
        assert_eq!(refused.as_error().map(|error| error.kind()), Some(ErrorKind::NotSupported));
    }
    drop((one, to, from, remote, listener, node));
    driver.join().unwrap().unwrap();
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Most descriptors that this process may open.
fn max_descriptors() -> u32 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(u32::MAX)
}

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_thousand_connections_share_the_receives_of_a_listener() {
    let Some(context) = device() else { return };
    // The kernel's devices take long for each connection, and siw refused the 65th queue pair here,
    // probably the one whose ring lies at 0x90000 in the context's file (tests/vm/README.md).
    let count = if context.is_software() { 1000.min(max_descriptors() / 2 - 100) } else { 30 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = options().window(2).payload(240).max_connections(count + 8);
        let [client, server] = [(); 2].map(|()| {
            let (node, driver) = Node::new(&context, &options).unwrap();
            let readable = rdma::aio::tokio::Readable::new(&driver).unwrap();
            (node, tokio::spawn(driver.run(readable)))
        });
        let limits = ListenOptions::new().shared_receives(6 * count);
        let mut listener = server.0.listen(any_port(address(&context)), &limits).unwrap();
        let to = listener.local_addr();
        let before = (descriptors(), resident());
        let accepting = tokio::spawn(async move {
            for _ in 0..count {
                let (to, mut from) = listener.accept().await?.accept().await?.split();
                tokio::spawn(async move {
                    while let Ok(Some(message)) = from.next().await {
                        to.send(&message).await.unwrap();
                    }
                });
            }
            Ok::<_, Failure>(())
        });
        let mut connections = Vec::new();
        for number in 0..count {
            let connected = client.0.connect(to).await;
            connections.push(connected.unwrap_or_else(|failure| panic!("connection {number}: {failure}")));
        }
        accepting.await.unwrap().unwrap();
        for round in 0..3_u8 {
            for (number, connection) in connections.iter().enumerate() {
                connection.send([round, number.to_le_bytes()[0]]).await.unwrap();
            }
            for (number, connection) in connections.iter_mut().enumerate() {
                let answer = connection.next().await.unwrap().expect("an answer");
                assert_eq!(answer[..], [round, number.to_le_bytes()[0]]);
            }
        }
        let bytes = resident().saturating_sub(before.1) / count as usize;
        println!("{count} connections: {bytes} bytes of memory each, both ends");
        assert!(bytes < 200_000, "{bytes} bytes of memory for each connection");
        let new = descriptors().saturating_sub(before.0);
        // The connection manager of the software device has a socket for each side.
        assert!(new < 2 * count as usize + 100, "{new} descriptors for {count} connections");
        drop(connections);
        for (node, driving) in [client, server] {
            drop(node);
            driving.await.unwrap().unwrap();
        }
    });
}

#[test]
fn a_task_of_tokio_drives_a_node() {
    let Some(context) = device() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (node, driver) = Node::new(&context, &options()).unwrap();
        let readable = rdma::aio::tokio::Readable::new(&driver).unwrap();
        let driving = tokio::spawn(driver.run(readable));
        let mut listener = node.listen(any_port(address(&context)), &ListenOptions::new()).unwrap();
        let to = listener.local_addr();
        let serving = tokio::spawn(async move {
            let (to, mut from) = listener.accept().await?.accept().await?.split();
            while let Some(message) = from.next().await? {
                to.send(&message).await?;
            }
            Ok::<_, Failure>(())
        });
        let mut connection = node.connect(to).await.unwrap();
        for round in 0..100_u8 {
            connection.send(vec![round; 5000]).await.unwrap();
            assert_eq!(connection.next().await.unwrap().unwrap()[..], [round; 5000]);
            // A message that is cancelled before it begins is not sent.
            drop(connection.send("not sent"));
        }
        let late = tokio::time::timeout(Duration::from_millis(5), connection.next()).await;
        assert!(late.is_err(), "nothing was sent");
        assert_eq!(connection.close().await, Ok(0));
        serving.await.unwrap().unwrap();
        drop(node);
        driving.await.unwrap().unwrap();
    });
}
