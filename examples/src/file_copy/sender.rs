//! The sender.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use rdma::net::{Node, Receiver, Sender};
use serde::Serialize;
use xxhash_rust::xxh64::Xxh64;

use super::wire::{Answer, DATA, DATA_HEADER, Order};
use super::{CHUNK, IN_FLIGHT};
use crate::Failure;
use crate::files::checksum_of;
use crate::files::listing::{Entry, Kind, Listing, cannot_read};
use crate::message::{decode, encode};
use crate::progress::Bytes;

/// The result of a copy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Files that the receiver has now.
    pub files: usize,
    /// Directories that the receiver has now.
    pub directories: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes that the receiver had before.
    pub kept: u64,
    /// Links, devices and other things that are no files, which were not copied.
    pub skipped: Vec<String>,
    /// Seconds from the first file to the last answer.
    pub seconds: f64,
}

/// Copies files and directories to a receiver, and shows the progress on a terminal.
///
/// # Errors
/// If a file cannot be read, or changes meanwhile; the receiver's reason; if the connection fails.
pub async fn send(node: &Node, receiver: SocketAddr, paths: &[PathBuf]) -> Result<Summary, Failure> {
    let Listing { entries, skipped } = Listing::of(paths)?;
    let progress = Bytes::new(Listing::bytes(&entries));
    let (to, from) = node.connect(receiver).await?.split();
    if to.max_payload() < DATA_HEADER + CHUNK {
        return Err(Failure::new("the receiver takes shorter messages only; it is another program"));
    }
    let mut copy = Copy { to, from, offered: VecDeque::new(), finished: 0, progress, summary: Summary::default() };
    let start = Instant::now();
    let result = copy.run(&entries).await;
    let seconds = start.elapsed().as_secs_f64();
    let Copy { to, mut from, summary, .. } = copy;
    // Ends this end's data: the receiver ends then, too, and may have said why it failed while this
    // end was sending.
    drop(to);
    let mut reason = None;
    while let Ok(Some(message)) = from.next().await {
        if let Some(Answer::Failed(text)) = decode(&message) {
            reason = Some(receivers(&text));
        }
    }
    result.map_err(|failure| reason.unwrap_or(failure))?;
    // JSON has no other bytes than text.
    let skipped = skipped.iter().map(|path| path.display().to_string()).collect();
    Ok(Summary { skipped, seconds, ..summary })
}

/// A copy that is going on.
struct Copy<'a> {
    to: Sender,
    from: Receiver,
    /// Files that the receiver knows of and that were not sent yet, oldest first.
    offered: VecDeque<Offer<'a>>,
    /// Files that the receiver has confirmed.
    finished: usize,
    progress: Bytes,
    summary: Summary,
}

struct Offer<'a> {
    entry: &'a Entry,
    file: File,
    len: u64,
}

impl<'a> Copy<'a> {
    async fn run(&mut self, entries: &'a [Entry]) -> Result<(), Failure> {
        for entry in entries {
            match entry.kind {
                Kind::Directory => {
                    self.to.send(encode(&Order::Directory(&entry.path))?).await?;
                    self.summary.directories += 1;
                }
                Kind::File { len, mode } => self.offer(entry, len, mode).await?,
            }
        }
        while !self.offered.is_empty() {
            self.send_oldest().await?;
        }
        while self.finished < self.summary.files {
            if let Answer::Have(..) = self.answer().await? {
                return Err(out_of_turn());
            }
        }
        Ok(())
    }

    async fn offer(&mut self, entry: &'a Entry, len: u64, mode: u32) -> Result<(), Failure> {
        let file = File::open(&entry.source).map_err(|error| cannot_read(&entry.source, &error))?;
        self.to.send(encode(&Order::File(mode, len, &entry.path))?).await?;
        self.offered.push_back(Offer { entry, file, len });
        if self.offered.len() < IN_FLIGHT { Ok(()) } else { self.send_oldest().await }
    }

    /// Sends the bytes that the receiver lacks of the file that was offered first.
    async fn send_oldest(&mut self) -> Result<(), Failure> {
        let Some(offer) = self.offered.pop_front() else { return Ok(()) };
        let (had, their_sum) = loop {
            if let Answer::Have(len, sum) = self.answer().await? {
                break (len, sum);
            }
        };
        let cannot_read = |error| cannot_read(&offer.entry.source, &error);
        let prefix = checksum_of(&offer.file, had.min(offer.len)).map_err(cannot_read)?;
        let is_prefix = had <= offer.len && prefix.digest() == their_sum;
        let (mut offset, mut sum) = if is_prefix { (had, prefix) } else { (0, Xxh64::new(0)) };
        self.summary.kept += offset;
        self.progress.add(offset);
        self.to.send(encode(&Order::Start(offset))?).await?;
        while offset < offer.len {
            let len = usize::try_from(offer.len - offset).unwrap_or(CHUNK).min(CHUNK);
            let mut permit = self.to.reserve().await?;
            let (header, rest) = permit.payload_mut().split_at_mut(DATA_HEADER);
            let bytes = &mut rest[..len];
            header.fill(DATA);
            offer.file.read_exact_at(bytes, offset).map_err(cannot_read)?;
            sum.update(bytes);
            permit.send_filled(DATA_HEADER + len)?;
            offset += len as u64;
            self.progress.add(len as u64);
        }
        self.to.send(encode(&Order::End(sum.digest()))?).await?;
        self.summary.files += 1;
        self.summary.bytes += offer.len;
        Ok(())
    }

    /// The next answer; counts the files that are finished.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        let ended = || Failure::new("the receiver has ended the connection");
        let message = self.from.next().await?.ok_or_else(ended)?;
        let answer = decode(&message).ok_or_else(out_of_turn)?;
        match answer {
            Answer::Done => self.finished += 1,
            Answer::Failed(reason) => return Err(receivers(&reason)),
            Answer::Have(..) => {}
        }
        Ok(answer)
    }
}

/// The receiver's reason for a failure.
fn receivers(reason: &str) -> Failure {
    Failure::new(format!("the receiver: {reason}"))
}

fn out_of_turn() -> Failure {
    Failure::new("the receiver gave an answer out of turn; it is another program or another version")
}
