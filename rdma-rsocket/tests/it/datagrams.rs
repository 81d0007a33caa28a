//! Datagrams over the software device.

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use libc::{EAGAIN, EBADF, ECONNREFUSED, EDESTADDRREQ, EIO, EISCONN, EMSGSIZE, ENOTCONN, EOPNOTSUPP};
use libc::{MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, POLLIN, POLLOUT};
use rdma_rsocket::{Libraries, PollEntry, Socket, poll};
use rdma_sys::{RdmaCm, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_qp_state, rdma_cm_id};
use rdma_test_support::{LIMIT, until};

use crate::common::{self, datagram, errno, libraries};

fn send(socket: &Socket, data: &[u8], to: SocketAddr) {
    assert_eq!(socket.send_to(&[IoSlice::new(data)], to, 0).expect("a send"), data.len());
}

fn receive(socket: &Socket, flags: libc::c_int) -> std::io::Result<(Vec<u8>, SocketAddr)> {
    let mut data = vec![0; 4096];
    let (len, from) = socket.receive_from(&mut [IoSliceMut::new(&mut data)], flags)?;
    data.truncate(len);
    Ok((data, from.expect("a sender")))
}

/// Waits for a datagram.
fn next(socket: &Socket) -> (Vec<u8>, SocketAddr) {
    let mut entries = [PollEntry::socket(socket, POLLIN)];
    assert_eq!(poll(&mut entries, Some(LIMIT)).expect("poll"), 1, "no datagram came");
    receive(socket, MSG_DONTWAIT).expect("a datagram")
}

/// Whether the next datagram of a socket has come over UDP.
fn came_over_udp(socket: &Socket) -> bool {
    let flags = MSG_PEEK | MSG_DONTWAIT;
    // SAFETY: recv requires space for no byte.
    unsafe { libc::recv(socket.number(), std::ptr::null_mut(), 0, flags) >= 0 }
}

/// Sends from one socket to another until that goes over the queue pairs.
fn warm_up(from: &Socket, to: &Socket, address: SocketAddr) {
    until("the path is known", || {
        send(from, b"warm up", address);
        let is_udp = came_over_udp(to);
        assert_eq!(next(to).0, b"warm up");
        // The answer is in the UDP socket.
        assert_eq!(errno(receive(from, MSG_DONTWAIT)), EAGAIN);
        !is_udp
    });
}

/// As [`warm_up`], where datagrams may be lost meanwhile.
fn find_again(from: &Socket, to: &Socket, address: SocketAddr) {
    until("the new queue pair is found", || {
        send(from, b"find", address);
        thread::sleep(Duration::from_millis(1));
        let is_udp = came_over_udp(to);
        let has_come = receive(to, MSG_DONTWAIT).is_ok();
        has_come && !is_udp
    });
    while receive(to, MSG_DONTWAIT).is_ok() {}
}

#[test]
fn datagrams_pass_over_udp_and_then_over_queue_pairs() {
    for is_v6 in [false, true] {
        let [(client, here), (server, there)] = [(); 2].map(|()| datagram(is_v6));
        send(&client, b"first", there);
        assert!(came_over_udp(&server));
        assert_eq!(next(&server), (b"first".to_vec(), here));
        warm_up(&client, &server, there);
        warm_up(&server, &client, here);
        for len in [0, 1, 63, 64, 65, 1000, 2000] {
            let data: Vec<u8> = (0..=250).cycle().take(len).collect();
            send(&client, &data, there);
            assert!(!came_over_udp(&server));
            assert_eq!(next(&server), (data, here));
        }
    }
}

