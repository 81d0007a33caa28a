//! Tasks whose wakers run code: they use the connection when they are cloned or dropped, or panic.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};

use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use rdma_testkit as testing;

use super::*;

/// A task that holds a received message, and gives it back when its last waker is dropped.
struct Holder {
    _message: Mutex<Message>,
}

impl Wake for Holder {
    fn wake(self: Arc<Self>) {}
}

/// A task that panics when it is woken.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a task that panics when it is woken");
    }
}

/// A task that counts how often it is woken.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn poll<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(waker))
}

/// Two nodes that the test drives.
pub(super) struct Driven {
    pub(super) nodes: [Node; 2],
    pub(super) drivers: [Driver; 2],
    pub(super) listener: Listener,
}

impl Driven {
    pub(super) fn new(options: &NodeOptions) -> Self {
        Self::with(options, &ListenOptions::new())
    }

    pub(super) fn with(options: &NodeOptions, listen: &ListenOptions) -> Self {
        let [one, two] = [(); 2].map(|()| Node::new(&context(), options).unwrap());
        let listener = two.0.listen(any_port(), listen).unwrap();
        Self { nodes: [one.0, two.0], drivers: [one.1, two.1], listener }
    }

    pub(super) fn pair(&mut self) -> (Connection, Connection) {
        let Self { nodes, drivers, listener } = self;
        let connecting = nodes[0].connect(listener.local_addr());
        let accepting = async { listener.accept().await?.accept().await };
        let (client, server) = run(drivers, join(connecting, accepting));
        (client.unwrap(), server.unwrap())
    }

    pub(super) fn turn(&mut self) {
        turn(&mut self.drivers);
    }

    pub(super) fn run<F: Future>(&mut self, future: F) -> F::Output {
        run(&mut self.drivers, future)
    }

    /// Wakers that hold messages of one side, which the other side has sent.
    fn holders<const N: usize>(&mut self, from: &Connection, to: &mut Connection) -> [Waker; N] {
        [(); N].map(|()| {
            let received = self.run(async {
                from.send("held").await?;
                to.next().await
            });
            Waker::from(Arc::new(Holder { _message: Mutex::new(received.unwrap().unwrap()) }))
        })
    }
}

fn turn(drivers: &mut [Driver]) {
    for driver in drivers {
        driver.turn(64).unwrap();
    }
}

fn run<F: Future>(drivers: &mut [Driver], future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut(), Waker::noop()) {
            return output;
        }
        turn(drivers);
    }
}

/// Runs a test that would wait for ever for a lock of its own thread.
pub(super) fn without_deadlock(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let testing = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Timeout), "a deadlock");
    testing.join().unwrap();
}

/// Polls a future as a task whose last waker is then the connection's, and as another task.
fn poll_by_two<F: Future>(mut future: Pin<&mut F>, holder: Waker) {
    assert!(poll(future.as_mut(), &holder).is_pending());
    drop(holder);
    assert!(poll(future, &Waker::from(Arc::new(Count::default()))).is_pending());
}

/// Polls a future as a task whose last waker is then the connection's, and drops the future.
fn poll_and_drop<F: Future>(future: F, holder: Waker) {
    let mut future = Box::pin(future);
    assert!(poll(future.as_mut(), &holder).is_pending());
    drop(holder);
}

#[test]
fn wakers_of_tasks_that_wait_for_messages_and_for_the_end_are_dropped_under_no_lock() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (mut client, server) = world.pair();
        let [one, two] = world.holders(&server, &mut client);
        poll_by_two(pin!(client.next()), one);
        let mut closing = pin!(client.close());
        poll_by_two(closing.as_mut(), two);
        drop(server);
        assert_eq!(world.run(closing), Ok(0));
    });
}

#[test]
fn wakers_of_tasks_that_wait_to_send_are_dropped_under_no_lock() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (mut client, mut server) = world.pair();
        let [one, two, three, four] = world.holders(&server, &mut client);
        let mut sent = 0;
        // No driver runs, so the peer grants no credit.
        while poll(pin!(client.send("last")), Waker::noop()).is_ready() {
            sent += 1;
        }
        poll_by_two(pin!(client.send("none")), one);
        poll_and_drop(client.send("none"), two);
        poll_by_two(pin!(client.send([0; 4000])), three);
        poll_and_drop(client.send([0; 4000]), four);
        for _ in 0..sent {
            assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"last"[..]));
        }
    });
}

