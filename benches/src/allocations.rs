//! An allocator that counts its calls, to show that a data path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a count of the calls that allocate memory. A benchmark uses it as
/// its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Number of allocations and reallocations of this process so far, if [`Counting`] is its
/// allocator.
#[must_use]
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

// SAFETY: GlobalAlloc requires memory that fits the layout, and no unwinding. Every call goes to
// `System`, which fulfils both, with unchanged arguments; the count touches no memory of the caller
// and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `System.alloc` requires a layout of non-zero size: this method's contract
        // requires the same of its caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `System.alloc_zeroed` requires a layout of non-zero size: this method's contract
        // requires the same of its caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `System.dealloc` requires memory that `System` allocated with this layout: this
        // method's contract requires memory of this allocator, which comes from `System` alone.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `System.realloc` requires memory that `System` allocated with this layout, and a
        // valid new size: this method's contract requires memory of this allocator, which comes
        // from `System` alone, and the same condition on the size.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