#[test]
fn a_datagram_is_peeked_cut_off_and_refused_whole() {
    let [(client, here), (server, there)] = [(); 2].map(|()| datagram(false));
    for warm in [false, true] {
        if warm {
            warm_up(&client, &server, there);
        }
        send(&client, b"hello", there);
        assert_eq!(receive(&server, MSG_PEEK).expect("a datagram"), (b"hello".to_vec(), here));
        let mut two = [0; 2];
        let (len, _) = server.receive_from(&mut [IoSliceMut::new(&mut two)], MSG_TRUNC).expect("a datagram");
        assert_eq!((len, &two), (5, b"he"));
        assert_eq!(errno(receive(&server, MSG_DONTWAIT)), EAGAIN);
        assert_eq!(errno(client.send_to(&[IoSlice::new(&[0; 2048])], there, 0)), EMSGSIZE);
    }
}

#[test]
fn a_connected_socket_has_one_peer() {
    let [(client, here), (server, there), (other, _)] = [(); 3].map(|()| datagram(false));
    assert_eq!(errno(client.send(&[IoSlice::new(b"x")], 0)), EDESTADDRREQ);
    assert_eq!(errno(client.peer_address()), ENOTCONN);
    client.connect(there).expect("a peer");
    assert_eq!(client.peer_address().expect("a peer"), there);
    client.send(&[IoSlice::new(b"to the peer")], 0).expect("a send");
    assert_eq!(next(&server), (b"to the peer".to_vec(), here));
    send(&other, b"not from the peer", here);
    send(&server, b"from the peer", here);
    assert_eq!(next(&client), (b"from the peer".to_vec(), there));
    assert_eq!(errno(client.listen(1)), EOPNOTSUPP);
    assert_eq!(errno(common::stream().send_to(&[], there, 0)), EISCONN);
}

#[test]
fn a_closed_port_refuses() {
    let (client, _) = datagram(false);
    let (gone, there) = datagram(false);
    gone.close().expect("a close");
    client.connect(there).expect("a peer");
    client.send(&[IoSlice::new(b"x")], 0).expect("a send");
    assert_eq!(errno(receive(&client, 0)), ECONNREFUSED);
}

#[test]
fn packets_of_strangers_do_no_harm() {
    let [(client, here), (server, there)] = [(); 2].map(|()| datagram(false));
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let header = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xff, 0xff, 0xff, 127, 0, 0, 1];
    let long = [&header[..], &[7; 60_000]].concat();
    for len in 0..header.len() {
        stranger.send_to(&header[..len], there).expect("a send");
        let mut wrong = header;
        wrong[len] ^= 0x41;
        stranger.send_to(&wrong, there).expect("a send");
    }
    stranger.send_to(&long, there).expect("a send");
    for _ in 0..300 {
        stranger.send_to(&header, there).expect("a send");
    }
    // Data of strangers arrives as that of anybody, as far as there is space; a packet that is too
    // long does not arrive in part.
    while let Ok((data, _)) = receive(&server, MSG_DONTWAIT) {
        assert_eq!(data, []);
    }
    until("the datagram of the client arrives", || {
        send(&client, b"hello", there);
        std::iter::from_fn(|| receive(&server, MSG_DONTWAIT).ok()).any(|found| found == (b"hello".to_vec(), here))
    });
}

#[test]
fn a_full_receiver_loses_datagrams_and_the_sender_goes_on() {
    let [(client, here), (server, there)] = [(); 2].map(|()| datagram(false));
    warm_up(&client, &server, there);
    (0..1000_u32).for_each(|number| send(&client, &number.to_ne_bytes(), there));
    let mut entries = [PollEntry::socket(&client, POLLOUT)];
    assert_eq!(poll(&mut entries, Some(LIMIT)).expect("poll"), 1);
    let (first, from) = next(&server);
    assert_eq!((first, from), (0_u32.to_ne_bytes().to_vec(), here));
    while receive(&server, MSG_DONTWAIT).is_ok() {}
    send(&client, b"after", there);
    assert_eq!(next(&server).0, b"after");
}

#[test]
fn a_close_wakes_a_thread_that_receives() {
    let (socket, _) = datagram(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| errno(receive(&socket, 0)));
        thread::sleep(Duration::from_millis(20));
        socket.close().expect("a close");
        assert_eq!(receiver.join().expect("the thread"), EBADF);
    });
    assert_eq!(errno(socket.close()), EBADF);
}

