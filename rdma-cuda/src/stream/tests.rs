//! Tests of streams, events, and values that are pending.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use rdma_cuda_stand_in::Control;

use super::*;
use crate::memory::DeviceMemory;
use crate::{GpuBuffer, testing};

fn gpu() -> Gpu {
    testing::driver().gpu(0).unwrap()
}

/// Holds a stream back until the result is dropped. Memory is allocated before, because a real
/// driver may wait for all work then.
fn hold(stream: &Stream) -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    stream.call_on_host(move || assert!(receiver.recv().is_err())).unwrap();
    sender
}

/// A buffer with the numbers from `first` on.
fn numbers(stream: &Stream, first: u32, len: u32) -> GpuBuffer<u32> {
    let buffer = GpuBuffer::new(stream.gpu(), len as usize).unwrap();
    stream.upload(&buffer.slice(), &(first..first + len).collect::<Vec<_>>()).unwrap();
    buffer
}

fn content(stream: &Stream, slice: &GpuSlice<u32>) -> Vec<u32> {
    let mut content = vec![0; slice.len()];
    stream.download(slice, &mut content).unwrap();
    content
}

fn weak(buffer: &GpuBuffer<u32>) -> Weak<dyn DeviceMemory> {
    Arc::downgrade(&buffer.memory())
}

#[test]
fn elements_come_back_as_they_went() {
    for gpu in testing::driver().gpus().unwrap() {
        let stream = Stream::new(&gpu).unwrap();
        let slice = numbers(&stream, 0, 100_000).slice();
        assert!(content(&stream, &slice).into_iter().eq(0..100_000));
        assert_eq!(content(&stream, &slice.range(500..502).unwrap()), [500, 501]);
    }
}

#[test]
fn a_copy_leaves_the_neighbours_alone() {
    let stream = Stream::new(&gpu()).unwrap();
    let (from, to) = (numbers(&stream, 100, 10), numbers(&stream, 0, 10));
    stream.copy(&to.slice().range(3..5).unwrap(), &from.slice().range(..2).unwrap()).unwrap();
    stream.fill(&to.slice().range(9..).unwrap(), 0xff).unwrap();
    assert_eq!(content(&stream, &to.slice()), [0, 1, 2, 100, 101, 5, 6, 7, 8, u32::MAX]);
}

#[test]
fn gpus_copy_from_each_other() {
    let gpus = testing::driver().gpus().unwrap();
    let [first, second, ..] = &gpus[..] else {
        return rdma_test_support::skip("there is one GPU only");
    };
    let (here, there) = (Stream::new(first).unwrap(), Stream::new(second).unwrap());
    let (from, to) = (numbers(&here, 7, 1000), GpuBuffer::<u32>::new(second, 1000).unwrap());
    here.copy(&to.slice(), &from.slice()).unwrap();
    here.synchronize().unwrap();
    assert!(content(&there, &to.slice()).into_iter().eq(7..1007));
}

#[test]
fn sides_of_different_lengths_are_an_error() {
    let stream = Stream::new(&gpu()).unwrap();
    let slice = numbers(&stream, 0, 10).slice();
    let error = stream.upload(&slice, &[1]).unwrap_err();
    assert_eq!(error.to_string(), "a copy of 1 elements into 10: both sides must have the same number");
    assert!(stream.download(&slice, &mut [0; 11]).is_err());
    assert!(stream.copy(&slice, &slice.range(1..).unwrap()).is_err());
    assert!(stream.upload_pinned(&slice, PinnedBuffer::new(stream.gpu(), 9).unwrap()).is_err());
}

#[test]
fn an_asynchronous_copy_has_the_buffer_until_it_is_done() {
    let stream = Stream::new(&gpu()).unwrap();
    let slice = numbers(&stream, 0, 1000).slice();
    let mut pinned = PinnedBuffer::new(stream.gpu(), 1000).unwrap();
    pinned.fill(7);

    let held = hold(&stream);
    let mut pending = stream.upload_pinned(&slice, pinned).unwrap();
    assert!(pending.poll().unwrap().is_none());
    assert!(!stream.is_done().unwrap());
    drop(held);
    let pinned = pending.wait().unwrap();
    assert_eq!(content(&stream, &slice), [7; 1000]);

    stream.fill(&slice, 1).unwrap();
    let pinned = stream.download_pinned(&slice, pinned).unwrap().wait().unwrap();
    assert_eq!(*pinned, [0x0101_0101; 1000]);
}

