//! One side of the connections: queue pairs, memory, and messages in flight.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rdma::cm::blocking::Connection;
use rdma::op::{self, Opcode, Operation, Work};
use rdma::transport::{Rc, Uc, Ud};
use rdma::{
    Buffer, Completion, ExposedRegion, ExposedSlice, Mtu, Owned, ProtectionDomain, QueuePair, RemoteSlice, RnrTimer,
    WcStatus, Writable,
};

use super::contents::{fill, is_intact, last_byte};
use super::options::{self, AtomicType, Op, Options, Test};
use super::plan::{MOST_INLINE, PERMISSIONS, Plan};
use crate::Failure;
use crate::device::Chosen;
use crate::wait::Completions;
use rdma_collectives::bootstrap::Group;
use rdma_collectives::connect::{self, Connected, Datagrams, How, Method, Receives, Unconnected};
use rdma_collectives::wait::{Patience, Wait};

/// The lowest bit of the queue pair's index in a token; the bits below hold the number of a
/// request.
const LANE: u32 = 48;
/// Most reads of a queue pair that the device has in flight.
const READS: u32 = 16;
/// The time after which a write that was not acknowledged counts as lost.
const LATEST: Duration = Duration::from_secs(5);

/// A ready queue pair.
#[derive(Debug)]
enum Qp {
    Rc(QueuePair<Rc>),
    Uc(QueuePair<Uc>),
    Ud(Datagrams),
}

impl Qp {
    fn send<L: Owned>(&mut self, message: op::SendRequest<L>) -> Result<(), Failure> {
        match self {
            Self::Rc(qp) => Ok(qp.post_send(message)?),
            Self::Uc(qp) => Ok(qp.post_send(message)?),
            Self::Ud(Datagrams { qp, address, to, .. }) => Ok(qp.post_send(message.to(address, to.qpn, to.qkey))?),
        }
    }

    fn receive<L: Owned + Writable>(&mut self, room: L, token: u64) -> Result<(), Failure> {
        match self {
            Self::Rc(qp) => Ok(qp.post_recv(room, token)?),
            Self::Uc(qp) => Ok(qp.post_recv(room, token)?),
            Self::Ud(datagrams) => Ok(datagrams.qp.post_recv(room, token)?),
        }
    }

    fn write<O: Operation<Rc> + Operation<Uc>, L: Owned>(&mut self, write: Work<O, L>) -> Result<(), Failure> {
        match self {
            Self::Rc(qp) => Ok(qp.post_send(write)?),
            Self::Uc(qp) => Ok(qp.post_send(write)?),
            Self::Ud(_) => Err(Failure::new("datagrams are only sent")),
        }
    }

    /// The reliable queue pair, which reads and atomics need.
    fn reliable(&mut self) -> Result<&mut QueuePair<Rc>, Failure> {
        match self {
            Self::Rc(qp) => Ok(qp),
            Self::Uc(_) | Self::Ud(_) => Err(Failure::new("unreliable transports have neither reads nor atomics")),
        }
    }

    fn max_inline(&self) -> u32 {
        match self {
            Self::Rc(qp) => qp.send_queue().max_inline_data(),
            Self::Uc(qp) => qp.send_queue().max_inline_data(),
            Self::Ud(datagrams) => datagrams.qp.send_queue().max_inline_data(),
        }
    }
}

/// One queue pair and its messages in flight.
#[derive(Debug)]
struct Lane {
    index: usize,
    qp: Qp,
    _connection: Option<Connection>,
    /// The peer's memory for this queue pair.
    there: RemoteSlice,
    /// Buffers that are free for sends.
    spare: VecDeque<Buffer>,
    /// Requests posted, and requests known to be complete.
    posted: u64,
    completed: u64,
    /// Messages sent, messages that may be sent in all, and messages received.
    sent: u64,
    permitted: u64,
    arrived: u64,
}

impl Lane {
    /// The token of the next request.
    fn token(&mut self) -> u64 {
        self.posted += 1;
        (self.index as u64) << LANE | self.posted
    }

    /// Sends a message without contents: the notice of a write on iWARP, or a permission to send
    /// more.
    fn send_nothing(&mut self) -> Result<(), Failure> {
        let token = self.token();
        self.qp.send(op::send(()).token(token))
    }

    /// Posts a receive with the memory of a completed one.
    fn receive(&mut self, room: Option<Buffer>) -> Result<(), Failure> {
        let token = (self.index as u64) << LANE;
        match room {
            Some(room) => self.qp.receive(room, token),
            None => self.qp.receive((), token),
        }
    }
}

