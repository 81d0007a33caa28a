//! Tests of who gets memory back, and when, over the test provider, which does what a test tells it
//! to do.

mod attacks;
mod datagrams;
mod failures;
mod foreign;
mod gpu;
mod limits;
mod pollers;
mod pools;
mod rows;
mod scopes;
mod sources;
mod split;
mod stats;
mod threads;

use rdma_sys::{ibv_send_flags, ibv_wc, ibv_wc_opcode, ibv_wc_status};

use super::*;
use crate::mr::{Buffer, RemoteSlice};
use crate::testing::{self, Posted};
use crate::types::{Lid, Mtu};
use crate::{CompletionQueue, Poller};

/// A connected queue pair of the test provider.
struct Rig {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    poller: Poller,
    qp: QueuePair<Rc>,
}

const SEND_DEPTH: u32 = 8;
const RECV_DEPTH: u32 = 4;

impl Rig {
    fn new() -> Self {
        let context = testing::context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let qp = Self::connect(&pd, &cq);
        let poller = cq.poller();
        Self { pd, cq, poller, qp }
    }

    fn connect(pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePair<Rc> {
        let builder = QueuePair::builder(pd).cq(cq).max_send_wr(SEND_DEPTH).max_recv_wr(RECV_DEPTH);
        let qp = builder.max_send_sge(3).max_recv_sge(2).max_inline_data(32).build().unwrap();
        let peer = Endpoint {
            qpn: 0x42,
            psn: 7,
            gid: Some("::ffff:10.0.0.2".parse().unwrap()),
            lid: Lid::NONE,
            mtu: Mtu::MTU_512,
            responder_resources: 4,
        };
        qp.init(&InitOptions::new()).unwrap().connect(&peer, &ConnectOptions::new()).unwrap()
    }

    /// A buffer with its own region, so that counting regions counts buffers.
    fn buffer(&self, len: usize) -> Buffer {
        self.pd.allocate(len).unwrap()
    }

    /// Posts a send of a fresh buffer.
    fn send(&mut self, token: u64, signaled: bool) {
        let buffer = self.buffer(16);
        self.qp.post_send(op::send(buffer).token(token).signaled(signaled)).unwrap();
    }

    fn posted(&self) -> Vec<Posted> {
        testing::posted(self.qp.as_raw())
    }

    /// The `wr_id` of request `at`, in the order of posting.
    fn wr_id(&self, at: usize) -> u64 {
        self.posted()[at].wr_id
    }

    fn complete(&self, wr_id: u64, status: ibv_wc_status) {
        testing::complete(self.cq.as_raw(), wc(wr_id, status, self.qp.qpn()));
    }

    fn succeed(&self, at: usize) {
        self.complete(self.wr_id(at), ibv_wc_status::IBV_WC_SUCCESS);
    }

    fn flush(&self, at: usize) {
        self.complete(self.wr_id(at), ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    }

    /// Polls the next completion. Returns its token, the number of buffers that it gave back, and
    /// the tokens of the unsignaled requests before it.
    fn next(&mut self) -> Option<(u64, usize, Vec<u64>)> {
        let mut completion = self.poller.poll().unwrap()?;
        let mut unsignaled = Vec::new();
        while let Some(mut released) = completion.next_unsignaled() {
            unsignaled.push(released.token());
            assert!(released.take_buffer().is_some());
        }
        let mut buffers = 0;
        while completion.take_buffer().is_some() {
            buffers += 1;
        }
        Some((completion.token(), buffers, unsignaled))
    }
}

fn wc(wr_id: u64, status: ibv_wc_status, qp_num: u32) -> ibv_wc {
    ibv_wc { wr_id, status, qp_num, opcode: ibv_wc_opcode::IBV_WC_SEND, ..ibv_wc::default() }
}

/// The number of registered regions: buffers in use or in flight.
fn regions() -> isize {
    testing::live("mr")
}

fn is_signaled(posted: &Posted) -> bool {
    posted.flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
}

/// A peer's memory of 64 bytes.
fn remote() -> RemoteSlice {
    RemoteSlice::new(0x10_0000, 64, 5)
}