#[test]
fn wakers_of_tasks_that_wait_for_operations_are_dropped_under_no_lock() {
    use rdma::RemoteAccess;
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (mut client, server) = world.pair();
        let [one, two, three, four] = world.holders(&server, &mut client);
        let region = world.nodes[1].domain().allocate_exposed(64, RemoteAccess::ATOMIC).unwrap();
        let (slice, remote) = (region.remote(..).unwrap(), client.remote());
        let mut first = Box::pin(remote.fetch_add(slice, 1));
        poll_by_two(first.as_mut(), one);
        poll_and_drop(remote.fetch_add(slice, 1), two);
        let mut others: Vec<_> = (0..30).map(|_| Box::pin(remote.fetch_add(slice, 1))).collect();
        for other in &mut others {
            assert!(poll(other.as_mut(), Waker::noop()).is_pending());
        }
        poll_by_two(pin!(remote.fetch_add(slice, 1)), three);
        poll_and_drop(remote.fetch_add(slice, 1), four);
        drop(others);
        world.run(first).unwrap();
        assert!(world.run(remote.fetch_add(slice, 0)).unwrap() >= 16);
    });
}

#[test]
fn wakers_of_tasks_that_offer_memory_are_dropped_under_no_lock() {
    without_deadlock(|| {
        let mut world = Driven::new(&options());
        let (mut client, mut server) = world.pair();
        let [one, two] = world.holders(&server, &mut client);
        let region = world.nodes[0].domain().allocate_exposed(4096, rdma::RemoteAccess::READ).unwrap();
        let (to, _from) = client.split();
        let mut first = Box::pin(to.send_exposed(region.slice(..).unwrap()));
        poll_by_two(first.as_mut(), one);
        poll_and_drop(to.send_exposed(region.slice(..).unwrap()), two);
        for _ in 0..2 {
            assert_eq!(world.run(server.next()).unwrap().unwrap().len(), 4096);
        }
        world.run(first).unwrap();
    });
}

/// Polls a future as a task whose waker drops a driver when it is cloned. That fails all
/// connections and attempts of the node, and so takes their locks.
fn poll_by_dropping<F: Future>(driver: Driver, future: F) -> Poll<F::Output> {
    let driver = Mutex::new(Some(driver));
    let waker = testing::waker::on_clone(move || {
        let taken = driver.lock().unwrap().take();
        drop(taken);
    });
    poll(pin!(future), &waker)
}

/// A wait for the client's connection, with memory of this side and of the peer. Returns whether
/// the wait has failed because the driver is gone.
type Wait = fn(Driver, Connection, &[rdma::ExposedRegion; 2]) -> bool;

fn is_gone<R>(polled: Poll<Result<R, Failure>>) -> bool {
    matches!(polled, Poll::Ready(Err(failure)) if failure.kind() == FailureKind::DriverGone)
}

#[test]
fn wakers_of_tasks_that_wait_for_a_connection_are_cloned_under_no_lock() {
    let waits: [Wait; 6] = [
        |driver, mut client, _| is_gone(poll_by_dropping(driver, client.next())),
        |driver, client, _| is_gone(poll_by_dropping(driver, client.close())),
        |driver, client, _| {
            while poll(pin!(client.send("last")), Waker::noop()).is_ready() {}
            is_gone(poll_by_dropping(driver, client.send("none")))
        },
        |driver, client, [region, _]| {
            let (to, _from) = client.split();
            is_gone(poll_by_dropping(driver, to.send_exposed(region.slice(..).unwrap())))
        },
        |driver, client, [_, words]| {
            is_gone(poll_by_dropping(driver, client.remote().fetch_add(words.remote(..).unwrap(), 1)))
        },
        |driver, client, [_, words]| {
            let (slice, remote) = (words.remote(..).unwrap(), client.remote());
            let mut others: Vec<_> = (0..16).map(|_| Box::pin(remote.fetch_add(slice, 1))).collect();
            assert!(others.iter_mut().all(|other| poll(other.as_mut(), Waker::noop()).is_pending()));
            is_gone(poll_by_dropping(driver, remote.fetch_add(slice, 1)))
        },
    ];
    for (at, wait) in waits.into_iter().enumerate() {
        without_deadlock(move || {
            let mut world = Driven::new(&options());
            let (client, _server) = world.pair();
            let [one, two] = [0, 1].map(|at| world.nodes[at].domain());
            let region = one.allocate_exposed(64, rdma::RemoteAccess::READ).unwrap();
            let words = two.allocate_exposed(64, rdma::RemoteAccess::ATOMIC).unwrap();
            let [driver, _other] = world.drivers;
            assert!(wait(driver, client, &[region, words]), "{at}");
        });
    }
}

