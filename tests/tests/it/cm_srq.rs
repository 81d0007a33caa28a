//! Connections of the connection manager whose receives come from a shared queue.

use std::thread;

use rdma::cm::blocking::Connection;
use rdma::cm::{ConnOptions, EventChannel, EventKind, Id};
use rdma::op;
use rdma::transport::Rc;
use rdma::{Context, PreparedQueuePair, QueuePair, RemoteAccess, SharedReceiveQueue};
use rdma_tests::cm::{End, address, any_port, available, connect, listen};
use rdma_tests::{LIMIT, buffer, open, pattern, skip, wait};

const LEN: usize = 3000;
const CLIENTS: u8 = 2;

/// The objects of a side whose queue pairs share their receives.
struct Server {
    end: End,
    receives: SharedReceiveQueue,
}

impl Server {
    /// `None`, and the test is skipped, if the device lacks what the test needs.
    fn new(context: &Context) -> Option<Self> {
        if !available(context) {
            return None;
        }
        if context.device_attr().max_srq() == 0 {
            skip("the device has no shared receive queues");
            return None;
        }
        let pd = context.alloc_pd().unwrap();
        let end = End { cq: context.create_cq(512).unwrap(), pd };
        let receives = SharedReceiveQueue::builder(&end.pd).max_wr(16).build().unwrap();
        let mut server = Self { end, receives };
        (0..8).for_each(|token| server.post(token));
        Some(server)
    }

    fn post(&mut self, token: u64) {
        self.receives.post_recv(self.end.pd.allocate(LEN).unwrap(), token).unwrap();
    }

    fn qp(&self) -> PreparedQueuePair<Rc> {
        QueuePair::builder(&self.end.pd).cq(&self.end.cq).shared_receives(&self.receives).build().unwrap()
    }

    /// Waits for the message of a client; checks that it came to this queue pair.
    fn receive(&mut self, qpn: u32, seed: u8) {
        let mut poller = self.end.cq.poller();
        let mut completion = poller.wait(Some(LIMIT)).unwrap().expect("a message in time");
        completion.status().unwrap();
        assert_eq!((completion.qpn(), completion.byte_len()), (qpn, LEN));
        assert!(completion.take_buffer().unwrap()[..] == pattern(LEN, seed));
    }
}

#[test]
fn connections_to_a_listener_share_their_receives() {
    let context = open().context;
    let Some(mut server) = Server::new(&context) else { return };
    let listener = listen(&context);
    let to = listener.local_addr();
    let client_end = End::new(&context);
    let mut pairs: Vec<[(Connection, QueuePair<Rc>); 2]> = Vec::new();
    for _ in 0..CLIENTS {
        let (ours, theirs) = (server.qp(), client_end.qp());
        let pair = thread::scope(|scope| {
            let passive = scope.spawn(|| {
                let request = listener.next_request(Some(LIMIT)).unwrap().expect("a request");
                assert!(!request.parameters().srq, "the client has receives of its own");
                let qp = request.init(ours).unwrap();
                request.accept(qp, &ConnOptions::new(), LIMIT).unwrap()
            });
            let active = connect(&context, to, theirs, &ConnOptions::new());
            [active, passive.join().expect("the passive end")]
        });
        pairs.push(pair);
    }
    let mut sent = client_end.cq.poller();
    for seed in 0..3 * CLIENTS {
        let [(_, client), (_, passive)] = &mut pairs[usize::from(seed % CLIENTS)];
        client.post_send(op::send(buffer(&client_end.pd, &pattern(LEN, seed)))).unwrap();
        assert_eq!(wait(&mut sent).status, Ok(()));
        server.receive(passive.qpn(), seed);
        server.post(seed.into());
    }
    // The others go on when one connection ends.
    let [(connection, client), (_, ended)] = pairs.swap_remove(0);
    connection.disconnect(&client).unwrap();
    drop((connection, client, ended));
    let [(_, client), (_, passive)] = &mut pairs[0];
    client.post_send(op::send(buffer(&client_end.pd, &pattern(LEN, 99)))).unwrap();
    assert_eq!(wait(&mut sent).status, Ok(()));
    server.receive(passive.qpn(), 99);
}

/// Takes the next event of an id.
fn next_of(channel: &EventChannel, id: &Id<Rc>) -> EventKind {
    let event = channel.next_event(Some(LIMIT)).unwrap().expect("an event in time");
    assert_eq!(event.id, id.key(), "{event:?}");
    event.kind
}

#[test]
fn an_event_loop_connects_queue_pairs_that_share_receives() {
    let context = open().context;
    let (Some(mut passive_end), Some(active_end)) = (Server::new(&context), Server::new(&context)) else { return };
    let (channel, passive_channel) = (EventChannel::of(&context).unwrap(), EventChannel::of(&context).unwrap());
    let listener = passive_channel.create_id::<Rc>().unwrap();
    listener.bind_addr(any_port(address(&context))).unwrap();
    listener.listen(4).unwrap();

    let id = channel.create_id::<Rc>().unwrap();
    id.resolve_addr(None, listener.local_addr().unwrap(), LIMIT).unwrap();
    assert!(matches!(next_of(&channel, &id), EventKind::AddrResolved));
    id.resolve_route(LIMIT).unwrap();
    assert!(matches!(next_of(&channel, &id), EventKind::RouteResolved));
    let access = RemoteAccess::READ | RemoteAccess::WRITE;
    let qp = id.init(active_end.qp(), access).unwrap();
    id.connect(&qp, &ConnOptions::new()).unwrap();

    let EventKind::ConnectRequest(request) = next_of(&passive_channel, &listener) else { panic!("no request") };
    // iWARP's messages do not carry this.
    let is_told = context.capabilities().manual_connect;
    assert_eq!(request.parameters().srq, is_told);
    let passive_qp = request.init(passive_end.qp(), access).unwrap();
    let (passive_id, passive_qp) = request.accept(passive_qp, &ConnOptions::new()).unwrap();
    let mut active = match next_of(&channel, &id) {
        EventKind::ConnectResponse(accepted) | EventKind::Established(accepted) => {
            assert_eq!(accepted.parameters.srq, is_told);
            id.establish(qp, &ConnOptions::new()).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert!(matches!(next_of(&passive_channel, &passive_id), EventKind::Established(_)));
    active.post_send(op::send(buffer(&active_end.end.pd, &pattern(LEN, 7)))).unwrap();
    assert_eq!(wait(&mut active_end.end.cq.poller()).status, Ok(()));
    passive_end.receive(passive_qp.qpn(), 7);
    id.disconnect(&active).unwrap();
    assert!(matches!(next_of(&passive_channel, &passive_id), EventKind::Disconnected));
}
