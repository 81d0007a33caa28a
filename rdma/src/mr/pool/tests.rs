//! Attacks on pools: each buffer comes back once, whole, whatever happens.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use rdma_sys::ibv_access_flags;

use super::*;
use crate::mr::{Memory, Pages};
use crate::testing;
use crate::types::RemoteAccess;

const RELAXED: i32 = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 as i32;
const LOCAL_WRITE: i32 = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;

fn domain() -> ProtectionDomain {
    testing::context().alloc_pd().unwrap()
}

/// A pool of one class.
fn pool(pd: &ProtectionDomain, size: usize, count: usize) -> Pool {
    Pool::builder(pd).class(size, count).build().unwrap()
}

/// Takes buffers until there are none.
fn take_all(pool: &Pool, len: usize) -> Vec<Buffer> {
    std::iter::from_fn(|| match pool.take(len) {
        Ok(buffer) => Some(buffer),
        Err(error) => {
            assert_eq!((error.verb(), error.kind()), (Verb::TakeBuffer, ErrorKind::WouldBlock));
            None
        }
    })
    .collect()
}

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(future: Pin<&mut TakeBuffer<'_>>, woken: &Arc<Woken>) -> Poll<Result<Buffer>> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

#[test]
fn buffers_of_a_class_are_different_and_have_the_asked_length() {
    let pd = domain();
    let pool = Pool::builder(&pd).class(100, 30).class(5000, 3).slab(1000).build().unwrap();
    let mut buffers = take_all(&pool, 100);
    assert_eq!(buffers.len(), 30);
    // A larger class does not serve for a smaller one that is used up.
    assert_eq!(take_all(&pool, 101).len(), 3);
    for (number, buffer) in (0_u8..).zip(&mut buffers) {
        assert_eq!((buffer.len(), buffer.address() % 64), (100, 0));
        buffer.fill(number);
    }
    assert!((0_u8..).zip(&buffers).all(|(number, buffer)| buffer.iter().all(|&byte| byte == number)));
    let large = pool.take(5000).unwrap();
    assert_eq!((large.len(), large.address() % 4096), (5000, 0));
    let [small, big] = pool.stats()[..] else { panic!("two classes") };
    // 1000 bytes have 7 chunks of 128.
    assert_eq!((small.slabs, small.bytes, small.buffers, small.in_use()), (5, 30 * 128, 30, 30));
    assert_eq!((big.slabs, big.bytes, big.buffers, big.in_use()), (3, 3 * 8192, 3, 1));
    assert_eq!((big.taken, big.returned, big.most_out), (4, 3, 3));
}

#[test]
fn lengths_and_options_that_cannot_be_served_are_refused() {
    let pd = domain();
    let one = pool(&pd, 64, 1);
    assert_eq!(one.take(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(one.take(65).unwrap_err().kind(), ErrorKind::TooLong);
    assert_eq!(one.reserve(65, 1).unwrap_err().kind(), ErrorKind::TooLong);
    let woken = Arc::default();
    for len in [0, 65, usize::MAX] {
        assert!(matches!(poll(pin!(one.take_async(len)), &woken), Poll::Ready(Err(_))));
        assert!(one.take_blocking(len, None).is_err());
    }
    let refused = [
        Pool::builder(&pd),
        Pool::builder(&pd).class(0, 1),
        Pool::builder(&pd).class(1, 0),
        Pool::builder(&pd).class(64, 1).class(64, 2),
        Pool::builder(&pd).class(usize::MAX, 1),
        Pool::builder(&pd).class(4096, usize::MAX / 4096),
    ];
    for builder in refused {
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains("the option class has an invalid value"), "{error}");
    }
    // A count that no memory has room for costs nothing until it is used.
    let wide = pool(&pd, 1, 1 << 40);
    assert_eq!(wide.take(1).unwrap().len(), 1);
    assert_eq!(testing::live("mr"), 1);
}

#[test]
fn a_buffer_in_parts_comes_back_whole_with_its_last_part() {
    let pd = domain();
    let pool = pool(&pd, 4096, 1);
    let mut buffer = pool.take(4096).unwrap();
    let mut back = buffer.split_off(1000);
    let empty = back.split_to(0);
    drop(buffer);
    drop(back);
    assert_eq!(pool.take(1).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(empty);
    let mut buffer = pool.take(4096).unwrap();
    assert_eq!(buffer.len(), 4096);
    // Joined again, and cut short.
    let back = buffer.split_off(64);
    buffer.unsplit(back).unwrap();
    buffer.truncate(0);
    drop(buffer);
    assert_eq!(pool.take(4096).unwrap().len(), 4096);
}

#[test]
fn parts_that_are_dropped_at_once_are_one_return() {
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel::<Buffer>();
        let barrier = &barrier;
        scope.spawn(move || {
            for part in receiver {
                barrier.wait();
                drop(part);
                barrier.wait();
            }
        });
        for _ in 0..rounds {
            let mut buffer = pool.take(64).unwrap();
            sender.send(buffer.split_off(32)).unwrap();
            barrier.wait();
            drop(buffer);
            barrier.wait();
        }
    });
    let stats = pool.stats()[0];
    assert_eq!((stats.taken, stats.returned, stats.buffers), (rounds, rounds, 1));
}

#[test]
fn adjacent_buffers_of_a_pool_do_not_join_and_no_buffer_gives_up_the_pools_memory() {
    let pd = domain();
    let pool = pool(&pd, 64, 2);
    let (a, b) = (pool.take(64).unwrap(), pool.take(64).unwrap());
    let (mut low, high) = if a.address() < b.address() { (a, b) } else { (b, a) };
    assert_eq!(low.address() + 64, high.address());
    let high = low.unsplit(high).unwrap_err();
    drop(low);
    // The buffer is a whole chunk, and the only one: its memory stays the pool's all the same.
    let failed = high.into_memory().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InUse);
    let failed = failed.object.deregister::<Pages>().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    let failed = failed.object.deregister::<Memory>().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    drop(pool);
    let mut last = failed.object;
    last.fill(7);
    assert_eq!((last[63], testing::live("mr")), (7, 1));
    drop(last);
    assert_eq!(testing::live("mr"), 0);
}

