//! Taking events. Like librdmacm, taking an event updates the public fields of the id, moves the
//! queue pair that librdmacm made for the id, and makes the id of a connection request.

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

/// `rdma_get_cm_event`: takes the next event; waits unless the channel's descriptor is
/// non-blocking.
pub(super) fn take(channel: &Handle<rdma_event_channel>) -> Result<*mut rdma_cm_event, Errno> {
    let events = channel.get()?;
    loop {
        // Counts the event: until C acknowledges it, destroying the id waits.
        let reported = events.queue.wait(Pending::report)?;
        if let Some(event) = show(events, channel, reported) {
            return Ok(event);
        }
    }
}

/// Takes the next event after the `reads`th read of the channel's descriptor. `None` if there is
/// none for C: the caller reads again.
pub(super) fn take_after(
    channel: &Handle<rdma_event_channel>,
    reads: u32,
) -> Result<Option<*mut rdma_cm_event>, Errno> {
    let events = channel.get()?;
    let reported = events.queue.take_after(reads, Pending::report)?;
    Ok(reported.and_then(|reported| show(events, channel, reported)))
}

/// Makes the event object for C, or acknowledges the event if C shall not see it.
fn show(events: &Arc<Channel>, channel: &Handle<rdma_event_channel>, reported: Reported) -> Option<*mut rdma_cm_event> {
    let target = Arc::clone(&reported.0.target);
    let event = process(events, channel, reported);
    if event.is_none() {
        target.ledger.acknowledge(1, |_| ());
    }
    event
}

/// The parameters of an event in C form, without the private data.
enum Parameters {
    None,
    Conn(rdma_conn_param),
    Datagram(rdma_ud_param),
    Arg(u64),
}

impl Parameters {
    fn public(self, data: *const c_void, len: u8) -> rdma_cm_event__bindgen_ty_1 {
        // The bytes that the event's kind does not use are zero.
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

/// Makes the event object for C. `None` if C shall not see the event.
fn process(
    events: &Arc<Channel>,
    channel: &Handle<rdma_event_channel>,
    reported: Reported,
) -> Option<*mut rdma_cm_event> {
    let Pending { target, mut code, mut status, new, body } = reported.0;
    let raw = target.object();
    // SAFETY: `Object::get` requires null or a live id: destroying the id waits for the
    // acknowledgement of its reported events, and this one is reported.
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
    // The `private_data` of a multicast event is the application's pointer.
    let data = match &taken.membership {
        Some(membership) => membership.context().cast_const(),
        None if len == 0 => ptr::null(),
        None => taken.private.as_ptr().cast(),
    };
    let param = parameters.public(data, len);
    Some(Object::create(rdma_cm_event { id: event_id, listen_id, event: code, status, param }, taken))
}

/// Makes the id of a connection request. On failure destroys the id, which rejects the request.
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
    // SAFETY: `from_c` requires a live id that nobody else uses: made above, and C does not hold it
    // yet.
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

/// An event of a synchronous id that was taken, and its outcome.
pub(super) type Taking = (*mut rdma_cm_event, Result<Code, Errno>);

/// Takes the next event of a synchronous id and returns the event and its outcome.
pub(super) fn take_own(id: Id<'_>) -> Result<Taking, Errno> {
    id.acknowledge_own();
    outcome(take(&own_channel(id))?)
}

/// As `take_own`, after reads of the channel's descriptor: nothing if there is no event.
pub(super) fn take_own_after(id: Id<'_>, reads: u32) -> Result<Option<Taking>, Errno> {
    take_after(&own_channel(id), reads)?.map(outcome).transpose()
}

/// The channel of a synchronous id.
fn own_channel(id: Id<'_>) -> Handle<rdma_event_channel> {
    let channel = get_field!(id, channel);
    // SAFETY: `from_c` requires a live channel: a synchronous id has its own, which lives as long
    // as the id.
    unsafe { Handle::from_c(channel) }
}

/// An event that was taken, and its outcome.
fn outcome(raw: *mut rdma_cm_event) -> Result<Taking, Errno> {
    // SAFETY: `Object::get` requires a live event: `take` returned it, and it is not acknowledged.
    let event: &Object<rdma_cm_event> = unsafe { Object::get(raw) }?;
    let outcome = match (get_field!(event, event), get_field!(event, status)) {
        (code, 0) => Ok(code),
        (Code::RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.checked_abs().unwrap_or(libc::EIO))),
    };
    Ok((raw, outcome))
}

/// For a synchronous id, waits for the event of the call in progress and stores it in `id->event`.
/// Returns at once for other ids.
pub(super) fn complete(id: Id<'_>) -> Result<(), Errno> {
    if !id.lock().sync {
        return Ok(());
    }
    let (event, outcome) = take_own(id)?;
    set_field!(id, event, event);
    outcome.map(drop)
}
