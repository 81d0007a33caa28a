//! Streams, events, copies and host functions.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::context::{self, current};
use crate::codes::{Code, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::entry::{IN_HOST_FUNCTION, Out, call, new_handle, put};
use crate::knobs::KNOBS;
use crate::space::space;
use crate::work::{Event, Stream};

static STREAMS: LazyLock<Mutex<HashMap<usize, Arc<Stream>>>> = LazyLock::new(Mutex::default);
/// Events, with the GPU of each.
static EVENTS: LazyLock<Mutex<Events>> = LazyLock::new(Mutex::default);

type Events = HashMap<usize, (c_int, Arc<Event>)>;

fn streams() -> MutexGuard<'static, HashMap<usize, Arc<Stream>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn events() -> MutexGuard<'static, Events> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn live() -> usize {
    streams().len() + events().len()
}

/// The stream of a handle; 0 is the default stream of the current context.
pub(crate) fn stream(handle: usize) -> Result<Arc<Stream>, Code> {
    let device = current()?;
    if handle != 0 {
        return streams().get(&handle).cloned().ok_or(INVALID_HANDLE);
    }
    // The handle of a context is not that of a stream, so it can stand for the default stream.
    let mut streams = streams();
    Ok(Arc::clone(streams.entry(context::context_of(device)).or_insert_with(|| Arc::new(Stream::new(device)))))
}

fn event(handle: usize) -> Result<(c_int, Arc<Event>), Code> {
    events().get(&handle).cloned().ok_or(INVALID_HANDLE)
}

/// Waits for all streams of a GPU.
fn synchronize_all(device: c_int) -> Result<(), Code> {
    let all: Vec<_> = streams().values().filter(|stream| stream.device == device).cloned().collect();
    all.iter().try_for_each(|stream| stream.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(handle: Out<'_, usize>, flags: c_uint) -> c_int {
    call("cuStreamCreate", || {
        let new = Arc::new(Stream::new(current()?));
        let number = new_handle();
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        put(handle, number)?;
        streams().insert(number, new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: usize) -> c_int {
    call("cuStreamDestroy_v2", || streams().remove(&handle).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: usize) -> c_int {
    call("cuStreamSynchronize", || stream(handle)?.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: usize) -> c_int {
    call("cuStreamQuery", || if stream(handle)?.is_done()? { Ok(()) } else { Err(NOT_READY) })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: usize, awaited: usize, flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", || {
        let (stream, (_, event)) = (stream(handle)?, event(awaited)?);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        event.hold_back(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(handle: Out<'_, usize>, _flags: c_uint) -> c_int {
    call("cuEventCreate", || {
        let (device, number) = (current()?, new_handle());
        put(handle, number)?;
        events().insert(number, (device, Arc::default()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: usize) -> c_int {
    call("cuEventDestroy_v2", || events().remove(&handle).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: usize, in_stream: usize) -> c_int {
    call("cuEventRecord", || {
        let ((device, event), stream) = (event(handle)?, stream(in_stream)?);
        if device != stream.device {
            return Err(INVALID_HANDLE);
        }
        event.record(&stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: usize) -> c_int {
    call("cuEventQuery", || if event(handle)?.1.is_done()? { Ok(()) } else { Err(NOT_READY) })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: usize) -> c_int {
    call("cuEventSynchronize", || event(handle)?.1.synchronize())
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    in_stream: usize,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> c_int {
    call("cuLaunchHostFunc", || {
        let (stream, function) = (stream(in_stream)?, function.ok_or(INVALID_VALUE)?);
        let data = data.expose_provenance();
        stream.push(move |failed| {
            if failed.is_none() {
                IN_HOST_FUNCTION.set(true);
                // SAFETY: the caller of cuLaunchHostFunc lets the function run once with this data.
                unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
                IN_HOST_FUNCTION.set(false);
            }
            None
        });
        Ok(())
    })
}

/// One side of a copy.
#[derive(Clone, Copy)]
enum Place {
    Device(usize),
    Host(usize),
}

impl Place {
    /// Whether the bytes can be accessed now. Host memory is the caller's promise.
    fn check(self, length: usize) -> Result<(), Code> {
        match self {
            Self::Device(address) => space().bytes(address, length).map(drop).ok_or(INVALID_VALUE),
            Self::Host(0) => Err(INVALID_VALUE),
            Self::Host(_) => Ok(()),
        }
    }
}

/// Copies as a stream does when the copy's turn has come.
fn run_copy(to: Place, from: Place, length: usize) -> Option<Code> {
    // Held during the copy, so that the memory stays mapped.
    let space = space();
    let pointer = |place| match place {
        Place::Device(address) => space.bytes(address, length).map(|bytes| bytes.as_ptr().cast::<u8>()),
        Place::Host(address) => Some(std::ptr::with_exposed_provenance_mut::<u8>(address)),
    };
    let (Some(to), Some(from)) = (pointer(to), pointer(from)) else { return Some(ILLEGAL_ADDRESS) };
    // SAFETY: copy requires that both sides have `length` bytes: `bytes` has checked device memory,
    // and the caller of the exported function promises it for host memory until the copy is done.
    unsafe { std::ptr::copy(from.cast_const(), to, length) };
    None
}

/// Gives a copy to a stream.
fn copy(in_stream: usize, to: Place, from: Place, length: usize) -> Result<(), Code> {
    let stream = stream(in_stream)?;
    to.check(length)?;
    from.check(length)?;
    stream.push(move |failed| {
        let end = Instant::now() + KNOBS.copy_time(length);
        let result = failed.or_else(|| run_copy(to, from, length));
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        result
    });
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, length: usize, in_stream: usize) -> c_int {
    let from = Place::Host(from.expose_provenance());
    call("cuMemcpyHtoDAsync_v2", || copy(in_stream, Place::Device(to), from, length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, length: usize, in_stream: usize) -> c_int {
    let to = Place::Host(to.expose_provenance());
    call("cuMemcpyDtoHAsync_v2", || copy(in_stream, to, Place::Device(from), length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, length: usize, in_stream: usize) -> c_int {
    call("cuMemcpyDtoDAsync_v2", || copy(in_stream, Place::Device(to), Place::Device(from), length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: usize,
    _to_context: usize,
    from: usize,
    _from_context: usize,
    length: usize,
    in_stream: usize,
) -> c_int {
    call("cuMemcpyPeerAsync", || copy(in_stream, Place::Device(to), Place::Device(from), length))
}

/// Copies from pageable memory: the bytes are taken at once, and arrive late, as with the real
/// driver.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, length: usize) -> c_int {
    call("cuMemcpyHtoD_v2", || {
        Place::Device(to).check(length)?;
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: from_raw_parts requires initialised bytes that nobody changes during the call,
        // which the caller promises.
        let staged = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec();
        stream(0)?.push(move |failed| {
            let from = Place::Host(staged.as_ptr().expose_provenance());
            failed.or_else(|| run_copy(Place::Device(to), from, length))
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, length: usize) -> c_int {
    let to = Place::Host(to.expose_provenance());
    call("cuMemcpyDtoH_v2", || {
        copy(0, to, Place::Device(from), length)?;
        stream(0)?.synchronize()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: usize, value: u8, length: usize, in_stream: usize) -> c_int {
    call("cuMemsetD8Async", || {
        let stream = stream(in_stream)?;
        Place::Device(to).check(length)?;
        stream.push(move |failed| {
            let bytes = vec![value; length];
            let from = Place::Host(bytes.as_ptr().expose_provenance());
            failed.or_else(|| run_copy(Place::Device(to), from, length))
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    call("cuCtxSynchronize", || synchronize_all(current()?))
}
