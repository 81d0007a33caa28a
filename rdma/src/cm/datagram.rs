//! Datagrams: resolving a peer's queue pair, and multicast groups. Numbers cite the invariants of
//! [`super`].

use std::net::SocketAddr;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_sys::{rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask as Mask, rdma_cm_mc_join_flags, rdma_conn_param};

use super::connect;
use super::id::{Id, RawId};
use super::reason;
use super::request::ConnectRequest;
use super::sockaddr::RawAddr;
use super::{UD_ACCEPT_PRIVATE_DATA, UD_CONNECT_PRIVATE_DATA};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::qp::{InitializedQueuePair, PreparedQueuePair, QpControl};
use crate::transport::Ud;
use crate::types::{QpAttrMask, QpState};

/// Options of a request for a peer's queue pair, and of the answer to one.
///
/// # Examples
///
/// ```
/// let options = rdma::cm::UdOptions::new().private_data(b"version 1");
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct UdOptions {
    private_data: Vec<u8>,
}

impl UdOptions {
    /// Default options: no private data.
    pub fn new() -> Self {
        Self::default()
    }

    /// Private data for the peer: up to 180 bytes in a request, and 136 in an answer.
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }

    fn to_raw(&self, operation: Verb, id: &RawId, limit: usize, qpn: u32) -> Result<rdma_conn_param> {
        connect::check_len(operation, id.transport(operation)?, &self.private_data, limit)?;
        Ok(rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            qp_num: qpn,
            ..rdma_conn_param::default()
        })
    }
}

/// Kind of membership in a multicast group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Membership {
    /// Send and receive.
    Full,
    /// Send only. Not every fabric supports this.
    SendOnly,
}

impl RawId {
    fn init_datagram(
        &self,
        qp: PreparedQueuePair<Ud>,
    ) -> Result<InitializedQueuePair<Ud>, Failed<PreparedQueuePair<Ud>>> {
        let attr = self.check_device(Verb::InitQpAttr, &qp.context()).and_then(|()| self.qp_attr(QpState::INIT));
        match attr {
            Ok(attr) => qp.init_with(&attr),
            Err(error) => Err(Failed::new(error, qp)),
        }
    }

    fn qkey(&self) -> Result<u32> {
        let attr = self.qp_attr(QpState::INIT)?;
        let has = attr.mask().contains(QpAttrMask::QKEY);
        if has { Ok(attr.as_raw().qkey) } else { Err(Error::new(Verb::InitQpAttr, ErrorKind::NotSupported)) }
    }

    fn join(&self, address: SocketAddr, membership: Membership) -> Result<()> {
        /// Source of the unique numbers that name groups in events. Never 0, so that the pointer is
        /// not NULL.
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let mut locked = self.lock(Verb::JoinMulticast)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = ptr::without_provenance_mut(number);
        let mut raw = RawAddr::new(address);
        let call = || match membership {
            // SAFETY: rdma_join_multicast requires an id (2), whose lock is held (3), an address as
            // long as its family says, and any context.
            Membership::Full => unsafe { (locked.table.rdma_join_multicast)(locked.raw, raw.as_mut_ptr(), name) },
            Membership::SendOnly => {
                let mut attr = rdma_cm_join_mc_attr_ex {
                    comp_mask: (Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS).0,
                    join_flags: rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
                    addr: raw.as_mut_ptr(),
                };
                // SAFETY: rdma_join_multicast_ex requires an id (2), whose lock is held (3), and
                // attributes that point to an address: `attr` and `raw` live during the call.
                unsafe { (locked.table.rdma_join_multicast_ex)(locked.raw, &raw mut attr, name) }
            }
        };
        reason::check(Verb::JoinMulticast, call)?;
        if let Some(known) = locked.known() {
            known.groups.push((number as u64, address));
        }
        Ok(())
    }

