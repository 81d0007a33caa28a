//! Bringing a queue pair up: each step is a type, so what is not ready cannot be used.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use super::attr::QpAttr;
use super::endpoint::Endpoint;
use super::port::{Chosen, HOP_LIMIT};
use super::{QueuePair, Rc, Transport};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Operation, Result};
use crate::types::{AckTimeout, AtomicCapability, Mtu, QpState, RemoteAccess, RnrTimer};

/// Reads and atomics in service at a time, unless the device can do less: enough to fill a pipe.
const READ_DEPTH: u32 = 16;

/// Options to bind a queue pair to a port. Options that are not set are chosen from what the device
/// reports.
///
/// # Examples
///
/// ```
/// use rdma::{InitOptions, RemoteAccess};
/// let options = InitOptions::new().port(1).remote_access(RemoteAccess::READ);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct InitOptions {
    port: Option<u8>,
    gid_index: Option<u8>,
    pkey_index: u16,
    remote_access: Option<RemoteAccess>,
    psn: Option<u32>,
}

impl InitOptions {
    /// Everything chosen: the first active port, its [best GID](Context::best_gid), P_Key 0, all
    /// remote operations that the device has, a random packet number.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The port.
        port(port: u8) = Some(port);

        /// Our GID's index.
        gid_index(index: u8) = Some(index);

        /// The partition key's index.
        pkey_index(index: u16) = index;

        /// What the peer may do through this queue pair, to regions that allow it too.
        remote_access(access: RemoteAccess) = Some(access);

        /// The number of the first packet sent; the low 24 bits count.
        psn(psn: u32) = Some(psn & 0xff_ffff);
    }
}

/// Options to connect to a peer. Options that are not set have the value that most programs use.
///
/// # Examples
///
/// ```
/// use rdma::{ConnectOptions, Mtu};
/// // Give up after two unanswered attempts.
/// let options = ConnectOptions::new().retry_count(1).mtu(Mtu::MTU_1024);
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct ConnectOptions {
    mtu: Option<Mtu>,
    ack_timeout: AckTimeout,
    retry_count: u8,
    rnr_retry: u8,
    min_rnr_timer: RnrTimer,
    initiator_depth: Option<u8>,
    service_level: u8,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            mtu: None,
            ack_timeout: AckTimeout::DEFAULT,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::DEFAULT,
            initiator_depth: None,
            service_level: 0,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
            flow_label: 0,
        }
    }
}

impl ConnectOptions {
    /// The smaller of both ends' active MTUs, 67 ms timeout, 7 retries, any number of retries while
    /// the peer has no receive posted.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// A smaller MTU than both ends have. One that is larger has no effect.
        mtu(mtu: Mtu) = Some(mtu);

        /// How long to wait for an answer before trying again.
        ack_timeout(timeout: AckTimeout) = timeout;

        /// How often to try again without an answer: 0 to 7. Linux's software device rxe takes 7
        /// for any number: it never notices that a peer is gone, and gets large messages through
        /// where packets are lost, for which it counts every one of them.
        retry_count(count: u8) = count;

        /// How often to try again while the peer has no receive posted: 0 to 6, or 7 for ever.
        rnr_retry(count: u8) = count;

        /// How long the peer shall wait before it tries again, when we have no receive posted.
        min_rnr_timer(timer: RnrTimer) = timer;

        /// How many reads and atomics to have outstanding, at most what the peer serves.
        initiator_depth(depth: u8) = Some(depth);

        /// The service level: 0 to 15.
        service_level(level: u8) = level;

        /// The traffic class, on RoCE v2 the IP header's.
        traffic_class(class: u8) = class;

        /// How many routers may be crossed.
        hop_limit(limit: u8) = limit;

        /// The flow label: 20 bits.
        flow_label(label: u32) = label & 0xf_ffff;
    }
}

/// A new queue pair, in the RESET state: bind it to a port next.
pub struct PreparedQueuePair<T: Transport> {
    pub(super) qp: QueuePair<T>,
}

