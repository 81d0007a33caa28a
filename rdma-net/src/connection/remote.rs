//! One-sided operations on the peer's memory.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use rdma::{Buffer, Error, ErrorKind, RemoteSlice, Verb};

use super::batch::Batch;
use super::core::Core;
use super::fetched::Fetched;
use super::operations::{Finished, Request};
use crate::failure::{Failure, FailureKind};
use crate::waiters::Place;

/// Access to memory that the peer has exposed: reads, writes and atomic operations that the peer's
/// device executes without its processor.
///
/// The peer exposes a region of its [domain](super::Sender::domain) and sends the region's
/// [`RemoteSlice`], for example in a message. The slice is a key: whoever has it can use it until
/// the peer revokes or drops the region. An operation on a slice that the peer does not expose, or
/// no longer, fails the connection.
///
/// Clones use the same connection. Up to [`max_operations`](Self::max_operations) operations are in
/// flight; others wait in the order in which they came, also behind a notification that waits for
/// the peer ([`write_imm`](Self::write_imm)). Operations of one task that waits for each of them
/// happen in order; the order of operations in flight at the same time is undefined, and so is
/// their order to messages. A [`batch`](Self::batch) costs one doorbell and one wake-up for many of
/// them.
#[derive(Clone, Debug)]
pub struct Remote {
    core: Arc<Core>,
}

