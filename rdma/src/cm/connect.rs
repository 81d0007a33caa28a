//! Connecting: options, and the queue pair's transitions. Numbers cite the invariants of [`super`].

use std::ffi::c_int;

use rdma_sys::{ibv_ece, ibv_qp_attr, ibv_qp_state, rdma_conn_param};

use super::id::{Id, RawId};
use super::reason;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QpAttr, QpControl, QueuePair};
use crate::transport::Rc;
use crate::types::{
    Ece, MAX_RETRIES, Mtu, Path, PathOptions, QpAttrMask, QpState, RemoteAccess, RnrTimer, TransportType, path_setters,
};

/// Default number of reads and atomics outstanding at a time, limited by the device: enough to keep
/// a link busy.
const READ_DEPTH: u8 = 16;

/// Options of a connection, for both sides. Unset options have the values that most programs use.
///
/// # Examples
///
/// ```
/// use rdma::cm::ConnOptions;
/// let options = ConnOptions::new().private_data(b"version 1").retry_count(3);
/// # let _ = options;
/// ```
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone)]
#[must_use]
pub struct ConnOptions {
    private_data: Vec<u8>,
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    srq: bool,
    path: PathOptions,
}

impl Default for ConnOptions {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: None,
            initiator_depth: None,
            flow_control: true,
            srq: false,
            path: PathOptions::new(),
        }
    }
}

impl ConnOptions {
    /// Default options: no private data, as many reads and atomics as both sides support (up to
    /// 16), 7 retries, and unlimited retries while the peer has no receive posted.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Private data for the peer: on InfiniBand and RoCE up to 56 bytes to connect and 196 to
        /// accept, on iWARP 251.
        private_data(bytes: &[u8]) = bytes.to_vec();
        /// How many reads and atomics to serve at a time; limited by the device.
        responder_resources(count: u8) = Some(count);
        /// How many reads and atomics to have outstanding; limited by the device and by the number
        /// that the peer serves.
        initiator_depth(count: u8) = Some(count);
        /// Whether to tell the peer that we control the flow of messages end to end.
        flow_control(control: bool) = control;
        /// Whether to tell the peer that our receives come from a shared receive queue. A queue
        /// pair that [takes its receives from one](crate::QpBuilder::shared_receives) tells in any
        /// case.
        srq(srq: bool) = srq;
        /// All options of the path at once, in place of those that were set before. They hold for
        /// the queue pair of this side, before those of [`Id::set_path`], and before what the peer
        /// asks for. The peer is told the retries, and uses them where it has set none.
        ///
        /// On iWARP none of them has an effect, because the kernel brings the queue pair up, and
        /// some are errors (see [`PathOptions`]). [`Id::set_path`] sets the traffic class there.
        path(path: PathOptions) = path;
    }

    path_setters!(path);

    /// Converts to C's form, for a queue pair. `offered_by_peer` holds, when accepting, the peer's
    /// request: how many reads and atomics we are to serve, and how many the peer serves.
    pub(super) fn to_raw(
        &self,
        InitializedQueuePair { qp, .. }: &InitializedQueuePair<Rc>,
        path: &PathOptions,
        offered_by_peer: Option<(u8, u8)>,
    ) -> rdma_conn_param {
        let context = qp.context();
        let attr = context.device_attr();
        // librdmacm reads 255 as the device's limit.
        let device = |limit: u32| u8::try_from(limit).unwrap_or(u8::MAX).min(u8::MAX - 1);
        let choose = |own: Option<u8>, offered: Option<u8>, device: u8| {
            let most = offered.unwrap_or(u8::MAX).min(device);
            own.or(offered).unwrap_or(READ_DEPTH).min(most)
        };
        // Some iWARP peers send 0 for "not given".
        let offered = |count: u8| Some(count).filter(|&count| count > 0 || context.capabilities().manual_connect);
        let (serve, ask) = match offered_by_peer {
            Some((serve, ask)) => (offered(serve), offered(ask)),
            None => (None, None),
        };
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: choose(self.responder_resources, serve, device(attr.max_qp_rd_atom())),
            initiator_depth: choose(self.initiator_depth, ask, device(attr.max_qp_init_rd_atom())),
            flow_control: self.flow_control.into(),
            retry_count: path.retry_count.unwrap_or(MAX_RETRIES),
            rnr_retry_count: path.rnr_retry_count.unwrap_or(MAX_RETRIES),
            srq: (self.srq || qp.control.has_srq()).into(),
            qp_num: qp.qpn(),
        }
    }

    /// The options of the path of an id: these, and where they are not set those of the id.
    /// Refuses values out of range, and those that the device's transport cannot be told.
    pub(super) fn path_of(&self, operation: Verb, id: &RawId, context: &Context) -> Result<PathOptions> {
        let path = id.path(self.path, operation)?;
        Error::check_option(operation, path.check_for(context.device().transport()))?;
        Ok(path)
    }

    pub(super) fn check_len(&self, operation: Verb, context: &Context, limit: usize) -> Result<()> {
        check_len(operation, Some(context.device().transport()), &self.private_data, limit)
    }
}

