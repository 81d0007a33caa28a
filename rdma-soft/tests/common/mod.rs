//! One side of a connection on the software device, driven as a C program would: through the
//! function table, the op tables inside the objects, and the header's inline functions.
//!
//! The objects of a [`Side`] are destroyed, in order, when the side is dropped; the `SAFETY`
//! comments below call them "alive" until then. Registered memory is accessed only through
//! `rdma_mem`.

#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod datagram;
pub(crate) mod puppet;

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_mem::SharedMemory;
use rdma_sys::*;

/// Time to wait for an event that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The table under test.
pub(crate) fn verbs() -> &'static Ibverbs {
    rdma_soft::ibverbs()
}

/// Opens the first software device.
pub(crate) fn open() -> *mut ibv_context {
    open_nth(0)
}

/// Opens the software device with this place in the list.
pub(crate) fn open_nth(index: usize) -> *mut ibv_context {
    // SAFETY: null, or a device of the list.
    let context = unsafe { (verbs().ibv_open_device)(devices().get(index).copied().unwrap_or(ptr::null_mut())) };
    assert!(!context.is_null(), "{}", io::Error::last_os_error());
    context
}

/// The device list, which ends with a null. The devices outlive the list.
pub(crate) fn devices() -> Vec<*mut ibv_device> {
    let mut count = 0;
    // SAFETY: valid for writes.
    let list = unsafe { (verbs().ibv_get_device_list)(&raw mut count) };
    assert!(!list.is_null(), "{}", io::Error::last_os_error());
    let count = usize::try_from(count).unwrap();
    // SAFETY: the list has `count` entries and a null.
    let (end, devices) = unsafe { std::slice::from_raw_parts(list, count + 1) }.split_last().unwrap();
    assert!(end.is_null());
    let devices = devices.to_vec();
    // SAFETY: the list is not used any more.
    unsafe { (verbs().ibv_free_device_list)(list) };
    devices
}

/// All access rights.
pub(crate) const ALL_ACCESS: u32 = 0xf;

/// Configuration of a [`Side`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Place of the device in the list.
    pub(crate) device: usize,
    pub(crate) memory: usize,
    pub(crate) depth: u32,
    pub(crate) cq_depth: c_int,
    pub(crate) access: u32,
    pub(crate) sq_sig_all: bool,
    pub(crate) min_rnr_timer: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    /// Lets peers map the memory.
    pub(crate) shared: bool,
    /// Lets the queue pairs share a receive queue.
    pub(crate) shared_receives: bool,
    /// The address of the peer's host, if that is another one.
    pub(crate) peer: Option<IpAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: 0,
            memory: 1 << 16,
            depth: 64,
            cq_depth: 256,
            access: ALL_ACCESS,
            sq_sig_all: false,
            min_rnr_timer: 1,
            rnr_retry: 7,
            timeout: 10,
            retry_cnt: 2,
            shared: false,
            shared_receives: false,
            peer: None,
        }
    }
}

/// The GID of an address.
pub(crate) fn gid_of(address: IpAddr) -> ibv_gid {
    let raw = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

/// The data of a side that its peer needs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// A queue pair with its context, domain, CQ, channel and memory region.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    /// Null unless the queue pairs share a receive queue.
    pub(crate) srq: *mut ibv_srq,
    pub(crate) mr: *mut ibv_mr,
    base: *mut u8,
    memory: Memory,
    config: Config,
}

/// A word before or after private memory.
const GUARD: u64 = 0x5afe_c0de_5afe_c0de;
/// Such words on either side.
const GUARDS: usize = 1024;

#[derive(Debug)]
enum Memory {
    /// The registered memory with [`GUARDS`] on either side.
    Private(Box<[u64]>),
    Shared(SharedMemory),
}

/// A send request, in a short form.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: ibv_wr_opcode,
    pub(crate) wr_id: u64,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) remote: (u64, u32),
    pub(crate) operands: (u64, u64),
    pub(crate) list: Vec<ibv_sge>,
}

