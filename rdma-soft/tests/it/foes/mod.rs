//! A process of another host that holds the key and is hostile: it proves the key, and then sends
//! whatever it likes over its link to a process, which goes on with its other peers.
//!
//! The hostile process is a part of each test (`caller`), with an address of its own. What it sends
//! is the same in every run.

mod caller;
mod random;
#[cfg(feature = "tls")]
mod tls;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::*;
use rdma_test_support::{first, role, until};

use self::caller::{Caller, HEAD, Pipe, ends};
use self::random::Random;
use crate::common::datagram::{Datagrams, MULTICAST_QPN, QKEY};
use crate::common::puppet::{self, Puppet};
use crate::common::{Config, Endpoint, Request, Side, verbs};
use crate::hosts::{HERE, TCP, THERE, TLS, own, runs_on_host, side_to, talk};

/// The address of the hostile process.
/// It is the lowest of all: if both call at once, its call goes on.
const FOE: &str = "127.87.0.66";
/// Its first slot, and its queue pair that the victim's are connected to.
const SLOT: u16 = 77;
const QPN: u32 = (SLOT as u32) << 12 | 1;
/// The number of the first request, as `rtr_change` chooses it.
const START: u64 = 5;
const SEND: u64 = 1;
const ACK: u64 = 16;
const DATAGRAM: u64 = 33;
/// All kinds of frames, and some that do not exist.
const KINDS: [u64; 24] = [1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21, 22, 23, 32, 33, 34, 48, 49, 0, 7, 24, 35, 255];
/// Kinds of a reliable connection's requests.
const REQUESTS: [u64; 6] = [1, 2, 3, 4, 5, 6];
const MAX_PAYLOAD: usize = 64 << 10;
const TOO_LONG: u32 = (64 << 10) + 1;
/// Bytes of the victim's regions, and those that its honest peer leaves alone.
const MEMORY: usize = 1 << 16;
const UNTOUCHED: usize = 4096;

/// The queue pairs of the victim.
struct Victim {
    /// Connected to the honest peer, to each other, and to the hostile process.
    honest: Side,
    local: [Side; 2],
    foe: Side,
    unreliable: Side,
    datagrams: Datagrams,
}

/// A queue pair of an unreliable connection.
fn unreliable(config: Config) -> Side {
    let mut side = Side::new(config);
    // SAFETY: a live queue pair that nobody uses.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(side.qp) }, 0);
    let mut init = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_UC, ..side.init_attr() };
    // SAFETY: live objects, a valid structure.
    side.qp = unsafe { (verbs().ibv_create_qp)(side.pd, &raw mut init) };
    assert!(!side.qp.is_null());
    side
}

fn is_success(wc: &ibv_wc) -> bool {
    wc.status == ibv_wc_status::IBV_WC_SUCCESS
}

impl Victim {
    fn new(honest: IpAddr) -> Self {
        let to = |peer: &str| Config { peer: Some(peer.parse().unwrap()), ..Config::default() };
        let honest = Side::new(Config { peer: Some(honest), timeout: 14, ..Config::default() });
        honest.put(UNTOUCHED, &[0x77; UNTOUCHED]);
        let local = crate::common::pair(Config::default());
        let (foe, unreliable) = (Side::new(to(FOE)), unreliable(to(FOE)));
        Self { honest, local: local.into(), foe, unreliable, datagrams: Datagrams::new() }
    }

