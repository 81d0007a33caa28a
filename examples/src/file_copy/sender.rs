//! The sender.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use rdma_net::{Node, Receiver, Sender};
use serde::{Serialize, Serializer};
use xxhash_rust::xxh64::Xxh64;

use super::wire::{Answer, DATA, DATA_HEADER, Order};
use super::{CHUNK, IN_FLIGHT, not_copied};
use crate::Failure;
use crate::files::listing::{Entry, Kind, Listing, cannot_read};
use crate::files::source::Source;
use crate::message::{decode, encode};
use crate::progress::Bytes;
use crate::waiting::Waiting;
use rdma_collectives::Cause;
use rdma_collectives::text::PeerText;

/// Bytes that the sender compares before it tells the receiver that it goes on: a few seconds of a
/// slow disk.
const COMPARED: u64 = 256 << 20;

/// Advice if the connection broke.
const GO_ON: &str = "run it again to go on";

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
    /// Links, devices and other things that are no files, and folders of unfinished files; they
    /// were not copied.
    #[serde(serialize_with = "texts")]
    pub skipped: Vec<PathBuf>,
    /// Seconds from the first file to the last answer.
    pub seconds: f64,
}

/// Names as text: JSON has no other bytes.
fn texts<S: Serializer>(names: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(names.iter().map(|name| name.to_string_lossy()))
}

/// Copies files and directories to a receiver, and shows the progress on a terminal.
///
/// # Errors
/// If two paths have the same last name, or nothing of what is named can be copied; if a file
/// cannot be read; if its length or its times of change say that it changes while it is read, or it
/// has other bytes than its length says, as files of `/proc` have; the receiver's reason; if the
/// connection fails.
pub async fn send(node: &Node, receiver: SocketAddr, paths: &[PathBuf]) -> Result<Summary, Failure> {
    let Listing { entries, skipped } = Listing::of(paths)?;
    if entries.is_empty() {
        let whole: Vec<_> = skipped.iter().map(|path| not_copied(path)).collect();
        return Err(Failure::new(format!("nothing can be copied: {}", whole.join("; "))));
    }
    let progress = Bytes::new(Listing::bytes(&entries));
    let waiting = Waiting::for_peer(receiver);
    let (to, from) = node.connect(receiver).await?.split();
    drop(waiting);
    if to.max_payload() < DATA_HEADER + CHUNK {
        return Err(Failure::new("the receiver takes shorter messages only; it is another program"));
    }
    let mut copy = Copy { to, from, offered: VecDeque::new(), finished: 0, progress, summary: Summary::default() };
    let start = Instant::now();
    let result = copy.run(&entries).await;
    let seconds = start.elapsed().as_secs_f64();
    let Copy { to, mut from, summary, .. } = copy;
    // Ends this side's data: the receiver ends then, too, and may have said why it failed while
    // this side was sending.
    drop(to);
    let mut reason = None;
    while let Ok(Some(message)) = from.next().await {
        if let Some(Answer::Failed(text)) = decode(&message) {
            reason = Some(receivers(&text));
        }
    }
    // What has arrived stays with the receiver if it, or the way to it, is gone.
    let of_connection = |failure: Failure| if failure.is_effect() { failure.advised(GO_ON) } else { failure };
    result.map_err(|failure| reason.unwrap_or_else(|| of_connection(failure)))?;
    Ok(Summary { skipped, seconds, ..summary })
}

/// A copy that is going on.
struct Copy<'a> {
    to: Sender,
    from: Receiver,
    /// Files that the receiver knows of and that were not sent yet, oldest first.
    offered: VecDeque<Offer<'a>>,
    /// Files that the receiver has confirmed, and the end of the copy.
    finished: usize,
    progress: Bytes,
    summary: Summary,
}

struct Offer<'a> {
    entry: &'a Entry,
    source: Source,
}

impl<'a> Copy<'a> {
    async fn run(&mut self, entries: &'a [Entry]) -> Result<(), Failure> {
        for entry in entries {
            match entry.kind {
                Kind::Directory { mode } => {
                    self.to.send(encode(&Order::Directory(mode, &entry.path))?).await?;
                    self.summary.directories += 1;
                }
                Kind::File { .. } => self.offer(entry).await?,
            }
        }
        while !self.offered.is_empty() {
            self.send_oldest().await?;
        }
        // A directory that nobody may write gets its permissions after those in it.
        for entry in entries.iter().rev() {
            if let Kind::Directory { mode } = entry.kind {
                self.to.send(encode(&Order::Permissions(mode, &entry.path))?).await?;
            }
        }
        self.to.send(encode(&Order::Last)?).await?;
        // The receiver confirms the files, and then the end.
        while self.finished <= self.summary.files {
            if let Answer::Have(..) = self.answer().await? {
                return Err(out_of_turn());
            }
        }
        Ok(())
    }

