//! Futures on the device under test: on tokio, on async-io, by a poll loop, and by a thread that
//! drives. Devices that connect by an exchange of endpoints only.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rdma::aio::{self, Driver, DriverOptions, Handle, InFlight, Strategy};
use rdma::op::{self, Opcode};
use rdma::transport::{Rc, Ud};
use rdma::{
    Buffer, ErrorKind, InitOptions, InitializedQueuePair, Opened, ProtectionDomain, QueuePair, RemoteAccess, WcStatus,
};
use rdma_tests::tasks::{block_on, drive};
use rdma_tests::{LIMIT, MANAGED, all_rights, buffer, pattern};

const DEPTH: u32 = 8;

/// Two connected queue pairs of one driver.
struct World {
    pd: ProtectionDomain,
    a: aio::QueuePair<Rc>,
    b: aio::QueuePair<Rc>,
}

/// The driver and its two queue pairs, on a device that connects by an exchange of endpoints.
fn world(strategy: Strategy) -> Option<(Driver, World)> {
    let opened = opened()?;
    let (driver, handle) = driver(&opened, strategy);
    let pd = opened.context.alloc_pd().expect("a protection domain");
    let prepare = || prepared(&opened, &pd, &handle);
    let (a, b) = (prepare(), prepare());
    let (a, b) = rdma_testkit::join(a, b).expect("RTS");
    let [a, b] = [a, b].map(|qp| handle.queue_pair(qp).expect("the driver's queue"));
    Some((driver, World { pd, a, b }))
}

fn opened() -> Option<Opened> {
    let opened = rdma_tests::open();
    if !opened.context.capabilities().manual_connect {
        rdma_tests::skip(MANAGED);
        return None;
    }
    Some(opened)
}

fn driver(opened: &Opened, strategy: Strategy) -> (Driver, Handle) {
    Driver::new(&opened.context, &DriverOptions::new().depth(256).strategy(strategy)).expect("a driver")
}

fn prepared(opened: &Opened, pd: &ProtectionDomain, handle: &Handle) -> InitializedQueuePair<Rc> {
    let qp = QueuePair::builder(pd).cq(handle.completion_queue()).max_send_wr(DEPTH).max_recv_wr(DEPTH).max_send_sge(2);
    let options = InitOptions::new().port(opened.port).remote_access(all_rights());
    qp.build().expect("a queue pair").init(&options).expect("INIT")
}

/// Runs a future with a driver that the same thread turns.
fn run<F: Future>(driver: &mut Driver, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        driver.turn(64).expect("a working device");
        assert!(start.elapsed() < LIMIT, "the future is not ready in time");
        thread::yield_now();
    }
}

/// A hundred messages there and back, each answered before the next.
async fn ping_pong(mut world: World) -> World {
    let World { pd, a, b } = &mut world;
    for qp in [&mut *a, &mut *b] {
        qp.post_recv(pd.allocate(64).unwrap()).unwrap();
    }
    let mut message = buffer(pd, &pattern(64, 1));
    for round in 0..100 {
        message[0] = round;
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut *a, &mut *b];
            let sent = ends[from].start(op::send(message)).unwrap();
            let mut received = ends[to].next_received().await.unwrap();
            assert_eq!((received.status(), received.byte_len(), received.opcode()), (Ok(()), 64, Opcode::Recv));
            let room = received.take_buffer().unwrap();
            assert_eq!((room[0], &room[1..]), (round, &pattern(64, 1)[1..]));
            ends[to].post_recv(room).unwrap();
            message = sent.await.into_memory().unwrap();
        }
    }
    world
}

#[test]
fn messages_pass_by_a_poll_loop() {
    let Some((mut driver, world)) = world(Strategy::BusyPoll) else { return };
    run(&mut driver, ping_pong(world));
}

#[test]
fn messages_pass_beside_a_driver_thread() {
    for strategy in [Strategy::EventDriven, Strategy::Adaptive { polls: 20 }] {
        let Some((driver, world)) = world(strategy) else { return };
        let driving = drive(driver);
        drop(block_on(ping_pong(world)));
        driving.join();
    }
}

#[test]
fn messages_pass_on_tokio() {
    for strategy in [Strategy::EventDriven, Strategy::default(), Strategy::BusyPoll] {
        let Some((driver, world)) = world(strategy) else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let readable = aio::tokio::Readable::new(&driver).unwrap();
            let driving = tokio::spawn(driver.run(readable));
            let world = tokio::spawn(ping_pong(world)).await.unwrap();
            drop(world);
            driving.await.unwrap().unwrap();
        });
    }
}