/// Refuses private data that is longer than the message has space for.
pub(super) fn check_len(operation: Verb, transport: Option<TransportType>, bytes: &[u8], limit: usize) -> Result<()> {
    let limit = if transport == Some(TransportType::IWARP) { super::IWARP_PRIVATE_DATA } else { limit };
    if bytes.len() > limit { Err(Error::new(operation, ErrorKind::TooLong)) } else { Ok(()) }
}

impl RawId {
    /// The attributes that librdmacm gives for a transition to `state`.
    pub(super) fn qp_attr(&self, state: QpState) -> Result<QpAttr> {
        let mut raw = ibv_qp_attr { qp_state: ibv_qp_state(state.as_raw()), ..ibv_qp_attr::default() };
        let mut mask: c_int = 0;
        // SAFETY: rdma_init_qp_attr requires an id (2), whose lock is held (3), that is bound to a
        // device (6), and space for attributes and their mask.
        self.call_bound(Verb::InitQpAttr, |cm, id| unsafe { (cm.rdma_init_qp_attr)(id, &raw mut raw, &raw mut mask) })?;
        #[allow(
            clippy::cast_sign_loss,
            reason = "a set of bits; those that verbs.h does not know are an old kernel's own"
        )]
        let mask = QpAttrMask::from_bits_truncate(mask as u32);
        Ok(QpAttr::from_raw(raw, mask).state(state))
    }

    pub(super) fn init(
        &self,
        qp: PreparedQueuePair<Rc>,
        access: RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        let attr = self.check_device(Verb::InitQpAttr, &qp.context()).and_then(|()| self.qp_attr(QpState::INIT));
        match attr {
            Ok(attr) => qp.init_with(&attr.access(access)),
            Err(error) => Err(Failed::new(error, qp)),
        }
    }

    /// Moves the queue pair to RTR and RTS with the agreed parameters, and with the options of the
    /// path that are set. Does nothing on iWARP, where the kernel does this as part of connecting.
    pub(super) fn bring_up(&self, qp: &InitializedQueuePair<Rc>, limits: Limits, path: &PathOptions) -> Result<()> {
        let qp = &qp.qp;
        if !qp.control.context.capabilities().manual_connect {
            return Ok(());
        }
        let attr = self.qp_attr(QpState::RTR)?;
        let serve = attr.as_raw().max_dest_rd_atomic.min(limits.responder_resources);
        let timer = path.min_rnr_timer.unwrap_or(RnrTimer::DEFAULT);
        let attr = path.ready_to_receive(attr.max_dest_rd_atomic(serve).min_rnr_timer(timer));
        qp.control.modify(&attr)?;
        let attr = self.qp_attr(QpState::RTS)?;
        let ask = attr.as_raw().max_rd_atomic.min(limits.initiator_depth);
        qp.control.modify(&path.ready_to_send(attr.max_rd_atomic(ask)))
    }

    pub(super) fn remote_ece(&self) -> Result<Ece> {
        let mut raw = ibv_ece::default();
        // SAFETY: rdma_get_remote_ece requires an id (2), whose lock is held (3), and space for the
        // options.
        self.call(Verb::GetRemoteEce, |cm, id| unsafe { (cm.rdma_get_remote_ece)(id, &raw mut raw) })?;
        Ok(Ece::from_raw(raw))
    }

    pub(super) fn set_local_ece(&self, ece: Ece) -> Result<()> {
        let mut raw = ece.to_raw();
        // SAFETY: rdma_set_local_ece requires an id (2), whose lock is held (3), and options that
        // live during the call.
        self.call(Verb::SetLocalEce, |cm, id| unsafe { (cm.rdma_set_local_ece)(id, &raw mut raw) })
    }

    /// Calls `rdma_connect`, for both port spaces.
    pub(super) fn connect(&self, mut param: rdma_conn_param) -> Result<()> {
        // SAFETY: rdma_connect requires an id (2), whose lock is held (3), that is bound to a
        // device (6), and parameters whose private data is as long as they say and lives during the
        // call: `to_raw` points to the options that the caller holds.
        self.call_bound(Verb::Connect, |cm, id| unsafe { (cm.rdma_connect)(id, &raw mut param) })
    }

    /// Calls `rdma_accept`, for both port spaces.
    pub(super) fn accept(&self, mut param: rdma_conn_param) -> Result<()> {
        // SAFETY: rdma_accept requires an id (2), whose lock is held (3), that is bound to a device
        // (6), and parameters whose private data is as long as they say and lives during the call:
        // `to_raw` points to the options that the caller holds.
        self.call_bound(Verb::Accept, |cm, id| unsafe { (cm.rdma_accept)(id, &raw mut param) })
    }

    /// Calls `rdma_reject`, or `rdma_reject_ece`, which gives the ECE options as the reason.
    pub(super) fn reject(&self, private_data: &[u8], for_ece: bool) -> Result<()> {
        let len = u8::try_from(private_data.len()).map_err(|_| Error::new(Verb::Reject, ErrorKind::TooLong))?;
        let locked = self.lock(Verb::Reject)?;
        let reject = if for_ece { locked.table.rdma_reject_ece } else { locked.table.rdma_reject };
        // SAFETY: both functions require an id (2), whose lock is held (3), and `len` readable
        // bytes: the slice is that long.
        let call = || unsafe { reject(locked.raw, private_data.as_ptr().cast(), len) };
        reason::check(Verb::Reject, call)
    }
}

