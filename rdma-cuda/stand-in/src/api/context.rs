//! Primary contexts, and the stack of current contexts of each thread.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codes::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::entry::{Out, call, put};
use crate::gpus::{self, MODELS};

/// The handle of GPU 0's context.
const FIRST: usize = 0x4000_0000;

static RETAINED: [AtomicUsize; MODELS.len()] = [const { AtomicUsize::new(0) }; MODELS.len()];

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The GPU of the current context.
pub(crate) fn current() -> Result<c_int, Code> {
    device_of(STACK.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?)
}

/// The handle of a GPU's context.
pub(crate) fn context_of(device: c_int) -> usize {
    FIRST + usize::try_from(device).unwrap_or(0)
}

/// The GPU of a context that is retained.
fn device_of(context: usize) -> Result<c_int, Code> {
    let device = context.checked_sub(FIRST).filter(|&device| device < MODELS.len()).ok_or(INVALID_CONTEXT)?;
    if RETAINED[device].load(Ordering::Acquire) == 0 {
        return Err(INVALID_CONTEXT);
    }
    c_int::try_from(device).map_err(|_| INVALID_CONTEXT)
}

fn retained(device: c_int) -> Result<&'static AtomicUsize, Code> {
    gpus::model(device).ok_or(INVALID_DEVICE)?;
    usize::try_from(device).ok().and_then(|device| RETAINED.get(device)).ok_or(INVALID_DEVICE)
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<'_, usize>, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", || {
        retained(device)?.fetch_add(1, Ordering::AcqRel);
        put(context, context_of(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRelease_v2", || {
        let less = |count: usize| count.checked_sub(1);
        let released = retained(device)?.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        released.map(drop).map_err(|_| INVALID_CONTEXT)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> c_int {
    call("cuCtxPushCurrent_v2", || {
        device_of(context)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<'_, usize>) -> c_int {
    call("cuCtxPopCurrent_v2", || put(context, STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<'_, usize>) -> c_int {
    call("cuCtxGetCurrent", || put(context, STACK.with_borrow(|stack| stack.last().copied()).unwrap_or(0)))
}

/// Replaces the top of the stack; NULL pops it.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> c_int {
    call("cuCtxSetCurrent", || {
        if context != 0 {
            device_of(context)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend((context != 0).then_some(context));
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    call("cuFlushGPUDirectRDMAWrites", || {
        let device = current()?;
        match (target, scope) {
            (0, 100 | 200) if gpus::has(device, gpus::FLUSH_OPTIONS) => Ok(()),
            (0, 100 | 200) => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    })
}
