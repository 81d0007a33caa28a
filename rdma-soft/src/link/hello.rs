//! The handshake of two processes over TCP. Each side proves to the other that it holds the key.
//!
//! ```text
//! opener                                              acceptor
//!   First { purpose, protection, slots, nonce, subject }  ->
//!                                                 <-  Second { slot, protection, nonce, proof }
//!   proof                                         ->
//!                                                 <-  answer, proof
//!   [ handshake of TLS, unless the purpose is a question or the sides want none ]
//! ```
//!
//! All messages have fixed lengths, and numbers are little-endian. Whoever accepts a connection
//! reads First, which names a slot or a port of the connection manager, and passes the descriptor
//! to the process with that slot, or to the one that listens at that port. First is hostile until
//! the opener's proof has come: it decides only which process of this user goes on with the
//! handshake.
//!
//! Each proof covers both addresses and ports, as each side sees them, and all messages before it.
//! So nobody can forward a proof to another host or over another connection, use one again, or send
//! back the other side's own.
//!
//! Each side says whether it wants the frames encrypted ([`Protection`]), and the proofs cover both
//! words: nobody on the way can turn the encryption off. Two sides that want different things part
//! after their proofs, so each can tell its user why.
//!
//! An acceptor that has no place for its caller, or finds the called process full, says so in place
//! of Second ([`tell_busy`]). This answer is not proved: it has the caller call again, for a time,
//! and nothing else.
//!
//! Two processes agree on a link by their first slots, so that handshakes that both begin meet. The
//! acceptor answers a call to another slot of its own with Known, and Second has the first one.
//!
//! A process may speak for a slot only if its host agrees: the acceptor asks the process with that
//! slot, over a connection of its own to the opener's address (purpose [`Purpose::Confirm`]),
//! whether it is opening a connection with that nonce. A connection between two connection managers
//! (purpose [`Purpose::Port`]) gives the opener no slot, so nobody is asked.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::handshake::Answer;
use super::key::{Key, PROOF};
use super::port::Space;
use super::tls::{self, Protection, Records, TlsError};
use crate::engine::Slot;
use crate::os;
use crate::os::tcp::Tcp;

/// Version of the messages and of the frames that follow.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"RDMAsoft";
/// Bytes of a nonce.
pub(crate) const NONCE: usize = 32;
/// Limit of the time of a stranger, from its connection to its proof.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// Lengths of the messages.
pub(crate) const FIRST: usize = 8 + 4 + 2 + 2 + 4 + 16 + NONCE + NONCE;
const SECOND: usize = 8 + 4 + 4 + 16 + NONCE;
const ANSWER: usize = 1;
/// The magic and the version, which have the same places in the messages of all versions.
const HEAD: usize = 8 + 4;
/// An address and a port in a proof.
const ADDRESS: usize = 16 + 2;

/// A number that tells a process from earlier ones with its slot.
pub(crate) type Instance = [u8; 16];
pub(crate) type Nonce = [u8; NONCE];

/// A process on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The first slot of the process.
    pub(crate) slot: Slot,
    pub(crate) instance: Instance,
}

/// The two addresses of a connection, with their ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) opener: SocketAddr,
    pub(crate) acceptor: SocketAddr,
}

impl Route {
    /// The addresses of a connection that this process has opened.
    pub(crate) fn of_opener(socket: &Tcp) -> os::Result<Self> {
        Ok(Self { opener: canonical(socket.local()?), acceptor: canonical(socket.peer()?) })
    }

    /// The addresses of a connection that another process has opened.
    pub(crate) fn of_acceptor(socket: &Tcp) -> os::Result<Self> {
        Ok(Self { opener: canonical(socket.peer()?), acceptor: canonical(socket.local()?) })
    }

    fn bytes(self) -> [[u8; ADDRESS]; 2] {
        [self.opener, self.acceptor].map(|address| {
            let mut bytes = [0; ADDRESS];
            let mut to = Writer(&mut bytes, 0);
            to.put(&match address.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            });
            to.put(&address.port().to_le_bytes());
            bytes
        })
    }
}

/// An IPv4 address in one form, whatever socket it comes from.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What one side of a handshake holds and wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) key: &'a Key,
    pub(crate) protection: Protection,
}

/// The reason for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A link.
    Link,
    /// The question whether the process with the slot is opening the connection with this nonce.
    Confirm(Nonce),
    /// A connection of the connection manager to the listener at this port.
    Port(Space, u16),
}