#[test]
fn messages_pass_on_async_io() {
    let Some((driver, world)) = world(Strategy::EventDriven) else { return };
    let readable = aio::smol::Readable::new(&driver).unwrap();
    let driving = thread::spawn(move || async_io::block_on(driver.run(readable)));
    drop(async_io::block_on(ping_pong(world)));
    driving.join().unwrap().unwrap();
}

#[test]
fn every_operation_is_a_future() {
    let Some((mut driver, mut world)) = world(Strategy::BusyPoll) else { return };
    let World { pd, a, .. } = &mut world;
    let region = pd.allocate_exposed(64, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    let number = remote.slice(..8).unwrap();
    let content = pattern(64, 9);
    run(&mut driver, async {
        let written = a.start(op::write(buffer(pd, &content), remote)).unwrap().await;
        assert_eq!(written.status.unwrap().opcode, Opcode::Write);
        let read = a.start(op::read(pd.allocate(64).unwrap(), remote)).unwrap().await;
        assert_eq!(read.status.unwrap().opcode, Opcode::Read);
        assert_eq!(read.local.unwrap()[..], content[..]);
        // Lists come back in their shape.
        let halves = [pd.allocate(32).unwrap(), pd.allocate(32).unwrap()];
        let [front, back] = a.start(op::read(halves, remote)).unwrap().await.into_memory().unwrap();
        assert_eq!((&front[..], &back[..]), (&content[..32], &content[32..]));
        let added = a.start(op::fetch_add(pd.allocate(8).unwrap(), number, 1)).unwrap().await;
        let old = u64::from_ne_bytes(content[..8].try_into().unwrap());
        assert_eq!(added.status.unwrap().old_value, Some(old));
    });
}

#[test]
fn a_full_queue_is_waited_for() {
    let Some((mut driver, mut world)) = world(Strategy::BusyPoll) else { return };
    let World { pd, a, .. } = &mut world;
    let region = pd.allocate_exposed(8, RemoteAccess::WRITE).unwrap();
    let remote = region.remote(..).unwrap();
    run(&mut driver, async {
        let mut sent = Vec::new();
        for _ in 0..10 * DEPTH {
            sent.push(a.reserve().await.unwrap().start(op::write(pd.allocate(8).unwrap(), remote)).unwrap());
        }
        for sent in sent {
            assert!(sent.await.status.is_ok());
        }
    });
}

#[test]
fn datagrams_are_awaited() {
    let Some(opened) = opened() else { return };
    let (mut driver, handle) = driver(&opened, Strategy::BusyPoll);
    let pd = opened.context.alloc_pd().unwrap();
    let ready = || {
        let builder = QueuePair::datagram(&pd).cq(handle.completion_queue());
        let options = rdma::DatagramOptions::new(0x1234).port(opened.port);
        let qp: QueuePair<Ud> = builder.build().unwrap().init(&options).unwrap().ready().unwrap();
        handle.queue_pair(qp).unwrap()
    };
    let (mut one, mut other) = (ready(), ready());
    let to = other.queue_pair().endpoint().unwrap();
    let address = one.queue_pair().address_of(&to).unwrap();
    run(&mut driver, async {
        other.post_recv(pd.allocate(rdma::Grh::LEN + 16).unwrap()).unwrap();
        let sent = one.start(op::send(buffer(&pd, b"hello")).to(&address, to.qpn, to.qkey)).unwrap();
        let mut received = other.next_received().await.unwrap();
        let datagram = received.take_datagram().unwrap();
        assert_eq!((&datagram[..], datagram.source().qpn), (&b"hello"[..], one.queue_pair().qpn()));
        assert!(sent.await.into_memory().is_ok());
    });
}

#[test]
fn shutdown_gives_all_memory_back() {
    let Some((mut driver, mut world)) = world(Strategy::BusyPoll) else { return };
    let World { pd, b, .. } = &mut world;
    for _ in 0..DEPTH {
        b.post_recv(pd.allocate(8).unwrap()).unwrap();
    }
    run(&mut driver, async {
        b.shutdown().await.unwrap();
        for _ in 0..DEPTH {
            let mut received = b.next_received().await.unwrap();
            assert_eq!(received.status().unwrap_err().status, WcStatus::WR_FLUSH_ERR);
            assert!(received.take_buffer().is_some());
        }
    });
}

/// Polls a future at most `polls` times, turning the driver in between, and then drops it.
fn poll_times<F: Future>(driver: &mut Driver, future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        driver.turn(1).unwrap();
    }
    None
}

