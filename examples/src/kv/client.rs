//! The client: reads the server's table, and sends changes by message.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdma::RemoteSlice;
use rdma_net::{Connection, Node};

use super::PAYLOAD;
use super::wire::{Answer, Request};
use crate::Failure;
use crate::exposed_table::{Counts, Found, MAX_KEY, MAX_VALUE, Reader, Refusal, Value};
use crate::message::{decode, encode};

/// A connection to a server. It does one request at a time.
///
/// Dropping the future of a request may leave its answer in the connection, so the client must be
/// dropped then too.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    table: Reader,
    /// The time of the last request to the server, which sees no reads.
    last_request: Instant,
}

/// Time after which a client that only reads shows the server that it is there.
const QUIET: Duration = Duration::from_secs(60);

impl Client {
    /// Connects to a server, and asks it where its table is.
    ///
    /// # Errors
    /// If there is no server, or if it answers what no server does.
    pub async fn connect(node: &Node, server: SocketAddr) -> Result<Self, Failure> {
        let mut connection = node.connect(server).await?;
        let answer = ask(&mut connection, Request::Open).await?;
        let Some(Answer::Table(memory, buckets)) = decode(&answer) else { return Err(unknown()) };
        let table = Reader::new(connection.remote(), RemoteSlice::from_bytes(&memory)?, buckets);
        Ok(Self { table: table.ok_or_else(unknown)?, connection, last_request: Instant::now() })
    }

    /// How values were found so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.table.counts()
    }

    /// The value of a key, if it exists: by reads, or by message if they do not find out.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Value>, Failure> {
        check(key, &[])?;
        if self.last_request.elapsed() < QUIET {
            match self.table.get(key).await? {
                Found::Value(value) => return Ok(Some(value)),
                Found::Absent => return Ok(None),
                Found::Unknown => {}
            }
        }
        let answer = self.ask(Request::Get(key)).await?;
        match decode(&answer) {
            Some(Answer::Value(sequence, bytes)) => Ok(Some(Value { sequence, bytes: answer.slice_ref(bytes) })),
            Some(Answer::Refused(Refusal::NoKey)) => Ok(None),
            _ => Err(unknown()),
        }
    }

    /// Sets the value of a key and returns its new sequence number. With `expected`, only if the
    /// key has this sequence number, or does not exist for 0.
    ///
    /// # Errors
    /// If the server refuses; if the connection fails.
    pub async fn put(&mut self, key: &[u8], value: &[u8], expected: Option<u64>) -> Result<u64, Failure> {
        check(key, value)?;
        outcome(&self.ask(Request::Put(key, value, expected)).await?)
    }

    /// Removes a key. With `expected`, only if the key has this sequence number.
    ///
    /// # Errors
    /// If the key does not exist or the server refuses; if the connection fails.
    pub async fn delete(&mut self, key: &[u8], expected: Option<u64>) -> Result<(), Failure> {
        check(key, &[])?;
        outcome(&self.ask(Request::Delete(key, expected)).await?).map(drop)
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// If the connection has failed.
    pub async fn close(self) -> Result<(), Failure> {
        self.connection.close().await?;
        Ok(())
    }

    async fn ask(&mut self, request: Request<'_>) -> Result<Bytes, Failure> {
        self.last_request = Instant::now();
        ask(&mut self.connection, request).await
    }
}

/// Sends a request, and waits for its answer, which holds no receive.
async fn ask(connection: &mut Connection, request: Request<'_>) -> Result<Bytes, Failure> {
    connection.send(encode(&request)?).await?;
    let answer = connection.next().await?.ok_or_else(|| Failure::new("the server has ended the connection"))?;
    Ok(answer.into_bytes(PAYLOAD as usize))
}

/// The sequence number of a change, or the reason why the server has refused it.
pub(super) fn outcome(answer: &[u8]) -> Result<u64, Failure> {
    match decode(answer) {
        Some(Answer::Done(sequence)) => Ok(sequence),
        Some(Answer::Refused(refusal)) => Err(Failure::new(refusal.to_string())),
        _ => Err(unknown()),
    }
}

pub(super) fn unknown() -> Failure {
    Failure::new("the server gave an unknown answer; it is no server of this program or of another version")
}

/// Checks the lengths of a key and a value.
pub(super) fn check(key: &[u8], value: &[u8]) -> Result<(), Failure> {
    if key.len() > MAX_KEY || value.len() > MAX_VALUE {
        return Err(Failure::usage(format!("a key has at most {MAX_KEY} bytes, and a value {MAX_VALUE}")));
    }
    Ok(())
}
