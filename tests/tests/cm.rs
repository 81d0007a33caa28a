//! The connection manager on a device.

use rdma::cm::ConnOptions;
use rdma::op::Send;
use rdma::{ErrorKind, PreparedQueuePair, ProtectionDomain, QueuePair, Rc};
use rdma_tests::cm::{accept, available, connect, listen};
use rdma_tests::{LIMIT, buffer, open, wait};

struct End {
    pd: ProtectionDomain,
    cq: rdma::CompletionQueue,
}

impl End {
    fn new(context: &rdma::Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        Self { cq: context.create_cq(64).unwrap(), pd }
    }

    fn qp(&self) -> PreparedQueuePair<Rc> {
        QueuePair::builder(&self.pd).cq(&self.cq).build().unwrap()
    }
}

#[test]
fn two_ends_connect_and_talk() {
    let opened = open();
    let context = &opened.context;
    if !available(context) {
        return;
    }
    let listener = listen(context);
    let to = listener.local_addr();
    assert_ne!(to.port(), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = End::new(context);
            let request = listener.next_request(Some(LIMIT)).unwrap().unwrap();
            assert!(request.private_data().starts_with(b"hello"), "{:?}", request);
            let mut qp = request.init(end.qp()).unwrap();
            qp.post_recv(end.pd.allocate(64).unwrap(), 1).unwrap();
            let (connection, mut qp) = request.accept(qp, &ConnOptions::new().private_data(b"welcome"), LIMIT).unwrap();
            let done = wait(&mut end.cq.poller());
            assert_eq!((done.status, done.token, done.byte_len), (Ok(()), 1, 4));
            qp.post_send(Send::new(buffer(&end.pd, b"pong"))).unwrap();
            assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
        });
        let end = End::new(context);
        let route = rdma::cm::blocking::resolve(context, None, to, LIMIT).unwrap();
        assert_eq!(route.peer_addr(), Some(to));
        let mut qp = route.init(end.qp()).unwrap();
        qp.post_recv(end.pd.allocate(64).unwrap(), 2).unwrap();
        let (connection, mut qp) = route.connect(qp, &ConnOptions::new().private_data(b"hello"), LIMIT).unwrap();
        assert!(connection.private_data().starts_with(b"welcome"), "{:?}", connection);
        qp.post_send(Send::new(buffer(&end.pd, b"ping")).token(3)).unwrap();
        let mut poller = end.cq.poller();
        let mut tokens = [wait(&mut poller), wait(&mut poller)].map(|done| (done.status, done.token));
        tokens.sort_by_key(|&(_, token)| token);
        assert_eq!(tokens, [(Ok(()), 2), (Ok(()), 3)]);
        connection.disconnect(&qp).unwrap();
        assert!(connection.wait_disconnected(Some(LIMIT)).unwrap());
    });
}

#[test]
fn nobody_listens() {
    let opened = open();
    let context = &opened.context;
    if !available(context) {
        return;
    }
    let to = listen(context).local_addr();
    let end = End::new(context);
    let route = rdma::cm::blocking::resolve(context, None, to, LIMIT).unwrap();
    let qp = route.init(end.qp()).unwrap();
    let failed = route.connect(qp, &ConnOptions::new(), LIMIT).unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::NotListening, "{failed}");
    // The queue pair can be used again.
    let qp = failed.qp.reset().unwrap();
    let listener = listen(context);
    std::thread::scope(|scope| {
        scope.spawn(|| accept(&listener, End::new(context).qp(), &ConnOptions::new()));
        let _connected = connect(context, listener.local_addr(), qp, &ConnOptions::new());
    });
}
