//! Two processes: the test binary runs itself again as the peer, with one of the roles below, and the two talk over the
//! child's standard streams to exchange what verbs programs exchange.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rdma_sys::*;

use super::*;
use crate::engine::{ModifyQp, QpId, QpInit, QpState, Registration, SendData, SendRequest};

const ROLE: &str = "RDMA_SOFT_TEST_ROLE";
const LONG: Duration = Duration::from_secs(30);

/// One of each object, in this process's node.
struct Side {
    node: &'static Node,
    cq: CqId,
    qp: QpId,
    qpn: u32,
    memory: &'static SharedMemory,
    key: u32,
}

impl Side {
    fn new(len: usize) -> Self {
        let node = Node::get().unwrap();
        // Tests end with their process: nothing is taken down.
        let memory = Box::leak(Box::new(SharedMemory::new(len).unwrap()));
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let what =
            Registration { addr: memory.as_ptr(), len, iova: memory.as_ptr().addr() as u64, access, backing: None };
        let (cq, qp, qpn, key) = node.with(|engine| {
            let pd = engine.alloc_pd().unwrap();
            let cq = engine.create_cq(256, 1).unwrap();
            // SAFETY: the memory is never freed, and only touched through rdma_mem.
            let key = unsafe { engine.register(pd, &what) }.unwrap().lkey;
            let (qp, qpn) = engine
                .create_qp(&QpInit {
                    pd,
                    send_cq: cq,
                    recv_cq: cq,
                    max_send_wr: 64,
                    max_recv_wr: 64,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    max_inline_data: 64,
                    sq_sig_all: true,
                    token: 2,
                })
                .unwrap();
            (cq, qp, qpn, key)
        });
        Self { node, cq, qp, qpn, memory, key }
    }

    fn connect(&self, dest_qpn: u32) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = ModifyQp {
                state: Some(state),
                access: Some(15),
                dest_qpn: Some(dest_qpn),
                rq_psn: Some(1),
                sq_psn: Some(1),
                max_rd_atomic: Some(4),
                max_dest_rd_atomic: Some(4),
                min_rnr_timer: Some(1),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                ..ModifyQp::default()
            };
            self.node.with_drained(|engine| engine.modify_qp(self.qp, &change)).unwrap();
        }
    }

    fn sge(&self, at: usize, len: usize) -> ibv_sge {
        ibv_sge { addr: (self.memory.as_ptr().addr() + at) as u64, length: u32::try_from(len).unwrap(), lkey: self.key }
    }

    fn send(&self, wr_id: u64, at: usize, len: usize) {
        self.post(wr_id, ibv_wr_opcode::IBV_WR_SEND, at, len, 0, 0);
    }

    fn post(&self, wr_id: u64, opcode: ibv_wr_opcode, at: usize, len: usize, remote_addr: u64, rkey: u32) {
        let list = [self.sge(at, len)];
        let request = SendRequest {
            wr_id,
            opcode,
            flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            imm: 0,
            remote_addr,
            rkey,
            compare_add: 0,
            swap: 0,
            data: SendData::List(&list),
        };
        self.node.with(|engine| engine.post_send(self.qp, &request)).unwrap();
    }

    fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.node.with(|engine| engine.post_recv(self.qp, wr_id, &[self.sge(at, len)])).unwrap();
    }

    fn poll(&self) -> Option<ibv_wc> {
        let mut out = [ibv_wc::default()];
        (self.node.poll_cq(self.cq, &mut out).unwrap() == 1).then(|| out[0])
    }

    /// Polls until a completion comes.
    fn wait(&self) -> ibv_wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < LONG, "no completion in {LONG:?}");
            std::thread::yield_now();
        }
    }

    fn wait_ok(&self) -> u64 {
        let wc = self.wait();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        wc.wr_id
    }

    fn set(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.len());
        // SAFETY: within the memory (just checked), which lives for ever.
        unsafe { rdma_mem::copy(self.memory.as_ptr().wrapping_add(at), bytes.as_ptr(), bytes.len()) };
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.memory.len());
        let mut bytes = vec![0; len];
        // SAFETY: within the memory (just checked), which lives for ever.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.memory.as_ptr().wrapping_add(at), len) };
        bytes
    }

    fn describe(&self) -> String {
        format!("{} {} {}", self.qpn, self.memory.as_ptr().addr(), self.key)
    }
}

