//! Ranks that do not know where rank 0 listens find it by an [`Exchange`], or by the addresses of
//! all ranks.
//!
//! Rank 0 listens, and sets its addresses and a random number of the job under one key. It deletes
//! the key once all ranks have come, before any rank learns of that: so the ranks that meet next do
//! not find it. If the meeting has failed, it deletes the key when it has told the ranks that come
//! late; those that meet next before that are sent away by rank 0.
//!
//! The key can still be one of an earlier job, whose rank 0 was killed. The others therefore ask
//! each address whether rank 0 of the job listens there before they introduce themselves, and get
//! the key again if none is right.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::admit;
use super::exchange::{Exchange, MAX_VALUE};
use super::frame::{Hello, VERSION};
use super::listen::{self, Listen, MOST_ADDRESSES};
use super::meet::{self, Met};
use super::terms::{Terms, Way};
use super::{Group, Place, Root, introduction};
use crate::text::{self, PeerText};
use crate::{Error, ErrorKind};

/// The key under which rank 0 sets its record.
pub(super) const KEY: &str = "rdma-collectives/root";
/// First field of a record.
const KIND: &str = "rdma-job";
/// First and longest pause after which a rank gets the record again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time in which rank 0 has to answer a probe in the first round, and the longest. A busy rank 0
/// answers in a later round.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(16));

impl Group {
    /// Meets the other ranks by an exchange, by which they find rank 0. Rank 0 listens at all
    /// addresses of its host, at a port of the kernel's choice, and the others try one after the
    /// other; [`Terms::listens_at`] and [`Terms::listens_on`] choose another place. After the
    /// meeting the exchange is not used any more, and holds nothing of it.
    ///
    /// A rank waits up to the timeout of the terms for rank 0, and as long for the other ranks.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rdma_collectives::bootstrap::{Group, Roles, Terms, Threads};
    ///
    /// let exchange = Threads::new();
    /// let ranks: Vec<_> = (0..3).map(|rank| {
    ///     let mut exchange = exchange.clone();
    ///     std::thread::spawn(move || {
    ///         let terms = Terms::new("names", &(), Roles::Ranks, Duration::from_secs(30));
    ///         let mut group = Group::meet_by(&mut exchange, rank, 3, &terms)?;
    ///         let names = group.all_gather("the names", &format!("I am {rank}"))?;
    ///         group.conclude(Ok(names))
    ///     })
    /// }).collect();
    /// for rank in ranks {
    ///     assert_eq!(rank.join().expect("no panic")?, ["I am 0", "I am 1", "I am 2"]);
    /// }
    /// assert!(exchange.is_empty());
    /// # Ok::<(), rdma_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the exchange fails, or holds what rank 0 does not set; or if ranks do not come in time,
    /// or do not agree.
    pub fn meet_by(exchange: &mut dyn Exchange, rank: usize, ranks: usize, terms: &Terms) -> Result<Self, Error> {
        let terms = terms.clone().by(Way::Exchange);
        let hello = introduction(rank, ranks, &terms)?;
        let (hosts, streams) = match (rank, ranks) {
            (_, 1) => (vec![hello.host], Vec::new()),
            (0, _) => host(exchange, &hello, &terms)?,
            _ => seek(exchange, &hello, &terms)?,
        };
        Self::start(rank, hosts, streams, &terms)
    }

    /// Meets the ranks of a service, all of which know the addresses of all: one `host:port` for
    /// each rank, in the same words everywhere. Rank 0 listens at its own, or at that port of all
    /// addresses of its host if the address is a name; [`Terms::listens_at`] and
    /// [`Terms::listens_on`] choose another place, such as the address behind one that is
    /// translated. The other addresses are not used. The name of rank 0's host has to resolve when
    /// a rank begins to look for it; rank 0 itself may start later.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use rdma_collectives::bootstrap::{Group, Roles, Terms};
    ///
    /// let terms = Terms::new("search", &(), Roles::Ranks, Duration::from_secs(30));
    /// let shards = ["shard-0.search:7000", "shard-1.search:7000", "shard-2.search:7000"];
    /// let mut group = Group::meet_at(&shards, 1, &terms)?;
    /// group.barrier("the start")?;
    /// # Ok::<(), rdma_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an address is none, or not one of this host at rank 0; or if ranks do not come in time,
    /// or do not agree.
    pub fn meet_at<A: AsRef<str>>(addresses: &[A], rank: usize, terms: &Terms) -> Result<Self, Error> {
        let terms = terms.clone().by(Way::Addresses);
        let addresses: Vec<&str> = addresses.iter().map(AsRef::as_ref).collect();
        let world = addresses.len();
        introduction(rank, world, &terms)?;
        addresses.iter().try_for_each(|address| listen::check_address(address))?;
        let job = text::hash(&addresses.join(" "));
        let root = match rank {
            0 => Root::Listener(listen_as(addresses[0], terms.listen.as_ref())?),
            _ => Root::Address(addresses[0].to_owned()),
        };
        Self::meet(Place { rank, ranks: world, root, job }, &terms)
    }
}

/// The value that rank 0 sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    kind: String,
    version: u32,
    pub(super) job: u64,
    pub(super) addresses: Vec<SocketAddr>,
}

/// The fields of a record that every version has.
#[derive(Deserialize)]
struct RecordHead {
    kind: String,
    version: u32,
}

