//! Random mixtures of requests, checked against a model: every message arrives unchanged and in
//! order.
//!
//! Both sides derive the same plan from one seed. The requester keeps a model of the peer's memory
//! after each request; the responder knows the messages. `RDMA_TEST_SEED` repeats a run.
//! `RDMA_TEST_UNFENCED` omits fences: rxe executes requests in order, and its fence can stall.

use std::collections::VecDeque;

use rdma::op::{self, Opcode, Work};
use rdma::{Buffer, ExposedRegion, RemoteSlice};
use rdma_test_support::{Peer, first, role};
use rdma_tests::{
    Done, Options, Side, Unconnected, all_rights, buffer, open, pair, pattern, poll, receive_slice, skipped_on_iwarp,
    wait,
};

const REGION: usize = 256 << 10;
const LONGEST: usize = 100_000;
const REQUESTS: usize = 1500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    kind: Kind,
    offset: usize,
    len: usize,
    /// Seed of the content; also the immediate data and the operand of atomic operations.
    content: u8,
    inline: bool,
    signaled: bool,
    /// The offset at which the local memory is split into two segments.
    cut: usize,
}

impl Step {
    fn bytes(&self) -> Vec<u8> {
        pattern(self.len, self.content)
    }

    fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendImm | Kind::WriteImm)
    }
}

/// The requests of a seed; equal seeds give equal requests.
fn plan(seed: u64) -> impl Iterator<Item = Step> {
    let mut state = seed | 1;
    let mut below = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % bound as u64).unwrap()
    };
    (0..REQUESTS).map(move |_| {
        use Kind::{CompareSwap, FetchAdd, Read, Send, SendImm, Write, WriteImm};
        let kind = [Send, SendImm, Write, Write, WriteImm, Read, Read, CompareSwap, FetchAdd][below(9)];
        let len = match kind {
            CompareSwap | FetchAdd => 8,
            _ => [0, 1, 3, 8, 60, 64, 1000, 4096, 5001, LONGEST][below(10)],
        };
        let offset = match kind {
            CompareSwap | FetchAdd => below(REGION / 8 - 1) * 8,
            // Half of the requests go to the beginning of the region, so that they overlap.
            _ if below(2) == 0 => below(64),
            _ => below(REGION - len),
        };
        let content = u8::try_from(below(255)).unwrap();
        Step {
            kind,
            offset,
            len,
            content,
            inline: len <= 64 && below(2) == 0,
            signaled: below(3) != 0,
            cut: below(len + 1),
        }
    })
}

fn seed() -> u64 {
    let seed = std::env::var("RDMA_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 0x5eed);
    println!("RDMA_TEST_SEED={seed} repeats this run");
    seed
}

/// The expected completion of a request.
struct Expected {
    token: u64,
    kind: Kind,
    bytes: Vec<u8>,
    signaled: bool,
}

struct Requester<'a> {
    side: &'a mut Side,
    remote: RemoteSlice,
    memory: Vec<u8>,
    outstanding: VecDeque<Expected>,
    is_unfenced: bool,
}

