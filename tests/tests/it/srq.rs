//! Shared receive queues: many queue pairs, several completion queues, one queue of receives.

use rdma::op;
use rdma::transport::Rc;
use rdma::{
    AsyncEventKind, CompletionQueue, Context, ErrorKind, EventSource, InitOptions, InitializedQueuePair, Opened,
    Poller, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
use rdma_tests::{LIMIT, MANAGED, all_rights, buffer, open, pattern, skip, wait};

const LEN: usize = 6000;
/// The depth to which the servers' queue can be resized.
const MOST: u32 = 24;

/// A server whose queue pairs share their receives, and the clients that are connected to it.
struct Server {
    context: Context,
    pd: ProtectionDomain,
    receives: SharedReceiveQueue,
    /// The server's queue pairs, on two completion queues in turns.
    ends: Vec<QueuePair<Rc>>,
    pollers: [Poller; 2],
    clients: Vec<QueuePair<Rc>>,
    sent: Poller,
}

impl Server {
    /// `None`, and the test is skipped, if the device lacks what the test needs.
    fn new(clients: usize, depth: u32) -> Option<Self> {
        let Opened { context, port, .. } = open();
        if !context.capabilities().manual_connect {
            skip(MANAGED);
            return None;
        }
        if context.device_attr().max_srq() == 0 {
            skip("the device has no shared receive queues");
            return None;
        }
        let pd = context.alloc_pd().unwrap();
        let receives = SharedReceiveQueue::builder(&pd).max_wr(depth).resizable_to(MOST).build().unwrap();
        let queues = [(); 2].map(|()| context.create_cq(1024).unwrap());
        let client_queue = context.create_cq(1024).unwrap();
        let options = InitOptions::new().port(port).remote_access(all_rights());
        let init = |cq: &CompletionQueue, shared: bool| -> InitializedQueuePair<Rc> {
            let builder = QueuePair::builder(&pd).cq(cq);
            let builder = if shared { builder.shared_receives(&receives) } else { builder };
            builder.build().unwrap().init(&options).unwrap()
        };
        let connect = |at: usize| {
            let (ours, theirs) = (init(&queues[at % 2], true), init(&client_queue, false));
            rdma_testkit::join(ours, theirs).unwrap()
        };
        let (ends, clients) = (0..clients).map(connect).unzip();
        let (pollers, sent) = (queues.map(|queue| queue.poller()), client_queue.poller());
        Some(Self { context, pd, receives, ends, pollers, clients, sent })
    }

    fn post(&mut self, token: u64) {
        self.receives.post_recv(self.pd.allocate(LEN).unwrap(), token).unwrap();
    }

    fn send(&mut self, client: usize, seed: u8) {
        let message = buffer(&self.pd, &pattern(LEN, seed));
        self.clients[client].post_send(op::send(message).token(seed.into())).unwrap();
    }

    /// Waits for a message to a queue pair of one of the completion queues. Returns the client, the
    /// token of the receive, and the message.
    fn receive(&mut self, queue: usize) -> (usize, u64, Vec<u8>) {
        let mut completion = self.pollers[queue].wait(Some(LIMIT)).unwrap().expect("a message in time");
        completion.status().unwrap();
        let (qpn, token, len) = (completion.qpn(), completion.token(), completion.byte_len());
        let message = completion.take_buffer().expect("the buffer of the receive")[..len].to_vec();
        (self.ends.iter().position(|end| end.qpn() == qpn).unwrap(), token, message)
    }
}

#[test]
fn messages_of_many_clients_take_receives_of_one_queue() {
    const CLIENTS: usize = 6;
    let Some(mut server) = Server::new(CLIENTS, 16) else { return };
    (0..16).for_each(|token| server.post(token));
    let mut counts = [0_u8; CLIENTS];
    for round in 0..60_u8 {
        let client = usize::from(round) * 7 % CLIENTS;
        server.send(client, round);
        let (from, token, message) = server.receive(client % 2);
        assert_eq!((from, message == pattern(LEN, round)), (client, true), "message {round}");
        assert_eq!(wait(&mut server.sent).status, Ok(()));
        counts[client] += 1;
        server.post(token);
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let stats = server.receives.stats();
    assert_eq!((stats.posted, stats.received, stats.in_flight, stats.refused), (76, 60, 16, 0));
    assert!(stats.most_in_flight <= 16, "{stats:?}");
}

#[test]
fn messages_at_the_same_time_do_not_share_a_receive() {
    let Some(mut server) = Server::new(4, 16) else { return };
    (0..8).for_each(|token| server.post(token));
    for client in 0..4 {
        server.send(client, u8::try_from(client).unwrap());
        server.send(client, u8::try_from(client + 10).unwrap());
    }
    let mut tokens = Vec::new();
    for at in 0..8 {
        let (client, token, message) = server.receive(at % 2);
        let seed = u8::try_from(client).unwrap();
        assert!(message == pattern(LEN, seed) || message == pattern(LEN, seed + 10), "a message of client {client}");
        tokens.push(token);
        assert_eq!(wait(&mut server.sent).status, Ok(()));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, Vec::from_iter(0..8));
}

#[test]
fn a_message_waits_for_a_receive() {
    let Some(mut server) = Server::new(1, 4) else { return };
    server.send(0, 1);
    server.post(5);
    let (_, token, message) = server.receive(0);
    assert!(token == 5 && message == pattern(LEN, 1));
    assert_eq!(wait(&mut server.sent).status, Ok(()));
}

#[test]
fn writes_with_an_immediate_take_receives_too() {
    let Some(mut server) = Server::new(1, 4) else { return };
    let target = server.pd.allocate_exposed(8, all_rights()).unwrap();
    server.post(5);
    let source = buffer(&server.pd, &[7; 8]);
    server.clients[0].post_send(op::write_imm(source, target.remote(..).unwrap(), 9)).unwrap();
    let done = wait(&mut server.pollers[0]);
    assert_eq!((done.status, done.token, done.imm), (Ok(()), 5, Some(9)));
    let mut bytes = [0; 8];
    target.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8]);
}

