//! Hostile handshakes, and connections set up over TCP.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma::cm::IdKey;
use rdma::{Context, Endpoint, Mtu};

use super::wire::encode;
use super::{Kind, Sockets, offer};
use crate::protocol::Refuse;
use crate::{Connection, Exchange, FailureKind, ListenOptions, Listener, Node, NodeOptions, RefuseCode};

const LONG: Duration = Duration::from_secs(30);

fn context() -> Context {
    rdma::open(&"soft0".parse().unwrap()).unwrap().context
}

fn options() -> NodeOptions {
    NodeOptions::new().window(4).payload(256).timeout(LONG).linger(LONG).max_connections(8).exchange(Exchange::Tcp)
}

fn node(options: &NodeOptions) -> (Node, JoinHandle<rdma::Result<()>>) {
    let (node, driver) = Node::new(&context(), options).unwrap();
    (node, thread::spawn(move || driver.run_blocking()))
}

fn listen(node: &Node, options: &ListenOptions) -> Listener {
    node.listen("127.0.0.1:0".parse().unwrap(), options).unwrap()
}

/// A listener whose peers follow no protocol.
struct Victim {
    node: Node,
    listener: Listener,
    driver: JoinHandle<rdma::Result<()>>,
}

impl Victim {
    fn new(options: &NodeOptions, limits: &ListenOptions) -> Self {
        let (node, driver) = node(options);
        let listener = listen(&node, limits);
        Self { node, listener, driver }
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(self.listener.local_addr()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    /// Sends bytes; returns the answer up to the end of the connection.
    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.stream();
        stream.write_all(bytes).unwrap();
        until_end(stream)
    }

    /// An honest peer still connects and is served.
    fn serves(&mut self) {
        let (mut client, server) = pair(&self.node, &mut self.listener);
        block_on(async {
            server.send("well").await.unwrap();
            assert_eq!(&client.next().await.unwrap().unwrap()[..], b"well");
        });
    }

    fn end(self) {
        drop((self.node, self.listener));
        self.driver.join().unwrap().unwrap();
    }
}

/// Bytes of a peer up to the end of the connection.
fn until_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 64];
    while let Ok(len @ 1..) = stream.read(&mut chunk) {
        bytes.extend(&chunk[..len]);
    }
    bytes
}

fn pair(node: &Node, listener: &mut Listener) -> (Connection, Connection) {
    let (node, to) = (node.clone(), listener.local_addr());
    let connecting = thread::spawn(move || block_on(node.connect(to)).unwrap());
    let accepted = block_on(async { listener.accept().await?.accept().await }).unwrap();
    (connecting.join().unwrap(), accepted)
}

/// The endpoint of a queue pair that does not exist.
fn endpoint() -> Endpoint {
    let gid = context().best_gid(1).unwrap().unwrap();
    Endpoint::new(0xff_fff0, 1, Mtu::MTU_1024).gid(gid.gid).responder_resources(255)
}

/// The same with another number.
fn with_number(qpn: u32) -> Endpoint {
    let mut endpoint = endpoint();
    endpoint.qpn = qpn;
    endpoint
}

/// A valid REQUEST.
fn request() -> Vec<u8> {
    encode(Kind::Request, &offer(&endpoint(), &options().hello(true, false, false).to_bytes()))
}

#[test]
fn wrong_requests_are_refused_and_harm_nobody() {
    let mut victim = Victim::new(&options(), &ListenOptions::new());
    for (bytes, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), RefuseCode::Version),
        (vec![0; 4096], RefuseCode::Version),
        (b"RDX1\x02\x01\x00\x00".to_vec(), RefuseCode::Version),
        (b"RDX1\x01\x01\xff\xff".to_vec(), RefuseCode::Limits),
        (encode(Kind::Request, b"short"), RefuseCode::Limits),
        (encode(Kind::Request, &[0; 64]), RefuseCode::Limits),
        (encode(Kind::Request, &offer(&endpoint(), b"no hello")), RefuseCode::Version),
        (encode(Kind::Ready, b""), RefuseCode::Limits),
    ] {
        let answer = victim.answer(&bytes);
        // A reset may overtake the refusal of bytes that were not read.
        if bytes.len() < 4096 || !answer.is_empty() {
            let refuse = Refuse::from_bytes(&answer[8..]).expect("a REFUSE");
            assert_eq!(refuse.code, code, "{}: {}", bytes.escape_ascii(), refuse.text);
        }
    }
    victim.serves();
    victim.end();
}

#[test]
fn half_open_handshakes_are_bounded() {
    let mut victim = Victim::new(&options(), &ListenOptions::new().backlog(2));
    let mut half: Vec<_> = (0..6).map(|_| victim.stream()).collect();
    for mut stream in &half {
        stream.write_all(&request()[..20]).unwrap();
    }
    // The oldest four make way, in their order.
    for stream in half.drain(..4) {
        assert_eq!(until_end(stream), b"");
    }
    victim.serves();
    victim.end();
}

#[test]
fn a_flood_of_peers_is_accepted_by_turns() {
    let sockets = Arc::new(Sockets::new().unwrap());
    let end = sockets.listen(IdKey::fresh(), "127.0.0.1:0".parse().unwrap(), 2, LONG).unwrap();
    let peers = [(); 6].map(|()| TcpStream::connect(end.local_addr.unwrap()).unwrap());
    let count_cut_off = || {
        let is_cut_off =
            |mut peer: &TcpStream| peer.set_nonblocking(true).is_ok() && matches!(peer.read(&mut [0]), Ok(0));
        peers.iter().filter(|peer| is_cut_off(peer)).count()
    };
    let now = Instant::now();
    assert!(sockets.take_events(now).unwrap().is_empty());
    for cut_off in [0, 2, 4] {
        assert_eq!((count_cut_off(), sockets.next_deadline()), (cut_off, Some(now)));
        sockets.handle_timeouts(now);
    }
    assert_eq!(sockets.next_deadline(), Some(now + LONG));
    drop(end);
    assert_eq!(count_cut_off(), 6);
}

