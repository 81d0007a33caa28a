//! A program of its own, because these tests need a device that nobody else uses: they set its
//! interface down and compare the kernel's counts of objects.
//!
//! Faults under a connection: a peer killed in mid-transfer, an interface set down. The right error
//! must come in time, and no object may be left behind. `RDMA_TEST_NETDEV` names an interface that
//! may be set down; without it, the tests that need one are skipped.

use std::process::Command;
use std::time::{Duration, Instant};

use rdma::op;
use rdma::{
    AckTimeout, AsyncEventKind, ConnectOptions, Context, EventSource, PortState, QpState, RemoteSlice, WcStatus,
};
use rdma_test_support::{Peer, first, role};
use rdma_tests::{
    LIMIT, Options, Side, Unconnected, all_rights, buffer, is_iwarp, open, open_peer, pattern, poll, receive_slice,
    skip, wait,
};

const BLOCK: usize = 32 << 10;
/// More than the timeouts of [`options`], 4.096 us * 2^14 * 7 = 470 ms, plus the delays of an
/// emulated machine. The retry count is six, because rxe treats 7 as unlimited (seen on 6.1).
const IN_TIME: Duration = Duration::from_secs(10);

fn options() -> Options {
    let connect = ConnectOptions::new().ack_timeout(AckTimeout::at_least(Duration::from_millis(60))).retry_count(6);
    Options { connect, ..Options::default() }
}

/// The kernel's number of objects of each kind on each device; `None` if it cannot be read.
#[derive(Debug)]
struct Objects(Option<String>);

impl Objects {
    fn now() -> Self {
        let output = Command::new("rdma").args(["resource", "show"]).output();
        Self(output.ok().filter(|output| output.status.success()).map(|output| {
            // Contexts are not compared: librdmacm keeps the devices that it has found open until
            // the process ends.
            let text = String::from_utf8(output.stdout).unwrap();
            let mut words = Vec::new();
            for word in text.split_whitespace() {
                let is_count_of_contexts = words.last() == Some(&"ctx");
                words.push(if is_count_of_contexts { "-" } else { word });
            }
            words.join(" ")
        }))
    }

