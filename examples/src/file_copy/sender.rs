//! The sender.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use rdma_net::{Node, Receiver, Sender};
use serde::Serialize;

use super::wire::{Answer, DATA, DATA_HEADER, Order, VERSION, greeting};
use super::{CHUNK, IN_FLIGHT};
use crate::Failure;
use crate::files::attributes::Unset;
use crate::files::extents::Extent;
use crate::files::listing::{Entry, Identity, Kind, Listing, cannot_read};
use crate::files::omitted::{NotKept, Skipped, Why, skipped_lines};
use crate::files::source::Source;
use crate::files::sum::{Reading, Sum};
use crate::message::{decode, encode};
use crate::progress::Bytes;
use crate::waiting::Waiting;
use rdma_collectives::JobError;
use rdma_collectives::text::PeerText;

/// Bytes that the sender compares before it tells the receiver that it goes on: a few seconds of a
/// slow disk.
const COMPARED: u64 = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Advice if the connection broke.
const GO_ON: &str = "run it again to go on";

/// The result of a copy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Files that the receiver has now.
    pub files: usize,
    /// Directories that the receiver has now.
    pub directories: usize,
    /// Symbolic links that the receiver has now.
    pub links: usize,
    /// Further names of files and symbolic links that the receiver has now.
    pub hard_links: usize,
    /// Bytes of the files, with their holes.
    pub bytes: u64,
    /// Bytes that the receiver had before.
    pub kept: u64,
    /// Bytes that were sent: neither the receiver had them before, nor were they in holes.
    pub sent: u64,
    /// Devices and other things that are no files, folders of unfinished files, and what could not
    /// be read; they were not copied.
    skipped: Vec<Skipped>,
    /// How many entries lack which attributes.
    not_kept: NotKept,
    /// Seconds from the first file to the last answer.
    pub seconds: f64,
}

impl Summary {
    /// A sentence for each kind of things that were not copied, and of attributes that were not
    /// kept.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        [skipped_lines(&self.skipped), self.not_kept.lines()].concat()
    }

    /// Entries that the receiver has now.
    fn copied(&self) -> usize {
        self.files + self.directories + self.links + self.hard_links
    }

    /// A sentence that counts the copied entries and bytes.
    #[must_use]
    pub fn sentence(&self) -> String {
        let counted =
            |count: usize, one: &str, several: &str| format!("{count} {}", if count == 1 { one } else { several });
        let rate = self.sent as f64 / 1e6 / self.seconds.max(1e-9);
        format!(
            "{}, {}, {} and {} of {} bytes, {} of which were there before; {} bytes sent; {:.3} s, {rate:.1} MB/s",
            counted(self.files, "file", "files"),
            counted(self.hard_links, "further name", "further names"),
            counted(self.links, "symbolic link", "symbolic links"),
            counted(self.directories, "directory", "directories"),
            self.bytes,
            self.kept,
            self.sent,
            self.seconds,
        )
    }

    /// The failure of a copy that lacks something, with a count.
    ///
    /// # Errors
    /// If there is something that was not copied, or a time of modification that was not kept.
    pub fn complete(&self) -> Result<(), Failure> {
        let (skipped, times) = (self.skipped.len(), self.not_kept.times);
        let copied = self.copied();
        match (skipped, times) {
            (0, 0) => Ok(()),
            (0, times) => Err(Failure::partial(format!("{times} of {copied} copied entries have another time"))),
            (skipped, _) => Err(Failure::partial(format!("{skipped} of {} entries were not copied", skipped + copied))),
        }
    }
}

/// Copies files and directories to a receiver, and shows the progress on a terminal.
///
/// # Errors
/// If two paths have the same last name, or nothing of what is named can be copied; if a read of an
/// open file fails; if its length or its times of change say that it changes while it is read, or
/// it has other bytes than its length says, as files of `/proc` have; the receiver's reason; if the
/// connection fails.
pub async fn send(node: &Node, receiver: SocketAddr, paths: &[PathBuf]) -> Result<Summary, Failure> {
    let Listing { entries, skipped, not_kept, .. } = Listing::of(paths)?;
    if entries.is_empty() {
        return Err(Failure::new(format!("nothing can be copied: {}", skipped_lines(&skipped).join("; "))));
    }
    let progress = Bytes::new(Listing::bytes(&entries));
    let waiting = Waiting::for_peer(receiver);
    let (to, from) = node.connect(receiver).await?.split();
    drop(waiting);
    if to.max_payload() < DATA_HEADER + CHUNK {
        return Err(Failure::new("the receiver takes shorter messages only; it is another program"));
    }
    let summary = Summary { skipped, not_kept, ..Summary::default() };
    let (offered, unopened) = (VecDeque::new(), HashMap::new());
    let mut copy = Copy { to, from, offered, unopened, finished: 0, progress, summary };
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
    // The receiver keeps the bytes that have arrived when the connection breaks.
    let of_connection = |failure: Failure| if failure.is_effect() { failure.advised(GO_ON) } else { failure };
    result.map_err(|failure| reason.unwrap_or_else(|| of_connection(failure)))?;
    if summary.copied() == 0 {
        return Err(Failure::new(format!("nothing can be copied: {}", skipped_lines(&summary.skipped).join("; "))));
    }
    Ok(Summary { seconds, ..summary })
}

