//! Rank 0's half of the meeting: it admits ranks that agree with it, and tells the others why it
//! refuses them.
//!
//! Rank 0 judges no connection that does not name its job: whatever a stranger sends, the meeting
//! goes on without it. A connection that names the job is one of its processes, so the job ends if
//! it does not fit. The number of the job is no proof of that: who listens at rank 0's address, or
//! reads the network, learns it.
//!
//! Once the meeting has failed, the ranks that have come are told at once. Rank 0 stays for a short
//! while, so that ranks that come later are told, too. One that has been told and comes again is of
//! the next meeting: it is sent away until rank 0 meets again.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use socket2::{SockAddr, Socket};

use super::frame::{self, Frame, Head, Hello, Loss, MAX_HELLO, VERSION};
use super::host::HostId;
use super::meet::{HELLO_TIME, Met, Until, other_version, prepare};
use super::terms::{Terms, difference};
use super::{SILENCE, is_timeout, spawn};
use crate::Error;
use crate::cause::Cause;

/// Most accepted connections that have not yet introduced themselves; further connections wait.
const MOST_UNHEARD: usize = 64;
/// Most connections of strangers that are reported.
const MOST_REPORTED: u32 = 16;
/// Pause between two looks for ranks that have ended before the job began.
const LOOK: Duration = Duration::from_millis(100);
/// Longest time for which rank 0 stays after a meeting has failed, to tell the ranks that come
/// late. It is also a third of the timeout at most, the time of all other news.
const LATE: Duration = Duration::from_secs(5);

/// Longest time, after that, for connections that have not yet introduced themselves.
const FAREWELL: Duration = Duration::from_secs(1);
/// The same if there are none.
const QUIET: Duration = Duration::from_millis(20);

/// Waits until every other rank has come. If the meeting fails, tells the ranks why.
///
/// Calls `over` once no rank can come any more: before any rank learns that all have come, and
/// after those that have come, also late, have been told that the meeting has failed.
pub(super) fn gather(
    listener: &Socket,
    job: u64,
    own: &Hello,
    terms: &Terms,
    over: impl FnOnce(),
) -> Result<Met, Error> {
    let mut ranks: Vec<Option<(Socket, HostId)>> = (0..own.world).map(|_| None).collect();
    let mut arrivals = match Arrivals::new(listener, job, terms) {
        Ok(arrivals) => arrivals,
        Err(error) => {
            over();
            return Err(error.into());
        }
    };
    let waited = wait_for_all(&mut arrivals, own, terms, &mut ranks);
    if let Err(ended) = waited {
        let mut told = Told::new(ranks.iter().map(Option::is_some).collect());
        if let Ended::Refused(rank, _) = ended {
            // One that has the number of another is the process that will not come.
            let _is_first = told.add(rank) || told.add(None);
        }
        let (reason, error) = ended.told(terms);
        answer_all(job, &ranks, &reason);
        arrivals.tell_late(&reason, told, LATE.min(terms.timeout / SILENCE));
        over();
        return Err(error);
    }
    over();
    let host_of = |rank: &Option<(Socket, HostId)>| rank.as_ref().map_or(&own.host, |(_, host)| host).clone();
    let hosts: Vec<HostId> = ranks.iter().map(host_of).collect();
    // A rank that has ended meanwhile is lost as later ones are: its reader tells all ranks.
    answer_all(job, &ranks, &Frame::Welcome(hosts.clone()));
    let streams = ranks.into_iter().enumerate().filter_map(|(rank, found)| Some((rank, found?.0)));
    Ok((hosts, streams.collect()))
}

