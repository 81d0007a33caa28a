//! The registered region that holds an address.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread;

use super::exposed::{ExposedRegion, ExposedSlice};
use super::memory::Placement;
use super::pool::{Padded, seat_number};
use super::remote::RemoteSlice;
use super::source::SourceSlice;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};

mod sealed {
    use super::{Arc, ExposedRegion, Placement, SourceSlice};

    pub trait Sealed {}
    impl<M: Placement> Sealed for ExposedRegion<M> {}
    impl Sealed for SourceSlice {}
    impl<R: Sealed> Sealed for Arc<R> {}
}

/// Registered memory that can be in a [`RegionMap`]: an [`ExposedRegion`], a [`SourceSlice`], or an
/// `Arc` of one.
pub trait MappedRegion: sealed::Sealed + Send + Sync {
    /// A part of the memory, for a request.
    type Slice;

    #[doc(hidden)]
    fn span(&self) -> Range<u64>;
    #[doc(hidden)]
    fn part(&self, range: Range<usize>) -> Result<Self::Slice>;
    #[doc(hidden)]
    fn remote_part(&self, range: Range<usize>) -> Result<RemoteSlice>;
}

impl<M: Placement> MappedRegion for ExposedRegion<M> {
    type Slice = ExposedSlice<M>;

    fn span(&self) -> Range<u64> {
        self.address()..self.address() + self.len() as u64
    }

    fn part(&self, range: Range<usize>) -> Result<ExposedSlice<M>> {
        self.slice(range)
    }

    fn remote_part(&self, range: Range<usize>) -> Result<RemoteSlice> {
        self.remote(range)
    }
}

impl MappedRegion for SourceSlice {
    type Slice = Self;

    fn span(&self) -> Range<u64> {
        let start = self.as_ptr().addr() as u64;
        start..start + self.len() as u64
    }

    fn part(&self, range: Range<usize>) -> Result<Self> {
        self.slice(range)
    }

    fn remote_part(&self, range: Range<usize>) -> Result<RemoteSlice> {
        self.remote(range)
    }
}

impl<R: MappedRegion> MappedRegion for Arc<R> {
    type Slice = R::Slice;

    fn span(&self) -> Range<u64> {
        R::span(self)
    }

    fn part(&self, range: Range<usize>) -> Result<R::Slice> {
        R::part(self, range)
    }

    fn remote_part(&self, range: Range<usize>) -> Result<RemoteSlice> {
        R::remote_part(self, range)
    }
}

/// Finds the registered region that holds an address: what a transfer engine keeps of memory that
/// others own.
///
/// The map registers and frees nothing: it holds the regions that it is given, refuses overlaps,
/// and gives them back. Regions of one memory on several devices are in several maps.
///
/// Looking up is cheap and concurrent: a thread reads a lock of its own and searches a sorted
/// table, which other threads read too. A change makes a new table.
///
/// # Examples
///
/// ```
/// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
/// use rdma::{RegionMap, RemoteAccess};
///
/// let map = RegionMap::new();
/// let table = pd.allocate_exposed(1 << 16, RemoteAccess::READ)?;
/// let at = table.address();
/// map.insert(table)?;
///
/// // An address that the engine was told to send from.
/// let slice = map.find(at + 4096, 512).expect("registered");
/// assert_eq!(slice.len(), 512);
/// // The same range for a peer.
/// let key = map.find_remote(at + 4096, 512).expect("registered").to_bytes();
/// assert!(map.find(at + (1 << 16) - 1, 2).is_none(), "reaches behind the region");
/// # let _ = key;
///
/// drop(slice);
/// let table = map.remove(at).expect("was inserted");
/// table.revoke()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegionMap<R: MappedRegion = ExposedRegion> {
    /// A reference to the same table for each thread that looks, on a line of its own.
    tables: Box<[Place<R>]>,
    /// Held while the table changes.
    changes: Mutex<()>,
}

type Place<R> = Padded<RwLock<Arc<Table<R>>>>;

/// By address. Spans do not overlap.
type Table<R> = Vec<Entry<R>>;

struct Entry<R> {
    span: Range<u64>,
    region: Arc<R>,
}

impl<R> Clone for Entry<R> {
    fn clone(&self) -> Self {
        Self { span: self.span.clone(), region: Arc::clone(&self.region) }
    }
}

