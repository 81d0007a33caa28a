//! Runs the examples, as a user does.

use std::net::UdpSocket;

use rdma_test_support::LIMIT;
use rdma_test_support::example::{Server, run};

/// The address that examples listen at: a free port.
const ANY: &str = "127.0.0.1:0";

#[test]
fn example_hello() {
    assert_eq!(run("hello", &[]), "HELLO\n");
    let server = Server::start("hello", &["--listen", ANY]);
    for _ in 0..3 {
        assert_eq!(run("hello", &[server.address()]), "HELLO\n");
    }
}

#[test]
fn example_key_value() {
    let puts = "colour = red: ok\nshape = round: ok\ncolour = green: ok\n";
    let values = format!("{puts}colour: green\nshape: round\nsize: none\n");
    assert_eq!(run("key_value", &[]), values);
    let server = Server::start("key_value", &["--listen", ANY]);
    for _ in 0..3 {
        assert_eq!(run("key_value", &[server.address()]), values);
    }
}

/// The shortest key-value store.
#[test]
#[cfg(feature = "tokio")]
fn example_buckets() {
    let server = Server::start("buckets", &["--listen", ANY]);
    for _ in 0..3 {
        assert_eq!(run("buckets", &[server.address()]), "value\n");
    }
}

/// The shortest service with deadlines.
#[test]
#[cfg(feature = "tokio")]
fn example_deadline() {
    let server = Server::start("deadline", &[ANY]);
    for _ in 0..3 {
        assert_eq!(run("hello", &[server.address()]), "HELLO\n");
    }
    server.interrupt();
    assert_eq!(server.finish().matches("peer ").count(), 3);
}

#[test]
fn example_large_messages() {
    let count = "67108864 bytes have come\n";
    assert_eq!(run("large_messages", &[]), count);
    let server = Server::start("large_messages", &["--listen", ANY]);
    assert_eq!(run("large_messages", &[server.address()]), count);
    assert_eq!(server.finish(), "");
}

#[test]
fn example_gateway() {
    assert_eq!(run("gateway", &[]), "ONE\nTWO\nTHREE\n");
    let server = Server::start("hello", &["--listen", ANY]);
    let gateway = Server::start("gateway", &["--listen", ANY, server.address()]);
    let udp = UdpSocket::bind(ANY).expect("a port");
    udp.set_read_timeout(Some(LIMIT)).expect("a limit");
    let _len = udp.send_to(b"hello", gateway.address()).expect("a datagram");
    let mut answer = [0; 8];
    let len = udp.recv(&mut answer).expect("an answer");
    assert_eq!(answer[..len], *b"HELLO");
}

#[test]
#[cfg(feature = "tokio")]
fn example_requests() {
    let out = "fast: done\nslow: deadline has elapsed\n";
    assert_eq!(run("requests", &[]), out);
    let server = Server::start("requests", &["--listen", ANY]);
    assert_eq!(run("requests", &[server.address()]), out);
}

#[test]
#[cfg(feature = "tokio")]
fn example_service() {
    assert_eq!(run("service", &[]), "10 clients had 10 answers each\n0 clients were cut off\n");
    let server = Server::start("service", &["--listen", ANY]);
    for _ in 0..3 {
        assert_eq!(run("service", &[server.address(), "20"]), "20 clients had 10 answers each\n");
    }
    server.interrupt();
    assert_eq!(server.finish(), "0 clients were cut off\n");
}

#[test]
#[cfg(feature = "tokio")]
fn example_stream() {
    let has_all = |out: &str| out.starts_with("the peer has all ");
    assert!(has_all(&run("stream", &[])));
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = b"0123456789".repeat(100_000);
    std::fs::write(&from, &bytes).expect("a file");
    let (from, to) = (from.to_str().expect("a path"), to.to_str().expect("a path"));
    let receiver = Server::start("stream", &["--listen", ANY, to]);
    assert!(has_all(&run("stream", &[receiver.address(), from])));
    assert_eq!(receiver.finish(), "");
    assert!(std::fs::read(to).expect("a copy") == bytes);
}
