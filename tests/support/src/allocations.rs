//! An allocator that counts its calls, for tests which show that a data path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Call stacks that [`sites`] returns at most, for each thread.
const MOST_SITES: usize = 4;

static ALL: AtomicU64 = AtomicU64::new(0);
/// Call stacks, and their threads.
static SITES: Mutex<Vec<(usize, String)>> = Mutex::new(Vec::new());

thread_local! {
    // Without a destructor, so that the first use on a thread allocates nothing.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    static NOTES_SITES: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator with a count of the calls that allocate memory. A test program uses it as
/// its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Number of allocations and reallocations of all threads so far.
#[must_use]
pub fn of_process() -> u64 {
    ALL.load(Ordering::Relaxed)
}

/// Number of allocations and reallocations of this thread so far.
#[must_use]
pub fn of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

/// The call stacks of the first allocations that this thread makes in `work`, for the message of a
/// test that fails.
pub fn sites(work: impl FnOnce()) -> Vec<String> {
    NOTES_SITES.with(|notes| notes.set(true));
    work();
    NOTES_SITES.with(|notes| notes.set(false));
    let (thread, mut sites) = (this_thread(), SITES.lock().unwrap_or_else(PoisonError::into_inner));
    let (own, others) = mem::take(&mut *sites).into_iter().partition(|(of, _)| *of == thread);
    *sites = others;
    let own: Vec<(usize, String)> = own;
    own.into_iter().map(|(_, site)| site).collect()
}

/// A number that no other thread has that lives.
fn this_thread() -> usize {
    OF_THREAD.with(|count| std::ptr::from_ref(count).addr())
}

fn count() {
    ALL.fetch_add(1, Ordering::Relaxed);
    let of_thread = OF_THREAD.with(|count| count.replace(count.get() + 1)) + 1;
    if NOTES_SITES.with(|notes| notes.replace(false)) {
        let (thread, mut sites) = (this_thread(), SITES.lock().unwrap_or_else(PoisonError::into_inner));
        if sites.iter().filter(|(of, _)| *of == thread).count() < MOST_SITES {
            sites.push((thread, Backtrace::force_capture().to_string()));
        }
        drop(sites);
        // Those for the call stack do not count.
        OF_THREAD.with(|count| count.set(of_thread));
        NOTES_SITES.with(|notes| notes.set(true));
    }
}

// SAFETY: GlobalAlloc requires memory that fits the layout, and no unwinding. Every call goes to
// `System`, which fulfils both, with unchanged arguments. The count touches no memory of the
// caller. Its allocations, for call stacks, come here again and are not noted: it does not recurse.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: `System.alloc` requires a layout of non-zero size: this method's contract
        // requires the same of its caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: `System.alloc_zeroed` requires a layout of non-zero size: this method's contract
        // requires the same of its caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `System.realloc` requires memory that `System` allocated with this layout, and a
        // valid new size: this method's contract requires memory of this allocator, which comes
        // from `System` alone, and the same condition on the size.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `System.dealloc` requires memory that `System` allocated with this layout: this
        // method's contract requires memory of this allocator, which comes from `System` alone.
        unsafe { System.dealloc(block, layout) };
    }
}
