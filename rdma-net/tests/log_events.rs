//! In a process of its own: the log events of other tests' threads are not to be collected, and
//! switch call sites on and off.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use rdma::Context;
use rdma::aio::block_on;
use rdma_net::{Exchange, FailureKind, ListenOptions, Node, NodeOptions};
use rdma_test_support::LoggedEvent;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher};

const PAGE: &str = include_str!("../src/guide/observing.md");
/// Time for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

/// What a subscriber was told.
#[derive(Default)]
struct Log {
    events: BTreeSet<LoggedEvent>,
    /// The names of the events in a span.
    in_spans: BTreeSet<String>,
    spans: usize,
}

/// Collects the events of this crate, and takes the locks of the nodes meanwhile.
#[derive(Clone)]
struct Collector(Arc<(Mutex<Log>, OnceLock<[Node; 2]>)>);

impl Collector {
    fn take_locks(&self) {
        self.0.1.get().into_iter().flatten().for_each(|node| {
            let _stats = node.stats();
        });
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "rdma_net"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.take_locks();
        let metadata = attributes.metadata();
        let fields: Vec<_> = metadata.fields().iter().map(|field| field.name()).collect();
        assert_eq!((metadata.name(), &fields[..]), ("connection", &["key", "local", "peer"][..]));
        let mut log = self.0.0.lock().unwrap();
        log.spans += 1;
        Id::from_u64(log.spans as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.take_locks();
        let mut log = self.0.0.lock().unwrap();
        log.events.insert(LoggedEvent::of(event.metadata()));
        if event.parent().is_some() {
            log.in_spans.insert(event.metadata().name().to_owned());
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        self.take_locks();
        true
    }
}

/// The events of the page's table of a connection's life.
fn documented_life() -> BTreeSet<LoggedEvent> {
    let (_, life) = PAGE.split_once("The life of a connection:").unwrap();
    LoggedEvent::of_page(life.split_once("Others:").unwrap().0)
}

fn context() -> Context {
    rdma::open(&"soft0".parse().unwrap()).unwrap().context
}

#[test]
fn a_connections_life_is_logged_as_the_docs_say_and_under_no_lock() {
    for exchange in [Exchange::ConnectionManager, Exchange::Tcp] {
        let options = NodeOptions::new().exchange(exchange);
        let log = Arc::new((Mutex::new(Log::default()), OnceLock::new()));
        let dispatch = Dispatch::new(Collector(Arc::clone(&log)));
        let node = || {
            let (node, driver) = Node::new(&context(), &options).unwrap();
            let dispatch = dispatch.clone();
            thread::spawn(move || dispatcher::with_default(&dispatch, || driver.run_blocking()));
            node
        };
        let (client, server) = (node(), node());
        let nodes = [client.clone(), server.clone()];
        assert!(log.1.set(nodes).is_ok());
        let mut listener = server.listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let at = listener.local_addr();
        let connect = |node: &Node| {
            let (node, dispatch) = (node.clone(), dispatch.clone());
            thread::spawn(move || dispatcher::with_default(&dispatch, || block_on(node.connect(at))))
        };
        dispatcher::with_default(&dispatch, || {
            // One that closes.
            let connecting = connect(&client);
            let serving = block_on(async { listener.accept().await?.accept().await }).unwrap();
            let connection = connecting.join().unwrap().unwrap();
            let closing = thread::spawn(move || block_on(connection.close()).unwrap());
            block_on(serving.close()).unwrap();
            closing.join().unwrap();
            // One that is refused.
            let connecting = connect(&client);
            block_on(listener.accept()).unwrap().refuse("no");
            assert_eq!(connecting.join().unwrap().unwrap_err().kind(), FailureKind::Refused);
            // One whose driver goes.
            let (lone, mut driver) = Node::new(&context(), &options).unwrap();
            let (end, ended) = mpsc::channel::<()>();
            let dispatch = dispatch.clone();
            let driving = thread::spawn(move || {
                while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    driver.wait(Some(Duration::from_millis(1))).unwrap();
                }
                dispatcher::with_default(&dispatch, || drop(driver));
            });
            let connecting = connect(&lone);
            let mut serving = block_on(async { listener.accept().await?.accept().await }).unwrap();
            let connection = connecting.join().unwrap().unwrap();
            end.send(()).unwrap();
            driving.join().unwrap();
            assert!(block_on(serving.next()).is_err());
            drop((connection, serving, lone));
        });
        for node in [&client, &server] {
            block_on(node.shutdown(LONG)).unwrap();
        }
        let log = log.0.lock().unwrap();
        let in_spans = ["connection_closed", "connection_failed", "connection_opened"];
        assert_eq!(log.in_spans, in_spans.map(String::from).into());
        let is_of_life = |event: &&LoggedEvent| event.name != "disconnect_failed";
        let seen: BTreeSet<_> = log.events.iter().filter(is_of_life).cloned().collect();
        assert_eq!(seen, documented_life(), "what was logged, and then the docs");
        assert_eq!(log.spans, 4, "one for each side of a connection that was made");
    }
}
