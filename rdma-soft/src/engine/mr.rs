//! Protection domains and registered regions, and the lookup of scatter/gather lists in them.
//!
//! A key is the region's index (20 bits) and a tag (12 bits), new for each registration: the key of
//! a deregistered region does not name the next region at that index. Tags are a keyed hash of the
//! number of tags drawn before, so a peer that knows some keys cannot predict others. (A key may
//! name a later region at its index. Mappings, which may outlive a registration, are therefore
//! identified by the serial number.)
//!
//! If keys are secret, the table is at most a quarter full, and a new key has a random free index:
//! a peer has to guess both parts.

use std::sync::Arc;

use rdma_mem::Backing;
use rdma_sys::ibv_sge;

use super::directory::Directory;
use super::foreign::{CopyQueue, ForeignRange, ForeignRegistration};
use super::limits::{MAX_MR, MAX_PD, MAX_SGE};
use super::memory::{Gather, Origin, Region, Scratch, Source, Target};
use super::siphash::SipHash;
use super::types::{Errno, LinkId, MrKeys, Op, PdId};

const TAG_BITS: u32 = 12;
/// The fewest indices of a table of secret keys.
const FEWEST_SECRET: usize = 1 << 12;
/// The largest page size: a shared file may exceed its region by less than one page.
const PAGE: usize = 1 << 16;

/// A registered region with its key, domain and backing file.
#[derive(Debug)]
pub(super) struct Mr {
    key: u32,
    pd: PdId,
    region: Region,
    backing: Option<Arc<Backing>>,
    /// Links over which peers asked to map the region.
    granted: Vec<LinkId>,
    /// The memory of a foreign region, whose `region` is empty.
    foreign: Option<Box<Foreign>>,
}

/// The memory of a foreign region.
#[derive(Debug)]
struct Foreign {
    /// The first byte's address, for the copier.
    address: u64,
    /// The first byte's address, for requests.
    iova: u64,
    len: usize,
    copier: Arc<dyn CopyQueue>,
    /// The region is to end: no copy begins any more.
    is_ending: bool,
    /// A copy may go on for ever, so the region never ends.
    is_lost: bool,
}

/// All regions of an engine.
#[derive(Debug)]
pub(super) struct MrTable {
    slots: Vec<Option<Mr>>,
    /// The last keys of the free indices; a key with tag 0 for an index that had none.
    free: Vec<u32>,
    /// Whether indices are random.
    keys_are_secret: bool,
    hash: SipHash,
    /// The number of hashes ever taken.
    drawn: u64,
    /// The number of regions ever registered.
    serial: u64,
}

