//! Taking events: what librdmacm does on the way from the kernel to the application, which is to
//! show what is new in the id, to move queue pairs that it has made, and to make the ids of
//! requests.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{
    rdma_cm_event, rdma_cm_event__bindgen_ty_1, rdma_cm_event_type as Code, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};

use super::channel::{Body, Channel, Conn, Pending, Reported, Taken, Target};
use super::id::{self, Id};
use super::service::Service;
use crate::engine::Errno;
use crate::log::log;
use crate::verbs::call::{Argument, Handle, Own};
use crate::verbs::object::{Object, get_field, set_field};

/// `rdma_get_cm_event`: waits unless the descriptor does not block.
pub(super) fn take(channel: &Handle<rdma_event_channel>) -> Result<*mut rdma_cm_event, Errno> {
    let events = channel.get()?;
    loop {
        // From here to its acknowledgement the id cannot be destroyed.
        let reported = events.queue.wait(Pending::report)?;
        let target = Arc::clone(&reported.0.target);
        match process(events, channel, reported) {
            Some(event) => return Ok(event),
            None => target.ledger.acknowledge(1, |_| ()),
        }
    }
}

/// The parameters of an event, without the private data.
enum Parameters {
    None,
    Conn(rdma_conn_param),
    Datagram(rdma_ud_param),
    Arg(u64),
}

impl Parameters {
    fn public(self, data: *const c_void, len: u8) -> rdma_cm_event__bindgen_ty_1 {
        // Zeroes where the kind has nothing.
        let mut public = rdma_cm_event__bindgen_ty_1::default();
        match self {
            Self::None => {}
            Self::Conn(conn) => public.conn = rdma_conn_param { private_data: data, private_data_len: len, ..conn },
            Self::Datagram(ud) => public.ud = rdma_ud_param { private_data: data, private_data_len: len, ..ud },
            Self::Arg(arg) => public.arg = arg,
        }
        public
    }
}

/// Makes the event that C gets; none if it is none of C's business.
fn process(
    events: &Arc<Channel>,
    channel: &Handle<rdma_event_channel>,
    reported: Reported,
) -> Option<*mut rdma_cm_event> {
    let Pending { target, mut code, mut status, new, body } = reported.0;
    let raw = target.object();
    // SAFETY: `Object::get` wants null or a live id: destroying one waits for the acknowledgement
    // of its reported events.
    let id: Id<'_> = unsafe { Object::get(raw) }.ok()?;
    let (mut event_id, mut listen_id, mut membership, mut private) = (raw, ptr::null_mut(), None, Vec::new());
    if let Some(new) = new {
        let conn = if let Body::Conn(conn) = &body { Some(conn) } else { None };
        (event_id, listen_id) = (create_requested(events, channel, id, &new, conn)?, raw);
    }
    let parameters = match body {
        Body::None => {
            let (shown, failed) = match code {
                Code::RDMA_CM_EVENT_ADDR_RESOLVED => (id.show_addresses(), Code::RDMA_CM_EVENT_ADDR_ERROR),
                Code::RDMA_CM_EVENT_ROUTE_RESOLVED => (id.show_path(), Code::RDMA_CM_EVENT_ROUTE_ERROR),
                _ => (Ok(()), code),
            };
            if let Err(errno) = shown {
                (code, status) = (failed, -errno.0);
            }
            Parameters::None
        }
        Body::Conn(conn) => {
            match code {
                Code::RDMA_CM_EVENT_CONNECT_RESPONSE if id.qp().is_none() => id.lock().remote_ece = conn.terms.ece,
                Code::RDMA_CM_EVENT_CONNECT_RESPONSE => match id.confirm_with(conn.terms.ece) {
                    Ok(()) => code = Code::RDMA_CM_EVENT_ESTABLISHED,
                    Err(errno) => {
                        log!(DEBUG, ?errno, "soft0: a connection's queue pair cannot be made ready");
                        id.lock().connect_error = true;
                        (code, status) = (Code::RDMA_CM_EVENT_CONNECT_ERROR, -1);
                    }
                },
                Code::RDMA_CM_EVENT_REJECTED | Code::RDMA_CM_EVENT_DISCONNECTED if id.lock().connect_error => {
                    return None;
                }
                Code::RDMA_CM_EVENT_REJECTED => drop(id.fail_qp()),
                _ => {}
            }
            let public = conn.public();
            private = conn.terms.private;
            Parameters::Conn(public)
        }
        Body::Datagram(datagram) => {
            private = datagram.private;
            let (ah_attr, qp_num, qkey) = (datagram.ah_attr, datagram.qp_num, datagram.qkey);
            Parameters::Datagram(rdma_ud_param { ah_attr, qp_num, qkey, ..rdma_ud_param::default() })
        }
        Body::Multicast(joined, datagram) => {
            let (ah_attr, qp_num, qkey) = (datagram.ah_attr, datagram.qp_num, datagram.qkey);
            let attached = match id.qp() {
                Some(qp) if !joined.send_only => qp.set_attached(true, joined.mgid, ah_attr.dlid),
                _ => Ok(()),
            };
            if attached.is_err() {
                (code, status) = (Code::RDMA_CM_EVENT_MULTICAST_ERROR, -1);
            }
            membership = Some(joined);
            Parameters::Datagram(rdma_ud_param { ah_attr, qp_num, qkey, ..rdma_ud_param::default() })
        }
        Body::Arg(arg) if code == Code::RDMA_CM_EVENT_INTERNAL => {
            code = Code(u32::try_from(arg).unwrap_or(0));
            Parameters::None
        }
        Body::Arg(arg) => Parameters::Arg(arg),
    };
    let taken = Taken { target, membership, private };
    let len = u8::try_from(taken.private.len()).unwrap_or(u8::MAX);
    // Where private data would be, the event of a group has the application's pointer.
    let data = match &taken.membership {
        Some(membership) => membership.context().cast_const(),
        None if len == 0 => ptr::null(),
        None => taken.private.as_ptr().cast(),
    };
    let param = parameters.public(data, len);
    Some(Object::create(rdma_cm_event { id: event_id, listen_id, event: code, status, param }, taken))
}

