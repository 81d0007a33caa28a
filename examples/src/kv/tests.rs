//! Clients and a server on the software device: reads that meet writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_net::{ListenOptions, Node};

use super::wire::{Answer, Request};
use super::*;
use crate::cli::Size;
use crate::exposed_table::ExposedTable;
use crate::exposed_table::table::Table;
use crate::message::{decode, encode};
use crate::{Failure, service};

const KEY: &[u8] = b"key";
/// Bytes of the values: long enough that a read takes longer than a write's start.
const LEN: usize = 60_000;
/// Time for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

/// A server on threads of this process, which writes to its own store too.
struct World {
    table: Arc<ExposedTable>,
    address: SocketAddr,
    _node: Node,
}

impl World {
    /// A table with space for `blocks` blocks of `LEN` bytes, which are reused at once.
    fn new(blocks: usize) -> Self {
        let (node, driver) = Node::new(&context(), &node_options(16)).unwrap();
        thread::spawn(move || driver.run_blocking());
        let listener = node.listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let memory = Size(Table::bucket_bytes(4) + blocks * 65_536);
        let options = ServerOptions { keys: 4, memory, grace: 0, idle: Duration::from_secs(60), tcp: false };
        let table = Arc::new(options.table(node.domain()).unwrap());
        let (address, serving) = (listener.local_addr(), Arc::clone(&table));
        thread::spawn(move || service::runtime().unwrap().block_on(serve(listener, serving)));
        Self { table, address, _node: node }
    }

    fn put(&self, number: u64) {
        let request = encode(&Request::Put(KEY, &value(number), None)).unwrap();
        assert!(matches!(decode(&answer(&self.table, &request).unwrap()), Some(Answer::Done(_))));
    }
}

fn context() -> rdma::Context {
    rdma::open(&"soft0".parse().unwrap()).unwrap().context
}

/// The value with a number: the number over and over.
fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(LEN / 8)
}

/// The number of a value, which must be whole.
fn number_of(bytes: &[u8]) -> u64 {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == value(number), "a value that was never written");
    number
}

fn with_client<T>(world: &World, work: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
    let address = world.address;
    service::run(Node::new(&context(), &node_options(1))?, |node| async move {
        let mut client = Client::connect(&node, address).await?;
        work(&mut client).await
    })
}

#[test]
fn torn_reads_are_noticed_and_repeated() {
    let world = World::new(2);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    world.put(0);
    let writing = || {
        while !is_over.load(Ordering::Relaxed) {
            let next = written.load(Ordering::Relaxed) + 1;
            // Noted first: a reader may get the value before the call returns.
            written.store(next, Ordering::SeqCst);
            world.put(next);
        }
    };
    let reading = || {
        with_client(&world, async |client| {
            let (start, mut last) = (Instant::now(), 0);
            for reads in 0.. {
                let number = number_of(&client.get(KEY).await?.expect("the key always exists").bytes);
                assert!(number >= last && number <= written.load(Ordering::SeqCst), "{number} after {last}");
                last = number;
                if (reads > 300 && client.counts().retries > 0) || start.elapsed() > LONG {
                    break;
                }
            }
            Ok(client.counts())
        })
    };
    let counts = thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(reading));
        scope.spawn(writing);
        let counts = readers.map(|reader| reader.join());
        is_over.store(true, Ordering::Relaxed);
        counts.map(|counts| counts.unwrap().unwrap())
    });
    assert!(counts.iter().all(|counts| counts.retries > 0), "the writer met no reader: {counts:?}");
}

#[test]
fn every_writer_sees_its_own_writes() {
    let world = World::new(16);
    let writer = |name: u64| {
        with_client(&world, async move |client| {
            for number in (0..200).map(|round| round * 10 + name) {
                let key = name.to_le_bytes();
                let sequence = client.put(&key, &value(number), None).await?;
                let found = client.get(&key).await?.expect("it was put");
                assert_eq!((number_of(&found.bytes), found.sequence), (number, sequence));
                client.delete(&key, Some(sequence)).await?;
                assert_eq!(client.get(&key).await?, None);
                assert!(client.delete(&key, None).await.is_err());
            }
            Ok(())
        })
    };
    thread::scope(|scope| {
        for ended in [0, 1, 2].map(|name| scope.spawn(move || writer(name))) {
            ended.join().unwrap().unwrap();
        }
    });
}
