//! Bring-up of a queue pair. Each step is a type, so a queue pair cannot be used before it is
//! ready.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use super::QueuePair;
use super::attr::QpAttr;
use super::endpoint::Endpoint;
use super::port::Chosen;
use super::transport::{Rc, Transport};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::types::{
    AckTimeout, AtomicCapability, Capabilities, MAX_RETRIES, PathOptions, QpState, RemoteAccess, RnrTimer, path_setters,
};

/// The number of reads and atomics in service at a time, unless the device supports fewer: enough
/// to keep a link busy.
const READ_DEPTH: u32 = 16;

/// Options to bind a queue pair to a port. Options that are not set are chosen from the device's
/// attributes.
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
    /// Options with all defaults: the first active port, its [best GID](Context::best_gid), P_Key
    /// 0, all remote operations that the device supports, and a random PSN.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The port.
        port(port: u8) = Some(port);

        /// The index of the local GID.
        gid_index(index: u8) = Some(index);

        /// The partition key's index.
        pkey_index(index: u16) = index;

        /// The operations that the peer may do through this queue pair, on regions that allow them
        /// too.
        remote_access(access: RemoteAccess) = Some(access);

        /// The PSN of the first packet sent; only the low 24 bits are used.
        psn(psn: u32) = Some(psn & 0xff_ffff);
    }
}

/// Options to connect to a peer. Options that are not set have the values that most programs use.
///
/// Nothing is acknowledged on an unreliable connection ([`Uc`](super::Uc)): timeouts, retries and
/// depths have no effect there.
///
/// # Examples
///
/// ```
/// use rdma::{ConnectOptions, Mtu};
/// // Give up after two unanswered attempts.
/// let options = ConnectOptions::new().retry_count(1).mtu(Mtu::MTU_1024);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use]
pub struct ConnectOptions {
    path: PathOptions,
    initiator_depth: Option<u8>,
}

impl ConnectOptions {
    /// Options with all defaults: the smaller of both sides' active MTUs, a timeout of 67 ms, 7
    /// retries, and unlimited retries while the peer has no receive posted.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// All options of the path at once, in place of those that were set before.
        path(path: PathOptions) = path;

        /// The number of reads and atomics outstanding at a time, limited to the number that the
        /// peer serves.
        initiator_depth(depth: u8) = Some(depth);
    }

    path_setters!(path);
}

/// A new queue pair, in the RESET state. The next step binds it to a port.
pub struct PreparedQueuePair<T: Transport> {
    pub(super) qp: QueuePair<T>,
}

/// A queue pair bound to a port, in the INIT state: receives can be posted. The peer needs its
/// [`Endpoint`] to connect.
pub struct InitializedQueuePair<T: Transport> {
    pub(crate) qp: QueuePair<T>,
    pub(super) local: T::Start,
}

/// The local side of a connection: the chosen port and its endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Local {
    chosen: Chosen,
    endpoint: Endpoint,
}

impl<T: Transport> PreparedQueuePair<T> {
    pub(crate) fn new(qp: QueuePair<T>) -> Self {
        Self { qp }
    }

    /// The queue pair number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    pub(crate) fn context(&self) -> Context {
        self.qp.context()
    }

    /// All remote operations that the device supports.
    #[must_use]
    pub fn all_access(&self) -> RemoteAccess {
        all_access(&self.context())
    }

    /// Leaves the typed steps: returns the queue pair as it is, to be brought up with
    /// [`QueuePair::modify`].
    ///
    /// Posting to the queue pair before it is ready is an error that the provider reports.
    #[must_use]
    pub fn into_manual(self) -> QueuePair<T> {
        self.qp
    }

    /// The C object, valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_raw()
    }

    /// Binds the queue pair to a port with [`InitOptions`], or
    /// [`DatagramOptions`](super::DatagramOptions) for datagrams.
    ///
    /// # Errors
    ///
    /// With the queue pair: `PortDown` if the given port, or every port, is down; `NotFound` for a
    /// port or GID that does not exist; `NotSupported` on iWARP, where only the connection manager
    /// can connect; `PermissionDenied` for a Q_Key that only privileged processes may use.
    pub fn init(self, options: &T::InitOptions) -> Result<InitializedQueuePair<T>, Failed<Self>> {
        self.init_by(|qp| T::init(qp, options))
    }

    /// Binds the queue pair with the connection manager's attributes, on iWARP too.
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

