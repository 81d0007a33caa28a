//! A second process: this test program again, which holds one [`Side`] and does what it is told, line by line.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{Config, Endpoint, Request, Side};
use rdma_sys::{ibv_qp_state, ibv_wr_opcode};

pub(super) const ROLE: &str = "RDMA_SOFT_TEST_PUPPET";
/// Answers begin with it, to tell them from what the test harness prints.
const MARK: &str = "@ ";

/// The second process, as the first one sees it.
pub(crate) struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) endpoint: Endpoint,
}

impl Puppet {
    /// Starts the process; `role` is the name of the test that calls [`play`].
    pub(crate) fn start(role: &str, options: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program)
            .args(["--exact", role, "--nocapture", "--test-threads=1"])
            .env(ROLE, options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut puppet = Self { child, input, output, endpoint: Endpoint { qpn: 0, addr: 0, rkey: 0 } };
        puppet.endpoint = parse_endpoint(&puppet.answer());
        puppet
    }

    fn say(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the other process has ended");
            // The harness may have begun the line.
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Says something and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.say(command);
        self.answer()
    }

    /// Connects the other process's side to ours.
    pub(crate) fn connect(&mut self, endpoint: Endpoint) {
        let Endpoint { qpn, addr, rkey } = endpoint;
        assert_eq!(self.ask(&format!("connect {qpn} {addr} {rkey}")), "done");
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: no requirement; the child is not waited for yet, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Stops the process, and waits until all of its threads stand still.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a valid out parameter; the child is not waited for elsewhere meanwhile.
        let stopped = unsafe { libc::waitpid(self.pid(), &raw mut status, libc::WUNTRACED) };
        assert!(stopped == self.pid() && libc::WIFSTOPPED(status));
    }

    /// Kills the process, as nothing can prevent.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process, which must agree.
    pub(crate) fn finish(mut self) {
        self.say("quit");
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // Both fail where the process is gone, as it should be.
        let _killed = self.child.kill();
        let _waited = self.child.wait();
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

pub(super) fn reply(text: &str) {
    let mut output = io::stdout().lock();
    writeln!(output, "{MARK}{text}").unwrap();
    output.flush().unwrap();
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
