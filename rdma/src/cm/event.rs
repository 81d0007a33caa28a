//! Events of librdmacm, copied out and typed. Numbers cite the invariants of [`super`].

use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::{rdma_cm_event, rdma_cm_event_type as Code};

use super::channel::{ChannelState, EventChannel, EventChannelInner, IdKey, Known};
use super::id::{Id, RawId, adopt};
use super::message::{Accepted, ConnectionParameters, MulticastGroup, PrivateData, Rejection, UdPeer};
use super::reason;
use super::request::ConnectRequest;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::handle::Handle;
use crate::transport::{Rc, Ud};
use crate::types::{Gid, Lid, Path, RejectReason};
use crate::wait::Deadline;

/// An event of an id, already acknowledged.
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The id that the event is for; for a request, the listener that received it.
    pub id: IdKey,
    /// The kind of event, with its data.
    pub kind: EventKind,
}

/// The kinds of event of an id.
#[doc(alias = "rdma_cm_event_type")]
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The destination is known: resolve the route next.
    AddrResolved,
    /// No route leads to the destination from here, or there is no device.
    AddrError(Error),
    /// The route is known: connect next.
    RouteResolved,
    /// There is no route to the destination.
    RouteError(Error),
    /// A peer requests a connection.
    ConnectRequest(ConnectRequest<Rc>),
    /// A peer asks where to send datagrams.
    UdConnectRequest(ConnectRequest<Ud>),
    /// The peer has accepted: [`establish`](super::Id::establish) the connection. Not on iWARP.
    ConnectResponse(Accepted),
    /// Connecting failed.
    ConnectError(Error),
    /// The peer did not answer.
    Unreachable(Error),
    /// The peer, or its host, rejected the request.
    Rejected(Rejection),
    /// The connection is established.
    Established(Accepted),
    /// The peer says where to send datagrams.
    UdEstablished(UdPeer),
    /// The connection has ended.
    Disconnected,
    /// The device is being removed: drop every object of the device.
    DeviceRemoval,
    /// A group was joined.
    MulticastJoined(MulticastGroup),
    /// A group was not joined, or was lost.
    MulticastError {
        /// The group's address, as given to [`join_multicast`](super::Id::join_multicast).
        group: Option<SocketAddr>,
        /// The reason.
        error: Error,
    },
    /// The network interface has a new hardware address, so the connection may stall.
    AddrChange,
    /// The queue pair of an ended connection can be used again.
    TimewaitExit,
    /// An event that this version of the crate does not know.
    Unknown {
        /// The code of the event.
        event: u32,
        /// The status of the event.
        status: i32,
    },
}

/// Copies the private data of those events that carry private data; in other events librdmacm
/// stores something else in the same fields.
///
/// # Safety
///
/// `raw` is the copy of an event that was taken and not acknowledged yet, so the memory that it
/// points to is alive (4).
unsafe fn private_data(raw: &rdma_cm_event) -> PrivateData {
    match raw.event {
        Code::RDMA_CM_EVENT_CONNECT_REQUEST
        | Code::RDMA_CM_EVENT_CONNECT_RESPONSE
        | Code::RDMA_CM_EVENT_ESTABLISHED
        | Code::RDMA_CM_EVENT_REJECTED
        | Code::RDMA_CM_EVENT_UNREACHABLE => {}
        _ => return PrivateData::default(),
    }
    // SAFETY: a union read requires bytes that are a valid value: the field holds integers and
    // pointers, which may have any value. Datagram events begin with the same two fields (asserted
    // below).
    let conn = unsafe { raw.param.conn };
    if conn.private_data.is_null() || conn.private_data_len == 0 {
        return PrivateData::default();
    }
    // SAFETY: from_raw_parts requires as many readable bytes, which nobody writes to: librdmacm
    // points to as many bytes as it says, inside the event, which lives by this function's
    // contract.
    let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()) };
    bytes.into()
}

const _: () = {
    use rdma_sys::{rdma_conn_param as Conn, rdma_ud_param as Ud};
    assert!(std::mem::offset_of!(Conn, private_data) == std::mem::offset_of!(Ud, private_data));
    assert!(std::mem::offset_of!(Conn, private_data_len) == std::mem::offset_of!(Ud, private_data_len));
};

/// The connection parameters that an event carries.
fn parameters(raw: &rdma_cm_event) -> ConnectionParameters {
    // SAFETY: a union read requires bytes that are a valid value: integers and pointers may have
    // any.
    let conn = unsafe { raw.param.conn };
    ConnectionParameters {
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        flow_control: conn.flow_control != 0,
        retry_count: conn.retry_count,
        rnr_retry_count: conn.rnr_retry_count,
        srq: conn.srq != 0,
        qpn: conn.qp_num,
    }
}

