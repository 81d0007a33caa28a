//! Two processes that wake each other by a Unix socket: the least that a sleeping side costs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket};
use nix::unistd::{read, write};

use super::Sleep;
use crate::pair::{Channel, PingPong, Role};

/// The type of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `SOCK_STREAM`.
    Stream,
    /// `SOCK_SEQPACKET`.
    SeqPacket,
}

/// A connection over which messages of one size go back and forth.
#[derive(Debug)]
pub struct UnixSleep {
    socket: OwnedFd,
    kind: Kind,
    sleep: Sleep,
    message: Vec<u8>,
}

impl UnixSleep {
    /// Connects the two sides.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect(role: Role, channel: &mut Channel, kind: Kind, sleep: Sleep, size: usize) -> io::Result<Self> {
        let socket = meet(role, channel, kind)?;
        if sleep == Sleep::InPoll {
            fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self { socket, kind, sleep, message: vec![0x5a; size] })
    }
}

fn meet(role: Role, channel: &mut Channel, kind: Kind) -> io::Result<OwnedFd> {
    let kind = match kind {
        Kind::Stream => SockType::Stream,
        Kind::SeqPacket => SockType::SeqPacket,
    };
    let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    match role {
        Role::Leader => {
            let name = format!("rdma-benches-{}-{}", std::process::id(), socket.as_raw_fd());
            bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
            listen(&socket, Backlog::new(1)?)?;
            channel.send(&name)?;
            let accepted = accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
            // SAFETY: from_raw_fd requires an open descriptor without another owner: accept4 made
            // it.
            Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
        }
        Role::Follower => {
            connect(socket.as_raw_fd(), &UnixAddr::new_abstract(channel.receive()?.as_bytes())?)?;
            Ok(socket)
        }
    }
}

impl PingPong for UnixSleep {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Stream => "stream",
            Kind::SeqPacket => "seqpacket",
        };
        match self.sleep {
            Sleep::InCall => format!("Unix {kind} socket, asleep in read"),
            Sleep::InPoll => format!("Unix {kind} socket, asleep in poll(2)"),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        // A message is far smaller than the socket's buffer, so it is never split.
        write(&self.socket, &self.message)?;
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.sleep == Sleep::InPoll {
            poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
        }
        match read(&self.socket, &mut self.message)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}
