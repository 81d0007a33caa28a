use super::super::Receives;
use super::*;

#[test]
fn identities_survive_the_wire_and_its_filling() {
    let identity = Identity::new(u64::MAX - 3, 7, 2);
    let mut bytes = identity.to_text().into_bytes();
    assert_eq!(Identity::from_bytes(&bytes), Some(identity));
    bytes.resize(56, 0);
    assert_eq!(Identity::from_bytes(&bytes), Some(identity));
    for other in [&b"rdma-cm1 7 1 2"[..], b"rdma-cm2 7 1", b"rdma-cm2 x 1 2", b"rdma-cm2", b"\xff", b""] {
        assert_eq!(Identity::from_bytes(other), None);
    }
}

fn adapter() -> Adapter {
    crate::testing::soft0()
}

fn how(ip: IpAddr) -> How {
    let (access, min_rnr_timer) = (rdma::RemoteAccess::WRITE, rdma::RnrTimer::DEFAULT);
    How { method: super::super::Method::Manager(ip), access, mtu: None, min_rnr_timer }
}

fn unconnected(adapter: &Adapter, peer: usize) -> Unconnected {
    let pd = adapter.context.alloc_pd().unwrap();
    let cq = adapter.context.create_cq(64).unwrap();
    let qp = QueuePair::builder(&pd).cq(&cq).build().unwrap();
    Unconnected { peer, qp, receives: Receives { rooms: Vec::new(), token: 0 } }
}

fn drop_text(_: &str) {}

fn work<'a>(adapter: &'a Adapter, how: &'a How, rank: usize, job: u64) -> Work<'a> {
    let deadline = Instant::now() + Duration::from_secs(30);
    Work { adapter, how, rank, job, watch: Watch::new(), notice: drop_text, deadline, failed: OnceLock::new() }
}

/// Rank 0 expects rank 1 of job 5, and first gets calls of others.
#[test]
fn strangers_are_rejected_and_told_why() {
    let adapter = adapter();
    let ip = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let how = how(ip);
    let listener: Listener = Listener::bind(&adapter.context, SocketAddr::new(ip, 0), &ListenOptions::new()).unwrap();
    let (source, target) = (SocketAddr::new(ip, 0), listener.local_addr());
    std::thread::scope(|scope| {
        let zero = work(&adapter, &how, 0, 5);
        let answering = scope.spawn({
            let adapter = &adapter;
            move || zero.answer(Some(&listener), vec![unconnected(adapter, 1)])
        });
        let call = |rank, job, to| work(&adapter, &how, rank, job).call(source, target, unconnected(&adapter, to));
        for (rank, job, to, why) in
            [(1, 6, 0, "belongs to another job"), (2, 5, 0, "is not expected here"), (1, 5, 3, "is not expected here")]
        {
            let failure = call(rank, job, to).unwrap_err().to_string();
            assert!(failure.contains(why), "{why:?} is not in {failure}");
        }
        // This caller sends private data without an identity.
        let route = blocking::resolve::<Rc>(&adapter.context, Some(source), target, STEP).unwrap();
        let Unconnected { qp, receives, .. } = unconnected(&adapter, 0);
        let options = ConnOptions::new().private_data(b"let me in");
        let connected = End::Active(route).connect(qp, receives, how.access, (&options, STEP));
        let failure = connected.unwrap_err().to_string();
        assert!(failure.contains("does not speak our protocol"), "{failure}");
        let called = call(1, 5, 0).unwrap();
        let answered = answering.join().unwrap().unwrap();
        assert_eq!((called.peer, called.is_active), (0, true));
        assert_eq!((answered.len(), answered[0].peer, answered[0].is_active), (1, 1, false));
    });
}

/// The caller's settings hold at both sides.
#[test]
fn the_settings_become_attributes_of_the_queue_pairs() {
    let mut adapter = adapter();
    let timeout = rdma::AckTimeout::from_code(17).unwrap();
    adapter.path = rdma::PathOptions::new().traffic_class(106).service_level(5).ack_timeout(timeout).retry_count(3);
    let ip = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let how = how(ip);
    let listener: Listener = Listener::bind(&adapter.context, SocketAddr::new(ip, 0), &ListenOptions::new()).unwrap();
    let (source, target) = (SocketAddr::new(ip, 0), listener.local_addr());
    let ends = std::thread::scope(|scope| {
        let zero = work(&adapter, &how, 0, 5);
        let adapter = &adapter;
        let answering = scope.spawn(move || zero.answer(Some(&listener), vec![unconnected(adapter, 1)]));
        let called = work(adapter, &how, 1, 5).call(source, target, unconnected(adapter, 0)).unwrap();
        [called, answering.join().unwrap().unwrap().remove(0)]
    });
    for end in ends {
        let info = end.qp.query().unwrap();
        let attr = info.as_raw();
        assert_eq!((attr.timeout, attr.retry_cnt, attr.ah_attr.grh.traffic_class), (17, 3, 106));
        assert_eq!((attr.ah_attr.sl, attr.rnr_retry), (5, 7));
    }
}

/// A call fails unless the called rank itself answers.
#[test]
fn an_answer_of_somebody_else_is_refused() {
    let adapter = adapter();
    let ip = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    let how = how(ip);
    let listener: Listener = Listener::bind(&adapter.context, SocketAddr::new(ip, 0), &ListenOptions::new()).unwrap();
    let target = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.next_request(Some(STEP)).unwrap().unwrap();
            let qp = request.init(unconnected(&adapter, 0).qp).unwrap();
            // Errors are ignored: the caller may have gone already.
            drop(request.accept(qp, &ConnOptions::new().private_data(b"yes?"), STEP));
        });
        let called = work(&adapter, &how, 1, 5).call(SocketAddr::new(ip, 0), target, unconnected(&adapter, 0));
        assert!(called.unwrap_err().to_string().contains("somebody else"));
    });
}
