//! A request to connect: owns the new id until the request is accepted or rejected.

use std::fmt;
use std::net::SocketAddr;

use super::channel::{EventChannel, IdKey};
use super::connect::{self, ConnOptions, Limits};
use super::id::Id;
use super::message::{ConnectionParameters, PrivateData};
use super::{ACCEPT_PRIVATE_DATA, PortSpace, REJECT_PRIVATE_DATA, UD_ACCEPT_PRIVATE_DATA};
use crate::context::Context;
use crate::error::{Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QueuePair};
use crate::transport::Rc;
use crate::types::{Ece, RemoteAccess};

/// A peer's request to connect, or to learn where to send datagrams.
///
/// Accepting or rejecting consumes the request; dropping the request rejects it. The request may be
/// moved to another thread or [channel](Self::migrate) first.
pub struct ConnectRequest<T: PortSpace> {
    id: Id<T>,
    listener: IdKey,
    private_data: PrivateData,
    parameters: ConnectionParameters,
}

impl<T: PortSpace> ConnectRequest<T> {
    pub(super) fn new(id: Id<T>, listener: IdKey, private_data: PrivateData, parameters: ConnectionParameters) -> Self {
        Self { id, listener, private_data, parameters }
    }

    pub(crate) fn id(&self) -> &Id<T> {
        &self.id
    }

    pub(super) fn into_id(self) -> Id<T> {
        self.id
    }

    getters! { |this|
        /// The key of the new id in events.
        key: IdKey = this.id.key();
        /// The key of the listener.
        listener: IdKey = this.listener;
        /// The peer's private data.
        private_data: &PrivateData = &this.private_data;
        /// The local address.
        local_addr: Option<SocketAddr> = this.id.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.id.peer_addr();
        /// The name of the device that the request arrived on.
        device_name: Option<String> = this.id.device_name();
        /// The device's port that the request arrived on.
        port: Option<u8> = this.id.port();
    }

    /// The context of the device that the request arrived on: [`Id::context`].
    ///
    /// # Errors
    ///
    /// As for [`Id::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Moves the new id to another channel.
    ///
    /// # Errors
    ///
    /// As for [`Id::migrate`].
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.id.migrate(channel)
    }

    /// Rejects the request, with private data that says why: up to 148 bytes on InfiniBand and
    /// RoCE, 136 for a request for datagrams, 251 on iWARP.
    ///
    /// # Errors
    ///
    /// `TooLong`; an error of librdmacm, for example if the peer has gone. The request is consumed
    /// in any case.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        let limit = if T::DATAGRAM { UD_ACCEPT_PRIVATE_DATA } else { REJECT_PRIVATE_DATA };
        connect::check_len(Verb::Reject, self.id.raw.transport(Verb::Reject)?, private_data, limit)?;
        self.id.raw.reject(private_data, false)
    }
}

impl ConnectRequest<Rc> {
    /// The parameters that the peer asks for.
    #[must_use]
    pub fn parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// The peer's enhanced connection establishment (ECE) options.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<Ece> {
        self.id.remote_ece()
    }

    /// Sets the enhanced connection establishment (ECE) options to answer with. Call it before
    /// [`accept`](Self::accept).
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ece: Ece) -> Result<()> {
        self.id.set_local_ece(ece)
    }

    /// Rejects the request because of the ECE options that the peer offers.
    ///
    /// # Errors
    ///
    /// As for [`reject`](Self::reject).
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(self, private_data: &[u8]) -> Result<()> {
        let transport = self.id.raw.transport(Verb::Reject)?;
        connect::check_len(Verb::Reject, transport, private_data, REJECT_PRIVATE_DATA)?;
        self.id.raw.reject(private_data, true)
    }

    /// Binds a queue pair to the port that the request arrived on: [`Id::init`].
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(
        &self,
        qp: PreparedQueuePair<Rc>,
        access: RemoteAccess,
    ) -> Result<InitializedQueuePair<Rc>, Failed<PreparedQueuePair<Rc>>> {
        self.id.init(qp, access)
    }

    /// Accepts with a queue pair: `Established` follows, or an error if the peer is gone by then.
    ///
    /// The queue pair receives messages from now on. Wait for `Established` before sending; on
    /// iWARP wait for the first message of the active side.
    ///
    /// # Errors
    ///
    /// The error returns the request and the queue pair. The queue pair may be connected already:
    /// [`reset`](InitializedQueuePair::reset) it before using it again. `InvalidOption` for an
    /// option of the path, before anything is done; `TooLong` for the private data; `WrongDevice`;
    /// errors of librdmacm or the provider.
    #[doc(alias = "rdma_accept")]
    #[allow(clippy::type_complexity, reason = "request and queue pair come back")]
    pub fn accept(
        self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
    ) -> Result<(Id<Rc>, QueuePair<Rc>), Failed<(Self, InitializedQueuePair<Rc>)>> {
        self.accept_keeping(qp, options).map(|(id, qp)| (id, qp.into_manual()))
    }

    /// Accepts like [`accept`](Self::accept), but returns the queue pair in its initialized type: a
    /// caller may still have to give it back if the peer is gone.
    #[allow(clippy::type_complexity, reason = "request and queue pair come back")]
    pub(super) fn accept_keeping(
        self,
        qp: InitializedQueuePair<Rc>,
        options: &ConnOptions,
    ) -> Result<(Id<Rc>, InitializedQueuePair<Rc>), Failed<(Self, InitializedQueuePair<Rc>)>> {
        match self.try_accept(&qp, options) {
            Ok(()) => Ok((self.id, qp)),
            Err(error) => Err(Failed::new(error, (self, qp))),
        }
    }

    fn try_accept(&self, qp: &InitializedQueuePair<Rc>, options: &ConnOptions) -> Result<()> {
        let context = qp.qp.context();
        let path = options.path_of(Verb::Accept, &self.id.raw, &context)?;
        options.check_len(Verb::Accept, &context, ACCEPT_PRIVATE_DATA)?;
        self.id.raw.check_device(Verb::Accept, &context)?;
        let offered = (self.parameters.responder_resources, self.parameters.initiator_depth);
        let param = options.to_raw(qp, &path, Some(offered));
        self.id.raw.bring_up(qp, Limits::from(&param), &path)?;
        self.id.raw.accept(param)
    }
}

impl<T: PortSpace> fmt::Debug for ConnectRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("id", &self.id)
            .field("listener", &self.listener)
            .field("private_data", &self.private_data)
            .field("parameters", &self.parameters)
            .finish()
    }
}