    /// Connects the queue pairs to the hostile process once more, with requests in all queues.
    fn renew(&self) -> usize {
        let peer = Endpoint { qpn: QPN, addr: 0x1000, rkey: 0x0100_0001 };
        let (foe, unreliable) = (&self.foe, &self.unreliable);
        let mut successes = 0;
        for side in [foe, unreliable, &self.datagrams.side] {
            successes += std::iter::from_fn(|| side.poll()).filter(is_success).count();
        }
        for side in [foe, unreliable] {
            assert_eq!(side.set_state(ibv_qp_state::IBV_QPS_RESET), 0);
        }
        type M = ibv_qp_attr_mask;
        assert_eq!((foe.to_init(), unreliable.to_init()), (0, 0));
        let (mut attr, mask) = foe.rtr_change(peer);
        assert_eq!(foe.modify(&mut attr, mask), 0);
        // A frame may have moved the queue pair to ERR since.
        let (mut attr, mask) = foe.rts_change();
        let _in_error = foe.modify(&mut attr, mask);
        let (mut attr, mask) = unreliable.rtr_change(peer);
        assert_eq!(
            unreliable.modify(&mut attr, mask & !(M::IBV_QP_MAX_DEST_RD_ATOMIC.0 | M::IBV_QP_MIN_RNR_TIMER.0)),
            0
        );
        let (mut attr, _) = unreliable.rts_change();
        let _in_error = unreliable.modify(&mut attr, M::IBV_QP_STATE.0 | M::IBV_QP_SQ_PSN.0);
        for side in [foe, unreliable, &self.datagrams.side] {
            // The receives of datagrams stay until they are used: the queue may be full.
            for id in 0..8_u16 {
                let _full = side.post_recv(id.into(), &[side.sge(4096 * usize::from(id), 4096)]);
            }
        }
        successes
    }

    /// Posts requests to the hostile process, which answers as it likes.
    fn ask(&self) {
        type Op = ibv_wr_opcode;
        let side = &self.foe;
        for (opcode, len) in [
            (Op::IBV_WR_SEND, 100),
            (Op::IBV_WR_RDMA_READ, 20_000),
            (Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
            (Op::IBV_WR_RDMA_WRITE, 300),
        ] {
            let request = Request::new(opcode, 100, &[side.sge(40_000, len)]).remote(0x1000, 0x0100_0001);
            // The queue pair may have failed already.
            let _posted = side.post(&request);
        }
    }

    /// A message between two queue pairs of the process.
    fn talk_to_itself(&self) {
        let [a, b] = &self.local;
        assert_eq!(b.post_recv(1, &[b.sge(0, 64)]), 0);
        a.put(0, b"local");
        assert_eq!(a.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[a.sge(0, 5)])), 0);
        a.success(2);
        b.success(1);
        assert_eq!(b.peek(0, 5), b"local");
        b.put(0, b"     ");
    }

    fn has_guards(&self) -> bool {
        let Self { honest, local: [a, b], foe, unreliable, datagrams } = self;
        [honest, a, b, foe, unreliable, &datagrams.side].into_iter().all(Side::has_guards)
            && honest.peek(UNTOUCHED, UNTOUCHED) == [0x77; UNTOUCHED]
            && [a, b].into_iter().all(|side| side.peek(64, MEMORY - 64).iter().all(|byte| *byte == 0))
    }
}

/// The other process runs only this test.
#[test]
fn victim() {
    let Some(options) = role() else { return };
    let mut first = first();
    let mut victim = Victim::new(options.parse().unwrap());
    let describe = |side: &Side| {
        let Endpoint { qpn, addr, rkey } = side.endpoint();
        format!("{qpn} {addr} {rkey}")
    };
    first.tell(&describe(&victim.honest));
    while let Some(line) = first.try_hear() {
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match command {
            "endpoints" => {
                let sides = [&victim.foe, &victim.unreliable, &victim.datagrams.side, &victim.local[0], &victim.honest];
                sides.map(describe).join(" ")
            }
            "renew" => victim.renew().to_string(),
            "ask" => {
                victim.ask();
                "done".to_owned()
            }
            "local" => {
                victim.talk_to_itself();
                victim.has_guards().to_string()
            }
            _ => puppet::answer(&mut victim.honest, command, rest),
        };
        first.tell(&answer);
    }
}

/// The address of the victim.
fn there() -> SocketAddr {
    SocketAddr::new(THERE.parse().unwrap(), own().port())
}

/// Starts the victim, which has an honest peer in this process and a hostile one.
fn victim_and_foe() -> (Side, Puppet, Caller) {
    let (side, victim) = attacked();
    let foe = Caller::new(FOE.parse().unwrap(), there(), slot_of(&victim), std::env::var(TLS).unwrap() == "on");
    (side, victim, foe)
}