impl MrTable {
    pub(super) const fn new(hash: SipHash, keys_are_secret: bool) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), keys_are_secret, hash, drawn: 0, serial: 0 }
    }

    fn next_hash(&mut self) -> u64 {
        self.drawn += 1;
        self.hash.of(self.drawn)
    }

    /// Adds free indices until the table is at most a quarter full, and moves a random free one to
    /// the end of the list. Memory is a few hundred kilobytes up to 1024 regions.
    fn shuffle(&mut self) {
        let mut len = self.slots.len().max(FEWEST_SECRET);
        while len < MAX_MR as usize && 4 * (self.slots.len() - self.free.len() + 1) > len {
            len *= 2;
        }
        for index in (0..MAX_MR).take(len).skip(self.slots.len()) {
            self.slots.push(None);
            self.free.push(index << TAG_BITS);
        }
        let (random, last) = (self.next_hash(), self.free.len().saturating_sub(1));
        if let Some(at) = random.checked_rem(self.free.len() as u64) {
            #[allow(clippy::cast_possible_truncation, reason = "less than the length of a list")]
            self.free.swap(at as usize, last);
        }
    }

    /// Returns the next tag of a sequence that depends only on the key of the hash.
    fn next_tag(&mut self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "the upper 12 bits")]
        let tag = (self.next_hash() >> (64 - TAG_BITS)) as u32;
        // No tag is 0, so that key 0 names no region.
        tag.max(1)
    }

    pub(super) fn insert(
        &mut self,
        pd: PdId,
        region: Region,
        backing: Option<Arc<Backing>>,
        directory: &Directory,
    ) -> Result<MrKeys, Errno> {
        let key = self.new_key()?;
        // Publish a region for mapping only if it fills its file: a peer that maps a file sees all
        // of it.
        let backing = backing.filter(|backing| {
            region.addr() == backing.base() && region.len() <= backing.len() && backing.len() - region.len() < PAGE
        });
        self.slots[(key >> TAG_BITS) as usize] =
            Some(Mr { key, pd, region, backing, granted: Vec::new(), foreign: None });
        self.publish(key, directory);
        Ok(MrKeys { lkey: key, rkey: key })
    }

    /// Inserts a region of foreign memory.
    pub(super) fn insert_foreign(&mut self, pd: PdId, what: &ForeignRegistration) -> Result<MrKeys, Errno> {
        let key = self.new_key()?;
        let ForeignRegistration { address, len, iova, access, ref copier } = *what;
        let foreign = Foreign { address, iova, len, copier: Arc::clone(copier), is_ending: false, is_lost: false };
        let foreign = Some(Box::new(foreign));
        let region = Region::empty(access);
        self.slots[(key >> TAG_BITS) as usize] =
            Some(Mr { key, pd, region, backing: None, granted: Vec::new(), foreign });
        Ok(MrKeys { lkey: key, rkey: key })
    }

    /// Takes a free index and makes a new key for it.
    fn new_key(&mut self) -> Result<u32, Errno> {
        if self.keys_are_secret {
            self.shuffle();
        }
        let last = self.free.pop();
        let index = match last {
            Some(key) => key >> TAG_BITS,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < MAX_MR).ok_or(Errno::NOMEM)?;
                self.slots.push(None);
                index
            }
        };
        let mut key = index << TAG_BITS | self.next_tag();
        while last == Some(key) {
            key = index << TAG_BITS | self.next_tag();
        }
        Ok(key)
    }

    /// Removes a region; returns its domain and the links over which peers asked to map it.
    pub(super) fn remove(&mut self, key: u32) -> Result<(PdId, Vec<LinkId>), Errno> {
        self.find(key).ok_or(Errno::INVAL)?;
        let mr = self.slots[(key >> TAG_BITS) as usize].take().ok_or(Errno::INVAL)?;
        self.free.push(key);
        Ok((mr.pd, mr.granted))
    }

    /// Gives the key of a region that was removed to another region.
    pub(super) fn rename(&mut self, key: u32, to: u32, directory: &Directory) -> Result<(), Errno> {
        self.find(key).ok_or(Errno::INVAL)?;
        let slot = self.slots[(key >> TAG_BITS) as usize].take();
        self.free.retain(|free| *free != to);
        self.free.push(key);
        directory.withdraw_region(key);
        self.slots[(to >> TAG_BITS) as usize] = slot.map(|mr| Mr { key: to, ..mr });
        self.publish(to, directory);
        Ok(())
    }

    /// Publishes a region for mapping if it has a file and remote rights.
    fn publish(&mut self, key: u32, directory: &Directory) {
        self.serial += 1;
        if let Some(mr) = self.find(key).filter(|mr| mr.backing.is_some() && mr.region.access() & REMOTE != 0) {
            directory.publish_region(key, mr.pd, &mr.region, self.serial);
        }
    }

    /// Lets no further copy of a foreign region begin.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a copy of the region may go on for ever.
    pub(super) fn begin_to_end(&mut self, key: u32) -> Result<(), Errno> {
        let Some(foreign) = self.foreign_mut(key) else { return Ok(()) };
        if foreign.is_lost {
            return Err(Errno::BUSY);
        }
        foreign.is_ending = true;
        Ok(())
    }

    /// Lets copies of a foreign region begin again.
    pub(super) fn keep(&mut self, key: u32) {
        if let Some(foreign) = self.foreign_mut(key) {
            foreign.is_ending = false;
        }
    }

    /// Records that a copy of a region may go on for ever.
    pub(super) fn lose(&mut self, key: u32) {
        if let Some(foreign) = self.foreign_mut(key) {
            foreign.is_lost = true;
        }
    }

    fn foreign_mut(&mut self, key: u32) -> Option<&mut Foreign> {
        let mr = self.slots.get_mut((key >> TAG_BITS) as usize)?.as_mut().filter(|mr| mr.key == key)?;
        mr.foreign.as_deref_mut()
    }

    /// Returns the foreign memory that a request with `key` may use with all of `rights`.
    #[cold]
    pub(super) fn foreign(&self, key: u32, pd: PdId, rights: u32, addr: u64, len: usize) -> Option<ForeignRange> {
        let foreign = self.usable(key, pd, rights)?.foreign.as_ref().filter(|foreign| !foreign.is_ending)?;
        let whole =
            ForeignRange { key, address: foreign.address, len: foreign.len, copier: Arc::clone(&foreign.copier) };
        whole.part(usize::try_from(addr.checked_sub(foreign.iova)?).ok()?, len)
    }

    /// Like [`check`](Self::check), where the list may also name foreign memory.
    pub(super) fn check_all(&self, pd: PdId, list: &[ibv_sge], rights: u32) -> bool {
        self.check(pd, list, rights)
            || list.iter().all(|sge| {
                self.check(pd, core::slice::from_ref(sge), rights)
                    || self.foreign(sge.lkey, pd, rights, sge.addr, sge.length as usize).is_some()
            })
    }

    /// Returns the file of a region that peers may map, and the region's length. Remembers `link`:
    /// the peer behind it must be told when the region is deregistered.
    pub(super) fn grant(&mut self, key: u32, link: LinkId) -> Option<(&Arc<Backing>, usize)> {
        let mr = self.slots.get_mut((key >> TAG_BITS) as usize)?.as_mut().filter(|mr| mr.key == key)?;
        let backing = mr.backing.as_ref().filter(|_| mr.region.access() & REMOTE != 0)?;
        if !mr.granted.contains(&link) {
            mr.granted.push(link);
        }
        Some((backing, mr.region.len()))
    }

    #[inline(always)]
    fn find(&self, key: u32) -> Option<&Mr> {
        self.slots.get((key >> TAG_BITS) as usize)?.as_ref().filter(|mr| mr.key == key)
    }

    /// Returns the region that a queue pair of `pd` may use under `key` with all of `rights`.
    #[inline(always)]
    fn usable(&self, key: u32, pd: PdId, rights: u32) -> Option<&Mr> {
        self.find(key).filter(|mr| mr.pd == pd && mr.region.access() & rights == rights)
    }

    /// Whether every non-empty entry of a list names memory of `pd` with all of `rights`.
    pub(super) fn check(&self, pd: PdId, list: &[ibv_sge], rights: u32) -> bool {
        list.iter().all(|sge| {
            sge.length == 0
                || self
                    .usable(sge.lkey, pd, rights)
                    .is_some_and(|mr| mr.region.source(sge.addr, sge.length as usize).is_some())
        })
    }

    /// Calls `with` with `len` bytes of a list, from `skip` on; `None` if the list is shorter, or
    /// names memory that `pd` may not use.
    #[inline(always)]
    pub(super) fn gather<R>(
        &self,
        pd: PdId,
        list: &[ibv_sge],
        skip: u32,
        len: usize,
        with: impl FnOnce(&Gather<'_>) -> R,
    ) -> Option<R> {
        let skip = skip as usize;
        if let [sge] = list {
            // The common case, a list of one entry, needs no array.
            return self.piece(pd, sge, skip, len).map(|bytes| with(&Gather::one(&bytes)));
        }
        let mut scratch = Scratch::<MAX_SGE>::new();
        let (mut skip, mut left) = (skip, len);
        for sge in list {
            let whole = sge.length as usize;
            if skip >= whole {
                skip -= whole;
                continue;
            }
            if left == 0 {
                break;
            }
            let take = (whole - skip).min(left);
            if !scratch.push(self.local_source(pd, sge, skip, take)?) {
                return None;
            }
            left -= take;
            skip = 0;
        }
        (left == 0).then(|| with(&scratch.gather()))
    }

    /// Returns `len` bytes of an entry, from `skip` on, if the entry holds them and `pd` may use
    /// them.
    #[inline(always)]
    pub(super) fn piece(&self, pd: PdId, sge: &ibv_sge, skip: usize, len: usize) -> Option<Source<'_>> {
        let fits = skip.checked_add(len).is_some_and(|end| end <= sge.length as usize);
        self.local_source(pd, sge, skip, len).filter(|_| fits)
    }

    /// Like [`gather`](Self::gather) of a whole list of at most `limits::MTU` bytes, with `head` in
    /// front.
    pub(super) fn gather_behind<R>(
        &self,
        head: Source<'_>,
        pd: PdId,
        list: &[ibv_sge],
        with: impl FnOnce(&Gather<'_>) -> R,
    ) -> Option<R> {
        let mut scratch = Scratch::<{ MAX_SGE + 1 }>::new();
        let mut fits = scratch.push(head);
        for sge in list.iter().filter(|sge| sge.length != 0) {
            fits &= scratch.push(self.local_source(pd, sge, 0, sge.length as usize)?);
        }
        fits.then(|| with(&scratch.gather()))
    }

    #[inline(always)]
    fn local_source(&self, pd: PdId, sge: &ibv_sge, skip: usize, len: usize) -> Option<Source<'_>> {
        self.usable(sge.lkey, pd, 0)?.region.source(sge.addr.checked_add(skip as u64)?, len)
    }

    /// Writes `payload` to a list, from `skip` on. False if the list is too short or names memory
    /// that `pd` may not write; a part may have been written then.
    #[must_use]
    #[inline]
    pub(super) fn scatter(&self, pd: PdId, list: &[ibv_sge], skip: u32, payload: Source<'_>, origin: Origin) -> bool {
        match list {
            // The common case: the payload goes to the start of a single entry.
            [sge] if skip == 0 && !payload.is_empty() && payload.len() <= sge.length as usize => {
                let target = self.local_target(pd, sge, 0, payload.len());
                target.map(|target| target.write_from(payload, origin)).is_some()
            }
            _ => self.scatter_in_pieces(pd, list, skip as usize, payload, origin),
        }
    }

    fn scatter_in_pieces(
        &self,
        pd: PdId,
        list: &[ibv_sge],
        mut skip: usize,
        payload: Source<'_>,
        origin: Origin,
    ) -> bool {
        let mut done = 0;
        for sge in list {
            if done == payload.len() {
                break;
            }
            let whole = sge.length as usize;
            if skip >= whole {
                skip -= whole;
                continue;
            }
            let take = (whole - skip).min(payload.len() - done);
            let Some(target) = self.local_target(pd, sge, skip, take) else { return false };
            let Some(part) = payload.part(done, take) else { return false };
            target.write_from(part, origin);
            done += take;
            skip = 0;
        }
        done == payload.len()
    }

    /// Returns the bytes of a list from `skip` on that lie in one entry, at most `len`, if `pd` may
    /// write them.
    pub(super) fn next_target(&self, pd: PdId, list: &[ibv_sge], skip: u32, len: usize) -> Option<Target<'_>> {
        let (sge, skip, left) = entry_at(list, skip as usize)?;
        self.local_target(pd, sge, skip, len.min(left))
    }

    #[inline(always)]
    pub(super) fn local_target(&self, pd: PdId, sge: &ibv_sge, skip: usize, len: usize) -> Option<Target<'_>> {
        let mr = self.usable(sge.lkey, pd, LOCAL_WRITE)?;
        mr.region.target(sge.addr.checked_add(skip as u64)?, len)
    }

    /// Returns the bytes that a request with `key` may write.
    #[inline(always)]
    pub(super) fn target(&self, key: u32, pd: PdId, rights: u32, addr: u64, len: usize) -> Option<Target<'_>> {
        self.usable(key, pd, rights)?.region.target(addr, len)
    }

    /// Returns the bytes that a request with `key` may read.
    #[inline(always)]
    pub(super) fn source(&self, key: u32, pd: PdId, rights: u32, addr: u64, len: usize) -> Option<Source<'_>> {
        self.usable(key, pd, rights)?.region.source(addr, len)
    }
}

