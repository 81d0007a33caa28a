//! Writes of a node's connections on one core and on two: with one driver, with two, and by two
//! nodes that have nothing in common.
//!
//! Each core has a thread with its driver and its tasks. A task writes 64 bytes to the peer's
//! memory again and again.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Barrier;
use std::task::{Context as TaskContext, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rdma::{Context, ExposedRegion, RemoteAccess, RemoteSlice};
use rdma_net::{Connection, Driver, Failure, ListenOptions, Listener, Node, NodeOptions};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, yield_now};

use crate::null::divided;
use crate::{affinity, device};

/// Bytes of a write.
const LEN: usize = 64;
/// Connections of each contender.
const CONNECTIONS: usize = 2;
/// Tasks of each connection.
const TASKS: usize = 16;
/// Turns of a driver between looks at the clock.
const TURNS: u32 = 256;

/// What executes the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// Nothing: a poll reports each write as done.
    Null,
    /// The software device, whose processes have one lock each.
    Soft0,
}

/// How the connections are spread over cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A node with one driver, on one core.
    OneDriver,
    /// A node with two drivers, each on its core.
    TwoDrivers,
    /// Two nodes, each on a context and a core of its own: as much as the cores can do.
    TwoNodes,
}

impl Shape {
    /// All, in the order of the table.
    pub const ALL: [Self; 3] = [Self::OneDriver, Self::TwoDrivers, Self::TwoNodes];

    /// The name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OneDriver => "one driver",
            Self::TwoDrivers => "two drivers",
            Self::TwoNodes => "two nodes",
        }
    }
}

/// A driver, and the connections that it serves.
struct Lane {
    driver: Driver,
    connections: Vec<Connection>,
}

/// The connections of a contender.
pub struct Writers {
    lanes: Vec<Lane>,
    to: RemoteSlice,
    _nodes: Vec<Node>,
    _peer: Peer,
}

/// The side that is written to. Nothing runs its driver: it has only to exist.
struct Peer {
    _node: Node,
    driver: Driver,
    listener: Listener,
    _region: ExposedRegion,
    accepted: Vec<Connection>,
}

impl Writers {
    /// Connects, and then replaces the functions of the writers' contexts over the null provider.
    ///
    /// # Errors
    ///
    /// The error of the device or of a connection.
    pub fn new(provider: Provider, shape: Shape) -> io::Result<Self> {
        let options = NodeOptions::new().keep_alive(Duration::ZERO);
        let (node, driver) = Node::new(&context()?, &options)?;
        let listener = node.listen((Ipv4Addr::LOCALHOST, 0).into(), &ListenOptions::new())?;
        let region = node.domain().allocate_exposed(LEN, RemoteAccess::WRITE).map_err(io::Error::other)?;
        let to = region.remote(..).map_err(io::Error::other)?;
        let mut peer = Peer { _node: node, driver, listener, _region: region, accepted: Vec::new() };
        let (drivers, nodes) = match shape {
            Shape::OneDriver => (1, 1),
            Shape::TwoDrivers => (2, 1),
            Shape::TwoNodes => (1, 2),
        };
        let (mut lanes, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..nodes {
            let context = context()?;
            let (node, mut all) = Node::with_drivers(&context, &options, drivers)?;
            // A node gives its connections to its drivers by turns.
            let mut of_driver: Vec<Vec<_>> = (0..drivers).map(|_| Vec::new()).collect();
            for at in 0..CONNECTIONS / nodes {
                of_driver[at % drivers].push(peer.connect(&node, &mut all)?);
            }
            if provider == Provider::Null {
                // SAFETY: install requires a live context that no other thread uses: it was opened
                // above for this node alone, whose drivers are here. No memory access depends on a
                // write: the region of the peer is read by nobody.
                unsafe { divided::install(context.as_raw()) };
            }
            lanes.extend(all.into_iter().zip(of_driver).map(|(driver, connections)| Lane { driver, connections }));
            kept.push(node);
        }
        Ok(Self { lanes, to, _nodes: kept, _peer: peer })
    }

    /// Writes for a time; returns the number of writes per second.
    ///
    /// # Errors
    ///
    /// The error of a driver or of a write.
    pub fn run(&mut self, time: Duration) -> io::Result<f64> {
        let cores = affinity::cores()?;
        let (to, barrier) = (self.to, Barrier::new(self.lanes.len()));
        let rates: io::Result<Vec<f64>> = thread::scope(|scope| {
            let running: Vec<_> = (self.lanes.iter_mut().zip(cores.iter().cycle()))
                .map(|(lane, &core)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        affinity::pin(core)?;
                        barrier.wait();
                        lane.run(to, time)
                    })
                })
                .collect();
            running.into_iter().map(|lane| lane.join().map_err(|_| io::Error::other("a lane panicked"))?).collect()
        });
        Ok(rates?.into_iter().sum())
    }
}

