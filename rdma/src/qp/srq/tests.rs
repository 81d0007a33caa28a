//! Tests over the test provider: who gets memory back, and when.

use std::collections::HashSet;

use rdma_sys::{ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_event_type, ibv_wc, ibv_wc_opcode, ibv_wc_status};

use super::*;
use crate::context::{AsyncEventKind, EventSource};
use crate::mr::Buffer;
use crate::qp::{QpAttr, QueuePair};
use crate::testing::{self, BadWr, fail, fail_post, live};
use crate::types::QpState;
use crate::{CompletionQueue, Context, Poller};

mod stats;

const DEPTH: u32 = 4;
/// Slots of the queue, of which the provider grants twice what is asked for.
const SLOTS: u32 = 4 * DEPTH;

struct Rig {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    poller: Poller,
    srq: SharedReceiveQueue,
    qp: QueuePair<Rc>,
}

impl Rig {
    fn new() -> Self {
        let context = testing::context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let srq = SharedReceiveQueue::builder(&pd).max_wr(DEPTH).max_sge(2).build().unwrap();
        let qp = QueuePair::builder(&pd).cq(&cq).shared_receives(&srq).build().unwrap().into_manual();
        let poller = cq.poller();
        Self { context, pd, cq, poller, srq, qp }
    }

    fn buffer(&self) -> Buffer {
        self.pd.allocate(16).unwrap()
    }

    /// Posts a receive, and returns its `wr_id`.
    fn post(&mut self, token: u64) -> u64 {
        self.srq.post_recv(self.buffer(), token).unwrap();
        testing::posted_to_srq(self.srq.as_raw()).last().unwrap().wr_id
    }

    fn complete(&self, wr_id: u64) {
        let (status, opcode) = (ibv_wc_status::IBV_WC_SUCCESS, ibv_wc_opcode::IBV_WC_RECV);
        let wc = ibv_wc { wr_id, status, opcode, qp_num: self.qp.qpn(), byte_len: 5, ..ibv_wc::default() };
        testing::complete(self.cq.as_raw(), wc);
    }

    /// Polls the next completion: its token, queue pair and length. Its buffer is dropped.
    fn next(&mut self) -> Option<(u64, u32, usize)> {
        let mut completion = self.poller.poll().unwrap()?;
        assert!(completion.take_buffer().is_some());
        Some((completion.token(), completion.qpn(), completion.byte_len()))
    }
}

#[test]
fn receives_complete_in_any_order_and_no_name_is_used_twice() {
    let mut rig = Rig::new();
    let (mut names, mut posted) = (HashSet::new(), Vec::new());
    for round in 0..500 {
        while rig.srq.room() > 0 {
            let wr_id = rig.post(round);
            assert!(names.insert(wr_id), "{wr_id:#x} is used again");
            posted.push((wr_id, round));
        }
        assert_eq!(posted.len(), 2 * DEPTH as usize);
        // Neither first in first out, nor the other way round; some stay for many rounds.
        for at in [5, 1, 2] {
            let (wr_id, token) = posted.remove(at);
            rig.complete(wr_id);
            assert_eq!(rig.next(), Some((token, rig.qp.qpn(), 5)));
            // The completion of a name that is not in flight releases nothing.
            rig.complete(wr_id);
            assert_eq!(rig.next(), None);
        }
    }
    assert_eq!(live("mr").try_into(), Ok(posted.len()));
}

#[test]
fn completions_that_nobody_polls_fill_the_queue() {
    let mut rig = Rig::new();
    for token in 0..u64::from(SLOTS) {
        let wr_id = rig.post(token);
        rig.complete(wr_id);
    }
    // Half of the slots must be free before more receives are taken.
    for _ in 0..SLOTS / 2 {
        assert_eq!(rig.srq.room(), 0);
        let refused = rig.srq.post_recv(rig.buffer(), 0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::QueueFull);
        assert!(refused.into_memory().is_some());
        rig.next().unwrap();
    }
    rig.post(1);
}