/// Returns the entry of a list that holds the byte at `skip`, the byte's offset in the entry, and
/// the number of bytes from there to the entry's end.
pub(super) fn entry_at(list: &[ibv_sge], mut skip: usize) -> Option<(&ibv_sge, usize, usize)> {
    for sge in list {
        let whole = sge.length as usize;
        if skip < whole {
            return Some((sge, skip, whole - skip));
        }
        skip -= whole;
    }
    None
}

/// Returns the right that an operation needs from the queue pair and the region.
pub(super) const fn right_of(op: Op) -> u32 {
    match op {
        Op::Send => 0,
        Op::Write => REMOTE_WRITE,
        Op::Read => REMOTE_READ,
        Op::CompareSwap | Op::FetchAdd => REMOTE_ATOMIC,
    }
}

/// The right that a local list needs to be written to.
pub(super) const LOCAL_WRITE: u32 = rdma_sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
/// The right that a remote write needs.
pub(super) const REMOTE_WRITE: u32 = rdma_sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
/// The right that a remote read needs.
pub(super) const REMOTE_READ: u32 = rdma_sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
/// The right that a remote atomic needs.
pub(super) const REMOTE_ATOMIC: u32 = rdma_sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// The protection domains, each with the number of objects in it.
#[derive(Debug, Default)]
pub(super) struct PdTable {
    users: Vec<Option<u32>>,
}

