//! Peers of `rdma_net` that speak its protocol over verbs and break it, or exhaust it by its own
//! rules. Their connection fails with one clear reason, and no other connection notices.

mod notifications;
mod peer;

use std::thread;
use std::time::{Duration, Instant};

use rdma::aio::block_on;
use rdma::op;
use rdma::{Context, ExposedRegion, RemoteAccess, RemoteSlice};
use rdma_net::{Connection, Failure, FailureKind, ListenOptions, Violation};
use rdma_tests::cm::available;
use rdma_tests::{LIMIT, open, skip};

use self::peer::*;

/// Receives until the connection fails.
fn failure_of(accepted: Result<Connection, Failure>) -> Failure {
    let mut connection = match accepted {
        Ok(connection) => connection,
        Err(failure) => return failure,
    };
    loop {
        match block_on(connection.next()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no attack ends in good order"),
            Err(failure) => return failure,
        }
    }
}

/// The device under test, if attackers can connect to it and their device serves reads as RoCE
/// does: on iWARP long messages go in fragments, and a peer must not send early.
fn device() -> Option<Context> {
    let context = open().context;
    if !available(&context) {
        return None;
    }
    let capabilities = context.capabilities();
    if !capabilities.waits_for_receives || capabilities.read_needs_exposed_sink {
        skip("the attackers know no iWARP");
        return None;
    }
    Some(context)
}

/// Checks that a connection has failed because an offer could not be read. Another device may
/// report the refused read differently, or after the end of the connection.
fn assert_unreadable(context: &Context, failure: &Failure) {
    let is_violation = failure.as_violation() == Some(Violation::UnreadableOffer);
    assert!(is_violation || (!context.is_software() && failure.kind() == FailureKind::PeerGone), "{failure}");
}

/// Revokes a region as soon as no connection holds a part of it.
fn revoke(mut region: ExposedRegion) {
    let start = Instant::now();
    while let Err(error) = region.revoke() {
        assert!(start.elapsed() < LIMIT, "{error}");
        region = error.region.unwrap();
        thread::yield_now();
    }
}

/// Calls `test` for a listener of each kind, at the same time: these tests wait for timeouts.
fn with_each_listener(test: impl Fn(&ListenOptions) + Sync) {
    thread::scope(|scope| {
        for limits in listeners() {
            let test = &test;
            scope.spawn(move || test(&limits));
        }
    });
}

/// A listener of each kind.
fn listeners() -> [ListenOptions; 2] {
    [ListenOptions::new(), ListenOptions::new().shared_receives(24)]
}

#[test]
fn offers_that_lie_are_unreadable() {
    let Some(context) = device() else { return };
    let lies: [fn(&mut Attacker) -> Option<ExposedRegion>; 4] = [
        |attacker| {
            // Longer than the memory.
            let region = attacker.expose(4096, RemoteAccess::READ);
            let slice = region.remote(..).unwrap();
            attacker.offer(0, RemoteSlice::new(slice.address(), 8192, slice.rkey()));
            Some(region)
        },
        |attacker| {
            // Without the right.
            let region = attacker.expose(4096, RemoteAccess::WRITE);
            attacker.offer(0, region.remote(..).unwrap());
            Some(region)
        },
        |attacker| {
            // Of another domain of the attacker.
            let other = attacker.pd.context().alloc_pd().unwrap();
            let region = other.allocate_exposed(4096, RemoteAccess::READ).unwrap();
            attacker.offer(0, region.remote(..).unwrap());
            Some(region)
        },
        |attacker| {
            // The victim's own memory.
            let slice = attacker.expect_offer();
            attacker.offer(0, slice);
            None
        },
    ];
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for lie in lies {
            let attack = |attacker: &mut Attacker| {
                let region = lie(attacker);
                attacker.wait_for_end();
                drop(region);
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, |victim| {
                // It may have failed before.
                let _sent = victim.as_ref().map(|victim| block_on(victim.send(vec![1; 100_000])));
                failure_of(victim)
            });
            assert_unreadable(&context, &failure);
        }
        world.end();
    }
}

