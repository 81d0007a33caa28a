//! Reliable connections between two processes, and the death of one of them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{AckTimeout, ConnectOptions, WcStatus};
use rdma_test_support::{Channel, Peer, first, role};
use rdma_tests::{
    Options, Side, Unconnected, all_rights, buffer, is_iwarp, open, pattern, read, receive_slice, skipped_on_iwarp,
    wait,
};

const REGION: usize = 1 << 20;

/// Starts the child and connects to it; the child exposes a region to the parent.
fn parent(test: &str, options: Options) -> (Peer, Side, rdma::RemoteSlice) {
    let mut running = Peer::start(test, "peer");
    let side = Unconnected::new(&open(), options).meet(&mut running);
    let remote = receive_slice(&mut running);
    (running, side, remote)
}

fn child_side(options: Options) -> (Channel, Side, rdma::ExposedRegion) {
    let mut channel = first();
    let side = Unconnected::new(&open(), options).meet(&mut channel);
    let region = side.pd.allocate_exposed(REGION, all_rights()).unwrap();
    channel.send(&region.remote(..).unwrap().to_bytes());
    (channel, side, region)
}

#[test]
fn two_processes_do_everything() {
    if role().is_some() {
        let (mut channel, mut side, region) = child_side(Options::default());
        // siw may read the buffer after the completion, when TCP sends: the buffer must stay
        // unchanged until the parent has the message.
        let mut sent = None;
        for round in 0..50 {
            side.qp.post_recv(side.pd.allocate(REGION).unwrap(), round).unwrap();
            channel.tell("ready");
            let done = wait(&mut side.receives);
            assert_eq!(done.status, Ok(()));
            let (len, imm) = (done.byte_len, done.imm);
            if let Some(imm) = imm {
                let mut seen = vec![0; len];
                region.copy_out(0, &mut seen).unwrap();
                assert!(seen == pattern(len, u8::try_from(imm).unwrap()), "round {round}");
            } else {
                let content = done.buffer();
                side.qp.post_send(op::send(buffer(&side.pd, &content[..len]))).unwrap();
                let echo = wait(&mut side.sends);
                assert_eq!(echo.status, Ok(()));
                drop(sent.replace(echo));
            }
        }
        channel.tell("checked");
        // The parent overwrites the compared bytes.
        channel.tell("compared");
        assert_eq!(channel.hear(), "done");
        assert_eq!(region.load_u64(0, Ordering::Acquire).unwrap(), 25);
        return;
    }
    let (mut running, mut side, remote) = parent("processes::two_processes_do_everything", Options::default());
    // iWARP has neither immediate data nor atomic operations.
    let is_iwarp = is_iwarp(&side.context);
    for round in 0..50_u8 {
        assert_eq!(running.hear(), "ready");
        let len = [1, 64, 4096, 300_000, REGION][usize::from(round) % 5];
        let content = pattern(len, round);
        if round % 2 == 0 || is_iwarp {
            // The child returns the message by a send.
            side.qp.post_recv(side.pd.allocate(REGION).unwrap(), 0).unwrap();
            side.qp.post_send(op::send(buffer(&side.pd, &content))).unwrap();
            let done = wait(&mut side.receives);
            assert_eq!((done.status, done.byte_len), (Ok(()), len));
            assert!(done.buffer()[..len] == content, "round {round}");
        } else {
            assert_eq!(read(&mut side, remote.slice(..len).unwrap()).len(), len);
            side.qp.post_send(op::write_imm(buffer(&side.pd, &content), remote, round.into())).unwrap();
        }
        assert_eq!(wait(&mut side.sends).status, Ok(()));
    }
    // From now on the first word may change.
    assert_eq!(running.hear(), "checked");
    assert_eq!(running.hear(), "compared");
    let first = if is_iwarp { 25_u64 } else { 0 };
    side.qp.post_send(op::write_inline(&first.to_ne_bytes(), remote)).unwrap();
    assert_eq!(wait(&mut side.sends).status, Ok(()));
    for expected in first..25 {
        side.qp.post_send(op::fetch_add(side.pd.allocate(8).unwrap(), remote.slice(..8).unwrap(), 1)).unwrap();
        let done = wait(&mut side.sends);
        assert_eq!((done.status, done.old_value), (Ok(()), Some(expected)));
    }
    assert_eq!(read(&mut side, remote.slice(..8).unwrap()), 25_u64.to_ne_bytes());
    running.tell("done");
    running.finish();
}

