//! Unreliable datagrams in one process, on the device under test.

use std::time::Duration;

use rdma::op::{self, Opcode};
use rdma::{DatagramOptions, ErrorKind, Grh, Lid, MULTICAST_QPN, QpState, QueuePair, WcStatus};
use rdma_tests::datagram::{Post, QKEY, address_of_group, group, initialized, join, open};
use rdma_tests::{LIMIT, buffer, pattern, skip};

/// Creates two queue pairs; `None` if the device has no datagrams.
fn two() -> Option<(Post, Post)> {
    let opened = open()?;
    Some((Post::new(&opened), Post::new(&opened)))
}

#[test]
fn messages_up_to_the_mtu_arrive_behind_a_header() {
    let Some((mut a, mut b)) = two() else { return };
    let (address, mtu) = (a.address_of(&b), a.qp.max_message());
    assert_eq!(Some(mtu), a.endpoint.mtu.bytes().map(|mtu| mtu as usize));
    for len in [0, 1, 7, 64, 65, 255, 256, mtu - 1, mtu] {
        let content = pattern(len, 3);
        b.receive(mtu, 1);
        a.qp.post_send(op::send(buffer(&a.pd, &content)).token(2).to(&address, b.endpoint.qpn, QKEY)).unwrap();
        let arrived = b.arrived();
        assert_eq!((arrived.token, arrived.byte_len, arrived.imm), (1, Grh::LEN + len, None));
        assert!(arrived.datagram[..] == content[..], "{len} bytes");
        assert_eq!(arrived.datagram.source().qpn, a.qp.qpn());
        assert_eq!(a.sent(), (2, Ok(())));
    }
}

