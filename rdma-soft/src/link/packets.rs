//! Packets over a TCP connection to another host: each follows its length, a little-endian `u16`.
//!
//! The connection manager's protocol needs packets, few and small. What the kernel does not take of
//! a packet waits here, and goes out with the next call; the protocol repeats its messages.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use super::tls::Records;
use crate::os::socket::{MAX_PACKET, Packet, Received};
use crate::os::tcp::Tcp;
use crate::os::{Error, Result};

/// Bytes of the length in front of a packet.
const HEAD: usize = 2;

/// A connection that carries packets of 1 to [`MAX_PACKET`] bytes.
#[derive(Debug)]
pub(crate) struct Packets {
    socket: Tcp,
    /// The encryption of the packets; `None` for packets in the clear.
    records: Option<Records>,
    /// The packet that is arriving, with its length.
    incoming: [u8; HEAD + MAX_PACKET],
    filled: usize,
    /// The rest of a packet of which the kernel has taken a part.
    unsent: Vec<u8>,
    /// After an impossible length, the bytes that follow mean nothing.
    is_broken: bool,
}

impl Packets {
    pub(crate) fn new(socket: Tcp, mut records: Option<Records>) -> Self {
        // A thread that watches the socket learns of packets there, and not of those in a buffer.
        records.iter_mut().for_each(Records::read_one_by_one);
        Self { socket, records, incoming: [0; HEAD + MAX_PACKET], filled: 0, unsent: Vec::new(), is_broken: false }
    }

    /// The addresses of the other side and of this one.
    pub(crate) fn addresses(&self) -> Result<(IpAddr, IpAddr)> {
        Ok((self.socket.peer()?.ip().to_canonical(), self.socket.local()?.ip().to_canonical()))
    }

    fn write(&mut self, bytes: [&[u8]; 2]) -> Result<usize> {
        match &mut self.records {
            None => self.socket.write(bytes),
            Some(records) => records.write(&self.socket, bytes),
        }
    }

    /// Sends a whole packet; `EAGAIN` if the other side has not taken earlier ones, `EMSGSIZE` for
    /// one of another length than a packet may have.
    pub(crate) fn send(&mut self, packet: &[u8]) -> Result<()> {
        let len = u16::try_from(packet.len()).ok().filter(|len| (1..=MAX_PACKET).contains(&usize::from(*len)));
        let len = len.ok_or(Error { call: "sendmsg", errno: Errno::EMSGSIZE })?.to_le_bytes();
        self.flush()?;
        let taken = match self.write([&len, packet]) {
            Ok(taken) => taken,
            Err(Error { errno: Errno::EINTR, .. }) => 0,
            Err(error) => return Err(error),
        };
        self.unsent.extend(len.iter().chain(packet).skip(taken));
        Ok(())
    }

