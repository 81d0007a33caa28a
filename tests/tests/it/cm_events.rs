//! The connection manager's events for event loops, and identifiers dropped at any moment, on a
//! device.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rdma::cm::blocking::{ListenOptions, Listener};
use rdma::cm::{ConnOptions, ConnectRequest, Event, EventChannel, EventKind, Id, IdKey};
use rdma::op;
use rdma::transport::Rc;
use rdma::{AsyncEventKind, Context, ErrorKind, InitializedQueuePair, QueuePair, TransportType};
use rdma_tests::cm::{End, MOMENT, accept, address, any_port, available, connect, listen};
use rdma_tests::{LIMIT, all_rights, buffer, open, wait};

/// The open device, if it has a connection manager.
fn device() -> Option<Context> {
    let context = open().context;
    available(&context).then_some(context)
}

/// The remote access rights that a peer can have on the device.
fn access(context: &Context) -> rdma::RemoteAccess {
    if context.device().transport() == TransportType::IWARP {
        return rdma::RemoteAccess::READ | rdma::RemoteAccess::WRITE;
    }
    all_rights()
}

/// Sleeps until the descriptor is readable, as an event loop does.
fn sleep_until_readable(channel: &EventChannel) {
    assert_eq!(poll(channel.as_fd()), 1, "no event in time");
}

fn poll(fd: BorrowedFd<'_>) -> i32 {
    let mut slot = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = i32::try_from(LIMIT.as_millis()).unwrap();
    // SAFETY: poll requires an array with as many entries as its count says: the array is one local
    // entry, and the count is 1.
    unsafe { libc::poll(&raw mut slot, 1, limit) }
}

fn next(channel: &EventChannel) -> Event {
    loop {
        if let Some(event) = channel.try_next_event().unwrap() {
            return event;
        }
        sleep_until_readable(channel);
    }
}

/// Takes the next event, which must be this identifier's.
fn next_of(channel: &EventChannel, key: IdKey) -> EventKind {
    let event = next(channel);
    assert_eq!(event.id, key, "{event:?}");
    event.kind
}

fn resolved(channel: &EventChannel, to: SocketAddr) -> Id<Rc> {
    let id = channel.create_id::<Rc>().unwrap();
    id.resolve_addr(None, to, LIMIT).unwrap();
    let kind = next_of(channel, id.key());
    assert!(matches!(kind, EventKind::AddrResolved), "{kind:?}");
    id.resolve_route(LIMIT).unwrap();
    let kind = next_of(channel, id.key());
    assert!(matches!(kind, EventKind::RouteResolved), "{kind:?}");
    id
}

fn listening(channel: &EventChannel, context: &Context) -> Id<Rc> {
    let id = channel.create_id::<Rc>().unwrap();
    id.bind_addr(any_port(address(context))).unwrap();
    id.listen(16).unwrap();
    id
}

