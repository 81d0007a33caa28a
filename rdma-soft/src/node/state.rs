//! The state behind the node's lock: the engine, its links, and the agent's pending work.
//! `streams` has the links to other hosts.

mod streams;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rdma_sys::ibv_wc;

use self::streams::Looks;
use super::faults;
use crate::engine::limits::COPY_BUDGET;
use crate::engine::{
    CqId, Engine, Errand, Errno, Event, Grant, Header, Host, LinkId, Lookup, PeerId, Slot, Source, Time, Transmit,
};
use crate::link::Link;
use crate::link::memory::{Ends, MAX_CAPACITY};
use crate::link::peer::Peer;
use crate::link::ring::Corrupt;
use crate::link::stream::Stream;
use crate::log::log;
use crate::os;
use crate::os::event_loop::EventLoop;
use crate::os::wait_set::WaitSet;

/// Polls between two checks of the timers while the agent is awake or ticking: reading the clock
/// takes as long as the rest of an empty poll.
const POLLS_PER_CLOCK: u64 = 32;
/// Polls since the last sleep (see `polls_at_sleep`) from which the application counts as polling.
const POLLS_OF_A_POLLER: u64 = 16;
/// Interval at which the agent looks in while the application polls.
pub(super) const TICK: Duration = Duration::from_nanos(TICK_NS);
const TICK_NS: u64 = 1_000_000;
/// Polls between two nudges, which ring peers that have stopped looking for frames: some 10 us.
const POLLS_PER_NUDGE: u64 = 128;
/// Bytes of budget left for the next link, and then for sending, after a link that used up the
/// budget. So no peer, however fast, can hold back the other links or this process's answers for
/// ever.
const SHARE: usize = COPY_BUDGET / 64;

/// Receives the engine's events, under the node's lock. May return a waker of the threads that
/// sleep until the event, to be called soon.
pub(crate) type Sink = fn(Event) -> Option<Waker>;

/// The state of the agent thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    /// About to look at everything. On a core that the application keeps busy, the agent may start
    /// milliseconds later.
    Awake,
    /// The application polls: the agent looks again in a millisecond, and peers do not ring.
    Ticking,
    /// The agent sleeps until a peer rings or the alarm goes off.
    Asleep,
}

/// The node's state.
#[derive(Debug)]
pub(crate) struct State {
    /// The engine.
    pub(crate) engine: Engine,
    /// The links within this host, indexed by number.
    links: Vec<Option<Link>>,
    /// The links to other hosts, indexed by number; empty without such links. Each number is that
    /// of one link, in one of the two vectors.
    streams: Vec<Option<Stream>>,
    /// When polls look at `streams`.
    looks: Looks,
    /// One of `streams` may have more to send than it could.
    streams_wait: bool,
    /// When the agent looks next whether the peers of other hosts take what was sent to them;
    /// `u64::MAX` if nothing was sent since the last look found that they have.
    care: Time,
    /// The agent's thread sleeps for a tick, and only [`wake_agent`](Self::wake_agent) ends that.
    is_napping: bool,
    /// Index of the link that sends first in the next turn: the link after one that used up a
    /// turn's budget, or 0.
    first: usize,
    /// Number of polls of completion queues.
    pub(crate) polls: u64,
    /// `polls` when the application last announced a sleep, or the agent last went to sleep.
    polls_at_sleep: u64,
    /// The state of the agent thread.
    pub(crate) agent: Agent,
    /// Processes and groups that the agent has to look up.
    pub(crate) lookups: Vec<Lookup>,
    /// Regions that the agent has to send.
    pub(crate) grants: Vec<Grant>,
    slots: Vec<Slot>,
    sink: Option<Sink>,
    /// During a turn of the agent, the wakers that it calls after it has unlocked the node: a
    /// woken thread uses the node at once, and would only wait for the lock.
    wakers: Option<Vec<Waker>>,
    /// Expiry of the agent's timer.
    alarm: Time,
    /// Acknowledgements wait for the next request of a thread that has got its event: until the
    /// thread polls or waits for another event, at most for a `TICK`, after which the alarm is set.
    /// Those for which a peer waits are sent when the thread may sleep.
    holds_acks: bool,
    /// The agent's event loop.
    event_loop: Arc<EventLoop>,
    /// The links' bells, for the thread that waits in place of the agent.
    wait_set: Arc<WaitSet>,
    ring_capacity: usize,
    generation: u32,
}

