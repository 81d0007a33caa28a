//! A program of its own, because it has an allocator that counts: what travels over a connection
//! allocates nothing, once the connection has warmed up.
//!
//! Both drivers and all futures of a test run on its thread, whose allocations are counted.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use rdma::RemoteAccess;
use rdma_net::{Connection, Driver, Exchange, Failure, ListenOptions, Message, Node, NodeOptions};
use rdma_test_support::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds before the count.
const WARM_UP: usize = 50;
/// Rounds that are counted.
const ROUNDS: usize = 60;

const WINDOW: u16 = 8;

/// Fragments of 256 bytes, so that messages of all kinds are short.
fn options() -> NodeOptions {
    NodeOptions::new().window(WINDOW).payload(256).eager_limit(1024).notifications(4).max_connections(4)
}

/// Two nodes whose drivers run on the thread of the test, and a connection.
struct World {
    drivers: [Driver; 2],
    nodes: [Node; 2],
}

impl World {
    fn new(options: &NodeOptions, listen: &ListenOptions) -> (Self, Connection, Connection) {
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let [(client, one), (server, two)] = [(); 2].map(|()| Node::new(&context, options).unwrap());
        let mut listener = server.listen("127.0.0.1:0".parse().unwrap(), listen).unwrap();
        let mut world = Self { drivers: [one, two], nodes: [client, server] };
        let client = world.nodes[0].clone();
        let to = listener.local_addr();
        let connected = world.run(async {
            let accepting = async { listener.accept().await?.accept().await };
            join(client.connect(to), accepting).await
        });
        (world, connected.0.unwrap(), connected.1.unwrap())
    }

    /// Runs a future and the drivers until it is ready.
    fn run<R>(&mut self, work: impl Future<Output = R>) -> R {
        let mut work = pin!(work);
        loop {
            if let Poll::Ready(result) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return result;
            }
            let turns = self.drivers.iter_mut().map(|driver| driver.turn(16).unwrap());
            if turns.sum::<usize>() == 0 {
                thread::yield_now();
            }
        }
    }

    /// Asserts that a round allocates at most `most` times once it is warm: [`count`].
    #[track_caller]
    fn assert_most(&mut self, most: u64, mut round: impl AsyncFnMut()) {
        count(most, || self.run(round()));
    }

    /// Asserts that no round allocates once it is warm, and the first ones at most once for each of
    /// their messages.
    #[track_caller]
    fn assert_none(&mut self, messages: usize, mut round: impl AsyncFnMut()) {
        let warm_up = count(0, || self.run(round()));
        let sent = (WARM_UP * messages) as u64;
        assert!(warm_up <= sent, "{warm_up} allocations for the first {sent} messages");
    }
}

/// Asserts that a round allocates at most `most` times, on average, once it is warm. Returns the
/// number of the first rounds, which warm up.
#[track_caller]
fn count(most: u64, mut round: impl FnMut()) -> u64 {
    let start = allocations::of_thread();
    (0..WARM_UP).for_each(|_| round());
    let warm = allocations::of_thread();
    let mut rounds = || (0..ROUNDS).for_each(|_| round());
    // A call stack takes time, so that of an expected allocation is not noted.
    let mut sites = Vec::new();
    if most == 0 {
        sites = allocations::sites(rounds);
    } else {
        rounds();
    }
    let counted = allocations::of_thread() - warm;
    if counted > most * ROUNDS as u64 {
        panic!("{counted} allocations in {ROUNDS} rounds, here:\n{}", sites.join("\n"));
    }
    warm - start
}

