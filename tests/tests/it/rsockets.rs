//! Our stream sockets beside librdmacm's, over the system's libraries: both have the same wire
//! format.
//!
//! Datagrams are not exchanged here, because librdmacm's datagram sockets do not work over RoCE:
//! they make an address handle for their own queue pair from a LID, without a GRH
//! (`ds_add_qp_dest`), which such ports refuse. For that reason rdmacm-utils' `udpong` fails on rxe
//! with "rconnect: No such file or directory", the error of the clean-up.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::ptr;
use std::thread;

use libc::{c_int, c_void, sockaddr, sockaddr_in, socklen_t};
use libloading::Library;
use rdma_rsocket::{Libraries, Socket};
use rdma_sys::{Ibverbs, RdmaCm};
use rdma_tests::cm::{address, available};
use rdma_tests::{open, skip};

/// Bytes of a stream in each direction: several times the buffers.
const LEN: usize = 1 << 20;

/// The functions of `rsocket.h` that the tests call.
macro_rules! functions {
    ($($name:ident: $type:ty,)*) => {
        struct Functions { $($name: $type,)* }

        impl Functions {
            fn load(library: &Library) -> Self {
                Self {
                    $($name: {
                        // SAFETY: `get` requires the type of the function: that of rsocket.h.
                        *unsafe { library.get::<$type>(stringify!($name).as_bytes()) }.unwrap()
                    },)*
                }
            }
        }
    };
}

functions! {
    rsocket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int,
    rbind: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    rlisten: unsafe extern "C" fn(c_int, c_int) -> c_int,
    raccept: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    rconnect: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int,
    rclose: unsafe extern "C" fn(c_int) -> c_int,
    rgetsockname: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    rsend: unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize,
    rrecv: unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize,
}

/// The libraries of the device under test, librdmacm's own rsockets, and the device's address.
struct Bench {
    ours: Libraries,
    theirs: Functions,
    _library: Library,
    at: IpAddr,
}

impl Bench {
    /// None if the device has no such sockets.
    fn new() -> Option<Self> {
        let context = open().context;
        if context.is_software() || context.capabilities().read_needs_exposed_sink {
            skip("librdmacm's rsockets need a device of the kernel with RDMA writes with immediate data");
            return None;
        }
        if !available(&context) {
            return None;
        }
        let (verbs, cm) = (Ibverbs::system().unwrap(), RdmaCm::system().unwrap());
        // SAFETY: `new` requires tables of one implementation: both are the system's.
        let ours = unsafe { Libraries::new(verbs, cm) };
        // SAFETY: Library::new requires a library that is safe to load: rdma-core's.
        let library = unsafe { Library::new("librdmacm.so.1") }.unwrap();
        Some(Self { ours, theirs: Functions::load(&library), _library: library, at: address(&context) })
    }

    /// A stream socket of librdmacm.
    fn theirs(&self) -> Theirs<'_> {
        // SAFETY: rsocket has no memory-safety requirements.
        let number = done(unsafe { (self.theirs.rsocket)(libc::AF_INET, libc::SOCK_STREAM, 0) });
        Theirs { functions: &self.theirs, number }
    }

    /// An address of the device with any free port.
    fn any(&self) -> SocketAddr {
        (self.at, 0).into()
    }
}

/// A socket of librdmacm.
struct Theirs<'a> {
    functions: &'a Functions,
    number: c_int,
}

impl Theirs<'_> {
    fn bind(&self, address: SocketAddr) {
        let address = encoded(address);
        // SAFETY: rbind requires an address that is valid for its length: a local.
        done(unsafe { (self.functions.rbind)(self.number, (&raw const address).cast(), ADDRESS) });
    }

    fn connect(&self, address: SocketAddr) {
        let address = encoded(address);
        // SAFETY: rconnect requires an address that is valid for its length: a local.
        done(unsafe { (self.functions.rconnect)(self.number, (&raw const address).cast(), ADDRESS) });
    }

    fn local_address(&self) -> SocketAddr {
        let (mut address, mut len) = (encoded(SocketAddr::from(([0; 4], 0))), ADDRESS);
        // SAFETY: rgetsockname requires space for an address of the length: a local.
        done(unsafe { (self.functions.rgetsockname)(self.number, (&raw mut address).cast(), &raw mut len) });
        decoded(address)
    }

    fn listen(&self) {
        // SAFETY: rlisten has no memory-safety requirements.
        done(unsafe { (self.functions.rlisten)(self.number, 1) });
    }

    fn accept(&self) -> Self {
        // SAFETY: raccept requires space for an address, or NULL.
        let number = done(unsafe { (self.functions.raccept)(self.number, ptr::null_mut(), ptr::null_mut()) });
        Self { functions: self.functions, number }
    }

    fn send(&self, bytes: &[u8]) -> usize {
        // SAFETY: rsend requires readable bytes of the length: a slice.
        length(unsafe { (self.functions.rsend)(self.number, bytes.as_ptr().cast(), bytes.len(), 0) })
    }

    fn receive(&self, bytes: &mut [u8]) -> usize {
        // SAFETY: rrecv requires writable bytes of the length: a slice.
        length(unsafe { (self.functions.rrecv)(self.number, bytes.as_mut_ptr().cast(), bytes.len(), 0) })
    }
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        // SAFETY: rclose has no memory-safety requirements.
        unsafe { (self.functions.rclose)(self.number) };
    }
}

