//! Device memory, its regions, and a lack of descriptors.

use std::io;

use rdma_sys::*;

use crate::common::{Config, Side, verbs};

/// Allocates 64 bytes; null if it fails.
fn alloc(side: &Side) -> *mut ibv_dm {
    let mut attr = ibv_alloc_dm_attr { length: 64, ..Default::default() };
    // SAFETY: an open context of this device, a valid structure.
    unsafe { ibv_alloc_dm(side.context, &raw mut attr) }
}

/// The region ends with any of its objects, and no longer uses the memory.
#[test]
fn memory_is_free_when_an_imported_object_has_ended_its_region() {
    let side = Side::new(Config::default());
    let dm = alloc(&side);
    assert!(!dm.is_null());
    let access = (ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_ZERO_BASED).0;
    // SAFETY: a live domain, live memory.
    let mr = unsafe { ibv_reg_dm_mr(side.pd, dm, 0, 64, access) };
    assert!(!mr.is_null());
    // SAFETY: a live region that nobody changes.
    let key = unsafe { (*mr).handle };
    // SAFETY: a live domain.
    let imported = unsafe { (verbs().ibv_import_mr)(side.pd, key) };
    assert!(!imported.is_null());
    // SAFETY: live memory, in use: refused.
    assert_eq!(unsafe { ibv_free_dm(dm) }, libc::EBUSY);
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(imported) }, 0);
    // SAFETY: alive; its region has ended: refused.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(mr) }, libc::EINVAL);
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { ibv_free_dm(dm) }, 0);
}

#[test]
fn a_lack_of_descriptors_is_told_from_one_of_memory() {
    rdma_test_support::passes_alone(&["device_memory::where_descriptors_are_short"], &[]);
}

#[test]
#[ignore = "run alone, by the test above"]
fn where_descriptors_are_short() {
    let side = Side::new(Config::default());
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes a limit that lives during the call.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let none = libc::rlimit { rlim_cur: 0, ..limit };
    // SAFETY: setrlimit reads a limit that lives during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    let dm = alloc(&side);
    let errno = io::Error::last_os_error().raw_os_error();
    // SAFETY: setrlimit reads a limit that lives during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    assert_eq!((dm.is_null(), errno), (true, Some(libc::EMFILE)));
}
