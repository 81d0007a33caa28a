//! Serves what a program has done as Prometheus text: `--metrics ADDRESS:PORT`.
//!
//! A few threads of their own answer, one request for each connection and in a limited time. So
//! slow and many clients take neither time nor memory from the service: those beyond the threads
//! wait in the kernel's queue.

mod http;
mod page;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use rdma_net::{Node, NodeStats};

use crate::Failure;
use page::{Kind, Page};

/// Threads that answer: as many clients are served at a time.
const THREADS: usize = 2;

/// Options of a program that serves its counters.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct MetricsOptions {
    /// Serve counters as Prometheus text at http://ADDRESS:PORT/metrics; port 0 is any
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = crate::cli::WHAT)]
    metrics: Option<SocketAddr>,
}

impl MetricsOptions {
    /// Serves the counters of a node's program, if the options say so, until the result is dropped.
    ///
    /// # Errors
    /// The port is taken; the address is not one of this host; no thread can be started.
    pub fn serve(self, node: &Node) -> Result<Metrics, Failure> {
        let Some(address) = self.metrics else { return Ok(Metrics { served: None }) };
        let cannot =
            |error| Failure::new(format!("cannot serve metrics on {address}: {error}; give --metrics another address"));
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let address = listener.local_addr()?;
        let source = Arc::new(Mutex::new(Some(Source { node: node.clone(), started: SystemTime::now() })));
        // Made first: if a thread cannot be started, the others let the node go.
        let metrics = Metrics { served: Some((address, Arc::clone(&source))) };
        let shared = Arc::new((listener, source));
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            let answer = move || {
                let (listener, source) = &*shared;
                http::answer_all(listener, || lock(source).as_ref().map(Source::page))
            };
            let started = thread::Builder::new().name("metrics".to_owned()).spawn(answer);
            started.map_err(|error| Failure::not_started("a thread of --metrics", &error))?;
        }
        Ok(metrics)
    }
}

/// The counters that are served. Once it is dropped the threads hold the node no longer, whose
/// driver could not end otherwise; requests are answered by 503.
#[derive(Debug)]
#[must_use = "dropping it ends the service"]
pub struct Metrics {
    served: Option<(SocketAddr, Arc<Mutex<Option<Source>>>)>,
}

impl Metrics {
    /// The address, if the counters are served.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.served.as_ref().map(|(address, _)| *address)
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some((_, source)) = &self.served {
            drop(lock(source).take());
        }
    }
}

/// The source, until the service has ended.
fn lock(source: &Mutex<Option<Source>>) -> MutexGuard<'_, Option<Source>> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a page is made of.
#[derive(Debug)]
struct Source {
    node: Node,
    started: SystemTime,
}

impl Source {
    fn page(&self) -> String {
        let mut page = Page::default();
        of_process(&mut page, self.started);
        of_node(&mut page, &self.node.stats());
        of_device(&mut page, &self.node);
        page.into_text()
    }
}

/// The counters of the process, by the names that Prometheus' libraries use.
#[allow(clippy::cast_precision_loss, reason = "Prometheus' numbers are f64")]
fn of_process(page: &mut Page, started: SystemTime) {
    if let Ok(since) = started.duration_since(SystemTime::UNIX_EPOCH) {
        let name = "process_start_time_seconds";
        page.one(name, Kind::Gauge, "Time at which the program began to serve, since 1970.", since.as_secs_f64());
    }
    if let Ok(usage) = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF) {
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let used = seconds(usage.user_time()) + seconds(usage.system_time());
        page.one("process_cpu_seconds_total", Kind::Counter, "Time of processors that the process has used.", used);
    }
    if let Some(bytes) = resident() {
        page.one("process_resident_memory_bytes", Kind::Gauge, "Memory of the process in RAM.", bytes as f64);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // One is that of this look.
        let open = open.count().saturating_sub(1);
        page.one("process_open_fds", Kind::Gauge, "Open file descriptors.", open as f64);
    }
}

