//! The driver: completions, events and timers of a node.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::aio::{Handler, Reactor, Readiness};
use rdma::cm::{EventKind, IdKey};
use rdma::op::Opcode;
use rdma::{Completion, Error, ErrorKind, Poller, Result, Verb, WcError, WcStatus};

use super::connection::Core;
use super::device_events;
use super::exchange::{Events, Request};
use super::failure::{Failure, FailureKind};
use super::link::{DRAINED, READ_BIT};
use super::protocol::Violation;
use super::receives::{POOL_OPERATION, log_lost};
use super::shared::Shared;
use super::tables::{PoolUser, Route, Tables};
use super::tcp;
use crate::panics::Panics;

/// Events of the connection manager of one turn: a flood of requests must not stop connections.
const EVENT_BUDGET: usize = 256;
/// Turns of a driver that never sleeps between looks for events of the connection manager.
const EVENT_TURNS: u32 = 64;
/// Connections for whose timeouts a driver has memory from the start.
const MOST_TIMED: u32 = 1024;

/// Does the work of a [`Node`](super::Node): it delivers completions and events, and keeps the
/// time.
///
/// A program runs one driver for each node, or [several](super::Node::with_drivers), in one of
/// three ways: as a task ([`run`](Self::run)), on a thread ([`run_blocking`](Self::run_blocking)),
/// or in a loop of its own ([`turn`](Self::turn), [`wait`](Self::wait)). If the driver is dropped,
/// all of its connections fail with `DriverGone`.
///
/// The descriptor ([`AsFd`]) is readable when the driver has work, once it is [armed](Self::arm).
pub struct Driver {
    reactor: Reactor,
    handler: NodeHandler,
}

/// What a node's driver does in its turns.
struct NodeHandler {
    tables: Arc<Tables>,
    shared: Arc<Shared>,
    poller: Poller,
    /// Whether events of the connection manager may be pending.
    has_events: bool,
    /// Whether asynchronous events of the device may be pending.
    has_device_events: bool,
    turns: u32,
    /// An empty list for the connections of a timeout.
    timed: Vec<Arc<Core>>,
}

impl Driver {
    pub(super) fn new(tables: &Arc<Tables>, reactor: Reactor) -> Self {
        let (tables, shared) = (Arc::clone(tables), Arc::clone(&tables.shared));
        let poller = shared.cq.poller();
        let timed = Vec::with_capacity(shared.options.max_connections.min(MOST_TIMED) as usize);
        let (has_events, has_device_events) = (true, true);
        let handler = NodeHandler { tables, shared, poller, has_events, has_device_events, turns: 0, timed };
        Self { reactor, handler }
    }

