//! What a node needs to reach other hosts: the address, the key, the numbers of hosts, and the
//! connections that have proved nothing yet. `callers` has the links.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::chosen::{self, Chosen, KeySource};
use crate::engine::Slot;
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, HelloError, Identity, Instance, Nonce, Opened, Purpose, Route, Terms};
use crate::link::hosts::{HostUse, Hosts};
use crate::link::key::{self, Key};
use crate::link::share::{self, Shared};
use crate::link::tls::Protection;
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::lock::Lock;
use crate::os::tcp::Tcp;

/// Limit of the connections that have not proved that they hold the key.
pub(super) const MAX_STRANGERS: usize = 64;
/// How long a stranger keeps its place although others wait for it: a caller that holds the key
/// needs two round trips.
const GRACE: Duration = Duration::from_millis(200);
/// At most one line of the log about refused strangers in this time.
const QUIET: Duration = Duration::from_secs(60);

/// Tokens of the event loop of the thread that lets callers in; the others are strangers'.
pub(super) const CALLER: u64 = 0;
pub(super) const DOOR: u64 = 1;
/// Pause between two looks for a place.
const PAUSE: Duration = Duration::from_millis(5);

/// The part of a node that reaches other hosts.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The address at which this process listens, and from which it connects.
    pub(crate) address: SocketAddr,
    pub(super) key: Key,
    /// Whether frames are encrypted.
    pub(crate) protection: Protection,
    pub(crate) source: KeySource,
    pub(super) shared: Shared,
    instance: Instance,
    pub(crate) hosts: Arc<Hosts>,
    /// The nonces of the connections that this process is opening.
    pub(super) openings: Lock<HashSet<Nonce>>,
    /// The event loop of the thread that lets callers in.
    pub(super) event_loop: EventLoop,
    strangers: Lock<Strangers>,
    refusals: Lock<Refusals>,
    /// Callers with the key that are being let in.
    links: Lock<Arc<()>>,
}

/// The address, the key, whether frames are encrypted, and the socket that listens there.
#[derive(Debug)]
pub(super) struct Prepared {
    chosen: Chosen,
    protection: Protection,
    listener: Tcp,
}

/// Connections that have not proved anything, the oldest first.
#[derive(Debug, Default)]
struct Strangers {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    socket: Arc<Tcp>,
    stage: Stage,
}

/// The state of the handshake with a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was said to it.
    Unanswered,
    /// It is in the queue of another process, or has been taken from there.
    Given,
    /// This process goes on with its handshake.
    Answered,
}

/// Strangers that were refused.
#[derive(Debug, Default)]
struct Refusals {
    /// Since the last line of the log.
    count: u64,
    /// The reason of the last one.
    why: Option<HelloError>,
    /// The time of the last line of the log.
    told: Option<Instant>,
}