fn request(channel: &EventChannel, listener: &Id<Rc>) -> ConnectRequest<Rc> {
    match next_of(channel, listener.key()) {
        EventKind::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Handles the event that asks the active side for its last step; returns the connected queue pair.
fn established(channel: &EventChannel, id: &Id<Rc>, qp: InitializedQueuePair<Rc>) -> QueuePair<Rc> {
    match next_of(channel, id.key()) {
        EventKind::ConnectResponse(_) => id.establish(qp, &ConnOptions::new()).unwrap(),
        EventKind::Established(_) => {
            assert_eq!(id.context().unwrap().device().transport(), TransportType::IWARP);
            id.establish(qp, &ConnOptions::new()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_thread_does_both_ends_on_one_channel() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let listener = listening(&channel, &context);
    let to = listener.local_addr().unwrap();
    let (a, b) = (End::new(&context), End::new(&context));
    let id = resolved(&channel, to);
    let a_qp = id.init(a.qp(), access(&context)).unwrap();
    id.connect(&a_qp, &ConnOptions::new().private_data(b"from a")).unwrap();
    let request = request(&channel, &listener);
    assert!(request.private_data().starts_with(b"from a"));
    assert_eq!(request.listener(), listener.key());
    let mut b_qp = request.init(b.qp(), access(&context)).unwrap();
    b_qp.post_recv(b.pd.allocate(8).unwrap(), 1).unwrap();
    let key = request.key();
    let (passive, b_qp) = request.accept(b_qp, &ConnOptions::new().private_data(b"from b")).unwrap();
    assert_eq!(passive.key(), key);
    // The events of both sides arrive in any order, each with its identifier.
    let (mut a_waits, mut a_qp, mut passive_waits) = (Some(a_qp), None, true);
    while a_waits.is_some() || passive_waits {
        let event = next(&channel);
        match event.kind {
            EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) if event.id == id.key() => {
                assert!(accepted.private_data.starts_with(b"from b"));
                a_qp = Some(id.establish(a_waits.take().unwrap(), &ConnOptions::new()).unwrap());
            }
            EventKind::Established(_) => {
                assert_eq!(event.id, key);
                passive_waits = false;
            }
            other => panic!("{other:?}"),
        }
    }
    let mut a_qp = a_qp.unwrap();
    a_qp.post_send(op::send(buffer(&a.pd, b"message"))).unwrap();
    assert_eq!(wait(&mut a.cq.poller()).status, Ok(()));
    assert_eq!(wait(&mut b.cq.poller()).byte_len, 7);
    id.disconnect(&a_qp).unwrap();
    // On iWARP the side that disconnects gets its event at once; elsewhere, after the peer's
    // answer.
    let mut ended = Vec::new();
    while ended.len() < 2 {
        let event = next(&channel);
        assert!(matches!(event.kind, EventKind::Disconnected), "{event:?}");
        if event.id == passive.key() {
            passive.disconnect(&b_qp).ok();
        }
        ended.push(event.id);
    }
    ended.sort();
    assert_eq!(ended, [id.key(), passive.key()]);
}

#[test]
fn ids_move_between_channels_at_any_step() {
    let Some(context) = device() else { return };
    let channels: Vec<_> = (0..4).map(|_| EventChannel::of(&context).unwrap()).collect();
    let listener = listening(&channels[0], &context);
    let mut id = channels[1].create_id::<Rc>().unwrap();
    id.resolve_addr(None, listener.local_addr().unwrap(), LIMIT).unwrap();
    // The event may be on the old channel already; it moves with the identifier.
    id.migrate(&channels[2]).unwrap();
    assert!(matches!(next_of(&channels[2], id.key()), EventKind::AddrResolved));
    id.resolve_route(LIMIT).unwrap();
    assert!(matches!(next_of(&channels[2], id.key()), EventKind::RouteResolved));
    let (a, b) = (End::new(&context), End::new(&context));
    let a_qp = id.init(a.qp(), access(&context)).unwrap();
    id.connect(&a_qp, &ConnOptions::new()).unwrap();
    let mut request = request(&channels[0], &listener);
    request.migrate(&channels[3]).unwrap();
    // Moves the identifier to the channel that it is on.
    request.migrate(&channels[3]).unwrap();
    let b_qp = request.init(b.qp(), access(&context)).unwrap();
    let (mut passive, b_qp) = request.accept(b_qp, &ConnOptions::new()).unwrap();
    let _a_qp = established(&channels[2], &id, a_qp);
    assert!(matches!(next_of(&channels[3], passive.key()), EventKind::Established(_)));
    drop(listener);
    drop(id);
    passive.migrate(&channels[1]).unwrap();
    assert!(matches!(next_of(&channels[1], passive.key()), EventKind::Disconnected));
    assert!(channels.iter().all(|channel| channel.try_next_event().is_ok()));
    passive.disconnect(&b_qp).ok();
}

#[test]
fn a_channel_is_kept_by_its_ids() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let (listener, other) = (listening(&channel, &context), channel.create_id::<Rc>().unwrap());
    let to = listener.local_addr();
    drop((channel, context));
    assert_eq!(listener.local_addr(), to);
    assert_eq!(other.local_addr().map(|it| it.port()).unwrap_or(0), 0);
    assert!(other.bind_addr(to.unwrap()).is_err());
}

#[test]
fn steps_out_of_order_are_errors() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let id = channel.create_id::<Rc>().unwrap();
    let end = End::new(&context);
    assert_eq!((id.device_name(), id.port(), id.peer_addr()), (None, None, None));
    assert_eq!(id.resolve_route(LIMIT).unwrap_err().kind(), ErrorKind::InvalidInput);
    let failed = id.init(end.qp(), access(&context)).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::InvalidInput);
    id.bind_addr(any_port(address(&context))).unwrap();
    assert_eq!(id.device_name(), Some(context.name()));
    let qp = id.init(failed.object, access(&context)).unwrap();
    assert!(id.connect(&qp, &ConnOptions::new()).is_err(), "there is no route");
    let failed = id.establish(qp, &ConnOptions::new());
    // On iWARP `establish` does nothing, so it cannot fail; the queue pair fails when it is used.
    let qp = match failed {
        Ok(qp) => qp,
        Err(failed) => failed.object.into_manual(),
    };
    assert!(id.disconnect(&qp).is_err());
    assert!(id.notify(AsyncEventKind::COMM_EST).is_err());
    assert!(id.bind_addr(any_port(address(&context))).is_err(), "bound twice");
    id.listen(1).unwrap();
    assert!(id.resolve_addr(None, any_port(address(&context)), MOMENT).is_err());
    assert!(channel.try_next_event().unwrap().is_none());
}

/// Starts a connection and drops all objects after `steps` steps.
fn give_up_after(context: &Context, to: SocketAddr, steps: usize) {
    let channel = EventChannel::of(context).unwrap();
    let id = channel.create_id::<Rc>().unwrap();
    let end = End::new(context);
    let mut qp = None;
    let step = |number: usize, qp: &mut Option<InitializedQueuePair<Rc>>| match number {
        0 => id.resolve_addr(None, to, LIMIT).is_ok(),
        1 => channel.next_event(Some(LIMIT)).unwrap().is_some(),
        2 => id.resolve_route(LIMIT).is_ok(),
        3 => channel.next_event(Some(LIMIT)).unwrap().is_some(),
        4 => {
            *qp = id.init(end.qp(), access(context)).ok();
            qp.as_ref().is_some_and(|qp| id.connect(qp, &ConnOptions::new()).is_ok())
        }
        _ => channel.next_event(Some(MOMENT)).unwrap().is_some(),
    };
    for number in 0..steps {
        if !step(number, &mut qp) {
            break;
        }
    }
    match steps % 3 {
        0 => {
            drop(channel);
            drop(id);
            drop(qp);
        }
        1 => {
            drop(qp);
            drop(id);
        }
        _ => drop(id),
    }
}

#[test]
fn whatever_ends_at_any_step_ends() {
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for steps in 0..8 {
                    give_up_after(&context, to, steps);
                }
            });
        }
        // Requests are accepted, rejected or dropped while other sides are still connecting.
        let begin = Instant::now();
        for turn in 0.. {
            let Some(request) = listener.next_request(Some(Duration::from_millis(100))).unwrap() else {
                if begin.elapsed() > Duration::from_millis(500) {
                    break;
                }
                continue;
            };
            match turn % 3 {
                0 => drop(request),
                1 => drop(request.reject(b"no")),
                _ => {
                    if let Ok(qp) = request.init(End::new(&context).qp()) {
                        drop(request.accept(qp, &ConnOptions::new(), MOMENT));
                    }
                }
            }
        }
    });
    // A new connection still works.
    thread::scope(|scope| {
        scope.spawn(|| {
            // Requests of ends that gave up may still be in the queue.
            while let Some(request) = listener.next_request(Some(LIMIT)).unwrap() {
                let Ok(qp) = request.init(End::new(&context).qp()) else { continue };
                if request.accept(qp, &ConnOptions::new(), LIMIT).is_ok() {
                    return;
                }
            }
            panic!("nobody came");
        });
        let _connected = connect(&context, to, End::new(&context).qp(), &ConnOptions::new());
    });
}

