//! The server: owns the table, and changes it as clients ask.

use std::sync::Arc;
use std::time::Duration;

use rdma::ProtectionDomain;
use rdma_net::{Incoming, Listener};

use super::wire::{Answer, Request};
use crate::Failure;
use crate::cli::{self, Size};
use crate::exposed_table::{ExposedTable, Refusal};
use crate::message::{decode, encode};
use crate::service::{serve_all, unless_closed};

/// Memory that must be left when the table is made.
const HEADROOM: usize = 48 << 20;

/// Options of a server.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = cli::WHAT)]
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
    /// Seconds after which a client that sends nothing is disconnected; one that only reads sends a
    /// request each minute
    #[arg(long, value_name = "N", default_value = "300", value_parser = cli::seconds)]
    pub idle: Duration,
}

impl ServerOptions {
    /// An empty table, in memory that clients may read.
    ///
    /// # Errors
    /// Too little memory for the keys; so much that too little is left for clients; errors of the
    /// device.
    pub fn table(&self, pd: &ProtectionDomain) -> Result<ExposedTable, Failure> {
        let table = ExposedTable::new(pd, self.keys, self.memory.0, Duration::from_millis(self.grace))?;
        // A small allocation that is refused ends the process without a word of the reason.
        let room = Vec::<u8>::new().try_reserve_exact(HEADROOM);
        room.map_err(|_| {
            Failure::out_of_memory(format_args!("a table of {} leaves no memory for clients", self.memory))
        })?;
        Ok(table)
    }
}

/// Serves all clients of a listener, each in a task of its own.
///
/// # Errors
/// If the listener fails. A client's failure ends that client only, and is reported on standard
/// error.
pub async fn serve(listener: Listener, table: Arc<ExposedTable>) -> Result<(), Failure> {
    serve_all(listener, "kv", |incoming| serve_client(incoming, Arc::clone(&table))).await
}

async fn serve_client(incoming: Incoming, table: Arc<ExposedTable>) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    while let Some(request) = unless_closed(connection.next().await)? {
        // If the request is malformed, dropping the connection closes it.
        connection.send(answer(&table, &request)?).await?;
    }
    Ok(())
}

/// Does what a request asks for, and returns the bytes of the answer.
///
/// # Errors
/// A malformed request; errors of access to the table's memory.
pub fn answer(table: &ExposedTable, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let malformed = || Failure::new("the request is malformed; the client was disconnected");
    let changed = match decode(request).ok_or_else(malformed)? {
        Request::Open => {
            let (memory, buckets) = table.place()?;
            return encode(&Answer::Table(memory.to_bytes(), buckets));
        }
        Request::Get(key) => match table.get(key)? {
            Some(value) => return encode(&Answer::Value(value.sequence, &value.bytes)),
            None => Err(Refusal::NoKey),
        },
        Request::Put(key, value, expected) => table.put(key, value, expected)?,
        Request::Delete(key, expected) => table.delete(key, expected)?,
    };
    encode(&changed.map_or_else(Answer::Refused, Answer::Done))
}
