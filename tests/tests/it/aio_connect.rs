//! Queue pairs that are connected and accepted in one await each, on the device under test.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use rdma::aio::{self, Connection, ConnectionError, ConnectionOptions, Incoming, Listener, Setup};
use rdma::cm::blocking::ListenOptions;
use rdma::cm::{ConnOptions, EventChannel};
use rdma::op::{self, Opcode};
use rdma::transport::Rc;
use rdma::{Context, ErrorKind, InitializedQueuePair, QueuePair};
use rdma_test_support::passes_alone;
use rdma_tests::cm::{End, address, any_port, available, resolve};
use rdma_tests::report::Reported;
use rdma_tests::tasks::{both, ready};
use rdma_tests::{LIMIT, buffer, open, pattern, skipped_on_iwarp, wait};
use tokio::runtime::Builder;

type Readable = aio::tokio::Readable;
type Side = (Connection<Readable>, QueuePair<Rc>);

fn watch(fd: BorrowedFd<'_>) -> std::io::Result<Readable> {
    Readable::new(fd)
}

fn options(context: &Context, data: &[u8]) -> ConnectionOptions {
    ConnectionOptions::new().context(context).timeout(LIMIT).parameters(ConnOptions::new().private_data(data))
}

/// Runs a test on tokio, on a device with a connection manager.
fn run<F: Future<Output = ()>>(test: impl FnOnce(Context) -> F) {
    let context = open().context;
    if available(&context) {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(test(context));
    }
}

fn listen(context: &Context) -> Listener<Readable> {
    let channel = EventChannel::of(context).unwrap();
    Listener::bind(channel, any_port(address(context)), &ListenOptions::new(), watch).unwrap()
}

/// Makes a queue pair with a receive.
fn prepare(end: &End, setup: &Setup<'_>) -> rdma::Result<InitializedQueuePair<Rc>> {
    let mut qp = setup.init(QueuePair::builder(&end.pd).cq(&end.cq))?;
    qp.post_recv(end.pd.allocate(64)?, 1)?;
    Ok(qp)
}

async fn connect(context: &Context, end: &End, to: SocketAddr, data: &[u8]) -> Result<Side, ConnectionError> {
    aio::connect(to, &options(context, data), watch, |setup| prepare(end, setup)).await
}

async fn accept(context: &Context, end: &End, incoming: Incoming, data: &[u8]) -> Result<Side, ConnectionError> {
    assert_eq!(incoming.context().unwrap().name(), context.name());
    incoming.accept(&options(context, data), watch, |setup| prepare(end, setup)).await
}