/// Translates an event of a living id; requests, which make a new id, are handled in `sort`.
fn decode(raw: &rdma_cm_event, private_data: PrivateData, known: &Known) -> EventKind {
    let accepted = |private_data| Accepted { private_data, parameters: parameters(raw) };
    match raw.event {
        Code::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddrResolved,
        Code::RDMA_CM_EVENT_ADDR_ERROR => EventKind::AddrError(reason::from_status(Verb::ResolveAddr, raw.status)),
        Code::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
        Code::RDMA_CM_EVENT_ROUTE_ERROR => EventKind::RouteError(reason::from_status(Verb::ResolveRoute, raw.status)),
        Code::RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::ConnectResponse(accepted(private_data)),
        Code::RDMA_CM_EVENT_CONNECT_ERROR => EventKind::ConnectError(reason::from_status(Verb::Connect, raw.status)),
        // A positive SIDR status: the answer to a datagram request is a rejection.
        Code::RDMA_CM_EVENT_UNREACHABLE if known.datagram && raw.status > 0 => {
            EventKind::Rejected(Rejection { reason: RejectReason::from_sidr(raw.status), private_data })
        }
        Code::RDMA_CM_EVENT_UNREACHABLE => {
            let error = reason::from_status(Verb::Connect, raw.status);
            EventKind::Unreachable(match error.kind() {
                ErrorKind::Unknown => Error::new(Verb::Connect, ErrorKind::NoRoute),
                _ => error,
            })
        }
        Code::RDMA_CM_EVENT_REJECTED => {
            EventKind::Rejected(Rejection { reason: RejectReason::from_raw(raw.status), private_data })
        }
        Code::RDMA_CM_EVENT_ESTABLISHED if known.datagram => {
            // SAFETY: a union read requires bytes that are a valid value: integers and pointers may
            // have any.
            let ud = unsafe { raw.param.ud };
            let mut path = Path::from_raw(&ud.ah_attr);
            known.path.apply_to(&mut path);
            EventKind::UdEstablished(UdPeer { path, qpn: ud.qp_num, qkey: ud.qkey, private_data })
        }
        Code::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established(accepted(private_data)),
        Code::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        Code::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoval,
        Code::RDMA_CM_EVENT_MULTICAST_JOIN => {
            // SAFETY: a union read requires bytes that are a valid value: integers and pointers may
            // have any.
            let ud = unsafe { raw.param.ud };
            EventKind::MulticastJoined(MulticastGroup {
                address: group(raw, known),
                path: Path::from_raw(&ud.ah_attr),
                gid: Gid::from_raw(ud.ah_attr.grh.dgid),
                lid: Lid(ud.ah_attr.dlid),
                qpn: ud.qp_num,
                qkey: ud.qkey,
            })
        }
        Code::RDMA_CM_EVENT_MULTICAST_ERROR => EventKind::MulticastError {
            group: group(raw, known),
            error: reason::from_status(Verb::JoinMulticast, raw.status),
        },
        Code::RDMA_CM_EVENT_ADDR_CHANGE => EventKind::AddrChange,
        Code::RDMA_CM_EVENT_TIMEWAIT_EXIT => EventKind::TimewaitExit,
        Code(event) => EventKind::Unknown { event, status: raw.status },
    }
}

/// The address of the event's group: librdmacm returns the context given to the join in place of
/// private data.
fn group(raw: &rdma_cm_event, known: &Known) -> Option<SocketAddr> {
    // SAFETY: a union read requires bytes that are a valid value: integers and pointers may have
    // any.
    let number = unsafe { raw.param.ud }.private_data.addr() as u64;
    known.groups.iter().find(|(known, _)| *known == number).map(|&(_, address)| address)
}

