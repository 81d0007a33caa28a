//! Connections of the connection manager between processes of different hosts, which are different
//! loopback addresses here, and callers that are refused.
//!
//! Each test runs this test program again with an address, a port and a key of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rdma_sys::*;
use rdma_test_support::{Peer, first, role};

use crate::cm_support::*;
use crate::hosts::{HERE, KEY, KeyFile, SECRET, TCP, THERE, free, own, runs_on_host};

const CONNECTED: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const DATAGRAMS: rdma_port_space = rdma_port_space::RDMA_PS_UDP;

/// Runs a test of this module in a process of the host [`HERE`].
fn on_a_host(test: &str) {
    runs_on_host(&format!("cm_hosts::{test}"), HERE);
}

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

/// A process of another host with an id and a listener.
struct Puppet {
    process: Peer,
    host: IpAddr,
}

impl Puppet {
    fn start() -> Self {
        Self::start_at(THERE, &[])
    }

    /// Starts a process at an address and the port of this process.
    fn start_at(host: &str, variables: &[(&str, &str)]) -> Self {
        let address = SocketAddr::new(ip(host), own().port()).to_string();
        let process = Peer::start_with("cm_hosts::other_process", "puppet", |command| {
            command.env(TCP, address).envs(variables.iter().copied());
        });
        Self { process, host: ip(host) }
    }

    fn ask(&mut self, command: &str) -> String {
        self.process.ask(command)
    }

    fn tell(&mut self, command: &str) {
        assert_eq!(self.ask(command), "0", "{command}");
    }

    /// Listens at an address; returns the port, at the puppet's own address.
    fn listen(&mut self, at: &str) -> SocketAddr {
        self.listen_with(&format!("listen {at} 8"))
    }

    fn listen_with(&mut self, command: &str) -> SocketAddr {
        SocketAddr::new(self.host, self.ask(command).parse().unwrap())
    }

    fn expect(&mut self, event: Event) -> String {
        let told = self.ask("take");
        let (event, told) = (name(event), told.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.to_owned())));
        let (found, rest) = told.unwrap();
        assert_eq!(found, event, "{rest}");
        rest
    }
}

/// The other process runs only this test.
#[test]
fn other_process() {
    if role().is_none() {
        return;
    }
    let mut first = first();
    let channel = Channel::new();
    let (mut listener, mut id): (Option<Id>, Option<Id>) = (None, None);
    while let Some(line) = first.try_hear() {
        let words: Vec<_> = line.split(' ').collect();
        let current = || id.as_ref().unwrap();
        let answer = match words[..] {
            [command @ ("listen" | "serve"), at, backlog] => {
                let asked = channel.id(if command == "listen" { CONNECTED } else { DATAGRAMS });
                assert_eq!(asked.bind(SocketAddr::new(ip(at), 0)), 0);
                assert_eq!(asked.listen(backlog.parse().unwrap()), 0);
                let port = asked.port();
                listener = Some(asked);
                port.to_string()
            }
            ["resolve", to] => {
                let asking = channel.tcp();
                resolve(&asking, &channel, to.parse().unwrap());
                id = Some(asking);
                "0".to_owned()
            }
            ["take"] => {
                let told = channel.next();
                if told.code == Event::RDMA_CM_EVENT_CONNECT_REQUEST {
                    id = Some(told.request());
                }
                let text = told.private.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte));
                format!("{} {} {}", name(told.code), told.status, text.collect::<String>())
            }
            ["peer"] => format!("{} {}", current().peer().unwrap(), current().local().unwrap()),
            ["connect"] => current().connect(b"from there", 3).to_string(),
            ["accept"] => current().accept(b"to here", 4).to_string(),
            ["reject"] => current().reject(b"not you").to_string(),
            ["establish"] => current().establish().to_string(),
            ["disconnect"] => current().disconnect().to_string(),
            ["destroy"] => {
                id = None;
                "0".to_owned()
            }
            _ => format!("what is {line}?"),
        };
        first.tell(&answer);
    }
    drop((listener, id));
}

