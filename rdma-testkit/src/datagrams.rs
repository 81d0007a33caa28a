//! Address handles and multicast groups of the test provider. Numbers cite the invariants of
//! the crate.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::ptr;

use rdma_sys::*;

use super::objects::{FakeQp, boxed, fails, unboxed};
use super::world::{called, world};

/// The numbers of the living address handles.
#[must_use]
pub fn live_handles() -> BTreeSet<u32> {
    world(|world| world.datagrams.handles.clone())
}

/// The number of a living address handle.
#[must_use]
pub fn handle_of(ah: *mut ibv_ah) -> u32 {
    // SAFETY: the caller gives a live handle of this provider (1).
    unsafe { (*ah).handle }
}

/// The groups that a queue pair is attached to: GID and LID of each.
#[must_use]
pub fn groups_of(qp: *mut ibv_qp) -> Vec<(Ipv6Addr, u16)> {
    // SAFETY: tests give a live queue pair of this provider (1).
    unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap().groups.clone()
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    if fails("create_ah") {
        return ptr::null_mut();
    }
    // SAFETY: the caller gives valid attributes.
    assert_ne!(unsafe { (*attr).port_num }, 0);
    let handle = world(|world| {
        world.datagrams.next += 1;
        world.datagrams.handles.insert(world.datagrams.next);
        world.datagrams.next
    });
    // SAFETY: the caller gives a live domain of this provider (1).
    let context = unsafe { (*pd).context };
    boxed("ah", ibv_ah { context, pd, handle })
}

pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    let errno = called("destroy_ah");
    if errno == 0 {
        let handle = handle_of(ah);
        world(|world| assert!(world.datagrams.handles.remove(&handle)));
        // SAFETY: unboxed requires a pointer from boxed, once: made by create_ah (1).
        unsafe { unboxed::<ibv_ah, _>("ah", ah) };
    }
    errno
}

/// Fills the attributes like the library, for a port whose only GID is at index 2.
pub(crate) unsafe extern "C" fn init_ah_from_wc(
    _: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    if fails("init_ah_from_wc") {
        return -1;
    }
    // SAFETY: the caller gives a completion to read.
    let wc = unsafe { &*wc };
    // SAFETY: the caller gives a header to read.
    let grh = unsafe { &*grh };
    let is_global = u8::from(wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0);
    let route = ibv_global_route { dgid: grh.sgid, sgid_index: 2, hop_limit: grh.hop_limit, ..Default::default() };
    let value = ibv_ah_attr { grh: route, dlid: wc.slid, sl: wc.sl, is_global, port_num: port, ..Default::default() };
    // SAFETY: the caller gives space for the attributes.
    unsafe { *attr = value };
    0
}

pub(crate) unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let errno = called("attach_mcast");
    if errno == 0 {
        // SAFETY: address_of requires a GID to read: the caller gives one.
        let gid = unsafe { address_of(gid) };
        // SAFETY: the caller gives a live queue pair of this provider (1).
        let fake = unsafe { &*qp.cast::<FakeQp>() };
        let groups = &mut fake.state.lock().unwrap().groups;
        assert!(!groups.contains(&(gid, lid)), "attached twice");
        groups.push((gid, lid));
    }
    errno
}

pub(crate) unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let errno = called("detach_mcast");
    if errno != 0 {
        return errno;
    }
    // SAFETY: address_of requires a GID to read: the caller gives one.
    let gid = unsafe { address_of(gid) };
    // SAFETY: the caller gives a live queue pair of this provider (1).
    let fake = unsafe { &*qp.cast::<FakeQp>() };
    let groups = &mut fake.state.lock().unwrap().groups;
    match groups.iter().position(|&group| group == (gid, lid)) {
        Some(at) => {
            groups.remove(at);
            0
        }
        None => libc::EINVAL,
    }
}

/// # Safety
///
/// `gid` is readable.
unsafe fn address_of(gid: *const ibv_gid) -> Ipv6Addr {
    // SAFETY: the read requires 16 readable bytes, which a GID has: this function's contract.
    Ipv6Addr::from(unsafe { *gid.cast::<[u8; 16]>() })
}
