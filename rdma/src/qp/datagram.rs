//! Bring-up of datagram queue pairs, which needs no peer, and their endpoints.

mod address_cache;

pub use address_cache::AddressCache;

use super::attr::QpAttr;
use super::bring_up::{InitializedQueuePair, random_psn};
use super::control::QpInner;
use super::datagram_endpoint::DatagramEndpoint;
use super::multicast::MulticastAttachment;
use super::port::Chosen;
use super::send::{LONGEST_DATAGRAM, SendQueue};
use super::transport::{Transport, Ud};
use super::{QpBuilder, QpControl, QueuePair};
use crate::ah::{AddressHandle, Source};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::pd::ProtectionDomain;
use crate::types::{Capabilities, Gid, Lid, Path, QpAttrMask, QpState};

/// Options to bind a datagram queue pair to a port. Options that are not set are chosen from the
/// device's attributes.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::{DatagramOptions, DeviceSelector, QueuePair};
///
/// let opened = rdma::open(&DeviceSelector::Any)?;
/// let pd = opened.context.alloc_pd()?;
/// let cq = opened.context.create_cq(64)?;
/// let options = DatagramOptions::new(0x1234_5678).port(opened.port);
/// let mut qp = QueuePair::datagram(&pd).cq(&cq).build()?.init(&options)?;
/// qp.post_recv(pd.allocate(rdma::Grh::LEN + 1024)?, 1)?;
/// let qp = qp.ready()?;
/// println!("reach me at {:?}", qp.endpoint()?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct DatagramOptions {
    qkey: u32,
    port: Option<u8>,
    gid_index: Option<u8>,
    pkey_index: u16,
    psn: Option<u32>,
}

impl DatagramOptions {
    /// Options with all defaults: the first active port, its [best GID](crate::Context::best_gid),
    /// P_Key 0, a random PSN.
    ///
    /// `qkey` is the queue key (Q_Key). Datagrams that were sent with another Q_Key are dropped
    /// silently. A Q_Key with its highest bit set is reserved for privileged processes.
    pub fn new(qkey: u32) -> Self {
        Self { qkey, port: None, gid_index: None, pkey_index: 0, psn: None }
    }

    setters! {
        /// The port.
        port(port: u8) = Some(port);

        /// The index of the local GID.
        gid_index(index: u8) = Some(index);

        /// The partition key's index.
        pkey_index(index: u16) = index;

        /// The PSN of the first packet sent; only the low 24 bits are used.
        psn(psn: u32) = Some(psn & 0xff_ffff);
    }
}

/// The state kept between INIT and RTS.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    psn: u32,
}

/// Updates the bound port, its Q_Key and the datagram length limit after a `modify` by the caller:
/// the port's MTU limits the length of datagrams.
#[cold]
pub(super) fn follow(control: &mut QpInner, send: &mut SendQueue, attr: &QpAttr) {
    let raw = attr.as_raw();
    if attr.target() == Some(QpState::RESET) {
        unbind(control, send);
    }
    if attr.mask().contains(QpAttrMask::PORT) {
        match Chosen::choose(&control.context(), Some(raw.port_num), None) {
            Ok(chosen) => bind(control, send, chosen, 0),
            // A port whose attributes cannot be queried sets no limit; only the device limits the
            // length.
            Err(_) => unbind(control, send),
        }
    }
    let bound = control.datagrams.as_mut().and_then(|datagrams| datagrams.bound.as_mut());
    if let Some((_, qkey)) = bound.filter(|_| attr.mask().contains(QpAttrMask::QKEY)) {
        *qkey = raw.qkey;
    }
}

fn unbind(control: &mut QpInner, send: &mut SendQueue) {
    send.set_max_message(LONGEST_DATAGRAM);
    if let Some(datagrams) = &mut control.datagrams {
        datagrams.bound = None;
    }
}

/// The length of the longest datagram of a port, in bytes.
fn longest(chosen: &Chosen) -> u32 {
    chosen.mtu.bytes().unwrap_or(LONGEST_DATAGRAM)
}

fn bind(control: &mut QpInner, send: &mut SendQueue, chosen: Chosen, qkey: u32) {
    send.set_max_message(longest(&chosen));
    if let Some(datagrams) = &mut control.datagrams {
        datagrams.bound = Some((chosen, qkey));
    }
}

