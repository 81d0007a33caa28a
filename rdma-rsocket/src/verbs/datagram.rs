//! Datagrams: requests with memory to receive, address handles.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{
    RDMA_UDP_QKEY, ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_post_recv, ibv_post_send, ibv_recv_wr,
    ibv_sa_path_rec, ibv_send_flags, ibv_send_wr, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
    ibv_wr_opcode,
};

use super::id::RawId;
use super::queues::{Pieces, RECEIVE};
use super::{Id, Queues, Region, number, pointer};

/// Entries of a port's GID table that are looked through.
const GIDS: c_int = 64;

/// An address handle, for one path.
#[derive(Debug)]
pub(crate) struct Handle {
    /// The id whose domain this is (3).
    id: Arc<RawId>,
    raw: NonNull<ibv_ah>,
}

// SAFETY: Send requires that another thread may use and drop the value: verbs on a handle may be
// called in any thread (4), and the value owns it (2).
unsafe impl Send for Handle {}
// SAFETY: Sync requires that several threads may use the value: posts only read the handle (4).
unsafe impl Sync for Handle {}

impl Handle {
    /// A handle in the domain of an id, for the path that another id has resolved.
    pub(crate) fn new(id: &Id, resolved: &Id) -> Result<Self, Errno> {
        let (_, domain) = id.device()?;
        let mut attributes = attributes(resolved)?;
        // SAFETY: ibv_create_ah requires a live domain, that of a live id (2), and attributes, a
        // local.
        let raw = pointer(|| unsafe { (id.libraries().verbs.ibv_create_ah)(domain.as_ptr(), &raw mut attributes) })?;
        Ok(Self { id: id.share(), raw })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: ibv_destroy_ah requires a live handle (2) that no request uses: a request in
        // flight keeps its handle.
        let _kept = unsafe { (self.id.libraries().verbs.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}

/// The attributes of an id's path.
fn attributes(id: &Id) -> Result<ibv_ah_attr, Errno> {
    let (path, port_num) = path(id)?;
    let global = ibv_global_route {
        dgid: path.dgid,
        flow_label: u32::from_be(path.flow_label),
        sgid_index: gid_index(id, port_num, &path.sgid)?,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
    };
    let is_global = path.hop_limit > 1;
    Ok(ibv_ah_attr {
        grh: if is_global { global } else { ibv_global_route::default() },
        dlid: u16::from_be(path.dlid),
        sl: path.sl,
        static_rate: path.rate,
        is_global: is_global.into(),
        port_num,
        ..ibv_ah_attr::default()
    })
}

/// The path of an id whose route is resolved, and its port. `ENETUNREACH` if it has none.
fn path(id: &Id) -> Result<(ibv_sa_path_rec, u8), Errno> {
    // SAFETY: the reference requires a live id (2) that nobody changes during the borrow: only
    // calls on it do (4).
    let raw = unsafe { &*id.as_ptr() };
    let path = NonNull::new(raw.route.path_rec).filter(|_| raw.route.num_paths > 0).ok_or(Errno::ENETUNREACH)?;
    // SAFETY: the read requires a path record: the id has at least one.
    Ok((unsafe { path.read() }, raw.port_num))
}

/// The index of a GID in a port's table; 0 if it is not there.
fn gid_index(id: &Id, port_num: u8, wanted: &ibv_gid) -> Result<u8, Errno> {
    let (context, _) = id.device()?;
    // SAFETY: the read requires initialised bytes: a GID is 16 bytes, whichever field is used.
    let bytes = |gid: &ibv_gid| unsafe { gid.raw };
    let is_wanted = |index: &c_int| {
        let mut gid = ibv_gid::default();
        // SAFETY: ibv_query_gid requires an open context, that of a live id (2), and space for a
        // GID, a local.
        let result = unsafe { (id.libraries().verbs.ibv_query_gid)(context.as_ptr(), port_num, *index, &raw mut gid) };
        result == 0 && bytes(&gid) == bytes(wanted)
    };
    Ok((0..GIDS).find(is_wanted).and_then(|index| index.try_into().ok()).unwrap_or(0))
}

impl Queues {
    /// The number of the queue pair.
    pub(crate) fn pair_number(&self) -> u32 {
        // SAFETY: the read requires a live queue pair (2).
        unsafe { (*self.pair()).qp_num }
    }

    /// Posts a receive of a datagram, with space for the global route header in front.
    pub(crate) fn receive_datagram(
        &mut self,
        request: u64,
        region: &Region,
        piece: (usize, usize),
    ) -> Result<(), Errno> {
        let mut list = Pieces::of(region, &[piece])?;
        let mut wr = ibv_recv_wr {
            wr_id: RECEIVE | request,
            sg_list: list.entries.as_mut_ptr(),
            num_sge: list.len,
            ..ibv_recv_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_recv requires a live queue pair (2), used by this thread alone (`&mut`),
        // and a list of requests, all locals. The device accesses the piece while its region is
        // registered only, and that ends before the memory is freed.
        number(unsafe { ibv_post_recv(self.pair(), &raw mut wr, &raw mut bad) })
    }

    /// Posts the send of a datagram to a queue pair. The caller keeps the handle until the request
    /// has ended.
    pub(crate) fn send_datagram(
        &mut self,
        request: u64,
        region: &Region,
        piece: (usize, usize),
        (handle, pair): (&Arc<Handle>, u32),
    ) -> Result<(), Errno> {
        let mut list = Pieces::of(region, &[piece])?;
        let is_inline = piece.1 <= self.limits().inline.into();
        let remote = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: handle.raw.as_ptr(),
            remote_qpn: pair,
            remote_qkey: RDMA_UDP_QKEY,
        };
        let mut wr = ibv_send_wr {
            wr_id: request,
            sg_list: list.entries.as_mut_ptr(),
            num_sge: list.len,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: if is_inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 },
            wr: ibv_send_wr__bindgen_ty_2 { ud: remote },
            ..ibv_send_wr::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send requires a live queue pair (2), used by this thread alone (`&mut`),
        // a list of requests, all locals, and a live handle, which the caller keeps. The device
        // accesses the piece as for a receive.
        number(unsafe { ibv_post_send(self.pair(), &raw mut wr, &raw mut bad) })
    }
}