impl Remote {
    /// Gets the socket of the address that the program or the environment has chosen; `None` for
    /// neither. May wait for other processes, and for the writer of a pipe with the key.
    pub(super) fn prepare() -> os::Result<Option<Prepared>> {
        let chosen = chosen::get().map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error());
            log!(ERROR, "{error}");
            os::Error { call: "the check of the address and the key", errno }
        })?;
        let Some(chosen) = chosen else { return Ok(None) };
        let protection = Protection::from_environment().map_err(|error| {
            log!(ERROR, "{error}");
            os::Error { call: "the check of RDMA_SOFT_TLS", errno: error.errno() }
        })?;
        let listener = share::join(chosen.address).inspect_err(|error| {
            let (error, address) = (*error, chosen.address);
            let why = if error.errno == Errno::EADDRINUSE { share::in_use(address) } else { String::new() };
            log!(ERROR, "{address}: this process cannot listen there for other hosts: {error} {why}");
        })?;
        Ok(Some(Prepared { chosen, protection, listener }))
    }

    /// Listens at the address. Waits for nobody.
    pub(super) fn start(slot: Slot, prepared: Prepared) -> os::Result<Self> {
        let Prepared { chosen: Chosen { address, key, source }, protection, listener } = prepared;
        let shared = Shared::new(listener, address, slot)?;
        let event_loop = EventLoop::new()?;
        event_loop.watch_shared(&shared.listener, CALLER)?;
        event_loop.watch(&shared.door, DOOR)?;
        log!(DEBUG, %address, "listens for other hosts");
        Ok(Self {
            address,
            key,
            protection,
            source,
            shared,
            instance: os::random()?,
            hosts: Arc::default(),
            openings: Lock::default(),
            event_loop,
            strangers: Lock::default(),
            refusals: Lock::default(),
            links: Lock::default(),
        })
    }

    /// Whether this process listens at an address, for those who hold this key.
    pub(crate) fn is_of(&self, address: SocketAddr, key: &Key) -> bool {
        self.address == address && self.key.is_same(key)
    }

    /// By this users see whether two hosts have the same key.
    pub(crate) fn fingerprint(&self) -> String {
        key::fingerprint(&self.key)
    }

    /// The number of the host with an address; `None` if too many hosts are in use.
    pub(crate) fn hold(&self, address: IpAddr) -> Option<HostUse> {
        self.hosts.hold(address)
    }

    /// Whether a socket listens at an address of this host, at the port of this process: processes
    /// with that address are those of another host, whatever their user.
    fn is_listened_at(&self, address: IpAddr) -> bool {
        let address = SocketAddr::new(address, self.address.port());
        Tcp::is_taken(address)
    }

    /// Whether packets to an address leave for another host. `is_here` says whether this host has
    /// the address.
    pub(crate) fn is_elsewhere(&self, address: IpAddr, is_here: impl FnOnce() -> bool) -> bool {
        address != self.address.ip() && (!is_here() || self.is_listened_at(address))
    }

    /// This process, whose first slot is `slot`.
    pub(super) fn identity(&self, slot: Slot) -> Identity {
        Identity { slot, instance: self.instance }
    }

    /// What this process proves to others, and wants of them.
    pub(super) fn terms(&self) -> Terms<'_> {
        Terms { key: &self.key, protection: self.protection }
    }

    /// Connects to the process with a slot, and runs the handshake.
    pub(super) fn call(&self, to: IpAddr, first: &First, deadline: Instant) -> Result<(Tcp, Opened), HelloError> {
        let from = self.address.ip();
        let socket = Tcp::connect(from, SocketAddr::new(to, self.address.port()), deadline)?;
        let route = Route::of_opener(&socket)?;
        let opened = hello::open(&socket, &self.key, route, first, deadline)?;
        Ok((socket, opened))
    }

    /// Whether the process with the slot that an opener claims says that it is this opener.
    pub(super) fn is_confirmed(&self, us: Identity, host: IpAddr, opener: &First) -> Result<bool, HelloError> {
        let deadline = Instant::now() + hello::PATIENCE;
        let purpose = Purpose::Confirm(opener.nonce);
        let (protection, target) = (self.protection, opener.opener.slot);
        let question = First { purpose, protection, target, opener: us, nonce: os::random()? };
        let (_, opened) = self.call(host, &question, deadline)?;
        Ok(opened.answer == Answer::Welcome && opened.acceptor == opener.opener)
    }

    /// Counts a caller with the key until the token is dropped; `None` if there are `limit` of
    /// them.
    pub(super) fn link_begins(&self, limit: usize) -> Option<Arc<()>> {
        let links = self.links.lock();
        (Arc::strong_count(&links) <= limit).then(|| Arc::clone(&links))
    }

    /// Counts a refused stranger, and says so at most once a minute.
    pub(super) fn refused(&self, why: &HelloError) {
        {
            let mut refusals = self.refusals.lock();
            (refusals.count, refusals.why) = (refusals.count + 1, Some(*why));
        }
        self.tell();
    }

    /// Writes the line of the log about refused strangers, if there are any and it is time.
    pub(super) fn tell(&self) {
        if self.tells_at().is_some_and(|at| at <= Instant::now()) {
            let Refusals { count, why, .. } = core::mem::replace(
                &mut *self.refusals.lock(),
                Refusals { told: Some(Instant::now()), ..Refusals::default() },
            );
            if let Some(why) = why {
                let address = self.address;
                log!(WARN, count, "callers at {address} were refused, the last because: {why}");
            }
        }
    }

    /// When the next line of the log about refused strangers is due, if there are any.
    pub(super) fn tells_at(&self) -> Option<Instant> {
        let refusals = self.refusals.lock();
        (refusals.count != 0).then(|| refusals.told.map_or_else(Instant::now, |told| told + QUIET))
    }

    /// Whether a stranger still has its place.
    pub(super) fn has_place(&self, stranger: &Stranger) -> bool {
        self.strangers.lock().waiting.iter().any(|place| Arc::ptr_eq(&place.socket, &stranger.socket))
    }

    /// When there is a place for one more stranger, if none goes by itself before.
    pub(super) fn has_room_at(&self) -> Instant {
        self.strangers.lock().has_room_at()
    }

    /// The handshake with a stranger goes on.
    pub(super) fn goes_on(&self, stranger: &Stranger, stage: Stage) {
        let mut strangers = self.strangers.lock();
        let place = strangers.waiting.iter_mut().find(|place| Arc::ptr_eq(&place.socket, &stranger.socket));
        if let Some(place) = place {
            place.stage = stage;
        }
    }
}

