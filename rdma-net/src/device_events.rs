//! Asynchronous events of the device: what concerns a node's queues ends their connections.
//!
//! A queue that breaks may report nothing else: no completion comes from a completion queue that
//! has overrun, and a broken queue pair only flushes its requests.

use rdma::{AsyncEvent, AsyncEventKind, EventSource, Result};

use super::failure::Failure;
use super::tables::Tables;

/// Events of one turn: a flood of them must not stop connections.
const BUDGET: usize = 64;

/// Takes the events that are pending, and fails what they concern.
pub(super) fn handle(tables: &Tables) -> Result<()> {
    for _ in 0..BUDGET {
        let Some(event) = tables.shared.device_events.try_next_event()? else { break };
        handle_event(tables, event);
    }
    Ok(())
}

fn handle_event(tables: &Tables, event: AsyncEvent) {
    use AsyncEventKind as E;
    let transport = tables.shared.domain.pd.context().device().transport();
    let failure = || Failure::event(event.kind, transport);
    match (event.kind, event.source) {
        (E::DEVICE_FATAL, _) => tables.stop(failure()),
        // All connections have one queue, and nothing more comes from it.
        (E::CQ_ERR, EventSource::CompletionQueue(id)) if id == tables.shared.cq.id() => tables.stop(failure()),
        (E::QP_FATAL | E::QP_REQ_ERR | E::QP_ACCESS_ERR, EventSource::QueuePair(qpn)) => {
            if let Some(core) = tables.core_of_queue_pair(qpn) {
                core.fail(failure());
            }
        }
        _ => {}
    }
    tracing::debug!(
        name: "device_event", target: "rdma_net",
        kind = %event.kind, source = ?event.source, "an event of the device"
    );
}
