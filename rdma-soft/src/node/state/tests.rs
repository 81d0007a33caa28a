use super::*;
use crate::engine::{Address, Gid, Grh, Network, Op, Path, Route, SendData, SendFlags, SendRequest};
use crate::engine::{EngineConfig, Gather, ModifyQp, Outbound, PdId, QpInit, QpState, ServiceType};
use crate::link::duplex::Duplex;
use crate::link::memory::{Memory, Side};

/// A state with `count` links, and the other sides of the links.
fn linked(count: usize) -> (State, Vec<Duplex>) {
    let event_loop = Arc::new(EventLoop::new().unwrap());
    let engine = Engine::new(EngineConfig { slot: Slot(7), seed: [1; 2], directory: None, keys_are_secret: false });
    let wait_set = Arc::new(WaitSet::new().unwrap());
    let mut state = State::new(engine, Slot(7), event_loop, wait_set, 4096);
    let peers = (0..count).map(|_| {
        let (memory, _) = Memory::create(8 << 20).unwrap();
        state.add_peer(memory.ends(Side::Acceptor), Peer::on_a_socket().0);
        Duplex::new(memory.ends(Side::Opener), Peer::on_a_socket().0)
    });
    let peers = peers.collect();
    (state, peers)
}

#[test]
fn an_application_that_polls_is_not_rung_whether_or_not_the_agent_gets_a_processor() {
    let (mut state, peers) = linked(1);
    let cq = state.engine.create_cq(1, 1).unwrap();
    assert!(!state.fall_asleep());
    for _ in 0..POLLS_OF_A_POLLER {
        assert!(peers[0].must_ring());
        assert!(!state.fall_asleep());
        assert_eq!(state.poll_cq(cq, &mut [ibv_wc::default()]), Ok(0));
    }
    assert!(!state.fall_asleep());
    for _ in 0..=POLLS_OF_A_POLLER {
        assert_eq!(state.poll_cq(cq, &mut [ibv_wc::default()]), Ok(0));
    }
    assert!(!peers[0].must_ring());
    assert_eq!(state.agent, Agent::Ticking);
    // The agent notices when the polling ends.
    let mut is_woken = false;
    state.event_loop.wait(Some(Duration::from_secs(10)), |_| is_woken = true);
    assert!(!is_woken, "by a descriptor, where only the alarm is set");
}

#[test]
fn a_poll_that_finds_nothing_gives_handled_frames_back() {
    let (mut state, mut peers) = linked(1);
    let cq = state.engine.create_cq(1, 1).unwrap();
    assert!(peers[0].try_push(&Header::default(), &Gather::EMPTY));
    peers[0].flush();
    assert_eq!(state.poll_cq(cq, &mut [ibv_wc::default()]), Ok(0));
    assert!(!peers[0].is_taken(), "small frames are given back later");
    assert_eq!(state.poll_cq(cq, &mut [ibv_wc::default()]), Ok(0));
    assert!(peers[0].is_taken());
}

#[test]
fn who_sends_more_than_can_be_taken_does_not_keep_the_others_out() {
    let (mut state, mut peers) = linked(3);
    // Frames without a meaning take time to handle, too.
    let (header, payload) = (Header::default(), vec![0; 60_000]);
    let frame = [Source::of(&payload)];
    for _ in 0..100 {
        for peer in &mut peers[..2] {
            assert!(peer.try_push(&header, &Gather::of(&frame)));
            peer.flush();
        }
    }
    assert!(peers[2].try_push(&header, &Gather::of(&[])));
    peers[2].flush();
    assert!(state.progress());
    let quiet: Vec<bool> = state.links().map(Link::is_quiet).collect();
    assert_eq!(quiet, [false, false, true]);
}

#[test]
fn a_link_with_much_to_send_does_not_keep_the_others_waiting() {
    let (mut state, peers) = linked(3);
    let engine = &mut state.engine;
    let (pd, cq) = (engine.alloc_pd().unwrap(), engine.create_cq(4096, 1).unwrap());
    let text = [1; 1024];
    for (link, count) in [(0, 4096), (1, 4096), (2, 1)] {
        let slot = Slot(100 + link);
        engine.handle_link_up(PeerId::local(slot), LinkId(u32::from(link)), None);
        let qp = datagrams(engine, pd, cq);
        for _ in 0..count {
            let request = SendRequest {
                wr_id: 1,
                remote_addr: 0,
                compare_add: 0,
                swap: 0,
                rkey: 0,
                imm: 0,
                op: Op::Send,
                flags: SendFlags::empty(),
            };
            let sources = [Source::of(&text)];
            let data = SendData::Inline(&sources);
            engine.post_datagram(qp, &request, data, &address(u32::from(slot.0) << 12 | 2)).unwrap();
        }
    }
    for _ in 0..3 {
        assert!(state.progress());
    }
    assert!(peers.iter().all(|peer| !peer.is_quiet()));
}

/// A UD queue pair that can send.
fn datagrams(engine: &mut Engine, pd: PdId, cq: CqId) -> crate::engine::QpId {
    let init = QpInit {
        service: ServiceType::Ud,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        max_send_wr: 4096,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 1024,
        sq_sig_all: false,
        token: 2,
    };
    let (qp, _) = engine.create_qp(&init).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        engine.modify_qp(qp, &ModifyQp { state: Some(state), ..ModifyQp::default() }).unwrap();
    }
    qp
}

fn address(qpn: u32) -> Address {
    let (source, destination) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    let route = Route { network: Network::Ip, source, destination, traffic_class: 0, flow_label: 0, hop_limit: 1 };
    Address { path: Path { host: Host::LOCAL, grh: Grh::new(&route), group: None, sl: 0, slid: 0 }, qpn, qkey: 0 }
}