impl Record {
    /// The record of a new job, whose number no other has.
    fn new(addresses: Vec<SocketAddr>) -> Self {
        let job = RandomState::new().build_hasher().finish();
        Self { kind: KIND.to_owned(), version: VERSION, job, addresses }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| Error::new(error.to_string()))
    }

    /// Reads a value that may be anything.
    pub(super) fn of(value: &[u8]) -> Result<Self, Error> {
        let foreign = |what: String| {
            Error::new(format!("the exchange holds under {KEY} what rank 0 of a job does not set: {what}; delete it"))
        };
        if value.len() > MAX_VALUE {
            return Err(foreign(format!("{} bytes", value.len())));
        }
        let quoted = |text: &str| format!("\"{}\"", PeerText::from(text.chars().take(60).collect::<String>()));
        let garbled = |_| foreign(quoted(&String::from_utf8_lossy(value)));
        let head: RecordHead = serde_json::from_slice(value).map_err(garbled)?;
        if head.kind != KIND {
            return Err(foreign(format!("a value of {}", quoted(&head.kind))));
        }
        if head.version != VERSION {
            return Err(Error::new(meet::other_version("rank 0", head.version)));
        }
        let record: Self = serde_json::from_slice(value).map_err(garbled)?;
        match record.addresses.len() {
            1..=MOST_ADDRESSES => Ok(record),
            count => Err(foreign(format!("{count} addresses"))),
        }
    }
}

/// Rank 0's half: tells the exchange where it listens until all have come.
fn host(exchange: &mut dyn Exchange, own: &Hello, terms: &Terms) -> Result<Met, Error> {
    let listener = terms.listen.clone().unwrap_or(Listen::everywhere(0)).open(0)?;
    let record = Record::new(listen::addresses(&listener)?);
    if let Err(failure) = exchange.set(KEY, &record.to_bytes()?) {
        // The value may have been set nevertheless. Errors are ignored: there is one already.
        drop(exchange.delete(KEY));
        return Err(told(&failure, "cannot tell the other ranks by the exchange where rank 0 listens"));
    }
    admit::gather(&listener, record.job, own, terms, || {
        if let Err(failure) = exchange.delete(KEY) {
            // A later job finds nobody at these addresses, and waits for its own rank 0.
            let failure = told(&failure, "the exchange keeps the addresses of this job");
            (terms.notice)(&format!("{}: {failure}", own.program));
        }
    })
}

/// The other ranks' half: finds rank 0, which may start later.
fn seek(exchange: &mut dyn Exchange, own: &Hello, terms: &Terms) -> Result<Met, Error> {
    let (root, seconds) = (terms.roles.name(0), terms.timeout.as_secs());
    let (began, mut pause, mut patience) = (Instant::now(), PAUSES.0, PATIENCE.0);
    let left = || terms.timeout.saturating_sub(began.elapsed());
    let not_found = |found: &str| {
        let found = PeerText::from(found);
        let text = format!(
            "cannot find {root} within {seconds} s where the exchange says that it listens ({found}); does it run, \
             and do these addresses lead to it?"
        );
        Error::new(text).of_rank(0, || None)
    };
    let mut sent_away = None;
    // The listeners that answered at the addresses of the last record.
    let mut found = String::new();
    loop {
        let value = match exchange.get(KEY, left()) {
            Ok(value) => value,
            Err(failure) if !left().is_zero() => {
                return Err(told(&failure, &format!("cannot get from the exchange where {root} listens")));
            }
            Err(failure) if found.is_empty() => {
                let what = format!("{root} has not told the exchange within {seconds} s where it listens");
                return Err(told(&failure, &what).of_rank(0, || None));
            }
            Err(_) => return Err(not_found(&found)),
        };
        let record = Record::of(&value)?;
        let mut each = Vec::new();
        for address in record.addresses {
            match meet::probe(address, record.job, patience.min(left().max(PATIENCE.0))) {
                Ok(stream) => {
                    let at = address.to_string();
                    match meet::introduce(stream, &at, record.job, own, terms, sent_away == Some(record.job))? {
                        Some(met) => return Ok(met),
                        None => each.push(format!("{at}: a meeting that has failed ends there")),
                    }
                    sent_away = Some(record.job);
                }
                Err(why) => each.push(format!("{address}: {why}")),
            }
            if left().is_zero() {
                break;
            }
        }
        found = each.join(", ");
        if left().is_zero() {
            return Err(not_found(&found));
        }
        // Rank 0 of this job may replace the record of an earlier one.
        std::thread::sleep(pause.min(left()));
        pause = (2 * pause).min(PAUSES.1);
        patience = (2 * patience).min(PATIENCE.1);
    }
}

/// An error of an exchange, whose text may be that of a store elsewhere.
fn told(failure: &Error, what: &str) -> Error {
    let text = format!("{what}: {}", PeerText::from(failure.to_string()));
    if failure.kind() == ErrorKind::InvalidInput { Error::invalid(text) } else { Error::new(text) }
        .with_cause(failure.cause().clone())
}

/// The socket of the rank that has this address in the list of all.
fn listen_as(address: &str, listen: Option<&Listen>) -> Result<Socket, Error> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let port = port.parse().unwrap_or(0);
    let is_ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    match listen {
        Some(listen) => listen.open(port),
        None if is_ip => listen::listen(address),
        // A host's own name may resolve to loopback there.
        None => listen::listen_everywhere(port),
    }
}