impl Request {
    /// A signaled request.
    pub(crate) fn new(opcode: ibv_wr_opcode, wr_id: u64, list: &[ibv_sge]) -> Self {
        let flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        Self { opcode, wr_id, flags, imm: 0, remote: (0, 0), operands: (0, 0), list: list.to_vec() }
    }

    pub(crate) fn remote(mut self, addr: u64, rkey: u32) -> Self {
        self.remote = (addr, rkey);
        self
    }

    pub(crate) fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn imm(mut self, imm: u32) -> Self {
        self.imm = imm;
        self
    }

    pub(crate) fn operands(mut self, compare_add: u64, swap: u64) -> Self {
        self.operands = (compare_add, swap);
        self
    }

    /// The request in C form, with pointers into `self`.
    pub(crate) fn raw(&mut self) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id: self.wr_id,
            sg_list: self.list.as_mut_ptr(),
            num_sge: c_int::try_from(self.list.len()).unwrap(),
            opcode: self.opcode,
            send_flags: self.flags,
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = self.imm.to_be();
        if self.opcode.0 >= ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0 {
            wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: self.remote.0,
                compare_add: self.operands.0,
                swap: self.operands.1,
                rkey: self.remote.1,
            };
        } else {
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: self.remote.0, rkey: self.remote.1 };
        }
        wr
    }
}

impl Side {
    pub(crate) fn new(config: Config) -> Self {
        let context = open_nth(config.device);
        // SAFETY: an open context.
        let pd = unsafe { (verbs().ibv_alloc_pd)(context) };
        assert!(!pd.is_null(), "{}", io::Error::last_os_error());
        // SAFETY: an open context.
        let channel = unsafe { (verbs().ibv_create_comp_channel)(context) };
        assert!(!channel.is_null(), "{}", io::Error::last_os_error());
        // SAFETY: an open context and its channel.
        let cq = unsafe { (verbs().ibv_create_cq)(context, config.cq_depth, ptr::null_mut(), channel, 0) };
        assert!(!cq.is_null(), "{}", io::Error::last_os_error());
        let (memory, base) = if config.shared {
            let memory = SharedMemory::new(config.memory).unwrap();
            let base = memory.as_ptr();
            (Memory::Shared(memory), base)
        } else {
            let mut memory = vec![GUARD; config.memory.div_ceil(8) + 2 * GUARDS].into_boxed_slice();
            let base = memory.as_mut_ptr().wrapping_add(GUARDS);
            let (memory, base) = (Memory::Private(memory), base.cast());
            // SAFETY: the memory is not registered yet, and has this many bytes between the guards.
            unsafe { ptr::write_bytes(base, 0, config.memory) };
            (memory, base)
        };
        // SAFETY: a live domain; the memory is freed after the region, and never touched but
        // through `rdma_mem`.
        let mr = unsafe { verbs().ibv_reg_mr(pd, base.cast(), config.memory, config.access) };
        assert!(!mr.is_null(), "{}", io::Error::last_os_error());
        let (qp, srq) = (ptr::null_mut(), ptr::null_mut());
        let mut side = Self { context, pd, channel, cq, qp, srq, mr, base, memory, config };
        if config.shared_receives {
            side.srq = side.make_srq(config.depth);
        }
        side.qp = side.make_qp();
        side
    }