fn slot_of(victim: &Puppet) -> u16 {
    u16::try_from(victim.endpoint.qpn >> 12).unwrap()
}

/// Starts the victim, with its honest peer.
fn attacked() -> (Side, Puppet) {
    let mut victim = Puppet::start_with("foes::victim", HERE, |command| {
        command.env(TCP, there().to_string());
    });
    let side = side_to(THERE, 14);
    victim.connect(side.endpoint());
    side.connect(victim.endpoint);
    talk(&side, &mut victim, 1);
    (side, victim)
}

/// The hostile process's knowledge of the victim, and what it makes of it.
struct Attack<'a> {
    foe: &'a Caller,
    random: Random,
    /// Of the reliable connection, the unreliable one, datagrams, a local one, the honest one's.
    endpoints: [Endpoint; 5],
    /// The honest peer's queue pair.
    honest: u32,
    frames: usize,
}

fn frame(words: [u64; 6], payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_le_bytes();
    [&len[..], &words.map(u64::to_le_bytes).concat(), payload].concat()
}

/// A whole message for the first queue pair.
fn message(kind: u64, number: u64, to: Endpoint, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u64;
    let addresses = u64::from(to.qpn) | u64::from(QPN) << 32;
    frame([kind | 16 << 8 | number << 32, addresses, to.addr, u64::from(to.rkey) | len << 32, 0, 0], payload)
}

/// A datagram between the two hosts.
fn datagram(to: Endpoint, text: &[u8]) -> Vec<u8> {
    // The second half of the GRH is an IPv4 header, which ends with both addresses.
    let mut payload = vec![0; 40];
    payload[20] = 0x45;
    payload[32..36].copy_from_slice(&[127, 87, 0, 66]);
    payload[36..40].copy_from_slice(&[127, 88, 0, 2]);
    payload.extend_from_slice(text);
    let addresses = u64::from(to.qpn) | u64::from(QPN) << 32;
    let key = u64::from(QKEY) | (payload.len() as u64) << 32;
    frame([DATAGRAM, addresses, 0, key, 0, 0], &payload)
}