    fn leave(&self, address: SocketAddr) -> Result<()> {
        let mut locked = self.lock(Verb::LeaveMulticast)?;
        // librdmacm leaves the group of this address that was joined last.
        let joined = locked.known().and_then(|known| {
            let at = known.groups.iter().rposition(|&(_, group)| group == address)?;
            Some(known.groups.remove(at))
        });
        if joined.is_none() {
            return Err(Error::new(Verb::LeaveMulticast, ErrorKind::NotFound));
        }
        let mut raw = RawAddr::new(address);
        // SAFETY: rdma_leave_multicast requires an id (2), whose lock is held (3), and an address.
        // It does not wait: all events of the group were acknowledged as they were taken (4).
        let call = || unsafe { (locked.table.rdma_leave_multicast)(locked.raw, raw.as_mut_ptr()) };
        let done = reason::check(Verb::LeaveMulticast, call);
        if done.as_ref().is_err_and(|error| error.errno() != Some(libc::EADDRNOTAVAIL)) {
            // The group's events that are still in the kernel point to freed memory (8).
            locked.state.broken = true;
        }
        done
    }
}

impl Id<Ud> {
    /// Binds a queue pair of the same device to the port and partition of the id, with the port
    /// space's Q_Key.
    ///
    /// Post receives, then call [`ready`](InitializedQueuePair::ready) on the queue pair.
    ///
    /// # Errors
    ///
    /// Returns the queue pair. `WrongDevice` if it is another device's; `InvalidInput` if the id is
    /// not bound to a device yet.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init(&self, qp: PreparedQueuePair<Ud>) -> Result<InitializedQueuePair<Ud>, Failed<PreparedQueuePair<Ud>>> {
        self.raw.init_datagram(qp)
    }

    /// The Q_Key of the port space, which all queue pairs of the port space share.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the id is not bound to a device yet.
    pub fn qkey(&self) -> Result<u32> {
        self.raw.qkey()
    }

    /// Asks the listener at the resolved address for its queue pair: `UdEstablished`, `Rejected` or
    /// `Unreachable` follows.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no route was resolved; `TooLong` for the private data.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, options: &UdOptions) -> Result<()> {
        let param = options.to_raw(Verb::Connect, &self.raw, UD_CONNECT_PRIVATE_DATA, 0)?;
        self.raw.connect(param)
    }

    /// Starts to join a multicast group through the device that the id is bound to:
    /// `MulticastJoined` or `MulticastError` follows.
    ///
    /// To receive, attach a queue pair to the group that the event names. Dropping the id leaves
    /// its groups.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the id is not bound to a device, or if the address is not a multicast
    /// address.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: SocketAddr, membership: Membership) -> Result<()> {
        self.raw.join(group, membership)
    }

    /// Leaves a group.
    ///
    /// # Errors
    ///
    /// `NotFound` if the group was not joined. If leaving fails for another reason, for example
    /// because the device has gone, the channel delivers no more events.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<()> {
        self.raw.leave(group)
    }
}

impl ConnectRequest<Ud> {
    /// Binds a queue pair to the port that the request arrived on: [`Id::init`].
    ///
    /// # Errors
    ///
    /// As for [`Id::init`].
    pub fn init(&self, qp: PreparedQueuePair<Ud>) -> Result<InitializedQueuePair<Ud>, Failed<PreparedQueuePair<Ud>>> {
        self.id().init(qp)
    }

    /// Accepts the request: tells the peer to send to this queue pair. Any number of peers may be
    /// told of the same queue pair. No event follows.
    ///
    /// The queue pair must have the port space's Q_Key; a queue pair from [`init`](Self::init) has.
    ///
    /// # Errors
    ///
    /// Returns the request. `WrongDevice`; `TooLong` for the private data; errors of librdmacm.
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(self, qp: impl Into<QpControl<'a, Ud>>, options: &UdOptions) -> Result<Id<Ud>, Failed<Self>> {
        let qp = qp.into();
        let done = (self.id().raw.check_device(Verb::Accept, &qp.context()))
            .and_then(|()| options.to_raw(Verb::Accept, &self.id().raw, UD_ACCEPT_PRIVATE_DATA, qp.qpn()))
            .and_then(|param| self.id().raw.accept(param));
        match done {
            Ok(()) => Ok(self.into_id()),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}
