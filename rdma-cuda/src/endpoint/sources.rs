//! The registrations of the memories that a side sends from.

use std::sync::Arc;

use rdma::{ExposedSlice, ProtectionDomain, RemoteAccess};

use crate::error::Result;
use crate::memory::GpuSlice;
use crate::order::Ready;
use crate::path::Preference;
use crate::region::GpuRegion;

/// Memories that stay registered.
const MOST: usize = 16;

/// The regions of the memories that were sent from last.
pub(super) struct Sources {
    pd: ProtectionDomain,
    preference: Preference,
    /// The last is the one that was used last.
    regions: Vec<GpuRegion>,
}

impl Sources {
    pub(super) fn new(pd: &ProtectionDomain, preference: Preference) -> Self {
        Self { pd: pd.clone(), preference, regions: Vec::new() }
    }

    /// The memory of a request that sends a slice; `None` if the NIC cannot access the memory, and
    /// the preference allows it to be staged.
    pub(super) fn source(&mut self, slice: &Ready<GpuSlice<u8>>) -> Result<Option<ExposedSlice<rdma::Gpu>>> {
        let memory = slice.get().memory();
        let region = match self.regions.iter().position(|region| Arc::ptr_eq(region.memory(), memory)) {
            Some(place) => self.regions.remove(place),
            None => GpuRegion::register(&self.pd, Arc::clone(memory), RemoteAccess::empty(), self.preference)?,
        };
        let source = if region.path().is_direct() { Some(region.source(slice)?) } else { None };
        if self.regions.len() == MOST {
            self.regions.remove(0);
        }
        self.regions.push(region);
        Ok(source)
    }
}
