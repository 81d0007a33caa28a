//! Random programs against a simple oracle.
//!
//! Each request uses its own part of both memories, so the final contents of the memories do not
//! depend on how requests overlap. Atomics share one counter, whose values do depend on their
//! order. The oracle finds the first request that must fail: requests before it succeed, this
//! request fails with the expected status, and requests after it are flushed.

use std::collections::HashMap;

use proptest::prelude::*;
use rdma_sys::{ibv_sge, ibv_wc_status as status, ibv_wr_opcode};

use super::world::*;
use crate::engine::*;

/// Bytes of memory for each request.
const PART: usize = 6000;
const MAX_POSTS: usize = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LocalKey,
    RemoteKey,
    Bounds,
    /// The receive request that a send consumes is too short.
    ShortReceive,
}

#[derive(Clone, Debug)]
struct Post {
    opcode: ibv_wr_opcode,
    len: usize,
    /// Offsets at which the request's memory is cut into list entries.
    cuts: Vec<usize>,
    signaled: bool,
    fence: bool,
    inline: bool,
    fault: Fault,
}

fn post() -> impl Strategy<Value = Post> {
    let opcode = proptest::sample::select(vec![SEND, SEND_IMM, WRITE, WRITE_IMM, READ, ADD]);
    let len = prop_oneof![Just(0), 1_usize..64, 64_usize..PART];
    let fault = prop_oneof![
        12 => Just(Fault::None),
        1 => Just(Fault::LocalKey),
        1 => Just(Fault::RemoteKey),
        1 => Just(Fault::Bounds),
        1 => Just(Fault::ShortReceive),
    ];
    let cuts = proptest::collection::vec(0_usize..PART, 0..3);
    (opcode, len, cuts, any::<bool>(), any::<bool>(), any::<bool>(), fault).prop_map(
        |(opcode, len, cuts, signaled, fence, inline, fault)| {
            let len = if opcode == ADD { 8 } else { len };
            let inline = inline && len <= 64 && !matches!(opcode, READ | ADD);
            Post { opcode, len, cuts, signaled, fence, inline, fault }
        },
    )
}

impl Post {
    fn takes_receive(&self) -> bool {
        matches!(self.opcode, SEND | SEND_IMM | WRITE_IMM)
    }

    fn fails(&self) -> Option<u32> {
        let one_sided = !matches!(self.opcode, SEND | SEND_IMM);
        match self.fault {
            Fault::LocalKey if self.len > 0 && !self.inline => Some(status::IBV_WC_LOC_PROT_ERR.0),
            Fault::RemoteKey | Fault::Bounds if one_sided && self.len > 0 => Some(status::IBV_WC_REM_ACCESS_ERR.0),
            Fault::ShortReceive if !one_sided && self.len > 0 => Some(status::IBV_WC_REM_INV_REQ_ERR.0),
            _ => None,
        }
    }

    fn list(&self, memory: &Memory, key: u32, at: usize) -> Vec<ibv_sge> {
        let mut cuts: Vec<_> = self.cuts.iter().map(|cut| cut % (self.len + 1)).collect();
        cuts.extend([0, self.len]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| sge(memory, key, at + pair[0], pair[1] - pair[0])).collect()
    }
}

/// A change to the world in the middle of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    Kill(usize),
    Error(usize),
    Reset(usize),
    Destroy(usize),
    Deregister(usize),
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let at = 0_usize..2;
    prop_oneof![
        8 => Just(Mishap::None),
        1 => at.clone().prop_map(Mishap::Kill),
        1 => at.clone().prop_map(Mishap::Error),
        1 => at.clone().prop_map(Mishap::Reset),
        1 => at.clone().prop_map(Mishap::Destroy),
        1 => at.prop_map(Mishap::Deregister),
    ]
}