#[test]
fn the_header_says_where_it_came_from() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.receive(8, 0);
    a.qp.post_send(op::send_inline(b"who?").to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let arrived = b.arrived();
    let source = *arrived.datagram.source();
    assert_eq!((source.qpn, source.pkey_index), (a.endpoint.qpn, 0));
    match (source.grh, address.path().route) {
        (Some(grh), Some(_)) => {
            assert_eq!(Some(grh.source_gid()), a.endpoint.gid);
            assert_eq!(Some(grh.destination_gid()), b.endpoint.gid);
            assert!(!source.is_to_a_group());
        }
        (None, None) => assert_eq!(source.lid, a.endpoint.lid),
        (grh, route) => panic!("sent by {route:?}, arrived with {grh:?}"),
    }
    // The memory of the first datagram is posted again for the next one.
    let whole = arrived.datagram.into_buffer();
    assert_eq!(whole.len(), Grh::LEN + 8);
    b.qp.post_recv(whole, 9).unwrap();
    a.qp.post_send(op::send_inline(b"again").to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let arrived = b.arrived();
    assert_eq!((arrived.token, &arrived.datagram[..]), (9, &b"again"[..]));
}

#[test]
fn a_server_answers_by_what_the_completion_says() {
    let Some((mut client, mut server)) = two() else { return };
    let to_server = client.address_of(&server);
    for round in 0..3_u64 {
        server.receive(64, 0);
        client.receive(64, round);
        client.qp.post_send(op::send_inline(b"question").to(&to_server, server.endpoint.qpn, QKEY)).unwrap();
        let source = *server.arrived().datagram.source();
        let back = match round {
            0 => server.qp.answer(&source).unwrap(),
            1 => server.pd.create_ah_for(server.port, &source).unwrap(),
            _ => {
                // An address built by hand, from the GID that the bring-up chose.
                let index = server.qp.path_to(&client.endpoint).unwrap().route.map_or(0, |route| route.source_index);
                server.pd.create_ah(&source.path(server.port, index)).unwrap()
            }
        };
        server.qp.post_send(op::send_inline(b"answer").to(&back, source.qpn, QKEY)).unwrap();
        let arrived = client.arrived();
        assert_eq!((arrived.token, &arrived.datagram[..]), (round, &b"answer"[..]));
        assert_eq!(arrived.datagram.source().qpn, server.qp.qpn());
        assert_eq!((client.sent().1, server.sent().1), (Ok(()), Ok(())));
    }
}

#[test]
fn immediate_data_arrives_in_host_order() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.receive(8, 0);
    b.receive(8, 0);
    a.qp.post_send(op::send_imm(buffer(&a.pd, b"four"), 0x0102_0304).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    a.qp.post_send(op::send_imm_inline(b"", 7).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let arrived = b.arrived();
    assert_eq!((arrived.imm, &arrived.datagram[..]), (Some(0x0102_0304), &b"four"[..]));
    let arrived = b.arrived();
    assert_eq!((arrived.imm, arrived.datagram.len()), (Some(7), 0));
}

#[test]
fn a_segment_behind_that_of_the_header_is_no_datagram() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.qp.post_recv([b.pd.allocate(Grh::LEN).unwrap(), b.pd.allocate(1000).unwrap()], 0).unwrap();
    let content = pattern(100, 4);
    a.qp.post_send(op::send(buffer(&a.pd, &content)).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let mut received = b.receives.wait(Some(LIMIT)).unwrap().expect("a datagram");
    assert_eq!((received.status(), received.byte_len()), (Ok(()), Grh::LEN + 100));
    assert!(received.received().expect("the segment of the header").is_empty());
    assert!(received.received().is_none() && received.take_datagram().is_none());
    assert!(received.take_buffer().expect("the segment of the payload")[..100] == content[..]);
}

#[test]
fn another_queue_key_is_dropped_and_nobody_is_told() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.receive(8, 0);
    a.qp.post_send(op::send_inline(b"wrong").to(&address, b.endpoint.qpn, QKEY ^ 1)).unwrap();
    assert_eq!(a.sent().1, Ok(()));
    a.qp.post_send(op::send_inline(b"right").to(&address, b.endpoint.qpn, QKEY)).unwrap();
    assert_eq!(&b.arrived().datagram[..], b"right");
    assert_eq!((a.qp.state().unwrap(), b.qp.state().unwrap()), (QpState::RTS, QpState::RTS));
}

#[test]
fn the_senders_own_queue_key_stands_for_those_with_the_highest_bit() {
    let Some(opened) = open() else { return };
    let (mut a, mut b) = (Post::new(&opened), Post::new(&opened));
    let address = a.address_of(&b);
    b.receive(8, 0);
    a.qp.post_send(op::send_inline(b"own").to(&address, b.endpoint.qpn, 0xffff_ffff)).unwrap();
    assert_eq!(&b.arrived().datagram[..], b"own");
}

#[test]
fn without_a_receive_it_is_dropped_and_the_next_one_arrives() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    a.qp.post_send(op::send_inline(b"early").to(&address, b.endpoint.qpn, QKEY)).unwrap();
    assert_eq!(a.sent().1, Ok(()));
    assert!(b.is_silent());
    b.receive(8, 5);
    a.qp.post_send(op::send_inline(b"late").to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let arrived = b.arrived();
    assert_eq!((arrived.token, &arrived.datagram[..]), (5, &b"late"[..]));
}

#[test]
fn a_queue_pair_that_is_not_there_is_no_error() {
    let Some((mut a, b)) = two() else { return };
    let (address, qpn) = (a.address_of(&b), b.endpoint.qpn);
    drop(b);
    a.qp.post_send(op::send_inline(b"anybody?").to(&address, qpn, QKEY)).unwrap();
    assert_eq!(a.sent().1, Ok(()));
    assert_eq!(a.qp.state().unwrap(), QpState::RTS);
}

#[test]
fn a_message_that_is_too_long_is_refused_and_handed_back() {
    let Some((mut a, mut b)) = two() else { return };
    let (address, mtu) = (a.address_of(&b), a.qp.max_message());
    b.receive(mtu, 0);
    let content = pattern(mtu + 1, 1);
    let send = op::send(buffer(&a.pd, &content)).to(&address, b.endpoint.qpn, QKEY);
    let refused = a.qp.post_send(send).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLong);
    let mut back = refused.into_memory().expect("handed back");
    assert!(back[..] == content[..]);
    back.truncate(mtu);
    a.qp.post_send(op::send(back).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    assert!(b.arrived().datagram[..] == content[..mtu]);
}

#[test]
fn a_receive_that_is_too_small_does_not_get_it() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.receive(4, 0);
    a.qp.post_send(op::send(buffer(&a.pd, b"five!")).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    // The sender gets no error. The receiver reports an error or drops the message.
    assert_eq!(a.sent().1, Ok(()));
    if let Some(done) = b.receives.wait(Some(Duration::from_millis(100))).unwrap() {
        let error = done.status().expect_err("it does not fit");
        // rxe reports the second status.
        assert!(matches!(error.status, WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR), "{error}");
        return;
    }
    assert_eq!(b.qp.state().unwrap(), QpState::RTS);
    a.qp.post_send(op::send(buffer(&a.pd, b"four")).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    assert_eq!(&b.arrived().datagram[..], b"four");
}

#[test]
fn many_send_to_one_and_each_gets_its_answer() {
    let Some(opened) = open() else { return };
    let mut server = Post::new(&opened);
    let mut clients: Vec<Post> = (0..4).map(|_| Post::new(&opened)).collect();
    for round in 0..3 {
        for token in 0..clients.len() as u64 {
            server.receive(64, token);
        }
        for (number, client) in (0..).zip(&mut clients) {
            let to_server = client.address_of(&server);
            client.receive(64, number);
            let question = [round, u8::try_from(number).unwrap()];
            client.qp.post_send(op::send_inline(&question).to(&to_server, server.endpoint.qpn, QKEY)).unwrap();
            // The address handle is dropped before the send's completion is polled.
        }
        for _ in 0..clients.len() {
            let arrived = server.arrived();
            let source = *arrived.datagram.source();
            let client = clients.iter().position(|client| client.endpoint.qpn == source.qpn).expect("one of ours");
            assert_eq!(arrived.datagram[..], [round, u8::try_from(client).unwrap()]);
            let back = server.qp.answer(&source).unwrap();
            server.qp.post_send(op::send(buffer(&server.pd, &arrived.datagram)).to(&back, source.qpn, QKEY)).unwrap();
        }
        for (number, client) in (0..).zip(&mut clients) {
            assert_eq!(client.arrived().datagram[..], [round, number]);
            assert_eq!(client.sent().1, Ok(()));
        }
        for _ in 0..clients.len() {
            assert_eq!(server.sent().1, Ok(()));
        }
    }
}

#[test]
fn unsignaled_and_batched_datagrams_come_back_with_the_next_signaled_one() {
    let Some((mut a, mut b)) = two() else { return };
    let (address, qpn) = (a.address_of(&b), b.endpoint.qpn);
    for token in 0..6 {
        b.receive(8, token);
    }
    for token in 0..3 {
        a.qp.post_send(op::send(buffer(&a.pd, &[7])).token(token).unsignaled().to(&address, qpn, QKEY)).unwrap();
    }
    let mut batch = a.qp.batch();
    batch.push(op::send_inline(&[8]).token(3).unsignaled().to(&address, qpn, QKEY)).unwrap();
    batch.push(op::send(buffer(&a.pd, &[9])).token(4).to(&address, qpn, QKEY)).unwrap();
    batch.submit().unwrap();
    let done = rdma_tests::wait(&mut a.sends);
    assert_eq!((done.status, done.token, done.unsignaled), (Ok(()), 4, vec![0, 1, 2, 3]));
    let arrived: Vec<u8> = (0..5).map(|_| b.arrived().datagram[0]).collect();
    assert_eq!(arrived, [7, 7, 7, 8, 9]);
}

#[test]
fn lists_are_gathered_and_scattered_behind_the_header() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    // One segment takes the GRH, and one the payload.
    b.qp.post_recv([b.pd.allocate(Grh::LEN).unwrap(), b.pd.allocate(8).unwrap()], 0).unwrap();
    let parts = [buffer(&a.pd, b"gath"), buffer(&a.pd, b"ered")];
    a.qp.post_send(op::send(parts).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    let mut done = b.receives.wait(Some(LIMIT)).unwrap().expect("in time");
    assert_eq!((done.status(), done.byte_len(), done.opcode()), (Ok(()), Grh::LEN + 8, Opcode::Recv));
    assert_eq!(done.source().unwrap().qpn, a.qp.qpn());
    assert!(done.take_datagram().unwrap().is_empty());
    assert_eq!(&done.take_buffer().unwrap()[..], b"gathered");
}

#[test]
fn lent_memory_is_sent_in_a_scope() {
    let Some((mut a, mut b)) = two() else { return };
    let address = a.address_of(&b);
    b.receive(8, 0);
    let memory = buffer(&a.pd, b"lent");
    let qpn = b.endpoint.qpn;
    a.qp.scope(&mut a.sends, LIMIT, |scope| {
        scope.post_send(op::send(memory.lend(..)).to(&address, qpn, QKEY)).map_err(|refused| refused.error())
    })
    .unwrap()
    .unwrap();
    assert_eq!(&b.arrived().datagram[..], b"lent");
    drop(memory);
}

#[test]
fn handles_that_are_dropped_with_requests_under_way_do_no_harm() {
    let Some((mut a, mut b)) = two() else { return };
    let qpn = b.endpoint.qpn;
    for round in 0..20_u8 {
        for token in 0..8 {
            b.receive(8, token);
        }
        for number in 0..8_u8 {
            let address = a.address_of(&b);
            let send = op::send(buffer(&a.pd, &[round, number])).signaled(number % 3 == 0);
            a.qp.post_send(send.to(&address, qpn, QKEY)).unwrap();
            drop(address);
        }
        for number in 0..8 {
            assert_eq!(b.arrived().datagram[..], [round, number]);
        }
        for _ in 0..3 {
            assert_eq!(a.sent().1, Ok(()));
        }
    }
}

#[test]
fn a_queue_pair_that_is_closed_with_requests_under_way_frees_everything() {
    let Some(opened) = open() else { return };
    let mut b = Post::new(&opened);
    for round in 0..10 {
        let mut a = Post::new(&opened);
        let address = a.address_of(&b);
        b.receive(64, 0);
        for token in 0..8 {
            a.receive(64, token);
            a.qp.post_send(op::send(buffer(&a.pd, &[1; 64])).to(&address, b.endpoint.qpn, QKEY)).unwrap();
        }
        match round % 3 {
            0 => a.qp.close().unwrap(),
            1 => drop(a.qp.reset().unwrap()),
            _ => drop(a.qp),
        }
        address.close().unwrap();
        drop((a.sends, a.receives));
        a.pd.close().unwrap();
        // The first datagram may have left before the queue pair was destroyed, or all may have
        // been flushed.
        while b.receives.wait(Some(Duration::from_millis(5))).unwrap().is_some() {}
        let reset = b.qp.reset().unwrap().init(&DatagramOptions::new(QKEY).port(opened.port)).unwrap();
        b.qp = reset.ready().unwrap().into();
    }
}

#[test]
fn an_error_flushes_everything_in_order_and_hands_it_back() {
    let Some((mut a, b)) = two() else { return };
    let address = a.address_of(&b);
    for token in 0..5 {
        a.receive(8, token);
    }
    a.qp.set_error().unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"late")).token(50).to(&address, b.endpoint.qpn, QKEY)).unwrap();
    for token in 0..5 {
        let done = rdma_tests::wait(&mut a.receives);
        assert_eq!((done.status.unwrap_err().status, done.token), (WcStatus::WR_FLUSH_ERR, token));
        assert_eq!(done.buffers.len(), 1);
    }
    let done = rdma_tests::wait(&mut a.sends);
    assert_eq!((done.status.unwrap_err().status, done.token, done.buffers.len()), (WcStatus::WR_FLUSH_ERR, 50, 1));
}

