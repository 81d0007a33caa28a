use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::mr::RegisterOptions;
use crate::pd::ProtectionDomain;
use crate::testing;
use crate::types::RemoteAccess;

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

/// An arena, and a region of a part of it.
type Arena = Arc<[std::sync::atomic::AtomicU64]>;

fn arena() -> Arena {
    (0..512).map(std::sync::atomic::AtomicU64::new).collect()
}

fn register(pd: &ProtectionDomain, arena: &Arena, range: Range<usize>) -> ExposedRegion {
    let at = NonNull::from(&arena[range.start]).cast();
    let options = RegisterOptions::new().remote_access(RemoteAccess::READ);
    // SAFETY: register_raw requires memory that is valid while the Arc lives, initialised, and
    // accessed in atomic words.
    unsafe { pd.register_raw(at, range.len() * 8, Arc::clone(arena), &options) }.unwrap()
}

#[test]
fn a_range_is_found_in_the_region_that_holds_all_of_it() {
    let (pd, arena) = (domain(), arena());
    let start = arena.as_ptr().addr() as u64;
    let map = RegionMap::new();
    // In no order; the first two are adjacent.
    for range in [64..128, 0..64, 300..301] {
        map.insert(register(&pd, &arena, range)).unwrap();
    }
    let found = |offset: u64, len| map.find(start + offset, len).map(|slice| (slice.address() - start, slice.len()));
    assert_eq!(found(0, 512), Some((0, 512)));
    assert_eq!(found(511, 1), Some((511, 1)));
    assert_eq!(found(512, 8), Some((512, 8)));
    assert_eq!(found(1000, 24), Some((1000, 24)));
    assert_eq!(found(2400, 8), Some((2400, 8)));
    // No request spans two regions, adjacent or not.
    let outside = [(511, 2), (1000, 25), (1024, 1), (2399, 1), (2400, 9), (2408, 0), (4096, 1), (0, usize::MAX)];
    for (offset, len) in outside {
        assert_eq!(found(offset, len), None, "{offset} {len}");
    }
    assert_eq!(found(100, 0), Some((100, 0)));
    assert!(map.find(0, 1).is_none() && map.find(u64::MAX, usize::MAX).is_none());
    assert_eq!(map.span(start + 700), Some((start + 512, 512)));
    let remote = map.find_remote(start + 520, 16).unwrap();
    assert_eq!((remote.len(), map.len()), (16, 3));
}

#[test]
fn overlaps_come_back_and_regions_too() {
    let (pd, arena) = (domain(), arena());
    let start = arena.as_ptr().addr() as u64;
    let map = RegionMap::new();
    map.insert(register(&pd, &arena, 100..200)).unwrap();
    for range in [100..200, 99..101, 199..201, 150..151, 0..512] {
        let refused = map.insert(register(&pd, &arena, range)).unwrap_err();
        assert_eq!((refused.error.verb(), refused.error.kind()), (Verb::MapRegion, ErrorKind::InUse));
        refused.object.deregister::<crate::RawOwner<Arena>>().unwrap();
    }
    assert_eq!(testing::live("mr"), 1);
    let slice = map.find(start + 800, 8).unwrap();
    assert!(map.remove(start + 799).is_none() && map.remove(start + 1600).is_none());
    let region = map.remove(start + 1599).unwrap();
    assert!(map.is_empty() && map.find(start + 800, 8).is_none());
    // The slice keeps the region registered.
    let failed = region.deregister::<crate::RawOwner<Arena>>().unwrap_err();
    assert_eq!((failed.error.kind(), slice.load_u64(0, Ordering::Relaxed).unwrap()), (ErrorKind::InUse, 100));
    drop(slice);
    map.insert(failed.object).unwrap();
    map.insert(register(&pd, &arena, 0..8)).unwrap();
    let regions = map.drain();
    assert_eq!((regions.len(), regions[0].address(), testing::live("mr")), (2, start, 2));
    assert!(map.is_empty());
}

#[test]
fn shared_regions_and_sources_are_found_too() {
    let pd = domain();
    let region = Arc::new(pd.allocate_exposed(4096, RemoteAccess::READ).unwrap());
    let map = RegionMap::new();
    map.insert(Arc::clone(&region)).unwrap();
    map.find(region.address() + 8, 8).unwrap().store_u64(0, 7, Ordering::Relaxed).unwrap();
    drop(map);
    assert_eq!(region.load_u64(8, Ordering::Relaxed).unwrap(), 7);

    let map = RegionMap::new();
    let source = pd.register_source(vec![1_u8, 2, 3, 4], RemoteAccess::empty()).unwrap();
    let at = source.address();
    // Of a part, the map has the part.
    map.insert(source.slice(1..3).unwrap()).unwrap();
    assert_eq!(map.find(at + 1, 2).unwrap()[..], [2, 3]);
    assert!(map.find(at, 1).is_none() && map.find(at + 3, 1).is_none());
}

#[test]
fn lookups_go_on_while_regions_come_and_go() {
    let (pd, arena) = (domain(), arena());
    let start = arena.as_ptr().addr() as u64;
    let map = RegionMap::new();
    map.insert(register(&pd, &arena, 0..64)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(map.find(start + 8, 8).unwrap().load_u64(0, Ordering::Relaxed).unwrap(), 1);
                    if let Some(slice) = map.find(start + 800, 8) {
                        assert_eq!(slice.load_u64(0, Ordering::Relaxed).unwrap(), 100);
                    }
                    thread::yield_now();
                }
            });
        }
        for _ in 0..if cfg!(miri) { 5 } else { 300 } {
            map.insert(register(&pd, &arena, 100..200)).unwrap();
            let region = map.remove(start + 800).expect("nobody else removes it");
            // A lookup may have a slice of it for a moment.
            drop(region);
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(map);
    assert_eq!(Arc::strong_count(&arena), 1, "every region has ended");
}