    /// Waits until the counts are as before: identifiers of connections live until their last timer
    /// expires.
    fn are_back(&self) {
        let begin = Instant::now();
        loop {
            let now = Self::now().0;
            if now == self.0 {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "before: {:?}\nafter: {now:?}", self.0);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// How a stream of requests ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// A completion reported an error; holds the first such status.
    Failed(WcStatus),
    /// The connection ended without a failed completion. On iWARP a write is complete once it is
    /// sent, so none may have been in flight; siw never flushes requests that were posted
    /// afterwards.
    Disconnected,
}

/// Writes to the peer until a write fails. `watch` gets the number of successes after each success.
fn write_until_it_fails(side: &mut Side, remote: RemoteSlice, mut watch: impl FnMut(u32)) -> End {
    let begin = Instant::now();
    for seed in 0..8 {
        side.qp.post_send(op::write(buffer(&side.pd, &pattern(BLOCK, seed)), remote)).unwrap();
    }
    let mut completed = 0;
    loop {
        let Some(done) = poll(&mut side.sends) else {
            let connection = side.connection.as_ref();
            if connection.is_some_and(|connection| connection.wait_disconnected(Some(Duration::ZERO)).unwrap()) {
                return poll(&mut side.sends)
                    .and_then(|done| done.status.err())
                    .map_or(End::Disconnected, |error| End::Failed(error.status));
            }
            assert!(begin.elapsed() < LIMIT, "{completed} are complete, and nothing comes of the last");
            std::thread::yield_now();
            continue;
        };
        if let Err(error) = done.status {
            return End::Failed(error.status);
        }
        completed += 1;
        watch(completed);
        // In the error state a post may be refused.
        drop(side.qp.post_send(op::write(done.buffer(), remote)));
    }
}

fn is_in_error(side: &Side) {
    // siw of 6.1 does not report the state.
    if !is_iwarp(&side.context) {
        assert_eq!(side.qp.state().unwrap(), QpState::ERR);
    }
}

/// Checks the end of an iWARP connection: requests in flight are flushed, and the connection
/// manager reports the disconnect.
fn is_disconnected(side: &Side, end: &End) {
    let connection = side.connection.as_ref().unwrap();
    match end {
        End::Disconnected => {}
        End::Failed(status) => {
            assert_eq!(*status, WcStatus::WR_FLUSH_ERR);
            assert!(connection.wait_disconnected(Some(IN_TIME)).unwrap(), "the end of the connection in time");
        }
    }
}

#[test]
fn a_peer_killed_in_mid_transfer_ends_it() {
    if role().is_some() {
        let mut channel = first();
        // When a process dies, the kernel destroys its regions, and likewise its queue pairs, in
        // the reverse order of their creation.
        let side = Unconnected::new(&open(), options()).meet(&mut channel);
        let region = side.pd.allocate_exposed(BLOCK, all_rights()).unwrap();
        channel.send(&region.remote(..).unwrap().to_bytes());
        channel.hear();
        unreachable!("the parent kills us first");
    }
    let objects = Objects::now();
    for round in 0..2 {
        let mut running = Peer::start("a_peer_killed_in_mid_transfer_ends_it", "peer");
        let mut side = Unconnected::new(&open(), options()).meet(&mut running);
        let remote = receive_slice(&mut running);
        side.qp.post_recv(side.pd.allocate(8).unwrap(), 9).unwrap();
        let mut killed = None;
        let end = write_until_it_fails(&mut side, remote, |completed| {
            if completed == 20 + 10 * round {
                running.kill();
                killed = Some(Instant::now());
            }
        });
        let killed = killed.unwrap_or_else(|| panic!("{end:?} before the peer was killed")).elapsed();
        assert!(killed < IN_TIME, "{killed:?}");
        eprintln!("NOTE {end:?} after {killed:?}");
        if is_iwarp(&side.context) {
            is_disconnected(&side, &end);
        } else {
            // The kernel invalidates the rkey before it destroys the queue pair; a request may
            // arrive in between.
            let expected = [WcStatus::RETRY_EXC_ERR, WcStatus::REM_ACCESS_ERR].map(End::Failed);
            assert!(expected.contains(&end), "{end:?}");
        }
        is_in_error(&side);
        assert_eq!(wait(&mut side.receives).status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        while let Some(done) = poll(&mut side.sends) {
            assert_eq!(done.status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        }
        let Side { context, pd, qp, sends, receives, connection } = side;
        qp.close().unwrap();
        drop((connection, sends, receives, pd, context));
        objects.are_back();
    }
}

/// An interface, which dropping this value sets up again.
struct Link(String);

impl Link {
    fn set(&self, state: &str) {
        let status = Command::new("ip").args(["link", "set", &self.0, state]).status().expect("ip");
        assert!(status.success(), "ip link set {} {state}", self.0);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _up = Command::new("ip").args(["link", "set", &self.0, "up"]).status();
    }
}

/// Waits for an asynchronous event of the port.
fn port_event(context: &Context, port: u8, kind: AsyncEventKind) {
    let begin = Instant::now();
    loop {
        let left = LIMIT.checked_sub(begin.elapsed()).unwrap_or_else(|| panic!("no event {kind}"));
        match context.next_event(Some(left)).unwrap() {
            Some(event) if event.kind == kind => return assert_eq!(event.source, EventSource::Port(port)),
            _ => {}
        }
    }
}

fn wait_for_port(context: &Context, port: u8, state: PortState) {
    let begin = Instant::now();
    while context.port_attr(port).unwrap().state() != state {
        assert!(begin.elapsed() < LIMIT, "the port does not become {state}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_link_set_down_in_mid_transfer_ends_it_and_comes_back() {
    let Some(link) = std::env::var("RDMA_TEST_NETDEV").ok().map(Link) else {
        return skip("no interface that may be set down");
    };
    let objects = Objects::now();
    let opened = open();
    let (context, port) = (&opened.context, opened.port);
    // With a peer device, the interface belongs to the other side.
    let is_far = std::env::var_os(rdma_tests::PEER_VARIABLE).is_some();
    for _ in 0..if is_far { 1 } else { 2 } {
        let (mut a, b) = connect();
        let region = b.pd.allocate_exposed(BLOCK, all_rights()).unwrap();
        let remote = region.remote(..).unwrap();
        a.qp.post_recv(a.pd.allocate(8).unwrap(), 9).unwrap();
        let mut down = None;
        let end = write_until_it_fails(&mut a, remote, |completed| {
            if completed == 20 {
                link.set("down");
                down = Some(Instant::now());
            }
        });
        let down = down.unwrap_or_else(|| panic!("{end:?} before the link was down")).elapsed();
        assert!(down < IN_TIME, "{down:?}");
        eprintln!("NOTE {end:?} after {down:?}");
        if is_iwarp(context) {
            is_disconnected(&a, &end);
        } else if is_far {
            assert_eq!(end, End::Failed(WcStatus::RETRY_EXC_ERR));
        } else {
            // rxe finds no route for the packet. 6.1 reports an error for the request; 6.12 flushes
            // the request like the others.
            let expected = [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR].map(End::Failed);
            assert!(expected.contains(&end), "{end:?}");
        }
        is_in_error(&a);
        assert_eq!(wait(&mut a.receives).status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        port_event(context, port, AsyncEventKind::PORT_ERR);
        wait_for_port(context, port, PortState::DOWN);
        drop((a, b, region));

        link.set("up");
        port_event(context, port, AsyncEventKind::PORT_ACTIVE);
        wait_for_port(context, port, PortState::ACTIVE);
        let (mut a, mut b) = connect();
        b.qp.post_recv(b.pd.allocate(BLOCK).unwrap(), 0).unwrap();
        let content = pattern(BLOCK, 5);
        a.qp.post_send(op::send(buffer(&a.pd, &content))).unwrap();
        let done = wait(&mut b.receives);
        assert_eq!(done.status, Ok(()));
        assert!(done.buffer()[..] == content);
        assert_eq!(wait(&mut a.sends).status, Ok(()));
    }
    drop(opened);
    objects.are_back();
}

/// Connects two sides once the interface has its addresses.
fn connect() -> (Side, Side) {
    let (a, b) = (open(), open_peer());
    for opened in [&a, &b] {
        wait_for_port(&opened.context, opened.port, PortState::ACTIVE);
    }
    rdma_tests::pair(options())
}