#[test]
fn wakers_of_tasks_that_set_a_connection_up_are_cloned_under_no_lock() {
    without_deadlock(|| {
        let Driven { nodes, drivers: [client, server], mut listener } = Driven::new(&options());
        assert!(is_gone(poll_by_dropping(client, nodes[0].connect(listener.local_addr()))));
        assert!(is_gone(poll_by_dropping(server, listener.accept())));
    });
}

#[test]
fn a_task_is_woken_by_the_waker_that_it_has_left() {
    let mut world = Driven::new(&options());
    let (client, mut server) = world.pair();
    let (to, mut from) = client.split();
    let clones = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&clones);
    let waker = testing::waker::on_clone(move || _ = counted.fetch_add(1, Ordering::Relaxed));
    let mut sent = 0;
    while poll(pin!(to.send("some")), Waker::noop()).is_ready() {
        sent += 1;
    }
    let mut waiting = pin!(to.send("last"));
    assert!(poll(waiting.as_mut(), &waker).is_pending() && poll(waiting.as_mut(), &waker).is_pending());
    for _ in 0..sent {
        assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"some"[..]));
    }
    // The answer grants credits, so the task that waits to send is woken before the answer is here.
    world.run(server.send("answer")).unwrap();
    assert_eq!(world.run(from.next()).unwrap().as_deref(), Some(&b"answer"[..]));
    assert_eq!(clones.load(Ordering::Relaxed), 1);
    world.run(waiting).unwrap();
    assert_eq!(world.run(server.next()).unwrap().as_deref(), Some(&b"last"[..]));
}

