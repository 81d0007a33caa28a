//! Streams: connected sockets and listeners.
//!
//! One mutex protects all of a stream ([`Shared`]), so one thread may read, another write and a
//! third close it.

mod connect;
pub(crate) mod connection;
mod flow;
mod listen;
mod maps;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use libc::{c_int, c_short};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown};
use rdma_sys::{RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, rdma_port_space};

use self::connect::Phase;
use self::connection::Connection;
use self::listen::Listener;
use crate::buffers::{Sink, Source};
use crate::number::Number;
use crate::settings::{Effect, Settings};
use crate::shared::{Shared, Wait, Waiting};
use crate::verbs::{Id, Libraries};
use crate::wait::{Polled, Sleepers};

/// A stream socket.
pub(crate) type Stream = Shared<State>;

/// All of a stream.
#[derive(Debug)]
pub(crate) struct State {
    connection: Option<Connection>,
    listener: Option<Listener>,
    /// `None` once the stream is closed.
    id: Option<Id>,
    phase: Phase,
    settings: Settings,
    /// The reason of a failed connection, for `SO_ERROR`.
    error: Option<Errno>,
    sleepers: Sleepers,
    /// A close has begun: further closes fail.
    is_closing: bool,
    /// Every call fails.
    is_closed: bool,
}

impl Stream {
    /// A socket that is neither bound nor connected.
    pub(crate) fn new(libraries: Libraries, settings: Settings) -> Result<Self, Errno> {
        let id = Id::new(libraries, rdma_port_space::RDMA_PS_TCP)?;
        Ok(Self::with(id, None, Phase::Idle, settings))
    }

    fn with(id: Id, connection: Option<Connection>, phase: Phase, settings: Settings) -> Self {
        let number = Number::of(id.descriptor());
        let state = State {
            connection,
            listener: None,
            id: Some(id),
            phase,
            settings,
            error: None,
            sleepers: Sleepers::default(),
            is_closing: false,
            is_closed: false,
        };
        Self::of(number, state)
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        self.open()?.id()?.bind(address)
    }