/// A process that runs one of the roles.
struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::tests::peer", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, to, from }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next line of ours: the test harness prints some of its own.
    fn hear(&mut self) -> Vec<u64> {
        let mut line = String::new();
        while !line.contains("peer:") {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the peer has ended");
        }
        let (_, words) = line.split_once("peer:").unwrap();
        words.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn finish(mut self) {
        drop(self.to);
        assert!(self.child.wait().unwrap().success());
    }
}

fn say(line: &str) {
    println!("peer:{line}");
}

fn listen() -> Vec<u64> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// A pair of connected queue pairs: ours, and what the peer said of its side.
fn pair(role: &str, len: usize) -> (Side, Peer, Vec<u64>) {
    let side = Side::new(len);
    let mut peer = Peer::start(role);
    peer.tell(&side.describe());
    let theirs = peer.hear();
    side.connect(u32::try_from(theirs[0]).unwrap());
    (side, peer, theirs)
}

/// The roles.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let side = Side::new(4 << 20);
    let theirs = listen();
    side.connect(u32::try_from(theirs[0]).unwrap());
    match role.as_str() {
        // Sends back what comes, until a message of one byte.
        "echo" => {
            side.recv(1, 0, 1 << 20);
            say(&side.describe());
            loop {
                let wc = side.wait();
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                if wc.opcode != ibv_wc_opcode::IBV_WC_RECV {
                    continue;
                }
                side.recv(1, 0, 1 << 20);
                side.send(2, 0, wc.byte_len as usize);
                if wc.byte_len == 1 {
                    side.wait_ok();
                    return;
                }
            }
        }
        // Sends back small messages without ever yielding.
        "spin" => {
            pin(1);
            for _ in 0..32 {
                side.recv(1, 0, 4096);
            }
            say(&side.describe());
            loop {
                let Some(wc) = side.poll() else { continue };
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                if wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
                    side.recv(1, 0, 4096);
                    side.send(2, 0, wc.byte_len as usize);
                    if wc.byte_len == 1 {
                        return;
                    }
                }
            }
        }
        // Does nothing at all, until told to end.
        "sleep" => {
            say(&side.describe());
            listen();
        }
        // Is killed while it sends.
        "flood" => {
            say(&side.describe());
            for i in 0.. {
                side.send(i, 0, 1 << 16);
                if side.wait().status != ibv_wc_status::IBV_WC_SUCCESS {
                    return;
                }
            }
        }
        other => panic!("no role {other}"),
    }
}

#[test]
fn messages_of_all_sizes_come_back() {
    let (side, mut peer, _) = pair("echo", 4 << 20);
    let _ = &mut peer;
    for len in [64, 0, 8, 4096, 65_536, 65_537, 1 << 20, 1] {
        let data: Vec<u8> = (0..len).map(|i: usize| (i * 7 + len) as u8).collect();
        side.set(0, &data);
        side.recv(1, 2 << 20, 1 << 20);
        side.send(2, 0, len);
        let mut ids = [side.wait_ok(), side.wait_ok()];
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert_eq!(side.get(2 << 20, len), data);
    }
    peer.finish();
}

/// What the node's own path costs, between two processes that poll on two cores.
#[test]
#[ignore = "a measurement, for a quiet machine: cargo test --release -p rdma-soft latency -- --ignored --nocapture"]
fn latency() {
    let (side, peer, _) = pair("spin", 4 << 20);
    pin(0);
    let round = |len| {
        side.recv(1, 4096, 4096);
        side.send(2, 0, len);
        let mut left = 2;
        while left > 0 {
            if let Some(wc) = side.poll() {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                left -= 1;
            }
        }
    };
    for _ in 0..20_000 {
        round(64);
    }
    let mut times: Vec<_> = (0..200_000)
        .map(|_| {
            let start = Instant::now();
            round(64);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let half = |at: f64| times[(at * (times.len() - 1) as f64) as usize] / 2;
    println!("half round trip of 64 B: p10 {:?} median {:?} p99 {:?}", half(0.1), half(0.5), half(0.99));
    let start = Instant::now();
    let polls = 1_000_000;
    for _ in 0..polls {
        assert!(side.poll().is_none());
    }
    println!("empty poll: {:?}", start.elapsed() / polls);
    round(1);
    peer.finish();
}

fn pin(cpu: usize) {
    // SAFETY: cpu_set_t is plain data, valid when zero.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the number is within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: reads one set from a live one. Fails where there is only one processor, which does not matter.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}