#[test]
fn a_pool_without_handles_lives_until_its_last_buffer_comes_back() {
    let pd = domain();
    let pool = Pool::builder(&pd).class(64, 4).slab(128).build().unwrap();
    let mut buffers = take_all(&pool, 64);
    buffers.sort_by_key(Buffer::address);
    let idle = Pool::clone(&pool);
    drop(buffers.drain(..2));
    drop(pool);
    assert_eq!(idle.take(64).unwrap().len(), 64);
    drop(idle);
    // One slab has no buffer out, or each has one: buffers keep their own slab.
    let slabs = testing::live("mr");
    assert!(slabs == 1 || slabs == 2, "{slabs}");
    let last = buffers.pop().unwrap();
    // Each thread counts for itself.
    let ended = thread::spawn(move || {
        drop(buffers);
        testing::live("mr")
    });
    let ended = ended.join().unwrap();
    drop(last);
    assert_eq!((testing::live("mr") + ended, testing::live("pd")), (0, 1));
    drop(pd);
    assert_eq!(testing::live("pd"), 0);
}

#[test]
fn a_slab_that_cannot_be_registered_is_an_error_and_the_pool_goes_on() {
    let (first, second) = (domain(), domain());
    let pool = Pool::builder(&first).domain(&second).domain(&first).class(64, 2).slab(64).build().unwrap();
    testing::fail("reg_mr", libc::ENOMEM);
    let error = pool.take(64).unwrap_err();
    assert_eq!((error.verb(), error.kind(), testing::live("mr")), (Verb::RegisterMr, ErrorKind::OutOfMemory, 0));
    let buffer = pool.take(64).unwrap();
    assert_eq!(testing::live("mr"), 2, "one region in each domain");
    testing::fail("reg_mr", libc::ENOMEM);
    assert_eq!(pool.reserve(64, 2).unwrap_err().kind(), ErrorKind::OutOfMemory);
    pool.reserve(64, 7).unwrap();
    assert_eq!((pool.stats()[0].buffers, testing::live("mr")), (2, 4));
    // A slab whose region the device does not release leaks.
    drop(pool);
    testing::fail("dereg_mr", libc::EBUSY);
    drop(buffer);
    assert_eq!(testing::live("mr"), 1);
}

#[test]
fn a_taker_that_looked_before_the_last_slab_was_made_looks_again() {
    let pool = pool(&domain(), 64, 1);
    // The look at an empty stock has come before this.
    pool.reserve(64, 1).unwrap();
    let class = pool.class(64).unwrap();
    let buffer = class.take_new(64).unwrap().unwrap();
    assert!(class.take_new(64).unwrap().is_none());
    drop(buffer);
}