/// A queue pair bound to a port, in the INIT state: receives can be posted, and the peer needs its
/// [`Endpoint`].
pub struct InitializedQueuePair<T: Transport> {
    pub(crate) qp: QueuePair<T>,
    pub(super) local: T::Start,
}

/// Our own end.
#[derive(Debug, Clone, Copy)]
pub struct Local {
    chosen: Chosen,
    endpoint: Endpoint,
}

impl<T: Transport> PreparedQueuePair<T> {
    pub(crate) fn new(qp: QueuePair<T>) -> Self {
        Self { qp }
    }

    /// Its number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    pub(crate) fn context(&self) -> Context {
        self.qp.context()
    }

    /// All remote operations that the device has.
    pub(crate) fn all_access(&self) -> RemoteAccess {
        all_access(&self.context())
    }

    /// Leaves the typed steps: the queue pair as it is, to be brought up by [`QueuePair::modify`].
    ///
    /// Posting to it before it is ready is an error of the provider.
    #[must_use]
    pub fn into_manual(self) -> QueuePair<T> {
        self.qp
    }

    /// The C object. It is valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_raw()
    }
}

impl<T: Transport> PreparedQueuePair<T> {
    /// Binds the queue pair to a port, by [`InitOptions`], or
    /// [`DatagramOptions`](super::DatagramOptions) for datagrams.
    ///
    /// # Errors
    ///
    /// With the queue pair: `PortDown` without an active port, `NotFound` for a port or GID that
    /// does not exist, `NotSupported` on iWARP, where only the connection manager can connect,
    /// `PermissionDenied` for a Q_Key that only privileged processes may have.
    pub fn init(self, options: &T::InitOptions) -> Result<InitializedQueuePair<T>, Failed<Self>> {
        self.init_by(|qp| T::init(qp, options))
    }

    /// Binds the queue pair with the attributes of the connection manager, on iWARP too.
    pub(crate) fn init_with(self, attr: &QpAttr) -> Result<InitializedQueuePair<T>, Failed<Self>> {
        self.init_by(|qp| T::init_with(qp, attr))
    }

    fn init_by(
        mut self,
        init: impl FnOnce(&mut QueuePair<T>) -> Result<T::Start>,
    ) -> Result<InitializedQueuePair<T>, Failed<Self>> {
        match init(&mut self.qp) {
            Ok(local) => Ok(InitializedQueuePair { qp: self.qp, local }),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

impl Transport for Rc {
    const TYPE: rdma_sys::ibv_qp_type = rdma_sys::ibv_qp_type::IBV_QPT_RC;
    const IS_DATAGRAM: bool = false;
    type InitOptions = InitOptions;
    type Start = Local;

    fn init(qp: &mut QueuePair<Self>, options: &InitOptions) -> Result<Local> {
        require_endpoints(qp)?;
        let local = local(qp, options)?;
        let access = options.remote_access.unwrap_or_else(|| all_access(&qp.context()));
        let attr = QpAttr::to(QpState::INIT).port(local.chosen.port).pkey_index(options.pkey_index);
        qp.control.modify(&attr.access(access))?;
        Ok(local)
    }

    fn init_with(qp: &mut QueuePair<Self>, attr: &QpAttr) -> Result<Local> {
        let local = local(qp, &InitOptions::new().port(attr.as_raw().port_num))?;
        qp.control.modify(attr)?;
        Ok(local)
    }
}

fn require_endpoints(qp: &QueuePair<Rc>) -> Result<()> {
    let is_supported = qp.control.context.capabilities().manual_connect;
    if is_supported { Ok(()) } else { Err(Error::new(Operation::ModifyQp, ErrorKind::NotSupported)) }
}

/// Our end of the connection.
fn local(qp: &QueuePair<Rc>, options: &InitOptions) -> Result<Local> {
    let context = qp.context();
    let chosen = Chosen::choose(&context, options.port, options.gid_index)?;
    let depth = context.device_attr().max_qp_rd_atom().min(READ_DEPTH);
    let endpoint = Endpoint {
        qpn: qp.qpn(),
        psn: options.psn.unwrap_or_else(random_psn),
        gid: chosen.gid,
        lid: chosen.lid,
        mtu: chosen.mtu,
        responder_resources: u8::try_from(depth).unwrap_or(u8::MAX),
    };
    Ok(Local { chosen, endpoint })
}

fn all_access(context: &Context) -> RemoteAccess {
    match context.device_attr().atomic_capability() {
        AtomicCapability::NONE => RemoteAccess::READ | RemoteAccess::WRITE,
        _ => RemoteAccess::all(),
    }
}

/// A number that a packet of an earlier connection is unlikely to have.
pub(super) fn random_psn() -> u32 {
    let random = RandomState::new().build_hasher().finish();
    u32::try_from(random & 0xff_ffff).unwrap_or(0)
}

impl<T: Transport> InitializedQueuePair<T> {
    /// Its number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    /// Takes the queue pair back to where [`QpBuilder::build`](super::QpBuilder::build) left it.
    /// Buffers in flight are freed.
    ///
    /// # Errors
    ///
    /// Those of [`QueuePair::reset`], with the queue pair.
    pub fn reset(self) -> Result<PreparedQueuePair<T>, Failed<Self>> {
        let local = self.local;
        self.qp.reset().map_err(|failed| Failed::new(failed.error, Self { qp: failed.object, local }))
    }

    /// Leaves the typed steps, as [`PreparedQueuePair::into_manual`] does.
    #[must_use]
    pub fn into_manual(self) -> QueuePair<T> {
        self.qp
    }

    /// The C object. It is valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_raw()
    }
}

impl InitializedQueuePair<Rc> {
    /// The address to give to the peer, so that it can connect.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.local.endpoint
    }

    /// The port that was chosen.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.local.chosen.port
    }

