//! How two processes set up a link.
//!
//! ```text
//! opener                                          acceptor
//!   Hello { token's address, slots }          ->
//!                                             <-  Hello { opener's token, token's address, slots }
//!   Offer { acceptor's token, ring capacity } ->
//!     + link memory, doorbell, directory
//!                                             <-  Accept + doorbell, directory
//! ```
//!
//! Either may answer `Refuse { why }` instead. Blocking, on a socket with a time limit; never on the agent.

use core::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdma_mem::{Mapping, SharedMemory};

use super::duplex::Peer;
use super::memory::{Ends, Memory, Side};
use super::packet::{self, Body, Kind, Packet, VERSION};
use super::trust::{self, Credentials, TOKEN, Token};
use crate::engine::{DIRECTORY_LEN, Slot};

/// Slots that a Hello may name.
const MAX_SLOTS: usize = 64;

/// What a process brings into a handshake.
#[derive(Debug)]
pub(crate) struct Local<'a> {
    /// Its slots.
    pub(crate) slots: Vec<Slot>,
    /// What wakes its agent.
    pub(crate) bell: BorrowedFd<'a>,
    /// Where it publishes regions and queue pairs.
    pub(crate) directory: &'a SharedMemory,
    /// Bytes of a ring, if it makes the rings.
    pub(crate) capacity: usize,
}

/// A link that is up.
#[derive(Debug)]
pub(crate) struct Established {
    /// Its rings.
    pub(crate) ends: Ends,
    /// The other process.
    pub(crate) peer: Peer,
}

/// Why there is no link.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// No process has that slot.
    Nobody,
    /// The peer speaks another version.
    Version {
        /// Which one.
        theirs: u32,
    },
    /// The kernel does not let us trace the peer.
    Untraceable {
        /// Who it is.
        peer: Credentials,
        /// What the kernel said.
        error: io::Error,
    },
    /// The peer did not show that it may trace us.
    Unproved(Credentials),
    /// The peer refused, for this reason.
    ByPeer(String),
    /// Something failed.
    Io(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("no process has that number"),
            Self::Version { theirs } => write!(
                f,
                "the peer is of another version: it speaks version {theirs} of the software device's protocol, we speak \
                 {VERSION}; use the same build in both processes"
            ),
            Self::Untraceable { peer: Credentials { pid, uid }, error } => write!(
                f,
                "the kernel does not let us trace process {pid} of user {uid} ({error}); processes that share the software \
                 device must be of one user, in one container, and dumpable"
            ),
            Self::Unproved(Credentials { pid, uid }) => {
                write!(f, "process {pid} of user {uid} has not shown that the kernel lets it trace us")
            }
            Self::ByPeer(why) => write!(f, "the peer refuses: {why}"),
            Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock => f.write_str("the peer does not answer"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for Refusal {}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Nobody,
            _ => Self::Io(error),
        }
    }
}

/// Opens a link over a socket that is connected to the peer's slot.
pub(crate) fn open(socket: OwnedFd, local: &Local<'_>) -> Result<Established, Refusal> {
    let result = try_open(&socket, local);
    finish(socket, result)
}

/// Accepts a link over a socket that a peer connected.
pub(crate) fn accept(socket: OwnedFd, local: &Local<'_>) -> Result<Established, Refusal> {
    let result = try_accept(&socket, local);
    finish(socket, result)
}

/// What a handshake yields, but for the socket.
struct Agreed {
    ends: Ends,
    peer: Credentials,
    slots: Vec<Slot>,
    pidfd: OwnedFd,
    bell: OwnedFd,
    directory: Mapping,
}

fn finish(socket: OwnedFd, result: Result<Agreed, Refusal>) -> Result<Established, Refusal> {
    match result {
        Ok(Agreed { ends, peer, slots, pidfd, bell, directory }) => {
            set_nonblocking(&socket)?;
            let directory = Arc::new(directory);
            Ok(Established { ends, peer: Peer { pid: peer.pid, slots, socket, pidfd, bell, directory } })
        }
        Err(refusal) => {
            refuse(&socket, &refusal);
            Err(refusal)
        }
    }
}

fn refuse(socket: &OwnedFd, refusal: &Refusal) {
    if !matches!(refusal, Refusal::ByPeer(_) | Refusal::Nobody) {
        let text = refusal.to_string();
        let text = text.get(..text.len().min(400)).unwrap_or("");
        // Only a courtesy: the peer may be gone.
        let _sent: io::Result<()> = packet::send(socket, Kind::Refuse, &Body::default().bytes(text.as_bytes()), &[]);
    }
}

fn try_open(socket: &OwnedFd, local: &Local<'_>) -> Result<Agreed, Refusal> {
    let peer = identify(socket)?;
    let token = Token::new()?;
    packet::send(socket, Kind::Hello, &hello(&token, &local.slots), &[])?;

    let mut answer = expect(socket, Kind::Hello)?;
    let proof: [u8; TOKEN] = answer.body.take()?;
    if !token.is(&proof) {
        return Err(Refusal::Unproved(peer));
    }
    let (pidfd, proof, slots) = read_hello(socket, peer, &mut answer.body)?;

    let memory = Memory::create(local.capacity)?;
    let fd = memory.fd().ok_or_else(|| packet::invalid("memory of ours without a file"))?;
    let offer = Body::default().bytes(&proof).u64(local.capacity as u64);
    packet::send(socket, Kind::Offer, &offer, &[fd, local.bell, directory_fd(local)?])?;

    let accepted = expect(socket, Kind::Accept)?;
    let [bell, directory] = descriptors(accepted)?;
    Ok(Agreed {
        ends: memory.ends(Side::Opener),
        peer,
        slots,
        pidfd,
        bell: check_bell(bell)?,
        directory: Mapping::map(directory.as_fd(), DIRECTORY_LEN)?,
    })
}

