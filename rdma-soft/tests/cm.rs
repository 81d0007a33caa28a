//! Connections within one process: what the calls do, and what events tell of it.

mod cm_support;

use std::time::Duration;

use cm_support::*;
use rdma_sys::*;

const TCP: rdma_port_space = rdma_port_space::RDMA_PS_TCP;

#[test]
fn a_connection_from_its_request_to_its_end() {
    let (listener, passive_channel, to) = listener(TCP, 8);
    let (active, active_channel) = resolved(TCP, to);
    assert_eq!(active.peer(), Some(to));
    assert_eq!(active.connect(b"hello", 17), 0);
    let request = passive_channel.next();
    assert_eq!(request.listen_id, listener.0);
    assert_eq!(&request.private[..6], b"hello\0");
    assert_eq!(request.private.len(), 56);
    // What the one can take is what the other may ask for.
    assert_eq!((request.conn.responder_resources, request.conn.initiator_depth), (2, 4));
    assert_eq!((request.conn.retry_count, request.conn.rnr_retry_count, request.conn.qp_num), (5, 6, 17));
    let passive = request.request();
    assert_eq!((passive.local(), passive.peer()), (Some(to), active.local()));
    assert_eq!(passive.accept(b"welcome", 18), 0);
    let response = active_channel.expect(Event::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(&response.private[..8], b"welcome\0");
    assert_eq!((response.private.len(), response.conn.qp_num), (196, 18));
    assert_eq!((response.conn.responder_resources, response.conn.initiator_depth), (2, 4));
    passive_channel.expect_silence(Duration::from_millis(20));
    assert_eq!(active.establish(), 0);
    assert_eq!(active.establish(), libc::EINVAL);
    assert_eq!(passive_channel.expect(Event::RDMA_CM_EVENT_ESTABLISHED).id, passive.0);
    // The one that asks hears of the end when the other has agreed.
    assert_eq!(active.disconnect(), 0);
    assert_eq!(passive_channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED).id, passive.0);
    active_channel.expect_silence(Duration::from_millis(20));
    assert_eq!(passive.disconnect(), 0);
    active_channel.expect(Event::RDMA_CM_EVENT_DISCONNECTED);
    // Further ones change nothing.
    assert_eq!((active.disconnect(), passive.disconnect()), (0, 0));
    active_channel.expect(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT);
    passive_channel.expect(Event::RDMA_CM_EVENT_TIMEWAIT_EXIT);
}
