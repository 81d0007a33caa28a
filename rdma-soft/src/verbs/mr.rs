//! `ibv_mr`: memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd};

use super::context::{Child, ContextState};
use super::errno::{pointer, status};
use super::object::{Object, Public};
use super::{Errno, pages, pd};
use crate::engine::Registration;
use crate::node::Node;

/// What the device keeps about a memory region.
#[derive(Debug)]
pub(crate) struct MrState {
    lkey: u32,
    context: Arc<ContextState>,
}

impl Public for ibv_mr {
    const MARK: u64 = 0x006d_725f_6d72_5f6d;
    type Private = MrState;
}

const LOCAL_WRITE: u32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
const ZERO_BASED: u32 = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
/// Rights that make no sense without a local right to write.
const REMOTE_CHANGE: u32 = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
/// What the engine knows.
const RIGHTS: u32 = LOCAL_WRITE | REMOTE_CHANGE | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
/// Accepted, without a meaning here: huge pages are pages, and no window can be bound anyway.
const HINTS: u32 = ibv_access_flags::IBV_ACCESS_HUGETLB.0 | ibv_access_flags::IBV_ACCESS_MW_BIND.0 | ZERO_BASED;
/// Flags that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`), relaxed ordering among them.
const OPTIONAL: u32 = 0x3ff0_0000;
/// What the specification has and this device does not.
const LACKING: u32 = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
    | ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0
    | ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;

/// The rights for the engine, if the flags are in order.
fn check_access(access: u32) -> Result<u32, Errno> {
    if access & LACKING != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if access & !(RIGHTS | HINTS | OPTIONAL) != 0 || (access & REMOTE_CHANGE != 0 && access & LOCAL_WRITE == 0) {
        return Err(Errno::INVAL);
    }
    Ok(access & RIGHTS)
}

/// # Safety
///
/// C's promises about the domain and the memory.
unsafe fn register(
    ibv_pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: the caller's promise.
    let pd = unsafe { pd::get(ibv_pd) }?;
    let node = Node::get()?;
    let rights = check_access(access)?;
    let iova = if access & ZERO_BASED != 0 { 0 } else { iova };
    let ends = addr.addr().checked_add(len).is_some() && iova.checked_add(len as u64).is_some();
    if len == 0 || isize::try_from(len).is_err() || !ends {
        return Err(Errno::INVAL);
    }
    pages::populate(addr.addr(), len, rights & LOCAL_WRITE != 0)?;
    // What peers may map, they may write to directly: only memory that lies alone in its file.
    let backing = rdma_mem::shared::find(addr.addr(), len);
    let what = Registration { addr: addr.cast(), len, iova, access: rights, backing };
    // SAFETY: the memory is mapped with these rights now, and stays so until it is deregistered: C's promise, the caller's. What
    // happens to memory that is in use by the device is ordered by C's use of requests and completions.
    let keys = node.with(|engine| unsafe { engine.register(pd.id, &what) })?;
    // SAFETY: a live domain.
    let context = unsafe { (*ibv_pd).context };
    let public = ibv_mr { context, pd: ibv_pd, addr, length: len, handle: keys.lkey, lkey: keys.lkey, rkey: keys.rkey };
    let mr = Object::create(public, MrState { lkey: keys.lkey, context: Arc::clone(&pd.context) });
    pd.context.adopt(Child::Mr(mr));
    Ok(mr)
}

/// `ibv_reg_mr`.
pub(super) unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: C's promises about the domain and the memory.
    pointer(unsafe { register(pd, addr, len, addr.addr() as u64, access as u32) })
}

/// `ibv_reg_mr_iova`.
pub(super) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: C's promises about the domain and the memory.
    pointer(unsafe { register(pd, addr, len, iova, access as u32) })
}

/// `ibv_reg_mr_iova2`.
pub(super) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: C's promises about the domain and the memory.
    pointer(unsafe { register(pd, addr, len, iova, access) })
}

/// `ibv_dereg_mr`.
pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: C's promise about the region.
    status(unsafe { Object::get(mr) }.and_then(|object| {
        let state = object.private();
        Node::get()?.with(|engine| engine.deregister(state.lkey))?;
        state.context.disown(mr);
        // SAFETY: C's promise: nobody uses a region that is being freed; `state` is not used below.
        unsafe { Object::free(mr) }
    }))
}

/// Ends a region whose context is closed.
///
/// # Safety
///
/// As for [`Object::get`].
pub(super) unsafe fn abandon(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    if let (Ok(object), Ok(node)) = (unsafe { Object::get(mr) }, Node::get()) {
        // A key that the engine does not know is not used either.
        let _deregistered = node.with(|engine| engine.deregister(object.private().lkey));
        object.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags() {
        let all = RIGHTS | HINTS | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        assert_eq!(check_access(all), Ok(RIGHTS));
        assert_eq!(check_access(0), Ok(0));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_REMOTE_READ.0), Ok(4));
        assert_eq!(check_access(1 << 31), Err(Errno::INVAL));
        assert_eq!(check_access(ibv_access_flags::IBV_ACCESS_ON_DEMAND.0), Err(Errno::OPNOTSUPP));
    }
}
