//! The meeting of a job's ranks before they can communicate over RDMA: each rank connects to rank 0
//! over a socket and introduces itself.
//!
//! The connections stay open. Over them the ranks exchange values that are not worth an RDMA
//! operation, and learn within seconds that a rank died, was stopped or lost its host. Every wait
//! has a limit; its error names the missing rank and the thing waited for.
//!
//! The ranks find rank 0 in one of four ways:
//!
//! * Somebody gives its address to all: [`Group::meet`] with a [`Place`], by hand or of
//!   [`launchers`](crate::launchers) such as mpirun, Slurm and torchrun.
//! * They have an [`Exchange`] in common, in which rank 0 sets its address: [`Group::meet_by`] with
//!   a [`Directory`], with [`Threads`] of one process, or with one that the program brings.
//! * All know the addresses of all, as in the configuration of a service: [`Group::meet_at`].
//! * Rank 0 has the listening socket from whoever started the ranks: [`Root::Listener`].
//!
//! A group can be [split](Group::split). The frames of a part pass through rank 0 of the job, in
//! the threads that read its connections, so that rank 0 need not take part itself.

mod abort;
mod admit;
mod compare;
mod directory;
mod exchange;
mod frame;
mod host;
pub(crate) mod interfaces;
mod journal;
mod json;
mod listen;
mod meet;
mod rendezvous;
mod router;
mod split;
mod terms;
mod threads;
mod watch;

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::Socket;

use crate::cause::Cause;
use crate::error::{Error, ErrorKind, JobError};
use crate::process::Maker;
pub use abort::Aborter;
pub use directory::Directory;
pub use exchange::{Exchange, MAX_VALUE};
use frame::{Content, Frame, GroupId, Hello, Loss};
use host::HostId;
pub(crate) use journal::{Recorder, Signature};
use json::Json;
pub use listen::{check_address, listen, listen_everywhere, listen_locally};
pub use meet::{Until, connect};
use router::{NotDue, Router};
pub use terms::{Roles, Terms};
pub use threads::Threads;
use watch::Pulse;
pub use watch::Watch;
pub use watch::is_timeout;

/// The port of rank 0 if none is given: perftest's.
pub const DEFAULT_PORT: u16 = 18515;
/// Most ranks of a job; larger jobs are refused.
pub const MOST_RANKS: usize = 4096;
/// Time to wait, after an operation failed, for the news of a lost rank, which is then the reason.
const EXPLANATION: Duration = Duration::from_millis(500);
/// The same for a failure that is the effect of one that another rank reports after `EXPLANATION`.
const REASON: Duration = Duration::from_millis(1500);
/// Time by which the other ranks wait longer for rank 0 than rank 0 waits for them, so that rank 0
/// can say which rank is missing.
const ROOT_TIME: Duration = Duration::from_secs(2);
/// What a rank has done that breaks the protocol.
const NOT_DUE: &str = "has sent a message that is not due; are all ranks the same build?";
/// A silent rank is given up after the timeout divided by this number.
const SILENCE: u32 = 3;

/// A rank's place in its job, and where the ranks of the job meet.
#[derive(Debug)]
pub struct Place {
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// The place where rank 0 listens.
    pub root: Root,
    /// Identifier that tells jobs at the same address apart.
    pub job: u64,
}

/// The place where the ranks of a job meet.
#[derive(Debug)]
pub enum Root {
    /// This process is rank 0 and owns the listening socket.
    Listener(Socket),
    /// Rank 0 listens at this address: `host:port`, or `@name` on this host.
    Address(String),
}

/// The connected ranks of a job, or some of them.
#[derive(Debug)]
pub struct Group {
    maker: Maker,
    rank: usize,
    /// The rank in the job of each rank of the group.
    members: Vec<usize>,
    id: GroupId,
    /// Number of times that the group was split.
    splits: u32,
    hosts: Vec<HostId>,
    /// This host's address on the way to the others; `None` if they have come by Unix sockets.
    address: Option<IpAddr>,
    /// Whether this rank's connections are Unix sockets between processes of one user.
    is_private: bool,
    terms: Terms,
    router: Arc<Router>,
    inbox: Receiver<(usize, Frame)>,
    watch: Watch,
    /// The end of the present operation of a communicator, if it has a limit, and the limit.
    limit: Option<(Instant, Duration)>,
    /// Dropping this sender ends the thread that sends this rank's heartbeats; `None` in a part of
    /// a group.
    _heartbeat: Option<Sender<()>>,
}

