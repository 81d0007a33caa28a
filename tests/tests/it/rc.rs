//! Reliable connections in one process: every operation and every error, on the device under test.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma::op::{self, Opcode};
use rdma::{AckTimeout, Completion, ConnectOptions, ErrorKind, Poller, QpState, RemoteAccess, RnrTimer, WcStatus};
use rdma_tests::{
    LIMIT, Options, Side, all_rights, buffer, pair, pattern, poll, skipped_on_iwarp, wait, wait_patiently, wait_within,
};

fn status(done: &rdma_tests::Done) -> WcStatus {
    done.status.expect_err("this request must fail").status
}

/// The next completion, as the poller returns it.
fn wait_for(poller: &mut Poller) -> Completion<'_> {
    poller.wait(Some(LIMIT)).expect("the queue works").expect("a completion within the limit")
}

fn small() -> (Side, Side) {
    pair(Options::default())
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    let (mut a, mut b) = small();
    for len in [0, 1, 7, 64, 65, 4095, 4096, 4097, 100_000, 3 << 20] {
        let content = pattern(len, 3);
        b.qp.post_recv(b.pd.allocate(len.max(1)).unwrap(), 1).unwrap();
        a.qp.post_send(op::send(buffer(&a.pd, &content)).token(2)).unwrap();
        let received = wait(&mut b.receives);
        assert_eq!((received.status, received.token, received.byte_len), (Ok(()), 1, len));
        assert_eq!(received.opcode, Opcode::Recv);
        assert_eq!(&received.buffer()[..len], &content[..]);
        let sent = wait(&mut a.sends);
        assert_eq!((sent.status, sent.token), (Ok(()), 2));
        assert_eq!(&sent.buffer()[..], &content[..]);
    }
}

/// Bytes of memory that the machine has available.
fn available_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("MemAvailable");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn a_message_of_one_gibibyte_arrives_whole() {
    const LEN: usize = 1 << 30;
    if available_memory() < 6 << 30 {
        rdma_tests::skip("less than 6 GiB of memory are free");
        return;
    }
    let opened = rdma_tests::open();
    if (opened.context.port_attr(opened.port).unwrap().max_message_size() as usize) < LEN {
        rdma_tests::skip("the port takes smaller messages only");
        return;
    }
    let (mut a, mut b) = small();
    let block = pattern(1 << 20, 17);
    let mut message = a.pd.allocate(LEN).unwrap();
    for (number, chunk) in message.chunks_exact_mut(block.len()).enumerate() {
        chunk.copy_from_slice(&block);
        chunk[..8].copy_from_slice(&number.to_ne_bytes());
    }
    b.qp.post_recv(b.pd.allocate(LEN).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(message)).unwrap();
    let received = wait_patiently(&mut b.receives, 4 * LIMIT);
    assert_eq!((received.status, received.byte_len), (Ok(()), LEN));
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    for (number, chunk) in received.buffer().chunks_exact(block.len()).enumerate() {
        assert!(chunk[..8] == number.to_ne_bytes() && chunk[8..] == block[8..], "block {number}");
    }
}

#[test]
fn immediate_data_arrives_in_host_order() {
    let (mut a, mut b) = small();
    if skipped_on_iwarp(&a.context, "iWARP has no immediate data") {
        return;
    }
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 0).unwrap();
    a.qp.post_send(op::send_imm(buffer(&a.pd, b"four"), 0x0102_0304)).unwrap();
    let received = wait(&mut b.receives);
    assert_eq!((received.imm, received.byte_len), (Some(0x0102_0304), 4));
}

#[test]
fn inline_data_may_be_overwritten_at_once() {
    let (mut a, mut b) = small();
    b.qp.post_recv(b.pd.allocate(64).unwrap(), 0).unwrap();
    let mut bytes = *b"before";
    a.qp.post_send(op::send_inline(&bytes)).unwrap();
    bytes.copy_from_slice(b"after!");
    let received = wait(&mut b.receives);
    assert_eq!(received.byte_len, 6);
    assert_eq!(&received.buffer()[..6], b"before");
    assert_eq!(wait(&mut a.sends).status, Ok(()));
}

