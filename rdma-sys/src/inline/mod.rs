//! The `static inline` functions of `verbs.h`, `rdma_cma.h` and `rdma_verbs.h`: same names, same checks, same answers.
//!
//! They reach the provider through the pointers in the objects themselves, so they work on every implementation's
//! objects and need no table. Those that call an exported symbol are methods of [`Ibverbs`](crate::Ibverbs).
//!
//! What the header has and Rust cannot have:
//!
//! | C | Here |
//! |---|---|
//! | macro `ibv_reg_mr`, which asks `__builtin_constant_p` | the method decides by the flags' value |
//! | macros `ibv_reg_mr_iova`, `ibv_query_port`, `ibv_get_device_list` (static linking) | methods of these names |
//! | `ibv_static_providers`, for static linking | nothing: providers are loaded by libibverbs |
//! | macro `verbs_get_ctx_op` | a macro of this module, not exported |
//! | macros `vext_field_avail`, `RDMA_UAPI_PTR` | nothing: plain Rust does it |
//! | `assert` | `debug_assert!` |
//! | a call through a NULL operation outside the data path crashes | it fails with `EOPNOTSUPP` |
//!
//! # Safety
//!
//! Every `unsafe fn` here asks of its caller that
//!
//! 1. pointers to verbs objects point to live objects of one implementation, made by its own functions (or laid out as
//!    it would), whose operations may be called now under the threading rules of `verbs(7)`;
//! 2. other pointers are valid as the verb's manual page says: attributes to read, room to write, lists with their
//!    lengths, or NULL where it allows that;
//! 3. what the verb itself demands holds, such as memory that stays registered while the device uses it.
//!
//! And of the implementation, as `verbs.h` does, that
//!
//! 4. an operation slot is NULL or a function of the slot's declared type;
//! 5. the slots of the data path (`poll_cq`, `req_notify_cq`, `post_send`, `post_recv`, `post_srq_recv`, a work queue's
//!    `post_recv`, and all of an extended queue pair and completion queue that were created for use) are not NULL;
//! 6. `abi_compat` is all ones only in a context inside a `verbs_context`, of which at least the last `sz` bytes, which
//!    end with the context, exist.
//!
//! The functions on a [`rdma_cm_id`] ask one thing more, of their caller:
//!
//! 7. the identifier is live and nobody changes it now; the objects in it that a function says it needs are there,
//!    live, and of the implementation that is called.

use crate::bindings::*;
use libc::{EOPNOTSUPP, c_int};

mod context;
mod cq;
mod cq_ex;
mod exported;
mod flow;
mod mr;
mod qp;
mod qp_ex;
mod rdmacm;
mod srq;
mod wq;

pub use self::{context::*, cq::*, cq_ex::*, flow::*, mr::*, qp::*, qp_ex::*, rdmacm::*, srq::*, wq::*};

/// Functions that call a pointer inside their first argument (`[object]`) or in the table of operations of its context
/// (`[context]`), unchecked: the data path.
macro_rules! unchecked {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($object:ident: $ty:ty $(, $arg:ident: $argty:ty)* $(,)?) $(-> $ret:ty)? = [$base:ident] $slot:ident;
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// The [rules of the module](crate::inline), 1 to 6.
        #[inline]
        pub unsafe fn $name($object: $ty $(, $arg: $argty)*) $(-> $ret)? {
            let slot = unchecked!(@load $base $object $slot);
            // SAFETY: by 5, it is not NULL.
            let call = unsafe { slot.unwrap_unchecked() };
            // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
            unsafe { call($object $(, $arg)*) }
        }
    )*};
    (@load object $object:ident $slot:ident) => {
        // SAFETY: by 1, the object is live.
        unsafe { (*$object).$slot }
    };
    (@load context $object:ident $slot:ident) => {{
        // SAFETY: by 1, the object is live.
        let context = unsafe { (*$object).context };
        // SAFETY: by 1, so is its context.
        unsafe { (*context).ops.$slot }
    }};
}
use unchecked;

/// Functions that call an operation of the extended context if there is one, and fail with `EOPNOTSUPP` otherwise.
/// In brackets: where the context is.
macro_rules! checked {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $argty:ty),* $(,)?) -> $ret:ty = [$base:ident $(. $field:ident)?] $slot:ident;
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        ///
        /// `EOPNOTSUPP` if the implementation lacks the operation; otherwise the operation's own. A function that
        /// returns a pointer returns NULL with the reason in `errno`, the others return it.
        ///
        /// # Safety
        ///
        /// The [rules of the module](crate::inline), 1 to 6.
        #[inline]
        pub unsafe fn $name($($arg: $argty),*) -> $ret {
            let context = checked!(@context $base $($field)?);
            match verbs_get_ctx_op!(context, $slot) {
                // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
                Some(call) => unsafe { call($($arg),*) },
                None => <$ret as Unsupported>::unsupported(),
            }
        }
    )*};
    (@context $context:ident) => { $context };
    (@context $object:ident $field:ident) => {
        // SAFETY: by 1, the object is live.
        unsafe { (*$object).$field }
    };
}
use checked;

/// An operation of the extended context: `None` where the context is not extended, ends before it, or has NULL there.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {{
        const BELOW: usize = std::mem::offset_of!(verbs_context, context) - std::mem::offset_of!(verbs_context, $op);
        // SAFETY: by 1, the context is live; `BELOW` is where this very field lies.
        unsafe { $crate::inline::extended_op($context, BELOW, |context: &verbs_context| context.$op) }
    }};
}
use verbs_get_ctx_op;

/// How a function that the implementation lacks fails, by what it returns.
trait Unsupported {
    fn unsupported() -> Self;
}

impl Unsupported for c_int {
    #[cold]
    fn unsupported() -> Self {
        EOPNOTSUPP
    }
}

impl<T> Unsupported for *mut T {
    #[cold]
    fn unsupported() -> Self {
        crate::table::set_errno(EOPNOTSUPP);
        std::ptr::null_mut()
    }
}

/// The extended context around `context`, or NULL if it is not in one.
///
/// An older implementation's is shorter at its beginning, so only what lies within its `sz` bytes may be touched.
///
/// # Safety
///
/// The [rules of the module](self), 1 and 6.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: by 1, the context is live.
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return std::ptr::null_mut();
    }
    // Wrapping: the newest layout's beginning may lie outside an older implementation's allocation.
    context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

/// The operation that lies `below` bytes before `context`; `_field` only tells its type.
///
/// # Safety
///
/// 1 and 6, and a field of that type lies there in [`verbs_context`].
#[inline]
unsafe fn extended_op<F: Copy>(
    context: *mut ibv_context,
    below: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: by 1, the context is live.
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return None;
    }
    const SIZE_BELOW: usize = std::mem::offset_of!(verbs_context, context) - std::mem::offset_of!(verbs_context, sz);
    // SAFETY: by 6, the context is inside a `verbs_context`, whose `sz` lies right before it.
    let size_field = unsafe { context.byte_sub(SIZE_BELOW) }.cast::<usize>();
    // SAFETY: as above; both structs are aligned, and by 1 nobody writes it.
    let size = unsafe { size_field.read() };
    // The field must lie within the last `size` bytes, the context's own included.
    if size < below + const { size_of::<verbs_context>() - std::mem::offset_of!(verbs_context, context) } {
        return None;
    }
    // SAFETY: by 6, the last `size` bytes exist, and the field lies in them, as was just checked.
    let field = unsafe { context.byte_sub(below) }.cast::<Option<F>>();
    // SAFETY: as above; by the caller and by 4, it holds NULL or a function pointer of that type.
    unsafe { field.read() }
}
