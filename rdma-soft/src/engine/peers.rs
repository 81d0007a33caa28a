//! Links and the processes behind them: what each link has to carry, and which processes are looked
//! for.

use std::collections::VecDeque;

use super::directory::{DIRECTORY_LEN, PeerDirectory, index_of};
use super::frame::{Frame, Header, Kind};
use super::memory::Area;
use super::timer::{Owner, Timers};
use super::types::{Host, LinkId, Lookup, PeerId, Slot};

/// What a queue pair has for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Requests(u32),
    Answers(u32),
    Datagrams(u32),
}

impl Work {
    pub(super) const fn qp(self) -> u32 {
        match self {
            Self::Requests(qp) | Self::Answers(qp) | Self::Datagrams(qp) => qp,
        }
    }
}

/// How a datagram gets to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Over a link; the process was the n-th that was reached.
    Link(LinkId, u32),
    /// A link is being made.
    Wait,
    /// Not at all, for now.
    Lost,
}

/// How long datagrams wait for a link, in nanoseconds.
const PATIENCE: u64 = 100_000_000;
/// So many processes at most are waited for on account of a group: anybody can say that processes
/// are in a group that nobody reaches.
const MAX_AWAITED_MEMBERS: usize = 128;
/// How long a process that could not be reached is left alone, in nanoseconds: twice as long each
/// time, up to 16 times.
const SHUN: u64 = 100_000_000;
const MAX_DOUBLINGS: u8 = 4;
/// Control frames that wait for room. A peer that makes more of them than this harms only itself.
const MAX_CONTROL: usize = 1 << 14;

/// A peer's region that was asked for, and is mapped once it was granted.
#[derive(Clone, Debug, Default)]
struct Mapped {
    key: u32,
    /// Tells it from the other regions that had the key.
    serial: u64,
    area: Option<Area>,
}

/// A link to another process.
#[derive(Debug, Default)]
pub(super) struct Link {
    up: bool,
    host: Host,
    slots: Vec<Slot>,
    directory: Option<Area>,
    /// By the index in the regions' keys.
    mapped: Vec<Mapped>,
    pub(super) work: VecDeque<Work>,
    /// Frames that no queue pair keeps.
    pub(super) control: VecDeque<Header>,
    /// The peer has not made room for a long time: datagrams do not wait for it.
    pub(super) stuck: bool,
    /// Datagrams have waited for the link.
    awaited: bool,
    listed: bool,
}

/// What is known of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    link: Option<LinkId>,
    /// Its number among the processes that were reached.
    number: u32,
    /// The driver looks for it.
    asked: bool,
    /// Datagrams wait for it, and its timer counts.
    awaited: bool,
    /// Datagrams to it are lost, until its timer fires.
    shunned: bool,
    /// How often in a row it could not be reached.
    failures: u8,
}

/// All links and processes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    links: Vec<Link>,
    /// By host, and then by slot.
    processes: Vec<Box<[Process]>>,
    active: VecDeque<LinkId>,
    lookups: VecDeque<Lookup>,
    awaited: usize,
    reached: u32,
    /// Mappings that are of no use any more, to be dropped outside of the driver's lock.
    unmapped: Vec<Area>,
}

impl Peers {
    fn process(&mut self, peer: PeerId) -> &mut Process {
        let host = usize::from(peer.host.0);
        if self.processes.len() <= host {
            self.processes.resize_with(host + 1, || vec![Process::default(); 1 << 12].into_boxed_slice());
        }
        &mut self.processes[host][usize::from(peer.slot.0 & 0xfff)]
    }

    /// The link on which requests to a process go.
    #[inline]
    pub(super) fn link_of(&self, peer: PeerId) -> Option<LinkId> {
        self.processes.get(usize::from(peer.host.0))?.get(usize::from(peer.slot.0))?.link
    }

