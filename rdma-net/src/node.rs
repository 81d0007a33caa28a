//! Nodes: a device, its memory and its connections.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{Context, Error, ErrorKind, ProtectionDomain, Result, Verb};

use super::connect;
use super::connection::Connection;
use super::driver::Driver;
use super::exchange::Events;
use super::failure::Failure;
use super::options::{LONGEST, NodeOptions};
use super::shared::{Domain, Shared};
use super::shutdown::CutOff;
use super::stats::NodeStats;
use super::tables::{Handle, Tables};
use super::waiters::Place;
use crate::panics::Panics;

/// A device with the connections of a program. Clones are handles to the same node.
///
/// All work happens in the node's [`Driver`], which a thread or a task must run. A node with [more
/// than one](Self::with_drivers) uses as many cores.
#[derive(Clone)]
pub struct Node {
    pub(super) handle: Arc<Handle>,
}

impl Node {
    /// Creates a node on a device, and its driver.
    ///
    /// A program that ends takes its driver with it, and so what was not sent yet: close the
    /// connections first, or [shut down](Self::shutdown) the node.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for options out of range, `InvalidOption` for one of the path, which it
    /// names, and `NoCompletionVector`; errors of the device, of its connection manager, and of
    /// descriptors; `NotSupported` for an exchange over TCP on iWARP.
    pub fn new(context: &Context, options: &NodeOptions) -> Result<(Self, Driver)> {
        options.check(context.device().transport())?;
        let (tables, driver) = part(&Domain::new(context)?, options, (0, 1))?;
        Ok((Self { handle: Arc::new(Handle::new(tables, Vec::new())) }, driver))
    }

    /// Creates a node with several drivers, for as many cores.
    ///
    /// A connection belongs to one driver for its life. A new one goes to the driver that has the
    /// fewest, whether the node [connects](Self::connect) or a [`Listener`](super::Listener)
    /// accepts. The connections have one [domain](Self::domain), so memory that is exposed once
    /// serves the peers of all. Each driver has a completion queue, a [completion
    /// vector](NodeOptions::completion_vector) and a connection manager's channel of its own; the
    /// drivers share no lock, and need no common executor: each may run on another thread, runtime
    /// or loop.
    ///
    /// If a driver is dropped, its connections fail with `DriverGone`, and new ones go to the
    /// others. The requests of a listener come by the first driver that lives when the listener is
    /// made: it ends with that driver, and the program may listen again.
    ///
    /// On `soft0` all connections of a process share a lock, so more drivers gain little there.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); `InvalidInput` without a driver.
    ///
    /// # Examples
    ///
    /// A server with a driver on each of two threads:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// let (node, drivers) = Node::with_drivers(&context, &NodeOptions::new(), 2)?;
    /// for driver in drivers {
    ///     std::thread::spawn(move || driver.run_blocking());
    /// }
    /// let mut listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
    /// # let (address, other) = (listener.local_addr(), self::node()?);
    /// # let clients = std::thread::spawn(move || block_on(async {
    /// #     Ok::<_, Failure>((other.connect(address).await?, other.connect(address).await?))
    /// # }));
    /// // The second connection is the other driver's.
    /// let connections = block_on(async {
    ///     Ok::<_, Failure>((listener.accept().await?.accept().await?, listener.accept().await?.accept().await?))
    /// })?;
    /// assert_eq!(node.connections(), 2);
    /// # drop((connections, clients.join().expect("no panic")?));
    /// # Ok(()) }
    /// ```
    pub fn with_drivers(context: &Context, options: &NodeOptions, count: usize) -> Result<(Self, Vec<Driver>)> {
        options.check(context.device().transport())?;
        let none = || Error::new(Verb::CreateCq, ErrorKind::InvalidInput);
        let count = u32::try_from(count).map_err(|_| none())?;
        let domain = Domain::new(context)?;
        let parts: Result<Vec<_>> = (0..count).map(|number| part(&domain, options, (number, count))).collect();
        let (mut tables, drivers): (Vec<_>, Vec<_>) = parts?.into_iter().unzip();
        if tables.is_empty() {
            return Err(none());
        }
        let first = tables.remove(0);
        Ok((Self { handle: Arc::new(Handle::new(first, tables)) }, drivers))
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// `Refused` with the listener's reason, or if nothing listens at the address; `Timeout`;
    /// `DriverGone`; `Closed` once the node shuts down; `Local` for errors of the device, and if
    /// the node has no space for another connection.
    pub async fn connect(&self, to: SocketAddr) -> Result<Connection, Failure> {
        connect::connect(self.handle.choose(), to).await
    }

    /// Ends the node: refuses new connections, closes those that are there, and returns those that
    /// it had to cut off after `time`.
    ///
    /// [`Listener::accept`](super::Listener::accept) and [`connect`](Self::connect) fail with
    /// `Closed` from now on. On each connection [`Receiver::next`](super::Receiver::next) returns
    /// the messages that have come, and then `None`, whether the peer has ended its data or not: so
    /// a task that answers requests sends its last answer, and drops the connection, which closes
    /// it. A connection that is left after `time` is cut off, whoever holds it: its peer learns
    /// that it is closed. The call then returns within [`NodeOptions::linger`].
    ///
    /// The [driver](Driver) must run meanwhile; it ends once the handles of the node are dropped,
    /// too. Dropping the future stops only the wait. Of several shutdowns the soonest counts.
    ///
    /// # Errors
    ///
    /// `Local` in a forked child.
    ///
    /// # Examples
    ///
    /// A server whose client is idle:
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// use std::time::Duration;
    ///
    /// let (node, driver) = Node::new(&context, &NodeOptions::new())?;
    /// let driver = std::thread::spawn(move || driver.run_blocking());
    /// let mut listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
    /// # let (address, other) = (listener.local_addr(), self::node()?);
    /// # let client = std::thread::spawn(move || block_on(other.connect(address)));
    /// let mut connection = block_on(async { listener.accept().await?.accept().await })?;
    /// # let mut client = client.join().expect("no panic")?;
    /// let serving = std::thread::spawn(move || block_on(async {
    ///     while let Some(request) = connection.next().await? {
    ///         connection.send(&request).await?;
    ///     }
    ///     Ok::<(), Failure>(())
    /// }));
    ///
    /// let cut_off = block_on(node.shutdown(Duration::from_millis(100)))?;
    /// println!("{} clients had not gone", cut_off.len());
    /// serving.join().expect("no panic")?;
    /// drop((listener, node));
    /// driver.join().expect("no panic")?;
    /// # assert!(block_on(client.next()).is_ok_and(|message| message.is_none()));
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, time: Duration) -> Result<Vec<CutOff>, Failure> {
        self.handle.first().check(Verb::Disconnect)?;
        let now = Instant::now();
        let by = now.checked_add(time).unwrap_or(now + LONGEST);
        let mut panics = Panics::default();
        for tables in self.handle.all() {
            panics.catch(|| tables.shut_down(by));
        }
        panics.resume();
        let mut cut_off = Vec::new();
        for tables in self.handle.all() {
            let mut waiting = Waiting { tables, place: None };
            cut_off.extend(poll_fn(|cx| tables.poll_shut_down(&mut waiting.place, cx)).await?);
        }
        Ok(cut_off)
    }