    /// Sends what is left of a packet; `EAGAIN` if the kernel does not take all of it.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while !self.unsent.is_empty() || self.records.as_ref().is_some_and(Records::has_unsent) {
            let written = match &mut self.records {
                None => self.socket.write([&self.unsent, &[]]),
                Some(records) => records.write(&self.socket, [&self.unsent, &[]]),
            };
            match written {
                Ok(taken) => drop(self.unsent.drain(..taken)),
                Err(Error { errno: Errno::EINTR, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives a packet; `EAGAIN` if there is no whole one. After a length that no packet has, the
    /// connection counts as ended.
    pub(crate) fn receive(&mut self) -> Result<Received> {
        // Fails if the other side does not read, or has gone, which the read below finds.
        let _rest: Result<()> = self.flush();
        if self.is_broken {
            return Ok(Received::End);
        }
        loop {
            let len = usize::from(u16::from_le_bytes([self.incoming[0], self.incoming[1]]));
            let end = match self.filled {
                ..HEAD => HEAD,
                _ if len == 0 || len > MAX_PACKET => {
                    self.is_broken = true;
                    return Ok(Received::TooLong);
                }
                _ => HEAD + len,
            };
            if self.filled == end && end > HEAD {
                self.filled = 0;
                let bytes = self.incoming[HEAD..end].to_vec();
                return Ok(Received::Packet(Packet { bytes, fds: Vec::new() }));
            }
            let space = &mut self.incoming[self.filled..end];
            let read = match &mut self.records {
                None => self.socket.read(space),
                Some(records) => records.read(&self.socket, space),
            };
            match read {
                Ok(0) => return Ok(Received::End),
                Ok(read) => self.filled += read,
                Err(Error { errno: Errno::EINTR, .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends this side's half of the connection after the packets that were sent. Closing alone
    /// would make the kernel discard them if packets of the other side are unread.
    pub(crate) fn finish(&mut self) {
        let _rest: Result<()> = self.flush();
        self.socket.shut_down_writing();
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Packets, Tcp) {
        let [ours, theirs] = Tcp::pair();
        (Packets::new(ours, None), theirs)
    }

    fn packet(of: &mut Packets) -> Vec<u8> {
        match of.receive() {
            Ok(Received::Packet(packet)) => packet.bytes,
            other => panic!("no packet: {other:?}"),
        }
    }

    fn is_empty(of: &mut Packets) -> bool {
        matches!(of.receive(), Err(Error { errno: Errno::EAGAIN, .. }))
    }

    #[test]
    fn packets_arrive_whole_wherever_the_stream_is_cut() {
        let sizes = [1, 2, 255, 256, MAX_PACKET];
        let all: Vec<Vec<u8>> = sizes.iter().map(|&size| (0..=u8::MAX).cycle().take(size).collect()).collect();
        let head = |packet: &[u8]| u16::try_from(packet.len()).unwrap().to_le_bytes();
        let bytes: Vec<u8> = all.iter().flat_map(|packet| [&head(packet)[..], packet].concat()).collect();
        for cut in 0..=bytes.len() {
            let (mut to, from) = pair();
            let (one, two) = bytes.split_at(cut);
            let mut received = Vec::new();
            for part in [one, two] {
                if !part.is_empty() {
                    assert_eq!(from.write([part, &[]]), Ok(part.len()));
                }
                while !is_empty_or(&mut to, &mut received) {}
            }
            assert_eq!(received, all, "cut at {cut}");
            assert!(is_empty(&mut to));
        }
    }

    /// Receives a packet, or returns true.
    fn is_empty_or(of: &mut Packets, received: &mut Vec<Vec<u8>>) -> bool {
        match of.receive() {
            Ok(Received::Packet(packet)) => received.push(packet.bytes),
            Err(Error { errno: Errno::EAGAIN, .. }) => return true,
            other => panic!("{other:?}"),
        }
        false
    }

    #[test]
    fn each_byte_may_come_alone() {
        let (mut to, from) = pair();
        let bytes = [3, 0, 7, 8, 9, 1, 0, 5];
        for (at, byte) in bytes.iter().enumerate() {
            assert!(is_empty(&mut to), "before byte {at}");
            assert_eq!(from.write([&[*byte], &[]]), Ok(1));
            match at {
                4 => assert_eq!(packet(&mut to), [7, 8, 9]),
                7 => assert_eq!(packet(&mut to), [5]),
                _ => {}
            }
        }
    }

    #[test]
    fn a_side_that_does_not_read_gets_whole_packets_later() {
        let [ours, theirs] = Tcp::pair();
        let (mut from, mut to) = (Packets::new(ours, None), Packets::new(theirs, None));
        let numbered = |number: usize| {
            let number = number.to_le_bytes();
            number.iter().copied().cycle().take(300).collect::<Vec<u8>>()
        };
        let mut sent = 0;
        let error = loop {
            match from.send(&numbered(sent)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno, Errno::EAGAIN);
        for number in 0..sent {
            let received = loop {
                match to.receive() {
                    Ok(Received::Packet(packet)) => break packet.bytes,
                    // The rest of the last packet goes out now.
                    _ => from.flush().unwrap(),
                }
            };
            assert_eq!(received, numbered(number));
        }
        assert!(is_empty(&mut to));
        from.send(b"again").unwrap();
        assert_eq!(packet(&mut to), b"again");
    }

    #[test]
    fn impossible_lengths_end_the_connection() {
        for len in [0, MAX_PACKET + 1, usize::from(u16::MAX)] {
            let (mut to, from) = pair();
            assert_eq!(from.write([&u16::try_from(len).unwrap().to_le_bytes(), &[1, 0, 5]]), Ok(5));
            assert!(matches!(to.receive(), Ok(Received::TooLong)));
            assert!(matches!(to.receive(), Ok(Received::End)));
        }
        let (mut from, _to) = pair();
        assert_eq!(from.send(&[]).unwrap_err().errno, Errno::EMSGSIZE);
        assert_eq!(from.send(&[0; MAX_PACKET + 1]).unwrap_err().errno, Errno::EMSGSIZE);
    }

    #[test]
    fn the_end_comes_after_the_packets_and_in_the_middle_of_one() {
        let [ours, theirs] = Tcp::pair();
        let (mut from, mut to) = (Packets::new(ours, None), Packets::new(theirs, None));
        to.send(b"unread").unwrap();
        from.send(b"last").unwrap();
        from.finish();
        assert_eq!(packet(&mut to), b"last");
        assert!(matches!(to.receive(), Ok(Received::End)));
        let (mut to, from) = pair();
        assert_eq!(from.write([&[5, 0, 1], &[]]), Ok(3));
        drop(from);
        assert!(matches!(to.receive(), Ok(Received::End)));
    }
}
