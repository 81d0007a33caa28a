//! Connects queue pairs to those of other ranks, by an exchange of endpoints over the bootstrap or
//! by the connection manager.

mod manager;

use std::net::IpAddr;
use std::time::Duration;

use rdma::cm::ConnOptions;
use rdma::cm::blocking::{ConnectError, Connection, IncomingConnection, Resolved};
use rdma::transport::{Rc, Transport, Ud};
use rdma::{
    AddressHandle, Buffer, ConnectOptions, DatagramEndpoint, Endpoint, ErrorKind, Gid, InitializedQueuePair, Lid, Mtu,
    PreparedQueuePair, ProtectionDomain, QueuePair, RemoteAccess, RnrTimer,
};

use crate::bootstrap::Group;
use crate::device::{Chosen, announce};
use crate::{Failure, address};

/// The options that say how to connect; the same in every program.
#[derive(Clone, Debug, clap::Args)]
pub struct ConnectionOptions {
    /// Connect by the connection manager (rdma_cm), which iWARP does in any case
    #[arg(short = 'R', long, visible_alias = "rdma_cm")]
    pub cm: bool,
    /// Our address for the connection manager (default: one that leads to the device)
    #[arg(long, value_name = "IP")]
    pub cm_address: Option<IpAddr>,
}

/// The Q_Key of datagram queue pairs: perftest's.
const QKEY: u32 = 0x1111_1111;

/// The method by which the ranks of a job connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Each rank sends the others the endpoints of its queue pairs.
    Endpoints,
    /// The connection manager connects; holds this rank's address.
    Manager(IpAddr),
}

impl ConnectionOptions {
    /// Whether the options ask for the connection manager.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.cm || self.cm_address.is_some()
    }

    /// Agrees on a method; collective. If any rank's device is iWARP, all ranks take the connection
    /// manager, and rank `speaker` announces it.
    ///
    /// # Errors
    /// If a rank has no address for the connection manager.
    pub fn settle(
        &self,
        chosen: &Chosen,
        group: &mut Group,
        speaker: usize,
        stdout_taken: bool,
    ) -> Result<Method, Failure> {
        let (managed, asked) = (!chosen.context.capabilities().manual_connect, self.is_asked_for());
        let votes = group.all_gather("the ways to connect", &(managed, asked))?;
        let (any_managed, any_asked) = (votes.iter().any(|vote| vote.0), votes.iter().any(|vote| vote.1));
        if !any_managed && !any_asked {
            return Ok(Method::Endpoints);
        }
        if !any_asked && group.rank() == speaker {
            announce("iWARP connects by the connection manager only: as with --cm", stdout_taken)?;
        }
        let found = chosen.path.resolve_options().and_then(|_| self.address(chosen));
        group.agree("the addresses of the devices", found).map(Method::Manager)
    }

    /// The method for another device of this rank than the one that was [settled](Self::settle).
    ///
    /// # Errors
    /// If the device cannot connect by this method.
    pub fn method_for(&self, chosen: &Chosen, settled: Method) -> Result<Method, Failure> {
        let name = chosen.name();
        match settled {
            Method::Manager(_) => self.address(chosen).map(Method::Manager),
            Method::Endpoints if chosen.context.capabilities().manual_connect => Ok(Method::Endpoints),
            Method::Endpoints => Err(Failure::new(format!(
                "{name} connects by the connection manager only, and another rail does not; give --cm, or other \
                 devices by --device"
            ))),
        }
    }

    /// This rank's address for the connection manager.
    fn address(&self, chosen: &Chosen) -> Result<IpAddr, Failure> {
        match self.cm_address {
            None => address::of_device(chosen),
            Some(ip) => address::leads_to(&chosen.context, ip)
                .map(|()| ip)
                .map_err(|failure| failure.context(format_args!("--cm-address {ip}"))),
        }
    }
}

/// The receives of a queue pair, which must be posted before its peer can send.
#[derive(Debug)]
pub(crate) struct Receives {
    /// The memory of each receive; `None` for a message without data.
    pub(crate) rooms: Vec<Option<Buffer>>,
    pub(crate) token: u64,
}

impl Receives {
    pub(crate) fn post<T: Transport>(self, qp: &mut InitializedQueuePair<T>) -> Result<(), Failure> {
        for room in self.rooms {
            match room {
                Some(room) => qp.post_recv(room, self.token)?,
                None => qp.post_recv((), self.token)?,
            }
        }
        Ok(())
    }
}

/// One side of a connection that the connection manager is about to establish.
pub(crate) enum End {
    Active(Resolved<Rc>),
    Passive(IncomingConnection<Rc>),
}

