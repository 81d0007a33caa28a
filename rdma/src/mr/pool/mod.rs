//! Pools: buffers of some sizes, from memory that is registered once.
//!
//! # Files
//!
//! ```text
//!   mod.rs        `Pool` and its builder
//!   class.rs      the buffers of one size: slabs, chunks, and the way back
//!   stock.rs      the chunks that nobody has: caches of the cores, a stack, waiters
//!   lock.rs       the lock of a core's cache
//!   wait.rs       waits for a buffer
//!   stats.rs      counts
//!   stock/        loom's models of the stock
//!   tests.rs      attacks
//! ```

mod class;
mod lock;
mod stats;
mod stock;
mod wait;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

pub(crate) use class::Home;
use class::{Class, SlabOptions};
pub use stats::PoolStats;
pub(super) use stock::{Padded, seat_number};
pub use wait::TakeBuffer;

use super::{Buffer, HugePages, RegisterOptions};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::pd::ProtectionDomain;
use crate::types::OptionLimit;

static CLASS: OptionLimit = OptionLimit::new(
    "class",
    "of 1 byte or more, each size once, with 1 buffer or more, of less memory than there are addresses",
);

/// A pool of registered [`Buffer`]s.
///
/// Registration takes microseconds to seconds, and a take of a pooled buffer nanoseconds: the pool
/// registers *slabs* and hands out parts of them. A buffer that is dropped goes back to its pool,
/// on any thread, wherever it has been: in a request, a completion, a message. Split buffers go
/// back with their last part. Bytes are left as the last user left them.
///
/// Each core has a cache of buffers of each class, so threads that take and return do not wait for
/// each other. The pool never has more buffers than it was told to: [`take`](Self::take) then
/// fails, and [`take_async`](Self::take_async) and [`take_blocking`](Self::take_blocking) wait.
///
/// With several [domains](PoolBuilder::domain), for example one of each NIC of a host, a buffer can
/// be in a request of any of them, and in one of them after the other.
///
/// Clones are handles to the same pool. Buffers stay valid after the last handle was dropped; the
/// memory of a slab is freed with the slab's last buffer. In a forked child, takes fail and
/// buffers are not returned.
///
/// # Examples
///
/// ```
/// # use rdma_testkit::{Pair, pair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
/// use rdma::{Pool, op};
///
/// let pool = Pool::builder(&pd).class(256, 1024).class(64 << 10, 16).build()?;
///
/// b.post_recv(pool.take(256)?, 0)?;
/// let mut message = pool.take(5)?;
/// message.copy_from_slice(b"hello");
/// a.post_send(op::send(message))?;
///
/// for _ in 0..2 {
///     let mut completion = poller.wait(None)?.expect("no time limit");
///     completion.status()?;
///     // The buffer that was posted: dropped, it goes home.
///     drop(completion.take_buffer());
/// }
/// let [small, large] = pool.stats()[..] else { panic!("two classes") };
/// assert_eq!((small.taken, small.returned, large.slabs), (2, 2, 0));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Pool {
    owner: Arc<Owner>,
}

/// The classes, which end with the last handle. A chunk keeps its class, and a class its chunks,
/// until then.
struct Owner {
    /// By size.
    classes: Box<[Arc<Class>]>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        for class in &self.classes {
            if class.made_in.is_forked() {
                // The parent's: a thread of the parent may have been about to change it.
                let _leaked = ManuallyDrop::new(Arc::clone(class));
            } else {
                class.close();
            }
        }
    }
}

impl Pool {
    /// Begins a pool in a domain. It needs at least one [class](PoolBuilder::class).
    pub fn builder(pd: &ProtectionDomain) -> PoolBuilder {
        PoolBuilder { domains: vec![pd.clone()], classes: Vec::new(), slab: 1 << 20, options: RegisterOptions::new() }
    }

    /// Takes a buffer of `len` bytes, of the smallest class whose buffers have as many.
    ///
    /// The first takes register slabs; [`reserve`](Self::reserve) does so ahead.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if all buffers of the class are in use; `InvalidInput` if `len` is 0; `TooLong`
    /// if it is more than the largest class has; errors of [`allocate`](ProtectionDomain::allocate)
    /// when a slab is registered; `Forked`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let pool = rdma::Pool::builder(&pd).class(4096, 2).build()?;
    /// let (first, second) = (pool.take(100)?, pool.take(4096)?);
    /// assert_eq!((first.len(), second.len()), (100, 4096));
    /// assert_eq!(pool.take(1).unwrap_err().kind(), rdma::ErrorKind::WouldBlock);
    /// drop(first);
    /// pool.take(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn take(&self, len: usize) -> Result<Buffer> {
        let class = self.class(len)?;
        class.take(len)?.ok_or(Error::new(Verb::TakeBuffer, ErrorKind::WouldBlock))
    }

    /// Registers slabs until the class that serves `len` bytes has `count` buffers, or as many as
    /// it may have.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take), except `WouldBlock`. Slabs that were registered before the
    /// failure stay.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let pool = rdma::Pool::builder(&pd).class(4096, 1000).build()?;
    /// pool.reserve(4096, 300)?;
    /// assert!(pool.stats()[0].buffers >= 300);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(&self, len: usize, count: usize) -> Result<()> {
        self.class(len)?.reserve(count)
    }

    /// The counts of each class, by size; none in a forked child.
    #[must_use]
    pub fn stats(&self) -> Vec<PoolStats> {
        if self.owner.classes.iter().any(|class| class.made_in.is_forked()) {
            return Vec::new();
        }
        self.owner.classes.iter().map(|class| class.stats()).collect()
    }

    /// The class that serves `len` bytes.
    #[inline]
    fn class(&self, len: usize) -> Result<&Arc<Class>> {
        let class = self.owner.classes.iter().find(|class| len <= class.size && len > 0);
        let class = class.ok_or_else(|| unserved(len))?;
        class.made_in.check(Verb::TakeBuffer)?;
        Ok(class)
    }
}

