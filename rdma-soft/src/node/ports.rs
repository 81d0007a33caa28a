//! Calls between the connection managers of two hosts: the same connections and the same handshake
//! as for links, but to a port in place of a slot ([`Purpose::Port`]).
//!
//! The process that accepts a call passes it on by the name of the listener at the port. The
//! listener's process goes on with the handshake in a thread, so that its connection manager hears
//! of callers that hold the key alone.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::device::Node;
use super::remote::{Remote, Stranger};
use crate::engine::Slot;
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, HelloError, Opened, Purpose, Route};
use crate::link::packets::Packets;
use crate::link::port::{self, Space};
use crate::link::wire::{self, Kind};
use crate::os;
use crate::os::socket::{self, Socket};
use crate::os::tcp::Tcp;
use crate::os::thread;

/// Number of calls to a host that does not answer, and the limit of the time of each: whoever
/// accepts one may die, or stand still.
const CALLS: u32 = 3;
const CALL: Duration = Duration::from_secs(4);
/// Pause before a call to a host that has had no time for the last one, at first and at most.
const PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(160);

fn remote() -> Option<(&'static Node, &'static Remote)> {
    let node = Node::get().ok()?;
    Some((node, node.remote.as_ref()?))
}

/// The address from which this process calls the host with an address; `None` if it does not:
/// for addresses of this host, and without links to other hosts. `is_here` says whether this host
/// has the address.
pub(crate) fn source_for(address: IpAddr, is_here: bool) -> Option<IpAddr> {
    let (_, remote) = remote()?;
    let own = remote.address.ip();
    let is_host = !address.is_unspecified() && !address.is_multicast();
    let is_far = is_host && address.is_ipv4() == own.is_ipv4() && remote.is_elsewhere(address, || is_here);
    is_far.then_some(own)
}

/// Whether other hosts reach this process at an address of this family that is not loopback.
pub(crate) fn has_address_like(address: &SocketAddr) -> bool {
    let is_like = |own: IpAddr| own.is_ipv4() == address.is_ipv4() && !own.is_loopback();
    remote().is_some_and(|(_, remote)| is_like(remote.address.ip()))
}

/// Connects to the listener of a port on another host.
///
/// # Errors
///
/// [`HelloError::Nobody`]: no process that speaks for the address listens there.
pub(crate) fn call(space: Space, to: SocketAddr) -> Result<Packets, HelloError> {
    let off = || os::Error { call: "a call to another host", errno: Errno::ENETDOWN };
    let (node, remote) = remote().ok_or_else(off)?;
    let us = remote.identity(node.lock().slots()[0]);
    let (mut calls, mut pause, deadline) = (1, PAUSE, Instant::now() + CALLS * CALL);
    loop {
        let purpose = Purpose::Port(space, to.port());
        let (protection, target) = (remote.protection, Slot(0));
        let first = First { purpose, protection, target, opener: us, nonce: os::random()? };
        match remote.call(to.ip(), &first, Instant::now() + CALL) {
            Ok((socket, Opened { answer: Answer::Welcome, records, .. })) => {
                socket.prepare_for_frames()?;
                return Ok(Packets::new(socket, records));
            }
            Ok(_) => return Err(HelloError::Malformed),
            Err(HelloError::Busy) if Instant::now() < deadline => {
                sleep(pause);
                pause = (2 * pause).min(MAX_PAUSE);
            }
            Err(error) if error.is_silence() && error != HelloError::Nobody && calls < CALLS => calls += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Connects to the process of this user that listens at the port of the address that was called.
pub(super) fn listener(call: &Tcp, space: Space, port: u16) -> Result<Socket, HelloError> {
    let called = SocketAddr::new(call.local()?.ip().to_canonical(), port);
    for name in port::listeners(space, &called) {
        let listener = Socket::new()?;
        if listener.connect(&name).is_ok() && listener.peer()?.is_own_user() {
            return Ok(listener);
        }
    }
    Err(HelloError::Nobody)
}

/// A call that has come to a listener of this process, and has proved nothing.
pub(crate) struct Call {
    socket: Tcp,
    first: First,
    space: Space,
    port: u16,
    /// The end of its time.
    deadline: Instant,
}

/// A call whose caller holds the key.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) packets: Packets,
    /// The caller's address, and the one that was called.
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
}

impl Call {
    /// The call that a packet of another process of this user passes on.
    pub(crate) fn of(packet: socket::Packet) -> Result<Self, HelloError> {
        let mut packet = wire::decode(packet).map_err(|_| HelloError::Malformed)?;
        if packet.version != wire::VERSION || packet.kind != Kind::Caller as u32 {
            return Err(HelloError::Malformed);
        }
        let first = First::parse(&packet.body.take().map_err(|_| HelloError::Malformed)?)?;
        let left = packet.body.take_u64().map_err(|_| HelloError::Malformed)?;
        let deadline = Instant::now() + Duration::from_millis(left).min(hello::PATIENCE);
        let socket = Tcp::of_fd(packet.fds.pop().ok_or(HelloError::Malformed)?)?;
        let Purpose::Port(space, port) = first.purpose else { return Err(HelloError::Malformed) };
        Ok(Self { socket, first, space, port, deadline })
    }

    /// Tells the caller to call again.
    pub(crate) fn put_off(self) {
        hello::tell_busy(&self.socket);
    }

    /// The port that is called.
    pub(crate) fn port(&self) -> (Space, u16) {
        (self.space, self.port)
    }

    /// Runs the acceptor's side of the handshake in a thread, then calls `then` with the caller if
    /// it holds the key.
    ///
    /// The process that accepted the call counts it until `queued` is dropped, which happens once
    /// this process counts the caller.
    pub(crate) fn meet(self, queued: impl Send + 'static, then: impl FnOnce(Caller) + Send + 'static) {
        // Without links to other hosts this process has no key, and ends the call.
        let Some((node, remote)) = remote() else { return };
        let started = thread::spawn("rdma-soft-call", move || match self.prove(node, remote, queued) {
            Ok(caller) => then(caller),
            Err(error) => remote.refused(&error),
        });
        if let Err(error) = started {
            remote.refused(&error.into());
        }
    }

    fn prove(self, node: &'static Node, remote: &'static Remote, queued: impl Send) -> Result<Caller, HelloError> {
        let route = Route::of_acceptor(&self.socket)?;
        // Another process of this user may listen at another address, and speaks for that one
        // alone.
        if route.acceptor != remote.address {
            return Err(HelloError::Nobody);
        }
        let deadline = self.deadline;
        let stranger = Stranger::placed(remote, Arc::new(self.socket), deadline)?;
        drop(queued);
        let socket = Arc::clone(&stranger.socket);
        let us = remote.identity(node.lock().slots()[0]);
        let decide = || {
            // The caller holds the key.
            drop(stranger);
            Ok(Answer::Welcome)
        };
        let (_, records) = hello::accept(&socket, remote.terms(), route, &self.first, us, deadline, decide)?;
        let socket = Arc::into_inner(socket).ok_or(HelloError::Malformed)?;
        socket.prepare_for_frames()?;
        Ok(Caller { packets: Packets::new(socket, records), from: route.opener.ip(), to: route.acceptor.ip() })
    }
}