/// Waits for both futures.
async fn join<A: Future, B: Future>(one: A, two: B) -> (A::Output, B::Output) {
    let (mut one, mut two) = (pin!(one), pin!(two));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none() {
            first = ready(one.as_mut().poll(cx));
        }
        if second.is_none() {
            second = ready(two.as_mut().poll(cx));
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    if let Poll::Ready(output) = poll { Some(output) } else { None }
}

fn message(received: Result<Option<Message>, Failure>) -> Message {
    received.unwrap().expect("a message")
}

/// Messages of a length, more than the window, which the peer takes meanwhile.
fn messages_of(len: usize, options: &NodeOptions, listen: &ListenOptions) {
    const COUNT: usize = 3 * WINDOW as usize;
    let (mut world, client, server) = World::new(options, listen);
    let (bytes, (to, _from), (_to, mut from)) = (vec![7; len], client.split(), server.split());
    world.assert_none(COUNT, async || {
        let sending = async {
            for _ in 0..COUNT {
                to.send(&bytes).await.unwrap();
            }
        };
        let receiving = async {
            for _ in 0..COUNT {
                assert_eq!(message(from.next().await).len(), len);
            }
        };
        join(sending, receiving).await;
    });
}

#[test]
fn short_messages() {
    messages_of(100, &options(), &ListenOptions::new());
}

#[test]
fn messages_in_fragments() {
    messages_of(1000, &options(), &ListenOptions::new());
}

#[test]
fn offered_messages() {
    messages_of(10_000, &options(), &ListenOptions::new());
}

/// As many offers at a time as there may be.
#[test]
fn many_offered_messages() {
    const COUNT: usize = 40;
    let (mut world, client, server) = World::new(&options().window(32), &ListenOptions::new());
    let (bytes, (to, _from), (_to, mut from)) = (vec![7; 60_000], client.split(), server.split());
    world.assert_none(COUNT + 1, async || {
        // The first one makes space for the others.
        let lens = || std::iter::once(60_000).chain([2000; COUNT]);
        let sending = async {
            for len in lens() {
                to.send(&bytes[..len]).await.unwrap();
            }
        };
        let receiving = async {
            for len in lens() {
                assert_eq!(message(from.next().await).len(), len);
            }
        };
        join(sending, receiving).await;
    });
}

#[test]
fn messages_over_shared_receives() {
    let listen = ListenOptions::new().shared_receives(32);
    for len in [100, 1000, 10_000] {
        messages_of(len, &options(), &listen);
    }
}

#[test]
fn messages_over_an_exchange_by_tcp() {
    let options = options().exchange(Exchange::Tcp);
    for len in [100, 1000, 10_000] {
        messages_of(len, &options, &ListenOptions::new());
    }
}

#[test]
fn requests_and_answers() {
    let (mut world, mut client, mut server) = World::new(&options(), &ListenOptions::new());
    world.assert_none(2, async || {
        client.send(b"request").await.unwrap();
        let request = message(server.next().await);
        server.send(&request).await.unwrap();
        assert_eq!(&message(client.next().await)[..], b"request");
    });
}

#[test]
fn messages_that_are_held() {
    let (mut world, client, mut server) = World::new(&options(), &ListenOptions::new());
    let mut held: Vec<_> = Vec::with_capacity(2 * usize::from(WINDOW));
    world.assert_none(2 * usize::from(WINDOW), async || {
        for len in [100, 1000, 10_000, 90].into_iter().cycle().take(held.capacity()) {
            let (sent, received) = join(client.send(&[1; 10_000][..len]), server.next()).await;
            sent.unwrap();
            held.push(message(received));
        }
        held.clear();
    });
}

/// Several tasks, each with a sender of its own, wait for their turns.
#[test]
fn senders_of_several_tasks() {
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let ((to, _from), (_to, mut from)) = (client.split(), server.split());
    let (one, two) = (to.clone(), to);
    world.assert_none(2 * 20, async || {
        let sending = |sender| async move {
            let sender: &rdma_net::Sender = sender;
            for number in 0..20 {
                sender.send([number; 300]).await.unwrap();
            }
        };
        let receiving = async {
            for _ in 0..2 * 20 {
                assert_eq!(message(from.next().await).len(), 300);
            }
        };
        join(join(sending(&one), sending(&two)), receiving).await;
    });
}

#[test]
fn permits() {
    let (mut world, client, mut server) = World::new(&options(), &ListenOptions::new());
    let (to, _from) = client.split();
    world.assert_none(4, async || {
        let (one, two) = (to.reserve().await.unwrap(), to.reserve().await.unwrap());
        // A message waits behind the permits, or beside them.
        let (sent, ()) = join(to.send(b"beside"), async {
            one.send(b"first").unwrap();
            two.send(b"second").unwrap();
        })
        .await;
        sent.unwrap();
        drop(to.reserve().await.unwrap());
        for _ in 0..3 {
            drop(message(server.next().await));
        }
    });
}

#[test]
fn exposed_memory() {
    let (mut world, client, mut server) = World::new(&options(), &ListenOptions::new());
    let region = client.domain().allocate_exposed(1 << 16, RemoteAccess::READ).unwrap();
    let (to, _from) = client.split();
    world.assert_none(2, async || {
        for len in [100, 10_000] {
            let slice = region.slice(..len).unwrap();
            let (sent, received) = join(to.send_exposed(slice), server.next()).await;
            sent.unwrap();
            assert_eq!(message(received).len(), len);
        }
    });
}

#[test]
fn streams() {
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let (mut client, mut server) = (client.into_stream(), server.into_stream());
    let (bytes, mut read) = (vec![1; 40_000], vec![0; 40_000]);
    // The lengths of a fragment, of several, and of an offer.
    for len in [100, 1000, 40_000] {
        world.assert_none(1, async || {
            let reading = async {
                let mut at = 0;
                while at < len {
                    at += server.read(&mut read[at..len]).await.unwrap();
                }
            };
            let (written, ()) = join(client.write_all(&bytes[..len]), reading).await;
            written.unwrap();
        });
    }
}

#[cfg(feature = "tokio")]
#[test]
fn streams_by_the_traits_of_tokio() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let (mut client, mut server) = (client.into_stream(), server.into_stream());
    let (bytes, mut read) = (vec![1; 40_000], vec![0; 40_000]);
    world.assert_none(1, async || {
        let (written, read) = join(AsyncWriteExt::write_all(&mut client, &bytes), server.read_exact(&mut read)).await;
        written.unwrap();
        assert_eq!(read.unwrap(), 40_000);
    });
}

