//! Objects for the inline functions, and a record of the calls that arrive at operations and
//! symbols.

use std::{cell::RefCell, mem::zeroed};

use libc::{c_int, c_uint, c_void};
use rdma_sys::*;

/// A call that arrived at an operation: its name and its arguments.
pub(crate) type Call = (&'static str, Vec<u64>);

/// The value that operations leave in `errno`.
const LEFT: c_int = 77;

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

/// Records a call.
pub(crate) fn arrived(name: &'static str, arguments: &[u64]) {
    CALLS.with_borrow_mut(|calls| calls.push((name, arguments.to_vec())));
    set_errno(LEFT);
}

/// The effects of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) answer: u64,
    pub(crate) errno: c_int,
    pub(crate) calls: Vec<Call>,
}

/// A closure that calls a function under test, or its twin.
macro_rules! call {
    ($($call:tt)+) => {
        // SAFETY: the functions require live objects and valid space (1 of this test's rules),
        // operations of the slots' types (2), and, of a twin, the header's type (3).
        || unsafe { $($call)+ }
    };
}
pub(crate) use call;

/// Runs `call` and returns its effects.
pub(crate) fn observe<T: Value>(call: impl FnOnce() -> T) -> Seen {
    CALLS.with_borrow_mut(Vec::clear);
    set_errno(0);
    let answer = call().word();
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Seen { answer, errno, calls: CALLS.with_borrow(Clone::clone) }
}

fn set_errno(errno: c_int) {
    // SAFETY: __errno_location has no requirement; it returns a pointer to this thread's `errno`.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: `location` is valid for writes, and no other thread uses it.
    unsafe { *location = errno };
}

/// An object that lives for ever, and that only this test's thread uses (1).
#[derive(Debug)]
pub(crate) struct Live<T>(*mut T);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Live<T> {}

impl<T: Copy> Live<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Box::into_raw(Box::new(value)))
    }

    pub(crate) fn ptr(self) -> *mut T {
        self.0
    }

    pub(crate) fn get(self) -> T {
        // SAFETY: read requires a valid, initialised object that no thread writes: `new` made it of
        // a value, it is never freed, and a pointer keeps this type on one thread.
        unsafe { self.0.read() }
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: write requires a valid place that no other thread uses: `new` made it, it is
        // never freed, and a pointer keeps this type on one thread.
        unsafe { self.0.write(value) };
    }

    pub(crate) fn edit(self, change: impl FnOnce(&mut T)) {
        let mut value = self.get();
        change(&mut value);
        self.set(value);
    }
}

/// A context in a newest `verbs_context`, with no operation at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    extended: Live<verbs_context>,
    pub(crate) context: *mut ibv_context,
}

impl World {
    pub(crate) fn new() -> Self {
        let extended = Live(leak::<verbs_context>());
        let context = extended.ptr().wrapping_byte_add(std::mem::offset_of!(verbs_context, context)).cast();
        let world = Self { extended, context };
        world.set(size_of::<verbs_context>(), true);
        world
    }

    pub(crate) fn extended(&self) -> *mut verbs_context {
        self.extended.ptr()
    }

    /// Changes the context, and the extended one around it.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut verbs_context)) {
        self.extended.edit(change);
    }

    /// Sets the two values that decide whether an operation counts.
    pub(crate) fn set(&self, size: usize, is_extended: bool) {
        let mark = if is_extended { __VERBS_ABI_IS_EXTENDED } else { std::ptr::null_mut() };
        self.edit(|extended| {
            extended.sz = size;
            extended.context.abi_compat = mark;
        });
    }
}

/// A zeroed `T` that lives for ever.
pub(crate) fn leak<T: Copy>() -> *mut T {
    // SAFETY: zeroed requires a type for which zero is a value: this test uses C structs, integers,
    // pointers and arrays.
    Box::into_raw(Box::new(unsafe { zeroed::<T>() }))
}

