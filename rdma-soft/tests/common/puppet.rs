//! A second process, which holds one [`Side`].

use std::io::{self, BufRead};
use std::ops::{Deref, DerefMut};

use super::second::{ROLE, Second, reply};
use super::{Config, Endpoint, Request, Side};
use rdma_sys::{ibv_qp_state, ibv_wr_opcode};

/// The second process, as the first one sees it.
pub(crate) struct Puppet {
    process: Second,
    pub(crate) endpoint: Endpoint,
}

impl Puppet {
    /// Starts the process; `role` is the name of the test that calls [`play`].
    pub(crate) fn start(role: &str, options: &str) -> Self {
        let mut process = Second::start(role, options);
        let endpoint = parse_endpoint(&process.answer());
        Self { process, endpoint }
    }

    /// Connects the other process's side to ours.
    pub(crate) fn connect(&mut self, endpoint: Endpoint) {
        let Endpoint { qpn, addr, rkey } = endpoint;
        assert_eq!(self.ask(&format!("connect {qpn} {addr} {rkey}")), "done");
    }

    /// Ends the process, which must agree.
    pub(crate) fn finish(self) {
        self.process.finish();
    }
}

impl Deref for Puppet {
    type Target = Second;

    fn deref(&self) -> &Second {
        &self.process
    }
}

impl DerefMut for Puppet {
    fn deref_mut(&mut self) -> &mut Second {
        &mut self.process
    }
}

fn parse_endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ').map(|word| word.parse::<u64>().unwrap());
    let mut next = || words.next().unwrap();
    Endpoint { qpn: u32::try_from(next()).unwrap(), addr: next(), rkey: u32::try_from(next()).unwrap() }
}

/// In the second process: plays the puppet and never returns. In the first: does nothing.
pub(crate) fn play() {
    let Some(options) = std::env::var_os(ROLE) else { return };
    let options = options.to_string_lossy();
    let config = Config { shared: options.contains("shared"), ..Config::default() };
    let mut side = Side::new(config);
    let Endpoint { qpn, addr, rkey } = side.endpoint();
    reply(&format!("{qpn} {addr} {rkey}"));
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        if command == "quit" {
            break;
        }
        obey(&mut side, command, rest);
    }
    drop(side);
    std::process::exit(0);
}

fn obey(side: &mut Side, command: &str, rest: &str) {
    if command == "connect" {
        side.connect(parse_endpoint(rest));
        return reply("done");
    }
    let numbers: Vec<usize> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
    match (command, numbers.as_slice()) {
        ("recv", &[id, offset, len]) => reply(&side.post_recv(id as u64, &[side.sge(offset, len)]).to_string()),
        ("send", &[id, offset, len]) => {
            let request = Request::new(ibv_wr_opcode::IBV_WR_SEND, id as u64, &[side.sge(offset, len)]);
            reply(&side.post(&request).to_string());
        }
        ("fill", &[offset, len, byte]) => {
            side.put(offset, &vec![u8::try_from(byte).unwrap(); len]);
            reply("done");
        }
        ("wait", &[]) => {
            let wc = side.wait();
            reply(&format!("{} {} {}", wc.wr_id, wc.status.0, wc.byte_len));
        }
        ("peek", &[offset, len]) => {
            reply(&side.peek(offset, len).iter().map(|b| format!("{b:02x}")).collect::<String>())
        }
        ("word", &[offset]) => reply(&side.word(offset).to_string()),
        ("dereg", &[]) => reply(&side.deregister().to_string()),
        ("error", &[]) => reply(&side.set_state(ibv_qp_state::IBV_QPS_ERR).to_string()),
        ("state", &[]) => reply(&side.state().0.to_string()),
        ("sleep", &[ms]) => {
            reply("done");
            std::thread::sleep(std::time::Duration::from_millis(ms as u64));
        }
        _ => reply(&format!("what is {command} {rest}?")),
    }
}