    async fn offer(&mut self, entry: &'a Entry) -> Result<(), Failure> {
        let source = Source::open(&entry.source).map_err(|error| cannot_read(&entry.source, &error))?;
        self.to.send(encode(&Order::File(source.mode(), source.len(), &entry.path))?).await?;
        self.offered.push_back(Offer { entry, source });
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
        let (source, total) = (&offer.source, offer.source.len());
        let prefix = self.compare(&offer, had.min(total)).await?;
        let is_prefix = had <= total && prefix.digest() == their_sum;
        let (mut offset, mut sum) = if is_prefix { (had, prefix) } else { (0, Xxh64::new(0)) };
        self.summary.kept += offset;
        self.progress.add(offset);
        self.to.send(encode(&Order::Start(offset))?).await?;
        while offset < total {
            let len = usize::try_from(total - offset).unwrap_or(CHUNK).min(CHUNK);
            let mut permit = self.to.reserve().await?;
            let (header, rest) = permit.payload_mut().split_at_mut(DATA_HEADER);
            let bytes = &mut rest[..len];
            header.fill(DATA);
            source.read_at(bytes, offset).map_err(cannot_read)?;
            sum.update(bytes);
            permit.send_filled(DATA_HEADER + len)?;
            offset += len as u64;
            self.progress.add(len as u64);
        }
        // Before the receiver may give the bytes the file's name.
        source.check_unchanged().map_err(cannot_read)?;
        self.to.send(encode(&Order::End(sum.digest()))?).await?;
        self.summary.files += 1;
        self.summary.bytes += total;
        Ok(())
    }

    /// The checksum of a file's first `len` bytes. Tells the receiver at times that it goes on.
    async fn compare(&self, offer: &Offer<'_>, len: u64) -> Result<Xxh64, Failure> {
        let (mut sum, mut offset, mut part) = (Xxh64::new(0), 0, vec![0; CHUNK]);
        while offset < len {
            let part = &mut part[..usize::try_from(len - offset).unwrap_or(CHUNK).min(CHUNK)];
            offer.source.read_at(part, offset).map_err(|error| cannot_read(&offer.entry.source, &error))?;
            sum.update(part);
            offset += part.len() as u64;
            if offset % COMPARED == 0 {
                self.to.send(encode(&Order::Comparing)?).await?;
            }
        }
        Ok(sum)
    }

    /// The next answer; counts the files that are finished.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        let ended = || Failure::new("the receiver has ended the connection").advised(GO_ON);
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
    Failure::new(format!("the receiver: {}", PeerText::from(reason)))
}

