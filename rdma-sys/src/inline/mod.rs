//! The `static inline` functions of `verbs.h`, `rdma_cma.h` and `rdma_verbs.h`: same names, same
//! checks, same results.
//!
//! They reach the provider through the pointers in the objects themselves, so they work on every
//! implementation's objects and need no table. Functions that call an exported symbol are methods
//! of [`Ibverbs`](crate::Ibverbs).
//!
//! Parts of the headers that have no equivalent of the same form here:
//!
//! | C | Here |
//! |---|---|
//! | macro `ibv_reg_mr`, which asks `__builtin_constant_p`, and `__ibv_reg_mr` behind it | the method decides by the flags' value |
//! | macros `ibv_reg_mr_iova`, `ibv_query_port`, and `__ibv_reg_mr_iova`, `___ibv_query_port` behind them | the methods of the macros' names |
//! | macro and function `ibv_get_device_list`, `__ibv_get_device_list`, which differ for static linking | the symbol |
//! | `ibv_static_providers`, for static linking | nothing: libibverbs loads providers |
//! | macro `verbs_get_ctx_op` | a macro of this module, not exported |
//! | macros `vext_field_avail`, `RDMA_UAPI_PTR` | nothing: Rust has fields and pointers of 64 bits |
//! | `assert` | `debug_assert!` |
//! | a call of a NULL operation outside the data path crashes | the call fails with `EOPNOTSUPP` |
//!
//! # Safety
//!
//! Every `unsafe fn` of this module requires of its caller that
//!
//! 1. pointers to verbs objects point to live objects of one implementation, made by its own
//!    functions (or laid out as it would), whose operations may be called now under the threading
//!    rules of `verbs(7)`;
//! 2. other pointers are valid as the verb's manual page says: attributes to read, space to write,
//!    lists with their lengths, or NULL where the page allows NULL;
//! 3. the demands of the verb itself hold, such as memory that stays registered while the device
//!    uses it.
//!
//! Every `unsafe fn` also requires of the implementation, as `verbs.h` does, that
//!
//! 4. an operation slot is NULL or a function of the slot's declared type;
//! 5. the slots of the data path (`poll_cq`, `req_notify_cq`, `post_send`, `post_recv`,
//!    `post_srq_recv`, a work queue's `post_recv`, and all of an extended queue pair and completion
//!    queue that were created for use) are not NULL;
//! 6. `abi_compat` is all ones only in a context inside a `verbs_context`, of which at least the
//!    last `sz` bytes exist, which end with the context.
//!
//! The functions on a [`rdma_cm_id`] have one more requirement:
//!
//! 7. the identifier is live and no thread changes it during the call; the objects that a function
//!    says it needs are set in the identifier, live, and of the implementation that is called.

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

/// Functions of the data path, which call a pointer inside their first argument (`[object]`) or in
/// the operations of its context (`[context]`), unchecked.
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
            // SAFETY: unwrap_unchecked requires a value: a slot of the data path is not NULL (5).
            let call = unsafe { slot.unwrap_unchecked() };
            // SAFETY: the function has the slot's type (4); the arguments are those that this
            // function's caller answers for (1 to 3).
            unsafe { call($object $(, $arg)*) }
        }
    )*};
    (@load object $object:ident $slot:ident) => {
        // SAFETY: the read requires a live object (1).
        unsafe { (*$object).$slot }
    };
    (@load context $object:ident $slot:ident) => {{
        // SAFETY: the read requires a live object (1).
        let context = unsafe { (*$object).context };
        // SAFETY: the read requires a live context: that of a live object is (1).
        unsafe { (*context).ops.$slot }
    }};
}
use unchecked;