/// Memory of this process in RAM, in bytes.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The counters of the node and the sums over its connections.
#[allow(clippy::cast_precision_loss, reason = "Prometheus' numbers are f64")]
fn of_node(page: &mut Page, stats: &NodeStats) {
    let NodeStats { connections, opened, ended, failed, traffic, completions, .. } = stats;
    let gauges = [
        ("rdma_node_connections", "Connections that have not ended.", *connections as f64),
        ("rdma_connections_credits", "Messages that the peers could take now.", traffic.credits.into()),
        ("rdma_connections_unread_messages", "Messages that the program has not taken.", traffic.unread as f64),
        (
            "rdma_connections_unread_messages_max",
            "The most messages that the program has not taken on one connection.",
            traffic.most_unread as f64,
        ),
        ("rdma_completions_at_once_max", "The most completions of one poll.", completions.most_at_once.into()),
    ];
    let counters = [
        ("rdma_node_connections_opened_total", "Connections that were made or begun.", *opened),
        ("rdma_node_connections_ended_total", "Connections that have ended.", *ended),
        ("rdma_node_connections_failed_total", "Connections that ended although nobody closed them.", *failed),
        ("rdma_connections_sent_messages_total", "Messages that were sent.", traffic.sent),
        ("rdma_connections_sent_bytes_total", "Bytes of the messages that were sent.", traffic.sent_bytes),
        ("rdma_connections_received_messages_total", "Messages that have arrived.", traffic.received),
        ("rdma_connections_received_bytes_total", "Bytes of the messages that have arrived.", traffic.received_bytes),
        ("rdma_connections_operations_total", "One-sided operations that were posted.", traffic.operations),
        ("rdma_connections_send_waits_total", "Sends that waited for a credit or a slot.", traffic.send_waits),
        ("rdma_completions_total", "Completions of the node.", completions.completions),
        ("rdma_completions_stale_total", "Completions of no request in flight.", completions.stale),
        ("rdma_empty_polls_total", "Polls that found no completion.", completions.empty_polls),
        ("rdma_sleeps_total", "Sleeps of pollers until a completion.", completions.sleeps),
    ];
    for (name, help, value) in gauges {
        page.one(name, Kind::Gauge, help, value);
    }
    for (name, help, value) in counters {
        page.one(name, Kind::Counter, help, value as f64);
    }
    let known = [
        ("flushed", completions.flushed),
        ("retry_exceeded", completions.retries_exceeded),
        ("rnr_retry_exceeded", completions.rnr_retries_exceeded),
    ];
    let others = completions.failed.saturating_sub(known.iter().map(|(_, count)| count).sum());
    page.family("rdma_completions_failed_total", Kind::Counter, "Completions of requests that failed, by reason.");
    for (reason, count) in known.into_iter().chain([("other", others)]) {
        page.sample("rdma_completions_failed_total", &[("reason", reason)], count as f64);
    }
}

/// The counters that the device keeps of its ports, by its own names.
#[allow(clippy::cast_precision_loss, reason = "Prometheus' numbers are f64")]
fn of_device(page: &mut Page, node: &Node) {
    let context = node.domain().context();
    let device = context.device().name().to_owned();
    let ports = (1..=context.port_count()).filter_map(|port| Some((port, context.port_counters(port).ok()?)));
    let ports: Vec<_> = ports.collect();
    let names: std::collections::BTreeSet<&str> =
        ports.iter().flat_map(|(_, counters)| counters.iter().map(|(name, _)| name)).collect();
    for name in names {
        let metric = page::name(&format!("rdma_port_{name}_total"));
        page.family(&metric, Kind::Counter, &format!("Counter {name} of the port, in the driver's unit."));
        for (port, counters) in &ports {
            if let Some(value) = counters.get(name) {
                let labels = [("device", device.as_str()), ("port", &port.to_string())];
                page.sample(&metric, &labels, value as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use std::time::Duration;

    use rdma_net::NodeOptions;

    use super::*;

    fn status(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.lines().next().unwrap().to_owned()
    }

    #[test]
    fn a_service_that_has_ended_lets_the_driver_end() {
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let (node, driver) = Node::new(&context, &NodeOptions::new()).unwrap();
        let options = MetricsOptions { metrics: Some("127.0.0.1:0".parse().unwrap()) };
        let metrics = options.serve(&node).unwrap();
        let address = metrics.address().unwrap();
        assert_eq!(status(address), "HTTP/1.1 200 OK");
        drop((metrics, node));
        // A driver ends once no handle of its node is left.
        let (end, ended) = mpsc::channel();
        thread::spawn(move || end.send(driver.run_blocking()));
        ended.recv_timeout(Duration::from_secs(60)).expect("the driver has no node").unwrap();
        assert_eq!(status(address), "HTTP/1.1 503 Service Unavailable");
    }
}
