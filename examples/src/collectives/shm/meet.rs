//! How the ranks of a host meet: each pair gets a Unix socket over which segments pass.
//!
//! A rank listens under a random name, which it tells the others through the bootstrap, with its
//! process id and a secret. The kernel says which process is at the other end of a socket: only the
//! process that the bootstrap announced is accepted, by both sides, and it must run as the same
//! user. The process that connects also sends the secret of the one that listens.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::bootstrap::{Group, Watch};

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
    fn open() -> io::Result<Self> {
        let mut random = [0; 2 * SECRET];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let (name, secret) = random.split_at(SECRET);
        let name = name.iter().fold("rdma-shm-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let secret = secret.try_into().map_err(io::Error::other)?;
        Ok(Self { listener, card: Card { name, secret, pid } })
    }

    /// The next connection, and the rank that it comes from.
    fn accept(&self, cards: &[Card], timeout: Duration) -> io::Result<Option<(usize, UnixStream)>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        // Others may connect, but are not heard.
        if !cards.iter().any(|card| card.is_of_peer(&stream).unwrap_or(false)) {
            return Ok(None);
        }
        set_timeouts(&stream, timeout)?;
        let mut hello = [0; HELLO];
        (&stream).read_exact(&mut hello)?;
        let rank = hello[SECRET..].iter().fold(0, |rank, &byte| rank << 8 | usize::from(byte));
        let is_rank = cards.get(rank).is_some_and(|card| card.is_of_peer(&stream).unwrap_or(false));
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

    /// Whether the process at the other end is that of this card, of this process's user.
    fn is_of_peer(&self, stream: &UnixStream) -> io::Result<bool> {
        let peer = getsockopt(stream, sockopt::PeerCredentials)?;
        Ok(peer.pid() == self.pid && peer.uid() == geteuid().as_raw())
    }

    /// Connects rank `rank` to the one of this card.
    fn connect(&self, rank: usize, timeout: Duration) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&self.name)?)?;
        if !self.is_of_peer(&stream)? {
            return Err(io::Error::other("another process has the name of its socket"));
        }
        set_timeouts(&stream, timeout)?;
        stream.write_all(&self.hello(rank))?;
        Ok(stream)
    }
}

/// Connects this rank to every other one; collective. The inner error says why ranks cannot reach
/// each other; all ranks get the same.
pub(super) fn connect(group: &mut Group) -> Result<Result<Vec<Option<UnixStream>>, String>, Failure> {
    let door = Door::open();
    let card = door.as_ref().map(|door| door.card.clone()).map_err(ToString::to_string);
    let cards = group.all_gather("the sockets for shared memory", &card)?;
    let cards: Result<Vec<Card>, String> = cards.into_iter().collect();
    let streams = match (door, cards) {
        (Ok(door), Ok(cards)) => connect_all(&door, &cards, group.rank(), group.timeout(), &group.watch()),
        (_, Err(why)) => Err(why),
        (Err(error), _) => Err(error.to_string()),
    };
    let failed = streams.as_ref().err().cloned();
    let all = group.all_gather("the connections for shared memory", &failed)?;
    match all.into_iter().enumerate().find_map(|(rank, why)| Some((rank, why?))) {
        Some((rank, why)) => Ok(Err(format!("rank {rank}: {why}"))),
        None => Ok(streams),
    }
}

fn connect_all(
    door: &Door,
    cards: &[Card],
    rank: usize,
    timeout: Duration,
    watch: &Watch,
) -> Result<Vec<Option<UnixStream>>, String> {
    let mut streams: Vec<Option<UnixStream>> = cards.iter().map(|_| None).collect();
    for (peer, card) in cards.iter().enumerate().take(rank) {
        let stream = card.connect(rank, timeout).map_err(|error| format!("cannot reach rank {peer}: {error}"))?;
        streams[peer] = Some(stream);
    }
    let deadline = Instant::now() + timeout;
    while let Some(missing) = (rank + 1..cards.len()).find(|&peer| streams[peer].is_none()) {
        match door.accept(cards, timeout).map_err(|error| format!("cannot accept connections: {error}"))? {
            Some((peer, stream)) => streams[peer] = Some(stream),
            None => std::thread::sleep(PAUSE),
        }
        watch.check().map_err(|failure| failure.to_string())?;
        if Instant::now() > deadline {
            return Err(format!("rank {missing} has not connected"));
        }
    }
    Ok(streams)
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

    fn accept(door: &Door, cards: &[Card]) -> Option<usize> {
        // A connection that was just made is there at once.
        door.accept(cards, LONG).unwrap().map(|(rank, _)| rank)
    }

    #[test]
    fn a_rank_is_accepted_and_knows_the_listener() {
        let door = Door::open().unwrap();
        let cards = [door.card.clone()];
        assert_eq!(accept(&door, &cards), None);
        let _stream = door.card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, &cards), Some(0));
    }

    #[test]
    fn a_wrong_secret_and_another_process_are_refused() {
        let door = Door::open().unwrap();
        let mut card = door.card.clone();
        card.secret[3] ^= 1;
        let _stream = card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, std::slice::from_ref(&door.card)), None);
        // A connection from this process, when another one is expected.
        let other = Card { pid: 1, ..door.card.clone() };
        let _stream = door.card.connect(0, LONG).unwrap();
        assert_eq!(accept(&door, std::slice::from_ref(&other)), None);
        assert!(other.connect(0, LONG).unwrap_err().to_string().contains("another process"));
    }
}