impl Group {
    /// Meets the other ranks: rank 0 waits for them, every other rank looks for rank 0.
    ///
    /// If the meeting fails, because a rank does not fit, does not come or ends, the ranks that
    /// have come learn the reason at once. Rank 0 stays for 5 s, or a third of the timeout if that
    /// is shorter, or until all have come: so a rank that comes late learns the reason too.
    ///
    /// # Errors
    /// If ranks do not come in time, or do not agree.
    pub fn meet(place: Place, terms: &Terms) -> Result<Self, Error> {
        let Place { rank, ranks: world, root, job } = place;
        let hello = introduction(rank, world, terms)?;
        let (hosts, streams) = match (rank, root) {
            (0, Root::Listener(listener)) => admit::gather(&listener, job, &hello, terms, || ())?,
            (0, Root::Address(address)) => admit::gather(&listen(&address)?, job, &hello, terms, || ())?,
            (_, Root::Address(address)) => meet::join(&address, job, &hello, terms)?,
            (_, Root::Listener(_)) => return Err(Error::invalid("only rank 0 listens")),
        };
        Self::start(rank, hosts, streams, terms)
    }

    fn start(rank: usize, hosts: Vec<HostId>, streams: Vec<(usize, Socket)>, terms: &Terms) -> Result<Self, Error> {
        let (maker, silence) = (Maker::current()?, terms.timeout / SILENCE);
        let address = interfaces::towards(streams.iter().map(|(_, stream)| stream));
        let is_private = streams.iter().all(|(_, stream)| interfaces::is_private(stream));
        let mut writers = Vec::new();
        for (peer, stream) in &streams {
            writers.push((*peer, Mutex::new(stream.try_clone()?)));
        }
        let (world, members): (_, Vec<usize>) = (hosts.len(), (0..hosts.len()).collect());
        let (router, watch) = (Arc::new(Router::new(rank, world, writers, silence)), Watch::new());
        let inbox = router.open(&GroupId::default(), &members);
        let shared_hosts: Arc<[HostId]> = hosts.clone().into();
        for (peer, stream) in streams {
            let (router, watch) = (Arc::clone(&router), watch.clone());
            let (terms, hosts) = (terms.clone(), Arc::clone(&shared_hosts));
            let reader = Reader { peer, world, hosts, terms, silence, router, watch };
            spawn(&format!("rank-{peer}"), move || reader.run(&stream))?;
        }
        let (heartbeat, end) = channel();
        let beating = Arc::clone(&router);
        spawn("heartbeat", move || beating.beat(Pulse::period(silence), &end))?;
        Ok(Self {
            maker,
            rank,
            members,
            id: GroupId::default(),
            splits: 0,
            hosts,
            address,
            is_private,
            terms: terms.clone(),
            router,
            inbox,
            watch,
            limit: None,
            _heartbeat: Some(heartbeat),
        })
    }