impl Attack<'_> {
    fn open(&mut self, slot: u16) -> Pipe {
        let name = Caller::name(&mut self.random, slot);
        self.foe.open(name, &mut self.random).unwrap()
    }

    /// An address at the edge of a region, or any other.
    fn address(&mut self) -> u64 {
        let base = self.random.pick(&self.endpoints).addr;
        let end = base + MEMORY as u64;
        let any = self.random.next();
        self.random.pick(&[
            base,
            base,
            end - 8,
            end - 1,
            end,
            base - 8,
            base - 1,
            base + 3,
            0,
            u64::MAX,
            u64::MAX - 7,
            any,
        ])
    }

    /// A frame whose words are those of valid ones, edges, or any.
    fn any_frame(&mut self) -> Vec<u8> {
        let kind = self.random.pick(&KINDS);
        let (any, other) = (self.random.next(), self.random.next());
        let flags = self.random.pick(&[0, 0, 16, 1, 2, 4, 8, 32, 64, 255, any & 63]);
        let epoch = self.random.pick(&[0, 0, 0, 1, any & 0xffff]);
        let number = self.random.pick(&[START, START, START + 1, START + 2, START - 1, 0, 0xff_ffff, any & 0xff_ffff]);
        let code = self.random.pick(&[0, 0, 1, 2, 3, 31, any & 255]);
        let [foe, unreliable, datagrams, local, honest] = self.endpoints.map(|one| one.qpn);
        let strange = u32::try_from(any >> 40).unwrap();
        let to = self.random.pick(&[foe, foe, foe, unreliable, datagrams, local, honest, MULTICAST_QPN, 0, strange]);
        let from = self.random.pick(&[QPN, QPN, QPN, QPN, QPN + 1, self.honest, foe, honest, strange]);
        let key = self.random.pick(&self.endpoints).rkey;
        let key = self.random.pick(&[key, key, QKEY, key ^ 1, 0, u32::MAX, strange]);
        let len = self.random.pick(&[0, 0, 1, 8, 40, 64, 300, 4096, 4136, 4137, MAX_PAYLOAD - 1, MAX_PAYLOAD]);
        let whole =
            self.random.pick(&[len as u64, len as u64, 0, 8, 1 << 30, (1 << 31) - 1, 1 << 31, other & 0xffff_ffff]);
        let offset = self.random.pick(&[0, 0, 0, 1, len as u64, 0xffff_ffff, other >> 32]);
        let words = [
            kind | flags << 8 | epoch << 16 | number << 32 | code << 56,
            u64::from(to) | u64::from(from) << 32,
            self.address(),
            u64::from(key) | whole << 32,
            self.random.pick(&[offset, offset, any]),
            self.random.pick(&[0, START, START + 3, 0xff_ffff, any]),
        ];
        frame(words, &vec![0xee; len])
    }

    /// A valid request of the first queue pair at the edges of its region.
    fn request(&mut self, number: u64) -> Vec<u8> {
        let kind = self.random.pick(&REQUESTS);
        let len = match kind {
            1 | 2 => self.random.pick(&[0, 1, 8, 100, 4097]),
            _ => 0,
        };
        let whole = self.random.pick(&[len as u64, len as u64, len as u64 + 1, 8, MEMORY as u64, MEMORY as u64 + 1]);
        let to = self.endpoints[0];
        let words = [
            kind | 17 << 8 | number << 32,
            u64::from(to.qpn) | u64::from(QPN) << 32,
            self.address(),
            u64::from(to.rkey) | whole << 32,
            0,
            0,
        ];
        frame(words, &vec![0xee; len])
    }

    /// The victim's deeds with valid frames: they are the puppet's proof that it speaks the
    /// protocol, so what follows gets past the first checks.
    fn behave(&mut self, pipe: &mut Pipe) {
        let [foe, _, datagrams, ..] = self.endpoints;
        pipe.send(&datagram(datagrams, b"hello")).unwrap();
        pipe.send(&message(SEND, START, foe, b"hello")).unwrap();
        loop {
            let [word, addresses, ..] = pipe.frame().unwrap();
            if word & 255 == ACK {
                assert_eq!((word >> 32 & 0xff_ffff, addresses), (START, u64::from(QPN) | u64::from(foe.qpn) << 32));
                return;
            }
        }
    }

    /// Sends a frame; whether the link still holds.
    fn send(&mut self, pipe: &mut Pipe, bytes: &[u8]) -> bool {
        self.frames += 1;
        pipe.send(bytes).and_then(|()| pipe.drain()).is_ok()
    }

    /// One link and what is sent over it, of which there are eight kinds.
    fn strike(&mut self, round: usize, held: &mut Vec<Pipe>) {
        // A process with the first slot takes the place of the one before.
        let slot = if round % 8 == 7 { SLOT + 1 + u16::try_from(round).unwrap() } else { SLOT };
        let mut pipe = self.open(slot);
        match round % 8 {
            // Frames of all kinds, for all queue pairs, in the name of all.
            0..=2 => {
                for _ in 0..100 {
                    let bytes = self.any_frame();
                    assert!(self.send(&mut pipe, &bytes), "a frame of a possible length ends no link");
                }
            }
            // Requests in order, until one is refused.
            3 => {
                for number in 0..40 {
                    let bytes = self.request(START + number);
                    assert!(self.send(&mut pipe, &bytes));
                }
            }
            // Impossible lengths.
            4 => {
                let len = self.random.pick(&[TOO_LONG, 1 << 20, 1 << 31, u32::MAX, u32::MAX - 47]);
                let bytes = [&len.to_le_bytes()[..], &self.random.many(HEAD)].concat();
                // The link may end before all is sent.
                let _ended = self.send(&mut pipe, &bytes);
                pipe.is_ended();
            }
            // Any bytes: soon a length is impossible.
            5 => {
                let mut bytes = self.random.many(5000);
                bytes[3] = 1;
                let _ended = self.send(&mut pipe, &bytes);
                pipe.is_ended();
            }
            // Byte by byte.
            6 => {
                for _ in 0..3 {
                    let bytes = self.any_frame();
                    let end = bytes.len().min(120);
                    self.frames += 1;
                    bytes[..end].iter().for_each(|byte| pipe.send(&[*byte]).unwrap());
                    pipe.send(&bytes[end..]).unwrap();
                }
                pipe.drain().unwrap();
            }
            // Half a frame: and then silence, or the end.
            _ => {
                let bytes = frame([0x1001, 1, 2, 100 << 32, 0, 0], &[1; 100]);
                let half = self.random.below(bytes.len() - 1) + 1;
                assert!(self.send(&mut pipe, &bytes[..half]));
                // Bytes that are no record, where there are records.
                if self.random.once_in(2) {
                    let rubbish = self.random.many(100);
                    pipe.socket().write_all(&rubbish).unwrap();
                }
                if self.random.once_in(2) {
                    held.push(pipe);
                }
            }
        }
    }
}