#[test]
fn a_log_subscriber_uses_the_pool_while_a_slab_fails() {
    let (first, second) = (domain(), domain());
    let pool = Pool::builder(&first).domain(&second).class(64, 1).build().unwrap();
    // The second region cannot be registered, and the first then not be deregistered.
    testing::fail("reg_mr", 0);
    testing::fail("reg_mr", libc::ENOMEM);
    testing::fail("dereg_mr", libc::EBUSY);
    let seen = Arc::new(AtomicUsize::new(0));
    let subscriber = {
        let (pool, seen) = (pool.clone(), Arc::clone(&seen));
        rdma_test_support::OnEvent(move |_: &tracing::Event<'_>| {
            assert_eq!(pool.stats()[0].buffers, 0);
            drop(pool.take(64).unwrap());
            seen.fetch_add(1, Ordering::Relaxed);
        })
    };
    let error = tracing::subscriber::with_default(subscriber, || pool.take(64).unwrap_err());
    assert_eq!((error.kind(), seen.load(Ordering::Relaxed)), (ErrorKind::OutOfMemory, 1));
    assert_eq!((pool.stats()[0].slabs, testing::live("mr")), (1, 3));
}

#[test]
fn all_classes_end_though_the_end_of_one_panics() {
    let pd = domain();
    let pool = Pool::builder(&pd).class(64, 1).class(128, 1).build().unwrap();
    for size in [64, 128] {
        pool.reserve(size, 1).unwrap();
    }
    testing::fail("dereg_mr", libc::EBUSY);
    assert!(rdma_test_support::where_logging_panics(|| drop(pool)).is_err());
    assert_eq!(testing::live("mr"), 1, "the region that the device did not release");
}

#[test]
fn every_buffer_can_be_taken_wherever_it_came_back() {
    let pd = domain();
    let pool = pool(&pd, 64, 256);
    for _ in 0..if cfg!(miri) { 1 } else { 20 } {
        let mut buffers = take_all(&pool, 64);
        assert_eq!(buffers.len(), 256);
        // Into the caches of several threads, which end.
        thread::scope(|scope| {
            while !buffers.is_empty() {
                let some = buffers.split_off(buffers.len() - 32);
                scope.spawn(move || drop(some));
            }
        });
    }
    let stats = pool.stats()[0];
    assert_eq!((stats.in_use(), stats.buffers, stats.most_out), (0, 256, 256));
}

#[test]
fn thousands_of_short_threads_leave_nothing_behind() {
    let pd = domain();
    let pool = pool(&pd, 64, 8);
    pool.reserve(64, 8).unwrap();
    let threads = if cfg!(miri) { 10 } else { 2000 };
    for _ in 0..threads {
        thread::scope(|scope| drop(scope.spawn(|| drop(pool.take(64).unwrap()))));
    }
    let stats = pool.stats()[0];
    assert_eq!((stats.taken, stats.returned, take_all(&pool, 64).len()), (threads, threads, 8));
    drop(pool);
    assert_eq!(testing::live("mr"), 0);
}

#[test]
fn a_buffer_is_returned_by_the_last_destructor_of_a_thread() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<Buffer>> = const { std::cell::RefCell::new(None) };
    }
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let buffer = pool.take(64).unwrap();
    thread::spawn(|| KEPT.set(Some(buffer))).join().unwrap();
    assert_eq!(pool.take(64).unwrap().len(), 64);
}

#[test]
fn threads_have_buffers_to_themselves() {
    let pd = domain();
    let pool = Pool::builder(&pd).class(256, 3).slab(256).build().unwrap();
    let rounds = if cfg!(miri) { 5 } else { 3000 };
    let (sender, receiver) = mpsc::channel::<Buffer>();
    thread::scope(|scope| {
        for mark in 1_u8..=4 {
            let (pool, sender) = (&pool, sender.clone());
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut buffer = pool.take_blocking(200, None).unwrap();
                    buffer.fill(mark);
                    thread::yield_now();
                    assert!(buffer.iter().all(|&byte| byte == mark));
                    if round % 3 == 0 {
                        // Another thread returns it.
                        sender.send(buffer).unwrap();
                    }
                }
            });
        }
        drop(sender);
        receiver.into_iter().for_each(drop);
    });
    let stats = pool.stats()[0];
    assert_eq!((stats.taken, stats.in_use()), (stats.returned, 0));
    assert_eq!(take_all(&pool, 1).len(), 3);
}

