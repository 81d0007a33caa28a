//! Messages of all lengths, flow control and permits.

use super::*;

#[test]
fn messages_of_all_lengths_come_back_whole() {
    for options in by_each_exchange() {
        let mut world = World::new(&options);
        let (mut client, server) = world.pair();
        let server = thread::spawn(move || echo(server));
        block_on(async {
            for len in [0, 1, 239, 240, 241, 256, 257, 1000, 100_000, 1 << 20] {
                client.send(bytes(len)).await.unwrap();
                let answer = client.next().await.unwrap().expect("an answer");
                assert!(answer[..] == bytes(len), "{len} bytes");
            }
            let long = client.send(bytes((1 << 20) + 1)).await.unwrap_err();
            assert_eq!(long.kind(), FailureKind::TooLong);
            assert_eq!(client.close_with(3).await, Ok(0));
        });
        server.join().unwrap().unwrap();
        world.end();
    }
}

#[test]
fn long_messages_go_in_fragments_if_the_program_wants_it() {
    let mut world = World::with(&options().eager_limit(u32::MAX), &options(), &ListenOptions::new());
    let (mut client, server) = world.pair();
    let server = thread::spawn(move || echo(server));
    block_on(async {
        for len in [480, 481, 100_000] {
            client.send(bytes(len)).await.unwrap();
            assert!(client.next().await.unwrap().expect("an answer")[..] == bytes(len), "{len} bytes");
        }
    });
    drop(client);
    server.join().unwrap().unwrap();
    world.end();
}

#[test]
fn short_and_long_messages_stay_in_order() {
    let mut world = World::new(&options().max_message(10_000));
    let (client, mut server) = world.pair();
    let lens = || (0..300).map(|number| number * 7919 % 10_001);
    let sending = thread::spawn(move || {
        block_on(async {
            for len in lens() {
                client.send(bytes(len)).await.unwrap();
            }
            client.close().await
        })
    });
    block_on(async {
        let mut held = Vec::new();
        for (number, len) in lens().enumerate() {
            let message = server.next().await.unwrap().expect("a message");
            assert!(message[..] == bytes(len), "message {number} of {len} bytes");
            // The memory of a message that is held is not used for the next.
            held.push((message, len));
            if held.len() > 3 {
                let (message, len) = held.remove(0);
                assert!(message[..] == bytes(len), "held");
            }
        }
        assert!(server.next().await.unwrap().is_none());
    });
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn exposed_memory_is_sent_without_a_copy_and_held_until_it_is_read() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let region = world.client.domain().allocate_exposed(100_000, rdma::RemoteAccess::READ).unwrap();
    let (to, _from) = client.split();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    block_on(async {
        for len in [0, 1, 300, 100_000] {
            region.copy_in(0, &bytes(len)).unwrap();
            let (sent, received) = join(to.send_exposed(region.slice(..len).unwrap()), server.next()).await;
            sent.unwrap();
            assert!(received.unwrap().expect("a message")[..] == bytes(len), "{len} bytes");
        }
        // The futures are dropped after their first poll: the messages are sent, or held back.
        for _ in 0..40 {
            let mut sending = Box::pin(to.send_exposed(region.slice(..1000).unwrap()));
            drop(sending.as_mut().poll(&mut cx));
        }
        drop(to);
        let mut count = 0;
        while let Some(message) = server.next().await.unwrap() {
            assert!(message[..] == bytes(1000));
            count += 1;
        }
        assert!((1..=40).contains(&count), "{count}");
    });
    drop((server, _from));
    world.end();
    region.revoke().unwrap();
}

#[test]
fn exposed_memory_is_given_back_when_the_peer_does_not_read_it() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let region = world.client.domain().allocate_exposed(4096, rdma::RemoteAccess::READ).unwrap();
    let (to, from) = client.split();
    // The peer sends on, but has no receiver any more.
    let (to_client, gone) = server.split();
    drop(gone);
    let discarded = block_on(to.send_exposed(region.slice(..).unwrap())).unwrap_err();
    assert_eq!(discarded.kind(), FailureKind::Closed);

    let foreign = world.server.domain().allocate_exposed(64, rdma::RemoteAccess::READ).unwrap();
    let unreadable = world.client.domain().allocate_exposed(64, rdma::RemoteAccess::WRITE).unwrap();
    for slice in [foreign.slice(..).unwrap(), unreadable.slice(..).unwrap()] {
        assert_eq!(block_on(to.send_exposed(slice)).unwrap_err().kind(), FailureKind::Local);
    }
    drop((to, from, to_client));
    world.end();
    region.revoke().unwrap();
}

