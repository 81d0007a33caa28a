//! Senders and receivers that are polled: sinks and streams of messages.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use rdma_testkit::{Random, run_random};

use super::wakers::{Driven, poll, without_deadlock};
use super::*;

fn polled<R>(poll: impl FnOnce(&mut Context<'_>) -> Poll<R>) -> Poll<R> {
    poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends until the peer can take no message; returns the number of messages.
fn fill(to: &mut Sender) -> usize {
    let mut sent = 0;
    while polled(|cx| to.poll_ready(cx)).map(Result::unwrap).is_ready() {
        to.start_send("some").unwrap();
        sent += 1;
    }
    sent
}

fn receive(world: &mut Driven, from: &mut Receiver, expected: &[u8]) {
    assert_eq!(world.run(from.next()).unwrap().as_deref(), Some(expected));
}

#[test]
fn a_sink_that_is_ready_and_unused_holds_nobody_up() {
    without_deadlock(|| {
        // One message at a time.
        let mut world = Driven::new(&options().window(1));
        let (client, server) = world.pair();
        let ((to, _from), (_to, mut from)) = (client.split(), server.split());
        let mut ready: Vec<_> = (0..3).map(|_| to.clone()).collect();
        for sink in &mut ready {
            world.run(poll_fn(|cx| sink.poll_ready(cx))).unwrap();
        }
        world.run(to.send("other")).unwrap();
        receive(&mut world, &mut from, b"other");
        // All of them are ready still: the first message goes, and the others are kept.
        let [one, two, three] = &mut ready[..] else { panic!() };
        one.start_send("one").unwrap();
        two.start_send("two").unwrap();
        let kept = two.start_send("again").unwrap_err();
        assert_eq!(kept.as_error().map(|error| error.kind()), Some(rdma::ErrorKind::QueueFull));
        three.start_send("three").unwrap();
        assert_eq!(three.start_send(bytes(2 << 20)).unwrap_err().kind(), FailureKind::Local, "it keeps a message");
        assert!(polled(|cx| three.poll_flush(cx)).is_pending() && polled(|cx| two.poll_flush(cx)).is_pending());
        // In the order in which they began to wait.
        for (sink, text) in [(one, &b"one"[..]), (three, b"three"), (two, b"two")] {
            world.run(poll_fn(|cx| sink.poll_flush(cx))).unwrap();
            receive(&mut world, &mut from, text);
        }
    });
}

#[test]
fn a_sink_is_ready_when_the_peer_can_take_a_message() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, server) = world.pair();
        let ((mut to, _from), (_to, mut from)) = (client.split(), server.split());
        let sent = fill(&mut to);
        let (other, mut third) = (to.clone(), to.clone());
        let mut sending = pin!(other.send("other"));
        assert!(poll(sending.as_mut(), Waker::noop()).is_pending());
        // While others wait, a message may be started, and then has its turn.
        assert!(polled(|cx| third.poll_ready(cx)).is_ready());
        for _ in 0..sent {
            receive(&mut world, &mut from, b"some");
        }
        world.run(poll_fn(|cx| to.poll_ready(cx))).unwrap();
        // It has no claim on that: the other has its turn first.
        to.start_send(bytes(1000)).unwrap();
        assert!(polled(|cx| to.poll_flush(cx)).is_pending());
        world.run(sending).unwrap();
        world.run(poll_fn(|cx| to.poll_flush(cx))).unwrap();
        receive(&mut world, &mut from, b"other");
        receive(&mut world, &mut from, &bytes(1000));
        assert_eq!(to.start_send(bytes(2 << 20)).unwrap_err().kind(), FailureKind::TooLong);
    });
}

