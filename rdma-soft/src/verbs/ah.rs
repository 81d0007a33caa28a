//! `ibv_ah`: address handles, and address handles made from a work completion.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc, ibv_wc_flags};

use super::call::{Bytes, Handle, In, Made, MinusOne, Out};
use super::context::{Child, ContextState};
use super::device::{self, LinkLayer};
use super::gid::{Mac, Place};
use super::object::{Object, Public, get_field};
use super::pd::PdUse;
use super::{Errno, attr, gid};
use crate::engine::{GRH_LEN, Gid, Grh, Host, Network, Path, PdId, Route};
use crate::node::Node;

/// Private part of an address handle.
#[derive(Debug)]
pub(crate) struct AhState {
    path: Path,
    /// Keeps the number of the destination's host.
    _place: Place,
    pd: PdUse,
    context: Arc<ContextState>,
}

impl AhState {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pd.id
    }
}

impl Public for ibv_ah {
    const MARK: u64 = 0x0061_685f_6168_5f61;
    type Private = AhState;
}

impl Child for ibv_ah {
    const ORDER: u8 = 1;

    fn context(object: &Object<Self>) -> &ContextState {
        &object.context
    }

    /// Posted requests hold their own copy of the path, so the handle may end before they complete.
    fn end(object: &Object<Self>, node: &Node) -> Result<(), Errno> {
        node.with(|engine| engine.release_ah(object.pd.id));
        Ok(())
    }
}

const HOST_UNREACHABLE: Errno = Errno(libc::EHOSTUNREACH);

/// `wc.sl` of a RoCE v2 datagram. RoCE v2 has no service level: mlx5 reports the type of the
/// network header in the two low bits (1 is IPv6, 2 is IPv4), and UCX reads these bits to find the
/// sender's address.
const fn roce_sl(grh: &Grh) -> u8 {
    if grh.is_ipv4() { 0xa } else { 0x9 }
}

/// The path that the attributes describe.
fn path(context: &ContextState, asked: &ibv_ah_attr) -> Result<(Path, Place), Errno> {
    let infiniband = context.link_layer() == LinkLayer::InfiniBand;
    attr::check_port(u32::from(asked.port_num))?;
    let (sl, slid) = if infiniband { (asked.sl & 15, context.device().lid()) } else { (0, 0) };
    if asked.is_global == 0 {
        // Without a GRH the address is a LID, and only InfiniBand has LIDs.
        return match (infiniband, device::all().any(|device| device.lid() == asked.dlid)) {
            (true, true) => Ok((Path { host: Host::LOCAL, grh: Grh::NONE, group: None, sl, slid }, Place::Here)),
            (true, false) => Err(HOST_UNREACHABLE),
            (false, _) => Err(Errno::INVAL),
        };
    }
    let ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } = asked.grh;
    let source = context.gids().get(usize::from(sgid_index)).ok_or(Errno::INVAL)?.address();
    // SAFETY: reading a union field requires a valid value: `raw` is 16 bytes, all of them
    // initialised, and any bytes are a GID.
    let destination = Gid(unsafe { dgid.raw });
    let group = destination.is_multicast().then_some(destination);
    let is_own = || context.gids().iter().any(|entry| entry.address() == destination);
    let place = match group {
        Some(_) => Place::Here,
        None => gid::find(context.device(), is_own(), source, destination)?,
    };
    let network = if infiniband { Network::InfiniBand } else { Network::Ip };
    let route = Route { network, source, destination, traffic_class, flow_label, hop_limit };
    let grh = Grh::new(&route);
    let sl = if infiniband { sl } else { roce_sl(&grh) };
    Ok((Path { host: place.host(), grh, group, sl, slid }, place))
}

/// Where the address vector of a connection leads. `EHOSTUNREACH` for the address of another host
/// that this process does not reach: there, other processes have the queue pair numbers of this
/// host.
pub(super) fn place(context: &ContextState, asked: &ibv_ah_attr) -> Result<Place, Errno> {
    match path(context, asked)? {
        (Path { group: Some(_), .. }, _) => Err(Errno::INVAL),
        (_, place) => Ok(place),
    }
}

fn create(ibv_pd: &Handle<ibv_pd>, asked: &ibv_ah_attr) -> Made<ibv_ah> {
    let pd = ibv_pd.get()?;
    let held = pd.hold()?;
    let node = Node::get()?;
    let (path, place) = path(&pd.context, asked)?;
    node.with(|engine| engine.hold_ah(held.id))?;
    let public = ibv_ah { context: get_field!(pd, context), pd: ibv_pd.raw(), handle: 0 };
    Ok(pd.context.create(public, AhState { path, _place: place, pd: held, context: Arc::clone(&pd.context) }))
}

/// `ibv_create_ah`.
pub(super) fn create_ah(pd: Handle<ibv_pd>, attr: In<ibv_ah_attr>) -> Made<ibv_ah> {
    create(&pd, attr.get()?)
}

