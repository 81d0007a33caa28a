//! Unreliable connections in one process: every operation, and every loss, on the device under
//! test. A network may lose any message, so tests send again what does not arrive.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rdma::op::{self, Opcode};
use rdma::transport::Uc;
use rdma::{ErrorKind, InitOptions, QpState, QueuePair, RemoteAccess, SharedReceiveQueue, WcStatus};
use rdma_tests::report::Reported;
use rdma_tests::{Done, LIMIT, Options, Side, buffer, open, pattern, skip, unreliable_pair, wait, wait_within};

/// The time after which a message counts as lost.
const LOST: Duration = Duration::from_secs(3);
/// Bytes of the longest message.
const LONGEST: usize = 100_000;

fn small() -> Option<(Side<Uc>, Side<Uc>)> {
    unreliable_pair(Options::default())
}

/// Sends until a message arrives. A message that counts as lost may be late, so its copies are
/// passed over before the next message.
fn deliver(a: &mut Side<Uc>, b: &mut Side<Uc>, mut send: impl FnMut(&mut Side<Uc>)) -> Done {
    for copy in 0..10 {
        send(a);
        assert_eq!(wait(&mut a.sends).status, Ok(()), "the loss of a message is no error");
        if let Some(done) = wait_within(&mut b.receives, LOST) {
            assert_eq!(done.status, Ok(()));
            if copy > 0 {
                pass_over_late_copies(a, b);
            }
            return done;
        }
    }
    panic!("none of ten messages has arrived");
}

/// Sends messages with numbers until one arrives: a connection delivers in order, so no message
/// that was sent earlier arrives later. Leaves no receive behind.
fn pass_over_late_copies(a: &mut Side<Uc>, b: &mut Side<Uc>) {
    static NUMBER: AtomicU32 = AtomicU32::new(1 << 31);
    for _ in 0..10 {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        ensure_receive(b);
        a.qp.post_send(op::send_imm_inline(b"", number)).unwrap();
        assert_eq!(wait(&mut a.sends).status, Ok(()));
        while let Some(done) = wait_within(&mut b.receives, LOST) {
            assert_eq!(done.status, Ok(()));
            if done.imm == Some(number) {
                return;
            }
            ensure_receive(b);
        }
    }
    panic!("none of ten messages has arrived");
}

/// Posts a receive for any message if none is posted.
fn ensure_receive(b: &mut Side<Uc>) {
    if b.qp.recv_queue().room() == b.qp.recv_queue().depth() {
        b.qp.post_recv(b.pd.allocate(LONGEST).unwrap(), 0).unwrap();
    }
}

/// Lets a message of a few bytes arrive: the connection works.
fn assert_works(a: &mut Side<Uc>, b: &mut Side<Uc>) {
    b.qp.post_recv(b.pd.allocate(16).unwrap(), 77).unwrap();
    let done = deliver(a, b, |a| a.qp.post_send(op::send_inline(b"works")).unwrap());
    assert_eq!((done.token, done.byte_len, &done.buffer()[..5]), (77, 5, &b"works"[..]));
    assert_eq!((a.qp.state().unwrap(), b.qp.state().unwrap()), (QpState::RTS, QpState::RTS));
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let Some((mut a, mut b)) = small() else { return };
    for len in [0, 1, 64, 1024, 1025, 4096, 4097, LONGEST] {
        let content = pattern(len, 3);
        b.qp.post_recv(b.pd.allocate(len.max(1)).unwrap(), 1).unwrap();
        let received = deliver(&mut a, &mut b, |a| {
            a.qp.post_send(op::send(buffer(&a.pd, &content)).token(2)).unwrap();
        });
        assert_eq!((received.token, received.opcode, received.byte_len), (1, Opcode::Recv, len));
        assert!(received.buffer()[..len] == content[..], "{len} bytes");
    }
}