#[test]
fn dropped_buffers_live_until_their_work_is_done() {
    let stream = Stream::new(&gpu()).unwrap();
    let (from, to) = (numbers(&stream, 0, 1000), numbers(&stream, 1, 1000));
    let memories = [weak(&from), weak(&to)];
    let pinned = PinnedBuffer::new(stream.gpu(), 1000).unwrap();
    let held = hold(&stream);
    stream.copy(&to.slice(), &from.slice()).unwrap();
    let pending = stream.download_pinned(&to.slice(), pinned).unwrap();
    drop((from, to, pending));
    assert!(memories.iter().all(|memory| memory.upgrade().is_some()));
    drop(held);
    stream.synchronize().unwrap();
    assert!(memories.iter().all(|memory| memory.upgrade().is_none()));
}

#[test]
fn a_dropped_stream_finishes_its_work() {
    let gpu = gpu();
    let (stream, other) = (Stream::new(&gpu).unwrap(), Stream::new(&gpu).unwrap());
    let to = numbers(&other, 1, 1000);
    let from = numbers(&other, 5, 1000);
    stream.copy(&to.slice(), &from.slice()).unwrap();
    drop((stream, from));
    assert!(content(&other, &to.slice()).into_iter().eq(5..1005));
}

#[test]
fn what_failed_work_uses_leaks() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let buffer = numbers(&stream, 0, 10);
    let memory = weak(&buffer);
    let held = hold(&stream);
    stream.fill(&buffer.slice(), 1).unwrap();
    drop(buffer);
    // The error says nothing about the work, which goes on.
    Control::new().fail_next("cuStreamQuery", 999);
    drop(stream);
    assert!(memory.upgrade().is_some());
    drop(held);
}

#[test]
fn a_dropped_stream_does_not_wait_for_ever() {
    let mut stream = Stream::new(&gpu()).unwrap();
    let buffer = numbers(&stream, 0, 10);
    let memory = weak(&buffer);
    let held = hold(&stream);
    stream.fill(&buffer.slice(), 1).unwrap();
    drop(buffer);
    stream.patience = Duration::from_millis(20);
    drop(stream);
    assert!(memory.upgrade().is_some(), "the work goes on");
    drop(held);
}

#[test]
fn what_a_stream_uses_leaks_where_a_log_message_panics() {
    // The wait fails; then the wait goes well, but the context stays current.
    for call in ["cuStreamQuery", "cuCtxPopCurrent_v2"] {
        let stream = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
        let value = Arc::new(());
        let held = (call == "cuStreamQuery").then(|| hold(&stream));
        stream.keep(Arc::clone(&value)).unwrap();
        Control::new().fail_next(call, 999);
        let dropped = rdma_test_support::where_logging_panics(|| drop(stream));
        assert!(dropped.is_err(), "{call}");
        assert_eq!(Arc::strong_count(&value), 2, "{call}");
        drop(held);
    }
}

#[test]
fn the_value_of_failed_work_is_lost() {
    let stream = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
    let buffer = numbers(&stream, 0, 10);
    let memory = weak(&buffer);
    let pending = stream.ready_later(buffer.slice()).unwrap();
    drop(buffer);
    Control::new().fail_next("cuEventSynchronize", 9999);
    assert_eq!(pending.wait().unwrap_err().cuda().unwrap().code(), 9999);
    assert!(memory.upgrade().is_some());
}

#[test]
fn a_refused_copy_is_an_error_and_the_stream_goes_on() {
    let stream = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
    let slice = numbers(&stream, 0, 10).slice();
    for call in ["cuMemcpyDtoDAsync_v2", "cuEventCreate", "cuEventRecord"] {
        Control::new().fail_next(call, 9999);
        assert_eq!(stream.copy(&slice, &slice).unwrap_err().cuda().unwrap().call(), call);
    }
    stream.copy(&slice, &slice).unwrap();
    assert!(content(&stream, &slice).into_iter().eq(0..10));
}

