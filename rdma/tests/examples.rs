//! Runs the examples, as a user does.

use rdma_test_support::example::{Server, run};

#[test]
fn example_pingpong() {
    let server = Server::start("pingpong", &["listen", "127.0.0.1:0"]);
    let out = run("pingpong", &["connect", server.address()]);
    assert!(out.ends_with(" us one way\n"), "{out}");
    let _out = server.finish();
}

#[test]
fn example_datagrams() {
    let server = Server::start("datagrams", &["listen", "127.0.0.1:0"]);
    for _ in 0..6 {
        assert_eq!(run("datagrams", &["connect", server.address()]), "100 of 100 messages were answered\n");
    }
}

#[test]
fn example_echo() {
    let server = Server::start("echo", &["listen", "127.0.0.1:0"]);
    for _ in 0..3 {
        assert_eq!(run("echo", &["connect", server.address()]), "hello\n");
    }
}

#[test]
fn example_event_loop() {
    let server = Server::start("event_loop", &["127.0.0.1:0"]);
    for _ in 0..3 {
        assert_eq!(run("echo", &["connect", server.address()]), "hello\n");
    }
}

#[test]
fn example_atomics() {
    assert_eq!(
        run("atomics", &[]),
        "64 bytes were written, with 0xcafe\n5 was added to 0\n7 was added to 5\n12 became 100\n"
    );
}

/// The shortest server of datagrams.
#[test]
fn example_datagram_server() {
    let server = Server::start("datagram_server", &["127.0.0.1:0"]);
    for _ in 0..6 {
        assert_eq!(run("datagrams", &["connect", server.address()]), "100 of 100 messages were answered\n");
    }
}

/// The shortest program of one-sided operations.
#[test]
fn example_write_imm() {
    assert_eq!(run("write_imm", &[]), "64 bytes were written, and 5 became 9\n");
}

#[test]
fn example_memory() {
    assert_eq!(
        run("memory", &[]),
        "the sum of 100 numbers is 4950\nthe square of 12 is 144\na half begins with 0\na half begins with 50\n"
    );
}

#[test]
fn example_registration() {
    let out = run("registration", &[]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "1024 numbers, 10 triples and 65536 bytes came back", "{out}");
    assert!(lines[1].starts_with("ibv_reg_mr: ") && lines[1].ends_with("100 numbers of capacity came back"), "{out}");
    assert_eq!(
        lines[2..],
        [
            "the second device reads 42",
            "a file of 4096 bytes, registered without a right to write",
            "2 parts; the word at the address is 700",
            "8 long buffers",
            "of 256 bytes: 1 taken, 0 in use",
            "of 65536 bytes: 9 taken, 0 in use",
        ],
        "{out}"
    );
}