    /// Creates a shared receive queue, to which nothing is posted.
    pub(crate) fn make_srq(&self, max_wr: u32) -> *mut ibv_srq {
        let attr = ibv_srq_attr { max_wr, max_sge: 4, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { attr, ..Default::default() };
        // SAFETY: a live domain, a valid structure.
        let srq = unsafe { (verbs().ibv_create_srq)(self.pd, &raw mut init) };
        assert!(!srq.is_null(), "{}", io::Error::last_os_error());
        srq
    }

    /// Creates another queue pair on the same objects.
    pub(crate) fn make_qp(&self) -> *mut ibv_qp {
        let mut init = self.init_attr();
        // SAFETY: live objects, a valid structure.
        let qp = unsafe { (verbs().ibv_create_qp)(self.pd, &raw mut init) };
        assert!(!qp.is_null(), "{}", io::Error::last_os_error());
        qp
    }

    pub(crate) fn init_attr(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: self.srq,
            cap: ibv_qp_cap {
                max_send_wr: self.config.depth,
                max_recv_wr: self.config.depth,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 256,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: c_int::from(self.config.sq_sig_all),
            ..Default::default()
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        // SAFETY: a live queue pair.
        let qpn = unsafe { (*self.qp).qp_num };
        // SAFETY: a live region.
        let rkey = unsafe { (*self.mr).rkey };
        Endpoint { qpn, addr: self.addr(0), rkey }
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> c_int {
        // SAFETY: a live queue pair, a valid structure.
        unsafe { (verbs().ibv_modify_qp)(self.qp, attr, c_int::try_from(mask).unwrap()) }
    }

    pub(crate) fn set_state(&self, state: ibv_qp_state) -> c_int {
        self.modify(&mut ibv_qp_attr { qp_state: state, ..Default::default() }, ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    pub(crate) fn to_init(&self) -> c_int {
        let (mut attr, mask) = self.init_change();
        self.modify(&mut attr, mask)
    }

    pub(crate) fn init_change(&self) -> (ibv_qp_attr, u32) {
        type M = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: self.config.access,
            ..Default::default()
        };
        (attr, M::IBV_QP_STATE.0 | M::IBV_QP_PKEY_INDEX.0 | M::IBV_QP_PORT.0 | M::IBV_QP_ACCESS_FLAGS.0)
    }

    pub(crate) fn rtr_change(&self, remote: Endpoint) -> (ibv_qp_attr, u32) {
        type M = ibv_qp_attr_mask;
        let mut attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: remote.qpn,
            rq_psn: 5,
            max_dest_rd_atomic: 4,
            min_rnr_timer: self.config.min_rnr_timer,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.hop_limit = 1;
        // SAFETY: an open context, a valid GID.
        let asked = unsafe { (verbs().ibv_query_gid)(self.context, 1, 0, &raw mut attr.ah_attr.grh.dgid) };
        assert_eq!(asked, 0);
        if let Some(peer) = self.config.peer {
            attr.ah_attr.grh.dgid = gid_of(peer);
        }
        let mask = M::IBV_QP_STATE.0
            | M::IBV_QP_AV.0
            | M::IBV_QP_PATH_MTU.0
            | M::IBV_QP_DEST_QPN.0
            | M::IBV_QP_RQ_PSN.0
            | M::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | M::IBV_QP_MIN_RNR_TIMER.0;
        (attr, mask)
    }

    pub(crate) fn rts_change(&self) -> (ibv_qp_attr, u32) {
        type M = ibv_qp_attr_mask;
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: self.config.timeout,
            retry_cnt: self.config.retry_cnt,
            rnr_retry: self.config.rnr_retry,
            sq_psn: 5,
            max_rd_atomic: 4,
            ..Default::default()
        };
        let mask = M::IBV_QP_STATE.0
            | M::IBV_QP_TIMEOUT.0
            | M::IBV_QP_RETRY_CNT.0
            | M::IBV_QP_RNR_RETRY.0
            | M::IBV_QP_SQ_PSN.0
            | M::IBV_QP_MAX_QP_RD_ATOMIC.0;
        (attr, mask)
    }

    /// Moves the queue pair from RESET to RTS.
    pub(crate) fn connect(&self, remote: Endpoint) {
        assert_eq!(self.to_init(), 0);
        let (mut attr, mask) = self.rtr_change(remote);
        assert_eq!(self.modify(&mut attr, mask), 0);
        let (mut attr, mask) = self.rts_change();
        assert_eq!(self.modify(&mut attr, mask), 0);
    }

    pub(crate) fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        // SAFETY: a live queue pair, valid structures.
        let asked = unsafe { (verbs().ibv_query_qp)(self.qp, &raw mut attr, 0, &raw mut init) };
        assert_eq!(asked, 0);
        (attr, init)
    }

    pub(crate) fn addr(&self, offset: usize) -> u64 {
        self.base.wrapping_add(offset).addr() as u64
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        // SAFETY: a live region.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.addr(offset), length: u32::try_from(length).unwrap(), lkey }
    }

    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.config.memory);
        // SAFETY: in bounds, as just checked; the region's memory is only touched through
        // `rdma_mem`.
        unsafe { rdma_mem::copy(self.base.wrapping_add(offset), bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.config.memory);
        let mut bytes = vec![0; len];
        // SAFETY: in bounds, as just checked; the region's memory is only touched through
        // `rdma_mem`.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.base.wrapping_add(offset), len) };
        bytes
    }

    /// Whether nothing was written directly before and after the registered memory, which is
    /// private.
    pub(crate) fn has_guards(&self) -> bool {
        let Memory::Private(_) = &self.memory else { return false };
        let end = self.config.memory.next_multiple_of(8);
        let mut guards = [0_u64; GUARDS];
        [self.base.wrapping_sub(8 * GUARDS), self.base.wrapping_add(end)].into_iter().all(|from| {
            // SAFETY: the memory has this many bytes before `base` and after its end, which are
            // only touched through `rdma_mem`.
            unsafe { rdma_mem::copy(guards.as_mut_ptr().cast(), from, 8 * GUARDS) };
            guards == [GUARD; GUARDS]
        })
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.peek(offset, 8).try_into().unwrap())
    }

