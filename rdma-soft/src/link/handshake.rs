//! The handshake with which two processes set up a link.
//!
//! ```text
//! opener                                          acceptor
//!   Hello { token's address, slots }          ->
//!                                             <-  Hello { opener's token, token's address, slots }
//!   Offer { acceptor's token, ring capacity } ->
//!     + link memory, directory, bell
//!                                             <-  Accept + directory, bell
//! ```
//!
//! Two processes share one link. The acceptor answers `Known { slots }` to an opener that it has a
//! link with already, and `Busy` while another handshake of the two processes is under way. Either
//! side may answer `Refuse { why }`. A handshake blocks, so it runs in a thread of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use rdma_mem::{Mapping, SharedMemory, SharedMemoryError};

use super::memory::{Ends, Memory, Side};
use super::peer::Peer;
use super::trust::{self, TOKEN, Token};
use super::wire::{self, Body, Error, Kind, Packet, VERSION};
use crate::engine::{DIRECTORY_LEN, Slot};
use crate::os;
use crate::os::bell::Bell;
use crate::os::process::{self, Credentials};
use crate::os::socket::Socket;

/// Limit of the slots in a Hello.
const MAX_SLOTS: usize = 64;
/// Limit of one wait for the other side's next packet.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// One process's part of a handshake.
#[derive(Debug)]
pub(crate) struct Local<'a> {
    /// The slots of the process.
    pub(crate) slots: Vec<Slot>,
    /// The directory in which the process publishes its regions and queue pairs.
    pub(crate) directory: &'a SharedMemory,
    /// Capacity in bytes of each ring, used if the process is the opener.
    pub(crate) capacity: usize,
}

/// A link that is up.
#[derive(Debug)]
pub(crate) struct Established {
    /// This process's sides of the rings.
    pub(crate) ends: Ends,
    /// The other process, with the slots that it claims.
    pub(crate) peer: Peer,
}

/// The outcome of a handshake that this process began.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A new link is set up.
    New(Box<Established>),
    /// A link to the process existed already; these are the slots that the process claims.
    Known(Vec<Slot>),
    /// The peer has another handshake with this process under way.
    Busy,
}

/// The acceptor's answer to a process that it does not refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Set up a link.
    Welcome,
    /// A link exists already.
    Known,
    /// Another handshake with the process is under way.
    Busy,
}

/// The reason why no link was set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// No process has that slot.
    #[error("no process of this network namespace has that number; it has ended, or is in another container")]
    Nobody,
    /// The peer died during the handshake.
    #[error("process {} has died", .0.pid)]
    Died(Credentials),
    /// The peer uses another version of the protocol.
    #[error(
        "the peer is of another version: it speaks version {theirs} of the software device's protocol, we speak {VERSION}; \
         use the same build in both processes"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
    },
    /// The kernel does not let this process trace the peer.
    #[error(
        "the kernel does not let us trace process {} of user {} ({error}); processes that share the software device must be \
         of one user, in one container (one network, pid and user namespace), and dumpable", peer.pid, peer.uid
    )]
    Untraceable {
        /// The peer's credentials.
        peer: Credentials,
        /// The error of the kernel.
        error: os::Error,
    },
    /// The peer did not prove that the kernel lets it trace this process.
    #[error("process {} of user {} has not shown that the kernel lets it trace us", .0.pid, .0.uid)]
    Unproved(Credentials),
    /// The peer refused, for this reason.
    #[error("the peer refuses: {0}")]
    ByPeer(String),
    /// The peer did not answer in time.
    #[error("the peer does not answer")]
    Silent,
    /// The socket failed, or the peer violated the protocol.
    #[error(transparent)]
    Packet(Error),
    /// The memory of the link could not be made, or the peer's memory is not a sealed memfd of the
    /// announced size.
    #[error("the memory of the link: {0}")]
    Memory(#[from] SharedMemoryError),
}

impl From<os::Error> for Refusal {
    fn from(error: os::Error) -> Self {
        match error.errno {
            Errno::ECONNREFUSED => Self::Nobody,
            Errno::EAGAIN => Self::Silent,
            _ => Self::Packet(Error::System(error)),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::System(error) => error.into(),
            error => Self::Packet(error),
        }
    }
}

/// Opens a link over a socket that is connected to the peer's slot.
pub(crate) fn open(socket: Socket, local: &Local<'_>) -> Result<Opened, Refusal> {
    match try_open(&socket, local) {
        Ok(Ok(agreed)) => Ok(Opened::New(Box::new(agreed.over(socket)))),
        Ok(Err(opened)) => Ok(opened),
        Err(refusal) => Err(tell(&socket, refusal)),
    }
}

