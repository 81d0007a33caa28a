//! Connections set up by an exchange of endpoints over TCP, for devices without a connection
//! manager.
//!
//! The connecting side sends a REQUEST, the listening side an ANSWER, and the connecting side a
//! READY, as the messages of the connection manager. The socket then stays open: its end is the end
//! of the connection, so a side notices the death of its peer's process.
//!
//! Files: `mod` has the sockets of a node, `socket` the steps of one socket, `wire` the wire
//! format, `shortage` refuses peers when no descriptor is left.

mod shortage;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) use self::wire::{Kind, offer, split_offer};
use rdma::cm::{EventKind, IdKey, PrivateData};
use rdma::{Endpoint, Error, ErrorKind, MadeIn, Result, Verb};

use self::shortage::Spare;
use self::socket::{Change, Socket, connect_error, disconnected};
use crate::wait::{ReadySet, start_to_connect};

/// The sockets of a node.
pub(super) struct Sockets {
    ready: ReadySet,
    table: Mutex<Table>,
    made_in: MadeIn,
}

struct Table {
    sockets: HashMap<IdKey, Socket>,
    listeners: HashMap<IdKey, Listening>,
    spare: Spare,
}

/// A listening socket.
struct Listening {
    socket: TcpListener,
    /// Peers whose REQUEST has not come, the oldest first, with the ends of their times.
    half_open: VecDeque<(IdKey, Instant)>,
    /// Most peers in `half_open`.
    limit: usize,
    timeout: Duration,
    /// When to accept again: after a shortage, for example of descriptors, or after others.
    retry: Option<Instant>,
}

/// Batches of changed sockets of one turn: a flood of peers must not stop connections.
const BATCHES: usize = 4;

/// The time until a listener accepts again after a shortage.
const SHORTAGE: Duration = Duration::from_millis(100);

/// An event of the exchange.
pub(super) enum Event {
    /// A peer's request to the listener of this key.
    Request(IdKey, Request),
    /// An event as of the connection manager.
    Kind(IdKey, EventKind),
}

/// A peer's request to connect.
pub(super) struct Request {
    pub(super) end: End,
    pub(super) endpoint: Endpoint,
    pub(super) hello: PrivateData,
}

/// A socket of the table, closed when dropped: that tells the peer.
pub(super) struct End {
    sockets: Arc<Sockets>,
    pub(super) key: IdKey,
    pub(super) local_addr: Option<SocketAddr>,
    pub(super) peer_addr: Option<SocketAddr>,
}

impl Sockets {
    pub(super) fn new() -> Result<Self> {
        let table = Table { sockets: HashMap::new(), listeners: HashMap::new(), spare: Spare::new()? };
        Ok(Self { ready: ReadySet::new()?, table: Mutex::new(table), made_in: MadeIn::default() })
    }

    /// Keeps the lock until the result is dropped.
    #[cfg(test)]
    pub(super) fn locked(&self) -> impl Sized + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens at an address. At most `limit` peers may be connected without a request, each for
    /// `timeout`; beyond, the oldest is cut off.
    pub(super) fn listen(self: &Arc<Self>, key: IdKey, at: SocketAddr, limit: usize, timeout: Duration) -> Result<End> {
        let socket = TcpListener::bind(at).map_err(|error| listen_error(&error))?;
        socket.set_nonblocking(true).map_err(|error| listen_error(&error))?;
        let local_addr = socket.local_addr().ok();
        let mut table = self.lock();
        self.ready.add(socket.as_fd(), key.to_token())?;
        let half_open = VecDeque::new();
        table.listeners.insert(key, Listening { socket, half_open, limit: limit.max(1), timeout, retry: None });
        Ok(End { sockets: Arc::clone(self), key, local_addr, peer_addr: None })
    }

    /// Starts to connect, and sends a REQUEST with this body once connected.
    pub(super) fn connect(self: &Arc<Self>, key: IdKey, to: SocketAddr, body: &[u8]) -> Result<End> {
        let stream = start_to_connect(to).map_err(|error| connect_error(&error))?;
        let local_addr = stream.local_addr().ok();
        self.lock().add(&self.ready, key, Socket::connecting(stream, body))?;
        Ok(End { sockets: Arc::clone(self), key, local_addr, peer_addr: Some(to) })
    }

