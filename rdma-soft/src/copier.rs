//! Threads that copy foreign memory: memory that the engine does not access itself, such as a GPU's
//! and on-demand regions.
//!
//! The device never touches such memory. It queues copies with the thread of the region's copier,
//! which executes them one after the other, under no lock of the device, and reports their ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rdma_mem::{Copier, CopyFailed};

use crate::engine::{CopyEnd, CopyId, CopyJob, CopyQueue, Direction};
use crate::log::log;
use crate::node::Node;
use crate::os::{self, fork};

/// Stack size of a thread in bytes: CUDA's driver runs on it.
const STACK: usize = 2 << 20;

/// A thread that copies foreign memory for the software device.
///
/// The thread ends when this value is dropped and its regions are deregistered.
#[derive(Debug)]
pub struct CopierThread {
    queue: Arc<Queue>,
    process: u64,
}

impl CopierThread {
    /// Starts a thread for a copier.
    ///
    /// # Errors
    ///
    /// If the system cannot start a thread.
    pub fn start(copier: impl Copier) -> io::Result<Self> {
        fork::identify().map_err(|error| error.errno)?;
        let (sender, receiver) = channel();
        let started = os::thread::spawn_with_stack("rdma-soft-copy", STACK, move || run(copier, &receiver));
        started.map_err(|error| error.errno)?;
        Ok(Self { queue: Arc::new(Queue(sender)), process: fork::process() })
    }

    /// The queue of the thread; `None` in a forked child, which does not have the thread.
    pub(crate) fn queue(&self) -> Option<Arc<dyn CopyQueue>> {
        (self.process == fork::process()).then(|| Arc::clone(&self.queue) as _)
    }
}

/// The copies that wait for a thread.
#[derive(Debug)]
struct Queue(Sender<CopyJob>);

impl CopyQueue for Queue {
    fn push(&self, job: CopyJob) {
        // The thread runs as long as the queue exists.
        let _taken = self.0.send(job);
    }
}

fn run(mut copier: impl Copier, jobs: &Receiver<CopyJob>) {
    while let Ok(job) = jobs.recv() {
        let (id, end) = copy(&mut copier, job);
        if let Ok(node) = Node::get() {
            node.handle_copied(id, end);
        }
    }
}

/// Executes a copy.
fn copy(copier: &mut impl Copier, job: CopyJob) -> (CopyId, CopyEnd) {
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
        Err(_) => {
            log!(ERROR, "a copier of the software RDMA device has panicked; its memory cannot be given back");
            CopyEnd::Unknown
        }
    };
    (id, end)
}
