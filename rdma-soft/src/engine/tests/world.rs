//! Two engines, the links between them, and a clock that jumps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use rdma_mem::{Backing, CopyFailed, Mapping, SharedMemory};
use rdma_sys::*;

use super::super::fault::Injected;
use super::super::*;

/// Memory for registration, freed when dropped: keep it longer than the engine.
pub(super) struct Memory {
    ptr: *mut u64,
    words: usize,
    shared: Option<SharedMemory>,
}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        let words = len.div_ceil(8).max(1);
        let ptr = Box::into_raw(vec![0_u64; words].into_boxed_slice()).cast::<u64>();
        Self { ptr, words, shared: None }
    }

    /// Creates memory that peers may map.
    pub(super) fn shared(len: usize) -> Self {
        let file = SharedMemory::new(len).unwrap();
        Self { ptr: file.as_ptr().cast(), words: file.len() / 8, shared: Some(file) }
    }

    fn backing(&self) -> Option<Arc<Backing>> {
        self.shared.as_ref().and_then(|file| file.backing().cloned())
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr.cast()
    }

    pub(super) fn addr(&self) -> u64 {
        self.ptr.addr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.words * 8
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len());
        // SAFETY: `copy` requires valid bytes that do not overlap: the range was just checked, and
        // this test owns the memory. The engine runs in this thread, so it does not access the
        // memory now.
        unsafe { rdma_mem::copy(self.ptr().wrapping_add(at), bytes.as_ptr(), bytes.len()) }
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len());
        let mut bytes = vec![0; len];
        // SAFETY: `copy` requires valid bytes that do not overlap: the range was just checked, and
        // this test owns the memory. The engine runs in this thread, so it does not access the
        // memory now.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.ptr().wrapping_add(at), len) }
        bytes
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub(super) fn fill(&self, seed: usize) {
        let bytes: Vec<u8> = (0..self.len()).map(|i| pattern(seed, i)).collect();
        self.write(0, &bytes);
    }
}

pub(super) fn pattern(seed: usize, at: usize) -> u8 {
    (seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)).wrapping_add(at >> 8) & 0xff) as u8
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.shared.is_some() {
            return;
        }
        let slice = core::ptr::slice_from_raw_parts_mut(self.ptr, self.words);
        // SAFETY: `from_raw` requires a pointer from `Box::into_raw` of the same slice: `new` made
        // it, with `words` elements. The slice is freed once, here.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// One direction of a link.
#[derive(Default)]
pub(super) struct Wire {
    frames: VecDeque<(Header, Vec<u8>)>,
    /// Limit of the frames, and that of their bytes.
    room: usize,
    bytes: usize,
    max_payload: usize,
    /// The state of a random generator that decides which pushes are refused, if any are.
    moods: Option<u64>,
    has_refused: bool,
    has_placed: bool,
}

/// The longest payload of a frame on a link to another host, the bytes before a payload, and the
/// bytes that such a link holds.
const STREAM_PAYLOAD: usize = 64 << 10;
const STREAM_HEAD: usize = 52;
const STREAM_BYTES: usize = 1 << 20;

impl Wire {
    pub(super) fn with_room(room: usize) -> Self {
        Self { room, bytes: usize::MAX, max_payload: 4096, ..Self::default() }
    }

    /// A wire as a link to another host: large frames, 1 MiB of them, and a kernel that takes none
    /// now and then.
    fn stream(seed: u64) -> Self {
        Self {
            room: usize::MAX,
            bytes: STREAM_BYTES,
            max_payload: STREAM_PAYLOAD,
            moods: Some(seed),
            ..Self::default()
        }
    }

    /// Whether this push is refused although there is room: one in three.
    fn refuses(&mut self) -> bool {
        let refuses = self.random().is_some_and(|random| random % 3 == 0);
        self.has_refused |= refuses;
        refuses
    }

    /// The next number of the generator, if the wire has one.
    fn random(&mut self) -> Option<u64> {
        let state = self.moods.as_mut()?;
        // An xorshift generator; its state is never 0.
        *state |= u64::from(*state == 0);
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        Some(*state)
    }

