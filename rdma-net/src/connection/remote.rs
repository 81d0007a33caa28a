//! One-sided operations on the peer's memory.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use rdma::{Buffer, Error, ErrorKind, RemoteSlice, Verb};

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
/// Clones use the same connection. Up to 16 operations are in flight; others wait in the order in
/// which they came. Operations of one task that waits for each of them happen in order; the order
/// of operations in flight at the same time is undefined, and so is their order to messages.
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

    /// Reads the peer's slice. The connection keeps the buffers of up to 16 reads for further ones.
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
        let mut buffer = self.core.fetch_buffers.take(&self.core.pd, len)?;
        let rest = buffer.split_off(len);
        Ok(Fetched::new(&self.core.fetch_buffers, self.read(from, buffer).await?, rest))
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
        self.run(Request::Read(from), Some(into)).await.and_then(buffer)
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
        if len > from.len() {
            return Err(Error::new(Verb::PostSend, ErrorKind::OutOfBounds).into());
        }
        self.run(Request::Write(to, len), Some(from)).await.and_then(buffer)
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
        self.run(Request::CompareSwap(at, compare, swap), None).await.and_then(old_value)
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
        self.run(Request::FetchAdd(at, add), None).await.and_then(old_value)
    }

    async fn run(&self, request: Request, mut buffer: Option<Buffer>) -> Result<Finished, Failure> {
        let mut waiting = Waiting { core: &self.core, place: None };
        let started = poll_fn(|cx| {
            self.core.poll(cx, false, |flow, _, task| {
                let place = &mut waiting.place;
                if let Some(failure) = flow.operation_failure() {
                    flow.leave_operators(place);
                    return Poll::Ready(Err(failure));
                }
                if !flow.operations.waiters.is_turn(*place) || !flow.operations.has_room() {
                    flow.wait_to_operate(place, task);
                    return Poll::Pending;
                }
                flow.leave_operators(place);
                Poll::Ready(flow.operate(request, buffer.take()))
            })
        });
        let id = started.await?;
        let _running = Running { core: &self.core, id };
        let mut is_new = true;
        poll_fn(|cx| self.core.poll(cx, std::mem::take(&mut is_new), |flow, _, task| flow.poll_operation(id, task)))
            .await
    }
}

/// A task that waits for a slot. Dropping it passes the turn on.
struct Waiting<'a> {
    core: &'a Core,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.core.tell(|flow, _| {
                flow.leave_operators(&mut self.place);
                flow.wake_operator();
            });
        }
    }
}

/// An operation in flight, abandoned when dropped.
struct Running<'a> {
    core: &'a Core,
    id: u32,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.core.tell(|flow, _| flow.abandon_operation(self.id));
    }
}

fn buffer(finished: Finished) -> Result<Buffer, Failure> {
    if let Finished::Buffer(buffer) = finished { Ok(buffer) } else { Err(Failure::new(FailureKind::Local)) }
}

fn old_value(finished: Finished) -> Result<u64, Failure> {
    if let Finished::OldValue(value) = finished { Ok(value) } else { Err(Failure::new(FailureKind::Local)) }
}