/// Receives the first packet on a socket that a peer connected.
pub(crate) fn receive(socket: &Socket) -> Result<Packet, Refusal> {
    next(socket).map_err(|refusal| tell(socket, refusal))
}

/// Accepts a link over a socket that a peer connected and whose first packet has come. `answer`
/// chooses the answer from the peer's process id and the slots that the peer claims. None if the
/// answer is not [`Answer::Welcome`].
pub(crate) fn accept(
    socket: Socket,
    first: Packet,
    local: &Local<'_>,
    answer: impl FnOnce(i32, &[Slot]) -> Answer,
) -> Result<Option<Established>, Refusal> {
    match try_accept(&socket, first, local, answer) {
        Ok(agreed) => Ok(agreed.map(|agreed| agreed.over(socket))),
        Err(refusal) => Err(tell(&socket, refusal)),
    }
}

/// Refuses at once a process that cannot get a link, so that other processes need not queue behind
/// it.
pub(crate) fn screen(socket: &Socket) -> Result<(), Refusal> {
    identify(socket).map(drop).map_err(|refusal| tell(socket, refusal))
}

/// The result of a handshake without the socket.
struct Agreed {
    ends: Ends,
    hello: Hello,
    directory: Mapping,
    bell: Bell,
    our_bell: Bell,
}

impl Agreed {
    fn over(self, socket: Socket) -> Established {
        let Self { ends, hello, directory, bell, our_bell } = self;
        let Hello { pid, pidfd, slots, .. } = hello;
        let peer = Peer { pid, slots, socket, bell, our_bell, pidfd, directory: Arc::new(directory) };
        Established { ends, peer }
    }
}

/// Sends the refusal to the peer, and returns it.
fn tell(socket: &Socket, refusal: Refusal) -> Refusal {
    if !matches!(refusal, Refusal::ByPeer(_) | Refusal::Nobody) {
        let text = refusal.to_string();
        let text = text.get(..text.len().min(400)).unwrap_or("");
        // The peer may have closed the socket.
        let _told: os::Result<()> = wire::send(socket, Kind::Refuse, &Body::default().bytes(text.as_bytes()), &[]);
    }
    refusal
}

fn try_open(socket: &Socket, local: &Local<'_>) -> Result<Result<Agreed, Opened>, Refusal> {
    let peer = identify(socket)?;
    let token = Token::new()?;
    wire::send(socket, Kind::Hello, &hello(&token, &local.slots), &[])?;

    let mut answer = next(socket)?;
    if answer.kind == Kind::Known as u32 {
        return Ok(Err(Opened::Known(take_slots(&mut answer.body)?)));
    }
    if answer.kind == Kind::Busy as u32 {
        return Ok(Err(Opened::Busy));
    }
    let mut answer = of_kind(answer, Kind::Hello)?;
    check_proof(&token, peer, &mut answer.body)?;
    let hello = Hello::read(socket, peer, &mut answer.body)?;

    let (memory, file) = Memory::create(local.capacity)?;
    let our_bell = Bell::new()?;
    let fds = [file.as_fd(), fd_of(local.directory)?, our_bell.as_fd()];
    wire::send(socket, Kind::Offer, &Body::default().bytes(&hello.token).u64(local.capacity as u64), &fds)?;

    let [directory, bell] = descriptors(of_kind(next(socket)?, Kind::Accept)?)?;
    let directory = Mapping::map(directory.as_fd(), DIRECTORY_LEN)?;
    let bell = our_bell.of_peer(bell)?;
    Ok(Ok(Agreed { ends: memory.ends(Side::Opener), hello, directory, bell, our_bell }))
}

fn try_accept(
    socket: &Socket,
    first: Packet,
    local: &Local<'_>,
    answer: impl FnOnce(i32, &[Slot]) -> Answer,
) -> Result<Option<Agreed>, Refusal> {
    let peer = identify(socket)?;
    let mut first = of_kind(first, Kind::Hello)?;
    let token = Token::new()?;
    let theirs = Hello::read(socket, peer, &mut first.body)?;
    match answer(peer.pid, &theirs.slots) {
        Answer::Welcome => {}
        Answer::Known => {
            wire::send(socket, Kind::Known, &put_slots(Body::default(), &local.slots), &[])?;
            return Ok(None);
        }
        Answer::Busy => {
            wire::send(socket, Kind::Busy, &Body::default(), &[])?;
            return Ok(None);
        }
    }
    let ours = Body::default().bytes(&theirs.token).bytes(hello(&token, &local.slots).rest());
    wire::send(socket, Kind::Hello, &ours, &[])?;

    let mut offer = of_kind(next(socket)?, Kind::Offer)?;
    check_proof(&token, peer, &mut offer.body)?;
    let capacity = usize::try_from(offer.body.take_u64()?).unwrap_or(usize::MAX);
    let [memory, directory, bell] = descriptors(offer)?;
    let memory = Memory::open(memory.as_fd(), capacity)?;
    let directory = Mapping::map(directory.as_fd(), DIRECTORY_LEN)?;
    let our_bell = Bell::new()?;
    let bell = our_bell.of_peer(bell)?;
    wire::send(socket, Kind::Accept, &Body::default(), &[fd_of(local.directory)?, our_bell.as_fd()])?;
    Ok(Some(Agreed { ends: memory.ends(Side::Acceptor), hello: theirs, directory, bell, our_bell }))
}

