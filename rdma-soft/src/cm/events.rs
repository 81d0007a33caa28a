//! Taking events: what librdmacm does on the way from the kernel to the application, which is to show what is new in the id, to
//! move queue pairs that it has made, and to bring requests' ids into being.

use std::mem;
use std::sync::Arc;

use rdma_sys::{
    ibv_gid, rdma_cm_event, rdma_cm_event__bindgen_ty_1, rdma_cm_event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_ud_param,
};

use super::channel::{self, Body, Channel, Conn, Datagram, Pending, Taken};
use super::id::{self, look, put};
use super::qp;
use super::service::Service;
use crate::engine::Errno;
use crate::log::remark;
use crate::verbs::object::Object;

type Event = rdma_cm_event_type;

/// `rdma_get_cm_event`: waits unless the descriptor does not block.
///
/// # Safety
///
/// C's promise about the channel.
pub(super) unsafe fn take(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    Service::get()?;
    // SAFETY: the caller's promise.
    let events = unsafe { channel::get(channel) }?;
    loop {
        let pending = events.queue.wait(|pending| {
            // From here to its acknowledgement the id cannot be destroyed.
            pending.report();
            pending
        })?;
        let subject = Arc::clone(&pending.subject);
        // SAFETY: the event's id is alive: the event is reported and not acknowledged.
        match unsafe { process(events, channel, pending) } {
            Some(event) => return Ok(event),
            None => subject.ledger.acknowledge(1, |_| ()),
        }
    }
}

/// What the parameters of an event are.
enum Parameters {
    None,
    Conn(Conn),
    Datagram(Datagram),
    Arg(u64),
}

/// Makes the event that C gets; `None` if it is none of C's business.
///
/// # Safety
///
/// The pending event's id is alive and stays so until the event is acknowledged; the channel is C's.
unsafe fn process(
    events: &Arc<Channel>,
    channel: *mut rdma_event_channel,
    pending: Pending,
) -> Option<*mut rdma_cm_event> {
    let Pending { subject, mut code, mut status, body } = pending;
    let id = subject.object();
    // SAFETY: the caller's promise; an id has its object before anything can be asked of it.
    let state = unsafe { id::get(id) }.ok()?;
    let (mut event_id, mut listen_id) = (id, std::ptr::null_mut());
    let mut membership = None;
    let parameters = match body {
        Body::None => match code {
            Event::RDMA_CM_EVENT_ADDR_RESOLVED => {
                // SAFETY: the caller's promise.
                if let Err(errno) = unsafe { id::show_addresses(id) } {
                    (code, status) = (Event::RDMA_CM_EVENT_ADDR_ERROR, -errno.0);
                }
                Parameters::None
            }
            Event::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                // SAFETY: the caller's promise.
                if let Err(errno) = unsafe { id::show_path(id) } {
                    (code, status) = (Event::RDMA_CM_EVENT_ROUTE_ERROR, -errno.0);
                }
                Parameters::None
            }
            _ => Parameters::None,
        },
        Body::Request { id: new, conn } => {
            // SAFETY: the caller's promise: the listener is alive.
            event_id = unsafe { bring(events, channel, id, &new, Some(&conn)) }?;
            listen_id = id;
            Parameters::Conn(conn)
        }
        Body::DatagramRequest { id: new, private } => {
            // SAFETY: as above.
            event_id = unsafe { bring(events, channel, id, &new, None) }?;
            listen_id = id;
            let ah_attr = rdma_sys::ibv_ah_attr::default();
            Parameters::Datagram(Datagram { ah_attr, qp_num: 0, qkey: 0, private })
        }
        Body::Conn(conn) => {
            match code {
                Event::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                    if look!(id, qp).is_null() {
                        state.lock().remote_ece = conn.terms.ece;
                    } else {
                        // SAFETY: the caller's promise.
                        match unsafe { qp::confirm_with(id, conn.terms.ece) } {
                            Ok(()) => code = Event::RDMA_CM_EVENT_ESTABLISHED,
                            Err(errno) => {
                                remark!(DEBUG, ?errno, "soft0: a connection's queue pair cannot be made ready");
                                state.lock().connect_error = true;
                                (code, status) = (Event::RDMA_CM_EVENT_CONNECT_ERROR, -1);
                            }
                        }
                    }
                }
                Event::RDMA_CM_EVENT_REJECTED | Event::RDMA_CM_EVENT_DISCONNECTED if state.lock().connect_error => {
                    return None;
                }
                // SAFETY: the caller's promise.
                Event::RDMA_CM_EVENT_REJECTED => drop(unsafe { qp::to_error(id) }),
                _ => {}
            }
            Parameters::Conn(conn)
        }
        Body::Datagram(datagram) => Parameters::Datagram(datagram),
        Body::Multicast(joined, datagram) => {
            let qp = look!(id, qp);
            if !qp.is_null() && !joined.send_only {
                let mgid = ibv_gid { raw: joined.mgid };
                // SAFETY: the id's own queue pair; the group is read during the call only.
                let errno = unsafe { (crate::ibverbs().ibv_attach_mcast)(qp, &raw const mgid, datagram.ah_attr.dlid) };
                if errno != 0 {
                    (code, status) = (Event::RDMA_CM_EVENT_MULTICAST_ERROR, -1);
                }
            }
            membership = Some(joined);
            Parameters::Datagram(*datagram)
        }
        Body::Arg(arg) => {
            if code == Event::RDMA_CM_EVENT_INTERNAL {
                code = rdma_cm_event_type(u32::try_from(arg).unwrap_or(0));
                Parameters::None
            } else {
                Parameters::Arg(arg)
            }
        }
    };
    let (mut param, private) = parts(parameters);
    let context = membership.as_ref().map(|membership| membership.context());
    let taken = Taken { subject, membership, private };
    let data: *const std::ffi::c_void =
        if taken.private.is_empty() { std::ptr::null() } else { taken.private.as_ptr().cast() };
    let len = u8::try_from(taken.private.len()).unwrap_or(u8::MAX);
    match &mut param {
        Union::Conn(conn) => (conn.private_data, conn.private_data_len) = (data, len),
        Union::Ud(ud) => {
            (ud.private_data, ud.private_data_len) = (context.map_or(data, |context| context.cast_const()), len);
        }
        Union::Arg(_) | Union::None => {}
    }
    let event = rdma_cm_event { id: event_id, listen_id, event: code, status, param: param.into() };
    Some(Object::create(event, taken))
}