#[derive(Clone, Debug)]
struct Program {
    posts: [Vec<Post>; 2],
    same_node: bool,
    room: usize,
    max_payload: usize,
    /// The seed of the refusals of links to other hosts, in place of `room` and `max_payload`.
    stream: Option<u64>,
    /// Bytes of memory for each request.
    part: usize,
    batch: usize,
    shared: bool,
    early_receives: usize,
    steps: Vec<usize>,
    mishap: Mishap,
}

fn program() -> impl Strategy<Value = Program> {
    let posts = || proptest::collection::vec(post(), 0..MAX_POSTS);
    let other = prop_oneof![2 => Just(Vec::new()), 1 => posts()];
    let link = (1_usize..6, 256_usize..3000, 1_usize..6, any::<bool>());
    let run = (0_usize..MAX_POSTS, proptest::collection::vec(0_usize..2, 0..40), mishap());
    ((posts(), other), proptest::bool::weighted(0.25), link, run).prop_map(
        |((a, b), same_node, (room, max_payload, batch, shared), (early_receives, steps, mishap))| Program {
            posts: [a, b],
            same_node,
            room,
            max_payload,
            stream: None,
            part: PART,
            batch,
            shared,
            early_receives,
            steps,
            mishap,
        },
    )
}

/// Programs whose requests are longer than a frame of a link to another host, and longer together
/// than such a link holds.
fn program_over_streams() -> impl Strategy<Value = Program> {
    const SCALE: usize = 24;
    (program(), any::<u64>()).prop_map(|(mut program, seed)| {
        for post in program.posts.iter_mut().flatten().filter(|post| post.opcode != ADD && !post.inline) {
            post.len *= SCALE;
            post.cuts.iter_mut().for_each(|cut| *cut *= SCALE);
        }
        Program { stream: Some(seed), part: PART * SCALE, ..program }
    })
}

impl Program {
    /// Returns where the part of request `index` of direction `side` begins, in both memories.
    fn part(&self, side: usize, index: usize) -> usize {
        64 + (side * MAX_POSTS + index) * self.part
    }
}

struct Run {
    world: World,
    ends: [End; 2],
    memory: [Memory; 2],
    keys: [u32; 2],
    /// Receive requests posted so far at each side.
    receives: [usize; 2],
}

impl Run {
    fn post_receives(&mut self, program: &Program, end: usize, count: usize) {
        // The receive requests of a side serve the posts of the other side, in order.
        let wanted: Vec<_> =
            program.posts[1 - end].iter().enumerate().filter(|(_, post)| post.takes_receive()).collect();
        for (index, post) in wanted.iter().skip(self.receives[end]).take(count) {
            let short = post.fault == Fault::ShortReceive && post.len > 0;
            let len = post.len - usize::from(short);
            let whole = Post { len, ..(*post).clone() };
            let list = whole.list(&self.memory[end], self.keys[end], program.part(1 - end, *index));
            if self.world.recv(self.ends[end], 1000 + *index as u64, &list).is_err() {
                return;
            }
            self.receives[end] += 1;
        }
    }

    fn post(&mut self, program: &Program, side: usize) {
        for (index, post) in program.posts[side].iter().enumerate() {
            let (mine, theirs) = (&self.memory[side], &self.memory[1 - side]);
            let mut key = self.keys[side];
            if post.fault == Fault::LocalKey {
                key ^= 1;
            }
            let list = post.list(mine, key, program.part(side, index));
            let bytes = mine.read(program.part(side, index), post.len);
            let inline = [Source::of(&bytes)];
            let whole = [sge(mine, key, program.part(side, index), post.len)];
            let mut it = request(post.opcode, index as u64, &list);
            it.flags = if post.signaled { SIGNALED } else { 0 } | if post.fence { FENCE } else { 0 };
            it.imm = 7000 + index as u32;
            it = remote(it, theirs, program.part(side, index), self.keys[1 - side]);
            match post.fault {
                Fault::RemoteKey => it.rkey ^= 1,
                Fault::Bounds => it.remote_addr = theirs.addr() + theirs.len() as u64 - post.len as u64 + 8,
                _ => {}
            }
            if post.opcode == ADD {
                it.compare_add = 1;
                if post.fault != Fault::Bounds {
                    it.remote_addr = theirs.addr() + 8 * side as u64;
                }
                // The list of an atomic is one entry of eight bytes.
                it.data = SendData::List(&whole);
            } else if post.inline {
                it.data = SendData::Inline(&inline);
            }
            self.world.send(self.ends[side], &it).unwrap();
        }
    }