impl PathOptions {
    /// Changes what librdmacm gives for RTR by the options that are set.
    fn ready_to_receive(&self, attr: QpAttr) -> QpAttr {
        let raw = attr.as_raw();
        let (known, agreed) = (Path::from_raw(&raw.ah_attr), Mtu::from_raw(raw.path_mtu.0));
        let mut path = known;
        self.apply_to(&mut path);
        let attr = if path == known { attr } else { attr.path(path) };
        self.mtu.filter(|&mtu| mtu < agreed).into_iter().fold(attr, QpAttr::path_mtu)
    }

    /// Changes what librdmacm gives for RTS by the options that are set.
    fn ready_to_send(&self, attr: QpAttr) -> QpAttr {
        let attr = self.ack_timeout.into_iter().fold(attr, QpAttr::timeout);
        let attr = self.retry_count.into_iter().fold(attr, QpAttr::retry_count);
        self.rnr_retry_count.into_iter().fold(attr, QpAttr::rnr_retry)
    }
}

/// Limits on the reads and atomics of a queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

impl From<&rdma_conn_param> for Limits {
    fn from(param: &rdma_conn_param) -> Self {
        Self { responder_resources: param.responder_resources, initiator_depth: param.initiator_depth }
    }
}

impl Id<Rc> {
    /// Binds a queue pair of the same device to the port and partition of the id.
    ///
    /// Receives can be posted to the returned queue pair, and should be before the connection is
    /// established. `access` says which operations the peer may do; a region must allow them too.
    ///
    /// # Errors
    ///
    /// Returns the queue pair. `WrongDevice` if it is another device's; `InvalidInput` if the id is
    /// not bound to a device yet.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init(
        &self,
        qp: PreparedQueuePair<Rc>,
        access: RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        self.raw.init(qp, access)
    }

    /// Starts to connect. `ConnectResponse` follows (`Established` on iWARP), or `Rejected`,
    /// `Unreachable` or `ConnectError`.
    ///
    /// # Errors
    ///
    /// `InvalidOption` for an option of the path, before anything is done; `InvalidInput` if no
    /// route was resolved; `WrongDevice`; `TooLong` for the private data; on iWARP `NotListening`.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, qp: &InitializedQueuePair<Rc>, options: &ConnOptions) -> Result<()> {
        let context = qp.qp.context();
        let path = options.path_of(Verb::Connect, &self.raw, &context)?;
        options.check_len(Verb::Connect, &context, super::CONNECT_PRIVATE_DATA)?;
        self.raw.check_device(Verb::Connect, &context)?;
        self.raw.connect(options.to_raw(qp, &path, None))
    }

    /// Completes the connection once the peer has accepted it, on `ConnectResponse`: brings the
    /// queue pair up and tells the peer.
    ///
    /// On iWARP call it on `Established`: there it only marks the queue pair as ready. `options`
    /// are those given to [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// Returns the queue pair, which may be in RTR. `Disconnected` if the peer has not accepted, or
    /// has given up.
    #[doc(alias = "rdma_establish")]
    pub fn establish(
        &self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
    ) -> Result<QueuePair<Rc>, Failed<InitializedQueuePair<Rc>>> {
        let context = qp.qp.context();
        let done = (self.raw.check_device(Verb::Establish, &context))
            .and_then(|()| options.path_of(Verb::Establish, &self.raw, &context))
            .and_then(|path| self.raw.bring_up(&qp, Limits::from(&options.to_raw(&qp, &path, None)), &path))
            .and_then(|()| if context.capabilities().manual_connect { self.tell_established() } else { Ok(()) });
        match done {
            Ok(()) => Ok(qp.into_manual()),
            Err(error) => Err(Failed::new(error, qp)),
        }
    }

    fn tell_established(&self) -> Result<()> {
        // SAFETY: rdma_establish requires an id (2), whose lock is held (3).
        self.raw.call(Verb::Establish, |cm, id| unsafe { (cm.rdma_establish)(id) })
    }

    /// Ends the connection: requests in flight on the queue pair are flushed, and `Disconnected`
    /// follows at both sides. `qp` is the queue pair, or the control of one of its halves.
    ///
    /// # Errors
    ///
    /// `Disconnected` if there is no connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect<'a>(&self, qp: impl Into<QpControl<'a, Rc>>) -> Result<()> {
        let qp = qp.into();
        // On iWARP the kernel first sends what is queued and closes the connection in order, then
        // moves the queue pair to the error state.
        if qp.inner.context.capabilities().manual_connect {
            qp.set_error()?;
        }
        self.tell_disconnected()
    }

    /// Calls `rdma_disconnect` alone, for an id whose queue pair is gone.
    pub(super) fn tell_disconnected(&self) -> Result<()> {
        let locked = self.raw.lock(Verb::Disconnect)?;
        locked.require_device(Verb::Disconnect).map_err(|error| error.with_kind(ErrorKind::Disconnected))?;
        // SAFETY: rdma_disconnect requires an id (2), whose lock is held (3), that is bound to a
        // device (6): librdmacm before version 19 dereferences the device without a check.
        let call = || unsafe { (locked.table.rdma_disconnect)(locked.raw) };
        reason::check(Verb::Disconnect, call)
    }

    /// Sets the ECE options to offer to the peer: usually the result of the queue pair's
    /// [`ece`](QueuePair::ece). Call it before [`connect`](Self::connect).
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) -> Result<()> {
        self.raw.set_local_ece(ece)
    }

    /// The ECE options that the peer sent, for the queue pair's [`set_ece`](QueuePair::set_ece).
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece> {
        self.raw.remote_ece()
    }
}
