//! Requests that are refused before they are posted, and the limits of a full queue.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::error::ErrorKind;
use crate::testing::fail;
use crate::{Memory, Pages, RegisterOptions, RemoteAccess};

fn kind<O: op::Operation, L: Owned>(rig: &mut Rig, work: op::Work<O, L>) -> ErrorKind {
    let before = rig.posted().len();
    let error = rig.qp.post_send(work).unwrap_err();
    assert_eq!(rig.posted().len(), before);
    let kind = error.kind();
    assert!(error.into_memory().is_some(), "the request comes back");
    kind
}

#[test]
fn bad_requests_come_back_before_they_are_posted() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(65);
    assert_eq!(kind(&mut rig, op::write(buffer, remote())), ErrorKind::OutOfBounds);
    let buffer = rig.buffer(65);
    assert_eq!(kind(&mut rig, op::read(buffer, remote())), ErrorKind::OutOfBounds);
    let buffers = [(); 4].map(|()| rig.buffer(1).split_off(1));
    assert_eq!(kind(&mut rig, op::send(buffers)), ErrorKind::TooManySegments);
    assert_eq!(kind(&mut rig, op::send_inline(&[0; 33])), ErrorKind::TooLong);
    let buffer = rig.buffer(33);
    assert_eq!(kind(&mut rig, op::send(buffer).copied()), ErrorKind::TooLong);
    let buffer = rig.buffer(9);
    assert_eq!(kind(&mut rig, op::fetch_add(buffer, remote(), 1)), ErrorKind::InvalidInput);
    let buffer = rig.buffer(8);
    let unaligned = remote().slice(4..12).unwrap();
    assert_eq!(kind(&mut rig, op::compare_swap(buffer, unaligned, 0, 1)), ErrorKind::InvalidInput);
    let buffer = rig.buffer(8);
    let short = remote().slice(8..15).unwrap();
    assert_eq!(kind(&mut rig, op::fetch_add(buffer, short, 1)), ErrorKind::OutOfBounds);
    let halves = [rig.buffer(4), rig.buffer(4)];
    assert_eq!(kind(&mut rig, op::fetch_add(halves, remote(), 1)), ErrorKind::InvalidInput);

    let other = rig.pd.context().alloc_pd().unwrap();
    let foreign = other.allocate(8).unwrap();
    assert_eq!(kind(&mut rig, op::send(foreign)), ErrorKind::InvalidInput);
    let foreign = other.allocate(8).unwrap();
    assert_eq!(rig.qp.post_recv(foreign, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    drop(rig);
    assert_eq!(regions(), 0);
}

#[test]
fn bytes_that_are_only_borrowed_are_always_posted_inline() {
    let mut rig = Rig::new();
    let taken_out = op::send_inline(b"gone soon").local;
    rig.qp.post_send(op::send(taken_out)).unwrap();
    rig.qp.post_send(op::write([taken_out, taken_out], remote())).unwrap();
    let mut batch = rig.qp.batch();
    batch.push(op::send_imm((taken_out, taken_out), 1)).unwrap();
    batch.submit().unwrap();
    let flags: Vec<_> = rig.posted().iter().map(|posted| posted.flags).collect();
    assert!(flags.iter().all(|flags| flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0), "{flags:x?}");
    let long = op::send_inline(&[0; 17]).local;
    assert_eq!(kind(&mut rig, op::send([long, long])), ErrorKind::TooLong);
}

#[test]
fn part_of_a_buffer_is_sent_and_the_whole_comes_back() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(16);
    let address = buffer.address();
    rig.qp.post_send(op::send(buffer.part(4..9))).unwrap();
    let sge = rig.posted()[0].sges[0];
    assert_eq!((sge.addr, sge.length), (address + 4, 5));
    rig.succeed(0);
    let whole = rig.poller.poll().unwrap().unwrap().take_buffer().unwrap();
    assert_eq!((whole.address(), whole.len()), (address, 16));
    fail("post_send", libc::EINVAL);
    let whole = rig.qp.post_send(op::send(whole.part(..1))).unwrap_err().into_memory().unwrap();
    assert_eq!(whole.len(), 16);
    // The part is small enough to be copied, though the whole buffer is not.
    let long = rig.buffer(64);
    rig.qp.post_send(op::send(long.part(..32)).copied()).unwrap();
}