    pub(super) fn get(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link.0 as usize).filter(|link| link.up)
    }

    /// Whether datagrams had to wait for the link.
    pub(super) fn was_awaited(&self, id: LinkId) -> bool {
        self.links.get(id.0 as usize).is_some_and(|link| link.awaited)
    }

    /// How many processes were reached so far.
    pub(super) const fn reached(&self) -> u32 {
        self.reached
    }

    /// Whether the link leads to the process with this slot.
    #[inline]
    pub(super) fn leads_to(&self, link: LinkId, slot: Slot) -> bool {
        self.links.get(link.0 as usize).is_some_and(|link| link.up && link.slots.contains(&slot))
    }

    /// The host that a link leads to.
    pub(super) fn host_of(&self, link: LinkId) -> Option<Host> {
        self.links.get(link.0 as usize).filter(|link| link.up).map(|link| link.host)
    }

    pub(super) fn up(&mut self, peer: PeerId, id: LinkId, directory: Option<Area>, timers: &mut Timers) {
        if !peer.slot.is_real() {
            // Slot 0 stands for "no peer" in a queue pair: no process has it.
            return;
        }
        let index = id.0 as usize;
        if self.links.len() <= index {
            self.links.resize_with(index + 1, Link::default);
        }
        let number = self.reached + 1;
        let process = self.process(peer);
        if process.link.is_none() {
            (process.link, process.number) = (Some(id), number);
        }
        let is_new = process.number == number;
        let was_awaited = core::mem::take(&mut process.awaited);
        (process.asked, process.shunned, process.failures) = (false, false, 0);
        timers.cancel(Owner::Peer(peer));
        self.reached += u32::from(is_new);
        self.awaited -= usize::from(was_awaited);
        let link = &mut self.links[index];
        (link.up, link.host) = (true, peer.host);
        link.awaited |= was_awaited;
        if !link.slots.contains(&peer.slot) {
            link.slots.push(peer.slot);
        }
        if directory.is_some() {
            link.directory = directory;
        }
    }

    /// Takes a link down; the processes to which it carried requests.
    pub(super) fn down(&mut self, id: LinkId) -> Vec<PeerId> {
        let Some(link) = self.get(id) else { return Vec::new() };
        let link = core::mem::take(link);
        self.unmapped.extend(link.mapped.into_iter().filter_map(|mapped| mapped.area));
        self.active.retain(|active| *active != id);
        let peers = link.slots.into_iter().map(|slot| PeerId { host: link.host, slot });
        let peers: Vec<PeerId> = peers.filter(|peer| self.link_of(*peer) == Some(id)).collect();
        for peer in &peers {
            // Another link to the same process may be there still.
            let leads_there = |link: &Link| link.up && link.host == peer.host && link.slots.contains(&peer.slot);
            let other = self.links.iter().position(leads_there);
            self.process(*peer).link = other.and_then(|index| u32::try_from(index).ok()).map(LinkId);
        }
        peers
    }

    /// How a datagram gets to a process. Where no link is, the driver is asked for one.
    pub(super) fn reach(&mut self, peer: PeerId, is_member: bool, timers: &mut Timers) -> Reach {
        let awaited = self.awaited;
        let process = self.process(peer);
        if let Some(link) = process.link {
            return Reach::Link(link, process.number);
        }
        if process.shunned || (is_member && !process.awaited && awaited >= MAX_AWAITED_MEMBERS) {
            return Reach::Lost;
        }
        if !core::mem::replace(&mut process.awaited, true) {
            self.awaited += 1;
            timers.start(Owner::Peer(peer), 0, PATIENCE);
        }
        self.want(peer);
        Reach::Wait
    }

    /// A process cannot be reached, or not in time: datagrams that wait for it are lost, and it is
    /// left alone for a while.
    fn lose(&mut self, peer: PeerId, timers: &mut Timers) {
        let process = self.process(peer);
        if core::mem::take(&mut process.awaited) {
            process.shunned = true;
            timers.start(Owner::Peer(peer), 0, SHUN << process.failures);
            process.failures = (process.failures + 1).min(MAX_DOUBLINGS);
            self.awaited -= 1;
        }
    }

    /// A process cannot be reached.
    pub(super) fn unreachable(&mut self, peer: PeerId, timers: &mut Timers) {
        self.process(peer).asked = false;
        self.lose(peer, timers);
    }

    /// A process's timer has fired: either it was waited for long enough, or it may be tried again.
    pub(super) fn handle_timer(&mut self, peer: PeerId, timers: &mut Timers) {
        if self.process(peer).awaited {
            self.lose(peer, timers);
        } else {
            self.process(peer).shunned = false;
        }
    }

    /// Asks the driver for a link.
    pub(super) fn want(&mut self, peer: PeerId) {
        let process = self.process(peer);
        if process.link.is_none() && !process.asked {
            process.asked = true;
            self.lookups.push_back(Lookup::Link(peer));
        }
    }

    /// Asks the driver for something else.
    pub(super) fn look_up(&mut self, lookup: Lookup) {
        self.lookups.push_back(lookup);
    }

    pub(super) fn pop_lookup(&mut self) -> Option<Lookup> {
        self.lookups.pop_front()
    }

    pub(super) fn pop_active(&mut self) -> Option<LinkId> {
        let id = self.active.pop_front()?;
        if let Some(link) = self.get(id) {
            link.listed = false;
        }
        Some(id)
    }

    /// Has the driver look at a link.
    pub(super) fn activate(&mut self, id: LinkId) {
        if let Some(link) = self.get(id) {
            if !link.listed {
                link.listed = true;
                self.active.push_back(id);
            }
        }
    }

    /// Whether the driver has something to do for a link or to look up.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() & self.lookups.is_empty()
    }

    /// Gives a link work; false if it is down.
    pub(super) fn push_work(&mut self, id: LinkId, work: Work) -> bool {
        let Some(link) = self.get(id) else { return false };
        link.work.push_back(work);
        self.activate(id);
        true
    }

    /// Room for the work of that many queue pairs on every link, so that the data path need not
    /// allocate.
    pub(super) fn reserve(&mut self, queue_pairs: usize) {
        for link in self.links.iter_mut().filter(|link| link.up) {
            link.work.reserve((2 * queue_pairs).saturating_sub(link.work.len()));
        }
    }

    /// Forgets what a queue pair has to answer.
    pub(super) fn forget_answers(&mut self, qp: u32) {
        for link in &mut self.links {
            link.work.retain(|work| *work != Work::Answers(qp));
        }
    }

    /// Forgets a queue pair.
    pub(super) fn forget(&mut self, qp: u32) {
        for link in &mut self.links {
            link.work.retain(|work| work.qp() != qp);
        }
    }

    /// The peer's directory, if it has shown us one for this slot.
    #[inline]
    pub(super) fn directory(&self, id: LinkId, slot: Slot) -> Option<PeerDirectory<'_>> {
        let link = self.links.get(id.0 as usize)?;
        let directory = link.directory.as_ref().filter(|area| area.len() >= DIRECTORY_LEN)?;
        // It has cards for the first slot only.
        (link.slots.first() == Some(&slot)).then_some(PeerDirectory(directory))
    }

    /// The memory of a peer's region, if we have mapped it.
    pub(super) fn mapping(&self, id: LinkId, key: u32) -> Option<&Area> {
        let mapped = self.links.get(id.0 as usize)?.mapped.get(index_of(key)?)?;
        mapped.area.as_ref().filter(|_| mapped.key == key)
    }

    /// Whether what we have mapped under a key is the region with this serial number.
    pub(super) fn is_mapped(&self, id: LinkId, key: u32, serial: u64) -> bool {
        let mapped = index_of(key).and_then(|index| self.links.get(id.0 as usize)?.mapped.get(index));
        mapped.is_some_and(|mapped| (mapped.key, mapped.serial) == (key, serial) && mapped.area.is_some())
    }

    fn mapped(&mut self, id: LinkId, key: u32) -> Option<&mut Mapped> {
        let index = index_of(key)?;
        self.get(id)?.mapped.get_mut(index).filter(|mapped| mapped.key == key)
    }

    /// Asks the peer for a region, once.
    pub(super) fn want_mapping(&mut self, id: LinkId, key: u32, serial: u64, to: u32, from: u32) {
        let (Some(link), Some(index)) = (self.get(id), index_of(key)) else { return };
        if link.mapped.len() <= index {
            link.mapped.resize(index + 1, Mapped::default());
        }
        let mapped = &mut link.mapped[index];
        if (mapped.key, mapped.serial) != (key, serial) {
            let old = core::mem::replace(mapped, Mapped { key, serial, area: None });
            self.unmapped.extend(old.area);
            let mut want = Frame::new(Kind::Want, to, from, 0, 0);
            want.key = key;
            self.push_control(id, &want);
        }
    }

    /// Whether a region was asked for and not granted yet.
    pub(super) fn is_wanted(&mut self, id: LinkId, key: u32) -> bool {
        self.mapped(id, key).is_some_and(|mapped| mapped.area.is_none())
    }

    /// The peer granted us a region; what was not asked for is dropped.
    pub(super) fn mapping_granted(&mut self, id: LinkId, key: u32, area: Area) {
        match self.mapped(id, key) {
            Some(mapped) if mapped.area.is_none() => mapped.area = Some(area),
            _ => self.unmapped.push(area),
        }
    }

    /// The peer has ended a region.
    pub(super) fn mapping_revoked(&mut self, id: LinkId, key: u32) {
        if let Some(mapped) = self.mapped(id, key).map(core::mem::take) {
            self.unmapped.extend(mapped.area);
        }
    }

    pub(super) fn has_unmapped(&self) -> bool {
        !self.unmapped.is_empty()
    }

    /// Mappings that are of no use any more.
    pub(super) fn take_unmapped(&mut self) -> Vec<Area> {
        core::mem::take(&mut self.unmapped)
    }

    /// Sends a frame that no queue pair keeps. Of repeated refusals to one requester the first is
    /// enough.
    pub(super) fn push_control(&mut self, id: LinkId, frame: &Frame) {
        let Some(link) = self.get(id) else { return };
        let header = frame.encode();
        // Refusals come in runs: a look at the last few keeps the list short.
        let same = |other: &Header| Frame::decode(other, 0).is_some_and(|other| other.repeats(frame));
        if link.control.len() >= MAX_CONTROL || link.control.iter().rev().take(8).any(same) {
            return;
        }
        link.control.push_back(header);
        self.activate(id);
    }
}