    /// Number of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.hosts.len()
    }

    /// Whether all ranks are on one machine, which may count as several hosts by `RDMA_HOSTID`, and
    /// in the same network and pid namespaces there: containers count as machines.
    #[must_use]
    pub fn is_on_one_machine(&self) -> bool {
        self.hosts.iter().all(|host| host.is_same_space(&self.hosts[0]))
    }

    /// Whether two ranks are on one machine and in the same network and pid namespaces there.
    pub(crate) fn shares_space(&self, rank: usize, with: usize) -> bool {
        let host = |rank: usize| self.hosts.get(rank);
        host(rank).zip(host(with)).is_some_and(|(host, other)| host.is_same_space(other))
    }

    /// Whether two ranks are in the same network namespace of one machine.
    pub(crate) fn shares_network(&self, rank: usize, with: usize) -> bool {
        let host = |rank: usize| self.hosts.get(rank);
        host(rank).zip(host(with)).is_some_and(|(host, other)| host.is_same_network(other))
    }

    /// Whether two ranks are on one machine and in the same user namespace there.
    pub(crate) fn has_same_users(&self, rank: usize, with: usize) -> bool {
        let host = |rank: usize| self.hosts.get(rank);
        host(rank).zip(host(with)).is_some_and(|(host, other)| host.has_same_users(other))
    }

    /// This host's address on the way to rank 0, or rank 0's on the way to the others; `None` if
    /// they have met by Unix sockets.
    #[cfg_attr(not(feature = "soft"), expect(dead_code, reason = "only the software device listens for other hosts"))]
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether this rank's connections are Unix sockets between processes of one user, which nobody
    /// else reads.
    #[cfg_attr(not(feature = "soft"), expect(dead_code, reason = "only the software device listens for other hosts"))]
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// The rank in the job of a rank of the group.
    pub(crate) fn member(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or(rank)
    }

    /// The host of each rank, as a number: that of its first rank.
    #[must_use]
    pub fn hosts(&self) -> Vec<usize> {
        let first = |host: &HostId| self.hosts.iter().position(|other| other.is(host)).unwrap_or_default();
        self.hosts.iter().map(first).collect()
    }

    /// The position of this rank among the ranks of its host.
    #[must_use]
    pub fn position_on_host(&self) -> usize {
        let hosts = self.hosts();
        hosts[..self.rank].iter().filter(|host| **host == hosts[self.rank]).count()
    }

    /// The position of this rank among the ranks of its machine, and the number of ranks there.
    #[must_use]
    pub fn place_on_machine(&self) -> (usize, usize) {
        let own = &self.hosts[self.rank];
        let alike = |hosts: &[HostId]| hosts.iter().filter(|host| host.is_same_machine(own)).count();
        (alike(&self.hosts[..self.rank]), alike(&self.hosts))
    }

    /// Whether a rank of the group is on this rank's machine.
    pub(crate) fn is_on_machine(&self, rank: usize) -> bool {
        self.hosts.get(rank).is_some_and(|host| host.is_same_machine(&self.hosts[self.rank]))
    }

    /// The name of a rank of the group in messages, which give its rank in the job.
    fn name(&self, rank: usize) -> String {
        self.terms.roles.name(self.members[rank])
    }

    /// The error with a rank of the group that failed, and its host.
    pub(crate) fn of_rank(&self, rank: usize, error: Error) -> Error {
        let member = self.members.get(rank).copied().unwrap_or(rank);
        error.of_rank(member, || self.hosts.get(rank).map(|host| host.label().into()))
    }

    /// The same for an error whose text names ranks by their numbers in the group.
    pub(crate) fn of_rank_in_part(&self, rank: usize, error: Error) -> Error {
        let error = match self.members.get(rank) {
            Some(&member) if member != rank => {
                error.context(format!("in a part of the job, whose rank {rank} is {}", self.name(rank)))
            }
            _ => error,
        };
        self.of_rank(rank, error)
    }

    /// The longest time to wait for another rank.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.terms.timeout
    }

    /// Ends gatherings so long from now, even before the timeout is over.
    pub(crate) fn limit(&mut self, limit: Option<Duration>) {
        self.limit = limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
    }

    /// The time until the [limit](Self::limit), and the limit.
    pub(crate) fn time_left(&self) -> Option<(Duration, Duration)> {
        self.limit.map(|(end, limit)| (end.saturating_duration_since(Instant::now()), limit))
    }

    /// The end of a gathering that may take so long: the limit, if it comes first.
    fn end_of(&self, time: Option<Duration>) -> Option<Instant> {
        time.map(|time| Instant::now() + time).into_iter().chain(self.limit.map(|(end, _)| end)).min()
    }

    /// Tells a person what no error says.
    pub(crate) fn notices(&self) -> fn(&str) {
        self.terms.notice
    }

    /// A handle by which any thread ends the job.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        let (router, watch) = (Arc::clone(&self.router), self.watch());
        Aborter { maker: self.maker, router, watch, name: self.name(self.rank) }
    }

    /// A handle that tells any thread whether a rank is lost.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Gives `own` to every rank and returns the values of all ranks, in rank order. Every rank has
    /// to call this function.
    ///
    /// `what` names the values in messages: "the addresses of the queue pairs".
    ///
    /// # Errors
    /// If a rank has failed, or does not come in time.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&mut self, what: &str, own: &T) -> Result<Vec<T>, Error> {
        self.gather_within(what, own, Some(self.terms.timeout))
    }

    /// Waits as [`all_gather`](Self::all_gather) does, but for as long as the other ranks are
    /// alive: for a phase in which one rank works alone.
    ///
    /// # Errors
    /// If a rank has failed.
    pub fn wait_for_work(&mut self, what: &str) -> Result<(), Error> {
        self.gather_within(what, &(), None).map(drop)
    }

    fn gather_within<T: Serialize + DeserializeOwned>(
        &mut self,
        what: &str,
        own: &T,
        limit: Option<Duration>,
    ) -> Result<Vec<T>, Error> {
        self.maker.check()?;
        self.watch.wait_for(what);
        self.watch.check()?;
        let own = Json::of(own).map_err(|error| Error::new(error.to_string()))?;
        let whole = if self.rank == 0 { self.collect(what, own, limit)? } else { self.contribute(what, own, limit)? };
        self.watch.wait_for("");
        whole.elements(self.ranks()).map_err(|rank| self.astray(rank.unwrap_or(0)))
    }

    /// Rank 0's half of a gathering.
    fn collect(&self, what: &str, own: Json, limit: Option<Duration>) -> Result<Json, Error> {
        let deadline = self.end_of(limit);
        let mut parts: Vec<Option<Json>> = vec![None; self.ranks()];
        parts[0] = Some(own);
        while let Some(missing) = parts.iter().position(Option::is_none) {
            let (peer, frame) = self.receive(missing, what, deadline)?;
            match frame {
                Frame::Part(name, part) if name == what && parts[peer].is_none() => parts[peer] = Some(part),
                _ => return Err(self.astray(peer)),
            }
        }
        let whole = Json::of(&parts).map_err(|error| Error::new(error.to_string()))?;
        self.send(Content::Whole(whole.clone()))?;
        Ok(whole)
    }

    /// The other ranks' half of a gathering.
    fn contribute(&self, what: &str, own: Json, limit: Option<Duration>) -> Result<Json, Error> {
        let deadline = self.end_of(limit.map(|limit| limit + ROOT_TIME));
        self.send(Content::Part(what.to_owned(), own))?;
        match self.receive(0, what, deadline)? {
            (0, Frame::Whole(whole)) => Ok(whole),
            (peer, _) => Err(self.astray(peer)),
        }
    }

    fn astray(&self, rank: usize) -> Error {
        let (name, own) = (self.name(rank), self.name(self.rank));
        let text = format!("{name} did something else than {own}; are all the same build?");
        Error::new(text).with_cause(Cause::Protocol)
    }

    /// Returns when every rank has called this function. `what` names the barrier in messages.
    ///
    /// # Errors
    /// If a rank has failed, or does not come in time.
    pub fn barrier(&mut self, what: &str) -> Result<(), Error> {
        self.all_gather(what, &()).map(drop)
    }

    /// Makes one result of all ranks' results: if any rank failed, all fail, and the first failed
    /// rank gives the reason.
    ///
    /// # Errors
    /// This rank's failure, or the news of another rank's failure.
    pub fn agree<T, E>(&mut self, what: &str, result: Result<T, E>) -> Result<T, E>
    where
        E: JobError,
    {
        let own = result.as_ref().err().map(|failure| Loss::new(failure.to_string(), failure.cause()));
        let all = self.all_gather(what, &own)?;
        match all.into_iter().enumerate().find_map(|(rank, failed)| Some((rank, failed?))) {
            Some((rank, Loss { what, cause })) if rank != self.rank => {
                let error = Error::peer(format!("{}: {what}", self.name(rank))).with_cause(cause);
                Err(self.of_rank(rank, error).into())
            }
            _ => result,
        }
    }

    /// Ends the job with this rank's result: leaves together with the others on success, or tells
    /// them what went wrong. For the whole job, not for a part of it.
    ///
    /// # Errors
    /// The error in `result`, or the loss of another rank if that explains it. Different operations
    /// of a [communicator's](crate::Communicator#operations-that-differ) ranks, if no operation has
    /// returned that error.
    pub fn conclude<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        self.conclude_as(result)
    }

    /// Ends the job as [`conclude`](Self::conclude) does, with another type of errors.
    ///
    /// # Errors
    /// As [`conclude`](Self::conclude).
    pub fn conclude_as<T, E: JobError>(mut self, result: Result<T, E>) -> Result<T, E> {
        // A forked child has no part in the job.
        self.maker.check()?;
        let result = match result {
            Ok(value) => {
                self.router.report_last();
                // When all have come, rank 0 has all reports, and has told what they have shown. It
                // is also the reason for a rank that has left without waiting for the others.
                let ended = self.barrier("the end");
                self.router.ledgers.untold().map_or(ended, Err).map(|()| value).map_err(E::from)
            }
            Err(failure) => Err(failure),
        };
        let result = match result {
            Err(failure) if matches!(failure.kind(), ErrorKind::Failed | ErrorKind::TimedOut) => {
                Err(self.explain(failure))
            }
            result => result,
        };
        self.watch.close();
        let last = match &result {
            Err(failure) if failure.kind() != ErrorKind::Peer => {
                Frame::Lost(self.rank, Loss::new(format!("failed: {failure}"), failure.cause()))
            }
            _ => Frame::Bye,
        };
        self.router.wait_until_told();
        // Errors are ignored: a rank that has gone need not receive this frame.
        drop(self.router.send_to_all(&last, None));
        result
    }

    /// Replaces a failure by the loss of a rank that caused it, if there was one.
    fn explain<E: JobError>(&self, failure: E) -> E {
        let limit = if failure.is_effect() { REASON } else { EXPLANATION };
        let failure = self.news(limit).map_or_else(|| failure.explained(), E::from);
        match failure.kind() {
            // Ranks of one supervisor share its standard error, so each names itself.
            ErrorKind::Failed | ErrorKind::TimedOut if self.terms.is_supervised => {
                failure.context(self.name(self.rank))
            }
            _ => failure,
        }
    }

    /// Waits up to `limit` for the news of a lost rank.
    fn news(&self, limit: Duration) -> Option<Error> {
        let deadline = Instant::now() + limit;
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

    /// Receives the next frame, and the rank that sent it. At the deadline the failure names
    /// `missing`.
    fn receive(&self, missing: usize, what: &str, deadline: Option<Instant>) -> Result<(usize, Frame), Error> {
        let received = match deadline {
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self.inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok((_, Frame::Lost(..))) | Err(RecvTimeoutError::Disconnected) => {
                self.watch.check()?;
                Err(Error::peer("another rank has failed"))
            }
            Ok((peer, Frame::Bye)) => {
                // The rank may leave because another has failed; the news of that failure may
                // arrive later.
                self.watch.check()?;
                Err(Error::peer(format!("{} finished before the others", self.terms.roles.name(peer)))
                    .with_cause(Cause::Ended)
                    .of_rank(peer, || None))
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, limit)) = self.limit.filter(|&(end, _)| end <= Instant::now()) {
                    let name = self.name(missing);
                    let late = format!("waiting for {name} ({what}): the operation has not ended in time");
                    return Err(self.of_rank(missing, Error::timed_out(late, limit)));
                }
                let (seconds, name) = (self.terms.timeout.as_secs(), self.name(missing));
                let text = format!("{name} is alive, but has not come within {seconds} s (waiting for {what})");
                let text = format!("{text}; {} gives it longer", self.terms.named("timeout"));
                Err(self.of_rank(missing, Error::timed_out(text, self.terms.timeout)))
            }
            Ok((from, frame)) => {
                self.router.has_read(&self.id, from);
                let peer = self.members.iter().position(|&member| member == from);
                let outside =
                    || Error::new(format!("{} is not in a group that it sends to", self.terms.roles.name(from)));
                peer.map(|peer| (peer, frame)).ok_or_else(outside)
            }
        }
    }

    /// Sends to all other ranks, or to rank 0.
    fn send(&self, content: Content) -> Result<(), Error> {
        let sent = if self.is_whole() {
            self.router.send_to_all(&content.into(), None)
        } else {
            self.router.send_within(&self.id, self.recipients(), content)
        };
        sent.map_err(|(peer, error)| {
            // The reader thread of the failed connection learns the reason, perhaps only after this
            // error.
            self.news(EXPLANATION)
                .unwrap_or_else(|| Error::new(format!("cannot send to {}: {error}", self.terms.roles.name(peer))))
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.maker.check().is_err() {
            // The connections are those of the parent, for which they go on.
            return;
        }
        if self.is_whole() {
            self.watch.close();
            // Ends the operations of communicators that are still in use, and the waits of parts.
            self.watch.fail(Error::invalid("the job's group has ended, and its communicators with it"));
            self.router.deliver_to_all(self.router.rank(), &Frame::Bye);
            self.router.wait_until_told();
            self.router.shut_down();
        } else {
            self.router.close(&self.id);
        }
    }
}

/// The introduction of a rank.
fn introduction(rank: usize, world: usize, terms: &Terms) -> Result<Hello, Error> {
    if rank >= world {
        return Err(Error::invalid(format!("rank {rank} of {world} makes no sense; ranks count from 0")));
    }
    if world > MOST_RANKS {
        return Err(Error::invalid(format!("a job of {world} ranks: at most {MOST_RANKS} can meet")));
    }
    let (program, settings) = (terms.program.to_owned(), terms.settings.clone());
    Ok(Hello { rank, world, host: HostId::own(), program, settings })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(1 << 20).spawn(body);
    started.map(drop).map_err(|error| Error::not_started(format_args!("the thread {name}"), &error))
}

/// The reader of one connection: hands frames to the rank, and the news of a lost rank to every
/// rank.
struct Reader {
    peer: usize,
    world: usize,
    hosts: Arc<[HostId]>,
    terms: Terms,
    silence: Duration,
    router: Arc<Router>,
    watch: Watch,
}

impl Reader {
    fn run(self, stream: &Socket) {
        let Some((lost, loss, error)) = self.read(stream) else { return };
        let news = Frame::Lost(lost, loss);
        if self.router.rank() == 0 {
            // The other ranks have a connection to rank 0 alone and rely on it for the news. A rank
            // that ends because it was told must not be taken for the cause.
            self.router.tell(&news, Some(self.peer), || self.watch.fail(error));
        } else {
            self.watch.fail(error);
        }
        self.router.deliver_to_all(self.peer, &news);
    }

    /// Whether the peer may report the loss of a rank: rank 0 of any, the others of themselves.
    fn may_tell_of(&self, rank: usize) -> bool {
        rank == self.peer || self.peer == 0 && rank < self.world
    }

    /// Reads until the connection ends; returns the lost rank, what happened to it, and the error
    /// for this rank; or `None` at an orderly end.
    fn read(&self, stream: &Socket) -> Option<(usize, Loss, Error)> {
        let mut pulse = Pulse::new(stream, self.silence).ok()?;
        loop {
            let not_due = || Loss::new(NOT_DUE, Cause::Protocol);
            let (lost, loss, seen_here) = match Frame::read(&mut pulse, self.router.max_length()) {
                Ok(Frame::Alive) => continue,
                Ok(Frame::Lost(rank, what)) if self.may_tell_of(rank) => (rank, what, false),
                Ok(Frame::Bye) => {
                    // The job ends, with all parts of it.
                    self.router.deliver_to_all(self.peer, &Frame::Bye);
                    return None;
                }
                Ok(frame) => match self.router.take(self.peer, frame) {
                    Ok(()) => continue,
                    Err(NotDue(rank)) => (rank, not_due(), true),
                },
                Err(error) if is_timeout(&error) => {
                    let seconds = self.silence.as_secs();
                    let awaited = match self.watch.awaited() {
                        none if none.is_empty() => String::new(),
                        awaited => format!(" (waiting for {awaited})"),
                    };
                    let why = "its process is stopped, or its host is gone";
                    let what = format!("has been silent for {seconds} s: {why}{awaited}");
                    (self.peer, Loss::new(what, Cause::Silent), true)
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => (self.peer, not_due(), true),
                Err(_) => (self.peer, Loss::new("ended without a word", Cause::Ended), false),
            };
            if self.watch.is_closing() {
                return None;
            }
            let text = format!("{} {}", self.terms.roles.name(lost), loss.what);
            // A launcher reports a dead rank but not a stopped one: one of the ranks that see it
            // does.
            let speaks = seen_here && (self.router.rank() <= 1 || !self.terms.is_supervised);
            let error = if speaks { Error::new(text) } else { Error::peer(text) };
            let error = error.with_cause(loss.cause.clone());
            let error = error.of_rank(lost, || Some(self.hosts.get(lost)?.label().into()));
            return Some((lost, loss, error));
        }
    }
}

#[cfg(test)]
mod tests;
