//! Random programs: every operation of a connection is dropped after any number of polls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Instant;

use rdma::{RemoteAccess, RemoteSlice};
use rdma_testkit::{Random, run_random};

use super::wakers::{Driven, poll};
use super::*;

/// Futures at a time.
const MOST: usize = 24;
/// Longest message in bytes: one that is read by the peer.
const LONGEST: usize = 5000;

type Work<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// One side, and the numbers of its messages.
struct End {
    to: Sender,
    remote: Remote,
    node: Node,
    /// Memory of the peer, and the word at its front.
    slice: RemoteSlice,
    begun: Cell<u32>,
    sent: RefCell<BTreeSet<u32>>,
    added: [Cell<u64>; 2],
    /// The notifications of the peer.
    notifications: Notifications,
    /// Notifications that were begun, and that were done.
    notified: [Cell<u64>; 2],
    /// Notifications of the peer that a task has taken.
    taken: Cell<u64>,
}

/// A message with its number.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut message = vec![number.to_le_bytes()[0]; len];
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

/// The number of a message, which must be whole.
fn number(received: &[u8]) -> u32 {
    let number = u32::from_le_bytes(*received.first_chunk().unwrap());
    assert_eq!(received, message(number, received.len()), "a torn message");
    number
}

impl End {
    fn work(&self, random: &mut Random) -> Work<'_> {
        let len = [4, 200, 700, LONGEST][random.below(4)];
        let sends = |way| {
            let sending = async move {
                let number = self.begun.replace(self.begun.get() + 1);
                let message = message(number, len);
                match way {
                    0 => self.to.send(message).await?,
                    1 => self.to.reserve().await?.send(&message[..len.min(200)])?,
                    2 => {
                        let mut sink = self.to.clone();
                        poll_fn(|cx| sink.poll_ready(cx)).await?;
                        sink.start_send(message)?;
                        poll_fn(|cx| sink.poll_flush(cx)).await?;
                    }
                    _ => {
                        let region = self.node.domain().allocate_exposed(len, RemoteAccess::READ)?;
                        region.copy_in(0, &message)?;
                        self.to.send_exposed(region.slice(..)?).await?;
                    }
                }
                self.sent.borrow_mut().insert(number);
                Ok(())
            };
            Box::pin(sending) as Work<'_>
        };
        let (remote, slice, domain) = (&self.remote, self.slice, self.node.domain());
        match random.below(16) {
            way @ 0..4 => sends(way),
            13 => Box::pin(async move {
                self.notifications.next().await?;
                self.taken.set(self.taken.get() + 1);
                Ok(())
            }),
            14 => Box::pin(async move {
                self.notifications.count(3, 2).await?;
                self.taken.set(self.taken.get() + 2);
                Ok(())
            }),
            15 => Box::pin(async move {
                // More than may be in flight.
                let slices = (0..20).map(|at| slice.slice(64 + at..70 + at).unwrap());
                let all = remote.fetch_all(slices).await?;
                assert!(all.len() == 20 && all.iter().all(|bytes| bytes.len() == 6));
                Ok(())
            }),
            12 => Box::pin(async move { self.to.closed().await.map(drop) }),
            4 => Box::pin(async move { remote.fetch(slice.slice(64..).unwrap()).await.map(drop) }),
            5 => Box::pin(async move { remote.read(slice, domain.allocate(100)?).await.map(drop) }),
            6 => Box::pin(
                async move { remote.write(slice.slice(64..).unwrap(), domain.allocate(64)?, 9).await.map(drop) },
            ),
            7 => Box::pin(async move { remote.compare_swap(slice.slice(8..).unwrap(), 0, 0).await.map(drop) }),
            8 => Box::pin(async move {
                let (to, buffer) = (slice.slice(64..).unwrap(), domain.allocate(64)?);
                self.notified[0].set(self.notified[0].get() + 1);
                remote.write_imm(to, buffer, 9, 3).await?;
                self.notified[1].set(self.notified[1].get() + 1);
                Ok(())
            }),
            9 => Box::pin(async move {
                let mut batch = remote.batch();
                batch.fetch(slice.slice(64..).unwrap())?;
                batch.fetch_add(slice, 1)?;
                for _ in 0..2 {
                    batch.write_imm(slice.slice(64..).unwrap(), domain.allocate(64)?, 64, 3)?;
                }
                batch.fetch_add(slice, 1)?;
                self.added[0].set(self.added[0].get() + 2);
                self.notified[0].set(self.notified[0].get() + 2);
                batch.submit().await?;
                self.added[1].set(self.added[1].get() + 2);
                self.notified[1].set(self.notified[1].get() + 2);
                Ok(())
            }),
            10 => Box::pin(async move {
                // Given up most of the time: then all stay for others.
                self.notifications.count(3, 1000).await
            }),
            _ => Box::pin(async move {
                self.added[0].set(self.added[0].get() + 1);
                remote.fetch_add(slice, 1).await?;
                self.added[1].set(self.added[1].get() + 1);
                Ok(())
            }),
        }
    }
}

