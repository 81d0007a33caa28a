//! Two connected queue pairs with registered memory at both sides.

use super::world::*;
use crate::engine::*;

/// A connected pair, with registered memory at both sides.
pub(super) struct Pair {
    pub(super) world: World,
    pub(super) ends: [End; 2],
    pub(super) keys: [u32; 2],
    pub(super) here: Memory,
    pub(super) there: Memory,
}

impl Pair {
    /// A reliable connection between queue pairs of these nodes.
    pub(super) fn new(ends: [usize; 2]) -> Self {
        Self::with(ends, ServiceType::Rc, |_| {})
    }

    /// A connection of a service, with attributes that `attrs` changes.
    pub(super) fn with(ends: [usize; 2], service: ServiceType, attrs: impl Fn(&mut ModifyQp)) -> Self {
        let (here, there) = (Memory::new(1 << 16), Memory::new(1 << 16));
        let mut world = World::new();
        let pair = world.connect_with(ends, |_, init| init.service = service, |_, change| attrs(change));
        let keys = [world.register(ends[0], &here, ALL), world.register(ends[1], &there, ALL)];
        Self { world, ends: pair, keys, here, there }
    }

    /// Returns the states of both sides.
    pub(super) fn states(&self) -> [QpState; 2] {
        self.ends.map(|end| self.world.state(end))
    }
}
