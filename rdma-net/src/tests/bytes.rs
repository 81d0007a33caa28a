//! Messages as `bytes::Bytes`.

use ::bytes::Bytes;
use rdma::RemoteAccess;

use super::*;

#[test]
fn a_message_becomes_bytes_without_a_copy() {
    // In one fragment, in several, and read by this side's device.
    let in_fragments = options().eager_limit(u32::MAX);
    for (options, len) in [(&options(), 100), (&in_fragments, 1000), (&options(), 100_000)] {
        let mut world = World::with(options, &self::options(), &ListenOptions::new());
        let (client, mut server) = world.pair();
        block_on(async {
            client.send(bytes(len)).await.unwrap();
            let message = server.next().await.unwrap().unwrap();
            let at = message.as_ptr();
            let whole = Bytes::from(message);
            assert_eq!(whole.as_ptr(), at, "the same memory");
            let part = whole.slice(10..20);
            assert!(whole[..] == bytes(len), "{len} bytes");
            // Bytes go to other threads, and outlive their connection.
            drop((client, server));
            let bytes = thread::spawn(move || whole.to_vec()).join().unwrap();
            assert!(bytes == self::bytes(len) && part == bytes[10..20]);
            drop(part);
        });
        world.end();
    }
}

#[test]
fn bytes_hold_a_receive_unless_they_are_a_copy() {
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let (report, reports) = mpsc::channel();
    let sending = thread::spawn(move || {
        block_on(async {
            for number in 0..40_u8 {
                client.send([number]).await.unwrap();
                report.send(number).unwrap();
            }
            client.close().await
        })
    });
    block_on(async {
        // Copies: the peer sends on.
        let mut held: Vec<_> = Vec::new();
        for _ in 0..20 {
            held.push(server.next().await.unwrap().unwrap().into_bytes(1));
        }
        // Twice the window without a copy: the peer waits.
        for _ in 0..8 {
            held.push(server.next().await.unwrap().unwrap().into_bytes(0));
        }
        while reports.recv_timeout(LONG).unwrap() < 27 {}
        assert!(reports.recv_timeout(Duration::from_millis(30)).is_err(), "the messages are held");
        held.truncate(20);
        while let Some(message) = server.next().await.unwrap() {
            held.push(message.into_bytes(1));
        }
        assert!(held.iter().map(|bytes| bytes[0]).eq((0..20).chain(28..40)));
    });
    drop(server);
    assert_eq!(sending.join().unwrap(), Ok(0));
    world.end();
}

#[test]
fn what_was_fetched_becomes_bytes_without_a_copy() {
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let table = server.domain().allocate_exposed(8192, RemoteAccess::READ).unwrap();
    table.copy_in(0, &bytes(8192)).unwrap();
    let place = table.remote(..).unwrap();
    let remote = client.remote();
    block_on(async {
        let fetched = remote.fetch(place).await.unwrap();
        let at = fetched.as_ptr();
        let whole = Bytes::from(fetched);
        assert_eq!(whole.as_ptr(), at, "the same memory");
        let part = whole.slice(100..200);
        drop(whole);
        let second = remote.fetch(place).await.unwrap();
        assert_ne!(second.as_ptr(), at, "a part holds the buffer");
        assert_eq!(part, bytes(8192)[100..200]);
        drop((part, second));
        // A copy does not: the next fetch has its buffer again.
        let fetched = remote.fetch(place).await.unwrap();
        let at = fetched.as_ptr();
        let copy = fetched.into_bytes(8192);
        assert_ne!(copy.as_ptr(), at);
        let fetched = remote.fetch(place).await.unwrap();
        assert_eq!(fetched.as_ptr(), at);
        let kept = fetched.into_bytes(8191);
        assert_eq!(kept.as_ptr(), at);
        drop((remote, client, server));
        assert!(kept == bytes(8192) && copy == kept);
    });
    world.end();
}
