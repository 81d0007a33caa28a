//! Peers that violate the protocol: processes of the same user that write to the connection
//! manager's sockets, and a process of another user.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rdma_sys::*;

use crate::cm_support::*;

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
const UDP: rdma_port_space = rdma_port_space::RDMA_PS_UDP;
const A_WHILE: Duration = Duration::from_millis(20);
const HEADER: usize = 8;

fn socket_name(port: u16) -> String {
    format!("rdma-soft-cm1/tcp/{port}/127.0.0.1")
}

/// A socket of the kind that the connection manager uses.
struct Raw(OwnedFd);

impl Raw {
    fn new() -> Self {
        // SAFETY: the function has no requirement.
        let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just made, and nobody else owns it.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let time = libc::timeval { tv_sec: 20, tv_usec: 0 };
        let len = libc::socklen_t::try_from(size_of::<libc::timeval>()).unwrap();
        // SAFETY: reads `len` bytes of a live value.
        let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), len) };
        assert_eq!(set, 0);
        socket
    }

    fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
        // SAFETY: all-zero bytes are a valid value of this plain structure.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
        for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        (address, libc::socklen_t::try_from(len).unwrap())
    }

    fn try_bound(name: &str) -> Option<Self> {
        let (socket, (address, len)) = (Self::new(), Self::address(name));
        // SAFETY: reads `len` bytes of a live address.
        let bound = unsafe { libc::bind(socket.fd(), (&raw const address).cast(), len) };
        (bound == 0).then_some(socket)
    }

    fn bound(name: &str) -> Self {
        Self::try_bound(name).unwrap_or_else(|| panic!("{}", io::Error::last_os_error()))
    }

    /// A socket bound to some free port, and the port.
    fn bound_anywhere() -> (Self, u16) {
        Self::bound_in(TCP)
    }

    fn bound_in(space: rdma_port_space) -> (Self, u16) {
        // Binding an id finds a free port.
        let channel = Channel::new();
        loop {
            let id = channel.id(space);
            assert_eq!(id.bind(loopback(0)), 0);
            let port = id.port();
            drop(id);
            let name = socket_name(port);
            let name = if space == TCP { name } else { name.replace("/tcp/", "/udp/") };
            if let Some(socket) = Self::try_bound(&name) {
                return (socket, port);
            }
        }
    }

    fn try_connect(&self, port: u16) -> bool {
        let (address, len) = Self::address(&socket_name(port));
        // SAFETY: reads `len` bytes of a live address.
        unsafe { libc::connect(self.fd(), (&raw const address).cast(), len) == 0 }
    }

    /// A socket that is connected to a listener from a free port, and the port.
    fn connected(to: u16) -> (Self, u16) {
        let (socket, port) = Self::bound_anywhere();
        assert!(socket.try_connect(to));
        (socket, port)
    }

    fn listen(&self) {
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::listen(self.fd(), 16) }, 0);
    }

    fn accept(&self) -> Self {
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept(self.fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just made, and nobody else owns it.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Sends a packet; false if the peer has closed the connection.
    fn send(&self, bytes: &[u8]) -> bool {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_EOR;
        // SAFETY: a live slice and its length.
        unsafe { libc::send(self.fd(), bytes.as_ptr().cast(), bytes.len(), flags) >= 0 }
    }

    /// The next packet; empty at the end of the connection.
    fn receive(&self) -> Vec<u8> {
        let mut bytes = [0; 1024];
        loop {
            // SAFETY: as many bytes as the live array has.
            let len = unsafe { libc::recv(self.fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(len) {
                Ok(len) => return bytes[..len].to_vec(),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    // The peer closed without having read all our packets.
                    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{error}");
                }
            }
        }
    }

    /// Waits until one of the sockets has a packet or an end; returns its place.
    fn first_readable(sockets: &[Self]) -> usize {
        let mut polled: Vec<_> =
            sockets.iter().map(|socket| libc::pollfd { fd: socket.fd(), events: libc::POLLIN, revents: 0 }).collect();
        let count = libc::nfds_t::try_from(polled.len()).unwrap();
        // SAFETY: poll requires as many live structures as it is told: the vector has `count`.
        assert!(unsafe { libc::poll(polled.as_mut_ptr(), count, 20_000) } > 0, "no client was sent away in 20 s");
        polled.iter().position(|one| one.revents != 0).unwrap()
    }

    fn expect_end(&self) {
        assert_eq!(self.receive(), []);
    }

    /// Sends a packet with a descriptor.
    fn send_with_descriptor(&self, bytes: &[u8]) -> bool {
        // A control message header and a descriptor, in the layout of `CMSG_DATA` and `CMSG_SPACE`.
        #[repr(C)]
        struct Control {
            header: libc::cmsghdr,
            fd: i32,
            padding: i32,
        }
        let mut control = Control {
            header: libc::cmsghdr {
                cmsg_len: offset_of!(Control, padding),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            fd: self.fd(),
            padding: 0,
        };
        let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all-zero bytes are a valid value of this plain structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
        // SAFETY: a valid message.
        unsafe { libc::sendmsg(self.fd(), &raw const message, libc::MSG_NOSIGNAL) >= 0 }
    }
}

/// Whether a test can change its user id; a test that cannot is skipped.
fn is_root() -> bool {
    // SAFETY: the function has no requirement.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        rdma_test_support::skip("only root can become another user");
    }
    is_root
}

/// A message that consists of a header only.
fn message(kind: u16) -> Vec<u8> {
    let mut bytes = b"rscm".to_vec();
    bytes.extend(1_u16.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes
}

/// An id that connects to a raw listener: the id, its channel, the accepted raw socket and the
/// request.
fn caught() -> (Id, Channel, Raw, Vec<u8>) {
    let (trap, port) = Raw::bound_anywhere();
    trap.listen();
    let (id, channel) = resolved(TCP, loopback(port));
    assert_eq!(id.connect(b"caught", 5), 0);
    let peer = trap.accept();
    let request = peer.receive();
    assert_eq!(request[..HEADER], message(1));
    (id, channel, peer, request)
}

/// A valid request from one port to another.
fn request(from: u16, to: u16) -> Vec<u8> {
    let (_id, _channel, _peer, mut request) = caught();
    // Each address has a family, a port and 20 more bytes.
    request[HEADER + 2..HEADER + 4].copy_from_slice(&from.to_le_bytes());
    request[HEADER + 26..HEADER + 28].copy_from_slice(&to.to_le_bytes());
    request
}

/// Checks that the listener still serves an honest client.
fn serves(channel: &Channel, port: u16) {
    let (id, own) = resolved(TCP, loopback(port));
    assert_eq!(id.connect(b"honest", 5), 0);
    let mut told = channel.next();
    while !told.private.starts_with(b"honest") {
        drop(told.request());
        told = channel.next();
    }
    assert_eq!(told.request().reject(b""), 0);
    own.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let (_listener, channel, to) = listener(TCP, 8);
    let mut packets = vec![b"x".to_vec(), vec![0; 8], vec![0xff; 300], vec![7; 4000], message(0), message(999)];
    packets.extend((2..=10).map(message));
    let mut long = request(1, to.port());
    long.push(0);
    packets.push(long.clone());
    packets.push(long[..long.len() - 2].to_vec());
    for packet in packets {
        let (client, _) = Raw::connected(to.port());
        assert!(client.send(&packet));
        client.expect_end();
    }
    // A connection that ends without a packet.
    drop(Raw::connected(to.port()));
    channel.expect_silence(A_WHILE);
    serves(&channel, to.port());
}

#[test]
fn a_request_is_from_whom_the_kernel_says() {
    let (_listener, channel, to) = listener(TCP, 8);
    let (client, port) = Raw::connected(to.port());
    assert!(client.send(&request(port, to.port())));
    let told = channel.next();
    assert_eq!(&told.private[..6], b"caught");
    drop(told.request());
    // The client gets a rejection, then the end of the connection.
    assert_eq!(client.receive()[..HEADER], message(5));
    client.expect_end();
    // Requests with a wrong source, with a wrong destination and from a socket without a name.
    let (client, port) = Raw::connected(to.port());
    assert!(client.send(&request(port ^ 1, to.port())));
    client.expect_end();
    let (client, port) = Raw::connected(to.port());
    assert!(client.send(&request(port, to.port() ^ 1)));
    client.expect_end();
    let client = Raw::new();
    assert!(client.try_connect(to.port()));
    assert!(client.send(&request(5, to.port())));
    client.expect_end();
    let client = Raw::bound(&format!("some other name {}", to.port()));
    assert!(client.try_connect(to.port()));
    assert!(client.send(&request(5, to.port())));
    client.expect_end();
    channel.expect_silence(A_WHILE);
    serves(&channel, to.port());
}

#[test]
fn every_byte_of_a_request_may_be_anything() {
    let (_listener, channel, to) = listener(TCP, 1000);
    let good = request(1, to.port());
    for at in 0..good.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let (client, port) = Raw::connected(to.port());
            let mut bad = good.clone();
            bad[HEADER + 2..HEADER + 4].copy_from_slice(&port.to_le_bytes());
            bad[at] = byte;
            assert!(client.send(&bad));
            // A mutated packet may still be a valid request.
            if channel.is_readable(Duration::ZERO) {
                drop(channel.next().request());
            }
        }
    }
    serves(&channel, to.port());
}

#[test]
fn silent_connections_make_room() {
    let (listener, channel, to) = listener(TCP, 8);
    let clients: Vec<_> = (0..300).map(|_| Raw::connected(to.port()).0).collect();
    serves(&channel, to.port());
    // The oldest silent connection was dropped.
    clients[0].expect_end();
    drop(listener);
    for client in &clients {
        client.expect_end();
    }
}

#[test]
fn a_full_listener_sends_away() {
    let (_listener, channel, to) = listener(TCP, 4);
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let (client, port) = Raw::connected(to.port());
            assert!(client.send(&request(port, to.port())));
            client
        })
        .collect();
    // Sixteen exceed the backlog and get a Busy message: the last ones, unless the manager was kept
    // from running meanwhile, and read the requests in another order.
    let mut waiting = clients;
    while waiting.len() > 4 {
        let client = waiting.swap_remove(Raw::first_readable(&waiting));
        assert_eq!(client.receive(), message(8));
        client.expect_end();
    }
    for _ in 0..4 {
        drop(channel.next().request());
    }
    channel.expect_silence(A_WHILE);
    serves(&channel, to.port());
}