#[test]
fn lists_are_gathered_and_scattered_in_order() {
    let (mut a, mut b) = small();
    b.qp.post_recv([b.pd.allocate(3).unwrap(), b.pd.allocate(10).unwrap()], 0).unwrap();
    let parts = [buffer(&a.pd, b"ab"), buffer(&a.pd, b"cdefg"), buffer(&a.pd, b"h")];
    a.qp.post_send(op::send(parts)).unwrap();
    let received = wait(&mut b.receives);
    assert_eq!((received.byte_len, received.buffers.len()), (8, 2));
    assert_eq!((&received.buffers[0][..], &received.buffers[1][..5]), (&b"abc"[..], &b"defgh"[..]));
    assert_eq!(wait(&mut a.sends).buffers.len(), 3);
}

#[test]
fn a_message_is_its_bytes_and_gives_its_buffer_back() {
    let (mut a, mut b) = small();
    let mut posted = b.pd.allocate(64).unwrap();
    let address = posted.address();
    for content in [&b"hello"[..], b"", &[7; 64]] {
        b.qp.post_recv(posted, 1).unwrap();
        a.qp.post_send(op::send(buffer(&a.pd, content))).unwrap();
        let mut received = wait_for(&mut b.receives);
        let message = received.received().expect("a message in one buffer");
        assert_eq!(&message[..], content);
        assert!(received.received().is_none(), "it has been taken");
        posted = message.into_buffer();
        assert_eq!((posted.address(), posted.len()), (address, 64));
        assert!(wait_for(&mut a.sends).received().is_none(), "a send is no message");
    }
    // Of a message over two buffers, each part is taken apart.
    b.qp.post_recv([b.pd.allocate(3).unwrap(), b.pd.allocate(10).unwrap()], 0).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"abcde"))).unwrap();
    let mut received = wait_for(&mut b.receives);
    assert_eq!(&received.received().expect("its first part")[..], b"abc");
    assert!(received.received().is_none(), "the second part is no message");
    assert_eq!(&received.take_buffer().expect("its second part")[..2], b"de");
}

#[test]
fn the_notice_of_a_write_and_a_failed_receive_are_no_messages() {
    let (mut a, mut b) = small();
    if skipped_on_iwarp(&a.context, "iWARP has no immediate data") {
        return;
    }
    let region = b.pd.allocate_exposed(8, RemoteAccess::WRITE).unwrap();
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    a.qp.post_send(op::write_imm(buffer(&a.pd, &[1; 8]), region.remote(..).unwrap(), 9)).unwrap();
    let mut noticed = wait_for(&mut b.receives);
    assert!(noticed.received().is_none());
    assert!(noticed.take_buffer().is_some(), "the buffer can still be taken");
    b.qp.post_recv(b.pd.allocate(4).unwrap(), 2).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, &[1; 8]))).unwrap();
    let mut failed = wait_for(&mut b.receives);
    assert!(failed.status().is_err(), "the message is longer than the buffer");
    assert!(failed.received().is_none());
    assert!(failed.take_buffer().is_some(), "the buffer can still be taken");
}

#[test]
fn the_counters_of_the_port_grow() {
    let (mut a, mut b) = small();
    let port = rdma_tests::open().port;
    let before = match a.context.port_counters(port) {
        Err(error) if error.kind() == ErrorKind::NotSupported => return rdma_tests::skip("the device has no counters"),
        counters => counters.unwrap(),
    };
    b.qp.post_recv(b.pd.allocate(64).unwrap(), 1).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"counted"))).unwrap();
    assert_eq!((wait(&mut b.receives).status, wait(&mut a.sends).status), (Ok(()), Ok(())));
    // The kernel may answer with values that it has kept for some milliseconds.
    let begin = Instant::now();
    let after = loop {
        let after = a.context.port_counters(port).unwrap();
        if after.iter().any(|(name, value)| before.get(name) < Some(value)) {
            break after;
        }
        assert!(begin.elapsed() < LIMIT, "{before:?}, then {after:?}");
        std::thread::sleep(Duration::from_millis(1));
    };
    if a.context.is_software() {
        // Other tests use the device of this process at the same time.
        for (name, least) in [("requests", 1), ("request_bytes", 7), ("receives", 1), ("receive_bytes", 7)] {
            assert!(after.get(name) >= before.get(name).map(|count| count + least), "{name}: {before:?}, {after:?}");
        }
    }
}