    /// Connects to the peer: through RTR to RTS.
    ///
    /// The peer does the same with our [`endpoint`](Self::endpoint); the order does not matter, but
    /// what is sent before the peer has connected is tried again as often as `retry_count` says.
    ///
    /// # Errors
    ///
    /// With the queue pair: `Incompatible` when there is no common kind of address, `Timeout` when
    /// the peer's address cannot be resolved, `NotSupported` on iWARP. The queue pair may then be
    /// ready to receive only; go back with [`reset`](Self::reset).
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair<Rc>, Failed<Self>> {
        match connect(&self.qp, &self.local, remote, options) {
            Ok(()) => Ok(self.qp),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

fn connect(qp: &QueuePair<Rc>, local: &Local, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
    require_endpoints(qp)?;
    let mut path = local.chosen.path_to((remote.gid, remote.lid), Operation::ModifyQp)?;
    path.service_level = options.service_level;
    if let Some(route) = &mut path.route {
        route.hop_limit = options.hop_limit;
        route.traffic_class = options.traffic_class;
        route.flow_label = options.flow_label;
    }
    let mtu = [Some(remote.mtu), options.mtu].into_iter().flatten().fold(local.endpoint.mtu, Ord::min);
    qp.control.modify(
        &QpAttr::to(QpState::RTR)
            .path(path)
            .path_mtu(mtu)
            .dest_qpn(remote.qpn)
            .rq_psn(remote.psn)
            .max_dest_rd_atomic(local.endpoint.responder_resources)
            .min_rnr_timer(options.min_rnr_timer),
    )?;
    let device = qp.control.context.device_attr.max_qp_init_rd_atom();
    let depth = u8::try_from(device).unwrap_or(u8::MAX).min(remote.responder_resources);
    qp.control.modify(
        &QpAttr::to(QpState::RTS)
            .timeout(options.ack_timeout)
            .retry_count(options.retry_count)
            .rnr_retry(options.rnr_retry)
            .sq_psn(local.endpoint.psn)
            .max_rd_atomic(options.initiator_depth.map_or(depth, |wanted| wanted.min(depth))),
    )
}

impl<T: Transport> fmt::Debug for PreparedQueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedQueuePair").field("qp", &self.qp).finish()
    }
}

impl<T: Transport> fmt::Debug for InitializedQueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitializedQueuePair").field("qp", &self.qp).field("local", &self.local).finish()
    }
}
