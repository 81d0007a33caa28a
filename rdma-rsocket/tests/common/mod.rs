//! Sockets on the software device.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{AF_INET, SOCK_STREAM, c_int, socklen_t};
use rdma_rsocket::{Descriptors, Libraries, Socket};

/// The software device's libraries.
pub(crate) fn libraries() -> Libraries {
    static VERBS: rdma_sys::Ibverbs = *rdma_soft::ibverbs();
    static CM: rdma_sys::RdmaCm = *rdma_soft::rdmacm();
    // SAFETY: `new` requires tables of one implementation: both are the software device's.
    unsafe { Libraries::new(&VERBS, &CM) }
}

pub(crate) fn stream() -> Socket {
    Socket::stream(libraries()).expect("a socket")
}

/// A datagram socket at a free port of the loopback address, and its address.
pub(crate) fn datagram(is_v6: bool) -> (Socket, SocketAddr) {
    let socket = Socket::datagram(libraries(), is_v6).expect("a socket");
    let ip = if is_v6 { Ipv6Addr::LOCALHOST.into() } else { IpAddr::from(Ipv4Addr::LOCALHOST) };
    socket.bind((ip, 0).into()).expect("a free port");
    let address = socket.local_address().expect("an open socket").expect("an address");
    (socket, address)
}

/// A listener at a free port of the loopback address.
pub(crate) fn listener() -> (Socket, SocketAddr) {
    let socket = stream();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    socket.listen(1).expect("a listener");
    let address = socket.local_address().expect("an open socket").expect("an address");
    (socket, address)
}

/// Two connected sockets.
pub(crate) fn pair() -> (Socket, Socket) {
    pair_with(|_| ())
}

/// Two connected sockets whose options are set by a function before the connection.
pub(crate) fn pair_with(tune: impl Fn(&Socket)) -> (Socket, Socket) {
    let (listener, address) = listener();
    let client = stream();
    tune(&listener);
    tune(&client);
    client.connect(address).expect("a connection");
    let (server, peer) = listener.accept().expect("the connection");
    assert_eq!(Some(peer), client.local_address().expect("an open socket"));
    (client, server)
}

/// Sets an option that is an `int` in C.
pub(crate) fn set_int(socket: &Socket, level: c_int, name: c_int, value: c_int) {
    socket.set_option(level, name, &value.to_ne_bytes()).expect("an option");
}

/// The error number of a failure.
pub(crate) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("a failure").raw_os_error().expect("an error of the system")
}

/// A stream that listens, and one that is connected to it.
pub(crate) fn connected(sockets: &Descriptors) -> [c_int; 2] {
    let [listener, client] = [(); 2].map(|()| sockets.rsocket(libraries(), AF_INET, SOCK_STREAM, 0));
    let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
    let mut address = libc::sockaddr_in {
        sin_family: AF_INET.try_into().expect("a family"),
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: loopback },
        sin_zero: [0; 8],
    };
    let mut len = socklen_t::try_from(size_of_val(&address)).expect("a length");
    let pointer = (&raw mut address).cast();
    // SAFETY: `rbind` requires an address that is valid for its length.
    assert_eq!(unsafe { sockets.rbind(listener, pointer, len) }, 0);
    assert_eq!(sockets.rlisten(listener, 1), 0);
    // SAFETY: `rgetsockname` requires space for an address, and its length.
    assert_eq!(unsafe { sockets.rgetsockname(listener, pointer, &raw mut len) }, 0);
    // SAFETY: `rconnect` requires an address that is valid for its length.
    assert_eq!(unsafe { sockets.rconnect(client, pointer, len) }, 0);
    [listener, client]
}
