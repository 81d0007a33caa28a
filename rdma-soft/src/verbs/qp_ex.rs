//! `ibv_qp_ex`: the `ibv_wr_*` calls, which collect requests between `wr_start` and `wr_complete` and post them at once.
//!
//! The slots have no size check in `verbs.h`, so every one is filled; one that the device lacks makes `wr_complete` fail, as any
//! mistake in between does. Nothing is posted before `wr_complete`, and then everything or nothing.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use rdma_sys::{
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_cap, ibv_qp_create_send_ops_flags,
    ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type, ibv_sge,
};

use super::errno::{pointer, status};
use super::gate::Gate;
use super::{Errno, ah, post, qp};
use crate::engine::limits::MAX_SGE;
use crate::engine::{Address, Op, SendData, SendFlags, SendRequest, Source};
use crate::node::Node;

/// What is being built.
#[derive(Debug)]
pub(crate) struct Builder(Gate<Batch>);

#[derive(Debug)]
struct Batch {
    /// At most `max_wr`, so that collecting does not allocate.
    requests: Vec<Pending>,
    /// Where each request goes, of a queue pair for datagrams; of others there are none.
    addresses: Vec<Option<Address>>,
    is_datagram: bool,
    entries: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// The first mistake.
    error: Option<Errno>,
    max_wr: usize,
    max_sge: usize,
    max_inline: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    request: SendRequest,
    data: Data,
}

/// Where in the batch a request's data is.
#[derive(Clone, Copy, Debug)]
enum Data {
    List { start: usize, count: usize },
    Inline { start: usize, len: usize },
}

impl Builder {
    pub(crate) fn new(cap: &ibv_qp_cap, is_datagram: bool) -> Self {
        let max_wr = cap.max_send_wr as usize;
        Self(Gate::new(Batch {
            requests: Vec::with_capacity(max_wr),
            addresses: Vec::with_capacity(if is_datagram { max_wr } else { 0 }),
            is_datagram,
            entries: Vec::with_capacity(max_wr),
            inline: Vec::new(),
            error: None,
            max_wr,
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
        }))
    }
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.addresses.clear();
        self.entries.clear();
        self.inline.clear();
        self.error = None;
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn push(&mut self, request: SendRequest) {
        if self.requests.len() == self.max_wr {
            return self.fail(Errno::NOMEM);
        }
        if self.is_datagram && request.op != Op::Send {
            return self.fail(Errno::OPNOTSUPP);
        }
        let data = Data::List { start: self.entries.len(), count: 0 };
        self.requests.push(Pending { request, data });
        if self.is_datagram {
            self.addresses.push(None);
        }
    }

    /// Says where the newest request goes.
    fn set_address(&mut self, address: Address) {
        match self.addresses.last_mut() {
            Some(last) => *last = Some(address),
            None => self.fail(Errno::INVAL),
        }
    }

    /// Gives the newest request its list.
    fn set_list(&mut self, list: &[ibv_sge]) {
        if list.len() > self.max_sge {
            return self.fail(Errno::INVAL);
        }
        let start = self.entries.len();
        let Some(request) = self.requests.last_mut() else { return self.fail(Errno::INVAL) };
        request.data = Data::List { start, count: list.len() };
        self.entries.extend_from_slice(list);
    }

    /// Gives the newest request one more piece of inline data. `first`: it has none so far.
    fn add_inline(&mut self, piece: &[u8], first: bool) {
        let at = self.inline.len();
        let Some(request) = self.requests.last_mut() else { return self.fail(Errno::INVAL) };
        let (start, before) = match request.data {
            Data::Inline { start, len } if !first => (start, len),
            _ => (at, 0),
        };
        let len = before.saturating_add(piece.len());
        if len > self.max_inline {
            return self.fail(Errno::INVAL);
        }
        request.data = Data::Inline { start, len };
        self.inline.extend_from_slice(piece);
    }

    /// Posts everything.
    fn post(&self, shared: &qp::QpShared) -> Result<(), Errno> {
        if let Some(errno) = self.error {
            return Err(errno);
        }
        if self.addresses.iter().any(Option::is_none) {
            return Err(Errno::INVAL);
        }
        Node::get()?.with(|engine| {
            if (engine.send_room(shared.id())? as usize) < self.requests.len() {
                return Err(Errno::NOMEM);
            }
            for (index, request) in self.requests.iter().enumerate() {
                let piece;
                let data = match request.data {
                    Data::List { start, count } => SendData::List(&self.entries[start..start + count]),
                    Data::Inline { start, len } => {
                        piece = [Source::of(&self.inline[start..start + len])];
                        SendData::Inline(&piece)
                    }
                };
                match self.addresses.get(index).and_then(Option::as_ref) {
                    Some(address) => engine.post_datagram(shared.id(), &request.request, data, address)?,
                    None => engine.post_send(shared.id(), &request.request, data)?,
                }
            }
            Ok(())
        })
    }
}

