use super::*;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::Instant;

fn name(test: &str) -> String {
    format!("rdma-soft-test-{}-{test}", std::process::id())
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err().errno
}

fn connected(test: &str) -> [Socket; 2] {
    let listener = Socket::new().unwrap();
    listener.bind(&name(test)).unwrap();
    listener.listen().unwrap();
    let near = Socket::new().unwrap();
    near.connect(&name(test)).unwrap();
    [near, listener.accept().unwrap()]
}

fn bytes(received: Received) -> Vec<u8> {
    match received {
        Received::Packet(packet) => packet.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_name_is_one_socket_s_until_it_closes() {
    let name = name("one");
    let first = Socket::new().unwrap();
    first.bind(&name).unwrap();
    assert!(is_taken(&name).unwrap());
    assert!(names(&name).unwrap().contains(&name));
    assert_eq!(errno(Socket::new().unwrap().bind(&name)), Errno::EADDRINUSE);
    // A bound socket does not listen yet.
    assert_eq!(errno(Socket::new().unwrap().connect(&name)), Errno::ECONNREFUSED);
    drop(first);
    assert!(!is_taken(&name).unwrap());
    assert_eq!(errno(Socket::new().unwrap().bind(&"x".repeat(200))), Errno::ENAMETOOLONG);
}

#[test]
fn packets_names_and_the_end() {
    let (server, client) = (name("server"), name("client"));
    let listener = Socket::new().unwrap();
    listener.bind(&server).unwrap();
    listener.listen().unwrap();
    assert_eq!(errno(listener.accept()), Errno::EAGAIN);
    let near = Socket::new().unwrap();
    near.bind(&client).unwrap();
    near.connect(&server).unwrap();
    let far = listener.accept().unwrap();
    assert_eq!((far.peer_name(), near.peer_name()), (Some(client), Some(server)));
    let peer = far.peer().unwrap();
    assert!(peer.is_own_user() && peer.pid == i32::try_from(std::process::id()).unwrap());
    assert_eq!(errno(far.receive()), Errno::EAGAIN);
    assert_eq!(errno(far.wait_readable(Duration::from_millis(1))), Errno::EAGAIN);
    near.send(b"one").unwrap();
    near.send(&[7; MAX_PACKET + 1]).unwrap();
    near.send(b"two").unwrap();
    far.wait_readable(Duration::from_secs(5)).unwrap();
    drop(near);
    assert_eq!(bytes(far.receive().unwrap()), b"one");
    assert!(matches!(far.receive().unwrap(), Received::TooLong));
    assert_eq!(bytes(far.receive().unwrap()), b"two");
    // A child that another test has forked may hold `near` until it runs.
    far.wait_readable(Duration::from_secs(5)).unwrap();
    assert!(matches!(far.receive().unwrap(), Received::End));
    assert_eq!(errno(far.send(b"late")), Errno::EPIPE);
}

#[test]
fn a_full_socket_is_an_error_and_not_a_wait() {
    let [near, _far] = connected("full");
    let start = Instant::now();
    let full = (0..1 << 20).find_map(|_| near.send(&[0; MAX_PACKET]).err());
    assert_eq!(full.map(|error| error.errno), Some(Errno::EAGAIN));
    assert!(start.elapsed() < Duration::from_secs(60), "it waited");
}

#[test]
fn descriptors_travel_and_too_many_are_closed() {
    let [near, far] = connected("descriptors");
    // SAFETY: memfd_create requires a NUL-terminated name, which the C string literal is.
    let file = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: from_raw_fd requires an open descriptor that has no other owner: memfd_create has
    // just made this one.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
    let inode = |fd: BorrowedFd<'_>| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    for count in [0, 1, MAX_FDS, 100] {
        (&file).write_all(b"text").unwrap();
        near.send_with(b"packet", &vec![file.as_fd(); count]).unwrap();
        let Received::Packet(packet) = far.receive_with_fds().unwrap() else { panic!("no packet") };
        assert_eq!(packet.bytes, b"packet");
        assert_eq!(packet.fds.len(), if count > MAX_FDS { 0 } else { count });
        for fd in packet.fds {
            assert_eq!(inode(fd.as_fd()), inode(file.as_fd()));
            let (mut file, mut text) = (File::from(fd), String::new());
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("text"));
        }
        // Descriptors that were not received are closed with the packet.
        near.send_with(b"again", &vec![file.as_fd(); count]).unwrap();
        assert_eq!(bytes(far.receive().unwrap()), b"again");
    }
    let ours =
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    assert_eq!(ours.filter(|path| *path == inode(file.as_fd())).count(), 1, "a descriptor was leaked");
}

#[test]
fn a_list_with_anything_in_it_is_read() {
    let mut table = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
    for name in ["@rdma-x-1", "@rdma-x-2", "@rdma-x-1", "/tmp/rdma-x-3", "@other", "@@rdma-x-4"] {
        table.extend_from_slice(format!("0000: 00000002 00000000 00000000 0005 01 1234 {name}\n").as_bytes());
    }
    table.extend_from_slice(b"0000: 2 0 0 5 1 9 @rdma-x-\xff\xfe\n\n@\n");
    assert_eq!(names_in(&table, "rdma-x-"), ["rdma-x-1", "rdma-x-2"]);
}

#[test]
fn a_forked_child_does_not_keep_a_name() {
    let _alone = super::super::FORKING.lock();
    let name = name("forked");
    let socket = Socket::new().unwrap();
    socket.bind(&name).unwrap();
    let child = super::super::fork::tests::Sleeper::fork();
    drop(socket);
    // A child that has not run yet still holds the name.
    let patience = Instant::now() + Duration::from_secs(20);
    while is_taken(&name).unwrap() {
        assert!(Instant::now() < patience, "the child keeps the name");
        std::thread::yield_now();
    }
    drop(child);
}