/// The union in an event, with its kind.
enum Union {
    None,
    Conn(rdma_conn_param),
    Ud(rdma_ud_param),
    Arg(u64),
}

impl From<Union> for rdma_cm_event__bindgen_ty_1 {
    fn from(kind: Union) -> Self {
        // Zeroes where the kind has nothing.
        let mut union = Self::default();
        match kind {
            Union::None => {}
            Union::Conn(conn) => union.conn = conn,
            Union::Ud(ud) => union.ud = ud,
            Union::Arg(arg) => union.arg = arg,
        }
        union
    }
}

fn parts(parameters: Parameters) -> (Union, Box<[u8]>) {
    match parameters {
        Parameters::None => (Union::None, Box::default()),
        Parameters::Conn(mut conn) => {
            let private = mem::take(&mut conn.terms.private);
            (Union::Conn(conn.public()), private.into_boxed_slice())
        }
        Parameters::Datagram(Datagram { ah_attr, qp_num, qkey, private }) => {
            let ud = rdma_ud_param { ah_attr, qp_num, qkey, ..rdma_ud_param::default() };
            (Union::Ud(ud), private)
        }
        Parameters::Arg(arg) => (Union::Arg(arg), Box::default()),
    }
}

/// Brings the id of a request into being. An id that cannot be made is destroyed, which the peer learns.
///
/// # Safety
///
/// The listener is alive, the channel is C's.
unsafe fn bring(
    events: &Arc<Channel>,
    channel: *mut rdma_event_channel,
    listener: *mut rdma_cm_id,
    new: &Arc<channel::Subject>,
    conn: Option<&Conn>,
) -> Option<*mut rdma_cm_id> {
    // SAFETY: the caller's promise.
    let listening = unsafe { id::get(listener) }.ok()?;
    let sync = listening.lock().sync;
    let service = Service::get().ok()?;
    service.with(|state| state.request_taken(listening.subject.key, new.key, events));
    // SAFETY: the caller's promise.
    let id = unsafe { id::create_requested(listener, channel, new, false) };
    // SAFETY: just made.
    if let Err(errno) = unsafe { fill(id, sync, conn) } {
        remark!(WARN, ?errno, "soft0: the id of a request cannot be made");
        // SAFETY: just made, and nobody knows of it.
        let _gone = unsafe { id::destroy(id) };
        return None;
    }
    Some(id)
}

/// # Safety
///
/// A live id that nobody else knows of.
unsafe fn fill(id: *mut rdma_cm_id, sync: bool, conn: Option<&Conn>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { id::get(id) }?;
    if let Some(conn) = conn {
        let mut inner = state.lock();
        inner.initiator_depth = conn.terms.initiator_depth;
        inner.responder_resources = conn.terms.responder_resources;
        inner.remote_ece = conn.terms.ece;
    }
    if sync {
        // SAFETY: the caller's promise.
        unsafe { id::migrate(id, std::ptr::null_mut()) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { id::show_addresses(id) }?;
    // SAFETY: the caller's promise.
    unsafe { id::show_path(id) }
}

/// Waits, for a synchronous id, until the event of its last call has come, which becomes `id->event`.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    if !unsafe { id::get(id) }?.lock().sync {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { acknowledge_own(id) };
    let channel = look!(id, channel);
    // SAFETY: the id's own channel.
    let event = unsafe { take(channel) }?;
    put!(id, event, event);
    match look!(event, status) {
        0 => Ok(()),
        _ if look!(event, event) == Event::RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.checked_abs().unwrap_or(libc::EIO))),
    }
}

/// Acknowledges the event of a synchronous id.
///
/// # Safety
///
/// A live id.
pub(super) unsafe fn acknowledge_own(id: *mut rdma_cm_id) {
    let event = look!(id, event);
    if !event.is_null() {
        put!(id, event, std::ptr::null_mut());
        // SAFETY: C's promise: the event of a synchronous id is its own.
        let _stale = unsafe { channel::acknowledge(event) };
    }
}