    fn strike(&mut self, program: &Program) {
        match program.mishap {
            Mishap::None => {}
            Mishap::Kill(side) if program.same_node => self.world.set_state(self.ends[side], QpState::Err),
            Mishap::Kill(side) => self.world.kill(side, program.early_receives % 2 == 0),
            Mishap::Error(side) => self.world.set_state(self.ends[side], QpState::Err),
            Mishap::Reset(side) => self.world.set_state(self.ends[side], QpState::Reset),
            Mishap::Destroy(side) => {
                let end = self.ends[side];
                self.world.nodes[end.at].engine.destroy_qp(end.qp).unwrap();
            }
            Mishap::Deregister(side) => {
                let at = self.ends[side].at;
                self.world.nodes[at].engine.deregister(self.keys[side]).unwrap();
                // From now on the engine may not read or write this memory.
                self.memory[side].fill(99);
            }
        }
    }
}

/// Checks the rules that the completions of a side obey in every run.
fn check_order(wcs: &[Wc], posted: usize, signaled: impl Fn(u64) -> bool, all: bool) -> Result<(), TestCaseError> {
    let mut last = None;
    let mut failed = false;
    for wc in wcs {
        prop_assert!(last < Some(wc.wr_id), "in order, once: {:?}", wcs);
        let ok = wc.status == 0;
        prop_assert!(
            !(failed && wc.status != status::IBV_WC_WR_FLUSH_ERR.0),
            "only flushes after a failure: {:?}",
            wcs
        );
        prop_assert!(!ok || signaled(wc.wr_id), "a success that nobody asked for");
        failed |= !ok;
        last = Some(wc.wr_id);
    }
    if all {
        // No completion is lost: each signaled request before the first failure has one, and so has
        // each request from the failure on.
        let first = wcs.iter().find(|wc| wc.status != 0).map_or(posted as u64, |wc| wc.wr_id);
        let expected = (0..posted as u64).filter(|id| *id >= first || signaled(*id));
        prop_assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
    Ok(())
}

fn run(program: &Program) -> Result<(), TestCaseError> {
    let size = program.part(2, 0) + 64;
    let make = |_| if program.shared { Memory::shared(size) } else { Memory::new(size) };
    let memory = [0, 1].map(make);
    memory[0].fill(1);
    memory[1].fill(2);
    for memory in &memory {
        memory.write(0, &[0; 64]);
    }
    let before = [0, 1].map(|side| memory[side].read(0, size));
    let mut world = match program.stream {
        Some(seed) => World::with_streams(seed),
        None => World::with_wires(program.room, program.max_payload),
    };
    if program.shared {
        world.with_directories();
    }
    world.batch = program.batch;
    world.lazy = program.batch % 2 == 0;
    let ends = world.connect(if program.same_node { [0, 0] } else { [0, 1] });
    let keys = [0, 1].map(|side| world.register(ends[side].at, &memory[side], ALL));
    let mut run = Run { world, ends, memory, keys, receives: [0; 2] };
    for end in 0..2 {
        run.post_receives(program, end, program.early_receives);
    }
    for side in 0..2 {
        run.post(program, side);
    }
    for at in &program.steps {
        run.world.step(*at);
    }
    run.strike(program);
    run.world.run_for(50_000_000);
    for end in 0..2 {
        run.post_receives(program, end, MAX_POSTS);
    }
    run.world.run_for(3_000_000_000);

    let mut by_qp: HashMap<u32, Vec<Wc>> = HashMap::new();
    let nodes = if program.same_node { vec![0] } else { vec![0, 1] };
    for at in nodes {
        for wc in run.world.poll(at) {
            by_qp.entry(wc.qpn).or_default().push(wc);
        }
    }
    if let Mishap::Deregister(side) = program.mishap {
        let touched = run.memory[side].read(0, size).iter().enumerate().position(|(at, byte)| *byte != pattern(99, at));
        prop_assert_eq!(touched, None, "memory was touched after its deregistration");
    }
    let calm = program.mishap == Mishap::None;
    let one_sided = program.posts[1].is_empty();
    for side in 0..2 {
        let all = by_qp.remove(&run.ends[side].qpn).unwrap_or_default();
        let (receives, sends): (Vec<_>, Vec<_>) = all.iter().partition(|wc| wc.wr_id >= 1000);
        let posts = &program.posts[side];
        let gone = match program.mishap {
            Mishap::Reset(at) | Mishap::Destroy(at) => at == side,
            Mishap::Kill(at) => at == side,
            _ => false,
        };
        // Whatever happens to the other side, no completion of a request posted here is lost.
        check_order(&sends, posts.len(), |id| posts[id as usize].signaled, !gone)?;
        check_order(&receives, 0, |_| true, false)?;
        if !gone && run.world.state(run.ends[side]) == QpState::Err {
            prop_assert_eq!(receives.len(), run.receives[side], "all receives come back");
        }
        if !calm || !one_sided || side == 1 {
            continue;
        }
        let failure = posts.iter().position(|post| post.fails().is_some());
        let got = sends.iter().find(|wc| wc.status != 0).map(|wc| (wc.wr_id as usize, wc.status));
        prop_assert_eq!(got, failure.map(|index| (index, posts[index].fails().unwrap())));
    }
    if calm && one_sided {
        check_memory(program, &run, &before)?;
    }
    Ok(())
}

fn check_memory(program: &Program, run: &Run, before: &[Vec<u8>; 2]) -> Result<(), TestCaseError> {
    let posts = &program.posts[0];
    let done = posts.iter().position(|post| post.fails().is_some()).unwrap_or(posts.len());
    let mut expected = before.clone();
    let mut counter = 0_u64;
    for (index, post) in posts[..done].iter().enumerate() {
        let range = program.part(0, index)..program.part(0, index) + post.len;
        match post.opcode {
            READ => {
                let bytes = before[1][range.clone()].to_vec();
                expected[0][range].copy_from_slice(&bytes);
            }
            ADD => {
                expected[0][range].copy_from_slice(&counter.to_ne_bytes());
                counter += 1;
            }
            _ => {
                let bytes = before[0][range.clone()].to_vec();
                expected[1][range].copy_from_slice(&bytes);
            }
        }
    }
    expected[1][..8].copy_from_slice(&counter.to_ne_bytes());
    for side in 0..2 {
        let mut got = run.memory[side].read(0, before[side].len());
        if let Some(post) = posts.get(done) {
            // The part of a request that failed or was flushed has unspecified content.
            let _ = post;
            got[program.part(0, done)..program.part(1, 0)]
                .copy_from_slice(&expected[side][program.part(0, done)..program.part(1, 0)]);
            if side == 1 {
                got[..8].copy_from_slice(&expected[1][..8]);
            }
        }
        let wrong = got.iter().zip(&expected[side]).position(|(got, expected)| got != expected);
        prop_assert_eq!(wrong, None, "memory of side {}", side);
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_programs_do_what_the_specification_says(program in program()) {
        run(&program)?;
    }
}

proptest! {
    // A case moves megabytes.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 16, ..ProptestConfig::default() })]

    #[test]
    fn so_they_do_over_links_to_other_hosts_that_are_blocked_at_random(program in program_over_streams()) {
        run(&program)?;
    }
}