/// A copy that is going on.
struct Copy<'a> {
    to: Sender,
    from: Receiver,
    /// Files that the receiver knows of and that were not sent yet, oldest first.
    offered: VecDeque<Offer<'a>>,
    /// The entries that could not be opened, by number.
    unopened: HashMap<usize, Unopened>,
    /// Files that the receiver has confirmed.
    finished: usize,
    progress: Bytes,
    summary: Summary,
}

struct Offer<'a> {
    entry: &'a Entry,
    source: Source,
}

/// A name by which a file could not be opened.
struct Unopened {
    why: Why,
    /// The number of the first other name by which the file could be opened.
    other: Option<usize>,
}

impl<'a> Copy<'a> {
    async fn run(&mut self, entries: &'a [Entry]) -> Result<(), Failure> {
        self.greet().await?;
        for (number, entry) in entries.iter().enumerate() {
            match &entry.kind {
                Kind::Directory => {
                    self.give(&Order::Directory(entry.attributes.mode, &entry.path)).await?;
                    self.summary.directories += 1;
                }
                Kind::File { .. } => match open(entry)? {
                    Ok(source) => self.offer(entry, source).await?,
                    Err(why) => {
                        self.unopened.insert(number, Unopened { why, other: None });
                        self.skip(entry, why);
                    }
                },
                Kind::Link(to) => {
                    self.give(&Order::Link(entry.attributes, &entry.path, to)).await?;
                    self.summary.links += 1;
                }
                Kind::HardLink(first) => self.offer_other(number, entry, *first).await?,
            }
        }
        while !self.offered.is_empty() {
            self.send_oldest().await?;
        }
        // The files are there now of which these are other names.
        for (number, entry) in entries.iter().enumerate() {
            let Kind::HardLink(first) = entry.kind else { continue };
            match self.unopened.get(&first) {
                None => self.send_hard_link(entry, &entries[first]).await?,
                Some(&Unopened { other: Some(other), .. }) if other < number => {
                    self.send_hard_link(entry, &entries[other]).await?;
                }
                // The file was sent by this name, or the name is left out.
                Some(_) => {}
            }
        }
        // A directory that nobody may write gets its permissions, and each its time, after those
        // in it.
        for entry in entries.iter().rev().filter(|entry| entry.kind == Kind::Directory) {
            self.give(&Order::Attributes(entry.attributes, &entry.path)).await?;
        }
        self.give(&Order::Last).await?;
        loop {
            match self.answer().await? {
                Answer::Complete(Unset { owners, times }) if self.finished == self.summary.files => {
                    (self.summary.not_kept.owners, self.summary.not_kept.times) = (owners, times);
                    return Ok(());
                }
                Answer::Done => {}
                _ => return Err(out_of_turn()),
            }
        }
    }

    /// Tells the receiver this side's version, and learns its own.
    async fn greet(&mut self) -> Result<(), Failure> {
        self.to.send(greeting()).await?;
        match self.next().await? {
            Answer::Version(VERSION) => Ok(()),
            Answer::Version(theirs) => {
                let both = format!("this wire format has version {VERSION}; the receiver's has version {theirs}");
                Err(Failure::new(format!("{both}: use the same release on both sides")))
            }
            // Version 1 knows no greeting.
            Answer::Failed(reason) => Err(receivers(&reason).context(format_args!(
                "the receiver has not told the version of its wire format, it may have 1; this has version {VERSION}"
            ))),
            _ => Err(out_of_turn()),
        }
    }

    async fn give(&self, order: &Order<'_>) -> Result<(), Failure> {
        Ok(self.to.send(encode(order)?).await?)
    }

    async fn offer(&mut self, entry: &'a Entry, source: Source) -> Result<(), Failure> {
        if entry.shared.is_some_and(|listed| listed != source.identity()) {
            return Err(replaced(entry));
        }
        self.give(&Order::File(source.attributes(), source.len(), &entry.path)).await?;
        self.offered.push_back(Offer { entry, source });
        if self.offered.len() < IN_FLIGHT { Ok(()) } else { self.send_oldest().await }
    }

