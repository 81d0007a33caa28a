//! Memory windows, device memory and other regions without an exported function.

use super::{Unsupported, checked};
use crate::{bindings::*, macros::ibv_advise_mr_advice};
use libc::{EINVAL, EOPNOTSUPP, EPERM, c_int, c_uint, c_void};

checked! {
    /// Advises the device about memory that it will use.
    fn ibv_advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        sg_list: *mut ibv_sge,
        num_sge: u32,
    ) -> c_int = extended [pd.context] advise_mr;
    /// Allocates device memory.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = extended [context] alloc_dm;
    /// Frees device memory.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = extended [dm.context] free_dm;
    /// Makes a region that discards writes and reads as zeros.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = extended [pd.context] alloc_null_mr;
    /// Registers device memory.
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr
        = extended [pd.context] reg_dm_mr;
}

checked! {
    /// Copies into device memory.
    fn ibv_memcpy_to_dm(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int
        = object [dm] memcpy_to_dm;
    /// Copies out of device memory.
    fn ibv_memcpy_from_dm(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int
        = object [dm] memcpy_from_dm;
    /// Allocates a memory window.
    fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw = plain [pd.context] alloc_mw;
    /// Frees a memory window.
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int = plain [mw.context] dealloc_mw;
}

/// Posts a binding of a memory window of type 1.
///
/// # Errors
///
/// A positive errno value: `EINVAL` if the window has another type, or for an address or length
/// without a region; `EPERM` if window and region are of different domains; `EOPNOTSUPP` if the
/// implementation lacks the operation.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the read requires a request (2).
    let info = unsafe { (*mw_bind).bind_info };
    // SAFETY: the read requires a live window (1).
    let window = unsafe { *mw };
    if window.type_ != ibv_mw_type::IBV_MW_TYPE_1 {
        return EINVAL;
    }
    if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return EINVAL;
        }
    } else {
        // SAFETY: the read requires a live region: a region that a request names is (1).
        let region_pd = unsafe { (*info.mr).pd };
        if window.pd != region_pd {
            return EPERM;
        }
    }
    // SAFETY: the read requires a live context: that of a live window is (1).
    match unsafe { (*window.context).ops.bind_mw } {
        // SAFETY: the function has the slot's type (4); the arguments are those that this
        // function's caller answers for (1 to 3).
        Some(bind) => unsafe { bind(qp, mw, mw_bind) },
        None => EOPNOTSUPP,
    }
}

/// The next key of a memory window of type 2: the lowest byte, the tag, plus one.
#[inline]
#[must_use]
pub fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