#[test]
fn late_copies_of_a_message_are_passed_over() {
    let Some((mut a, mut b)) = small() else { return };
    assert_works(&mut a, &mut b);
    for _ in 0..4 {
        b.qp.post_recv(b.pd.allocate(8).unwrap(), 0).unwrap();
    }
    for _ in 0..3 {
        a.qp.post_send(op::send_inline(b"copy")).unwrap();
        assert_eq!(wait(&mut a.sends).status, Ok(()));
    }
    pass_over_late_copies(&mut a, &mut b);
    assert_eq!(b.qp.recv_queue().room(), b.qp.recv_queue().depth(), "no receive is left");
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    let received = deliver(&mut a, &mut b, |a| a.qp.post_send(op::send_inline(b"message")).unwrap());
    assert_eq!((received.token, received.byte_len, &received.buffer()[..7]), (1, 7, &b"message"[..]));
}

#[test]
fn lists_and_immediates_arrive() {
    let Some((mut a, mut b)) = small() else { return };
    b.qp.post_recv([b.pd.allocate(3).unwrap(), b.pd.allocate(10).unwrap()], 0).unwrap();
    let received = deliver(&mut a, &mut b, |a| {
        let parts = [buffer(&a.pd, b"ab"), buffer(&a.pd, b"cdefg"), buffer(&a.pd, b"h")];
        a.qp.post_send(op::send_imm(parts, 0x0102_0304)).unwrap();
    });
    assert_eq!((received.byte_len, received.imm), (8, Some(0x0102_0304)));
    assert_eq!((&received.buffers[0][..], &received.buffers[1][..5]), (&b"abc"[..], &b"defgh"[..]));
}

#[test]
fn writes_reach_exposed_memory() {
    let Some((mut a, mut b)) = small() else { return };
    let len = 20_000;
    let region = b.pd.allocate_exposed(len, RemoteAccess::WRITE).unwrap();
    let remote = region.remote(..).unwrap();
    let content = pattern(len, 5);
    b.qp.post_recv((), 5).unwrap();
    let notified = deliver(&mut a, &mut b, |a| {
        // The first write may be lost without the second.
        a.qp.post_send(op::write(buffer(&a.pd, &content), remote).unsignaled()).unwrap();
        a.qp.post_send(op::write_imm(buffer(&a.pd, &content), remote, 9)).unwrap();
    });
    assert_eq!((notified.opcode, notified.imm, notified.token), (Opcode::RecvWriteImm, Some(9), 5));
    let mut seen = vec![0; len];
    region.copy_out(0, &mut seen).unwrap();
    assert!(seen == content);
}

#[test]
fn a_message_without_a_receive_is_lost() {
    let Some((mut a, mut b)) = small() else { return };
    assert_works(&mut a, &mut b);
    a.qp.post_send(op::send_inline(b"lost").token(3)).unwrap();
    let sent = wait(&mut a.sends);
    assert_eq!((sent.status, sent.token), (Ok(()), 3));
    assert_works(&mut a, &mut b);
}

#[test]
fn a_write_that_is_not_allowed_is_lost() {
    let Some((mut a, mut b)) = small() else { return };
    assert_works(&mut a, &mut b);
    let region = b.pd.allocate_exposed(64, RemoteAccess::READ).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, &[7; 64]), region.remote(..).unwrap())).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()), "the sender learns nothing");
    assert_works(&mut a, &mut b);
    let mut seen = [1; 64];
    region.copy_out(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 64]);
}

#[test]
fn a_peer_that_is_gone_is_not_noticed() {
    let Some((mut a, b)) = small() else { return };
    b.qp.close().unwrap();
    for round in 0..5 {
        a.qp.post_send(op::send(buffer(&a.pd, &pattern(5000, round)))).unwrap();
        let sent = wait(&mut a.sends);
        assert_eq!((sent.status, sent.buffer().len()), (Ok(()), 5000));
    }
    assert_eq!(a.qp.state().unwrap(), QpState::RTS);
}

