//! The listening end.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use super::connect::prepare;
use super::connection::{Connection, Core, Parts, Pool};
use super::exchange::{Listening, Request};
use super::failure::Failure;
use super::mailbox::Attempt;
use super::node::{Handle, Route};
use super::options::ListenOptions;
use super::protocol::{Hello, Protocol, Refuse, RefuseCode};
use super::receives::{ReceivePool, Stake};
use super::waiters::leave_waker;
use crate::cm::EventKind;
use crate::error::{Error, ErrorKind, Operation, Result};

/// Waits for peers that connect.
///
/// Dropping the listener refuses the requests that wait; its connections stay.
pub struct Listener {
    handle: Arc<Handle>,
    listening: Listening,
    local_addr: SocketAddr,
    requests: Arc<Requests>,
}

/// Listens at an address.
pub(super) fn listen(handle: &Arc<Handle>, at: SocketAddr, options: &ListenOptions) -> Result<Listener> {
    let shared = &handle.shared;
    let live = Arc::new(AtomicUsize::new(0));
    let pool = options.shared_receives.map(|count| shared.new_pool(count)).transpose()?;
    let requests = Arc::new(Requests { options: options.clone(), live, pool, state: Mutex::default() });
    let unknown = Error::new(Operation::Listen, ErrorKind::Unknown);
    let route = |key| shared.set_route(key, Route::Listener(Arc::clone(&requests))).map_err(|_| unknown);
    let listening = shared.events.listen(shared, at, options.backlog, route)?;
    let mut listener = Listener { handle: Arc::clone(handle), local_addr: at, listening, requests };
    listener.local_addr = listener.listening.local_addr().ok_or(unknown)?;
    Ok(listener)
}

impl Listener {
    /// The local address, with the chosen port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The shared receives that no connection may use.
    #[cfg(test)]
    pub(super) fn free_receives(&self) -> i64 {
        self.requests.pool.as_ref().map_or(0, |pool| pool.free())
    }

    /// Waits for the next request. Requests that break the protocol or a limit are refused
    /// without notice.
    ///
    /// Dropping the future loses no request.
    ///
    /// # Errors
    ///
    /// `DriverGone`; `Local` if the device is gone.
    pub async fn accept(&mut self) -> Result<Incoming, Failure> {
        let pending = poll_fn(|cx| {
            let mut state = self.requests.lock();
            if let Some(request) = state.queue.pop_front() {
                return Poll::Ready(Ok(request));
            }
            if let Some(failure) = &state.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            let replaced = leave_waker(&mut state.waker, cx.waker());
            drop(state);
            drop(replaced);
            Poll::Pending
        });
        let pending = pending.await?;
        Ok(Incoming { handle: Arc::clone(&self.handle), pending, options: self.requests.options.clone() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.handle.shared.remove_route(self.listening.key());
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

/// The requests that wait at a listener.
pub(super) struct Requests {
    options: ListenOptions,
    /// Connections of the listener, with the requests that wait.
    live: Arc<AtomicUsize>,
    pool: Option<Arc<ReceivePool>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Pending>,
    waker: Option<Waker>,
    failure: Option<Failure>,
}

/// A request with a valid HELLO.
struct Pending {
    request: Request,
    hello: Hello,
    ticket: Ticket,
    stake: Option<Stake>,
}

/// A place among the connections of a listener, free again when dropped.
#[derive(Debug)]
pub(super) struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Requests {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a peer's request, or refuses it.
    pub(super) fn push(&self, request: Request) {
        let waker = match self.check(&request) {
            Ok((hello, ticket, stake)) => {
                let mut state = self.lock();
                state.queue.push_back(Pending { request, hello, ticket, stake });
                state.waker.take()
            }
            Err(refuse) => return reject(request, &refuse),
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn check(&self, request: &Request) -> Result<(Hello, Ticket, Option<Stake>), Refuse> {
        let hello = Hello::from_bytes(request.hello())?;
        if self.lock().queue.len() >= self.options.backlog {
            return Err(Refuse::new(RefuseCode::Busy, "too many requests wait"));
        }
        let ticket = Ticket(Arc::clone(&self.live));
        // The ticket is counted now, and counted off when it is dropped.
        if self.live.fetch_add(1, Ordering::AcqRel) >= self.options.max_connections {
            return Err(Refuse::new(RefuseCode::Busy, "the listener has too many connections"));
        }
        let no_receives = Refuse::new(RefuseCode::Busy, "no receives are free for another connection");
        let stake = self.pool.as_ref().map(|pool| pool.join().ok_or(no_receives)).transpose()?;
        Ok((hello, ticket, stake))
    }

    pub(super) fn fail(&self, failure: Failure) {
        let waker = {
            let mut state = self.lock();
            state.failure = Some(failure);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Refuses a request with a reason.
fn reject(request: Request, refuse: &Refuse) {
    let peer = request.peer_addr();
    let rejected = request.reject(refuse);
    tracing::debug!(?peer, code = ?refuse.code, ?rejected, "a request to connect was refused");
}

/// A peer's request to connect. Accept or refuse it; dropping it refuses.
pub struct Incoming {
    handle: Arc<Handle>,
    pending: Pending,
    options: ListenOptions,
}

impl Incoming {
    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.pending.request.peer_addr()
    }

    /// Refuses the request, with up to 100 bytes of text for the peer.
    pub fn refuse(self, text: &str) {
        reject(self.pending.request, &Refuse::new(RefuseCode::Application, text));
    }

    /// Accepts, and waits until the connection is established: for the node's
    /// [`timeout`](super::NodeOptions::timeout) if the peer falls silent. A server accepts each
    /// peer in a task of its own, so that none delays others.
    ///
    /// # Errors
    ///
    /// `PeerGone` if the peer has given up; `Protocol` if its first messages break the protocol;
    /// `Timeout`; `DriverGone`; `Local` for errors of the device, and if the node has no room for
    /// another connection, which the peer learns.
    pub async fn accept(self) -> Result<Connection, Failure> {
        let shared = &self.handle.shared;
        let Pending { request, hello, ticket, stake } = self.pending;
        let shares = stake.is_some();
        let attempt = Attempt::new(shared, request.key())?;
        let key = shared.new_key();
        let prepared = Pool::new(&shared.pd, &shared.options, shares).and_then(|mut pool| {
            let qp = prepare(shared, &mut pool, key, stake.as_ref(), |qp, access| request.init(shared, qp, access))?;
            Ok((qp, pool))
        });
        let (qp, pool) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                reject(request, &Refuse::new(RefuseCode::Busy, "the node has no room for another connection"));
                return Err(error.into());
            }
        };
        let agreed = shared.hello(shares).agree(&hello);
        let parts = Parts {
            key,
            id: request.key(),
            local_addr: request.local_addr(),
            peer_addr: request.peer_addr(),
            protocol: Protocol::new(agreed, shared.options.slots(shares), Instant::now()),
            pool,
            ticket: Some(ticket),
            sharing: stake.map(|stake| (stake, qp.qpn())),
        };
        let core = Core::new(shared, parts);
        shared.add(&core)?;
        let connection = Connection::new(&core);
        core.connect(|| request.accept(shared, qp, shares))?;
        let established = |event| matches!(event, EventKind::Established(_)).then_some(());
        let established = attempt.wait(shared.options.timeout, established).await;
        core.check(established.and_then(|()| attempt.hand_over(&core)))?;
        if let Some(time) = self.options.first_message {
            core.expect_message(Instant::now() + time);
        }
        Ok(connection)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer_addr", &self.peer_addr()).finish_non_exhaustive()
    }
}
