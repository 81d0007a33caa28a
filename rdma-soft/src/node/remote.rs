//! What a node needs to reach other hosts: the address, the key, the numbers of hosts, and the
//! connections that have proved nothing yet. `callers` has the links.

use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::chosen::{self, Chosen, KeySource};
use super::source::Source;
use crate::engine::Slot;
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, HelloError, Identity, Instance, Nonce, Opened, Purpose, Route, Terms};
use crate::link::hosts::{HostUse, Hosts};
use crate::link::key::{self, Key};
use crate::link::share::{self, Shared};
use crate::link::tls::{self, Protection};
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::lock::Lock;
use crate::os::tcp::Tcp;

/// Limit of the connections that have not proved that they hold the key.
const MAX_STRANGERS: usize = 64;
/// At most one line of the log about refused strangers in this time.
const QUIET: Duration = Duration::from_secs(60);

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
    strangers: Lock<Strangers>,
    /// Threads that are passing calls on.
    calls: Arc<()>,
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
    waiting: VecDeque<Arc<Tcp>>,
    /// Refused since the last line of the log, and the time of that line.
    refused: u64,
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
        let protection = Protection::from_environment().map_err(|values| {
            log!(ERROR, "{} must be {values}", tls::VARIABLE.name);
            os::Error { call: "the check of RDMA_SOFT_TLS", errno: Errno::EINVAL }
        })?;
        let listener = share::join(chosen.address).inspect_err(|error| {
            let (error, address) = (*error, chosen.address);
            log!(ERROR, "{address}: this process cannot listen there for other hosts: {error}");
        })?;
        Ok(Some(Prepared { chosen, protection, listener }))
    }

    /// Listens at the address. Waits for nobody.
    pub(super) fn start(event_loop: &EventLoop, slot: Slot, prepared: Prepared) -> os::Result<Self> {
        let Prepared { chosen: Chosen { address, key, source }, protection, listener } = prepared;
        let shared = Shared::new(listener, address, slot)?;
        event_loop.watch_once(&shared.listener, Source::Caller.token())?;
        event_loop.watch(&shared.door, Source::Door.token())?;
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
            strangers: Lock::default(),
            calls: Arc::default(),
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
        let route = Route { opener: from, acceptor: to };
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

    /// Counts a call until the token is dropped; `None` if `limit` calls are being passed on.
    pub(super) fn call_begins(&self, limit: usize) -> Option<Arc<()>> {
        // This process accepts in one thread, so no other call begins meanwhile.
        (Arc::strong_count(&self.calls) <= limit).then(|| Arc::clone(&self.calls))
    }

    /// Counts a refused stranger, and says so at most once a minute.
    pub(super) fn refused(&self, why: &HelloError) {
        let mut strangers = self.strangers.lock();
        strangers.refused += 1;
        if strangers.told.is_none_or(|told| told.elapsed() >= QUIET) {
            let (count, address, why) = (core::mem::take(&mut strangers.refused), self.address, *why);
            strangers.told = Some(Instant::now());
            log!(WARN, count, "callers at {address} were refused, the last because: {why}");
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
        let mut strangers = remote.strangers.lock();
        strangers.waiting.push_back(Arc::clone(&socket));
        if strangers.waiting.len() > MAX_STRANGERS {
            if let Some(oldest) = strangers.waiting.pop_front() {
                oldest.shut_down();
            }
        }
        Self { remote, socket }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.remote.strangers.lock().waiting.retain(|other| !Arc::ptr_eq(other, &self.socket));
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