impl Lane {
    /// Writes with all tasks for a time; returns the writes per second.
    fn run(&mut self, to: RemoteSlice, time: Duration) -> io::Result<f64> {
        let Self { driver, connections } = self;
        let (done, is_over) = (Rc::new(Cell::new(0_u32)), Rc::new(Cell::new(false)));
        let runtime = Builder::new_current_thread().build()?;
        LocalSet::new().block_on(&runtime, async {
            let mut tasks = Vec::new();
            for connection in connections {
                for _ in 0..TASKS {
                    let (remote, mut buffer) = (connection.remote(), connection.domain().allocate(LEN)?);
                    let (done, is_over) = (Rc::clone(&done), Rc::clone(&is_over));
                    tasks.push(tokio::task::spawn_local(async move {
                        while !is_over.get() {
                            buffer = remote.write(to, buffer, LEN).await?;
                            done.set(done.get() + 1);
                        }
                        Ok::<(), Failure>(())
                    }));
                }
            }
            let start = Instant::now();
            let mut took = Duration::ZERO;
            while took < time {
                for _ in 0..TURNS {
                    driver.turn(64)?;
                    yield_now().await;
                }
                took = start.elapsed();
            }
            let rate = f64::from(done.get()) / took.as_secs_f64();
            is_over.set(true);
            for task in tasks {
                while !task.is_finished() {
                    driver.turn(64)?;
                    yield_now().await;
                }
                task.await.map_err(io::Error::other)??;
            }
            Ok(rate)
        })
    }
}

impl Peer {
    /// Connects a node to this one; its drivers run meanwhile.
    fn connect(&mut self, node: &Node, drivers: &mut [Driver]) -> io::Result<Connection> {
        let Self { driver, listener, accepted, .. } = self;
        let mut connecting = pin!(node.connect(listener.local_addr()));
        let mut accepting = pin!(async { listener.accept().await?.accept().await });
        let (mut here, mut there) = (None, None);
        loop {
            poll(connecting.as_mut(), &mut here)?;
            poll(accepting.as_mut(), &mut there)?;
            if here.is_some() && there.is_some() {
                accepted.extend(there);
                return here.ok_or_else(|| io::ErrorKind::NotConnected.into());
            }
            driver.turn(64)?;
            for driver in &mut *drivers {
                driver.turn(64)?;
            }
        }
    }
}

/// Polls a future that is not done.
fn poll<T>(
    future: std::pin::Pin<&mut impl Future<Output = Result<T, Failure>>>,
    done: &mut Option<T>,
) -> io::Result<()> {
    if done.is_none() {
        if let Poll::Ready(output) = future.poll(&mut TaskContext::from_waker(Waker::noop())) {
            *done = Some(output?);
        }
    }
    Ok(())
}

/// A context of its own.
fn context() -> io::Result<Context> {
    Ok(device::open()?.context)
}

impl fmt::Debug for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writers").field("lanes", &self.lanes.len()).finish_non_exhaustive()
    }
}
