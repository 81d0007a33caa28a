//! Closing by any handle, waiting for the end, and halves that are joined again.

use std::pin::{Pin, pin};
use std::task::{Poll, Waker};
use std::time::Instant;

use rdma_testkit::{Random, run_random};

use super::wakers::{Driven, poll, without_deadlock};
use super::*;

#[test]
fn a_sender_or_a_receiver_closes_with_a_code() {
    for by_receiver in [false, true] {
        let mut world = World::new(&options());
        let (client, mut server) = world.pair();
        let (to, from) = client.split();
        let closing = thread::spawn(move || {
            block_on(async {
                to.send("last").await.unwrap();
                let (closed, _other) = if by_receiver {
                    let closed = from.close_with(3).await;
                    // The other half fails, and says so.
                    assert_eq!(to.send("late").await.unwrap_err().kind(), FailureKind::Closed);
                    (closed, None)
                } else {
                    (to.close_with(3).await, Some(from))
                };
                closed
            })
        });
        block_on(async {
            assert_eq!(server.next().await.unwrap().as_deref(), Some(&b"last"[..]));
            assert!(server.next().await.unwrap().is_none());
            assert_eq!(server.close_with(4).await, Ok(3));
        });
        assert_eq!(closing.join().unwrap(), Ok(4));
        world.end();
    }
}

#[test]
fn all_handles_learn_of_a_close() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, server) = world.pair();
        let (to, mut from) = client.split();
        let clone = to.clone();
        // No driver runs, so the peer grants no credit.
        while poll(pin!(clone.send("some")), Waker::noop()).is_ready() {}
        let mut waiting = [clone.send("none"), clone.send("none")].map(Box::pin);
        let mut closed = [clone.closed(), clone.closed()].map(Box::pin);
        for waits in &mut closed {
            assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
        }
        for waits in &mut waiting {
            assert!(poll(waits.as_mut(), Waker::noop()).is_pending());
        }
        let mut next = Box::pin(from.next());
        assert!(poll(next.as_mut(), Waker::noop()).is_pending());
        let mut closing = pin!(to.close_with(5));
        assert!(poll(closing.as_mut(), Waker::noop()).is_pending());
        // Before the peer has answered.
        for waits in &mut waiting {
            let Poll::Ready(sent) = poll(waits.as_mut(), Waker::noop()) else { panic!("a sender waits") };
            assert_eq!(sent.unwrap_err().kind(), FailureKind::Closed);
        }
        let Poll::Ready(received) = poll(next.as_mut(), Waker::noop()) else { panic!("the receiver waits") };
        assert!(received.unwrap().is_none());
        let server = world.run(join(closing, server.close_with(6)));
        assert_eq!(server, (Ok(6), Ok(5)));
        for waits in closed {
            assert_eq!(world.run(waits), Ok(6));
        }
    });
}

#[test]
fn tasks_that_wait_for_the_end_are_all_woken() {
    without_deadlock(|| {
        let mut world = World::new(&options());
        let (client, server) = world.pair();
        let (to, from) = client.split();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let to = to.clone();
                thread::spawn(move || block_on(to.closed()))
            })
            .collect();
        // One of them gives up.
        drop(poll(pin!(from.closed()), Waker::noop()));
        drop((to, from));
        // The data of this side has not ended: its clones wait. A shutdown cuts them off.
        let cut_off = block_on(world.client.shutdown(Duration::from_millis(10))).unwrap();
        assert_eq!(cut_off.len(), 1);
        for waits in waiting {
            assert_eq!(waits.join().unwrap().map_err(|failure| failure.kind()), Ok(0));
        }
        drop(server);
        world.end();
    });
}

#[test]
fn halves_are_joined_if_they_are_of_one_connection() {
    let mut world = World::new(&options());
    let (one, other) = world.pair();
    let (two, another) = world.pair();
    let ((to, from), (to_other, from_other)) = (one.split(), two.split());
    let error = to.reunite(from_other).unwrap_err();
    assert_eq!(error.to_string(), "the halves are those of different connections");
    let clone = error.sender.clone();
    let one = error.sender.reunite(from).unwrap();
    let two = to_other.reunite(error.receiver).unwrap();
    block_on(async {
        let mut peers = [other, another];
        for (to, from) in [&one, &two].into_iter().zip(&mut peers) {
            to.send("joined").await.unwrap();
            assert_eq!(from.next().await.unwrap().as_deref(), Some(&b"joined"[..]));
        }
        // The data of this side ends with the last clone.
        drop(one);
        clone.send("clone").await.unwrap();
        assert_eq!(peers[0].next().await.unwrap().as_deref(), Some(&b"clone"[..]));
        drop(clone);
        assert!(peers[0].next().await.unwrap().is_none());
    });
    drop(two);
    world.end();
}

