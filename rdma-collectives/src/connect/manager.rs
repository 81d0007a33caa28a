//! Connects ranks by the connection manager.
//!
//! In each pair of ranks, the higher one calls. Each rank listens on a port of its own and sends
//! the address to the others over the bootstrap. It calls and answers at the same time, so that no
//! cycle of waiting ranks can form. The private data of a call names the job, the caller and the
//! callee; any other call is rejected with the reason.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::thread::Builder;
use std::time::{Duration, Instant};

use rdma::QueuePair;
use rdma::cm::ConnOptions;
use rdma::cm::blocking::{self, Connection, IncomingConnection, ListenOptions, Listener, ResolveOptions};
use rdma::transport::Rc;

use super::{Connected, End, How, Unconnected};
use crate::Error;
use crate::adapter::Adapter;
use crate::bootstrap::{Group, Watch};

/// Longest time of one step of a connection.
const STEP: Duration = Duration::from_secs(10);
/// Longest time of all connections of this rank.
const ALL: Duration = Duration::from_secs(60);
/// Interval of the checks whether a rank has died.
const LOOK: Duration = Duration::from_millis(100);

/// The beginning of the private data; changes with the format of the rest.
const MAGIC: &str = "rdma-cm2";

/// Caller and callee of a connection, sent as private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// A random number that only the ranks of a job know.
    job: u64,
    from: u32,
    to: u32,
}

impl Identity {
    fn new(job: u64, from: usize, to: usize) -> Self {
        let number = |rank| u32::try_from(rank).unwrap_or(u32::MAX);
        Self { job, from: number(from), to: number(to) }
    }

    fn to_text(self) -> String {
        format!("{MAGIC} {:x} {} {}", self.job, self.from, self.to)
    }

    /// Parses private data, which may be padded with zeros.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let mut fields = text.strip_prefix(MAGIC)?.strip_prefix(' ')?.split(' ');
        let job = u64::from_str_radix(fields.next()?, 16).ok()?;
        let mut rank = || fields.next()?.parse().ok();
        Some(Self { job, from: rank()?, to: rank()? })
    }
}

/// State that the calling and the answering half share.
struct Work<'a> {
    adapter: &'a Adapter,
    how: &'a How,
    rank: usize,
    job: u64,
    watch: Watch,
    /// Tells a person of strangers.
    notice: fn(&str),
    deadline: Instant,
    /// The reason why one half has failed, which ends the other half too.
    failed: OnceLock<Error>,
}

/// Connects every rank to its peers; collective.
pub(super) fn connect(
    adapter: &Adapter,
    group: &mut Group,
    queue_pairs: Vec<Unconnected>,
    how: &How,
    ip: IpAddr,
) -> Result<Vec<Connected>, Error> {
    let rank = group.rank();
    let bind = |()| Listener::bind(&adapter.context, SocketAddr::new(ip, 0), &ListenOptions::new());
    // Nobody calls a rank without queue pairs, whose device may have no address.
    let listener = (!queue_pairs.is_empty()).then_some(()).map(bind).transpose();
    let listener = listener.map_err(|error| Error::from(error).context(format_args!("cannot listen at {ip}")));
    let listener = group.agree("the listeners", listener)?;
    // Rank 0's random number identifies the job.
    let random = RandomState::new().build_hasher().finish();
    let local = listener.as_ref().map(Listener::local_addr);
    let told: Vec<(u64, Option<SocketAddr>)> = group.all_gather("the listeners' addresses", &(random, local))?;
    let order: Vec<usize> = queue_pairs.iter().map(|unconnected| unconnected.peer).collect();
    let (to_call, to_answer): (Vec<_>, Vec<_>) =
        queue_pairs.into_iter().partition(|unconnected| unconnected.peer < rank);
    let work = Work {
        adapter,
        how,
        rank,
        job: told[0].0,
        watch: group.watch(),
        notice: group.notices(),
        deadline: Instant::now() + ALL,
        failed: OnceLock::new(),
    };
    let connected = std::thread::scope(|scope| {
        let answering = Builder::new().spawn_scoped(scope, || work.noting(work.answer(listener.as_ref(), to_answer)));
        let answering = answering.map_err(|error| Error::not_started("the thread that answers", &error))?;
        let source = SocketAddr::new(ip, 0);
        let called = to_call.into_iter().map(|unconnected| {
            let peer = unconnected.peer;
            let target =
                told[peer].1.ok_or_else(|| Error::new(format!("rank {peer} does not connect to this rank")))?;
            work.call(source, target, unconnected)
                .map_err(|failure| failure.context(format_args!("cannot connect to rank {peer} at {target}")))
        });
        let called = work.noting(called.collect::<Result<Vec<_>, _>>());
        let answered = answering.join().unwrap_or_else(|_| Err(Error::new("the answering thread has died")));
        called.and_then(|mut called| {
            called.extend(answered?);
            Ok(called)
        })
    });
    // Not an agreement: ranks that wait for a call of this rank learn of its failure when it ends.
    let mut connected = connected?;
    group.barrier("the connections")?;
    connected.sort_by_key(|one| order.iter().position(|&peer| peer == one.peer));
    Ok(connected)
}