/// The reason why a job does not begin.
enum Ended {
    /// A rank that had come has ended.
    Rank(usize),
    /// A rank, with this number if it has told one, does not fit.
    Refused(Option<usize>, Loss),
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Ended {
    fn from(failure: E) -> Self {
        Self::Failed(failure.into())
    }
}

impl Ended {
    /// What the other ranks are told, and the error for rank 0.
    fn told(self, terms: &Terms) -> (Frame, Error) {
        match self {
            Self::Rank(rank) => {
                let loss = Loss::new("ended before the job began", Cause::Ended);
                let error = terms.lost(format!("{} {}", terms.roles.name(rank), loss.what), Cause::Ended);
                (Frame::Lost(rank, loss), error.of_rank(rank, || None))
            }
            Self::Refused(_, loss) => {
                let error = Error::new(loss.what.to_string()).with_cause(loss.cause.clone());
                (Frame::Refuse(None, loss), error)
            }
            Self::Failed(error) => {
                let loss = Loss::new(error.to_string(), error.cause().clone());
                (Frame::Refuse(error.rank(), loss), error)
            }
        }
    }
}

/// Admits ranks until all have come.
fn wait_for_all(
    arrivals: &mut Arrivals<'_>,
    own: &Hello,
    terms: &Terms,
    ranks: &mut [Option<(Socket, HostId)>],
) -> Result<(), Ended> {
    let deadline = Instant::now() + terms.timeout;
    let (mut reported, mut looked) = (0, Instant::now());
    while ranks[1..].iter().any(Option::is_none) {
        if let Some(Arrival { stream, from, hello }) = arrivals.next()? {
            let number = hello.as_ref().ok().map(|hello| hello.rank);
            match hello.and_then(|hello| admit(hello, own, ranks, terms)) {
                Ok((rank, host)) => ranks[rank] = Some((stream, host)),
                Err(Rejected::Stranger(what)) if reported < MOST_REPORTED => {
                    reported += 1;
                    let from = from.as_socket().map_or_else(|| "this host".to_owned(), |from| from.to_string());
                    let last = if reported == MOST_REPORTED { "; more are not reported" } else { "" };
                    (terms.notice)(&format!("{}: ignored a connection from {from}: {what}{last}", own.program));
                }
                Err(Rejected::Stranger(_)) => {}
                Err(Rejected::Rank(why)) => {
                    answer(&stream, arrivals.job, &Frame::Refuse(None, why.clone()), own.world);
                    return Err(Ended::Refused(number, why));
                }
            }
        }
        if looked.elapsed() >= LOOK {
            look_for_ended(ranks)?;
            looked = Instant::now();
        }
        if Instant::now() >= deadline {
            if arrivals.unheard > 0 {
                // A missing rank may be among these connections.
                (terms.notice)(&format!(
                    "{}: {} connections have come and not introduced themselves",
                    own.program, arrivals.unheard
                ));
            }
            let missing: Vec<usize> = (1..ranks.len()).filter(|&rank| ranks[rank].is_none()).collect();
            let names = terms.roles.missing(&missing, own.world);
            let (seconds, remedy) = (terms.timeout.as_secs(), terms.remedy());
            let error = Error::new(format!("{names} within {seconds} s; {remedy}"));
            let error = error.with_cause(Cause::TimedOut { limit: terms.timeout });
            return Err(if let [rank] = missing[..] { error.of_rank(rank, || None) } else { error }.into());
        }
    }
    look_for_ended(ranks)
}

/// Fails if a rank that has come has ended.
fn look_for_ended(ranks: &[Option<(Socket, HostId)>]) -> Result<(), Ended> {
    let has_ended = |rank: &Option<(Socket, HostId)>| rank.as_ref().is_some_and(|(stream, _)| is_closed(stream));
    ranks.iter().position(has_ended).map_or(Ok(()), |rank| Err(Ended::Rank(rank)))
}

/// Whether the other side of a connection has been closed.
fn is_closed(stream: &Socket) -> bool {
    match recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) {
        Ok(read) => read == 0,
        Err(Errno::EAGAIN | Errno::EINTR) => false,
        Err(_) => true,
    }
}

/// The connections that come to rank 0's socket.
struct Arrivals<'a> {
    listener: &'a Socket,
    job: u64,
    /// The answer to a rank of another job.
    foreign: Loss,
    heard: Sender<Arrival>,
    hearing: Receiver<Arrival>,
    /// Connections that have not yet introduced themselves.
    unheard: usize,
}