impl End {
    /// Brings a queue pair to INIT, posts its receives, and connects it. The error of a rejection
    /// includes the peer's private data.
    pub(crate) fn connect(
        self,
        qp: PreparedQueuePair<Rc>,
        receives: Receives,
        access: RemoteAccess,
        (options, timeout): (&ConnOptions, Duration),
    ) -> Result<(Connection, QueuePair<Rc>), Failure> {
        let mut qp = match &self {
            Self::Active(route) => route.init_with(qp, access)?,
            Self::Passive(request) => request.init_with(qp, access)?,
        };
        receives.post(&mut qp)?;
        let connected = match self {
            Self::Active(route) => route.connect(qp, options, timeout),
            Self::Passive(request) => request.accept(qp, options, timeout),
        };
        connected.map_err(|ConnectError { error, private_data, .. }| {
            let said = String::from_utf8_lossy(&private_data).trim_end_matches('\0').to_owned();
            let failure = Failure::from(error);
            match error.kind() {
                ErrorKind::Rejected(_) if !said.is_empty() => Failure::new(format!("{failure}: {said}")),
                _ => failure,
            }
        })
    }
}

/// A queue pair to be connected to a rank.
pub(crate) struct Unconnected<T: Transport = Rc> {
    pub(crate) peer: usize,
    pub(crate) qp: PreparedQueuePair<T>,
    pub(crate) receives: Receives,
}

/// Parameters of the connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) method: Method,
    /// The remote access that peers get.
    pub(crate) access: RemoteAccess,
    /// The path MTU; the connection manager chooses its own.
    pub(crate) mtu: Option<Mtu>,
    pub(crate) min_rnr_timer: RnrTimer,
}

/// A queue pair that is connected to a rank.
#[derive(Debug)]
pub(crate) struct Connected<T: Transport = Rc> {
    pub(crate) peer: usize,
    pub(crate) qp: QueuePair<T>,
    /// The connection manager's handle, which must live as long as the connection is needed.
    pub(crate) connection: Option<Connection>,
    /// Whether this side called.
    pub(crate) is_active: bool,
    /// This side and the peer's side, as text for a report.
    pub(crate) ends: (String, String),
}

/// Connects each given queue pair to its peer; collective. The results are in the order of
/// `queue_pairs`.
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

/// Makes every queue pair ready to receive and exchanges the addresses; collective. Returns each
/// queue pair with its peer and the peer's address.
fn exchange<T: Transport, Q>(
    group: &mut Group,
    queue_pairs: Vec<Unconnected<T>>,
    ready: impl Fn(PreparedQueuePair<T>, Receives) -> Result<(Q, Vec<u8>), Failure>,
) -> Result<Vec<(usize, Q, Vec<u8>)>, Failure> {
    let rank = group.rank();
    let ready = queue_pairs.into_iter().map(|one| Ok((one.peer, ready(one.qp, one.receives)?)));
    let ready = group.agree("the queue pairs", ready.collect::<Result<Vec<_>, Failure>>())?;
    let own: Vec<(usize, Vec<u8>)> = ready.iter().map(|(peer, (_, address))| (*peer, address.clone())).collect();
    let all = group.all_gather("the addresses of the queue pairs", &own)?;
    let mut used = vec![0; all.len()];
    let paired = ready.into_iter().map(|(peer, (qp, _))| {
        // The peer's queue pairs for this rank, in the peer's order.
        let theirs = all[peer].iter().filter(|(to, _)| *to == rank).nth(used[peer]);
        used[peer] += 1;
        (peer, qp, theirs.map_or_else(Vec::new, |(_, address)| address.clone()))
    });
    Ok(paired.collect())
}

/// Connects by an exchange of endpoints; collective.
pub(crate) fn by_endpoints<T: rdma::transport::Connected>(
    chosen: &Chosen,
    group: &mut Group,
    queue_pairs: Vec<Unconnected<T>>,
    how: &How,
) -> Result<Vec<Connected<T>>, Failure> {
    if queue_pairs.is_empty() {
        return Ok(Vec::new());
    }
    let rank = group.rank();
    let initialized = exchange(group, queue_pairs, |qp, receives| {
        let mut qp = qp.init(&chosen.init_options(how.access))?;
        receives.post(&mut qp)?;
        let endpoint = qp.endpoint().to_bytes().to_vec();
        Ok((qp, endpoint))
    })?;
    let connected = initialized.into_iter().map(|(peer, qp, address)| {
        one_by_endpoint(chosen, peer, qp, &address, rank > peer, how)
            .map_err(|failure| failure.context(format_args!("cannot connect to rank {peer}")))
    });
    group.agree("the connections", connected.collect())
}

fn one_by_endpoint<T: rdma::transport::Connected>(
    chosen: &Chosen,
    peer: usize,
    qp: InitializedQueuePair<T>,
    endpoint: &[u8],
    is_active: bool,
    how: &How,
) -> Result<Connected<T>, Failure> {
    let (local, remote) = (qp.endpoint(), Endpoint::from_bytes(endpoint)?);
    let options = chosen.path.connect_options().rnr_retry_count(7).min_rnr_timer(how.min_rnr_timer);
    let options = how.mtu.into_iter().fold(options, ConnectOptions::mtu);
    let qp = qp.connect(&remote, &options)?;
    let text = |end: &Endpoint| text(end.lid, end.qpn, end.psn, end.gid);
    let ends = (text(&local), text(&remote));
    Ok(Connected { peer, qp, connection: None, is_active, ends })
}