/// An argument or the answer of a call.
pub(crate) trait Value: Copy {
    /// For the `index`th argument: different from the others, and usable where an object is
    /// expected.
    fn make(world: &World, index: usize) -> Self;
    /// For a fake operation to return.
    fn answer() -> Self;
    fn word(self) -> u64;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Value for $ty {
            fn make(_: &World, index: usize) -> Self {
                (0x11 * (index + 1)) as Self
            }
            fn answer() -> Self {
                7
            }
            fn word(self) -> u64 {
                self as u64
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 usize isize c_int);

macro_rules! enums {
    ($($ty:ident)*) => {$(
        impl Value for $ty {
            fn make(world: &World, index: usize) -> Self {
                Self(c_uint::make(world, index))
            }
            fn answer() -> Self {
                Self(7)
            }
            fn word(self) -> u64 {
                self.0.into()
            }
        }
    )*};
}
enums!(ibv_wc_opcode ibv_mw_type ib_uverbs_advise_mr_advice);

impl Value for () {
    fn make(_: &World, _: usize) -> Self {}
    fn answer() -> Self {}
    fn word(self) -> u64 {
        0
    }
}

impl<T: Pointee> Value for *mut T {
    fn make(world: &World, _: usize) -> Self {
        T::place(world)
    }
    fn answer() -> Self {
        std::ptr::without_provenance_mut(0xabc0)
    }
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl<T: Pointee> Value for *const T {
    fn make(world: &World, _: usize) -> Self {
        T::place(world)
    }
    fn answer() -> Self {
        std::ptr::without_provenance(0xabc0)
    }
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

/// The target of a pointer.
pub(crate) trait Pointee: Sized {
    fn place(world: &World) -> *mut Self;
}

impl Pointee for ibv_context {
    fn place(world: &World) -> *mut Self {
        world.context
    }
}

impl Pointee for c_void {
    fn place(_: &World) -> *mut Self {
        leak::<[u64; 8]>().cast()
    }
}

impl<T> Pointee for *mut T {
    fn place(_: &World) -> *mut Self {
        leak()
    }
}

macro_rules! objects {
    ($($ty:ty)*) => {$(
        impl Pointee for $ty {
            fn place(world: &World) -> *mut Self {
                let object = Live(leak::<Self>());
                object.edit(|object| object.context = world.context);
                object.ptr()
            }
        }
    )*};
}
objects! {
    ibv_pd ibv_mr ibv_mw ibv_cq ibv_cq_ex ibv_qp ibv_srq ibv_wq ibv_rwq_ind_table ibv_dm ibv_td ibv_xrcd ibv_ah
    ibv_flow ibv_flow_action ibv_counters
}

macro_rules! others {
    ($($ty:ty)*) => {$(
        impl Pointee for $ty {
            fn place(_: &World) -> *mut Self {
                leak()
            }
        }
    )*};
}
others! {
    u32 u64 c_int verbs_context ibv_qp_ex ibv_mw_bind ibv_mw_bind_info ibv_data_buf ibv_sge ibv_poll_cq_attr
    ibv_wc_tm_info ibv_wc ibv_send_wr ibv_recv_wr ibv_ops_wr ibv_cq_init_attr_ex ibv_modify_cq_attr ibv_qp_open_attr
    ibv_qp_rate_limit_attr ibv_xrcd_init_attr ibv_alloc_dm_attr ibv_td_init_attr ibv_parent_domain_init_attr
    ibv_values_ex ibv_flow_attr ibv_flow_action_esp_attr ibv_counters_init_attr ibv_counter_attach_attr ibv_wq_attr
    ibv_wq_init_attr ibv_rwq_ind_table_init_attr ibv_device_attr ibv_device_attr_ex ibv_query_device_ex_input
    ibv_port_attr ibv_gid_entry ibv_comp_cntr_caps ibv_srq_init_attr ibv_srq_init_attr_ex ibv_qp_init_attr
    ibv_qp_init_attr_ex ibv_device ibv_comp_channel rdma_cm_id
}
