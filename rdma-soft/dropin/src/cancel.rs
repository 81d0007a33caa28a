//! The verbs that wait for an event or a request are cancellation points, as in rdma-core, whose
//! threads sleep in read(2) or write(2): programs cancel their event threads at exit. During all
//! other functions of the library a cancellation stays pending: [`Pending`], and the entry points
//! of `rdma_soft`.
//!
//! `pthread_cancel` unwinds the thread's stack from a cancellation point outwards. Rust permits
//! this through functions with the ABI `C-unwind` that have nothing to drop, and nowhere else. So
//! the verbs of this module, which have nothing to drop, call the cancellation points, and
//! disable cancellation while other Rust code runs. Of these calls, only read(2) enters the kernel.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr;

use rdma_soft::parts::{Parts, READ, parts};
use rdma_sys::{ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, rdma_cm_event, rdma_cm_id, rdma_event_channel};

const PARTS: Parts = parts();
/// The argument of `pthread_setcancelstate` that keeps cancellations pending, in glibc and musl.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

// Declared here because `libc` declares its functions as `extern "C"`, which must not unwind.
unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn read(fd: RawFd, buf: *mut c_void, count: usize) -> isize;
}

/// Disables cancellation and returns the state before.
fn disable() -> c_int {
    let mut before = 0;
    // SAFETY: `pthread_setcancelstate` requires a valid state, and null or space for the state
    // before.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    before
}

/// Keeps a cancellation of this thread pending as long as the value exists.
pub(crate) struct Pending {
    before: c_int,
    /// The state belongs to the thread.
    _of_thread: PhantomData<*const ()>,
}

impl Pending {
    pub(crate) fn new() -> Self {
        Self { before: disable(), _of_thread: PhantomData }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // SAFETY: `pthread_setcancelstate` requires a valid state: this thread was in it before.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

/// A verb that waits: calls its parts, and reads the descriptor of `$object`, or of what its field
/// `$through` points to, between them.
macro_rules! waits {
    ($(fn $name:ident(
        $object:ident$([$through:ident])?.$fd:ident: $object_type:ty $(, $argument:ident: $type:ty)*
    );)*) => {
        $(
            /// The verb of this name, a cancellation point.
            ///
            /// # Safety
            ///
            /// As for the verb: a live object, and out parameters that are valid for writes.
            pub(crate) unsafe extern "C-unwind" fn $name($object: *mut $object_type $(, $argument: $type)*) -> c_int {
                pthread_testcancel();
                let mut reads = 0;
                loop {
                    let before = disable();
                    // SAFETY: the part requires what the verb requires, by this function's
                    // condition.
                    let result = unsafe { (PARTS.$name)($object $(, $argument)*, reads) };
                    // SAFETY: `pthread_setcancelstate` requires a valid state: this one was set.
                    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
                    if result != READ {
                        return result;
                    }
                    let mut count = 0_u64;
                    let holder = $object;
                    $(
                        // SAFETY: the part has found a live object, whose pointer to the holder of
                        // the descriptor never changes.
                        let holder = unsafe { (*holder).$through };
                    )?
                    // SAFETY: the holder is live, as the part has found, and its descriptor never
                    // changes.
                    let fd = unsafe { (*holder).$fd };
                    // SAFETY: `read` requires an open descriptor, which the object's is, and as
                    // many writable bytes: `count` has 8.
                    if unsafe { read(fd, ptr::from_mut(&mut count).cast(), size_of::<u64>()) } < 0 {
                        return -1;
                    }
                    reads += 1;
                }
            }
        )*
    };
}

waits! {
    fn ibv_get_async_event(context.async_fd: ibv_context, event: *mut ibv_async_event);
    fn ibv_get_cq_event(channel.fd: ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void);
    fn rdma_get_cm_event(channel.fd: rdma_event_channel, event: *mut *mut rdma_cm_event);
    fn rdma_get_request(listen[channel].fd: rdma_cm_id, id: *mut *mut rdma_cm_id);
}
