//! Objects that other code has made, on the device under test and on the provider in memory: they
//! work as those of this crate, and the other code destroys them afterwards.

mod code;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use code::{Code, Objects, RAW};
use rdma::cm::ConnOptions;
use rdma::cm::blocking::Connection;
use rdma::op::{self, Opcode};
use rdma::transport::{Rc, Ud};
use rdma::{
    AddressHandle, CompletionQueue, ConnectOptions, Context, DatagramOptions, ExposedRegion, Grh, InitOptions,
    InitializedQueuePair, Ownership, PreparedQueuePair, ProtectionDomain, QpBuilder, QueuePair, RawOwner, RemoteAccess,
    SharedReceiveQueue,
};
use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_wc, ibv_wc_opcode};
use rdma_tests::cm::{connect, listen, wait_accepted};
use rdma_tests::report::Reported;
use rdma_tests::{Done, LIMIT, all_rights, buffer, open, pattern, skip, wait};

const LEN: usize = 1000;

/// The objects of other code, as those of this crate.
struct Adopted {
    cq: CompletionQueue,
    receives: Option<SharedReceiveQueue>,
    region: ExposedRegion,
    qps: [PreparedQueuePair<Rc>; 2],
}

impl Adopted {
    fn new(pd: &ProtectionDomain, objects: &Objects, memory: &mut [u8]) -> Self {
        // 16 requests in each of four queues, and 64 receives of the shared queue's ring.
        let builder = pd.context().cq_builder(128);
        // SAFETY: from_raw requires a queue that nobody else polls, whose other requests have small
        // numbers and leave this many entries: those of the code, at most 16.
        let cq = unsafe { CompletionQueue::from_raw(&builder, objects.cq, Ownership::Keep) }.unwrap();
        let receives = (!objects.srq.is_null()).then(|| {
            let builder = SharedReceiveQueue::builder(pd).max_wr(16);
            // SAFETY: from_raw requires a basic queue, whose other requests have small numbers.
            unsafe { SharedReceiveQueue::from_raw(&builder, objects.srq, Ownership::Keep) }.unwrap()
        });
        let adopt = |at: usize| {
            let builder: QpBuilder<Rc> = QueuePair::builder(pd).cq(&cq).max_send_wr(16);
            let builder = match &receives {
                Some(receives) if at == 1 => builder.shared_receives(receives),
                _ => builder.max_recv_wr(16),
            };
            // SAFETY: from_raw requires a queue pair whose other requests have small numbers.
            unsafe { PreparedQueuePair::from_raw(&builder, objects.qps[at], Ownership::Keep) }.unwrap()
        };
        let qps = [adopt(0), adopt(1)];
        let (at, len) = (NonNull::from(&mut *memory).cast(), memory.len());
        // SAFETY: RawOwner::new requires bytes that stay in place, and that nobody accesses but as
        // the region does: the test reads them once the region has ended.
        let owner = unsafe { RawOwner::new(at, len, ()) };
        let access = RemoteAccess::READ | RemoteAccess::WRITE;
        // SAFETY: from_raw requires a region of these bytes, which other code deregisters after it.
        let region = unsafe { ExposedRegion::from_raw(pd, objects.mr, owner, access, Ownership::Keep) }.unwrap();
        Self { cq, receives, region, qps }
    }
}

/// Connects two queue pairs of one process, in the way of the device. `prepare` posts the first
/// receives of the second.
fn join(
    context: &Context,
    [a, b]: [PreparedQueuePair<Rc>; 2],
    prepare: impl FnOnce(&mut InitializedQueuePair<Rc>) + Send,
) -> ([Reported<Rc>; 2], Vec<Connection>) {
    if context.capabilities().manual_connect {
        let options = InitOptions::new().remote_access(all_rights());
        let [a, mut b] = [a, b].map(|qp| qp.init(&options).expect("INIT"));
        prepare(&mut b);
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        let connected = |qp: InitializedQueuePair<Rc>, to| qp.connect(to, &ConnectOptions::new()).expect("RTS").into();
        return ([connected(a, &to_b), connected(b, &to_a)], Vec::new());
    }
    let listener = listen(context);
    let accepted = AtomicBool::new(false);
    let (active, passive) = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let request = listener.next_request(Some(LIMIT)).expect("a listener").expect("a request");
            let mut qp = request.init(b).expect("INIT");
            prepare(&mut qp);
            let side = request.accept(qp, &ConnOptions::new(), LIMIT).expect("a connection");
            accepted.store(true, Ordering::Release);
            side
        });
        let active = connect(context, listener.local_addr(), a, &ConnOptions::new());
        wait_accepted(context, &accepted);
        (active, passive.join().expect("the passive end"))
    });
    ([active.1.into(), passive.1.into()], vec![active.0, passive.0])
}

