//! Detection of forked children.
//!
//! Device memory, doorbells and the kernel's objects belong to the process that made them. A child
//! inherits our values but must not use them: calls fail with [`ErrorKind::Forked`], and drops
//! leak. Each handle stores the [`generation`] in which it was made. A handler that `fork` runs in
//! the child increments the generation, so the check is one load and one comparison.
//!
//! A child made by a bare `clone` system call is not detected; such a child must not call library
//! functions at all.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rdma_mem::process::ForkHandlers;

use crate::error::{Error, ErrorKind, Result, Verb};

/// A generation that no process has.
pub(crate) const NEVER: u32 = u32::MAX;
/// An epoch that never comes.
pub(crate) const NO_EPOCH: u64 = u64::MAX;

static GENERATION: AtomicU32 = AtomicU32::new(0);
static EPOCH: AtomicU64 = AtomicU64::new(0);
// SAFETY: `ForkHandlers::new` requires a function that may run at any fork, several times:
// `in_child` only adds to atomics.
static HANDLERS: ForkHandlers = unsafe { ForkHandlers::new(None, None, Some(in_child)) };

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    begin_epoch();
}

/// A number that none of this process's ancestors has. Constant for the life of a process.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// A number that changes in a forked child and at each call of [`begin_epoch`]: what was checked in
/// the present epoch still holds. With `Acquire`, later checks see what began the epoch.
#[inline(always)]
pub(crate) fn epoch(order: Ordering) -> u64 {
    EPOCH.load(order)
}

/// Makes pollers check their completion queues again, after a change that they must notice.
pub(crate) fn begin_epoch() {
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Installs the handler that gives children another [`generation`]; called before the first handle
/// is made.
pub(crate) fn watch() {
    // Miri has no fork.
    if cfg!(miri) {
        return;
    }
    if let Err(error) = HANDLERS.register() {
        tracing::warn!(
            name: "forks_not_detected", target: "rdma",
            %error, "forked children will not be told apart from this process"
        );
    }
}

/// The process that made a value, as a number that each forked child changes.
///
/// A child inherits the memory of its parent, and so a value with a lock that another thread of the
/// parent may hold at the fork. The child must not wait for that lock: with a `MadeIn` beside the
/// lock, it learns that the value is not its own.
///
/// The check is one load and one comparison. A child by a bare `clone` system call is not told
/// apart.
///
/// # Examples
///
/// ```
/// use std::sync::Mutex;
/// use rdma::{MadeIn, Verb, Result};
///
/// #[derive(Default)]
/// struct Queue {
///     made_in: MadeIn,
///     waiting: Mutex<Vec<u64>>,
/// }
///
/// impl Queue {
///     fn push(&self, number: u64) -> Result<()> {
///         self.made_in.check(Verb::WatchDescriptor)?;
///         self.waiting.lock().expect("no panic").push(number);
///         Ok(())
///     }
/// }
/// # Queue::default().push(1).unwrap();
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MadeIn(u32);

impl Default for MadeIn {
    /// This process.
    fn default() -> Self {
        watch();
        Self(generation())
    }
}

impl MadeIn {
    /// Whether this process is a child of the one that made the value.
    #[inline]
    #[must_use]
    pub fn is_forked(self) -> bool {
        self.0 != generation()
    }

    /// Fails in a child.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`].
    #[inline]
    pub fn check(self, operation: Verb) -> Result<()> {
        check(self.0, operation)
    }
}

/// Fails if `made_in` is not this process's generation.
#[inline]
pub(crate) fn check(made_in: u32, operation: Verb) -> Result<()> {
    if made_in == generation() { Ok(()) } else { Err(Error::new(operation, ErrorKind::Forked)) }
}
