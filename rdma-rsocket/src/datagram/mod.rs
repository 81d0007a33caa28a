//! Datagram sockets: a UDP socket, over which peers learn each other's queue pairs, and a queue
//! pair for each local address that is used.
//!
//! The first datagrams to a peer go over UDP; the answer names the peer's queue pair. Calls on the
//! socket process the packets of the UDP socket: a peer of a program that makes no call keeps
//! sending over UDP, where the kernel holds what fits. Nothing is sent again: datagrams may be
//! lost.
//!
//! A peer may end and another one take its port: now and then a datagram goes over UDP although the
//! queue pair is known, and the answer names the queue pair that is there now.

mod destinations;
mod locals;
mod queue;
mod wire;

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use libc::{c_int, c_short};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockaddrStorage, bind, setsockopt, sockopt};
use rdma_sys::{RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR};

use self::destinations::Destinations;
use self::locals::Locals;
use self::queue::{BUFFER, LocalQueue, Received};
use self::wire::{Operation, PACKET_HEADER_MOST, PacketHeader, plain};
use crate::buffers::{Sink, Source};
use crate::number::{Number, duplicate, udp_socket};
use crate::settings::{Effect, Settings};
use crate::shared::{Shared, Wait, Waiting};
use crate::verbs::{Completion, Libraries};
use crate::wait::{Polled, Sleepers};

/// The most packets of the UDP socket that one turn processes, and the most datagrams that came in
/// such packets and wait for a receive.
const PACKETS: usize = 64;
/// Sends between two looks at the UDP socket.
const SENDS: u32 = 64;
/// How long a close waits for the device to send what was posted.
const LINGER: Duration = Duration::from_secs(1);

/// A datagram socket.
pub(crate) type Datagram = Shared<Endpoint>;

/// All of a datagram socket.
#[derive(Debug)]
pub(crate) struct Endpoint {
    libraries: Libraries,
    settings: Settings,
    /// `None` once the socket is closed.
    udp: Option<UdpSocket>,
    destinations: Destinations,
    locals: Locals<LocalQueue>,
    inbox: VecDeque<Message>,
    /// The peer of a connected socket.
    peer: Option<SocketAddr>,
    /// Sends since the last look at the UDP socket.
    sends: u32,
    /// The reason of a failure, for the next receive or `SO_ERROR`.
    error: Option<Errno>,
    sleepers: Sleepers,
}

/// A datagram that nobody has received yet.
#[derive(Debug)]
enum Message {
    /// In a slot of this queue.
    Slot(usize, Received),
    Packet(SocketAddr, Vec<u8>),
}

impl Message {
    fn source(&self) -> SocketAddr {
        match self {
            Self::Slot(_, received) => received.source,
            Self::Packet(source, _) => *source,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Slot(_, received) => received.len,
            Self::Packet(_, data) => data.len(),
        }
    }
}

impl Datagram {
    /// A socket of an address family that is neither bound nor connected.
    pub(crate) fn new(libraries: Libraries, is_v6: bool, settings: Settings) -> Result<Self, Errno> {
        let low = udp_socket(!is_v6)?;
        let udp = UdpSocket::from(duplicate(low.as_fd()).unwrap_or(low));
        let number = Number::Shared(udp.as_raw_fd());
        let endpoint = Endpoint {
            libraries,
            settings,
            udp: Some(udp),
            destinations: Destinations::default(),
            locals: Locals::default(),
            inbox: VecDeque::new(),
            peer: None,
            sends: 0,
            error: None,
            sleepers: Sleepers::default(),
        };
        Ok(Self::of(number, endpoint))
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        bind(self.open()?.udp()?.as_raw_fd(), &SockaddrStorage::from(address))
    }

