//! Bytes in one direction over a TCP connection: as fast as a program sends that only writes and
//! reads. Both sides spin, as the sender of RDMA writes does.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use super::tcp;
use crate::pair::{Channel, Contender, Role};
use crate::table;

/// Bytes that one call writes.
const WRITE: usize = 64 << 10;
/// Bytes that one call reads at most.
const READ: usize = 256 << 10;

/// A connection over which the leader writes, in calls of 64 KiB, and the follower reads.
#[derive(Debug)]
pub struct TcpWrites {
    stream: TcpStream,
    /// Bytes of an iteration.
    size: usize,
    bytes: Vec<u8>,
}

impl TcpWrites {
    /// Connects the two sides, where the leader has this address.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let stream = tcp::connect(role, channel, leader)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, size, bytes: vec![0x5a; READ] })
    }
}

impl Contender for TcpWrites {
    fn name(&self) -> String {
        format!("TCP stream, spinning, writes of {}", table::bytes(WRITE))
    }

    fn lead(&mut self, iterations: u64) -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..iterations {
            let mut left = self.size;
            while left > 0 {
                let len = left.min(WRITE);
                left -= tcp::transfer(self.stream.write(&self.bytes[..len]))?;
            }
        }
        // The other side has read everything.
        while tcp::transfer(self.stream.read(&mut [0]))? == 0 {}
        Ok(start.elapsed())
    }

    fn follow(&mut self, iterations: u64) -> io::Result<()> {
        let mut left = usize::try_from(iterations).map_err(io::Error::other)? * self.size;
        while left > 0 {
            let len = left.min(READ);
            left -= tcp::transfer(self.stream.read(&mut self.bytes[..len]))?;
        }
        while tcp::transfer(self.stream.write(&[0]))? == 0 {}
        Ok(())
    }
}
