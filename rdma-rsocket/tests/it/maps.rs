//! I/O maps over the software device: writes to the peer's mapped memory.

use std::io::{IoSliceMut, Read, Write};
use std::thread;

use libc::{MSG_DONTWAIT, MSG_WAITALL, PROT_NONE, PROT_READ, PROT_WRITE, off_t};
use rdma_mem::{SharedMemory, SharedSlice};
use rdma_rsocket::{Descriptors, RDMA_IOMAPSIZE, SOL_RDMA, Socket};
use rdma_test_support::until;

use crate::common::{self, errno, pair, pair_with, set_int, stream};

/// Memory that is mapped in tests.
const LEN: usize = 100_000;

/// Two connected sockets with so many I/O maps each.
fn mapped_pair(maps: i32) -> (Socket, Socket) {
    pair_with(|socket| set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, maps))
}

fn memory() -> SharedMemory {
    SharedMemory::new(LEN).expect("memory")
}

/// Maps a part of memory that the test keeps until the socket has ended.
fn map(socket: &Socket, memory: &SharedMemory, at: usize, len: usize, offset: u64) -> std::io::Result<u64> {
    assert!(at + len <= memory.len());
    // SAFETY: `map` requires memory that stays valid: the tests drop it after the socket, or unmap
    // it. It is accessed through `rdma-mem` only.
    unsafe { socket.map(memory.as_ptr().wrapping_add(at), len, true, Some(offset)) }
}

fn bytes(memory: &SharedMemory) -> Vec<u8> {
    // SAFETY: from_raw requires memory that is valid for reads while it is borrowed, without plain
    // accesses: the tests access it here only.
    let shared = unsafe { SharedSlice::from_raw(memory.as_ptr(), memory.len()) };
    let mut bytes = vec![0; memory.len()];
    shared.copy_to(&mut bytes).expect("the memory");
    bytes
}

/// Sends a byte: whoever has got it knows of the maps and writes before it.
fn sync(mut from: &Socket, mut to: &Socket) {
    from.write_all(b"x").expect("a send");
    to.read_exact(&mut [0]).expect("the byte");
}

#[test]
fn a_write_fills_the_mapped_memory() {
    let memory = memory();
    let (client, server) = mapped_pair(1);
    assert_eq!(map(&server, &memory, 0, LEN, 1 << 40).expect("a map"), 1 << 40);
    sync(&server, &client);
    let data: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    let (head, tail) = data.split_at(12_345);
    assert_eq!(client.write_mapped(tail, (1 << 40) + 12_345, 0).expect("a write"), tail.len());
    assert_eq!(client.write_mapped(head, 1 << 40, 0).expect("a write"), head.len());
    sync(&client, &server);
    assert!(bytes(&memory) == data);
}

#[test]
fn a_write_goes_on_in_the_next_map_and_ends_with_the_last() {
    let memory = memory();
    let (client, server) = mapped_pair(8);
    // Two neighbours, in the other order in memory; more maps than a queue of control messages.
    map(&server, &memory, 1000, 1000, 0).expect("a map");
    map(&server, &memory, 0, 1000, 1000).expect("a map");
    for index in 0..6 {
        map(&server, &memory, 0, 10, 1_000_000 + 100 * index).expect("a map");
    }
    assert_eq!(errno(map(&server, &memory, 0, 10, 0)), libc::ENOMEM);
    sync(&server, &client);
    let data: Vec<u8> = (0..=250).cycle().take(3000).collect();
    assert_eq!(client.write_mapped(&data, 0, 0).expect("a write"), 2000);
    for nowhere in [2000, 999_999, 1_000_010, u64::MAX] {
        assert_eq!(client.write_mapped(&data, nowhere, 0).expect("no memory"), 0);
    }
    sync(&client, &server);
    assert!(bytes(&memory)[..2000] == [&data[1000..2000], &data[..1000]].concat());
}

#[test]
fn a_write_that_does_not_wait_is_short() {
    let memory = memory();
    let (client, server) = pair_with(|socket| {
        set_int(socket, SOL_RDMA, RDMA_IOMAPSIZE, 1);
        set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, 4096);
    });
    map(&server, &memory, 0, LEN, 0).expect("a map");
    sync(&server, &client);
    let data = vec![7; LEN];
    let mut written = 0;
    until("all is written", || {
        let offset = u64::try_from(written).expect("an offset");
        match client.write_mapped(&data[written..], offset, MSG_DONTWAIT) {
            Ok(now) => written += now,
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EAGAIN)),
        }
        written == LEN
    });
    sync(&client, &server);
    assert!(bytes(&memory) == data);
}

