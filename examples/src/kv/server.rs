//! The server: owns the table, and changes it as clients ask.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma::net::{FailureKind, Incoming, Listener};
use rdma::{ExposedRegion, ProtectionDomain, RemoteAccess};

use super::table::{Change, Refusal, Table};
use super::wire::{Answer, Request};
use crate::Failure;
use crate::failure::say;

/// A table and its memory.
#[derive(Debug)]
pub struct Store {
    /// Held while a change is written, so that the changes of a slot are written in order.
    table: Mutex<Table>,
    memory: ExposedRegion,
}

impl Store {
    /// A table for `keys` keys, in `len` bytes of memory that clients may read. Blocks rest for
    /// `grace` before they are used again.
    ///
    /// # Errors
    /// If the memory does not hold the buckets; errors of the device, and memory that is short.
    pub fn new(pd: &ProtectionDomain, keys: usize, len: usize, grace: Duration) -> Result<Self, Failure> {
        let least = Table::bucket_bytes(keys);
        if least >= len {
            let advice = "give more --memory or fewer --keys";
            return Err(Failure::usage(format!("{keys} keys need more than {least} bytes of memory; {advice}")));
        }
        let memory = pd.allocate_exposed(len, RemoteAccess::READ)?;
        Ok(Self { table: Mutex::new(Table::new(keys, len, grace)), memory })
    }

    /// Does what a request asks for, and returns the bytes of the answer; `None` for a malformed
    /// request.
    ///
    /// # Errors
    /// Errors of access to the table's memory.
    pub fn answer(&self, request: &[u8]) -> rdma::Result<Option<Vec<u8>>> {
        let Some(request) = Request::from_bytes(request) else { return Ok(None) };
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match request {
            Request::Open => {
                let memory = self.memory.remote(..)?;
                return Ok(Some(Answer::Table(memory, table.buckets() as u64).to_bytes()));
            }
            Request::Get(key) => {
                let Some((sequence, place)) = table.get(key) else { return Ok(Some(Answer::NoKey.to_bytes())) };
                let mut value = vec![0; place.len()];
                self.memory.copy_out(place.start, &mut value)?;
                return Ok(Some(Answer::Value(sequence, &value).to_bytes()));
            }
            Request::Put(key, value, expected) => table.put(key, value, expected, Instant::now()),
            Request::Delete(key, expected) => table.delete(key, expected, Instant::now()),
        };
        let answer = match changed {
            Ok(change) => {
                self.write(&change)?;
                Answer::Done(change.sequence)
            }
            Err(Refusal::NoKey) => Answer::NoKey,
            Err(Refusal::Conflict(sequence)) => Answer::Conflict(sequence),
            Err(Refusal::Full) => Answer::Full,
            Err(Refusal::TooLong) => Answer::TooLong,
        };
        Ok(Some(answer.to_bytes()))
    }

    /// Writes a change: `Release` makes the block visible before the slot that names it.
    fn write(&self, change: &Change) -> rdma::Result<()> {
        if let Some((offset, block)) = &change.block {
            self.memory.copy_in(*offset, block)?;
        }
        let (offset, word) = change.slot;
        self.memory.store_u64(offset, word.to_le(), Ordering::Release)
    }
}

/// Serves all clients of a listener, each in a task of its own.
///
/// # Errors
/// If the listener fails. A client's failure ends that client only, and is reported on standard
/// error.
pub async fn serve(mut listener: Listener, store: Arc<Store>) -> Result<(), Failure> {
    loop {
        let incoming = listener.accept().await?;
        let (peer, store) = (incoming.peer_addr(), Arc::clone(&store));
        tokio::spawn(async move {
            if let Err(failure) = serve_client(incoming, &store).await {
                let peer = peer.map_or_else(|| "a client".to_owned(), |peer| peer.to_string());
                say(&format!("kv: {peer}: {failure}"));
            }
        });
    }
}

async fn serve_client(incoming: Incoming, store: &Store) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    loop {
        let request = match connection.next().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(failure) if failure.kind() == FailureKind::Closed => return Ok(()),
            Err(failure) => return Err(failure.into()),
        };
        let Some(answer) = store.answer(&request)? else {
            // Dropping the connection closes it.
            return Err(Failure::new("the request is malformed; the client was disconnected"));
        };
        connection.send(answer).await?;
    }
}