/// An id that has asked another host's listener.
fn asked() -> (Puppet, Id, Channel) {
    let mut there = Puppet::start();
    let to = there.listen(THERE);
    let (id, channel) = resolved(CONNECTED, to);
    assert_eq!(id.connect(b"hello", 5), 0);
    assert_eq!(there.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST), "0 hello");
    (there, id, channel)
}

/// A listener of this process.
fn listens_at(address: &str) -> (Id, Channel) {
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.bind(SocketAddr::new(ip(address), 0)), 0);
    assert_eq!(id.listen(4), 0);
    (id, channel)
}

fn connected() -> (Puppet, Id, Channel) {
    let (mut there, id, channel) = asked();
    there.tell("accept");
    let told = channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!((&told.private[..7], told.conn.qp_num), (&b"to here"[..], 4));
    assert_eq!(id.establish(), 0);
    there.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    (there, id, channel)
}

#[test]
#[ignore = "run by ids_of_two_hosts_connect"]
fn connects() {
    let (mut there, id, channel) = connected();
    assert_eq!(id.local().unwrap().ip(), own().ip(), "the chosen address");
    assert_eq!(there.ask("peer"), format!("{} {}", id.local().unwrap(), id.peer().unwrap()));
    // The queue pair leads to the other host.
    let (attributes, _) = id.attributes(ibv_qp_state::IBV_QPS_RTR).unwrap();
    // SAFETY: any bytes are a GID.
    let gid = std::net::Ipv6Addr::from(unsafe { attributes.ah_attr.grh.dgid.raw }).to_canonical();
    assert_eq!((gid, attributes.ah_attr.grh.sgid_index, attributes.dest_qp_num), (ip(THERE), 0, 4));
    there.tell("disconnect");
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    assert_eq!(id.disconnect(), 0);
    there.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    // The other way round, to a listener at the wildcard.
    let (listener, channel) = listens_at("0.0.0.0");
    there.tell(&format!("resolve {}", SocketAddr::new(own().ip(), listener.port())));
    there.tell("connect");
    let told = channel.next();
    assert_eq!(&told.private[..10], b"from there");
    let asked = told.request();
    assert_eq!((asked.peer().unwrap().ip(), asked.local().unwrap().ip()), (ip(THERE), own().ip()));
    assert_eq!(asked.accept(b"to there", 6), 0);
    assert_eq!(there.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE), "0 to there");
    there.tell("establish");
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    // An id that is destroyed says so.
    there.tell("destroy");
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
}

#[test]
fn ids_of_two_hosts_connect() {
    on_a_host("connects");
}

#[test]
#[ignore = "run by a_listener_rejects_another_host"]
fn rejects() {
    let (mut there, _id, channel) = asked();
    there.tell("reject");
    let told = channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    assert_eq!(&told.private[..7], b"not you");
    // Who destroys the id of a request rejects it.
    let (mut there, _id, channel) = asked();
    there.tell("destroy");
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    // A new id can ask again, and the first one be rejected by this side.
    let (mut there, id, channel) = asked();
    there.tell("accept");
    channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(id.reject(b"nor you"), 0);
    assert_eq!(there.expect(Event::RDMA_CM_EVENT_REJECTED), "28 nor you");
}

#[test]
fn a_listener_rejects_another_host() {
    on_a_host("rejects");
}

#[test]
#[ignore = "run by the_death_of_either_side_is_noticed_by_another_host"]
fn dies() {
    let (mut there, _id, channel) = asked();
    there.process.kill();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    let (mut there, _id, channel) = connected();
    there.process.kill();
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    // The side that has asked.
    let (listener, channel) = listens_at(&own().ip().to_string());
    let mut there = Puppet::start();
    there.tell(&format!("resolve {}", SocketAddr::new(own().ip(), listener.port())));
    there.tell("connect");
    let id = channel.next().request();
    there.process.kill();
    // No event reports the death, but the answer fails.
    until("the answer fails", || id.accept(b"", 1) == libc::EINVAL);
}