#[cfg(feature = "futures")]
#[test]
fn sinks_and_streams_of_messages() {
    use futures_util::{SinkExt, StreamExt};

    const COUNT: usize = 3 * WINDOW as usize;
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let ((mut sink, _from), (_to, mut stream)) = (client.split(), server.split());
    for len in [100, 1000, 10_000] {
        let bytes = vec![5; len];
        world.assert_none(COUNT, async || {
            let sending = async {
                for _ in 0..COUNT {
                    sink.feed(&bytes).await.unwrap();
                }
                SinkExt::<&[u8]>::flush(&mut sink).await.unwrap();
            };
            let receiving = async {
                for _ in 0..COUNT {
                    assert_eq!(StreamExt::next(&mut stream).await.unwrap().unwrap().len(), len);
                }
            };
            join(sending, receiving).await;
        });
    }
}

/// A message that the sink keeps, because others take the credits meanwhile.
#[test]
fn sinks_that_keep_a_message() {
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let ((mut sink, _from), (_to, mut from)) = (client.split(), server.split());
    let other = sink.clone();
    world.assert_none(3 * usize::from(WINDOW) + 1, async || {
        std::future::poll_fn(|cx| sink.poll_ready(cx)).await.unwrap();
        let mut sent = 0;
        while sent < 3 * usize::from(WINDOW)
            && ready(pin!(other.send(b"other")).poll(&mut Context::from_waker(Waker::noop()))).is_some()
        {
            sent += 1;
        }
        sink.start_send(b"kept").unwrap();
        let receiving = async {
            for _ in 0..=sent {
                drop(message(from.next().await));
            }
        };
        let (flushed, ()) = join(std::future::poll_fn(|cx| sink.poll_flush(cx)), receiving).await;
        flushed.unwrap();
    });
}

#[cfg(feature = "bytes")]
#[test]
fn messages_as_bytes_cost_one_allocation() {
    let (mut world, client, mut server) = World::new(&options(), &ListenOptions::new());
    for (len, copy_up_to) in [(100, 0), (100, 200), (1000, 0), (10_000, 0)] {
        world.assert_most(1, async || {
            let (sent, received) = join(client.send(&[1; 10_000][..len]), server.next()).await;
            sent.unwrap();
            assert_eq!(message(received).into_bytes(copy_up_to).len(), len);
        });
    }
}

