//! Batches: one-sided operations that are posted together.

use std::fmt;
use std::mem;
use std::sync::Arc;

use rdma::{Buffer, Error, ErrorKind, OptionLimit, RemoteSlice, Verb};

use super::core::Core;
use super::entries::Entry;
use super::fetched::Fetched;
use super::operations::{Finished, Request, WORD};
use super::remote::{Running, check_notifies, check_write};
use crate::failure::Failure;

/// The error of a batch that would never fit.
static LENGTH: OptionLimit = OptionLimit::new("operations", "no less than the operations of a batch");

/// One-sided operations that are posted together: [`Remote::batch`](super::Remote::batch).
///
/// Nothing is posted before [`submit`](Self::submit); a batch that is dropped drops its buffers.
/// The operations have one doorbell and one wake-up, whatever their kinds. Those of a batch that
/// follow a notification ([`write_imm`](Self::write_imm)) for which the peer has no receive wait
/// with it, and are posted later, in their order.
#[must_use = "nothing is posted before `submit`"]
pub struct Batch {
    core: Arc<Core>,
    entries: Vec<Entry>,
}

/// The result of an operation of a batch.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// Of [`Batch::fetch`]: the contents of the peer's memory.
    Fetched(Fetched),
    /// Of [`Batch::read`], [`Batch::write`] and [`Batch::write_imm`]: the buffer.
    Buffer(Buffer),
    /// Of an atomic operation: the old value.
    OldValue(u64),
}

impl Outcome {
    /// The bytes of a fetch.
    #[must_use]
    pub fn fetched(&self) -> Option<&Fetched> {
        if let Self::Fetched(fetched) = self { Some(fetched) } else { None }
    }

    /// The old value of an atomic operation.
    #[must_use]
    pub fn old_value(&self) -> Option<u64> {
        if let Self::OldValue(value) = self { Some(*value) } else { None }
    }

    /// The bytes of a fetch.
    #[must_use]
    pub fn into_fetched(self) -> Option<Fetched> {
        if let Self::Fetched(fetched) = self { Some(fetched) } else { None }
    }

    /// The buffer of a read or a write.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }
}

impl Batch {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let entries = if core.check_process().is_ok() { core.batches.take() } else { Vec::new() };
        Self { core: Arc::clone(core), entries }
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the batch has no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a read of the peer's slice into a buffer of the connection:
    /// [`Remote::fetch`](super::Remote::fetch).
    ///
    /// # Errors
    ///
    /// `Local` with `InvalidOption`, which names [`operations`](crate::NodeOptions::operations), if
    /// the batch has as many operations as may be in flight; with `NotSupported` on iWARP
    /// ([`can_read`](super::Remote::can_read)).
    pub fn fetch(&mut self, from: RemoteSlice) -> Result<(), Failure> {
        self.check_space()?;
        self.check_reads()?;
        let len = usize::try_from(from.len()).map_err(|_| out_of_bounds())?;
        self.entries.push(Entry { request: Request::Read(from), fetches: Some(len), buffer: None, rest: None });
        Ok(())
    }

    /// Adds a read that fills a buffer: [`Remote::read`](super::Remote::read).
    ///
    /// # Errors
    ///
    /// As for [`fetch`](Self::fetch); `Local` with `OutOfBounds` for a slice that is too short. The
    /// buffer is lost.
    pub fn read(&mut self, from: RemoteSlice, into: Buffer) -> Result<(), Failure> {
        self.check_reads()?;
        if into.len() as u64 > from.len() {
            return Err(out_of_bounds().into());
        }
        self.push(Request::Read(from), Some(into))
    }

    /// Adds a write of the first `len` bytes of a buffer: [`Remote::write`](super::Remote::write).
    ///
    /// # Errors
    ///
    /// `Local` with `InvalidOption` if the batch is full, with `OutOfBounds` for a slice or a
    /// buffer that is too short. The buffer is lost.
    pub fn write(&mut self, to: RemoteSlice, from: Buffer, len: usize) -> Result<(), Failure> {
        check_write(to, &from, len)?;
        self.push(Request::Write(to, len), Some(from))
    }

