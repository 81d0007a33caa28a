//! What goes wrong under a connection: a peer killed in mid-transfer, an interface set down. The right error, in time, and
//! nothing left behind.
//!
//! These need a device of which nobody else makes use at the time: what is left behind is what the kernel counts. The interface
//! that they may set down is in `RDMA_TEST_NETDEV`; without it, those that need one are skipped.

use std::process::Command;
use std::time::{Duration, Instant};

use rdma::op::{Send, Write};
use rdma::{
    AckTimeout, AsyncEventKind, ConnectOptions, Context, EventSource, PortState, QpState, RemoteSlice, WcStatus,
};
use rdma_tests::child::{self, Running};
use rdma_tests::{
    LIMIT, Options, Side, Unconnected, all_rights, buffer, is_iwarp, open, open_peer, pattern, poll, skip, wait,
};

const BLOCK: usize = 32 << 10;
/// More than the timeouts of [`options`] take: 4.096 us * 2^14 * 7 = 470 ms. The rest is an emulated machine's. Not 7 retries,
/// which to rxe are retries without end (tried on 6.1).
const IN_TIME: Duration = Duration::from_secs(10);

fn options() -> Options {
    let connect = ConnectOptions::new().ack_timeout(AckTimeout::at_least(Duration::from_millis(60))).retry_count(6);
    Options { connect, ..Options::default() }
}

/// What the kernel has of each kind of object on each device.
#[derive(Debug)]
struct Objects(Option<String>);

impl Objects {
    fn now() -> Self {
        let output = Command::new("rdma").args(["resource", "show"]).output();
        Self(output.ok().filter(|output| output.status.success()).map(|output| {
            // Not contexts: the connection manager's library keeps those that it has opened until the process ends.
            let text = String::from_utf8(output.stdout).unwrap();
            let mut words = Vec::new();
            for word in text.split_whitespace() {
                let is_count_of_contexts = words.last() == Some(&"ctx");
                words.push(if is_count_of_contexts { "-" } else { word });
            }
            words.join(" ")
        }))
    }

    /// Everything is as it was. The kernel may take a moment: identifiers of connections live until their last timer.
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

/// How a stream of requests came to its end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// By the first completion that is not a success.
    Failed(WcStatus),
    /// By the end of the connection, and nothing has failed: iWARP's writes are complete when they are sent, so there may be none
    /// under way. What was posted since is never flushed by siw: a process's doorbell carries no request that it could flush.
    Disconnected,
}

/// Writes to the peer without pause until that fails. `watch` is told after each success how many there were.
fn write_until_it_fails(side: &mut Side, remote: RemoteSlice, mut watch: impl FnMut(u32)) -> End {
    let begin = Instant::now();
    for seed in 0..8 {
        side.qp.post_send(Write::new(buffer(&side.pd, &pattern(BLOCK, seed)), remote)).unwrap();
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
        drop(side.qp.post_send(Write::new(done.buffer(), remote)));
    }
}

fn is_in_error(side: &Side) {
    // siw of 6.1 does not tell.
    if !is_iwarp(&side.context) {
        assert_eq!(side.qp.state().unwrap(), QpState::ERR);
    }
}

/// The end on iWARP: what was under way is flushed, and the connection manager tells that the connection is over.
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
    if child::is_child() {
        let mut channel = child::channel();
        // Regions end in the reverse order of their creation when a process dies, and so do queue pairs.
        let side = Unconnected::new(&open(), options()).meet(&mut channel);
        let region = side.pd.allocate_exposed(BLOCK, all_rights()).unwrap();
        channel.send(&region.remote(..).unwrap().to_bytes());
        channel.receive();
        unreachable!("the parent kills us first");
    }
    let objects = Objects::now();
    for round in 0..2 {
        let mut running = Running::start("a_peer_killed_in_mid_transfer_ends_it");
        let mut side = Unconnected::new(&open(), options()).meet(&mut running.channel);
        let remote = running.channel.receive_slice();
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
            // The kernel takes the key before the queue pair, and a request may come in between.
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

/// An interface that may be set down, and comes up again whatever happens.
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

/// Waits for an event of the port.
fn port_event(context: &Context, port: u8, kind: AsyncEventKind) {
    let begin = Instant::now();
    loop {
        let left = LIMIT.checked_sub(begin.elapsed()).unwrap_or_else(|| panic!("no event {kind}"));
        match context.next_async_event(Some(left)).unwrap() {
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
    // The interface is then the other end's.
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
            // rxe finds no route for the packet. In 6.1 it says so of that request; in 6.12 it flushes it like the others.
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
        a.qp.post_send(Send::new(buffer(&a.pd, &content))).unwrap();
        let done = wait(&mut b.receives);
        assert_eq!(done.status, Ok(()));
        assert!(done.buffer()[..] == content);
        assert_eq!(wait(&mut a.sends).status, Ok(()));
    }
    drop(opened);
    objects.are_back();
}

/// Two ends, as soon as their addresses are there.
fn connect() -> (Side, Side) {
    let (a, b) = (open(), open_peer());
    for opened in [&a, &b] {
        wait_for_port(&opened.context, opened.port, PortState::ACTIVE);
    }
    rdma_tests::pair(options())
}
