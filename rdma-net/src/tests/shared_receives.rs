//! Listeners whose connections share receives.

use super::*;

/// Waits until no connection uses the shared receives.
fn wait_for_receives(listener: &Listener, count: i64) {
    let end = std::time::Instant::now() + LONG;
    while listener.free_receives() != count {
        assert!(std::time::Instant::now() < end, "{} receives are free", listener.free_receives());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn connections_of_a_listener_share_receives() {
    for options in by_each_exchange() {
        const CLIENTS: usize = 8;
        let options = options.clone().max_connections(32);
        // Just enough for all, and enough for windows that grow.
        for total in [51, 51, 120] {
            let limits = ListenOptions::new().shared_receives(total);
            let mut world = World::with(&options, &options, &limits);
            let pairs: Vec<_> = (0..CLIENTS).map(|_| world.pair()).collect();
            let (clients, servers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let servers: Vec<_> = servers.into_iter().map(|server| thread::spawn(move || echo(server))).collect();
            let clients = clients.into_iter().enumerate().map(|(number, client)| {
                thread::spawn(move || {
                    let (to, mut from) = client.split();
                    let sending = thread::spawn(move || {
                        block_on(async {
                            for round in 0..60 {
                                to.send(bytes((number + 1) * round * 13)).await.unwrap();
                            }
                        });
                    });
                    block_on(async {
                        for round in 0..60 {
                            let answer = from.next().await.unwrap().expect("an answer");
                            assert!(answer[..] == bytes((number + 1) * round * 13), "{number}, round {round}");
                        }
                    });
                    sending.join().unwrap();
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.join().unwrap();
            }
            for server in servers {
                server.join().unwrap().unwrap();
            }
            wait_for_receives(&world.listener, total.into());
            world.end();
        }
    }
}

#[test]
fn a_listener_without_free_receives_is_busy() {
    let mut world = World::with(&options(), &options(), &ListenOptions::new().shared_receives(14));
    let first = world.pair();
    let second = world.pair();
    let busy = block_on(world.client.connect(world.listener.local_addr())).unwrap_err();
    assert_eq!(busy.refuse_code(), Some(RefuseCode::Busy), "{busy}");
    drop(first);
    wait_for_receives(&world.listener, 8);
    drop((world.pair(), second));
    world.end();
}

#[test]
fn messages_that_are_held_slow_their_connection_alone() {
    let mut world = World::with(&options(), &options(), &ListenOptions::new().shared_receives(12));
    let (holding, mut holder) = world.pair();
    let (mut client, server) = world.pair();
    let server = thread::spawn(move || echo(server));
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for number in 0..40_u8 {
                holding.send([number]).await.unwrap();
                report.send(()).unwrap();
            }
        });
        holding
    });
    let mut held = vec![block_on(holder.next()).unwrap().unwrap()];
    block_on(async {
        for round in 0..200_usize {
            client.send(bytes(round)).await.unwrap();
            assert!(client.next().await.unwrap().unwrap()[..] == bytes(round));
        }
    });
    assert!(reports.try_iter().count() < 10, "the sender waits for the holder");
    while held.last().is_none_or(|message| message[0] < 39) {
        let next = block_on(holder.next()).unwrap().unwrap();
        // A receive that was released is used again.
        held.clear();
        held.push(next);
    }
    drop((sending.join().unwrap(), client, holder));
    server.join().unwrap().unwrap();
    // A message may outlive its connection.
    wait_for_receives(&world.listener, 11);
    drop(held);
    wait_for_receives(&world.listener, 12);
    world.end();
}