    /// Adds a write that notifies the peer's program:
    /// [`Remote::write_imm`](super::Remote::write_imm).
    ///
    /// Writes of a batch happen in order, so a notification behind others says that all are done.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write); `Local` with `NotSupported` if the peer takes no
    /// notifications.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub fn write_imm(&mut self, to: RemoteSlice, from: Buffer, len: usize, number: u32) -> Result<(), Failure> {
        check_notifies(&self.core)?;
        check_write(to, &from, len)?;
        self.push(Request::WriteImm(to, len, number), Some(from))
    }

    /// Adds a [`Remote::compare_swap`](super::Remote::compare_swap).
    ///
    /// # Errors
    ///
    /// `Local` with `InvalidOption` if the batch is full, with `OutOfBounds` for a slice of less
    /// than 8 bytes.
    pub fn compare_swap(&mut self, at: RemoteSlice, compare: u64, swap: u64) -> Result<(), Failure> {
        check_word(at)?;
        self.push(Request::CompareSwap(at, compare, swap), None)
    }

    /// Adds a [`Remote::fetch_add`](super::Remote::fetch_add).
    ///
    /// # Errors
    ///
    /// As for [`compare_swap`](Self::compare_swap).
    pub fn fetch_add(&mut self, at: RemoteSlice, add: u64) -> Result<(), Failure> {
        check_word(at)?;
        self.push(Request::FetchAdd(at, add), None)
    }

    /// Posts the operations, once slots for all are free, and waits for their results, which it
    /// returns in the order of the operations. The device may execute reads and atomic operations
    /// in any order.
    ///
    /// Dropping the future drops the results; operations that were posted happen.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed, or the error of the first operation that failed, once
    /// all have ended: for example of a buffer of another domain; `Local` if memory for a fetch is
    /// short. The buffers are lost.
    #[doc(alias = "ibv_post_send")]
    pub async fn submit(self) -> Result<Vec<Outcome>, Failure> {
        let mut results = Vec::new();
        self.submit_into(&mut results).await?;
        Ok(results)
    }

    /// Does what [`submit`](Self::submit) does, and adds the results to a vector, which the program
    /// may use for one batch after the other: then batches allocate nothing. After an error the
    /// vector is as it was.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// # let table = server.domain().allocate_exposed(8, rdma::RemoteAccess::ATOMIC)?;
    /// # let at = table.remote(..)?;
    /// let mut results = Vec::new();
    /// for round in 0..3 {
    ///     let mut batch = client.remote().batch();
    ///     batch.fetch_add(at, 1)?;
    ///     batch.fetch_add(at, 1)?;
    ///     block_on(batch.submit_into(&mut results))?;
    ///     let sum: u64 = results.drain(..).filter_map(|result| result.old_value()).sum();
    ///     assert_eq!(sum, 4 * round + 1);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn submit_into(self, results: &mut Vec<Outcome>) -> Result<(), Failure> {
        let there = results.len();
        results.reserve_exact(self.entries.len());
        let submitted = self.submit_each(|result| results.push(result)).await;
        if submitted.is_err() {
            results.truncate(there);
        }
        submitted
    }

    /// Calls `take` with each result, under the connection's lock: it drops nothing. After an error
    /// it had some results, or none.
    pub(super) async fn submit_each(mut self, mut take: impl FnMut(Outcome)) -> Result<(), Failure> {
        if self.entries.is_empty() {
            return Ok(());
        }
        // Each operation was checked against the limit, which is a `u32`.
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let (core, entries) = (&self.core, &mut self.entries);
        let requests = || {
            let entries = entries;
            for entry in &mut *entries {
                let Some(len) = entry.fetches else { continue };
                let (buffer, rest) = core.fetch_buffers.take(&core.pd, len)?;
                (entry.buffer, entry.rest) = (Some(buffer), Some(rest));
            }
            Ok(entries.iter_mut().map(|entry| (entry.request, entry.buffer.take())))
        };
        let running = Running::run(core, count, requests).await?;
        let (mut entries, mut failure) = (self.entries.iter_mut(), None);
        running.take(|result| {
            let entry = entries.next();
            match result {
                Ok(Finished::Buffer(bytes)) => take(match entry.and_then(|entry| entry.rest.take()) {
                    Some(rest) => Outcome::Fetched(Fetched::new(&core.fetch_buffers, bytes, rest)),
                    None => Outcome::Buffer(bytes),
                }),
                Ok(Finished::OldValue(value)) => take(Outcome::OldValue(value)),
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        });
        failure.map_or(Ok(()), Err)
    }

    fn push(&mut self, request: Request, buffer: Option<Buffer>) -> Result<(), Failure> {
        self.check_space()?;
        self.entries.push(Entry { request, fetches: None, buffer, rest: None });
        Ok(())
    }

    fn check_space(&self) -> Result<(), Failure> {
        if self.entries.len() < self.core.max_operations as usize {
            return Ok(());
        }
        Err(Error::new(Verb::PostSend, ErrorKind::InvalidOption(&LENGTH)).into())
    }

    fn check_reads(&self) -> Result<(), Failure> {
        if self.core.pd.context().capabilities().read_needs_exposed_sink {
            return Err(Error::new(Verb::PostSend, ErrorKind::NotSupported).into());
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut entries = mem::take(&mut self.entries);
        entries.clear();
        if self.core.check_process().is_ok() {
            self.core.batches.keep(entries);
        }
    }
}

fn out_of_bounds() -> Error {
    Error::new(Verb::PostSend, ErrorKind::OutOfBounds)
}

fn check_word(at: RemoteSlice) -> Result<(), Failure> {
    if at.len() < WORD as u64 { Err(out_of_bounds().into()) } else { Ok(()) }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}