/// A connection that counts as a stranger's until this is dropped.
pub(super) struct Stranger {
    remote: &'static Remote,
    pub(super) socket: Arc<Tcp>,
}

impl Stranger {
    /// Counts a connection; ends the oldest one if there are too many.
    pub(super) fn new(remote: &'static Remote, socket: Arc<Tcp>) -> Self {
        remote.strangers.lock().enter(&socket, Stage::Unanswered);
        Self { remote, socket }
    }

    /// Counts a connection whose handshake goes on here as soon as there is a place. One for which
    /// there is none in time must call again.
    pub(super) fn placed(remote: &'static Remote, socket: Arc<Tcp>, deadline: Instant) -> Result<Self, HelloError> {
        loop {
            if remote.strangers.lock().try_enter(&socket, Stage::Answered) {
                return Ok(Self { remote, socket });
            }
            if Instant::now() >= deadline {
                hello::tell_busy(&socket);
                return Err(HelloError::Late);
            }
            sleep(PAUSE);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.remote.strangers.lock().waiting.retain(|place| !Arc::ptr_eq(&place.socket, &self.socket));
    }
}

impl Strangers {
    fn has_room_at(&self) -> Instant {
        let oldest = self.waiting.front().filter(|_| self.waiting.len() >= MAX_STRANGERS);
        oldest.map_or_else(Instant::now, |oldest| oldest.since + GRACE)
    }

    /// Counts a connection if there is a place.
    fn try_enter(&mut self, socket: &Arc<Tcp>, stage: Stage) -> bool {
        let has_room = self.has_room_at() <= Instant::now();
        if has_room {
            self.enter(socket, stage);
        }
        has_room
    }

    fn enter(&mut self, socket: &Arc<Tcp>, stage: Stage) {
        self.waiting.push_back(Waiting { since: Instant::now(), socket: Arc::clone(socket), stage });
        if self.waiting.len() > MAX_STRANGERS {
            // A connection that was given away is ended by its giver, unless the other
            // process has taken it.
            if let Some(oldest) = self.waiting.pop_front().filter(|oldest| oldest.stage != Stage::Given) {
                if oldest.stage == Stage::Unanswered {
                    hello::tell_busy(&oldest.socket);
                }
                oldest.socket.shut_down();
            }
        }
    }
}

/// A nonce that this process confirms.
pub(super) struct Opening<'a> {
    remote: &'a Remote,
    pub(super) nonce: Nonce,
}

impl<'a> Opening<'a> {
    pub(super) fn new(remote: &'a Remote) -> os::Result<Self> {
        let nonce = os::random()?;
        remote.openings.lock().insert(nonce);
        Ok(Self { remote, nonce })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.remote.openings.lock().remove(&self.nonce);
    }
}