/// All parts of a link before it is connected.
struct Prepared {
    mtu: Mtu,
    pd: ProtectionDomain,
    completions: Completions,
    window: ExposedRegion,
    source: ExposedRegion,
    connections: Vec<Unconnected>,
    unreliable: Vec<Unconnected<Uc>>,
    datagrams: Vec<Unconnected<Ud>>,
    spares: Vec<VecDeque<Buffer>>,
}

impl Prepared {
    fn new(chosen: &Chosen, group: &Group, options: &Options, plan: &Plan) -> Result<Self, Failure> {
        let context = &chosen.adapter.context;
        let mtu = chosen.mtu(options.mtu)?;
        let pd = context.alloc_pd()?;
        let depth = u32::try_from(plan.lanes).unwrap_or(u32::MAX).saturating_mul(plan.sends + plan.receives);
        let completions =
            Completions::new(context, depth.saturating_add(1), options.events, group.watch(), group.timeout())?;
        let access = plan.access();
        let window = pd.allocate_exposed(plan.lanes * plan.size, access)?;
        let source = pd.allocate_exposed(plan.lanes * plan.size, access)?;
        let (mut connections, mut unreliable, mut datagrams) = (Vec::new(), Vec::new(), Vec::new());
        let mut spares = Vec::new();
        for lane in 0..plan.lanes {
            let cut = |count: u32, length: usize| -> Result<Vec<Buffer>, Failure> {
                let mut all = pd.allocate((count as usize * length).max(1))?;
                Ok((0..count).map(|_| all.split_to(length)).collect())
            };
            let (count, length) = plan.spares();
            spares.push(cut(count, length)?.into());
            let rooms = match plan.room() {
                Some(length) => cut(plan.receives, length)?.into_iter().map(Some).collect(),
                None => (0..plan.receives).map(|_| None).collect(),
            };
            let receives = Receives { rooms, token: (lane as u64) << LANE };
            let peer = 1 - group.rank();
            match plan.connection {
                options::Connection::Rc => {
                    let qp = plan.build(QueuePair::builder(&pd), &completions)?;
                    connections.push(Unconnected { peer, qp, receives });
                }
                options::Connection::Uc => {
                    let qp = plan.build(QueuePair::unreliable(&pd), &completions)?;
                    unreliable.push(Unconnected { peer, qp, receives });
                }
                options::Connection::Ud => {
                    let qp = plan.build(QueuePair::datagram(&pd), &completions)?;
                    datagrams.push(Unconnected { peer, qp, receives });
                }
            }
        }
        Ok(Self { mtu, pd, completions, window, source, connections, unreliable, datagrams, spares })
    }
}

/// One side of the connections, for messages of one size.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) plan: Plan,
    lanes: Vec<Lane>,
    wrong: u64,
    completions: Completions,
    patience: Patience,
    pub(super) mtu: Mtu,
    /// Whether writes land in order, so that their arrival can be watched in memory.
    in_order: bool,
    /// The two sides of each queue pair, as text.
    pub(super) ends: Vec<(String, String)>,
    /// `window` is the memory that the peer writes to or reads from; `source` is the memory that
    /// this side writes from or reads into. Each lane has a part of both.
    window: ExposedRegion,
    source: ExposedRegion,
}

