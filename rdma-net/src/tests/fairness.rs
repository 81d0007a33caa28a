//! Messages, notifications, answers to offers and closes beside each other: each gets its credits.

use std::pin::{Pin, pin};
use std::task::{Poll, Waker};

use rdma::{ExposedRegion, RemoteAccess, RemoteSlice};

use super::wakers::{Driven, poll, without_deadlock};
use super::*;

/// Turns of the drivers in which all must be done.
const TURNS: u32 = 20_000;

type Posting = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

/// A program that posts notifications without end, so that some always wait for credits.
struct Flood {
    remote: Remote,
    node: Node,
    to: RemoteSlice,
    postings: Vec<Posting>,
    posted: u64,
}

impl Flood {
    fn new(world: &Driven, from: &Connection) -> (ExposedRegion, Self) {
        let region = world.nodes[1].domain().allocate_exposed(64, RemoteAccess::WRITE).unwrap();
        let to = region.remote(..).unwrap();
        let flood = Self { remote: from.remote(), node: world.nodes[0].clone(), to, postings: Vec::new(), posted: 0 };
        (region, flood)
    }

    fn post(&mut self) -> Posting {
        let (remote, to, buffer) = (self.remote.clone(), self.to, self.node.domain().allocate(8).unwrap());
        Box::pin(async move { remote.write_imm(to, buffer, 8, 3).await.map(drop) })
    }

    /// Polls all notifications, and posts others in place of those that are done. The first failure
    /// ends the flood.
    fn turn(&mut self) {
        while self.postings.len() < 40 {
            let posting = self.post();
            self.postings.push(posting);
        }
        self.postings.retain_mut(|one| match poll(one.as_mut(), Waker::noop()) {
            Poll::Pending => true,
            Poll::Ready(done) => {
                self.posted += u64::from(done.is_ok());
                false
            }
        });
    }

    /// Goes on while `work` is not done. The peer counts what comes.
    fn beside<R>(&mut self, world: &mut Driven, peer: &Notifications, work: impl Future<Output = R>) -> R {
        let mut work = pin!(work);
        for _ in 0..TURNS {
            self.turn();
            world.turn();
            let waiting = peer.waiting();
            let counted = poll(pin!(peer.count(3, waiting)), Waker::noop());
            assert!(waiting == 0 || counted.is_ready());
            if let Poll::Ready(done) = poll(work.as_mut(), Waker::noop()) {
                return done;
            }
        }
        panic!("it waits for ever beside {} notifications", self.posted);
    }
}

fn notified(window: u16) -> NodeOptions {
    options().window(window).notifications(6).keep_alive(Duration::ZERO)
}

#[test]
fn messages_of_all_lengths_go_beside_notifications_without_end() {
    without_deadlock(|| {
        for window in [1, 2, 4] {
            let mut world = Driven::new(&notified(window));
            let (client, mut server) = world.pair();
            let (region, mut flood) = Flood::new(&world, &client);
            let notifications = server.notifications();
            let mut sink = client.clone_sender();
            flood.beside(&mut world, &notifications, async {
                for round in 0..20 {
                    for len in [10, 700, 5000] {
                        let (sent, received) = join(client.send(bytes(len)), server.next()).await;
                        assert_eq!(sent, Ok(()));
                        assert!(received.unwrap().unwrap()[..] == bytes(len), "round {round}");
                    }
                    let permit = client.clone_sender();
                    permit.reserve().await.unwrap().send(&[round]).unwrap();
                    drop(permit);
                    assert_eq!(server.next().await.unwrap().unwrap()[..], [round]);
                    let sending = async {
                        std::future::poll_fn(|cx| sink.poll_ready(cx)).await?;
                        sink.start_send([round])?;
                        std::future::poll_fn(|cx| sink.poll_flush(cx)).await
                    };
                    let (sent, received) = join(sending, server.next()).await;
                    assert_eq!(sent, Ok(()));
                    assert_eq!(received.unwrap().unwrap()[..], [round]);
                }
            });
            let stats = client.stats();
            // Both go on: none has all credits of the window.
            assert!(flood.posted >= 60, "window {window}: {} beside {} messages", flood.posted, stats.sent);
            drop((client, server, region));
        }
    });
}

#[test]
fn answers_to_long_messages_go_beside_notifications_without_end() {
    without_deadlock(|| {
        let mut world = Driven::new(&notified(2));
        let (mut client, server) = world.pair();
        let (region, mut flood) = Flood::new(&world, &client);
        let notifications = server.notifications();
        let memory = world.nodes[1].domain().allocate_exposed(5000, RemoteAccess::READ).unwrap();
        let to = server.clone_sender();
        flood.beside(&mut world, &notifications, async {
            for _ in 0..20 {
                // Done once the client, whose credits the notifications want, has answered.
                let sending = to.send_exposed(memory.slice(..).unwrap());
                let (sent, received) = join(sending, client.next()).await;
                assert_eq!(sent, Ok(()));
                assert_eq!(received.unwrap().unwrap().len(), 5000);
            }
        });
        assert!(flood.posted > 20, "{}", flood.posted);
        drop((to, client, server, region, memory));
    });
}

#[test]
fn a_close_ends_in_good_order_beside_notifications_without_end() {
    without_deadlock(|| {
        for window in [1, 4] {
            let mut world = Driven::new(&notified(window));
            let (client, mut server) = world.pair();
            let (region, mut flood) = Flood::new(&world, &client);
            let notifications = server.notifications();
            let both = flood.beside(&mut world, &notifications, async {
                let serving = async {
                    assert_eq!(server.next().await.unwrap().as_deref(), Some(&b"last"[..]));
                    assert!(server.next().await.unwrap().is_none());
                    server.close_with(2).await
                };
                let closing = async {
                    client.send("last").await?;
                    client.close_with(1).await
                };
                join(closing, serving).await
            });
            assert_eq!(both, (Ok(2), Ok(1)));
            drop(region);
        }
    });
}