    /// Passes the next frame to an engine. A link to another host passes a part of a large payload
    /// at a time, where it can be put in its place. Whether there was one.
    fn pass_next(&mut self, engine: &mut Engine, link: LinkId) -> bool {
        let Some((header, payload)) = self.frames.pop_front() else { return false };
        let is_cut = payload.len() > 1 && engine.may_cut(link, &header, payload.len());
        let random = if is_cut { self.random() } else { None };
        let len = random.map_or(payload.len(), |random| 1 + random as usize % payload.len());
        let part = Source::of(&payload[..len]);
        let put = |target: Target<'_>| {
            target.write(part);
            target.len().min(len)
        };
        let placed = random.and_then(|_| engine.handle_incoming(link, &header, len, put));
        self.has_placed |= placed.is_some();
        let done = placed.unwrap_or_else(|| {
            engine.handle_frame(link, &header, part);
            len
        });
        if done < payload.len() {
            self.frames.push_front((header.behind(done as u32), payload[done..].to_vec()));
        }
        true
    }

    pub(super) fn pop(&mut self) -> Option<(Header, Vec<u8>)> {
        self.frames.pop_front()
    }
}

impl Outbound for Wire {
    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        assert!(payload.len() <= self.max_payload);
        let queued: usize = self.frames.iter().map(|(_, bytes)| STREAM_HEAD + bytes.len()).sum();
        if self.frames.len() >= self.room || queued + STREAM_HEAD + payload.len() > self.bytes || self.refuses() {
            return false;
        }
        let mut bytes = vec![0; payload.len()];
        assert!(payload.copy_to(Target::of(&mut bytes)));
        self.frames.push_back((*header, bytes));
        true
    }
}

const LOOPBACK: LinkId = LinkId(0);
pub(super) const LINK: LinkId = LinkId(1);

/// An engine with one object of each kind.
pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) slot: Slot,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) alive: bool,
    loopback: Wire,
    /// The direction of the link to the other node.
    out: Wire,
    pending: Vec<LinkId>,
    directory: Option<Area>,
}

/// Returns a whole mapping as an area.
fn area(file: &SharedMemory) -> Area {
    let mapping = Arc::new(Mapping::map(file.fd().unwrap(), file.len()).unwrap());
    // SAFETY: `Area::new` requires that the owner keeps the memory mapped: the mapping itself is
    // the owner. The bytes are accessed by atomics only.
    unsafe { Area::new(mapping.as_ptr(), mapping.len(), Arc::clone(&mapping) as _) }
}

pub(super) struct World {
    pub(super) nodes: [Node; 2],
    pub(super) now: Time,
    /// The most frames that a node takes in one step.
    pub(super) batch: usize,
    /// Whether acknowledgements are deferred to the next step, or until a request carries them.
    pub(super) lazy: bool,
    linked: bool,
    /// The members that every group has, according to the driver.
    pub(super) members: Vec<Slot>,
    /// Copies that have begun, each with its node.
    pub(super) copies: Vec<(usize, CopyJob)>,
    pub(super) holds_copies: bool,
    /// The outcome of all copies, unless they succeed.
    pub(super) failure: Option<CopyFailed>,
    vrams: Vec<Arc<Vram>>,
    /// The faults that have begun.
    pub(super) injected: Vec<Injected>,
}

/// Foreign memory.
#[derive(Debug)]
pub(super) struct Vram {
    pub(super) address: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Vram {
    /// Creates memory at an address that is no other memory's.
    pub(super) fn new(address: u64, len: usize) -> Arc<Self> {
        Arc::new(Self { address, bytes: Mutex::new(vec![0; len]) })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.lock().unwrap().len()
    }

    fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.len() as u64).contains(&address)
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[at..at + len].to_vec()
    }

    pub(super) fn fill(&self, seed: usize) {
        self.bytes.lock().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(seed, at));
    }

    fn run(&self, job: CopyJob) -> Vec<u8> {
        let CopyJob { direction, address, mut bytes, .. } = job;
        let start = usize::try_from(address - self.address).unwrap();
        let mut memory = self.bytes.lock().unwrap();
        let part = &mut memory[start..start + bytes.len()];
        match direction {
            Direction::Fetch => bytes.copy_from_slice(part),
            Direction::Store => part.copy_from_slice(&bytes),
        }
        bytes
    }

    /// Creates an entry of a list.
    pub(super) fn sge(&self, key: u32, at: usize, len: usize) -> ibv_sge {
        ibv_sge { addr: self.address + at as u64, length: u32::try_from(len).unwrap(), lkey: key }
    }

    /// Makes a request one on this memory.
    pub(super) fn remote<'a>(&self, request: Post<'a>, at: usize, rkey: u32) -> Post<'a> {
        Post { remote_addr: self.address + at as u64, rkey, ..request }
    }
}

