//! Random datagrams against the promises of the specification. A datagram arrives whole, at most
//! once, in the order of its sender, and only at its destination, if the Q_Key matches; or it is
//! lost. The sender's completions do not depend on this.

use proptest::prelude::*;

use super::super::wire::{Frame, GRH, IMM, Kind};
use super::datagrams::{FLUSH, GROUP, LEN_ERR, QKEY, end, linked, to, to_group};
use super::world::*;
use crate::engine::*;

/// An act of a program for four queue pairs at two nodes.
#[derive(Clone, Debug)]
enum Act {
    Send { from: usize, to: usize, len: usize, imm: bool, signaled: bool, welcome: bool, inline: bool },
    Group { from: usize, len: usize },
    Recv { at: usize, len: usize },
    Step(usize),
    Wait(u64),
    Kill,
}

const ENDS: [usize; 4] = [0, 0, 1, 1];

fn act() -> impl Strategy<Value = Act> {
    let len = || prop_oneof![Just(0_usize), 0_usize..64, 0_usize..4097];
    let send = (0_usize..4, 0_usize..4, len(), any::<[bool; 4]>()).prop_map(
        |(from, to, len, [imm, signaled, welcome, inline])| Act::Send {
            from,
            to,
            len,
            imm,
            signaled,
            welcome: welcome || imm,
            inline: inline && len <= 64,
        },
    );
    prop_oneof![
        8 => send,
        1 => (0_usize..4, len()).prop_map(|(from, len)| Act::Group { from, len }),
        8 => (0_usize..4, prop_oneof![8 => Just(4096_usize), 1 => 0_usize..100])
            .prop_map(|(at, len)| Act::Recv { at, len }),
        6 => (0_usize..2).prop_map(Act::Step),
        1 => (0_u64..60_000_000).prop_map(Act::Wait),
    ]
}

/// A datagram that was sent: its sender, destination (`None`: the group) and length, and whether
/// the Q_Key was right.
#[derive(Clone, Debug)]
struct Sent {
    number: usize,
    from: usize,
    to: Option<usize>,
    len: usize,
    imm: bool,
    welcome: bool,
}

/// Returns content that distinguishes datagrams from each other.
fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern(number * 7 + 1, at)).collect()
}

/// Bytes of memory for each act.
const PART: usize = 4200;

struct Run {
    world: World,
    ends: [End; 4],
    sources: [Memory; 2],
    sinks: [Memory; 2],
    source_keys: [u32; 2],
    sink_keys: [u32; 2],
    sent: Vec<Sent>,
    /// Signaled requests, with the index of the sender: each must complete.
    signaled: Vec<(usize, u64)>,
    completed: Vec<(usize, Wc)>,
    received: Vec<(usize, Wc)>,
}

impl Run {
    fn new(acts: usize, room: usize) -> Self {
        let [sources, sinks] = [(); 2].map(|()| [(); 2].map(|()| Memory::new(PART * acts)));
        let mut world = World::with_wires(room, 8192);
        world.members = vec![Slot(5), Slot(4094)];
        let ends = ENDS.map(|at| end(&mut world, at));
        let source_keys = [0, 1].map(|at| world.register(at, &sources[at], ALL));
        let sink_keys = [0, 1].map(|at| world.register(at, &sinks[at], ALL));
        for index in [1, 2, 3] {
            world.nodes[ENDS[index]].engine.attach(ends[index].qp, GROUP).unwrap();
        }
        let (sent, signaled, completed, received) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { world, ends, sources, sinks, source_keys, sink_keys, sent, signaled, completed, received }
    }

    fn send(&mut self, one: Sent, signaled: bool, inline: bool) -> Result<(), TestCaseError> {
        let Sent { number, from, to: target, len, imm, welcome } = one;
        let at = ENDS[from];
        let mut address = target.map_or(to_group(GROUP), |index| to(self.ends[index]));
        address.qkey ^= u32::from(!welcome);
        let bytes = content(number, len);
        self.sources[at].write(PART * number, &bytes);
        let list = [sge(&self.sources[at], self.source_keys[at], PART * number, len)];
        let parts = [Source::of(&bytes)];
        let opcode = if imm { SEND_IMM } else { SEND };
        let mut it = Post { imm: number as u32, address: Some(&address), ..request(opcode, number as u64, &list) };
        it.flags = if signaled { SIGNALED } else { 0 };
        if inline {
            it.data = SendData::Inline(&parts);
        }
        match self.world.send(self.ends[from], &it) {
            Ok(()) => {
                if signaled {
                    self.signaled.push((from, number as u64));
                }
                self.sent.push(one);
            }
            Err(errno) => prop_assert_eq!(errno, Errno::NOMEM),
        }
        Ok(())
    }

    fn act(&mut self, number: usize, act: &Act) -> Result<(), TestCaseError> {
        match *act {
            Act::Send { from, to, len, imm, signaled, welcome, inline } => {
                self.send(Sent { number, from, to: Some(to), len, imm, welcome }, signaled, inline)?;
            }
            Act::Group { from, len } => {
                self.send(Sent { number, from, to: None, len, imm: true, welcome: true }, true, false)?;
            }
            Act::Recv { at, len } => {
                let node = ENDS[at];
                let list = [sge(&self.sinks[node], self.sink_keys[node], PART * number, 40 + len)];
                let posted = self.world.recv(self.ends[at], 1000 + number as u64, &list);
                prop_assert!(posted.is_ok() || posted == Err(Errno::NOMEM));
            }
            Act::Step(at) => {
                self.world.step(at);
            }
            Act::Wait(nanos) => self.world.run_for(nanos),
            Act::Kill => self.world.kill(1, false),
        }
        self.take();
        Ok(())
    }

