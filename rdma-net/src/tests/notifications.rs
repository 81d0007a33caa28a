//! Writes that notify the peer.

use std::task::{Poll, Waker};

use rdma::{ErrorKind, ExposedRegion, RemoteAccess, RemoteSlice};

use super::wakers::{Driven, poll};
use super::*;

/// Notifications that may wait.
const LIMIT: u32 = 6;

fn notified() -> NodeOptions {
    options().notifications(LIMIT).keep_alive(Duration::ZERO)
}

/// Memory of the second node of a world.
fn exposed(node: &Node) -> (ExposedRegion, RemoteSlice) {
    let region = node.domain().allocate_exposed(4096, RemoteAccess::WRITE | RemoteAccess::ATOMIC).unwrap();
    let slice = region.remote(..).unwrap();
    (region, slice)
}

/// Posts a notification.
fn notify(from: &Connection, to: RemoteSlice, number: u32) -> impl Future<Output = Result<(), Failure>> + use<> {
    let (remote, buffer) = (from.remote(), from.domain().allocate(8).unwrap());
    async move { remote.write_imm(to, buffer, 8, number).await.map(drop) }
}

#[test]
fn a_notification_comes_once_its_bytes_are_there() {
    for options in by_each_exchange() {
        for shared in [None, Some(40)] {
            let limits = shared.map_or(ListenOptions::new(), |count| ListenOptions::new().shared_receives(count));
            let options = options.clone().notifications(LIMIT);
            let mut world = World::with(&options, &options, &limits);
            let (client, mut server) = world.pair();
            let (region, at) = exposed(&world.server);
            let (remote, notifications) = (client.remote(), server.notifications());
            assert!(remote.can_notify());
            block_on(async {
                let mut buffer = client.domain().allocate(1000).unwrap();
                for round in 0..50_u32 {
                    buffer[..1000].fill(round.to_le_bytes()[0]);
                    let writing = remote.write_imm(at, buffer, 1000, round);
                    let (written, number) = join(writing, notifications.next()).await;
                    buffer = written.unwrap();
                    assert_eq!(number, Ok(round));
                    let mut seen = [0; 1000];
                    region.copy_out(0, &mut seen).unwrap();
                    assert_eq!(seen, [round.to_le_bytes()[0]; 1000]);
                    // Messages go beside them, also of several fragments.
                    client.send(bytes(700)).await.unwrap();
                    assert!(server.next().await.unwrap().unwrap()[..] == bytes(700));
                }
            });
            assert_eq!(notifications.waiting(), 0);
            drop((client, server, region, notifications));
            world.end();
        }
    }
}

#[test]
fn notifications_of_a_number_are_counted_whatever_comes_between() {
    let mut world = World::new(&notified());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server);
    let notifications = server.notifications();
    let counting = {
        let notifications = notifications.clone();
        thread::spawn(move || block_on(join(notifications.count(7, 500), notifications.count(8, 1))))
    };
    block_on(async {
        for round in 0..500 {
            notify(&client, at, 7).await.unwrap();
            if round % 100 == 50 {
                notify(&client, at, 9).await.unwrap();
            }
        }
        notify(&client, at, 8).await.unwrap();
    });
    assert_eq!(counting.join().unwrap(), (Ok(()), Ok(())));
    block_on(notifications.count(9, 5)).unwrap();
    block_on(notifications.count(9, 0)).unwrap();
    assert_eq!(notifications.waiting(), 0);
    drop((client, server, region, notifications));
    world.end();
}