#[test]
fn a_refused_receive_comes_back() {
    let mut rig = Rig::new();
    fail_post(0, libc::ENOMEM, BadWr::Chain);
    let refused = rig.srq.post_recv(rig.buffer(), 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QueueFull);
    let buffer = refused.into_memory().unwrap();
    let other = rig.context.alloc_pd().unwrap().allocate(8).unwrap();
    assert_eq!(rig.srq.post_recv(other, 1).map_err(|refused| refused.kind()), Err(ErrorKind::InvalidInput));
    let three = [rig.buffer(), rig.buffer(), rig.buffer()];
    assert_eq!(rig.srq.post_recv(three, 1).map_err(|refused| refused.kind()), Err(ErrorKind::TooManySegments));
    rig.srq.post_recv([buffer, rig.buffer()], 1).unwrap();
    drop(rig.srq);
    assert_eq!(live("mr"), 2, "the queue pair keeps the queue and its receives");
    drop(rig.qp);
    assert_eq!((live("srq"), live("mr")), (0, 0));
}

#[test]
fn a_receive_whose_fate_is_unknown_stays_and_ends_the_queue() {
    for (accept, blame) in [(0, BadWr::Null), (1, BadWr::Chain), (0, BadWr::Alien)] {
        let mut rig = Rig::new();
        fail_post(accept, libc::EIO, blame);
        let failed = rig.srq.post_recv(rig.buffer(), 1).unwrap_err();
        assert!(failed.into_memory().is_none());
        assert_eq!(live("mr"), 1);
        let ended = rig.srq.post_recv(rig.buffer(), 2).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::NoDevice);
        drop(ended);
        drop((rig.qp, rig.srq));
        assert_eq!((live("srq"), live("mr")), (0, 0));
    }
}

#[test]
fn receives_outlive_the_queue_pairs() {
    let mut rig = Rig::new();
    let wr_id = rig.post(1);
    drop(rig.qp);
    assert_eq!(live("mr"), 1);
    rig.qp = QueuePair::builder(&rig.pd).cq(&rig.cq).shared_receives(&rig.srq).build().unwrap().into_manual();
    rig.complete(wr_id);
    assert_eq!(rig.next().unwrap().0, 1);
    rig.post(2);
    let failed = rig.srq.close().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    rig.srq = failed.object;
    rig.post(3);
    drop(rig.qp);
    fail("destroy_srq", libc::EBUSY);
    let failed = rig.srq.close().unwrap_err();
    assert_eq!(failed.error.errno(), Some(libc::EBUSY));
    assert_eq!((live("srq"), live("mr")), (1, 2));
    failed.object.close().unwrap();
    assert_eq!((live("srq"), live("mr")), (0, 0));
}

#[test]
fn completions_are_fetched_before_a_queue_pair_ends() {
    // A provider forgets the completions of a queue pair that it resets or destroys.
    let mut rig = Rig::new();
    let first = rig.post(1);
    rig.complete(first);
    rig.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    assert_eq!(testing::pending(rig.cq.as_raw()), 0);
    let second = rig.post(2);
    rig.complete(second);
    let qpn = rig.qp.qpn();
    drop(rig.qp);
    assert_eq!(testing::pending(rig.cq.as_raw()), 0);
    rig.qp = QueuePair::builder(&rig.pd).cq(&rig.cq).shared_receives(&rig.srq).build().unwrap().into_manual();
    assert_eq!(rig.next(), Some((1, qpn, 5)));
    assert_eq!(rig.next(), Some((2, qpn, 5)));
}

#[test]
fn a_queue_that_cannot_be_destroyed_keeps_its_receives() {
    let mut rig = Rig::new();
    rig.post(1);
    drop(rig.qp);
    fail("destroy_srq", libc::EBUSY);
    drop(rig.srq);
    assert_eq!((live("srq"), live("mr")), (1, 1));
}

#[test]
fn a_queue_pair_that_cannot_be_destroyed_keeps_the_queue() {
    let mut rig = Rig::new();
    rig.post(1);
    fail("destroy_qp", libc::EBUSY);
    drop((rig.qp, rig.srq));
    assert_eq!((live("qp"), live("srq"), live("mr")), (1, 1, 1));
}

