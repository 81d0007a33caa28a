//! Room for the work requests and scatter/gather lists of one post, allocated once per queue.
//!
//! The requests hold pointers to the lists and to each other, so both are only ever reached by raw
//! pointers: a reference to all of them would end the validity of those pointers.

use std::hint;
use std::ptr::{self, NonNull};

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};

use crate::error::Operation as Verb;

/// A work request of the C interface.
pub(super) trait WorkRequest: Default + Copy {
    const VERB: Verb;

    fn set_list(&mut self, list: *mut ibv_sge);

    /// Makes it the end of a chain, with so many elements in its list.
    fn describe(&mut self, wr_id: u64, segments: i32);

    fn set_next(&mut self, next: *mut Self);

    /// # Safety
    ///
    /// The queue pair lives, and the chain and the memory that it names are valid for as long as
    /// the device has them.
    unsafe fn post(qp: *mut ibv_qp, chain: *mut Self, bad: &mut *mut Self) -> i32;
}

macro_rules! work_requests {
    ($($wr:ty, $verb:expr, $post:path;)*) => { $(
        impl WorkRequest for $wr {
            const VERB: Verb = $verb;

            fn set_list(&mut self, list: *mut ibv_sge) {
                self.sg_list = list;
            }

            #[inline(always)]
            fn describe(&mut self, wr_id: u64, segments: i32) {
                self.wr_id = wr_id;
                self.next = ptr::null_mut();
                self.num_sge = segments;
            }

            fn set_next(&mut self, next: *mut Self) {
                self.next = next;
            }

            #[inline(always)]
            unsafe fn post(qp: *mut ibv_qp, chain: *mut Self, bad: &mut *mut Self) -> i32 {
                // SAFETY: the caller keeps the queue pair, the chain and its memory.
                unsafe { $post(qp, chain, bad) }
            }
        }
    )* };
}
work_requests! {
    ibv_send_wr, Verb::PostSend, rdma_sys::ibv_post_send;
    ibv_recv_wr, Verb::PostRecv, rdma_sys::ibv_post_recv;
}

/// Room for a chain of work requests of type `W`, each with a list of `segments` elements.
///
/// Invariant **X1**: `wrs` and `sges` are allocations of initialised elements that the value owns,
/// `segments` elements for each request; references are made to one request or list at a time,
/// through `&mut self`. `segments` is at least 1.
pub(super) struct Chain<W> {
    wrs: NonNull<[W]>,
    sges: NonNull<[ibv_sge]>,
    segments: usize,
}

// SAFETY: the value owns both allocations; pointers in the requests are written before each use.
unsafe impl<W> Send for Chain<W> {}
// SAFETY: `&Chain` reads nothing but pointers and lengths.
unsafe impl<W> Sync for Chain<W> {}

fn allocate<E: Default + Clone>(len: usize) -> NonNull<[E]> {
    NonNull::from(Box::leak(vec![E::default(); len].into_boxed_slice()))
}

impl<W: WorkRequest> Chain<W> {
    pub(super) fn new(requests: usize, segments: usize) -> Self {
        // The upper limit is one of the ring: no device has so many.
        let segments = segments.clamp(1, 0x7fff);
        let mut this = Self { wrs: allocate(requests), sges: allocate(requests * segments), segments };
        for at in 0..requests {
            let list = this.list(at);
            if let Some((wr, _)) = this.request(at) {
                wr.set_list(list);
            }
        }
        this
    }

    /// The first request.
    #[inline]
    pub(super) fn first(&self) -> *mut W {
        self.wrs.as_ptr().cast()
    }

    /// Where the list of request `at` lies, if there are so many.
    #[inline(always)]
    fn list(&self, at: usize) -> *mut ibv_sge {
        self.sges.as_ptr().cast::<ibv_sge>().wrapping_add(at * self.segments)
    }

    /// Request `at` and its list; none if there are fewer requests.
    #[inline]
    pub(super) fn request(&mut self, at: usize) -> Option<(&mut W, &mut [ibv_sge])> {
        if at >= self.wrs.len() {
            return None;
        }
        // SAFETY: X1: in bounds (checked); initialised, owned, and borrowed alone, with `self`.
        let wr = unsafe { &mut *self.first().wrapping_add(at) };
        // SAFETY: X1: in bounds, as there is a list for each request; it does not overlap `wr`.
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(self.list(at), self.segments) };
        Some((wr, list))
    }

    /// Request 0 and its list.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    pub(super) unsafe fn request_0(&mut self) -> (&mut W, &mut [ibv_sge]) {
        // SAFETY: there is one; X1: initialised, owned, and borrowed alone, with `self`.
        let wr = unsafe { &mut *self.first() };
        // SAFETY: X1: there is a list for each request; it does not overlap `wr`.
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(self.list(0), self.segments) };
        // SAFETY: X1: at least one.
        unsafe { hint::assert_unchecked(!list.is_empty()) };
        (wr, list)
    }

    /// Chains request `at` behind the one before it.
    pub(super) fn link(&mut self, at: usize) {
        let next = self.first().wrapping_add(at);
        if let Some((before, _)) = at.checked_sub(1).and_then(|before| self.request(before)) {
            before.set_next(next);
        }
    }

    /// Whether a pointer that a provider returned is to one of the first `count` requests; to
    /// which.
    pub(super) fn position(&self, request: *mut W, count: u32) -> Option<u32> {
        (0..count).find(|&at| ptr::eq(self.first().wrapping_add(at as usize), request))
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        // SAFETY: X1: leaked from a box in `new`, and freed once.
        drop(unsafe { Box::from_raw(self.wrs.as_ptr()) });
        // SAFETY: X1: leaked from a box in `new`, and freed once.
        drop(unsafe { Box::from_raw(self.sges.as_ptr()) });
    }
}