impl Remote {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core) }
    }

    /// Whether the device can read into the memory of this side: on iWARP it cannot, so the program
    /// must ask the peer by message.
    #[must_use]
    pub fn can_read(&self) -> bool {
        !self.core.pd.context().capabilities().read_needs_exposed_sink
    }

    /// Reads the peer's slice. The connection keeps buffers for further reads, twice as many as may
    /// be in flight: the results of some are used while the others travel.
    ///
    /// A read of memory that the peer changes meanwhile may mix old and new bytes: an entry needs a
    /// checksum, as the page [*operations*](rdma::guide::operations) of the guide says.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed; `Local` on iWARP ([`can_read`](Self::can_read)), and
    /// if memory for the slice is short.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, mut server) = connected()?;
    /// use rdma::{RemoteAccess, RemoteSlice};
    ///
    /// // The server exposes a table and tells the client where it is; then it does nothing.
    /// let table = server.domain().allocate_exposed(4096, RemoteAccess::READ)?;
    /// table.fill(0, 4096, 7)?;
    /// block_on(async {
    ///     server.send(table.remote(..)?.to_bytes()).await?;
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # let mut client = client;
    /// let row = block_on(async {
    ///     let message = client.next().await?.expect("where the table is");
    ///     let table = RemoteSlice::from_bytes(&message).expect("a slice");
    ///     let row = table.slice(128..256).expect("a row of the table");
    ///     client.remote().fetch(row).await
    /// })?;
    /// assert_eq!(row[..], [7; 128]);
    /// # Ok(()) }
    /// ```
    pub async fn fetch(&self, from: RemoteSlice) -> Result<Fetched, Failure> {
        let too_long = |_| Error::new(Verb::PostSend, ErrorKind::OutOfBounds);
        let len = usize::try_from(from.len()).map_err(too_long)?;
        let mut rest = None;
        // A task that waits for a slot needs no buffer yet.
        let request = || {
            let (buffer, behind) = self.core.fetch_buffers.take(&self.core.pd, len)?;
            rest = Some(behind);
            Ok(Some((Request::Read(from), Some(buffer))))
        };
        let bytes = self.run(request).await.and_then(buffer)?;
        let rest = rest.ok_or_else(|| Failure::new(FailureKind::Local))?;
        Ok(Fetched::new(&self.core.fetch_buffers, bytes, rest))
    }

    /// Fills a buffer of the connection's [domain](super::Sender::domain) from the front of the
    /// peer's slice, which must be at least as long.
    ///
    /// A read of memory that the peer changes meanwhile may mix old and new bytes. Dropping the
    /// future drops the buffer once the device has filled it.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed; `Local` for a slice that is too short, and on iWARP,
    /// which cannot read into a buffer. The buffer is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// # let table = server.domain().allocate_exposed(64, rdma::RemoteAccess::READ)?;
    /// # table.fill(0, 64, 7)?;
    /// # let remote = table.remote(..)?;
    /// // Memory of one's own, used again for each read.
    /// let mut buffer = client.domain().allocate(64)?;
    /// for _ in 0..3 {
    ///     buffer = block_on(client.remote().read(remote, buffer))?;
    ///     assert_eq!(buffer[..], [7; 64]);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn read(&self, from: RemoteSlice, into: Buffer) -> Result<Buffer, Failure> {
        self.run(|| Ok(Some((Request::Read(from), Some(into))))).await.and_then(buffer)
    }

    /// Writes the first `len` bytes of a buffer of the connection's [domain](super::Sender::domain)
    /// to the front of the peer's slice, which must be at least as long.
    ///
    /// Success means that the bytes are visible to the peer's processor.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed; `Local` for a slice or a buffer that is too short.
    /// The buffer is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// # let table = server.domain().allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// # let remote = table.remote(..)?;
    /// let mut buffer = client.domain().allocate(64)?;
    /// buffer[..5].copy_from_slice(b"hello");
    /// let buffer = block_on(client.remote().write(remote, buffer, 5))?;
    /// // The peer's processor sees the bytes.
    /// let mut seen = [0; 5];
    /// table.copy_out(0, &mut seen)?;
    /// assert_eq!(&seen, b"hello");
    /// # drop(buffer);
    /// # Ok(()) }
    /// ```
    pub async fn write(&self, to: RemoteSlice, from: Buffer, len: usize) -> Result<Buffer, Failure> {
        check_write(to, &from, len)?;
        self.run(|| Ok(Some((Request::Write(to, len), Some(from))))).await.and_then(buffer)
    }

    /// Writes as [`write`](Self::write) does, and notifies the peer's program with `number`, the
    /// immediate data of the write: [`Notifications`](super::Notifications) has it once the bytes
    /// are there.
    ///
    /// A notification takes a receive of the peer, as a message does: this call waits while the
    /// peer has none, or while as many notifications wait there as its node
    /// [allows](crate::NodeOptions::notifications). While messages wait for receives too, they and
    /// notifications take turns. Dropping the future before the write is posted takes it back.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write); `Local` with `NotSupported`, before anything is posted, if
    /// the peer's node takes no notifications or is on iWARP ([`can_notify`](Self::can_notify)).
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/notified.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// // The server's node was made with `NodeOptions::notifications(64)`.
    /// let table = server.domain().allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// let to = table.remote(..)?;
    /// let mut buffer = client.domain().allocate(64)?;
    /// buffer[..4].copy_from_slice(b"page");
    /// let notifications = server.notifications();
    /// let (buffer, number) = block_on(async {
    ///     Ok::<_, Failure>((client.remote().write_imm(to, buffer, 4, 7).await?, notifications.next().await?))
    /// })?;
    /// assert_eq!(number, 7);
    /// let mut page = [0; 4];
    /// table.copy_out(0, &mut page)?;
    /// assert_eq!(&page, b"page");
    /// # drop(buffer);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub async fn write_imm(&self, to: RemoteSlice, from: Buffer, len: usize, number: u32) -> Result<Buffer, Failure> {
        check_notifies(&self.core)?;
        check_write(to, &from, len)?;
        self.run(|| Ok(Some((Request::WriteImm(to, len, number), Some(from))))).await.and_then(buffer)
    }

    /// Whether the peer's node takes notifications.
    #[must_use]
    pub fn can_notify(&self) -> bool {
        self.core.notifies
    }

    /// Replaces the peer's 8 bytes at the front of `at` by `swap` if they equal `compare`; returns
    /// the old value. The address must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// The reason why the connection failed; `Local` for a slice of less than 8 bytes, and if the
    /// device has no atomic operations.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// use rdma::RemoteAccess;
    ///
    /// // A lock: 0 if nobody holds it.
    /// let lock = server.domain().allocate_exposed(8, RemoteAccess::ATOMIC)?;
    /// let (remote, at) = (client.remote(), lock.remote(..)?);
    /// block_on(async {
    ///     assert_eq!(remote.compare_swap(at, 0, 17).await?, 0, "the lock was free, and is ours");
    ///     assert_eq!(remote.compare_swap(at, 0, 18).await?, 17, "another client learns who holds it");
    ///     assert_eq!(remote.compare_swap(at, 17, 0).await?, 17, "free again");
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub async fn compare_swap(&self, at: RemoteSlice, compare: u64, swap: u64) -> Result<u64, Failure> {
        self.run(|| Ok(Some((Request::CompareSwap(at, compare, swap), None)))).await.and_then(old_value)
    }

    /// Adds to the peer's 8 bytes at the front of `at`; returns the old value. The address must be
    /// a multiple of 8.
    ///
    /// # Errors
    ///
    /// As for [`compare_swap`](Self::compare_swap).
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// use rdma::RemoteAccess;
    ///
    /// let sequence = server.domain().allocate_exposed(8, RemoteAccess::ATOMIC)?;
    /// let (remote, at) = (client.remote(), sequence.remote(..)?);
    /// block_on(async {
    ///     // 10 numbers that no other client gets.
    ///     let first = remote.fetch_add(at, 10).await?;
    ///     assert_eq!((first, remote.fetch_add(at, 10).await?), (0, 10));
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub async fn fetch_add(&self, at: RemoteSlice, add: u64) -> Result<u64, Failure> {
        self.run(|| Ok(Some((Request::FetchAdd(at, add), None)))).await.and_then(old_value)
    }

    /// Begins a batch: operations that are posted together, with one doorbell.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// use rdma::RemoteAccess;
    ///
    /// let table = server.domain().allocate_exposed(4096, RemoteAccess::READ | RemoteAccess::ATOMIC)?;
    /// let at = table.remote(..)?;
    /// let mut batch = client.remote().batch();
    /// batch.fetch_add(at, 1)?;
    /// batch.fetch(at.slice(64..128)?)?;
    /// batch.fetch(at.slice(640..704)?)?;
    /// // The results come in the order of the operations.
    /// let results = block_on(batch.submit())?;
    /// assert_eq!(results[0].old_value(), Some(0));
    /// assert!(results[1..].iter().all(|row| row.fetched().is_some_and(|row| row.len() == 64)));
    /// # Ok(()) }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(&self.core)
    }

    /// The one-sided operations of the connection that may be in flight, and the most of a
    /// [`batch`](Self::batch): [`NodeOptions::operations`](crate::NodeOptions::operations).
    #[must_use]
    pub fn max_operations(&self) -> usize {
        self.core.max_operations as usize
    }

    /// Reads many slices of the peer, and returns their contents in the same order. As many as
    /// [may be in flight](Self::max_operations) share a doorbell; the others follow.
    ///
    /// # Errors
    ///
    /// As for [`fetch`](Self::fetch). The first failure counts.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = connected()?;
    /// let table = server.domain().allocate_exposed(64 * 64, rdma::RemoteAccess::READ)?;
    /// let at = table.remote(..)?;
    /// let rows: Result<Vec<_>, _> = (0..64).map(|row| at.slice(64 * row..64 * (row + 1))).collect();
    /// let rows = block_on(client.remote().fetch_all(rows?))?;
    /// assert_eq!(rows.len(), 64);
    /// # Ok(()) }
    /// ```
    pub async fn fetch_all(&self, from: impl IntoIterator<Item = RemoteSlice>) -> Result<Vec<Fetched>, Failure> {
        let mut from = from.into_iter().peekable();
        let mut all = Vec::with_capacity(from.size_hint().0.min(self.max_operations()));
        while from.peek().is_some() {
            let mut batch = self.batch();
            for slice in from.by_ref().take(self.max_operations()) {
                batch.fetch(slice)?;
            }
            batch.submit_each(|outcome| all.extend(outcome.into_fetched())).await?;
        }
        Ok(all)
    }

    async fn run(
        &self,
        request: impl FnOnce() -> Result<Option<(Request, Option<Buffer>)>, Error>,
    ) -> Result<Finished, Failure> {
        let running = Running::run(&self.core, 1, request).await?;
        let mut result = Err(Failure::new(FailureKind::Local));
        running.take(|taken| result = taken);
        result
    }
}

