//! The frame of the programs that use [`rdma_net`]: their common options, and a node with its
//! driver and the program's tasks on one thread.

use std::future::Future;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_net::{Driver, Exchange, FailureKind, Incoming, ListenOptions, Listener, Message, Node, NodeOptions};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::device::{DeviceOptions, PathOptions, Place};
use crate::failure::say;
use crate::{Failure, address, environment};

/// Longest time in which the last messages of a program leave.
const LINGER: Duration = Duration::from_secs(2);
/// Time to wait, after an operation failed, for a warning of the library, which is then the reason.
pub const EXPLANATION: Duration = Duration::from_millis(200);

/// Options of every program that serves or uses a service.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = crate::cli::TRANSPORT)]
pub struct ServiceOptions {
    /// Device: soft0, mlx5_0, any, hardware
    #[arg(short, long, global = true, value_name = "NAME", env = "RDMA_DEVICE")]
    device: Option<String>,
    /// The way to set up connections; both sides must use the same
    #[arg(long, global = true, value_name = "WAY", default_value = "cm")]
    exchange: ExchangeOption,
    /// The path of the connections.
    #[command(flatten)]
    path: PathOptions,
    /// Completion vector that wakes the program [env: RDMA_COMPLETION_VECTOR] (default: 0)
    #[arg(long, value_name = "N", global = true, hide_short_help = true)]
    completion_vector: Option<u32>,
    /// Print one JSON object
    #[arg(long, global = true, help_heading = crate::cli::OUTPUT)]
    pub json: bool,
}

/// The ways to set up connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExchangeOption {
    /// By the connection manager
    Cm,
    /// By TCP, for devices without a connection manager; not on iWARP
    Tcp,
}

impl ServiceOptions {
    /// Creates a node on the device that the options name. Without a name it is the one that the
    /// address leads to, and a line on standard error says which.
    ///
    /// # Errors
    /// If there is no such device, or an option of the path or a variable has a value that is not
    /// allowed; errors of the device.
    pub fn node(&self, options: NodeOptions, place: Place) -> Result<(Node, Driver), Failure> {
        let path = self.path.or_environment()?;
        let vector = match self.completion_vector {
            Some(vector) => vector,
            None => environment::setting("RDMA_COMPLETION_VECTOR", 0..=u32::MAX)?.unwrap_or(0),
        };
        let device = DeviceOptions::named(self.device.clone());
        let chosen = match self.exchange {
            ExchangeOption::Cm => device.at(place).open()?,
            // The addresses are those of TCP, and lead to no device.
            ExchangeOption::Tcp => device.open()?,
        };
        if !chosen.is_named() {
            let is_alone = !chosen.reaches_hosts() && !place.is_loopback();
            let hint = if is_alone { "; it does not reach other hosts (devinfo --why says why)" } else { "" };
            say(&format!("{}{hint}", chosen.using()));
        }
        let exchange = match self.exchange {
            ExchangeOption::Cm => Exchange::ConnectionManager,
            ExchangeOption::Tcp => Exchange::Tcp,
        };
        Ok(Node::new(&chosen.adapter.context, &options.exchange(exchange).path(path).completion_vector(vector))?)
    }

    /// Runs a program's future with a node of [`node`](Self::node): [`run`].
    ///
    /// # Errors
    /// As for [`node`](Self::node) and [`run`].
    pub fn run<T, F>(&self, options: NodeOptions, place: Place, work: impl FnOnce(Node) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        run(self.node(options, place)?, work)
    }

    /// Starts a server on a thread of this process, and returns its address. `serve` takes the
    /// address to listen on, and calls its last argument with the one that it listens on.
    ///
    /// # Errors
    /// The reason why the server has not started.
    pub fn start(
        &self,
        serve: impl FnOnce(&Self, SocketAddr, Started) -> Result<(), Failure> + Send + 'static,
    ) -> Result<SocketAddr, Failure> {
        let ip = match self.exchange {
            ExchangeOption::Cm => address::of_device(&DeviceOptions::named(self.device.clone()).open()?.adapter)?,
            ExchangeOption::Tcp => Ipv4Addr::LOCALHOST.into(),
        };
        let (tell, told) = mpsc::channel();
        let options = self.clone();
        let server = move || {
            let address = tell.clone();
            let started = move |at| address.send(Ok(at)).map_err(|_| Failure::new("nobody waits for the server"));
            if let Err(failure) = serve(&options, SocketAddr::new(ip, 0), Box::new(started)) {
                // Of a server that had started nobody waits for the end: its clients report that.
                let _ended = tell.send(Err(failure));
            }
        };
        let started = thread::Builder::new().name("server".to_owned()).spawn(server);
        started.map_err(|error| Failure::not_started("the server's thread", &error))?;
        told.recv().map_err(|_| Failure::new("the server has not started"))?
    }

