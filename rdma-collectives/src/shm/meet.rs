//! How the ranks of a host meet: each pair gets a Unix socket over which segments pass.
//!
//! A rank listens under a random name, which it tells the others through the bootstrap, with its
//! process id and a secret. The kernel says which process is at the other side of a socket: only
//! the process that the bootstrap announced is accepted, by both sides, and it must run as the same
//! user. The process that connects also sends the secret of the one that listens.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::Error;
use crate::bootstrap::{Group, Watch};
use crate::text::PeerText;

/// Pause between two looks for a connection.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a secret.
const SECRET: usize = 16;
/// Bytes of the first record: the listener's secret, and the rank that connects.
const HELLO: usize = SECRET + 8;

/// The address and identity of a rank, which the others get through the bootstrap.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    name: String,
    secret: [u8; SECRET],
    pid: i32,
}

/// The socket under a rank's name, and its card.
struct Door {
    listener: UnixListener,
    card: Card,
}

impl Door {
    /// A door at which so many ranks may wait.
    fn open(ranks: usize) -> io::Result<Self> {
        let mut random = [0; 2 * SECRET];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let (name, secret) = random.split_at(SECRET);
        let name = name.iter().fold("rdma-shm-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on a Unix socket: {error}"));
        let listener = Self::listen(&name, ranks).map_err(named)?;
        let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let secret = secret.try_into().map_err(io::Error::other)?;
        Ok(Self { listener, card: Card { name, secret, pid } })
    }

    fn listen(name: &str, ranks: usize) -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&abstract_address(name)?)?;
        // Ranks call before this one accepts.
        socket.listen(i32::try_from(ranks).unwrap_or(i32::MAX))?;
        socket.set_nonblocking(true)?;
        Ok(UnixListener::from(OwnedFd::from(socket)))
    }

    /// The next connection, and the rank that it comes from.
    fn accept(&self, cards: &[Option<Card>], timeout: Duration) -> io::Result<Option<(usize, UnixStream)>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        // Others may connect, but are not heard.
        if !cards.iter().flatten().any(|card| card.is_of_peer(&stream).unwrap_or(false)) {
            return Ok(None);
        }
        // Every rank has written its hello before this one accepts.
        stream.set_nonblocking(true)?;
        let mut hello = [0; HELLO];
        if !(&stream).read(&mut hello).is_ok_and(|read| read == HELLO) {
            return Ok(None);
        }
        set_timeouts(&stream, timeout)?;
        let rank = hello[SECRET..].iter().fold(0, |rank, &byte| rank << 8 | usize::from(byte));
        let card = cards.get(rank).and_then(Option::as_ref);
        let is_rank = card.is_some_and(|card| card.is_of_peer(&stream).unwrap_or(false));
        Ok((is_rank && hello == self.card.hello(rank)).then_some((rank, stream)))
    }
}

impl Card {
    fn hello(&self, rank: usize) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..SECRET].copy_from_slice(&self.secret);
        hello[SECRET..].copy_from_slice(&(rank as u64).to_be_bytes());
        hello
    }

    /// Whether the process at the other side is the one that this card names, of the same user.
    fn is_of_peer(&self, stream: &UnixStream) -> io::Result<bool> {
        let peer = getsockopt(stream, sockopt::PeerCredentials)?;
        Ok(peer.pid() == self.pid && peer.uid() == geteuid().as_raw())
    }

    /// Connects rank `rank` to the rank that this card names.
    fn connect(&self, rank: usize, timeout: Duration) -> io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The wait for a listener whose backlog is full has this limit.
        socket.set_write_timeout(Some(timeout))?;
        socket.connect(&abstract_address(&self.name)?)?;
        let mut stream = UnixStream::from(OwnedFd::from(socket));
        if !self.is_of_peer(&stream)? {
            return Err(io::Error::other("another process has the name of its socket"));
        }
        set_timeouts(&stream, timeout)?;
        stream.write_all(&self.hello(rank))?;
        Ok(stream)
    }
}

/// The sockets to the other ranks of this host.
#[derive(Debug)]
pub(super) struct Meeting {
    /// The socket to each rank that has one.
    pub(super) streams: Vec<Option<UnixStream>>,
    /// The reason why a pair of ranks of one host has none, if there is such a pair; equal at all
    /// ranks.
    pub(super) why_not: Option<String>,
}

/// A rank, and the reason why it cannot be reached.
type Refusal = (usize, PeerText);

