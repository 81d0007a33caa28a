//! An allocator that counts its calls, to show that a data path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with a count of the calls that hand out memory. A benchmark makes it its
/// `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// The allocations and reallocations of this process so far, if [`Counting`] is its allocator.
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

// SAFETY: GlobalAlloc wants valid memory of the layout, and no unwinding: every call goes to
// `System`, which keeps the contract, with unchanged arguments, and the count touches no memory of
// the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: alloc wants a layout of more than no bytes, which this method, the same one,
        // wants of its caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: alloc_zeroed wants a layout of more than no bytes, which this method wants of its
        // caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: dealloc wants memory of `System` with this layout: this method wants memory of
        // this allocator, which is `System`'s.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: realloc wants memory of `System` with this layout, and a valid new size: this
        // method wants memory of this allocator, which is `System`'s, and the same size.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
