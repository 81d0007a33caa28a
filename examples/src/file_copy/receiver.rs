//! The receiver.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rdma::aio::block_on;
use rdma_net::{Connection, Incoming, Listener, Message};
use tokio::time::timeout;

use super::wire::{Answer, DATA, Order, VERSION, version};
use super::{CHUNK, IN_FLIGHT, MAX_SENDERS};
use crate::Failure;
use crate::files::attributes::{Attributes, Unset};
use crate::files::sum::Sum;
use crate::files::target::{Partial, Target};
use crate::files::tree::Tree;
use crate::message::{decode, encode};
use crate::service::{self, report, unless_closed};
use rdma_collectives::text::escaped;

/// A directory that receives files.
#[derive(Debug)]
pub struct Receiver {
    tree: Arc<Tree>,
    /// Time in which a sender must send its next order or data, and take an answer.
    idle: Duration,
}

/// Time in which a sender must take the reason of a failure.
const TELLING: Duration = Duration::from_secs(10);

/// The work of a sender's thread.
type Work = Box<dyn FnOnce() + Send>;

impl Receiver {
    /// Opens the directory. A sender that sends nothing for `idle` is disconnected.
    ///
    /// # Errors
    /// If there is no such directory.
    pub fn open(directory: &Path, idle: Duration) -> Result<Self, Failure> {
        let name = escaped(directory);
        let failure = |error| Failure::new(format!("cannot open the directory {name}: {error}; give one that exists"));
        Ok(Self { tree: Arc::new(Tree::open(directory).map_err(failure)?), idle })
    }

    /// Receives files from all senders, each on a thread of its own.
    ///
    /// # Errors
    /// If the listener fails. A sender's failure ends that sender only, and is reported on standard
    /// error; a sender for which there is no thread, or that comes while there are
    /// [`MAX_SENDERS`], is turned away.
    pub fn serve(&self, listener: Listener) -> Result<(), Failure> {
        self.serve_by(listener, |work| thread::Builder::new().spawn(work).map(drop))
    }

    /// Serves by threads that `start` starts.
    fn serve_by(&self, mut listener: Listener, start: impl Fn(Work) -> io::Result<()>) -> Result<(), Failure> {
        let senders = Arc::<AtomicU32>::default();
        loop {
            let incoming = block_on(listener.accept())?;
            let (tree, idle, peer) = (Arc::clone(&self.tree), self.idle, incoming.peer_addr());
            let Some(place) = Place::take(&senders) else {
                let busy = format!("busy: {MAX_SENDERS} senders are served, the most at a time; try later");
                incoming.refuse(&busy);
                report("file_copy", peer, Err(Failure::new(format!("the sender was refused: {busy}"))));
                continue;
            };
            let work = move || {
                let received = service::runtime().and_then(|runtime| runtime.block_on(receive(incoming, &tree, idle)));
                drop(place);
                report("file_copy", peer, received);
            };
            let started = start(Box::new(work)).map_err(|error| Failure::not_started("a thread for it", &error));
            report("file_copy", peer, started);
        }
    }
}

/// A place among the senders that are served, free again when dropped.
struct Place(Arc<AtomicU32>);

impl Place {
    fn take(senders: &Arc<AtomicU32>) -> Option<Self> {
        let place = Self(Arc::clone(senders));
        (senders.fetch_add(1, Ordering::Relaxed) < MAX_SENDERS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The next message of a sender, or `None` at its end.
async fn next(connection: &mut Connection, idle: Duration) -> Result<Option<Message>, Failure> {
    let silent = |_| Failure::new(format!("the sender sent nothing for {} s", idle.as_secs()));
    unless_closed(timeout(idle, connection.next()).await.map_err(silent)?)
}

/// Receives from one sender, and tells it the reason of a failure.
async fn receive(incoming: Incoming, tree: &Tree, idle: Duration) -> Result<(), Failure> {
    let mut connection = incoming.accept().await?;
    let mut intake = Intake { tree, greeted: None, files: VecDeque::new(), unset: Unset::default() };
    let failure = loop {
        let message = match next(&mut connection, idle).await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(failure) => break failure,
        };
        match intake.take(&message) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                let late = |_| Failure::new(format!("the sender took no answer for {} s", idle.as_secs()));
                timeout(idle, connection.send(encode(&answer)?)).await.map_err(late)??;
            }
            Err(failure) => break failure,
        }
    };
    // A sender that is gone meanwhile, or takes no answer, is not the reason.
    if let Ok(answer) = encode(&Answer::Failed(failure.to_string())) {
        let _told = timeout(TELLING, connection.send(answer)).await;
    }
    let _closed = connection.close_with(1).await;
    Err(failure)
}

