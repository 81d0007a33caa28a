//! Objects that other code has made: who destroys them, and what an attacker who keeps the contract
//! of `from_raw` can reach.

mod lies;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use rdma_sys::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type,
    ibv_srq,
};

use super::*;
use crate::handle::Ownership;
use crate::mr::RawOwner;
use crate::testing::{calls, fail, live};
use crate::types::{ForeignObject as Is, Path, RemoteAccess};
use crate::{AddressHandle, CompletionChannel, CqBuilder, Device, ExposedRegion, SourceSlice};

/// The objects of C code, which destroys them itself.
struct Code {
    context: Context,
    pd: ProtectionDomain,
}

impl Code {
    fn new() -> Self {
        let context = testing::context();
        Self { pd: context.alloc_pd().unwrap(), context }
    }

    fn cq(&self, cqe: i32) -> *mut ibv_cq {
        let create = self.context.table().ibv_create_cq;
        // SAFETY: ibv_create_cq requires an open context, and a channel of it or NULL.
        unsafe { create(self.context.as_raw(), cqe, ptr::null_mut(), ptr::null_mut(), 0) }
    }

    fn qp(&self, cq: *mut ibv_cq, srq: *mut ibv_srq, qp_type: ibv_qp_type) -> *mut ibv_qp {
        let (max_send_wr, max_recv_wr) = (SEND_DEPTH, RECV_DEPTH);
        let cap = ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, srq, cap, qp_type, ..ibv_qp_init_attr::default() };
        // SAFETY: ibv_create_qp requires a domain and queues of one open context, and attributes
        // that live during the call.
        unsafe { (self.context.table().ibv_create_qp)(self.pd.as_raw(), &raw mut init) }
    }

    fn rc(&self, cq: *mut ibv_cq) -> *mut ibv_qp {
        self.qp(cq, ptr::null_mut(), ibv_qp_type::IBV_QPT_RC)
    }

    fn srq(&self) -> *mut ibv_srq {
        let mut init = rdma_sys::ibv_srq_init_attr::default();
        (init.attr.max_wr, init.attr.max_sge) = (4, 1);
        // SAFETY: ibv_create_srq requires a live domain, and attributes that live during the call.
        unsafe { (self.context.table().ibv_create_srq)(self.pd.as_raw(), &raw mut init) }
    }

    fn mr(&self, at: *const u8, len: usize) -> *mut ibv_mr {
        // SAFETY: ibv_reg_mr requires a live domain, and memory that stays while it is registered.
        unsafe { self.context.table().ibv_reg_mr(self.pd.as_raw(), at.cast_mut().cast(), len, 1) }
    }

    /// A queue of this crate, over one of this code.
    fn adopt_cq(&self, depth: u32, ownership: Ownership) -> CompletionQueue {
        let raw = self.cq(64);
        // SAFETY: from_raw requires a queue that nobody else uses: just created.
        unsafe { CompletionQueue::from_raw(&self.context.cq_builder(depth), raw, ownership).unwrap() }
    }

    fn adopt_qp(&self, cq: &CompletionQueue, ownership: Ownership) -> QueuePair<Rc> {
        let raw = self.rc(cq.as_raw());
        // SAFETY: from_raw requires a queue pair that nobody else uses: just created.
        unsafe { QueuePair::from_raw(&QueuePair::builder(&self.pd).cq(cq), raw, ownership).unwrap() }
    }

    fn destroy_qp(&self, raw: *mut ibv_qp) {
        // SAFETY: ibv_destroy_qp requires a live queue pair that nobody uses: tests give one.
        assert_eq!(unsafe { (self.context.table().ibv_destroy_qp)(raw) }, 0);
    }

    fn destroy_cq(&self, raw: *mut ibv_cq) {
        // SAFETY: ibv_destroy_cq requires a live queue that nobody uses: tests give one.
        assert_eq!(unsafe { (self.context.table().ibv_destroy_cq)(raw) }, 0);
    }
}

/// Counts drops.
struct Counter(Arc<AtomicUsize>);

impl Drop for Counter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counted() -> (Ownership, impl Fn() -> usize) {
    let drops = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&drops);
    (Ownership::keep_alive(Counter(drops)), move || seen.load(Ordering::Relaxed))
}

type Made<T> = Result<T, Failed<Ownership>>;