#[test]
fn a_failure_to_accept_is_logged_under_no_lock() {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{Shutdown, shutdown};
    let sockets = Arc::new(Sockets::new().unwrap());
    let end = sockets.listen(IdKey::fresh(), "127.0.0.1:0".parse().unwrap(), 2, LONG).unwrap();
    for listening in sockets.lock().listeners.values() {
        shutdown(listening.socket.as_raw_fd(), Shutdown::Both).unwrap();
    }
    let now = Instant::now();
    assert!(rdma_test_support::where_logging_panics(|| sockets.take_events(now)).is_err());
    let retry = sockets.next_deadline().unwrap();
    assert!(retry > now);
    assert!(rdma_test_support::where_logging_panics(|| sockets.handle_timeouts(retry)).is_err());
    assert!(!sockets.table.is_poisoned());
    drop(end);
}

#[test]
fn a_silent_peer_is_cut_off() {
    let mut victim = Victim::new(&options().timeout(Duration::from_millis(200)), &ListenOptions::new());
    assert_eq!(until_end(victim.stream()), b"");
    drop(victim.listener);
    victim.listener = listen(&victim.node, &ListenOptions::new());
    victim.end();
}

#[test]
fn a_peer_that_is_never_ready_times_out() {
    let mut victim = Victim::new(&options().timeout(Duration::from_millis(200)), &ListenOptions::new());
    let mut stream = victim.stream();
    stream.write_all(&request()).unwrap();
    let failure = block_on(async { victim.listener.accept().await?.accept().await }).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Timeout, "{failure}");
    let answer = until_end(stream);
    assert_eq!(answer[5], Kind::Answer as u8);
    victim.end();
}

#[test]
fn a_peer_that_has_left_before_it_was_accepted_is_gone() {
    let mut victim = Victim::new(&options(), &ListenOptions::new());
    let mut stream = victim.stream();
    stream.write_all(&request()).unwrap();
    let incoming = block_on(victim.listener.accept()).unwrap();
    drop(stream);
    let failure = block_on(incoming.accept()).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
    victim.serves();
    victim.end();
}

/// Does a whole handshake with the queue pair number; returns the victim's side, and the socket.
fn handshake(victim: &mut Victim, qpn: u32) -> (Connection, TcpStream) {
    let mut stream = victim.stream();
    let hello = options().hello(true, false, false).to_bytes();
    stream.write_all(&encode(Kind::Request, &offer(&with_number(qpn), &hello))).unwrap();
    let incoming = block_on(victim.listener.accept()).unwrap();
    let peer = thread::spawn(move || {
        let mut answer = [0; 72];
        stream.read_exact(&mut answer).unwrap();
        stream.write_all(&encode(Kind::Ready, b"")).unwrap();
        stream
    });
    let connection = block_on(incoming.accept()).unwrap();
    (connection, peer.join().unwrap())
}

#[test]
fn a_queue_pair_of_somebody_else_stays_with_its_peer() {
    let mut victim = Victim::new(&options().linger(Duration::ZERO), &ListenOptions::new());
    let (mut client, server) = pair(&victim.node, &mut victim.listener);
    for qpn in [&client, &server].map(|honest| honest.qpn().unwrap()) {
        let (thief, stream) = handshake(&mut victim, qpn);
        block_on(thief.send("not for you")).unwrap();
        drop((thief, stream));
    }
    block_on(async {
        server.send("mine").await.unwrap();
        assert_eq!(&client.next().await.unwrap().unwrap()[..], b"mine");
    });
    drop((client, server));
    victim.end();
}

#[test]
fn a_connection_that_ends_before_the_accept_returns_leaves_nothing() {
    let alert = options().keep_alive(Duration::from_millis(10));
    let mut victim = Victim::new(&alert, &ListenOptions::new());
    let mut stream = victim.stream();
    stream.write_all(&encode(Kind::Request, &offer(&endpoint(), &alert.hello(true, false, false).to_bytes()))).unwrap();
    let mut accepting = pin!(block_on(victim.listener.accept()).unwrap().accept());
    assert!(accepting.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
    stream.write_all(&encode(Kind::Ready, b"")).unwrap();
    // Nobody answers the PING.
    while victim.node.connections() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    drop(block_on(accepting));
    assert_eq!(victim.node.routes(), 1, "only the listener gets events");
    victim.end();
}

#[test]
fn the_end_of_the_socket_is_the_end_of_the_connection() {
    let mut victim = Victim::new(&options().keep_alive(Duration::ZERO), &ListenOptions::new());
    let (mut connection, stream) = handshake(&mut victim, endpoint().qpn);
    drop(stream);
    let failure = block_on(connection.next()).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
    victim.end();
}

#[test]
fn nobody_listens() {
    let (node, driver) = node(&options());
    let listener = listen(&node, &ListenOptions::new());
    let gone: SocketAddr = listener.local_addr();
    drop(listener);
    let failure = block_on(node.connect(gone)).unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Refused, "{failure}");
    drop(node);
    driver.join().unwrap().unwrap();
}
