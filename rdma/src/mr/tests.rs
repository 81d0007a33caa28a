use crate::error::ErrorKind;
use crate::testing;
use crate::types::RemoteAccess;

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