impl Requester<'_> {
    fn run(&mut self, seed: u64) {
        for (token, step) in (0..).zip(plan(seed)) {
            let expected = self.expect(token, &step);
            self.outstanding.push_back(expected);
            self.post(token, &step);
        }
        // The last request is signaled, so that its completion releases the unsignaled ones.
        let last = Step {
            kind: Kind::Read,
            offset: 0,
            len: REGION.min(LONGEST),
            content: 0,
            inline: false,
            signaled: true,
            cut: 9,
        };
        let expected = self.expect(u64::MAX, &last);
        self.outstanding.push_back(expected);
        self.post(u64::MAX, &last);
        while !self.outstanding.is_empty() {
            let done = wait(&mut self.side.sends);
            self.check(done);
        }
    }

    /// Applies a request to the model and returns the expected completion.
    fn expect(&mut self, token: u64, step: &Step) -> Expected {
        let range = step.offset..step.offset + step.len;
        let before = self.memory[range.clone()].to_vec();
        let operand = u64::from(step.content);
        let bytes = match step.kind {
            Kind::Write | Kind::WriteImm => {
                self.memory[range].copy_from_slice(&step.bytes());
                Vec::new()
            }
            Kind::Read => before,
            Kind::CompareSwap | Kind::FetchAdd => {
                let old = u64::from_ne_bytes(before.clone().try_into().unwrap());
                let new = match step.kind {
                    Kind::FetchAdd => old.wrapping_add(operand),
                    _ if old == 0 => operand,
                    _ => old,
                };
                self.memory[range].copy_from_slice(&new.to_ne_bytes());
                before
            }
            Kind::Send | Kind::SendImm => Vec::new(),
        };
        Expected { token, kind: step.kind, bytes, signaled: step.signaled }
    }

    fn post(&mut self, token: u64, step: &Step) {
        let remote = self.remote.slice(step.offset..step.offset + step.len).unwrap();
        let (bytes, imm, operand) = (step.bytes(), u32::from(step.content), u64::from(step.content));
        let pd = self.side.pd.clone();
        let cut = |mut whole: Buffer| {
            let front = whole.split_to(step.cut);
            [front, whole]
        };
        let local = || cut(buffer(&pd, &bytes));
        let sink = || {
            let mut sink = pd.allocate(step.len.max(1)).unwrap();
            sink.truncate(step.len);
            sink
        };
        match (step.kind, step.inline) {
            (Kind::Send, true) => self.post_one(op::send_inline(&bytes), token, step),
            (Kind::Send, false) => {
                let request = op::send(local());
                self.post_one(request, token, step);
            }
            (Kind::SendImm, true) => self.post_one(op::send_imm_inline(&bytes, imm), token, step),
            (Kind::SendImm, false) => {
                let request = op::send_imm(local(), imm);
                self.post_one(request, token, step);
            }
            (Kind::Write, true) => self.post_one(op::write_inline(&bytes, remote), token, step),
            (Kind::Write, false) => {
                let request = op::write(local(), remote);
                self.post_one(request, token, step);
            }
            (Kind::WriteImm, true) => self.post_one(op::write_imm_inline(&bytes, remote, imm), token, step),
            (Kind::WriteImm, false) => {
                let request = op::write_imm(local(), remote, imm);
                self.post_one(request, token, step);
            }
            (Kind::Read, _) => {
                let request = op::read(cut(sink()), remote);
                self.post_one(request, token, step);
            }
            (Kind::CompareSwap, _) => {
                let request = op::compare_swap(sink(), remote, 0, operand);
                self.post_one(request, token, step);
            }
            (Kind::FetchAdd, _) => {
                let request = op::fetch_add(sink(), remote, operand);
                self.post_one(request, token, step);
            }
        }
    }

    /// Posts a request, and polls while the queue is full. Requests are fenced, so that none
    /// overtakes a read, except where the device's fence is broken.
    fn post_one<O, L>(&mut self, request: Work<O, L>, token: u64, step: &Step)
    where
        O: op::Operation,
        L: rdma::Owned,
    {
        let mut request = request.token(token).signaled(step.signaled);
        if !self.is_unfenced {
            request = request.fence();
        }
        while self.side.qp.send_queue().room() == 0 {
            let done = wait(&mut self.side.sends);
            self.check(done);
        }
        self.side.qp.post_send(request).unwrap_or_else(|refused| panic!("{refused}, with room"));
        if let Some(done) = poll(&mut self.side.sends) {
            self.check(done);
        }
    }

    fn check(&mut self, done: Done) {
        assert_eq!(done.status, Ok(()), "token {}", done.token);
        for token in &done.unsignaled {
            let expected = self.outstanding.pop_front().expect("outstanding");
            assert_eq!((expected.token, expected.signaled), (*token, false));
        }
        let expected = self.outstanding.pop_front().expect("outstanding");
        assert_eq!(expected.token, done.token, "completions come in order");
        match expected.kind {
            Kind::Read => {
                let bytes: Vec<u8> = done.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
                assert!(bytes == expected.bytes, "what request {} read", done.token);
            }
            Kind::CompareSwap | Kind::FetchAdd => {
                let old = u64::from_ne_bytes(expected.bytes.try_into().unwrap());
                assert_eq!(done.old_value, Some(old), "what atomic request {} found", done.token);
            }
            _ => {}
        }
    }
}

