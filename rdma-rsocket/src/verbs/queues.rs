//! A queue pair with its completion queue and channel.

use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::c_int;
use nix::errno::Errno;
use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_device_attr, ibv_poll_cq, ibv_port_attr, ibv_post_recv, ibv_post_send, ibv_qp,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_recv_wr, ibv_req_notify_cq, ibv_send_flags, ibv_send_wr,
    ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_sge, ibv_wc,
    ibv_wc_flags, ibv_wc_status, ibv_wr_opcode,
};

use super::id::RawId;
use super::{Access, Id, Libraries, Region, Registration, minus_one, number, pointer, set_nonblocking};

/// Bit of a request's number that marks receives.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Events that are acknowledged together.
const ACKNOWLEDGE: u32 = 256;

/// Sizes of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) send: u16,
    pub(crate) receive: u16,
    pub(crate) inline: u16,
}

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Connected,
    Datagrams,
}

/// The destination of an RDMA write, and its immediate data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) immediate: Option<u32>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The number of the request, without the mark of receives.
    pub(crate) request: u64,
    pub(crate) is_receive: bool,
    pub(crate) is_success: bool,
    /// The received bytes, with the global route header of a datagram.
    pub(crate) len: usize,
    /// The immediate data of a receive, in the host's byte order.
    pub(crate) immediate: Option<u32>,
}

/// A queue pair of an id, whose requests complete in a queue and a channel of its own.
#[derive(Debug)]
pub(crate) struct Queues {
    pair: Pair,
    completions: CompletionQueue,
    limits: Limits,
}

impl Queues {
    /// Makes the queues on the id's device. The limits are lowered to those of the device.
    pub(crate) fn new(id: &Id, transport: Transport, limits: Limits) -> Result<Self, Errno> {
        let most = device_limit(id)?;
        let (send, receive) = (limits.send.min(most), limits.receive.min(most));
        let completions = CompletionQueue::new(id, u32::from(send) + u32::from(receive))?;
        let mut attributes = ibv_qp_init_attr {
            send_cq: completions.queue.as_ptr(),
            recv_cq: completions.queue.as_ptr(),
            qp_type: transport.kind(),
            sq_sig_all: 1,
            cap: ibv_qp_cap {
                max_send_wr: send.into(),
                max_recv_wr: receive.into(),
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: limits.inline.into(),
            },
            ..ibv_qp_init_attr::default()
        };
        let (cm, raw) = (id.libraries().cm, id.as_ptr());
        // SAFETY: rdma_create_qp requires a live id (2), NULL for its own domain, and attributes
        // with live completion queues.
        minus_one(|| unsafe { (cm.rdma_create_qp)(raw, ptr::null_mut(), &raw mut attributes) })?;
        // SAFETY: the read requires a live id (2).
        let pair = Pair { id: id.share(), raw: pointer(|| unsafe { (*raw).qp })? };
        let inline = attributes.cap.max_inline_data.min(u16::MAX.into());
        let limits = Limits { send, receive, inline: inline.try_into().unwrap_or(u16::MAX) };
        Ok(Self { pair, completions, limits })
    }

    /// Allocates memory that the requests may name. Drop it after the queues.
    pub(crate) fn region(&self, id: &Id, len: usize, access: Access) -> Result<Region, Errno> {
        Region::new(id, len, access)
    }