/// What a sender sends. Its memory does not grow with the number of files.
struct Intake<'a> {
    tree: &'a Tree,
    /// The sender's version, once it has told it.
    greeted: Option<u32>,
    /// The file that is being received, and those that were offered after it.
    files: VecDeque<Arrival>,
    /// Attributes that could not be set.
    unset: Unset,
}

/// A file that was offered.
struct Arrival {
    path: String,
    target: Target,
    attributes: Attributes,
    /// Length of the file when it is complete.
    len: u64,
    /// The checksum of the bytes that are there.
    sum: Sum,
    /// The file to write to, once the sender has said where it starts; `None` for a file that was
    /// complete before.
    partial: Option<Partial>,
    /// The file that was complete before.
    finished: Option<File>,
    is_started: bool,
}

impl Intake<'_> {
    /// Does what a message asks for.
    fn take(&mut self, message: &[u8]) -> Result<Option<Answer>, Failure> {
        match self.greeted {
            None => {
                self.greeted = Some(version(message).ok_or_else(|| other_version("1, or is another program's"))?);
                return Ok(Some(Answer::Version(VERSION)));
            }
            // The sender has this side's version now, and may end by itself.
            Some(theirs) if theirs != VERSION => return Err(other_version(theirs)),
            Some(_) => {}
        }
        if let [DATA, bytes @ ..] = message {
            return self.current()?.write(bytes).map(|()| None);
        }
        self.obey(decode(message).ok_or_else(malformed)?)
    }

    fn obey(&mut self, order: Order<'_>) -> Result<Option<Answer>, Failure> {
        let failure = |path| move |error| cannot_write(&printable(path), &error);
        match order {
            Order::Directory(mode, path) => self.tree.create_directory(path, mode).map_err(failure(path))?,
            Order::Attributes(attributes, path) => {
                let attributes = valid(attributes)?;
                self.unset.add(self.tree.finish_directory(path, &attributes).map_err(failure(path))?);
            }
            Order::Link(_, _, []) => return Err(malformed()),
            Order::Link(attributes, path, to) => {
                let (attributes, to) = (valid(attributes)?, OsStr::from_bytes(to));
                let link = |target: Target| target.link(to, &attributes);
                self.unset.add(self.tree.target(path).and_then(link).map_err(failure(path))?);
            }
            Order::HardLink(path, first) => {
                let first = self.tree.target(first).map_err(failure(first))?;
                let link = |target: Target| target.hard_link(&first);
                self.tree.target(path).and_then(link).map_err(failure(path))?;
            }
            Order::Comparing if self.current()?.is_compared() => {}
            Order::Last if self.files.is_empty() => return Ok(Some(Answer::Complete(self.unset))),
            Order::Comparing | Order::Last => return Err(malformed()),
            Order::File(attributes, len, path) => return self.offer(valid(attributes)?, len, path).map(Some),
            Order::Start(offset) => self.current()?.start(offset)?,
            Order::Hole(len) => self.current()?.leave_hole(len)?,
            Order::End(sum) => {
                self.unset.add(self.files.pop_front().ok_or_else(malformed)?.finish(sum)?);
                return Ok(Some(Answer::Done));
            }
        }
        Ok(None)
    }

    fn offer(&mut self, attributes: Attributes, len: u64, path: &[u8]) -> Result<Answer, Failure> {
        if self.files.len() >= IN_FLIGHT {
            return Err(Failure::new(format!("the sender offered more than {IN_FLIGHT} files at a time")));
        }
        let name = printable(path);
        let target = self.tree.target(path).map_err(|error| cannot_write(&name, &error))?;
        let arrival = Arrival::new(name.clone(), target, attributes, len);
        let arrival = arrival.map_err(|error| cannot_write(&name, &error))?;
        let answer = Answer::Have(arrival.sum.len(), arrival.sum.digest());
        self.files.push_back(arrival);
        Ok(answer)
    }

    /// The file that is being received.
    fn current(&mut self) -> Result<&mut Arrival, Failure> {
        self.files.front_mut().ok_or_else(malformed)
    }
}

impl Arrival {
    /// Finds out what is there of a file: all of it, the front part of an interrupted copy, or
    /// nothing.
    fn new(path: String, target: Target, attributes: Attributes, len: u64) -> io::Result<Self> {
        if let Some(file) = target.finished(len, &attributes) {
            let (sum, finished) = (Sum::of(&file, len)?, Some(file));
            return Ok(Self { path, target, attributes, len, sum, partial: None, finished, is_started: false });
        }
        let partial = target.partial()?;
        let there = partial.file().metadata()?.len().min(len);
        // Only the last chunk of a file is shorter than others.
        let had = if there == len { len } else { there - there % CHUNK as u64 };
        let sum = Sum::of(partial.file(), had)?;
        let partial = Some(partial);
        Ok(Self { path, target, attributes, len, sum, partial, finished: None, is_started: false })
    }