    /// Prints a result: the text, or the object.
    ///
    /// # Errors
    /// If writing fails.
    pub fn print(&self, object: &Value, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{object}")?
        } else {
            writeln!(out, "{text}")?
        }
        Ok(out.flush()?)
    }

    /// Prints the address of a server that has started.
    ///
    /// # Errors
    /// If writing fails.
    pub fn print_address(&self, address: SocketAddr) -> Result<(), Failure> {
        self.print_addresses(address, None)
    }

    /// As [`print_address`](Self::print_address), with the address of the server's metrics.
    ///
    /// # Errors
    /// If writing fails.
    pub fn print_addresses(&self, address: SocketAddr, metrics: Option<SocketAddr>) -> Result<(), Failure> {
        let (address, metrics) = (address.to_string(), metrics.map(|at| format!("http://{at}/metrics")));
        match metrics {
            None => self.print(&json!({ "address": address }), &format!("listening on {address}")),
            Some(metrics) => {
                let text = format!("listening on {address}\nmetrics at {metrics}");
                self.print(&json!({ "address": address, "metrics": metrics }), &text)
            }
        }
    }
}

/// Listens at an address.
///
/// # Errors
/// If the address is taken, or does not lead to the device.
pub fn listen(node: &Node, address: SocketAddr, options: &ListenOptions) -> Result<Listener, Failure> {
    let cannot = |error| Failure::from(error).context(format_args!("cannot listen on {address}"));
    node.listen(address, options).map_err(cannot)
}

/// Serves all clients of a listener, each in a task of its own.
///
/// # Errors
/// If the listener fails. A client's failure ends that client only, and is reported on standard
/// error.
pub async fn serve_all<F>(mut listener: Listener, program: &str, serve: impl Fn(Incoming) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    loop {
        let incoming = listener.accept().await?;
        let (peer, program) = (incoming.peer_addr(), program.to_owned());
        let serving = serve(incoming);
        tokio::spawn(async move { report(&program, peer, serving.await) });
    }
}

/// Reports on standard error that a server could not serve a client.
pub fn report(program: &str, peer: Option<SocketAddr>, served: Result<(), Failure>) {
    if let Err(failure) = served {
        let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
        say(&format!("{program}: {peer}: {}", failure.explained(Duration::ZERO)));
    }
}

/// The next message, or `None` if the peer has ended or closed the connection.
///
/// # Errors
/// If the connection has failed otherwise.
pub fn unless_closed(next: Result<Option<Message>, rdma_net::Failure>) -> Result<Option<Message>, Failure> {
    match next {
        Err(failure) if failure.kind() == FailureKind::Closed => Ok(None),
        next => Ok(next?),
    }
}

/// Tells the address of a server that has started.
pub type Started = Box<dyn FnOnce(SocketAddr) -> Result<(), Failure>>;

/// Runs a program's future on this thread, beside the driver of its node: a wake-up from another
/// thread would cost more than most operations.
///
/// # Errors
/// The error of the future, with the reason that was logged if the peer did not say it; errors of
/// the device and of the runtime.
pub fn run<T, F>(node: (Node, Driver), work: impl FnOnce(Node) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    run_until(node, None, work)
}

/// Runs a program's future as [`run`] does. The last messages have until `deadline` to leave, if
/// there is one.
///
/// # Errors
/// As for [`run`].
pub fn run_until<T, F>(
    (node, driver): (Node, Driver),
    deadline: Option<Instant>,
    work: impl FnOnce(Node) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    runtime()?.block_on(async {
        let driving = driver.spawn()?;
        let result = work(node).await;
        let limit = deadline.map_or(LINGER, |end| LINGER.min(end.saturating_duration_since(Instant::now())));
        // The driver ends when the last connection has; other tasks of the program may hold some.
        match tokio::time::timeout(limit, driving).await {
            Ok(Ok(Err(error))) => Err(Failure::from(error)),
            _ => result.map_err(|failure| failure.explained(limit.min(EXPLANATION))),
        }
    })
}

/// A runtime for tasks on this thread.
///
/// # Errors
/// Too many open files.
pub fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
