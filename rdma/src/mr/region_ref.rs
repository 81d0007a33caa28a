//! References to a region, the last of which returns a chunk to its pool.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Region;
use super::pool::Home;
use crate::handle::Handle;

/// A counted reference of a [`Segment`](super::Segment) to its region.
///
/// The last reference to a region of its own deregisters it. The last one to a chunk of a
/// [`Pool`](super::Pool) returns the chunk to the pool.
pub(crate) struct RegionRef(ManuallyDrop<Arc<Handle<Region>>>);

impl From<Arc<Handle<Region>>> for RegionRef {
    #[inline]
    fn from(region: Arc<Handle<Region>>) -> Self {
        Self(ManuallyDrop::new(region))
    }
}

impl RegionRef {
    /// The reference without its way home: a chunk of a pool must not be given up like this.
    pub(super) fn into_arc(self) -> Arc<Handle<Region>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: ManuallyDrop::take requires a value that is not used again: `this` is not
        // dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl Clone for RegionRef {
    #[inline]
    fn clone(&self) -> Self {
        Arc::clone(&self.0).into()
    }
}

impl Deref for RegionRef {
    type Target = Arc<Handle<Region>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for RegionRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: ManuallyDrop::take requires a value that is not used again: this is its drop.
        let region = unsafe { ManuallyDrop::take(&mut self.0) };
        if region.home.is_some() {
            give_up_chunk(region);
        }
    }
}

/// Returns the chunk to its pool, if this is its last reference.
#[inline(never)]
fn give_up_chunk(region: Arc<Handle<Region>>) {
    if Arc::strong_count(&region) == 1 {
        // The count is 1 and nothing is weak, so no other thread has a reference. Acquire: what the
        // threads that gave theirs up did with the memory comes before its next use.
        fence(Ordering::Acquire);
        Home::put(region);
    } else if let Some(region) = Arc::into_inner(region) {
        // Two references were given up at once, and this was the last one after all.
        Home::put(Arc::new(region));
    }
}