    /// Sends the buffers. A blocking call returns less than their length only after an error or a
    /// signal.
    pub(crate) fn send(&self, source: &mut Source<'_, '_>, flags: MsgFlags) -> Result<usize, Errno> {
        let wanted = source.left();
        let wait = Wait::of(flags);
        while source.left() > 0 {
            let before = source.left();
            let sent = self.until(wait, |state| match state.connected() {
                Ok(None) => None,
                Ok(Some(connection)) => connection.send(source).map(|sent| (sent > 0).then_some(())).transpose(),
                Err(errno) => Some(Err(errno)),
            });
            match sent {
                Ok(()) => (),
                Err(errno) if source.left() == wanted && before == wanted => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(wanted - source.left())
    }

    /// Receives into the buffers: some bytes, or 0 at the end of the stream. With `MSG_WAITALL`
    /// they are filled, unless an error, a signal or the end comes first.
    pub(crate) fn receive(&self, sink: &mut Sink<'_, '_>, flags: MsgFlags) -> Result<usize, Errno> {
        let (is_peek, wants_all) = (flags.contains(MsgFlags::MSG_PEEK), flags.contains(MsgFlags::MSG_WAITALL));
        let wanted = sink.left();
        let wait = Wait::of(flags);
        while sink.left() > 0 {
            let received = self.until(wait, |state| match state.connected() {
                Ok(None) => None,
                Ok(Some(connection)) if connection.unread() > 0 => Some(connection.receive(sink, is_peek)),
                // The next call reports the reason of a failure.
                Ok(Some(connection)) if sink.left() < wanted && !connection.is_readable() => Some(Ok(0)),
                Ok(Some(connection)) => match connection.take_failure() {
                    Some(errno) => Some(Err(errno)),
                    None => (!connection.is_readable()).then_some(Ok(0)),
                },
                Err(errno) => Some(Err(errno)),
            });
            match received {
                Ok(0) => break,
                Err(errno) if sink.left() == wanted => return Err(errno),
                Ok(_) if wants_all && !is_peek => (),
                _ => break,
            }
        }
        Ok(wanted - sink.left())
    }

    /// Registers memory and lets the peer write it at an offset, if it is shared.
    ///
    /// # Safety
    ///
    /// The memory stays valid for the device, and for writes of the peer if it is shared, until
    /// [`Self::unmap`] or [`Self::close`].
    pub(crate) unsafe fn map(&self, memory: (*mut u8, usize), is_shared: bool, offset: u64) -> Result<(), Errno> {
        self.until(Wait::Mode, |state| match state.connected() {
            Ok(None) => None,
            Ok(Some(_)) => {
                let State { connection, id, .. } = state;
                let (connection, id) = connection.as_mut().zip(id.as_ref())?;
                // SAFETY: `map` requires memory that stays valid, this function's condition: a
                // close ends the connection.
                Some(unsafe { connection.map(id, memory, is_shared, offset) })
            }
            Err(errno) => Some(Err(errno)),
        })
    }

    /// Ends a mapping. `EINVAL` if the memory is not mapped.
    pub(crate) fn unmap(&self, memory: *mut u8, len: usize) -> Result<(), Errno> {
        let mut state = self.open()?;
        state.connection.as_mut().ok_or(Errno::EINVAL)?.unmap(memory, len)
    }

    /// Writes to the memory that the peer has mapped at an offset, up to the end of its mappings.
    pub(crate) fn write_mapped(
        &self,
        source: &mut Source<'_, '_>,
        offset: u64,
        flags: MsgFlags,
    ) -> Result<usize, Errno> {
        let wanted = source.left();
        while source.left() > 0 {
            let written = wanted - source.left();
            let at = offset.wrapping_add(written as u64);
            let result = self.until(Wait::of(flags), |state| match state.connected() {
                Ok(None) => None,
                Ok(Some(connection)) => connection.write_mapped(source, at).transpose(),
                Err(errno) => Some(Err(errno)),
            });
            match result {
                Err(errno) if written == 0 => return Err(errno),
                Ok(0) | Err(_) => break,
                Ok(_) => (),
            }
        }
        Ok(wanted - source.left())
    }

    pub(crate) fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        let reading = how != Shutdown::Write;
        let writing = how != Shutdown::Read;
        let linger = self.open()?.settings.linger();
        let deadline = Wait::Until(Instant::now() + linger);
        loop {
            let ended = self.until(deadline, |state| match state.connected() {
                Ok(Some(connection)) => match connection.shut_down(reading, writing) {
                    Ok(false) => None,
                    Ok(true) => {
                        state.sleepers.wake();
                        Some(Ok(()))
                    }
                    Err(errno) => Some(Err(errno)),
                },
                Ok(None) => Some(Err(Errno::ENOTCONN)),
                Err(errno) => Some(Err(errno)),
            });
            // shutdown(2) has no EINTR: a program would not repeat the call, and the peer would not
            // hear of the end.
            if ended != Err(Errno::EINTR) {
                return ended;
            }
        }
    }

    /// Sends what was written, waits at most the time of `SO_LINGER` for that, and ends the socket.
    /// Calls of other threads fail with `EBADF`.
    pub(crate) fn close(&self) -> Result<(), Errno> {
        let linger = {
            let mut state = self.open()?;
            if std::mem::replace(&mut state.is_closing, true) {
                return Err(Errno::EBADF);
            }
            let connection = state.connection.as_ref().filter(|_| state.phase == Phase::Connected);
            let is_connected = connection.is_some_and(Connection::is_open);
            if is_connected { state.settings.linger() } else { Duration::ZERO }
        };
        if !linger.is_zero() {
            self.finish(linger);
        }
        let thread = {
            let mut state = self.lock();
            state.is_closed = true;
            if state.connection.is_some() {
                state.id()?.disconnect();
            }
            state.sleepers.wake();
            state.listener.take().map(Listener::stop)
        };
        thread.into_iter().for_each(listen::join);
        let (connection, id) = {
            let mut state = self.lock();
            (state.connection.take(), state.id.take())
        };
        // Destroyed without the lock.
        drop((connection, id));
        Ok(())
    }

    /// Tells the peer of the end, and waits until the device has sent everything.
    fn finish(&self, linger: Duration) {
        let deadline = Wait::Until(Instant::now() + linger);
        let mut is_told = false;
        loop {
            let finished = self.until(deadline, |state| {
                let connection = state.connection.as_mut()?;
                if !is_told {
                    is_told = connection.shut_down(true, true).unwrap_or(true);
                }
                (is_told && connection.is_idle()).then_some(Ok(()))
            });
            // A signal does not end the wait, which the deadline bounds.
            if finished != Err(Errno::EINTR) {
                break;
            }
        }
    }

    pub(crate) fn local_address(&self) -> Result<Option<SocketAddr>, Errno> {
        Ok(self.open()?.id()?.local_address())
    }

    pub(crate) fn peer_address(&self) -> Result<SocketAddr, Errno> {
        let mut state = self.open()?;
        let is_connected = state.connection.is_some();
        state.id()?.peer_address().filter(|_| is_connected).ok_or(Errno::ENOTCONN)
    }

    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        let mut state = self.open()?;
        let state = &mut *state;
        let is_open = !matches!(state.phase, Phase::Idle | Phase::Listening);
        match state.settings.set(level, name, value, is_open)? {
            Effect::None => Ok(()),
            // The connection manager takes one byte.
            Effect::Identifier(RDMA_OPTION_ID_TOS) => {
                let byte = value.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes)).to_le_bytes()[0];
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[byte])
            }
            Effect::Identifier(option) => state.id()?.set_option(RDMA_OPTION_ID, option, &value[..size_of::<c_int>()]),
        }
    }

    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<Vec<u8>, Errno> {
        let mut state = self.open()?;
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            state.poll();
            state.take_events();
            let failure = state.connection.as_mut().and_then(Connection::take_failure);
            let error = state.error.take().or(failure).map_or(0, |errno| errno as c_int);
            return Ok(error.to_ne_bytes().to_vec());
        }
        state.settings.get(level, name)
    }
}

