//! Streams and events: each stream is a thread that does its work in order, and late.

use std::ffi::c_int;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::codes::Code;
use crate::knobs::KNOBS;

/// A work item; it gets the error of the work before it, and returns its own.
type Task = Box<dyn FnOnce(Option<Code>) -> Option<Code> + Send>;

/// A stream of work on a GPU.
pub(crate) struct Stream {
    pub(crate) device: c_int,
    tasks: Mutex<Sender<Task>>,
    progress: Arc<Progress>,
}

/// How far a stream or an event has come.
#[derive(Default)]
struct Progress {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    queued: u64,
    done: u64,
    failed: Option<Code>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self) -> u64 {
        let mut counts = self.lock();
        counts.queued += 1;
        counts.queued
    }

    fn finish(&self, number: u64, failed: Option<Code>) {
        let mut counts = self.lock();
        counts.done = counts.done.max(number);
        counts.failed = counts.failed.or(failed);
        self.changed.notify_all();
    }

    /// Waits until everything up to `number` is done.
    fn wait(&self, number: u64) -> Result<(), Code> {
        let counts = self.changed.wait_while(self.lock(), |counts| counts.done < number);
        counts.unwrap_or_else(PoisonError::into_inner).failed.map_or(Ok(()), Err)
    }

    /// Whether everything is done.
    fn is_done(&self) -> Result<bool, Code> {
        let counts = self.lock();
        counts.failed.map_or(Ok(counts.done >= counts.queued), Err)
    }
}

impl Stream {
    pub(crate) fn new(device: c_int) -> Self {
        let (tasks, queue) = channel();
        let progress = Arc::<Progress>::default();
        let worker = Arc::clone(&progress);
        // Ends when the stream is destroyed and its work is done.
        let _detached = std::thread::spawn(move || work(&queue, &worker));
        Self { device, tasks: Mutex::new(tasks), progress }
    }

    /// Gives work to the stream.
    pub(crate) fn push(&self, task: impl FnOnce(Option<Code>) -> Option<Code> + Send + 'static) {
        // The lock keeps the order of the counts that of the queue.
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        self.progress.enqueue();
        let _worker_lives = tasks.send(Box::new(task));
    }

    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        let queued = self.progress.lock().queued;
        self.progress.wait(queued)
    }

    pub(crate) fn is_done(&self) -> Result<bool, Code> {
        self.progress.is_done()
    }
}

fn work(queue: &Receiver<Task>, progress: &Progress) {
    let (mut number, mut failed) = (0, None);
    loop {
        let task = match queue.try_recv() {
            Ok(task) => task,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let Ok(task) = queue.recv() else { return };
                std::thread::sleep(KNOBS.delay);
                task
            }
        };
        failed = task(failed).or(failed);
        number += 1;
        progress.finish(number, failed);
    }
}

/// An event: a point in a stream's work.
#[derive(Default)]
pub(crate) struct Event(Arc<Progress>);

impl Event {
    /// Marks the work that the stream has now.
    pub(crate) fn record(&self, stream: &Stream) {
        let progress = Arc::clone(&self.0);
        let number = progress.enqueue();
        stream.push(move |failed| {
            progress.finish(number, failed);
            None
        });
    }

    /// Makes a stream wait for the work that the event marks now.
    pub(crate) fn hold_back(&self, stream: &Stream) {
        let progress = Arc::clone(&self.0);
        let number = progress.lock().queued;
        stream.push(move |_| progress.wait(number).err());
    }

    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        let number = self.0.lock().queued;
        self.0.wait(number)
    }

    pub(crate) fn is_done(&self) -> Result<bool, Code> {
        self.0.is_done()
    }
}
