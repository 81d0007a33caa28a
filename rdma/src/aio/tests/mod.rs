//! Tests of futures over the test provider, which does what a test tells it to do.

mod attacks;
mod halves;
mod random;
mod reactor;
mod results;
mod tasks;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};

use super::*;
use crate::ProtectionDomain;
use crate::mr::Buffer;
use crate::op;
use crate::qp::{ConnectOptions, Endpoint, InitOptions};
use crate::testing;
use crate::transport::Rc;
use crate::types::{Lid, Mtu};

const DEPTH: u32 = 8;

/// A connected queue pair of the test provider, and its driver.
struct Rig {
    pd: ProtectionDomain,
    driver: Driver,
    handle: Handle,
    qp: QueuePair<Rc>,
}

impl Rig {
    fn new() -> Self {
        let context = testing::context();
        let pd = context.alloc_pd().unwrap();
        let options = DriverOptions::new().depth(64).strategy(Strategy::EventDriven);
        let (driver, handle) = Driver::new(&context, &options).unwrap();
        let qp = handle.queue_pair(connect(&pd, &handle)).unwrap();
        Self { pd, driver, handle, qp }
    }

    /// A buffer with its own region, so that counting regions counts buffers.
    fn buffer(&self) -> Buffer {
        self.pd.allocate(16).unwrap()
    }

    fn start(&mut self) -> InFlight<Buffer> {
        let buffer = self.buffer();
        self.qp.start(op::send(buffer)).unwrap()
    }

    /// The `wr_id` of request `at`, in the order of posting.
    fn wr_id(&self, at: usize) -> u64 {
        testing::posted(self.qp.queue_pair().as_raw())[at].wr_id
    }

    /// Makes the completion of request `at`.
    fn complete(&self, at: usize, status: ibv_wc_status) {
        let qp_num = self.qp.queue_pair().qpn();
        let opcode = ibv_wc_opcode::IBV_WC_SEND;
        let wc = ibv_wc { wr_id: self.wr_id(at), status, qp_num, opcode, byte_len: 5, ..ibv_wc::default() };
        testing::complete(self.handle.completion_queue().as_raw(), wc);
    }

    fn succeed(&self, at: usize) {
        self.complete(at, ibv_wc_status::IBV_WC_SUCCESS);
    }

    fn turn(&mut self) -> usize {
        self.driver.turn(usize::MAX).unwrap()
    }

    fn stale(&self) -> u64 {
        self.handle.completion_queue().stale_completions()
    }
}

fn connect(pd: &ProtectionDomain, handle: &Handle) -> crate::QueuePair<Rc> {
    let cq = handle.completion_queue();
    let builder =
        crate::QueuePair::builder(pd).cq(cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).max_send_sge(3).max_recv_sge(2);
    builder.build().unwrap().init(&InitOptions::new()).unwrap().connect(&peer(), &ConnectOptions::new()).unwrap()
}

fn peer() -> Endpoint {
    Endpoint {
        qpn: 0x42,
        psn: 7,
        gid: Some("::ffff:10.0.0.2".parse().unwrap()),
        lid: Lid::NONE,
        mtu: Mtu::MTU_512,
        responder_resources: 4,
    }
}

/// A task that counts its wake-ups.
#[derive(Default)]
struct Task(AtomicUsize);

impl Task {
    fn new() -> (Arc<Self>, Waker) {
        let task = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&task));
        (task, waker)
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// The output of a future that is ready.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

fn is_pending<F: Future>(future: F) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// The number of registered regions: buffers in use or in flight.
fn regions() -> isize {
    testing::live("mr")
}
