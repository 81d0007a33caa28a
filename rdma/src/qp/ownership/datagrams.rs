//! Address handles live at least as long as a request that names them is in flight.

use super::*;
use crate::ah::AddressHandle;
use crate::qp::DatagramOptions;
use crate::testing::{BadWr, fail, fail_post, live_handles};
use crate::types::{Path, Route};

/// A datagram queue pair of the test provider.
struct Post {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    poller: Poller,
    qp: QueuePair<Ud>,
    /// The number of completed requests, in the order of posting.
    completed: usize,
}

impl Post {
    fn new() -> Self {
        let context = testing::context();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let builder = QueuePair::datagram(&pd).cq(&cq).max_send_wr(SEND_DEPTH).max_recv_wr(RECV_DEPTH);
        let qp = builder.max_inline_data(8).build().unwrap().init(&DatagramOptions::new(1)).unwrap().ready().unwrap();
        let poller = cq.poller();
        Self { pd, cq, poller, qp, completed: 0 }
    }

    fn address(&self) -> AddressHandle {
        let route = Route { gid: "::ffff:10.0.0.2".parse().unwrap(), source_index: 2, ..Route::default() };
        self.pd.create_ah(&Path { port: 2, route: Some(route), ..Path::default() }).unwrap()
    }

    fn send(&mut self, to: &AddressHandle, signaled: bool) {
        self.qp.post_send(op::send_inline(b"x").to(to, 5, 6).signaled(signaled)).unwrap();
    }

    fn posted(&self) -> Vec<Posted> {
        testing::posted(self.qp.as_raw())
    }

    /// Completes all requests up to and including request `at`, as a device does: in order, with a
    /// completion for each signaled one.
    fn complete(&mut self, at: usize) {
        for posted in &self.posted()[self.completed..=at] {
            if is_signaled(posted) {
                let done = wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, self.qp.qpn());
                testing::complete(self.cq.as_raw(), done);
            }
        }
        self.completed = at + 1;
    }

    fn poll_all(&mut self) {
        while self.poller.poll().unwrap().is_some() {}
    }

    /// Checks that every request that has not ended still has its handle.
    fn check(&self) {
        let live = live_handles();
        for (at, posted) in self.posted().iter().enumerate().skip(self.completed) {
            let (handle, ..) = posted.to.expect("a datagram");
            assert!(live.contains(&handle), "request {at} is in flight and its handle {handle} is destroyed");
        }
    }
}

fn handles() -> usize {
    live_handles().len()
}

#[test]
fn a_handle_that_is_dropped_lives_until_its_requests_have_ended() {
    let mut post = Post::new();
    let (a, b) = (post.address(), post.address());
    post.send(&a, true);
    post.send(&a, true);
    drop(a);
    post.send(&b, true);
    assert_eq!(handles(), 2);
    post.complete(1);
    post.poll_all();
    post.check();
    assert_eq!(handles(), 2, "the next request keeps it, until that ends");
    post.complete(2);
    post.poll_all();
    assert_eq!(handles(), 1);
    drop(b);
    assert_eq!(handles(), 1, "the queue keeps its latest");
    drop(post);
    assert_eq!(handles(), 0);
}

#[test]
fn the_same_handle_again_keeps_nothing_more() {
    let mut post = Post::new();
    let a = post.address();
    for _ in 0..40 {
        post.send(&a, true);
        let last = post.posted().len() - 1;
        post.complete(last);
        post.poll_all();
    }
    assert_eq!(std::sync::Arc::strong_count(&a.inner), 2);
    let a = a.close().unwrap_err().object;
    post.qp.modify(&QpAttr::to(QpState::RESET)).unwrap();
    a.close().unwrap();
}

