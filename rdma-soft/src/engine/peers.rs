//! Links and the processes behind them: what each link has to carry, and which slots are wanted.

use std::collections::VecDeque;

use super::directory::{DIRECTORY_LEN, PeerDirectory, index_of};
use super::frame::{Frame, Header, Kind};
use super::memory::Area;
use super::parcels::Parcels;
use super::types::{LinkId, Slot, Wish};

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

/// A peer's region.
#[derive(Clone, Debug, Default)]
struct Mapped {
    key: u32,
    /// Which of the regions that had the key.
    serial: u64,
    area: Option<Area>,
}

/// Frames of no queue pair that wait for room. A peer that makes more of them than this harms only itself.
const MAX_STRAYS: usize = 1 << 14;

/// A frame of no queue pair.
#[derive(Debug)]
pub(super) struct Stray {
    pub(super) header: Header,
    /// Of a datagram that waited for the link; others have none.
    pub(super) payload: Box<[u8]>,
}

/// A link to another process.
#[derive(Debug, Default)]
pub(super) struct Link {
    up: bool,
    slots: Vec<Slot>,
    directory: Option<Area>,
    /// The peer's regions that we have mapped or asked for, by the index in their keys.
    mapped: Vec<Mapped>,
    pub(super) work: VecDeque<Work>,
    /// Answers that no queue pair keeps, and datagrams that waited for the link.
    pub(super) strays: VecDeque<Stray>,
    /// The peer has not made room for a long time: datagrams do not wait for it.
    pub(super) stuck: bool,
    /// Datagrams have waited for the link.
    awaited: bool,
    listed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    link: Option<LinkId>,
    asked: bool,
}

/// All links and slots.
#[derive(Debug)]
pub(super) struct Peers {
    links: Vec<Link>,
    slots: Vec<SlotState>,
    active: VecDeque<LinkId>,
    wishes: VecDeque<Wish>,
    pub(super) parcels: Parcels,
}

impl Peers {
    pub(super) fn new() -> Self {
        Self {
            links: Vec::new(),
            slots: vec![SlotState::default(); 1 << 12],
            active: VecDeque::new(),
            wishes: VecDeque::new(),
            parcels: Parcels::new(),
        }
    }

    fn slot(&mut self, slot: Slot) -> &mut SlotState {
        &mut self.slots[usize::from(slot.0 & 0xfff)]
    }

    /// The link on which requests to a slot go.
    pub(super) fn link_of(&self, slot: Slot) -> Option<LinkId> {
        self.slots[usize::from(slot.0 & 0xfff)].link
    }

    pub(super) fn get(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(link.0 as usize).filter(|link| link.up)
    }

    /// Whether datagrams had to wait for the link.
    pub(super) fn was_awaited(&self, id: LinkId) -> bool {
        self.links.get(id.0 as usize).is_some_and(|link| link.awaited)
    }

    /// Whether a process with this slot is behind the link.
    pub(super) fn serves(&self, link: LinkId, slot: Slot) -> bool {
        self.links.get(link.0 as usize).is_some_and(|link| link.up && link.slots.contains(&slot))
    }

    pub(super) fn up(&mut self, slot: Slot, id: LinkId, directory: Option<Area>) {
        if !slot.is_real() {
            // A queue pair without a peer has number 0 for one: nobody may have that.
            return;
        }
        let index = id.0 as usize;
        if self.links.len() <= index {
            self.links.resize_with(index + 1, Link::default);
        }
        let link = &mut self.links[index];
        link.up = true;
        if !link.slots.contains(&slot) {
            link.slots.push(slot);
        }
        if directory.is_some() {
            link.directory = directory;
        }
        let state = self.slot(slot);
        state.link.get_or_insert(id);
        state.asked = false;
        let parcels = self.parcels.take(slot);
        for (header, payload) in parcels {
            if let Some(link) = self.get(id) {
                link.awaited = true;
            }
            self.push(id, Stray { header, payload });
        }
    }

