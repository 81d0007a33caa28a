//! The active side of a connection: addresses, route, request.

use std::net::SocketAddr;

use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, rdma_cm_event_type as Kind};

use super::connection::Connection;
use super::{State, Stream};
use crate::shared::{Wait, Waiting};
use crate::verbs::Event;
use crate::wire::ConnectData;

/// How often the resolution of an address or a route is tried again, each time for twice as long.
const RETRIES: u32 = 6;
/// Milliseconds of the first try.
const TIMEOUT: c_int = 1000;

/// The progress of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Listening,
    /// Resolves the peer's address, for so many times.
    Address(SocketAddr, u32),
    /// Resolves the route, for so many times.
    Route(u32),
    /// Waits for the peer's answer.
    Requested,
    Connected,
    Failed,
}

impl Phase {
    /// Whether a connection is being made.
    pub(super) fn is_opening(self) -> bool {
        matches!(self, Self::Address(..) | Self::Route(_) | Self::Requested)
    }
}

impl Stream {
    /// Connects to a listener. `EINPROGRESS` in non-blocking mode: `POLLOUT` reports the end.
    pub(crate) fn connect(&self, address: SocketAddr) -> Result<(), Errno> {
        let pending = {
            let mut state = self.open()?;
            match state.phase {
                Phase::Idle => {
                    state.resolve_address(address, 0)?;
                    state.sleepers.wake();
                    Errno::EINPROGRESS
                }
                phase if phase.is_opening() => Errno::EALREADY,
                Phase::Connected => return Err(Errno::EISCONN),
                _ => return Err(Errno::EINVAL),
            }
        };
        let connected = self.until(Wait::Mode, |state| match state.phase {
            Phase::Connected => Some(Ok(())),
            phase if phase.is_opening() => None,
            _ => Some(Err(state.error.take().unwrap_or(Errno::ENOTCONN))),
        });
        connected.map_err(|errno| if errno == Errno::EAGAIN { pending } else { errno })
    }
}

impl State {
    fn resolve_address(&mut self, address: SocketAddr, tries: u32) -> Result<(), Errno> {
        self.id()?.resolve_address(None, address, TIMEOUT << tries)?;
        self.phase = Phase::Address(address, tries);
        Ok(())
    }

    fn resolve_route(&mut self, tries: u32) -> Result<(), Errno> {
        if self.settings.route.is_empty() {
            self.id()?.resolve_route(TIMEOUT << tries)?;
        } else {
            let route = self.settings.route.clone();
            self.id()?.set_option(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &route)?;
        }
        self.phase = Phase::Route(tries);
        Ok(())
    }

    /// Processes an event of the connection manager.
    pub(super) fn advance(&mut self, event: &Event) {
        let result = match (self.phase, event.kind) {
            (Phase::Address(..), Kind::RDMA_CM_EVENT_ADDR_RESOLVED) => self.resolve_route(0),
            (Phase::Address(address, tries), Kind::RDMA_CM_EVENT_ADDR_ERROR) if is_late(event, tries) => {
                self.resolve_address(address, tries + 1)
            }
            (Phase::Route(_), Kind::RDMA_CM_EVENT_ROUTE_RESOLVED) => self.request(),
            (Phase::Route(tries), Kind::RDMA_CM_EVENT_ROUTE_ERROR) if is_late(event, tries) => {
                self.resolve_route(tries + 1)
            }
            (Phase::Requested, Kind::RDMA_CM_EVENT_ESTABLISHED) => self.established(event),
            (Phase::Connected, kind @ Kind::RDMA_CM_EVENT_DISCONNECTED)
            | (_, kind @ Kind::RDMA_CM_EVENT_DEVICE_REMOVAL) => {
                self.end(kind);
                Ok(())
            }
            (phase, _) if phase.is_opening() => Err(event.errno()),
            _ => Ok(()),
        };
        if let Err(errno) = result {
            self.lose(errno);
        }
    }

    /// Ends a connection because of an event of this kind.
    pub(super) fn end(&mut self, kind: Kind) {
        if kind == Kind::RDMA_CM_EVENT_DISCONNECTED {
            // The peer's last messages came before.
            self.poll();
            self.connection.iter_mut().for_each(Connection::disconnected);
        } else {
            self.lose(Errno::ENODEV);
        }
    }

    /// Sends the connection request.
    fn request(&mut self) -> Result<(), Errno> {
        let id = self.id.as_mut().ok_or(Errno::EBADF)?;
        let connection = self.connection.insert(Connection::new(id, &self.settings)?);
        id.connect(&connection.connect_data())?;
        self.phase = Phase::Requested;
        Ok(())
    }

    /// Takes the peer's answer.
    fn established(&mut self, event: &Event) -> Result<(), Errno> {
        let peer = ConnectData::decode(&event.private)?;
        self.connection.iter_mut().for_each(|connection| connection.start(peer));
        self.phase = Phase::Connected;
        Ok(())
    }

    /// Ends the connection, or the attempt to make one, for a reason.
    pub(super) fn lose(&mut self, errno: Errno) {
        if self.phase == Phase::Connected {
            self.connection.iter_mut().for_each(|connection| connection.fail(errno));
        } else if self.phase != Phase::Failed {
            self.phase = Phase::Failed;
            self.error = Some(errno);
            self.connection = None;
        }
    }
}

/// Whether a resolution timed out and may be tried again.
fn is_late(event: &Event, tries: u32) -> bool {
    tries < RETRIES && event.errno() == Errno::ETIMEDOUT
}
