//! What goes wrong under a connection: a peer killed in mid-transfer, an interface set down. The right error, in time, and
//! nothing left behind.
//!
//! These need a device of which nobody else makes use at the time: what is left behind is what the kernel counts. The interface
//! that they may set down is in `RDMA_TEST_NETDEV`; without it, those that need one are skipped.

use std::process::Command;
use std::time::{Duration, Instant};

use rdma::op::{Send, Write};
use rdma::{
    AckTimeout, AsyncEventKind, ConnectOptions, Context, EventSource, PortState, QpState, RemoteSlice, TransportType,
    WcStatus,
};
use rdma_tests::child::{self, Running};
use rdma_tests::{
    Done, LIMIT, Options, Side, Unconnected, all_rights, buffer, open, open_peer, pattern, poll, skip, wait,
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
        Self(
            output
                .ok()
                .filter(|output| output.status.success())
                .map(|output| String::from_utf8(output.stdout).unwrap()),
        )
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

fn is_iwarp(context: &Context) -> bool {
    context.device().transport() == TransportType::IWARP
}

/// The first completion that is not a success, and how many were before it. `more` posts what keeps the queue busy.
fn first_error(side: &mut Side, mut more: impl FnMut(&mut Side, Done)) -> (WcStatus, usize) {
    let begin = Instant::now();
    let mut completed = 0;
    loop {
        assert!(begin.elapsed() < LIMIT, "no error after {completed} completions");
        let Some(done) = poll(&mut side.sends) else {
            std::thread::yield_now();
            continue;
        };
        match done.status {
            Err(error) => return (error.status, completed),
            Ok(()) => more(side, done),
        }
        completed += 1;
    }
}

/// Posts again what was done, while that is possible.
fn write_again(side: &mut Side, mut done: Done, remote: RemoteSlice) {
    if let Some(buffer) = done.buffers.pop() {
        // In the error state a post may be refused.
        drop(side.qp.post_send(Write::new(buffer, remote)));
    }
}

fn fill(side: &mut Side, remote: RemoteSlice) {
    for seed in 0..8 {
        side.qp.post_send(Write::new(buffer(&side.pd, &pattern(BLOCK, seed)), remote)).unwrap();
    }
}

#[test]
fn a_peer_killed_in_mid_transfer_ends_it() {
    if child::is_child() {
        let mut channel = child::channel();
        // Regions end in the reverse order of their creation when a process dies, and so do queue pairs.
        let side = Unconnected::new(&open(), options());
        let peer = channel.exchange(&side.qp.endpoint());
        let side = side.connect(&peer);
        let region = side.pd.allocate_exposed(BLOCK, all_rights()).unwrap();
        channel.send(&region.remote(..).unwrap().to_bytes());
        channel.receive();
        unreachable!("the parent kills us first");
    }
    let objects = Objects::now();
    for round in 0..2 {
        let mut running = Running::start("a_peer_killed_in_mid_transfer_ends_it");
        let side = Unconnected::new(&open(), options());
        let peer = running.channel.exchange(&side.qp.endpoint());
        let mut side = side.connect(&peer);
        let remote = running.channel.receive_slice();
        side.qp.post_recv(side.pd.allocate(8).unwrap(), 9).unwrap();
        fill(&mut side, remote);
        let mut left = 20 + 10 * round;
        let mut killed = Instant::now();
        let (status, completed) = first_error(&mut side, |side, done| {
            left -= 1;
            if left == 0 {
                running.kill();
                killed = Instant::now();
            }
            write_again(side, done, remote);
        });
        assert!(left <= 0, "an error before the peer was killed: {status:?} after {completed}");
        assert!(killed.elapsed() < IN_TIME, "{:?}", killed.elapsed());
        if is_iwarp(&side.context) {
            assert_eq!(status, WcStatus::WR_FLUSH_ERR);
        } else {
            // The kernel takes the key before the queue pair, and a request may come in between.
            assert!([WcStatus::RETRY_EXC_ERR, WcStatus::REM_ACCESS_ERR].contains(&status), "{status:?}");
        }
        assert_eq!(side.qp.state().unwrap(), QpState::ERR);
        assert_eq!(wait(&mut side.receives).status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        while let Some(done) = poll(&mut side.sends) {
            assert_eq!(done.status.unwrap_err().status, WcStatus::WR_FLUSH_ERR);
        }
        let Side { context, pd, qp, sends, receives } = side;
        qp.close().unwrap();
        drop((sends, receives, pd, context));
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
    for _ in 0..2 {
        let (mut a, b) = connect();
        let region = b.pd.allocate_exposed(BLOCK, all_rights()).unwrap();
        let remote = region.remote(..).unwrap();
        a.qp.post_recv(a.pd.allocate(8).unwrap(), 9).unwrap();
        fill(&mut a, remote);
        let mut left = 20;
        let mut down = Instant::now();
        let (status, _) = first_error(&mut a, |a, done| {
            left -= 1;
            if left == 0 {
                link.set("down");
                down = Instant::now();
            }
            write_again(a, done, remote);
        });
        assert!(left <= 0, "an error before the link was down: {status}");
        assert!(down.elapsed() < IN_TIME, "{:?}", down.elapsed());
        eprintln!("NOTE first error {status} after {:?}", down.elapsed());
        let expected = match (is_iwarp(context), is_far) {
            (true, _) => WcStatus::WR_FLUSH_ERR,
            (false, true) => WcStatus::RETRY_EXC_ERR,
            // rxe finds no route for the packet, and so fails the request at once.
            (false, false) => WcStatus::LOC_QP_OP_ERR,
        };
        assert_eq!(status, expected);
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
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