/// The reason why a handshake over TCP failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HelloError {
    #[error("the peer is no software RDMA device")]
    Stranger,
    #[error(
        "the peer speaks version {0} of the protocol between hosts, we speak {VERSION}; use the same build on both hosts"
    )]
    Version(u32),
    #[error("the peer has another key, or the two hosts see different addresses of the connection (NAT)")]
    Proof,
    #[error("the peer does not keep to the protocol")]
    Malformed,
    #[error("the host is there, but has had no time for this call: too many others call it")]
    Busy,
    #[error("no process of that host has that number or listens at that port, or the host does not let us in")]
    Nobody,
    #[error("the process at the peer's address is not the one that has connected")]
    Unconfirmed,
    #[error("the caller has not said in time whom it calls, or proved that it holds the key")]
    Late,
    #[error("{}; set RDMA_SOFT_TLS alike on both hosts, or build both with the feature tls", mismatch(*.0))]
    Protection(Protection),
    #[error("{}", TlsError::Refused)]
    Encryption,
    #[error(transparent)]
    System(#[from] os::Error),
}

/// The error if the peer wants another protection than this side, which wants `ours`.
fn mismatch(ours: Protection) -> &'static str {
    match ours {
        Protection::Tls => "the peer does not encrypt its frames, this process does",
        Protection::None => "the peer encrypts its frames, this process does not",
    }
}

impl HelloError {
    /// Whether the host may answer another call: whoever accepted this one did not, or has died.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Self::Nobody => true,
            Self::System(error) => matches!(
                error.errno,
                // The last is of a socket that is asked for its peer after a reset.
                Errno::ETIMEDOUT | Errno::ECONNRESET | Errno::ECONNABORTED | Errno::EPIPE | Errno::ENOTCONN
            ),
            _ => false,
        }
    }
}

impl From<TlsError> for HelloError {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Refused => Self::Encryption,
            TlsError::System(error) => Self::System(error),
        }
    }
}

/// The first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) purpose: Purpose,
    /// What the opener wants.
    pub(crate) protection: Protection,
    /// The slot of the process that is called; 0 for the one that listens at a port.
    pub(crate) target: Slot,
    /// The opener, by its own account.
    pub(crate) opener: Identity,
    pub(crate) nonce: Nonce,
}

/// Appends to a message of a fixed length, and takes from one.
struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().map_or(([0; N], &self.0[..0]), |(taken, rest)| (*taken, rest));
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn slot(&mut self) -> Slot {
        Slot(self.number())
    }

    /// Whether the next number is this one, which is not taken.
    fn has_number(&self, number: u16) -> bool {
        self.0.starts_with(&number.to_le_bytes())
    }

    fn protection(&mut self) -> Result<Protection, HelloError> {
        let protections = [Protection::None, Protection::Tls];
        let code = self.number();
        protections.into_iter().find(|one| protection_code(*one) == code).ok_or(HelloError::Malformed)
    }

    /// Checks the beginning of every message.
    fn check(&mut self) -> Result<(), HelloError> {
        if self.take() != MAGIC {
            return Err(HelloError::Stranger);
        }
        match u32::from_le_bytes(self.take()) {
            VERSION => Ok(()),
            other => Err(HelloError::Version(other)),
        }
    }
}

/// The protection in the message of [`tell_busy`].
const BUSY: u16 = u16::MAX;

const fn protection_code(protection: Protection) -> u16 {
    match protection {
        Protection::None => 0,
        Protection::Tls => 1,
    }
}

impl First {
    pub(crate) fn bytes(&self) -> [u8; FIRST] {
        let mut bytes = [0; FIRST];
        let mut to = Writer(&mut bytes, 0);
        to.put(&MAGIC);
        to.put(&VERSION.to_le_bytes());
        let (purpose, subject) = match self.purpose {
            Purpose::Link => (1_u16, [0; NONCE]),
            Purpose::Confirm(subject) => (2, subject),
            Purpose::Port(space, port) => (3, port_subject(space, port)),
        };
        to.put(&purpose.to_le_bytes());
        to.put(&protection_code(self.protection).to_le_bytes());
        to.put(&self.target.0.to_le_bytes());
        to.put(&self.opener.slot.0.to_le_bytes());
        to.put(&self.opener.instance);
        to.put(&self.nonce);
        to.put(&subject);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; FIRST]) -> Result<Self, HelloError> {
        let mut from = Reader(bytes);
        from.check()?;
        let purpose = from.number();
        let protection = from.protection()?;
        let target = from.slot();
        let opener = Identity { slot: from.slot(), instance: from.take() };
        let nonce = from.take();
        let purpose = match (purpose, from.take()) {
            (1, subject) if subject == [0; NONCE] => Purpose::Link,
            (2, subject) => Purpose::Confirm(subject),
            (3, subject) => {
                let (space, port) = port_of(&subject).ok_or(HelloError::Malformed)?;
                Purpose::Port(space, port)
            }
            _ => return Err(HelloError::Malformed),
        };
        let names_a_slot = !matches!(purpose, Purpose::Port(..));
        let is_target = if names_a_slot { target.is_real() } else { target == Slot(0) };
        if !is_target || !opener.slot.is_real() {
            return Err(HelloError::Malformed);
        }
        Ok(Self { purpose, protection, target, opener, nonce })
    }
}

