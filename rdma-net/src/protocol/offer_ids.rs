//! The numbers of the offers of one side that are open.

use super::MAX_OFFERS;

/// A set of numbers, at most [`MAX_OFFERS`], in no order. It lies in the connection's state, so an
/// offer allocates nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct OfferIds {
    ids: [u32; MAX_OFFERS],
    len: usize,
}

impl OfferIds {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.ids[..self.len].contains(&id)
    }

    /// Adds a number. Returns false if the set has it, or is full.
    pub(super) fn insert(&mut self, id: u32) -> bool {
        if self.len == MAX_OFFERS || self.contains(id) {
            return false;
        }
        self.ids[self.len] = id;
        self.len += 1;
        true
    }

    /// Removes a number. Returns whether the set had it.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        let Some(at) = self.ids[..self.len].iter().position(|known| *known == id) else { return false };
        self.len -= 1;
        self.ids[at] = self.ids[self.len];
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn the_set_is_that_of_the_standard_library_up_to_its_size(
            steps in prop::collection::vec((any::<bool>(), 0..24_u32), 0..200),
        ) {
            let (mut ids, mut known) = (OfferIds::default(), BTreeSet::new());
            for (inserts, id) in steps {
                if inserts {
                    prop_assert_eq!(ids.insert(id), known.len() < MAX_OFFERS && known.insert(id));
                } else {
                    prop_assert_eq!(ids.remove(id), known.remove(&id));
                }
                prop_assert_eq!((ids.len(), ids.is_empty()), (known.len(), known.is_empty()));
                prop_assert!((0..24).all(|id| ids.contains(id) == known.contains(&id)));
            }
        }
    }
}