#[test]
fn waiters_are_served_in_turn_and_a_dropped_one_loses_no_buffer() {
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let buffer = pool.take(64).unwrap();
    let woken: [Arc<Woken>; 4] = std::array::from_fn(|_| Arc::default());
    let mut waiting: Vec<_> = woken.iter().map(|_| Box::pin(pool.take_async(64))).collect();
    for (future, woken) in waiting.iter_mut().zip(&woken) {
        assert!(poll(future.as_mut(), woken).is_pending());
        assert!(poll(future.as_mut(), woken).is_pending());
    }
    let wakes = || woken.each_ref().map(|woken| woken.0.load(Ordering::Relaxed));
    // The second gives up before, and the first after it was given the buffer.
    drop(waiting.remove(1));
    drop(buffer);
    assert_eq!(wakes(), [1, 0, 0, 0]);
    assert_eq!(pool.take(64).unwrap_err().kind(), ErrorKind::WouldBlock, "it is the first waiter's");
    drop(waiting.remove(0));
    assert_eq!(wakes(), [1, 0, 1, 0]);
    let Poll::Ready(Ok(buffer)) = poll(waiting[0].as_mut(), &woken[2]) else { panic!("it was woken") };
    assert!(poll(waiting[1].as_mut(), &woken[3]).is_pending());
    drop(buffer);
    assert_eq!(wakes(), [1, 0, 1, 1]);
    drop(waiting);
    assert_eq!(take_all(&pool, 64).len(), 1);
    assert_eq!(pool.stats()[0].waits, 4);
}

#[test]
fn a_waiter_that_moves_to_another_task_wakes_that_one() {
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let buffer = pool.take(64).unwrap();
    let (first, second) = (Arc::default(), Arc::default());
    let mut future = pin!(pool.take_async(64));
    assert!(poll(future.as_mut(), &first).is_pending());
    assert!(poll(future.as_mut(), &second).is_pending());
    drop(buffer);
    assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    assert!(poll(future, &second).is_ready());
}

#[test]
fn a_thread_waits_for_its_time_only() {
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let buffer = pool.take(64).unwrap();
    let error = pool.take_blocking(64, Some(std::time::Duration::from_millis(1))).unwrap_err();
    assert_eq!((error.verb(), error.kind()), (Verb::TakeBuffer, ErrorKind::Timeout));
    drop(buffer);
    // With a buffer there, no time is needed.
    pool.take_blocking(64, Some(std::time::Duration::ZERO)).unwrap();
    assert_eq!(take_all(&pool, 64).len(), 1);
}

#[test]
fn a_forgotten_waiter_costs_a_buffer_and_nothing_else() {
    let pd = domain();
    let pool = pool(&pd, 64, 2);
    let mut buffers = take_all(&pool, 64);
    let mut forgotten = Box::pin(pool.take_async(64));
    assert!(poll(forgotten.as_mut(), &Arc::default()).is_pending());
    let _forgotten = ManuallyDrop::new(forgotten);
    buffers.pop();
    assert_eq!(pool.take(64).unwrap_err().kind(), ErrorKind::WouldBlock, "the waiter has it");
    buffers.pop();
    assert_eq!(take_all(&pool, 64).len(), 1);
    // One waits for ever: the pool ends all the same, and only the lost buffer keeps its slab.
    let buffers = take_all(&pool, 64);
    let mut forgotten = Box::pin(pool.take_async(64));
    assert!(poll(forgotten.as_mut(), &Arc::default()).is_pending());
    let _forgotten = ManuallyDrop::new(forgotten);
    drop(pool);
    drop(buffers);
    assert_eq!(testing::live("mr"), 1);
}

#[test]
fn a_waker_that_panics_leaves_the_buffer_with_its_waiter() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("the waker's");
        }
    }
    let pd = domain();
    let pool = pool(&pd, 64, 1);
    let buffer = pool.take(64).unwrap();
    let mut future = pin!(pool.take_async(64));
    assert!(future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panicking)))).is_pending());
    let panic = catch_unwind(AssertUnwindSafe(|| drop(buffer))).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the waker's"));
    let Poll::Ready(Ok(buffer)) = poll(future.as_mut(), &Arc::default()) else { panic!("it has the buffer") };
    // In a thread that panics already, the waker's panic is not a second one.
    let mut future = pin!(pool.take_async(64));
    assert!(future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panicking)))).is_pending());
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _buffer = buffer;
        panic!("the thread's");
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the thread's"));
    assert!(poll(future, &Arc::default()).is_ready());
}

