//! Packets on the wire: those of a connection carry its traffic class, and the hop limit of the
//! route. Linux replaces the hop limit of a queue pair on RoCE by that of the route to the peer
//! (`ib_resolve_eth_dmac`), whatever the program gives.
//!
//! rxe sends no packets between two sides of one device, so these tests need a second device
//! (`RDMA_TEST_PEER_DEVICE`), whose interface is `RDMA_TEST_NETDEV`, and the right to capture
//! there.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma::{Context, PathOptions, op};
use rdma_net::{Exchange, Failure, ListenOptions, Node, NodeOptions};
use rdma_tests::{LIMIT, Options, buffer, open, open_peer, skip, wait};

/// DSCP 26.
const CLASS: u8 = 26 << 2;
/// What the program asks for.
const HOPS: u8 = 7;
/// The UDP port of RoCE v2.
const ROCE: u16 = 4791;
/// The queue pair of connection managers, whose messages have the network's defaults.
const MANAGER: u32 = 1;

fn path() -> PathOptions {
    PathOptions::new().traffic_class(CLASS).hop_limit(HOPS)
}

/// The interface between the two devices; `None`, and the test is reported as skipped, without it.
fn interface() -> Option<String> {
    let name = std::env::var("RDMA_TEST_NETDEV").ok().filter(|_| std::env::var_os(rdma_tests::PEER_VARIABLE).is_some());
    if name.is_none() {
        skip("no two devices with an interface between them");
    }
    name
}

/// A packet to a queue pair.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    source: IpAddr,
    qpn: u32,
    class: u8,
    hops: u8,
}

impl Packet {
    /// A RoCE v2 packet, from its IP header on; `None` for any other.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (first, second) = (*bytes.first()?, *bytes.get(1)?);
        let (protocol, class, hops, len) = match first >> 4 {
            4 => (*bytes.get(9)?, second, *bytes.get(8)?, usize::from(first & 0xf) * 4),
            6 => (*bytes.get(6)?, first << 4 | second >> 4, *bytes.get(7)?, 40),
            _ => return None,
        };
        let source = match first >> 4 {
            4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(12..16)?).ok()?).into(),
            _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?).into(),
        };
        let udp = bytes.get(len..)?;
        let port = u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]);
        let qpn = udp.get(8 + 5..8 + 8)?;
        let is_roce = protocol == 17 && port == ROCE;
        is_roce.then(|| Self { source, qpn: u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]), class, hops })
    }
}

/// A capture of the packets of an interface, both ways.
struct Capture(TcpStream);

impl Capture {
    fn on(interface: &str) -> Self {
        let name = CString::new(interface).unwrap();
        // SAFETY: if_nametoindex requires a NUL-terminated string: `name` is one.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(index, 0, "{interface}: {}", io::Error::last_os_error());
        let all = u16::try_from(libc::ETH_P_ALL).unwrap().to_be();
        // SAFETY: socket has no requirements.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, all.into()) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: from_raw_fd requires an open descriptor that nobody else owns: it is new.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a value of zeros must be valid: all fields are integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).unwrap();
        address.sll_protocol = all;
        address.sll_ifindex = i32::try_from(index).unwrap();
        let len = u32::try_from(size_of_val(&address)).unwrap();
        // SAFETY: bind requires `len` readable bytes of an address: `address` has as many.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        // Of the standard library's sockets this one lends `read` and its timeout.
        let socket = TcpStream::from(fd);
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(socket)
    }

    /// The packets to queue pairs of programs, until there are some of two sides.
    fn packets(mut self) -> BTreeSet<Packet> {
        let (mut seen, begin) = (BTreeSet::new(), Instant::now());
        let mut bytes = vec![0; 1 << 16];
        while seen.iter().map(|packet: &Packet| packet.source).collect::<BTreeSet<_>>().len() < 2 {
            assert!(begin.elapsed() < LIMIT, "only {seen:?}");
            match self.0.read(&mut bytes) {
                Ok(len) => seen.extend(Packet::from_bytes(&bytes[..len]).filter(|packet| packet.qpn > MANAGER)),
                Err(error) => assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)),
            }
        }
        seen
    }
}

/// All packets have the class, and the hop limit that routes have on this system.
fn are_right(packets: &BTreeSet<Packet>) {
    let setting = |path| std::fs::read_to_string(path).unwrap().trim().parse::<u8>().unwrap();
    let of_route = |packet: &Packet| match packet.source {
        IpAddr::V4(_) => setting("/proc/sys/net/ipv4/ip_default_ttl"),
        IpAddr::V6(_) => setting("/proc/sys/net/ipv6/conf/default/hop_limit"),
    };
    let is_right = |packet: &Packet| packet.class == CLASS && packet.hops == of_route(packet);
    assert!(packets.iter().all(is_right), "{packets:?}");
    eprintln!("NOTE traffic class {CLASS:#x}: {packets:?}");
}

#[test]
fn packets_of_a_connection_have_its_class_and_a_hop_limit_of_the_route() {
    let Some(interface) = interface() else { return };
    let capture = Capture::on(&interface);
    let options = Options { connect: rdma::ConnectOptions::new().path(path()), ..Options::default() };
    let (mut a, mut b) = rdma_tests::pair(options);
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"class"))).unwrap();
    assert_eq!(wait(&mut b.receives).status, Ok(()));
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    // A message one way, and its acknowledgement the other way.
    are_right(&capture.packets());
}

fn node(context: &Context) -> (Node, thread::JoinHandle<rdma::Result<()>>) {
    let options = NodeOptions::new().exchange(Exchange::Tcp).path(path()).timeout(LIMIT).linger(LIMIT);
    let (node, driver) = Node::new(context, &options).unwrap();
    (node, thread::spawn(move || driver.run_blocking()))
}

#[test]
fn packets_of_a_service_have_its_class_and_a_hop_limit_of_the_route() {
    let Some(interface) = interface() else { return };
    let capture = Capture::on(&interface);
    let ((client, one), (server, two)) = (node(&open().context), node(&open_peer().context));
    let mut listener = server.listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
    let address = listener.local_addr();
    let serving = thread::spawn(move || {
        block_on(async {
            let mut connection = listener.accept().await?.accept().await?;
            while let Some(request) = connection.next().await? {
                connection.send(&request).await?;
            }
            Ok::<(), Failure>(())
        })
    });
    block_on(async {
        let mut connection = client.connect(address).await?;
        connection.send("class").await?;
        assert_eq!(&connection.next().await?.expect("an answer")[..], b"class");
        connection.close().await
    })
    .unwrap();
    serving.join().unwrap().unwrap();
    are_right(&capture.packets());
    drop((client, server));
    for driver in [one, two] {
        driver.join().unwrap().unwrap();
    }
}

/// Waits for the packets of a job of two hosts on the interface that `RDMA_TEST_CAPTURE` names.
#[test]
fn packets_of_two_hosts_have_the_class_of_their_job() {
    let Ok(interface) = std::env::var("RDMA_TEST_CAPTURE") else {
        return skip("no interface to another host");
    };
    let capture = Capture::on(&interface);
    println!("capturing");
    are_right(&capture.packets());
}
