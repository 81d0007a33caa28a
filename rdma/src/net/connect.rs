//! The connecting end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::connection::{Connection, Core, Link, Parts, Pool};
use super::failure::Failure;
use super::mailbox::Attempt;
use super::node::{Route, Shared};
use super::protocol::{Hello, Protocol};
use super::receives::Stake;
use crate::cm::{ConnOptions, EventKind};
use crate::error::{Error, Failed};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, Rc};
use crate::types::RemoteAccess;

/// Connects to a listener.
pub(super) async fn connect(shared: &Arc<Shared>, to: SocketAddr) -> Result<Connection, Failure> {
    let timeout = shared.options.timeout;
    let id = shared.events.create_id::<Rc>()?;
    let attempt = Attempt::new(shared, id.key())?;
    id.resolve_addr(None, to, timeout)?;
    attempt.wait(timeout * 2, |event| matches!(event, EventKind::AddrResolved).then_some(())).await?;
    id.resolve_route(timeout)?;
    attempt.wait(timeout * 2, |event| matches!(event, EventKind::RouteResolved).then_some(())).await?;

    let key = shared.new_key();
    let mut pool = Pool::new(&shared.pd, &shared.options, false)?;
    let qp = prepare(shared, &mut pool, key, None, |qp, access| id.init(qp, access))?;
    let options = conn_options(shared, false);
    id.connect(&qp, &options)?;
    let answer = attempt.wait(timeout, |event| match event {
        EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) => Some(accepted),
        _ => None,
    });
    let accepted = answer.await?;
    let peer = Hello::from_bytes(&accepted.private_data).map_err(|refuse| Failure::refused(&refuse))?;
    let agreed = shared.hello(false).agree(&peer);
    let core = Core::new(
        shared,
        Parts {
            key,
            id: id.key(),
            local_addr: id.local_addr(),
            peer_addr: Some(to),
            protocol: Protocol::new(agreed, shared.options.slots(false), Instant::now()),
            pool,
            ticket: None,
            sharing: None,
        },
    );
    shared.add(&core)?;
    core.connect(|| {
        let qp = id.establish(qp, &options).map_err(|failed| failed.error)?;
        Ok(Link { id, qp })
    })?;
    let connection = Connection::new(&core);
    attempt.hand_over(Route::Connection(Arc::clone(&core))).inspect_err(|failure| core.fail(failure.clone()))?;
    Ok(connection)
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
    let qp = shared.pd.queue_pair().cq(&shared.cq).max_send_wr(options.send_slots(stake.is_some()));
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

/// The options of the connection manager at both ends.
pub(super) fn conn_options(shared: &Shared, shares: bool) -> ConnOptions {
    let hello = shared.hello(shares).to_bytes();
    ConnOptions::new().private_data(&hello).rnr_retry_count(shared.options.rnr_retry_count)
}