#[test]
fn a_peer_that_does_not_take_long_messages_stops_the_sender() {
    let mut world = World::new(&options().max_message(10_000));
    let (client, mut server) = world.pair();
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for _ in 0..20 {
                client.send(bytes(10_000)).await.unwrap();
                report.send(()).unwrap();
            }
            client.close().await
        })
    });
    // The peer reads one message, and two more fit the staging region.
    for _ in 0..3 {
        reports.recv_timeout(LONG).unwrap();
    }
    assert!(reports.recv_timeout(Duration::from_millis(50)).is_err(), "the memory of both ends is bounded");
    block_on(async {
        for _ in 0..20 {
            assert!(server.next().await.unwrap().unwrap()[..] == bytes(10_000));
        }
        assert!(server.next().await.unwrap().is_none());
    });
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn many_messages_in_both_directions_at_once_arrive_in_order() {
    const COUNT: u32 = 2000;
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let sides = [client, server].map(|connection| {
        let (to, mut from) = connection.split();
        let sending = thread::spawn(move || {
            block_on(async {
                for number in 0..COUNT {
                    let len = usize::try_from(number).unwrap() % 700;
                    to.send([&number.to_le_bytes()[..], &bytes(len)].concat()).await.unwrap();
                }
            });
        });
        let receiving = thread::spawn(move || {
            block_on(async {
                for number in 0..COUNT {
                    let message = from.next().await.unwrap().expect("a message");
                    assert_eq!(message[..4], number.to_le_bytes());
                }
                assert!(from.next().await.unwrap().is_none(), "the end of the data");
            });
        });
        [sending, receiving]
    });
    for thread in sides.into_iter().flatten() {
        thread.join().unwrap();
    }
    world.end();
}

#[test]
fn a_slow_reader_stops_the_sender_and_loses_nothing() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for number in 0..200_u32 {
                client.send(number.to_le_bytes()).await.unwrap();
                report.send(number).unwrap();
            }
            client.close().await
        })
    });
    // The window and as many spares: the rest waits for the reader.
    let first: Vec<_> = (0..8).map(|_| reports.recv_timeout(LONG).unwrap()).collect();
    assert_eq!(first, (0..8).collect::<Vec<_>>());
    block_on(async {
        for number in 0..200_u32 {
            assert_eq!(server.next().await.unwrap().unwrap()[..], number.to_le_bytes());
        }
        assert!(server.next().await.unwrap().is_none());
    });
    assert!(reports.try_iter().count() <= 192);
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn a_program_may_hold_messages_up_to_twice_the_window() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    block_on(async {
        let mut held = Vec::new();
        for number in 0..8_u8 {
            client.send([number]).await.unwrap();
            held.push(server.next().await.unwrap().unwrap());
        }
        let numbers: Vec<_> = held.iter().map(|message| message[0]).collect();
        assert_eq!(numbers, (0..8).collect::<Vec<_>>());
        drop(held);
        client.send([8]).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap()[..], [8]);
    });
    drop((client, server));
    world.end();
}

#[test]
fn permits_send_without_waiting_and_keep_messages_whole() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let (to, _from) = client.split();
    block_on(async {
        let permit = to.reserve().await.unwrap();
        drop(to.reserve().await.unwrap());
        // A long message is under way while the permit is used.
        to.send(bytes(5000)).await.unwrap();
        permit.send(b"short").unwrap();
        assert!(server.next().await.unwrap().unwrap()[..] == bytes(5000));
        assert_eq!(&server.next().await.unwrap().unwrap()[..], b"short");
        let mut permit = to.reserve().await.unwrap();
        permit.payload_mut()[..3].copy_from_slice(b"abc");
        permit.send_filled(3).unwrap();
        assert_eq!(&server.next().await.unwrap().unwrap()[..], b"abc");
        let long = to.reserve().await.unwrap().send(&bytes(257)).unwrap_err();
        assert_eq!(long.kind(), FailureKind::TooLong);
    });
    drop((to, _from, server));
    world.end();
}

#[test]
fn a_permit_or_a_write_of_a_stream_is_no_longer_than_the_longest_message() {
    let mut world = World::with(&options(), &options().max_message(100), &ListenOptions::new());
    let (client, mut server) = world.pair();
    let (mut to, from) = client.split();
    assert_eq!((to.max_payload(), to.max_message()), (100, 100));
    block_on(async {
        let long = to.reserve().await.unwrap().send(&bytes(101)).unwrap_err();
        assert_eq!(long.kind(), FailureKind::TooLong);
        to.reserve().await.unwrap().send(&bytes(100)).unwrap();
        assert!(server.next().await.unwrap().unwrap()[..] == bytes(100));
        let slices = [std::io::IoSlice::new(&[7; 90]), std::io::IoSlice::new(&[8; 90])];
        let written = std::future::poll_fn(|cx| to.poll_write(cx, &slices)).await;
        assert_eq!(written, Ok(100));
        assert_eq!(server.next().await.unwrap().unwrap().len(), 100);
    });
    drop((to, from, server));
    world.end();
}

#[test]
fn connections_that_take_turns_read_long_messages_into_one_buffer() {
    let mut world = World::new(&options());
    let mut ends: Vec<_> = (0..4).map(|_| world.pair()).collect();
    for (client, server) in &mut ends {
        block_on(async {
            client.send(bytes(50_000)).await.unwrap();
            assert!(server.next().await.unwrap().unwrap()[..] == bytes(50_000));
        });
    }
    assert_eq!(world.server.read_buffers_len(), 64 << 10);
    drop(ends);
    world.end();
}