fn objects_work_and_are_let_go_of(code: &Code, shares: bool) {
    let context = open().context;
    if shares && context.device_attr().max_srq() == 0 {
        return skip("the device has no shared receive queues");
    }
    let pd = context.alloc_pd().unwrap();
    let mut memory = vec![0_u8; 4 * LEN];
    let mut objects = code.make(&pd, &mut memory, shares);
    let Adopted { cq, mut receives, region, qps } = Adopted::new(&pd, &objects, &mut memory);
    // The first receive is the other code's, and this crate knows nothing of it.
    if let Some(receives) = &mut receives {
        code.post_receive(&mut objects, 7, 0, LEN);
        receives.post_recv(pd.allocate(LEN).unwrap(), 1).unwrap();
    }
    let ([mut a, b], connections) = join(&context, qps, |qp| {
        if !shares {
            code.post_receive(&mut objects, 7, 0, LEN);
            qp.post_recv(pd.allocate(LEN).unwrap(), 1).unwrap();
        }
    });
    let mut poller = cq.poller();
    for (token, seed) in [(10, 1), (11, 2)] {
        a.post_send(op::send(buffer(&pd, &pattern(LEN, seed))).token(token)).unwrap();
    }
    let mut done: Vec<Done> = (0..3).map(|_| wait(&mut poller)).collect();
    done.sort_by_key(|done| done.token);
    assert_eq!(
        done.iter().map(|done| (done.token, done.status)).collect::<Vec<_>>(),
        [1, 10, 11].map(|at| (at, Ok(())))
    );
    assert!(done.remove(0).buffer()[..] == pattern(LEN, 2));
    assert_eq!(cq.stale_completions(), 1, "the completion of the other code's receive");
    let mut first = vec![0; LEN];
    region.copy_out(0, &mut first).unwrap();
    assert!(first == pattern(LEN, 1), "the message in the other code's memory");

    // The region is local memory, and the peer's.
    region.copy_in(LEN, &pattern(LEN, 3)).unwrap();
    let written = region.remote(2 * LEN..3 * LEN).unwrap();
    a.post_send(op::write(region.slice(LEN..2 * LEN).unwrap(), written).token(12)).unwrap();
    assert_eq!((wait(&mut poller).status, 12), (Ok(()), 12));
    a.post_send(op::read(region.slice(3 * LEN..).unwrap(), written).token(13)).unwrap();
    let done = wait(&mut poller);
    assert_eq!((done.status, done.token, done.opcode), (Ok(()), 13, Opcode::Read));
    drop((done, connections, a, b, receives, region, poller));
    cq.close().unwrap();
    assert!(memory[3 * LEN..] == pattern(LEN, 3));
    // Fails for whatever was destroyed before, or is in use.
    code.unmake(&context, objects);
}

#[test]
fn objects_of_raw_functions_work_as_those_of_this_crate() {
    objects_work_and_are_let_go_of(&RAW, false);
}

#[test]
fn a_shared_receive_queue_of_raw_functions_works_as_one_of_this_crate() {
    objects_work_and_are_let_go_of(&RAW, true);
}

/// The code in C, for a device that is on the host of the compiler.
fn code_in_c(name: &str) -> Option<Code> {
    if open().context.is_software() {
        return Code::of_c(name);
    }
    skip("the test with the raw functions runs on this device");
    None
}

#[test]
fn objects_of_a_program_in_c_work_as_those_of_this_crate() {
    let Some(code) = code_in_c("device") else { return };
    objects_work_and_are_let_go_of(&code, false);
    objects_work_and_are_let_go_of(&code, true);
}