#[test]
fn threads_share_a_channel() {
    const IDS: usize = 12;
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let listener = listen(&context);
    let to = listener.local_addr();
    let (send, taken) = std::sync::mpsc::channel();
    let mut ids = HashMap::new();
    thread::scope(|scope| {
        for _ in 0..3 {
            let (channel, send) = (channel.clone(), send.clone());
            scope.spawn(move || {
                while let Some(event) = channel.next_event(Some(Duration::from_millis(300))).unwrap() {
                    send.send(event).unwrap();
                }
            });
        }
        drop(send);
        for number in 0..IDS {
            let id = channel.create_id::<Rc>().unwrap();
            id.resolve_addr(None, to, LIMIT).unwrap();
            // Some identifiers are dropped at once, together with their events.
            if number % 3 != 0 {
                ids.insert(id.key(), id);
            }
        }
        let mut seen = HashMap::new();
        for event in taken {
            assert!(matches!(event.kind, EventKind::AddrResolved), "{event:?}");
            *seen.entry(event.id).or_insert(0) += 1;
        }
        for key in ids.keys() {
            assert_eq!(seen.get(key), Some(&1), "{key}");
        }
    });
}

#[test]
fn listeners_and_connections_fit_event_loops() {
    let Some(context) = device() else { return };
    let listener: Listener = Listener::bind(&context, any_port(address(&context)), &ListenOptions::new()).unwrap();
    thread::scope(|scope| {
        let client =
            scope.spawn(|| connect(&context, listener.local_addr(), End::new(&context).qp(), &ConnOptions::new()));
        assert_eq!(poll(listener.as_fd()), 1);
        let (passive, _b_qp) = accept(&listener, End::new(&context).qp(), &ConnOptions::new());
        let (active, _a_qp) = client.join().unwrap();
        assert!(active.try_next_event().unwrap().is_none());
        drop(passive);
        assert_eq!(poll(active.as_fd()), 1);
        let mut last = None;
        while let Some(event) = active.try_next_event().unwrap() {
            last = Some(event);
        }
        assert!(last.is_some_and(|event| matches!(event.kind, EventKind::Disconnected)));
        assert!(active.wait_disconnected(Some(Duration::ZERO)).unwrap());
    });
}

