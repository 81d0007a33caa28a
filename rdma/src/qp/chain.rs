//! The work requests and scatter/gather lists of one post, allocated once per queue.
//!
//! The requests hold pointers to the lists and to each other, so both are accessed only through raw
//! pointers: a reference to a whole array would invalidate those pointers.

use std::hint;
use std::ptr::{self, NonNull};

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};

use crate::error::Verb;
use crate::pd::PdInner;
use crate::ring::MAX_SEGMENTS;

/// The maximum number of requests in a batch.
pub(super) const MAX_BATCH: u32 = 64;

/// A work request of the C interface.
pub(super) trait WorkRequest: Default + Copy {
    const VERB: Verb;

    fn set_list(&mut self, list: *mut ibv_sge);

    /// Sets the identifier and the number of list elements.
    fn describe(&mut self, wr_id: u64, segments: i32);

    /// The number of list elements.
    fn segments(&self) -> i32;

    fn set_next(&mut self, next: *mut Self);

    /// # Safety
    ///
    /// The queue pair is alive. The chain is valid during the call, and the memory that it names is
    /// valid for as long as the device may access it.
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
                self.num_sge = segments;
            }

            fn segments(&self) -> i32 {
                self.num_sge
            }

            fn set_next(&mut self, next: *mut Self) {
                self.next = next;
            }

            #[inline(always)]
            unsafe fn post(qp: *mut ibv_qp, chain: *mut Self, bad: &mut *mut Self) -> i32 {
                // SAFETY: `$post` requires a live queue pair, and a valid chain whose memory stays
                // valid: the contract of this function.
                unsafe { $post(qp, chain, bad) }
            }
        }
    )* };
}
work_requests! {
    ibv_send_wr, Verb::PostSend, rdma_sys::ibv_post_send;
    ibv_recv_wr, Verb::PostRecv, rdma_sys::ibv_post_recv;
}

/// A chain of work requests of type `W`, each with a list of `segments` elements.
///
/// Invariant **X1**: `wrs` and `sges` are allocations of initialised elements that the value owns,
/// with `segments` elements of `sges` for each request. References are made to one request or list
/// at a time, through `&mut self`. There is at least one request, and `segments` is at least 1.
///
/// Each request is a chain of its own, except while a batch is posted ([`link`](Self::link)).
pub(super) struct Chain<W> {
    wrs: NonNull<[W]>,
    sges: NonNull<[ibv_sge]>,
    segments: usize,
    /// The domain of the queue.
    pub(super) domain: *const PdInner,
}

// SAFETY: moving a chain to another thread is sound: the value owns both allocations (X1), pointers
// in the requests are written before each use, and the domain pointer is only compared.
unsafe impl<W> Send for Chain<W> {}
// SAFETY: sharing a chain is sound: `&Chain` gives access to pointers and lengths only.
unsafe impl<W> Sync for Chain<W> {}

fn allocate<E: Default + Clone>(len: usize) -> NonNull<[E]> {
    NonNull::from(Box::leak(vec![E::default(); len].into_boxed_slice()))
}

impl<W: WorkRequest> Chain<W> {
    pub(super) fn new(requests: usize, segments: usize, domain: *const PdInner) -> Self {
        let requests = requests.max(1);
        // No device supports as many segments as the limit of a slot's description.
        let segments = segments.clamp(1, MAX_SEGMENTS);
        let mut this = Self { wrs: allocate(requests), sges: allocate(requests * segments), segments, domain };
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

    /// The address of the list of request `at`, if there is such a request.
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
        // SAFETY: the reference requires an initialised element that nothing else borrows: `at` is
        // in bounds (checked), and the element is owned and borrowed through `&mut self` only (X1).
        let wr = unsafe { &mut *self.first().wrapping_add(at) };
        // SAFETY: the reference requires initialised elements that nothing else borrows: there is a
        // list for each request, in another allocation than `wr` (X1).
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(self.list(at), self.segments) };
        Some((wr, list))
    }

    /// Request 0 and its list.
    #[inline(always)]
    pub(super) fn request_0(&mut self) -> (&mut W, &mut [ibv_sge]) {
        // SAFETY: the reference requires an initialised element that nothing else borrows: there is
        // one, owned and borrowed through `&mut self` only (X1).
        let wr = unsafe { &mut *self.first() };
        // SAFETY: the reference requires initialised elements that nothing else borrows: there is a
        // list for each request, in another allocation than `wr` (X1).
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(self.list(0), self.segments) };
        // SAFETY: assert_unchecked requires a true condition: `segments` is at least 1 (X1).
        unsafe { hint::assert_unchecked(!list.is_empty()) };
        (wr, list)
    }

    /// The number of bytes of request `at`, which was described.
    pub(super) fn bytes(&mut self, at: usize) -> u64 {
        let Some((wr, list)) = self.request(at) else { return 0 };
        let segments = usize::try_from(wr.segments()).unwrap_or(0);
        list.iter().take(segments).map(|sge| u64::from(sge.length)).sum()
    }

    /// Links the first `count` requests to one chain, or separates them.
    pub(super) fn link(&mut self, count: u32, is_chain: bool) {
        let first = self.first();
        for at in 1..count as usize {
            if let Some((before, _)) = self.request(at - 1) {
                before.set_next(if is_chain { first.wrapping_add(at) } else { ptr::null_mut() });
            }
        }
    }

    /// The position of the request that a provider's pointer names, if the request is one of the
    /// first `count`.
    pub(super) fn position(&self, request: *mut W, count: u32) -> Option<u32> {
        (0..count).find(|&at| ptr::eq(self.first().wrapping_add(at as usize), request))
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        // SAFETY: Box::from_raw requires a pointer from a leaked box that is freed once: `allocate`
        // leaked it in `new`, and only this drop frees it (X1).
        drop(unsafe { Box::from_raw(self.wrs.as_ptr()) });
        // SAFETY: Box::from_raw requires a pointer from a leaked box that is freed once: `allocate`
        // leaked it in `new`, and only this drop frees it (X1).
        drop(unsafe { Box::from_raw(self.sges.as_ptr()) });
    }
}