#[test]
fn queue_pairs_are_connected_and_accepted_in_one_await_each() {
    run(|context| async move {
        let mut listener = listen(&context);
        let (ours, theirs, to) = (End::new(&context), End::new(&context), listener.local_addr());
        // A wait that is given up loses no request.
        assert!(pin!(listener.next()).poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
        let passive = async {
            let incoming = listener.next().await.unwrap();
            assert!(incoming.private_data().starts_with(b"hello"));
            accept(&context, &theirs, incoming, b"welcome").await.unwrap()
        };
        let (active, passive) = both(connect(&context, &ours, to, b"hello"), passive).await;
        let ((mut connection, qp), (mut other, other_qp)) = (active.unwrap(), passive);
        assert!(connection.private_data().starts_with(b"welcome") && other.private_data().starts_with(b"hello"));
        assert_eq!(connection.peer_addr(), Some(to));
        // On iWARP the active side sends first.
        let (mut qp, mut other_qp): (Reported<Rc>, Reported<Rc>) = (qp.into(), other_qp.into());
        for ((from, end), to) in [((&mut qp, &ours), &theirs), ((&mut other_qp, &theirs), &ours)] {
            from.post_send(op::send(buffer(&end.pd, &pattern(64, 5))).token(9)).unwrap();
            assert_eq!(wait(&mut end.cq.poller()).token, 9);
            let done = wait(&mut to.cq.poller());
            assert_eq!((done.status, done.opcode), (Ok(()), Opcode::Recv));
            assert!(done.buffer()[..] == pattern(64, 5));
        }
        connection.disconnect(&*qp).unwrap();
        other.disconnected().await.unwrap();
        // The answer, which the other side waits for. iWARP has ended the connection at both sides.
        let _ended = other.disconnect(&*other_qp);
        connection.disconnected().await.unwrap();
    });
}

#[test]
fn a_refusal_names_the_peer_and_carries_its_data() {
    run(|context| async move {
        let mut listener = listen(&context);
        let (end, to) = (End::new(&context), listener.local_addr());
        let reject = async { listener.next().await.unwrap().reject(b"not today").unwrap() };
        let (refused, ()) = both(connect(&context, &end, to, b""), reject).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused.error.kind(), ErrorKind::Rejected(_)), "{refused}");
        assert!(refused.private_data.starts_with(b"not today"));
        assert!(refused.to_string().contains(&to.to_string()), "{refused}");
        drop(listener);
        let failed = connect(&context, &end, to, b"").await.unwrap_err();
        assert_eq!((failed.error.kind(), failed.peer), (ErrorKind::NotListening, Some(to)));
        // An error of the program's own ends the attempt, too.
        let mut listener = listen(&context);
        let own = rdma::Error::new(rdma::Verb::CreateQp, ErrorKind::OutOfMemory);
        let to = listener.local_addr();
        let failed = aio::connect(to, &options(&context, b""), watch, |_| Err(own)).await.unwrap_err();
        assert_eq!(failed.error, own);
        let passive = async {
            let incoming = listener.next().await.unwrap();
            incoming.accept(&options(&context, b""), watch, |_| Err(own)).await.map(drop).unwrap_err()
        };
        let (refused, failed) = both(connect(&context, &end, to, b""), passive).await;
        assert_eq!(failed.error, own);
        assert!(refused.is_err());
    });
}

#[test]
fn an_attempt_ends_at_its_deadline() {
    run(|context| async move {
        let listener = listen(&context);
        let end = End::new(&context);
        // Nobody answers the request.
        let options = options(&context, b"").timeout(Duration::from_millis(300));
        let to = listener.local_addr();
        let late = aio::connect(to, &options, watch, |setup| prepare(&end, setup)).await.unwrap_err();
        assert_eq!(late.error.kind(), ErrorKind::Timeout, "{late}");
        end.cq.close().unwrap();
    });
}

/// Polls both futures in turns, `steps` times in all or until both are ready, and drops them.
async fn dropped_after(steps: usize, active: impl Future, passive: impl Future) {
    let (mut active, mut passive) = (pin!(active), pin!(passive));
    let mut cx = TaskContext::from_waker(Waker::noop());
    let mut ready = [false; 2];
    for _ in 0..steps {
        if !ready[0] {
            ready[0] = matches!(active.as_mut().poll(&mut cx), Poll::Ready(_));
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
        if !ready[1] {
            ready[1] = matches!(passive.as_mut().poll(&mut cx), Poll::Ready(_));
        }
    }
}

#[test]
fn futures_that_are_dropped_at_any_step_leave_nothing_behind() {
    run(|context| async move {
        let mut listener = listen(&context);
        let to = listener.local_addr();
        for steps in 0..12 {
            let (ours, theirs) = (End::new(&context), End::new(&context));
            let passive = async {
                let incoming = listener.next().await.unwrap();
                accept(&context, &theirs, incoming, b"").await
            };
            dropped_after(steps, connect(&context, &ours, to, b""), passive).await;
            // No queue pair is left, nor the memory of its receive.
            for End { pd, cq } in [ours, theirs] {
                cq.close().unwrap();
                pd.close().unwrap();
            }
        }
        // The listener goes on. Requests of dropped attempts may still come.
        let (ours, theirs) = (End::new(&context), End::new(&context));
        let passive = async {
            loop {
                let incoming = listener.next().await.unwrap();
                if incoming.private_data().starts_with(b"last") {
                    break accept(&context, &theirs, incoming, b"").await;
                }
            }
        };
        let (active, passive) = both(connect(&context, &ours, to, b"last"), passive).await;
        drop((active.unwrap(), passive.unwrap()));
    });
}

/// Random numbers below a bound; equal seeds give equal numbers.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    }
}