    /// Whether the sender may compare what is there with its file.
    fn is_compared(&self) -> bool {
        !self.is_started && self.sum.len() > 0
    }

    /// The sender goes on after what is there, or begins again.
    fn start(&mut self, offset: u64) -> Result<(), Failure> {
        let had = self.sum.len();
        if self.is_started || (offset != 0 && offset != had) {
            return Err(malformed());
        }
        self.is_started = true;
        if offset == had && self.partial.is_none() {
            return Ok(());
        }
        let partial = self.partial.take().map_or_else(|| self.target.partial(), Ok);
        let partial = partial.and_then(|partial| partial.file().set_len(offset).map(|()| partial));
        self.partial = Some(partial.map_err(|error| cannot_write(&self.path, &error))?);
        if offset == 0 {
            self.sum = Sum::new();
        }
        Ok(())
    }

    /// Writes the next bytes directly from the message.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let (file, offset) = (self.place_of(bytes.len() as u64)?, self.sum.len());
        file.write_all_at(bytes, offset).map_err(|error| cannot_write(&self.path, &error))?;
        self.sum.update(bytes);
        Ok(())
    }

    /// Lengthens the file, in which no bytes stand behind those that have come.
    fn leave_hole(&mut self, len: u64) -> Result<(), Failure> {
        let (file, end) = (self.place_of(len)?, self.sum.len() + len);
        file.set_len(end).map_err(|error| cannot_write(&self.path, &error))?;
        self.sum.skip(len);
        Ok(())
    }

    /// The file, if `len` further bytes belong to it.
    fn place_of(&self, len: u64) -> Result<&File, Failure> {
        let fits = self.is_started && len <= self.len - self.sum.len();
        self.partial.as_ref().filter(|_| fits).map(Partial::file).ok_or_else(malformed)
    }

    fn finish(self, sum: u64) -> Result<Unset, Failure> {
        if !self.is_started || self.sum.len() != self.len {
            return Err(malformed());
        }
        if self.sum.digest() != sum {
            return Err(Failure::new(format!("{}: the checksum is wrong; copy again", self.path)));
        }
        let finished = match (&self.partial, &self.finished) {
            (Some(partial), _) => self.target.finish(partial, &self.attributes),
            (None, Some(file)) => Target::finish_again(file, &self.attributes),
            (None, None) => Ok(Unset::default()),
        };
        finished.map_err(|error| cannot_write(&self.path, &error))
    }
}

/// A peer's attributes.
fn valid(attributes: Attributes) -> Result<Attributes, Failure> {
    if attributes.has_time() { Ok(attributes) } else { Err(malformed()) }
}

fn other_version(theirs: impl fmt::Display) -> Failure {
    let both = format!("the sender's wire format has version {theirs}; this receiver's has version {VERSION}");
    Failure::new(format!("{both}: use the same release on both sides"))
}

/// A peer's path, for messages on a terminal.
fn printable(path: &[u8]) -> String {
    escaped(OsStr::from_bytes(path))
}

fn cannot_write(path: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot write {path}: {error}"))
}

fn malformed() -> Failure {
    Failure::new("the sender's message is malformed or out of turn")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rdma_net::{ListenOptions, Node};

    use super::super::{node_options, send};
    use super::*;

    fn node() -> Node {
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let (node, driver) = Node::new(&context, &node_options(4)).unwrap();
        thread::spawn(move || driver.run_blocking());
        node
    }

    #[test]
    fn without_a_thread_a_sender_is_turned_away_and_others_go_on() {
        let is_short = Arc::new(AtomicBool::new(true));
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = from.path().join("file");
        std::fs::write(&file, "contents").unwrap();
        let receiver = Receiver::open(to.path(), Duration::from_secs(60)).unwrap();
        let listener = node().listen("127.0.0.1:0".parse().unwrap(), &ListenOptions::new()).unwrap();
        let address = listener.local_addr();
        let short = Arc::clone(&is_short);
        let start = move |work: Work| match short.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(11)),
            false => thread::Builder::new().spawn(work).map(drop),
        };
        thread::spawn(move || receiver.serve_by(listener, start));
        let (sender, paths) = (node(), [file]);
        let refused = block_on(send(&sender, address, &paths)).unwrap_err().to_string();
        assert!(refused.contains("refused"), "{refused}");
        is_short.store(false, Ordering::Relaxed);
        assert_eq!(block_on(send(&sender, address, &paths)).unwrap().files, 1);
    }
}