    fn take(&mut self) {
        for at in [0, 1] {
            for wc in self.world.poll(at) {
                let index = (0..4).find(|index| self.ends[*index].qpn == wc.qpn).unwrap();
                let list = if wc.wr_id >= 1000 { &mut self.received } else { &mut self.completed };
                list.push((index, wc));
            }
        }
    }

    /// Checks that each signaled request completes once, in order, whether or not the datagram
    /// arrives.
    fn check_senders(&self) -> Result<(), TestCaseError> {
        for (from, node) in ENDS.into_iter().enumerate() {
            let got: Vec<_> = self.completed.iter().filter(|(at, _)| *at == from).map(|(_, wc)| wc.wr_id).collect();
            prop_assert!(got.is_sorted_by(|a, b| a < b), "{:?}", got);
            let asked: Vec<_> = self.signaled.iter().filter(|(at, _)| *at == from).map(|(_, id)| *id).collect();
            // A receive request that was too short moves its queue pair to ERR and flushes the
            // sends that wait there.
            if self.world.state(self.ends[from]) == QpState::Rts && self.world.nodes[node].alive {
                prop_assert_eq!(got, asked);
            }
        }
        Ok(())
    }

    fn check_receivers(&self) -> Result<(), TestCaseError> {
        for (to, node) in ENDS.into_iter().enumerate() {
            // Datagrams that may still arrive here, by sender. A completion matches the first
            // datagram that fits it; the datagrams before that one are lost.
            let mut left: [Vec<&Sent>; 4] = [const { Vec::new() }; 4];
            for one in self.sent.iter().filter(|one| one.welcome && one.to.map_or(to != 0, |only| only == to)) {
                left[one.from].push(one);
            }
            for (_, wc) in self.received.iter().filter(|(at, wc)| *at == to && wc.status != FLUSH) {
                prop_assert!(wc.status == 0 || wc.status == LEN_ERR);
                let from = (0..4).find(|from| self.ends[*from].qpn == wc.src).unwrap();
                let len = wc.byte_len as usize - 40;
                let place = PART * (wc.wr_id as usize - 1000) + 40;
                let data = if wc.status == 0 { self.sinks[node].read(place, len) } else { Vec::new() };
                let fits = |one: &&Sent| {
                    let imm = wc.imm.map_or(!one.imm, |imm| one.imm && imm as usize == one.number);
                    imm && one.len == len && (wc.status != 0 || content(one.number, len) == data)
                };
                let found = left[from].iter().position(fits);
                prop_assert!(found.is_some(), "{:?} was not sent, or before what came already", wc);
                left[from].drain(..=found.unwrap_or(0));
            }
        }
        Ok(())
    }
}

fn run(acts: &[Act], room: usize) -> Result<(), TestCaseError> {
    let mut run = Run::new(acts.len(), room);
    for (number, act) in acts.iter().enumerate() {
        run.act(number, act)?;
    }
    run.world.run_for(1_000_000_000);
    run.take();
    run.check_senders()?;
    run.check_receivers()
}

proptest! {
    #[test]
    fn random_datagrams_arrive_as_they_were_sent_or_not_at_all(
        mut acts in proptest::collection::vec(act(), 1..60),
        room in 1_usize..8,
        kill in proptest::option::weighted(0.2, 0_usize..60),
    ) {
        if let Some(at) = kill {
            let at = at.min(acts.len());
            acts.insert(at, Act::Kill);
        }
        run(&acts, room)?;
    }

    /// Random frames that resemble datagrams cause no panic, no write outside of the receive
    /// buffers, and at most one completion each.
    #[test]
    fn no_frame_makes_more_of_itself_than_one_completion(
        frames in proptest::collection::vec(
            (0_usize..3, any::<u8>(), prop_oneof![3 => 40_usize..60, 1 => 0_usize..4200], any::<[u64; 4]>(), 0_u8..16), 1..40),
    ) {
        let mut f = linked();
        let before = f.memory[1].read(0, 1 << 16);
        f.world.nodes[1].engine.attach(f.b.qp, GROUP).unwrap();
        for id in 0..8 {
            f.recv(id, 4096 * id as usize, 200);
        }
        for (to, byte, len, words, garble) in &frames {
            let to = [f.b.qpn, MULTICAST_QPN, f.b.qpn + 1][*to];
            let mut frame = Frame::new(Kind::Datagram, to, f.a.qpn, 0, 0);
            frame.total = u32::try_from(*len).unwrap();
            (frame.flags, frame.key, frame.code) = (words[0] as u8 & (IMM | GRH), QKEY, words[1] as u8);
            let mut header = frame.encode();
            if *garble < 6 {
                header.0[usize::from(*garble)] ^= words[2] & words[3];
            }
            let mut payload = vec![*byte; *len];
            if *len >= 40 {
                payload[24..40].copy_from_slice(&GROUP.0);
                payload[0] = 0x60;
            }
            f.world.nodes[1].engine.handle_frame(LinkId(1), &header, Source::of(&payload));
        }
        let wcs = f.world.poll(1);
        let mut ids: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
        prop_assert!(ids.len() <= 8);
        ids.dedup();
        prop_assert_eq!(ids.len(), wcs.len());
        let after = f.memory[1].read(0, 1 << 16);
        for (at, (was, is)) in before.iter().zip(&after).enumerate() {
            prop_assert!(was == is || (at % 4096 < 200 && at < 8 * 4096), "byte {}", at);
        }
        for wc in wcs.iter().filter(|wc| wc.status == 0) {
            prop_assert!((40..=200).contains(&wc.byte_len));
        }
    }
}