    /// Deregisters the memory, which stays allocated.
    pub(crate) fn deregister(&mut self) -> c_int {
        // SAFETY: a live region, not used any more by this process.
        unsafe { (verbs().ibv_dereg_mr)(std::mem::replace(&mut self.mr, ptr::null_mut())) }
    }

    pub(crate) fn post_recv(&self, wr_id: u64, list: &[ibv_sge]) -> c_int {
        let mut list = list.to_vec();
        let num_sge = c_int::try_from(list.len()).unwrap();
        let mut wr = ibv_recv_wr { wr_id, sg_list: list.as_mut_ptr(), num_sge, ..Default::default() };
        let mut bad = ptr::null_mut();
        if !self.srq.is_null() {
            // SAFETY: a live queue; the list is valid during the call, the memory is registered.
            return unsafe { ibv_post_srq_recv(self.srq, &raw mut wr, &raw mut bad) };
        }
        // SAFETY: a live queue pair; the list is valid during the call, the memory is registered.
        unsafe { ibv_post_recv(self.qp, &raw mut wr, &raw mut bad) }
    }

    pub(crate) fn post(&self, request: &Request) -> c_int {
        self.post_chain(std::slice::from_ref(request)).map_or_else(|(errno, _)| errno, |()| 0)
    }

    /// Posts a chain of requests. The error holds the position of the first refused request.
    pub(crate) fn post_chain(&self, requests: &[Request]) -> Result<(), (c_int, Option<usize>)> {
        let mut requests = requests.to_vec();
        let mut chain: Vec<ibv_send_wr> = requests.iter_mut().map(Request::raw).collect();
        let first = chain.as_mut_ptr();
        for index in 1..chain.len() {
            chain[index - 1].next = first.wrapping_add(index);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the chain and its lists are valid during the call, the memory
        // is registered.
        let errno = unsafe { ibv_post_send(self.qp, first, &raw mut bad) };
        if errno == 0 {
            return Ok(());
        }
        Err((errno, (0..chain.len()).find(|&index| first.wrapping_add(index) == bad)))
    }

    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        // SAFETY: a live queue, space for one completion.
        let count = unsafe { ibv_poll_cq(self.cq, 1, &raw mut wc) };
        assert!((0..=1).contains(&count), "{count}");
        (count == 1).then_some(wc)
    }