#[test]
fn an_error_flushes_receives_and_a_reset_starts_again() {
    let Some((a, mut b)) = small() else { return };
    b.qp.post_recv(b.pd.allocate(16).unwrap(), 4).unwrap();
    b.qp.set_error().unwrap();
    let flushed = wait(&mut b.receives);
    assert_eq!((flushed.status.unwrap_err().status, flushed.token), (WcStatus::WR_FLUSH_ERR, 4));
    let (pd, port) = (b.pd.clone(), open().port);
    let init = |qp: Reported<Uc>| qp.reset().unwrap().init(&InitOptions::new().port(port)).unwrap();
    let (qp_a, qp_b) = (init(a.qp), init(b.qp));
    assert_eq!(qp_a.endpoint().responder_resources, 0);
    let (qp_a, qp_b) = rdma_testkit::join(qp_a, qp_b).unwrap();
    let mut a = Side { qp: qp_a.into(), ..a };
    let mut b = Side { qp: qp_b.into(), pd, ..b };
    assert_works(&mut a, &mut b);
}

#[test]
fn a_scope_lends_memory_to_an_unreliable_connection() {
    let Some((mut a, mut b)) = small() else { return };
    assert_works(&mut a, &mut b);
    let mut message = buffer(&a.pd, b"lent");
    let poller = &mut a.sends;
    for _ in 0..3 {
        message[0] ^= 1;
        let lent = a.qp.scope(&mut *poller, LIMIT, |scope| {
            scope.post_send(op::send(message.lend(..))).map_err(|refused| refused.error())
        });
        lent.unwrap().unwrap();
    }
    assert_works(&mut a, &mut b);
}

#[test]
fn messages_take_receives_of_a_shared_queue() {
    let opened = open();
    let (context, port) = (&opened.context, opened.port);
    if !context.capabilities().unreliable_connections || context.device_attr().max_srq() == 0 {
        skip("the device has no unreliable connections, or no shared receive queues");
        return;
    }
    let pd = context.alloc_pd().unwrap();
    let mut receives = SharedReceiveQueue::unreliable(&pd).max_wr(8).build().unwrap();
    let (cq, sent) = (context.create_cq(256).unwrap(), context.create_cq(64).unwrap());
    let mut poller = cq.poller();
    let mut sends = sent.poller();
    let options = InitOptions::new().port(port);
    let mut pairs: Vec<_> = (0..2)
        .map(|_| {
            let end = QueuePair::unreliable(&pd).cq(&cq).shared_receives(&receives).build().unwrap().init(&options);
            let (end, client) = (end.unwrap(), QueuePair::unreliable(&pd).cq(&sent).build().unwrap());
            let client = client.init(&options).unwrap();
            rdma_testkit::join(end, client).unwrap()
        })
        .collect();
    for round in 0..8 {
        receives.post_recv(pd.allocate(2000).unwrap(), u64::from(round)).unwrap();
        let (end, client) = &mut pairs[usize::from(round) % 2];
        let mut content = pattern(2000, round);
        content[0] = round;
        let arrived = (0..10).find_map(|_| {
            client.post_send(op::send(buffer(&pd, &content))).unwrap();
            assert_eq!(wait(&mut sends).status, Ok(()));
            loop {
                let mut completion = poller.wait(Some(LOST)).unwrap()?;
                completion.status().unwrap();
                let received = completion.take_buffer().unwrap();
                if received[0] < round {
                    // A late copy of an earlier message, which was sent again.
                    receives.post_recv(received, 0).unwrap();
                    continue;
                }
                assert_eq!(completion.qpn(), end.qpn());
                break Some(received.to_vec());
            }
        });
        assert!(arrived.expect("one of ten messages") == content, "round {round}");
    }
}

#[test]
fn a_device_without_unreliable_connections_says_so() {
    let context = open().context;
    let pd = context.alloc_pd().unwrap();
    let built = QueuePair::unreliable(&pd).cq(&context.create_cq(64).unwrap()).build();
    let expected = if context.capabilities().unreliable_connections { None } else { Some(ErrorKind::NotSupported) };
    assert_eq!(built.err().map(|error| error.kind()), expected);
}