#[test]
fn objects_of_a_program_in_c_are_let_go_of_on_the_provider_in_memory() {
    let Some(code) = Code::of_c("memory") else { return };
    let context = rdma_testkit::context();
    let pd = context.alloc_pd().unwrap();
    let mut memory = vec![0_u8; 64];
    let mut objects = code.make(&pd, &mut memory, true);
    let Adopted { cq, receives, region, qps: [a, b] } = Adopted::new(&pd, &objects, &mut memory);
    let mut receives = receives.unwrap();
    code.post_receive(&mut objects, 7, 0, 64);
    receives.post_recv(pd.allocate(64).unwrap(), 1).unwrap();
    let posted = rdma_testkit::posted_to_srq(objects.srq);
    assert_eq!((posted[0].wr_id, posted.len()), (7, 2));
    let complete = |wr_id| {
        rdma_testkit::complete(objects.cq, ibv_wc { wr_id, opcode: ibv_wc_opcode::IBV_WC_RECV, ..ibv_wc::default() });
    };
    posted.iter().for_each(|posted| complete(posted.wr_id));
    let mut poller = cq.poller();
    assert_eq!(wait(&mut poller).token, 1);
    assert_eq!(cq.stale_completions(), 1);
    drop((a, b, poller, region));
    receives.close().unwrap();
    cq.close().unwrap();
    code.unmake(&context, objects);
    drop(pd);
    let left = ["qp", "cq", "srq", "mr", "pd"].map(rdma_testkit::live);
    assert_eq!(left, [0; 5]);
}

#[test]
fn a_datagram_queue_pair_that_is_ready_knows_its_port_and_reaches_peers() {
    let context = open().context;
    if !context.capabilities().datagrams {
        return skip("iWARP has no datagrams");
    }
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, ..ibv_qp_cap::default() };
    let (send_cq, recv_cq, qp_type) = (cq.as_raw(), cq.as_raw(), ibv_qp_type::IBV_QPT_UD);
    let mut init = ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type, ..ibv_qp_init_attr::default() };
    // SAFETY: ibv_create_qp requires a domain and queues of one context, and attributes that live
    // during the call.
    let raw = unsafe { (context.table().ibv_create_qp)(pd.as_raw(), &raw mut init) };
    let builder = QueuePair::datagram(&pd).cq(&cq).max_send_wr(8).max_recv_wr(8);
    // SAFETY: from_raw requires a queue pair that nobody else uses: just created.
    let qp = unsafe { PreparedQueuePair::from_raw(&builder, raw, Ownership::Keep) }.unwrap();
    let qp = qp.init(&DatagramOptions::new(0x77)).unwrap().ready().unwrap();
    let endpoint = qp.endpoint().unwrap();
    // Lets go of the queue pair, as it is.
    qp.close().unwrap();
    // SAFETY: from_raw requires a queue pair that nobody else uses: it was let go of.
    let mut qp: QueuePair<Ud> = unsafe { QueuePair::from_raw(&builder, raw, Ownership::Destroy) }.unwrap();
    assert_eq!(qp.endpoint().unwrap(), endpoint);
    let path = qp.path_to(&endpoint).unwrap();
    let mut attr = path.to_raw();
    // SAFETY: ibv_create_ah requires a live domain, and attributes that live during the call.
    let raw = unsafe { (context.table().ibv_create_ah)(pd.as_raw(), &raw mut attr) };
    // SAFETY: from_raw requires an address handle that nobody else uses: just created.
    let address = unsafe { AddressHandle::from_raw(&pd, raw, &path, Ownership::Destroy) }.unwrap();
    qp.post_recv(pd.allocate(Grh::LEN + LEN).unwrap(), 1).unwrap();
    qp.post_send(op::send(buffer(&pd, &pattern(LEN, 9))).to(&address, endpoint.qpn, 0x77).token(2)).unwrap();
    let mut poller = cq.poller();
    let mut done = [wait(&mut poller), wait(&mut poller)];
    done.sort_by_key(|done| done.token);
    let [received, sent] = done;
    assert_eq!((received.status, received.token, sent.status, sent.token), (Ok(()), 1, Ok(()), 2));
    assert!(received.buffer()[Grh::LEN..] == pattern(LEN, 9));
    drop((qp, address));
}
