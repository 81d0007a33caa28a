//! Futures that wait and are forgotten, and drivers in event loops of a program's own.

use std::pin::{Pin, pin};
use std::task::{Poll, Waker};

use rdma::RemoteAccess;
use rdma_testkit::{Random, run_random};

use super::wakers::{Driven, poll, without_deadlock};
use super::*;

/// Sends until the peer can take no message; returns the number of messages.
fn fill(to: &Sender) -> usize {
    let mut sent = 0;
    while poll(pin!(to.send("some")), Waker::noop()).is_ready() {
        sent += 1;
    }
    sent
}

#[test]
fn a_send_that_is_forgotten_stops_no_other() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, mut server) = world.pair();
        let (to, _from) = client.split();
        let sent = fill(&to);
        // One is kept and not polled, as by `select!`, and one is leaked.
        let mut forgotten = Box::pin(to.send("forgotten"));
        let owned = to.clone();
        let leaked = Box::leak(Box::new(Box::pin(async move { owned.send("leaked").await })));
        assert!(poll(forgotten.as_mut(), Waker::noop()).is_pending());
        assert!(poll(leaked.as_mut(), Waker::noop()).is_pending());
        let mut waiting = pin!(to.send("last"));
        assert!(poll(waiting.as_mut(), Waker::noop()).is_pending());
        for _ in 0..sent {
            assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"some"[..]));
        }
        world.run(waiting).unwrap();
        assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"last"[..]));
        // It is as good as new.
        world.run(forgotten).unwrap();
        assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"forgotten"[..]));
    });
}

#[test]
fn an_echo_of_long_messages_stops_no_client_that_receives() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, server) = world.pair();
        let ((to_server, mut from_server), (to_client, mut from_client)) = (client.split(), server.split());
        // The client uses all credits, so it can confirm no long message.
        for _ in 0..8 {
            world.run(to_server.send("request")).unwrap();
        }
        assert!(poll(pin!(to_server.send("request")), Waker::noop()).is_pending());
        // The server takes the next request only once its answers are sent; the first ones occupy
        // all memory for long ones.
        let long = bytes(1000);
        for _ in 0..6 {
            let receive = async {
                assert!(from_server.next().await.unwrap().unwrap()[..] == long);
            };
            let (sent, ()) = world.run(join(to_client.send(&long), receive));
            sent.unwrap();
        }
        for _ in 0..8 {
            assert_eq!(world.run(from_client.next()).unwrap().as_deref(), Some(&b"request"[..]));
        }
    });
}

#[test]
fn results_that_nobody_takes_occupy_no_slot() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (client, _server) = world.pair();
        let region = world.nodes[1].domain().allocate_exposed(8, RemoteAccess::ATOMIC).unwrap();
        let (slice, remote) = (region.remote(..).unwrap(), client.remote());
        let mut others: Vec<_> = (0..16).map(|_| Box::pin(remote.fetch_add(slice, 1))).collect();
        assert!(others.iter_mut().all(|other| poll(other.as_mut(), Waker::noop()).is_pending()));
        assert_eq!(world.run(remote.fetch_add(slice, 0)).unwrap(), 16);
        for other in others {
            assert!(world.run(other).unwrap() < 16);
        }
    });
}

/// Most futures of one kind.
const TASKS: usize = 6;

type Sending<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;

/// Sends by futures that are polled, dropped or forgotten.
fn forget_at_random(random: &mut Random) {
    let mut world = Driven::new(&options());
    let (client, mut server) = world.pair();
    let (to, _from) = client.split();
    let (mut waiting, mut forgotten): (Vec<Sending<'_>>, Vec<Sending<'_>>) = (Vec::new(), Vec::new());
    let mut unread = fill(&to);
    for _ in 0..60 {
        match random.below(5) {
            0 | 1 if waiting.len() < TASKS => {
                let mut sending: Sending<'_> = Box::pin(to.send("some"));
                match poll(sending.as_mut(), Waker::noop()).is_ready() {
                    true => unread += 1,
                    false => waiting.push(sending),
                }
            }
            2 if forgotten.len() < TASKS && !waiting.is_empty() => {
                forgotten.push(waiting.remove(random.below(waiting.len())));
            }
            3 if !waiting.is_empty() => drop(waiting.remove(random.below(waiting.len()))),
            _ if unread > 0 => {
                assert!(world.run(server.next()).unwrap().is_some());
                unread -= 1;
            }
            _ => {}
        }
        world.turn();
    }
    // The peer reads all, and each future that is polled has its turn.
    unread += waiting.len();
    while !waiting.is_empty() || unread > 0 {
        world.turn();
        waiting.retain_mut(|sending| poll(sending.as_mut(), Waker::noop()).is_pending());
        while let Poll::Ready(message) = poll(pin!(server.next()), Waker::noop()) {
            assert!(message.unwrap().is_some());
            unread -= 1;
        }
    }
}

#[test]
fn random_droppers_and_forgetters_stop_no_other() {
    without_deadlock(|| run_random(4, forget_at_random));
}

/// Whether the descriptor of a driver becomes readable in a time.
fn is_readable(driver: &Driver, time: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut polled = [PollFd::new(driver.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::try_from(time).unwrap()).unwrap() > 0
}

/// Arms a driver until it may sleep and nothing wakes it; returns how often it was woken.
fn settle(driver: &mut Driver) -> u32 {
    for wakes in 0..1000 {
        if driver.arm().unwrap() && !is_readable(driver, Duration::ZERO) {
            return wakes;
        }
    }
    panic!("the descriptor stays readable");
}

#[test]
fn a_driver_that_is_armed_sleeps_beside_an_idle_client() {
    const ROUNDS: u8 = 20;
    for options in by_each_exchange() {
        let mut world = Driven::new(&options.keep_alive(Duration::ZERO));
        let (client, mut server) = world.pair();
        let mut wakes = settle(&mut world.drivers[1]);
        for round in 0..ROUNDS {
            let mut sending = pin!(client.send([round]));
            while poll(sending.as_mut(), Waker::noop()).is_pending() {
                world.drivers[0].turn(64).unwrap();
            }
            let mut next = pin!(server.next());
            let message = loop {
                let may_sleep = world.drivers[1].arm().unwrap();
                if let Poll::Ready(message) = poll(next.as_mut(), Waker::noop()) {
                    break message.unwrap().unwrap();
                }
                if may_sleep {
                    assert!(is_readable(&world.drivers[1], LONG), "the message wakes the driver");
                    wakes += 1;
                }
            };
            assert_eq!(message[..], [round]);
            drop(message);
            wakes += settle(&mut world.drivers[1]);
        }
        assert!(wakes < 10 * u32::from(ROUNDS), "{wakes} wake-ups");
        assert!(world.drivers[1].is_used());
        let closed = world.run(join(client.close_with(1), async {
            assert!(server.next().await?.is_none());
            server.close_with(2).await
        }));
        assert_eq!(closed, (Ok(2), Ok(1)));
        let Driven { nodes, drivers, listener } = world;
        drop((nodes, listener));
        assert!(is_readable(&drivers[0], LONG) && !drivers[0].is_used(), "the end of the last handle");
    }
}