#[test]
fn room_is_what_can_be_posted() {
    let mut rig = Rig::new();
    assert_eq!((rig.qp.send_queue().room(), rig.qp.recv_queue().room()), (SEND_DEPTH, RECV_DEPTH));
    for token in 0..SEND_DEPTH {
        assert_eq!(rig.qp.send_queue().room(), SEND_DEPTH - token);
        rig.send(token.into(), true);
    }
    rig.qp.post_recv(rig.buffer(1), 0).unwrap();
    assert_eq!((rig.qp.send_queue().room(), rig.qp.recv_queue().room()), (0, RECV_DEPTH - 1));
    // A free slot further on does not help: requests take slots in order.
    rig.succeed(1);
    assert!(rig.next().is_some());
    assert_eq!(rig.qp.send_queue().room(), 0);
    rig.succeed(0);
    assert!(rig.next().is_some());
    assert_eq!(rig.qp.send_queue().room(), 2);
}

#[test]
fn posting_waits_for_room() {
    let mut rig = Rig::new();
    for token in 0..SEND_DEPTH {
        rig.send(token.into(), true);
    }
    let (short, long) = (Duration::from_millis(5), Duration::from_secs(60));
    let Rig { pd, cq, poller, qp } = &mut rig;
    let buffer = pd.allocate(16).unwrap();
    let refused = qp.post_send_or_wait(op::send(buffer), poller, short, |_| unreachable!()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QueueFull);
    let buffer = refused.into_memory().unwrap();
    let first = testing::posted(qp.as_raw())[0].wr_id;
    testing::complete(cq.as_raw(), wc(first, ibv_wc_status::IBV_WC_SUCCESS, qp.qpn()));
    let mut tokens = Vec::new();
    let work = op::send(buffer).token(100);
    qp.post_send_or_wait(work, poller, long, |completion| tokens.push(completion.token())).unwrap();
    assert_eq!(tokens, [0]);
    let stranger = pd.context().create_cq(1).unwrap();
    let work = op::send_inline(b"x");
    let error = qp.post_send_or_wait(work, &mut stranger.poller(), long, |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn errors_of_inline_posts_borrow_nothing() {
    fn post(qp: &mut QueuePair<Rc>) -> Result<(), Box<dyn std::error::Error>> {
        let bytes = [7; 33];
        qp.post_send(op::send_inline(&bytes))?;
        Ok(())
    }
    assert!(post(&mut Rig::new().qp).is_err());
}

#[test]
fn an_empty_piece_is_parked_but_not_shown_to_the_device() {
    let mut rig = Rig::new();
    let pieces = (rig.buffer(3), rig.buffer(5).split_off(5), rig.buffer(4));
    rig.qp.post_send(op::send(pieces)).unwrap();
    let lengths: Vec<_> = rig.posted()[0].sges.iter().map(|sge| sge.length).collect();
    assert_eq!(lengths, [3, 4]);
    rig.qp.post_recv((), 1).unwrap();
    assert!(rig.posted()[1].sges.is_empty());
    rig.succeed(0);
    assert_eq!(rig.next(), Some((0, 3, vec![])));
    rig.succeed(1);
    assert_eq!(rig.next(), Some((1, 0, vec![])));
}

#[test]
fn a_full_queue_refuses_until_completions_are_polled() {
    let mut rig = Rig::new();
    for round in 0..5 {
        let start = rig.posted().len();
        for token in 0..u64::from(SEND_DEPTH) {
            rig.send(token, true);
        }
        let buffer = rig.buffer(1);
        assert_eq!(kind(&mut rig, op::send(buffer)), ErrorKind::QueueFull);
        assert_eq!(rig.qp.batch().push(op::send(())).unwrap_err().kind(), ErrorKind::QueueFull);
        for at in 0..SEND_DEPTH as usize {
            rig.succeed(start + at);
            let mut completion = rig.poller.poll().unwrap().unwrap();
            assert_eq!(completion.token(), at as u64, "round {round}");
            // The slot is free while the completion is still held.
            let buffer = completion.take_buffer().unwrap();
            rig.qp.post_send(op::send(buffer)).unwrap();
        }
        rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    }
}

#[test]
fn unsignaled_requests_alone_never_fill_a_queue_for_good() {
    let mut rig = Rig::new();
    let mut completed = 0;
    for token in 0..100 {
        let buffer = rig.buffer(1);
        if rig.qp.post_send(op::send(buffer).token(token).unsignaled()).is_err() {
            // The queue is full: a signaled request is in flight whose completion makes room.
            let posted = rig.posted();
            let signaled: Vec<_> = (completed..posted.len()).filter(|&at| is_signaled(&posted[at])).collect();
            assert!(!signaled.is_empty());
            completed = signaled[0] + 1;
            rig.succeed(signaled[0]);
            let mut completion = rig.poller.poll().unwrap().unwrap();
            while completion.next_unsignaled().is_some() {}
            rig.send(token, false);
        }
    }
    assert!(regions() <= SEND_DEPTH as isize);
}

#[test]
fn queue_pairs_reserve_their_depths_in_the_completion_queue() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(20).unwrap();
    let build = || QueuePair::builder(&pd).cq(&cq).max_send_wr(8).max_recv_wr(4).build();
    let first = build().unwrap();
    let needed = ErrorKind::CompletionQueueTooSmall { needed: 4, free: 0 };
    assert_eq!(build().unwrap_err().kind(), needed);
    // A queue pair that could not be created frees its reservation.
    drop(first);
    fail("create_qp", libc::ENOMEM);
    build().unwrap_err();
    let first = build().unwrap();
    build().unwrap_err();
    drop(first);
    build().unwrap();
}

/// Creates a queue pair with a receive, destroys it, and leaves its flushed completion in the
/// provider's queue.
fn come_and_go(pd: &ProtectionDomain, cq: &CompletionQueue) {
    let mut qp = QueuePair::builder(pd).cq(cq).max_send_wr(2).max_recv_wr(2).build().unwrap().into_manual();
    qp.post_recv((), 0).unwrap();
    let wr_id = testing::posted(qp.as_raw())[0].wr_id;
    drop(qp);
    testing::complete(cq.as_raw(), wc(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0));
}

#[test]
fn what_destroyed_queue_pairs_left_behind_never_overruns_the_queue() {
    let rounds = if cfg!(miri) { 100 } else { 100_000 };
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    for _ in 0..rounds {
        come_and_go(&pd, &cq);
        assert!(testing::pending(cq.as_raw()) <= 16);
    }
    // Only the creation of queue pairs that needed space has polled.
    assert!(cq.stale_completions() >= rounds - 4);
}

#[test]
fn a_poll_that_finds_the_queue_empty_frees_what_destroyed_queue_pairs_had_reserved() {
    let context = testing::context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(8).unwrap();
    let mut poller = cq.poller();
    let polls = || testing::calls().iter().filter(|&&call| call == "poll_cq").count();
    come_and_go(&pd, &cq);
    assert!(poller.poll().unwrap().is_none());
    let before = polls();
    let other = QueuePair::builder(&pd).cq(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
    assert_eq!(polls(), before, "there is room already");
    drop(other);
    // Creation fails if the poll that would free the space fails.
    fail("poll_cq", libc::EIO);
    let error = QueuePair::builder(&pd).cq(&cq).build().unwrap_err();
    assert_eq!(error.verb(), Verb::PollCq);
    QueuePair::builder(&pd).cq(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap();
}

#[test]
fn reads_on_iwarp_need_an_exposed_sink() {
    let mut rig = Rig::new();
    rig.qp.send.pretend_iwarp();
    let buffer = rig.buffer(8);
    assert_eq!(kind(&mut rig, op::read(buffer, remote())), ErrorKind::NotSupported);
    let readable = rig.pd.allocate_exposed(8, RemoteAccess::READ).unwrap();
    let sink = readable.slice(..).unwrap();
    assert_eq!(kind(&mut rig, op::read(sink, remote())), ErrorKind::NotSupported);
    let writable = rig.pd.allocate_exposed(8, RemoteAccess::WRITE).unwrap();
    let sink = writable.slice(..).unwrap();
    rig.qp.post_send(op::read(sink, remote())).unwrap();
    // If the list is empty, siw reads as many bytes as the list of an earlier request says.
    rig.qp.post_send(op::read(writable.slice(..0).unwrap(), remote())).unwrap();
    let posted = rig.posted();
    let [_, empty] = &posted[..] else { panic!("{posted:?}") };
    let [element] = &empty.sges[..] else { panic!("{empty:?}") };
    assert_eq!((element.addr, element.length, element.lkey), (0, 0, 0));
}

/// The provider would copy to the address that the device knows, where there is other memory.
#[test]
fn memory_with_a_chosen_address_does_not_receive_what_the_processor_would_write() {
    let mut rig = Rig::new();
    let options = RegisterOptions::new().remote_access(RemoteAccess::all()).iova(0);
    let region = rig.pd.register_exposed_with(Pages::new(4096).unwrap(), &options).unwrap();
    let slice = || region.slice(8..16).unwrap();
    rig.qp.recv.processor_writes = false;
    rig.qp.post_recv(slice(), 1).unwrap();
    assert_eq!((rig.posted()[0].sges[0].addr, rig.posted()[0].sges[0].length), (8, 8));
    rig.qp.recv.processor_writes = true;
    let error = rig.qp.post_recv(slice(), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("a chosen iova"), "{error}");
    assert_eq!(rig.qp.post_recv((rig.buffer(8), slice()), 3).unwrap_err().kind(), ErrorKind::NotSupported);
    assert_eq!(rig.qp.post_recv(vec![slice()], 3).unwrap_err().kind(), ErrorKind::NotSupported);
    assert_eq!(rig.qp.post_recv(slice().into_sink(), 4).unwrap_err().kind(), ErrorKind::NotSupported);
    let plain = rig.pd.allocate_exposed(64, RemoteAccess::all()).unwrap();
    rig.qp.post_recv(plain.slice(..8).unwrap(), 4).unwrap();

    rig.qp.send.limits.processor_writes = true;
    assert_eq!(kind(&mut rig, op::read(slice(), remote())), ErrorKind::NotSupported);
    assert_eq!(kind(&mut rig, op::fetch_add(slice(), remote(), 1)), ErrorKind::NotSupported);
    // The device reads it by its address.
    rig.qp.post_send(op::send(slice())).unwrap();
    assert_eq!(rig.posted().last().unwrap().sges[0].addr, 8);
    rig.qp.send.limits.processor_writes = false;
    rig.qp.post_send(op::read(slice(), remote())).unwrap();
    assert_eq!(rig.posted().last().unwrap().sges[0].addr, 8);
}

#[test]
fn a_reset_on_iwarp_gives_nothing_back() {
    for receive in [false, true] {
        let mut rig = Rig::new();
        rig.qp.send.pretend_iwarp();
        if receive {
            rig.qp.post_recv(rig.buffer(16), 1).unwrap();
        } else {
            rig.send(1, true);
        }
        let resets = || testing::calls().iter().filter(|&&call| call == "modify_qp").count();
        let before = resets();
        let failed = rig.qp.reset().unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::InUse);
        assert!(failed.error.to_string().contains("make a new one"), "{}", failed.error);
        rig.qp = failed.object;
        assert_eq!(rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap_err().kind(), ErrorKind::InUse);
        // Neither the device nor any memory was touched.
        assert_eq!((resets(), regions()), (before, 1));
        rig.complete(rig.wr_id(0), ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        assert_eq!(rig.next().map(|(token, ..)| token), Some(1));
        rig.qp.reset().unwrap();
    }
}

#[test]
fn an_exposed_region_is_not_revoked_while_it_is_in_flight() {
    let mut rig = Rig::new();
    let region = rig.pd.allocate_exposed(64, RemoteAccess::WRITE | RemoteAccess::ATOMIC).unwrap();
    region.store_u64(8, 77, Ordering::Release).unwrap();
    rig.qp.post_send(op::fetch_add(region.slice(8..16).unwrap(), remote(), 1)).unwrap();
    let error = region.revoke().unwrap_err();
    assert_eq!(error.error.kind(), ErrorKind::InUse);
    let region = error.region.unwrap();
    rig.succeed(0);
    let mut completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!(completion.old_value(), Some(77));
    assert!(completion.take_buffer().is_none());
    drop(completion.take_exposed().unwrap());
    let memory: Memory = region.revoke().unwrap();
    assert_eq!(memory[8..16], 77_u64.to_ne_bytes());
    assert_eq!(regions(), 0);
    // The memory may be used again.
    let buffer = rig.pd.register(memory).unwrap();
    assert_eq!(buffer[8], 77_u64.to_ne_bytes()[0]);
}

#[test]
fn completions_tell_what_came() {
    let mut rig = Rig::new();
    let buffer = rig.buffer(16);
    rig.qp.post_recv(buffer, 1).unwrap();
    rig.qp.post_recv((), 2).unwrap();
    let flags = rdma_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
    for (at, opcode) in [(0, ibv_wc_opcode::IBV_WC_RECV), (1, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM)] {
        let mut wc = wc(rig.wr_id(at), ibv_wc_status::IBV_WC_SUCCESS, 0x1234);
        wc.opcode = opcode;
        wc.byte_len = 11;
        wc.wc_flags = flags;
        wc.__bindgen_anon_1.imm_data = 0xdead_beef_u32.to_be();
        testing::complete(rig.cq.as_raw(), wc);
    }
    let completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!((completion.opcode(), completion.byte_len()), (op::Opcode::Recv, 11));
    assert_eq!((completion.imm(), completion.qpn(), completion.token()), (Some(0xdead_beef), 0x1234, 1));
    let completion = rig.poller.poll().unwrap().unwrap();
    assert_eq!((completion.opcode(), completion.token()), (op::Opcode::RecvWriteImm, 2));
}

#[test]
fn raw_queue_pairs_need_raw_completion_queues() {
    let rig = Rig::new();
    assert_eq!(rig.qp.into_raw().unwrap_err().error.kind(), ErrorKind::InvalidInput);
    let raw = rig.pd.context().create_raw_cq(16, None).unwrap();
    let builder = QueuePair::builder(&rig.pd).raw_cq(&raw).max_send_wr(4).max_recv_wr(4);
    let mut qp = builder.build().unwrap().into_manual().into_raw().unwrap();
    let mut wr = rdma_sys::ibv_send_wr { wr_id: 99, ..Default::default() };
    // SAFETY: post_send requires a valid, terminated chain whose memory stays valid: it is one
    // request without memory.
    unsafe { qp.post_send(&raw mut wr) }.unwrap();
    testing::complete(raw.as_raw(), wc(99, ibv_wc_status::IBV_WC_SUCCESS, 0));
    let mut room = [ibv_wc::default(); 4];
    let completions = raw.poll(&mut room).unwrap();
    assert_eq!(completions.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [99]);
}
