//! Datagrams to processes to which there is no link yet: they wait for it, in bounded numbers, so that the first words to a new
//! peer are not lost. Who cannot be reached is left alone for a while, as every attempt costs a system call and more.

use super::frame::Header;
use super::types::Slot;

/// So many wait for one process,
const MAX_FOR_ONE: usize = 64;
/// and so many in all.
const MAX_IN_ALL: usize = 256;
/// So many wait where one that is for a group may wait too. Anybody can say that processes are in a group that nobody reaches: what
/// goes to them leaves room for what does not.
const MAX_WITH_GROUPS: usize = MAX_IN_ALL / 2;
/// How long a process that cannot be reached is left alone, in nanoseconds: twice as long each time, up to 16 times.
const SHUN: u64 = 100_000_000;
const MAX_DOUBLINGS: u8 = 4;

/// A datagram that waits.
#[derive(Debug)]
struct Parcel {
    slot: Slot,
    header: Header,
    payload: Box<[u8]>,
}

/// What waits, and who is left alone.
#[derive(Debug)]
pub(super) struct Parcels {
    waiting: Vec<Parcel>,
    /// A bit for each slot.
    shunned: [u64; 64],
    /// How often in a row each could not be reached.
    failures: Box<[u8]>,
}

impl Parcels {
    pub(super) fn new() -> Self {
        Self { waiting: Vec::new(), shunned: [0; 64], failures: vec![0; 1 << 12].into_boxed_slice() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn is_shunned(&self, slot: Slot) -> bool {
        self.shunned[usize::from(slot.0 >> 6 & 63)] >> (slot.0 & 63) & 1 == 1
    }

    /// Whether one more for this process would be taken; `is_for_group`: as one of a group.
    pub(super) fn has_room(&self, slot: Slot, is_for_group: bool) -> bool {
        let in_all = if is_for_group { MAX_WITH_GROUPS } else { MAX_IN_ALL };
        let for_it = || self.waiting.iter().filter(|parcel| parcel.slot == slot).count();
        !self.is_shunned(slot) && self.waiting.len() < in_all && for_it() < MAX_FOR_ONE
    }

    /// Takes one in, if there is room.
    pub(super) fn add(&mut self, slot: Slot, header: Header, payload: Box<[u8]>) {
        if self.has_room(slot, false) {
            self.waiting.push(Parcel { slot, header, payload });
        }
    }

    /// A process has been reached: takes out what waited for it, in order.
    pub(super) fn take(&mut self, slot: Slot) -> impl Iterator<Item = (Header, Box<[u8]>)> + use<> {
        self.failures[usize::from(slot.0 & 0xfff)] = 0;
        let (taken, left) = core::mem::take(&mut self.waiting).into_iter().partition(|parcel| parcel.slot == slot);
        self.waiting = left;
        let taken: Vec<Parcel> = taken;
        taken.into_iter().map(|parcel| (parcel.header, parcel.payload))
    }

    /// A process cannot be reached: what waited for it is lost. If something did, the process is left alone until
    /// [`forgive`](Self::forgive), which is due after so many nanoseconds.
    pub(super) fn lose(&mut self, slot: Slot) -> Option<u64> {
        let before = self.waiting.len();
        self.waiting.retain(|parcel| parcel.slot != slot);
        if self.waiting.len() == before {
            return None;
        }
        self.shunned[usize::from(slot.0 >> 6 & 63)] |= 1 << (slot.0 & 63);
        let failures = &mut self.failures[usize::from(slot.0 & 0xfff)];
        let nanos = SHUN << *failures;
        *failures = (*failures + 1).min(MAX_DOUBLINGS);
        Some(nanos)
    }

    /// A process may be tried again.
    pub(super) fn forgive(&mut self, slot: Slot) {
        self.shunned[usize::from(slot.0 >> 6 & 63)] &= !(1 << (slot.0 & 63));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(parcels: &mut Parcels, slot: u16, byte: u8) {
        parcels.add(Slot(slot), Header::default(), Box::new([byte]));
    }

    #[test]
    fn what_waits_is_bounded_and_keeps_its_order() {
        let mut parcels = Parcels::new();
        for slot in 1..=8 {
            for byte in 0..100 {
                add(&mut parcels, slot, byte);
            }
        }
        let of_one: Vec<u8> = parcels.take(Slot(2)).map(|(_, payload)| payload[0]).collect();
        assert_eq!(of_one, (0..64).collect::<Vec<u8>>());
        assert!(parcels.has_room(Slot(2), false) && !parcels.has_room(Slot(2), true));
        assert_eq!(parcels.waiting.len(), MAX_IN_ALL - MAX_FOR_ONE);
        assert_eq!(parcels.take(Slot(8)).count(), 0);
        add(&mut parcels, 8, 0);
        assert_eq!(parcels.take(Slot(8)).count(), 1);
    }

    #[test]
    fn who_cannot_be_reached_is_left_alone_for_a_while() {
        let mut parcels = Parcels::new();
        assert_eq!(parcels.lose(Slot(4094)), None, "nobody asked for it");
        add(&mut parcels, 63, 0);
        let mut times = Vec::new();
        for _ in 0..9 {
            parcels.forgive(Slot(4094));
            add(&mut parcels, 4094, 0);
            times.push(parcels.lose(Slot(4094)).unwrap() / SHUN);
        }
        assert_eq!(times, [1, 2, 4, 8, 16, 16, 16, 16, 16]);
        assert!(!parcels.has_room(Slot(4094), false) && parcels.has_room(Slot(63), true));
        parcels.forgive(Slot(4094));
        assert!(parcels.has_room(Slot(4094), true));
        assert_eq!((parcels.take(Slot(63)).count(), parcels.take(Slot(4094)).count()), (1, 0));
        add(&mut parcels, 4094, 0);
        assert_eq!(parcels.lose(Slot(4094)), Some(SHUN), "it had been reached");
    }
}