impl Link {
    /// Connects the two processes of a group, for a test with messages of `size` bytes; collective.
    pub(super) fn connect(
        chosen: &Chosen,
        group: &mut Group,
        options: &Options,
        (test, size): (Test, usize),
        method: Method,
        shared_cores: bool,
    ) -> Result<Self, Failure> {
        let plan = Plan::new(options, test, size, chosen.adapter.context.capabilities());
        let prepared = Prepared::new(chosen, group, options, &plan);
        let Prepared { mtu, pd, completions, window, source, connections, unreliable, datagrams, spares } =
            group.agree("the queue pairs", prepared)?;
        let min_rnr_timer = RnrTimer::at_least(Duration::ZERO);
        let how = How { method, access: plan.access(), mtu: Some(mtu), min_rnr_timer };
        let (mut ready, mut ends) = (Vec::new(), Vec::new());
        for Connected { qp, connection, ends: both, .. } in connect::connect(&chosen.adapter, group, connections, &how)?
        {
            ready.push((Qp::Rc(qp), connection));
            ends.push(both);
        }
        for connected in connect::by_endpoints(&chosen.adapter, group, unreliable, &how)? {
            ends.push(connected.ends);
            ready.push((Qp::Uc(connected.qp), None));
        }
        for connected in connect::exchange_datagrams(&chosen.adapter, &pd, group, datagrams)? {
            ends.push(connected.ends.clone());
            ready.push((Qp::Ud(connected), None));
        }
        let watches = |(qp, _): &(Qp, _)| matches!(qp, Qp::Rc(qp) if qp.writes_in_order().unwrap_or(false));
        let in_order = ready.iter().all(watches) && !options.events;
        let all = group.all_gather("the windows", &(window.remote(..)?.to_bytes(), in_order))?;
        let there = RemoteSlice::from_bytes(&all[1 - group.rank()].0)?;
        let in_order = all.iter().all(|end| end.1);
        let reads = chosen.adapter.context.device_attr().max_qp_rd_atom().min(READS);
        let reads = options.outs.map_or(reads, |outs| outs.min(reads));
        for (index, (local, remote)) in ends.iter_mut().enumerate() {
            let range = index * size..(index + 1) * size;
            let theirs = there.slice(range.clone())?;
            for (text, memory) in [(local, window.remote(range)?), (remote, theirs)] {
                *text = with_memory(text, plan.op, reads, &memory);
            }
        }
        let mut lanes = Vec::new();
        for (index, ((qp, connection), spare)) in ready.into_iter().zip(spares).enumerate() {
            let there = there.slice(index * size..(index + 1) * size)?;
            let permitted = if plan.is_by_permission() { u64::from(PERMISSIONS) * plan.permission() } else { u64::MAX };
            let [posted, completed, sent, arrived] = [0; 4];
            let _connection = connection;
            lanes.push(Lane { index, qp, _connection, there, spare, posted, completed, sent, permitted, arrived });
        }
        let patience = Patience::new(group.watch(), shared_cores, group.timeout());
        Ok(Self { plan, lanes, wrong: 0, completions, patience, mtu, in_order, ends, window, source })
    }