#[test]
fn an_offer_withdrawn_while_it_is_read_fails_its_connection_alone() {
    let Some(context) = device() else { return };
    with_each_listener(|limits| {
        let mut world = World::new(&context, limits);
        // A kernel's device may answer nothing, which takes seconds to notice.
        let rounds = if context.is_software() { 20 } else { 3 };
        for round in 0..rounds {
            let attack = |attacker: &mut Attacker| {
                for id in 0..4 {
                    let region = attacker.expose(200_000, RemoteAccess::READ);
                    attacker.wait_for_credit(LIMIT);
                    attacker.offer(id, region.remote(..).unwrap());
                    // No DONE has come: the device of the victim may read at this moment.
                    thread::sleep(Duration::from_micros(round * 20));
                    drop(region);
                }
                // Fails at the latest.
                attacker.offer(4, RemoteSlice::new(4096, 8, 1));
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
            assert_unreadable(&context, &failure);
        }
        world.end();
    });
}

#[test]
fn answers_to_offers_that_were_answered_or_never_made_are_violations() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for ids in [[0, 0], [1, 0]] {
            let attack = |attacker: &mut Attacker| {
                attacker.expect_offer();
                for id in ids {
                    attacker.send(DONE, 0, id, &[0; 4]);
                }
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, |victim| {
                let victim = victim.unwrap();
                let region = victim.domain().allocate_exposed(100_000, RemoteAccess::READ).unwrap();
                let (to, mut from) = victim.split();
                let sent = block_on(to.send_exposed(region.slice(..).unwrap()));
                // The first of two answers was one.
                assert_eq!(sent.is_ok(), ids == [0, 0], "{sent:?}");
                let failure = block_on(from.next()).map(drop).unwrap_err();
                drop((to, from));
                revoke(region);
                failure
            });
            assert_eq!(failure.as_violation(), Some(Violation::UnexpectedDone), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_key_to_read_opens_nothing_else() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let attack = |attacker: &mut Attacker| {
            let slice = attacker.expect_offer();
            let (write, read) = (attacker.pd.allocate(64).unwrap(), attacker.pd.allocate(64).unwrap());
            attacker.qp.post_send(op::read(read, slice.slice(..64).unwrap())).unwrap();
            attacker.qp.post_send(op::write(write, slice.slice(..64).unwrap())).unwrap();
            attacker.wait_for_end();
        };
        let (_, failure) = world.attack(ALL_MEANS, attack, |victim| {
            block_on(victim.as_ref().unwrap().send(vec![1; 100_000])).unwrap();
            failure_of(victim)
        });
        assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
        world.end();
    }
}

#[test]
fn a_message_longer_than_a_receive_is_too_long() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let attack = |attacker: &mut Attacker| {
            attacker.send(DATA, FIRST | LAST, 0, &[1; 8000]);
            attacker.wait_for_end();
        };
        let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
        // Devices differ in the status of such a receive.
        if context.is_software() {
            assert_eq!(failure.as_violation(), Some(Violation::TooLong), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_flood_of_control_messages_is_a_violation() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        for (kind, violation) in [(PING, Violation::PingUnanswered), (UPDATE, Violation::UpdateUnanswered)] {
            let attack = |attacker: &mut Attacker| {
                for _ in 0..40 {
                    attacker.send(kind, 0, 0, &[]);
                }
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(ALL_MEANS, attack, failure_of);
            assert_eq!(failure.as_violation(), Some(violation), "{failure}");
        }
        world.end();
    }
}

#[test]
fn a_peer_that_reads_nothing_is_gone() {
    let Some(context) = device() else { return };
    with_each_listener(|limits| {
        let mut world = World::new(&context, limits);
        // It has no receive, or has receives but grants nothing for those that are used.
        for receives in [0, WINDOW + 4] {
            let attack = |attacker: &mut Attacker| {
                assert!(attacker.connection.wait_disconnected(Some(LIMIT)).unwrap(), "the victim gives up");
            };
            let ((), failure) = world.attack(Means { receives, ..ALL_MEANS }, attack, |victim| {
                let victim = victim.unwrap();
                let sending = async {
                    loop {
                        if let Err(failure) = victim.send([1; 100]).await {
                            return failure;
                        }
                    }
                };
                block_on(sending)
            });
            assert_eq!(failure.kind(), FailureKind::PeerGone, "{failure}");
        }
        // It closes, and has no receive for the answer.
        let attack = |attacker: &mut Attacker| {
            attacker.send(CLOSE, 0, 9, &[]);
            attacker.wait_for_end();
        };
        let ((), failure) = world.attack(Means { receives: 0, ..ALL_MEANS }, attack, failure_of);
        assert_eq!(failure.code(), Some(9), "{failure}");
        world.end();
    });
}

#[test]
fn reads_that_the_peer_does_not_serve_fail_its_connection() {
    let Some(context) = device() else { return };
    for limits in listeners() {
        let mut world = World::new(&context, &limits);
        let no_right = Means { access: Some(RemoteAccess::WRITE), ..ALL_MEANS };
        for means in [no_right, Means { served_reads: 0, ..ALL_MEANS }] {
            let attack = |attacker: &mut Attacker| {
                let region = attacker.expose(4096, RemoteAccess::READ);
                attacker.offer(0, region.remote(..).unwrap());
                attacker.wait_for_end();
            };
            let ((), failure) = world.attack(means, attack, failure_of);
            assert_unreadable(&context, &failure);
        }
        world.end();
    }
}

/// The number of messages that a victim takes although its application reads none. The peer keeps
/// all rules.
fn taken(context: &Context, limits: &ListenOptions, flood: impl Fn(&mut Attacker) -> u32 + Sync) -> u32 {
    let mut world = World::new(context, limits);
    let (done, is_done) = std::sync::mpsc::channel();
    let attack = |attacker: &mut Attacker| {
        let count = flood(attacker);
        // Nothing was refused.
        assert!(attacker.end.is_none(), "{:?}", attacker.end);
        done.send(()).unwrap();
        attacker.wait_for_end();
        count
    };
    let (count, ()) = world.attack(ALL_MEANS, attack, |victim| {
        let victim = victim.unwrap();
        is_done.recv_timeout(LIMIT).unwrap();
        drop(victim);
    });
    world.end();
    count
}

#[test]
fn short_messages_in_fragments_that_nobody_reads_are_few() {
    let Some(context) = device() else { return };
    with_each_listener(|limits| {
        let count = taken(&context, limits, |attacker| {
            let mut count = 0;
            while attacker.wait_for_credit(PATIENCE) {
                attacker.send(DATA, FIRST, 1, b"a");
                if !attacker.wait_for_credit(PATIENCE) {
                    break;
                }
                attacker.send(DATA, LAST, 0, b"b");
                count += 1;
            }
            count
        });
        println!("{count} messages of 2 bytes");
        // At 100 bytes of memory each, 256 KiB have space for so many.
        assert!((100..2700).contains(&count), "{count} messages");
    });
}

#[test]
fn short_offers_that_nobody_takes_are_few() {
    let Some(context) = device() else { return };
    with_each_listener(|limits| {
        let count = taken(&context, limits, |attacker| {
            let region = attacker.expose(4096, RemoteAccess::READ);
            let slice = region.remote(..1).unwrap();
            let mut done = 0;
            for id in 0..200 {
                while id >= done + 16 {
                    if !attacker.wait(PATIENCE, |this| this.received.iter().any(|one| one.0 == DONE)) {
                        return done;
                    }
                    attacker.expect(DONE);
                    done += 1;
                }
                if !attacker.wait_for_credit(PATIENCE) {
                    return done;
                }
                attacker.offer(id, slice);
            }
            done
        });
        println!("{count} offers of 1 byte");
        // Each has a buffer of 4 KiB.
        assert_eq!(count, 16);
    });
}