impl CopyQueue for Vram {
    fn push(&self, _: CopyJob) {
        unreachable!("the driver of these engines executes the copies itself");
    }
}

pub(super) fn init(node: &Node) -> QpInit {
    QpInit {
        service: ServiceType::Rc,
        pd: node.pd,
        send_cq: node.cq,
        recv_cq: node.cq,
        srq: None,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
        sq_sig_all: false,
        token: 77,
    }
}

/// All rights.
pub(super) const ALL: u32 = 15;

impl World {
    pub(super) fn new() -> Self {
        Self::with_wires(64, 4096)
    }

    pub(super) fn with_wires(room: usize, max_payload: usize) -> Self {
        Self::over(|| Wire { max_payload, ..Wire::with_room(room) })
    }

    /// Two nodes whose frames go over links as those to other hosts, which refuse some.
    pub(super) fn with_streams(mut seed: u64) -> Self {
        Self::over(|| {
            seed = seed.wrapping_add(1);
            Wire::stream(seed)
        })
    }

    fn over(mut wire: impl FnMut() -> Wire) -> Self {
        let mut node = |slot| {
            let mut engine = Engine::new(EngineConfig {
                slot: Slot(slot),
                seed: [0x1234_5678_9abc, u64::from(slot)],
                keys_are_secret: false,
                directory: None,
            });
            let pd = engine.alloc_pd().unwrap();
            let cq = engine.create_cq(256, 99).unwrap();
            let (loopback, out) = (wire(), wire());
            Node { engine, slot: Slot(slot), pd, cq, alive: true, loopback, out, pending: Vec::new(), directory: None }
        };
        Self {
            nodes: [node(5), node(4094)],
            now: Time(1_000_000),
            batch: usize::MAX,
            lazy: false,
            linked: false,
            members: Vec::new(),
            copies: Vec::new(),
            holds_copies: false,
            failure: None,
            vrams: Vec::new(),
            injected: Vec::new(),
        }
    }

    /// Lets the nodes see each other's directories. Call this before any object is created.
    pub(super) fn with_directories(&mut self) {
        for node in &mut self.nodes {
            let file = SharedMemory::new(DIRECTORY_LEN).unwrap();
            let config =
                EngineConfig { slot: node.slot, seed: [5; 2], directory: Some(area(&file)), keys_are_secret: false };
            node.directory = Some(area(&file));
            node.engine = Engine::new(config);
            node.pd = node.engine.alloc_pd().unwrap();
            node.cq = node.engine.create_cq(256, 99).unwrap();
        }
    }