    /// Largest message that is sent inline.
    pub(super) fn inline(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.qp.max_inline()).min().unwrap_or(0).min(self.plan.inline)
    }

    /// Number of messages that the first queue pair has sent.
    pub(super) fn sent(&self) -> u64 {
        self.lanes[0].sent
    }

    /// Number of messages received on all queue pairs.
    pub(super) fn arrived(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.arrived).sum()
    }

    /// Whether some requests are not known to be complete.
    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.posted > lane.completed)
    }

    /// Whether a queue pair may send another message.
    pub(super) fn has_room(&self, lane: usize) -> bool {
        let Lane { posted, completed, sent, permitted, .. } = self.lanes[lane];
        posted - completed < self.plan.depth.into() && sent < permitted
    }

    /// Posts the next message of a queue pair that has space. With `told`, the peer is notified of
    /// a write unless it watches memory. The last message has a completion in any case.
    pub(super) fn post(&mut self, at: usize, told: bool, is_last: bool) -> Result<(), Failure> {
        let Plan { op, size, check, moderation, .. } = self.plan;
        let told = told && op == Op::Write && !self.in_order;
        let with_immediate = told && self.plan.capabilities.write_with_immediate;
        let mut copy = [0; MOST_INLINE as usize];
        let is_inline = !check && size <= self.inline() as usize;
        let range = at * size..(at + 1) * size;
        let lane = &mut self.lanes[at];
        let number = lane.sent;
        lane.sent += 1;
        let signaled = is_last || lane.sent % u64::from(moderation) == 0;
        if op == Op::Write && !is_inline {
            set_last(&self.source, range.clone(), number, check)?;
        }
        let source = |region: &ExposedRegion| -> Result<ExposedSlice, Failure> { Ok(region.slice(range)?) };
        let (there, token) = (lane.there, lane.token());
        if is_inline {
            copy[size - 1] = last_byte(number);
        }
        let copy = &copy[..size.min(MOST_INLINE as usize)];
        match op {
            Op::Send if is_inline => lane.qp.send(op::send_inline(copy).token(token).signaled(signaled))?,
            Op::Send => {
                let mut buffer = lane.spare.pop_front().ok_or_else(out_of_buffers)?;
                if check {
                    fill(&mut buffer, number);
                }
                lane.qp.send(op::send(buffer).token(token).signaled(signaled))?;
            }
            Op::Write => {
                let qp = &mut lane.qp;
                match (is_inline, with_immediate) {
                    (true, true) => qp.write(op::write_imm_inline(copy, there, 0).token(token).signaled(signaled))?,
                    (true, false) => qp.write(op::write_inline(copy, there).token(token).signaled(signaled))?,
                    (false, true) => {
                        qp.write(op::write_imm(source(&self.source)?, there, 0).token(token).signaled(signaled))?
                    }
                    (false, false) => {
                        qp.write(op::write(source(&self.source)?, there).token(token).signaled(signaled))?
                    }
                }
            }
            Op::Read => {
                let read = op::read(source(&self.source)?, there).token(token).signaled(signaled);
                lane.qp.reliable()?.post_send(read)?;
            }
            Op::Atomic => {
                let result = lane.spare.pop_front().ok_or_else(out_of_buffers)?;
                let qp = lane.qp.reliable()?;
                match self.plan.atomic_type {
                    AtomicType::FetchAndAdd => qp.post_send(op::fetch_add(result, there, 1).token(token))?,
                    AtomicType::CmpAndSwap => {
                        qp.post_send(op::compare_swap(result, there, number, number + 1).token(token))?;
                    }
                }
            }
        }
        if told && !with_immediate { lane.send_nothing() } else { Ok(()) }
    }

    /// Fills the window with the first message, which the peer's reads fetch.
    pub(super) fn offer(&self) -> Result<(), Failure> {
        (0..self.lanes.len()).try_for_each(|lane| set_last(&self.window, self.range(lane), 0, true))
    }

    fn range(&self, lane: usize) -> std::ops::Range<usize> {
        lane * self.plan.size..(lane + 1) * self.plan.size
    }

    /// Waits until message `number`, counted from 0, has arrived on the first queue pair.
    pub(super) fn wait_for_message(&mut self, number: u64) -> Result<(), Failure> {
        if self.plan.op == Op::Write && self.in_order {
            self.watch(number)?;
        } else {
            while self.lanes[0].arrived <= number {
                self.take_next()?;
            }
        }
        if self.plan.check && self.plan.op == Op::Write { self.inspect(number + 1) } else { Ok(()) }
    }

    /// Polls the last byte of the window until message `number` has arrived.
    fn watch(&mut self, number: u64) -> Result<(), Failure> {
        let expected = last_byte(number);
        let mut last = [0];
        let mut wait = Wait::default();
        loop {
            self.window.copy_out(self.plan.size - 1, &mut last)?;
            if last[0] == expected {
                // The rest of the message was written before its last byte.
                fence(Ordering::Acquire);
                return Ok(());
            }
            if let Some(nap) = self.patience.pause(&mut wait)? {
                self.take()?;
                std::thread::sleep(nap);
            }
        }
    }

    /// Checks the contents that `count` messages of the peer left for each queue pair, or that this
    /// side has read.
    pub(super) fn inspect(&mut self, count: u64) -> Result<(), Failure> {
        // On an unreliable connection, the last writes may arrive after their sender's completions.
        let delay = if self.plan.connection == options::Connection::Uc { LATEST } else { Duration::ZERO };
        let deadline = Instant::now() + delay;
        for lane in 0..self.lanes.len() {
            let mut is_right = self.is_intact(lane, count)?;
            while !is_right && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                is_right = self.is_intact(lane, count)?;
            }
            self.wrong += u64::from(!is_right);
        }
        Ok(())
    }

    fn is_intact(&self, lane: usize, count: u64) -> Result<bool, Failure> {
        let region = if self.plan.op == Op::Read { &self.source } else { &self.window };
        let mut bytes = vec![0; self.plan.size];
        region.copy_out(self.range(lane).start, &mut bytes)?;
        Ok(match self.plan.op {
            Op::Atomic => bytes == count.to_ne_bytes(),
            Op::Read => is_intact(&bytes, 0),
            _ => is_intact(&bytes, count - 1),
        })
    }

    /// Waits until at most `count` requests of the first queue pair are outstanding.
    pub(super) fn drain(&mut self, count: u64) -> Result<(), Failure> {
        while self.lanes[0].posted - self.lanes[0].completed > count {
            self.take_next()?;
        }
        Ok(())
    }

    /// Fails if a message had wrong contents.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::new(format!("{wrong} messages of {} bytes had wrong contents", self.plan.size))),
        }
    }

    /// Handles the next completion, if there is one; returns whether there was one.
    pub(super) fn take(&mut self) -> Result<bool, Failure> {
        let (lanes, wrong, plan) = (&mut self.lanes, &mut self.wrong, &self.plan);
        Ok(self.completions.poll(|completion| take(lanes, wrong, plan, completion))?.is_some())
    }

    /// Waits for the next completion and handles it.
    pub(super) fn take_next(&mut self) -> Result<(), Failure> {
        let (lanes, wrong, plan) = (&mut self.lanes, &mut self.wrong, &self.plan);
        let taken = self.completions.wait(|completion| take(lanes, wrong, plan, completion))?;
        taken.ok_or_else(|| {
            let hint = if plan.connection == options::Connection::Rc { "" } else { "; messages may be lost" };
            Failure::new(format!("the other side makes no progress{hint}"))
        })
    }
}