    /// Chooses the peer for sends and receives.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<(), Errno> {
        let (mut endpoint, address) = (self.open()?, plain(address));
        endpoint.destination(address)?;
        endpoint.udp()?.connect(address).map_err(errno)?;
        endpoint.peer = Some(address);
        endpoint.sleepers.wake();
        Ok(())
    }

    /// Sends one datagram to an address, or to the peer.
    pub(crate) fn send(
        &self,
        source: &mut Source<'_, '_>,
        to: Option<SocketAddr>,
        flags: MsgFlags,
    ) -> Result<usize, Errno> {
        let len = source.left();
        self.until(Wait::of(flags), |endpoint| endpoint.send(source, to).transpose())?;
        Ok(len)
    }

    /// Receives one datagram, as much of it as fits. Returns its sender too. With `MSG_TRUNC`, the
    /// length is that of the whole datagram.
    pub(crate) fn receive(&self, sink: &mut Sink<'_, '_>, flags: MsgFlags) -> Result<(usize, SocketAddr), Errno> {
        self.until(Wait::of(flags), |endpoint| match endpoint.error.take() {
            Some(errno) => Some(Err(errno)),
            None => endpoint.receive(sink, flags).transpose(),
        })
    }

    /// Waits until the device has sent what was posted, and ends the socket.
    pub(crate) fn close(&self) -> Result<(), Errno> {
        let deadline = Wait::Until(Instant::now() + LINGER);
        let all_sent = |endpoint: &mut Endpoint| endpoint.locals.iter().all(LocalQueue::is_idle).then_some(Ok(()));
        while self.until(deadline, all_sent) == Err(Errno::EINTR) {}
        let mut endpoint = self.open()?;
        let destinations = std::mem::take(&mut endpoint.destinations);
        let ended = (endpoint.udp.take(), std::mem::take(&mut endpoint.locals), destinations);
        endpoint.inbox.clear();
        endpoint.sleepers.wake();
        drop(endpoint);
        // Destroyed without the lock.
        drop(ended);
        Ok(())
    }

    pub(crate) fn local_address(&self) -> Result<Option<SocketAddr>, Errno> {
        let address = self.open()?.udp()?.local_addr().map_err(errno)?;
        Ok((address.port() != 0).then_some(address))
    }

    pub(crate) fn peer_address(&self) -> Result<SocketAddr, Errno> {
        self.open()?.peer.ok_or(Errno::ENOTCONN)
    }

    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let mut endpoint = self.open()?;
        let is_open = endpoint.locals.iter().next().is_some();
        let effect = endpoint.settings.set(level, name, value, is_open)?;
        let is_set = value.iter().any(|byte| *byte != 0);
        match effect {
            Effect::Identifier(RDMA_OPTION_ID_REUSEADDR) => setsockopt(endpoint.udp()?, sockopt::ReuseAddr, &is_set),
            Effect::Identifier(RDMA_OPTION_ID_AFONLY) => setsockopt(endpoint.udp()?, sockopt::Ipv6V6Only, &is_set),
            _ => Ok(()),
        }
    }

    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let mut endpoint = self.open()?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            endpoint.take_events();
            let error = endpoint.error.take().map_or(0, |errno| errno as c_int);
            return Ok(error.to_ne_bytes().to_vec());
        }
        endpoint.settings.get(level, name)
    }
}

impl Endpoint {
    fn udp(&self) -> Result<&UdpSocket, Errno> {
        self.udp.as_ref().ok_or(Errno::EBADF)
    }

    /// The local queue for a destination, and what is known of it. Makes both if they are new.
    fn destination(&mut self, to: SocketAddr) -> Result<usize, Errno> {
        if let Some(known) = self.destinations.get(to) {
            let queue = known.queue;
            return self.open_queue(queue).map(|_| queue);
        }
        let local = self.local_address_for(to)?;
        let queue = self.locals.number(local);
        self.open_queue(queue)?;
        self.destinations.add(to, queue);
        Ok(queue)
    }

    /// Makes a queue if there is none and the last attempt was long ago. Returns whether it is new.
    fn open_queue(&mut self, queue: usize) -> Result<bool, Errno> {
        let Self { libraries, settings, .. } = self;
        let is_new = self.locals.open(queue, |address| LocalQueue::new(*libraries, address, settings))?;
        if is_new {
            // Threads sleep on the descriptors that there were before.
            self.sleepers.wake();
        }
        Ok(is_new)
    }

    /// Gives up a queue that has failed, with what lies in it. Peers learn that there is another.
    fn fail_queue(&mut self, queue: usize, why: Errno) {
        self.error = Some(why);
        self.inbox.retain(|message| !matches!(message, Message::Slot(number, _) if *number == queue));
        self.destinations.forget_paths(queue);
        drop(self.locals.fail(queue, why));
        self.reopen(queue);
    }

    /// Makes a queue anew, and tells its peers.
    fn reopen(&mut self, queue: usize) {
        if self.open_queue(queue) == Ok(true) {
            for peer in self.destinations.of_queue(queue) {
                // If the packet is lost, the peer asks.
                let _lost = self.send_packet(queue, peer, Operation::Control, &[]);
            }
        }
    }