impl State {
    fn id(&mut self) -> Result<&mut Id, Errno> {
        self.id.as_mut().ok_or(Errno::EBADF)
    }

    /// The connection. `None` while it is being made; `ENOTCONN` or the reason if there is none.
    fn connected(&mut self) -> Result<Option<&mut Connection>, Errno> {
        match self.phase {
            Phase::Connected => self.connection.as_mut().map(Some).ok_or(Errno::ENOTCONN),
            phase if phase.is_opening() => Ok(None),
            _ => Err(self.error.take().unwrap_or(Errno::ENOTCONN)),
        }
    }
}

impl Waiting for State {
    fn sleepers(&mut self) -> &mut Sleepers {
        &mut self.sleepers
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    fn probe_interval(&self) -> Option<Duration> {
        self.settings.probe_interval()
    }

    fn poll(&mut self) -> bool {
        let connection = self.connection.as_mut().filter(|_| self.phase == Phase::Connected);
        let is_changed = connection.is_some_and(Connection::poll);
        if is_changed {
            self.sleepers.wake();
        }
        is_changed
    }

    fn take_events(&mut self) -> bool {
        let mut is_changed = false;
        while self.phase != Phase::Listening {
            match self.id().and_then(Id::next_event) {
                Ok(Some(event)) => self.advance(&event),
                Ok(None) => break,
                Err(errno) => {
                    self.lose(errno);
                    break;
                }
            }
            is_changed = true;
        }
        if is_changed {
            self.sleepers.wake();
        }
        is_changed
    }

    fn arm(&mut self) -> Result<bool, Errno> {
        let connection = self.connection.as_mut().filter(|_| self.phase == Phase::Connected);
        connection.map_or(Ok(false), |connection| connection.queues().arm())
    }

    fn sources(&mut self) -> Vec<Polled> {
        let mut sources = Vec::with_capacity(3);
        if self.phase.is_opening() || self.phase == Phase::Connected {
            sources.extend(self.id.as_ref().map(|id| Polled::readable(id.fd())));
            sources.extend(self.connection.as_mut().map(|connection| Polled::readable(connection.queues().fd())));
        }
        sources
    }

    fn awake(&mut self, probe: Option<Instant>) {
        let Some(connection) = &mut self.connection else { return };
        // Others may sleep on the queue, which is no longer armed: this thread may return without
        // arming it again.
        if connection.queues().take_events() {
            self.sleepers.wake();
        }
        if probe.is_some_and(|probe| Instant::now() >= probe) {
            connection.probe();
        }
    }

    fn ready(&mut self, events: c_short) -> c_short {
        const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
        const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;
        let flag = |flag: c_short, is_set: bool| if is_set { flag } else { 0 };
        if let Some(listener) = &self.listener {
            return events & flag(READ, listener.has_ready());
        }
        if self.phase == Phase::Failed {
            return libc::POLLERR | events & (READ | WRITE);
        }
        let Some(connection) = self.connection.as_mut().filter(|_| self.phase == Phase::Connected) else { return 0 };
        // A program that polls for data often takes POLLHUP for a failure, so data comes first.
        let ended = match (connection.is_open(), connection.is_disconnected()) {
            (true, _) => 0,
            (false, true) => flag(libc::POLLHUP, connection.unread() == 0),
            (false, false) => libc::POLLERR,
        };
        let has_read = connection.unread() > 0 || !connection.is_readable();
        let has_room = !connection.is_open() || connection.room() > 0;
        let peer_is_done = flag(libc::POLLRDHUP, !connection.is_readable());
        ended | events & (flag(READ, has_read) | flag(WRITE, has_room) | peer_is_done)
    }

    fn fail(&mut self, errno: Errno) {
        self.lose(errno);
    }
}
