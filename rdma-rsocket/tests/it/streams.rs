//! Streams over the software device: connections, data, readiness, ends.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, POLLHUP, POLLIN, POLLOUT};
use proptest::prelude::*;
use rdma_rsocket::{PollEntry, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA, Socket, poll};
use rdma_test_support::{LIMIT, Peer, first, passes_alone, role, until};

use crate::common::{errno, libraries, listener, pair, pair_with, set_int, stream};

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

fn wait_for(socket: &Socket, events: i16) -> i16 {
    let mut entries = [PollEntry::socket(socket, events)];
    assert_eq!(poll(&mut entries, Some(LIMIT)).expect("poll"), 1, "no event came");
    entries[0].found()
}

/// The sockets have so small buffers and queues that every limit is reached.
fn small(socket: &Socket) {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, 2048);
    set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 2048);
    set_int(socket, SOL_RDMA, RDMA_SQSIZE, 1);
    set_int(socket, SOL_RDMA, RDMA_RQSIZE, 1);
}

#[test]
fn a_long_transfer_arrives_whole() {
    for tune in [small as fn(&Socket), |_| ()] {
        let (mut client, mut server) = pair_with(tune);
        let sent = pattern(1_000_000);
        let expected = sent.clone();
        let sender = thread::spawn(move || {
            client.write_all(&sent).expect("a send");
            client
        });
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).expect("the data");
        assert!(received == expected);
        drop(sender.join().expect("the sender"));
        assert_eq!(server.read(&mut received).expect("the end"), 0);
    }
}

#[test]
fn both_directions_run_at_once() {
    let (client, server) = pair_with(small);
    let data = pattern(300_000);
    let (client, server, data) = (&client, &server, data.as_slice());
    thread::scope(|scope| {
        for mut socket in [client, server] {
            scope.spawn(move || socket.write_all(data).expect("a send"));
            scope.spawn(move || {
                let mut received = vec![0; data.len()];
                socket.read_exact(&mut received).expect("the data");
                assert!(received == data);
            });
        }
    });
}

#[test]
fn buffers_are_gathered_and_scattered_in_order() {
    let (client, server) = pair();
    let parts = [&b"one"[..], b"", b"-two", b"-three"].map(IoSlice::new);
    assert_eq!(client.send(&parts, 0).expect("a send"), 13);
    let (mut head, mut tail) = ([0; 5], [0; 8]);
    let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    assert_eq!(server.receive(&mut into, MSG_WAITALL).expect("the data"), 13);
    assert_eq!((&head, &tail), (b"one-t", b"wo-three"));
}

#[test]
fn a_peek_leaves_the_data() {
    let (mut client, server) = pair();
    client.write_all(b"hello").expect("a send");
    for flags in [MSG_PEEK, MSG_PEEK, 0] {
        let mut seen = [0; 5];
        assert_eq!(server.receive(&mut [IoSliceMut::new(&mut seen)], flags).expect("the data"), 5);
        assert_eq!(&seen, b"hello");
    }
    let nothing = server.receive(&mut [IoSliceMut::new(&mut [0; 5])], MSG_DONTWAIT);
    assert_eq!(errno(nothing), libc::EAGAIN);
}

#[test]
fn a_stalled_sender_gets_eagain_and_then_room() {
    let (client, mut server) = pair_with(small);
    client.set_nonblocking(true).expect("a mode");
    let data = pattern(100_000);
    let mut sent = 0;
    loop {
        match (&client).write(&data[sent..]) {
            Ok(now) => sent += now,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                break;
            }
        }
    }
    // Buffers of both sides, at most.
    assert!(sent > 0 && sent <= 8192, "{sent} bytes");
    let mut entry = [PollEntry::socket(&client, POLLOUT)];
    assert_eq!(poll(&mut entry, Some(Duration::ZERO)).expect("poll"), 0);
    let mut received = vec![0; sent];
    server.read_exact(&mut received).expect("the data");
    assert!(received == data[..sent]);
    // The receiver's grant wakes the sender.
    assert_eq!(wait_for(&client, POLLOUT), POLLOUT);
}

#[test]
fn a_nonblocking_connect_ends_with_pollout() {
    let (listener, address) = listener();
    let client = stream();
    client.set_nonblocking(true).expect("a mode");
    if let Err(error) = client.connect(address) {
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
    }
    assert_eq!(wait_for(&client, POLLOUT), POLLOUT);
    let error = client.option(libc::SOL_SOCKET, libc::SO_ERROR).expect("an option");
    assert_eq!(error, [0; 4]);
    assert_eq!(wait_for(&listener, POLLIN), POLLIN);
    let (server, _) = listener.accept().expect("the connection");
    assert_eq!(client.peer_address().expect("a peer"), server.local_address().expect("open").expect("an address"));
    assert_eq!(errno(client.connect(address)), libc::EISCONN);
}

