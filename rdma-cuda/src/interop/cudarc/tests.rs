//! Drops of slices that cudarc still uses, on the stand-in; `tests/cudarc.rs` has the exchange.
//!
//! cudarc finds the driver library by its name alone, so the tests run in a process whose library
//! path has the stand-in by that name.

use std::os::unix::fs::symlink;
use std::sync::Weak;
use std::sync::mpsc::{Sender, channel};

use rdma_cuda_stand_in::Control;
use rdma_test_support::{passes_alone, where_logging_panics};

use super::*;
use crate::{GpuBuffer, Stream};

#[test]
fn a_drop_waits_neither_for_ever_nor_too_short() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(rdma_cuda_stand_in::path(), folder.path().join(name)).unwrap();
    }
    let tests = ["work_without_end_keeps_the_memory", "work_that_failed_keeps_the_memory", "work_that_ends_frees_it"];
    let tests = tests.map(|test| format!("interop::cudarc::tests::{test}"));
    let path = ("LD_LIBRARY_PATH", folder.path().to_str().unwrap());
    passes_alone(&tests.each_ref().map(String::as_str), &[path]);
}

/// Holds back the work of cudarc's stream until it is dropped, by the work of a stream of this
/// crate.
type Holder = (Sender<()>, Stream);

/// A lent slice on which cudarc's work is held back, and its memory.
fn lent() -> (Lent<f32>, Weak<dyn DeviceMemory>, Holder) {
    let (gpu, stream) = (Gpu::new(0).unwrap(), CudaContext::new(0).unwrap().new_stream().unwrap());
    let (buffer, own) = (GpuBuffer::<f32>::new(&gpu, 4).unwrap(), Stream::new(&gpu).unwrap());
    let memory = Arc::downgrade(&buffer.memory());
    let mut lent = Lent::new(Ready::assume(buffer.slice()), &stream).unwrap();
    let (holder, held) = channel::<()>();
    own.call_on_host(move || assert!(held.recv().is_err())).unwrap();
    let event = own.record().unwrap();
    // SAFETY: cuStreamWaitEvent requires a stream and an event that are not destroyed: both live.
    gpu.with(|driver| unsafe { driver.cuStreamWaitEvent(stream.cu_stream().addr(), event.handle(), 0) }).unwrap();
    stream.memset_zeros(&mut lent.view_mut()).unwrap();
    (lent, memory, (holder, own))
}

#[test]
#[ignore = "run by a_drop_waits_neither_for_ever_nor_too_short"]
fn work_without_end_keeps_the_memory() {
    let (mut lent, memory, holder) = lent();
    lent.patience = Duration::from_millis(20);
    drop(lent);
    assert!(memory.upgrade().is_some(), "the work goes on");
    drop(holder);
}

#[test]
#[ignore = "run by a_drop_waits_neither_for_ever_nor_too_short"]
fn work_that_failed_keeps_the_memory() {
    let (lent, memory, holder) = lent();
    Control::new().fail_next("cuStreamQuery", 999);
    assert!(where_logging_panics(|| drop(lent)).is_err(), "it is logged");
    assert!(memory.upgrade().is_some());
    drop(holder);
}

#[test]
#[ignore = "run by a_drop_waits_neither_for_ever_nor_too_short"]
fn work_that_ends_frees_it() {
    let (lent, memory, holder) = lent();
    let dropping = std::thread::spawn(move || drop(lent));
    assert!(memory.upgrade().is_some());
    drop(holder);
    dropping.join().unwrap();
    assert!(memory.upgrade().is_none());
}
