//! What an engine publishes to its peers, so that they may do one-sided operations by themselves.

use super::memory::{Area, Region};
use super::types::PdId;

/// An engine's own directory, or none.
#[derive(Debug)]
pub(super) struct Directory {
    area: Option<Area>,
}

impl Directory {
    pub(super) const fn new(area: Option<Area>) -> Self {
        Self { area }
    }
    pub(super) fn publish_region(&self, _index: u32, _key: u32, _pd: PdId, _region: &Region, _shared: bool) {
        let _ = &self.area;
    }
    pub(super) fn withdraw_region(&self, _index: u32) {}
}
