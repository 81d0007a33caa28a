//! Room for the requests and lists of one post, allocated once per queue.
//!
//! The requests hold pointers to the lists and to each other, so both are only ever reached by raw pointers: a reference to
//! all of them would end the validity of those pointers.

use std::hint;
use std::ptr::{self, NonNull};

use rdma_sys::{ibv_send_wr, ibv_sge};

/// Room for `requests` work requests of type `W`, each with a list of `segments`.
///
/// Invariant **X1**: `wrs` and `sges` are allocations of `requests` and `requests * segments` initialised elements, which the value
/// owns; references are made to one element or list at a time, through `&mut self`. `segments` is at least 1.
pub(super) struct Scratch<W> {
    wrs: NonNull<[W]>,
    sges: NonNull<[ibv_sge]>,
    segments: usize,
}

// SAFETY: the value owns both allocations; pointers in the requests are written before each use.
unsafe impl<W> Send for Scratch<W> {}
// SAFETY: `&Scratch` gives nothing.
unsafe impl<W> Sync for Scratch<W> {}

impl<W: Default + Copy> Scratch<W> {
    /// `point` makes a request point to its list, which stays where it is.
    pub(super) fn new(requests: usize, segments: usize, point: impl Fn(&mut W, *mut ibv_sge)) -> Self {
        // The upper limit is one of the ring: no device has so many.
        let segments = segments.clamp(1, 0x7fff);
        let wrs = Box::into_raw(vec![W::default(); requests].into_boxed_slice());
        let sges = Box::into_raw(vec![ibv_sge::default(); requests * segments].into_boxed_slice());
        // SAFETY: the pointer of a box is not null.
        let wrs = unsafe { NonNull::new_unchecked(wrs) };
        // SAFETY: as above.
        let sges = unsafe { NonNull::new_unchecked(sges) };
        let mut this = Self { wrs, sges, segments };
        for at in 0..requests {
            let list = this.list(at);
            if let Some((wr, _)) = this.request(at) {
                point(wr, list);
            }
        }
        this
    }
}

impl<W> Scratch<W> {
    /// The first request.
    #[inline]
    pub(super) fn first(&self) -> *mut W {
        self.wrs.as_ptr().cast()
    }

    /// Where the list of request `at` lies, if there are so many.
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
        // SAFETY: X1: in bounds.
        let sges = unsafe { self.sges.as_ptr().cast::<ibv_sge>().add(at * self.segments) };
        // SAFETY: X1: as for `wr`, with which it does not overlap.
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(sges, self.segments) };
        Some((wr, list))
    }

    /// Request 0 and its list.
    ///
    /// # Safety
    ///
    /// There is one.
    #[inline(always)]
    pub(super) unsafe fn request_0(&mut self) -> (&mut W, &mut [ibv_sge]) {
        // SAFETY: X1, and the caller's promise: initialised, owned, and borrowed alone, with `self`.
        let wr = unsafe { &mut *self.first() };
        let sges = self.sges.as_ptr().cast::<ibv_sge>();
        // SAFETY: X1: as for `wr`, with which it does not overlap.
        let list = unsafe { &mut *ptr::slice_from_raw_parts_mut(sges, self.segments) };
        // SAFETY: X1: at least one.
        unsafe { hint::assert_unchecked(!list.is_empty()) };
        (wr, list)
    }

    /// How many requests there is room for.
    pub(super) fn len(&self) -> usize {
        self.wrs.len()
    }

    /// Whether a pointer that a provider returned is to one of the first `count` requests; to which.
    pub(super) fn position(&self, request: *mut W, count: u32) -> Option<u32> {
        (0..count).find(|&at| ptr::eq(self.first().wrapping_add(at as usize), request))
    }
}

impl Scratch<ibv_send_wr> {
    /// Takes the chain apart, so that each request is the end of one.
    pub(super) fn unlink(&mut self, count: usize) {
        for at in 0..count.min(self.len()) {
            // SAFETY: X1: in bounds, initialised and owned.
            unsafe { (*self.first().wrapping_add(at)).next = ptr::null_mut() };
        }
    }

    /// Chains the first `count` requests; each is the end of a chain as yet.
    pub(super) fn link(&mut self, count: usize) {
        for at in 1..count.min(self.len()) {
            let next = self.first().wrapping_add(at);
            // SAFETY: X1: in bounds, initialised and owned.
            unsafe { (*self.first().wrapping_add(at - 1)).next = next };
        }
    }
}

impl<W> Drop for Scratch<W> {
    fn drop(&mut self) {
        // SAFETY: X1: from Box::into_raw, freed once.
        drop(unsafe { Box::from_raw(self.wrs.as_ptr()) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.sges.as_ptr()) });
    }
}