#[test]
fn events_wake_a_sleeper() {
    let Some(opened) = open() else { return };
    let mut a = Post::new(&opened);
    let channel = opened.context.create_completion_channel().unwrap();
    let cq = opened.context.cq_builder(32).channel(&channel).build().unwrap();
    let pd = opened.context.alloc_pd().unwrap();
    let options = DatagramOptions::new(QKEY).port(opened.port);
    let mut b = QueuePair::datagram(&pd).cq(&cq).build().unwrap().init(&options).unwrap();
    b.post_recv(pd.allocate(Grh::LEN + 8).unwrap(), 0).unwrap();
    b.post_recv(pd.allocate(Grh::LEN + 8).unwrap(), 1).unwrap();
    let b = b.ready().unwrap();
    let address = a.qp.address_of(&b.endpoint().unwrap()).unwrap();
    cq.request_notify(true).unwrap();
    assert_eq!(channel.next_event(Some(Duration::from_millis(10))).unwrap(), None, "nothing has happened");
    let sleeper = std::thread::spawn({
        let channel = channel.clone();
        move || channel.next_event(Some(LIMIT)).unwrap()
    });
    // The first datagram is unsolicited and does not wake the sleeper.
    a.qp.post_send(op::send_inline(b"plain").to(&address, b.qpn(), QKEY)).unwrap();
    a.qp.post_send(op::send_inline(b"wake").to(&address, b.qpn(), QKEY).solicited()).unwrap();
    assert_eq!(sleeper.join().unwrap(), Some(cq.id()));
    let mut poller = cq.poller();
    for expected in [&b"plain"[..], b"wake"] {
        let mut done = poller.wait(Some(LIMIT)).unwrap().expect("in time");
        assert_eq!(&done.take_datagram().unwrap()[..], expected);
    }
}