/// Connects this rank to the other ranks of its host; collective. A pair of ranks is connected at
/// both sides or at none.
pub(super) fn connect(group: &mut Group) -> Result<Meeting, Error> {
    let (rank, hosts) = (group.rank(), group.hosts());
    let door = Door::open(hosts.len());
    let card = door.as_ref().map(|door| door.card.clone()).map_err(|error| PeerText::from(error.to_string()));
    let cards: Vec<Result<Card, PeerText>> = group.all_gather("the sockets for shared memory", &card)?;
    let mut streams: Vec<Option<UnixStream>> = cards.iter().map(|_| None).collect();
    let mut refusals = Vec::<Refusal>::new();
    for peer in (0..rank).filter(|&peer| hosts[peer] == hosts[rank]) {
        match call(&card, &cards[peer], rank, group.timeout()) {
            Ok(stream) => streams[peer] = Some(stream),
            Err(why) => refusals.push((peer, why)),
        }
    }
    // A rank that has called is in the queue of the socket that it called.
    let all = group.all_gather("the calls for shared memory", &refusals)?;
    let is_calling = |peer: &usize| hosts[*peer] == hosts[rank] && all[*peer].iter().all(|(to, _)| *to != rank);
    let callers: Vec<usize> = (rank + 1..cards.len()).filter(is_calling).collect();
    let mut missed = Vec::<Refusal>::new();
    if let Ok(door) = &door {
        let cards: Vec<Option<Card>> = cards.into_iter().map(Result::ok).collect();
        let accepted = accept_all(door, &cards, &mut streams, &callers, (group.timeout(), &group.watch()));
        let why = PeerText::from(accepted.err().unwrap_or_default());
        missed.extend(callers.iter().filter(|&&peer| streams[peer].is_none()).map(|&peer| (peer, why.clone())));
    }
    let missed = group.all_gather("the connections for shared memory", &missed)?;
    for (peer, missed) in missed.iter().enumerate() {
        if missed.iter().any(|(from, _)| *from == rank) {
            streams[peer] = None;
        }
    }
    let first = |lists: Vec<Vec<Refusal>>| {
        let found = lists.into_iter().enumerate().find_map(|(rank, list)| Some((rank, list.into_iter().next()?)));
        found.map(|(rank, (peer, why))| format!("rank {rank} cannot reach rank {peer}: {why}"))
    };
    let why_not = first(all).or_else(|| first(missed));
    Ok(Meeting { streams, why_not })
}

/// Connects this rank to the rank that a card names, if both have a socket.
fn call(
    own: &Result<Card, PeerText>,
    peer: &Result<Card, PeerText>,
    rank: usize,
    timeout: Duration,
) -> Result<UnixStream, PeerText> {
    own.as_ref().map_err(PeerText::clone)?;
    peer.as_ref().map_err(PeerText::clone)?.connect(rank, timeout).map_err(|error| error.to_string().into())
}

/// Accepts the connections of the callers.
fn accept_all(
    door: &Door,
    cards: &[Option<Card>],
    streams: &mut [Option<UnixStream>],
    callers: &[usize],
    (timeout, watch): (Duration, &Watch),
) -> Result<(), String> {
    let deadline = Instant::now() + timeout;
    while callers.iter().any(|&peer| streams[peer].is_none()) {
        match door.accept(cards, timeout).map_err(|error| format!("cannot accept connections: {error}"))? {
            Some((peer, stream)) => streams[peer] = Some(stream),
            None => std::thread::sleep(PAUSE),
        }
        watch.check().map_err(|failure| failure.to_string())?;
        if Instant::now() > deadline {
            return Err("it has not connected".to_owned());
        }
    }
    Ok(())
}

fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

fn set_timeouts(stream: &UnixStream, timeout: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn accept(door: &Door, card: &Card) -> Option<usize> {
        // A connection that was just made is there at once.
        door.accept(&[Some(card.clone())], LONG).unwrap().map(|(rank, _)| rank)
    }

    #[test]
    fn a_rank_is_accepted_and_knows_the_listener() {
        let door = Door::open(1).unwrap();
        assert_eq!(accept(&door, &door.card), None);
        let _stream = door.card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, &door.card), Some(0));
    }

    /// A connection that says nothing, or too little, keeps no other rank from being accepted.
    #[test]
    fn a_short_hello_is_refused_at_once() {
        let door = Door::open(3).unwrap();
        let connect = || {
            UnixStream::from(OwnedFd::from({
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
                socket.connect(&abstract_address(&door.card.name).unwrap()).unwrap();
                socket
            }))
        };
        let (_silent, mut short) = (connect(), connect());
        short.write_all(&door.card.hello(0)[..HELLO - 1]).unwrap();
        drop(connect());
        let _stream = door.card.connect(0, LONG).unwrap();
        assert_eq!([(); 4].map(|()| accept(&door, &door.card)), [None, None, None, Some(0)]);
    }

    #[test]
    fn a_wrong_secret_and_another_process_are_refused() {
        let door = Door::open(1).unwrap();
        let mut card = door.card.clone();
        card.secret[3] ^= 1;
        let _stream = card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, &door.card), None);
        // A connection from this process, when another one is expected.
        let other = Card { pid: 1, ..door.card.clone() };
        let _stream = door.card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, &other), None);
        assert!(other.connect(0, LONG).unwrap_err().to_string().contains("another process"));
    }
}