    /// Offers a file by another name if neither the first nor any name in between could be opened:
    /// they may have been removed since the listing.
    async fn offer_other(&mut self, number: usize, entry: &'a Entry, first: usize) -> Result<(), Failure> {
        let Some(Unopened { why: first, other: other @ None }) = self.unopened.get_mut(&first) else { return Ok(()) };
        match open(entry)? {
            Ok(source) => {
                *other = Some(number);
                self.offer(entry, source).await?;
            }
            Err(why) => {
                let why = if why == *first { Why::NameOfSkipped } else { why };
                self.skip(entry, why);
            }
        }
        Ok(())
    }

    fn skip(&mut self, entry: &Entry, why: Why) {
        self.summary.skipped.push(Skipped { path: entry.source.clone(), why });
    }

    async fn send_hard_link(&mut self, entry: &Entry, first: &Entry) -> Result<(), Failure> {
        let now = match entry.source.symlink_metadata() {
            Ok(now) => now,
            Err(error) => {
                self.skip(entry, refused(entry, &error)?);
                return Ok(());
            }
        };
        if entry.shared != Some(Identity::of(&now)) {
            return Err(replaced(entry));
        }
        self.give(&Order::HardLink(&entry.path, &first.path)).await?;
        self.summary.hard_links += 1;
        Ok(())
    }

    /// Sends the bytes that the receiver lacks of the file that was offered first.
    async fn send_oldest(&mut self) -> Result<(), Failure> {
        let Some(offer) = self.offered.pop_front() else { return Ok(()) };
        let (had, their_sum) = loop {
            match self.answer().await? {
                Answer::Have(len, sum) => break (len, sum),
                Answer::Done => {}
                _ => return Err(out_of_turn()),
            }
        };
        let cannot_read = |error| cannot_read(&offer.entry.source, &error);
        let (source, total) = (&offer.source, offer.source.len());
        let prefix = self.compare(&offer, had.min(total)).await?;
        let is_prefix = had <= total && prefix.digest() == their_sum;
        let mut sum = if is_prefix { prefix } else { Sum::new() };
        self.summary.kept += sum.len();
        self.progress.add(sum.len());
        self.give(&Order::Start(sum.len())).await?;
        let mut data = 0..0;
        while sum.len() < total {
            let offset = sum.len();
            if offset >= data.end {
                match source.extent(offset).map_err(cannot_read)? {
                    Extent::Hole(hole) => {
                        let len = hole.end - offset;
                        self.give(&Order::Hole(len)).await?;
                        sum.skip(len);
                        self.progress.add(len);
                        continue;
                    }
                    Extent::Data(next) => data = next,
                }
            }
            let len = usize::try_from(data.end - offset).unwrap_or(CHUNK).min(CHUNK);
            let mut permit = self.to.reserve().await?;
            let (header, rest) = permit.payload_mut().split_at_mut(DATA_HEADER);
            let bytes = &mut rest[..len];
            header.fill(DATA);
            source.read_at(bytes, offset).map_err(cannot_read)?;
            sum.update(bytes);
            permit.send_filled(DATA_HEADER + len)?;
            self.summary.sent += len as u64;
            self.progress.add(len as u64);
        }
        // Before the receiver may give the bytes the file's name.
        source.check_unchanged().map_err(cannot_read)?;
        self.give(&Order::End(sum.digest())).await?;
        self.summary.files += 1;
        self.summary.bytes += total;
        Ok(())
    }

    /// The checksum of a file's first `len` bytes. Tells the receiver at times that it goes on.
    async fn compare(&self, offer: &Offer<'_>, len: u64) -> Result<Sum, Failure> {
        let (mut sum, mut reading, mut silent) = (Sum::new(), Reading::default(), 0);
        while sum.len() < len {
            let read = offer.source.add_to(&mut sum, len, &mut reading);
            silent += read.map_err(|error| cannot_read(&offer.entry.source, &error))?;
            if silent >= COMPARED {
                self.give(&Order::Comparing).await?;
                silent = 0;
            }
        }
        Ok(sum)
    }

    /// The next answer; counts the files that are finished.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        let answer = self.next().await?;
        match answer {
            Answer::Done => self.finished += 1,
            Answer::Failed(reason) => return Err(receivers(&reason)),
            Answer::Have(..) | Answer::Version(_) | Answer::Complete(_) => {}
        }
        Ok(answer)
    }

    async fn next(&mut self) -> Result<Answer, Failure> {
        let ended = || Failure::new("the receiver has ended the connection").advised(GO_ON);
        let message = self.from.next().await?.ok_or_else(ended)?;
        decode(&message).ok_or_else(out_of_turn)
    }
}