#[test]
fn the_death_of_either_side_is_noticed_by_another_host() {
    on_a_host("dies");
}

#[test]
#[ignore = "run by a_host_that_is_not_reached_says_why"]
fn unreached() {
    let fails = |space: rdma_port_space, to: SocketAddr, event: Event, status: i32| {
        let (id, channel) = resolved(space, to);
        assert_eq!(id.connect(b"", 1), 0);
        channel.expect_status(event, status);
    };
    let unreachable = Event::RDMA_CM_EVENT_UNREACHABLE;
    // Nobody listens at that port of a host that is there; a listener at another address of it, and
    // one with another host's address, do not count.
    let mut there = Puppet::start();
    let elsewhere = there.listen("127.0.0.1");
    fails(CONNECTED, elsewhere, Event::RDMA_CM_EVENT_REJECTED, 8);
    fails(DATAGRAMS, elsewhere, unreachable, 1);
    let mut third = Puppet::start_at("127.88.0.3", &[]);
    let wild = third.listen("0.0.0.0");
    fails(CONNECTED, SocketAddr::new(ip(THERE), wild.port()), Event::RDMA_CM_EVENT_REJECTED, 8);
    // A server of datagrams is none of connections.
    let mut fourth = Puppet::start_at("127.88.0.4", &[]);
    let served = fourth.listen_with("serve 127.88.0.4 4");
    fails(CONNECTED, served, Event::RDMA_CM_EVENT_REJECTED, 8);
    // Another key.
    let key = KeyFile::new("cm-other", &SECRET.to_uppercase(), 0o600);
    let mut stranger = Puppet::start_at("127.88.0.5", &[(KEY, key.path())]);
    let strange = stranger.listen("127.88.0.5");
    fails(CONNECTED, strange, unreachable, -libc::EACCES);
    // Another program listens there, and speaks first.
    let other = TcpListener::bind((ip("127.88.0.6"), own().port())).unwrap();
    let (id, channel) = resolved(CONNECTED, SocketAddr::new(ip("127.88.0.6"), 7));
    assert_eq!(id.connect(b"", 1), 0);
    let (mut caller, _) = other.accept().unwrap();
    caller.write_all(&b"220 mail.example ESMTP\r\n".repeat(20)).unwrap();
    channel.expect_status(unreachable, -libc::EPROTO);
    // From an address that is not the chosen one, no other host is reached.
    let channel = Channel::new();
    let id = channel.tcp();
    assert_eq!(id.resolve_addr_from(SocketAddr::new(ip("127.0.0.1"), 0), served), 0);
    channel.expect_status(Event::RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH);
    // RFC 5737: no route, or nobody. The id can be destroyed while the call is under way.
    let (id, channel) = resolved(CONNECTED, SocketAddr::new(ip("192.0.2.1"), 7));
    assert_eq!(id.connect(b"", 1), 0);
    drop((id, channel));
}

#[test]
fn a_host_that_is_not_reached_says_why() {
    on_a_host("unreached");
}

#[test]
#[ignore = "run by a_service_of_datagrams_is_found_on_another_host"]
fn serves() {
    let mut there = Puppet::start();
    let to = there.listen_with(&format!("serve {THERE} 4"));
    for answer in ["accept", "reject"] {
        let (id, channel) = resolved(DATAGRAMS, to);
        assert_eq!(id.connect(b"hello", 0), 0);
        assert_eq!(there.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST), "0 hello");
        there.tell(answer);
        if answer == "reject" {
            channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, 2);
            continue;
        }
        let told = channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
        // SAFETY: any bytes are a GID.
        let gid = std::net::Ipv6Addr::from(unsafe { told.ud.ah_attr.grh.dgid.raw }).to_canonical();
        assert_eq!((gid, told.ud.qp_num), (ip(THERE), 4));
    }
}

#[test]
fn a_service_of_datagrams_is_found_on_another_host() {
    on_a_host("serves");
}