#[test]
fn an_unmapped_entry_is_used_again() {
    let (memory, other) = (memory(), memory());
    let (client, server) = mapped_pair(1);
    for (memory, byte) in [(&memory, 1), (&other, 2)] {
        map(&server, memory, 0, LEN, 5).expect("a map");
        sync(&server, &client);
        assert_eq!(client.write_mapped(&[byte; 10], 5, 0).expect("a write"), 10);
        sync(&client, &server);
        assert_eq!(bytes(memory)[..11], [[byte; 10].as_slice(), &[0]].concat());
        server.unmap(memory.as_ptr(), LEN).expect("an end");
        assert_eq!(errno(server.unmap(memory.as_ptr(), LEN)), libc::EINVAL);
    }
}

#[test]
fn a_write_to_unmapped_memory_ends_the_connection() {
    let memory = memory();
    let (client, server) = mapped_pair(1);
    map(&server, &memory, 0, LEN, 0).expect("a map");
    sync(&server, &client);
    server.unmap(memory.as_ptr(), LEN).expect("an end");
    until("the write fails", || client.write_mapped(&[1; 10], 0, 0).is_err());
    assert!(bytes(&memory).iter().all(|byte| *byte == 0));
    assert!(thread::spawn(move || server.close()).join().expect("the thread").is_ok());
}

#[test]
fn a_failure_behind_a_part_of_the_data_is_reported_by_the_next_call() {
    let memory = memory();
    let (mut client, server) = mapped_pair(1);
    map(&client, &memory, 0, LEN, 0).expect("a map");
    sync(&client, &server);
    client.unmap(memory.as_ptr(), LEN).expect("an end");
    client.write_all(b"part").expect("a send");
    thread::scope(|scope| {
        let reader = scope.spawn(|| server.receive(&mut [IoSliceMut::new(&mut [0; 10])], MSG_WAITALL));
        until("the write fails", || server.write_mapped(&[1; 10], 0, 0).is_err());
        assert_eq!(reader.join().expect("the thread").expect("the data"), 4);
    });
    assert_eq!(errno((&server).read(&mut [0])), libc::ECONNRESET);
    assert_eq!((&server).read(&mut [0]).expect("the end"), 0);
}

#[test]
fn without_maps_and_connections_nothing_is_mapped() {
    let memory = memory();
    let alone = stream();
    assert_eq!(errno(map(&alone, &memory, 0, LEN, 0)), libc::ENOTCONN);
    assert_eq!(errno(alone.unmap(memory.as_ptr(), LEN)), libc::EINVAL);
    let (client, server) = pair();
    assert_eq!(errno(map(&server, &memory, 0, LEN, 0)), libc::ENOMEM);
    assert_eq!(client.write_mapped(b"x", 0, 0).expect("no memory"), 0);
}

#[test]
fn the_functions_of_c_check_their_arguments() {
    let memory = memory();
    let sockets = Descriptors::new();
    let socket = sockets.rsocket(common::libraries(), libc::AF_INET, libc::SOCK_STREAM, 0);
    let map = |socket, prot| {
        let address = memory.as_ptr().cast();
        // SAFETY: `riomap` requires memory that stays valid; none is mapped without a connection.
        let offset: off_t = unsafe { sockets.riomap(socket, address, LEN, prot, 0, -1) };
        (offset, std::io::Error::last_os_error().raw_os_error())
    };
    assert_eq!(map(socket, PROT_READ), (-1, Some(libc::EINVAL)));
    assert_eq!(map(socket, PROT_WRITE), (-1, Some(libc::ENOTCONN)));
    assert_eq!(map(socket, PROT_NONE), (-1, Some(libc::ENOTCONN)));
    assert_eq!(map(-1, PROT_WRITE), (-1, Some(libc::EBADF)));
    assert_eq!(sockets.riounmap(socket, memory.as_ptr().cast(), LEN), -1);
    // SAFETY: `riowrite` requires a readable buffer, which this is.
    assert_eq!(unsafe { sockets.riowrite(socket, [1].as_ptr().cast(), 1, 0, 0) }, -1);
    assert_eq!(sockets.rclose(socket), 0);
}