    /// Delivers up to `budget` completions, and all that is due; never sleeps. Returns the number
    /// of completions.
    ///
    /// A program that sleeps between its turns must [`arm`](Self::arm) the driver: a turn leaves
    /// the descriptor as it is.
    ///
    /// # Errors
    ///
    /// Errors of the device and of its connection manager.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_net::{Node, NodeOptions};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// let (node, mut driver) = Node::new(&context, &NodeOptions::new())?;
    /// // A loop of one's own gives the node a turn between its other work.
    /// for _ in 0..3 {
    ///     let completions = driver.turn(64)?;
    ///     println!("{completions} completions for {} connections", node.connections());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn turn(&mut self, budget: usize) -> Result<usize> {
        self.handler.turn(budget)
    }

    /// Prepares a sleep of the program: takes what has made the descriptor readable, makes it
    /// readable for what comes next, and does a turn. Returns whether the program may sleep until
    /// the descriptor is readable; otherwise there may be more work, so arm again.
    ///
    /// A program with an event loop of its own needs nothing else: it arms, polls the tasks that
    /// the turn has woken, and sleeps if it may. It may watch the descriptor by level or by edge.
    /// Everything that the driver waits for makes the descriptor readable, also its timeouts and
    /// the end of the last handle.
    ///
    /// # Errors
    ///
    /// As for [`turn`](Self::turn), and errors of arming.
    ///
    /// # Examples
    ///
    /// A server that sleeps in an epoll of its own:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    ///
    /// let (node, mut driver) = Node::new(&context, &NodeOptions::new())?;
    /// let mut listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
    /// # let (address, other) = (listener.local_addr(), self::node()?);
    /// # let client = std::thread::spawn(move || block_on(async {
    /// #     let mut connection = other.connect(address).await?;
    /// #     connection.send("hello").await?;
    /// #     connection.next().await.map(|answer| answer.is_some())
    /// # }));
    /// let mut serving = pin!(async {
    ///     let mut connection = listener.accept().await?.accept().await?;
    ///     while let Some(message) = connection.next().await? {
    ///         connection.send(&message).await?;
    ///     }
    ///     Ok::<(), Failure>(())
    /// });
    ///
    /// let epoll = Epoll::new(EpollCreateFlags::empty())?;
    /// // Other descriptors of the program have other numbers.
    /// epoll.add(&driver, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    /// let mut cx = Context::from_waker(Waker::noop());
    /// loop {
    ///     let may_sleep = driver.arm()?;
    ///     // What the turn has delivered may be what the task waits for.
    ///     if let Poll::Ready(served) = serving.as_mut().poll(&mut cx) {
    ///         served?;
    ///         break;
    ///     }
    ///     if may_sleep {
    ///         epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)?;
    ///     }
    /// }
    /// # assert!(client.join().expect("no panic")?);
    /// # Ok(()) }
    /// ```
    pub fn arm(&mut self) -> Result<bool> {
        self.reactor.arm(&mut self.handler)
    }

    /// Whether a handle of the node, or a connection, is left. False in a forked child.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.handler.tables.is_forked() && !self.handler.is_over()
    }

    /// Waits until there was work, for `timeout` at most; sleeps when the node's
    /// [`strategy`](super::NodeOptions::strategy) says so. Returns the number of completions that
    /// were delivered.
    ///
    /// # Errors
    ///
    /// As for [`turn`](Self::turn), and errors of waiting.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<usize> {
        self.reactor.wait(&mut self.handler, timeout)
    }

    /// Runs on this thread until neither a handle of the node nor a connection is left.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn run_blocking(mut self) -> Result<()> {
        self.handler.tables.check(Verb::PollCq)?;
        while !self.handler.is_over() {
            self.wait(None)?;
        }
        Ok(())
    }

    /// Runs as a task until neither a handle of the node nor a connection is left. `readiness`
    /// waits for the driver's descriptor.
    ///
    /// # Errors
    ///
    /// As for [`turn`](Self::turn), and errors of the executor.
    pub async fn run(mut self, mut readiness: impl Readiness) -> Result<()> {
        poll_fn(|cx| self.reactor.poll_run(cx, &mut self.handler, &mut readiness)).await
    }
}

#[cfg(feature = "tokio")]
impl Driver {
    /// Runs as a task of the current runtime of tokio, as [`run`](Self::run) does. The task ends
    /// once neither a handle of the node nor a connection is left, with the error if there was one.
    ///
    /// Dropping the handle leaves the task running; aborting it drops the driver, and so does an
    /// error: the connections of the node fail with `DriverGone`.
    ///
    /// # Errors
    ///
    /// Too many open files; no runtime, or one that is shutting down.
    ///
    /// # Panics
    ///
    /// If the runtime was built without I/O (`enable_io`).
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_net::{Node, NodeOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    /// let driving = driver.spawn()?;
    /// println!("{} connections", node.connections());
    /// // The driver ends with the node.
    /// drop(node);
    /// driving.await??;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn spawn(self) -> std::io::Result<tokio::task::JoinHandle<Result<()>>> {
        let readable = rdma::aio::tokio::Readable::new(&self)?;
        Ok(tokio::spawn(self.run(readable)))
    }
}