#[test]
fn a_slice_is_ready_when_the_work_before_is_done() {
    let stream = Stream::new(&gpu()).unwrap();
    let slice = numbers(&stream, 0, 1000).slice();
    let held = hold(&stream);
    stream.fill(&slice, 9).unwrap();
    let mut pending = stream.ready_later(slice.clone()).unwrap();
    assert!(pending.poll().unwrap().is_none());
    drop(held);
    let ready = pending.wait().unwrap();
    assert_eq!(ready.get().address(), slice.address());
    assert!(stream.ready(slice).is_ok());
}

#[test]
fn a_stream_waits_for_another_ones_event() {
    let gpu = gpu();
    let (first, second) = (Stream::new(&gpu).unwrap(), Stream::new(&gpu).unwrap());
    let slice = numbers(&first, 0, 10).slice();
    let held = hold(&first);
    first.fill(&slice, 1).unwrap();
    let event = first.record().unwrap();
    second.wait_for(&event).unwrap();
    second.fill(&slice, 2).unwrap();
    let copied = second.record().unwrap();
    assert!(!event.is_done().unwrap() && !copied.is_done().unwrap());
    drop((event, held));
    copied.wait().unwrap();
    assert_eq!(content(&second, &slice), [0x0202_0202; 10]);
}

#[test]
fn a_host_function_cannot_call_cuda_and_may_panic() {
    let gpu = gpu();
    let stream = Stream::new(&gpu).unwrap();
    let (sender, receiver) = channel();
    let inside = gpu.clone();
    stream.call_on_host(move || sender.send(inside.synchronize()).unwrap()).unwrap();
    let error = receiver.recv().unwrap().unwrap_err();
    assert_eq!(error.cuda().unwrap().code(), CudaError::NOT_PERMITTED);
    stream.call_on_host(|| panic!("expected by the test")).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_host_function_cannot_ask_the_driver_either() {
    let driver = testing::stand_in();
    let gpu = driver.gpu(0).unwrap();
    let stream = Stream::new(&gpu).unwrap();
    let (sender, receiver) = channel();
    let inside = gpu.clone();
    let ask = move || {
        let results = [
            driver.gpus().map(drop),
            driver.gpu(0).map(drop),
            inside.total_memory().map(drop),
            inside.compute_capability().map(drop),
            inside.can_access(&inside).map(drop),
        ];
        // SAFETY: load_from requires an implementation of the driver API: the stand-in is one.
        let loaded = unsafe { Driver::load_from(driver.path()) }.map(drop);
        let _method = inside.flush_method();
        sender.send((results, loaded)).unwrap();
    };
    stream.call_on_host(ask).unwrap();
    let (results, loaded) = receiver.recv().unwrap();
    for result in results {
        assert_eq!(result.unwrap_err().cuda().unwrap().code(), CudaError::NOT_PERMITTED);
    }
    assert!(loaded.unwrap_err().to_string().contains("cuInit: CUDA_ERROR_NOT_PERMITTED"));
    // The GPU does not keep what it could not ask.
    assert_eq!(gpu.flush_method(), driver.gpu(0).unwrap().flush_method());
}

#[test]
fn kept_values_are_dropped_after_the_work() {
    let stream = Stream::new(&gpu()).unwrap();
    let (slice, value) = (numbers(&stream, 0, 1).slice(), Arc::new(()));
    let held = hold(&stream);
    stream.keep(Arc::clone(&value)).unwrap();
    stream.fill(&slice, 0).unwrap();
    assert_eq!(Arc::strong_count(&value), 2);
    drop(held);
    stream.synchronize().unwrap();
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn one_stream_is_used_by_many_threads() {
    let stream = Stream::new(&gpu()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let stream = &stream;
            scope.spawn(move || {
                for turn in 0..20 {
                    let from = numbers(stream, thread * 1000 + turn, 100);
                    let to = GpuBuffer::<u32>::new(stream.gpu(), 100).unwrap();
                    stream.copy(&to.slice(), &from.slice()).unwrap();
                    drop(from);
                    let first = thread * 1000 + turn;
                    assert!(content(stream, &to.slice()).into_iter().eq(first..first + 100));
                }
            });
        }
    });
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_task_awaits_a_slice() {
    let stream = Stream::new(&gpu()).unwrap();
    let slice = numbers(&stream, 0, 10).slice();
    let held = Mutex::new(Some(hold(&stream)));
    let pending = stream.ready_later(slice).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(held.lock().unwrap().take()));
        assert!(block_on(pending).is_ok());
    });
    // Work that is done needs no waker.
    let done = stream.ready_later(()).unwrap();
    stream.synchronize().unwrap();
    assert!(block_on(done).is_ok());
}

