//! Posting to a shared receive queue from several threads.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{SharedReceiveQueue, SrqInner, SrqStats};
use crate::error::{Result, Verb};
use crate::handle::Handle;
use crate::mr::Buffer;
use crate::qp::chain::MAX_BATCH;
use crate::qp::local::{Owned, Writable};
use crate::qp::posting::PostError;
use crate::transport::{Rc, Transport};
use crate::types::SrqId;

/// A [`SharedReceiveQueue`] that several threads post to.
///
/// Clones are handles to the same queue. It has a lock, which a post holds; a queue that one thread
/// posts to needs none.
///
/// # Examples
///
/// ```
/// use rdma::{DeviceSelector, QueuePair, SharedReceiveQueue};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = rdma::open(&DeviceSelector::Any)?.context;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(512)?);
/// let receives = SharedReceiveQueue::builder(&pd).max_wr(64).build()?;
/// let client = QueuePair::builder(&pd).cq(&cq).shared_receives(&receives).build()?;
/// let receives = receives.into_poster();
/// std::thread::scope(|threads| {
///     for token in 0..4 {
///         let (receives, buffer) = (receives.clone(), pd.allocate(64));
///         threads.spawn(move || receives.post_recv(buffer?, token).map_err(|refused| refused.error()));
///     }
/// });
/// # drop(client);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_srq")]
pub struct SrqPoster<T: Transport = Rc> {
    shared: Arc<Shared<T>>,
}

struct Shared<T: Transport> {
    queue: Mutex<SharedReceiveQueue<T>>,
    inner: Arc<Handle<SrqInner>>,
}

impl<T: Transport> SharedReceiveQueue<T> {
    /// Lets several threads post receives.
    #[must_use]
    pub fn into_poster(self) -> SrqPoster<T> {
        let inner = Arc::clone(self.inner());
        SrqPoster { shared: Arc::new(Shared { queue: Mutex::new(self), inner }) }
    }
}

impl<T: Transport> SrqPoster<T> {
    /// Posts a receive: [`SharedReceiveQueue::post_recv`].
    ///
    /// # Errors
    ///
    /// As for [`SharedReceiveQueue::post_recv`].
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv<L: Owned + Writable>(&self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        let mut queue = match self.lock() {
            Ok(queue) => queue,
            Err(error) => return Err(PostError::new(error, Some(local.give_back()))),
        };
        let posted = queue.post_recv_unlogged(local, token);
        drop(queue);
        posted.inspect_err(PostError::log)
    }

    /// Posts receives, each with its token, by as few doorbells as possible. Takes those that were
    /// posted out of `receives`; after an error, the others are left, in order.
    ///
    /// # Errors
    ///
    /// As for [`SharedReceiveQueue::post_recv`]. If the device may have accepted receives although
    /// the provider reported an error, their memory stays in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let receives = rdma::SharedReceiveQueue::builder(&pd).max_wr(16).build()?.into_poster();
    /// let mut memory = pd.allocate(16 * 64)?;
    /// let mut buffers: Vec<_> = (0..16).map(|token| (memory.split_to(64), token)).collect();
    /// receives.post_recvs(&mut buffers)?;
    /// assert!(buffers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recvs(&self, receives: &mut Vec<(Buffer, u64)>) -> Result<()> {
        let mut queue = self.lock()?;
        let mut rest = std::mem::take(receives).into_iter();
        let (mut result, mut failed) = (Ok(()), None);
        while result.is_ok() && rest.len() > 0 {
            let mut batch = queue.batch();
            for (buffer, token) in rest.by_ref().take(MAX_BATCH as usize) {
                if let Err(mut refused) = batch.push(buffer, token) {
                    receives.extend(refused.take_memory().map(|buffer| (buffer, token)));
                    result = Err(refused.error());
                    break;
                }
            }
            if let Err(mut error) = batch.submit_unlogged() {
                let mut rejected = Vec::with_capacity(error.rejected() + 1);
                while let Some(mut released) = error.next_rejected() {
                    let token = released.token();
                    rejected.extend(released.take_buffer().map(|buffer| (buffer, token)));
                }
                // Before the receive that was refused, if there was one.
                drop(receives.splice(..0, rejected));
                (result, failed) = (Err(error.error()), Some(error.without_requests::<()>()));
            }
        }
        receives.extend(rest);
        drop(queue);
        if let Some(failed) = failed {
            failed.log();
        }
        result
    }

    /// The number of receives that can be posted now: [`SharedReceiveQueue::room`].
    ///
    /// # Errors
    ///
    /// `Forked` in a forked child.
    pub fn room(&self) -> Result<u32> {
        Ok(self.lock()?.room())
    }

    /// What the queue has done: [`SharedReceiveQueue::stats`].
    ///
    /// # Errors
    ///
    /// `Forked` in a forked child.
    pub fn stats(&self) -> Result<SrqStats> {
        Ok(self.lock()?.stats())
    }

    /// The identifier of the queue in events.
    #[must_use]
    pub fn id(&self) -> SrqId {
        self.shared.inner.id
    }

    /// Has the device raise an event when few receives are left:
    /// [`SharedReceiveQueue::arm_limit`].
    ///
    /// # Errors
    ///
    /// As for [`SharedReceiveQueue::arm_limit`].
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.shared.inner.arm_limit(limit)
    }

    pub(in crate::qp) fn inner(&self) -> &Arc<Handle<SrqInner>> {
        &self.shared.inner
    }

    /// Fails in a forked child: another thread of the parent may have held the lock at the time of
    /// the fork.
    fn lock(&self) -> Result<MutexGuard<'_, SharedReceiveQueue<T>>> {
        self.shared.inner.context().check(Verb::PostSrqRecv)?;
        // Only failed allocations panic under the lock.
        Ok(self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Transport> Clone for SrqPoster<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Transport> fmt::Debug for SrqPoster<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqPoster").field("id", &self.id()).finish_non_exhaustive()
    }
}