    /// The protection domain of the node's connections, for the memory of one-sided operations.
    /// With [domains of their own](NodeOptions::separate_domains) the connections use
    /// [`Connection::domain`], and not this one.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.handle.first().shared.domain.pd
    }

    /// The number of ids whose events have a receiver.
    #[cfg(test)]
    pub(super) fn routes(&self) -> usize {
        self.handle.all().map(|tables| tables.routes()).sum()
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> &Tables {
        self.handle.first()
    }

    /// Bytes of the buffers that are kept for reads of offers.
    #[cfg(test)]
    pub(super) fn read_buffers_len(&self) -> usize {
        self.handle.first().shared.domain.read_buffers.len()
    }

    /// The number of connections that have not ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = node()?;
    /// assert_eq!(node.connections(), 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn connections(&self) -> usize {
        self.handle.all().map(|tables| tables.connections()).sum()
    }

    /// What the node has done since its creation. The call looks at each connection. All is 0 in a
    /// forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (mut listener, node) = (listener()?, node()?);
    /// # let address = listener.local_addr();
    /// # let server = std::thread::spawn(move || block_on(async { listener.accept().await?.accept().await?.next().await }));
    /// let connection = block_on(node.connect(address))?;
    /// block_on(connection.send("hello"))?;
    /// let stats = node.stats();
    /// assert_eq!((stats.connections, stats.opened, stats.traffic.sent), (1, 1, 1));
    /// println!("{} of {} connections have failed", stats.failed, stats.opened);
    /// # server.join().expect("no panic")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let mut sum = NodeStats::default();
        self.handle.all().for_each(|tables| sum.add(&tables.stats()));
        sum
    }
}

/// The part of driver `number` of `drivers`.
fn part(domain: &Domain, options: &NodeOptions, place: (u32, u32)) -> Result<(Arc<Tables>, Driver)> {
    let events = Events::new(&domain.pd.context(), options)?;
    let (shared, reactor) = Shared::new(domain, options, place, events.as_fd())?;
    let tables = Arc::new(Tables::new(shared, events));
    let driver = Driver::new(&tables, reactor);
    Ok((tables, driver))
}

/// A task that waits for the end of a shutdown.
struct Waiting<'a> {
    tables: &'a Tables,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tables.leave_shutdown(&mut self.place);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("options", &self.handle.first().shared.options).finish_non_exhaustive()
    }
}