#[test]
fn the_connections_of_a_nonblocking_listener_wait() {
    let (listener, address) = listener();
    listener.set_nonblocking(true).expect("a mode");
    assert_eq!(errno(listener.accept().map(drop)), libc::EAGAIN);
    let mut client = stream();
    client.connect(address).expect("a connection");
    assert_eq!(wait_for(&listener, POLLIN), POLLIN);
    let (mut server, _) = listener.accept().expect("the connection");
    assert!(!server.is_nonblocking().expect("a mode"));
    thread::scope(|scope| {
        let reader = scope.spawn(|| server.read_exact(&mut [0]));
        client.write_all(b"x").expect("a send");
        reader.join().expect("the thread").expect("the byte");
    });
}

#[test]
fn a_connect_without_listener_is_refused() {
    let (listener, address) = listener();
    listener.close().expect("a close");
    let client = stream();
    assert_eq!(errno(client.connect(address)), libc::ECONNREFUSED);
    assert_eq!(errno(client.peer_address()), libc::ENOTCONN);
    assert_ne!(wait_for(&client, POLLIN) & libc::POLLERR, 0);
}

#[test]
fn sockets_and_descriptors_are_polled_together() {
    let (mut client, server) = pair();
    let (reader, mut writer) = UnixStream::pair().expect("a pair");
    let mut entries = [PollEntry::socket(&server, POLLIN), PollEntry::descriptor(reader.as_raw_fd(), POLLIN)];
    assert_eq!(poll(&mut entries, Some(Duration::ZERO)).expect("poll"), 0);
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(b"x").expect("a write"));
        assert_eq!(poll(&mut entries, Some(LIMIT)).expect("poll"), 1);
    });
    assert_eq!(entries.each_ref().map(PollEntry::found), [0, POLLIN]);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(b"x").expect("a send"));
        let mut entries = [PollEntry::socket(&server, POLLIN)];
        assert_eq!(poll(&mut entries, None).expect("poll"), 1);
    });
}

#[test]
fn every_thread_that_waits_is_woken() {
    let (mut client, server) = pair();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| wait_for(&server, POLLIN))).collect();
        client.write_all(b"x").expect("a send");
        for thread in waiting {
            assert_eq!(thread.join().expect("the thread"), POLLIN);
        }
    });
}

#[test]
fn half_of_a_connection_ends_alone() {
    let (mut client, mut server) = pair();
    client.write_all(b"question").expect("a send");
    client.shutdown(Shutdown::Write).expect("a shutdown");
    assert_eq!(errno(client.write(b"more")), libc::EPIPE);
    let mut question = Vec::new();
    server.read_to_end(&mut question).expect("the data");
    assert_eq!(question, b"question");
    server.write_all(b"answer").expect("a send");
    server.close().expect("a close");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("the data");
    assert_eq!(answer, b"answer");
    assert_ne!(wait_for(&client, POLLIN) & POLLHUP, 0);
}

#[test]
fn a_close_wakes_the_threads_that_wait() {
    let (client, _server) = pair();
    let (listener, _) = listener();
    thread::scope(|scope| {
        let reader = scope.spawn(|| (&client).read(&mut [0]).map_err(|error| error.raw_os_error()));
        let acceptor = scope.spawn(|| listener.accept().map(drop).map_err(|error| error.raw_os_error()));
        client.close().expect("a close");
        listener.close().expect("a close");
        // The reader may see the end of the stream before the end of the socket.
        assert!(matches!(reader.join().expect("the thread"), Ok(0) | Err(Some(libc::EBADF))));
        assert_eq!(acceptor.join().expect("the thread"), Err(Some(libc::EBADF)));
    });
    assert_eq!(errno(client.close()), libc::EBADF);
    assert_eq!(errno(client.local_address()), libc::EBADF);
}

#[test]
fn connections_that_nobody_accepts_end_with_the_listener() {
    let (listener, address) = listener();
    let clients: Vec<Socket> = (0..3).map(|_| stream()).collect();
    // A connect ends without an accept.
    clients.iter().for_each(|client| client.connect(address).expect("a connection"));
    listener.close().expect("a close");
    for mut client in clients {
        assert!(matches!(
            client.read(&mut [0]).map_err(|error| error.raw_os_error()),
            Ok(0) | Err(Some(libc::ECONNRESET))
        ));
    }
}

/// The listener's thread takes the events of a connection that nobody has accepted yet.
#[test]
fn a_connection_that_has_ended_is_accepted_with_its_data_and_its_end() {
    let (listener, address) = listener();
    let mut client = stream();
    client.connect(address).expect("a connection");
    client.write_all(b"last words").expect("a send");
    client.close().expect("a close");
    // The listener hears of the first connection's end before it answers the second one.
    stream().connect(address).expect("a connection");
    let (mut server, _) = listener.accept().expect("the connection");
    let mut received = Vec::new();
    server.read_to_end(&mut received).expect("the data and the end");
    assert_eq!(received, b"last words");
    assert_eq!(wait_for(&server, 0), POLLHUP);
    drop(listener.accept().expect("the second connection"));
}