/// A connection, and its introduction.
struct Arrival {
    stream: Socket,
    from: SockAddr,
    hello: Result<Hello, Rejected>,
}

impl<'a> Arrivals<'a> {
    fn new(listener: &'a Socket, job: u64, terms: &Terms) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (heard, hearing) = channel();
        let foreign = format!("this rank belongs to another job; {}", terms.distinction());
        Ok(Self { listener, job, foreign: Loss::new(foreign, Cause::InvalidInput), heard, hearing, unheard: 0 })
    }

    /// Waits for the next connection that has introduced itself, for a moment.
    fn next(&mut self) -> Result<Option<Arrival>, Error> {
        // Each connection is read in a thread of its own: a slow introduction must not delay the
        // others.
        while self.unheard < MOST_UNHEARD {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let (job, foreign, heard) = (self.job, self.foreign.clone(), self.heard.clone());
                    spawn("greeting", move || {
                        let hello = hear(&stream, job, foreign);
                        drop(heard.send(Arrival { stream, from, hello }));
                    })?;
                    self.unheard += 1;
                }
                Err(error) if is_timeout(&error) => break,
                // A stranger may leave before it is accepted.
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => return Err(Error::from(error).context("cannot accept a rank's connection")),
            }
        }
        let arrived = self.hearing.recv_timeout(Duration::from_millis(1)).ok();
        self.unheard -= usize::from(arrived.is_some());
        Ok(arrived)
    }

    /// Tells the ranks that come when the meeting has failed why it has, until all have been told,
    /// or for so long.
    fn tell_late(&mut self, reason: &Frame, mut told: Told, time: Duration) {
        let deadline = Instant::now() + time;
        let mut ends: Option<Instant> = None;
        loop {
            if ends.is_none() && (told.missing == 0 || Instant::now() >= deadline) {
                ends = Some(Instant::now());
            }
            // A rank that comes again meanwhile is sent away: the end of its connection without a
            // word would mean to it that rank 0 has ended.
            let rest = if self.unheard > 0 { FAREWELL } else { QUIET };
            if ends.is_some_and(|ends| ends.elapsed() >= rest) {
                return;
            }
            // Errors are ignored: there is one already.
            let Ok(arrived) = self.next() else { return };
            let Some(Arrival { stream, hello, .. }) = arrived else { continue };
            let said = match hello {
                Ok(Hello { rank, .. }) if told.add(Some(rank)) => reason.clone(),
                Ok(_) => Frame::Over,
                Err(Rejected::Rank(why)) => {
                    told.add(None);
                    Frame::Refuse(None, why)
                }
                Err(Rejected::Stranger(_)) => continue,
            };
            answer(&stream, self.job, &said, told.ranks.len());
        }
    }
}

/// The ranks that have been told that the meeting has failed.
struct Told {
    ranks: Vec<bool>,
    /// Number of ranks that have not.
    missing: usize,
}

impl Told {
    /// Those that have come, and not rank 0 itself.
    fn new(ranks: Vec<bool>) -> Self {
        let missing = ranks.iter().skip(1).filter(|has_come| !**has_come).count();
        Self { ranks, missing }
    }

    /// Adds a rank, whose number may be none of the job's; returns whether it is told for the first
    /// time.
    fn add(&mut self, rank: Option<usize>) -> bool {
        let told = rank.and_then(|rank| self.ranks.get_mut(rank));
        let is_first = !told.is_some_and(|told| std::mem::replace(told, true));
        self.missing = self.missing.saturating_sub(usize::from(is_first));
        is_first
    }
}

/// Answers all ranks that have come.
fn answer_all(job: u64, ranks: &[Option<(Socket, HostId)>], frame: &Frame) {
    let world = ranks.len();
    for (stream, _) in ranks.iter().flatten() {
        answer(stream, job, frame, world);
    }
}

