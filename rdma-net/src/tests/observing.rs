//! What connections and nodes count, and that the docs list what they log.

use std::path::Path;

use rdma_test_support::{assert_documented, holds_in_child};

use super::*;

#[test]
fn the_docs_list_all_events() {
    let page = include_str!("../guide/observing.md");
    assert_documented(page, &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "rdma_net");
}

#[test]
fn both_sides_count_messages_of_all_lengths() {
    for options in by_each_exchange() {
        let mut world = World::new(&options);
        let (client, mut server) = world.pair();
        // Of one fragment, of several, and one that the peer reads.
        let lengths = [0, 5, 300, 1000, 100_000];
        block_on(async {
            for len in lengths {
                let (sent, received) = join(client.send(bytes(len)), server.next()).await;
                sent.unwrap();
                assert_eq!(received.unwrap().unwrap().len(), len);
            }
        });
        let (sent, received) = (client.stats(), server.stats());
        let total = lengths.iter().sum::<usize>() as u64;
        assert_eq!((sent.sent, sent.sent_bytes, sent.received), (5, total, 0));
        assert_eq!((received.received, received.received_bytes, received.sent), (5, total, 0));
        assert_eq!((received.unread, received.most_unread), (0, 1));
        let permit = block_on(async { client.clone_sender().reserve().await.map(|permit| permit.send(b"abc")) });
        permit.unwrap().unwrap();
        assert_eq!(client.stats().sent, 6);

        let of_client = world.client.stats();
        assert_eq!((of_client.connections, of_client.opened, of_client.ended), (1, 1, 0));
        assert_eq!(of_client.traffic.sent_bytes, total + 3);
        assert!(of_client.completions.completions > 0);
        drop((client, server));
        let (client, server) = (world.client.clone(), world.server.clone());
        block_on(async { join(client.shutdown(LONG), server.shutdown(LONG)).await }).0.unwrap();
        // The counts of connections that have ended stay in the sums.
        let of_client = client.stats();
        assert_eq!((of_client.connections, of_client.opened, of_client.ended, of_client.failed), (0, 1, 1, 0));
        assert_eq!((of_client.traffic.sent_bytes, of_client.traffic.credits), (total + 3, 0));
        drop((client, server));
        world.end();
    }
}

#[test]
fn a_slow_receiver_shows_in_waits_credits_and_unread_messages() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    assert_eq!(client.stats().send_waits, 0);
    let credits = client.stats().credits;
    assert!((1..=4).contains(&credits), "{credits}");
    let sending = thread::spawn({
        let sender = client.clone_sender();
        move || {
            block_on(async {
                for _ in 0..20 {
                    sender.send([7; 100]).await.unwrap()
                }
            })
        }
    });
    // The sender must wait, since nobody takes a message.
    let core = Arc::clone(client.core());
    let is_stuck = |stats: ConnectionStats| stats.send_waits > 0 && stats.credits == 0;
    while !is_stuck(core.stats()) || server.stats().unread < 4 {
        thread::yield_now();
    }
    for _ in 0..20 {
        assert!(block_on(server.next()).unwrap().is_some());
    }
    sending.join().unwrap();
    let stats = server.stats();
    assert_eq!((stats.received, stats.unread), (20, 0));
    assert!((4..=20).contains(&stats.most_unread), "{stats:?}");
    drop((client, server, core));
    world.end();
}

#[test]
fn a_nodes_counters_only_grow_while_connections_come_and_go() {
    let mut world = World::new(&options());
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let node = world.server.clone();
        let watcher = threads.spawn(|| {
            let node = node;
            let mut last = (0, 0, 0);
            while !is_over.load(Ordering::Acquire) {
                let NodeStats { opened, ended, traffic, .. } = node.stats();
                let now = (opened, ended, traffic.received);
                assert!(now.0 >= last.0 && now.1 >= last.1 && now.2 >= last.2, "{now:?} after {last:?}");
                last = now;
            }
        });
        for _ in 0..20 {
            let (client, mut server) = world.pair();
            block_on(async { join(client.send("x"), server.next()).await }).1.unwrap();
            block_on(async { join(client.close(), server.close()).await }).0.unwrap();
        }
        is_over.store(true, Ordering::Release);
        watcher.join().unwrap();
    });
    assert_eq!((world.server.stats().opened, world.server.stats().traffic.received), (20, 20));
    world.end();
}

#[test]
fn a_forked_child_counts_nothing_and_waits_for_no_lock() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let (node, core) = (world.server.clone(), Arc::clone(client.core()));
    let holds = core.locked(|| {
        holds_in_child(|| client.stats() == ConnectionStats::default() && node.stats() == NodeStats::default())
    });
    assert!(holds);
    drop((client, server, node, core));
    world.end();
}