#[test]
fn a_queue_pair_works_again_after_a_reset_and_with_another_key() {
    let Some(opened) = open() else { return };
    let (mut a, mut b) = (Post::new(&opened), Post::new(&opened));
    let address = a.address_of(&b);
    b.receive(8, 1);
    let reset = b.qp.reset().unwrap().init(&DatagramOptions::new(0x77).port(opened.port)).unwrap();
    b.qp = reset.ready().unwrap().into();
    assert_eq!(b.qp.query().unwrap().qkey(), 0x77);
    b.receive(8, 2);
    a.qp.post_send(op::send_inline(b"old").to(&address, b.qp.qpn(), QKEY)).unwrap();
    a.qp.post_send(op::send_inline(b"new").to(&address, b.qp.qpn(), 0x77)).unwrap();
    let arrived = b.arrived();
    assert_eq!((arrived.token, &arrived.datagram[..]), (2, &b"new"[..]));
}

#[test]
fn what_is_posted_before_it_is_ready_is_there_when_it_is() {
    let Some(opened) = open() else { return };
    let mut a = Post::new(&opened);
    let (mut qp, [_, receives], pd) = initialized(&opened, QKEY);
    qp.post_recv(pd.allocate(Grh::LEN + 8).unwrap(), 3).unwrap();
    let refused = qp.post_recv(pd.allocate(Grh::LEN - 1).unwrap(), 4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfBounds);
    let qp = qp.ready().unwrap();
    let address = a.qp.address_of(&qp.endpoint().unwrap()).unwrap();
    a.qp.post_send(op::send_inline(b"first").to(&address, qp.qpn(), QKEY)).unwrap();
    let mut poller = receives.poller();
    let mut done = poller.wait(Some(LIMIT)).unwrap().expect("in time");
    assert_eq!((done.token(), &done.take_datagram().unwrap()[..]), (3, &b"first"[..]));
}