    /// Runs a node's driver once; returns whether there was progress.
    pub(super) fn step(&mut self, at: usize) -> bool {
        if !self.nodes[at].alive {
            return false;
        }
        let mut moved = false;
        while let Some(wish) = self.nodes[at].engine.poll_lookup() {
            moved = true;
            let other = 1 - at;
            let slot = match wish {
                Lookup::Link(peer) => peer.slot,
                Lookup::Members(gid) => {
                    let members = self.members.clone();
                    self.nodes[at].engine.handle_members(gid, &members, 5_000_000);
                    continue;
                }
            };
            if slot == self.nodes[at].slot {
                self.nodes[at].engine.handle_link_up(PeerId::local(slot), LOOPBACK, None);
            } else if slot == self.nodes[other].slot && self.nodes[other].alive {
                self.linked = true;
                let (here, there) = (self.nodes[at].slot, self.nodes[other].slot);
                let directories = [self.nodes[at].directory.clone(), self.nodes[other].directory.clone()];
                let [ours, theirs] = directories;
                self.nodes[at].engine.handle_link_up(PeerId::local(there), LINK, theirs);
                self.nodes[other].engine.handle_link_up(PeerId::local(here), LINK, ours);
            } else {
                self.nodes[at].engine.handle_unreachable(PeerId::local(slot));
            }
        }
        let lazy = self.lazy;
        let engine = &mut self.nodes[at].engine;
        engine.release_acks();
        engine.defer_acks(lazy);
        let [one, other] = &mut self.nodes;
        let (here, there) = if at == 0 { (one, other) } else { (other, one) };
        for _ in 0..self.batch {
            if !there.out.pass_next(&mut here.engine, LINK) {
                break;
            }
            moved = true;
        }
        for _ in 0..self.batch {
            if !here.loopback.pass_next(&mut here.engine, LOOPBACK) {
                break;
            }
            moved = true;
        }
        self.nodes[at].engine.defer_acks(false);
        while let Some(errand) = self.nodes[at].engine.poll_errand() {
            moved = true;
            let grant = match errand {
                Errand::Grant(grant) => grant,
                Errand::Copy(job) => {
                    self.copies.push((at, job));
                    continue;
                }
                Errand::Fault(injected) => {
                    self.injected.push(injected);
                    continue;
                }
            };
            let mapping = Arc::new(Mapping::map(grant.backing.fd(), grant.len).unwrap());
            // SAFETY: `Area::new` requires that the owner keeps the memory mapped: the mapping
            // itself is the owner. The bytes are accessed by atomics only.
            let area = unsafe { Area::new(mapping.as_ptr(), mapping.len(), Arc::clone(&mapping) as _) };
            assert_eq!(grant.offset, 0);
            if self.nodes[1 - at].alive {
                self.nodes[1 - at].engine.handle_mapping(grant.link, grant.rkey, area);
            }
        }
        moved |= !self.holds_copies && self.copy(at);
        moved |= self.transmit(at);
        if self.nodes[at].engine.poll_timeout().is_some_and(|due| due <= self.now) {
            self.nodes[at].engine.handle_timeout(self.now);
            moved = true;
        }
        moved
    }

    /// Executes the copies that a node's engine has begun; returns whether there were any.
    pub(super) fn copy(&mut self, at: usize) -> bool {
        let (now, later) = core::mem::take(&mut self.copies).into_iter().partition(|(of, _)| *of == at);
        self.copies = later;
        let now: Vec<(usize, CopyJob)> = now;
        let any = !now.is_empty();
        for (_, job) in now {
            let id = job.id;
            let end = match self.failure {
                Some(CopyFailed::Ended) => CopyEnd::Failed,
                Some(CopyFailed::Fault) => CopyEnd::Fault,
                Some(CopyFailed::Unknown) => CopyEnd::Unknown,
                None => CopyEnd::Done(self.vrams.iter().find(|vram| vram.holds(job.address)).unwrap().run(job)),
            };
            self.nodes[at].engine.handle_copied(id, end);
        }
        any
    }

    pub(super) fn register_foreign(&mut self, at: usize, vram: &Arc<Vram>, access: u32) -> u32 {
        self.vrams.push(Arc::clone(vram));
        let node = &mut self.nodes[at];
        let copier = Arc::clone(vram) as _;
        let what = ForeignRegistration { address: vram.address, len: vram.len(), iova: vram.address, access, copier };
        node.engine.register_foreign(node.pd, &what).unwrap().lkey
    }

    fn transmit(&mut self, at: usize) -> bool {
        let node = &mut self.nodes[at];
        let mut active = false;
        while let Some(link) = node.engine.poll_active_link() {
            active = true;
            if !node.pending.contains(&link) {
                node.pending.push(link);
            }
        }
        let before = node.out.frames.len() + node.loopback.frames.len();
        for link in core::mem::take(&mut node.pending) {
            let wire = if link == LOOPBACK { &mut node.loopback } else { &mut node.out };
            if node.engine.poll_transmit(link, wire) != Transmit::Idle {
                node.pending.push(link);
            }
        }
        // An active link counts as progress, because a datagram that is lost moves no frame.
        let has_refused = [&mut node.out, &mut node.loopback].map(|wire| core::mem::take(&mut wire.has_refused));
        // So does a refusal, because the next push may be taken.
        active || has_refused.contains(&true) || before != node.out.frames.len() + node.loopback.frames.len()
    }

    /// Whether a frame's payload was put in its place on the way from a node to the other.
    pub(super) fn has_placed(&self, at: usize) -> bool {
        self.nodes[at].out.has_placed
    }

    /// Returns the number of frames on their way from a node to the other.
    pub(super) fn in_flight(&self, at: usize) -> usize {
        self.nodes[at].out.frames.len()
    }

