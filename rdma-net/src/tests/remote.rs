//! One-sided operations.

use super::*;

#[test]
fn one_sided_operations_reach_exposed_memory_until_it_is_revoked() {
    use rdma::RemoteAccess;
    let mut world = World::new(&options());
    let (client, mut server) = world.pair();
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let region = world.client.domain().allocate_exposed(4096, access).unwrap();
    let domain = world.server.domain().clone();
    block_on(async {
        client.send(region.remote(..).unwrap().to_bytes()).await.unwrap();
        let slice = server.next().await.unwrap().unwrap();
        let slice = rdma::RemoteSlice::from_bytes(&slice).unwrap();
        let remote = server.remote();

        let mut buffer = domain.allocate(100).unwrap();
        buffer[..5].copy_from_slice(b"hello");
        let buffer = remote.write(slice.slice(64..).unwrap(), buffer, 5).await.unwrap();
        let mut seen = [0; 5];
        region.copy_out(64, &mut seen).unwrap();
        assert_eq!(&seen, b"hello");

        region.copy_in(1000, b"world").unwrap();
        let buffer = remote.read(slice.slice(1000..).unwrap(), buffer).await.unwrap();
        assert_eq!(&buffer[..5], b"world");

        for old in 0..40 {
            assert_eq!(remote.fetch_add(slice, 1).await, Ok(old));
        }
        assert_eq!(remote.compare_swap(slice, 40, 7).await, Ok(40));
        assert_eq!(remote.compare_swap(slice, 40, 8).await, Ok(7));

        // A mistake of this side harms nothing.
        let short = remote.read(slice.slice(..50).unwrap(), buffer).await.unwrap_err();
        assert_eq!(short.kind(), FailureKind::Local);
        assert_eq!(remote.fetch_add(slice, 0).await, Ok(7));

        drop(region);
        let revoked = remote.fetch_add(slice, 1).await.unwrap_err();
        assert_eq!(revoked.kind(), FailureKind::PeerGone, "{revoked}");
        assert_eq!(server.next().await.unwrap_err(), revoked);
    });
    drop((client, server));
    world.end();
}

#[test]
fn dropped_operations_give_their_slots_back() {
    use std::task::{Context, Waker};
    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let region = world.client.domain().allocate_exposed(64, rdma::RemoteAccess::ATOMIC).unwrap();
    let (slice, remote) = (region.remote(..).unwrap(), server.remote());
    for _ in 0..10 {
        // More than there are slots; each is polled once.
        let mut operations: Vec<_> = (0..40).map(|_| Box::pin(remote.fetch_add(slice, 1))).collect();
        for operation in &mut operations {
            drop(operation.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        }
        drop(operations);
    }
    assert!(block_on(remote.fetch_add(slice, 0)).unwrap() >= 16);
    drop((client, server, region));
    world.end();
}

#[test]
fn fetched_bytes_give_their_buffers_back() {
    use rdma::RemoteAccess;

    let mut world = World::new(&options());
    let (client, server) = world.pair();
    let memory = world.server.domain().allocate_exposed(100_000, RemoteAccess::READ).unwrap();
    memory.copy_in(0, &bytes(100_000)).unwrap();
    let (remote, slice) = (client.remote(), memory.remote(..).unwrap());
    assert!(remote.can_read());
    let fetch = |range: std::ops::Range<usize>| block_on(remote.fetch(slice.slice(range).unwrap())).unwrap();
    let long = fetch(0..100_000);
    assert!(long[..] == bytes(100_000));
    let place = long.as_ptr();
    drop(long);
    let held = [fetch(70_000..100_000), fetch(1..2), fetch(5..5)];
    assert!(held[0].as_ptr() == place && held[0][..] == bytes(100_000)[70_000..]);
    assert_eq!((held[1].len(), held[1][0], held[2].len()), (1, bytes(2)[1], 0));
    drop((held, client, server));
    world.end();
}