    /// The address from which the kernel would send to another one, with our port.
    fn local_address_for(&self, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let any = |is_v4: bool| -> SocketAddr {
            if is_v4 { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() }
        };
        let udp = self.udp()?;
        let mut local = udp.local_addr().map_err(errno)?;
        if local.port() == 0 {
            bind(udp.as_raw_fd(), &SockaddrStorage::from(any(local.is_ipv4())))?;
            local = udp.local_addr().map_err(errno)?;
        }
        if local.ip().is_unspecified() {
            let probe = UdpSocket::from(udp_socket(to.is_ipv4())?);
            probe.connect(to).map_err(errno)?;
            local.set_ip(probe.local_addr().map_err(errno)?.ip());
        }
        Ok(local)
    }

    fn send(&mut self, source: &mut Source<'_, '_>, to: Option<SocketAddr>) -> Result<Option<()>, Errno> {
        if let Some(errno) = self.error.take() {
            return Err(errno);
        }
        let to = to.map(plain).or(self.peer).ok_or(Errno::EDESTADDRREQ)?;
        let queue = self.destination(to)?;
        self.sends = (self.sends + 1) % SENDS;
        if self.sends == 0 || self.destinations.is_asked(to) {
            self.take_events();
        }
        if source.left() > self.locals.get(queue)?.largest() {
            return Err(Errno::EMSGSIZE);
        }
        match self.destinations.target(to) {
            Some((handle, pair)) => self.locals.get(queue)?.send(source, handle, *pair),
            None => {
                let mut data = Vec::with_capacity(source.left());
                source.take(source.left(), |bytes| {
                    data.extend_from_slice(bytes);
                    Ok(())
                })?;
                self.send_packet(queue, to, Operation::Data, &data).map(Some)
            }
        }
    }

    /// Sends a packet over UDP. It is lost if the kernel has no space for it.
    fn send_packet(&mut self, queue: usize, to: SocketAddr, operation: Operation, data: &[u8]) -> Result<(), Errno> {
        let queue = self.locals.get(queue)?;
        let header = PacketHeader { operation, pair: queue.pair_number(), address: queue.address.ip() };
        match self.udp()?.send_to(&[&header.encode(), data].concat(), to) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(errno(error)),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, sink: &mut Sink<'_, '_>, flags: MsgFlags) -> Result<Option<(usize, SocketAddr)>, Errno> {
        let Some(message) = self.inbox.front() else { return Ok(None) };
        let (source, len, room) = (message.source(), message.len(), sink.left());
        match message {
            Message::Slot(queue, received) => self.locals.get(*queue)?.read(received, sink)?,
            Message::Packet(_, data) => {
                let mut rest = data.as_slice();
                sink.fill(len, |bytes| {
                    let (now, later) = rest.split_at(bytes.len());
                    bytes.copy_from_slice(now);
                    rest = later;
                    Ok(())
                })?;
            }
        }
        if !flags.contains(MsgFlags::MSG_PEEK) {
            self.drop_first()?;
        }
        let is_whole = flags.contains(MsgFlags::MSG_TRUNC);
        Ok(Some((if is_whole { len } else { len.min(room) }, source)))
    }

    fn drop_first(&mut self) -> Result<(), Errno> {
        match self.inbox.pop_front() {
            Some(Message::Slot(queue, received)) => self.locals.get(queue)?.give_back(&received),
            _ => Ok(()),
        }
    }

    /// Whether a datagram is from the peer of a connected socket.
    fn accepts(&self, source: SocketAddr) -> bool {
        self.peer.is_none_or(|peer| (peer.ip(), peer.port()) == (source.ip(), source.port()))
    }

    /// Processes a completion of a queue.
    fn complete(&mut self, index: usize, completion: Completion) -> Result<(), Errno> {
        match self.locals.get(index)?.complete(completion)? {
            Some(received) if self.accepts(received.source) => {
                self.inbox.push_back(Message::Slot(index, received));
                Ok(())
            }
            Some(received) => self.locals.get(index)?.give_back(&received),
            None => Ok(()),
        }
    }