impl<R: MappedRegion> Default for RegionMap<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: MappedRegion> RegionMap<R> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from).next_power_of_two().min(64);
        let table = Arc::new(Table::new());
        let tables = (0..threads).map(|_| Padded(RwLock::new(Arc::clone(&table)))).collect();
        Self { tables, changes: Mutex::new(()) }
    }

    /// Adds a region.
    ///
    /// # Errors
    ///
    /// With the region: `InUse` if it overlaps one that is in the map.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use std::sync::Arc;
    ///
    /// use rdma::{RegionMap, RemoteAccess};
    ///
    /// let weights: Arc<[f32]> = vec![0.5; 4096].into();
    /// let map = RegionMap::new();
    /// map.insert(pd.register_source(Arc::clone(&weights), RemoteAccess::empty())?)?;
    /// let again = pd.register_source(Arc::clone(&weights), RemoteAccess::empty())?;
    /// let refused = map.insert(again).unwrap_err();
    /// assert_eq!(refused.error.kind(), rdma::ErrorKind::InUse);
    ///
    /// let at = weights[1000..].as_ptr().addr() as u64;
    /// assert_eq!(map.find(at, 4).expect("registered").elements::<f32>()?, [0.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, region: R) -> Result<(), Failed<R>> {
        let span = region.span();
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = Table::clone(&self.present());
        let place = table.partition_point(|entry| entry.span.end <= span.start);
        if table.get(place).is_some_and(|next| next.span.start < span.end) {
            return Err(Failed::new(Error::new(Verb::MapRegion, ErrorKind::InUse), region));
        }
        table.insert(place, Entry { span, region: Arc::new(region) });
        self.replace(table);
        Ok(())
    }

    /// Takes out the region that holds an address.
    ///
    /// Slices of it stay valid, and keep it registered.
    pub fn remove(&self, address: u64) -> Option<R> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = Table::clone(&self.present());
        let place = table.iter().position(|entry| entry.span.contains(&address))?;
        let entry = table.remove(place);
        self.replace(table);
        // Every other table with the entry was replaced, and is gone: it is used under its lock.
        Arc::into_inner(entry.region)
    }

    /// Takes out all regions, by address.
    pub fn drain(&self) -> Vec<R> {
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let table = Table::clone(&self.present());
        self.replace(Table::new());
        table.into_iter().filter_map(|entry| Arc::into_inner(entry.region)).collect()
    }

    /// The `len` bytes at an address, if they lie in one region.
    #[must_use]
    pub fn find(&self, address: u64, len: usize) -> Option<R::Slice> {
        self.look_up(address, len, |region, range| region.part(range).ok())
    }

    /// The `len` bytes at an address for a peer, if they lie in one region.
    ///
    /// The peer has the rights that the region was registered with.
    #[must_use]
    pub fn find_remote(&self, address: u64, len: usize) -> Option<RemoteSlice> {
        self.look_up(address, len, |region, range| region.remote_part(range).ok())
    }

    /// The region that holds an address: its first address and its length.
    #[must_use]
    pub fn span(&self, address: u64) -> Option<(u64, usize)> {
        let table = self.present();
        let Range { start, end } = holder(&table, address)?.span;
        Some((start, usize::try_from(end - start).ok()?))
    }

    /// The number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present().len()
    }

    /// Whether there is no region.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls a function of this crate with the region that holds the whole range.
    fn look_up<S>(&self, address: u64, len: usize, part: impl FnOnce(&R, Range<usize>) -> Option<S>) -> Option<S> {
        let table = self.present();
        let Entry { span, region } = holder(&table, address)?;
        let start = usize::try_from(address - span.start).ok()?;
        // A range that reaches behind the region is out of its bounds.
        part(region, start..start.checked_add(len)?)
    }

    /// The table, by this thread's lock.
    fn present(&self) -> RwLockReadGuard<'_, Arc<Table<R>>> {
        let own = seat_number() & (self.tables.len() - 1);
        self.tables[own].0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the table for all threads.
    fn replace(&self, table: Table<R>) {
        let table = Arc::new(table);
        for place in &self.tables {
            let old =
                std::mem::replace(&mut *place.0.write().unwrap_or_else(PoisonError::into_inner), Arc::clone(&table));
            drop(old);
        }
    }
}

/// The entry that holds an address.
fn holder<R>(table: &Table<R>, address: u64) -> Option<&Entry<R>> {
    let place = table.partition_point(|entry| entry.span.end <= address);
    table.get(place).filter(|entry| entry.span.start <= address)
}

impl<R: MappedRegion> fmt::Debug for RegionMap<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.present().iter().map(|entry| &entry.span)).finish()
    }
}

#[cfg(test)]
mod tests;
