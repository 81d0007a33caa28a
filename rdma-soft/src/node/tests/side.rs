//! One process's side of a test, and the start of the second process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_sys::*;
use rdma_test_support::Peer;

use rdma_mem::SharedMemory;

use super::super::*;
use crate::engine::{
    CqId, ModifyQp, Op, QpId, QpInit, QpState, Registration, SendData, SendFlags, SendRequest, ServiceType,
};

pub(super) const LONG: Duration = Duration::from_secs(30);

/// One object of each kind, in this process's node.
pub(super) struct Side {
    pub(super) node: &'static Node,
    pub(super) cq: CqId,
    pub(super) qp: QpId,
    pub(super) qpn: u32,
    pub(super) memory: &'static SharedMemory,
    pub(super) key: u32,
    /// Token of the completion queue's events.
    pub(super) token: u64,
}

impl Side {
    pub(super) fn new(len: usize) -> Self {
        Self::after(len, 0)
    }

    /// Makes a side after `others` other queue pairs.
    pub(super) fn after(len: usize, others: usize) -> Self {
        static TOKENS: AtomicU64 = AtomicU64::new(1);
        let token = TOKENS.fetch_add(1, Ordering::Relaxed);
        let node = Node::get().unwrap();
        // Leaked, because tests end with their process.
        let memory = Box::leak(Box::new(SharedMemory::new(len).unwrap()));
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        let what = Registration {
            addr: memory.as_ptr(),
            len,
            iova: memory.as_ptr().addr() as u64,
            access,
            backing: memory.backing().cloned(),
        };
        let (pd, cq, key) = node.with(|engine| {
            let pd = engine.alloc_pd().unwrap();
            let cq = engine.create_cq(256, token).unwrap();
            // SAFETY: `register` requires memory that outlives the region and is accessed only
            // atomically: the memory is never freed, and only accessed through rdma_mem.
            let key = unsafe { engine.register(pd, &what) }.unwrap().lkey;
            (pd, cq, key)
        });
        let create = |depth| {
            let init = QpInit {
                service: ServiceType::Rc,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
                sq_sig_all: true,
                token: 2,
            };
            node.with(|engine| engine.create_qp(&init)).or_else(|_| {
                node.add_slot()?;
                node.with(|engine| engine.create_qp(&init))
            })
        };
        for _ in 0..others {
            create(1).unwrap();
        }
        let (qp, qpn) = create(64).unwrap();
        Self { node, cq, qp, qpn, memory, key, token }
    }

    pub(super) fn connect(&self, dest_qpn: u32) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = ModifyQp {
                state: Some(state),
                access: Some(15),
                dest_qpn: Some(dest_qpn),
                rq_psn: Some(1),
                sq_psn: Some(1),
                max_rd_atomic: Some(4),
                max_dest_rd_atomic: Some(4),
                min_rnr_timer: Some(1),
                timeout: Some(12),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                ..ModifyQp::default()
            };
            self.node.with_drained(|engine| engine.modify_qp(self.qp, &change)).unwrap();
        }
    }

    pub(super) fn sge(&self, at: usize, len: usize) -> ibv_sge {
        ibv_sge { addr: (self.memory.as_ptr().addr() + at) as u64, length: u32::try_from(len).unwrap(), lkey: self.key }
    }

    /// Posts a receive in INIT, for a peer that may send as soon as it is connected.
    pub(super) fn recv_before_connect(&self) {
        let change = ModifyQp { state: Some(QpState::Init), access: Some(15), ..ModifyQp::default() };
        self.node.with_drained(|engine| engine.modify_qp(self.qp, &change)).unwrap();
        self.recv(1, 2 << 20, 1 << 20);
    }

    pub(super) fn send(&self, wr_id: u64, at: usize, len: usize) {
        self.post(wr_id, Op::Send, at, len, 0, 0);
    }

    pub(super) fn post(&self, wr_id: u64, op: Op, at: usize, len: usize, remote_addr: u64, rkey: u32) {
        let list = [self.sge(at, len)];
        let flags = SendFlags::SIGNALED;
        let request = SendRequest { wr_id, remote_addr, compare_add: 0, swap: 0, rkey, imm: 0, op, flags };
        self.node.with(|engine| engine.post_send(self.qp, &request, SendData::List(&list))).unwrap();
    }

    pub(super) fn recv(&self, wr_id: u64, at: usize, len: usize) {
        self.node.with(|engine| engine.post_recv(self.qp, wr_id, &[self.sge(at, len)])).unwrap();
    }

    pub(super) fn poll(&self) -> Option<ibv_wc> {
        let mut out = [ibv_wc::default()];
        (self.node.poll_cq(self.cq, &mut out).unwrap() == 1).then(|| out[0])
    }

    /// Polls until there is a completion.
    pub(super) fn wait(&self) -> ibv_wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < LONG, "no completion in {LONG:?}");
            std::thread::yield_now();
        }
    }

    pub(super) fn wait_ok(&self) -> u64 {
        let wc = self.wait();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        wc.wr_id
    }

    /// Sends numbered messages and receives as many at the same time.
    pub(super) fn exchange(&self, count: u64) {
        let (mut sent, mut received, mut posted) = (0, 0_u64, 0_u64);
        let index = |number: u64| usize::try_from(number).unwrap();
        for i in 0..16 {
            self.recv(1000 + i, (1 << 20) + index(i) * 4096, 4096);
        }
        while sent < count || received < count {
            if posted < count && posted - sent < 16 {
                let at = index(posted) % 16 * 4096;
                self.set(at, &posted.to_ne_bytes());
                self.send(posted % 16, at, 8 + index(posted) * 16 % 4000);
                posted += 1;
            }
            let Some(wc) = self.poll() else { continue };
            assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
            if wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
                let at = (1 << 20) + index(wc.wr_id - 1000) * 4096;
                assert_eq!(self.get(at, 8), received.to_ne_bytes());
                self.recv(wc.wr_id, at, 4096);
                received += 1;
            } else {
                sent += 1;
            }
        }
    }

    pub(super) fn set(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.memory.len());
        // SAFETY: `copy` requires `len` readable and writable bytes: the range is within the memory
        // (just checked), which is never freed.
        unsafe { rdma_mem::copy(self.memory.as_ptr().wrapping_add(at), bytes.as_ptr(), bytes.len()) };
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.memory.len());
        let mut bytes = vec![0; len];
        // SAFETY: `copy` requires `len` readable and writable bytes: the range is within the memory
        // (just checked), which is never freed.
        unsafe { rdma_mem::copy(bytes.as_mut_ptr(), self.memory.as_ptr().wrapping_add(at), len) };
        bytes
    }

    pub(super) fn describe(&self) -> String {
        format!("{} {} {}", self.qpn, self.memory.as_ptr().addr(), self.key)
    }
}

/// Starts a process that runs one of the roles.
pub(super) fn spawn(role: &str) -> Peer {
    Peer::start("node::tests::peer", role)
}

/// Makes a pair of connected queue pairs. Returns this side, the peer, and the peer's description
/// of its side.
pub(super) fn pair(role: &str, len: usize) -> (Side, Peer, Vec<u64>) {
    let side = Side::new(len);
    let mut peer = spawn(role);
    peer.tell(&side.describe());
    let theirs = peer.hear_numbers();
    side.connect(u32::try_from(theirs[0]).unwrap());
    (side, peer, theirs)
}