// The objects that the tests give to these functions live, or are NULL, and are nobody else's.

fn adopt<T: Transport>(builder: &QpBuilder<T>, raw: *mut ibv_qp) -> Made<QueuePair<T>> {
    // SAFETY: from_raw requires a live queue pair that nobody else uses: as above.
    unsafe { QueuePair::from_raw(builder, raw, Ownership::Destroy) }
}

fn adopt_prepared(builder: &QpBuilder<Rc>, raw: *mut ibv_qp) -> Made<PreparedQueuePair<Rc>> {
    // SAFETY: from_raw requires a live queue pair that nobody else uses: as above.
    unsafe { PreparedQueuePair::from_raw(builder, raw, Ownership::Destroy) }
}

fn adopt_cq(builder: &CqBuilder, raw: *mut ibv_cq) -> Made<CompletionQueue> {
    // SAFETY: from_raw requires a live queue that nobody else uses: as above.
    unsafe { CompletionQueue::from_raw(builder, raw, Ownership::Destroy) }
}

fn adopt_raw_cq(builder: &CqBuilder, raw: *mut ibv_cq) -> Made<RawCompletionQueue> {
    // SAFETY: from_raw requires a live queue that nobody else uses: as above.
    unsafe { RawCompletionQueue::from_raw(builder, raw, Ownership::Destroy) }
}

fn adopt_srq(builder: &SrqBuilder<Rc>, raw: *mut ibv_srq, ownership: Ownership) -> Made<SharedReceiveQueue> {
    // SAFETY: from_raw requires a live queue that nobody else uses: as above.
    unsafe { SharedReceiveQueue::from_raw(builder, raw, ownership) }
}

fn adopt_pd(context: &Context, raw: *mut ibv_pd) -> Made<ProtectionDomain> {
    // SAFETY: from_raw requires a live domain that nobody else uses: as above.
    unsafe { ProtectionDomain::from_raw(context, raw, Ownership::Destroy) }
}

fn adopt_ah(pd: &ProtectionDomain, raw: *mut ibv_ah, ownership: Ownership) -> Made<AddressHandle> {
    // SAFETY: from_raw requires a live address handle that nobody else uses: as above.
    unsafe { AddressHandle::from_raw(pd, raw, &Path::new(2), ownership) }
}

fn adopt_channel(context: &Context, raw: *mut ibv_comp_channel) -> Made<CompletionChannel> {
    // SAFETY: from_raw requires a live channel that nobody else uses: as above.
    unsafe { CompletionChannel::from_raw(context, raw, Ownership::Destroy) }
}

fn adopt_context(device: &Device, raw: *mut ibv_context) -> Made<Context> {
    // SAFETY: from_raw requires an open context that nobody else uses: as above.
    unsafe { Context::from_raw(device, raw, Ownership::Destroy) }
}

type Owned<O> = Result<O, (Error, Vec<u8>)>;

fn adopt_buffer(pd: &ProtectionDomain, raw: *mut ibv_mr, bytes: Vec<u8>) -> Owned<Buffer> {
    // SAFETY: from_raw requires a live region of the bytes that nobody else uses: as above.
    let made = unsafe { Buffer::from_raw(pd, raw, bytes, Ownership::Destroy) };
    made.map_err(|failed| (failed.error, failed.object.0))
}

fn adopt_source(pd: &ProtectionDomain, raw: *mut ibv_mr, bytes: Vec<u8>, access: RemoteAccess) -> Owned<SourceSlice> {
    // SAFETY: from_raw requires a live region of the bytes that nobody else uses: as above.
    let made = unsafe { SourceSlice::from_raw(pd, raw, bytes, access, Ownership::Destroy) };
    made.map_err(|failed| (failed.error, failed.object.0))
}

#[track_caller]
fn is_refused<T>(made: Made<T>, reason: Is) {
    let Err(Failed { error, object, .. }) = made else { panic!("made of a wrong object") };
    assert_eq!((error.verb(), error.kind()), (Verb::FromRaw, ErrorKind::Foreign(reason)));
    assert!(matches!(object, Ownership::Destroy), "the caller has the object again");
}