#[test]
fn a_client_that_does_not_keep_to_the_protocol_is_as_good_as_gone() {
    let (_listener, channel, to) = listener(TCP, 8);
    let ask = || {
        let (client, port) = Raw::connected(to.port());
        assert!(client.send(&request(port, to.port())));
        (client, channel.next().request())
    };
    // Before the answer: a disconnect request, garbage, and a packet that is too long.
    for packet in [message(6), b"garbage".to_vec(), vec![0; 5000]] {
        let (client, id) = ask();
        assert!(client.send(&packet));
        client.expect_end();
        assert_eq!(id.accept(b"", 1), libc::EINVAL);
    }
    // A repeated request gets a bounded number of MRA messages.
    let (client, id) = ask();
    let again = request(1, to.port());
    let mut told = 0;
    while client.send(&again) && told < 1000 {
        match &client.receive()[..] {
            [] => break,
            packet => assert_eq!(packet, message(2)),
        }
        told += 1;
    }
    assert!((10..200).contains(&told), "{told}");
    drop(id);
    // After the answer.
    let (client, id) = ask();
    assert_eq!(id.accept(b"", 1), 0);
    assert_eq!(client.receive()[..HEADER], message(3));
    assert!(client.send(&message(4)));
    channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED);
    assert!(client.send(&message(8)));
    channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    client.expect_end();
    assert_eq!(id.disconnect(), 0);
    serves(&channel, to.port());
}

