//! Parent domains and thread domains.

use std::io;
use std::ptr;

use rdma_sys::*;

use crate::common::{self, Config, Side, pair, verbs};

fn last_errno() -> Option<i32> {
    io::Error::last_os_error().raw_os_error()
}

/// The attributes of a parent domain of a side's domain.
fn attributes(side: &Side) -> ibv_parent_domain_init_attr {
    ibv_parent_domain_init_attr { pd: side.pd, ..Default::default() }
}

fn parent(side: &Side, mut attr: ibv_parent_domain_init_attr) -> Result<*mut ibv_pd, Option<i32>> {
    // SAFETY: an open context, and attributes of live objects.
    let parent = unsafe { ibv_alloc_parent_domain(side.context, &raw mut attr) };
    if parent.is_null() { Err(last_errno()) } else { Ok(parent) }
}

fn thread_domain(side: &Side) -> *mut ibv_td {
    let mut attr = ibv_td_init_attr::default();
    // SAFETY: an open context, and a valid structure.
    let td = unsafe { ibv_alloc_td(side.context, &raw mut attr) };
    assert!(!td.is_null());
    td
}

fn dealloc(pd: *mut ibv_pd) -> i32 {
    // SAFETY: a live domain, which is not used after a success.
    unsafe { (verbs().ibv_dealloc_pd)(pd) }
}

fn dealloc_td(td: *mut ibv_td) -> i32 {
    // SAFETY: a live thread domain, which is not used after a success.
    unsafe { ibv_dealloc_td(td) }
}

#[test]
fn objects_of_a_parent_domain_work_with_those_of_its_protection_domain() {
    let (mut a, b) = pair(Config::default());
    let td = thread_domain(&a);
    let parent = parent(&a, ibv_parent_domain_init_attr { td, ..attributes(&a) }).unwrap();
    // A region of the parent domain for a queue pair of the protection domain.
    let addr = ptr::with_exposed_provenance_mut(usize::try_from(a.addr(0)).unwrap());
    // SAFETY: a live domain, and memory that the side keeps until the region has ended.
    let region = unsafe { verbs().ibv_reg_mr(parent, addr, 64, common::ALL_ACCESS) };
    assert!(!region.is_null());
    // SAFETY: a live region.
    let lkey = unsafe { (*region).lkey };
    let list = [ibv_sge { addr: a.addr(0), length: 5, lkey }];
    a.put(0, b"hello");
    let write = common::Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1, &list);
    let to = b.endpoint();
    assert_eq!(a.post(&write.remote(to.addr, to.rkey)), 0);
    a.success(1);
    assert_eq!(b.peek(0, 5), b"hello");
    // SAFETY: a live region, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
    assert_eq!(dealloc_td(td), libc::EBUSY);
    assert_eq!(dealloc(parent), 0);
    assert_eq!(dealloc_td(td), 0);
    assert_eq!(a.deregister(), 0);
}

#[test]
fn a_parent_domain_in_use_stays() {
    let (mut a, _b) = pair(Config::default());
    let (one, other) = (parent(&a, attributes(&a)).unwrap(), parent(&a, attributes(&a)).unwrap());
    let addr = ptr::with_exposed_provenance_mut(usize::try_from(a.addr(0)).unwrap());
    // SAFETY: a live domain, and memory that the side keeps until the region has ended.
    let region = unsafe { verbs().ibv_reg_mr(one, addr, 64, common::ALL_ACCESS) };
    assert!(!region.is_null());
    assert_eq!(dealloc(one), libc::EBUSY, "the region was made through it");
    let change = i32::try_from(ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD.0).unwrap();
    // SAFETY: a live region and a live domain.
    assert_eq!(unsafe { (verbs().ibv_rereg_mr)(region, change, other, ptr::null_mut(), 0, 0) }, 0);
    assert_eq!(dealloc(one), 0);
    assert_eq!(dealloc(other), libc::EBUSY, "the region has moved to it");
    // SAFETY: a live region, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
    let mut init =
        ibv_srq_init_attr { attr: ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 }, ..Default::default() };
    // SAFETY: a live domain and valid attributes.
    let srq = unsafe { (verbs().ibv_create_srq)(other, &raw mut init) };
    assert!(!srq.is_null());
    assert_eq!(dealloc(other), libc::EBUSY, "the queue was made through it");
    // SAFETY: a live queue, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_srq)(srq) }, 0);
    assert_eq!(dealloc(other), 0);
    assert_eq!(a.deregister(), 0);
}

#[test]
fn a_completion_queue_keeps_its_parent_domain() {
    let (a, _b) = pair(Config::default());
    let parent = parent(&a, attributes(&a)).unwrap();
    let mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    let create = |domain| {
        let mut init = ibv_cq_init_attr_ex { cqe: 4, comp_mask: mask, parent_domain: domain, ..Default::default() };
        // SAFETY: an open context, and attributes of live objects.
        unsafe { ibv_create_cq_ex(a.context, &raw mut init) }
    };
    for no_parent in [ptr::null_mut(), a.pd] {
        assert_eq!((create(no_parent), last_errno()), (ptr::null_mut(), Some(libc::EINVAL)));
    }
    let cq = create(parent);
    assert!(!cq.is_null());
    assert_eq!(dealloc(parent), libc::EBUSY);
    // SAFETY: a live queue, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_cq)(cq.cast()) }, 0);
    assert_eq!(dealloc(parent), 0);
}

#[test]
fn a_protection_domain_outlives_its_parent_domains() {
    let context = common::open();
    // SAFETY: an open context.
    let pd = unsafe { (verbs().ibv_alloc_pd)(context) };
    let mut attr = ibv_parent_domain_init_attr { pd, ..Default::default() };
    // SAFETY: an open context, and attributes of live objects.
    let parent = unsafe { ibv_alloc_parent_domain(context, &raw mut attr) };
    assert_eq!(dealloc(pd), libc::EBUSY);
    assert_eq!(dealloc(parent), 0);
    assert_eq!(dealloc(pd), 0);
    // SAFETY: an open context without objects, which is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
}

#[test]
fn domains_that_cannot_be_are_refused() {
    let (a, b) = pair(Config::default());
    let attr = attributes(&a);
    let invalid = Some(Some(libc::EINVAL));
    assert_eq!(parent(&a, ibv_parent_domain_init_attr { pd: ptr::null_mut(), ..attr }).err(), invalid);
    let shared = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC.0;
    for comp_mask in [shared, 1 << 9, shared | 1] {
        let refused = parent(&a, ibv_parent_domain_init_attr { comp_mask, ..attr }).err();
        assert_eq!(refused, Some(Some(libc::EOPNOTSUPP)), "{comp_mask:#x}");
    }
    let mut unknown = ibv_td_init_attr { comp_mask: 1 };
    // SAFETY: an open context, and a valid structure.
    let td = unsafe { ibv_alloc_td(a.context, &raw mut unknown) };
    assert_eq!((td, last_errno()), (ptr::null_mut(), Some(libc::EOPNOTSUPP)));
    assert_eq!(parent(&a, ibv_parent_domain_init_attr { comp_mask: 1, ..attr }).err(), invalid, "no allocators");
    assert_eq!(parent(&a, attributes(&b)).err(), invalid, "another context's");
    let made = parent(&a, attr).unwrap();
    assert_eq!(parent(&a, ibv_parent_domain_init_attr { pd: made, ..attr }).err(), invalid, "a parent domain's");
    assert_eq!(dealloc(made), 0);
}