#[test]
fn null_and_objects_of_others_are_errors_that_leave_the_object_as_it_is() {
    let (code, other) = (Code::new(), Code::new());
    let cq = code.context.create_cq(64).unwrap();
    let (alien_cq, alien_qp, alien_srq) = (other.cq(64), other.rc(other.cq(64)), other.srq());
    let depth = code.context.cq_builder(64);
    let builder = QueuePair::builder(&code.pd).cq(&cq);
    let receives = SharedReceiveQueue::builder(&code.pd);
    is_refused(adopt_cq(&depth, ptr::null_mut()), Is::Null);
    is_refused(adopt_raw_cq(&depth, ptr::null_mut()), Is::Null);
    is_refused(adopt(&builder, ptr::null_mut()), Is::Null);
    is_refused(adopt_prepared(&builder, ptr::null_mut()), Is::Null);
    is_refused(adopt_srq(&receives, ptr::null_mut(), Ownership::Destroy), Is::Null);
    is_refused(adopt_pd(&code.context, ptr::null_mut()), Is::Null);
    is_refused(adopt_ah(&code.pd, ptr::null_mut(), Ownership::Destroy), Is::Null);
    is_refused(adopt_channel(&code.context, ptr::null_mut()), Is::Null);
    is_refused(adopt_context(code.context.device(), ptr::null_mut()), Is::Null);

    is_refused(adopt_cq(&depth, alien_cq), Is::OtherContext);
    is_refused(adopt(&builder, alien_qp), Is::OtherContext);
    is_refused(adopt_srq(&receives, alien_srq, Ownership::Destroy), Is::OtherContext);
    is_refused(adopt_pd(&code.context, other.pd.as_raw()), Is::OtherContext);
    let alien = other.context.create_completion_channel().unwrap();
    is_refused(adopt_channel(&code.context, alien.as_raw()), Is::OtherContext);
    testing::add_device("nic_foreign");
    let second = testing::devices().unwrap().remove(1);
    is_refused(adopt_context(&second, code.context.as_raw()), Is::OtherContext);
    fail("query_device", libc::EIO);
    let failed = adopt_context(code.context.device(), code.context.as_raw()).unwrap_err();
    assert_eq!((failed.error.verb(), failed.error.errno()), (Verb::QueryDevice, Some(libc::EIO)));
    assert_eq!(live("qp"), 1, "nothing was destroyed");
    assert!(!calls().iter().any(|call| call.starts_with("destroy")), "{:?}", calls());
}

#[test]
fn a_queue_pair_is_what_its_builder_says() {
    let code = Code::new();
    let (cq, second) = (code.context.create_cq(64).unwrap(), code.context.create_cq(64).unwrap());
    let (pd, srq) = (&code.pd, SharedReceiveQueue::builder(&code.pd).build().unwrap());
    let other_pd = code.context.alloc_pd().unwrap();
    let (raw, ud) = (code.rc(cq.as_raw()), code.qp(cq.as_raw(), ptr::null_mut(), ibv_qp_type::IBV_QPT_UD));
    let driver = code.qp(cq.as_raw(), ptr::null_mut(), ibv_qp_type::IBV_QPT_DRIVER);
    let shares = code.qp(cq.as_raw(), srq.as_raw(), ibv_qp_type::IBV_QPT_RC);
    let builder = || QueuePair::builder(pd).cq(&cq);
    is_refused(adopt(&QueuePair::builder(&other_pd).cq(&cq), raw), Is::OtherDomain);
    is_refused(adopt(&builder(), ud), Is::OtherTransport(ibv_qp_type::IBV_QPT_UD.0));
    is_refused(adopt(&builder(), driver), Is::OtherTransport(ibv_qp_type::IBV_QPT_DRIVER.0));
    let unreliable = QueuePair::unreliable(pd).cq(&cq);
    is_refused(adopt(&unreliable, raw), Is::OtherTransport(ibv_qp_type::IBV_QPT_RC.0));
    is_refused(adopt(&builder().cq(&second), raw), Is::OtherCompletionQueue);
    is_refused(adopt(&builder().recv_cq(&second), raw), Is::OtherCompletionQueue);
    is_refused(adopt(&builder().shared_receives(&srq), raw), Is::OtherSharedReceives);
    is_refused(adopt(&builder(), shares), Is::OtherSharedReceives);
    for limited in [builder().max_send_wr(SEND_DEPTH + 1), builder().max_recv_sge(3)] {
        assert_eq!(adopt(&limited, raw).unwrap_err().error.kind(), ErrorKind::InvalidInput);
    }
    let none = adopt(&QueuePair::builder(pd).send_cq(&cq), raw).unwrap_err();
    assert_eq!(none.error.kind(), ErrorKind::NoCompletionQueue);
    fail("query_qp", libc::EIO);
    let failed = adopt(&builder(), raw).unwrap_err();
    assert_eq!((failed.error.verb(), failed.error.errno()), (Verb::QueryQp, Some(libc::EIO)));
    let small = code.context.create_cq(4).unwrap();
    let crowded = adopt(&QueuePair::builder(pd).cq(&small), code.rc(small.as_raw())).unwrap_err();
    assert_eq!(crowded.error.kind(), ErrorKind::CompletionQueueTooSmall { needed: SEND_DEPTH, free: 4 });

    let qp = adopt_prepared(&builder().max_send_wr(3), raw).unwrap();
    assert_eq!((qp.qp.send.depth(), qp.qp.recv.depth(), qp.qp.send.max_inline_data()), (3, RECV_DEPTH, 16));
    let qp = qp.init(&InitOptions::new()).unwrap();
    let ended = adopt(&builder(), code.rc(cq.as_raw())).unwrap();
    ended.set_error().unwrap();
    is_refused(adopt_prepared(&builder(), ended.as_raw()), Is::NotReset);
    drop((qp, ended));
    assert_eq!(live("qp"), 4, "the refused ones are still there");
    [ud, driver, shares].into_iter().for_each(|raw| code.destroy_qp(raw));
}