#[test]
fn a_listener_that_does_not_keep_to_the_protocol_is_as_good_as_gone() {
    for packet in [message(4), message(7), message(9), b"garbage".to_vec(), vec![1; 4096], message(3)] {
        let (_id, channel, peer, _) = caught();
        assert!(peer.send(&packet));
        channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
        peer.expect_end();
    }
    // A listener that closes the connection.
    let (_id, channel, peer, _) = caught();
    drop(peer);
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    // A silent listener: no event comes, and the id can be destroyed.
    let (id, channel, peer, _) = caught();
    channel.expect_silence(A_WHILE);
    drop(id);
    assert_eq!(peer.receive()[..HEADER], message(5));
    peer.expect_end();
    // A rejection with too much private data is garbage.
    let (_id, channel, peer, _) = caught();
    let mut rejection = message(5);
    rejection.extend(9_u16.to_le_bytes());
    rejection.extend(149_u16.to_le_bytes());
    rejection.extend([7; 149]);
    assert!(peer.send(&rejection));
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    // A rejection with the most private data is valid, with any reason.
    let (_id, channel, peer, _) = caught();
    rejection[HEADER..HEADER + 2].copy_from_slice(&0xffff_u16.to_le_bytes());
    rejection[HEADER + 2..HEADER + 4].copy_from_slice(&148_u16.to_le_bytes());
    rejection.pop();
    assert!(peer.send(&rejection));
    let told = channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 0xffff);
    assert_eq!(told.private, [7; 148]);
}

#[test]
fn descriptors_that_come_along_are_not_taken() {
    let (_listener, channel, to) = listener(TCP, 8);
    let (client, port) = Raw::connected(to.port());
    assert!(client.send_with_descriptor(&request(port, to.port())));
    let id = channel.next().request();
    let sockets = || {
        let list = std::fs::read_dir("/proc/self/fd").unwrap();
        let inode = std::fs::read_link(format!("/proc/self/fd/{}", client.fd())).unwrap();
        list.filter(|fd| fd.as_ref().is_ok_and(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == inode))).count()
    };
    assert_eq!(sockets(), 1);
    drop(id);
}