/// The first message of a stranger, of which a part has come.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: [u8; FIRST],
    filled: usize,
}

impl Incoming {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; FIRST], filled: 0 }
    }

    /// Reads what has arrived, and never waits. The message, once it is whole. A stranger of
    /// another version is told ours.
    pub(crate) fn read(&mut self, socket: &Tcp) -> Result<Option<First>, HelloError> {
        while self.filled < FIRST {
            match socket.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(os::Error { call: "recv", errno: Errno::ECONNRESET }.into()),
                Ok(count) => self.filled += count,
                Err(os::Error { errno: Errno::EAGAIN, .. }) => break,
                Err(os::Error { errno: Errno::EINTR, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let first = match self.filled {
            FIRST => First::parse(&self.bytes).map(Some),
            // Other programs are recognised at once, and messages of other versions may be shorter.
            HEAD.. => Reader(&self.bytes).check().map(|()| None),
            _ => Ok(None),
        };
        if let Err(HelloError::Version(_)) = first {
            let none = protection_code(Protection::None);
            // The stranger may have hung up.
            let _told: os::Result<()> = socket.write_all(&second(NOBODY, none, &[0; NONCE]), Instant::now());
        }
        first
    }
}

/// A port in the place of a nonce: port space, zero, port, zeroes.
fn port_subject(space: Space, port: u16) -> Nonce {
    let mut subject = [0; NONCE];
    let mut to = Writer(&mut subject, 0);
    to.put(&[space.code(), 0]);
    to.put(&port.to_le_bytes());
    subject
}

fn port_of(subject: &Nonce) -> Option<(Space, u16)> {
    let mut from = Reader(subject);
    let [space, _] = from.take();
    let (space, port) = (Space::of_code(space)?, u16::from_le_bytes(from.take()));
    (port != 0 && *subject == port_subject(space, port)).then_some((space, port))
}

/// The sender of a message in which no process speaks for itself.
const NOBODY: Identity = Identity { slot: Slot(0), instance: [0; 16] };

/// Tells a caller to which nothing was said yet that it must call again. Never waits.
pub(crate) fn tell_busy(socket: &Tcp) {
    // The caller may have hung up.
    let _told: os::Result<()> = socket.write_all(&second(NOBODY, BUSY, &[0; NONCE]), Instant::now());
}

fn second(us: Identity, protection: u16, nonce: &Nonce) -> [u8; SECOND] {
    let mut bytes = [0; SECOND];
    let mut to = Writer(&mut bytes, 0);
    to.put(&MAGIC);
    to.put(&VERSION.to_le_bytes());
    to.put(&us.slot.0.to_le_bytes());
    to.put(&protection.to_le_bytes());
    to.put(&us.instance);
    to.put(nonce);
    bytes
}

/// The messages that the proofs of one handshake cover.
struct Transcript<'a> {
    key: &'a Key,
    route: [[u8; ADDRESS]; 2],
    first: [u8; FIRST],
    second: [u8; SECOND],
}

/// Whose proof it is. Two equal texts would let a peer send a proof back.
const SECOND_PROOF: &[u8; 8] = b"acceptor";
const THIRD_PROOF: &[u8; 8] = b"opener  ";
const ANSWER_PROOF: &[u8; 8] = b"answer  ";
/// Not a proof: the seed of the key pair of TLS, which is never sent.
const TLS_SEED: &[u8; 8] = b"tls seed";

impl Transcript<'_> {
    fn with<R>(&self, whose: &[u8; 8], answer: &[u8; ANSWER], call: impl FnOnce(&Key, &[&[u8]]) -> R) -> R {
        let [opener, acceptor] = &self.route;
        call(self.key, &[whose, opener, acceptor, &self.first, &self.second, answer])
    }

    fn prove(&self, whose: &[u8; 8], answer: &[u8; ANSWER]) -> [u8; PROOF] {
        self.with(whose, answer, Key::prove)
    }

    fn check(&self, whose: &[u8; 8], answer: &[u8; ANSWER], proof: &[u8; PROOF]) -> Result<(), HelloError> {
        let is_proof = self.with(whose, answer, |key, parts| key.is_proof(parts, proof));
        if is_proof { Ok(()) } else { Err(HelloError::Proof) }
    }

    /// The seed of the key pair of TLS: other nonces, addresses, slots or words give another one.
    fn seed(&self) -> [u8; tls::SEED] {
        self.prove(TLS_SEED, &[code(Answer::Welcome)])
    }
}

