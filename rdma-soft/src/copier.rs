//! Threads that copy foreign memory: memory that the engine does not access itself, such as a GPU's
//! and on-demand regions.
//!
//! The device never touches such memory. It queues copies with the threads of the region's copier,
//! which execute them under no lock of the device, and report their ends. The engine orders the
//! copies of a queue pair, and those of several run at once: as long as there are fewer than
//! [`MOST`] threads, one of them waits for the next copy.

use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rdma_mem::{Copier, CopyFailed};

use crate::engine::{CopyEnd, CopyId, CopyJob, CopyQueue, Direction};
use crate::log::log;
use crate::node::Node;
use crate::os::lock::Lock;
use crate::os::{self, fork};

/// Stack size of a thread in bytes: CUDA's driver runs on it.
const STACK: usize = 2 << 20;

/// Most threads of a copier.
const MOST: usize = 8;

/// Threads that copy foreign memory for the software device.
///
/// There is one at first, and more while copies run at the same time. They end when this value is
/// dropped and its regions are deregistered.
#[derive(Debug)]
pub struct CopierThreads {
    queue: Arc<Queue>,
    process: u64,
}

impl CopierThreads {
    /// Starts the first thread of a copier.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub fn start(copier: impl Copier) -> io::Result<Self> {
        fork::identify().map_err(|error| error.errno)?;
        let (sender, receiver) = channel();
        let (threads, idle) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let pool = Arc::new(Pool { copier, jobs: Lock::new(receiver), threads, idle });
        pool.spawn().map_err(|error| error.errno)?;
        Ok(Self { queue: Arc::new(Queue(sender)), process: fork::process() })
    }

    /// The queue of the threads; `None` in a forked child, which does not have them.
    pub(crate) fn queue(&self) -> Option<Arc<dyn CopyQueue>> {
        (self.process == fork::process()).then(|| Arc::clone(&self.queue) as _)
    }
}

/// The copies that wait for a thread.
#[derive(Debug)]
struct Queue(Sender<CopyJob>);

impl CopyQueue for Queue {
    fn push(&self, job: CopyJob) {
        // The threads run as long as the queue exists.
        let _taken = self.0.send(job);
    }
}

/// What the threads of a copier share.
struct Pool<C> {
    copier: C,
    jobs: Lock<Receiver<CopyJob>>,
    /// The number of threads ever started; none ends before the queue does.
    threads: AtomicUsize,
    /// The number of threads that wait for a copy.
    idle: AtomicUsize,
}

impl<C: Copier> Pool<C> {
    /// Starts a thread, unless there are enough.
    fn spawn(self: &Arc<Self>) -> os::Result<()> {
        if self.threads.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        self.idle.fetch_add(1, Ordering::Relaxed);
        let pool = Arc::clone(self);
        os::thread::spawn_with_stack("rdma-soft-copy", STACK, move || pool.run()).inspect_err(|_| {
            self.idle.fetch_sub(1, Ordering::Relaxed);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Executes copies until the queue ends.
    fn run(self: &Arc<Self>) {
        while let Some(job) = self.next() {
            let is_last_idle = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
            if is_last_idle && self.spawn().is_err() {
                log!(WARN, "the software RDMA device copies with fewer threads: the system starts no more");
            }
            let (id, end) = copy(&self.copier, job);
            if let Ok(node) = Node::get() {
                node.handle_copied(id, end);
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits for a copy; `None` at the end of the queue.
    fn next(&self) -> Option<CopyJob> {
        // One thread waits in the channel, and the others for the lock.
        self.jobs.lock().recv().ok()
    }
}

/// Executes a copy.
fn copy(copier: &impl Copier, job: CopyJob) -> (CopyId, CopyEnd) {
    let CopyJob { id, direction, address, bytes, copier: queue } = job;
    // The queue ends with the region's registration, and not with its last copy.
    drop(queue);
    let len = bytes.len();
    let called = catch_unwind(AssertUnwindSafe(|| match direction {
        // SAFETY: `Copier::read` requires memory that the copier may access: `register_foreign`
        // requires such memory until it is deregistered, which this copy holds up, for ever if its
        // end is unknown; or C has registered it on demand, and a request may access whatever is
        // mapped there (promise 3 of `verbs`). The engine has checked that the range lies in the
        // region.
        Direction::Fetch => unsafe { copier.read(address, bytes) },
        // SAFETY: `Copier::write` requires the same as `read`.
        Direction::Store => unsafe { copier.write(address, bytes) },
    }));
    let end = match called {
        Ok(Ok(bytes)) if bytes.len() == len => CopyEnd::Done(bytes),
        Ok(Ok(_)) => {
            log!(ERROR, "a copier of the software RDMA device returned another number of bytes than it was given");
            CopyEnd::Failed
        }
        Ok(Err(CopyFailed::Ended)) => CopyEnd::Failed,
        Ok(Err(CopyFailed::Fault)) => CopyEnd::Fault,
        Ok(Err(CopyFailed::Unknown)) => CopyEnd::Unknown,
        Err(payload) => {
            // The payload is the copier's own type and could panic in its destructor.
            let _leaked = ManuallyDrop::new(payload);
            log!(ERROR, "a copier of the software RDMA device has panicked; its memory cannot be given back");
            CopyEnd::Unknown
        }
    };
    (id, end)
}