impl Handler for NodeHandler {
    fn turn(&mut self, budget: usize) -> Result<usize> {
        self.tables.check(Verb::PollCq)?;
        let mut count = 0;
        while count < budget && self.deliver()? {
            count += 1;
        }
        self.turns = self.turns.wrapping_add(1);
        let is_time = self.turns % EVENT_TURNS == 0;
        if std::mem::take(&mut self.has_events) || is_time {
            self.handle_events()?;
        }
        if std::mem::take(&mut self.has_device_events) || is_time {
            device_events::handle(&self.tables)?;
        }
        self.tables.handle_timeouts(Instant::now(), &mut self.timed);
        self.tables.remove_ended();
        Ok(count)
    }

    fn is_over(&self) -> bool {
        self.tables.is_idle()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.shared.next_deadline()
    }

    fn woken(&mut self, by_completions: bool) {
        // Most sleeps end by a completion. An event that comes beside it ends the next sleep.
        (self.has_events, self.has_device_events) = (true, !by_completions);
    }
}

impl NodeHandler {
    /// Delivers the next completion.
    fn deliver(&mut self) -> Result<bool> {
        let Some(mut completion) = self.poller.poll()? else { return Ok(false) };
        let (key, operation) = split(completion.token());
        if operation == POOL_OPERATION {
            deliver_shared(&self.tables, &mut completion, key)?;
            return Ok(true);
        }
        if operation == DRAINED {
            self.tables.drained(key);
            return Ok(true);
        }
        let (status, received) = (completion.status(), received(&completion));
        let old_value = completion.old_value();
        let buffer = completion.take_buffer();
        let Some(core) = self.tables.core(key) else { return Ok(true) };
        match (status, buffer) {
            (Err(error), _) => fail(&self.tables, &core, operation, error)?,
            (Ok(()), Some(buffer)) if operation != 0 => core.operated(operation, buffer, old_value),
            (Ok(()), Some(buffer)) => match received {
                Some(Arrival::Message(len)) => core.received(buffer, len),
                Some(Arrival::Notification(number)) => core.notified(buffer, number),
                None => core.sent(buffer),
            },
            (Ok(()), None) => {}
        }
        Ok(true)
    }

    /// Handles the events of the connection manager, or of the exchange over TCP.
    fn handle_events(&mut self) -> Result<()> {
        let tables = Arc::clone(&self.tables);
        let sockets = match &tables.events {
            Events::Tcp(sockets) => sockets,
            Events::Manager(events) => {
                // The channel stays readable while it has more.
                for _ in 0..EVENT_BUDGET {
                    let Some(event) = events.try_next_event()? else { break };
                    self.handle_event(event.id, event.kind)?;
                }
                return Ok(());
            }
        };
        for event in sockets.take_events(Instant::now())? {
            match event {
                tcp::Event::Kind(id, kind) => self.handle_event(id, kind)?,
                tcp::Event::Request(listener, request) => {
                    if let Some(Route::Listener(requests)) = tables.route(listener) {
                        requests.push(Request::Tcp(request));
                    }
                }
            }
        }
        sockets.next_deadline().into_iter().for_each(|deadline| self.shared.note_deadline(deadline));
        Ok(())
    }