/// Functions that call an operation if there is one, and fail with `EOPNOTSUPP` otherwise. The
/// operation stands in the extended context (`extended`), in the plain operations of the context
/// (`plain`), or in the object itself (`object`); the brackets name the context or the object.
macro_rules! checked {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $argty:ty),* $(,)?) -> $ret:ty = $place:ident [$base:ident $(. $field:ident)?] $slot:ident;
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        ///
        /// `EOPNOTSUPP` if the implementation lacks the operation; otherwise the operation's own. A
        /// function that returns a pointer returns NULL with the reason in `errno`, the others
        /// return the reason.
        ///
        /// # Safety
        ///
        /// The [rules of the module](crate::inline), 1 to 6.
        #[inline]
        pub unsafe fn $name($($arg: $argty),*) -> $ret {
            let base = checked!(@base $base $($field)?);
            match checked!(@slot $place base $slot) {
                // SAFETY: the function has the slot's type (4); the arguments are those that this
                // function's caller answers for (1 to 3).
                Some(call) => unsafe { call($($arg),*) },
                None => <$ret as Unsupported>::unsupported(),
            }
        }
    )*};
    (@base $base:ident) => { $base };
    (@base $object:ident $field:ident) => {
        // SAFETY: the read requires a live object (1).
        unsafe { (*$object).$field }
    };
    (@slot extended $context:ident $slot:ident) => { $crate::inline::verbs_get_ctx_op!($context, $slot) };
    (@slot plain $context:ident $slot:ident) => {
        // SAFETY: the read requires a live context: that of a live object is (1).
        unsafe { (*$context).ops.$slot }
    };
    (@slot object $object:ident $slot:ident) => {
        // SAFETY: the read requires a live object (1).
        unsafe { (*$object).$slot }
    };
}
use checked;

/// An operation of the extended context: `None` where the context is not extended, ends before the
/// operation, or has NULL there.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {{
        const BELOW: usize = std::mem::offset_of!(verbs_context, context) - std::mem::offset_of!(verbs_context, $op);
        // SAFETY: extended_op requires a live context (1, 6), and a field of the closure's type
        // `BELOW` bytes before it: both are made of the same field.
        unsafe { $crate::inline::extended_op($context, BELOW, |context: &verbs_context| context.$op) }
    }};
}
use verbs_get_ctx_op;

/// The failure of a function that the implementation lacks, by the function's return type.
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
        crate::os::set_errno(EOPNOTSUPP);
        std::ptr::null_mut()
    }
}

/// The extended context around `context`, or NULL if `context` is not part of one.
///
/// An older implementation's struct is shorter at its beginning, so only its last `sz` bytes may be
/// accessed.
///
/// # Safety
///
/// The [rules of the module](self), 1 and 6.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the read requires a live context (1).
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return std::ptr::null_mut();
    }
    // Wrapping: the newest layout may begin outside an older implementation's allocation.
    context.wrapping_byte_sub(std::mem::offset_of!(verbs_context, context)).cast()
}

/// The operation that lies `below` bytes before `context`; `_field` only gives its type.
///
/// # Safety
///
/// Rules 1 and 6, and a field of that type lies at that place in [`verbs_context`].
#[inline]
unsafe fn extended_op<F: Copy>(
    context: *mut ibv_context,
    below: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: the read requires a live context (1).
    let abi_compat = unsafe { (*context).abi_compat };
    if abi_compat.addr() != usize::MAX {
        return None;
    }
    const SIZE_BELOW: usize = std::mem::offset_of!(verbs_context, context) - std::mem::offset_of!(verbs_context, sz);
    // SAFETY: byte_sub requires a result in the allocation: the context is inside a `verbs_context`
    // of which the bytes from `sz` on exist (6).
    let size_field = unsafe { context.byte_sub(SIZE_BELOW) }.cast::<usize>();
    // SAFETY: the read requires an aligned, initialised number: the field `sz`, which no thread
    // writes (1).
    let size = unsafe { size_field.read() };
    // The field must lie within the last `size` bytes, which include the context.
    if size < below + const { size_of::<verbs_context>() - std::mem::offset_of!(verbs_context, context) } {
        return None;
    }
    // SAFETY: byte_sub requires a result in the allocation: the last `size` bytes exist (6), and
    // the check above found `below` in them.
    let field = unsafe { context.byte_sub(below) }.cast::<Option<F>>();
    // SAFETY: the read requires an aligned field of this type, by this function's condition; it
    // holds NULL or a function of that type (4).
    unsafe { field.read() }
}
