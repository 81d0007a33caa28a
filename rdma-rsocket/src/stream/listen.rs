//! Listeners: a thread accepts connections, as the kernel does for TCP, so that a peer's connect
//! ends without a call of the application.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use libc::c_int;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};
use rdma_sys::rdma_cm_event_type as Kind;

use super::connect::Phase;
use super::connection::Connection;
use super::{State, Stream};
use crate::settings::Settings;
use crate::shared::Wait;
use crate::verbs::{Event, EventChannel, Id, Request, ids_match};
use crate::wait::{Bell, Polled};
use crate::wire::ConnectData;

/// Bounds of the number of connections that no call has accepted yet.
const BACKLOG: (usize, usize) = (128, 4096);

/// The most events that the thread processes before it lets others use the stream.
const TURN: usize = 64;

/// The listening part of a stream.
#[derive(Debug)]
pub(super) struct Listener {
    backlog: usize,
    /// Connections for accept.
    ready: VecDeque<Answered>,
    /// Requests that were accepted, and whose connection is not established yet.
    answered: Vec<Answered>,
    /// Wakes the thread.
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

/// A request that was accepted. Its identifier stays on the listener's channel until a call takes
/// the connection.
#[derive(Debug)]
struct Answered {
    connection: Connection,
    request: Request,
    /// The kind of the event that has ended the connection.
    end: Option<Kind>,
}

impl Stream {
    /// Begins to listen. The backlog bounds requests, and connections that nobody has accepted.
    pub(crate) fn listen(self: &Arc<Self>, backlog: c_int) -> Result<(), Errno> {
        let mut state = self.open()?;
        match state.phase {
            Phase::Idle => (),
            Phase::Listening => return Ok(()),
            _ => return Err(Errno::EINVAL),
        }
        let bell = Arc::new(Bell::new()?);
        state.id()?.listen(backlog)?;
        let thread = spawn(Arc::clone(self), Arc::clone(&bell))?;
        let backlog = usize::try_from(backlog).unwrap_or_default().clamp(BACKLOG.0, BACKLOG.1);
        let listener = Listener { backlog, ready: VecDeque::new(), answered: Vec::new(), bell, thread: Some(thread) };
        (state.listener, state.phase) = (Some(listener), Phase::Listening);
        state.sleepers.wake();
        Ok(())
    }

    /// Takes a connection. `EMFILE` and the like leave it to the next call.
    pub(crate) fn accept(&self) -> Result<Arc<Self>, Errno> {
        self.until(Wait::Mode, |state| {
            let State { listener, settings, .. } = state;
            listener.as_mut().ok_or(Errno::EINVAL).and_then(|listener| listener.take(settings)).transpose()
        })
    }

    /// The thread's work, until the listener is closed.
    fn serve(&self, bell: &Bell) {
        let mut sources = vec![Polled::readable(self.fd())];
        loop {
            let slept = bell.sleep(&mut sources, None);
            let mut state = self.lock();
            if state.is_closed || slept.is_err_and(|errno| errno != Errno::EINTR) {
                break;
            }
            // The descriptor stays readable while there are more.
            for _ in 0..TURN {
                match state.id().and_then(Id::next_event) {
                    Ok(Some(event)) => state.serve(&event),
                    Ok(None) => break,
                    // The device is gone: accepts fail from now on.
                    Err(_) => {
                        state.listener = None;
                        state.sleepers.wake();
                        return;
                    }
                }
            }
        }
    }
}

impl State {
    /// Processes an event of a listener or of its requests.
    fn serve(&mut self, event: &Event) {
        if event.kind == Kind::RDMA_CM_EVENT_CONNECT_REQUEST {
            self.answer(event);
            return;
        }
        let Some(listener) = &mut self.listener else { return };
        let is_of_event = |answered: &mut Answered| ids_match(event, answered.request.id());
        if let Some(ready) = listener.ready.iter_mut().find_map(|ready| is_of_event(ready).then_some(ready)) {
            ready.end = Some(event.kind).filter(is_end).or(ready.end);
            return;
        }
        let Some(place) = listener.answered.iter_mut().position(is_of_event) else { return };
        // Every other event means that the connection has failed.
        let answered = listener.answered.swap_remove(place);
        if event.kind == Kind::RDMA_CM_EVENT_ESTABLISHED {
            listener.ready.push_back(answered);
            self.sleepers.wake();
        }
    }

    /// Accepts a request, or rejects it.
    fn answer(&mut self, event: &Event) {
        let Ok(mut request) = self.id().and_then(|id| id.requested(event)) else { return };
        let Some(listener) = &mut self.listener else { return };
        let has_room = listener.ready.len() + listener.answered.len() < listener.backlog;
        let accepted = if has_room { accept(&mut request, event, &self.settings) } else { Err(Errno::ECONNREFUSED) };
        match accepted {
            Ok(connection) => listener.answered.push(Answered { connection, request, end: None }),
            Err(_) => request.id().reject(),
        }
    }
}

/// Whether an event ends an established connection.
fn is_end(kind: &Kind) -> bool {
    [Kind::RDMA_CM_EVENT_DISCONNECTED, Kind::RDMA_CM_EVENT_DEVICE_REMOVAL].contains(kind)
}

fn accept(request: &mut Request, event: &Event, settings: &Settings) -> Result<Connection, Errno> {
    let peer = ConnectData::decode(&event.private)?;
    let mut connection = Connection::new(request.id(), settings)?;
    connection.start(peer);
    request.id().accept(&connection.connect_data())?;
    Ok(connection)
}

impl Listener {
    /// Takes a connection, if there is one. The number of its socket is made here: a program that
    /// opens a descriptor and then accepts gets the lower number for the descriptor, which
    /// librspreload 44 relies on.
    fn take(&mut self, settings: &Settings) -> Result<Option<Arc<Stream>>, Errno> {
        let Some(next) = self.ready.front_mut() else { return Ok(None) };
        let channel = EventChannel::new(next.request.id().libraries())?;
        let Some(Answered { connection, request, end }) = self.ready.pop_front() else { return Ok(None) };
        let id = request.migrate(channel).map_err(|_| Errno::ECONNABORTED)?;
        let stream = Stream::with(id, Some(connection), Phase::Connected, settings.for_accepted());
        end.into_iter().for_each(|end| stream.lock().end(end));
        Ok(Some(Arc::new(stream)))
    }

    /// Whether an accept returns at once.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Tells the thread to end. The connections that nobody has accepted end too.
    pub(super) fn stop(mut self) -> Option<JoinHandle<()>> {
        self.bell.ring();
        self.thread.take()
    }
}

/// Waits for the end of a listener's thread.
pub(super) fn join(thread: Option<JoinHandle<()>>) {
    // The thread panics never; if it did, the listener would be closed all the same.
    let _ended = thread.map(JoinHandle::join);
}

/// Starts a listener's thread, which takes no signals.
fn spawn(stream: Arc<Stream>, bell: Arc<Bell>) -> Result<JoinHandle<()>, Errno> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = std::thread::Builder::new().name("rsocket-listen".into()).spawn(move || stream.serve(&bell));
    before.thread_set_mask()?;
    thread.map_err(|error| error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw))
}
