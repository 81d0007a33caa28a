//! A process of another host that holds the key, written from the documents alone
//! (`link/{hello,stream,tls}.rs`, `engine/wire.rs`): it can prove that it holds the key, and then
//! sends whatever it likes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::random::Random;
use crate::hosts::SECRET;

const NONCE: usize = 32;
const PROOF: usize = 32;
const FIRST: usize = 36 + 2 * NONCE;
const SECOND: usize = 32 + NONCE;
/// The bytes before a payload: its length and the header of six words.
pub(super) const HEAD: usize = 4 + 6 * 8;
/// Longer than any answer takes, but for a process that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

type Proof = [u8; PROOF];
/// Nonces, and as whom a process opens the connections with them.
type Openings = Vec<([u8; NONCE], Name)>;

/// A process as it names itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) slot: u16,
    instance: [u8; 16],
}

/// The purpose of a connection.
#[derive(Clone, Copy)]
enum Purpose {
    Link,
    Confirm([u8; NONCE]),
}

/// The messages of one handshake, which the proofs cover.
struct Transcript {
    addresses: [SocketAddr; 2],
    first: Vec<u8>,
    second: Vec<u8>,
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Proof {
    let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    parts.iter().fold(mac, |mac, part| mac.chain_update(part)).finalize().into_bytes().into()
}

impl Transcript {
    fn prove(&self, whose: &[u8; 8], answer: u8) -> Proof {
        let key = mac(SECRET.as_bytes(), &[b"rdma-soft tcp proof 1"]);
        let [opener, acceptor] = self.addresses.map(|address| {
            let IpAddr::V4(ip) = address.ip() else { panic!("IPv4 alone") };
            [&ip.to_ipv6_mapped().octets()[..], &address.port().to_le_bytes()].concat()
        });
        mac(&key, &[whose, &opener, &acceptor, &self.first, &self.second, &[answer]])
    }
}

/// Head of every message.
fn head() -> Vec<u8> {
    [&b"RDMAsoft"[..], &1_u32.to_le_bytes()].concat()
}

/// The process, with an address of its own.
pub(super) struct Caller {
    address: IpAddr,
    victim: SocketAddr,
    /// The slot of the process that is called.
    pub(super) target: u16,
    is_encrypted: bool,
    /// The connections that this process is opening.
    openings: Arc<Mutex<Openings>>,
}

impl Caller {
    /// A process at an address of its own, which says that its calls are its own.
    pub(super) fn new(address: IpAddr, victim: SocketAddr, target: u16, is_encrypted: bool) -> Self {
        let openings = Arc::<Mutex<Openings>>::default();
        let listener = TcpListener::bind((address, victim.port())).unwrap();
        let answering = Arc::clone(&openings);
        // The thread ends with the process.
        thread::spawn(move || {
            for call in listener.incoming().map_while(Result::ok) {
                // Other calls are hung up on, and one that fails is the victim's affair.
                let _answered = confirm(call, &answering, is_encrypted);
            }
        });
        Self { address, victim, target, is_encrypted, openings }
    }

    /// Connects without a word.
    pub(super) fn connect(&self) -> TcpStream {
        let socket = bound_to(self.address, self.victim);
        socket.set_nodelay(true).unwrap();
        for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
            set(&socket, Some(PATIENCE)).unwrap();
        }
        socket
    }

    pub(super) fn name(random: &mut Random, slot: u16) -> Name {
        Name { slot, instance: random.bytes() }
    }

    /// The first message of a call as a process.
    pub(super) fn first(&self, name: Name, random: &mut Random) -> Vec<u8> {
        self.first_for(Purpose::Link, name, random.bytes())
    }

    fn first_for(&self, purpose: Purpose, name: Name, nonce: [u8; NONCE]) -> Vec<u8> {
        let (purpose, subject) = match purpose {
            Purpose::Link => (1_u16, [0; NONCE]),
            Purpose::Confirm(nonce) => (2, nonce),
        };
        let words = [purpose, u16::from(self.is_encrypted), self.target, name.slot].map(u16::to_le_bytes).concat();
        let first = [&head()[..], &words, &name.instance, &nonce, &subject].concat();
        assert_eq!(first.len(), FIRST);
        self.openings.lock().unwrap().push((nonce, name));
        first
    }