impl QueuePair<Ud> {
    /// Starts the configuration of a datagram queue pair in a domain.
    pub fn datagram(pd: &ProtectionDomain) -> QpBuilder<Ud> {
        QpBuilder::new(pd)
    }
}

impl Transport for Ud {
    const TYPE: rdma_sys::ibv_qp_type = rdma_sys::ibv_qp_type::IBV_QPT_UD;
    const IS_DATAGRAM: bool = true;
    type InitOptions = DatagramOptions;
    type Start = Start;

    fn is_supported(capabilities: &Capabilities) -> bool {
        capabilities.datagrams
    }

    fn init(qp: &mut QueuePair<Self>, options: &DatagramOptions) -> Result<Start> {
        let chosen = Chosen::choose(&qp.context(), options.port, options.gid_index)?;
        let attr = QpAttr::to(QpState::INIT).port(chosen.port).pkey_index(options.pkey_index).qkey(options.qkey);
        qp.control.modify(&attr)?;
        bind(&mut qp.control, &mut qp.send, chosen, options.qkey);
        Ok(Start { psn: options.psn.unwrap_or_else(random_psn) })
    }

    fn init_with(qp: &mut QueuePair<Self>, attr: &QpAttr) -> Result<Start> {
        qp.modify(attr)?;
        Ok(Start { psn: random_psn() })
    }
}

impl InitializedQueuePair<Ud> {
    /// Makes the queue pair ready: moves it through RTR to RTS. No peer is needed.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports, with the queue pair. The queue pair may then be in RTR,
    /// ready to receive only; go back with [`reset`](Self::reset).
    pub fn ready(self) -> Result<QueuePair<Ud>, Failed<Self>> {
        let steps = [QpAttr::to(QpState::RTR), QpAttr::to(QpState::RTS).sq_psn(self.local.psn)];
        match steps.iter().try_for_each(|step| self.qp.control.modify(step)) {
            Ok(()) => Ok(self.qp),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// The address to give to peers: [`QueuePair::endpoint`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::endpoint`].
    pub fn endpoint(&self) -> Result<DatagramEndpoint> {
        self.qp.endpoint()
    }

    /// Joins a multicast group: [`QueuePair::attach_multicast`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::attach_multicast`].
    pub fn attach_multicast(&self, gid: Gid, lid: Lid) -> Result<MulticastAttachment> {
        self.qp.attach_multicast(gid, lid)
    }
}

impl QueuePair<Ud> {
    /// The address to give to peers, so that they can send to this queue pair.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the queue pair is not bound to a port yet.
    pub fn endpoint(&self) -> Result<DatagramEndpoint> {
        self.control().endpoint()
    }

    /// The port that the queue pair is bound to.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the queue pair is not bound to a port yet.
    pub fn port(&self) -> Result<u8> {
        self.control().port()
    }

    /// The length of the longest message that the queue pair can send, in bytes: the port's MTU.
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.send.max_message() as usize
    }

    /// The path to a peer, for an [`AddressHandle`].
    ///
    /// # Errors
    ///
    /// `Incompatible` when the two sides have no common kind of address; `InvalidInput` if the
    /// queue pair is not bound to a port yet.
    pub fn path_to(&self, peer: &DatagramEndpoint) -> Result<Path> {
        self.control().path_to(peer)
    }

    /// Creates the address handle of a peer.
    ///
    /// # Errors
    ///
    /// As for [`path_to`](Self::path_to) and [`ProtectionDomain::create_ah`].
    pub fn address_of(&self, peer: &DatagramEndpoint) -> Result<AddressHandle> {
        self.control().address_of(peer)
    }

    /// Creates the address handle of a datagram's sender, to answer it: `op::send(..).to(&address,
    /// source.qpn, qkey)`. An [`AddressCache`] keeps the handles.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::create_ah`] and [`Source::query_path`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn answer(&self, source: &Source) -> Result<AddressHandle> {
        self.control().answer(source)
    }

