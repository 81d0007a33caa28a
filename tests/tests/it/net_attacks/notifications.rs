//! Peers that flood their victim with notifications.

use std::sync::mpsc;

use super::*;

/// Notifications with different numbers that may wait at the victim.
const MOST: u16 = 20;

/// Memory of the victim, whose slice the peer gets.
fn tell(victim: &Connection) -> ExposedRegion {
    let region = victim.domain().allocate_exposed(64, RemoteAccess::WRITE).unwrap();
    block_on(victim.send(region.remote(..).unwrap().to_bytes())).unwrap();
    region
}

#[test]
fn notifications_that_break_the_rules_are_violations() {
    let Some(context) = device() else { return };
    // With different numbers beyond all credits, and where no notifications are taken.
    for (most, violation) in [(MOST, Violation::NoCredit), (0, Violation::UnexpectedNotification)] {
        with_each_listener(|limits| {
            let mut world = World::with(&context, limits, &options().notifications(most.into()));
            let attack = |attacker: &mut Attacker| {
                let to = attacker.expect_slice();
                let mut number = 0;
                while most > 0 && attacker.wait_for_credit(PATIENCE) {
                    attacker.notify(to, number);
                    number += 1;
                }
                // For which the victim has receives nevertheless: those of control messages.
                for number in number..number + 3 {
                    attacker.notify(to, number);
                }
                attacker.wait_for_end();
            };
            let ((), (failure, waiting)) = world.attack(ALL_MEANS, attack, |victim| {
                let victim = victim.unwrap();
                let (region, notifications) = (tell(&victim), victim.notifications());
                let failure = failure_of(Ok(victim));
                drop(region);
                (failure, notifications.waiting())
            });
            assert_eq!(failure.as_violation(), Some(violation), "{failure}");
            let bound = if most == 0 { 0 } else { u64::from(most) + u64::from(WINDOW) };
            assert!(waiting <= bound, "{waiting} notifications wait");
            world.end();
        });
    }
}

#[test]
fn notifications_that_nobody_takes_need_little_memory() {
    let Some(context) = device() else { return };
    // As many as the victim takes while its application takes none: few different ones, and any
    // number of equal ones, which are counted.
    for (is_equal, least, most) in [(false, MOST.into(), u32::from(MOST) + WINDOW), (true, 1000, 1000)] {
        with_each_listener(|limits| {
            let mut world = World::with(&context, limits, &options().notifications(MOST.into()));
            let (done, is_done) = mpsc::channel();
            let attack = |attacker: &mut Attacker| {
                let to = attacker.expect_slice();
                let mut count = 0;
                while count < 1000 && attacker.wait_for_credit(PATIENCE) {
                    // A flood keeps the rules, and no more in flight than its own send queue holds.
                    attacker.notify(to, if is_equal { 7 } else { count });
                    count += 1;
                    assert!(attacker.wait(LIMIT, |this| !this.spares.is_empty()), "{:?}", attacker.end);
                }
                assert!(attacker.end.is_none(), "{:?}", attacker.end);
                done.send(count).unwrap();
                attacker.wait_for_end();
            };
            let ((), ()) = world.attack(ALL_MEANS, attack, |victim| {
                let victim = victim.unwrap();
                let (region, notifications) = (tell(&victim), victim.notifications());
                let count: u32 = is_done.recv_timeout(LIMIT).unwrap();
                assert!((least..=most).contains(&count), "{count} notifications");
                // None is lost.
                let counting = async {
                    for number in 0..if is_equal { 0 } else { count } {
                        assert_eq!(notifications.next().await, Ok(number));
                    }
                    notifications.count(7, if is_equal { count.into() } else { 0 }).await
                };
                assert_eq!(block_on(counting), Ok(()));
                drop((victim, region));
            });
            world.end();
        });
    }
}
