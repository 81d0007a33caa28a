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
    PathOptions, PreparedQueuePair, ProtectionDomain, QueuePair, RemoteAccess, RnrTimer,
};

use crate::adapter::{Adapter, check_path};
use crate::bootstrap::Group;
use crate::{Error, address};

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

/// How ranks want to connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Connect by the connection manager, which iWARP does in any case.
    pub manager: bool,
    /// This rank's address for the connection manager; `None`: one that leads to the device.
    pub address: Option<IpAddr>,
}

/// What the ranks of a job have settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// How this rank connects.
    pub method: Method,
    /// Whether the ranks connect by the connection manager because a device does nothing else.
    pub is_forced: bool,
}

impl Wanted {
    /// Agrees on a method; collective. If any rank's device is iWARP, all ranks take the connection
    /// manager.
    ///
    /// # Errors
    /// If a rank has no address for the connection manager.
    pub fn settle(self, adapter: &Adapter, group: &mut Group) -> Result<Settled, Error> {
        let (managed, asked) = (!adapter.context.capabilities().manual_connect, self.manager || self.address.is_some());
        let votes = group.all_gather("the ways to connect", &(managed, asked))?;
        let (any_managed, any_asked) = (votes.iter().any(|vote| vote.0), votes.iter().any(|vote| vote.1));
        if !any_managed && !any_asked {
            return Ok(Settled { method: Method::Endpoints, is_forced: false });
        }
        let found = check_path(adapter).and_then(|()| self.address(adapter));
        let method = group.agree("the addresses of the devices", found).map(Method::Manager)?;
        Ok(Settled { method, is_forced: !any_asked })
    }

    /// The method for another device of this rank than the one that was [settled](Self::settle).
    ///
    /// # Errors
    /// If the device cannot connect by this method.
    pub fn method_for(self, adapter: &Adapter, settled: Method) -> Result<Method, Error> {
        let name = adapter.name();
        match settled {
            Method::Manager(_) => self.address(adapter).map(Method::Manager),
            Method::Endpoints if adapter.context.capabilities().manual_connect => Ok(Method::Endpoints),
            Method::Endpoints => Err(Error::new(format!(
                "{name} connects by the connection manager only, and another rail does not; connect all by the \
                 connection manager, or choose other devices"
            ))),
        }
    }

    /// This rank's address for the connection manager.
    fn address(self, adapter: &Adapter) -> Result<IpAddr, Error> {
        match self.address {
            None => address::of_device(adapter),
            Some(ip) => address::leads_to(&adapter.context, ip).map(|()| ip).map_err(|error| {
                Error::from(error).context(format_args!("the address {ip} for the connection manager"))
            }),
        }
    }
}

/// The receives of a queue pair, which must be posted before its peer can send.
#[derive(Debug)]
pub struct Receives {
    /// The memory of each receive; `None` for a message without data.
    pub rooms: Vec<Option<Buffer>>,
    /// The token of their completions.
    pub token: u64,
}

impl Receives {
    /// Posts the receives.
    ///
    /// # Errors
    /// The error of a post.
    pub fn post<T: Transport>(self, qp: &mut InitializedQueuePair<T>) -> Result<(), Error> {
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
#[derive(Debug)]
pub enum End {
    /// The side that calls.
    Active(Resolved<Rc>),
    /// The side that is called.
    Passive(IncomingConnection<Rc>),
}

impl End {
    /// Brings a queue pair to INIT, posts its receives, and connects it. The error of a rejection
    /// includes the peer's private data.
    ///
    /// # Errors
    /// Those of the connection manager.
    pub fn connect(
        self,
        qp: PreparedQueuePair<Rc>,
        receives: Receives,
        access: RemoteAccess,
        (options, timeout): (&ConnOptions, Duration),
    ) -> Result<(Connection, QueuePair<Rc>), Error> {
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
            let failure = Error::from(error);
            match error.kind() {
                ErrorKind::Rejected(_) if !said.is_empty() => Error::new(format!("{failure}: {said}")),
                _ => failure,
            }
        })
    }
}