/// Makes the id of a request. An id that cannot be made is destroyed, which the peer learns.
fn create_requested(
    events: &Arc<Channel>,
    channel: &Handle<rdma_event_channel>,
    listener: Id<'_>,
    new: &Arc<Target>,
    conn: Option<&Conn>,
) -> Option<*mut rdma_cm_id> {
    let sync = listener.lock().sync;
    Service::get().ok()?.with(|state| state.request_taken(listener.key(), new.key, events));
    let raw = id::create_requested(listener, channel.raw(), new);
    // SAFETY: `from_c` wants a live id that nobody else uses: just made, and nobody knows of it.
    let made = unsafe { Own::from_c(raw) };
    if let Err(errno) = made.get().and_then(|id| fill_in(id, sync, conn)) {
        log!(WARN, ?errno, "soft0: the id of a request cannot be made");
        let _gone = id::destroy(made);
        return None;
    }
    Some(raw)
}

fn fill_in(id: Id<'_>, sync: bool, conn: Option<&Conn>) -> Result<(), Errno> {
    if let Some(conn) = conn {
        let mut inner = id.lock();
        inner.initiator_depth = conn.terms.initiator_depth;
        inner.responder_resources = conn.terms.responder_resources;
        inner.remote_ece = conn.terms.ece;
    }
    if sync {
        id::migrate(id, &Handle::NULL)?;
    }
    id.show_addresses()?;
    id.show_path()
}

/// Takes the next event of a synchronous id, and returns its outcome.
pub(super) fn take_own(id: Id<'_>) -> Result<(*mut rdma_cm_event, Result<Code, Errno>), Errno> {
    id.acknowledge_own();
    let channel = get_field!(id, channel);
    // SAFETY: `from_c` wants a live channel: the id's own, which lives as long as the id.
    let channel = unsafe { Handle::from_c(channel) };
    let raw = take(&channel)?;
    // SAFETY: `Object::get` wants a live event: just taken.
    let event: &Object<rdma_cm_event> = unsafe { Object::get(raw) }?;
    let outcome = match (get_field!(event, event), get_field!(event, status)) {
        (code, 0) => Ok(code),
        (Code::RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.checked_abs().unwrap_or(libc::EIO))),
    };
    Ok((raw, outcome))
}

/// Waits, for a synchronous id, until the event of its last call has come, which becomes
/// `id->event`.
pub(super) fn complete(id: Id<'_>) -> Result<(), Errno> {
    if !id.lock().sync {
        return Ok(());
    }
    let (event, outcome) = take_own(id)?;
    set_field!(id, event, event);
    outcome.map(drop)
}