#[test]
fn writes_and_reads_reach_exposed_memory() {
    let (mut a, b) = small();
    let len = 1 << 20;
    let region = b.pd.allocate_exposed(len, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    // Repeats the write: the software device accesses the peer's memory directly once it has mapped
    // it.
    for round in 0..5 {
        let content = pattern(len, round);
        a.qp.post_send(op::write(buffer(&a.pd, &content), remote)).unwrap();
        assert_eq!(wait(&mut a.sends).status, Ok(()));
        let part = remote.slice(4096..70_001).unwrap();
        assert!(rdma_tests::read(&mut a, part) == content[4096..70_001], "round {round}");
        let mut seen = vec![0; len];
        region.copy_out(0, &mut seen).unwrap();
        assert!(seen == content, "round {round}");
    }
}

#[test]
fn write_with_immediate_notifies_after_the_data() {
    let (mut a, mut b) = small();
    if skipped_on_iwarp(&a.context, "iWARP has no immediate data") {
        return;
    }
    let region = b.pd.allocate_exposed(4096, RemoteAccess::WRITE).unwrap();
    for round in 0..20 {
        b.qp.post_recv(b.pd.allocate(1).unwrap(), 5).unwrap();
        let content = pattern(4096, round);
        a.qp.post_send(op::write_imm(buffer(&a.pd, &content), region.remote(..).unwrap(), round.into())).unwrap();
        let notified = wait(&mut b.receives);
        assert_eq!((notified.opcode, notified.imm), (Opcode::RecvWriteImm, Some(round.into())));
        assert_eq!(notified.byte_len, 4096);
        let mut seen = [0; 4096];
        region.copy_out(0, &mut seen).unwrap();
        assert!(seen[..] == content[..]);
        assert_eq!(wait(&mut a.sends).status, Ok(()));
    }
}

#[test]
fn atomics_return_what_was_there() {
    let (mut a, b) = small();
    if a.context.device_attr().atomic_capability() == rdma::AtomicCapability::NONE {
        rdma_tests::skip("the device has no atomics");
        return;
    }
    let region = b.pd.allocate_exposed(16, all_rights()).unwrap();
    region.store_u64(8, 40, Ordering::Release).unwrap();
    let word = region.remote(8..16).unwrap();
    for expected in [40, 42, 44] {
        a.qp.post_send(op::fetch_add(a.pd.allocate(8).unwrap(), word, 2)).unwrap();
        let done = wait(&mut a.sends);
        assert_eq!((done.status, done.old_value), (Ok(()), Some(expected)));
    }
    a.qp.post_send(op::compare_swap(a.pd.allocate(8).unwrap(), word, 46, 7)).unwrap();
    assert_eq!(wait(&mut a.sends).old_value, Some(46));
    a.qp.post_send(op::compare_swap(a.pd.allocate(8).unwrap(), word, 46, 8)).unwrap();
    assert_eq!(wait(&mut a.sends).old_value, Some(7));
    assert_eq!(region.load_u64(8, Ordering::Acquire).unwrap(), 7);
}

#[test]
fn unsignaled_requests_come_back_with_the_next_signaled_one() {
    let (mut a, b) = small();
    let region = b.pd.allocate_exposed(64, RemoteAccess::WRITE).unwrap();
    for token in 0..5 {
        let work = op::write(buffer(&a.pd, b"x"), region.remote(..).unwrap()).token(token);
        a.qp.post_send(if token < 4 { work.unsignaled() } else { work }).unwrap();
    }
    let done = wait(&mut a.sends);
    assert_eq!((done.token, done.unsignaled), (4, vec![0, 1, 2, 3]));
}

#[test]
fn a_full_queue_refuses_and_hands_the_request_back() {
    let (mut a, _b) = small();
    for token in 0..16 {
        a.qp.post_recv(a.pd.allocate(8).unwrap(), token).unwrap();
    }
    let error = a.qp.post_recv(buffer(&a.pd, b"mine"), 99).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert_eq!(&error.into_memory().expect("handed back")[..], b"mine");
}

#[test]
fn a_missing_receive_is_retried_until_it_is_there() {
    let connect = ConnectOptions::new().min_rnr_timer(RnrTimer::at_least(Duration::from_millis(1)));
    let (mut a, mut b) = pair(Options { connect, ..Options::default() });
    if skipped_on_iwarp(&a.context, "iWARP does not wait for a receive") {
        return;
    }
    a.qp.post_send(op::send(buffer(&a.pd, b"early"))).unwrap();
    assert!(wait_within(&mut a.sends, Duration::from_millis(20)).is_none(), "nobody can have taken it");
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 0).unwrap();
    assert_eq!(&wait(&mut b.receives).buffer()[..5], b"early");
    assert_eq!(wait(&mut a.sends).status, Ok(()));
}