#[test]
fn a_sink_that_waits_and_is_forgotten_stops_no_other() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, server) = world.pair();
        let ((mut to, _from), (_to, mut from)) = (client.split(), server.split());
        // One waits to be ready, one is leaked with a message, one is dropped with one.
        let [other, mut leaked, mut dropped] = [(); 3].map(|()| to.clone());
        let sent = fill(&mut to);
        for sink in [&mut leaked, &mut dropped] {
            sink.start_send("kept").unwrap();
            assert!(polled(|cx| sink.poll_flush(cx)).is_pending());
        }
        Box::leak(Box::new(leaked));
        drop(dropped);
        let mut sending = pin!(other.send("last"));
        assert!(poll(sending.as_mut(), Waker::noop()).is_pending());
        for _ in 0..sent {
            receive(&mut world, &mut from, b"some");
        }
        world.run(sending).unwrap();
        receive(&mut world, &mut from, b"last");
    });
}

#[test]
fn a_sink_that_is_closed_ends_its_data_alone() {
    without_deadlock(|| {
        let mut world = Driven::new(&options().window(1));
        let (client, server) = world.pair();
        let ((mut to, _from), (_to, mut from)) = (client.split(), server.split());
        let mut other = to.clone();
        to.start_send("one").unwrap();
        to.start_send("two").unwrap();
        assert!(polled(|cx| to.poll_close(cx)).is_pending(), "a message is kept");
        receive(&mut world, &mut from, b"one");
        world.run(poll_fn(|cx| to.poll_close(cx))).unwrap();
        world.run(poll_fn(|cx| to.poll_close(cx))).unwrap();
        receive(&mut world, &mut from, b"two");
        // It is closed, and so is a clone of it. The other one is not.
        for mut closed in [to.clone(), to] {
            let is_closed = |result: Result<(), Failure>| result.unwrap_err().kind() == FailureKind::Closed;
            assert!(is_closed(closed.start_send("three")) && is_closed(world.run(closed.send("three"))));
            assert!(is_closed(world.run(poll_fn(|cx| closed.poll_ready(cx)))));
        }
        world.run(other.send("three")).unwrap();
        receive(&mut world, &mut from, b"three");
        world.run(poll_fn(|cx| other.poll_close(cx))).unwrap();
        assert!(world.run(from.next()).unwrap().is_none());
    });
}

#[test]
fn a_sink_of_a_connection_that_has_failed_says_why() {
    without_deadlock(|| {
        let mut world = Driven::new(&options().window(1));
        let (client, server) = world.pair();
        let (mut to, _from) = client.split();
        to.start_send("one").unwrap();
        to.start_send("kept").unwrap();
        let [client, driver] = world.drivers;
        drop((client, driver, server));
        let failed = |poll: Poll<Result<(), Failure>>| match poll {
            Poll::Ready(Err(failure)) => failure.kind(),
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(polled(|cx| to.poll_flush(cx))), FailureKind::DriverGone);
        // The message was given up.
        assert!(polled(|cx| to.poll_flush(cx)).is_ready());
        assert_eq!(failed(polled(|cx| to.poll_ready(cx))), FailureKind::DriverGone);
        assert_eq!(to.start_send("more").unwrap_err().kind(), FailureKind::DriverGone);
    });
}

