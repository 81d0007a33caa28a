//! Datagrams and multicast groups by the connection manager, on a device.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use rdma::cm::blocking::{self, ListenOptions, Listener};
use rdma::cm::{EventChannel, EventKind, Membership, UdOptions};
use rdma::op;
use rdma::transport::Ud;
use rdma::{CompletionQueue, Context, ErrorKind, Grh, PreparedQueuePair, ProtectionDomain, QueuePair, TransportType};
use rdma_tests::cm::{MOMENT, address, address6, any_port, available};
use rdma_tests::{LIMIT, buffer, open, skip, wait};

/// The open device, if it has datagrams and a connection manager.
fn device() -> Option<Context> {
    let context = open().context;
    if context.device().transport() == TransportType::IWARP {
        skip("iWARP has no datagrams");
        return None;
    }
    available(&context).then_some(context)
}

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl End {
    fn new(context: &Context) -> Self {
        Self { pd: context.alloc_pd().unwrap(), cq: context.create_cq(64).unwrap() }
    }

    fn qp(&self) -> PreparedQueuePair<Ud> {
        QueuePair::datagram(&self.pd).cq(&self.cq).build().unwrap()
    }

    fn room(&self) -> rdma::Buffer {
        self.pd.allocate(Grh::LEN + 64).unwrap()
    }

    /// Waits for a datagram.
    fn receive(&self) -> Vec<u8> {
        let done = wait(&mut self.cq.poller());
        assert_eq!(done.status, Ok(()));
        let len = done.byte_len;
        done.buffer()[Grh::LEN..len].to_vec()
    }
}

fn listen(context: &Context, at: IpAddr) -> Listener<Ud> {
    Listener::bind(context, any_port(at), &ListenOptions::new()).unwrap()
}

#[test]
fn a_listener_says_where_to_send() {
    let Some(context) = device() else { return };
    for at in [Some(address(&context)), address6(&context)].into_iter().flatten() {
        let listener = listen(&context, at);
        let to = listener.local_addr();
        let server = End::new(&context);
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
                assert!(request.private_data().starts_with(b"where to?"), "{request:?}");
                assert_eq!(request.peer_addr().map(|peer| peer.ip()), Some(at));
                let mut qp = request.init(server.qp()).unwrap();
                qp.post_recv(server.room(), 1).unwrap();
                let qp = qp.ready().unwrap();
                request.accept(&qp, &UdOptions::new().private_data(b"here")).unwrap();
                assert_eq!(server.receive(), b"hello");
                qp
            });
            let client = End::new(&context);
            let route = blocking::resolve::<Ud>(&context, None, to, LIMIT).unwrap();
            let mut qp = route.init(client.qp()).unwrap().ready().unwrap();
            assert_eq!(route.id().qkey().unwrap(), qp.endpoint().unwrap().qkey);
            let (_id, peer) = route.connect(&UdOptions::new().private_data(b"where to?"), LIMIT).unwrap();
            assert!(peer.private_data.starts_with(b"here"));
            assert_eq!(peer.qkey, qp.endpoint().unwrap().qkey);
            let to = client.pd.create_ah(&peer.path).unwrap();
            qp.post_send(op::send(buffer(&client.pd, b"hello")).to(&to, peer.qpn, peer.qkey)).unwrap();
            assert_eq!(wait(&mut client.cq.poller()).status, Ok(()));
            let serving = serving.join().unwrap();
            assert_eq!(serving.qpn(), peer.qpn);
        });
    }
}