#[test]
fn a_socket_is_not_blocked_and_has_options() {
    let socket = Socket::datagram(libraries(), false).expect("a socket");
    assert_eq!(socket.local_address().expect("an open socket"), None);
    common::set_int(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    assert_eq!(socket.option(libc::SOL_SOCKET, libc::SO_ERROR).expect("an option"), [0; 4]);
    socket.set_nonblocking(true).expect("a mode");
    assert_eq!(errno(receive(&socket, 0)), EAGAIN);
}

#[test]
fn a_peer_that_takes_the_port_of_another_is_found() {
    let [(client, _), (server, there)] = [(); 2].map(|()| datagram(false));
    warm_up(&client, &server, there);
    server.close().expect("a close");
    let restarted = Socket::datagram(libraries(), false).expect("a socket");
    // A process that another test starts holds the first socket until it runs its program.
    until("the port of the first is free", || restarted.bind(there).is_ok());
    // It only receives, so nothing but a datagram over UDP makes it name its queue pair.
    find_again(&client, &restarted, there);
}

#[test]
fn a_new_queue_pair_is_seen_by_a_thread_that_sleeps() {
    let [(client, here), (server, there)] = [(); 2].map(|()| datagram(false));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| next(&client).0);
        thread::sleep(Duration::from_millis(50));
        // The client's thread sleeps, and its socket gets its queue pair by this thread.
        send(&client, b"where I am", there);
        assert_eq!(next(&server).0, b"where I am");
        // The path is resolved meanwhile, so the answer does not come over UDP.
        for _ in 0..100 {
            assert_eq!(errno(receive(&server, MSG_DONTWAIT)), EAGAIN);
            thread::sleep(Duration::from_millis(1));
        }
        send(&server, b"an answer", here);
        assert_eq!(receiver.join().expect("the thread"), b"an answer");
    });
}

/// The queue pairs that were made with [`observed`] libraries, as addresses.
static PAIRS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The software device's libraries. Queue pairs that are made with them are in [`PAIRS`].
fn observed() -> Libraries {
    unsafe extern "C" fn create(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> libc::c_int {
        // SAFETY: the callee has the same contract as this function.
        let result = unsafe { (rdma_soft::rdmacm().rdma_create_qp)(id, pd, init) };
        // SAFETY: the read requires a valid id, which the callee does too.
        PAIRS.lock().expect("no panic").push(unsafe { (*id).qp } as usize);
        result
    }
    static VERBS: rdma_sys::Ibverbs = *rdma_soft::ibverbs();
    static CM: RdmaCm = RdmaCm { rdma_create_qp: create, ..*rdma_soft::rdmacm() };
    // SAFETY: `new` requires tables of one implementation: both are the software device's.
    unsafe { Libraries::new(&VERBS, &CM) }
}

#[test]
fn a_queue_pair_that_fails_is_replaced() {
    let (client, here) = datagram(false);
    let server = Socket::datagram(observed(), false).expect("a socket");
    server.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let there = server.local_address().expect("an open socket").expect("an address");
    warm_up(&client, &server, there);
    warm_up(&server, &client, here);
    // A young queue pair is not replaced at once.
    thread::sleep(Duration::from_millis(1100));
    let pair = *PAIRS.lock().expect("no panic").last().expect("a queue pair") as *mut ibv_qp;
    let mut error = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    let mask = libc::c_int::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).expect("a small mask");
    // SAFETY: ibv_modify_qp requires a live queue pair and attributes: the server has its queue
    // pair until it polls again, and the attributes are a local.
    assert_eq!(unsafe { (rdma_soft::ibverbs().ibv_modify_qp)(pair, &raw mut error, mask) }, 0);
    assert_eq!(errno(receive(&server, 0)), EIO);
    assert_eq!(PAIRS.lock().expect("no panic").len(), 2);
    find_again(&client, &server, there);
    find_again(&server, &client, here);
}