/// A queue pair to be connected to a rank.
#[derive(Debug)]
pub struct Unconnected<T: Transport = Rc> {
    /// The rank.
    pub peer: usize,
    /// The queue pair.
    pub qp: PreparedQueuePair<T>,
    /// Its receives.
    pub receives: Receives,
}

/// Parameters of the connections.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// How to connect.
    pub method: Method,
    /// The remote access that peers get.
    pub access: RemoteAccess,
    /// The largest MTU of the path.
    pub mtu: Option<Mtu>,
    /// The time after which a peer that had no receive for a message is to send it again.
    pub min_rnr_timer: RnrTimer,
}

impl How {
    /// The options of an adapter's path. The MTU of these parameters goes before the adapter's, and
    /// the adapter's RNR timer before that of these parameters.
    fn path_of(&self, adapter: &Adapter) -> PathOptions {
        let mtu = self.mtu.into_iter().fold(PathOptions::new(), PathOptions::mtu);
        mtu.or(adapter.path).or(PathOptions::new().min_rnr_timer(self.min_rnr_timer))
    }
}

/// A queue pair that is connected to a rank.
#[derive(Debug)]
pub struct Connected<T: Transport = Rc> {
    /// The rank.
    pub peer: usize,
    /// The queue pair.
    pub qp: QueuePair<T>,
    /// The connection manager's handle, which must live as long as the connection is needed.
    pub connection: Option<Connection>,
    /// Whether this side called.
    pub is_active: bool,
    /// This side and the peer's side, as text for a report.
    pub ends: (String, String),
}

/// Connects each given queue pair to its peer; collective, also for a rank that gives none. The
/// results are in the order of `queue_pairs`.
///
/// # Errors
/// If a rank fails; every rank is told.
pub fn connect(
    adapter: &Adapter,
    group: &mut Group,
    queue_pairs: Vec<Unconnected>,
    how: &How,
) -> Result<Vec<Connected>, Error> {
    match how.method {
        Method::Endpoints => by_endpoints(adapter, group, queue_pairs, how),
        Method::Manager(ip) => manager::connect(adapter, group, queue_pairs, how, ip),
    }
}

