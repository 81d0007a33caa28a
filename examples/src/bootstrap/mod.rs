//! How the ranks of a job meet, before they can talk over RDMA: each connects to rank 0 over TCP and says who it is.
//!
//! The connections stay open: all-gathers that are not worth an RDMA operation go over them, and a rank that dies
//! closes its own, which every other rank hears about at once.

mod frame;
mod meet;

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Kind;
use crate::launcher::{Place, Root};
use crate::{Failure, launcher};
use frame::Frame;
pub(crate) use meet::{Until, connect, lost};

/// Where rank 0 listens if nothing else was said: perftest's port.
pub const DEFAULT_PORT: u16 = 18515;

/// After an operation failed, how long to wait for the news that another rank died, which is then the reason.
const EXPLANATION: Duration = Duration::from_millis(500);

/// More ranks than this are a mistake, not a job.
pub const MOST_RANKS: usize = 4096;

/// What to call the processes of a job in a message.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    /// Rank 0.
    pub root: &'static str,
    /// The first half of a sentence: these ranks, of so many, did not come.
    pub missing: fn(&[String], u32) -> String,
    /// What to do then.
    pub remedy: &'static str,
}

impl Roles {
    /// Ranks with numbers.
    pub const RANKS: Self = Self {
        root: "rank 0",
        missing: |missing, world| {
            let (count, names) = (missing.len(), missing.join(", "));
            format!("{count} of {world} ranks did not come (missing: {names})")
        },
        remedy: "start them with the same --world and --root",
    };
    /// A server and its client.
    pub const SERVER_AND_CLIENT: Self = Self {
        root: "the server",
        missing: |_, _| "the client did not come".to_owned(),
        remedy: "start one with this host's address as its argument",
    };
}

/// What ranks have to agree on before they work together.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The program's name.
    pub program: &'static str,
    /// Its settings as text; ranks whose text differs refuse each other.
    pub settings: String,
    /// What to call them.
    pub roles: Roles,
    /// How long to wait for the others.
    pub timeout: Duration,
}

/// Opens the socket on which rank 0 waits for the others.
///
/// # Errors
/// Where the address cannot be had; says whether somebody else has it.
pub fn listen(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| {
        Failure::new(match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!("the port of {address} is in use; end the program that has it, or give another port")
            }
            io::ErrorKind::AddrNotAvailable => {
                format!("{address} is not an address of this host; rank 0 has to listen on one that is")
            }
            _ => format!("cannot listen on {address}: {error}"),
        })
    })
}

/// A write end per connection: of the other ranks at rank 0, of rank 0 at the others.
type Writers = Vec<(usize, Mutex<TcpStream>)>;

/// The ranks of a job, connected.
#[derive(Debug)]
pub struct Group {
    rank: usize,
    world: usize,
    writers: Arc<Writers>,
    inbox: Receiver<(usize, Frame)>,
    watch: Watch,
}

/// Tells whether a rank has died; cheap enough to ask in a loop that waits.
#[derive(Clone, Debug)]
pub struct Watch {
    shared: Arc<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    failed: AtomicBool,
    /// Set when connections may close without that being news.
    closing: AtomicBool,
    why: OnceLock<Failure>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        let state =
            WatchState { failed: AtomicBool::new(false), closing: AtomicBool::new(false), why: OnceLock::new() };
        Self { shared: Arc::new(state) }
    }

    fn set(&self, why: Failure) {
        // The first reason stays: later ones follow from it.
        drop(self.shared.why.set(why));
        self.shared.failed.store(true, Ordering::Release);
    }

    /// # Errors
    /// Where another rank has failed.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.shared.why.get().cloned().unwrap_or_else(|| Failure::peer("another rank has failed")))
    }
}