/// The result of taking an event from the channel.
enum Taken {
    Nothing,
    Event(Event),
    /// An event of an id that is gone. A request that it may carry is dropped, and so rejected,
    /// with this value: after the lock is released.
    Stray(#[allow(dead_code, reason = "its drop is what it is for")] Option<Handle<RawId>>),
    /// A request whose id uses another channel (5).
    Elsewhere,
}

impl EventChannel {
    /// Takes an event if one is pending.
    ///
    /// With edge-triggered epoll, call this until it returns `None`.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm; `NoDevice` once the channel has lost a device that had joined groups.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use rdma::cm::EventKind;
    ///
    /// // In an event loop, whenever the channel's descriptor is readable:
    /// while let Some(event) = channel.try_next_event()? {
    ///     match event.kind {
    ///         EventKind::ConnectRequest(request) => request.reject(b"not today")?,
    ///         EventKind::Disconnected => println!("connection {} has ended", event.id),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        loop {
            match self.take()? {
                Taken::Nothing => return Ok(None),
                Taken::Event(event) => return Ok(Some(event)),
                Taken::Stray(_) => {}
                Taken::Elsewhere => {
                    tracing::warn!(
                        name: "request_unanswered", target: "rdma",
                        "a request came while its listener moved to another channel; it is left unanswered"
                    );
                }
            }
        }
    }

    /// Waits for the next event; returns `None` after the timeout. Without a timeout, waits
    /// forever.
    ///
    /// # Errors
    ///
    /// As for [`try_next_event`](Self::try_next_event).
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let channel = rdma::cm::EventChannel::of(&context)?;
    /// use std::time::Duration;
    ///
    /// let event = channel.next_event(Some(Duration::from_millis(1)))?;
    /// assert!(event.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "rdma_get_cm_event")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        self.next_event_until(Deadline::after(timeout))
    }

    pub(super) fn next_event_until(&self, deadline: Deadline) -> Result<Option<Event>> {
        self.inner.events.next(Verb::GetCmEvent, deadline, || self.try_next_event())
    }

    /// Takes one event, copies its contents, and acknowledges it (4).
    fn take(&self) -> Result<Taken> {
        let channel = &self.inner;
        channel.check(Verb::GetCmEvent)?;
        let mut state = channel.lock();
        if state.broken {
            return Err(Error::new(Verb::GetCmEvent, ErrorKind::NoDevice));
        }
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: rdma_get_cm_event requires a channel (1), whose lock is held (3), and space for a
        // pointer; the descriptor is non-blocking. The ids that the call writes to are alive:
        // destroying an id removes its events from the channel.
        let call = || unsafe { (channel.table.rdma_get_cm_event)(channel.raw.as_ptr(), &raw mut event) };
        if let Err(error) = reason::check(Verb::GetCmEvent, call) {
            return error.or_nothing().map(|event| event.unwrap_or(Taken::Nothing));
        }
        if event.is_null() {
            return Err(Error::new(Verb::GetCmEvent, ErrorKind::Unknown));
        }
        // SAFETY: a read requires a live, initialized value: the event just taken lives until it is
        // acknowledged (4), and all its fields are integers and pointers.
        let copy = unsafe { *event };
        // SAFETY: the private data that the event points to lives as long as the event (4).
        let data = unsafe { private_data(&copy) };
        // SAFETY: rdma_ack_cm_event requires a taken event that is acknowledged once: only here.
        unsafe { (channel.table.rdma_ack_cm_event)(event) };
        Ok(sort(channel, &mut state, &copy, data))
    }
}

/// Finds the id that an event is for, and translates the event.
fn sort(
    channel: &Arc<Handle<EventChannelInner>>,
    state: &mut ChannelState,
    raw: &rdma_cm_event,
    data: PrivateData,
) -> Taken {
    if raw.event != Code::RDMA_CM_EVENT_CONNECT_REQUEST {
        return match state.ids.get(&raw.id.addr()) {
            Some(known) => Taken::Event(Event { id: known.key, kind: decode(raw, data, known) }),
            None => Taken::Stray(None),
        };
    }
    let listener =
        state.ids.get(&raw.listen_id.addr()).map(|listener| (listener.key, listener.datagram, listener.path));
    // A second owner of an id that lives would destroy it twice (5).
    let Some(new) = NonNull::new(raw.id).filter(|new| !state.ids.contains_key(&new.as_ptr().addr())) else {
        return Taken::Stray(None);
    };
    // SAFETY: the read requires a live id: librdmacm has just made this one, and nobody else knows
    // it.
    let on = unsafe { (*new.as_ptr()).channel };
    if on != channel.raw.as_ptr() {
        return Taken::Elsewhere;
    }
    let (datagram, path) = listener.map_or_else(Default::default, |(_, datagram, path)| (datagram, path));
    let id = adopt(channel, state, new, (datagram, path));
    let Some((listener, ..)) = listener else {
        return Taken::Stray(Some(id));
    };
    let kind = if datagram {
        EventKind::UdConnectRequest(ConnectRequest::new(Id::new(id), listener, data, ConnectionParameters::default()))
    } else {
        EventKind::ConnectRequest(ConnectRequest::new(Id::new(id), listener, data, parameters(raw)))
    };
    Taken::Event(Event { id: listener, kind })
}
