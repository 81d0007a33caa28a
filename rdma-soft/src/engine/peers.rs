//! Links and the processes behind them: the work of each link, and the processes that the driver
//! looks for.

use std::collections::VecDeque;

use super::directory::{DIRECTORY_LEN, PeerDirectory, index_of};
use super::grh::{Gid, Grh};
use super::memory::Area;
use super::timer::{Owner, Timers};
use super::types::{Host, LinkId, Lookup, MULTICAST_QPN, PeerId, Slot};
use super::wire::{Frame, Header, Kind};

/// Work that a queue pair has for a link.
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

/// The messages that are to reach a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Unreliable messages to this process alone, which wait for a link for one second: on a loaded
    /// machine a link may take that long.
    Process,
    /// Datagrams to a group, which the process may be in; they wait for 100 ms.
    Group,
}

/// The way in which an unreliable message reaches a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Over this link; the number is the process's ordinal among the processes reached so far.
    Link(LinkId, u32),
    /// Not yet: the driver looks for a link.
    Wait,
    /// Not at all, for now.
    Lost,
}

/// The longest wait of any message for a link, in nanoseconds.
const PATIENCE: u64 = 100_000_000;
/// How much longer the messages to one process wait, in nanoseconds.
const MORE_PATIENCE: u64 = 900_000_000;
/// The most processes that are awaited as members of groups. Any process can claim that a group has
/// members that cannot be reached.
const MAX_AWAITED_MEMBERS: usize = 128;
/// How long no unreliable message is sent to a process that could not be reached, in nanoseconds.
/// Each further failure in a row doubles the time, at most to 16 times this value.
const SHUN: u64 = 100_000_000;
const MAX_DOUBLINGS: u8 = 4;
/// The most processes that the driver looks for at a time because frames of one peer name them.
const MAX_STRANGERS: usize = 16;
/// The most control frames that wait for space. A peer that causes more of them harms only itself.
const MAX_CONTROL: usize = 1 << 14;

/// A peer's region that was requested for mapping, and its mapping once it was granted.
#[derive(Clone, Debug, Default)]
struct Mapped {
    key: u32,
    /// Distinguishes the region from other regions that had the same key.
    serial: u64,
    area: Option<Area>,
}

/// A link to another process.
#[derive(Debug, Default)]
pub(super) struct Link {
    up: bool,
    host: Host,
    /// The peer's address and this host's, of a link to another host.
    route: Option<[Gid; 2]>,
    slots: Vec<Slot>,
    directory: Option<Area>,
    /// Indexed by the index in the regions' keys.
    mapped: Vec<Mapped>,
    pub(super) work: VecDeque<Work>,
    /// Frames that belong to no queue pair.
    pub(super) control: VecDeque<Header>,
    /// Nanoseconds that an unreliable message has waited in vain for space, since the link last had
    /// space.
    pub(super) waited: u64,
    /// Unreliable messages have waited for the link.
    awaited: bool,
    listed: bool,
    /// Processes that the driver looks for because frames of this link name them.
    strangers: usize,
}

/// The unreliable messages that wait for a link to a process. The process's timer ends each state
/// but the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    /// None waits.
    #[default]
    Nothing,
    /// All wait.
    Everything,
    /// Those to the process alone wait; those to groups are lost.
    Single,
    /// None waits: all are lost.
    Shunned,
}

impl Wait {
    const fn is_wait(self) -> bool {
        matches!(self, Self::Everything | Self::Single)
    }
}

/// The state of a process, as far as this engine knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    link: Option<LinkId>,
    /// The process's ordinal among the processes that were reached.
    number: u32,
    /// The driver was asked for a link to the process.
    asked: bool,
    /// The link whose frames name the process, if the driver was asked because of them.
    named_by: Option<LinkId>,
    wait: Wait,
    /// Messages to the process alone are among those that wait.
    singles_wait: bool,
    /// How many times in a row the process could not be reached.
    failures: u8,
}

/// The number of slots in a [`Page`], and of the pages of a host: their product exceeds every slot.
const PAGE: usize = 64;

/// The processes of [`PAGE`] consecutive slots.
type Page = [Process; PAGE];

/// The processes of a host, indexed by the slot's upper and lower half. A host that claims many
/// slots costs memory only for the pages that are in use.
#[derive(Debug)]
struct Processes([Option<Box<Page>>; PAGE]);

impl Default for Processes {
    fn default() -> Self {
        Self([const { None }; PAGE])
    }
}

impl Processes {
    #[inline]
    fn get(&self, slot: Slot) -> Option<&Process> {
        let slot = usize::from(slot.0);
        self.0.get(slot / PAGE)?.as_ref().map(|page| &page[slot % PAGE])
    }