#[test]
fn a_waker_that_panics_and_a_dropped_future_harm_nobody() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("expected by the test");
        }
    }
    let stream = Stream::new(&gpu()).unwrap();
    let waker = Waker::from(Arc::new(Panics));
    let held = hold(&stream);
    let mut futures = [stream.ready_later(()).unwrap(), stream.ready_later(()).unwrap()];
    for future in &mut futures {
        let future = std::pin::Pin::new(future);
        assert!(Future::poll(future, &mut Context::from_waker(&waker)).is_pending());
    }
    let [dropped, kept] = futures;
    drop((dropped, held));
    stream.synchronize().unwrap();
    assert!(block_on(stream.ready_later(()).unwrap()).is_ok());
    drop(kept);
}

#[test]
fn a_stream_copies_and_fills_the_memory_of_its_gpu_alone() {
    let gpus = testing::driver().gpus().unwrap();
    let [first, second, ..] = &gpus[..] else { return rdma_test_support::skip("there is one GPU only") };
    let (here, there) = (Stream::new(first).unwrap(), Stream::new(second).unwrap());
    let slice = numbers(&there, 7, 10).slice();
    let pinned = || PinnedBuffer::new(first, 10).unwrap();
    assert_eq!(here.upload(&slice, &[0; 10]), Err(Error::OtherGpu));
    assert_eq!(here.download(&slice, &mut [0; 10]), Err(Error::OtherGpu));
    assert_eq!(here.fill(&slice, 0), Err(Error::OtherGpu));
    assert_eq!(here.upload_pinned(&slice, pinned()).map(drop), Err(Error::OtherGpu));
    assert_eq!(here.download_pinned(&slice, pinned()).map(drop), Err(Error::OtherGpu));
    // Between GPUs, and inside another one, the driver is told whose memory it is.
    let copy = GpuBuffer::new(second, 10).unwrap().slice();
    here.copy(&copy, &slice).unwrap();
    here.synchronize().unwrap();
    assert!(content(&there, &copy).into_iter().eq(7..17));
}

#[test]
fn no_log_message_of_a_stream_comes_under_its_lock() {
    let gpu = testing::stand_in().gpu(0).unwrap();
    let stream = Arc::new(Stream::new(&gpu).unwrap());
    stream.keep(()).unwrap();
    let (used, logged) = (Arc::clone(&stream), Arc::new(Mutex::new(0)));
    let count = Arc::clone(&logged);
    let subscriber = rdma_test_support::OnEvent(move |_: &tracing::Event<'_>| {
        assert!(used.parked.try_lock().is_ok(), "a subscriber that uses the stream would wait for itself");
        *count.lock().unwrap() += 1;
    });
    // The query of the event goes well, but leaves its context current.
    Control::new().fail_next("cuCtxPopCurrent_v2", 999);
    tracing::subscriber::with_default(subscriber, || stream.release());
    assert_eq!(*logged.lock().unwrap(), 1);
}

/// Panics when it is dropped.
struct Bomb {
    _value: Arc<()>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("expected by the test");
    }
}

#[test]
fn a_kept_value_that_panics_does_not_reach_who_waits() {
    let (stream, value) = (Stream::new(&gpu()).unwrap(), Arc::new(()));
    stream.keep(Bomb { _value: Arc::clone(&value) }).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn kept_values_that_panic_do_not_end_the_process() {
    rdma_test_support::passes_alone(&["stream::tests::child_with_values_that_panic"], &[]);
}

#[test]
#[ignore = "run by kept_values_that_panic_do_not_end_the_process"]
fn child_with_values_that_panic() {
    let control = Control::new();
    let stream = Stream::new(&testing::stand_in().gpu(0).unwrap()).unwrap();
    let live = control.live();
    let value = Arc::new(());
    (0..3).for_each(|_| stream.keep(Bomb { _value: Arc::clone(&value) }).unwrap());
    drop(stream);
    assert_eq!((Arc::strong_count(&value), control.live()), (1, live - 1));
}
