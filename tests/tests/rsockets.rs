//! Our rsockets beside librdmacm's, over the system's libraries: both have the same wire format.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::ptr;
use std::thread;
use std::time::Duration;

use libc::{POLLIN, SOCK_DGRAM, SOCK_STREAM, c_int, c_void, nfds_t, pollfd, sockaddr, sockaddr_in, socklen_t};
use libloading::Library;
use rdma_rsocket::{Libraries, PollEntry, Socket, poll};
use rdma_sys::{Ibverbs, RdmaCm};
use rdma_tests::cm::{address, available};
use rdma_tests::{open, skip};

/// Bytes of a stream in each direction: several times the buffers.
const LEN: usize = 1 << 20;
/// Datagrams in each direction.
const COUNT: u8 = 40;

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
    rsendto: unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize,
    rrecvfrom: unsafe extern "C" fn(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize,
    rpoll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int,
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

    /// A socket of librdmacm.
    fn theirs(&self, kind: c_int) -> Theirs<'_> {
        // SAFETY: rsocket has no memory-safety requirements.
        let number = done(unsafe { (self.theirs.rsocket)(libc::AF_INET, kind, 0) });
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
        // SAFETY: rgetsockname requires room for an address of the length: a local.
        done(unsafe { (self.functions.rgetsockname)(self.number, (&raw mut address).cast(), &raw mut len) });
        decoded(address)
    }

    fn listen(&self) {
        // SAFETY: rlisten has no memory-safety requirements.
        done(unsafe { (self.functions.rlisten)(self.number, 1) });
    }

    fn accept(&self) -> Self {
        // SAFETY: raccept requires room for an address, or NULL.
        let number = done(unsafe { (self.functions.raccept)(self.number, ptr::null_mut(), ptr::null_mut()) });
        Self { functions: self.functions, number }
    }

    fn send(&self, bytes: &[u8]) -> usize {
        // SAFETY: rsend requires readable bytes of the length: a slice.
        length(unsafe { (self.functions.rsend)(self.number, bytes.as_ptr().cast(), bytes.len(), 0) })
    }

    fn send_to(&self, bytes: &[u8], to: SocketAddr) -> usize {
        let (to, data) = (encoded(to), bytes.as_ptr().cast());
        let rsendto = self.functions.rsendto;
        // SAFETY: rsendto requires readable bytes of the length, a slice, and an address of its
        // length, a local.
        length(unsafe { rsendto(self.number, data, bytes.len(), 0, (&raw const to).cast(), ADDRESS) })
    }

    /// Returns the sender of a datagram too.
    fn receive(&self, bytes: &mut [u8]) -> (usize, SocketAddr) {
        let (mut from, mut len) = (encoded(SocketAddr::from(([0; 4], 0))), ADDRESS);
        let (data, rrecvfrom) = (bytes.as_mut_ptr().cast(), self.functions.rrecvfrom);
        // SAFETY: rrecvfrom requires writable bytes of the length, a slice, and room for an address
        // of its length, a local.
        let received = unsafe { rrecvfrom(self.number, data, bytes.len(), 0, (&raw mut from).cast(), &raw mut len) };
        (length(received), decoded(from))
    }

    /// Whether something can be received within a time.
    fn is_readable(&self, within: Duration) -> bool {
        let mut entry = pollfd { fd: self.number, events: POLLIN, revents: 0 };
        let millis = within.as_millis().try_into().unwrap();
        // SAFETY: rpoll requires one entry: a local.
        done(unsafe { (self.functions.rpoll)(&raw mut entry, 1, millis) }) == 1
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

/// The work of our end of a stream: it receives, answers, and sees the end.
fn serve_ours(mut socket: &Socket) {
    drain(false, |bytes| socket.read(bytes).unwrap());
    pour(true, |bytes| socket.write(bytes).unwrap());
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "the end of the stream");
}

/// As [`serve_ours`], by librdmacm.
fn serve_theirs(socket: &Theirs<'_>) {
    drain(false, |bytes| socket.receive(bytes).0);
    pour(true, |bytes| socket.send(bytes));
    assert_eq!(socket.receive(&mut [0]).0, 0, "the end of the stream");
}

#[test]
fn our_client_exchanges_a_stream_with_librdmacms_server() {
    let Some(bench) = Bench::new() else { return };
    let listener = bench.theirs(SOCK_STREAM);
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
        let client = bench.theirs(SOCK_STREAM);
        client.connect(at);
        pour(false, |bytes| client.send(bytes));
        drain(true, |bytes| client.receive(bytes).0);
    });
}

/// Whether the next datagram of our socket has come over UDP.
fn came_over_udp(socket: &Socket) -> bool {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: recv requires room for no byte.
    unsafe { libc::recv(socket.number(), ptr::null_mut(), 0, flags) >= 0 }
}

/// The datagram with a number: of all lengths that fit.
fn datagram(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number) * 24]
}

/// Sends a datagram until the other end has it: one may be lost, and come twice then.
fn pass(number: u8, send: impl Fn(&[u8]) -> usize, receive: impl Fn(&mut [u8]) -> Option<usize>) {
    let mut bytes = [0; 2048];
    loop {
        assert_eq!(send(&datagram(number)), datagram(number).len());
        while let Some(len) = receive(&mut bytes) {
            if bytes[..len] == datagram(number) {
                return;
            }
            assert_eq!(bytes[..len], datagram(bytes[0]));
            assert!(bytes[0] < number);
        }
    }
}

#[test]
fn datagrams_pass_between_ours_and_librdmacms() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let Some(bench) = Bench::new() else { return };
    let (theirs, ours) = (bench.theirs(SOCK_DGRAM), Socket::datagram(bench.ours, false).unwrap());
    theirs.bind(bench.any());
    ours.bind(bench.any()).unwrap();
    let there = theirs.local_address();
    let here = ours.local_address().unwrap().unwrap();
    let over_udp = Cell::new(0);
    let send_ours = |bytes: &[u8]| ours.send_to(&[IoSlice::new(bytes)], there, 0).unwrap();
    let send_theirs = |bytes: &[u8]| theirs.send_to(bytes, here);
    let receive_theirs = |bytes: &mut [u8]| {
        theirs.is_readable(PATIENCE).then(|| {
            let (len, from) = theirs.receive(bytes);
            assert_eq!(from, here);
            len
        })
    };
    let receive_ours = |bytes: &mut [u8]| {
        let count = poll(&mut [PollEntry::socket(&ours, POLLIN)], Some(PATIENCE)).unwrap();
        over_udp.set(over_udp.get() + u8::from(came_over_udp(&ours)));
        (count == 1).then(|| {
            let (len, from) = ours.receive_from(&mut [IoSliceMut::new(bytes)], 0).unwrap();
            assert_eq!(from, Some(there));
            len
        })
    };
    for number in 0..COUNT {
        pass(number, send_ours, receive_theirs);
        pass(number, send_theirs, receive_ours);
    }
    assert!(over_udp.get() < COUNT / 2, "{} datagrams came over UDP", over_udp.get());
}