#[test]
fn notifications_go_beside_messages_without_end() {
    without_deadlock(|| {
        for window in [1, 4] {
            let mut world = Driven::new(&notified(window));
            let (client, mut server) = world.pair();
            let (region, mut flood) = Flood::new(&world, &client);
            let notifications = server.notifications();
            let mut sending: Vec<_> = (0..8).map(|_| Box::pin(client.send("message"))).collect();
            let (mut posted, mut turns, mut posting) = (0, 0, flood.post());
            while posted < 50 {
                turns += 1;
                assert!(turns < TURNS, "{posted} notifications beside messages");
                for one in &mut sending {
                    if poll(one.as_mut(), Waker::noop()).is_ready() {
                        *one = Box::pin(client.send("message"));
                    }
                }
                if let Poll::Ready(done) = poll(posting.as_mut(), Waker::noop()) {
                    done.unwrap();
                    posted += 1;
                    posting = flood.post();
                }
                drop(poll(pin!(notifications.next()), Waker::noop()));
                drop(poll(pin!(server.next()), Waker::noop()));
                world.turn();
            }
            drop(sending);
            drop((client, server, region));
        }
    });
}

#[test]
fn a_sender_that_waits_for_no_credit_leaves_them_to_notifications() {
    without_deadlock(|| {
        let mut world = Driven::new(&notified(1));
        let (client, mut server) = world.pair();
        let (region, mut flood) = Flood::new(&world, &client);
        let notifications = server.notifications();
        // As many offers as may be open; the peer takes none.
        let mut sending: Vec<_> = (0..30).map(|_| Box::pin(client.send(bytes(5000)))).collect();
        for _ in 0..200 {
            sending.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
            world.turn();
        }
        assert!(!sending.is_empty() && sending.len() < 30, "{}", sending.len());
        for _ in 0..5 {
            let posting = flood.post();
            let posting = async { join(posting, notifications.next()).await };
            let mut posting = pin!(posting);
            let mut turns = 0;
            while poll(posting.as_mut(), Waker::noop()).is_pending() {
                sending.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
                world.turn();
                turns += 1;
                assert!(turns < TURNS, "a credit is kept for a message that waits for its peer");
            }
        }
        while !sending.is_empty() {
            sending.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
            if let Poll::Ready(message) = poll(pin!(server.next()), Waker::noop()) {
                assert!(message.unwrap().unwrap()[..] == bytes(5000));
            }
            world.turn();
        }
        drop(sending);
        drop((client, server, region));
    });
}

#[test]
fn a_sender_that_is_forgotten_leaves_its_credit_to_notifications() {
    without_deadlock(|| {
        let mut world = Driven::new(&notified(1));
        let (client, mut server) = world.pair();
        let (region, mut flood) = Flood::new(&world, &client);
        let notifications = server.notifications();
        world.run(client.send("first")).unwrap();
        let mut forgotten = Box::pin(client.send("forgotten"));
        assert!(poll(forgotten.as_mut(), Waker::noop()).is_pending());
        let mut postings = [flood.post(), flood.post(), flood.post()];
        for posting in &mut postings {
            assert!(poll(posting.as_mut(), Waker::noop()).is_pending());
        }
        assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"first"[..]));
        // Its turn comes after the first: it is woken, and not polled.
        for posting in postings {
            assert_eq!(world.run(join(posting, notifications.next())), (Ok(()), Ok(3)));
        }
        assert_eq!(world.run(forgotten), Ok(()));
        drop((client, server, region));
    });
}

#[test]
fn permits_hold_no_answer_to_a_long_message_up() {
    without_deadlock(|| {
        for shared in [None, Some(40)] {
            let limits = shared.map_or(ListenOptions::new(), |count| ListenOptions::new().shared_receives(count));
            let mut world = Driven::with(&notified(4), &limits);
            let (mut client, mut server) = world.pair();
            let (to, peer) = (client.clone_sender(), server.clone_sender());
            let memory = world.nodes[1].domain().allocate_exposed(5000, RemoteAccess::READ).unwrap();
            // All credits of the client. Those of a server with shared receives grow with use.
            let mut permits = Vec::new();
            for _ in 0..100 {
                if let Poll::Ready(permit) = poll(pin!(to.reserve()), Waker::noop()) {
                    permits.push(permit.unwrap());
                }
                world.turn();
            }
            assert!(poll(pin!(to.reserve()), Waker::noop()).is_pending() && permits.len() <= 4);
            for _ in 0..20 {
                // Done once the client has answered.
                let sending = peer.send_exposed(memory.slice(..).unwrap());
                let mut both = pin!(async { join(sending, client.next()).await });
                let mut turns = 0;
                let (sent, received) = loop {
                    if let Poll::Ready(both) = poll(both.as_mut(), Waker::noop()) {
                        break both;
                    }
                    world.turn();
                    turns += 1;
                    assert!(turns < TURNS, "the answer waits for the permits");
                };
                assert_eq!(sent, Ok(()));
                assert_eq!(received.unwrap().unwrap().len(), 5000);
            }
            let count = permits.len();
            for (number, permit) in (0_u8..).zip(permits) {
                permit.send(&[number]).unwrap();
            }
            for number in (0_u8..).take(count) {
                assert_eq!(world.run(server.next()).unwrap().unwrap()[..], [number]);
            }
            drop((to, peer, client, server, memory));
        }
    });
}