impl State {
    /// Makes a state without links.
    pub(super) fn new(
        engine: Engine,
        slot: Slot,
        event_loop: Arc<EventLoop>,
        wait_set: Arc<WaitSet>,
        ring_capacity: usize,
    ) -> Self {
        Self {
            engine,
            links: Vec::new(),
            streams: Vec::new(),
            looks: Looks::default(),
            streams_wait: false,
            care: Time(u64::MAX),
            is_napping: false,
            first: 0,
            polls: 0,
            polls_at_sleep: 0,
            agent: Agent::Awake,
            lookups: Vec::new(),
            grants: Vec::new(),
            slots: vec![slot],
            sink: None,
            wakers: None,
            alarm: Time(u64::MAX),
            holds_acks: false,
            event_loop,
            wait_set,
            ring_capacity,
            generation: 0,
        }
    }

    /// Sets the function that receives the engine's events.
    pub(crate) fn set_sink(&mut self, sink: Sink) {
        self.sink = Some(sink);
    }

    /// The process's slots.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Adds a slot of this process.
    pub(crate) fn add_slot(&mut self, slot: Slot) {
        self.slots.push(slot);
        self.engine.add_slot(slot);
    }

    /// The link within this host with this number, if there is one.
    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get(id.0 as usize)?.as_ref()
    }

    /// The process at the other side of a link, if the link's generation is still the same.
    pub(crate) fn peer_of_generation(&self, id: LinkId, generation: u32) -> Option<&Peer> {
        self.link(id).filter(|link| link.generation == generation)?.peer()
    }

    /// Capacity in bytes of the rings that this process makes.
    pub(crate) fn ring_capacity(&self) -> usize {
        self.ring_capacity
    }

    /// All links within this host.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().flatten()
    }

    /// The processes to which this one has links.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.links().filter_map(Link::peer)
    }

    /// Adds a link to another process. The caller tells the engine.
    pub(crate) fn add_peer(&mut self, ends: Ends, peer: Peer) -> &Link {
        self.add_link(|id, generation| Link::to_process(id, generation, ends, peer))
    }

    fn add_link(&mut self, make: impl FnOnce(LinkId, u32) -> Link) -> &Link {
        let index = self.free_number();
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.generation = self.generation.wrapping_add(1);
        self.links[index].insert(make(number(index), self.generation))
    }

    /// The first number that no link has.
    fn free_number(&self) -> usize {
        let is_taken = |index| taken(&self.links, index) || taken(&self.streams, index);
        (0..).find(|index| !is_taken(*index)).unwrap_or(usize::MAX)
    }

    /// Ends a link within this host: everything that waits for the link fails.
    pub(crate) fn remove_link(&mut self, id: LinkId, why: &str) {
        let Some(link) = self.links.get_mut(id.0 as usize).and_then(Option::take) else { return };
        if let Some(peer) = link.peer() {
            let (pid, why) = (peer.pid, why.to_owned());
            log!(DEBUG, pid, why, "link down");
            self.event_loop.forget(&peer.socket);
            self.event_loop.forget(&peer.our_bell);
            self.wait_set.forget(&peer.our_bell);
            self.event_loop.forget(&peer.pidfd);
        }
        self.engine.handle_link_down(id);
    }

    /// The link to a living process.
    pub(crate) fn link_to(&self, pid: i32) -> Option<LinkId> {
        let leads = |link: &&Link| link.peer().is_some_and(|peer| peer.pid == pid && !peer.has_died());
        self.links().find(leads).map(|link| link.id)
    }

    /// Polls a completion queue; if the queue is empty, makes progress and polls again.
    #[inline(always)]
    pub(crate) fn poll_cq(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.polls = self.polls.wrapping_add(1);
        match self.engine.poll_cq(cq, out) {
            Ok(0) => self.turn_and_poll(cq, out),
            taken => taken,
        }
    }

    /// Like [`poll_cq`](Self::poll_cq) for one completion of a queue with times, with its time.
    pub(crate) fn poll_timed(&mut self, cq: CqId, wc: &mut ibv_wc) -> Result<Option<Time>, Errno> {
        let taken = self.poll_cq(cq, core::slice::from_mut(wc))?;
        Ok((taken != 0).then(|| self.engine.polled_time(cq)))
    }

    /// Handles a poll of an empty queue: makes progress and polls again.
    #[inline(never)]
    fn turn_and_poll(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        if self.agent == Agent::Asleep && self.is_polled() {
            self.stay_awake();
        }
        if self.polls % POLLS_PER_NUDGE == 0 {
            self.nudge();
        }
        if self.holds_acks && self.is_polled() {
            self.holds_acks = false;
        }
        let looks = self.looks.is_due() && !self.streams.is_empty();
        if self.is_quiet_within() && !(looks && self.streams_have_news()) {
            return Ok(0);
        }
        // A polling thread posts soon, and its next request carries the acknowledgement. If the
        // thread stops, the agent sends the acknowledgement in its next turn, and needs no
        // processor time until then.
        self.turn_with(self.agent != Agent::Asleep, looks);
        self.engine.poll_cq(cq, out)
    }

    /// Rings the peers that have unconsumed frames and have stopped looking for frames.
    #[cold]
    fn nudge(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::nudge);
    }

    /// Whether a turn would find nothing to do within the host but to give handled frames back to
    /// the peers, which is done here.
    #[inline]
    fn is_quiet_within(&mut self) -> bool {
        self.engine.is_idle() && !self.engine.has_deferred_acks() && self.links.iter_mut().flatten().all(Link::is_idle)
    }

    /// Whether the application polls instead of sleeping.
    pub(super) fn is_polled(&self) -> bool {
        self.polls.wrapping_sub(self.polls_at_sleep) >= POLLS_OF_A_POLLER
    }

    /// Takes over from the sleeping agent: peers no longer ring, and the agent looks in at the next
    /// tick. The polling thread makes the change itself, because the agent may not get a processor
    /// for long while that thread uses it.
    #[cold]
    fn stay_awake(&mut self) {
        self.disarm();
        self.agent = Agent::Ticking;
        self.set_alarm_for_tick();
    }

    /// Has the agent look in after a tick at the latest.
    fn set_alarm_for_tick(&mut self) {
        let now = os::now();
        let tick = now.after(TICK_NS);
        if self.alarm <= now || self.alarm > tick {
            self.set_alarm(tick);
        }
    }

    /// Whether the agent, which is to sleep for a tick, may nap: no arrival from another host then
    /// wakes it, because the application polls. A process without such links does not nap, since
    /// its peers do not ring meanwhile.
    pub(super) fn may_nap(&mut self) -> bool {
        self.is_napping = self.agent == Agent::Ticking && !self.streams.is_empty();
        self.is_napping
    }

    /// Begins a turn of the agent.
    pub(super) fn begin_agent_turn(&mut self) {
        self.is_napping = false;
        self.agent = Agent::Awake;
        self.holds_acks = false;
        self.wakers.get_or_insert_with(Vec::new);
        // Timers run before `progress`, which sends the frames and reports the events that timers
        // cause.
        self.run_timers();
    }

    /// Does the work of the agent's turn. If it wakes a thread, that thread's next request may
    /// carry acknowledgements. True if more is left to do.
    pub(super) fn work_for_agent(&mut self) -> bool {
        let more = self.turn(true);
        if self.wakers.as_ref().is_some_and(|wakers| !wakers.is_empty()) {
            self.hold_acks();
        } else {
            self.engine.release_acks();
        }
        self.after_call();
        more
    }

    /// Ends a turn of the agent. The caller unlocks the node and calls the wakers.
    pub(super) fn end_agent_turn(&mut self) -> Vec<Waker> {
        self.wakers.take().unwrap_or_default()
    }

    /// Lets the deferred acknowledgements for which no peer waits wait for the application's next
    /// request, at most for a tick.
    fn hold_acks(&mut self) {
        self.engine.release_requested_acks();
        self.holds_acks = self.engine.has_deferred_acks();
        if self.holds_acks {
            self.set_alarm_for_tick();
        }
    }

    /// Tells all peers to ring from now on. True if there is work to do first.
    pub(super) fn fall_asleep(&mut self) -> bool {
        if self.arm() {
            return true;
        }
        self.agent = Agent::Asleep;
        self.polls_at_sleep = self.polls;
        if core::mem::take(&mut self.is_napping) {
            self.event_loop.wake();
        }
        // Runs the timers that were left for the agent's next turn.
        self.finish(false);
        false
    }

    /// Handles inbound frames and sends outbound ones, copying at most about a megabyte. True if
    /// more is left to do.
    pub(crate) fn progress(&mut self) -> bool {
        self.turn(false)
    }

    /// Whether something may be lost if this process ends now that a NIC would have sent: datagrams
    /// whose senders have seen their completions, and acknowledgements of what was received. Such a
    /// datagram waits for a link, or for a peer that may not use the link yet and has not consumed
    /// the datagram. An acknowledgement waits for room on its link.
    pub(crate) fn has_words_left(&self) -> bool {
        let untaken = |link: &Link| self.engine.was_awaited(link.id) && !link.is_taken();
        self.engine.has_waiting_messages()
            || self.engine.has_unsent_answers()
            || self.links().any(untaken)
            || self.streams_have_unsent()
    }

    /// Sends the deferred acknowledgements, if there are any.
    pub(crate) fn send_deferred(&mut self) {
        self.holds_acks = false;
        self.engine.release_acks();
        self.after_call();
    }

    #[inline(never)]
    fn turn(&mut self, defer_acks: bool) -> bool {
        self.turn_with(defer_acks, !self.streams.is_empty())
    }

    /// A turn that looks at the links to other hosts only if `looks` is true.
    #[inline(always)]
    fn turn_with(&mut self, defer_acks: bool, looks: bool) -> bool {
        let mut budget = COPY_BUDGET;
        if !self.holds_acks {
            self.engine.release_acks();
        }
        self.engine.defer_acks(defer_acks || self.holds_acks);
        let mut more = self.drain(&mut budget);
        if looks {
            more |= self.drain_streams(&mut budget);
        }
        self.engine.defer_acks(false);
        if !defer_acks && self.holds_acks {
            self.engine.release_requested_acks();
        }
        more |= self.transmit(&mut budget);
        self.finish(more);
        more
    }

    /// Sends frames and reports events after a call of the application into the engine. Unlike
    /// `progress`, does not handle inbound frames.
    #[inline]
    pub(crate) fn after_call(&mut self) {
        if !self.engine.is_idle() {
            self.send_and_tell();
        }
    }

    fn send_and_tell(&mut self) {
        let mut budget = COPY_BUDGET;
        let more = self.transmit(&mut budget);
        self.finish(more);
    }

    /// Prepares for an application that is about to wait instead of polling. Marks a ticking agent
    /// as asleep, so that peers ring from now on; the agent's thread notices at its next tick. An
    /// agent that is awake falls asleep in its own turn.
    ///
    /// The request that answers a message often comes after the queue is armed, so it may still
    /// carry acknowledgements.
    pub(crate) fn prepare_to_sleep(&mut self) {
        self.hold_acks();
        self.polls_at_sleep = self.polls;
        self.nudge();
        self.progress();
        if self.agent == Agent::Ticking {
            self.fall_asleep_soon();
        }
        self.nudge();
    }

    /// Does the work at hand for a thread that waits for an event. The thread's next request may
    /// carry the acknowledgements.
    pub(super) fn work_for_event(&mut self) {
        if self.must_look() {
            self.turn(true);
        }
    }

    /// Whether a turn may find something to do. Counts on a look at every connection to another
    /// host, which only a turn takes.
    fn must_look(&mut self) -> bool {
        !self.streams.is_empty() || !self.is_quiet_within()
    }

    /// Prepares for the sleep of a thread that waits for an event: peers ring from now on. An agent
    /// that is awake falls asleep in its own turn.
    pub(super) fn rest(&mut self) {
        self.holds_acks = false;
        self.polls_at_sleep = self.polls;
        if self.must_look() {
            self.progress();
        }
        if self.agent != Agent::Awake {
            self.fall_asleep_soon();
        }
        self.nudge();
    }

    /// Treats a thread that has got its event as one that polls: peers do not ring, and the agent
    /// looks in after a tick. Until then, acknowledgements wait for the thread's next request.
    pub(super) fn resume(&mut self) {
        if self.agent != Agent::Awake {
            self.stay_awake();
            self.holds_acks = true;
        }
    }

    /// Falls asleep, after a few turns if necessary.
    fn fall_asleep_soon(&mut self) {
        let busy = (0..4).all(|_| {
            let work = self.fall_asleep();
            if work {
                self.progress();
            }
            work
        });
        if busy {
            // The agent does the rest.
            self.wake_agent();
        }
    }

    /// Handles all frames that have arrived so far.
    pub(crate) fn drain_fully(&mut self) {
        for index in 0..self.links.len() {
            // Enough for a full ring; frames that a busy peer adds meanwhile can wait.
            let mut budget = 2 * MAX_CAPACITY;
            self.drain_link(index, &mut budget);
        }
        self.drain_streams_fully();
    }

    fn drain(&mut self, budget: &mut usize) -> bool {
        let mut more = false;
        for index in 0..self.links.len() {
            more |= self.drain_link(index, budget);
        }
        more
    }

    #[inline]
    fn drain_link(&mut self, index: usize, budget: &mut usize) -> bool {
        let Some(link) = &mut self.links[index] else { return false };
        let engine = &mut self.engine;
        match link.drain(budget, |id, header, payload| engine.handle_frame(id, header, payload)) {
            Ok(more) => {
                *budget = (*budget).max(SHARE);
                more
            }
            Err(Corrupt) => {
                self.remove_corrupt(index);
                false
            }
        }
    }

    fn remove_corrupt(&mut self, index: usize) {
        let Some(link) = &self.links[index] else { return };
        let pid = link.peer().map_or(0, |peer| peer.pid);
        log!(WARN, pid, "process {pid} wrote an impossible value into its link; the link is closed");
        self.remove_link(link.id, "corrupt");
    }

    /// Sends on the links that have new frames, and on the links that could not send everything
    /// before. Frames to this process itself are handled at once.
    #[inline(always)]
    fn transmit(&mut self, budget: &mut usize) -> bool {
        let mut more = (self.first != 0 || self.streams_wait) && self.transmit_first(budget);
        for index in 0..self.links.len() {
            if self.links[index].as_ref().is_some_and(Link::may_continue) {
                more |= self.transmit_on(index, budget);
            }
        }
        while let Some(id) = self.engine.poll_active_link() {
            more |= self.transmit_on(id.0 as usize, budget);
        }
        more
    }

    /// Sends on the links from `first` on, since a link before them used up the last turn; then, if
    /// a link to another host waits, on all links by turns.
    #[cold]
    fn transmit_first(&mut self, budget: &mut usize) -> bool {
        let (first, end) = (core::mem::take(&mut self.first), self.links.len().max(self.streams.len()));
        let again = if core::mem::take(&mut self.streams_wait) { end } else { 0 };
        let mut more = false;
        for index in (first..end).chain(0..again) {
            let link = self.links.get(index).and_then(Option::as_ref);
            if link.is_some_and(Link::may_continue) || self.stream_may_continue(index) {
                more |= self.transmit_on(index, budget);
            }
        }
        self.streams_wait |= self.streams.iter().flatten().any(Stream::waits);
        more
    }

    fn transmit_on(&mut self, index: usize, budget: &mut usize) -> bool {
        loop {
            let Some(Some(link)) = self.links.get_mut(index) else { return self.transmit_on_stream(index, budget) };
            if *budget == 0 {
                link.put_off();
                return true;
            }
            let engine = &mut self.engine;
            let ended = engine.poll_transmit(link.id, link);
            if ended == Transmit::More {
                *budget = 0;
                self.first = index + 1;
            }
            let handle = |id, header: &Header, payload: Source<'_>| engine.handle_frame(id, header, payload);
            match link.deliver(ended, budget, handle) {
                Ok(true) => {}
                Ok(false) => return link.has_more(),
                Err(Corrupt) => {
                    self.remove_corrupt(index);
                    return false;
                }
            }
        }
    }

    /// The rest of a turn: events, timers, and work for the agent. `more` means that another turn
    /// is needed. Most turns have nothing of this kind.
    #[inline]
    fn finish(&mut self, more: bool) {
        if more || self.engine.has_news() || !self.lookups.is_empty() || !self.grants.is_empty() {
            self.finish_with_news(more);
        }
    }

    fn finish_with_news(&mut self, mut more: bool) {
        more |= self.timers();
        while let Some(event) = self.engine.poll_event() {
            if let Some(waker) = self.sink.and_then(|sink| sink(event)) {
                match &mut self.wakers {
                    Some(wakers) => wakers.push(waker),
                    None => waker.wake(),
                }
            }
        }
        let mut for_agent = more;
        while let Some(lookup) = self.engine.poll_lookup() {
            match lookup {
                Lookup::Link(PeerId { host: Host::LOCAL, slot }) if self.slots.contains(&slot) => {
                    self.connect_loopback(slot);
                    for_agent = true;
                }
                lookup => self.lookups.push(lookup),
            }
        }
        while let Some(errand) = self.engine.poll_errand() {
            match errand {
                Errand::Grant(grant) => self.grants.push(grant),
                Errand::Copy(job) => Arc::clone(&job.copier).push(job),
                Errand::Fault(injected) => faults::carry_out(injected),
            }
        }
        for_agent &= self.agent != Agent::Ticking;
        if for_agent || !self.lookups.is_empty() || !self.grants.is_empty() || self.engine.has_unmapped() {
            self.wake_agent();
        }
    }

    /// Runs the timers, if it is time for that. True if more is left to send.
    #[inline]
    fn timers(&mut self) -> bool {
        let Some(at) = self.engine.poll_timeout() else { return false };
        let others_will = match self.agent {
            Agent::Ticking | Agent::Awake => self.polls % POLLS_PER_CLOCK != 0,
            Agent::Asleep => at != Time(0) && self.alarm <= at,
        };
        !others_will && self.run_timers()
    }

    /// Starts and fires timers, and sets the agent's alarm. True if more is left to send.
    pub(crate) fn run_timers(&mut self) -> bool {
        if self.engine.poll_timeout().is_none() {
            return false;
        }
        let now = os::now();
        self.engine.handle_timeout(now);
        let mut budget = COPY_BUDGET;
        let mut more = false;
        while let Some(id) = self.engine.poll_active_link() {
            more |= self.transmit_on(id.0 as usize, &mut budget);
        }
        let next = self.engine.poll_timeout();
        // An alarm that ends a tick is not put off.
        let is_tick = self.agent == Agent::Ticking || self.holds_acks;
        match if is_tick { next.map(|at| at.min(now.after(TICK_NS))) } else { next } {
            Some(at) if at < self.alarm || self.alarm <= now => self.set_alarm(at.max(now.after(1))),
            None if self.alarm <= now => self.alarm = Time(u64::MAX),
            _ => {}
        }
        more
    }

    fn set_alarm(&mut self, at: Time) {
        self.alarm = at;
        self.event_loop.set_alarm(at);
    }

    /// Makes the agent take a turn.
    pub(crate) fn wake_agent(&mut self) {
        if self.agent != Agent::Awake {
            self.agent = Agent::Awake;
            self.event_loop.wake();
        }
    }

    /// Tells all peers that this process sleeps. True if there is work after all.
    fn arm(&self) -> bool {
        self.links().fold(self.streams_have_work(), |work, link| link.arm() | work)
    }

    /// Tells all peers that this process is awake.
    pub(crate) fn disarm(&self) {
        self.links().for_each(Link::disarm);
    }

    fn connect_loopback(&mut self, slot: Slot) {
        let existing = self.links().find(|link| link.peer().is_none()).map(|link| link.id);
        let id = existing.unwrap_or_else(|| {
            let capacity = self.ring_capacity;
            self.add_link(|id, generation| Link::loopback(id, generation, capacity)).id
        });
        self.engine.handle_link_up(PeerId::local(slot), id, None);
    }
}

/// Whether a link of a vector has the number `index`.
fn taken<T>(links: &[Option<T>], index: usize) -> bool {
    links.get(index).is_some_and(Option::is_some)
}

/// The number of the link with an index.
fn number(index: usize) -> LinkId {
    LinkId(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(all(test, not(loom)))]
mod tests;