#[test]
fn writes_complete_while_the_target_sleeps() {
    if role().is_some() {
        let (mut channel, _side, region) = child_side(Options::default());
        // Makes no verbs call until the parent reports that it is done.
        assert_eq!(channel.hear(), "done");
        let mut seen = vec![0; 4096];
        region.copy_out(0, &mut seen).unwrap();
        assert!(seen == pattern(4096, 9));
        return;
    }
    let (mut running, mut side, remote) =
        parent("processes::writes_complete_while_the_target_sleeps", Options::default());
    for seed in [1, 2, 3, 9] {
        side.qp.post_send(op::write(buffer(&side.pd, &pattern(4096, seed)), remote)).unwrap();
        assert_eq!(wait(&mut side.sends).status, Ok(()));
    }
    assert!(read(&mut side, remote.slice(..4096).unwrap()) == pattern(4096, 9));
    running.tell("done");
    running.finish();
}

#[test]
fn a_killed_peer_fails_what_is_outstanding_in_time() {
    let connect = ConnectOptions::new().ack_timeout(AckTimeout::at_least(Duration::from_millis(30))).retry_count(3);
    let options = Options { connect, ..Options::default() };
    if role().is_some() {
        let (mut channel, side, _region) = child_side(options);
        channel.hear();
        drop(side);
        unreachable!("the parent kills us first");
    }
    if skipped_on_iwarp(&open().context, rdma_tests::LOCAL) {
        return;
    }
    for delay in [0, 1, 5] {
        let (mut running, mut side, remote) =
            parent("processes::a_killed_peer_fails_what_is_outstanding_in_time", options);
        // The peer has posted no receive, so the first request stays outstanding.
        side.qp.post_send(op::send(buffer(&side.pd, b"hello")).token(0)).unwrap();
        for token in 1..4 {
            side.qp.post_send(op::write(buffer(&side.pd, &pattern(1000, 1)), remote).token(token)).unwrap();
        }
        side.qp.post_recv(side.pd.allocate(8).unwrap(), 9).unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        running.kill();
        let begin = Instant::now();
        let first = wait(&mut side.sends);
        assert_eq!(first.token, 0);
        assert_eq!(first.status.unwrap_err().status, WcStatus::RETRY_EXC_ERR);
        for token in 1..4 {
            let done = wait(&mut side.sends);
            assert_eq!((done.status.unwrap_err().status, done.token), (WcStatus::WR_FLUSH_ERR, token));
        }
        assert_eq!(wait(&mut side.receives).status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        // The timeouts add up to 4.096 us * 2^13 * 4 = 134 ms; the rest is margin for slow
        // machines.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn a_stopped_peer_only_makes_us_wait() {
    if role().is_some() {
        let (mut channel, mut side, _region) = child_side(Options::default());
        side.qp.post_recv(side.pd.allocate(8).unwrap(), 0).unwrap();
        channel.tell("ready");
        assert_eq!(wait(&mut side.receives).status, Ok(()));
        channel.hear();
        return;
    }
    if std::env::var_os("RDMA_TEST_DEVICE").is_some_and(|name| name != "soft0") {
        rdma_tests::skip("hardware answers for a stopped process");
        return;
    }
    let (mut running, mut side, _remote) = parent("processes::a_stopped_peer_only_makes_us_wait", Options::default());
    assert_eq!(running.hear(), "ready");
    running.stop();
    side.qp.post_send(op::send(buffer(&side.pd, b"hello"))).unwrap();
    // Waits longer than the timeouts, 67 ms * 8.
    assert!(rdma_tests::wait_within(&mut side.sends, Duration::from_millis(800)).is_none());
    running.resume();
    assert_eq!(wait(&mut side.sends).status, Ok(()));
    running.tell("done");
    running.finish();
}