/// A transport whose queue pairs have one peer, to which they
/// [connect](InitializedQueuePair::connect).
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{Self}` has no peer",
    note = "datagrams (`Ud`) are sends that say where to: `op::send(..).to(&address, qpn, qkey)`; everything else, without `to`, is for connections (`Rc`, `Uc`)"
)]
pub trait Connected: Transport<InitOptions = InitOptions, Start = Local> {
    /// All remote operations that the device supports.
    #[doc(hidden)]
    fn all_access(context: &Context) -> RemoteAccess;
    /// The number of reads and atomics that a queue pair serves at a time.
    #[doc(hidden)]
    fn responder_resources(context: &Context) -> u8;
    /// Adds the transport's own attributes to a change to RTR.
    #[doc(hidden)]
    fn ready_to_receive(attr: QpAttr, ends: &Endpoints, options: &ConnectOptions) -> QpAttr;
    /// Adds the transport's own attributes to a change to RTS.
    #[doc(hidden)]
    fn ready_to_send(attr: QpAttr, ends: &Endpoints, options: &ConnectOptions) -> QpAttr;
}

/// Both sides of a connection, and the limit of the local device.
#[derive(Debug)]
pub struct Endpoints {
    local: Endpoint,
    remote: Endpoint,
    /// The number of reads and atomics that the device can have outstanding.
    max_initiator_depth: u8,
}

impl Transport for Rc {
    const TYPE: rdma_sys::ibv_qp_type = rdma_sys::ibv_qp_type::IBV_QPT_RC;
    const IS_DATAGRAM: bool = false;
    type InitOptions = InitOptions;
    type Start = Local;

    fn is_supported(_: &Capabilities) -> bool {
        true
    }

    fn init(qp: &mut QueuePair<Self>, options: &InitOptions) -> Result<Local> {
        init(qp, options)
    }

    fn init_with(qp: &mut QueuePair<Self>, attr: &QpAttr) -> Result<Local> {
        init_with(qp, attr)
    }
}

impl Connected for Rc {
    fn all_access(context: &Context) -> RemoteAccess {
        all_access(context)
    }

    fn responder_resources(context: &Context) -> u8 {
        let depth = context.device_attr().max_qp_rd_atom().min(READ_DEPTH);
        u8::try_from(depth).unwrap_or(u8::MAX)
    }

    fn ready_to_receive(attr: QpAttr, ends: &Endpoints, options: &ConnectOptions) -> QpAttr {
        attr.max_dest_rd_atomic(ends.local.responder_resources)
            .min_rnr_timer(options.path.min_rnr_timer.unwrap_or(RnrTimer::DEFAULT))
    }

    fn ready_to_send(attr: QpAttr, ends: &Endpoints, options: &ConnectOptions) -> QpAttr {
        let depth = ends.max_initiator_depth.min(ends.remote.responder_resources);
        let path = &options.path;
        attr.timeout(path.ack_timeout.unwrap_or(AckTimeout::DEFAULT))
            .retry_count(path.retry_count.unwrap_or(MAX_RETRIES))
            .rnr_retry(path.rnr_retry_count.unwrap_or(MAX_RETRIES))
            .max_rd_atomic(options.initiator_depth.map_or(depth, |wanted| wanted.min(depth)))
    }
}

/// Moves a queue pair to INIT.
pub(super) fn init<T: Connected>(qp: &QueuePair<T>, options: &InitOptions) -> Result<Local> {
    require_endpoints(qp)?;
    let local = local(qp, options)?;
    let access = options.remote_access.unwrap_or_else(|| T::all_access(&qp.context()));
    let attr = QpAttr::to(QpState::INIT).port(local.chosen.port).pkey_index(options.pkey_index);
    qp.control.modify(&attr.access(access))?;
    Ok(local)
}

/// Moves a queue pair to INIT with the connection manager's attributes.
pub(super) fn init_with<T: Connected>(qp: &QueuePair<T>, attr: &QpAttr) -> Result<Local> {
    let local = local(qp, &InitOptions::new().port(attr.as_raw().port_num))?;
    qp.control.modify(attr)?;
    Ok(local)
}

fn require_endpoints<T: Connected>(qp: &QueuePair<T>) -> Result<()> {
    let is_supported = qp.control.context.capabilities().manual_connect;
    if is_supported { Ok(()) } else { Err(Error::new(Verb::ModifyQp, ErrorKind::NotSupported)) }
}

/// Chooses the port and makes the local endpoint.
fn local<T: Connected>(qp: &QueuePair<T>, options: &InitOptions) -> Result<Local> {
    let context = qp.context();
    let chosen = Chosen::choose(&context, options.port, options.gid_index)?;
    let endpoint = Endpoint {
        qpn: qp.qpn(),
        psn: options.psn.unwrap_or_else(random_psn),
        gid: chosen.gid,
        lid: chosen.lid,
        mtu: chosen.mtu,
        responder_resources: T::responder_resources(&context),
    };
    Ok(Local { chosen, endpoint })
}

fn all_access(context: &Context) -> RemoteAccess {
    match context.device_attr().atomic_capability() {
        AtomicCapability::NONE => RemoteAccess::READ | RemoteAccess::WRITE,
        _ => RemoteAccess::all(),
    }
}

/// A random PSN, which a packet of an earlier connection is unlikely to have.
pub(super) fn random_psn() -> u32 {
    let random = RandomState::new().build_hasher().finish();
    u32::try_from(random & 0xff_ffff).unwrap_or(0)
}

impl<T: Transport> InitializedQueuePair<T> {
    /// The queue pair number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    /// Moves the queue pair back to RESET, the state in which
    /// [`QpBuilder::build`](super::QpBuilder::build) left it. Buffers in flight are freed.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::reset`], with the queue pair.
    pub fn reset(self) -> Result<PreparedQueuePair<T>, Failed<Self>> {
        let local = self.local;
        self.qp.reset().map_err(|failed| Failed::new(failed.error, Self { qp: failed.object, local }))
    }

    /// Leaves the typed steps, as [`PreparedQueuePair::into_manual`] does.
    #[must_use]
    pub fn into_manual(self) -> QueuePair<T> {
        self.qp
    }

    /// The C object, valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.qp.as_raw()
    }
}