/// Receives the messages of a plan and checks each.
fn respond(side: &mut Side, seed: u64, depth: u64) {
    for token in 0..depth {
        side.qp.post_recv(side.pd.allocate(LONGEST).unwrap(), token).unwrap();
    }
    for (number, step) in (0..).zip(plan(seed).filter(Step::is_message)) {
        let mut done = wait(&mut side.receives);
        assert_eq!((done.status, done.token, done.byte_len), (Ok(()), number, step.len), "{step:?}");
        let imm = (step.kind != Kind::Send).then_some(u32::from(step.content));
        assert_eq!(done.imm, imm, "{step:?}");
        let buffer = done.buffers.remove(0);
        if step.kind == Kind::WriteImm {
            assert_eq!(done.opcode, Opcode::RecvWriteImm);
        } else {
            assert!(buffer[..step.len] == step.bytes(), "message {number}: {step:?}");
        }
        side.qp.post_recv(buffer, number + depth).unwrap();
    }
}

fn verify(region: &ExposedRegion, memory: &[u8]) {
    let mut seen = vec![0; REGION];
    region.copy_out(0, &mut seen).unwrap();
    let differs = seen.iter().zip(memory).position(|(seen, expected)| seen != expected);
    assert_eq!(differs, None, "the first byte that differs");
}

fn memory_after(seed: u64, side: &mut Side, remote: RemoteSlice) -> Vec<u8> {
    let is_unfenced = std::env::var_os("RDMA_TEST_UNFENCED").is_some();
    let outstanding = VecDeque::new();
    let mut requester = Requester { side, remote, memory: vec![0; REGION], outstanding, is_unfenced };
    requester.run(seed);
    requester.memory
}

#[test]
fn random_requests_within_a_process() {
    if skipped_on_iwarp(&open().context, "iWARP does not wait for a receive") {
        return;
    }
    let seed = seed();
    let (mut a, mut b) = pair(Options::default());
    let region = b.pd.allocate_exposed(REGION, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    let responder = std::thread::spawn(move || {
        respond(&mut b, seed, 16);
        b
    });
    let memory = memory_after(seed, &mut a, remote);
    let _b = responder.join().unwrap();
    verify(&region, &memory);
}

#[test]
fn random_requests_between_processes() {
    if role().is_some() {
        let mut channel = first();
        let mut side = Unconnected::new(&open(), Options::default()).meet(&mut channel);
        let region = side.pd.allocate_exposed(REGION, all_rights()).unwrap();
        channel.send(&region.remote(..).unwrap().to_bytes());
        let seed = u64::from_ne_bytes(channel.receive_exact());
        respond(&mut side, seed, 16);
        // The channel's messages are short, so the memory arrives in pieces.
        let mut memory = Vec::new();
        while memory.len() < REGION {
            memory.extend(channel.receive());
        }
        verify(&region, &memory);
        return;
    }
    if skipped_on_iwarp(&open().context, "iWARP does not wait for a receive") {
        return;
    }
    let seed = seed();
    let mut running = Peer::start("random::random_requests_between_processes", "peer");
    let mut side = Unconnected::new(&open(), Options::default()).meet(&mut running);
    let remote = receive_slice(&mut running);
    running.send(&seed.to_ne_bytes());
    let memory = memory_after(seed, &mut side, remote);
    for piece in memory.chunks(1024) {
        running.send(piece);
    }
    running.finish();
}