    fn get_or_insert(&mut self, slot: Slot) -> &mut Process {
        let slot = usize::from(slot.0 & 0xfff);
        let page = self.0[slot / PAGE].get_or_insert_with(|| Box::new([Process::default(); PAGE]));
        &mut page[slot % PAGE]
    }
}

/// All links and processes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    links: Vec<Link>,
    /// Indexed by host.
    processes: Vec<Processes>,
    active: VecDeque<LinkId>,
    lookups: VecDeque<Lookup>,
    awaited: usize,
    reached: u32,
    /// Mappings that are of no use any more; the driver drops them outside of its lock.
    unmapped: Vec<Area>,
}

impl Peers {
    fn process(&mut self, peer: PeerId) -> &mut Process {
        let host = usize::from(peer.host.0);
        if self.processes.len() <= host {
            self.processes.resize_with(host + 1, Processes::default);
        }
        self.processes[host].get_or_insert(peer.slot)
    }

    /// Returns the link on which requests to a process go.
    #[inline]
    pub(super) fn link_of(&self, peer: PeerId) -> Option<LinkId> {
        self.processes.get(usize::from(peer.host.0))?.get(peer.slot)?.link
    }

    pub(super) fn get(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link.0 as usize).filter(|link| link.up)
    }

    /// Whether answers to requests wait for room on their links.
    pub(super) fn has_unsent_answers(&self) -> bool {
        let is_answer = |work: &Work| matches!(work, Work::Answers(_));
        self.links.iter().any(|link| link.up && (!link.control.is_empty() || link.work.iter().any(is_answer)))
    }

    /// Whether datagrams had to wait for the link.
    pub(super) fn was_awaited(&self, id: LinkId) -> bool {
        self.links.get(id.0 as usize).is_some_and(|link| link.awaited)
    }

    /// Returns how many processes were reached so far.
    pub(super) const fn reached(&self) -> u32 {
        self.reached
    }

    /// Whether the link leads to the process with this slot.
    #[inline]
    pub(super) fn leads_to(&self, link: LinkId, slot: Slot) -> bool {
        self.links.get(link.0 as usize).is_some_and(|link| link.up && link.slots.contains(&slot))
    }

    /// Whether the link leads to a process of this host.
    #[inline]
    pub(super) fn leads_to_host(&self, link: LinkId, host: Host) -> bool {
        self.links.get(link.0 as usize).is_some_and(|link| link.up && link.host == host)
    }

    /// Sets the peer's address and this host's, between which a link to another host carries
    /// datagrams.
    pub(super) fn set_route(&mut self, link: LinkId, route: [Gid; 2]) {
        if let Some(link) = self.get(link) {
            link.route = Some(route);
        }
    }

    /// Whether a link may carry a datagram with this header. A receiver answers to the source in
    /// the header, so a process of another host sends in the name of its own address alone, and to
    /// no group: those stay within a host. Processes of this host share all of its addresses.
    #[inline]
    pub(super) fn may_carry(&self, link: LinkId, frame: &Frame, grh: &Grh) -> bool {
        let Some(link) = self.links.get(link.0 as usize).filter(|link| link.up) else { return false };
        let is_between = || link.route == Some([grh.source(), grh.destination()]) && frame.to != MULTICAST_QPN;
        link.host == Host::LOCAL || is_between()
    }

    /// Returns the host that a link leads to.
    pub(super) fn host_of(&self, link: LinkId) -> Option<Host> {
        self.links.get(link.0 as usize).filter(|link| link.up).map(|link| link.host)
    }

    pub(super) fn up(&mut self, peer: PeerId, id: LinkId, directory: Option<Area>, timers: &mut Timers) {
        if !peer.slot.is_real() {
            // Slot 0 means "no peer" in a queue pair; no process has it.
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
        let was_awaited = core::mem::take(&mut process.wait).is_wait();
        (process.singles_wait, process.failures) = (false, 0);
        self.answered(peer);
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

    /// Takes a link down; returns the processes to which it carried requests.
    pub(super) fn down(&mut self, id: LinkId) -> Vec<PeerId> {
        let Some(link) = self.get(id) else { return Vec::new() };
        let link = core::mem::take(link);
        self.unmapped.extend(link.mapped.into_iter().filter_map(|mapped| mapped.area));
        self.active.retain(|active| *active != id);
        let peers = link.slots.into_iter().map(|slot| PeerId { host: link.host, slot });
        let peers: Vec<PeerId> = peers.filter(|peer| self.link_of(*peer) == Some(id)).collect();
        for peer in &peers {
            // Another link may still lead to the same process.
            let leads_there = |link: &Link| link.up && link.host == peer.host && link.slots.contains(&peer.slot);
            let other = self.links.iter().position(leads_there);
            self.process(*peer).link = other.and_then(|index| u32::try_from(index).ok()).map(LinkId);
        }
        peers
    }

    /// Returns how a message reaches a process. Without a link, asks the driver for one.
    pub(super) fn reach(&mut self, peer: PeerId, purpose: Purpose, timers: &mut Timers) -> Reach {
        let awaited = self.awaited;
        let process = self.process(peer);
        if let Some(link) = process.link {
            return Reach::Link(link, process.number);
        }
        let is_lost = match process.wait {
            Wait::Nothing => purpose == Purpose::Group && awaited >= MAX_AWAITED_MEMBERS,
            Wait::Everything => false,
            Wait::Single => purpose == Purpose::Group,
            Wait::Shunned => true,
        };
        if is_lost {
            return Reach::Lost;
        }
        process.singles_wait |= purpose == Purpose::Process;
        if process.wait == Wait::Nothing {
            process.wait = Wait::Everything;
            self.awaited += 1;
            timers.start(Owner::Peer(peer), 0, PATIENCE);
        }
        self.want(peer);
        Reach::Wait
    }

    /// Gives up on a process that cannot be reached, or not in time: unreliable messages that wait
    /// for the process are lost, and later ones are lost at once until a timer fires.
    fn lose(&mut self, peer: PeerId, timers: &mut Timers) {
        let process = self.process(peer);
        if process.wait.is_wait() {
            (process.wait, process.singles_wait) = (Wait::Shunned, false);
            timers.start(Owner::Peer(peer), 0, SHUN << process.failures);
            process.failures = (process.failures + 1).min(MAX_DOUBLINGS);
            self.awaited -= 1;
        }
    }

    /// Handles the driver's answer that a process cannot be reached.
    pub(super) fn unreachable(&mut self, peer: PeerId, timers: &mut Timers) {
        self.answered(peer);
        self.lose(peer, timers);
    }

    /// Handles a process's timer: the wait for the process was too long, for groups at least, or
    /// the process may be tried again.
    pub(super) fn handle_timer(&mut self, peer: PeerId, timers: &mut Timers) {
        let process = self.process(peer);
        match process.wait {
            Wait::Everything if process.singles_wait => {
                process.wait = Wait::Single;
                timers.start(Owner::Peer(peer), 0, MORE_PATIENCE);
            }
            Wait::Everything | Wait::Single => self.lose(peer, timers),
            Wait::Nothing | Wait::Shunned => process.wait = Wait::Nothing,
        }
    }

    /// Asks the driver for a link to a process, once.
    pub(super) fn want(&mut self, peer: PeerId) {
        let process = self.process(peer);
        if process.link.is_none() && !process.asked {
            process.asked = true;
            self.lookups.push_back(Lookup::Link(peer));
        }
    }

    /// Asks the driver for a link to a process that a frame of `link` names, unless the peer has
    /// had many processes looked for: each look-up takes a thread of the driver.
    pub(super) fn want_named(&mut self, peer: PeerId, link: LinkId) {
        let Process { link: known, asked, .. } = *self.process(peer);
        let Some(state) = self.get(link).filter(|_| known.is_none() && !asked) else { return };
        if state.strangers < MAX_STRANGERS {
            state.strangers += 1;
            self.process(peer).named_by = Some(link);
            self.want(peer);
        }
    }

    /// Records that the driver has answered for a process.
    fn answered(&mut self, peer: PeerId) {
        let process = self.process(peer);
        process.asked = false;
        if let Some(link) = process.named_by.take() {
            if let Some(link) = self.get(link) {
                // The number of a link that went down may be that of another link now.
                link.strangers = link.strangers.saturating_sub(1);
            }
        }
    }

    /// Asks the driver a question.
    pub(super) fn look_up(&mut self, lookup: Lookup) {
        self.lookups.push_back(lookup);
    }

    pub(super) fn pop_lookup(&mut self) -> Option<Lookup> {
        self.lookups.pop_front()
    }

    /// Whether a lookup waits for the driver.
    #[inline]
    pub(super) fn has_lookup(&self) -> bool {
        !self.lookups.is_empty()
    }

    /// Whether a link is active.
    #[inline]
    pub(super) fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    pub(super) fn pop_active(&mut self) -> Option<LinkId> {
        let id = self.active.pop_front()?;
        if let Some(link) = self.get(id) {
            link.listed = false;
        }
        Some(id)
    }

    /// Makes `pop_active` return a link.
    pub(super) fn activate(&mut self, id: LinkId) {
        if let Some(link) = self.get(id) {
            if !link.listed {
                link.listed = true;
                self.active.push_back(id);
            }
        }
    }

    /// Whether no link is active and no lookup waits for the driver.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() & self.lookups.is_empty()
    }

    /// Appends work to a link's list; false if the link is down.
    pub(super) fn push_work(&mut self, id: LinkId, work: Work) -> bool {
        let Some(link) = self.get(id) else { return false };
        link.work.push_back(work);
        self.activate(id);
        true
    }

    /// Reserves space on every link for the work of that many queue pairs, so that the data path
    /// does not allocate.
    pub(super) fn reserve(&mut self, queue_pairs: usize) {
        for link in self.links.iter_mut().filter(|link| link.up) {
            link.work.reserve((2 * queue_pairs).saturating_sub(link.work.len()));
        }
    }

    /// Removes a queue pair's answers from all lists.
    pub(super) fn forget_answers(&mut self, qp: u32) {
        for link in &mut self.links {
            link.work.retain(|work| *work != Work::Answers(qp));
        }
    }

    /// Removes all work of a queue pair.
    pub(super) fn forget(&mut self, qp: u32) {
        for link in &mut self.links {
            link.work.retain(|work| work.qp() != qp);
        }
    }

    /// Returns the peer's directory, if the peer has published one for this slot.
    #[inline]
    pub(super) fn directory(&self, id: LinkId, slot: Slot) -> Option<PeerDirectory<'_>> {
        let link = self.links.get(id.0 as usize)?;
        let directory = link.directory.as_ref().filter(|area| area.len() >= DIRECTORY_LEN)?;
        // A directory describes queue pairs of the peer's first slot only.
        (link.slots.first() == Some(&slot)).then_some(PeerDirectory(directory))
    }

    /// Returns the mapping of a peer's region, if there is one.
    pub(super) fn mapping(&self, id: LinkId, key: u32) -> Option<&Area> {
        let mapped = self.links.get(id.0 as usize)?.mapped.get(index_of(key)?)?;
        mapped.area.as_ref().filter(|_| mapped.key == key)
    }

    /// Whether the mapping under a key is that of the region with this serial number.
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

    /// Whether a region was requested and not granted yet.
    pub(super) fn is_wanted(&mut self, id: LinkId, key: u32) -> bool {
        self.mapped(id, key).is_some_and(|mapped| mapped.area.is_none())
    }

    /// Stores the mapping of a granted region; drops a mapping that was not requested.
    pub(super) fn mapping_granted(&mut self, id: LinkId, key: u32, area: Area) {
        match self.mapped(id, key) {
            Some(mapped) if mapped.area.is_none() => mapped.area = Some(area),
            _ => self.unmapped.push(area),
        }
    }

    /// Drops the mapping of a region that the peer has deregistered.
    pub(super) fn mapping_revoked(&mut self, id: LinkId, key: u32) {
        if let Some(mapped) = self.mapped(id, key).map(core::mem::take) {
            self.unmapped.extend(mapped.area);
        }
    }

    #[inline]
    pub(super) fn has_unmapped(&self) -> bool {
        !self.unmapped.is_empty()
    }

    /// Takes the mappings that are of no use any more.
    pub(super) fn take_unmapped(&mut self) -> Vec<Area> {
        core::mem::take(&mut self.unmapped)
    }

    /// Queues a frame that belongs to no queue pair. Repeated refusals to one requester are
    /// dropped: the first one is enough.
    pub(super) fn push_control(&mut self, id: LinkId, frame: &Frame) {
        let Some(link) = self.get(id) else { return };
        let header = frame.encode();
        // Refusals come in runs: comparing with the last few frames keeps the list short.
        let same = |other: &Header| Frame::decode(other, 0).is_some_and(|other| other.repeats(frame));
        if link.control.len() >= MAX_CONTROL || link.control.iter().rev().take(8).any(same) {
            return;
        }
        link.control.push_back(header);
        self.activate(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_two_hosts_are_told_apart_and_take_memory_by_pages() {
        let (mut peers, mut timers) = (Peers::default(), Timers::default());
        let hosts = [Host::LOCAL, Host(1023)];
        for (link, slot) in (0..).zip([1, 63, 64, 4094]) {
            for host in hosts {
                let link = LinkId(2 * link + u32::from(host != Host::LOCAL));
                let peer = PeerId { host, slot: Slot(slot) };
                assert_eq!(peers.link_of(peer), None);
                peers.up(peer, link, None, &mut timers);
                assert_eq!(peers.link_of(peer), Some(link));
                assert!(hosts.iter().all(|other| peers.leads_to_host(link, *other) == (*other == host)));
            }
        }
        let pages = |host: &Processes| host.0.iter().flatten().count();
        assert_eq!(peers.processes.iter().map(pages).sum::<usize>(), 6);
        assert_eq!(peers.link_of(PeerId { host: Host(1024), slot: Slot(1) }), None);
        assert_eq!(peers.link_of(PeerId::local(Slot(u16::MAX))), None);
        assert_eq!(peers.down(LinkId(6)), [PeerId::local(Slot(4094))]);
        assert_eq!(peers.link_of(PeerId { host: Host(1023), slot: Slot(4094) }), Some(LinkId(7)));
    }
}
