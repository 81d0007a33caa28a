//! UD queue pairs: one on the objects of a [`Side`], and one in a second process.

use std::ffi::c_int;
use std::io;
use std::ptr;

use rdma_sys::*;
use rdma_test_support::{first, role};

use super::{Config, PATIENCE, Side, verbs};

/// The Q_Key of all queue pairs, unless a test sets another.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// Length in bytes of the GRH in front of every datagram.
pub(crate) const GRH: usize = 40;
/// The queue pair number of datagrams to a group.
pub(crate) const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// The RoCE v2 GID of an IPv4 group that no other test run uses; `low` distinguishes the groups of
/// one test process.
pub(crate) fn group_of(process: u32, low: u8) -> ibv_gid {
    let id = process.to_be_bytes();
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 239, id[2], id[3], low]);
    ibv_gid { raw }
}

/// A UD queue pair, destroyed with its side.
pub(crate) struct Datagrams {
    pub(crate) side: Side,
}

impl Datagrams {
    /// Makes a queue pair in RTS.
    pub(crate) fn new() -> Self {
        let this = Self::with(Config::default(), false);
        this.bring_up(QKEY);
        this
    }

    /// Makes a queue pair in RTS with queues for some hundred requests.
    pub(crate) fn deep() -> Self {
        let this = Self::with(Config { depth: 256, cq_depth: 512, ..Config::default() }, false);
        this.bring_up(QKEY);
        this
    }

    /// Makes a queue pair in RESET; with `extended`, for the `ibv_wr_*` calls.
    pub(crate) fn with(config: Config, extended: bool) -> Self {
        let mut side = Side::new(config);
        // The side's own queue pair is RC.
        // SAFETY: a live queue pair that nobody uses.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(side.qp) }, 0);
        let made = side.init_attr();
        side.qp = if extended {
            type Ops = ibv_qp_create_send_ops_flags;
            type Mask = ibv_qp_init_attr_mask;
            let mut init = ibv_qp_init_attr_ex {
                send_cq: made.send_cq,
                recv_cq: made.recv_cq,
                cap: made.cap,
                qp_type: ibv_qp_type::IBV_QPT_UD,
                pd: side.pd,
                comp_mask: Mask::IBV_QP_INIT_ATTR_PD.0 | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
                send_ops_flags: u64::from(Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0),
                ..Default::default()
            };
            // SAFETY: live objects, a valid structure.
            unsafe { verbs().ibv_create_qp_ex(side.context, &raw mut init) }
        } else {
            let mut init = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_UD, ..made };
            // SAFETY: live objects, a valid structure.
            unsafe { (verbs().ibv_create_qp)(side.pd, &raw mut init) }
        };
        assert!(!side.qp.is_null(), "{}", io::Error::last_os_error());
        Self { side }
    }

    /// Moves the queue pair from RESET to RTS.
    pub(crate) fn bring_up(&self, qkey: u32) {
        type M = ibv_qp_attr_mask;
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: 1, qkey, ..Default::default() };
        let birth = M::IBV_QP_STATE.0 | M::IBV_QP_PKEY_INDEX.0 | M::IBV_QP_PORT.0 | M::IBV_QP_QKEY.0;
        assert_eq!(self.side.modify(&mut attr, birth), 0);
        assert_eq!(self.side.set_state(ibv_qp_state::IBV_QPS_RTR), 0);
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        assert_eq!(self.side.modify(&mut attr, M::IBV_QP_STATE.0 | M::IBV_QP_SQ_PSN.0), 0);
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.side.endpoint().qpn
    }

    /// The port's GID with this index.
    pub(crate) fn gid(&self, index: c_int) -> ibv_gid {
        let mut gid = ibv_gid::default();
        // SAFETY: an open context, a valid out parameter.
        assert_eq!(unsafe { (verbs().ibv_query_gid)(self.side.context, 1, index, &raw mut gid) }, 0);
        gid
    }

    /// The attributes of an address handle for a GID.
    pub(crate) fn route_to(&self, gid: ibv_gid) -> ibv_ah_attr {
        let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, sl: 3, ..Default::default() };
        attr.grh.dgid = gid;
        (attr.grh.hop_limit, attr.grh.traffic_class) = (64, 0x28);
        attr
    }

    /// Creates an address handle; fails with the error number.
    pub(crate) fn try_handle(&self, mut attr: ibv_ah_attr) -> Result<Handle, c_int> {
        // SAFETY: a live domain, a valid structure.
        let ah = unsafe { (verbs().ibv_create_ah)(self.side.pd, &raw mut attr) };
        if ah.is_null() { Err(io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(Handle(ah)) }
    }

    /// A handle for the port's first address.
    pub(crate) fn handle(&self) -> Handle {
        self.try_handle(self.route_to(self.gid(0))).unwrap()
    }

    /// A handle for a group.
    pub(crate) fn group_handle(&self, gid: ibv_gid) -> Handle {
        self.try_handle(self.route_to(gid)).unwrap()
    }

    /// A signaled send request in C form.
    pub(crate) fn request(&self, wr_id: u64, list: &mut [ibv_sge], to: &Handle, qpn: u32) -> ibv_send_wr {
        let mut wr = ibv_send_wr {
            wr_id,
            sg_list: list.as_mut_ptr(),
            num_sge: c_int::try_from(list.len()).unwrap(),
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: to.0, remote_qpn: qpn, remote_qkey: QKEY };
        wr
    }

    /// Posts a request.
    ///
    /// # Safety
    ///
    /// The list and the address handle of the request are valid.
    pub(crate) unsafe fn post(&self, wr: &mut ibv_send_wr) -> c_int {
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the caller's promise.
        unsafe { ibv_post_send(self.side.qp, wr, &raw mut bad) }
    }

    /// Sends `len` bytes at `offset`.
    pub(crate) fn send(&self, wr_id: u64, offset: usize, len: usize, to: &Handle, qpn: u32) {
        let mut list = [self.side.sge(offset, len)];
        let mut wr = self.request(wr_id, &mut list, to, qpn);
        // SAFETY: the queue pair, the request and its objects are alive.
        assert_eq!(unsafe { self.post(&mut wr) }, 0);
    }

    /// Sends and waits for the successful completion.
    pub(crate) fn sent(&self, wr_id: u64, offset: usize, len: usize, to: &Handle, qpn: u32) {
        self.send(wr_id, offset, len, to, qpn);
        assert_eq!(self.side.success(wr_id).opcode, ibv_wc_opcode::IBV_WC_SEND);
    }

    /// Posts a receive for `len` bytes and the GRH.
    pub(crate) fn recv(&self, wr_id: u64, offset: usize, len: usize) {
        assert_eq!(self.side.post_recv(wr_id, &[self.side.sge(offset, GRH + len)]), 0);
    }

    pub(crate) fn attach(&self, gid: ibv_gid) -> c_int {
        // SAFETY: a live queue pair, a valid address.
        unsafe { (verbs().ibv_attach_mcast)(self.side.qp, &raw const gid, 0) }
    }

    pub(crate) fn detach(&self, gid: ibv_gid) -> c_int {
        // SAFETY: a live queue pair, a valid address.
        unsafe { (verbs().ibv_detach_mcast)(self.side.qp, &raw const gid, 0) }
    }

    /// Whether no completion comes for 50 ms.
    pub(crate) fn is_quiet(&self) -> bool {
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_millis(50) {
            if self.side.poll().is_some() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}

/// An address handle, destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) *mut ibv_ah);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: alive, and not used any more.
        let ended = unsafe { (verbs().ibv_destroy_ah)(self.0) };
        assert!(ended == 0 || std::thread::panicking());
    }
}