#[test]
fn the_owner_destroys_or_lets_go_and_the_keep_alive_ends_last() {
    let code = Code::new();
    drop(code.adopt_cq(64, Ownership::Destroy));
    assert_eq!(live("cq"), 0);
    let (ownership, drops) = counted();
    let cq = code.adopt_cq(64, ownership);
    let (qp_ownership, qp_drops) = counted();
    let qp = code.adopt_qp(&cq, qp_ownership);
    let (raw_cq, raw_qp) = (cq.as_raw(), qp.as_raw());
    drop(cq);
    assert_eq!((drops(), qp_drops()), (0, 0), "the queue pair uses the queue");
    qp.close().unwrap();
    assert_eq!((drops(), qp_drops(), live("qp"), live("cq")), (1, 1, 1, 1));
    code.destroy_qp(raw_qp);
    code.destroy_cq(raw_cq);

    let raw = code.srq();
    let (ownership, drops) = counted();
    let srq = adopt_srq(&SharedReceiveQueue::builder(&code.pd), raw, ownership).unwrap();
    // The provider grants twice what was asked for.
    assert_eq!((srq.depth(), drops()), (8, 0));
    srq.close().unwrap();
    assert_eq!((drops(), live("srq")), (1, 1));
}

#[test]
fn a_kept_queue_pair_with_requests_in_flight_is_not_let_go_of() {
    let code = Code::new();
    let (cq, (ownership, drops)) = (code.context.create_cq(64).unwrap(), counted());
    let mut qp = code.adopt_qp(&cq, ownership);
    qp.post_send(op::send(code.pd.allocate(16).unwrap())).unwrap();
    let failed = qp.close().unwrap_err();
    assert_eq!((failed.error.kind(), regions(), drops()), (ErrorKind::InUse, 1, 0));
    let (qp, mut poller) = (failed.object, cq.poller());
    let wr_id = testing::posted(qp.as_raw())[0].wr_id;
    testing::complete(cq.as_raw(), wc(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, qp.qpn()));
    drop(poller.poll().unwrap().unwrap().take_buffer());
    let raw = qp.as_raw();
    qp.close().unwrap();
    assert_eq!((regions(), drops(), live("qp")), (0, 1, 1));

    // SAFETY: from_raw requires a queue pair that nobody else uses: it was let go of.
    let mut qp = unsafe { QueuePair::from_raw(&QueuePair::builder(&code.pd).cq(&cq), raw, Ownership::Keep).unwrap() };
    qp.post_recv(code.pd.allocate(16).unwrap(), 0).unwrap();
    drop(qp);
    // The device may still write to the receive's memory.
    assert_eq!((regions(), live("qp")), (1, 1));
    // A reset ends the requests of a kept queue pair, as of any other.
    let mut qp = code.adopt_qp(&cq, Ownership::Keep);
    qp.post_recv(code.pd.allocate(16).unwrap(), 0).unwrap();
    let qp = qp.reset().unwrap();
    assert_eq!(regions(), 1);
    drop(qp);
    assert_eq!((regions(), live("qp")), (1, 2));
}