#[test]
fn raw_requests_go_to_an_address_too() {
    let Some(opened) = open() else { return };
    let mut b = Post::new(&opened);
    b.receive(8, 0);
    let (pd, context) = (opened.context.alloc_pd().unwrap(), &opened.context);
    let cq = context.create_raw_cq(64, None).unwrap();
    let options = DatagramOptions::new(QKEY).port(opened.port);
    let qp = QueuePair::datagram(&pd).raw_cq(&cq).max_inline_data(8).build().unwrap();
    let qp = qp.init(&options).unwrap().ready().unwrap();
    let address = qp.address_of(&b.endpoint).unwrap();
    let mut qp = qp.into_raw().unwrap();
    let mut memory = buffer(&pd, b"raw");
    let mut sge = rdma_sys::ibv_sge { addr: memory.address(), length: 3, lkey: memory.lkey() };
    let mut wr = rdma_sys::ibv_send_wr {
        wr_id: 7,
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode: rdma_sys::ibv_wr_opcode::IBV_WR_SEND,
        send_flags: rdma_sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    wr.wr.ud.ah = address.as_raw();
    wr.wr.ud.remote_qpn = b.endpoint.qpn;
    wr.wr.ud.remote_qkey = QKEY;
    // SAFETY: a raw post requires valid requests, and memory and address handles that outlive the
    // completions: `wr` is one request, and its completion is awaited below, before the memory and
    // the handle are dropped.
    unsafe { qp.post_send(&raw mut wr) }.unwrap();
    assert_eq!(&b.arrived().datagram[..], b"raw");
    let mut room = [rdma_sys::ibv_wc::default(); 2];
    let end = std::time::Instant::now() + LIMIT;
    let done = loop {
        if let [done] = cq.poll(&mut room).unwrap() {
            break *done;
        }
        assert!(std::time::Instant::now() < end, "no completion in time");
    };
    assert_eq!((done.wr_id, done.status), (7, rdma_sys::ibv_wc_status::IBV_WC_SUCCESS));
    memory[0] = 0;
}

/// Creates three queue pairs, or skips the test: groups over InfiniBand need a LID from the subnet
/// manager, which only a join yields.
fn three() -> Option<[Post; 3]> {
    let opened = open()?;
    if opened.context.port_attr(opened.port).unwrap().link_layer() != rdma::LinkLayer::ETHERNET {
        skip("a group must be joined on InfiniBand");
        return None;
    }
    Some([(); 3].map(|()| Post::new(&opened)))
}

#[test]
fn a_group_reaches_all_that_are_attached_and_nobody_else() {
    let Some([mut a, mut b, mut c]) = three() else { return };
    let gid = group(&a, 1);
    let _joined = join(&a, gid);
    let address = address_of_group(&a, gid);
    let of_b = b.qp.attach_multicast(gid, Lid::NONE).unwrap();
    let of_c = c.qp.attach_multicast(gid, Lid::NONE).unwrap();
    for post in [&mut a, &mut b, &mut c] {
        post.receive(64, 0);
        post.receive(64, 1);
    }
    a.qp.post_send(op::send(buffer(&a.pd, b"to all")).to(&address, MULTICAST_QPN, QKEY)).unwrap();
    for post in [&mut b, &mut c] {
        let arrived = post.arrived();
        assert_eq!(&arrived.datagram[..], b"to all");
        let source = *arrived.datagram.source();
        assert_eq!(source.qpn, a.endpoint.qpn);
        let grh = source.grh.expect("multicast is by GID");
        assert!(source.is_to_a_group(), "{grh:?}");
        assert_eq!(Some(grh.source_gid()), a.endpoint.gid);
        // ibv_init_ah_from_wc refuses datagrams to a group; the queue pair builds the address
        // itself.
        assert_eq!(source.query_path(&post.context, post.port).unwrap_err().kind(), ErrorKind::NotFound);
        let back = post.qp.answer(&source).unwrap();
        post.qp.post_send(op::send_inline(b"here").to(&back, source.qpn, QKEY)).unwrap();
        assert_eq!(&a.arrived().datagram[..], b"here", "and the message to the group did not come to its sender");
    }
    assert_eq!(a.sent().1, Ok(()));

    of_b.detach().unwrap();
    a.qp.post_send(op::send_inline(b"to one").to(&address, MULTICAST_QPN, QKEY)).unwrap();
    assert_eq!(&c.arrived().datagram[..], b"to one");
    assert!(b.is_silent());
    drop(of_c);
    c.qp.close().unwrap();
}

#[test]
fn a_group_drops_other_keys_and_reaches_its_sender_if_attached() {
    let Some([mut a, mut b, _]) = three() else { return };
    let gid = group(&a, 2);
    let _joined = join(&a, gid);
    let address = address_of_group(&a, gid);
    let _of_a = a.qp.attach_multicast(gid, Lid::NONE).unwrap();
    let _of_b = b.qp.attach_multicast(gid, Lid::NONE).unwrap();
    a.receive(64, 0);
    b.receive(64, 0);
    a.qp.post_send(op::send_inline(b"wrong").to(&address, MULTICAST_QPN, QKEY ^ 1)).unwrap();
    a.qp.post_send(op::send_imm_inline(b"right", 9).to(&address, MULTICAST_QPN, QKEY)).unwrap();
    for post in [&mut a, &mut b] {
        let arrived = post.arrived();
        assert_eq!((arrived.imm, &arrived.datagram[..]), (Some(9), &b"right"[..]));
    }
}

#[test]
fn attachments_end_in_any_order() {
    let Some([a, b, c]) = three() else { return };
    let gid = group(&a, 3);
    let first = a.qp.attach_multicast(gid, Lid::NONE).unwrap();
    let second = a.qp.attach_multicast(gid, Lid::NONE).unwrap();
    drop(first);
    second.detach().unwrap();
    let outlives = b.qp.attach_multicast(gid, Lid::NONE).unwrap();
    b.qp.close().unwrap();
    outlives.detach().unwrap();
    // Leaks the attachment: the queue pair detaches before it is destroyed.
    let forgotten = Box::leak(Box::new(c.qp.attach_multicast(gid, Lid::NONE).unwrap()));
    assert_eq!(forgotten.gid(), gid);
    c.qp.close().unwrap();
    let refused = a.qp.attach_multicast("fe80::1".parse().unwrap(), Lid::NONE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}