/// Makes a UD queue pair and runs the commands of the first process if this is the second one;
/// otherwise returns.
pub(crate) fn play() {
    let Some(options) = role() else { return };
    let mut first = first();
    let end = if options == "deep" { Datagrams::deep() } else { Datagrams::new() };
    let handle = end.handle();
    first.tell(&format!("{} 0 0", end.qpn()));
    while let Some(line) = first.try_hear() {
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let numbers: Vec<u32> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
        first.tell(&answer(&end, &handle, command, &numbers));
        // Sends one datagram and ends the process.
        if let ("leave", &[offset, len, qpn]) = (command, numbers.as_slice()) {
            end.send(1 << 40, offset as usize, len as usize, &handle, qpn);
            std::process::exit(0);
        }
    }
}

fn answer(end: &Datagrams, handle: &Handle, command: &str, numbers: &[u32]) -> String {
    let done = || "done".to_owned();
    match (command, numbers) {
        ("recv", &[id, offset, len]) => {
            end.recv(u64::from(id), offset as usize, len as usize);
            done()
        }
        ("send", &[offset, len, qpn]) => {
            end.sent(1 << 40, offset as usize, len as usize, handle, qpn);
            done()
        }
        ("leave", &[_, _, _]) => done(),
        // Answers the sender of the datagram at this offset.
        ("answer", &[offset, len]) => {
            let source = end.side.wait();
            let back = answer_to(end, &source, offset as usize).unwrap();
            let data = end.side.peek(offset as usize + GRH, len as usize);
            end.side.put(60_000, &data);
            end.sent(1 << 40, 60_000, len as usize, &back, source.src_qp);
            format!("{} {}", source.status.0, source.byte_len)
        }
        ("wait", []) => {
            let wc = end.side.wait();
            format!("{} {} {} {}", wc.wr_id, wc.status.0, wc.byte_len, wc.src_qp)
        }
        ("try", []) => end.side.poll().map_or("none".into(), |wc| wc.wr_id.to_string()),
        ("fill", &[offset, len, byte]) => {
            end.side.put(offset as usize, &vec![u8::try_from(byte).unwrap(); len as usize]);
            done()
        }
        ("peek", &[offset, len]) => format!("{:?}", end.side.peek(offset as usize, len as usize)),
        ("attach", &[process, low]) => end.attach(group_of(process, u8::try_from(low).unwrap())).to_string(),
        ("detach", &[process, low]) => end.detach(group_of(process, u8::try_from(low).unwrap())).to_string(),
        _ => format!("what is {command} {numbers:?}?"),
    }
}

/// An address handle for the sender of the datagram received at `offset`.
pub(crate) fn answer_to(end: &Datagrams, wc: &ibv_wc, offset: usize) -> Result<Handle, c_int> {
    let mut wc = *wc;
    let mut grh = ibv_grh::default();
    let bytes = end.side.peek(offset, GRH);
    // SAFETY: both are 40 bytes, and every bit pattern is a header.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut grh).cast(), GRH) };
    // SAFETY: a live domain, valid structures.
    let ah = unsafe { (verbs().ibv_create_ah_from_wc)(end.side.pd, &raw mut wc, &raw mut grh, 1) };
    if ah.is_null() { Err(io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(Handle(ah)) }
}

/// Repeats `send` until `arrived` returns true, because datagrams may be lost.
pub(crate) fn until(mut send: impl FnMut(), mut arrived: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    loop {
        send();
        let again = std::time::Instant::now();
        while again.elapsed() < std::time::Duration::from_millis(200) {
            if arrived() {
                return;
            }
            std::thread::yield_now();
        }
        assert!(start.elapsed() < PATIENCE, "nothing arrives");
    }
}