#[test]
fn a_kept_shared_queue_with_receives_in_flight_is_not_let_go_of() {
    let code = Code::new();
    let (ownership, drops) = counted();
    let raw = code.srq();
    let builder = SharedReceiveQueue::builder(&code.pd).max_wr(3);
    let mut srq = adopt_srq(&builder, raw, ownership).unwrap();
    assert_eq!(srq.depth(), 3);
    srq.post_recv(code.pd.allocate(16).unwrap(), 1).unwrap();
    let failed = srq.close().unwrap_err();
    assert_eq!((failed.error.kind(), regions(), drops()), (ErrorKind::InUse, 1, 0));
    drop(failed.object);
    assert_eq!((regions(), drops(), live("srq")), (1, 0, 1), "all of it leaks");
    let builder = SharedReceiveQueue::builder(&code.pd).max_wr(9);
    is_refused(adopt_srq(&builder, code.srq(), Ownership::Destroy), Is::TooFewEntries(8));
    let builder = SharedReceiveQueue::builder(&code.pd).max_sge(100);
    let refused = adopt_srq(&builder, code.srq(), Ownership::Destroy).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn the_value_that_destroys_a_queue_pair_ends_before_what_the_queue_pair_uses() {
    /// Destroys the queue pair, and counts the domains and completion queues that live by then.
    struct Destroys(AtomicPtr<ibv_qp>, &'static rdma_sys::Ibverbs, Arc<AtomicUsize>);
    impl Drop for Destroys {
        fn drop(&mut self) {
            let parents = live("pd") + live("cq");
            // SAFETY: ibv_destroy_qp requires a live queue pair that nobody uses: this crate has
            // let go of it.
            assert_eq!(unsafe { (self.1.ibv_destroy_qp)(*self.0.get_mut()) }, 0);
            self.2.store(parents.try_into().unwrap(), Ordering::Relaxed);
        }
    }
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let (raw, parents) = (code.rc(cq.as_raw()), Arc::new(AtomicUsize::new(9)));
    let owner = Destroys(raw.into(), code.context.table(), Arc::clone(&parents));
    let builder = QueuePair::builder(&code.pd).cq(&cq);
    // SAFETY: from_raw requires a queue pair that nobody else uses: just created.
    let qp: QueuePair<Rc> = unsafe { QueuePair::from_raw(&builder, raw, Ownership::keep_alive(owner)).unwrap() };
    let (half, rest) = qp.into_split();
    drop((builder, cq, code, half));
    assert_eq!((parents.load(Ordering::Relaxed), live("qp")), (9, 1));
    drop(rest);
    assert_eq!((parents.load(Ordering::Relaxed), live("qp"), live("pd"), live("cq")), (2, 0, 0, 0));
}

#[test]
fn a_request_is_signaled_where_only_the_builder_says_that_all_are() {
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let raw = code.rc(cq.as_raw());
    // The queue pair was made without `sq_sig_all`.
    let mut qp = adopt(&QueuePair::builder(&code.pd).cq(&cq).signal_all(true), raw).unwrap();
    qp.post_send(op::send(code.pd.allocate(16).unwrap()).unsignaled()).unwrap();
    let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
    assert_eq!(testing::posted(raw)[0].flags & signaled, signaled);
}

#[test]
fn completions_of_foreign_requests_are_dropped_and_counted() {
    let code = Code::new();
    let cq = code.adopt_cq(32, Ownership::Destroy);
    let mut qp = code.adopt_qp(&cq, Ownership::Destroy);
    let mut poller = cq.poller();
    // Before this crate's first request, and while it is in flight.
    let foreign = [0, 1, 0xffff, 1 << 43, CompletionQueue::FOREIGN_WR_IDS - 1];
    let complete = |wr_id| testing::complete(cq.as_raw(), wc(wr_id, ibv_wc_status::IBV_WC_SUCCESS, 7));
    foreign.into_iter().for_each(complete);
    assert!(poller.poll().unwrap().is_none());
    qp.post_send(op::send(code.pd.allocate(16).unwrap()).token(5)).unwrap();
    foreign.into_iter().for_each(complete);
    let ours = testing::posted(qp.as_raw())[0].wr_id;
    assert!(ours >= CompletionQueue::FOREIGN_WR_IDS);
    complete(ours);
    foreign.into_iter().for_each(complete);
    assert_eq!(poller.poll().unwrap().unwrap().token(), 5);
    assert!(poller.poll().unwrap().is_none());
    assert_eq!((cq.stale_completions(), regions()), (15, 0));
    // A poller, a second one, and a scope take them for no request of theirs.
    let mut second = cq.poller();
    qp.post_recv(code.pd.allocate(16).unwrap(), 6).unwrap();
    foreign.into_iter().for_each(complete);
    assert!(second.poll().unwrap().is_none() && poller.poll().unwrap().is_none());
    let done = qp.scope(&mut poller, Duration::from_secs(5), |_| {
        foreign.into_iter().for_each(complete);
    });
    done.unwrap();
    assert_eq!(regions(), 1, "the receive is in flight");
}

#[test]
fn a_foreign_queue_leaves_entries_to_other_code() {
    let code = Code::new();
    let raw = code.cq(64);
    is_refused(adopt_cq(&code.context.cq_builder(65), raw), Is::TooFewEntries(64));
    let cq = adopt_cq(&code.context.cq_builder(16), raw).unwrap();
    assert_eq!(cq.depth(), 16);
    let build = || QueuePair::builder(&code.pd).cq(&cq).max_send_wr(8).max_recv_wr(8).build();
    let qp = build().unwrap();
    assert!(matches!(build().unwrap_err().kind(), ErrorKind::CompletionQueueTooSmall { needed: 8, free: 0 }));
    assert_eq!(cq.resize(32).unwrap(), 32);
    // SAFETY: the read requires a live queue that nobody resizes meanwhile.
    assert_eq!(unsafe { (*raw).cqe }, 80);
    assert_eq!(cq.resize(u32::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
    drop((qp, build().unwrap()));

    let (channel, other) =
        (code.context.create_completion_channel().unwrap(), code.context.create_completion_channel().unwrap());
    let create = code.context.table().ibv_create_cq;
    // SAFETY: ibv_create_cq requires an open context, and a channel of it.
    let raw = unsafe { create(code.context.as_raw(), 16, ptr::without_provenance_mut(77), channel.as_raw(), 0) };
    let builder = code.context.cq_builder(16);
    is_refused(adopt_cq(&builder.clone().channel(&other), raw), Is::OtherChannel);
    let cq = adopt_cq(&builder.channel(&channel), raw).unwrap();
    cq.request_notify(false).unwrap();
    testing::complete(cq.as_raw(), wc(3, ibv_wc_status::IBV_WC_SUCCESS, 7));
    assert_eq!(channel.next_event(Some(Duration::ZERO)).unwrap(), Some(cq.id()));
}

/// Deregisters a region when it is dropped, as the owner of a foreign region does.
struct Deregisters(Raw, &'static rdma_sys::Ibverbs);

struct Raw(*mut ibv_mr);
// SAFETY: an address.
unsafe impl Send for Raw {}
// SAFETY: an address.
unsafe impl Sync for Raw {}

impl Drop for Deregisters {
    fn drop(&mut self) {
        // SAFETY: ibv_dereg_mr requires a live region that nobody uses: this crate has let go.
        assert_eq!(unsafe { (self.1.ibv_dereg_mr)(self.0.0) }, 0);
    }
}

#[test]
fn a_foreign_region_ends_before_its_owner_has_the_memory_back() {
    let code = Code::new();
    let bytes = vec![7_u8; 64];
    let raw = code.mr(bytes.as_ptr(), 64);
    let buffer = adopt_buffer(&code.pd, raw, bytes).unwrap();
    assert_eq!((buffer.len(), buffer[63]), (64, 7));
    assert_eq!(buffer.deregister::<Vec<u8>>().unwrap(), [7; 64]);
    assert_eq!(regions(), 0);

    /// Memory that must not be registered any more when it is given back.
    struct Checks(Box<[u8]>);
    impl Drop for Checks {
        fn drop(&mut self) {
            assert_eq!((regions(), self.0.len()), (0, 64));
        }
    }
    let checks = Checks(vec![0; 64].into());
    let at = ptr::NonNull::from(&checks.0[..]).cast();
    let raw = code.mr(checks.0.as_ptr(), 64);
    // SAFETY: RawOwner::new requires bytes that stay in place, and that nobody else accesses.
    let owner = unsafe { RawOwner::new(at, 64, checks) };
    let ends = Ownership::keep_alive(Deregisters(Raw(raw), code.context.table()));
    // SAFETY: from_raw requires a region of the owner's memory that nobody else uses.
    let region = unsafe { ExposedRegion::from_raw(&code.pd, raw, owner, RemoteAccess::WRITE, ends) }.unwrap();
    let slice = region.slice(..8).unwrap();
    drop(region);
    assert_eq!(regions(), 1);
    drop(slice);
    assert_eq!(regions(), 0);
}

#[test]
fn a_region_that_is_not_the_owners_gives_the_owner_back() {
    let (code, other) = (Code::new(), Code::new());
    let bytes = vec![7_u8; 64];
    let at = bytes.as_ptr();
    let part = code.mr(at, 63);
    let wrong = [
        (ptr::null_mut(), Is::Null),
        (other.mr(at, 64), Is::OtherContext),
        (part, Is::OtherMemory),
        (code.mr(at.wrapping_add(1), 63), Is::OtherMemory),
        (code.mr(ptr::without_provenance(usize::MAX), 1), Is::OtherMemory),
    ];
    let mut owner = bytes;
    for (raw, reason) in wrong {
        let (error, bytes) = adopt_buffer(&code.pd, raw, owner).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign(reason));
        let (error, bytes) = adopt_source(&code.pd, raw, bytes, RemoteAccess::READ).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Foreign(reason));
        owner = bytes;
    }
    let (error, _) = adopt_source(&code.pd, part, owner, RemoteAccess::WRITE).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    // A part of what is registered.
    let text = *b"the registered bytes";
    let whole = code.mr(text.as_ptr(), text.len());
    // SAFETY: RawSource::new requires bytes that stay in place and that nobody writes: the local
    // outlives the source.
    let owner = unsafe { crate::RawSource::new(ptr::NonNull::from(&text[4..14]).cast(), 10, ()) };
    // SAFETY: from_raw requires a live region of the owner's memory that nobody else uses.
    let source = unsafe { SourceSlice::from_raw(&code.pd, whole, owner, RemoteAccess::READ, Ownership::Keep) }.unwrap();
    assert_eq!(&source[..], b"registered");
    drop(source);
    // Memory to which others keep access is never lent.
    let lent = Box::new([0_u8; 64]);
    let raw = code.mr(lent.as_ptr(), 64);
    // SAFETY: RawOwner::new requires bytes that stay in place, and that nobody else accesses.
    let owner = unsafe { RawOwner::new(ptr::NonNull::from(&lent[..]).cast(), 64, lent) };
    // SAFETY: from_raw requires a live region of the owner's memory that nobody else uses.
    let failed = unsafe { Buffer::from_raw(&code.pd, raw, owner, Ownership::Keep) }.unwrap_err();
    assert_eq!((failed.error.verb(), failed.error.kind()), (Verb::MakePrivate, ErrorKind::NotSupported));
}

#[test]
fn a_foreign_address_handle_lives_as_long_as_its_datagrams() {
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let qp = QueuePair::datagram(&code.pd).cq(&cq).build().unwrap();
    let mut qp = qp.init(&DatagramOptions::new(1)).unwrap().ready().unwrap();
    let mut attr = Path::new(2).to_raw();
    // SAFETY: ibv_create_ah requires a live domain, and attributes that live during the call.
    let raw = unsafe { (code.context.table().ibv_create_ah)(code.pd.as_raw(), &raw mut attr) };
    let (ownership, drops) = counted();
    let other = code.context.alloc_pd().unwrap();
    is_refused(adopt_ah(&other, raw, Ownership::Destroy), Is::OtherDomain);
    let address = adopt_ah(&code.pd, raw, ownership).unwrap();
    qp.post_send(op::send_inline(b"").to(&address, 1, 1)).unwrap();
    drop(address);
    assert_eq!(drops(), 0);
    drop(qp);
    assert_eq!((drops(), testing::live_handles().len()), (1, 1), "other code destroys it");
}