#[test]
fn a_missing_receive_ends_in_an_error_after_the_retries() {
    let connect = ConnectOptions::new().rnr_retry_count(2).min_rnr_timer(RnrTimer::at_least(Duration::from_millis(1)));
    let (mut a, _b) = pair(Options { connect, ..Options::default() });
    if skipped_on_iwarp(&a.context, "iWARP does not wait for a receive") {
        return;
    }
    a.qp.post_send(op::send(buffer(&a.pd, b"never"))).unwrap();
    let done = wait(&mut a.sends);
    assert_eq!(status(&done), WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(&done.buffer()[..], b"never");
    assert_eq!(a.qp.state().unwrap(), QpState::ERR);
}

#[test]
fn a_receive_that_is_too_small_fails_both_ends() {
    let (mut a, mut b) = small();
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    b.qp.post_recv(b.pd.allocate(3).unwrap(), 0).unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"four"))).unwrap();
    assert_eq!(status(&wait(&mut b.receives)), WcStatus::LOC_LEN_ERR);
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::REM_INV_REQ_ERR);
    assert_eq!(a.qp.state().unwrap(), QpState::ERR);
}

#[test]
fn rights_that_the_key_lacks_fail_both_ends() {
    let (mut a, mut b) = small();
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    let region = b.pd.allocate_exposed(4096, RemoteAccess::READ).unwrap();
    b.qp.post_recv(b.pd.allocate(8).unwrap(), 7).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, b"no"), region.remote(..).unwrap())).unwrap();
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::REM_ACCESS_ERR);
    // The responder's queue pair is in the error state too: its receives are flushed.
    let flushed = wait(&mut b.receives);
    assert_eq!((status(&flushed), flushed.token), (WcStatus::WR_FLUSH_ERR, 7));
    let mut seen = [1; 2];
    region.copy_out(0, &mut seen).unwrap();
    assert_eq!(seen, [0; 2], "nothing was written");
}

#[test]
fn a_refused_request_raises_an_event_at_its_target() {
    let (mut a, b) = small();
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    let region = b.pd.allocate_exposed(4096, RemoteAccess::READ).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, b"no"), region.remote(..).unwrap())).unwrap();
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::REM_ACCESS_ERR);
    let event = b.context.next_event(Some(LIMIT)).unwrap().expect("an event");
    assert!(format!("{event:?}").contains("ACCESS") || format!("{event:?}").contains("Access"), "{event:?}");
}

#[test]
fn a_key_that_has_ended_fails_the_writer() {
    let (mut a, b) = small();
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    let region = b.pd.allocate_exposed(4096, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    a.qp.post_send(op::write(buffer(&a.pd, b"yes"), remote)).unwrap();
    assert_eq!(wait(&mut a.sends).status, Ok(()));
    let memory = region.revoke().expect("nothing is in flight");
    assert_eq!(&memory[..3], b"yes");
    a.qp.post_send(op::write(buffer(&a.pd, b"no!"), remote)).unwrap();
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::REM_ACCESS_ERR);
    assert_eq!(&memory[..3], b"yes");
}

#[test]
fn a_slice_beyond_its_region_is_caught_by_the_device() {
    let (mut a, b) = small();
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    let region = b.pd.allocate_exposed(4096, all_rights()).unwrap();
    // A hostile peer advertises a wrong length.
    let honest = region.remote(..).unwrap();
    let lie = rdma::RemoteSlice::new(honest.address(), 8192, honest.rkey());
    a.qp.post_send(op::write(buffer(&a.pd, &pattern(8192, 1)), lie)).unwrap();
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::REM_ACCESS_ERR);
}

#[test]
fn an_error_flushes_everything_in_order_and_hands_it_back() {
    let (mut a, mut b) = small();
    for token in 0..5 {
        a.qp.post_recv(a.pd.allocate(8).unwrap(), token).unwrap();
    }
    a.qp.set_error().unwrap();
    a.qp.post_send(op::send(buffer(&a.pd, b"late")).token(50)).unwrap();
    for token in 0..5 {
        let done = wait(&mut a.receives);
        assert_eq!((status(&done), done.token), (WcStatus::WR_FLUSH_ERR, token));
        assert_eq!(done.buffers.len(), 1);
    }
    let done = wait(&mut a.sends);
    assert_eq!((status(&done), done.token, done.buffers.len()), (WcStatus::WR_FLUSH_ERR, 50, 1));
    assert!(poll(&mut b.receives).is_none());
}