#[test]
fn a_queue_in_use_is_resized() {
    let Some(mut server) = Server::new(2, 4) else { return };
    let depth = server.receives.depth();
    server.post(0);
    assert_eq!(server.receives.resize(16 * depth).unwrap_err().kind(), ErrorKind::InvalidInput);
    match server.receives.resize(MOST) {
        Err(error) if error.kind() == ErrorKind::NotSupported => {
            return skip("the device cannot resize a shared receive queue");
        }
        resized => resized.unwrap(),
    }
    assert!((MOST..=2 * MOST).contains(&server.receives.depth()));
    (1..u64::from(MOST)).for_each(|token| server.post(token));
    for round in 0..u8::try_from(MOST).unwrap() {
        let client = usize::from(round) % 2;
        server.send(client, round);
        let (from, token, message) = server.receive(client);
        assert_eq!((from, token, message == pattern(LEN, round)), (client, round.into(), true));
        assert_eq!(wait(&mut server.sent).status, Ok(()));
    }
    server.receives.resize(2).unwrap();
    server.post(1);
    server.send(0, 1);
    assert_eq!(server.receive(0).1, 1);
}

#[test]
fn the_limit_event_comes_once() {
    let Some(mut server) = Server::new(1, 8) else { return };
    (0..4).for_each(|token| server.post(token));
    server.receives.arm_limit(3).unwrap();
    for seed in 0..3 {
        server.send(0, seed);
        server.receive(0);
    }
    let mut reached = 0;
    let limit = EventSource::SharedReceiveQueue(server.receives.id());
    while let Some(event) = server.context.next_event(Some(LIMIT / 30)).unwrap() {
        if event.kind == AsyncEventKind::SRQ_LIMIT_REACHED {
            assert_eq!(event.source, limit);
            reached += 1;
        }
    }
    assert_eq!(reached, 1);
}

#[test]
fn a_client_that_fails_leaves_the_receives_to_the_others() {
    let Some(mut server) = Server::new(2, 8) else { return };
    (0..4).for_each(|token| server.post(token));
    server.ends[0].set_error().unwrap();
    server.send(1, 3);
    let (client, _, message) = server.receive(1);
    assert!(client == 1 && message == pattern(LEN, 3));
    let failed = server.ends.remove(0);
    drop(failed);
    drop(server.receives);
    // The other queue pair keeps the queue.
    let message = buffer(&server.pd, &pattern(LEN, 4));
    server.clients[1].post_send(op::send(message)).unwrap();
    assert_eq!(wait(&mut server.pollers[1]).status, Ok(()));
}
