//! Datagrams: asking for a peer's queue pair, answering such a request, and multicast groups.

use std::net::SocketAddr;
use std::time::Duration;

use super::active::Resolved;
use super::connection::ConnectError;
use super::listener::IncomingConnection;
use super::{deadline, wait_for};
use crate::cm::event::{Event, EventKind};
use crate::cm::id::Id;
use crate::cm::message::{MulticastGroup, UdPeer};
use crate::cm::{EventChannel, Membership, UdOptions};
use crate::context::Context;
use crate::error::{Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QpControl};
use crate::transport::Ud;

impl Resolved<Ud> {
    /// Binds a queue pair to the port that leads to the peer, with the port space's Q_Key.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Ud>) -> Result<InitializedQueuePair<Ud>, Failed<PreparedQueuePair<Ud>>> {
        self.id.init(qp)
    }

    /// Asks the listener where to send datagrams, and waits for the answer. The returned id has no
    /// further use: drop it.
    ///
    /// # Errors
    ///
    /// `NotListening`; `Rejected` with the peer's private data; `Timeout`; `TooLong` for the
    /// private data.
    #[doc(alias = "rdma_connect")]
    pub fn connect(self, options: &UdOptions, timeout: Duration) -> Result<(Id<Ud>, UdPeer), ConnectError<()>> {
        self.id.connect(options).map_err(|error| ConnectError::new(error, ()))?;
        let answer = wait_for((&self.channel, self.id.key()), Verb::Connect, deadline(timeout), |kind| match kind {
            EventKind::UdEstablished(peer) => Some(peer),
            _ => None,
        });
        match answer {
            Ok(peer) => Ok((self.id, peer)),
            Err((error, private_data)) => Err(ConnectError { error, private_data, qp: () }),
        }
    }
}

impl IncomingConnection<Ud> {
    /// Binds a queue pair to the port that the request arrived on, with the port space's Q_Key.
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Ud>) -> Result<InitializedQueuePair<Ud>, Failed<PreparedQueuePair<Ud>>> {
        self.request.init(qp)
    }

    /// Accepts: tells the peer to send to this queue pair, which may be given to any number of
    /// peers.
    ///
    /// # Errors
    ///
    /// `WrongDevice`; `TooLong` for the private data; errors of librdmacm. The request is consumed.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(self, qp: impl Into<QpControl<'a, Ud>>, options: &UdOptions) -> Result<Id<Ud>> {
        self.request.accept(qp, options).map_err(|failed| failed.error)
    }
}

/// Joins a multicast group through the device of a local address, and waits until it is joined.
///
/// # Errors
///
/// `NoRoute` if no RDMA device has the local address; `WrongDevice` if another device than the
/// context's has it; `Timeout`; errors of librdmacm.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use rdma::{AddressHandle, QueuePair};
/// use rdma::cm::{Membership, blocking};
/// # fn example(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(32)?;
/// let (local, group) = ("192.0.2.1:0".parse()?, "239.1.2.3:0".parse()?);
/// let joined = blocking::join(context, local, group, Membership::Full, Duration::from_secs(5))?;
/// let qp = joined.id().init(QueuePair::datagram(&pd).cq(&cq).build()?)?.ready()?;
/// // To receive what is sent to the group ...
/// let attached = qp.attach_multicast(joined.group().gid, joined.group().lid)?;
/// // ... and to send to it, with the group's Q_Key.
/// let address = pd.create_ah(&joined.group().path)?;
/// # Ok(()) }
/// ```
#[doc(alias = "rdma_join_multicast")]
pub fn join(
    context: &Context,
    local: SocketAddr,
    group: SocketAddr,
    membership: Membership,
    timeout: Duration,
) -> Result<Joined> {
    let channel = EventChannel::of(context)?;
    let id = channel.create_id::<Ud>()?;
    id.bind_addr(local)?;
    id.raw.check_device(Verb::BindAddr, context)?;
    id.join_multicast(group, membership)?;
    let joined = wait_for((&channel, id.key()), Verb::JoinMulticast, deadline(timeout), |kind| match kind {
        EventKind::MulticastJoined(group) => Some(group),
        _ => None,
    });
    let (address, group) = (group, joined.map_err(|(error, _)| error)?);
    Ok(Joined { id, channel, address, group })
}

/// Membership in a multicast group; dropping it leaves the group. To receive, a queue pair must be
/// attached to the group separately.
pub struct Joined {
    id: Id<Ud>,
    channel: EventChannel,
    address: SocketAddr,
    group: MulticastGroup,
}

impl Joined {
    getters! { |this|
        /// The group, to attach to and to send to.
        group: &MulticastGroup = &this.group;
        /// The id; its `init` binds queue pairs to the group's port.
        id: &Id<Ud> = &this.id;
    }

    /// Takes an event of the group if one is pending: the group or the device was lost.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        self.channel.try_next_event()
    }

    /// Leaves the group. Dropping leaves the group too; this reports errors.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(self) -> Result<()> {
        self.id.leave_multicast(self.address)
    }
}

lends_descriptor! {
    /// The descriptor is readable while an event of the group is pending.
    Joined, channel
}

debug_by_methods!(Joined: group);
