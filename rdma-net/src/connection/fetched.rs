//! The results of reads, and the buffers that a connection keeps for further reads.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma::{Buffer, MadeIn, ProtectionDomain, Result, Verb};

/// Shortest buffer, so that one buffer serves reads of several lengths.
const MIN_LEN: usize = 4096;

/// A connection's buffers for fetches, those that no fetch uses: twice as many as may be in flight,
/// the longest ones. Slices may be longer than messages, for which the node keeps other buffers.
#[derive(Debug)]
pub(super) struct FetchBuffers {
    spares: Mutex<Spares>,
    /// Buffers that are kept.
    most: usize,
    made_in: MadeIn,
}

#[derive(Debug, Default)]
struct Spares {
    /// By length, which is a power of two but for huge ones: so there are few lengths. A length
    /// stays here without a buffer, too.
    by_len: BTreeMap<usize, Vec<Buffer>>,
    count: usize,
}

impl Spares {
    /// Takes the shortest buffer of at least `len` bytes.
    fn take(&mut self, len: usize) -> Option<Buffer> {
        let buffer = self.by_len.range_mut(len..).find_map(|(_, buffers)| buffers.pop())?;
        self.count -= 1;
        Some(buffer)
    }

    fn push(&mut self, buffer: Buffer) {
        self.by_len.entry(buffer.len()).or_default().push(buffer);
        self.count += 1;
    }

    /// The length of the shortest buffer.
    fn shortest(&self) -> Option<usize> {
        self.by_len.iter().find(|(_, buffers)| !buffers.is_empty()).map(|(len, _)| *len)
    }
}

impl FetchBuffers {
    pub(super) fn new(operations: u32) -> Self {
        Self { spares: Mutex::default(), most: 2 * operations as usize, made_in: MadeIn::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `len` bytes of the shortest buffer that has as many, or of a new one, and the part of
    /// the buffer behind them.
    pub(super) fn take(&self, pd: &ProtectionDomain, len: usize) -> Result<(Buffer, Buffer)> {
        self.made_in.check(Verb::PostSend)?;
        let spare = self.lock().take(len);
        let new_len = len.checked_next_power_of_two().unwrap_or(len).max(MIN_LEN);
        let mut buffer = spare.map_or_else(|| pd.allocate(new_len), Ok)?;
        let rest = buffer.split_off(len);
        Ok((buffer, rest))
    }

    /// Keeps a buffer, and returns one that is not needed.
    fn put(&self, buffer: Buffer) -> Option<Buffer> {
        let mut spares = self.lock();
        if spares.count < self.most {
            spares.push(buffer);
            return None;
        }
        if spares.shortest().is_none_or(|len| len >= buffer.len()) {
            return Some(buffer);
        }
        let shortest = spares.take(0);
        spares.push(buffer);
        shortest
    }
}

/// The contents of a peer's memory, read by [`Remote::fetch`](super::Remote::fetch).
///
/// The bytes lie in a buffer that the connection uses again once they are dropped.
pub struct Fetched {
    /// Present until the drop: the bytes, and the rest of their buffer.
    buffers: Option<(Buffer, Buffer)>,
    spares: Arc<FetchBuffers>,
}

impl Fetched {
    pub(super) fn new(spares: &Arc<FetchBuffers>, bytes: Buffer, rest: Buffer) -> Self {
        Self { buffers: Some((bytes, rest)), spares: Arc::clone(spares) }
    }
}

impl Deref for Fetched {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffers.as_ref().map_or(&[], |(bytes, _)| bytes)
    }
}

impl AsRef<[u8]> for Fetched {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Without a copy, for code that keeps what it has read or hands it on as `Bytes`.
///
/// The bytes hold the whole buffer, of at least 4096 bytes. While a program holds more buffers than
/// [operations may be in flight](crate::NodeOptions::operations), further fetches register new
/// memory: [`Fetched::into_bytes`] copies short slices instead.
///
/// # Examples
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (client, server) = connected()?;
/// use bytes::Bytes;
///
/// let table = server.domain().allocate_exposed(64, rdma::RemoteAccess::READ)?;
/// table.copy_in(0, b"head body")?;
/// let fetched = block_on(client.remote().fetch(table.remote(..)?))?;
/// let body = Bytes::from(fetched).slice(5..9);
/// assert_eq!(&body[..], b"body");
/// # Ok(()) }
/// ```
#[cfg(feature = "bytes")]
impl From<Fetched> for bytes::Bytes {
    fn from(fetched: Fetched) -> Self {
        Self::from_owner(fetched)
    }
}

#[cfg(feature = "bytes")]
impl Fetched {
    /// The contents as `Bytes`, which are copied if they have at most `copy_up_to` bytes, and
    /// otherwise hold the buffer.
    #[must_use]
    pub fn into_bytes(self, copy_up_to: usize) -> bytes::Bytes {
        if self.len() <= copy_up_to { bytes::Bytes::copy_from_slice(&self) } else { self.into() }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let Some((mut buffer, rest)) = self.buffers.take() else { return };
        if !self.spares.made_in.is_forked() && buffer.unsplit(rest).is_ok() {
            drop(self.spares.put(buffer));
        }
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched").field("len", &self.len()).finish_non_exhaustive()
    }
}