#[test]
fn a_post_that_was_not_taken_takes_nothing_from_those_before_it() {
    let mut post = Post::new();
    let (a, b) = (post.address(), post.address());
    post.send(&a, true);
    drop(a);
    for _ in 1..SEND_DEPTH {
        fail_post(0, libc::ENOMEM, BadWr::Chain);
        let refused = post.qp.post_send(op::send_inline(b"x").to(&b, 5, 6)).unwrap_err();
        assert!(refused.into_memory().is_some());
        post.check();
        assert_eq!(handles(), 2);
    }
    drop(b);
    assert_eq!(handles(), 1, "nothing that names it was taken");
    post.complete(0);
    post.poll_all();
    let c = post.address();
    post.send(&c, true);
    post.complete(1);
    post.poll_all();
    assert_eq!(handles(), 1);
}

#[test]
fn a_post_of_which_nothing_is_known_keeps_its_handle_until_the_end() {
    for blame in [BadWr::Null, BadWr::Alien] {
        let mut post = Post::new();
        let (a, b) = (post.address(), post.address());
        post.send(&a, true);
        fail_post(1, libc::EIO, blame);
        assert!(post.qp.post_send(op::send_inline(b"x").to(&b, 5, 6)).unwrap_err().into_memory().is_none());
        drop((a, b));
        post.check();
        assert_eq!(handles(), 2);
        post.complete(1);
        post.poll_all();
        assert_eq!(handles(), 1);
        drop(post);
        assert_eq!(handles(), 0);
    }
}

#[test]
#[allow(clippy::mem_forget, reason = "that is the attack")]
fn batches_that_are_taken_in_part_dropped_or_forgotten_take_nothing_from_others() {
    for taken in 0..=3 {
        for forget in [false, true] {
            let mut post = Post::new();
            let first = post.address();
            post.send(&first, true);
            drop(first);
            let (b, c) = (post.address(), post.address());
            let mut batch = post.qp.batch();
            for to in [&b, &b, &c] {
                batch.push(op::send_inline(b"y").to(to, 5, 6)).unwrap();
            }
            if taken < 3 {
                fail_post(taken, libc::ENOMEM, BadWr::Chain);
                let mut error = batch.submit().unwrap_err();
                assert_eq!(error.next_rejected().is_some(), taken < 3);
                if forget {
                    std::mem::forget(error);
                }
            } else {
                batch.submit().unwrap();
            }
            drop((b, c));
            post.check();
            let d = post.address();
            post.send(&d, true);
            post.check();
            let last = post.posted().len() - 1;
            post.complete(last);
            post.poll_all();
            drop((d, post));
            assert_eq!(handles(), 0, "{taken} taken");
        }
    }
    let mut post = Post::new();
    let (a, b) = (post.address(), post.address());
    post.send(&a, true);
    drop(a);
    for _ in 0..3 * SEND_DEPTH {
        let mut batch = post.qp.batch();
        batch.push(op::send_inline(b"y").to(&b, 5, 6)).unwrap();
        drop(batch);
        post.check();
    }
    drop(b);
    assert_eq!(handles(), 1);
}

#[test]
fn scoped_datagrams_keep_their_handle_too() {
    let mut post = Post::new();
    let mut memory = post.pd.allocate(8).unwrap();
    memory.copy_from_slice(b"borrowed");
    let (a, b) = (post.address(), post.address());
    post.send(&a, true);
    drop(a);
    let cq = post.cq.clone();
    let Post { qp, poller, .. } = &mut post;
    qp.scope(poller, std::time::Duration::from_secs(5), |scope| {
        scope.post_send(op::send(memory.lend(..)).to(&b, 5, 6)).unwrap();
        assert_eq!(handles(), 2);
        for posted in testing::posted(scope.queue_pair().as_raw()) {
            testing::complete(cq.as_raw(), wc(posted.wr_id, ibv_wc_status::IBV_WC_SUCCESS, 1));
        }
    })
    .unwrap();
    assert_eq!(handles(), 1);
}