/// The peer's credentials. Refuses a process of another user, since the kernel as a rule does not
/// let two users trace each other, and a process of another pid namespace (pid 0).
fn identify(socket: &Socket) -> Result<Credentials, Refusal> {
    let peer = socket.peer()?;
    let errno = match peer {
        Credentials { pid: ..=0, .. } => Errno::ESRCH,
        peer if !peer.is_own_user() => Errno::EPERM,
        peer => return Ok(peer),
    };
    Err(Refusal::Untraceable { peer, error: os::Error { call: "process_vm_readv", errno } })
}

fn hello(token: &Token, slots: &[Slot]) -> Body {
    put_slots(Body::default().u64(token.address()), slots)
}

fn put_slots(body: Body, slots: &[Slot]) -> Body {
    let slots = &slots[..slots.len().min(MAX_SLOTS)];
    slots.iter().fold(body.u64(slots.len() as u64), |body, slot| body.bytes(&slot.0.to_ne_bytes()))
}

fn take_slots(body: &mut Body) -> Result<Vec<Slot>, Error> {
    let count = body.take_u64()?;
    if count > MAX_SLOTS as u64 {
        return Err(Error::Malformed("the peer says that it has too many numbers"));
    }
    (0..count).map(|_| Ok(Slot(u16::from_ne_bytes(body.take()?)))).collect()
}

fn check_proof(token: &Token, peer: Credentials, body: &mut Body) -> Result<(), Refusal> {
    if token.is(&body.take()?) { Ok(()) } else { Err(Refusal::Unproved(peer)) }
}

/// A peer's Hello, and the peer's credentials from the kernel.
struct Hello {
    pid: i32,
    pidfd: OwnedFd,
    /// Token read from the peer's memory.
    token: [u8; TOKEN],
    slots: Vec<Slot>,
}

impl Hello {
    /// Reads a Hello, whose body starts at the token's address.
    fn read(socket: &Socket, peer: Credentials, body: &mut Body) -> Result<Self, Refusal> {
        let address = body.take_u64()?;
        let slots = take_slots(body)?;
        let is_gone = |error: os::Error| error.errno == Errno::ESRCH;
        // Opened before the token is read: if the process dies and another process gets its pid,
        // that process cannot prove anything.
        let pidfd = socket.peer_pidfd(peer.pid);
        let pidfd = pidfd.map_err(|error| if is_gone(error) { Refusal::Died(peer) } else { error.into() })?;
        let token = trust::read_token(peer.pid, address).map_err(|error| {
            // The kernel has other errors for a process that is about to end.
            let has_died = is_gone(error) || process::has_died(&pidfd);
            if has_died { Refusal::Died(peer) } else { Refusal::Untraceable { peer, error } }
        })?;
        Ok(Self { pid: peer.pid, pidfd, token, slots })
    }
}

/// Receives the next packet. Fails if the packet is a refusal or has another version.
fn next(socket: &Socket) -> Result<Packet, Refusal> {
    socket.wait_readable(PATIENCE)?;
    let packet = wire::receive(socket)?;
    if packet.version != VERSION {
        return Err(Refusal::Version { theirs: packet.version });
    }
    if packet.kind == Kind::Refuse as u32 {
        return Err(Refusal::ByPeer(String::from_utf8_lossy(packet.body.rest()).into_owned()));
    }
    Ok(packet)
}

fn of_kind(packet: Packet, kind: Kind) -> Result<Packet, Error> {
    if packet.kind == kind as u32 {
        Ok(packet)
    } else {
        Err(Error::Malformed("the peer does not keep to the protocol"))
    }
}

fn descriptors<const N: usize>(packet: Packet) -> Result<[OwnedFd; N], Error> {
    packet.fds.try_into().map_err(|_| {
        Error::Malformed("the peer sent too few or too many descriptors, or this process has too many open files")
    })
}

fn fd_of(memory: &SharedMemory) -> Result<BorrowedFd<'_>, SharedMemoryError> {
    memory.fd().ok_or(SharedMemoryError::Forked)
}

#[cfg(test)]
mod tests;
