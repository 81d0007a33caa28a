//! The client: reads the table in the server's memory, and sends changes by message.

use std::net::SocketAddr;

use rdma::RemoteSlice;
use rdma::net::{Connection, Fetched, Message, Node, Remote};

use super::block::{BUCKET_LEN, Hash, MAX_KEY, MAX_VALUE, Opened, Slot, open};
use super::wire::{Answer, Refusal, Request};
use crate::Failure;
use crate::message::{decode, encode};

/// Times that a client reads a key again that changes meanwhile, before it asks by message.
const RETRIES: usize = 8;

/// A value and its sequence number, which every change of the key increases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Sequence number of the change that set the value.
    pub sequence: u64,
    /// The value.
    pub bytes: Vec<u8>,
}

/// How a client has found values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Searches that met a change and began again.
    pub retries: u64,
    /// Searches that were left to the server.
    pub by_message: u64,
}

/// A connection to a server. It does one request at a time.
///
/// Dropping the future of a request may leave its answer in the connection, so the client must be
/// dropped then too.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    remote: Remote,
    /// The memory of the server's table.
    table: RemoteSlice,
    /// Number of its buckets.
    buckets: usize,
    counts: Counts,
}

/// The result of a search in the table.
enum Search {
    Found(Value),
    Absent,
    /// The key's tag is that of another key.
    Ambiguous,
    /// The table has changed meanwhile.
    Changed,
}

impl Client {
    /// Connects to a server, and asks it where its table is.
    ///
    /// # Errors
    /// If there is no server, or if it answers what no server does.
    pub async fn connect(node: &Node, server: SocketAddr) -> Result<Self, Failure> {
        let mut connection = node.connect(server).await?;
        let answer = ask(&mut connection, Request::Open).await?;
        let Some(Answer::Table(table, buckets)) = decode(&answer) else { return Err(unknown()) };
        let table = RemoteSlice::from_bytes(&table);
        let buckets = usize::try_from(buckets).map_err(|_| unknown())?;
        let fits = buckets.checked_mul(BUCKET_LEN).is_some_and(|len| len as u64 <= table.len());
        if !buckets.is_power_of_two() || buckets < 2 || !fits {
            return Err(unknown());
        }
        Ok(Self { remote: connection.remote(), connection, table, buckets, counts: Counts::default() })
    }

    /// How values were found so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The value of a key, if it exists: by reads, and by message if the key changes all the time
    /// or the device cannot read.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Value>, Failure> {
        check(key, &[])?;
        let attempts = if self.remote.can_read() { 1 + RETRIES } else { 0 };
        for _ in 0..attempts {
            match self.search(key).await? {
                Search::Found(value) => return Ok(Some(value)),
                Search::Absent => return Ok(None),
                Search::Ambiguous => break,
                Search::Changed => self.counts.retries += 1,
            }
        }
        self.counts.by_message += 1;
        let answer = ask(&mut self.connection, Request::Get(key)).await?;
        match decode(&answer) {
            Some(Answer::Value(sequence, bytes)) => Ok(Some(Value { sequence, bytes: bytes.to_vec() })),
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
        self.change(Request::Put(key, value, expected)).await
    }

    /// Removes a key. With `expected`, only if the key has this sequence number.
    ///
    /// # Errors
    /// If the key does not exist or the server refuses; if the connection fails.
    pub async fn delete(&mut self, key: &[u8], expected: Option<u64>) -> Result<(), Failure> {
        check(key, &[])?;
        self.change(Request::Delete(key, expected)).await.map(drop)
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// If the connection has failed.
    pub async fn close(self) -> Result<(), Failure> {
        self.connection.close(0).await?;
        Ok(())
    }

    async fn change(&mut self, request: Request<'_>) -> Result<u64, Failure> {
        let answer = ask(&mut self.connection, request).await?;
        outcome(&answer)
    }

    /// Searches the table once.
    async fn search(&self, key: &[u8]) -> Result<Search, Failure> {
        let mut result = Search::Absent;
        for slot in self.candidates(Hash::of(key)).await? {
            let block = self.fetch(slot.offset, slot.len).await?;
            match open(&block, key) {
                Opened::Found(sequence, value) => {
                    return Ok(Search::Found(Value { sequence, bytes: block[value].to_vec() }));
                }
                Opened::OtherKey if matches!(result, Search::Changed) => {}
                Opened::OtherKey => result = Search::Ambiguous,
                Opened::Torn => result = Search::Changed,
            }
        }
        Ok(result)
    }

    /// Reads both buckets of a key at once; returns the slots that may name its block.
    async fn candidates(&self, hash: Hash) -> Result<Vec<Slot>, Failure> {
        let [one, two] = hash.buckets(self.buckets).map(|number| self.fetch(number * BUCKET_LEN, BUCKET_LEN));
        let (one, two) = tokio::try_join!(one, two)?;
        Ok([one, two].iter().flat_map(|bucket| Slot::candidates(bucket, hash)).collect())
    }

    /// Reads a part of the server's table.
    async fn fetch(&self, start: usize, len: usize) -> Result<Fetched, Failure> {
        Ok(self.remote.fetch(self.table.slice(start..start + len)?).await?)
    }
}

/// Sends a request, and waits for its answer.
async fn ask(connection: &mut Connection, request: Request<'_>) -> Result<Message, Failure> {
    connection.send(encode(&request)?).await?;
    connection.next().await?.ok_or_else(|| Failure::new("the server has ended the connection"))
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