/// `RDMA_TEST_SEED` repeats a run.
#[test]
fn futures_that_are_dropped_at_random_leave_nothing_behind_and_the_peer_learns_of_it() {
    let seed = std::env::var("RDMA_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 0x5eed);
    println!("RDMA_TEST_SEED={seed} repeats this run");
    run(|context| async move {
        let mut below = random(seed);
        let mut listener = listen(&context);
        let (to, mut complete) = (listener.local_addr(), [0; 3]);
        for round in 0..40_u64 {
            let (ours, theirs) = (End::new(&context), End::new(&context));
            let name = round.to_be_bytes();
            let sides = {
                let mut active = Box::pin(connect(&context, &ours, to, &name));
                let mut passive = Box::pin(async {
                    loop {
                        // A request of an earlier round may still come.
                        let incoming = listener.next().await.unwrap();
                        if incoming.private_data().starts_with(&name) {
                            break accept(&context, &theirs, incoming, b"").await;
                        }
                    }
                });
                let mut sides = [None, None];
                let mut cx = TaskContext::from_waker(Waker::noop());
                for _ in 0..below(20) {
                    if below(2) == 0 {
                        if sides[0].is_none() {
                            sides[0] = ready(active.as_mut().poll(&mut cx)).map(Result::unwrap);
                        }
                    } else if sides[1].is_none() {
                        sides[1] = ready(passive.as_mut().poll(&mut cx)).map(Result::unwrap);
                    }
                    match below(3) {
                        0 => {}
                        1 => tokio::task::yield_now().await,
                        _ => tokio::time::sleep(Duration::from_micros(200)).await,
                    }
                }
                if below(2) == 0 {
                    drop(active);
                    drop(passive);
                } else {
                    drop(passive);
                    drop(active);
                }
                sides
            };
            complete[sides.iter().flatten().count()] += 1;
            // A side that is connected to one that has given up learns of it.
            match sides {
                [Some((mut connection, _qp)), None] | [None, Some((mut connection, _qp))] => {
                    let learned = tokio::time::timeout(LIMIT, connection.disconnected()).await;
                    learned.expect("the peer has given up").unwrap();
                }
                sides => drop(sides),
            }
            for End { pd, cq } in [ours, theirs] {
                cq.close().unwrap();
                pd.close().unwrap();
            }
        }
        println!("{complete:?} rounds with no, one and two sides that were complete");
        drop(listener);
        // No id and no channel is left, which would keep the device open.
        context.close().unwrap();
    });
}

#[test]
fn a_peer_that_does_not_complete_the_connection_is_given_up_at_the_deadline() {
    run(|context| async move {
        if skipped_on_iwarp(&context, "the active side is connected before the passive one accepts") {
            return;
        }
        let mut listener = listen(&context);
        let (ours, theirs) = (End::new(&context), End::new(&context));
        // It asks, and leaves the answer alone.
        let route = resolve(&context, listener.local_addr());
        let qp = route.init(ours.qp()).unwrap();
        route.id().connect(&qp, &ConnOptions::new()).unwrap();
        let incoming = listener.next().await.unwrap();
        let peer = incoming.peer_addr();
        let options = options(&context, b"").timeout(Duration::from_millis(300));
        let late = incoming.accept(&options, watch, |setup| prepare(&theirs, setup)).await.unwrap_err();
        assert_eq!((late.error.kind(), late.peer), (ErrorKind::Timeout, peer), "{late}");
        theirs.cq.close().unwrap();
    });
}

/// A task of a runtime with several threads may run each future.
#[test]
fn the_futures_may_move_between_threads() {
    fn moves<F: Future + Send>(_: impl FnOnce(Connection<Readable>, Listener<Readable>, Incoming) -> F) {}
    moves(|mut connection, mut listener, incoming| async move {
        connection.disconnected().await.unwrap();
        drop(listener.next().await.unwrap());
        let context = incoming.context().unwrap();
        let end = End::new(&context);
        drop(accept(&context, &end, incoming, b"").await.unwrap());
        drop(connect(&context, &end, listener.local_addr(), b"").await.unwrap());
    });
}

#[test]
fn one_listener_serves_the_peers_of_two_devices() {
    passes_alone(&["aio_connect::each_device_connects_to_the_other"], &[("RDMA_SOFT_DEVICES", "2")]);
}

#[test]
#[ignore = "run by one_listener_serves_the_peers_of_two_devices"]
fn each_device_connects_to_the_other() {
    let devices = ["soft0", "soft1"].map(|name| rdma::open(&name.parse().unwrap()).unwrap().context);
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let channel = EventChannel::of(&devices[0]).unwrap();
        let any = "0.0.0.0:0".parse().unwrap();
        let mut listener = Listener::bind(channel, any, &ListenOptions::new(), watch).unwrap();
        let port = listener.local_addr().port();
        for [from, to] in [[0, 1], [1, 0], [0, 0], [1, 1]] {
            let to_addr = SocketAddr::new(address(&devices[to]), port);
            let from_addr = any_port(address(&devices[from]));
            let (ours, theirs) = (End::new(&devices[from]), End::new(&devices[to]));
            let passive = async {
                let incoming = listener.next().await.unwrap();
                accept(&devices[to], &theirs, incoming, b"").await.unwrap()
            };
            let options = options(&devices[from], b"").source(from_addr);
            let active = aio::connect(to_addr, &options, watch, |setup| {
                assert_eq!(setup.context()?.name(), devices[from].name());
                assert_eq!(setup.peer_addr(), Some(to_addr));
                prepare(&ours, setup)
            });
            let (active, accepted) = both(active, passive).await;
            let (mut connection, mut qp) = active.unwrap();
            assert_eq!(connection.local_addr().map(|local| local.ip()), Some(from_addr.ip()));
            qp.post_send(op::send(buffer(&ours.pd, b"ping"))).unwrap();
            assert_eq!(wait(&mut theirs.cq.poller()).byte_len, 4);
            drop(accepted);
            connection.disconnected().await.unwrap();
        }
        // A queue pair of the other device is refused, and the error names both.
        let to = SocketAddr::new(address(&devices[1]), port);
        let options = options(&devices[0], b"").source(any_port(address(&devices[0])));
        let wrong = End::new(&devices[1]);
        let refused = aio::connect(to, &options, watch, |setup| prepare(&wrong, setup)).await.unwrap_err();
        assert!(matches!(refused.error.kind(), ErrorKind::WrongDevice(_)), "{refused}");
    });
}

#[test]
fn many_connect_at_a_time() {
    const COUNT: usize = 16;
    run(|context| async move {
        let mut listener = listen(&context);
        let to = listener.local_addr();
        let ends: Vec<[End; 2]> = (0..COUNT).map(|_| [End::new(&context), End::new(&context)]).collect();
        let serve = async {
            let mut accepted = Vec::new();
            for [_, theirs] in &ends {
                let incoming = listener.next().await.unwrap();
                accepted.push(accept(&context, theirs, incoming, b"").await.unwrap());
            }
            accepted
        };
        let mut active: Vec<_> = ends.iter().map(|[ours, _]| Box::pin(connect(&context, ours, to, b""))).collect();
        let mut connected = Vec::new();
        let clients = std::future::poll_fn(|cx| {
            active.retain_mut(|attempt| match attempt.as_mut().poll(cx) {
                Poll::Ready(side) => {
                    connected.push(side.unwrap());
                    false
                }
                Poll::Pending => true,
            });
            if active.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        let (accepted, ()) = both(serve, clients).await;
        assert_eq!((accepted.len(), connected.len()), (COUNT, COUNT));
    });
}