#[test]
fn a_bring_up_that_fails_is_logged_under_no_lock() {
    without_deadlock(|| {
        let options = options().exchange(Exchange::Tcp);
        let (client, one) = Node::new(&context(), &options).unwrap();
        let (server, two) = Node::new(&testing::context(), &options).unwrap();
        let mut listener = server.listen(any_port(), &ListenOptions::new()).unwrap();
        let mut drivers = [one, two];
        let (mut connecting, mut accepting) =
            (pin!(client.connect(listener.local_addr())), Box::pin(listener.accept()));
        let incoming = std::future::poll_fn(|cx| {
            assert!(connecting.as_mut().poll(cx).is_pending());
            accepting.as_mut().poll(cx)
        });
        let incoming = run(&mut drivers, incoming).unwrap();
        // The queue pair is initialized, and then neither connected nor destroyed.
        testing::fail("modify_qp", 0);
        testing::fail("modify_qp", libc::EINVAL);
        testing::fail("destroy_qp", libc::EBUSY);
        let [_client, driver] = drivers;
        let (driver, logged) = (Mutex::new(Some(driver)), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&logged);
        let subscriber = rdma_test_support::OnEvent(move |event: &tracing::Event<'_>| {
            if *event.metadata().level() == tracing::Level::WARN {
                let taken = driver.lock().unwrap().take();
                drop(taken);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let failure = tracing::subscriber::with_default(subscriber, || block_on(incoming.accept()).unwrap_err());
        assert!(failure.kind() == FailureKind::Local && logged.load(Ordering::Relaxed) > 0, "{failure}");
    });
}

/// Two nodes on the test provider that exchange over TCP, and a connection of them.
pub(super) fn on_test_provider(limits: &ListenOptions) -> (Driven, Connection, Connection) {
    on_test_provider_with(&options(), limits)
}

pub(super) fn on_test_provider_with(options: &NodeOptions, limits: &ListenOptions) -> (Driven, Connection, Connection) {
    let options = options.clone().exchange(Exchange::Tcp);
    let [(client, one), (server, two)] = [(); 2].map(|()| Node::new(&testing::context(), &options).unwrap());
    let listener = server.listen(any_port(), limits).unwrap();
    let mut world = Driven { nodes: [client, server], drivers: [one, two], listener };
    let (client, server) = world.pair();
    (world, client, server)
}

/// Runs `work` with a subscriber that uses the listener and drops the receiver of a connection when
/// an error is logged. Returns the number of errors.
fn count_errors(listener: Listener, receiver: Receiver, work: impl FnOnce()) -> u32 {
    let (held, count) = (Mutex::new((listener, Some(receiver))), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&count);
    let subscriber = rdma_test_support::OnEvent(move |event: &tracing::Event<'_>| {
        if *event.metadata().level() == tracing::Level::ERROR {
            let (listener, receiver) = &mut *held.lock().unwrap();
            listener.free_receives();
            drop(receiver.take());
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    tracing::subscriber::with_default(subscriber, work);
    count.load(Ordering::Relaxed)
}

#[test]
fn a_send_that_fails_is_logged_under_no_lock() {
    without_deadlock(|| {
        let (world, _client, server) = on_test_provider(&ListenOptions::new());
        let (to, from) = server.split();
        let errors = count_errors(world.listener, from, || {
            testing::fail_post(0, libc::EIO, testing::BadWr::Alien);
            assert!(poll(pin!(to.send("lost")), Waker::noop()).is_ready());
        });
        assert_eq!(errors, 1);
        assert_eq!(block_on(to.send("more")).unwrap_err().kind(), FailureKind::Local);
    });
}

#[test]
fn a_shared_receive_that_is_lost_is_logged_under_no_lock() {
    // The provider names the receive, so the queue takes others; or it names none, and the queue
    // ends.
    for (blame, expected) in [(testing::BadWr::Chain, 1), (testing::BadWr::Null, 2)] {
        without_deadlock(move || {
            let (world, _client, server) = on_test_provider(&ListenOptions::new().shared_receives(10));
            let Driven { nodes: [_client_node, node], listener, drivers: [_client_driver, mut driver] } = world;
            let qp_num = server.qpn().unwrap();
            let wr_id = listener.pool().unwrap().with_queue(|queue| testing::posted_to_srq(queue.as_raw())[0].wr_id);
            let cq = node.tables().shared.cq.as_raw();
            let (to, from) = server.split();
            // The peer's device breaks the connection, which gives the receive to others.
            let (status, opcode) = (ibv_wc_status::IBV_WC_WR_FLUSH_ERR, ibv_wc_opcode::IBV_WC_RECV);
            testing::complete(cq, ibv_wc { wr_id, status, opcode, qp_num, ..ibv_wc::default() });
            testing::fail_post(0, libc::EIO, blame);
            let errors = count_errors(listener, from, || {
                driver.turn(64).unwrap();
            });
            assert_eq!(errors, expected);
            assert_eq!(block_on(to.send("more")).unwrap_err().kind(), FailureKind::PeerGone);
        });
    }
}

#[test]
fn a_task_that_panics_when_it_is_woken_leaves_no_other_waiting() {
    let mut world = Driven::new(&options());
    let mut pairs: Vec<_> = (0..8).map(|_| world.pair()).collect();
    let counts: Vec<_> = (0..4).map(|_| Arc::new(Count::default())).collect();
    let mut waiting: Vec<_> = pairs.iter_mut().map(|(client, _)| Box::pin(client.next())).collect();
    let wakers = counts.iter().map(|count| Waker::from(Arc::clone(count)));
    let wakers = wakers.chain((0..4).map(|_| Waker::from(Arc::new(Panicking))));
    for (future, waker) in waiting.iter_mut().zip(wakers) {
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    let Driven { nodes, drivers: [client, _server], listener } = world;
    assert!(catch_unwind(AssertUnwindSafe(|| drop(client))).is_err());
    for count in counts {
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
    for future in waiting {
        assert_eq!(block_on(future).unwrap_err().kind(), FailureKind::DriverGone);
    }
    drop((nodes, listener));
}

#[test]
fn a_connection_whose_end_panics_is_removed() {
    let mut world = Driven::new(&options());
    let [(mut one, peer), (mut two, _peer)] = [(); 2].map(|()| world.pair());
    let (mut first, mut second) = (Box::pin(one.next()), Box::pin(two.next()));
    let panicking = Waker::from(Arc::new(Panicking));
    assert!(poll(first.as_mut(), &panicking).is_pending() && poll(second.as_mut(), &panicking).is_pending());
    drop(peer);
    let Driven { nodes, mut drivers, listener } = world;
    while catch_unwind(AssertUnwindSafe(|| turn(&mut drivers))).is_ok() {}
    assert!(run(&mut drivers, first).unwrap().is_none());
    drop(one);
    run(
        &mut drivers,
        std::future::poll_fn(|_| if nodes[0].connections() == 1 { Poll::Ready(()) } else { Poll::Pending }),
    );
    // The drop of the driver, which unwinds, wakes the other task, which panics too.
    let [client, _server] = drivers;
    let unwound = catch_unwind(AssertUnwindSafe(move || {
        let _driver = client;
        panic!("a driver that unwinds");
    }));
    assert!(unwound.is_err());
    assert_eq!(block_on(second).unwrap_err().kind(), FailureKind::DriverGone);
    drop(listener);
}
