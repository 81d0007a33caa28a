use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{ErrorKind, Verb};
use crate::testing;
use crate::types::RemoteAccess;

mod options;
mod owners;
mod scoped;
mod sources;

#[test]
fn memory_that_the_device_does_not_release_comes_back_registered() {
    let pd = testing::context().alloc_pd().unwrap();
    let mut buffer = pd.allocate(64).unwrap();
    buffer[0] = 7;
    testing::fail("dereg_mr", libc::EBUSY);
    let failed = buffer.into_memory().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    assert_eq!(failed.object.into_memory().unwrap()[0], 7);

    let region = pd.allocate_exposed(64, RemoteAccess::READ).unwrap();
    testing::fail("dereg_mr", libc::EBUSY);
    let failed = region.revoke().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    failed.region.unwrap().revoke().unwrap();
    assert_eq!(testing::live("mr"), 0);
}

#[test]
#[cfg(not(miri))] // which has no memfd
fn a_segment_is_exposed_but_never_lent() {
    let pd = testing::context().alloc_pd().unwrap();
    let segment = Arc::new(rdma_mem::Segment::new(64).unwrap());
    assert!(pd.register(Arc::clone(&segment)).is_err());
    let region = pd.register_exposed(Arc::clone(&segment), RemoteAccess::READ).unwrap();
    segment.bytes().store_u64(8, 7).unwrap();
    assert_eq!(region.load_u64(8, Ordering::Acquire).unwrap(), 7);
    let slice = region.slice(16..24).unwrap();
    slice.bytes().store_u64(0, 9).unwrap();
    assert_eq!(segment.bytes().as_shared().load_u64(16), Ok(9));
    drop(slice);
    let refused = region.revoke().unwrap_err();
    assert!(refused.region.is_none());
    assert_eq!((refused.error.verb(), refused.error.kind()), (Verb::MakePrivate, ErrorKind::NotSupported));
    assert_eq!(testing::live("mr"), 0);
    assert_eq!(Arc::strong_count(&segment), 1, "the region's owner is dropped");
}