/// Number in a line of /proc/PID/status.
fn status(pid: i32, name: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches(|char: char| !char.is_ascii_digit()).parse().unwrap()
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
#[ignore = "run by hostile_frames_of_a_holder_of_the_key_harm_nobody_else"]
fn hostile_frames() {
    let (side, mut victim, foe) = victim_and_foe();
    let pid = victim.pid();
    let numbers: Vec<u64> = victim.ask("endpoints").split(' ').map(|word| word.parse().unwrap()).collect();
    let endpoint = |at: usize| Endpoint {
        qpn: u32::try_from(numbers[at]).unwrap(),
        addr: numbers[at + 1],
        rkey: u32::try_from(numbers[at + 2]).unwrap(),
    };
    let endpoints = [0, 3, 6, 9, 12].map(endpoint);
    let random = Random::new(0x0f0e);
    let mut attack = Attack { foe: &foe, random, endpoints, honest: side.endpoint().qpn, frames: 0 };
    // The puppet speaks the protocol: the victim takes what is valid.
    victim.ask("renew");
    let mut pipe = attack.open(SLOT);
    attack.behave(&mut pipe);
    let mut arrived = 0;
    until("the message and the datagram arrive", || {
        arrived += victim.ask("renew").parse::<usize>().unwrap();
        arrived == 2
    });
    drop(pipe);
    let (memory, open) = (status(pid, "VmRSS:"), descriptors(pid));

    let is_over = AtomicBool::new(false);
    let mut talks = 0_u64;
    thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            let mut held = Vec::new();
            // The flag is set on a panic, too.
            struct Over<'a>(&'a AtomicBool);
            impl Drop for Over<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let _over = Over(&is_over);
            for round in 0..48 {
                attack.strike(round, &mut held);
            }
            held.len()
        });
        // All the time the victim's other connections work, and its memory is untouched.
        while talks < 3 || !is_over.load(Ordering::Relaxed) {
            talks += 1;
            talk(&side, &mut victim, talks);
            assert_eq!(victim.ask("local"), "true");
            victim.ask("renew");
            victim.ask("ask");
        }
        attacking.join().unwrap();
    });
    assert!(attack.frames > 2000, "{} frames", attack.frames);
    talk(&side, &mut victim, 1000);
    assert_eq!(victim.ask("local"), "true");
    // Each link costs 1.3 MiB while it lives; those that it holds up have ended with their sides.
    until("the links end", || descriptors(pid) <= open + 2);
    let grown = status(pid, "VmRSS:").saturating_sub(memory);
    assert!(grown < 64 << 10, "{grown} KiB more");
    until("the threads end", || status(pid, "Threads:") < 12);
    // The hostile process can behave again, and is served.
    victim.ask("renew");
    let mut pipe = attack.open(SLOT);
    attack.behave(&mut pipe);
    victim.finish();
}

#[test]
fn hostile_frames_of_a_holder_of_the_key_harm_nobody_else() {
    runs_on_host("foes::hostile_frames", HERE);
}