#[test]
#[cfg(not(miri))] // which has no fork
fn a_forked_child_neither_takes_nor_returns() {
    let pd = domain();
    let pool = pool(&pd, 64, 3);
    let (buffer, parts) = (pool.take(64).unwrap(), pool.take(64).unwrap());
    let last = pool.take(64).unwrap();
    let mut waiting = Box::pin(pool.take_async(64));
    assert!(poll(waiting.as_mut(), &Arc::default()).is_pending());
    // SAFETY: fork requires a child that calls no function that needs a lock of another thread: the
    // child makes only the calls under test, which take none there, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |error: Error| error.kind() == ErrorKind::Forked;
        let inert = pool.take(64).is_err_and(forked)
            && pool.stats().is_empty()
            && pool.reserve(64, 1).is_err_and(forked)
            && pool.take_blocking(64, None).is_err_and(forked)
            && Pool::builder(&pd).class(64, 1).build().is_err_and(forked)
            && matches!(poll(waiting.as_mut(), &Arc::default()), Poll::Ready(Err(error)) if forked(error));
        let mut front = parts;
        let back = front.split_off(32);
        drop((front, back, buffer, waiting, last));
        drop(pool);
        let quiet = testing::live("mr") == 1;
        // SAFETY: _exit has no requirements.
        unsafe { libc::_exit(if inert && quiet { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waitpid requires space for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The parent's pool is as it was.
    drop((buffer, parts));
    assert!(matches!(poll(waiting.as_mut(), &Arc::default()), Poll::Ready(Ok(_))));
    drop((waiting, last));
    assert_eq!(take_all(&pool, 64).len(), 3);
}

#[test]
fn pools_and_buffers_go_to_any_thread() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Pool>();
    check::<PoolBuilder>();
    check::<PoolStats>();
    fn sends<T: Send + Unpin>(_: T) {}
    let pd = domain();
    sends(pool(&pd, 64, 1).take_async(64));
}

#[test]
fn options_that_a_pools_memory_cannot_have_are_refused_at_once() {
    let pd = domain();
    let refused = [
        (RegisterOptions::new().remote_access(RemoteAccess::READ), "remote_access"),
        (RegisterOptions::new().iova(0), "iova"),
        (RegisterOptions::new().on_demand(true), "on_demand"),
    ];
    for (options, name) in refused {
        let error = Pool::builder(&pd).class(64, 1).options(options).build().unwrap_err();
        let ErrorKind::InvalidOption(limit) = error.kind() else { panic!("{error}") };
        assert_eq!((error.verb(), limit.name), (Verb::BuildPool, name));
        assert!(error.to_string().contains("left out only"), "{error}");
    }
    assert_eq!((testing::accesses().len(), testing::live("mr")), (0, 0));
}

#[test]
fn slabs_are_registered_as_the_options_say() {
    let (pd, second) = (domain(), domain());
    let strict = RegisterOptions::new().relaxed_ordering(false).touch_threads(2);
    for (options, expected) in [(RegisterOptions::new(), LOCAL_WRITE | RELAXED), (strict, LOCAL_WRITE)] {
        let before = testing::accesses().len();
        let pool = Pool::builder(&pd).domain(&second).class(4096, 8).options(options).build().unwrap();
        assert_eq!(take_all(&pool, 4096).len(), 8);
        assert_eq!(testing::accesses()[before..], [expected; 2]);
    }
}

#[test]
fn slabs_lie_on_huge_pages_or_the_error_says_why_not() {
    let pd = domain();
    let huge = RegisterOptions::new().huge_pages(HugePages::Size2M);
    // A smaller slab would leave most of its page unused.
    let pool = Pool::builder(&pd).class(4096, 600).slab(1).options(huge).build().unwrap();
    match pool.take(4096) {
        Ok(buffer) => {
            let stats = pool.stats()[0];
            assert_eq!((stats.buffers, stats.bytes), (512, 2 << 20));
            drop(buffer);
        }
        Err(error) => {
            assert!(error.to_string().contains("/sys/kernel/mm/hugepages"), "{error}");
            assert_eq!((pool.stats()[0].bytes, testing::live("mr")), (0, 0));
        }
    }
    let nowhere = RegisterOptions::new().numa_node(u32::MAX);
    let pool = Pool::builder(&pd).class(64, 1).options(nowhere).build().unwrap();
    let error = pool.reserve(64, 1).unwrap_err();
    assert!(error.to_string().contains("numa_node") || error.to_string().contains("mbind"), "{error}");
}
