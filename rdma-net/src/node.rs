//! Nodes: a device, its memory and its connections.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma::{Context, ProtectionDomain, Result, Verb};

use super::connect;
use super::connection::Connection;
use super::driver::Driver;
use super::exchange::Events;
use super::failure::Failure;
use super::options::{LONGEST, NodeOptions};
use super::shared::Shared;
use super::shutdown::CutOff;
use super::tables::{Handle, Tables};
use super::waiters::Place;

/// A device with the connections of a program. Clones are handles to the same node.
///
/// All work happens in the node's [`Driver`], which a thread or a task must run.
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
        let events = Events::new(context, options)?;
        let (shared, reactor) = Shared::new(context, options, events.as_fd())?;
        let tables = Arc::new(Tables::new(shared, events));
        let driver = Driver::new(&tables, reactor);
        Ok((Self { handle: Arc::new(Handle { tables }) }, driver))
    }

    /// Connects to a listener.
    ///
    /// # Errors
    ///
    /// `Refused` with the listener's reason, or if nothing listens at the address; `Timeout`;
    /// `DriverGone`; `Closed` once the node shuts down; `Local` for errors of the device, and if
    /// the node has no space for another connection.
    pub async fn connect(&self, to: SocketAddr) -> Result<Connection, Failure> {
        connect::connect(&self.handle.tables, to).await
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
        let tables = &self.handle.tables;
        tables.check(Verb::Disconnect)?;
        let now = Instant::now();
        tables.shut_down(now.checked_add(time).unwrap_or(now + LONGEST));
        let mut waiting = Waiting { tables, place: None };
        poll_fn(|cx| tables.poll_shut_down(&mut waiting.place, cx)).await
    }

    /// The protection domain of the node's connections, for the memory of one-sided operations.
    /// With [domains of their own](NodeOptions::separate_domains) the connections use
    /// [`Connection::domain`], and not this one.
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.handle.tables.shared.domain.pd
    }

    /// The number of ids whose events have a receiver.
    #[cfg(test)]
    pub(super) fn routes(&self) -> usize {
        self.handle.tables.routes()
    }

    #[cfg(test)]
    pub(super) fn tables(&self) -> &Tables {
        &self.handle.tables
    }

    /// Bytes of the buffers that are kept for reads of offers.
    #[cfg(test)]
    pub(super) fn read_buffers_len(&self) -> usize {
        self.handle.tables.shared.domain.read_buffers.len()
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
        self.handle.tables.connections()
    }
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
        f.debug_struct("Node").field("options", &self.handle.tables.shared.options).finish_non_exhaustive()
    }
}