/// Attributes of an address handle that leads back to the sender of a datagram.
fn answer(context: &ContextState, port: u8, wc: &ibv_wc, grh: Option<[u8; GRH_LEN]>) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    let Some(bytes) = grh else { return Ok(attr) };
    attr.is_global = 1;
    let grh = Grh(bytes);
    let own = grh.destination();
    // The datagram was sent to a multicast group: a group cannot be a source address, and the
    // header does not say which unicast GID to answer from.
    if own.is_multicast() {
        return Err(Errno::INVAL);
    }
    let is_ipv4 = bytes[0] >> 4 != 6;
    if is_ipv4 && bytes[20] >> 4 != 4 {
        return Err(Errno(libc::EPROTONOSUPPORT));
    }
    let index = context.gids().iter().position(|entry| entry.address() == own).ok_or(Errno(libc::ENODATA))?;
    attr.grh.sgid_index = u8::try_from(index).map_err(|_| Errno::INVAL)?;
    let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    attr.grh.flow_label = word & 0x000f_ffff;
    if is_ipv4 {
        attr.grh.dgid.raw = Gid::from_ipv4([bytes[32], bytes[33], bytes[34], bytes[35]]).0;
        (attr.grh.hop_limit, attr.grh.traffic_class) = (bytes[28], bytes[21]);
    } else {
        let mut source = [0; 16];
        source.copy_from_slice(&bytes[8..24]);
        attr.grh.dgid.raw = source;
        attr.grh.hop_limit = bytes[7];
        #[allow(clippy::cast_possible_truncation, reason = "eight bits of the word")]
        let traffic_class = (word >> 20) as u8;
        attr.grh.traffic_class = traffic_class;
    }
    Ok(attr)
}

/// Calls [`answer`] with the GRH if `wc` has the flag `IBV_WC_GRH`, and without one otherwise.
fn answer_to(context: &ContextState, port: u8, wc: &In<ibv_wc>, grh: &Bytes<ibv_grh>) -> Result<ibv_ah_attr, Errno> {
    let wc = wc.get()?;
    let is_global = wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    answer(context, port, wc, if is_global { Some(grh.get::<GRH_LEN>()?) } else { None })
}

/// `ibv_init_ah_from_wc`.
pub(super) fn init_ah_from_wc(
    context: Handle<ibv_context>,
    port: u8,
    wc: In<ibv_wc>,
    grh: Bytes<ibv_grh>,
    attr: Out<ibv_ah_attr>,
) -> Result<(), MinusOne> {
    Ok(attr.write(answer_to(context.get()?, port, &wc, &grh)?)?)
}

/// `ibv_create_ah_from_wc`.
pub(super) fn create_ah_from_wc(pd: Handle<ibv_pd>, wc: In<ibv_wc>, grh: Bytes<ibv_grh>, port: u8) -> Made<ibv_ah> {
    create(&pd, &answer_to(&pd.get()?.context, port, &wc, &grh)?)
}

/// The VLAN of untagged frames.
const NO_VLAN: u16 = 0xffff;

/// `ibv_resolve_eth_l2_from_gid`: the Ethernet address and the VLAN to which frames for the
/// attributes' destination would go. `vid` may be null. Returns a negative error number:
/// `EHOSTUNREACH` for a destination that no interface of this host has.
///
/// The device sends no frames; programs that make packets of their own ask for these.
pub(super) fn resolve_eth_l2_from_gid(
    context: Handle<ibv_context>,
    attr: In<ibv_ah_attr>,
    eth_mac: Out<u8>,
    vid: Out<u16>,
) -> c_int {
    // SAFETY: `at` requires that promise 2 covers an Ethernet address: `verbs.h` declares an array
    // of `ETHERNET_LL_SIZE` bytes.
    let eth_mac = unsafe { eth_mac.at::<Mac>(0) };
    let resolved = eth_mac.fill(|| resolve_mac(context.get()?, attr.get()?));
    match resolved {
        Ok(()) => {
            // Fails only if C asks for no VLAN.
            let _unwanted = vid.write(NO_VLAN);
            0
        }
        Err(Errno(errno)) => -errno,
    }
}

fn resolve_mac(context: &ContextState, asked: &ibv_ah_attr) -> Result<Mac, Errno> {
    attr::check_port(u32::from(asked.port_num))?;
    // On InfiniBand, packets have no Ethernet addresses.
    let is_ethernet = context.link_layer() == LinkLayer::Ethernet;
    if !is_ethernet || context.gids().get(usize::from(asked.grh.sgid_index)).is_none() {
        return Err(Errno::INVAL);
    }
    // SAFETY: reading a union field requires a valid value: `raw` is 16 bytes, all of them
    // initialised, and any bytes are a GID.
    gid::mac(Gid(unsafe { asked.grh.dgid.raw })).ok_or(HOST_UNREACHABLE)
}