#[allow(clippy::cast_possible_truncation, reason = "16 bytes")]
const ADDRESS: socklen_t = size_of::<sockaddr_in>() as socklen_t;

fn encoded(address: SocketAddr) -> sockaddr_in {
    let SocketAddr::V4(v4) = address else { panic!("{address} is no IPv4 address") };
    sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn decoded(address: sockaddr_in) -> SocketAddr {
    let ip = address.sin_addr.s_addr.to_ne_bytes().into();
    SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into()
}

fn length(result: isize) -> usize {
    usize::try_from(result).unwrap_or_else(|_| panic!("{}", io::Error::last_os_error()))
}

fn done(result: c_int) -> c_int {
    assert!(result >= 0, "{}", io::Error::last_os_error());
    result
}

/// The byte at a place of a stream, different in the two directions.
fn byte(at: usize, is_answer: bool) -> u8 {
    u8::try_from((at * 7 + at / 251) % 253).unwrap() ^ u8::from(is_answer)
}

/// Sends a stream's bytes in pieces of odd sizes.
fn pour(is_answer: bool, mut send: impl FnMut(&[u8]) -> usize) {
    let data: Vec<u8> = (0..LEN).map(|at| byte(at, is_answer)).collect();
    let mut sizes = [1, 63, 64, 65, 4096, 70_001].into_iter().cycle();
    let mut sent = 0;
    while sent < LEN {
        let end = LEN.min(sent + sizes.next().unwrap());
        sent += send(&data[sent..end]);
    }
}

/// Receives a stream's bytes, and checks them.
fn drain(is_answer: bool, mut receive: impl FnMut(&mut [u8]) -> usize) {
    let (mut data, mut taken) = (vec![0; 50_000], 0);
    while taken < LEN {
        let room = data.len().min(LEN - taken);
        let len = receive(&mut data[..room]);
        assert_ne!(len, 0, "the stream ends after {taken} bytes");
        for (at, found) in (taken..).zip(&data[..len]) {
            assert_eq!(*found, byte(at, is_answer), "byte {at}");
        }
        taken += len;
    }
}

/// The work of our side of a stream: it receives, answers, and sees the end.
fn serve_ours(mut socket: &Socket) {
    drain(false, |bytes| socket.read(bytes).unwrap());
    pour(true, |bytes| socket.write(bytes).unwrap());
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the end of the stream");
}

/// As [`serve_ours`], by librdmacm.
fn serve_theirs(socket: &Theirs<'_>) {
    drain(false, |bytes| socket.receive(bytes));
    pour(true, |bytes| socket.send(bytes));
    assert_eq!(socket.receive(&mut [0]), 0, "the end of the stream");
}

#[test]
fn our_client_exchanges_a_stream_with_librdmacms_server() {
    let Some(bench) = Bench::new() else { return };
    let listener = bench.theirs();
    listener.bind(bench.any());
    listener.listen();
    let at = listener.local_address();
    thread::scope(|scope| {
        scope.spawn(|| serve_theirs(&listener.accept()));
        let client = Socket::stream(bench.ours).unwrap();
        client.connect(at).unwrap();
        pour(false, |bytes| (&client).write(bytes).unwrap());
        drain(true, |bytes| (&client).read(bytes).unwrap());
        client.close().unwrap();
    });
}

#[test]
fn librdmacms_client_exchanges_a_stream_with_our_server() {
    let Some(bench) = Bench::new() else { return };
    let listener = Socket::stream(bench.ours).unwrap();
    listener.bind(bench.any()).unwrap();
    listener.listen(1).unwrap();
    let at = listener.local_address().unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_ours(&listener.accept().unwrap().0));
        let client = bench.theirs();
        client.connect(at);
        pour(false, |bytes| client.send(bytes));
        drain(true, |bytes| client.receive(bytes));
    });
}