/// The context's `create_qp_ex`.
pub(super) unsafe extern "C" fn create_qp_ex(_: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: C's promises about the structure and the objects that it names.
    pointer(unsafe { create(attr) }).cast()
}

/// # Safety
///
/// C's promises about the structure, as far as its mask says that it is filled, and the objects that it names.
unsafe fn create(attr: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp_ex, Errno> {
    type Mask = ibv_qp_init_attr_mask;
    type Ops = ibv_qp_create_send_ops_flags;
    const KNOWN: u32 =
        Mask::IBV_QP_INIT_ATTR_PD.0 | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0 | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    const DATAGRAM_OPS: u32 = Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    const OPS: u32 = Ops::IBV_QP_EX_WITH_RDMA_WRITE.0
        | Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0
        | Ops::IBV_QP_EX_WITH_SEND.0
        | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0
        | Ops::IBV_QP_EX_WITH_RDMA_READ.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    // SAFETY: the caller's promise: the mask is always there. The fields behind it are read under their bits only, because older
    // headers have shorter structures.
    let mask = unsafe { (*attr).comp_mask };
    if mask & !KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if mask & Mask::IBV_QP_INIT_ATTR_PD.0 == 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the mask's bit.
    if mask & Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0 != 0 && unsafe { (*attr).create_flags } != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let extended = mask & Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0 != 0;
    // SAFETY: the caller's promise: a field that every version has.
    let known = if unsafe { (*attr).qp_type } == ibv_qp_type::IBV_QPT_UD { DATAGRAM_OPS } else { OPS };
    // SAFETY: the mask's bit.
    if extended && unsafe { (*attr).send_ops_flags } & !u64::from(known) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: the mask's bit.
    let pd = unsafe { (*attr).pd };
    // SAFETY: the extended structure begins with the fields of the plain one, in its order (the layout is checked below), and
    // with the fields up to `sq_sig_all` every version of it has them.
    let asked = unsafe { &mut *attr.cast::<ibv_qp_init_attr>() };
    // SAFETY: the caller's promise.
    unsafe { qp::create(pd, asked, extended) }
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ibv_qp_init_attr_ex, cap) == offset_of!(ibv_qp_init_attr, cap));
    assert!(offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all));
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) <= size_of::<ibv_qp_init_attr>());
};