const fn code(answer: Answer) -> u8 {
    match answer {
        Answer::Welcome => 1,
        Answer::Known => 2,
        Answer::Busy => 3,
    }
}

fn answer_of(code: u8) -> Option<Answer> {
    [Answer::Welcome, Answer::Known, Answer::Busy].into_iter().find(|answer| self::code(*answer) == code)
}

/// Whether the frames that follow are encrypted.
fn is_encrypted(first: &First, answer: Answer) -> bool {
    let carries = !matches!(first.purpose, Purpose::Confirm(_)) && answer == Answer::Welcome;
    carries && first.protection == Protection::Tls
}

/// What the opener learns from a handshake.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) acceptor: Identity,
    pub(crate) answer: Answer,
    /// The encryption of the frames that follow; `None` for frames in the clear.
    pub(crate) records: Option<Records>,
}

/// Runs the opener's side over a connection.
pub(crate) fn open(
    socket: &Tcp,
    key: &Key,
    route: Route,
    first: &First,
    deadline: Instant,
) -> Result<Opened, HelloError> {
    socket.write_all(&first.bytes(), deadline)?;
    let mut message = [0; SECOND];
    socket.read_exact(&mut message, deadline).map_err(|error| match error.errno {
        // Nobody took the connection over.
        Errno::ECONNRESET => HelloError::Nobody,
        _ => error.into(),
    })?;
    let mut from = Reader(&message);
    from.check()?;
    let acceptor = from.slot();
    if from.has_number(BUSY) {
        return Err(HelloError::Busy);
    }
    let protection = from.protection()?;
    let acceptor = Identity { slot: acceptor, instance: from.take() };
    let transcript = Transcript { key, route: route.bytes(), first: first.bytes(), second: message };
    let mut proof = [0; PROOF];
    socket.read_exact(&mut proof, deadline)?;
    transcript.check(SECOND_PROOF, &[0], &proof)?;
    socket.write_all(&transcript.prove(THIRD_PROOF, &[0]), deadline)?;
    if protection != first.protection {
        return Err(HelloError::Protection(first.protection));
    }
    let mut answer = [0; ANSWER];
    socket.read_exact(&mut answer, deadline)?;
    socket.read_exact(&mut proof, deadline)?;
    transcript.check(ANSWER_PROOF, &answer, &proof)?;
    let answer = answer_of(answer[0]).filter(|_| acceptor.slot.is_real()).ok_or(HelloError::Malformed)?;
    let records = match is_encrypted(first, answer) {
        true => Some(tls::open(socket, transcript.seed(), deadline)?),
        false => None,
    };
    Ok(Opened { acceptor, answer, records })
}

/// Runs the acceptor's side over a connection whose first message has come. `decide` chooses the
/// answer after the opener's proof, by `deadline` at most then `decide` may take longer. Returns
/// the encryption of the frames that follow, too; `None` for frames in the clear.
pub(crate) fn accept(
    socket: &Tcp,
    Terms { key, protection }: Terms<'_>,
    route: Route,
    first: &First,
    us: Identity,
    deadline: Instant,
    decide: impl FnOnce() -> Result<Answer, HelloError>,
) -> Result<(Answer, Option<Records>), HelloError> {
    let message = second(us, protection_code(protection), &os::random()?);
    let transcript = Transcript { key, route: route.bytes(), first: first.bytes(), second: message };
    socket.write_all(&message, deadline)?;
    socket.write_all(&transcript.prove(SECOND_PROOF, &[0]), deadline)?;
    let mut proof = [0; PROOF];
    socket.read_exact(&mut proof, deadline)?;
    transcript.check(THIRD_PROOF, &[0], &proof)?;
    if first.protection != protection {
        return Err(HelloError::Protection(protection));
    }
    let answer = decide()?;
    let code = [code(answer)];
    let deadline = Instant::now() + PATIENCE;
    socket.write_all(&code, deadline)?;
    socket.write_all(&transcript.prove(ANSWER_PROOF, &code), deadline)?;
    let records = match is_encrypted(first, answer) {
        true => Some(tls::accept(socket, transcript.seed(), deadline)?),
        false => None,
    };
    Ok((answer, records))
}

#[cfg(test)]
mod tests;
