//! Connecting queue pairs to those of other ranks: by an exchange of endpoints over the bootstrap, or by the connection manager.

mod manager;

use std::net::IpAddr;

use rdma::cm::blocking::Connection;
use rdma::{
    ConnectOptions, Context, Endpoint, InitializedQueuePair, Mtu, PreparedQueuePair, QueuePair, Rc, RemoteAccess,
    RnrTimer, TransportType,
};

use crate::bootstrap::Group;
use crate::device::{Chosen, announce};
use crate::{Failure, address};

/// The options that say how to connect; the same in every program.
#[derive(Clone, Debug, clap::Args)]
pub struct ConnectionOptions {
    /// Connect by the connection manager (rdma_cm), which iWARP does in any case
    #[arg(long)]
    pub cm: bool,
    /// Our address for the connection manager (default: one that leads to the device)
    #[arg(long, value_name = "IP")]
    pub cm_address: Option<IpAddr>,
}

/// How the ranks of a job connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Each tells the others the endpoints of its queue pairs.
    Endpoints,
    /// By the connection manager; this is our address.
    Manager(IpAddr),
}

impl ConnectionOptions {
    /// Whether they ask for the connection manager.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.cm || self.cm_address.is_some()
    }

    /// Agrees on a method; collective. Where any rank's device is iWARP, all take the connection manager, and `speaker` says so.
    ///
    /// # Errors
    /// Where a rank has no address for the connection manager.
    pub fn settle(
        &self,
        chosen: &Chosen,
        group: &mut Group,
        speaker: usize,
        stdout_taken: bool,
    ) -> Result<Method, Failure> {
        let (iwarp, asked) = (is_iwarp(&chosen.context), self.is_asked_for());
        let votes = group.all_gather(&[u8::from(iwarp), u8::from(asked)])?;
        let any = |at: usize| votes.iter().any(|vote| vote.get(at) == Some(&1));
        if !any(0) && !any(1) {
            return Ok(Method::Endpoints);
        }
        if !any(1) && group.rank() == speaker {
            announce("iWARP connects by the connection manager only: as with --cm", stdout_taken)?;
        }
        let found = match self.cm_address {
            None => address::of_device(chosen),
            Some(ip) => address::leads_to(&chosen.context, ip)
                .map(|()| ip)
                .map_err(|failure| failure.context(format_args!("--cm-address {ip}"))),
        };
        group.agree(found).map(Method::Manager)
    }
}

/// Whether a device's transport is iWARP, which has no immediate data and does not wait for receives.
pub(crate) fn is_iwarp(context: &Context) -> bool {
    context.device().transport() == TransportType::IWARP
}

/// Posts the receives of a queue pair, which has to be done before its peer can send.
pub(crate) type Receives = Box<dyn FnOnce(&mut InitializedQueuePair<Rc>) -> Result<(), Failure> + Send>;

/// A queue pair for a rank.
pub(crate) struct Unconnected {
    pub(crate) peer: usize,
    pub(crate) qp: PreparedQueuePair<Rc>,
    pub(crate) receives: Receives,
}

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) method: Method,
    /// What the peers may do.
    pub(crate) access: RemoteAccess,
    /// The path's MTU, which the connection manager chooses itself.
    pub(crate) mtu: Option<Mtu>,
    pub(crate) min_rnr_timer: RnrTimer,
}

/// A queue pair that is connected to a rank.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) peer: usize,
    pub(crate) qp: QueuePair<Rc>,
    /// Has to live as long as the connection is needed.
    pub(crate) connection: Option<Connection>,
    /// Whether this end is the one that has called.
    pub(crate) is_active: bool,
    /// This end and the other, for a report.
    pub(crate) ends: (String, String),
}

/// Connects every rank to those of its peers; collective. The result is in the order of what was given.
pub(crate) fn connect(
    chosen: &Chosen,
    group: &mut Group,
    queue_pairs: Vec<Unconnected>,
    how: &How,
) -> Result<Vec<Connected>, Failure> {
    match how.method {
        Method::Endpoints => by_endpoints(chosen, group, queue_pairs, how),
        Method::Manager(ip) => manager::connect(chosen, group, queue_pairs, how, ip),
    }
}

/// Everybody hears where everybody's queue pairs are, and takes out those that are meant for it.
fn by_endpoints(
    chosen: &Chosen,
    group: &mut Group,
    queue_pairs: Vec<Unconnected>,
    how: &How,
) -> Result<Vec<Connected>, Failure> {
    let (rank, world) = (group.rank(), group.world());
    let initialized = queue_pairs
        .into_iter()
        .map(|Unconnected { peer, qp, receives }| {
            let mut qp = qp.init(&chosen.init_options(how.access))?;
            receives(&mut qp).map(|()| (peer, qp))
        })
        .collect::<Result<Vec<_>, Failure>>();
    let initialized = group.agree(initialized)?;
    let mut endpoints = vec![0; world * Endpoint::LEN];
    for (peer, qp) in &initialized {
        endpoints[peer * Endpoint::LEN..][..Endpoint::LEN].copy_from_slice(&qp.endpoint().to_bytes());
    }
    let all = group.all_gather(&endpoints)?;
    let connected = initialized
        .into_iter()
        .map(|(peer, qp)| {
            let bytes = all[peer].get(rank * Endpoint::LEN..(rank + 1) * Endpoint::LEN).unwrap_or_default();
            one_by_endpoint(peer, qp, bytes, rank > peer, how)
                .map_err(|failure| failure.context(format_args!("cannot connect to rank {peer}")))
        })
        .collect();
    group.agree(connected)
}

fn one_by_endpoint(
    peer: usize,
    qp: InitializedQueuePair<Rc>,
    endpoint: &[u8],
    is_active: bool,
    how: &How,
) -> Result<Connected, Failure> {
    let (local, remote) = (qp.endpoint(), Endpoint::from_bytes(endpoint)?);
    let options = ConnectOptions::new().rnr_retry(7).min_rnr_timer(how.min_rnr_timer);
    let options = how.mtu.into_iter().fold(options, ConnectOptions::mtu);
    let qp = qp.connect(&remote, &options)?;
    let ends = (text(&local), text(&remote));
    Ok(Connected { peer, qp, connection: None, is_active, ends })
}

fn text(end: &Endpoint) -> String {
    let gid = end.gid.map_or_else(String::new, |gid| format!("  GID {gid}"));
    format!("LID {:#06x} QPN {:#08x} PSN {:#08x}{gid}", end.lid.0, end.qpn, end.psn)
}
