use std::net::{Shutdown, TcpStream};
use std::thread;

use rdma::Lid;

use super::wire::{LINE, to_lines};
use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn address(qpn: u32) -> Address {
    Address { lid: Lid(0), qpn, psn: 7, gid: Some("::ffff:10.9.0.1".parse().unwrap()) }
}

fn one_line(qpn: u32) -> Vec<u8> {
    to_lines(&[address(qpn)], 1)
}

fn listener() -> (Socket, String) {
    let listener = bootstrap::listen("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap().to_string();
    (listener, address)
}

/// Runs the server against a client that sends `words`, sends `last` after the server's line,
/// and closes; returns the server's result.
fn serve_client(words: &'static [u8], last: &'static [u8]) -> Result<Address, Failure> {
    let (listener, at) = listener();
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(words).unwrap();
        if last.is_empty() {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let mut line = Vec::new();
        let mut bytes = [0; LINE];
        if stream.read_exact(&mut bytes).is_ok() {
            line.extend(bytes);
            // Errors are ignored: the server may have closed the connection already.
            drop(stream.write_all(last));
        }
        line
    });
    let served = serve(&listener, &one_line(1), LIMIT, |_| Ok(()));
    let line = client.join().unwrap();
    assert!(line.is_empty() || line == one_line(1));
    served.map(|((), remote)| remote[0])
}

const GOOD: &[u8] = b"0000:000002:000007:00000000000000000000ffff0a090001\0";

#[test]
fn both_sides_understand_each_other() {
    for (lines, queue_pairs) in [(1, 1), (wire::SHARED_LINES, 16)] {
        let (listener, at) = listener();
        let addresses = |first: u32| (first..first + queue_pairs).map(address).collect::<Vec<_>>();
        let theirs = to_lines(&addresses(100), lines);
        let client = thread::spawn(move || join(&at, &theirs, LIMIT).unwrap());
        let connect = |remote: &[Address]| Ok(remote.to_vec());
        let (seen, remote) = serve(&listener, &to_lines(&addresses(1), lines), LIMIT, connect).unwrap();
        assert_eq!((&remote, &seen), (&addresses(100), &addresses(100)));
        assert_eq!(client.join().unwrap(), addresses(1));
    }
}

/// Programs with one line and with many wait for each other.
#[test]
fn programs_of_two_kinds_part() {
    let (listener, at) = listener();
    let client = thread::spawn(move || join(&at, &one_line(2), LIMIT).unwrap_err().to_string());
    let many = to_lines(&[address(1)], wire::SHARED_LINES);
    let failure = serve(&listener, &many, Duration::from_millis(500), |_| Ok(())).unwrap_err().to_string();
    assert!(failure.contains("52 bytes where 13312 are due") && failure.contains("--srq"), "{failure}");
    client.join().unwrap();
    let (listener, at) = self::listener();
    let client = thread::spawn(move || join(&at, &many, LIMIT));
    let failure = serve(&listener, &one_line(1), LIMIT, |_| Ok(())).unwrap_err().to_string();
    assert!(failure.contains("which needs --srq"), "{failure}");
    assert!(client.join().unwrap().is_err());
}

#[test]
fn the_server_takes_the_c_client_and_nobody_else() {
    assert_eq!(serve_client(GOOD, b"done\0").unwrap(), address(2));
    let refused = |words, last: &'static [u8], part: &str| {
        let failure = serve_client(words, last).unwrap_err().to_string();
        assert!(failure.contains(part), "{part:?} is not in {failure}");
    };
    refused(b"", b"", "sent no address");
    refused(b"0000:0000", b"", "9 bytes where 52 are due");
    refused(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: nobody\r\n\r\n", b"x", "GET / HTTP");
    refused(GOOD, b"", "left when it had heard our address");
    refused(GOOD, b"gone\0", "it ended with \"gone\\x00\"");
}

#[test]
fn a_server_that_cannot_connect_says_nothing_to_its_client() {
    let (listener, at) = listener();
    let client = thread::spawn(move || join(&at, &one_line(2), LIMIT).unwrap_err().to_string());
    let failure = serve(&listener, &one_line(1), LIMIT, |_| Err::<(), _>(Failure::new("no route"))).unwrap_err();
    assert_eq!(failure.to_string(), "no route");
    let heard = client.join().unwrap();
    assert!(heard.contains("sent no address") && heard.contains("needs -g"), "{heard}");
}

#[test]
fn silence_ends() {
    let (listener, at) = listener();
    let short = Duration::from_millis(200);
    let none = serve(&listener, &one_line(1), short, |_| Ok(())).unwrap_err().to_string();
    assert!(none.contains("no client came"), "{none}");
    let _silent = TcpStream::connect(&at).unwrap();
    let silent = serve(&listener, &one_line(1), short, |_| Ok(())).unwrap_err().to_string();
    assert!(silent.contains("says nothing"), "{silent}");
    // The kernel accepts this connection, but no program reads from it.
    let unheard = join(&at, &one_line(2), short).unwrap_err().to_string();
    assert!(unheard.contains("says nothing"), "{unheard}");
}