    /// Sends a first message and takes the answer to it.
    pub(super) fn greet(&self, first: Vec<u8>) -> io::Result<Greeted> {
        let mut socket = self.connect();
        socket.write_all(&first)?;
        let (mut second, mut proof) = (vec![0; SECOND], [0; PROOF]);
        socket.read_exact(&mut second)?;
        socket.read_exact(&mut proof)?;
        let transcript = Transcript { addresses: [socket.local_addr()?, self.victim], first, second };
        assert!(proof == transcript.prove(b"acceptor", 0), "the victim holds the key");
        Ok(Greeted { socket, transcript })
    }

    /// Opens a link as a process, and proves everything.
    pub(super) fn open(&self, name: Name, random: &mut Random) -> io::Result<Pipe> {
        let (socket, seed) = self.call(name, random)?;
        if !self.is_encrypted {
            return Ok(Pipe::Clear(socket));
        }
        #[cfg(feature = "tls")]
        return super::tls::open(socket, seed).map(|stream| Pipe::Tls(Box::new(stream)));
        #[cfg(not(feature = "tls"))]
        panic!("encryption without the feature, {seed:?}");
    }

    /// Calls as a process until the victim has time for it.
    pub(super) fn call(&self, name: Name, random: &mut Random) -> io::Result<(TcpStream, [u8; 32])> {
        let end = Instant::now() + PATIENCE;
        loop {
            let greeted = self.greet(self.first(name, random))?;
            let proof = greeted.proof();
            let is_late = Instant::now() > end;
            match greeted.prove(proof) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && !is_late => {
                    thread::sleep(Duration::from_millis(2));
                }
                opened => return opened,
            }
        }
    }

    /// Asks the victim as a process of another host does whether it opens a connection; whether it
    /// says so.
    pub(super) fn asks(&self, name: Name, random: &mut Random) -> io::Result<bool> {
        let first = self.first_for(Purpose::Confirm(random.bytes()), name, random.bytes());
        let greeted = self.greet(first)?;
        let proof = greeted.proof();
        greeted.answer(proof).map(|(answer, ..)| answer == 1)
    }
}

/// Connects from an address.
fn bound_to(address: IpAddr, to: SocketAddr) -> TcpStream {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let raw = |address: SocketAddr| {
        let (IpAddr::V4(ip), port) = (address.ip(), address.port()) else { panic!("IPv4 alone") };
        libc::sockaddr_in {
            sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
            sin_zero: [0; 8],
        }
    };
    let len = libc::socklen_t::try_from(size_of::<libc::sockaddr_in>()).unwrap();
    // SAFETY: socket takes numbers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let (from, to) = (raw(SocketAddr::new(address, 0)), raw(to));
    // Another test may listen at the port that the kernel would choose without the peer's address,
    // or that an earlier connection had.
    for (level, option) in [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)] {
        let (on, len) = (1_i32, libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap());
        // SAFETY: reads `len` bytes of a live number.
        let set =
            unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const on).cast::<libc::c_void>(), len) };
        assert_eq!(set, 0);
    }
    // SAFETY: reads `len` bytes of a live address.
    assert_eq!(unsafe { libc::bind(fd.as_raw_fd(), (&raw const from).cast(), len) }, 0);
    // SAFETY: reads `len` bytes of a live address, as bind does.
    let connected = unsafe { libc::connect(fd.as_raw_fd(), (&raw const to).cast(), len) };
    assert_eq!(connected, 0, "{}", io::Error::last_os_error());
    TcpStream::from(fd)
}

/// A call that the victim has answered, before the caller's proof.
pub(super) struct Greeted {
    pub(super) socket: TcpStream,
    transcript: Transcript,
}

