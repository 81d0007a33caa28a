//! The work of an RDMA write between hosts by hand: frames with a header over a TCP connection, a
//! target in memory, and an answer to each message. What this program does not reach, `soft0` does
//! not reach either.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use super::tcp;
use crate::pair::{Channel, Contender, Role};

/// Bytes of a frame's header, and the most of its payload: those of `soft0`.
const HEAD: usize = 52;
const PIECE: usize = 64 << 10;
/// Bytes that one call reads at most, if payloads are copied.
const READ: usize = 256 << 10;

/// The way of a payload to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// It is read into a buffer with other frames, and copied from there.
    Copied,
    /// It is read to its target, together with the next header.
    Read,
}

/// A connection over which the leader sends messages in frames, and the follower puts them into a
/// target and answers each. Both sides spin.
#[derive(Debug)]
pub struct TcpFrames {
    stream: TcpStream,
    placement: Placement,
    /// The messages that may wait for their answers.
    in_flight: u64,
    /// The payload that the leader sends, and the target at the follower.
    memory: Vec<u8>,
    buffer: Vec<u8>,
}

impl TcpFrames {
    /// Connects the two sides, where the leader has this address, for messages of `size` bytes.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect(
        role: Role,
        channel: &mut Channel,
        leader: IpAddr,
        (size, in_flight): (usize, u64),
        placement: Placement,
    ) -> io::Result<Self> {
        let stream = tcp::connect(role, channel, leader)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, placement, in_flight, memory: vec![0x5a; size], buffer: vec![0; READ] })
    }

    /// Sends a message.
    fn send(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.memory.len() {
            let len = PIECE.min(self.memory.len() - at);
            let piece = &self.memory[at..at + len];
            let mut head = [0; HEAD];
            head[..8].copy_from_slice(&(len as u64).to_le_bytes());
            head[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            let mut sent = 0;
            while sent < HEAD + len {
                let parts = [IoSlice::new(&head[sent.min(HEAD)..]), IoSlice::new(&piece[sent.saturating_sub(HEAD)..])];
                sent += tcp::transfer(self.stream.write_vectored(&parts))?;
            }
            at += len;
        }
        Ok(())
    }

    /// Takes the answers that have come. Returns their number.
    fn answers(&mut self, part: &mut usize) -> io::Result<u64> {
        *part += tcp::transfer(self.stream.read(&mut self.buffer))?;
        let whole = *part / HEAD;
        *part %= HEAD;
        Ok(whole as u64)
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < HEAD {
            sent += tcp::transfer(self.stream.write(&[0; HEAD][sent..]))?;
        }
        Ok(())
    }

    /// The length and the place of the payload behind a header.
    fn place(&self, head: &[u8]) -> io::Result<(usize, usize)> {
        let number = |at: usize| {
            let bytes = head.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (len, at) = (number(0), number(8));
        match len <= PIECE && at <= self.memory.len() && len <= self.memory.len() - at {
            true => Ok((len, at)),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn receive_copied(&mut self, messages: u64) -> io::Result<()> {
        let (mut left, mut start, mut end) = (messages, 0, 0);
        while left > 0 {
            if end - start >= HEAD {
                let (len, at) = self.place(&self.buffer[start..start + HEAD])?;
                if end - start >= HEAD + len {
                    let payload = start + HEAD..start + HEAD + len;
                    self.memory[at..at + len].copy_from_slice(&self.buffer[payload.clone()]);
                    start = payload.end;
                    if at + len == self.memory.len() {
                        self.answer()?;
                        left -= 1;
                    }
                    continue;
                }
            }
            if start == end || READ - start < HEAD + PIECE {
                self.buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
            end += tcp::transfer(self.stream.read(&mut self.buffer[end..]))?;
        }
        Ok(())
    }

    fn receive_in_place(&mut self, messages: u64) -> io::Result<()> {
        let (mut left, mut head, mut filled) = (messages, [0; HEAD], 0);
        while left > 0 {
            while filled < HEAD {
                filled += tcp::transfer(self.stream.read(&mut head[filled..]))?;
            }
            let (len, at) = self.place(&head)?;
            let is_last = at + len == self.memory.len();
            // Behind the last message nothing is to come.
            let behind = if is_last && left == 1 { 0 } else { HEAD };
            let mut done = 0;
            while done < len {
                let target = &mut self.memory[at + done..at + len];
                let parts = &mut [IoSliceMut::new(target), IoSliceMut::new(&mut head[..behind])];
                done += tcp::transfer(self.stream.read_vectored(parts))?;
            }
            filled = done - len;
            if is_last {
                self.answer()?;
                left -= 1;
            }
        }
        Ok(())
    }
}

impl Contender for TcpFrames {
    fn name(&self) -> String {
        let how = match self.placement {
            Placement::Copied => "copied to a target",
            Placement::Read => "read to a target",
        };
        format!("frames over plain TCP, {how}, {} in flight", self.in_flight)
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        let (mut sent, mut answered, mut part) = (0, 0, 0);
        while answered < iterations {
            if sent < iterations && sent - answered < self.in_flight {
                self.send()?;
                sent += 1;
            }
            answered += self.answers(&mut part)?;
        }
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        match self.placement {
            Placement::Copied => self.receive_copied(iterations),
            Placement::Read => self.receive_in_place(iterations),
        }
    }
}