/// The address of a queue pair, in perftest's format.
fn text(lid: Lid, qpn: u32, psn: u32, gid: Option<Gid>) -> String {
    let gid = gid.map_or_else(String::new, |gid| {
        let bytes: Vec<String> = gid.to_bytes().iter().map(|byte| format!("{byte:02}")).collect();
        format!("\n GID: {}", bytes.join(":"))
    });
    format!("LID {:#04x} QPN {qpn:#06x} PSN {psn:#06x}{gid}", lid.0)
}

/// A ready datagram queue pair, and the peer's queue pair to which it sends.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) qp: QueuePair<Ud>,
    pub(crate) address: AddressHandle,
    pub(crate) to: DatagramEndpoint,
    pub(crate) ends: (String, String),
}

/// Makes datagram queue pairs of a domain ready, each to send to one of its peer's queue pairs;
/// collective.
pub(crate) fn exchange_datagrams(
    chosen: &Chosen,
    pd: &ProtectionDomain,
    group: &mut Group,
    queue_pairs: Vec<Unconnected<Ud>>,
) -> Result<Vec<Datagrams>, Failure> {
    if queue_pairs.is_empty() {
        return Ok(Vec::new());
    }
    let ready = exchange(group, queue_pairs, |qp, receives| {
        let mut qp = qp.init(&chosen.datagram_options(QKEY))?;
        receives.post(&mut qp)?;
        let qp = qp.ready()?;
        let own = qp.endpoint()?;
        Ok(((qp, own), own.to_bytes().to_vec()))
    })?;
    let text = |end: &DatagramEndpoint| text(end.lid, end.qpn, 0, end.gid);
    let connected = ready.into_iter().map(|(_, (qp, own), address)| {
        let to = DatagramEndpoint::from_bytes(&address)?;
        let mut path = qp.path_to(&to)?;
        chosen.path.apply_to(&mut path);
        Ok(Datagrams { address: pd.create_ah(&path)?, qp, ends: (text(&own), text(&to)), to })
    });
    group.agree("the connections", connected.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceOptions, PathOptions};

    const PATH: PathOptions =
        PathOptions { traffic_class: Some(106), service_level: Some(5), ack_timeout: Some(17), retry_count: Some(3) };

    /// `soft0` with the last entry of its GID table.
    fn chosen(path: PathOptions) -> Chosen {
        let mut options = DeviceOptions { path, ..DeviceOptions::named(Some("soft0".to_owned())) };
        let chosen = options.open().unwrap();
        let table = chosen.context.gid_table(chosen.port).unwrap();
        options.gid_index = table.last().map(|entry| entry.index);
        options.open().unwrap()
    }

    #[test]
    fn the_settings_become_attributes_of_the_queue_pairs() {
        let chosen = chosen(PATH);
        let pd = chosen.context.alloc_pd().unwrap();
        let cq = chosen.context.create_cq(64).unwrap();
        let access = RemoteAccess::empty();
        let ready = || QueuePair::builder(&pd).cq(&cq).build().unwrap().init(&chosen.init_options(access)).unwrap();
        let how = How { method: Method::Endpoints, access, mtu: None, min_rnr_timer: RnrTimer::DEFAULT };
        let (a, b) = (ready(), ready());
        let (to_a, to_b) = (a.endpoint().to_bytes(), b.endpoint().to_bytes());
        for (qp, to) in [(a, to_b), (b, to_a)] {
            let connected = one_by_endpoint(&chosen, 1, qp, &to, true, &how).unwrap();
            let info = connected.qp.query().unwrap();
            let attr = info.as_raw();
            assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (17, 3, 7));
            assert_eq!((attr.ah_attr.sl, attr.ah_attr.grh.traffic_class), (5, 106));
            assert_eq!(Some(u32::from(attr.ah_attr.grh.sgid_index)), chosen.gid.map(|entry| entry.index));
        }
    }

    #[test]
    fn the_settings_become_the_path_of_datagrams() {
        let chosen = chosen(PATH);
        let pd = chosen.context.alloc_pd().unwrap();
        let cq = chosen.context.create_cq(64).unwrap();
        let qp = QueuePair::datagram(&pd).cq(&cq).build().unwrap().init(&chosen.datagram_options(QKEY)).unwrap();
        let qp = qp.ready().unwrap();
        let mut path = qp.path_to(&qp.endpoint().unwrap()).unwrap();
        chosen.path.apply_to(&mut path);
        let path = pd.create_ah(&path).unwrap().path();
        assert_eq!((path.service_level, path.route.map(|route| route.traffic_class)), (5, Some(106)));
    }
}