#[test]
fn one_sided_operations() {
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let table = server.domain().allocate_exposed(1 << 16, access).unwrap();
    let (remote, at) = (client.remote(), table.remote(..).unwrap());
    let mut buffer = Some(client.domain().allocate(4096).unwrap());
    world.assert_none(6, async || {
        let filled = remote.write(at, buffer.take().unwrap(), 4096).await.unwrap();
        buffer = Some(remote.read(at, filled).await.unwrap());
        assert_eq!(remote.fetch(at.slice(..100).unwrap()).await.unwrap().len(), 100);
        assert_eq!(remote.fetch(at.slice(..10_000).unwrap()).await.unwrap().len(), 10_000);
        let old = remote.fetch_add(at, 1).await.unwrap();
        assert_eq!(remote.compare_swap(at, old + 1, 0).await.unwrap(), old + 1);
    });
}

/// More operations than may be in flight, of several tasks.
#[test]
fn operations_that_wait_for_slots() {
    let (mut world, client, server) = World::new(&options().operations(4), &ListenOptions::new());
    let table = server.domain().allocate_exposed(4096, RemoteAccess::READ | RemoteAccess::ATOMIC).unwrap();
    let (remote, at) = (client.remote(), table.remote(..).unwrap());
    world.assert_none(12, async || {
        let two = |remote| async move {
            let remote: &rdma_net::Remote = remote;
            let (row, old) = join(remote.fetch(at), remote.fetch_add(at, 1)).await;
            assert_eq!(row.unwrap().len(), 4096);
            old.unwrap();
        };
        let four = || join(two(&remote), two(&remote));
        join(four(), join(four(), four())).await;
    });
}

#[test]
fn batches() {
    const COUNT: usize = 16;
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let table = server.domain().allocate_exposed(4096, RemoteAccess::READ | RemoteAccess::ATOMIC).unwrap();
    let (remote, at) = (client.remote(), table.remote(..).unwrap());
    let rows = || (0..COUNT).map(|row| at.slice(64 * row..64 * (row + 1)).unwrap());
    let batch = || {
        let mut batch = remote.batch();
        rows().skip(1).for_each(|row| batch.fetch(row).unwrap());
        batch.fetch_add(at, 1).unwrap();
        batch
    };
    let mut results = Vec::new();
    world.assert_none(COUNT, async || {
        batch().submit_into(&mut results).await.unwrap();
        assert_eq!(results.drain(..).count(), COUNT);
    });
    // The vector that the program gets.
    world.assert_most(1, async || assert_eq!(batch().submit().await.unwrap().len(), COUNT));
    world.assert_most(1, async || assert_eq!(remote.fetch_all(rows()).await.unwrap().len(), COUNT));
}

/// The drivers are tasks of tokio, and sleep.
#[cfg(feature = "tokio")]
#[test]
fn messages_in_a_runtime_of_tokio() {
    let (World { drivers, nodes }, mut client, server) = World::new(&options(), &ListenOptions::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let tasks = runtime.block_on(async { drivers.map(|driver| driver.spawn().unwrap()) });
    let echo = runtime.spawn(async {
        let (to, mut from) = server.split();
        while let Some(message) = from.next().await.unwrap() {
            to.send(&message).await.unwrap();
        }
    });
    let bytes = vec![7; 10_000];
    for len in [100, 1000, 10_000] {
        let round = async || {
            client.send(&bytes[..len]).await.unwrap();
            assert_eq!(message(client.next().await).len(), len);
        };
        let mut round = round;
        count(0, || runtime.block_on(round()));
    }
    drop((client, nodes));
    runtime.block_on(async {
        echo.await.unwrap();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}

#[test]
fn notifications() {
    let (mut world, client, server) = World::new(&options(), &ListenOptions::new());
    let table = server.domain().allocate_exposed(4096, RemoteAccess::WRITE).unwrap();
    let (remote, at, notifications) = (client.remote(), table.remote(..).unwrap(), server.notifications());
    let mut buffer = Some(client.domain().allocate(4096).unwrap());
    world.assert_none(30, async || {
        // More than the peer's credits and its limit of waiting ones.
        let writing = async {
            for number in 0..20 {
                buffer = Some(remote.write_imm(at, buffer.take().unwrap(), 10, number).await.unwrap());
            }
            for _ in 0..10 {
                buffer = Some(remote.write_imm(at, buffer.take().unwrap(), 10, 77).await.unwrap());
            }
        };
        let taking = async {
            for number in 0..20 {
                assert_eq!(notifications.next().await, Ok(number));
            }
            notifications.count(77, 10).await.unwrap();
        };
        join(writing, taking).await;
    });
}