impl Greeted {
    /// The right proof.
    pub(super) fn proof(&self) -> Proof {
        self.transcript.prove(b"opener  ", 0)
    }

    fn answer(mut self, proof: Proof) -> io::Result<(u8, TcpStream, Transcript)> {
        self.socket.write_all(&proof)?;
        let (mut answer, mut proof) = ([0], [0; PROOF]);
        self.socket.read_exact(&mut answer)?;
        self.socket.read_exact(&mut proof)?;
        assert!(proof == self.transcript.prove(b"answer  ", answer[0]), "the victim holds the key");
        Ok((answer[0], self.socket, self.transcript))
    }

    /// Sends a proof. The connection, and the seed of the key pair of TLS, if the victim welcomes
    /// the caller.
    pub(super) fn prove(self, proof: Proof) -> io::Result<(TcpStream, [u8; 32])> {
        let (answer, socket, transcript) = self.answer(proof)?;
        if answer == 3 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        assert_eq!(answer, 1, "welcome");
        let seed = transcript.prove(b"tls seed", 1);
        Ok((socket, seed))
    }
}

/// Answers the question whether a connection is this process's.
fn confirm(mut socket: TcpStream, openings: &Mutex<Openings>, is_encrypted: bool) -> io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut first = vec![0; FIRST];
    socket.read_exact(&mut first)?;
    let is_question = first[12..14] == 2_u16.to_le_bytes();
    let nonce = &first[FIRST - NONCE..];
    let found = openings.lock().unwrap().iter().find(|(ours, _)| ours == nonce).copied();
    let Some((_, name)) = found.filter(|_| is_question) else { return Ok(()) };
    let words = [name.slot, u16::from(is_encrypted)].map(u16::to_le_bytes).concat();
    let second = [&head()[..], &words, &name.instance, &[9; NONCE]].concat();
    let transcript = Transcript { addresses: [socket.peer_addr()?, socket.local_addr()?], first, second };
    socket.write_all(&transcript.second)?;
    socket.write_all(&transcript.prove(b"acceptor", 0))?;
    let mut proof = [0; PROOF];
    socket.read_exact(&mut proof)?;
    assert!(proof == transcript.prove(b"opener  ", 0), "the victim asks");
    socket.write_all(&[1])?;
    socket.write_all(&transcript.prove(b"answer  ", 1))
}

/// A link, of which the caller writes every byte.
pub(super) enum Pipe {
    Clear(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::Encrypted>),
}

impl Pipe {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Clear(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// The connection below.
    pub(super) fn into_socket(self) -> TcpStream {
        match self {
            Self::Clear(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.sock,
        }
    }

    /// Sends bytes, within the records of TLS if there are any.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Clear(socket) => socket.write_all(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Clear(socket) => socket.read(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(bytes),
        }
    }

    /// Receives a frame's six words; its payload is thrown away.
    pub(super) fn frame(&mut self) -> io::Result<[u64; 6]> {
        let mut head = [0; HEAD];
        self.fill(&mut head)?;
        let (len, words) = head.split_at(4);
        let mut payload = vec![0; usize::try_from(u32::from_le_bytes(len.try_into().unwrap())).unwrap()];
        self.fill(&mut payload)?;
        let mut words = words.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        Ok(std::array::from_fn(|_| words.next().unwrap()))
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read(bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes = &mut bytes[count..],
            }
        }
        Ok(())
    }

    /// Takes what has come, and waits for nothing. An error if the link has ended.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        self.socket().set_nonblocking(true)?;
        let mut bytes = vec![0; 1 << 16];
        let ended = loop {
            match self.read(&mut bytes) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.socket().set_nonblocking(false)?;
        ended
    }

    /// Waits until the victim ends the link.
    pub(super) fn is_ended(&mut self) {
        ends(self.socket());
    }
}

/// Waits until the other side of a connection ends it, whatever comes before.
pub(super) fn ends(mut socket: &TcpStream) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the victim keeps the connection");
                return;
            }
        }
    }
}
