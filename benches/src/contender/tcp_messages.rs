//! The least that a device over TCP does for a message, beside the calls of a TCP ping-pong: each
//! message is a frame with a header, the socket is watched so that a thread could sleep, bytes are
//! read into a large buffer and copied out of it, and the program gets a completion from a queue
//! under a lock. What `soft0` takes beyond this is the work of the transport and of the verbs.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Mutex;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::tcp::{connect, transfer};
use crate::pair::{Channel, PingPong, Role};

/// Bytes before a payload: its length, and six words.
const HEAD: usize = 4 + 6 * 8;
/// Bytes that one call reads.
const BUFFER: usize = 256 << 10;

/// A connection over which frames of one size go back and forth.
#[derive(Debug)]
pub struct TcpMessages {
    stream: TcpStream,
    /// The epoll instances that watch the socket: that of a thread of the device and that of a
    /// thread of the program.
    _watches: [Epoll; 2],
    state: Mutex<State>,
    message: Vec<u8>,
}

#[derive(Debug)]
struct State {
    sent: u64,
    received: u64,
    out: Vec<u8>,
    inbound: Box<[u8]>,
    filled: usize,
    completions: VecDeque<u64>,
}

impl TcpMessages {
    /// Connects the two sides, where the leader has this address.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let stream = connect(role, channel, leader)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let watch = || {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET | EpollFlags::EPOLLEXCLUSIVE;
            epoll.add(&stream, EpollEvent::new(flags, 0))?;
            nix::Result::Ok(epoll)
        };
        let watches = [watch()?, watch()?];
        let state = State {
            sent: 0,
            received: 0,
            out: Vec::with_capacity(HEAD + size),
            inbound: vec![0; BUFFER].into_boxed_slice(),
            filled: 0,
            completions: VecDeque::with_capacity(16),
        };
        Ok(Self { stream, _watches: watches, state: Mutex::new(state), message: vec![0x5a; size] })
    }
}

impl State {
    /// Reads once, and completes the frames that have arrived whole.
    fn progress(&mut self, mut stream: &TcpStream, message: &mut [u8]) -> io::Result<()> {
        self.filled += transfer(stream.read(&mut self.inbound[self.filled..]))?;
        let mut rest = &self.inbound[..self.filled];
        while let Some((head, after)) = rest.split_first_chunk::<HEAD>() {
            let [len, number] = [&head[..4], &head[4..8]].map(|bytes| {
                let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
                u32::from_le_bytes(bytes)
            });
            if len as usize != message.len() || u64::from(number) != self.received & 0xffff_ffff {
                return Err(io::Error::other("a frame that was not sent"));
            }
            let Some((payload, after)) = after.split_at_checked(len as usize) else { break };
            message.copy_from_slice(payload);
            self.completions.push_back(self.received);
            self.received += 1;
            rest = after;
        }
        let left = rest.len();
        self.inbound.copy_within(self.filled - left..self.filled, 0);
        self.filled = left;
        Ok(())
    }
}

fn poisoned() -> io::Error {
    io::Error::other("a thread panicked with the lock")
}

impl PingPong for TcpMessages {
    fn name(&self) -> String {
        format!("frames over TCP, {} B", self.message.len())
    }

    fn send(&mut self) -> io::Result<()> {
        let mut state = self.state.lock().map_err(|_| poisoned())?;
        let state = &mut *state;
        state.out.clear();
        state.out.extend_from_slice(&u32::try_from(self.message.len()).unwrap_or(0).to_le_bytes());
        // The second word acknowledges what has come.
        for word in [state.sent, state.received, 0, 0, 0, 0] {
            state.out.extend_from_slice(&word.to_le_bytes());
        }
        state.out.extend_from_slice(&self.message);
        state.sent += 1;
        let mut rest = &state.out[..];
        while !rest.is_empty() {
            rest = &rest[transfer((&self.stream).write(rest))?..];
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            let mut state = self.state.lock().map_err(|_| poisoned())?;
            if state.completions.pop_front().is_some() {
                return Ok(());
            }
            state.progress(&self.stream, &mut self.message)?;
        }
    }
}