/// As by librspreload 44, whose `select` takes a ready rsocket for a number below the program's
/// descriptor: descriptors that are closed meanwhile give no socket a lower number.
#[test]
fn a_number_is_above_the_descriptors_that_were_open() {
    passes_alone(&["streams::numbers_beside_closed_descriptors"], &[]);
}

#[test]
#[ignore = "counts its descriptors; `a_number_is_above_the_descriptors_that_were_open` runs it"]
fn numbers_beside_closed_descriptors() {
    let (listener, address) = listener();
    let open = || std::fs::File::open("/dev/null").expect("a descriptor");
    let below: Vec<_> = std::iter::repeat_with(open).take(40).collect();
    let opened = open();
    drop(below);
    let client = stream();
    client.connect(address).expect("a connection");
    let (server, _) = listener.accept().expect("the connection");
    let datagrams = Socket::datagram(libraries(), false).expect("a socket");
    for socket in [&client, &server, &datagrams] {
        assert!(socket.number() > opened.as_raw_fd(), "{} stands for {}", opened.as_raw_fd(), socket.number());
    }
}

/// As by librspreload: the number of an accepted socket is made by the accept and not before.
#[test]
fn an_accept_makes_the_number_of_its_socket() {
    passes_alone(&["streams::accepts_without_and_with_descriptors"], &[]);
}

#[test]
#[ignore = "limits its process; `an_accept_makes_the_number_of_its_socket` runs it"]
fn accepts_without_and_with_descriptors() {
    let (listener, address) = listener();
    let client = stream();
    client.connect(address).expect("a connection");
    wait_for(&listener, POLLIN);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit requires space for the limits.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    // SAFETY: setrlimit only reads the limits.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    let refused = errno(listener.accept());
    // SAFETY: setrlimit only reads the limits.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    assert_eq!(refused, libc::EMFILE);
    // The connection has waited, as that of accept(2) does.
    let (mut server, _) = listener.accept().expect("the connection");
    (&client).write_all(b"x").expect("a send");
    server.read_exact(&mut [0]).expect("the data");
}

#[test]
fn a_close_waits_no_longer_than_its_linger() {
    let (client, server) = pair_with(small);
    let one_second = [1, 1].map(libc::c_int::to_ne_bytes).concat();
    client.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &one_second).expect("an option");
    client.set_nonblocking(true).expect("a mode");
    while (&client).write(&[0; 4096]).is_ok() {}
    let begin = Instant::now();
    client.close().expect("a close");
    assert!(begin.elapsed() < LIMIT);
    drop(server);
}

#[test]
fn a_socket_that_connects_is_closed_at_once() {
    let (_listener, address) = listener();
    let client = stream();
    client.set_nonblocking(true).expect("a mode");
    // The limit of a close that waits for a message which nobody can send.
    let one_hour = [1, 3600].map(libc::c_int::to_ne_bytes).concat();
    client.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &one_hour).expect("an option");
    if let Err(error) = client.connect(address) {
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
    }
    client.close().expect("a close");
}

/// The other process runs only this test.
#[test]
fn other_process() {
    if role().is_none() {
        return;
    }
    let mut first = first();
    let mut client = stream();
    let port = first.hear();
    client.connect(format!("127.0.0.1:{port}").parse().expect("an address")).expect("a connection");
    client.write_all(b"from another process").expect("a send");
    let mut back = [0; 4];
    client.read_exact(&mut back).expect("the data");
    first.tell("connected");
    // Killed here.
    let _end = client.read(&mut back);
    let _command = first.try_hear();
}

#[test]
fn the_death_of_a_peer_ends_the_stream() {
    let (listener, address) = listener();
    let mut peer = Peer::start("streams::other_process", "client");
    peer.tell(&address.port().to_string());
    let (mut server, _) = listener.accept().expect("the connection");
    let mut data = [0; 20];
    server.read_exact(&mut data).expect("the data");
    assert_eq!(&data, b"from another process");
    server.write_all(b"back").expect("a send");
    assert_eq!(peer.hear(), "connected");
    peer.kill();
    let end = server.read(&mut data).map_err(|error| error.raw_os_error());
    assert!(matches!(end, Ok(0) | Err(Some(libc::ECONNRESET))), "{end:?}");
    until("a send fails", || server.write(b"more").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn pieces_of_any_size_make_one_stream(
        sends in proptest::collection::vec(1..9000_usize, 1..20), reads in proptest::collection::vec(1..9000_usize, 1..20),
    ) {
        let (mut client, mut server) = pair_with(small);
        let data = pattern(sends.iter().sum());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = data.as_slice();
                for len in sends {
                    let (now, later) = rest.split_at(len);
                    client.write_all(now).expect("a send");
                    rest = later;
                }
                client.close().expect("a close");
            });
            let mut received = Vec::new();
            for len in reads.into_iter().cycle() {
                let mut piece = vec![0; len];
                match server.read(&mut piece).expect("the data") {
                    0 => break,
                    count => received.extend_from_slice(&piece[..count]),
                }
            }
            assert!(received == data);
        });
    }
}