#[test]
fn a_process_of_another_user_is_not_heard() {
    if !is_root() {
        return;
    }
    let (_listener, channel, to) = listener(TCP, 8);
    thread::spawn(move || {
        let (client, port) = Raw::bound_anywhere();
        let request = request(port, to.port());
        // A raw system call changes only this thread; the C library would change all threads.
        // SAFETY: changes the credentials of this thread, which ends soon.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        assert!(client.try_connect(to.port()));
        // The send may fail, because the listener may have closed the connection already.
        client.send(&request);
        client.expect_end();
    })
    .join()
    .unwrap();
    channel.expect_silence(A_WHILE);
    serves(&channel, to.port());
}

/// The error distinguishes a listener of another user from no listener.
#[test]
fn a_process_of_another_user_is_not_asked() {
    if !is_root() {
        return;
    }
    let rejections = [(TCP, Event::RDMA_CM_EVENT_REJECTED), (UDP, Event::RDMA_CM_EVENT_UNREACHABLE)];
    for (space, rejection) in rejections {
        let (trap, port) = thread::spawn(move || {
            let (trap, port) = Raw::bound_in(space);
            // A raw system call changes only this thread; the C library would change all threads.
            // SAFETY: changes the credentials of this thread, which ends soon.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0);
            trap.listen();
            (trap, port)
        })
        .join()
        .unwrap();
        let (id, own) = resolved(space, loopback(port));
        assert_eq!(id.connect(b"secret", 5), 0);
        own.expect_status(rejection, -libc::EACCES);
        trap.accept().expect_end();
    }
}

#[test]
fn a_peer_cannot_put_its_answer_off_for_ever() {
    // The passive side sends MRA again and again.
    let (id, own, peer, _) = caught();
    assert!((0..64).all(|_| peer.send(&message(2))));
    peer.expect_end();
    own.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
    drop(id);
    // The active side answers our reply with MRA again and again.
    let (_listener, channel, to) = listener(TCP, 8);
    let (client, port) = Raw::connected(to.port());
    assert!(client.send(&request(port, to.port())));
    let id = channel.next().request();
    assert_eq!(id.accept(b"", 1), 0);
    assert_eq!(client.receive()[..HEADER], message(3));
    assert!((0..64).all(|_| client.send(&message(2))));
    client.expect_end();
    channel.expect_status(Event::RDMA_CM_EVENT_REJECTED, 28);
}

#[test]
fn a_name_that_leads_nowhere_does_not_hide_a_listener_at_every_address() {
    let channel = Channel::new();
    let listener = channel.tcp();
    assert_eq!(listener.bind("0.0.0.0:0".parse().unwrap()), 0);
    assert_eq!(listener.listen(8), 0);
    let port = listener.port();
    // Another socket takes the name of one of the listener's addresses and accepts nobody.
    let trap = Raw::bound(&socket_name(port));
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::listen(trap.fd(), 0) }, 0);
    let waiting = Raw::new();
    assert!(waiting.try_connect(port));
    serves(&channel, port);
}

#[test]
fn a_request_is_not_repeated_under_another_name() {
    with_short_times("hostile::taken_name");
}

#[test]
#[ignore = "run by a_request_is_not_repeated_under_another_name"]
fn taken_name() {
    let (_listener, _channel, to) = listener(TCP, 1);
    let (first, _own) = resolved(TCP, to);
    assert_eq!(first.connect(b"", 5), 0);
    // The backlog has no space for the second request, which is refused repeatedly; between two
    // attempts another socket can take its name.
    let (second, own) = resolved(TCP, to);
    let name = socket_name(second.port());
    assert_eq!(second.connect(b"", 5), 0);
    let end = Instant::now() + PATIENCE;
    let _thief = loop {
        match Raw::try_bound(&name) {
            Some(thief) => break thief,
            None => assert!(Instant::now() < end, "{}", io::Error::last_os_error()),
        }
    };
    // If the request were repeated from another port, the listener would close the connection,
    // which counts as a rejection.
    own.expect_status(Event::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
}

#[test]
fn a_listener_of_another_user_does_not_hide_ours() {
    if !is_root() {
        return;
    }
    let channel = Channel::new();
    let listener = channel.tcp();
    assert_eq!(listener.bind("0.0.0.0:0".parse().unwrap()), 0);
    assert_eq!(listener.listen(8), 0);
    let port = listener.port();
    let trap = thread::spawn(move || {
        // SAFETY: changes the credentials of this thread, which ends soon.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        let trap = Raw::bound(&socket_name(port));
        trap.listen();
        trap
    })
    .join()
    .unwrap();
    serves(&channel, port);
    trap.accept().expect_end();
}
