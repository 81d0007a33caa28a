//! `ibv_ah`: address handles, and how one is made of a completion.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc, ibv_wc_flags};

use super::context::{self, Child, ContextState};
use super::device::LinkLayer;
use super::errno::{minus_one, pointer, status};
use super::object::{Object, Public};
use super::{Errno, attr, gid, pd};
use crate::engine::limits::MAX_AH;
use crate::engine::{GRH_LEN, Gid, Grh, Host, Network, Path, PdId, Route};
use crate::node::Node;

/// What the device keeps about an address handle.
#[derive(Debug)]
pub(crate) struct AhState {
    path: Path,
    pd: PdId,
    context: Arc<ContextState>,
}

impl AhState {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }
}

impl Public for ibv_ah {
    const MARK: u64 = 0x0061_685f_6168_5f61;
    type Private = AhState;
}

/// Finds the address handle behind a pointer from C.
///
/// # Safety
///
/// As for [`Object::get`].
#[inline]
pub(crate) unsafe fn get<'a>(ah: *mut ibv_ah) -> Result<&'a AhState, Errno> {
    // SAFETY: the caller's promise.
    unsafe { Object::get(ah) }.map(Object::private)
}

/// Address handles of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

const HOST_UNREACHABLE: Errno = Errno(libc::EHOSTUNREACH);

/// The way to where the attributes say.
fn path(context: &ContextState, asked: &ibv_ah_attr) -> Result<Path, Errno> {
    let infiniband = context.link_layer() == LinkLayer::InfiniBand;
    attr::check_port(u32::from(asked.port_num))?;
    let (sl, slid) = if infiniband { (asked.sl & 15, attr::LID) } else { (0, 0) };
    if asked.is_global == 0 {
        // Without a global address there is the local one, and only InfiniBand has that.
        return match (infiniband, asked.dlid == attr::LID) {
            (true, true) => Ok(Path { host: Host::LOCAL, grh: Grh::NONE, group: None, sl, slid }),
            (true, false) => Err(HOST_UNREACHABLE),
            (false, _) => Err(Errno::INVAL),
        };
    }
    let ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } = asked.grh;
    let source = context.gids().get(usize::from(sgid_index)).ok_or(Errno::INVAL)?.address();
    // SAFETY: every bit pattern is a GID.
    let destination = Gid(unsafe { dgid.raw });
    let is_here =
        || gid::table(context.link_layer(), context.guid()).iter().any(|entry| entry.address() == destination);
    let group = destination.is_multicast().then_some(destination);
    // The host may have got addresses since the device was opened.
    if group.is_none() && !context.gids().iter().any(|entry| entry.address() == destination) && !is_here() {
        return Err(HOST_UNREACHABLE);
    }
    let network = if infiniband { Network::InfiniBand } else { Network::Ip };
    let route = Route { network, source, destination, traffic_class, flow_label, hop_limit };
    Ok(Path { host: Host::LOCAL, grh: Grh::new(&route), group, sl, slid })
}

/// # Safety
///
/// C's promises about the domain.
unsafe fn create(ibv_pd: *mut ibv_pd, asked: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: the caller's promise.
    let pd = unsafe { pd::get(ibv_pd) }?;
    let node = Node::get()?;
    let path = path(&pd.context, asked)?;
    let count = |count| (count < MAX_AH).then_some(count + 1);
    COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).map_err(|_| Errno::NOMEM)?;
    node.with(|engine| engine.hold_pd(pd.id)).inspect_err(|_| {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    })?;
    // SAFETY: a live domain.
    let context = unsafe { (*ibv_pd).context };
    let state = AhState { path, pd: pd.id, context: Arc::clone(&pd.context) };
    let ah = Object::create(ibv_ah { context, pd: ibv_pd, handle: 0 }, state);
    pd.context.adopt(Child::Ah(ah));
    Ok(ah)
}

/// `ibv_create_ah`.
pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: C's promise: valid for reads, and nobody writes to it.
    let asked = unsafe { &*attr };
    // SAFETY: C's promise about the domain.
    pointer(unsafe { create(pd, asked) })
}

fn release(state: &AhState) -> Result<(), Errno> {
    Node::get()?.with(|engine| engine.release_pd(state.pd));
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// `ibv_destroy_ah`. Requests that were posted with it have their own copy.
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: C's promise about the handle.
    status(unsafe { get(ah) }.and_then(|state| {
        release(state)?;
        state.context.disown(ah);
        // SAFETY: C's promise: nobody uses a handle that is being freed; `state` is not used below.
        unsafe { Object::free(ah) }
    }))
}

/// Ends an address handle whose context is closed.
///
/// # Safety
///
/// As for [`Object::get`].
pub(super) unsafe fn abandon(ah: *mut ibv_ah) {
    // SAFETY: the caller's promise.
    if let Ok(object) = unsafe { Object::get(ah) } {
        // In a forked child there is nothing to release.
        let _released = release(object.private());
        object.abandon();
    }
}

/// How to answer the sender of a datagram.
fn answer(context: &ContextState, port: u8, wc: &ibv_wc, grh: Option<&[u8; GRH_LEN]>) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..Default::default()
    };
    let Some(bytes) = grh else { return Ok(attr) };
    attr.is_global = 1;
    let grh = Grh(*bytes);
    let own = grh.destination();
    // A group cannot be a sender; so nothing says which address to answer from.
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

/// # Safety
///
/// C's promises about the context, the completion and the header, which is only read if the completion says that it is one.
unsafe fn answer_to(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    // SAFETY: the caller's promise.
    let context = unsafe { context::get(context) }?;
    // SAFETY: the caller's promise: valid for reads, and nobody writes to it.
    let wc = unsafe { &*wc };
    let mut bytes = [0; GRH_LEN];
    let is_global = wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    if is_global {
        // It lies in a receive, aligned or not.
        // SAFETY: the caller's promise: valid for reads of 40 bytes; `bytes` is a local.
        unsafe { ptr::copy_nonoverlapping(grh.cast::<u8>(), bytes.as_mut_ptr(), GRH_LEN) };
    }
    answer(context, port, wc, is_global.then_some(&bytes))
}

/// `ibv_init_ah_from_wc`.
pub(super) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: C's promises.
    minus_one(unsafe { answer_to(context, port, wc, grh) }.map(|found| {
        // SAFETY: C's promise: valid for writes.
        unsafe { attr.write(found) };
    }))
}

/// `ibv_create_ah_from_wc`.
pub(super) unsafe extern "C" fn create_ah_from_wc(
    ibv_pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: C's promise about the domain.
    let found = unsafe { pd::get(ibv_pd) }.and_then(|_| {
        // SAFETY: a live domain.
        let context = unsafe { (*ibv_pd).context };
        // SAFETY: C's promises.
        let attr = unsafe { answer_to(context, port, wc, grh) }?;
        // SAFETY: C's promise about the domain.
        unsafe { create(ibv_pd, &attr) }
    });
    pointer(found)
}