#[test]
fn nobody_is_told_apart_from_no() {
    let Some(context) = device() else { return };
    let listener = listen(&context, address(&context));
    let to = listener.local_addr();
    let ask = || blocking::resolve::<Ud>(&context, None, to, LIMIT).unwrap().connect(&UdOptions::new(), LIMIT);
    thread::scope(|scope| {
        scope.spawn(|| listener.next_request(Some(LIMIT)).unwrap().unwrap().reject(b"not you").unwrap());
        let failed = ask().unwrap_err();
        assert!(matches!(failed.error.kind(), ErrorKind::Rejected(_)), "{failed}");
        assert!(failed.private_data.starts_with(b"not you"), "{failed:?}");
    });
    drop(listener);
    let failed = ask().unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotListening, "{failed}");
    // Datagrams and connections have separate port spaces.
    let stream = rdma_tests::cm::listen(&context).local_addr();
    let route = blocking::resolve::<Ud>(&context, None, stream, LIMIT).unwrap();
    let failed = route.connect(&UdOptions::new(), LIMIT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotListening, "{failed}");
    let long = UdOptions::new().private_data(&[0; 181]);
    let failed = blocking::resolve::<Ud>(&context, None, to, LIMIT).unwrap().connect(&long, LIMIT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::TooLong);
}

#[test]
fn a_group_hears_its_members() {
    let Some(context) = device() else { return };
    let local = any_port(address(&context));
    // Several runs may be active at the same time, so each has a group of its own.
    let number = std::process::id().to_be_bytes();
    let group = SocketAddr::new([239, 1, number[2], number[3]].into(), 0);
    let joined: Vec<_> =
        (0..2).map(|_| blocking::join(&context, local, group, Membership::Full, LIMIT).unwrap()).collect();
    assert_eq!(joined[0].group().address, Some(group));
    assert_eq!(joined[0].group().gid, joined[1].group().gid);
    assert!(joined[0].group().gid.is_multicast());
    let ends: Vec<_> = joined
        .iter()
        .map(|joined| {
            let end = End::new(&context);
            let mut qp = joined.id().init(end.qp()).unwrap();
            qp.post_recv(end.room(), 1).unwrap();
            let attached = qp.attach_multicast(joined.group().gid, joined.group().lid).unwrap();
            (end, qp.ready().unwrap(), attached)
        })
        .collect();
    // The sending queue pair is no member of the group.
    let sender = End::new(&context);
    let mut qp = joined[0].id().init(sender.qp()).unwrap().ready().unwrap();
    let to = sender.pd.create_ah(&joined[0].group().path).unwrap();
    let say = op::send(buffer(&sender.pd, b"all of you")).to(&to, rdma::MULTICAST_QPN, joined[0].group().qkey);
    qp.post_send(say).unwrap();
    assert_eq!(wait(&mut sender.cq.poller()).status, Ok(()));
    for (end, _, _) in &ends {
        assert_eq!(end.receive(), b"all of you");
    }
    drop(ends);
    for joined in joined {
        joined.leave().unwrap();
    }
}

#[test]
fn groups_are_joined_and_left_in_any_order() {
    let Some(context) = device() else { return };
    let channel = EventChannel::of(&context).unwrap();
    let id = channel.create_id::<Ud>().unwrap();
    let group = |last| SocketAddr::new([239, 2, 3, last].into(), 0);
    assert!(id.join_multicast(group(1), Membership::Full).is_err(), "bound to no device");
    id.bind_addr(any_port(address(&context))).unwrap();
    assert_eq!(id.leave_multicast(group(1)).unwrap_err().kind(), ErrorKind::NotFound);
    for last in 1..4 {
        id.join_multicast(group(last), Membership::Full).unwrap();
    }
    // Leaves one group before the event of its join.
    id.leave_multicast(group(3)).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let event = channel.next_event(Some(LIMIT)).unwrap().expect("two were joined");
        match event.kind {
            EventKind::MulticastJoined(joined) => seen.push(joined.address),
            other => panic!("{other:?}"),
        }
    }
    seen.sort();
    assert_eq!(seen, [Some(group(1)), Some(group(2))]);
    id.leave_multicast(group(2)).unwrap();
    assert_eq!(id.leave_multicast(group(2)).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(channel.next_event(Some(MOMENT)).unwrap().is_none());
    // Destroying the identifier leaves the last group, whichever channel the identifier is on.
    let mut id = id;
    id.migrate(&EventChannel::of(&context).unwrap()).unwrap();
    drop(id);
    assert!(channel.next_event(Some(Duration::from_millis(1))).unwrap().is_none());
}
