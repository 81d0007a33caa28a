//! TCP over the loopback interface, with both sides spinning on non-blocking sockets: the lowest
//! latency that TCP reaches.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use crate::pair::{Channel, PingPong, Role};

/// A connection with `TCP_NODELAY` over which messages of one size go back and forth.
#[derive(Debug)]
pub struct TcpSpin {
    stream: TcpStream,
    message: Vec<u8>,
}

impl TcpSpin {
    /// Connects the two sides.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect(role: Role, channel: &mut Channel, size: usize) -> io::Result<Self> {
        Self::connect_at(role, channel, Ipv4Addr::LOCALHOST.into(), size)
    }

    /// Connects the two sides, where the leader has this address.
    ///
    /// # Errors
    ///
    /// The sockets' error.
    pub fn connect_at(role: Role, channel: &mut Channel, leader: IpAddr, size: usize) -> io::Result<Self> {
        let stream = connect(role, channel, leader)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, message: vec![0x5a; size] })
    }
}

/// Connects the two sides, where the leader has this address.
pub(super) fn connect(role: Role, channel: &mut Channel, leader: IpAddr) -> io::Result<TcpStream> {
    match role {
        Role::Leader => {
            let listener = TcpListener::bind((leader, 0))?;
            channel.send(&listener.local_addr()?.to_string())?;
            Ok(listener.accept()?.0)
        }
        Role::Follower => TcpStream::connect(channel.receive()?),
    }
}

/// The bytes of a call on a socket that does not block; an error at the end of the connection.
pub(super) fn transfer(count: io::Result<usize>) -> io::Result<usize> {
    match count {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        count => count,
    }
}

impl PingPong for TcpSpin {
    fn name(&self) -> String {
        let address = self.stream.peer_addr().map(|address| address.ip());
        let place = if address.is_ok_and(|address| address.is_loopback()) { "TCP loopback" } else { "TCP" };
        format!("{place}, spinning, {} B", self.message.len())
    }

    fn send(&mut self) -> io::Result<()> {
        let mut rest = &self.message[..];
        while !rest.is_empty() {
            rest = &rest[transfer(self.stream.write(rest))?..];
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut got = 0;
        while got < self.message.len() {
            got += transfer(self.stream.read(&mut self.message[got..]))?;
        }
        Ok(())
    }
}