impl<T: Connected> InitializedQueuePair<T> {
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

    /// Connects to the peer: moves the queue pair through RTR to RTS.
    ///
    /// The peer does the same with this side's [`endpoint`](Self::endpoint), in any order, on a
    /// queue pair of the same transport. Messages sent before the peer has connected are retried as
    /// often as `retry_count` allows; on an unreliable connection they are lost.
    ///
    /// # Errors
    ///
    /// With the queue pair: `InvalidOption` for an option out of its range, before anything is
    /// done; `Incompatible` when the two sides have no common kind of address, `Timeout` when the
    /// peer's address cannot be resolved, `NotSupported` on iWARP. The queue pair may then be in
    /// RTR, ready to receive only; go back with [`reset`](Self::reset).
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair<T>, Failed<Self>> {
        match connect(&self.qp, &self.local, remote, options) {
            Ok(()) => Ok(self.qp),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

fn connect<T: Connected>(qp: &QueuePair<T>, local: &Local, remote: &Endpoint, options: &ConnectOptions) -> Result<()> {
    Error::check_option(Verb::ModifyQp, options.path.check())?;
    require_endpoints(qp)?;
    let mut path = local.chosen.path_to((remote.gid, remote.lid), Verb::ModifyQp)?;
    options.path.apply_to(&mut path);
    let mtu = [Some(remote.mtu), options.path.mtu].into_iter().flatten().fold(local.endpoint.mtu, Ord::min);
    let device = qp.control.context.device_attr.max_qp_init_rd_atom();
    let max_initiator_depth = u8::try_from(device).unwrap_or(u8::MAX);
    let ends = Endpoints { local: local.endpoint, remote: *remote, max_initiator_depth };
    let attr = QpAttr::to(QpState::RTR).path(path).path_mtu(mtu).dest_qpn(remote.qpn).rq_psn(remote.psn);
    qp.control.modify(&T::ready_to_receive(attr, &ends, options))?;
    let attr = QpAttr::to(QpState::RTS).sq_psn(local.endpoint.psn);
    qp.control.modify(&T::ready_to_send(attr, &ends, options))
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