#[test]
fn a_close_after_the_end_of_the_data_keeps_its_code() {
    for by_receiver in [false, true] {
        // The time of handles that were dropped would be over at once.
        let mut world = Driven::new(&options().linger(Duration::from_millis(1)).keep_alive(Duration::ZERO));
        let (client, mut server) = world.pair();
        let mut closing: Closing = if by_receiver {
            let (to, from) = client.split();
            drop(to);
            Box::pin(from.close_with(7))
        } else {
            client.clone_sender().finish();
            Box::pin(client.close_with(7))
        };
        assert!(poll(closing.as_mut(), Waker::noop()).is_pending());
        assert!(world.run(server.next()).unwrap().is_none());
        thread::sleep(Duration::from_millis(5));
        assert_eq!(world.run(join(closing, server.close_with(8))), (Ok(8), Ok(7)));
    }
}

#[test]
fn a_close_that_nobody_waits_for_keeps_its_code_and_its_time() {
    let mut world = Driven::new(&options().linger(Duration::from_millis(1)).keep_alive(Duration::ZERO));
    let (client, mut server) = world.pair();
    let (to, from) = client.split();
    {
        let mut closing = pin!(to.close_with(7));
        assert!(poll(closing.as_mut(), Waker::noop()).is_pending());
    }
    drop(from);
    // Longer than the linger: the peer may still send, and learns the code.
    thread::sleep(Duration::from_millis(5));
    assert!(world.run(server.next()).unwrap().is_none());
    world.run(server.send("still open")).unwrap();
    assert_eq!(world.run(server.close_with(8)), Ok(7));
}

type Closing = Pin<Box<dyn Future<Output = Result<u32, Failure>>>>;

/// Handles of both sides are dropped, or close and wait, in any order; each future is dropped after
/// any number of polls.
fn close_at_random(random: &mut Random) {
    let mut world = Driven::new(&options().linger(Duration::from_millis(20)).keep_alive(Duration::ZERO));
    let (client, server) = world.pair();
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for side in [client, server] {
        let (to, from) = side.split();
        senders.extend((0..random.below(3)).map(|_| to.clone()));
        senders.push(to);
        receivers.push(from);
    }
    let mut waiting: Vec<Closing> = Vec::new();
    let mut shutdowns: Vec<Pin<Box<dyn Future<Output = Vec<CutOff>>>>> = Vec::new();
    let mut ended = Vec::new();
    while !senders.is_empty() || !receivers.is_empty() || !waiting.is_empty() {
        match random.below(10) {
            // All programs of a node may end it, and give the wait up.
            8 if shutdowns.len() < 4 && random.below(8) == 0 => {
                let node = world.nodes[random.below(2)].clone();
                shutdowns.push(Box::pin(async move { node.shutdown(LONG).await.unwrap() }));
            }
            9 if !shutdowns.is_empty() => {
                let at = random.below(shutdowns.len());
                match poll(shutdowns[at].as_mut(), Waker::noop()) {
                    Poll::Ready(cut_off) => {
                        // Handles that were dropped give a slow peer only the linger.
                        assert!(cut_off.len() <= 1, "{cut_off:?}");
                        drop(shutdowns.swap_remove(at));
                    }
                    Poll::Pending if random.below(3) == 0 => drop(shutdowns.swap_remove(at)),
                    Poll::Pending => {}
                }
            }
            0 if !senders.is_empty() => {
                let to = senders.swap_remove(random.below(senders.len()));
                match random.below(4) {
                    0 => drop(to),
                    1 => waiting.push(Box::pin(to.close_with(7))),
                    2 => waiting.push(Box::pin(async move { to.closed().await })),
                    _ => {
                        drop(poll(pin!(to.send("some")), Waker::noop()));
                        senders.push(to);
                    }
                }
            }
            1 if !receivers.is_empty() => {
                let mut from = receivers.swap_remove(random.below(receivers.len()));
                match random.below(4) {
                    0 => drop(from),
                    1 => waiting.push(Box::pin(from.close_with(7))),
                    2 => waiting.push(Box::pin(async move { from.closed().await })),
                    _ => {
                        drop(poll(pin!(from.next()), Waker::noop()));
                        receivers.push(from);
                    }
                }
            }
            2 if !waiting.is_empty() => drop(waiting.swap_remove(random.below(waiting.len()))),
            3 | 4 => _ = world.drivers[random.below(2)].turn(1 + random.below(4)).unwrap(),
            _ if !waiting.is_empty() => {
                let at = random.below(waiting.len());
                if let Poll::Ready(done) = poll(waiting[at].as_mut(), Waker::noop()) {
                    ended.push(done);
                    drop(waiting.swap_remove(at));
                }
            }
            _ => {}
        }
    }
    for done in ended {
        // Handles that were dropped give the peer only the linger, which a busy machine may exceed.
        let is_late = done.as_ref().is_err_and(|failure| failure.kind() == FailureKind::Timeout);
        assert!(is_late || done.as_ref().is_ok_and(|code| [0, 7].contains(code)), "{done:?}");
    }
    let start = Instant::now();
    while world.nodes.iter().any(|node| node.connections() > 0) {
        assert!(start.elapsed() < LONG, "a connection stays");
        world.turn();
    }
}

#[test]
fn random_closers_end_the_connection() {
    without_deadlock(|| run_random(200, close_at_random));
}