    /// Polls until there is a completion.
    pub(crate) fn wait(&self) -> ibv_wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion came");
            std::thread::yield_now();
        }
    }

    /// Polls until there is a completion, and checks its id and status.
    pub(crate) fn expect(&self, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
        let wc = self.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status));
        wc
    }

    pub(crate) fn success(&self, wr_id: u64) -> ibv_wc {
        self.expect(wr_id, ibv_wc_status::IBV_WC_SUCCESS)
    }

    pub(crate) fn state(&self) -> ibv_qp_state {
        self.query().0.qp_state
    }

    pub(crate) fn arm(&self, solicited_only: bool) {
        // SAFETY: a live queue.
        assert_eq!(unsafe { ibv_req_notify_cq(self.cq, c_int::from(solicited_only)) }, 0);
    }

    /// Reads one completion event, and acknowledges it.
    pub(crate) fn take_event(&self) -> io::Result<()> {
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, valid out parameters.
        if unsafe { (verbs().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut user) } != 0 {
            return Err(io::Error::last_os_error());
        }
        assert_eq!(cq, self.cq);
        // SAFETY: a live queue.
        unsafe { (verbs().ibv_ack_cq_events)(cq, 1) };
        Ok(())
    }

    /// Reads one asynchronous event, without acknowledging it.
    pub(crate) fn async_event(&self) -> io::Result<ibv_async_event> {
        let mut event = ibv_async_event::default();
        // SAFETY: an open context, a valid structure.
        if unsafe { (verbs().ibv_get_async_event)(self.context, &raw mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(event)
    }

    pub(crate) fn channel_fd(&self) -> c_int {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }

    pub(crate) fn async_fd(&self) -> c_int {
        // SAFETY: an open context.
        unsafe { (*self.context).async_fd }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A failed test must not panic a second time because of leftover objects.
        let ended = |what, result: c_int| assert!(result == 0 || std::thread::panicking(), "{what}: {result}");
        if !self.qp.is_null() {
            // SAFETY: alive, and not used any more. Objects are destroyed before the objects that
            // they use.
            ended("qp", unsafe { (verbs().ibv_destroy_qp)(self.qp) });
        }
        if !self.srq.is_null() {
            // SAFETY: the side owns the queue, whose queue pair is destroyed above.
            ended("srq", unsafe { (verbs().ibv_destroy_srq)(self.srq) });
        }
        if !self.mr.is_null() {
            // SAFETY: the side owns the region, and no request uses it.
            ended("mr", unsafe { (verbs().ibv_dereg_mr)(self.mr) });
        }
        // SAFETY: the side owns the CQ, whose queue pair is destroyed above.
        ended("cq", unsafe { (verbs().ibv_destroy_cq)(self.cq) });
        // SAFETY: the side owns the channel, whose CQ is destroyed above.
        ended("channel", unsafe { (verbs().ibv_destroy_comp_channel)(self.channel) });
        // SAFETY: the side owns the domain, whose objects are destroyed above.
        ended("pd", unsafe { (verbs().ibv_dealloc_pd)(self.pd) });
        // SAFETY: the side owns the context, whose objects are destroyed above.
        ended("context", unsafe { (verbs().ibv_close_device)(self.context) });
    }
}

/// Two sides of one process, connected.
pub(crate) fn pair(config: Config) -> (Side, Side) {
    let (a, b) = (Side::new(config), Side::new(config));
    a.connect(b.endpoint());
    b.connect(a.endpoint());
    (a, b)
}

/// Whether a descriptor becomes readable in time.
pub(crate) fn readable(fd: c_int, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let timeout = c_int::try_from(timeout.as_millis()).unwrap();
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, timeout) };
    ready == 1 && poll.revents & libc::POLLIN != 0
}

/// Sets `O_NONBLOCK`.
pub(crate) fn set_nonblocking(fd: c_int) {
    // SAFETY: `F_GETFL` takes no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: `F_SETFL` takes an int.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
}