fn try_accept(socket: &OwnedFd, local: &Local<'_>) -> Result<Agreed, Refusal> {
    let peer = identify(socket)?;
    let mut first = expect(socket, Kind::Hello)?;
    let token = Token::new()?;
    let (pidfd, proof, slots) = read_hello(socket, peer, &mut first.body)?;
    let answer = Body::default().bytes(&proof).bytes(hello(&token, &local.slots).rest());
    packet::send(socket, Kind::Hello, &answer, &[])?;

    let mut offer = expect(socket, Kind::Offer)?;
    let proof: [u8; TOKEN] = offer.body.take()?;
    if !token.is(&proof) {
        return Err(Refusal::Unproved(peer));
    }
    let capacity = usize::try_from(offer.body.take_u64()?).unwrap_or(usize::MAX);
    let [memory, bell, directory] = descriptors(offer)?;
    let memory = Memory::open(memory.as_fd(), capacity)?;
    let bell = check_bell(bell)?;
    let directory = Mapping::map(directory.as_fd(), DIRECTORY_LEN)?;
    packet::send(socket, Kind::Accept, &Body::default(), &[local.bell, directory_fd(local)?])?;
    Ok(Agreed { ends: memory.ends(Side::Acceptor), peer, slots, pidfd, bell, directory })
}

/// Turns away at once who cannot be let in, so that those who can need not queue behind them.
pub(crate) fn screen(socket: &OwnedFd) -> Result<(), Refusal> {
    identify(socket).map(drop).inspect_err(|refusal| refuse(socket, refusal))
}

/// Who the peer is, if it can be somebody who may trace us and whom we may trace: of two users one may not, as a rule. Saves
/// those who cannot, and us, the trouble.
fn identify(socket: &OwnedFd) -> Result<Credentials, Refusal> {
    let peer = trust::peer_of(socket)?;
    if peer.pid <= 0 || peer.uid != trust::own_uid() {
        let errno = if peer.pid <= 0 { libc::ESRCH } else { libc::EPERM };
        return Err(Refusal::Untraceable { peer, error: io::Error::from_raw_os_error(errno) });
    }
    Ok(peer)
}

fn hello(token: &Token, slots: &[Slot]) -> Body {
    let slots = &slots[..slots.len().min(MAX_SLOTS)];
    let body = Body::default().u64(token.address()).u64(slots.len() as u64);
    slots.iter().fold(body, |body, slot| body.bytes(&slot.0.to_ne_bytes()))
}

/// Reads a Hello from its token on: what watches the peer, its token, its slots.
fn read_hello(
    socket: &OwnedFd,
    peer: Credentials,
    body: &mut Body,
) -> Result<(OwnedFd, [u8; TOKEN], Vec<Slot>), Refusal> {
    let address = body.take_u64()?;
    let count = body.take_u64()?;
    if count > MAX_SLOTS as u64 {
        return Err(packet::invalid("the peer says that it has too many numbers").into());
    }
    let slots: io::Result<Vec<_>> = (0..count).map(|_| Ok(Slot(u16::from_ne_bytes(body.take()?)))).collect();
    let pidfd = trust::watch(socket, peer.pid)?;
    let proof = trust::read_token(peer.pid, address).map_err(|error| Refusal::Untraceable { peer, error })?;
    Ok((pidfd, proof, slots?))
}

/// The next packet, which has to be of one kind; a refusal and another version are what they are.
fn expect(socket: &OwnedFd, kind: Kind) -> Result<Packet, Refusal> {
    let packet = packet::receive(socket)?;
    if packet.version != VERSION {
        return Err(Refusal::Version { theirs: packet.version });
    }
    if packet.kind == Kind::Refuse as u32 {
        return Err(Refusal::ByPeer(String::from_utf8_lossy(packet.body.rest()).into_owned()));
    }
    if packet.kind != kind as u32 {
        return Err(packet::invalid("the peer does not keep to the protocol").into());
    }
    Ok(packet)
}

fn descriptors<const N: usize>(packet: Packet) -> Result<[OwnedFd; N], Refusal> {
    packet.fds.try_into().map_err(|_| packet::invalid("the peer sent too few or too many descriptors").into())
}

fn directory_fd<'a>(local: &Local<'a>) -> io::Result<BorrowedFd<'a>> {
    local.directory.fd().ok_or_else(|| packet::invalid("a directory without a file"))
}

/// Makes sure that ringing cannot block: a doorbell is an eventfd that does not block.
fn check_bell(bell: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { libc::fcntl(bell.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 || flags & libc::O_NONBLOCK == 0 {
        return Err(packet::invalid("the peer's doorbell may block"));
    }
    let target = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_raw_fd()));
    if target.is_ok_and(|target| target.as_os_str() != "anon_inode:[eventfd]") {
        return Err(packet::invalid("the peer's doorbell is not an eventfd"));
    }
    Ok(bell)
}

fn set_nonblocking(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: F_SETFL takes an int; the socket has no other flag.
    if unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
#[path = "handshake_tests.rs"]
mod tests;