impl Group {
    /// Meets the other ranks: waits for them at rank 0, and finds rank 0 elsewhere.
    ///
    /// # Errors
    /// Where ranks do not come in time, or do not agree.
    pub fn meet(place: Place, terms: &Terms) -> Result<Self, Failure> {
        let Place { rank, world, root, job } = place;
        if world == 0 || rank >= world {
            return Err(Failure::usage(format!("rank {rank} of {world} makes no sense; ranks count from 0")));
        }
        if world > MOST_RANKS {
            return Err(Failure::usage(format!("a job of {world} ranks: at most {MOST_RANKS} can meet")));
        }
        let hello = frame::Hello {
            job,
            rank: u32::try_from(rank).map_err(|_| Failure::usage("too many ranks"))?,
            world: u32::try_from(world).map_err(|_| Failure::usage("too many ranks"))?,
            program: terms.program.to_owned(),
            settings: terms.settings.clone(),
        };
        let streams = match (rank, root) {
            (0, Root::Listener(listener)) => meet::gather(&listener, &hello, terms.roles, terms.timeout)?,
            (0, Root::Address(address)) => meet::gather(&listen(&address)?, &hello, terms.roles, terms.timeout)?,
            (_, Root::Address(address)) => vec![(0, meet::join(&address, &hello, terms.roles, terms.timeout)?)],
            (_, Root::Listener(_)) => return Err(Failure::usage("only rank 0 listens")),
        };
        Self::start(rank, world, streams)
    }

    fn start(rank: usize, world: usize, streams: Vec<(usize, TcpStream)>) -> Result<Self, Failure> {
        let mut writers = Writers::new();
        for (peer, stream) in &streams {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(Some(Duration::from_secs(10)))?;
            writers.push((*peer, Mutex::new(stream.try_clone()?)));
        }
        let (writers, watch) = (Arc::new(writers), Watch::new());
        let (outbox, inbox) = channel();
        for (peer, stream) in streams {
            let (writers, watch, outbox) = (Arc::clone(&writers), watch.clone(), outbox.clone());
            std::thread::Builder::new()
                .name(format!("rank-{peer}"))
                .stack_size(128 << 10)
                .spawn(move || listen_to(peer, stream, &writers, &watch, &outbox))?;
        }
        Ok(Self { rank, world, writers, inbox, watch })
    }