impl PdTable {
    pub(super) fn alloc(&mut self) -> Result<PdId, Errno> {
        let index = self.users.iter().position(Option::is_none).unwrap_or(self.users.len());
        let id = u32::try_from(index).ok().filter(|id| *id < MAX_PD).ok_or(Errno::NOMEM)?;
        if index == self.users.len() {
            self.users.push(None);
        }
        self.users[index] = Some(0);
        Ok(PdId(id))
    }

    pub(super) fn dealloc(&mut self, pd: PdId) -> Result<(), Errno> {
        match self.users.get_mut(pd.0 as usize) {
            Some(slot @ Some(0)) => {
                *slot = None;
                Ok(())
            }
            Some(Some(_)) => Err(Errno::BUSY),
            _ => Err(Errno::INVAL),
        }
    }

    /// Checks that a domain exists.
    pub(super) fn check(&self, pd: PdId) -> Result<(), Errno> {
        self.users.get(pd.0 as usize).copied().flatten().map(drop).ok_or(Errno::INVAL)
    }

    /// Counts one more object in a domain.
    pub(super) fn enter(&mut self, pd: PdId) -> Result<(), Errno> {
        let users = self.users.get_mut(pd.0 as usize).and_then(Option::as_mut).ok_or(Errno::INVAL)?;
        *users += 1;
        Ok(())
    }