    /// Registers memory of somebody else.
    ///
    /// # Safety
    ///
    /// The memory stays valid for the accesses of `access` while the value lives.
    pub(crate) unsafe fn register(
        &self,
        id: &Id,
        memory: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Registration, Errno> {
        // SAFETY: `new` requires memory that stays valid, this function's condition.
        unsafe { Registration::new(id, memory, len, access) }
    }

    pub(super) fn pair(&self) -> *mut ibv_qp {
        self.pair.raw.as_ptr()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The descriptor that is readable after completions, once [`Self::arm`] was called.
    pub(crate) fn fd(&self) -> RawFd {
        self.completions.fd
    }

    /// Asks for an event at the next completion. Returns false if one was asked for before.
    pub(crate) fn arm(&mut self) -> Result<bool, Errno> {
        self.completions.arm()
    }

    /// Takes the events of the channel. Returns false if there were none.
    pub(crate) fn take_events(&mut self) -> bool {
        self.completions.take_events()
    }

    /// Takes the next completion.
    pub(crate) fn poll(&mut self) -> Result<Option<Completion>, Errno> {
        self.completions.poll()
    }

    /// Posts a receive for immediate data, without memory.
    pub(crate) fn receive(&mut self) -> Result<(), Errno> {
        let mut wr = ibv_recv_wr { wr_id: RECEIVE, ..ibv_recv_wr::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_recv requires a live queue pair (2), used by this thread alone (`&mut`),
        // and a list of requests, which is a local.
        number(unsafe { ibv_post_recv(self.pair.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Posts an RDMA write of pieces of a region. Small ones are copied at once.
    pub(crate) fn send(
        &mut self,
        request: u64,
        region: &Region,
        pieces: &[(usize, usize)],
        target: Target,
    ) -> Result<(), Errno> {
        let mut list = Pieces::of(region, pieces)?;
        let len: usize = pieces.iter().map(|(_, len)| len).sum();
        let is_inline = len > 0 && len <= self.limits.inline.into();
        let mut wr = ibv_send_wr {
            wr_id: request,
            sg_list: list.entries.as_mut_ptr(),
            num_sge: list.len,
            send_flags: if is_inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 },
            ..ibv_send_wr::default()
        };
        address(&mut wr, target);
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send requires a live queue pair (2), used by this thread alone (`&mut`),
        // and a list of requests, all locals. The device accesses the pieces while their region is
        // registered only, and that ends before the memory is freed.
        number(unsafe { ibv_post_send(self.pair.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }
}

impl Transport {
    fn kind(self) -> ibv_qp_type {
        match self {
            Self::Connected => ibv_qp_type::IBV_QPT_RC,
            Self::Datagrams => ibv_qp_type::IBV_QPT_UD,
        }
    }
}

/// Fills in the operation and the destination of a request.
fn address(wr: &mut ibv_send_wr, Target { address: remote_addr, key: rkey, immediate }: Target) {
    wr.wr = ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } };
    wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    if let Some(immediate) = immediate {
        wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data: immediate.to_be() };
    }
}

/// The most bytes of a datagram on the id's port.
pub(crate) fn datagram_limit(id: &Id) -> Result<usize, Errno> {
    let mut attributes = ibv_port_attr::default();
    let ((context, _), verbs) = (id.device()?, id.libraries().verbs);
    // SAFETY: ibv_query_port requires an open context, that of a live id (2), and space for the
    // attributes, a local.
    number(unsafe { verbs.ibv_query_port(context.as_ptr(), id.port(), &raw mut attributes) })?;
    // The number 1 means 256 bytes, and each further one twice as many.
    Ok(1 << (7 + attributes.active_mtu.0.clamp(1, 5)))
}

/// The most requests that a queue of the id's device may hold.
fn device_limit(id: &Id) -> Result<u16, Errno> {
    let mut attributes = ibv_device_attr::default();
    let (context, _) = id.device()?;
    // SAFETY: ibv_query_device requires an open context, that of a live id (2), and space for the
    // attributes, a local.
    number(unsafe { (id.libraries().verbs.ibv_query_device)(context.as_ptr(), &raw mut attributes) })?;
    Ok(u16::try_from(attributes.max_qp_wr).unwrap_or(u16::MAX))
}

/// A queue pair, made by `rdma_create_qp`.
#[derive(Debug)]
struct Pair {
    id: Arc<RawId>,
    raw: NonNull<ibv_qp>,
}

// SAFETY: Send requires that another thread may use and drop the value: verbs on a queue pair may
// be called in any thread (4); its id is used with it, under the same borrow or lock.
unsafe impl Send for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: rdma_destroy_qp requires a live id (3) with a queue pair that nobody uses
        // afterwards (2).
        unsafe { (self.id.libraries().cm.rdma_destroy_qp)(self.id.as_ptr()) };
    }
}

/// A completion queue with a channel.
#[derive(Debug)]
struct CompletionQueue {
    libraries: Libraries,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    fd: RawFd,
    is_armed: bool,
    /// Events that were taken and not acknowledged.
    unacknowledged: u32,
    /// The id whose device this is (3).
    _id: Arc<RawId>,
}

// SAFETY: Send requires that another thread may use and drop the value: verbs on its objects may be
// called in any thread (4), and the value owns them (2).
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    fn new(id: &Id, depth: u32) -> Result<Self, Errno> {
        let (libraries, (context, _)) = (id.libraries(), id.device()?);
        let verbs = libraries.verbs;
        // SAFETY: ibv_create_comp_channel requires an open context: that of a live id (2).
        let channel = pointer(|| unsafe { (verbs.ibv_create_comp_channel)(context.as_ptr()) })?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: ibv_create_cq requires an open context and a live channel.
        let queue =
            pointer(|| unsafe { (verbs.ibv_create_cq)(context.as_ptr(), depth, ptr::null_mut(), channel.as_ptr(), 0) });
        let queue = match queue {
            Ok(queue) => queue,
            Err(errno) => {
                // SAFETY: ibv_destroy_comp_channel requires a live channel without queues.
                let _ignored = unsafe { (verbs.ibv_destroy_comp_channel)(channel.as_ptr()) };
                return Err(errno);
            }
        };
        // SAFETY: the read requires a live channel, which was just made.
        let fd = unsafe { channel.read() }.fd;
        let made = Self { libraries, queue, channel, fd, is_armed: false, unacknowledged: 0, _id: id.share() };
        set_nonblocking(fd)?;
        Ok(made)
    }

    fn arm(&mut self) -> Result<bool, Errno> {
        if self.is_armed {
            return Ok(false);
        }
        // SAFETY: ibv_req_notify_cq requires a live queue (2).
        number(unsafe { ibv_req_notify_cq(self.queue.as_ptr(), 0) })?;
        self.is_armed = true;
        Ok(true)
    }

    fn take_events(&mut self) -> bool {
        let mut is_any = false;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        let take = self.libraries.verbs.ibv_get_cq_event;
        // SAFETY: ibv_get_cq_event requires a live channel (2) and space for two pointers, locals.
        while unsafe { take(self.channel.as_ptr(), &raw mut queue, &raw mut context) } == 0 {
            self.is_armed = false;
            is_any = true;
            self.unacknowledged += 1;
        }
        if self.unacknowledged >= ACKNOWLEDGE {
            self.acknowledge();
        }
        is_any
    }

    fn acknowledge(&mut self) {
        // SAFETY: ibv_ack_cq_events requires a live queue (2) and no more events than were taken.
        unsafe { (self.libraries.verbs.ibv_ack_cq_events)(self.queue.as_ptr(), self.unacknowledged) };
        self.unacknowledged = 0;
    }

    fn poll(&mut self) -> Result<Option<Completion>, Errno> {
        let mut wc = ibv_wc::default();
        // SAFETY: ibv_poll_cq requires a live queue (2) and space for one completion, a local.
        match unsafe { ibv_poll_cq(self.queue.as_ptr(), 1, &raw mut wc) } {
            0 => Ok(None),
            1 => Ok(Some(completion(&wc))),
            _ => Err(Errno::EIO),
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        // SAFETY: ibv_destroy_cq requires a live queue (2) without queue pairs: the pair of the
        // same `Queues` is dropped before (3). All events are acknowledged.
        let _kept = unsafe { (self.libraries.verbs.ibv_destroy_cq)(self.queue.as_ptr()) };
        // SAFETY: ibv_destroy_comp_channel requires a live channel without queues: its only one was
        // just destroyed.
        let _kept = unsafe { (self.libraries.verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

fn completion(wc: &ibv_wc) -> Completion {
    let is_success = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
    let has_immediate = is_success && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    Completion {
        request: wc.wr_id & !RECEIVE,
        is_receive: wc.wr_id & RECEIVE != 0,
        is_success,
        len: usize::try_from(wc.byte_len).unwrap_or(usize::MAX),
        immediate: has_immediate.then(|| {
            // SAFETY: the read requires that the union holds immediate data: the flag says so.
            u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data })
        }),
    }
}

/// A gather or scatter list of up to two pieces of a region.
pub(super) struct Pieces {
    pub(super) entries: [ibv_sge; 2],
    pub(super) len: c_int,
}

impl Pieces {
    /// Leaves out empty pieces. `EFAULT` if a piece does not lie in the region.
    pub(super) fn of(region: &Region, pieces: &[(usize, usize)]) -> Result<Self, Errno> {
        let mut list = Self { entries: [ibv_sge::default(); 2], len: 0 };
        let mut entries = list.entries.iter_mut();
        for &(offset, len) in pieces.iter().filter(|(_, len)| *len > 0) {
            let fits = offset.checked_add(len).is_some_and(|end| end <= region.len());
            let (entry, len) = entries.next().zip(u32::try_from(len).ok()).filter(|_| fits).ok_or(Errno::EFAULT)?;
            *entry = ibv_sge { addr: region.address(offset), length: len, lkey: region.local_key() };
            list.len += 1;
        }
        Ok(list)
    }
}
