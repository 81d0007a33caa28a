//! A second process that holds one [`Side`].

use std::ops::{Deref, DerefMut};
use std::process::Command;

use rdma_sys::{ibv_qp_state, ibv_wr_opcode};
use rdma_test_support::{Peer, first, role};

use super::{Config, Endpoint, Request, Side};

/// Handle of the second process, for the first one.
pub(crate) struct Puppet {
    process: Peer,
    pub(crate) endpoint: Endpoint,
}

impl Puppet {
    /// Starts the process; `test` is the name of the test that calls [`play`].
    pub(crate) fn start(test: &str, options: &str) -> Self {
        Self::start_with(test, options, |_| {})
    }

    /// Like [`start`](Self::start), with a change to the command.
    pub(crate) fn start_with(test: &str, options: &str, tune: impl FnOnce(&mut Command)) -> Self {
        let mut process = Peer::start_with(test, options, tune);
        let endpoint = parse_endpoint(&process.hear());
        Self { process, endpoint }
    }

    /// Connects the other process's side to ours.
    pub(crate) fn connect(&mut self, endpoint: Endpoint) {
        let Endpoint { qpn, addr, rkey } = endpoint;
        assert_eq!(self.ask(&format!("connect {qpn} {addr} {rkey}")), "done");
    }

    /// Ends the process and checks that it succeeded.
    pub(crate) fn finish(self) {
        self.process.finish();
    }
}

impl Deref for Puppet {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.process
    }
}

impl DerefMut for Puppet {
    fn deref_mut(&mut self) -> &mut Peer {
        &mut self.process
    }
}

pub(crate) fn parse_endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ').map(|word| word.parse::<u64>().unwrap());
    let mut next = || words.next().unwrap();
    Endpoint { qpn: u32::try_from(next()).unwrap(), addr: next(), rkey: u32::try_from(next()).unwrap() }
}

/// Runs the commands of the first process if this is the second one; otherwise returns. The options
/// are words: `shared`, `to=ADDRESS` of the first process's host, `many` for so many queue pairs
/// that the process has two numbers, and `nobody` for a process that root starts to be of another
/// user.
pub(crate) fn play() {
    let Some(options) = role() else { return };
    let mut first = first();
    let words = || options.split_whitespace();
    if words().any(|word| word == "nobody") {
        become_nobody();
    }
    let peer = words().find_map(|word| word.strip_prefix("to=")).map(|address| address.parse().unwrap());
    let mut config = Config { shared: words().any(|word| word == "shared"), peer, ..Config::default() };
    if words().any(|word| word == "many") {
        // The queue pairs live as long as the process.
        let side = Box::leak(Box::new(Side::new(Config { depth: 1, ..Config::default() })));
        for _ in 0..4096 {
            side.make_qp();
        }
        // The peer learns of the second number while requests come from there.
        config.timeout = 18;
    }
    let mut side = Side::new(config);
    let Endpoint { qpn, addr, rkey } = side.endpoint();
    first.tell(&format!("{qpn} {addr} {rkey}"));
    while let Some(line) = first.try_hear() {
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        first.tell(&answer(&mut side, command, rest));
        if let Some(ms) = line.strip_prefix("sleep ") {
            std::thread::sleep(std::time::Duration::from_millis(ms.parse().unwrap()));
        }
    }
}

fn become_nobody() {
    // SAFETY: setuid takes a number; all threads of this process give up all their rights.
    assert_eq!(unsafe { libc::setuid(65_534) }, 0);
}

/// Carries a command out.
pub(crate) fn answer(side: &mut Side, command: &str, rest: &str) -> String {
    let done = || "done".to_owned();
    if command == "connect" {
        side.connect(parse_endpoint(rest));
        return done();
    }
    let numbers: Vec<usize> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
    match (command, numbers.as_slice()) {
        ("recv", &[id, offset, len]) => side.post_recv(id as u64, &[side.sge(offset, len)]).to_string(),
        ("send", &[id, offset, len]) => {
            let request = Request::new(ibv_wr_opcode::IBV_WR_SEND, id as u64, &[side.sge(offset, len)]);
            side.post(&request).to_string()
        }
        ("fill", &[offset, len, byte]) => {
            side.put(offset, &vec![u8::try_from(byte).unwrap(); len]);
            done()
        }
        ("wait", &[]) => {
            let wc = side.wait();
            format!("{} {} {}", wc.wr_id, wc.status.0, wc.byte_len)
        }
        ("peek", &[offset, len]) => side.peek(offset, len).iter().map(|b| format!("{b:02x}")).collect(),
        ("word", &[offset]) => side.word(offset).to_string(),
        ("dereg", &[]) => side.deregister().to_string(),
        ("renew", &[]) => {
            assert_eq!(side.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
            done()
        }
        ("error", &[]) => side.set_state(ibv_qp_state::IBV_QPS_ERR).to_string(),
        ("state", &[]) => side.state().0.to_string(),
        ("sleep", &[_]) => done(),
        _ => format!("what is {command} {rest}?"),
    }
}