/// Opens the file of an entry, unless the system refuses that.
fn open(entry: &Entry) -> Result<Result<Source, Why>, Failure> {
    Source::open(&entry.source).map_or_else(|error| refused(entry, &error).map(Err), |source| Ok(Ok(source)))
}

/// The reason for leaving an entry out, where others may go on.
fn refused(entry: &Entry, error: &io::Error) -> Result<Why, Failure> {
    Why::refused(error).ok_or_else(|| cannot_read(&entry.source, error))
}

/// A name has got to another file since the listing.
fn replaced(entry: &Entry) -> Failure {
    cannot_read(&entry.source, &io::Error::other("it was replaced while other files were copied"))
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
    use super::super::wire::version;
    use super::*;

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
            drop(tell.send(copied.map_err(|failure| failure.to_string())));
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
                        let is_opened = matches!(answer, Answer::Have(..));
                        if let Some(change) = opened.take_if(|_| is_opened) {
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
        if version(message).is_some() {
            return vec![Answer::Version(VERSION)];
        }
        match decode(message).filter(|_| message[0] != DATA) {
            Some(Order::File(..)) => vec![Answer::Have(0, Sum::new().digest())],
            Some(Order::End(_)) => vec![Answer::Done],
            Some(Order::Last) => vec![Answer::Complete(Unset::default())],
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
        let len = usize::try_from(2 * COMPARED + 1).unwrap();
        fs::write(&path, vec![1; len]).unwrap();
        let sum = Sum::of(&File::open(&path).unwrap(), 2 * COMPARED).unwrap().digest();
        let mut listener =
            node(&node_options(1)).listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let address = listener.local_addr();
        let receiving = thread::spawn(move || {
            block_on(async {
                let mut connection = listener.accept().await.unwrap().accept().await.unwrap();
                let mut compared = 0;
                while let Ok(Some(message)) = connection.next().await {
                    compared += usize::from(decode(&message) == Some(Order::Comparing));
                    for answer in answers(&message) {
                        let is_offered = matches!(answer, Answer::Have(..));
                        let answer = if is_offered { Answer::Have(2 * COMPARED, sum) } else { answer };
                        connection.send(encode(&answer).unwrap()).await.unwrap();
                    }
                }
                compared
            })
        });
        assert_eq!(block_on(send(&node(&node_options(1)), address, &[path])).unwrap().kept, 2 * COMPARED);
        assert_eq!(receiving.join().unwrap(), 2);
    }

    #[test]
    fn a_file_that_is_removed_meanwhile_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = old_file(folder.path());
        fs::write(folder.path().join("other"), "contents").unwrap();
        let remove = move || fs::remove_file(&path).unwrap();
        let summary = copy_of(folder.path(), remove, || {}).unwrap();
        assert_eq!((summary.files, summary.skipped.len()), (1, 1));
        assert!(summary.lines()[0].contains("No such file"), "{:?}", summary.lines());
        assert!(summary.complete().unwrap_err().to_string().contains("1 of 3 entries were not copied"));
    }

    #[test]
    fn a_file_whose_first_names_are_removed_is_copied_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b/1", "b/2", "c"].map(|name| folder.path().join(name));
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(&names[0], "contents").unwrap();
        names[1..].iter().for_each(|name| fs::hard_link(&names[0], name).unwrap());
        let first = names[..2].to_vec();
        let remove = move || first.iter().for_each(|name| fs::remove_file(name).unwrap());
        let summary = copy_of(folder.path(), remove, || {}).unwrap();
        assert_eq!((summary.files, summary.hard_links, summary.bytes, summary.skipped.len()), (1, 1, 8, 2));
        let lines = summary.lines();
        assert!(lines[0].contains("/a was not copied") && lines[0].contains("No such file"), "{lines:?}");
        assert!(lines[1].contains("b/1 was not copied: it is another name of a file"), "{lines:?}");
        assert!(summary.complete().unwrap_err().to_string().contains("2 of 6 entries were not copied"));
    }

    #[test]
    fn a_further_name_that_is_removed_meanwhile_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (old_file(folder.path()), folder.path().join("second"));
        fs::hard_link(&first, &second).unwrap();
        let summary = copy_of(folder.path(), move || fs::remove_file(&second).unwrap(), || {}).unwrap();
        assert_eq!((summary.files, summary.hard_links, summary.skipped.len()), (1, 0, 1));
        assert!(
            summary.lines()[0].contains("second was not copied: it cannot be read: No such"),
            "{:?}",
            summary.lines()
        );
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
