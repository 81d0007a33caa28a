//! Memory windows, device memory and other regions without an exported function.

use super::{Unsupported, checked, verbs_get_ctx_op};
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
    ) -> c_int = [pd.context] advise_mr;
    /// Allocates device memory.
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = [context] alloc_dm;
    /// Frees device memory.
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = [dm.context] free_dm;
    /// Makes a region that discards writes and reads as zero.
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = [pd.context] alloc_null_mr;
    /// Registers device memory.
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr
        = [pd.context] reg_dm_mr;
}

/// Copies into device memory.
///
/// # Errors
///
/// A positive errno value; `EOPNOTSUPP` where the header would call NULL.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int {
    // SAFETY: by 1, the device memory is live.
    match unsafe { (*dm).memcpy_to_dm } {
        // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
        Some(copy) => unsafe { copy(dm, dm_offset, host_addr, length) },
        None => EOPNOTSUPP,
    }
}

/// Copies out of device memory.
///
/// # Errors
///
/// A positive errno value; `EOPNOTSUPP` where the header would call NULL.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int {
    // SAFETY: by 1, the device memory is live.
    match unsafe { (*dm).memcpy_from_dm } {
        // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
        Some(copy) => unsafe { copy(host_addr, dm, dm_offset, length) },
        None => EOPNOTSUPP,
    }
}

/// Allocates a memory window.
///
/// # Errors
///
/// NULL, with the reason in `errno`: `EOPNOTSUPP` if the implementation lacks the operation.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: by 1, the domain is live.
    let context = unsafe { (*pd).context };
    // SAFETY: by 1, so is its context.
    match unsafe { (*context).ops.alloc_mw } {
        // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
        Some(alloc) => unsafe { alloc(pd, type_) },
        None => <*mut ibv_mw>::unsupported(),
    }
}

/// Frees a memory window.
///
/// # Errors
///
/// A positive errno value; `EOPNOTSUPP` where the header would call NULL.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: by 1, the window is live.
    let context = unsafe { (*mw).context };
    // SAFETY: by 1, so is its context.
    match unsafe { (*context).ops.dealloc_mw } {
        // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
        Some(dealloc) => unsafe { dealloc(mw) },
        None => EOPNOTSUPP,
    }
}

/// Posts a binding of a memory window of type 1.
///
/// # Errors
///
/// A positive errno value: `EINVAL` if the window has another type, or for an address or length without a region;
/// `EPERM` if window and region are of different domains; `EOPNOTSUPP` where the header would call NULL.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 4.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: by 2, the request may be read.
    let info = unsafe { (*mw_bind).bind_info };
    // SAFETY: by 1, the window is live.
    let window = unsafe { *mw };
    if window.type_ != ibv_mw_type::IBV_MW_TYPE_1 {
        return EINVAL;
    }
    if info.mr.is_null() {
        if info.addr != 0 || info.length != 0 {
            return EINVAL;
        }
    } else {
        // SAFETY: by 1, a region that is named is live.
        let region_pd = unsafe { (*info.mr).pd };
        if window.pd != region_pd {
            return EPERM;
        }
    }
    // SAFETY: by 1, the window's context is live.
    match unsafe { (*window.context).ops.bind_mw } {
        // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
        Some(bind) => unsafe { bind(qp, mw, mw_bind) },
        None => EOPNOTSUPP,
    }
}

/// The next key of a memory window of type 2: its lowest byte, the tag, is counted up.
#[inline]
#[must_use]
pub fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