/// `ibv_qp_to_qp_ex`: null for a queue pair that was not created for the extended interface.
pub(super) unsafe extern "C" fn qp_to_qp_ex(ibv_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: C's promise about the queue pair.
    match unsafe { qp::get(ibv_qp) } {
        Ok(shared) if shared.builder().is_some() => ibv_qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// An extended queue pair with its slots filled and everything else zero.
pub(crate) fn slots() -> ibv_qp_ex {
    ibv_qp_ex {
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(no_bind_mw),
        wr_local_inv: Some(no_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(no_inv),
        wr_send_tso: Some(no_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(no_inv),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(no_atomic_write),
        wr_flush: Some(no_flush),
        ..Default::default()
    }
}

/// The builder of a queue pair that has one.
///
/// # Safety
///
/// C's promise about the queue pair.
unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> Option<&'a Builder> {
    // SAFETY: the caller's promise.
    unsafe { qp::get(qp.cast()) }.ok()?.builder()
}

/// # Safety
///
/// C's promise about the queue pair.
unsafe fn with_batch(qp: *mut ibv_qp_ex, work: impl FnOnce(&mut Batch)) {
    // SAFETY: the caller's promise.
    if let Some(builder) = unsafe { builder(qp) } {
        builder.0.with(work);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: C's promise about the queue pair.
    if let Some(builder) = unsafe { builder(qp) } {
        builder.0.enter();
        builder.0.with(Batch::clear);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: C's promise about the queue pair.
    status(unsafe { qp::get(qp.cast()) }.and_then(|shared| {
        let builder = shared.builder().ok_or(Errno::OPNOTSUPP)?;
        let posted = builder.0.with(|batch| batch.post(shared));
        builder.0.leave();
        posted
    }))
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: C's promise about the queue pair.
    if let Some(builder) = unsafe { builder(qp) } {
        builder.0.leave();
    }
}

/// Begins a request: the id and the flags are those that C has put into the public part, the rest is `fill`'s.
///
/// # Safety
///
/// C's promise about the queue pair.
unsafe fn request(qp: *mut ibv_qp_ex, op: Op, fill: impl FnOnce(&mut SendRequest)) {
    // SAFETY: a field of a live object (C's promise 1), which C writes from the thread that builds, if at all (C's promise 2).
    let wr_id = unsafe { (*qp).wr_id };
    // SAFETY: another such field.
    let flags = post::flags(unsafe { (*qp).wr_flags });
    let mut request = SendRequest { wr_id, remote_addr: 0, compare_add: 0, swap: 0, rkey: 0, imm: 0, op, flags };
    fill(&mut request);
    // SAFETY: of `with_batch`: a live queue pair (C's promise 1).
    unsafe { with_batch(qp, |batch| batch.push(request)) };
}

macro_rules! builders {
    ($($name:ident($($argument:ident: $type:ty),*) $op:expr, $flags:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: of `request`: a live queue pair (C's promise 1).
            unsafe {
                request(qp, $op, |request| {
                    request.flags |= $flags;
                    $(request.$argument = $argument;)*
                });
            }
        })*
    };
}

builders! {
    wr_send() Op::Send, SendFlags::empty();
    wr_send_imm(imm: u32) Op::Send, SendFlags::IMM;
    wr_rdma_write(rkey: u32, remote_addr: u64) Op::Write, SendFlags::empty();
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) Op::Write, SendFlags::IMM;
    wr_rdma_read(rkey: u32, remote_addr: u64) Op::Read, SendFlags::empty();
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare_add: u64, swap: u64) Op::CompareSwap, SendFlags::empty();
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, compare_add: u64) Op::FetchAdd, SendFlags::empty();
}

unsafe extern "C" fn wr_set_ud_addr(ibv_qp: *mut ibv_qp_ex, handle: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: C's promise about the queue pair.
    let pd = unsafe { qp::get(ibv_qp.cast()) }.map(qp::QpShared::pd);
    // SAFETY: C's promise about the address handle.
    let found = unsafe { ah::get(handle) }.ok().filter(|handle| Ok(handle.pd()) == pd);
    let work = |batch: &mut Batch| match found {
        Some(handle) => batch.set_address(Address { path: *handle.path(), qpn, qkey }),
        None => batch.fail(Errno::INVAL),
    };
    // SAFETY: C's promise about the queue pair.
    unsafe { with_batch(ibv_qp, work) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: C's promise about the queue pair.
    unsafe { with_batch(qp, |batch| batch.set_list(&[ibv_sge { addr, length, lkey }])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let list = if count == 0 || count > MAX_SGE {
        &[]
    } else {
        // SAFETY: C's promise: valid for reads of `count` entries.
        unsafe { slice::from_raw_parts(list, count) }
    };
    let work = |batch: &mut Batch| if count > MAX_SGE { batch.fail(Errno::INVAL) } else { batch.set_list(list) };
    // SAFETY: C's promise about the queue pair.
    unsafe { with_batch(qp, work) };
}

/// Inline data, as bytes.
///
/// # Safety
///
/// `addr` is valid for reads of `len` bytes for `'a`, and nobody writes to them meanwhile; or `len` is 0.
unsafe fn bytes<'a>(addr: *const c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(addr.cast(), len) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    // SAFETY: C's promise about inline data.
    let piece = unsafe { bytes(addr, len) };
    // SAFETY: C's promise about the queue pair.
    unsafe { with_batch(qp, |batch| batch.add_inline(piece, true)) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let work = |batch: &mut Batch| {
        batch.add_inline(&[], true);
        for index in 0..count {
            // SAFETY: C's promise: valid for reads of `count` entries.
            let entry = unsafe { &*list.wrapping_add(index) };
            // SAFETY: C's promise about inline data.
            let piece = unsafe { bytes(entry.addr, entry.length) };
            batch.add_inline(piece, false);
        }
    };
    // SAFETY: C's promise about the queue pair.
    unsafe { with_batch(qp, work) };
}

/// What this device does not do.
///
/// # Safety
///
/// C's promise about the queue pair.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { with_batch(qp, |batch| batch.fail(Errno::OPNOTSUPP)) };
}

unsafe extern "C" fn no_bind_mw(qp: *mut ibv_qp_ex, _: *mut ibv_mw, _: u32, _: *const ibv_mw_bind_info) {
    // SAFETY: C's promise about the queue pair.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn no_inv(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: C's promise about the queue pair.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn no_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: C's promise about the queue pair.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn no_atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: C's promise about the queue pair.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn no_flush(qp: *mut ibv_qp_ex, _: u32, _: u64, _: usize, _: u8, _: u8) {
    // SAFETY: C's promise about the queue pair.
    unsafe { refuse(qp) };
}