    /// Joins a multicast group: the queue pair also receives the group's messages, if they are sent
    /// with its Q_Key.
    ///
    /// The fabric must route the group's messages to this port. On InfiniBand and RoCE, joining
    /// through the connection manager does this and returns the GID and LID; within one port no
    /// such step is needed. Attachments are counted; dropping the last one leaves the group.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the GID is no multicast GID; any other error that the provider reports.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, gid: Gid, lid: Lid) -> Result<MulticastAttachment> {
        self.control().attach_multicast(gid, lid)
    }
}

impl<'a> QpControl<'a, Ud> {
    fn bound(&self, operation: Verb) -> Result<&'a (Chosen, u32)> {
        let bound = self.inner.datagrams.as_ref().and_then(|datagrams| datagrams.bound.as_ref());
        bound.ok_or(Error::new(operation, ErrorKind::InvalidInput))
    }

    /// The address to give to peers, so that they can send to this queue pair.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the queue pair is not bound to a port yet.
    pub fn endpoint(&self) -> Result<DatagramEndpoint> {
        let (chosen, qkey) = self.bound(Verb::QueryQp)?;
        Ok(DatagramEndpoint { qpn: self.qpn(), qkey: *qkey, gid: chosen.gid, lid: chosen.lid, mtu: chosen.mtu })
    }

    /// The port that the queue pair is bound to.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the queue pair is not bound to a port yet.
    pub fn port(&self) -> Result<u8> {
        Ok(self.bound(Verb::QueryQp)?.0.port)
    }

    /// The length of the longest message that the queue pair can send, in bytes: the port's MTU.
    #[must_use]
    pub fn max_message(&self) -> usize {
        let bound = self.inner.datagrams.as_ref().and_then(|datagrams| datagrams.bound.as_ref());
        bound.map_or(LONGEST_DATAGRAM, |(chosen, _)| longest(chosen)) as usize
    }

    /// The path to a peer, for an [`AddressHandle`].
    ///
    /// # Errors
    ///
    /// `Incompatible` when the two sides have no common kind of address; `InvalidInput` if the
    /// queue pair is not bound to a port yet.
    pub fn path_to(&self, peer: &DatagramEndpoint) -> Result<Path> {
        let (chosen, _) = self.bound(Verb::CreateAh)?;
        chosen.path_to((peer.gid, peer.lid), Verb::CreateAh)
    }

    /// Creates the address handle of a peer.
    ///
    /// # Errors
    ///
    /// As for [`path_to`](Self::path_to) and [`ProtectionDomain::create_ah`].
    pub fn address_of(&self, peer: &DatagramEndpoint) -> Result<AddressHandle> {
        self.domain().create_ah(&self.path_to(peer)?)
    }

    /// Creates the address handle of a datagram's sender, to answer it: `op::send(..).to(&address,
    /// source.qpn, qkey)`.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::create_ah`] and [`Source::query_path`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn answer(&self, source: &Source) -> Result<AddressHandle> {
        self.domain().create_ah(&self.answer_path(source)?)
    }

    /// The path to a datagram's sender.
    pub(crate) fn answer_path(&self, source: &Source) -> Result<Path> {
        let (chosen, _) = self.bound(Verb::CreateAh)?;
        let to = source.grh.map(|grh| grh.destination_gid());
        if to.is_none() || to == chosen.gid || source.is_to_a_group() {
            Ok(source.path(chosen.port, chosen.gid_index))
        } else {
            // The datagram was sent to another GID of this port.
            source.query_path(&self.context(), chosen.port)
        }
    }

    /// Joins a multicast group: the queue pair also receives the group's messages, if they are sent
    /// with its Q_Key.
    ///
    /// The fabric must route the group's messages to this port. On InfiniBand and RoCE, joining
    /// through the connection manager does this and returns the GID and LID; within one port no
    /// such step is needed. Attachments are counted; dropping the last one leaves the group.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the GID is no multicast GID; any other error that the provider reports.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, gid: Gid, lid: Lid) -> Result<MulticastAttachment> {
        self.inner.check(Verb::AttachMulticast)?;
        let Some(datagrams) = &self.inner.datagrams else {
            return Err(Error::new(Verb::AttachMulticast, ErrorKind::NotSupported));
        };
        datagrams.groups.attach(gid, lid)
    }

    pub(crate) fn domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: std::sync::Arc::clone(&self.inner.pd) }
    }
}

#[cfg(test)]
mod tests;
