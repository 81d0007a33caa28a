//! The queue pairs of an engine, by their numbers.

use super::limits::QPS_PER_SLOT;
use super::service::QueuePair;
use super::tables::Tables;
use super::types::{Errno, QpId, QpInit};

/// An entry of the table, with or without a queue pair.
#[derive(Debug, Default)]
struct Place {
    qp: Option<Box<QueuePair>>,
    /// Survives the queue pair, so that frames for it are not taken for the next one with the same
    /// number.
    incarnation: u8,
}

/// All queue pairs. A queue pair's index is its slot's ordinal * 4096 + the lower 12 bits of its
/// number.
#[derive(Debug)]
pub(super) struct QpTable {
    places: Vec<Place>,
    /// Index at which the search for a free number starts, so that a number which was given back is
    /// reused as late as possible.
    cursor: usize,
    count: usize,
    first_incarnation: u8,
}

impl QpTable {
    pub(super) fn new(seed: u64) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "any bits will do")]
        let mut this = Self {
            places: Vec::new(),
            cursor: seed as usize % QPS_PER_SLOT as usize,
            count: 0,
            first_incarnation: (seed >> 32) as u8,
        };
        this.add_slot();
        this
    }

    pub(super) fn add_slot(&mut self) {
        let incarnation = self.first_incarnation;
        let len = self.places.len() + QPS_PER_SLOT as usize;
        self.places.resize_with(len, || Place { qp: None, incarnation });
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    pub(super) fn has_free_number(&self) -> bool {
        self.count < self.places.len()
    }

    /// Creates a queue pair with the next free number.
    pub(super) fn create(&mut self, init: &QpInit, tables: &Tables) -> Result<(QpId, u32), Errno> {
        let len = self.places.len();
        let index = (0..len)
            .map(|step| (self.cursor + step) % len)
            .find(|index| self.places[*index].qp.is_none())
            .ok_or(Errno::NOMEM)?;
        let id = QpId(u32::try_from(index).map_err(|_| Errno::NOMEM)?);
        let slot = tables.slots[index / QPS_PER_SLOT as usize];
        let qpn = u32::from(slot.0) << 12 | (id.0 % QPS_PER_SLOT);
        let place = &mut self.places[index];
        place.qp = Some(Box::new(QueuePair::new(id, qpn, init, place.incarnation, tables)?));
        self.cursor = (index + 1) % len;
        self.count += 1;
        Ok((id, qpn))
    }

    pub(super) fn get(&self, id: QpId) -> Result<&QueuePair, Errno> {
        self.places.get(id.0 as usize).and_then(|place| place.qp.as_deref()).ok_or(Errno::INVAL)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: QpId) -> Result<&mut QueuePair, Errno> {
        self.places.get_mut(id.0 as usize).and_then(|place| place.qp.as_deref_mut()).ok_or(Errno::INVAL)
    }

    pub(super) fn remove(&mut self, id: QpId) {
        if let Some(place) = self.places.get_mut(id.0 as usize) {
            if let Some(qp) = place.qp.take() {
                place.incarnation = qp.incarnation().wrapping_add(1);
                self.count -= 1;
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.places.iter().filter_map(|place| place.qp.as_deref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.places.iter_mut().filter_map(|place| place.qp.as_deref_mut())
    }
}