impl Work<'_> {
    fn noting<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|failure| self.failed.get_or_init(|| failure).clone())
    }

    fn options(&self, to: usize) -> ConnOptions {
        let identity = Identity::new(self.job, self.rank, to);
        ConnOptions::new().path(self.how.path_of(self.adapter)).private_data(identity.to_text().as_bytes())
    }

    fn check(&self) -> Result<(), Error> {
        self.watch.check()?;
        self.failed.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Calls one peer.
    fn call(&self, source: SocketAddr, target: SocketAddr, unconnected: Unconnected) -> Result<Connected, Error> {
        self.check()?;
        let peer = unconnected.peer;
        let options = ResolveOptions::new().path(self.how.path_of(self.adapter));
        let route = blocking::resolve_with(&self.adapter.context, Some(source), target, STEP, &options)?;
        let (connection, qp) = self.connect(End::Active(route), unconnected)?;
        if Identity::from_bytes(connection.private_data()) != Some(Identity::new(self.job, peer, self.rank)) {
            return Err(Error::new("somebody else has answered"));
        }
        let theirs = connection.parameters().qpn;
        Ok(connected(peer, connection, qp, theirs, true))
    }

    fn connect(&self, end: End, unconnected: Unconnected) -> Result<(Connection, QueuePair<Rc>), Error> {
        let Unconnected { peer, qp, receives } = unconnected;
        end.connect(qp, receives, self.how.access, (&self.options(peer), STEP))
    }

    /// Waits for the calls of all other peers.
    fn answer(&self, listener: Option<&Listener>, mut waiting: Vec<Unconnected>) -> Result<Vec<Connected>, Error> {
        let mut all = Vec::new();
        let Some(listener) = listener else { return Ok(all) };
        while !waiting.is_empty() {
            self.check()?;
            if Instant::now() > self.deadline {
                let missing: Vec<String> = waiting.iter().map(|one| one.peer.to_string()).collect();
                let (missing, seconds) = (missing.join(", "), ALL.as_secs());
                return Err(Error::new(format!("no connection of ranks {missing} has come within {seconds} s")));
            }
            let Some(request) = listener.next_request(Some(LOOK))? else { continue };
            let caller = Identity::from_bytes(request.private_data());
            let place = waiting.iter().position(|one| caller == Some(Identity::new(self.job, one.peer, self.rank)));
            let Some(place) = place else {
                refuse(request, self.job, caller, self.notice);
                continue;
            };
            let unconnected = waiting.swap_remove(place);
            let (peer, theirs) = (unconnected.peer, request.parameters().qpn);
            let accepted = self.connect(End::Passive(request), unconnected);
            let (connection, qp) =
                accepted.map_err(|f| f.context(format_args!("cannot accept the connection of rank {peer}")))?;
            all.push(connected(peer, connection, qp, theirs, false));
        }
        Ok(all)
    }
}

fn connected(peer: usize, connection: Connection, qp: QueuePair<Rc>, theirs: u32, is_active: bool) -> Connected {
    let ends = (end(connection.local_addr(), qp.qpn()), end(connection.peer_addr(), theirs));
    Connected { peer, qp, connection: Some(connection), is_active, ends }
}

/// Rejects a call that is not for this rank, and tells the reason.
fn refuse(request: IncomingConnection, job: u64, caller: Option<Identity>, notice: fn(&str)) {
    let why = match caller {
        None => "it does not speak our protocol",
        Some(identity) if identity.job != job => "it belongs to another job",
        Some(_) => "it is not expected here",
    };
    let from = request.peer_addr().map_or_else(|| "somewhere".to_owned(), |address| address.to_string());
    notice(&format!("ignored a connection from {from}: {why}"));
    // Errors are ignored: the caller may have gone.
    let _rejected = request.reject(why.as_bytes());
}

fn end(address: Option<SocketAddr>, qpn: u32) -> String {
    let address = address.map_or_else(|| "?".to_owned(), |address| address.to_string());
    format!("{address} QPN {qpn:#08x}")
}

#[cfg(test)]
mod tests;