    /// This process's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn world(&self) -> usize {
        self.world
    }

    /// Tells from any thread whether a rank has died.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Gives `bytes` to every rank, and returns what each gave, in the order of ranks. Every rank has to call it.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        self.watch.check()?;
        if self.rank != 0 {
            self.send(&Frame::Part(bytes.to_vec()))?;
            return match self.receive()? {
                (_, Frame::Whole(parts)) if parts.len() == self.world => Ok(parts),
                _ => Err(Failure::new("rank 0 answered with something else than was asked; is it the same build?")),
            };
        }
        let mut parts: Vec<Option<Vec<u8>>> = vec![None; self.world];
        parts[0] = Some(bytes.to_vec());
        let mut missing = self.world - 1;
        while missing > 0 {
            match self.receive()? {
                (peer, Frame::Part(part)) if parts.get(peer).is_some_and(Option::is_none) => {
                    parts[peer] = Some(part);
                    missing -= 1;
                }
                (peer, _) => return Err(Failure::new(format!("rank {peer} did something else than the others"))),
            }
        }
        let parts: Vec<Vec<u8>> = parts.into_iter().flatten().collect();
        self.send(&Frame::Whole(parts.clone()))?;
        Ok(parts)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Where a rank has failed.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        self.all_gather(&[]).map(drop)
    }

    /// Makes one result of everyone's: where any rank failed, all fail, and the first of them is the one that says why.
    ///
    /// # Errors
    /// This rank's failure, or the news of another's.
    pub fn agree<T>(&mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        let mine = match &result {
            Ok(_) => Vec::new(),
            Err(failure) => failure.to_string().into_bytes(),
        };
        let all = self.all_gather(&mine)?;
        match all.iter().position(|text| !text.is_empty()) {
            None => result,
            Some(first) if first == self.rank => result,
            Some(first) => Err(Failure::peer(format!("rank {first}: {}", String::from_utf8_lossy(&all[first])))),
        }
    }

    /// Ends the job with this rank's result: leaves together with the others, or tells them what went wrong.
    ///
    /// # Errors
    /// The result's; where another rank's death explains it, that.
    pub fn conclude<T>(mut self, result: Result<T, Failure>) -> Result<T, Failure> {
        let result = match result {
            Ok(value) => self.barrier().map(|()| value),
            Err(failure) if failure.kind() == Kind::Failed => Err(self.explain(failure)),
            Err(failure) => Err(failure),
        };
        self.watch.shared.closing.store(true, Ordering::Release);
        let last = match &result {
            Err(failure) if failure.kind() != Kind::Peer => {
                Frame::Abort(u32::try_from(self.rank).unwrap_or(0), failure.to_string())
            }
            _ => Frame::Bye,
        };
        // Who has gone already need not hear it.
        drop(self.send(&last));
        result
    }

    /// Replaces a failure by the death of a rank that it follows from, if there was one.
    fn explain(&self, failure: Failure) -> Failure {
        if let Some(news) = self.news() {
            return news;
        }
        let failure = failure.with_last_warning();
        // The launcher's ranks share one standard error: say whose line this is.
        if launcher::is_launched() { failure.context(format_args!("rank {}", self.rank)) } else { failure }
    }

    /// Waits for a moment for the news of a death.
    fn news(&self) -> Option<Failure> {
        let deadline = Instant::now() + EXPLANATION;
        loop {
            if let Err(news) = self.watch.check() {
                return Some(news);
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn receive(&self) -> Result<(usize, Frame), Failure> {
        match self.inbox.recv() {
            Ok((_, Frame::Abort(..))) | Err(_) => {
                self.watch.check()?;
                Err(Failure::peer("another rank has failed"))
            }
            Ok((peer, Frame::Bye)) => {
                // It may leave because another has failed, and be faster than the news of that.
                self.watch.check()?;
                Err(Failure::peer(format!("rank {peer} finished before the others")))
            }
            Ok(message) => Ok(message),
        }
    }

    fn send(&self, frame: &Frame) -> Result<(), Failure> {
        send_to_all(&self.writers, frame, None).map_err(|(peer, error)| {
            // Whoever reads from it learns why, and may be about to.
            self.news().unwrap_or_else(|| Failure::new(format!("cannot send to rank {peer}: {error}")))
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.watch.shared.closing.store(true, Ordering::Release);
        for (_, writer) in self.writers.iter() {
            // Wakes the thread that reads from it; it may be closed already.
            drop(writer.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both));
        }
    }
}

/// Sends to everybody at the other end of a connection, except one; goes on where one cannot be reached.
fn send_to_all(writers: &Writers, frame: &Frame, except: Option<usize>) -> Result<(), (usize, io::Error)> {
    let mut result = Ok(());
    for (peer, writer) in writers.iter().filter(|(peer, _)| Some(*peer) != except) {
        let sent = frame.write(&mut *writer.lock().unwrap_or_else(PoisonError::into_inner));
        if let (Err(error), true) = (sent, result.is_ok()) {
            result = Err((*peer, error));
        }
    }
    result
}

/// A connection's reading thread: hands frames to the rank, and news of a death to everybody.
fn listen_to(peer: usize, mut stream: TcpStream, writers: &Writers, watch: &Watch, outbox: &Sender<(usize, Frame)>) {
    loop {
        let (dead, why) = match Frame::read(&mut stream) {
            Ok(Frame::Bye) => {
                drop(outbox.send((peer, Frame::Bye)));
                return;
            }
            Ok(Frame::Abort(rank, why)) => (rank as usize, why),
            Ok(frame) => {
                if outbox.send((peer, frame)).is_err() {
                    return;
                }
                continue;
            }
            Err(_) => (peer, "ended without a word".to_owned()),
        };
        if watch.shared.closing.load(Ordering::Acquire) {
            return;
        }
        watch.set(Failure::peer(format!("rank {dead} failed: {why}")));
        let news = Frame::Abort(u32::try_from(dead).unwrap_or(0), why);
        if peer != 0 {
            // Only rank 0 has connections to other ranks than rank 0, and the others rely on it for the news.
            drop(send_to_all(writers, &news, Some(peer)));
        }
        drop(outbox.send((peer, news)));
        return;
    }
}

#[cfg(test)]
mod tests;