    /// Takes a link down; the slots to which it carried requests.
    pub(super) fn down(&mut self, id: LinkId) -> Vec<Slot> {
        let Some(link) = self.get(id) else { return Vec::new() };
        let mut slots = core::mem::take(link).slots;
        slots.retain(|slot| self.link_of(*slot) == Some(id));
        self.active.retain(|active| *active != id);
        for slot in &slots {
            // Another link to the same process may be there still.
            let other = self.links.iter().position(|link| link.up && link.slots.contains(slot));
            self.slot(*slot).link = other.and_then(|index| u32::try_from(index).ok()).map(LinkId);
        }
        slots
    }

    /// A process cannot be reached. If datagrams were lost by that: for how many nanoseconds it is left alone.
    pub(super) fn unreachable(&mut self, slot: Slot) -> Option<u64> {
        self.slot(slot).asked = false;
        self.parcels.lose(slot)
    }

    /// Asks the driver for a link.
    pub(super) fn want(&mut self, slot: Slot) {
        let state = self.slot(slot);
        if state.link.is_none() && !state.asked {
            state.asked = true;
            self.wishes.push_back(Wish::Link(slot));
        }
    }

    /// Asks the driver for something else.
    pub(super) fn wish(&mut self, wish: Wish) {
        self.wishes.push_back(wish);
    }

    pub(super) fn pop_wish(&mut self) -> Option<Wish> {
        self.wishes.pop_front()
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

    /// Gives a link work; false if it is down.
    pub(super) fn push_work(&mut self, id: LinkId, work: Work) -> bool {
        let Some(link) = self.get(id) else { return false };
        link.work.push_back(work);
        self.activate(id);
        true
    }

    /// Room for the work of that many queue pairs on every link, so that the data path need not allocate.
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

    /// Asks the peer for a region, once.
    pub(super) fn want_mapping(&mut self, id: LinkId, key: u32, serial: u64, to: u32, from: u32) {
        let (Some(link), Some(index)) = (self.get(id), index_of(key)) else { return };
        if link.mapped.len() <= index {
            link.mapped.resize(index + 1, Mapped::default());
        }
        if (link.mapped[index].key, link.mapped[index].serial) != (key, serial) {
            link.mapped[index] = Mapped { key, serial, area: None };
            let mut want = Frame::new(Kind::Want, to, from, 0, 0);
            want.key = key;
            self.push_stray(id, &want);
        }
    }

    /// The peer granted us a region that we asked for.
    pub(super) fn mapping_granted(&mut self, id: LinkId, key: u32, area: Area) {
        let (Some(link), Some(index)) = (self.get(id), index_of(key)) else { return };
        if let Some(mapped) = link.mapped.get_mut(index).filter(|mapped| mapped.key == key) {
            mapped.area = Some(area);
        }
    }

    /// Sends a frame that no queue pair keeps. Of repeated refusals to one requester the first says it all.
    pub(super) fn push_stray(&mut self, id: LinkId, frame: &Frame) {
        let Some(link) = self.get(id) else { return };
        let header = frame.encode();
        if frame.kind == Kind::Dropped {
            let same = |stray: &Stray| {
                Frame::decode(&stray.header, stray.payload.len()).is_some_and(|other| {
                    (other.kind, other.to, other.from, other.epoch)
                        == (Kind::Dropped, frame.to, frame.from, frame.epoch)
                })
            };
            // Refusals come in runs: a look at the last few is enough to keep the list short.
            if link.strays.iter().rev().take(8).any(same) {
                return;
            }
        }
        self.push(id, Stray { header, payload: Box::default() });
    }

    fn push(&mut self, id: LinkId, stray: Stray) {
        let Some(link) = self.get(id) else { return };
        if link.strays.len() < MAX_STRAYS {
            link.strays.push_back(stray);
            self.activate(id);
        }
    }
}
