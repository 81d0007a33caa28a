//! The server: owns the table, and changes it as clients ask.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdma::net::{Incoming, Listener};
use rdma::{ExposedRegion, ProtectionDomain, RemoteAccess};

use super::table::{Change, Table};
use super::wire::{Answer, Refusal, Request};
use crate::Failure;
use crate::cli::{self, Size};
use crate::message::{decode, encode};
use crate::service::{serve_all, unless_closed};

/// Options of a server.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ServerOptions {
    /// Most keys
    #[arg(long, value_name = "N", default_value = "100000", value_parser = cli::count)]
    pub keys: usize,
    /// Memory of the table and its values
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub memory: Size,
    /// Milliseconds before the memory of an old value is used again
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub grace: u64,
    /// Serve the same requests over TCP too, at the same address
    #[arg(long)]
    pub tcp: bool,
}

/// A table and its memory.
#[derive(Debug)]
pub struct Store {
    /// Held while a change is written, so that the changes of a slot are written in order.
    table: Mutex<Table>,
    memory: ExposedRegion,
}

impl Store {
    /// An empty table, in memory that clients may read.
    ///
    /// # Errors
    /// If the memory does not hold the buckets; errors of the device, and memory that is short.
    pub fn new(pd: &ProtectionDomain, options: &ServerOptions) -> Result<Self, Failure> {
        let ServerOptions { keys, memory: Size(len), grace, .. } = *options;
        let least = Table::bucket_bytes(keys);
        if least >= len {
            let advice = "give more --memory or fewer --keys";
            return Err(Failure::usage(format!("{keys} keys need more than {least} bytes of memory; {advice}")));
        }
        let memory = pd.allocate_exposed(len, RemoteAccess::READ)?;
        Ok(Self { table: Mutex::new(Table::new(keys, len, Duration::from_millis(grace))), memory })
    }

    /// Does what a request asks for, and returns the bytes of the answer.
    ///
    /// # Errors
    /// A malformed request; errors of access to the table's memory.
    pub fn answer(&self, request: &[u8]) -> Result<Vec<u8>, Failure> {
        let malformed = || Failure::new("the request is malformed; the client was disconnected");
        let request = decode(request).ok_or_else(malformed)?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match request {
            Request::Open => {
                let memory = self.memory.remote(..)?;
                return encode(&Answer::Table(memory.to_bytes(), table.buckets() as u64));
            }
            Request::Get(key) => {
                let Some((sequence, place)) = table.get(key) else { return encode(&Answer::Refused(Refusal::NoKey)) };
                let mut value = vec![0; place.len()];
                self.memory.copy_out(place.start, &mut value)?;
                return encode(&Answer::Value(sequence, &value));
            }
            Request::Put(key, value, expected) => table.put(key, value, expected, Instant::now()),
            Request::Delete(key, expected) => table.delete(key, expected, Instant::now()),
        };
        match changed {
            Ok(change) => {
                self.write(&change)?;
                encode(&Answer::Done(change.sequence))
            }
            Err(refusal) => encode(&Answer::Refused(refusal)),
        }
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
pub async fn serve(listener: Listener, store: Arc<Store>) -> Result<(), Failure> {
    serve_all(listener, "kv", |incoming| serve_client(incoming, Arc::clone(&store))).await
}

async fn serve_client(incoming: Incoming, store: Arc<Store>) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    while let Some(request) = unless_closed(connection.next().await)? {
        // If the request is malformed, dropping the connection closes it.
        connection.send(store.answer(&request)?).await?;
    }
    Ok(())
}