/// Many requests at once are answered in any order; a listener whose backlog is full lets the
/// others wait.
#[test]
#[ignore = "run by many_ids_ask_another_host_at_once"]
fn many() {
    let mut there = Puppet::start();
    let to = there.listen(THERE);
    let ids: Vec<_> = (0..40).map(|_| resolved(CONNECTED, to)).collect();
    for (id, _) in &ids {
        assert_eq!(id.connect(b"", 1), 0);
    }
    for _ in &ids {
        there.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST);
        there.tell("reject");
    }
    for (_, channel) in &ids {
        channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    }
}

#[test]
fn many_ids_ask_another_host_at_once() {
    // A request that found the backlog full is repeated after the time to wait for a reply.
    let key = KeyFile::new("cm-many", SECRET, 0o600);
    let address = free(HERE).to_string();
    let variables = [(TCP, address.as_str()), (KEY, key.path()), ("RDMA_SOFT_CM_TIMEOUT", "1000")];
    rdma_test_support::passes_alone(&["cm_hosts::many"], &variables);
}

/// A host that has had no time for a call is asked again: that nobody listens is another answer.
#[test]
#[ignore = "run by a_host_that_has_no_time_is_asked_again"]
fn busy() {
    let other = TcpListener::bind((ip("127.88.0.6"), own().port())).unwrap();
    other.set_nonblocking(true).unwrap();
    let (id, channel) = resolved(CONNECTED, SocketAddr::new(ip("127.88.0.6"), 7));
    assert_eq!(id.connect(b"", 1), 0);
    let next = || {
        let mut caller = None;
        until("the host is called", || {
            caller = other.accept().ok();
            caller.is_some()
        });
        let (mut caller, _) = caller.unwrap();
        caller.set_nonblocking(false).unwrap();
        caller.read_exact(&mut [0; 100]).unwrap();
        caller
    };
    // The message of `link/hello.rs` for it: no slot, and no protection.
    let told = [&b"RDMAsoft"[..], &1_u32.to_le_bytes(), &[0, 0, 0xff, 0xff], &[0; 48]].concat();
    for _ in 0..3 {
        next().write_all(&told).unwrap();
    }
    // Then another program has the port.
    next().write_all(&b"220 mail.example ESMTP\r\n".repeat(20)).unwrap();
    channel.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, -libc::EPROTO);
}

#[test]
fn a_host_that_has_no_time_is_asked_again() {
    on_a_host("busy");
}

/// Callers without the key reach no listener, and keep nobody out.
#[test]
#[ignore = "run by strangers_reach_no_listener_of_another_host"]
fn strangers() {
    let mut there = Puppet::start();
    let to = there.listen(THERE);
    let address = SocketAddr::new(ip(THERE), own().port());
    let mut first = [0; 100];
    first[..8].copy_from_slice(b"RDMAsoft");
    first[8] = 1;
    first[12] = 3;
    first[18] = 1;
    first[68] = 1;
    first[70..72].copy_from_slice(&to.port().to_le_bytes());
    let callers: Vec<_> = (0..30)
        .map(|_| {
            let mut caller = TcpStream::connect(address).unwrap();
            caller.write_all(&first).unwrap();
            caller.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // The listener answers: the message is one of our protocol.
            caller.read_exact(&mut [0; 64 + 32]).unwrap();
            caller
        })
        .collect();
    let (id, channel) = resolved(CONNECTED, to);
    assert_eq!(id.connect(b"hello", 5), 0);
    assert_eq!(there.expect(Event::RDMA_CM_EVENT_CONNECT_REQUEST), "0 hello");
    for (number, mut caller) in callers.into_iter().enumerate() {
        // Some give a proof, which is wrong.
        if number % 2 == 0 {
            let _gone = caller.write_all(&[7; 32]);
        }
        let ended = caller.read(&mut [0; 8]);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
        assert!(!matches!(ended, Ok(1..)), "an answer without a proof");
    }
    there.tell("accept");
    channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
}

#[test]
fn strangers_reach_no_listener_of_another_host() {
    on_a_host("strangers");
}