    /// Counts one fewer object in a domain.
    pub(super) fn leave(&mut self, pd: PdId) {
        if let Some(Some(users)) = self.users.get_mut(pd.0 as usize) {
            *users = users.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of a table's first registrations.
    fn keys(seed: [u64; 2]) -> Vec<u32> {
        let mut table = MrTable::new(SipHash::new(seed), false);
        (0..256).map(|_| table.new_key().unwrap()).collect()
    }

    /// Registers an empty region, as far as the table of keys goes.
    fn take(table: &mut MrTable) -> Option<u32> {
        let key = table.new_key().ok()?;
        let region = Region::empty(0);
        table.slots[(key >> TAG_BITS) as usize] =
            Some(Mr { key, pd: PdId(0), region, backing: None, granted: Vec::new(), foreign: None });
        Some(key)
    }

    #[test]
    fn secret_keys_have_random_indices_of_their_own() {
        let mut table = MrTable::new(SipHash::new([1, 2]), true);
        let mut keys: Vec<u32> = (0..3000).map(|_| take(&mut table).unwrap()).collect();
        assert_eq!(table.slots.len(), 1 << 14, "at most a quarter is in use");
        let first: Vec<u32> = keys[..1000].iter().map(|key| key >> TAG_BITS).collect();
        let (low, high) = (first.iter().filter(|index| **index < 2048).count(), first.len());
        assert!((400..600).contains(&low), "{low} of {high} indices lie in the lower half");
        let rising = first.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((400..600).contains(&rising), "{rising}");
        keys.sort_unstable_by_key(|key| key >> TAG_BITS);
        assert!(keys.windows(2).all(|pair| pair[0] >> TAG_BITS != pair[1] >> TAG_BITS));
        assert!(keys.iter().all(|key| key & 0xfff != 0 && table.find(*key).is_some()));
        for key in keys {
            table.remove(key).unwrap();
            assert!(table.find(key).is_none());
        }
        assert_eq!(table.free.len(), table.slots.len());
    }

    #[test]
    fn secret_keys_run_out_like_others() {
        let mut table = MrTable::new(SipHash::new([5, 6]), true);
        assert_eq!((0..).take_while(|_| take(&mut table).is_some()).count(), MAX_MR as usize);
        let key = table.slots[77].as_ref().unwrap().key;
        table.remove(key).unwrap();
        let next = take(&mut table).unwrap();
        assert!(next != key && next >> TAG_BITS == 77 && take(&mut table).is_none());
    }

    #[test]
    fn tags_depend_on_both_halves_of_the_seed() {
        let first = keys([1, 2]);
        assert_eq!(first, keys([1, 2]));
        for other in [[2, 2], [1, 3]] {
            let same = first.iter().zip(keys(other)).filter(|(one, other)| **one == *other).count();
            assert!(same < 8, "{same} of 256 tags agree, where one in 4096 does by chance");
        }
        assert!(first.iter().zip(0..).all(|(key, index)| key >> TAG_BITS == index && key & 0xfff != 0));
    }

    #[test]
    fn a_key_does_not_name_the_next_region_at_its_index() {
        let mut table = MrTable::new(SipHash::new([3, 4]), false);
        let mut last = table.new_key().unwrap();
        for _ in 0..10_000 {
            table.free.push(last);
            let next = table.new_key().unwrap();
            assert!(next != last && next >> TAG_BITS == last >> TAG_BITS);
            last = next;
        }
    }
}