/// Adds the memory of a queue pair to its address, as perftest prints it: of reads and writes only.
fn with_memory(address: &str, op: Op, reads: u32, memory: &RemoteSlice) -> String {
    // The GID stands on a line of its own.
    let (first, rest) = address.split_once('\n').map_or((address, None), |(first, rest)| (first, Some(rest)));
    let memory = match op {
        Op::Send | Op::Atomic => String::new(),
        Op::Write => format!(" RKey {:#08x} VAddr {:#016x}", memory.rkey(), memory.address()),
        Op::Read => {
            format!(" OUT {reads:#04x} RKey {:#08x} VAddr {:#016x}", memory.rkey(), memory.address())
        }
    };
    let rest = rest.map_or_else(String::new, |rest| format!("\n{rest}"));
    format!("{first}{memory}{rest}")
}

fn out_of_buffers() -> Failure {
    Failure::new("there is no buffer left to send from")
}

/// Writes the contents of message `number` to a range: all of it, or its last byte alone.
fn set_last(region: &ExposedRegion, range: std::ops::Range<usize>, number: u64, all: bool) -> Result<(), Failure> {
    if !all {
        return Ok(region.copy_in(range.end - 1, &[last_byte(number)])?);
    }
    let mut bytes = vec![0; range.len()];
    fill(&mut bytes, number);
    Ok(region.copy_in(range.start, &bytes)?)
}

/// Handles a completion.
fn take(lanes: &mut [Lane], wrong: &mut u64, plan: &Plan, mut completion: Completion<'_>) -> Result<(), Failure> {
    let (index, number) = ((completion.token() >> LANE) as usize, completion.token() & ((1 << LANE) - 1));
    let opcode = completion.opcode();
    completion.status().map_err(|error| {
        // Only a reliable connection reports an unreachable peer; others get no acknowledgement.
        let lost = if error.status == WcStatus::RETRY_EXC_ERR { "; the other side does not answer" } else { "" };
        Failure::new(format!("the connection broke: {}: {error}{lost}", name(opcode)))
    })?;
    let lane = lanes.get_mut(index).ok_or_else(|| Failure::new("a completion of no queue pair of this program"))?;
    if !matches!(opcode, Opcode::Recv | Opcode::RecvWriteImm) {
        lane.completed = lane.completed.max(number);
        let old = completion.old_value();
        *wrong += u64::from(plan.check && old.is_some_and(|old| old != number - 1));
        lane.spare.extend(completion.take_buffer());
        while let Some(mut released) = completion.next_unsignaled() {
            lane.spare.extend(released.take_buffer());
        }
        return Ok(());
    }
    let arrived = lane.arrived;
    let (is_empty, is_wrong, room) = if let Some(datagram) = completion.take_datagram() {
        let is_wrong = plan.check && !(datagram.len() == plan.size && is_intact(&datagram, arrived));
        (datagram.is_empty(), is_wrong, Some(datagram.into_buffer()))
    } else {
        let (length, room) = (completion.byte_len(), completion.take_buffer());
        let is_wrong = plan.check
            && plan.op == Op::Send
            && room.as_ref().is_some_and(|room| !(length == room.len() && is_intact(room, arrived)));
        (length == 0, is_wrong, room)
    };
    lane.receive(room)?;
    if is_empty && plan.is_by_permission() {
        lane.permitted += plan.permission();
        return Ok(());
    }
    *wrong += u64::from(is_wrong);
    lane.arrived += 1;
    // The receive has been posted again, so the peer may send one more message.
    if plan.is_by_permission() && lane.arrived % plan.permission() == 0 { lane.send_nothing() } else { Ok(()) }
}

/// The name of an operation in messages.
pub(super) fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Send => "a send failed",
        Opcode::Write => "a write failed",
        Opcode::Read => "a read failed",
        Opcode::CompareSwap | Opcode::FetchAdd => "an atomic operation failed",
        Opcode::Recv | Opcode::RecvWriteImm => "a receive failed",
        _ => "a request failed",
    }
}