#[test]
fn who_writes_to_a_channels_descriptor_commands_nobody() {
    use std::io::Write;
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let listener = listening(&channel, &context);
    // Safe functions lend descriptors, so safe code can write to them. A write to librdmacm's own
    // descriptor could be a command to store an event at an address of the writer's choice.
    let mut fd = std::fs::File::from(channel.as_fd().try_clone_to_owned().unwrap());
    let mut command = vec![12, 0, 0, 0, 8, 0, 0x58, 1];
    command.extend(8_u64.to_ne_bytes());
    assert!(fd.write_all(&command).is_err());
    assert!(channel.try_next_event().unwrap().is_none());
    let to = listener.local_addr().unwrap();
    let id = resolved(&channel, to);
    assert_eq!(id.peer_addr(), Some(to));
}

#[test]
fn edge_triggered_epoll_misses_no_event() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    // SAFETY: epoll_create1 has no requirement on memory.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    // SAFETY: from_raw_fd requires an open descriptor without another owner: epoll_create1 has just
    // returned it, and the assertion has excluded an error.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    let mut interest = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: epoll_ctl requires an event that lives during the call: `interest` is a local.
    let added =
        unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, channel.as_raw_fd(), &raw mut interest) };
    assert_eq!(added, 0);
    // Waits until the descriptor is readable, then takes every event.
    let wait = || {
        let mut slot = libc::epoll_event { events: 0, u64: 0 };
        let limit = i32::try_from(LIMIT.as_millis()).unwrap();
        // SAFETY: epoll_wait requires space for as many events as its count says: `slot` is one
        // local event, and the count is 1.
        assert_eq!(unsafe { libc::epoll_wait(epoll.as_raw_fd(), &raw mut slot, 1, limit) }, 1, "no edge in time");
        std::iter::from_fn(|| channel.try_next_event().unwrap()).collect::<Vec<_>>()
    };
    let listener = listen(&context);
    for _ in 0..20 {
        let ids: Vec<_> = (0..3).map(|_| channel.create_id::<Rc>().unwrap()).collect();
        for id in &ids {
            id.resolve_addr(None, listener.local_addr(), LIMIT).unwrap();
        }
        let mut resolved = 0;
        while resolved < ids.len() {
            for event in wait() {
                assert!(matches!(event.kind, EventKind::AddrResolved), "{event:?}");
                resolved += 1;
            }
        }
    }
}

#[test]
fn ids_cross_each_other_between_channels_that_threads_take_from() {
    const TURNS: usize = 100;
    let Some(context) = device() else { return };
    let listener = listen(&context);
    let channels = [EventChannel::of(&context).unwrap(), EventChannel::of(&context).unwrap()];
    let ended = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let takers = channels.each_ref().map(|channel| {
            let ended = &ended;
            scope.spawn(move || {
                let mut count = 0;
                while !ended.load(std::sync::atomic::Ordering::Acquire) {
                    count += usize::from(channel.next_event(Some(Duration::from_millis(5))).unwrap().is_some());
                }
                count + std::iter::from_fn(|| channel.try_next_event().unwrap()).count()
            })
        });
        // Two threads move identifiers between the channels in opposite directions.
        let movers = [0, 1].map(|first| {
            let (channels, to) = (&channels, listener.local_addr());
            scope.spawn(move || {
                for turn in 0..TURNS {
                    let mut id = channels[(first + turn) % 2].create_id::<Rc>().unwrap();
                    id.resolve_addr(None, to, LIMIT).unwrap();
                    for step in 1..4 {
                        id.migrate(&channels[(first + turn + step) % 2]).unwrap();
                        assert_eq!(id.peer_addr(), Some(to));
                    }
                    let patience = Instant::now() + LIMIT;
                    while id.resolve_route(LIMIT).is_err() {
                        assert!(Instant::now() < patience, "the address is not resolved");
                        thread::yield_now();
                    }
                }
            })
        });
        for mover in movers {
            mover.join().unwrap();
        }
        ended.store(true, std::sync::atomic::Ordering::Release);
        let taken: usize = takers.map(|taker| taker.join().unwrap()).into_iter().sum();
        // The event of the address is taken before the route is requested; the event of the route
        // may be dropped with its identifier.
        assert!((2 * TURNS..=4 * TURNS).contains(&taken), "{taken}");
    });
}