#[test]
fn notifications_that_nobody_takes_hold_the_peer_up_and_none_is_lost() {
    let mut world = Driven::new(&notified());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.nodes[1]);
    let notifications = server.notifications();
    // Different numbers, so that no two count as one.
    let mut posting: Vec<_> = (0..30).map(|number| Box::pin(notify(&client, at, number))).collect();
    for _ in 0..200 {
        posting.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
        world.turn();
    }
    // The limit, and the window that was granted before.
    let waiting = notifications.waiting();
    assert!((u64::from(LIMIT)..=u64::from(LIMIT) + 4).contains(&waiting), "{waiting}");
    assert_eq!(posting.len() as u64, 30 - waiting);
    // Messages wait, too, and so does a read behind them.
    let mut sending = Box::pin(client.send("late"));
    assert!(poll(sending.as_mut(), Waker::noop()).is_pending());
    for number in 0..30 {
        let next = async { notifications.next().await };
        let mut next = Box::pin(next);
        let taken = loop {
            if let Poll::Ready(taken) = poll(next.as_mut(), Waker::noop()) {
                break taken;
            }
            posting.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
            world.turn();
        };
        assert_eq!(taken, Ok(number));
    }
    assert_eq!(world.run(sending), Ok(()));
    let all = world.run(async {
        for one in posting {
            one.await?;
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(all, Ok(()));
    drop((client, server, region));
}

#[test]
fn equal_notifications_that_nobody_takes_are_counted_and_hold_nobody_up() {
    let mut world = World::new(&notified());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server);
    block_on(async {
        for _ in 0..300 {
            notify(&client, at, 3).await.unwrap();
        }
        client.send("after them").await.unwrap();
    });
    let notifications = server.notifications();
    block_on(notifications.count(3, 299)).unwrap();
    assert_eq!(block_on(notifications.next()), Ok(3));
    drop((client, server, region, notifications));
    world.end();
}

#[test]
fn a_peer_that_takes_no_notifications_gets_none() {
    let takes = options().notifications(1);
    for (client, server) in [(&takes, &options()), (&options(), &takes)] {
        let mut world = World::with(client, server, &ListenOptions::new());
        let (client, server) = world.pair();
        let (one, other) = (exposed(&world.client), exposed(&world.server));
        let results = [(&client, other.1), (&server, one.1)].map(|(from, at)| {
            assert_eq!(from.remote().can_notify(), block_on(notify(from, at, 1)).is_ok());
            block_on(notify(from, at, 1))
        });
        let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!(refused.len(), 1, "{results:?}");
        assert_eq!(refused[0].as_error().unwrap().kind(), ErrorKind::NotSupported);
        drop((client, server, one, other));
        world.end();
    }
}

#[test]
fn notifications_that_have_come_outlive_the_connection() {
    let mut world = World::new(&notified());
    let (client, server) = world.pair();
    let (region, at) = exposed(&world.server);
    let notifications = server.notifications();
    block_on(async {
        for number in [4, 5, 5] {
            notify(&client, at, number).await.unwrap();
        }
    });
    let closing = thread::spawn(move || block_on(client.close_with(9)));
    let mut server = server;
    assert!(block_on(server.next()).unwrap().is_none());
    assert_eq!(block_on(server.close()), Ok(9));
    closing.join().unwrap().unwrap();
    assert_eq!(block_on(notifications.count(5, 2)), Ok(()));
    assert_eq!(block_on(notifications.next()), Ok(4));
    for ended in [block_on(notifications.next()).map(drop), block_on(notifications.count(5, 1))] {
        assert_eq!(ended.unwrap_err().code(), Some(9));
    }
    drop((region, notifications));
    world.end();
}

#[test]
fn permits_keep_their_credits_and_notifications_wait_for_others() {
    let mut world = Driven::new(&notified());
    let (client, mut server) = world.pair();
    let (region, at) = exposed(&world.nodes[1]);
    let to = client.clone_sender();
    // All credits of the window.
    let permits: Vec<_> = (0..4).map(|_| world.run(to.reserve()).unwrap()).collect();
    let mut notifying = Box::pin(notify(&client, at, 1));
    let mut behind = Box::pin(async { client.remote().fetch_add(at, 1).await });
    for _ in 0..20 {
        assert!(poll(notifying.as_mut(), Waker::noop()).is_pending());
        assert!(poll(behind.as_mut(), Waker::noop()).is_pending(), "operations happen in order");
        world.turn();
    }
    // A read that gives up lets nothing through; the notification that gives up does.
    drop(notifying);
    assert_eq!(world.run(behind), Ok(0));
    let mut notifying = Box::pin(notify(&client, at, 2));
    assert!(poll(notifying.as_mut(), Waker::noop()).is_pending());
    for permit in permits {
        permit.send(b"reserved").unwrap();
    }
    for _ in 0..4 {
        assert_eq!(&world.run(server.next()).unwrap().unwrap()[..], b"reserved");
    }
    assert_eq!(world.run(notifying), Ok(()));
    assert_eq!(world.run(async { server.notifications().next().await }), Ok(2));
    drop((to, client, server, region));
}

#[test]
fn waiting_for_notifications_ends_with_the_connection() {
    let mut world = Driven::new(&notified());
    let (client, server) = world.pair();
    let notifications = server.notifications();
    let (other, mut next) = (notifications.clone(), Box::pin(notifications.next()));
    let mut count = Box::pin(other.count(1, u64::MAX));
    assert!(poll(next.as_mut(), Waker::noop()).is_pending() && poll(count.as_mut(), Waker::noop()).is_pending());
    server.core().fail(Failure::new(FailureKind::PeerGone));
    assert_eq!(world.run(next).unwrap_err().kind(), FailureKind::PeerGone);
    assert_eq!(world.run(count).unwrap_err().kind(), FailureKind::PeerGone);
    drop((client, server));
}

#[test]
fn two_sides_that_only_notify_each_other_never_stop() {
    // Each side owes the other an answer to an UPDATE, and no message carries it.
    for window in [1, 2, 3, 5] {
        let mut world = Driven::new(&notified().window(window));
        let (client, server) = world.pair();
        let (one, other) = (exposed(&world.nodes[0]), exposed(&world.nodes[1]));
        let (first, second) = (client.notifications(), server.notifications());
        let mut sending: Vec<_> = (0..200)
            .flat_map(|_| [Box::pin(notify(&client, other.1, 1)), Box::pin(notify(&server, one.1, 1))])
            .collect();
        let mut counting = Box::pin(async { join(first.count(1, 200), second.count(1, 200)).await });
        let counted = loop {
            sending.retain_mut(|one| poll(one.as_mut(), Waker::noop()).is_pending());
            if let Poll::Ready(counted) = poll(counting.as_mut(), Waker::noop()) {
                break counted;
            }
            world.turn();
        };
        assert_eq!(counted, (Ok(()), Ok(())));
        drop((client, server, one, other));
    }
}