    /// Works on sockets that have changed. The descriptor stays readable while there are more.
    pub(super) fn take_events(self: &Arc<Self>, now: Instant) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for _ in 0..BATCHES {
            let tokens = self.ready.take()?;
            if tokens.is_empty() {
                break;
            }
            let mut failures = Vec::new();
            let mut table = self.lock();
            for key in tokens.into_iter().map(IdKey::from_token) {
                failures.extend(table.accept_peers(&self.ready, key, now).err());
                self.advance(&mut table, key, &mut events);
            }
            drop(table);
            log_failures(&failures);
        }
        Ok(events)
    }

    fn advance(self: &Arc<Self>, table: &mut Table, key: IdKey, events: &mut Vec<Event>) {
        let Some(socket) = table.sockets.get_mut(&key) else { return };
        let listener = socket.half_open_at();
        while let Some(change) = socket.advance() {
            match (change, listener) {
                (Change::Request(endpoint, hello), Some(listener)) => {
                    let (local_addr, peer_addr) = socket.addresses();
                    let end = End { sockets: Arc::clone(self), key, local_addr, peer_addr };
                    events.push(Event::Request(listener, Request { end, endpoint, hello }));
                }
                (Change::Event(event), _) => events.push(Event::Kind(key, event)),
                (Change::Request(..), None) => {}
            }
        }
        let Some(listener) = listener.filter(|_| socket.half_open_at().is_none()) else { return };
        if let Some(listening) = table.listeners.get_mut(&listener) {
            listening.half_open.retain(|(half_open, _)| *half_open != key);
        }
        // A socket that ended before its request has no `End`, which would remove it.
        if socket.is_over() {
            table.sockets.remove(&key);
        }
    }

    /// Cuts off the peers whose time is over. Returns the end of the next one's time.
    pub(super) fn handle_timeouts(&self, now: Instant) -> Option<Instant> {
        let mut table = self.lock();
        let Table { sockets, listeners, .. } = &mut *table;
        for listening in listeners.values_mut() {
            while listening.half_open.front().is_some_and(|(_, deadline)| *deadline <= now) {
                listening.cut_off_oldest(sockets);
            }
        }
        let due = |listening: &Listening| listening.retry.is_some_and(|retry| retry <= now);
        let due: Vec<_> = listeners.iter().filter(|(_, listening)| due(listening)).map(|(key, _)| *key).collect();
        let accept = |key| table.accept_peers(&self.ready, key, now).err();
        let failures: Vec<_> = due.into_iter().filter_map(accept).collect();
        drop(table);
        log_failures(&failures);
        self.next_deadline()
    }

    /// The end of the time of the peer that has waited longest, or the time to accept again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let table = self.lock();
        let oldest = |listening: &Listening| listening.half_open.front().map(|(_, deadline)| *deadline);
        table.listeners.values().flat_map(|listening| [oldest(listening), listening.retry]).flatten().min()
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Table {
    fn add(&mut self, ready: &ReadySet, key: IdKey, socket: Socket) -> Result<()> {
        ready.add(socket.stream.as_fd(), key.to_token())?;
        self.sockets.insert(key, socket);
        Ok(())
    }

    /// Accepts TCP connections that wait at a listener: as many as may be half open, and others in
    /// the next turn. An error is one to log under no lock.
    fn accept_peers(&mut self, ready: &ReadySet, listener: IdKey, now: Instant) -> Result<()> {
        let limit = self.listeners.get(&listener).map_or(0, |listening| listening.limit);
        let mut result = Ok(());
        for _ in 0..limit {
            let Some(listening) = self.listeners.get_mut(&listener) else { return result };
            listening.retry = None;
            let stream = match listening.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_of_one_peer(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return result,
                Err(error) => {
                    // Peers need not wait for the end of a shortage.
                    self.spare.refuse_peers(&listening.socket, limit, &error);
                    listening.retry = Some(now + SHORTAGE);
                    return Err(listen_error(&error));
                }
            };
            while listening.half_open.len() >= listening.limit {
                listening.cut_off_oldest(&mut self.sockets);
            }
            let key = IdKey::fresh();
            listening.half_open.push_back((key, now + listening.timeout));
            let added = stream
                .set_nonblocking(true)
                .map_err(|error| listen_error(&error))
                .and_then(|()| self.add(ready, key, Socket::accepted(stream, listener)));
            result = result.and(added);
        }
        if let Some(listening) = self.listeners.get_mut(&listener) {
            listening.retry = Some(now);
        }
        result
    }
}

impl Listening {
    fn cut_off_oldest(&mut self, sockets: &mut HashMap<IdKey, Socket>) {
        if let Some((key, _)) = self.half_open.pop_front() {
            sockets.remove(&key);
        }
    }
}

impl End {
    /// Sends a frame.
    pub(super) fn send(&self, kind: Kind, body: &[u8]) -> Result<()> {
        self.sockets.made_in.check(Verb::Establish)?;
        let mut table = self.sockets.lock();
        let socket = table.sockets.get_mut(&self.key).ok_or(disconnected(Verb::Establish))?;
        socket.send(kind, body)
    }

    /// Moves the socket to the events of other sockets. If it fails, the socket is closed.
    pub(super) fn migrate(&mut self, to: &Arc<Sockets>) -> Result<()> {
        if Arc::ptr_eq(&self.sockets, to) {
            return Ok(());
        }
        let gone = disconnected(Verb::Establish);
        let socket = self.sockets.lock().sockets.remove(&self.key).ok_or(gone)?;
        // An event that was taken before finds no socket of its key.
        self.sockets.ready.remove(socket.stream.as_fd())?;
        self.sockets = Arc::clone(to);
        // What the socket has is reported again there.
        to.lock().add(&to.ready, self.key, socket)
    }

    /// Closes the socket now.
    pub(super) fn shut_down(&self) {
        self.sockets.lock().sockets.remove(&self.key);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A forked child has a copy of the socket, by which it must not refuse the peer.
        if self.sockets.made_in.is_forked() {
            return;
        }
        let mut table = self.sockets.lock();
        if let Some(socket) = table.sockets.remove(&self.key) {
            socket.close();
        }
        let Some(listening) = table.listeners.remove(&self.key) else { return };
        for (key, _) in listening.half_open {
            table.sockets.remove(&key);
        }
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("key", &self.key).field("peer_addr", &self.peer_addr).finish_non_exhaustive()
    }
}

/// Whether an error of accept(2) belongs to the connection that it would have returned.
fn is_of_one_peer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

fn log_failures(failures: &[Error]) {
    for error in failures {
        tracing::warn!(name: "accept_failed", target: "rdma_net", %error, "a TCP connection could not be accepted");
    }
}

fn listen_error(error: &io::Error) -> Error {
    let other = Error::from_io(Verb::ListenTcp, error);
    match error.kind() {
        io::ErrorKind::AddrInUse => other.with_kind(ErrorKind::AddressInUse),
        io::ErrorKind::AddrNotAvailable => other.with_kind(ErrorKind::NoRoute),
        _ => other,
    }
}