/// Sinks and futures of one connection send; each is polled, dropped or left at random.
fn sink_at_random(random: &mut Random) {
    const SINKS: usize = 4;
    let mut world = Driven::new(&options().window(1 + u16::try_from(random.below(3)).unwrap()).max_message(5000));
    let (client, server) = world.pair();
    let ((to, _from), (_to, mut from)) = (client.split(), server.split());
    let mut sinks: Vec<_> = (0..SINKS).map(|_| to.clone()).collect();
    // The message that a sink keeps, perhaps.
    let mut kept = [None; SINKS];
    let (mut begun, mut sent, mut received) = (0_u32, BTreeSet::new(), BTreeSet::new());
    let mut receive = |received: &mut BTreeSet<u32>| {
        while let Poll::Ready(message) = poll(pin!(from.next()), Waker::noop()) {
            let message = message.unwrap().expect("no end");
            let number = u32::from_le_bytes(*message.first_chunk().unwrap());
            assert!(message[4..].iter().all(|byte| *byte == number.to_le_bytes()[0]), "a torn message");
            assert!(received.insert(number), "message {number} came twice");
        }
    };
    for _ in 0..400 {
        let at = random.below(SINKS);
        let sink = &mut sinks[at];
        match random.below(8) {
            0 | 1 => {
                if polled(|cx| sink.poll_ready(cx)).map(Result::unwrap).is_ready() {
                    sent.extend(kept[at].take());
                }
            }
            2 | 3 => {
                let message = [&begun.to_le_bytes()[..], &vec![begun.to_le_bytes()[0]; random.below(4000)]].concat();
                if sink.start_send(message).is_ok() {
                    // A poll that was not ready may have flushed the one before.
                    sent.extend(kept[at].replace(begun));
                    begun += 1;
                }
                if kept[at].is_some() && polled(|cx| sink.poll_flush(cx)).map(Result::unwrap).is_ready() {
                    sent.extend(kept[at].take());
                }
            }
            4 => {
                if polled(|cx| sink.poll_flush(cx)).map(Result::unwrap).is_ready() {
                    sent.extend(kept[at].take());
                }
            }
            5 if random.below(4) == 0 => {
                *sink = to.clone();
                kept[at] = None;
            }
            6 => receive(&mut received),
            _ => world.turn(),
        }
    }
    // Those that are polled have their turns, whatever the others wait for.
    for (at, sink) in sinks.iter_mut().enumerate().skip(1) {
        let mut flushing = pin!(poll_fn(|cx| sink.poll_flush(cx)));
        while poll(flushing.as_mut(), Waker::noop()).map(Result::unwrap).is_pending() {
            world.turn();
            receive(&mut received);
        }
        sent.extend(kept[at].take());
    }
    while !sent.is_subset(&received) {
        world.turn();
        receive(&mut received);
    }
    assert!(received.iter().all(|number| *number < begun));
}

#[test]
fn random_sinks_lose_no_message_that_was_flushed() {
    without_deadlock(|| run_random(20, sink_at_random));
}

#[cfg(feature = "futures")]
mod with_futures {
    use futures_util::stream::FusedStream;
    use futures_util::{SinkExt, StreamExt, TryStreamExt, stream};

    use super::*;

    #[test]
    fn messages_are_a_stream_and_a_sink() {
        let mut world = World::new(&options());
        let (client, server) = world.pair();
        // An echo by combinators alone.
        let echo = thread::spawn(move || {
            let (to, from) = server.split();
            block_on(from.forward(to))
        });
        let (mut to, from) = client.split();
        let lens = || (0..200).map(|number| number * 37 % 700);
        let sending = thread::spawn(move || {
            block_on(async {
                to.send_all(&mut stream::iter(lens().map(|len| Ok(bytes(len))))).await?;
                SinkExt::<&[u8]>::close(&mut to).await
            })
        });
        let answers: Vec<_> = block_on(from.map_ok(|message| message.to_vec()).try_collect()).unwrap();
        assert!(answers.into_iter().eq(lens().map(bytes)));
        sending.join().unwrap().unwrap();
        echo.join().unwrap().unwrap();
        world.end();
    }

    #[test]
    fn a_connection_is_a_stream_and_a_sink() {
        let mut world = World::new(&options());
        let (mut client, server) = world.pair();
        let echoing = thread::spawn(move || echo(server));
        block_on(async {
            SinkExt::send(&mut client, "hello").await.unwrap();
            assert_eq!(StreamExt::next(&mut client).await.unwrap().unwrap()[..], *b"hello");
            SinkExt::<&[u8]>::close(&mut client).await.unwrap();
            assert!(StreamExt::next(&mut client).await.is_none() && client.is_terminated());
        });
        echoing.join().unwrap().unwrap();
        drop(client);
        world.end();
    }

    #[test]
    fn a_stream_ends_after_a_failure() {
        let mut world = Driven::new(&options());
        let (client, _server) = world.pair();
        let (_to, mut from) = client.split();
        drop(world.drivers);
        block_on(async {
            let failure = StreamExt::next(&mut from).await.unwrap().unwrap_err();
            assert_eq!(failure.kind(), FailureKind::DriverGone);
            assert!(StreamExt::next(&mut from).await.is_none() && from.is_terminated());
            assert_eq!(from.next().await.unwrap_err(), failure, "the receiver says it again");
        });
    }
}
