//! Receives that the connections of a listener share.
//!
//! Each connection has a [`Stake`]: the number of posted receives that its peer may use. The stakes
//! together never exceed the receives that are posted, so no peer meets an empty queue. A stake
//! begins with [`NEEDED`] receives, which stay the connection's, and grows while its peer uses all
//! of it and receives are free. Above its share of the queue it gives receives back, as its peer
//! sends, while too few are free for a new connection. A receive whose message the application
//! holds is posted by nobody: the credits of that connection wait for it, and of no other.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma::transport::Rc;
use rdma::{
    Buffer, CompletionQueue, Error, ErrorKind, MadeIn, PostError, ProtectionDomain, Result, SharedReceiveQueue, Verb,
};

use super::protocol::RESERVE;

/// Data receives of a new connection: one more than a program holds while it waits for the next
/// message.
pub(super) const INITIAL: u8 = 2;
/// Receives of a new connection.
const NEEDED: u32 = INITIAL as u32 + RESERVE;
/// The operation number of shared receives, whose token names the pool.
pub(super) const POOL_OPERATION: u32 = u32::MAX;

/// The shared receives of a listener.
pub(super) struct ReceivePool {
    token: u64,
    total: u32,
    state: Mutex<State>,
    made_in: MadeIn,
}

struct State {
    queue: SharedReceiveQueue<Rc>,
    /// Posted receives that belong to no stake. Less than 0 while the messages of a peer that
    /// ignores its credits occupy the receives of others.
    free: i64,
    stakes: u32,
}

impl ReceivePool {
    /// Posts `count` receives of `size` bytes. Completions come to `cq`, with the number `key`.
    pub(super) fn new(pd: &ProtectionDomain, cq: &CompletionQueue, key: u32, count: u32, size: usize) -> Result<Self> {
        if count < NEEDED {
            return Err(Error::new(Verb::CreateSrq, ErrorKind::InvalidInput));
        }
        let mut queue = SharedReceiveQueue::builder(pd).max_wr(count).build()?;
        // If the device cannot resize the completion queue, its capacity may still suffice.
        let entries = queue.depth().saturating_mul(2).next_power_of_two();
        let most = pd.context().device_attr().max_cqe();
        if let Err(error) = cq.resize(cq.depth().saturating_add(entries).min(most)) {
            tracing::debug!(
                name: "completion_queue_not_grown", target: "rdma_net",
                %error, "the completion queue keeps its depth"
            );
        }
        let mut region = pd.allocate(size * count as usize)?;
        let token = u64::from(POOL_OPERATION) << 32 | u64::from(key);
        for _ in 0..count {
            queue.post_recv(region.split_to(size), token).map_err(|refused| refused.error())?;
        }
        let state = Mutex::new(State { queue, free: count.into(), stakes: 0 });
        Ok(Self { token, total: count, state, made_in: MadeIn::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes part for a new connection, if enough receives are free.
    pub(super) fn join(self: &Arc<Self>) -> Option<Stake> {
        let mut state = self.lock();
        if state.free < NEEDED.into() {
            return None;
        }
        state.free -= i64::from(NEEDED);
        state.stakes += 1;
        Some(Stake { pool: Arc::clone(self), entitled: NEEDED, window: INITIAL.into() })
    }

    /// The receives that no connection may use.
    #[cfg(test)]
    pub(super) fn free(&self) -> i64 {
        self.lock().free
    }

    /// Calls `work` with the queue, to create a queue pair.
    pub(super) fn with_queue<R>(&self, work: impl FnOnce(&SharedReceiveQueue<Rc>) -> R) -> R {
        work(&self.lock().queue)
    }

    /// Posts a receive that belongs to a stake again. The caller logs an error once it holds no
    /// lock.
    pub(super) fn post(&self, buffer: Buffer) -> Result<(), PostError<Buffer>> {
        self.lock().queue.post_recv_unlogged(buffer, self.token)
    }

    /// Posts a receive that belongs to no stake. The caller logs an error once it holds no lock, by
    /// [`log_lost`].
    pub(super) fn give(&self, buffer: Buffer) -> Result<(), PostError<Buffer>> {
        let mut state = self.lock();
        state.queue.post_recv_unlogged(buffer, self.token)?;
        state.free += 1;
        Ok(())
    }
}

impl fmt::Debug for ReceivePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivePool").field("total", &self.total).finish_non_exhaustive()
    }
}

/// The part of a connection in a [`ReceivePool`].
#[derive(Debug)]
pub(super) struct Stake {
    pool: Arc<ReceivePool>,
    /// Posted receives that the peer may use.
    entitled: u32,
    /// Data receives of the connection: posted ones, and those whose messages are held.
    window: u32,
}

impl Stake {
    pub(super) fn pool(&self) -> &Arc<ReceivePool> {
        &self.pool
    }

    /// Notes that a message of the peer has taken a receive.
    pub(super) fn taken(&mut self) {
        match self.entitled.checked_sub(1) {
            Some(entitled) => self.entitled = entitled,
            None => self.pool.lock().free -= 1,
        }
    }

    /// Posts a receive for the peer. The caller logs an error once it holds no lock.
    pub(super) fn post(&mut self, buffer: Buffer) -> Result<(), PostError<Buffer>> {
        self.pool.post(buffer)?;
        self.entitled += 1;
        Ok(())
    }

    /// Takes free receives for a peer that uses all that it has: as many as it has, up to its share
    /// and to `window`. Returns how many.
    pub(super) fn grow(&mut self, window: u32) -> u32 {
        let mut state = self.pool.lock();
        let most = window.min(self.pool.share(&state)).saturating_sub(self.window);
        // Enough stay free for a new connection.
        let free = u32::try_from(state.free - i64::from(NEEDED)).unwrap_or(0);
        let count = self.window.max(1).min(most).min(free);
        state.free -= i64::from(count);
        self.entitled += count;
        self.window += count;
        count
    }

    /// Gives a receive to other connections, if this one has more than its share and too few are
    /// free for a new connection.
    /// Returns the buffer otherwise. The caller logs an error as that of [`ReceivePool::give`].
    pub(super) fn shrink(&mut self, buffer: Buffer) -> Result<Option<Buffer>, PostError<Buffer>> {
        let state = self.pool.lock();
        if state.free >= NEEDED.into() || self.window <= self.pool.share(&state) {
            return Ok(Some(buffer));
        }
        drop(state);
        self.window -= 1;
        self.pool.give(buffer)?;
        Ok(None)
    }
}

impl ReceivePool {
    /// The data receives of each connection, if all and a new one use as many.
    fn share(&self, state: &State) -> u32 {
        (self.total / (state.stakes + 1)).saturating_sub(RESERVE).max(INITIAL.into())
    }
}

impl Drop for Stake {
    fn drop(&mut self) {
        if self.pool.made_in.is_forked() {
            return;
        }
        let mut state = self.pool.lock();
        state.free += i64::from(self.entitled);
        state.stakes -= 1;
    }
}

/// Logs a receive that could not be posted. A subscriber of the log is user code, so the caller
/// holds no lock.
pub(super) fn log_lost(refused: &PostError<Buffer>) {
    refused.log();
    tracing::error!(name: "receive_lost", target: "rdma_net", error = %refused.error(), "a shared receive is lost");
}