/// Polls the receiver once; the future is dropped.
fn receive(from: &mut Receiver, received: &mut BTreeSet<u32>) {
    if let Poll::Ready(message) = poll(std::pin::pin!(from.next()), Waker::noop()) {
        let number = number(&message.unwrap().expect("no end"));
        assert!(received.insert(number), "message {number} came twice");
    }
}

fn run(random: &mut Random) {
    let options = options().linger(Duration::from_millis(20)).keep_alive(Duration::ZERO).notifications(4);
    let mut world = Driven::new(&options);
    let (client, server) = world.pair();
    let [one, two] = [0, 1].map(|at| world.nodes[at].domain().allocate_exposed(256, RemoteAccess::all()).unwrap());
    let mut notifications = [Some(client.notifications()), Some(server.notifications())];
    let (client, server) = (client.split(), server.split());
    let slices = [two.remote(..).unwrap(), one.remote(..).unwrap()];
    let mut numbers = [(); 2].map(|()| BTreeSet::new());
    let mut receivers = [client.1, server.1];
    let mut senders = [Some(client.0), Some(server.0)];
    let ends = [0, 1].map(|at| {
        let to = senders[at].take().unwrap();
        End {
            remote: to.remote(),
            to,
            node: world.nodes[at].clone(),
            slice: slices[at],
            begun: Cell::new(0),
            sent: RefCell::default(),
            added: [Cell::new(0), Cell::new(0)],
            notifications: notifications[at].take().unwrap(),
            notified: [Cell::new(0), Cell::new(0)],
            taken: Cell::new(0),
        }
    });
    let mut works: Vec<Work<'_>> = Vec::new();
    for _ in 0..600 {
        match random.below(8) {
            0 | 1 if works.len() < MOST => works.push(ends[random.below(2)].work(random)),
            2 | 3 => {
                world.drivers[random.below(2)].turn(1 + random.below(4)).unwrap();
            }
            4 => {
                let at = random.below(2);
                receive(&mut receivers[at], &mut numbers[1 - at]);
            }
            5 if !works.is_empty() => drop(works.swap_remove(random.below(works.len()))),
            _ if !works.is_empty() => {
                let at = random.below(works.len());
                if let Poll::Ready(done) = poll(works[at].as_mut(), Waker::noop()) {
                    done.unwrap();
                    drop(works.swap_remove(at));
                }
            }
            _ => {}
        }
    }
    drop(works);
    // The connection works as on the first day, and all that was sent arrives.
    for (at, end) in ends.iter().enumerate() {
        let last = end.begun.get();
        end.sent.borrow_mut().insert(last);
        let mut sending = Box::pin(end.to.send(message(last, LONGEST)));
        let mut is_sent = false;
        while !is_sent || !numbers[at].contains(&last) {
            is_sent = is_sent || poll(sending.as_mut(), Waker::noop()).map(Result::unwrap).is_ready();
            world.turn();
            receive(&mut receivers[1 - at], &mut numbers[at]);
        }
        assert!(end.sent.borrow().is_subset(&numbers[at]), "a message is lost");
        // No notification is lost, whatever was dropped while it counted them.
        let waiting = ends[1 - at].notifications.waiting() + ends[1 - at].taken.get();
        assert!((end.notified[1].get()..=end.notified[0].get()).contains(&waiting), "{waiting}");
        let mut adding: Vec<_> = (0..16).map(|_| Box::pin(end.remote.fetch_add(end.slice, 0))).collect();
        for one in &mut adding {
            let polled = poll(one.as_mut(), Waker::noop());
            assert!(polled.is_pending(), "{polled:?}");
        }
        for one in adding {
            let old = world.run(one).unwrap();
            assert!((end.added[1].get()..=end.added[0].get()).contains(&old));
        }
    }
    drop((ends, receivers));
    // Sides that connect and accept are dropped, too.
    for _ in 0..3 {
        let Driven { nodes, drivers, listener } = &mut world;
        let mut both =
            Box::pin(join(nodes[0].connect(listener.local_addr()), async { listener.accept().await?.accept().await }));
        for _ in 0..random.below(60) {
            if poll(both.as_mut(), Waker::noop()).is_ready() {
                break;
            }
            drivers[random.below(2)].turn(1).unwrap();
        }
    }
    let start = Instant::now();
    while world.nodes.iter().any(|node| node.connections() > 0) || world.nodes[0].routes() > 0 {
        assert!(start.elapsed() < LONG, "a connection stays");
        world.turn();
    }
}

#[test]
fn random_programs_lose_no_message_and_leave_no_connection() {
    run_random(20, run);
}