/// Fails if the peer takes no notifications.
pub(super) fn check_notifies(core: &Core) -> Result<(), Failure> {
    if core.notifies { Ok(()) } else { Err(Error::new(Verb::PostSend, ErrorKind::NotSupported).into()) }
}

/// Fails if a write of `len` bytes passes the end of the peer's slice or of the buffer.
pub(super) fn check_write(to: RemoteSlice, from: &Buffer, len: usize) -> Result<(), Failure> {
    let fits = len <= from.len() && len as u64 <= to.len();
    if fits { Ok(()) } else { Err(Error::new(Verb::PostSend, ErrorKind::OutOfBounds).into()) }
}

/// A task that waits for slots. Dropping it passes the turn on.
struct Waiting<'a> {
    core: &'a Core,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.core.tell(|flow, _| flow.give_up_slots(&mut self.place));
        }
    }
}

/// Operations that have begun together, abandoned when dropped.
pub(super) struct Running<'a> {
    core: &'a Core,
    /// The first of them whose result is not taken; 0 if there is none.
    next: u32,
}

impl<'a> Running<'a> {
    /// Waits for `count` slots, and runs as many operations until all have results. `requests` is
    /// called once the slots are there, under the connection's lock, and drops nothing.
    pub(super) async fn run<R: IntoIterator<Item = (Request, Option<Buffer>)>>(
        core: &'a Core,
        count: u32,
        requests: impl FnOnce() -> Result<R, Error>,
    ) -> Result<Self, Failure> {
        let mut running = Self { core, next: 0 };
        let (mut requests, mut waiting) = (Some(requests), Waiting { core, place: None });
        poll_fn(|cx| {
            core.poll(cx, false, |flow, _, task| {
                ready!(flow.poll_slots(count, &mut waiting.place, task))?;
                if let Some(requests) = requests.take() {
                    // Without requests the slots are another task's.
                    let requests = requests().inspect_err(|_| flow.wake_operator())?;
                    running.next = flow.operate(requests)?;
                }
                Poll::Ready(Ok(()))
            })
        })
        .await?;
        let (leader, mut is_new) = (running.next, true);
        poll_fn(|cx| core.poll(cx, std::mem::take(&mut is_new), |flow, _, task| flow.poll_operations(leader, task)))
            .await?;
        Ok(running)
    }

    /// Takes the results in the order of the operations.
    pub(super) fn take(mut self, mut take: impl FnMut(Result<Finished, Failure>)) {
        self.core.with(|flow, _| {
            while self.next != 0 {
                take(flow.take_result(&mut self.next));
            }
        });
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.next != 0 {
            self.core.tell(|flow, _| flow.abandon_operations(self.next));
        }
    }
}

fn buffer(finished: Finished) -> Result<Buffer, Failure> {
    if let Finished::Buffer(buffer) = finished { Ok(buffer) } else { Err(Failure::new(FailureKind::Local)) }
}

fn old_value(finished: Finished) -> Result<u64, Failure> {
    if let Finished::OldValue(value) = finished { Ok(value) } else { Err(Failure::new(FailureKind::Local)) }
}