#[test]
fn entries_are_reserved_once_for_all_queue_pairs_of_both_queues() {
    let Rig { pd, srq, qp, mut poller, cq, .. } = Rig::new();
    // Of 64 entries, the receives have 16, and the sends of each queue pair 16.
    let build = |cq| QueuePair::builder(&pd).cq(cq).shared_receives(&srq).max_send_wr(16).build();
    let (second, third) = (build(&cq).unwrap(), build(&cq).unwrap());
    let too_small = ErrorKind::CompletionQueueTooSmall { needed: 16, free: 0 };
    assert_eq!(build(&cq).unwrap_err().kind(), too_small);
    drop((qp, second, third));
    assert!(poller.poll().unwrap().is_none());
    // The receives' entries are free, too.
    let alone = QueuePair::builder(&pd).cq(&cq).max_send_wr(32).max_recv_wr(32).build().unwrap();
    let needed = ErrorKind::CompletionQueueTooSmall { needed: 16, free: 0 };
    assert_eq!(build(&cq).unwrap_err().kind(), needed);
    drop(alone);
}

#[test]
fn a_queue_pair_has_no_receives_of_its_own() {
    let mut rig = Rig::new();
    let refused = rig.qp.post_recv(rig.pd.allocate(8).unwrap(), 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SharedReceives);
    let text = refused.error().to_string();
    assert!(text.contains("post to the shared receive queue"), "{text}");
    let receives = rig.qp.recv_queue();
    assert_eq!((receives.depth(), receives.room()), (0, 0));
    let other = rig.context.alloc_pd().unwrap();
    let refused = QueuePair::builder(&other).cq(&rig.cq).shared_receives(&rig.srq).build().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn limits_and_their_event() {
    let rig = Rig::new();
    assert_eq!(rig.srq.depth(), 2 * DEPTH);
    rig.srq.arm_limit(3).unwrap();
    assert_eq!(rig.srq.limit().unwrap(), 3);
    let element = ibv_async_event__bindgen_ty_1 { srq: rig.srq.as_raw() };
    let event_type = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED;
    testing::raise(rig.context.as_raw(), ibv_async_event { element, event_type });
    let event = rig.context.try_next_event().unwrap().unwrap();
    assert_eq!(event.kind, AsyncEventKind::SRQ_LIMIT_REACHED);
    assert_eq!(event.source, EventSource::SharedReceiveQueue(rig.srq.id()));
    for (max_wr, max_sge) in [(1025, 1), (1, 5)] {
        let refused = SharedReceiveQueue::builder(&rig.pd).max_wr(max_wr).max_sge(max_sge).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn receives_of_datagrams_have_room_for_the_header() {
    let rig = Rig::new();
    let mut srq = SharedReceiveQueue::datagram(&rig.pd).build().unwrap();
    let refused = srq.post_recv(rig.pd.allocate(39).unwrap(), 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfBounds);
    srq.post_recv(rig.pd.allocate(40).unwrap(), 1).unwrap();
}

#[test]
fn a_resized_queue_takes_as_many_receives_as_it_has_slots_for() {
    const MOST: u32 = 8 * DEPTH;
    let mut rig = Rig::new();
    assert_eq!(rig.srq.resize(2 * DEPTH + 1).unwrap_err().kind(), ErrorKind::InvalidInput, "more than was reserved");
    assert_eq!(rig.srq.resize(0).unwrap_err().kind(), ErrorKind::InvalidInput);

    rig.srq = SharedReceiveQueue::builder(&rig.pd).max_wr(DEPTH).resizable_to(MOST).build().unwrap();
    let too_small = QueuePair::builder(&rig.pd).cq(&rig.cq).shared_receives(&rig.srq).max_send_wr(1).build();
    let expected = ErrorKind::CompletionQueueTooSmall { needed: 2 * MOST, free: 63 - 16 - SLOTS };
    assert_eq!(too_small.unwrap_err().kind(), expected, "entries for all slots are reserved at once");
    let fill = |srq: &mut SharedReceiveQueue| {
        let posted = (0..).take_while(|token| srq.post_recv(rig.pd.allocate(16).unwrap(), *token).is_ok()).count();
        (posted, srq.room())
    };
    assert_eq!((rig.srq.depth(), rig.srq.room()), (2 * DEPTH, 2 * DEPTH));
    fail("modify_srq", libc::EINVAL);
    assert_eq!(rig.srq.resize(MOST).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(rig.srq.depth(), 2 * DEPTH, "a refusal changes nothing");
    // The provider grants twice as many, for which the ring has no slots.
    rig.srq.resize(MOST).unwrap();
    assert_eq!((rig.srq.depth(), rig.srq.room()), (MOST, MOST));
    let (posted, room) = fill(&mut rig.srq);
    assert!(posted >= MOST as usize && posted <= 2 * MOST as usize, "{posted}");
    assert_eq!(room, 0);
}

#[test]
fn batches_of_receives_and_single_ones_use_no_name_twice() {
    let mut rig = Rig::new();
    let (mut names, mut in_flight, mut seen) = (HashSet::new(), Vec::new(), 0);
    for round in 0..300_u64 {
        let mut batch = rig.srq.batch();
        for token in 0..round % 4 {
            batch.push(rig.pd.allocate(16).unwrap(), round * 10 + token).unwrap();
        }
        match round % 5 {
            // Nothing of it was posted.
            0 => drop(batch),
            _ => batch.submit().unwrap(),
        }
        rig.srq.post_recv(rig.buffer(), round * 10 + 9).unwrap();
        let posted = testing::posted_to_srq(rig.srq.as_raw());
        for posted in &posted[seen..] {
            assert!(names.insert(posted.wr_id), "{:#x} is used again", posted.wr_id);
            in_flight.push(posted.wr_id);
        }
        seen = posted.len();
        while in_flight.len() > 2 {
            rig.complete(in_flight.remove(1));
            assert!(rig.next().is_some());
        }
    }
    assert_eq!(live("mr").try_into(), Ok(in_flight.len()));
    assert_eq!(rig.cq.stale_completions(), 0);
}

#[test]
fn a_batch_is_as_long_as_the_queue_has_free_slots() {
    let mut rig = Rig::new();
    let mut batch = rig.srq.batch();
    let mut count = 0;
    while batch.push(rig.pd.allocate(16).unwrap(), count).is_ok() {
        count += 1;
    }
    assert_eq!(count, u64::from(2 * DEPTH));
    batch.submit().unwrap();
    assert_eq!(rig.srq.room(), 0);
    // Slots that are free, but fewer than half of all, are those of no batch.
    let mut batch = rig.srq.batch();
    while batch.push(rig.pd.allocate(16).unwrap(), 99).is_ok() {}
    drop(batch);
    assert_eq!(live("mr").try_into(), Ok(count));
    for posted in testing::posted_to_srq(rig.srq.as_raw()) {
        rig.complete(posted.wr_id);
        assert!(rig.next().is_some_and(|(token, ..)| token < count));
    }
    assert_eq!(live("mr"), 0);
}

/// Posts a batch with these tokens, and returns the `wr_id`s.
fn post_batch(rig: &mut Rig, tokens: std::ops::Range<u64>) -> Vec<u64> {
    let before = testing::posted_to_srq(rig.srq.as_raw()).len();
    let mut batch = rig.srq.batch();
    for token in tokens {
        batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    batch.submit().unwrap();
    testing::posted_to_srq(rig.srq.as_raw())[before..].iter().map(|posted| posted.wr_id).collect()
}

/// Completes receives with these tokens, and polls them.
fn complete_batch(rig: &mut Rig, names: &[u64], tokens: std::ops::Range<u64>) {
    for (&wr_id, expected) in names.iter().zip(tokens) {
        rig.complete(wr_id);
        assert_eq!(rig.next().map(|(token, ..)| token), Some(expected));
    }
}

#[test]
fn a_search_amid_a_batch_leaves_out_the_slots_of_the_batch() {
    let mut rig = Rig::new();
    // Of the first list, four slots are left.
    for tokens in [0..8, 0..4] {
        let names = post_batch(&mut rig, tokens.clone());
        complete_batch(&mut rig, &names, tokens);
    }
    // Takes the four and, after a search, two more; they stay in flight for all of the next list.
    let stay = post_batch(&mut rig, 100..106);
    let slot = |wr_id: &u64| wr_id % u64::from(SLOTS);
    let mut taken: HashSet<u64> = stay.iter().map(slot).collect();
    assert_eq!(taken.len(), 6);
    for _ in 0..20 {
        let names = post_batch(&mut rig, 0..2);
        assert!(names.iter().all(|name| taken.insert(slot(name))), "{names:x?} {taken:?}");
        complete_batch(&mut rig, &names, 0..2);
        names.iter().map(slot).for_each(|slot| assert!(taken.remove(&slot)));
    }
    complete_batch(&mut rig, &stay, 100..106);
    assert_eq!((live("mr"), rig.cq.stale_completions()), (0, 0));
}

#[test]
fn a_forgotten_batch_leaks_its_memory_and_the_queue_works_on() {
    let mut rig = Rig::new();
    let mut batch = rig.srq.batch();
    for token in 0..3 {
        batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
    }
    #[allow(clippy::mem_forget, reason = "the attack")]
    std::mem::forget(batch);
    for token in 0..100 {
        let wr_id = rig.post(token);
        rig.complete(wr_id);
        assert_eq!(rig.next().map(|(token, ..)| token), Some(token));
    }
    drop((rig.srq, rig.qp));
    assert_eq!((live("srq"), live("mr")), (0, 3));
}

#[test]
fn a_batch_that_fails_gives_back_what_was_not_taken() {
    for (accept, blame, known) in [(0, BadWr::Chain, true), (2, BadWr::Chain, true), (2, BadWr::Null, false)] {
        let mut rig = Rig::new();
        let mut batch = rig.srq.batch();
        for token in 0..3 {
            batch.push(rig.pd.allocate(16).unwrap(), token).unwrap();
        }
        fail_post(accept, libc::ENOMEM, blame);
        let mut error = batch.submit().unwrap_err();
        let mut rejected = Vec::new();
        while let Some(mut request) = error.next_rejected() {
            assert!(request.take_buffer().is_some());
            rejected.push(request.token());
        }
        drop(error);
        let expected: Vec<u64> = if known { (accept as u64..3).collect() } else { vec![] };
        assert_eq!(rejected, expected);
        // A queue that may have taken unknown memory takes no more.
        assert_eq!(rig.srq.post_recv(rig.buffer(), 4).is_ok(), known);
        drop(rig);
        assert_eq!(live("mr"), 0);
    }
}

#[test]
fn a_poster_leaves_what_was_not_posted() {
    let rig = Rig::new();
    let raw = rig.srq.as_raw();
    let poster = rig.srq.into_poster();
    let buffers = |tokens: std::ops::Range<u64>| -> Vec<_> {
        tokens.map(|token| (rig.pd.allocate(16).unwrap(), token)).collect()
    };
    let mut receives = buffers(0..4);
    poster.clone().post_recvs(&mut receives).unwrap();
    assert!(receives.is_empty());
    receives = buffers(4..7);
    fail_post(1, libc::EINVAL, BadWr::Chain);
    assert_eq!(poster.post_recvs(&mut receives).unwrap_err().errno(), Some(libc::EINVAL));
    let tokens = |receives: &[(Buffer, u64)]| -> Vec<u64> { receives.iter().map(|&(_, token)| token).collect() };
    assert_eq!((tokens(&receives), testing::posted_to_srq(raw).len()), (vec![5, 6], 5));
    // More than there are slots: those that fit are posted, and the others stay in order.
    receives.extend(buffers(7..30));
    assert_eq!(poster.post_recvs(&mut receives).unwrap_err().kind(), ErrorKind::QueueFull);
    let posted = testing::posted_to_srq(raw).len() as u64;
    assert_eq!(tokens(&receives), (posted..30).collect::<Vec<_>>());
    assert!(posted >= u64::from(2 * DEPTH));
    // Memory of another domain is refused by itself.
    let other = rig.context.alloc_pd().unwrap();
    let mut foreign = vec![(other.allocate(16).unwrap(), 99)];
    assert_eq!(poster.post_recvs(&mut foreign).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(tokens(&foreign), [99]);
    drop((foreign, receives, rig.qp, poster));
    assert_eq!((live("srq"), live("mr")), (0, 0));
}

#[test]
fn a_poster_makes_queue_pairs_and_goes_to_any_thread() {
    fn is_free<T: Send + Sync + Clone + 'static>() {}
    is_free::<SrqPoster>();
    let Rig { pd, cq, srq, qp, poller: _poller, .. } = Rig::new();
    let poster = srq.into_poster();
    let other = QueuePair::builder(&pd).cq(&cq).shared_receives_of(&poster).build().unwrap();
    poster.post_recv(pd.allocate(16).unwrap(), 1).unwrap();
    assert!(poster.room().unwrap() > 0 && poster.arm_limit(1).is_ok());
    // The queue pairs keep the queue, and its receives.
    drop(poster);
    assert_eq!((live("srq"), live("mr")), (1, 1));
    drop((qp, other));
    assert_eq!((live("srq"), live("mr")), (0, 0));
}