    /// Loses a frame on its way from a node to the other.
    pub(super) fn lose(&mut self, at: usize, index: usize) {
        self.nodes[at].out.frames.remove(index).unwrap();
    }

    /// Runs both nodes until they rest, without letting time pass.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let moved = [self.step(0), self.step(1)];
            if moved == [false, false] {
                return;
            }
        }
        panic!("the engines never come to rest");
    }

    /// Runs both nodes for `nanos` nanoseconds of the test's clock.
    pub(super) fn run_for(&mut self, nanos: u64) {
        let end = self.now.after(nanos);
        loop {
            self.settle();
            let due = self.nodes.iter().filter(|n| n.alive).filter_map(|n| n.engine.poll_timeout()).min();
            match due {
                Some(due) if due <= end => self.now = self.now.max(due),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// Kills the process of a node. Unless `lose_frames`, the other node still reads the frames
    /// that were written.
    pub(super) fn kill(&mut self, at: usize, lose_frames: bool) {
        self.nodes[at].alive = false;
        let other = 1 - at;
        if !lose_frames {
            while let Some((header, payload)) = self.nodes[at].out.frames.pop_front() {
                self.nodes[other].engine.handle_frame(LINK, &header, Source::of(&payload));
            }
        }
        self.nodes[at].out.frames.clear();
        if core::mem::take(&mut self.linked) {
            self.nodes[other].engine.handle_link_down(LINK);
            self.nodes[other].pending.retain(|link| *link != LINK);
            self.nodes[other].out.frames.clear();
        }
    }

    /// Ends the link between the nodes, and loses the frames on their way.
    pub(super) fn cut(&mut self) {
        assert!(core::mem::take(&mut self.linked));
        for node in &mut self.nodes {
            node.engine.handle_link_down(LINK);
            node.pending.retain(|link| *link != LINK);
            node.out.frames.clear();
        }
    }

    pub(super) fn register(&mut self, at: usize, memory: &Memory, access: u32) -> u32 {
        let node = &mut self.nodes[at];
        let what = Registration {
            addr: memory.ptr(),
            len: memory.len(),
            iova: memory.addr(),
            access,
            backing: memory.backing(),
        };
        // SAFETY: `register` requires memory that stays valid: tests keep it longer than the world,
        // and access it only between calls of the engine.
        unsafe { node.engine.register(node.pd, &what) }.unwrap().lkey
    }

    /// Creates a connected queue pair at each of two sides, in RTS.
    pub(super) fn connect(&mut self, ends: [usize; 2]) -> [End; 2] {
        self.connect_with(ends, |_, _| {}, |_, _| {})
    }

    pub(super) fn connect_with(
        &mut self,
        ends: [usize; 2],
        mut tune: impl FnMut(usize, &mut QpInit),
        mut attrs: impl FnMut(usize, &mut ModifyQp),
    ) -> [End; 2] {
        let mut end = |at: usize, index: usize| {
            let mut init = init(&self.nodes[at]);
            tune(index, &mut init);
            let (qp, qpn) = self.nodes[at].engine.create_qp(&init).unwrap();
            End { at, qp, qpn }
        };
        let pair = [end(ends[0], 0), end(ends[1], 1)];
        for index in 0..2 {
            self.bring_up(pair[index], pair[1 - index].qpn, |change| attrs(index, change));
        }
        self.settle();
        pair
    }

    /// Brings a queue pair from RESET to RTS.
    pub(super) fn bring_up(&mut self, end: End, dest_qpn: u32, attrs: impl FnOnce(&mut ModifyQp)) {
        let mut change = ModifyQp {
            access: Some(ALL),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(0xff_fffe),
            sq_psn: Some(0xff_fffe),
            max_rd_atomic: Some(4),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(12),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..ModifyQp::default()
        };
        attrs(&mut change);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            change.state = Some(state);
            self.modify(end, &change);
        }
    }

    pub(super) fn modify(&mut self, end: End, change: &ModifyQp) {
        self.nodes[end.at].engine.modify_qp(end.qp, change).unwrap();
    }

    pub(super) fn set_state(&mut self, end: End, state: QpState) {
        self.modify(end, &ModifyQp { state: Some(state), ..ModifyQp::default() });
    }

    pub(super) fn state(&self, end: End) -> QpState {
        self.nodes[end.at].engine.query_qp(end.qp).unwrap().state
    }

    pub(super) fn send(&mut self, end: End, post: &Post<'_>) -> Result<(), Errno> {
        let (op, with_imm) = match post.opcode {
            SEND => (Op::Send, false),
            SEND_IMM => (Op::Send, true),
            WRITE => (Op::Write, false),
            WRITE_IMM => (Op::Write, true),
            READ => (Op::Read, false),
            SWAP => (Op::CompareSwap, false),
            ADD => (Op::FetchAdd, false),
            _ => return Err(Errno::INVAL),
        };
        let mut flags = SendFlags::from_bits_truncate(post.flags as u8);
        flags.set(SendFlags::IMM, with_imm);
        let Post { wr_id, imm, remote_addr, rkey, compare_add, swap, data, .. } = *post;
        let request = SendRequest { wr_id, remote_addr, compare_add, swap, rkey, imm, op, flags };
        let engine = &mut self.nodes[end.at].engine;
        match post.address {
            Some(address) => engine.post_datagram(end.qp, &request, data, address),
            None => engine.post_send(end.qp, &request, data),
        }
    }

    pub(super) fn recv(&mut self, end: End, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        self.nodes[end.at].engine.post_recv(end.qp, wr_id, list)
    }

    /// Polls all completions of a node's queue.
    pub(super) fn poll(&mut self, at: usize) -> Vec<Wc> {
        let node = &mut self.nodes[at];
        let mut all = Vec::new();
        let mut out = [ibv_wc::default(); 3];
        while let Ok(count @ 1..) = node.engine.poll_cq(node.cq, &mut out) {
            all.extend(out[..count].iter().map(Wc::new));
        }
        all
    }

    pub(super) fn statuses(&mut self, at: usize) -> Vec<(u64, u32)> {
        self.poll(at).iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Polls all events of a node; returns the types of the asynchronous ones.
    pub(super) fn events(&mut self, at: usize) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some(event) = self.nodes[at].engine.poll_event() {
            if let Event::Async { event_type, .. } = event {
                all.push(event_type.0);
            }
        }
        all
    }

    pub(super) fn completion_events(&mut self, at: usize) -> usize {
        let mut count = 0;
        while let Some(event) = self.nodes[at].engine.poll_event() {
            count += usize::from(matches!(event, Event::Completion { token: 99, .. }));
        }
        count
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) at: usize,
    pub(super) qp: QpId,
    pub(super) qpn: u32,
}

/// A completion with the fields that tests compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    pub(super) qpn: u32,
    pub(super) src: u32,
}