    /// Processes a packet of the UDP socket: answers it, learns the sender's queue pair, and takes
    /// its data. Packets that are not of the protocol are ignored.
    fn hear(&mut self, packet: &[u8], from: SocketAddr) -> Result<(), Errno> {
        let Some((header, data)) = PacketHeader::decode(packet) else { return Ok(()) };
        if header.address.is_ipv4() != from.is_ipv4() {
            return Ok(());
        }
        let queue = self.destination(from)?;
        if header.operation == Operation::Data {
            let waiting = self.inbox.iter().filter(|message| matches!(message, Message::Packet(..))).count();
            if waiting < PACKETS {
                self.inbox.push_back(Message::Packet(from, data.to_vec()));
            }
            self.send_packet(queue, from, Operation::Control, &[])?;
        }
        self.destinations.learn(from, header.pair, self.locals.get(queue)?)
    }

    /// Takes packets of the UDP socket. Returns whether there were any.
    fn take_packets(&mut self) -> bool {
        // One byte more than a packet has: a longer one, which would be cut, fills it.
        let mut packet = [0; PACKET_HEADER_MOST + BUFFER + 1];
        for count in 0..PACKETS {
            let Ok(received) = self.udp().map(|udp| udp.recv_from(&mut packet)) else { return count > 0 };
            match received {
                Ok((len, _)) if len == packet.len() => {}
                // A packet that cannot be answered is lost.
                Ok((len, from)) => drop(self.hear(&packet[..len], plain(from))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return count > 0,
                // The answer of a host whose port is closed.
                Err(error) => self.error = Some(errno(error)),
            }
        }
        true
    }
}

impl Waiting for Endpoint {
    fn sleepers(&mut self) -> &mut Sleepers {
        &mut self.sleepers
    }

    fn is_closed(&self) -> bool {
        self.udp.is_none()
    }

    fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    fn poll(&mut self) -> bool {
        let mut is_changed = false;
        for index in 0..self.locals.len() {
            let depth = self.locals.get(index).map_or(0, |queue| queue.depth());
            for _ in 0..depth {
                let polled = self.locals.get(index).and_then(|queue| queue.queues().poll());
                let result = match polled {
                    Ok(None) => break,
                    Ok(Some(completion)) => self.complete(index, completion),
                    Err(errno) => Err(errno),
                };
                is_changed = true;
                if let Err(errno) = result {
                    self.fail_queue(index, errno);
                    break;
                }
            }
        }
        if is_changed {
            self.sleepers.wake();
        }
        is_changed
    }

    fn take_events(&mut self) -> bool {
        let has_packets = self.take_packets();
        let is_changed = self.destinations.take_events(&mut self.locals) || has_packets;
        if is_changed {
            self.sleepers.wake();
        }
        is_changed
    }

    fn arm(&mut self) -> Result<bool, Errno> {
        let mut is_new = false;
        for index in 0..self.locals.len() {
            match self.locals.get(index).map(|queue| queue.queues().arm()) {
                Ok(Ok(is_late)) => is_new |= is_late,
                Ok(Err(errno)) => {
                    self.fail_queue(index, errno);
                    is_new = true;
                }
                Err(_) => (),
            }
        }
        Ok(is_new)
    }

    fn sources(&mut self) -> Vec<Polled> {
        let udp = self.udp.iter().map(|udp| Polled::readable(udp.as_raw_fd()));
        let queues = self.locals.iter_mut().map(|queue| Polled::readable(queue.queues().fd()));
        udp.chain(queues).chain(self.destinations.sources()).collect()
    }

    fn awake(&mut self, _probe: Option<Instant>) {
        // As for a stream: others may sleep on a queue that is no longer armed.
        let mut is_any = false;
        self.locals.iter_mut().for_each(|queue| is_any |= queue.queues().take_events());
        if is_any {
            self.sleepers.wake();
        }
    }

    fn ready(&mut self, events: c_short) -> c_short {
        let flag = |flag: c_short, is_set: bool| if is_set { flag } else { 0 };
        let has_read = !self.inbox.is_empty() || self.error.is_some();
        let has_room = self.locals.iter().all(LocalQueue::has_room);
        let read = flag(libc::POLLIN | libc::POLLRDNORM, has_read);
        let write = flag(libc::POLLOUT | libc::POLLWRNORM, has_room);
        flag(libc::POLLERR, self.error.is_some()) | events & (read | write)
    }

    fn fail(&mut self, errno: Errno) {
        self.error = Some(errno);
    }
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