/// Each public future is polled k times and dropped, for all k: nothing is lost, and the queue pair
/// works afterwards.
#[test]
fn futures_are_dropped_at_any_point() {
    let Some((mut driver, World { pd, mut a, mut b })) = world(Strategy::BusyPoll) else { return };
    let region = pd.allocate_exposed(16, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    for polls in 0..6 {
        for round in 0..20_u8 {
            b.post_recv(pd.allocate(16).unwrap()).unwrap();
            // A send: dropped in flight, it is delivered all the same.
            let sent = a.start(op::send(buffer(&pd, &[round; 16]))).unwrap();
            let _finished = poll_times(&mut driver, sent, polls);
            let _room = poll_times(&mut driver, async { a.reserve().await.map(drop) }, polls);
            let read = a.start(op::read(pd.allocate(16).unwrap(), remote));
            let _read = read.map(|read| poll_times(&mut driver, read, polls));
            let message = poll_times(&mut driver, b.next_received(), polls);
            // A wait that was dropped took no message.
            let mut message = message.unwrap_or_else(|| run(&mut driver, b.next_received())).unwrap();
            assert_eq!((message.status(), message.take_buffer().unwrap()[0]), (Ok(()), round));
        }
    }
    // All that was abandoned has ended.
    run(&mut driver, poll_fn(|_| if a.abandoned() == 0 { Poll::Ready(()) } else { Poll::Pending }));
    assert_eq!((a.queue_pair().send_queue().room(), b.queue_pair().recv_queue().room()), (DEPTH, DEPTH));
}

/// Four threads read and write over one queue pair, whose queue has fewer slots than they want.
#[test]
fn several_tasks_share_a_queue_pair() {
    const TASKS: u8 = 4;
    const ROUNDS: u8 = 50;
    let Some((driver, World { pd, a, b })) = world(Strategy::default()) else { return };
    let driving = drive(driver);
    let region = pd.allocate_exposed(usize::from(TASKS) * 64, all_rights()).unwrap();
    let remote = region.remote(..).unwrap();
    let (send, recv) = a.into_split();
    let requester = send.into_requester();
    // All slots but two are taken, so that the tasks wait for each other.
    let held: Vec<_> = (2..DEPTH).map(|_| block_on(requester.reserve()).unwrap()).collect();
    thread::scope(|scope| {
        for task in 0..TASKS {
            let (requester, pd) = (requester.clone(), &pd);
            let place = remote.slice(usize::from(task) * 64..usize::from(task + 1) * 64).unwrap();
            scope.spawn(move || {
                let mut read = pd.allocate(64).unwrap();
                for round in 0..ROUNDS {
                    let content = pattern(64, task * ROUNDS + round);
                    let written = block_on(requester.post(op::write(buffer(pd, &content), place)));
                    assert_eq!(written.status.unwrap().opcode, Opcode::Write);
                    let finished = block_on(requester.post(op::read(read, place)));
                    read = finished.into_memory().unwrap();
                    assert_eq!(read[..], content);
                }
            });
        }
    });
    drop(held);
    assert_eq!(requester.abandoned(), 0);
    requester.close().unwrap();
    assert_eq!(requester.start(op::send(())).unwrap_err().kind(), ErrorKind::Ended);
    // The halves of either side end on their own.
    let (send, mut other) = b.into_split();
    drop((recv, send));
    drop(requester);
    block_on(other.shutdown()).unwrap();
    drop(other);
    driving.join();
}

/// A future with a time limit on tokio; the limit abandons the receive's wait and loses nothing.
#[test]
fn a_time_limit_loses_no_message() {
    let Some((driver, World { pd, mut a, mut b })) = world(Strategy::default()) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let readable = aio::tokio::Readable::new(&driver).unwrap();
        let driving = tokio::spawn(driver.run(readable));
        b.post_recv(pd.allocate(8).unwrap()).unwrap();
        let limit = Duration::from_millis(5);
        assert!(tokio::time::timeout(limit, b.next_received()).await.is_err());
        let sent: InFlight<Buffer> = a.start(op::send(buffer(&pd, b"late"))).unwrap();
        assert_eq!(b.next_received().await.unwrap().byte_len(), 4);
        assert!(sent.await.into_memory().is_ok());
        drop((a, b));
        driving.await.unwrap().unwrap();
    });
}

#[test]
fn connection_events_are_awaited() {
    let context = rdma_tests::open().context;
    if !rdma_tests::cm::available(&context) {
        return;
    }
    let channel = rdma::cm::EventChannel::of(&context).unwrap();
    let id = channel.create_id::<Rc>().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = rdma_tests::cm::any_port(rdma_tests::cm::address(&context));
    runtime.block_on(async {
        let readable = aio::tokio::Readable::new(&channel).unwrap();
        let mut events = aio::Events::new(channel.clone(), readable);
        id.resolve_addr(None, address, LIMIT).unwrap();
        let event = events.next().await.unwrap();
        assert_eq!(event.id, id.key());
        assert!(matches!(event.kind, rdma::cm::EventKind::AddrResolved), "{:?}", event.kind);
    });
}