impl Wc {
    fn new(wc: &ibv_wc) -> Self {
        let has_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: both fields of the union are 32-bit integers, for which all bits are valid.
        let imm = unsafe { wc.__bindgen_anon_1.imm_data };
        Self {
            wr_id: wc.wr_id,
            status: wc.status.0,
            opcode: wc.opcode.0,
            byte_len: wc.byte_len,
            imm: has_imm.then_some(imm),
            qpn: wc.qp_num,
            src: wc.src_qp,
        }
    }
}

pub(super) fn sge(memory: &Memory, lkey: u32, at: usize, len: usize) -> ibv_sge {
    ibv_sge { addr: memory.addr() + at as u64, length: u32::try_from(len).unwrap(), lkey }
}

pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
pub(super) const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
pub(super) const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;

/// A request in the form in which tests write it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post<'a> {
    pub(super) wr_id: u64,
    pub(super) opcode: ibv_wr_opcode,
    pub(super) flags: u32,
    pub(super) imm: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) data: SendData<'a>,
    pub(super) address: Option<&'a Address>,
}

/// Creates a signaled request.
pub(super) fn request<'a>(opcode: ibv_wr_opcode, wr_id: u64, list: &'a [ibv_sge]) -> Post<'a> {
    Post {
        wr_id,
        opcode,
        flags: SIGNALED,
        imm: 0,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
        data: SendData::List(list),
        address: None,
    }
}

pub(super) fn remote<'a>(mut request: Post<'a>, memory: &Memory, at: usize, rkey: u32) -> Post<'a> {
    request.remote_addr = memory.addr() + at as u64;
    request.rkey = rkey;
    request
}

pub(super) const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
pub(super) const SEND_IMM: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
pub(super) const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
pub(super) const WRITE_IMM: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
pub(super) const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
pub(super) const SWAP: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
pub(super) const ADD: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