    fn handle_event(&mut self, id: IdKey, kind: EventKind) -> Result<()> {
        let is_end = matches!(kind, EventKind::Disconnected | EventKind::Rejected(_) | EventKind::TimewaitExit);
        if is_end {
            // Messages that arrived before the end are delivered first.
            for _ in 0..self.shared.cq.depth() {
                if !self.deliver()? {
                    break;
                }
            }
        }
        match (self.tables.route(id), kind) {
            (Some(Route::Mailbox(mailbox)), kind) => {
                // An attempt that has just succeeded has another route.
                if let Some(kind) = mailbox.push(kind) {
                    self.handle_event(id, kind)?;
                }
            }
            (Some(Route::Listener(requests)), EventKind::ConnectRequest(request)) => {
                requests.push(Request::Manager(request));
            }
            (Some(Route::Listener(requests)), EventKind::DeviceRemoval) => requests.fail(no_device()),
            (Some(Route::Connection(core)), EventKind::DeviceRemoval) => core.fail(no_device()),
            (Some(Route::Connection(core)), _) if is_end => core.fail(Failure::new(FailureKind::PeerGone)),
            _ => {}
        }
        Ok(())
    }
}

impl AsFd for Driver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let tables = &self.handler.tables;
        if !tables.is_forked() {
            let mut panics = Panics::default();
            panics.catch(|| tables.stop(Failure::new(FailureKind::DriverGone)));
            panics.catch(|| tables.abandon());
            panics.resume();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// The connection and the operation that a token names; messages have operation 0.
#[allow(clippy::cast_possible_truncation, reason = "the token has two halves of 32 bits")]
fn split(token: u64) -> (u32, u32) {
    (token as u32, (token >> 32) as u32)
}

/// The kind of message that has used a receive.
enum Arrival {
    /// A message of so many bytes.
    Message(usize),
    /// A write with this immediate data, which puts nothing into the receive.
    Notification(u32),
}

/// The message that a completion has brought; `None` if its request is no receive.
fn received(completion: &Completion<'_>) -> Option<Arrival> {
    match completion.opcode() {
        Opcode::Recv => Some(Arrival::Message(completion.byte_len())),
        Opcode::RecvWriteImm => Some(Arrival::Notification(completion.imm().unwrap_or(0))),
        _ => None,
    }
}

/// Delivers the completion of a receive of a pool.
fn deliver_shared(tables: &Tables, completion: &mut Completion<'_>, pool: u32) -> Result<()> {
    let (status, received) = (completion.status(), received(completion));
    let Some(buffer) = completion.take_buffer() else { return Ok(()) };
    match (tables.pool_user(pool, completion.qpn()), status) {
        (PoolUser::Connection(core), Ok(())) => match received {
            Some(Arrival::Notification(number)) => core.notified(buffer, number),
            Some(Arrival::Message(len)) => core.received(buffer, len),
            None => core.received(buffer, 0),
        },
        (PoolUser::Connection(core), Err(error)) => {
            core.flushed(buffer);
            fail(tables, &core, 0, error)?;
        }
        (PoolUser::Ended(pool), _) => {
            if let Err(refused) = pool.give(buffer) {
                log_lost(&refused);
            }
        }
        (PoolUser::None(Some(pool)), _) => {
            if let Err(refused) = pool.post(buffer) {
                log_lost(&refused);
            }
        }
        (PoolUser::None(None), _) => {}
    }
    Ok(())
}

/// Fails a connection whose request has completed with an error, unless an event of the device says
/// more about it.
fn fail(tables: &Tables, core: &Core, operation: u32, error: WcError) -> Result<()> {
    if core.failure().is_none() {
        device_events::handle(tables)?;
        core.fail(failure_of(operation, error));
    }
    Ok(())
}

/// The failure of a connection whose request has completed with an error.
fn failure_of(operation: u32, error: WcError) -> Failure {
    match error.status {
        // The peer exposes no such memory, or serves no reads.
        WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR | WcStatus::LOC_QP_OP_ERR if operation & READ_BIT != 0 => {
            Failure::violation(Violation::UnreadableOffer)
        }
        // Of a receive: no send is longer than what a send queue takes.
        WcStatus::LOC_LEN_ERR if operation == 0 => Failure::violation(Violation::TooLong),
        _ => Failure::completion(error),
    }
}

fn no_device() -> Failure {
    Error::new(Verb::GetCmEvent, ErrorKind::NoDevice).into()
}