#[test]
fn what_the_device_keeps_keeps_its_handles() {
    let mut post = Post::new();
    let (a, b) = (post.address(), post.address());
    post.send(&a, true);
    post.send(&b, true);
    drop((a, b));
    fail("destroy_qp", libc::EIO);
    let Post { qp, poller, cq, pd, .. } = post;
    drop(qp);
    drop((poller, cq, pd));
    assert_eq!((handles(), testing::live("qp")), (2, 1));
}

#[test]
fn a_panic_while_a_handle_is_given_up_blocks_nothing() {
    let mut post = Post::new();
    for round in 1..3 * SEND_DEPTH as usize {
        let (a, b) = (post.address(), post.address());
        post.send(&a, true);
        drop(a);
        post.send(&b, true);
        drop(b);
        let last = post.posted().len() - 1;
        post.complete(last);
        fail("destroy_ah", libc::EIO);
        attacks::panics(|| post.poll_all());
        post.poll_all();
        assert_eq!(handles(), round + 1, "one could not be destroyed in each round, and one is the latest");
    }
}

#[test]
fn a_panic_while_a_batchs_handle_is_given_up_blocks_nothing() {
    let mut post = Post::new();
    let first = post.address();
    post.send(&first, true);
    drop(first);
    for round in 0..SEND_DEPTH as usize {
        let addresses = [post.address(), post.address(), post.address()];
        let mut batch = post.qp.batch();
        for to in &addresses {
            batch.push(op::send_inline(b"y").to(to, 5, 6)).unwrap();
        }
        drop(addresses);
        fail("destroy_ah", libc::EIO);
        attacks::panics(|| drop(batch));
        post.check();
        assert_eq!(handles(), round + 2, "one could not be destroyed in each round, and one is the latest");
    }
    let a = post.address();
    post.send(&a, true);
    drop(a);
    post.check();
}

/// A pseudorandom sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 20).expect("64 bits") % limit
    }
}

#[test]
fn no_order_of_events_destroys_a_handle_in_flight() {
    for seed in 1..60 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut post = Post::new();
        let mut known: Vec<AddressHandle> = (0..3).map(|_| post.address()).collect();
        for _ in 0..300 {
            let pick = |random: &mut Random| random.below(3);
            let signaled = random.below(3) == 0;
            match random.below(10) {
                0..4 => {
                    let to = known[pick(&mut random)].clone();
                    if random.below(4) == 0 {
                        fail_post(0, libc::ENOMEM, BadWr::Chain);
                    }
                    let work = op::send_inline(b"x").to(&to, 5, 6).signaled(signaled);
                    let _refused = post.qp.post_send(work).map_err(|refused| refused.kind());
                    testing::unfail_post();
                }
                4..6 => {
                    let count = random.below(4);
                    let choice: Vec<_> = (0..count).map(|_| known[pick(&mut random)].clone()).collect();
                    let taken = random.below(5);
                    let mut batch = post.qp.batch();
                    for to in &choice {
                        let _full = batch.push(op::send_inline(b"y").to(to, 5, 6).signaled(signaled));
                    }
                    if taken < batch.len() {
                        fail_post(taken, libc::ENOMEM, BadWr::Chain);
                    }
                    match random.below(4) {
                        0 => drop(batch),
                        _ => {
                            if let Err(mut error) = batch.submit() {
                                for _ in 0..random.below(3) {
                                    let _one = error.next_rejected().map(|one| one.token());
                                }
                            }
                        }
                    }
                    testing::unfail_post();
                }
                6 => known[pick(&mut random)] = post.address(),
                7..9 => {
                    let posted = post.posted().len();
                    if post.completed < posted {
                        let left = posted - post.completed;
                        let at = post.completed + random.below(left);
                        post.complete(at);
                    }
                }
                _ => post.poll_all(),
            }
            post.check();
        }
        drop(known);
        post.check();
        drop(post);
        assert_eq!(handles(), 0, "seed {seed}");
    }
}
