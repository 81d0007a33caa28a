//! The connecting side.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma::cm::{Accepted, EventChannel, EventKind, IdKey};
use rdma::transport::Rc;
use rdma::{Error, Failed, InitializedQueuePair, PreparedQueuePair, QueuePair, RemoteAccess, Verb};

use super::attempt::Attempt;
use super::connection::{Connection, Core, Parts, Pool};
use super::exchange::{Events, bring_up, conn_options, init_options};
use super::failure::Failure;
use super::link::{Link, LinkEnd, Remains, failed};
use super::load::LoadShare;
use super::protocol::{Hello, Protocol};
use super::receives::Stake;
use super::shared::Shared;
use super::tables::Tables;
use super::tcp::{Kind, Sockets, offer, split_offer};

/// Connects to a listener.
pub(super) async fn connect(tables: &Tables, to: SocketAddr) -> Result<Connection, Failure> {
    tables.check(Verb::Connect)?;
    tracing::debug!(name: "connect_started", target: "rdma_net", %to, "a connection is asked for");
    let load = tables.shared.load.share();
    match &tables.events {
        Events::Manager(events) => connect_by_manager(tables, events, load, to).await,
        Events::Tcp(sockets) => connect_by_tcp(tables, sockets, load, to).await,
    }
}

async fn connect_by_manager(
    tables: &Tables,
    events: &EventChannel,
    load: LoadShare,
    to: SocketAddr,
) -> Result<Connection, Failure> {
    let shared = &tables.shared;
    let timeout = shared.options.timeout;
    let id = events.create_id::<Rc>()?;
    id.set_path(&shared.options.path_options())?;
    let attempt = Attempt::new(tables, id.key())?;
    id.resolve_addr(None, to, timeout)?;
    attempt.wait(timeout * 2, |event| matches!(event, EventKind::AddrResolved).then_some(())).await?;
    id.resolve_route(timeout)?;
    attempt.wait(timeout * 2, |event| matches!(event, EventKind::RouteResolved).then_some(())).await?;

    let key = tables.new_key();
    let mut pool = Pool::new(shared.connection_domain()?, &shared.options, false)?;
    let qp = prepare(shared, &mut pool, key, None, |qp, access| id.init(qp, access))?;
    let options = conn_options(shared, false);
    id.connect(&qp, &options)?;
    let accepted = attempt.wait(timeout, accepted).await?;
    let port = qp.port();
    let answer =
        Answer { key, id: id.key(), port, addresses: (id.local_addr(), to), load, pool, hello: &accepted.private_data };
    answer.establish(tables, attempt, || match id.establish(qp, &options) {
        Ok(qp) => Ok(Link { end: LinkEnd::Manager(id), qp }),
        Err(Failed { error, object, .. }) => Err(failed(error, (id, object))),
    })
}

async fn connect_by_tcp(
    tables: &Tables,
    sockets: &Arc<Sockets>,
    load: LoadShare,
    to: SocketAddr,
) -> Result<Connection, Failure> {
    let shared = &tables.shared;
    let (id, key) = (IdKey::fresh(), tables.new_key());
    let attempt = Attempt::new(tables, id)?;
    let mut pool = Pool::new(shared.connection_domain()?, &shared.options, false)?;
    let qp = prepare(shared, &mut pool, key, None, |qp, access| qp.init(&init_options(shared, access)))?;
    let request = offer(&qp.endpoint(), &shared.hello(false).to_bytes());
    let end = sockets.connect(id, to, &request)?;
    let accepted = attempt.wait(shared.options.timeout, accepted).await?;
    let port = qp.port();
    let (peer, hello) = split_offer(&accepted.private_data).map_err(|refuse| Failure::refused(&refuse))?;
    let answer = Answer { key, id, port, addresses: (end.local_addr, to), load, pool, hello };
    answer.establish(tables, attempt, || bring_up(shared, end, qp, &peer, Kind::Ready, &[]))
}

/// The answer of the peer that an event brings.
fn accepted(event: EventKind) -> Option<Accepted> {
    match event {
        EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) => Some(accepted),
        _ => None,
    }
}

/// A peer's answer, and this side's parts of the connection.
struct Answer<'a> {
    key: u32,
    id: IdKey,
    /// The port of the queue pair.
    port: u8,
    /// The local address and the peer's.
    addresses: (Option<SocketAddr>, SocketAddr),
    load: LoadShare,
    pool: Pool,
    hello: &'a [u8],
}

impl Answer<'_> {
    /// Brings the connection up with the link that `link` makes.
    fn establish(
        self,
        tables: &Tables,
        attempt: Attempt<'_>,
        link: impl FnOnce() -> Result<Link, Failed<Remains>>,
    ) -> Result<Connection, Failure> {
        let shared = &tables.shared;
        let Self { key, id, port, addresses: (local_addr, peer_addr), load, pool, hello } = self;
        let peer = Hello::from_bytes(hello).map_err(|refuse| Failure::refused(&refuse))?;
        let agreed = shared.hello(false).agree(&peer);
        let protocol = Protocol::new(agreed, shared.options.slots(false), Instant::now());
        let peer_addr = Some(peer_addr);
        let parts = Parts { key, id, port, local_addr, peer_addr, protocol, pool, ticket: None, load, sharing: None };
        let core = Core::new(shared, parts);
        tables.add(&core)?;
        core.connect(link)?;
        let connection = Connection::new(&core);
        core.check(attempt.hand_over(&core))?;
        Ok(connection)
    }
}

/// Creates a queue pair, and posts its first receives unless it shares receives.
pub(super) fn prepare(
    shared: &Shared,
    pool: &mut Pool,
    key: u32,
    stake: Option<&Stake>,
    init: impl FnOnce(
        PreparedQueuePair<Rc>,
        RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>>,
) -> Result<InitializedQueuePair<Rc>, Error> {
    let options = &shared.options;
    let qp = QueuePair::builder(pool.pd()).cq(&shared.cq).max_send_wr(options.send_slots(stake.is_some()));
    let qp = match stake {
        Some(stake) => stake.pool().with_queue(|queue| qp.shared_receives(queue)),
        None => qp.max_recv_wr(options.receives()),
    };
    let qp = qp.build()?;
    let access = qp.all_access();
    let mut qp = init(qp, access).map_err(|failed| failed.error)?;
    for buffer in pool.take_receives() {
        qp.post_recv(buffer, key.into()).map_err(|refused| refused.error())?;
    }
    Ok(qp)
}
