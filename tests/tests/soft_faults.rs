//! A program of its own, because a plan of faults is for the whole process; for the same reason the
//! tests take turns.
//!
//! Faults that the software device injects: a program meets the errors of a network, and every
//! buffer comes back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdma::op;
use rdma::soft::faults;
use rdma::{
    AckTimeout, AsyncEventKind, ConnectOptions, EventSource, ExposedRegion, PortState, QpState, RemoteSlice, RnrTimer,
    WcStatus,
};
use rdma_test_support::{Peer, first, role};
use rdma_tests::{
    LIMIT, Options, Side, Unconnected, all_rights, buffer, open, pair, pattern, poll, receive_slice, skip, wait,
};

/// A test's turn, with a plan that ends with it. `None` if the tests run on another device.
struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Option<Self> {
        static TURNS: Mutex<()> = Mutex::new(());
        if !open().context.device().name().starts_with("soft") {
            skip("only the software device injects faults");
            return None;
        }
        Some(Self(TURNS.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn plan(&self, plan: &str) {
        faults::inject(&plan.parse().unwrap_or_else(|error| panic!("{plan}: {error}"))).unwrap();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        faults::clear().unwrap();
    }
}

const LEN: usize = 3000;

/// Few and short retries.
fn options() -> Options {
    let connect = ConnectOptions::new()
        .ack_timeout(AckTimeout::at_least(Duration::from_micros(500)))
        .retry_count(2)
        .rnr_retry_count(2)
        .min_rnr_timer(RnrTimer::at_least(Duration::from_micros(500)));
    Options { connect, ..Options::default() }
}

/// A connected pair: the first side posts, the second has receives and a region.
struct Fixture {
    a: Side,
    b: Side,
    region: ExposedRegion,
}

impl Fixture {
    fn new() -> Self {
        let (a, mut b) = pair(options());
        let region = b.pd.allocate_exposed(LEN, all_rights()).unwrap();
        for token in 0..3 {
            b.qp.post_recv(b.pd.allocate(LEN).unwrap(), token).unwrap();
        }
        Self { a, b, region }
    }

    fn post(&mut self, operation: &str) {
        let (qp, remote) = (&mut self.a.qp, self.region.remote(..).unwrap());
        let local = buffer(&self.a.pd, &pattern(LEN, 1));
        let posted = match operation {
            "send" => qp.post_send(op::send(local)),
            "write" => qp.post_send(op::write(local, remote)),
            "read" => qp.post_send(op::read(local, remote)),
            _ => qp.post_send(op::fetch_add(self.a.pd.allocate(8).unwrap(), word(&remote), 1)),
        };
        posted.unwrap_or_else(|error| panic!("{operation}: {error}"));
    }

    /// Posts three requests; returns their statuses. Each must bring its buffer back.
    fn run(&mut self, operation: &str) -> Vec<Option<WcStatus>> {
        (0..3).for_each(|_| self.post(operation));
        let statuses = (0..3).map(|_| {
            let done = wait(&mut self.a.sends);
            let status = done.status.err().map(|error| error.status);
            assert!(!done.buffer().is_empty());
            status
        });
        statuses.collect()
    }

    /// Waits for an event of the second side.
    fn event(&self, kind: AsyncEventKind) {
        while let Some(event) = self.b.context.next_event(Some(LIMIT)).unwrap() {
            if event.kind == kind {
                return;
            }
        }
        panic!("no event {kind}");
    }
}

fn word(remote: &RemoteSlice) -> RemoteSlice {
    remote.slice(0..8).unwrap()
}

const FLUSHED: Option<WcStatus> = Some(WcStatus::WR_FLUSH_ERR);

#[test]
fn each_fault_has_its_status_and_the_buffers_come_back() {
    let Some(turn) = Turn::take() else { return };
    for (plan, failed) in [
        ("operation:nth=2", WcStatus::REM_OP_ERR),
        ("protection:nth=2", WcStatus::LOC_PROT_ERR),
        ("response:nth=2", WcStatus::BAD_RESP_ERR),
        ("flush:nth=2", WcStatus::WR_FLUSH_ERR),
        ("loss=all:nth=2", WcStatus::RETRY_EXC_ERR),
        ("loss=all:recv:nth=2", WcStatus::RETRY_EXC_ERR),
        ("operation:recv:nth=2", WcStatus::REM_OP_ERR),
        ("rnr=all:send:nth=2", WcStatus::RNR_RETRY_EXC_ERR),
        ("rnr=all:recv:nth=2", WcStatus::RNR_RETRY_EXC_ERR),
        ("access:nth=2", WcStatus::REM_ACCESS_ERR),
        ("access:recv:nth=2", WcStatus::REM_ACCESS_ERR),
    ] {
        let operations: &[&str] = match plan.split([':', '=']).next() {
            Some("rnr") => &["send"],
            Some("access") => &["write", "read", "atomic"],
            _ => &["send", "write", "read", "atomic"],
        };
        for operation in operations {
            let mut f = Fixture::new();
            turn.plan(plan);
            assert_eq!(f.run(operation), [None, Some(failed), FLUSHED], "{plan} {operation}");
            assert_eq!(f.a.qp.state().unwrap(), QpState::ERR);
            assert_eq!(faults::report().unwrap().injected(), 1);
            faults::clear().unwrap();
        }
    }
}

#[test]
fn a_fault_that_the_retries_outlive_changes_nothing() {
    let Some(turn) = Turn::take() else { return };
    for plan in ["delay=1ms..3ms", "late=1ms..3ms", "loss", "loss=2:recv:nth=2", "rnr=2:send", "rnr:recv:p=0.5"] {
        let mut f = Fixture::new();
        turn.plan(plan);
        assert_eq!(f.run("send"), [None; 3], "{plan}");
        for token in 0..3 {
            let done = wait(&mut f.b.receives);
            assert_eq!((done.status, done.token), (Ok(()), token), "{plan}");
            assert!(done.buffer()[..] == pattern(LEN, 1), "{plan}");
        }
    }
}

#[test]
fn faults_of_the_receiver_have_their_events() {
    let Some(turn) = Turn::take() else { return };
    for (plan, operation, kind) in [
        ("access:recv", "write", AsyncEventKind::QP_ACCESS_ERR),
        ("cq-error:recv", "send", AsyncEventKind::CQ_ERR),
        ("cq-error:recv", "send", AsyncEventKind::QP_FATAL),
    ] {
        let mut f = Fixture::new();
        turn.plan(plan);
        f.post(operation);
        f.event(kind);
        assert!(wait(&mut f.a.sends).status.is_err(), "{plan}");
    }
}

#[test]
fn the_port_goes_down_and_comes_back() {
    let Some(turn) = Turn::take() else { return };
    let mut f = Fixture::new();
    turn.plan("port-down=1000s:nth=2");
    f.post("send");
    assert_eq!(wait(&mut f.a.sends).status, Ok(()));
    f.post("send");
    f.event(AsyncEventKind::PORT_ERR);
    assert_eq!(f.b.context.port_attr(1).unwrap().state(), PortState::DOWN);
    assert_eq!(wait(&mut f.a.sends).status.unwrap_err().status, WcStatus::RETRY_EXC_ERR);
    faults::clear().unwrap();
    f.event(AsyncEventKind::PORT_ACTIVE);
    assert_eq!(f.b.context.port_attr(1).unwrap().state(), PortState::ACTIVE);
}

#[test]
fn a_fatal_error_reaches_every_context() {
    let Some(turn) = Turn::take() else { return };
    let mut f = Fixture::new();
    let other = open();
    turn.plan("device-fatal");
    assert_eq!(f.run("write").pop().unwrap(), FLUSHED);
    for context in [&f.b.context, &other.context] {
        let event = context.next_event(Some(LIMIT)).unwrap().unwrap();
        assert_eq!((event.kind, event.source), (AsyncEventKind::DEVICE_FATAL, EventSource::Device));
    }
    for token in 0..3 {
        assert_eq!(wait(&mut f.b.receives).token, token);
    }
}

#[test]
fn a_queue_that_has_overrun_gives_its_buffers_back_with_the_queue_pair() {
    let Some(turn) = Turn::take() else { return };
    let mut f = Fixture::new();
    turn.plan("cq-error");
    f.post("send");
    assert!((0..1_000_000).any(|_| f.a.sends.poll().is_err()), "the poll fails");
    f.a.qp.close().unwrap();
}

#[test]
fn a_scope_ends_under_every_fault() {
    let Some(turn) = Turn::take() else { return };
    for plan in ["delay=2ms", "loss=all", "rnr=all", "operation", "protection", "response", "flush", "operation:recv"] {
        let mut f = Fixture::new();
        turn.plan(plan);
        let message = buffer(&f.a.pd, &pattern(LEN, 2));
        let Side { qp, sends, .. } = &mut f.a;
        let ended = qp.scope(sends, LIMIT, |scope| {
            scope.post_send(op::send(message.lend(..))).map_err(|refused| refused.error()).unwrap();
        });
        assert_eq!(ended.is_ok(), plan.starts_with("delay"), "{plan}: {ended:?}");
        assert!(message[..] == pattern(LEN, 2));
    }
}

#[test]
fn a_handle_dropped_in_mid_fault_ends_at_once() {
    let Some(turn) = Turn::take() else { return };
    for plan in ["delay=1000s", "late=1000s", "loss=all", "rnr=all"] {
        let mut f = Fixture::new();
        turn.plan(plan);
        (0..3).for_each(|_| f.post("send"));
        // On a loaded machine the retries of the other plans may have ended by now.
        let ended = poll(&mut f.a.sends).is_some();
        assert!(!ended || plan.ends_with("all"), "{plan}");
        f.a.qp.close().unwrap_or_else(|error| panic!("{plan}: {error:?}"));
    }
}

#[test]
fn random_plans_lose_no_buffer() {
    let Some(turn) = Turn::take() else { return };
    let seed = std::env::var("RDMA_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("RDMA_TEST_SEED={seed}");
    for round in 0..40 {
        let plan = format!(
            "seed={}; delay=1us..2ms:p=0.2; late=1us..2ms:p=0.2; loss:p=0.1; loss:recv:p=0.1; rnr:p=0.1; loss=all:p=0.03; access:p=0.03; \
             operation:recv:p=0.03; flush:p=0.02; protection:p=0.02; response:p=0.02",
            seed + round
        );
        let mut f = Fixture::new();
        turn.plan(&plan);
        for (token, operation) in (3..15).zip(["send", "write", "read", "atomic"].into_iter().cycle()) {
            f.b.qp.post_recv(f.b.pd.allocate(LEN).unwrap(), token).unwrap();
            f.post(operation);
        }
        for _ in 0..12 {
            let _buffer = wait(&mut f.a.sends).buffer();
        }
        f.b.qp.close().unwrap();
        f.a.qp.close().unwrap();
    }
}

#[test]
fn a_peer_that_dies_by_its_plan_is_noticed() {
    const TEST: &str = "a_peer_that_dies_by_its_plan_is_noticed";
    if role().is_some() {
        let mut channel = first();
        let mut side = Unconnected::new(&open(), options()).meet(&mut channel);
        let region = side.pd.allocate_exposed(LEN, all_rights()).unwrap();
        side.qp.post_recv(side.pd.allocate(8).unwrap(), 0).unwrap();
        channel.send(&region.remote(..).unwrap().to_bytes());
        channel.hear();
        unreachable!("the plan ends this process first");
    }
    let Some(_turn) = Turn::take() else { return };
    let mut peer = Peer::start_with(TEST, "peer", |command| {
        command.env(faults::VARIABLE, "die:recv:write:after=20");
    });
    let mut side = Unconnected::new(&open(), options()).meet(&mut peer);
    let remote = receive_slice(&mut peer);
    let mut completed = 0;
    let status = loop {
        side.qp.post_send(op::write(buffer(&side.pd, &pattern(LEN, 1)), remote)).unwrap();
        match wait(&mut side.sends).status {
            Ok(()) => completed += 1,
            Err(error) => break error.status,
        }
    };
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    assert!((20..=21).contains(&completed), "{completed}");
    use std::os::unix::process::ExitStatusExt as _;
    assert_eq!(peer.wait().signal(), Some(9));
}