fn out_of_turn() -> Failure {
    Failure::new("the receiver gave an answer out of turn; it is another program or another version")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, SystemTime};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use rdma::aio::block_on;
    use rdma_net::{ListenOptions, Message, NodeOptions};

    use super::super::node_options;
    use super::*;
    use crate::files::checksum_of;

    /// Longest time that a copy of a few bytes may take.
    const LIMIT: Duration = Duration::from_secs(60);

    fn node(options: &NodeOptions) -> Node {
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let (node, driver) = Node::new(&context, options).unwrap();
        thread::spawn(move || driver.run_blocking());
        node
    }

    /// Copies a file to a receiver that changes it: `listed` after the sender has listed it, and
    /// `opened` after it has opened it.
    fn copy_of(
        path: &Path,
        listed: impl FnOnce() + Send + 'static,
        opened: impl FnOnce() + Send + 'static,
    ) -> Result<Summary, String> {
        let mut listener =
            node(&node_options(1)).listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let (address, paths) = (listener.local_addr(), [path.to_owned()]);
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let copied = block_on(send(&node(&node_options(1)), address, &paths));
            tell.send(copied.map_err(|failure| failure.to_string()))
        });
        thread::spawn(move || {
            block_on(async {
                // The sender waits for the connection, and has listed the file before.
                let incoming = listener.accept().await.unwrap();
                listed();
                let mut connection = incoming.accept().await.unwrap();
                let mut opened = Some(opened);
                while let Ok(Some(message)) = connection.next().await {
                    for answer in answers(&message) {
                        if let Some(change) = opened.take() {
                            change();
                        }
                        drop(connection.send(encode(&answer).unwrap()).await);
                    }
                }
            });
        });
        told.recv_timeout(LIMIT).expect("the sender hangs")
    }

    /// The answers of a receiver that has nothing.
    fn answers(message: &Message) -> Vec<Answer> {
        match decode(message).filter(|_| message[0] != DATA) {
            Some(Order::File(..)) => vec![Answer::Have(0, Xxh64::new(0).digest())],
            Some(Order::End(_) | Order::Last) => vec![Answer::Done],
            _ => Vec::new(),
        }
    }

    /// Makes a file that was written an hour ago.
    fn old_file(folder: &Path) -> PathBuf {
        let path = folder.join("file");
        fs::write(&path, "contents").unwrap();
        let hour = Duration::from_secs(3600);
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - hour).unwrap();
        path
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_no_success() {
        type Change = fn(&File);
        let changes: [(&str, Change); 4] = [
            ("overwritten", |file| file.write_all_at(b"C", 0).unwrap()),
            ("appended", |file| file.write_all_at(b"more", 8).unwrap()),
            ("truncated", |file| file.set_len(3).unwrap()),
            ("emptied", |file| file.set_len(0).unwrap()),
        ];
        for (name, change) in changes {
            let folder = tempfile::tempdir().unwrap();
            let path = old_file(folder.path());
            let file = File::options().write(true).open(&path).unwrap();
            let failed = copy_of(&path, || {}, move || change(&file)).expect_err(name);
            assert!(failed.contains("cannot read") && failed.contains("changes"), "{name}: {failed}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = old_file(folder.path());
        assert_eq!(copy_of(&path, || {}, || {}).unwrap().bytes, 8);
        // What changes before it is opened is copied as it is then.
        let appended = path.clone();
        let append = move || File::options().write(true).open(&appended).unwrap().write_all_at(b"more", 8).unwrap();
        assert_eq!(copy_of(&path, append, || {}).unwrap().bytes, 12);
    }

    #[test]
    fn a_file_with_more_bytes_than_its_length_says_is_no_success() {
        let failed = copy_of(Path::new("/proc/version"), || {}, || {}).unwrap_err();
        assert!(failed.contains("cannot read /proc/version: it has more bytes than its length"), "{failed}");
    }

    #[test]
    fn a_receiver_hears_that_a_long_comparison_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().set_len(2 * COMPARED + 1).unwrap();
        let sum = checksum_of(&File::open(&path).unwrap(), 2 * COMPARED).unwrap().digest();
        let mut listener =
            node(&node_options(1)).listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let address = listener.local_addr();
        let receiving = thread::spawn(move || {
            block_on(async {
                let mut connection = listener.accept().await.unwrap().accept().await.unwrap();
                let mut compared = 0;
                while let Ok(Some(message)) = connection.next().await {
                    let answer = match decode(&message).filter(|_| message[0] != DATA) {
                        Some(Order::File(..)) => Answer::Have(2 * COMPARED, sum),
                        Some(Order::End(_) | Order::Last) => Answer::Done,
                        order => {
                            compared += usize::from(order == Some(Order::Comparing));
                            continue;
                        }
                    };
                    connection.send(encode(&answer).unwrap()).await.unwrap();
                }
                compared
            })
        });
        assert_eq!(block_on(send(&node(&node_options(1)), address, &[path])).unwrap().kept, 2 * COMPARED);
        assert_eq!(receiving.join().unwrap(), 2);
    }

    #[test]
    fn a_file_that_becomes_something_else_is_an_error() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 3] = [
            ("a FIFO", |path| mkfifo(path, Mode::from_bits_truncate(0o600)).unwrap()),
            ("a directory", |path| fs::create_dir(path).unwrap()),
            ("a link", |path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap()),
        ];
        for (name, change) in changes {
            let folder = tempfile::tempdir().unwrap();
            let path = old_file(folder.path());
            let place = path.clone();
            let replace = move || {
                fs::remove_file(&place).unwrap();
                change(&place);
            };
            let failed = copy_of(&path, replace, || {}).expect_err(name);
            assert!(failed.contains("it is no longer a file"), "{name}: {failed}");
        }
    }
}