#[cold]
fn unserved(len: usize) -> Error {
    Error::new(Verb::TakeBuffer, if len == 0 { ErrorKind::InvalidInput } else { ErrorKind::TooLong })
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.owner.classes.iter().map(|class| class.size).collect();
        f.debug_struct("Pool").field("sizes", &sizes).finish_non_exhaustive()
    }
}

/// Options of a [`Pool`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct PoolBuilder {
    domains: Vec<ProtectionDomain>,
    /// Size and count of each class.
    classes: Vec<(usize, usize)>,
    slab: usize,
    options: RegisterOptions,
}

impl PoolBuilder {
    /// Adds a class: at most `count` buffers of `size` bytes. Buffers begin at a multiple of 64
    /// bytes, and from 4096 bytes on at a page.
    pub fn class(mut self, size: usize, count: usize) -> Self {
        self.classes.push((size, count));
        self
    }

    /// Adds a domain in which each slab is registered too: of another device, for example. Buffers
    /// are then for requests of any of the pool's domains.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// # let (pd_of_a, pd_of_b) = (context.alloc_pd()?, context.alloc_pd()?);
    /// let pool = rdma::Pool::builder(&pd_of_a).domain(&pd_of_b).class(4096, 64).build()?;
    /// let buffer = pool.take(4096)?;
    /// assert_ne!(buffer.lkey_in(&pd_of_a), buffer.lkey_in(&pd_of_b));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn domain(mut self, pd: &ProtectionDomain) -> Self {
        let is_known = self.domains.iter().any(|known| ptr::eq(known.inner.identity(), pd.inner.identity()));
        if !is_known {
            self.domains.push(pd.clone());
        }
        self
    }

    /// Sets the bytes that are registered at a time: 1 MiB by default. A slab has at least one
    /// buffer, and never more than its class may have.
    pub fn slab(mut self, bytes: usize) -> Self {
        self.slab = bytes;
        self
    }

    /// Sets how slabs are allocated and registered: huge pages, NUMA node, threads that touch the
    /// pages, relaxed ordering, which is allowed by default as for every [`Buffer`].
    ///
    /// A slab of huge pages has a multiple of their size, so that classes that may have less memory
    /// leave a part of a page unused. What the system or a device lacks is the error of the first
    /// [`reserve`](Pool::reserve) or [`take`](Pool::take).
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use rdma::{ErrorKind, HugePages, Pool, RegisterOptions};
    ///
    /// let huge = RegisterOptions::new().huge_pages(HugePages::Size2M);
    /// let builder = Pool::builder(&pd).class(4096, 512);
    /// let mut pool = builder.clone().options(huge).build()?;
    /// match pool.reserve(4096, 512) {
    ///     // None are reserved, or the kernel has none.
    ///     Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::UnsupportedOption(_)) => {
    ///         pool = builder.build()?;
    ///     }
    ///     reserved => reserved?,
    /// }
    /// assert_eq!(pool.take(4096)?.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn options(mut self, options: RegisterOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the pool. It registers no memory yet: see [`Pool::reserve`].
    ///
    /// # Errors
    ///
    /// `InvalidOption`: there is no class, a size or count is 0, a size is there twice, or a class
    /// would have more memory than there are addresses; [`options`](Self::options) have rights for
    /// peers, an `iova` or `on_demand`, which the memory of a pool does not have; `Forked`.
    pub fn build(mut self) -> Result<Pool> {
        self.domains.iter().try_for_each(|pd| pd.inner.context.check(Verb::BuildPool))?;
        self.classes.sort_unstable();
        let is_twice = self.classes.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let is_valid = |&(size, count): &(usize, usize)| {
            let bytes = size.checked_next_multiple_of(4096).and_then(|size| size.checked_mul(count));
            bytes.is_some_and(|bytes| bytes > 0 && isize::try_from(bytes).is_ok())
        };
        if self.classes.is_empty() || is_twice || !self.classes.iter().all(is_valid) {
            return Err(Error::new(Verb::BuildPool, ErrorKind::InvalidOption(&CLASS)));
        }
        self.options.check_pool()?;
        let huge = self.options.huge_pages.map_or(1, HugePages::bytes);
        let bytes = self.slab.checked_next_multiple_of(huge).unwrap_or(self.slab);
        let slabs_of = Arc::new(SlabOptions { domains: self.domains, options: self.options, bytes });
        let class = |&(size, count): &(usize, usize)| Arc::new(Class::new(size, count, &slabs_of));
        Ok(Pool { owner: Arc::new(Owner { classes: self.classes.iter().map(class).collect() }) })
    }
}

#[cfg(test)]
mod tests;