#[test]
fn a_peer_that_does_not_answer_ends_in_an_error_within_the_timeouts() {
    let connect = ConnectOptions::new().ack_timeout(AckTimeout::at_least(Duration::from_millis(8))).retry_count(2);
    let (mut a, b) = pair(Options { connect, ..Options::default() });
    if skipped_on_iwarp(&a.context, rdma_tests::LOCAL) {
        return;
    }
    drop(b);
    let begin = Instant::now();
    a.qp.post_send(op::send(buffer(&a.pd, b"anybody?"))).unwrap();
    assert_eq!(status(&wait(&mut a.sends)), WcStatus::RETRY_EXC_ERR);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn events_wake_a_sleeper() {
    let opened = rdma_tests::open();
    if skipped_on_iwarp(&opened.context, rdma_tests::MANAGED) {
        return;
    }
    let (pd, context) = (opened.context.alloc_pd().unwrap(), &opened.context);
    let channel = context.create_completion_channel().unwrap();
    let cq = context.cq_builder(16).channel(&channel).build().unwrap();
    let init = rdma::InitOptions::new().port(opened.port).remote_access(all_rights());
    let make =
        || rdma::QueuePair::builder(&pd).cq(&cq).max_send_wr(4).max_recv_wr(4).build().unwrap().init(&init).unwrap();
    let (a, b) = (make(), make());
    let (mut a, mut b) = rdma_testkit::join(a, b).unwrap();

    cq.request_notify(false).unwrap();
    assert_eq!(channel.next_event(Some(Duration::from_millis(10))).unwrap(), None, "nothing has happened");
    b.post_recv(pd.allocate(8).unwrap(), 0).unwrap();
    let sleeper = std::thread::spawn({
        let channel = channel.clone();
        move || channel.next_event(Some(LIMIT)).unwrap()
    });
    std::thread::sleep(Duration::from_millis(20));
    a.post_send(op::send(buffer(&pd, b"wake"))).unwrap();
    assert_eq!(sleeper.join().unwrap(), Some(cq.id()));
    let mut poller = cq.poller();
    let mut seen = vec![wait(&mut poller).opcode, wait(&mut poller).opcode];
    seen.sort_by_key(|opcode| *opcode == Opcode::Send);
    assert_eq!(seen, [Opcode::Recv, Opcode::Send]);
}

#[test]
fn a_queue_pair_works_again_after_a_reset_under_load() {
    let opened = rdma_tests::open();
    if skipped_on_iwarp(&opened.context, rdma_tests::MANAGED) {
        return;
    }
    let a = rdma_tests::Unconnected::new(&opened, Options::default());
    let b = rdma_tests::Unconnected::new(&opened, Options::default());
    let (to_a, to_b) = (a.qp.endpoint(), b.qp.endpoint());
    let (mut a, mut b) = (a.connect(&to_b), b.connect(&to_a));
    for token in 0..8 {
        a.qp.post_recv(a.pd.allocate(64).unwrap(), token).unwrap();
        b.qp.post_send(op::send(buffer(&b.pd, b"load")).token(token)).unwrap();
    }
    let prepared = a.qp.reset().unwrap();
    assert_eq!(a.receives.completion_queue().poller().poll().unwrap().map(|done| done.token()), None);
    // The reset responder does not execute the requests of the peer; the error state flushes them.
    b.qp.set_error().unwrap();
    let prepared_b = b.qp.reset().unwrap();
    let init = rdma::InitOptions::new().port(opened.port).remote_access(all_rights());
    let (qa, qb) = (prepared.init(&init).unwrap(), prepared_b.init(&init).unwrap());
    let (mut qa, mut qb) = rdma_testkit::join(qa, qb).unwrap();
    qa.post_recv(a.pd.allocate(8).unwrap(), 77).unwrap();
    qb.post_send(op::send(buffer(&b.pd, b"again"))).unwrap();
    let done = wait(&mut a.receives);
    assert_eq!((done.status, done.token, done.byte_len), (Ok(()), 77, 5));
}

#[test]
fn shared_memory_is_private_once_it_is_lent_as_bytes() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    let (a, _b) = small();
    let memory = rdma_mem::SharedMemory::new(4096).unwrap();
    let file = std::fs::File::from(memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    file.write_at(b"before", 0).unwrap();
    let buffer = a.pd.register(memory).unwrap();
    file.write_at(b"after!", 0).unwrap();
    assert_eq!(&buffer[..6], b"before");
}