/// Makes every queue pair ready to receive and exchanges the addresses; collective. Returns each
/// queue pair with its peer and the peer's address.
fn exchange<T: Transport, Q>(
    group: &mut Group,
    queue_pairs: Vec<Unconnected<T>>,
    ready: impl Fn(PreparedQueuePair<T>, Receives) -> Result<(Q, Vec<u8>), Error>,
) -> Result<Vec<(usize, Q, Vec<u8>)>, Error> {
    let rank = group.rank();
    let ready = queue_pairs.into_iter().map(|one| Ok((one.peer, ready(one.qp, one.receives)?)));
    let ready = group.agree("the queue pairs", ready.collect::<Result<Vec<_>, Error>>())?;
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
///
/// # Errors
/// If a rank fails; every rank is told.
pub fn by_endpoints<T: rdma::transport::Connected>(
    adapter: &Adapter,
    group: &mut Group,
    queue_pairs: Vec<Unconnected<T>>,
    how: &How,
) -> Result<Vec<Connected<T>>, Error> {
    let rank = group.rank();
    let initialized = exchange(group, queue_pairs, |qp, receives| {
        let mut qp = qp.init(&adapter.init_options(how.access))?;
        receives.post(&mut qp)?;
        let endpoint = qp.endpoint().to_bytes().to_vec();
        Ok((qp, endpoint))
    })?;
    let connected = initialized.into_iter().map(|(peer, qp, address)| {
        one_by_endpoint(adapter, peer, qp, &address, rank > peer, how)
            .map_err(|failure| failure.context(format_args!("cannot connect to rank {peer}")))
    });
    group.agree("the connections", connected.collect())
}

fn one_by_endpoint<T: rdma::transport::Connected>(
    adapter: &Adapter,
    peer: usize,
    qp: InitializedQueuePair<T>,
    endpoint: &[u8],
    is_active: bool,
    how: &How,
) -> Result<Connected<T>, Error> {
    let (local, remote) = (qp.endpoint(), Endpoint::from_bytes(endpoint)?);
    let qp = qp.connect(&remote, &ConnectOptions::new().path(how.path_of(adapter)))?;
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
pub struct Datagrams {
    /// The queue pair.
    pub qp: QueuePair<Ud>,
    /// The address of the peer's queue pair.
    pub address: AddressHandle,
    /// The peer's queue pair.
    pub to: DatagramEndpoint,
    /// This side and the peer's side, as text for a report.
    pub ends: (String, String),
}

/// Makes datagram queue pairs of a domain ready, each to send to one of its peer's queue pairs;
/// collective.
///
/// # Errors
/// If a rank fails; every rank is told.
pub fn exchange_datagrams(
    adapter: &Adapter,
    pd: &ProtectionDomain,
    group: &mut Group,
    queue_pairs: Vec<Unconnected<Ud>>,
) -> Result<Vec<Datagrams>, Error> {
    let ready = exchange(group, queue_pairs, |qp, receives| {
        check_path(adapter)?;
        let mut qp = qp.init(&adapter.datagram_options(QKEY))?;
        receives.post(&mut qp)?;
        let qp = qp.ready()?;
        let own = qp.endpoint()?;
        Ok(((qp, own), own.to_bytes().to_vec()))
    })?;
    let text = |end: &DatagramEndpoint| text(end.lid, end.qpn, 0, end.gid);
    let connected = ready.into_iter().map(|(_, (qp, own), address)| {
        let to = DatagramEndpoint::from_bytes(&address)?;
        let mut path = qp.path_to(&to)?;
        adapter.path.apply_to(&mut path);
        Ok(Datagrams { address: pd.create_ah(&path)?, qp, ends: (text(&own), text(&to)), to })
    });
    group.agree("the connections", connected.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PathOptions {
        let timeout = rdma::AckTimeout::from_code(17).unwrap();
        PathOptions::new().traffic_class(106).service_level(5).ack_timeout(timeout).retry_count(3)
    }

    /// `soft0` with the last entry of its GID table.
    fn adapter() -> Adapter {
        let adapter = crate::testing::soft0();
        let gid = adapter.context.gid_table(adapter.port).unwrap().pop();
        Adapter { gid, path: path(), ..adapter }
    }

    #[test]
    fn the_settings_become_attributes_of_the_queue_pairs() {
        let adapter = adapter();
        let pd = adapter.context.alloc_pd().unwrap();
        let cq = adapter.context.create_cq(64).unwrap();
        let access = RemoteAccess::empty();
        let ready = || QueuePair::builder(&pd).cq(&cq).build().unwrap().init(&adapter.init_options(access)).unwrap();
        let how = How { method: Method::Endpoints, access, mtu: None, min_rnr_timer: RnrTimer::DEFAULT };
        let (a, b) = (ready(), ready());
        let (to_a, to_b) = (a.endpoint().to_bytes(), b.endpoint().to_bytes());
        for (qp, to) in [(a, to_b), (b, to_a)] {
            let connected = one_by_endpoint(&adapter, 1, qp, &to, true, &how).unwrap();
            let info = connected.qp.query().unwrap();
            let attr = info.as_raw();
            assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (17, 3, 7));
            assert_eq!((attr.ah_attr.sl, attr.ah_attr.grh.traffic_class), (5, 106));
            assert_eq!(Some(u32::from(attr.ah_attr.grh.sgid_index)), adapter.gid.map(|entry| entry.index));
        }
    }

    #[test]
    fn the_settings_become_the_path_of_datagrams() {
        let adapter = adapter();
        let pd = adapter.context.alloc_pd().unwrap();
        let cq = adapter.context.create_cq(64).unwrap();
        let qp = QueuePair::datagram(&pd).cq(&cq).build().unwrap().init(&adapter.datagram_options(QKEY)).unwrap();
        let qp = qp.ready().unwrap();
        let mut path = qp.path_to(&qp.endpoint().unwrap()).unwrap();
        adapter.path.apply_to(&mut path);
        let path = pd.create_ah(&path).unwrap().path();
        assert_eq!((path.service_level, path.route.map(|route| route.traffic_class)), (5, Some(106)));
    }
}