/// The answers to a stranger that does not quite prove that it holds the key.
#[test]
#[ignore = "run by nothing_short_of_a_proof_opens_a_link"]
fn almost_proved() {
    let (side, mut victim, foe) = victim_and_foe();
    let random = &mut Random::new(7);
    let name = Caller::name(random, SLOT);
    // A recorded call is worth nothing: the victim's nonce is another one.
    let first = foe.first(name, random);
    let recorded = foe.greet(first.clone()).unwrap();
    let proof = recorded.proof();
    recorded.prove(proof).unwrap();
    let greeted = foe.greet(first).unwrap();
    is_refused(greeted.prove(proof));
    // A part of a proof, and then silence or the end.
    for hangs_up in [true, false] {
        let greeted = foe.greet(foe.first(name, random)).unwrap();
        let proof = greeted.proof();
        (&greeted.socket).write_all(&proof[..31]).unwrap();
        if hangs_up {
            greeted.socket.shutdown(Shutdown::Write).unwrap();
        }
        ends(&greeted.socket);
    }
    // A proof that is wrong in one bit.
    for at in [0, 100, 255] {
        let greeted = foe.greet(foe.first(name, random)).unwrap();
        let mut proof = greeted.proof();
        proof[at / 8] ^= 1 << (at % 8);
        is_refused(greeted.prove(proof));
    }
    // The victim says of no nonce that it is its own, but of those that it sends.
    assert!(!foe.asks(name, random).unwrap());
    // After the proofs: no encryption, or that of another key.
    #[cfg(feature = "tls")]
    if std::env::var(TLS).unwrap() == "on" {
        let welcomed = |random: &mut Random| foe.call(Caller::name(random, SLOT), random).unwrap();
        let (socket, mut seed) = welcomed(random);
        seed[31] ^= 1;
        let opened = tls::open(socket, seed);
        // The client may learn of it with the first record only.
        if let Ok(stream) = opened {
            ends(&stream.sock);
        }
        let (socket, _) = welcomed(random);
        (&socket).write_all(&frame([0; 6], &[0; 5000])).unwrap();
        ends(&socket);
    }
    talk(&side, &mut victim, 2);
    assert_eq!(victim.ask("local"), "true");
    // With all of it right there is a link.
    let mut pipe = foe.open(Caller::name(random, SLOT), random).unwrap();
    pipe.drain().unwrap();
    victim.finish();
}

/// A process dies in each step of a call to it, which a caller with the key makes step by step.
#[test]
#[ignore = "run by a_caller_learns_of_the_death_of_the_process_that_it_calls"]
fn killed_at_each_step() {
    let (_, first, mut foe) = victim_and_foe();
    first.finish();
    for step in 0..5 {
        let (_side, mut victim) = attacked();
        foe.target = slot_of(&victim);
        let random = &mut Random::new(step);
        let name = Caller::name(random, SLOT);
        let socket = match step {
            // Connected; half of the first message; all of it and its answer; the proof, which the
            // victim is about to confirm or has answered; a link.
            0 => foe.connect(),
            1 => {
                let socket = foe.connect();
                (&socket).write_all(&foe.first(name, random)[..50]).unwrap();
                socket
            }
            2 => foe.greet(foe.first(name, random)).unwrap().socket,
            3 => {
                let greeted = foe.greet(foe.first(name, random)).unwrap();
                (&greeted.socket).write_all(&greeted.proof()).unwrap();
                greeted.socket
            }
            _ => foe.open(name, random).unwrap().into_socket(),
        };
        victim.kill();
        ends(&socket);
    }
}

#[test]
fn a_caller_learns_of_the_death_of_the_process_that_it_calls() {
    runs_on_host("foes::killed_at_each_step", HERE);
}

/// Nothing comes instead of an answer.
fn is_refused<T>(answered: io::Result<T>) {
    let error = answered.err().expect("a call without a proof is answered");
    assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the victim does not hang up");
}

#[test]
fn nothing_short_of_a_proof_opens_a_link() {
    runs_on_host("foes::almost_proved", HERE);
}