/// Answers an introduction. The head repeats the job that the peer has named, not that of this
/// rank, which a stranger does not know.
fn answer(stream: &Socket, job: u64, frame: &Frame, world: usize) {
    let mut out = Until(stream, Instant::now() + HELLO_TIME);
    // Errors are ignored: the peer may have gone already.
    drop(Head::of(job).write(&mut out).and_then(|()| frame.write(&mut out, frame::max_length(world))));
}

/// The reason why a connection does not become a rank.
enum Rejected {
    /// The connection is not of this job, so the wait goes on.
    Stranger(String),
    /// The connection is of this job and does not fit, so the job cannot start.
    Rank(Loss),
}

/// Reads the introduction of a connection, before which a rank may ask whether this is rank 0 of
/// its job.
fn hear(stream: &Socket, job: u64, foreign: Loss) -> Result<Hello, Rejected> {
    let prepared = stream.set_nonblocking(false).and_then(|()| prepare(stream));
    prepared.map_err(|error| stranger(&error))?;
    let mut frame = first_frame(stream, job, &foreign)?;
    if frame == Frame::Probe {
        answer(stream, job, &Frame::Present, 1);
        frame = first_frame(stream, job, &foreign)?;
    }
    match frame {
        Frame::Hello(hello) => Ok(hello),
        _ => Err(Rejected::Stranger("it does not introduce itself".to_owned())),
    }
}

/// Reads a head and a frame. Whatever the peer sends before it has named the job makes it a
/// stranger. A rank of another job is told that it is `foreign`.
fn first_frame(stream: &Socket, job: u64, foreign: &Loss) -> Result<Frame, Rejected> {
    let mut input = Until(stream, Instant::now() + HELLO_TIME);
    match Head::read(&mut input).map_err(|error| stranger(&error))? {
        None => return Err(Rejected::Stranger("it speaks another protocol".to_owned())),
        Some(head) if head.job != job => {
            answer(stream, head.job, &Frame::Refuse(None, foreign.clone()), 1);
            return Err(Rejected::Stranger("it belongs to another job".to_owned()));
        }
        Some(Head { version: VERSION, .. }) => {}
        Some(Head { version, .. }) => {
            return Err(Rejected::Rank(Loss::new(other_version("a rank", version), Cause::Protocol)));
        }
    }
    Frame::read(&mut input, MAX_HELLO).map_err(|error| stranger(&error))
}

fn stranger(error: &io::Error) -> Rejected {
    Rejected::Stranger(match error.kind() {
        io::ErrorKind::UnexpectedEof => "it left before it had introduced itself".to_owned(),
        _ if is_timeout(error) => "it does not introduce itself".to_owned(),
        _ => error.to_string(),
    })
}

/// Checks an introduction; returns the number and the host of the rank that the connection becomes.
fn admit(
    peer: Hello,
    own: &Hello,
    ranks: &[Option<(Socket, HostId)>],
    terms: &Terms,
) -> Result<(usize, HostId), Rejected> {
    let (rank, roles) = (peer.rank, terms.roles);
    let problem = if peer.program != own.program {
        Some(format!("rank 0 runs {} and another rank {}; run the same program everywhere", own.program, peer.program))
    } else if peer.world != own.world {
        let world = terms.named("world");
        Some(format!("rank 0 expects {} ranks and rank {rank} {}; give all the same {world}", own.world, peer.world))
    } else if let Some((name, ours, theirs)) = difference(&own.settings, &peer.settings) {
        let (here, there) = (roles.name(0), roles.name(rank));
        let name = terms.named(&name);
        Some(format!("{name} is {ours} at {here} and {theirs} at {there}; give all the same options"))
    } else if rank >= ranks.len() {
        Some(format!("there is no rank {rank} among {}; ranks count from 0", own.world))
    } else if rank == 0 || ranks[rank].is_some() {
        Some(format!("there are two of rank {rank}; give each its own {}", terms.named("rank")))
    } else {
        None
    };
    problem.map_or(Ok((rank, peer.host)), |why| Err(Rejected::Rank(Loss::new(why, Cause::InvalidInput))))
}
