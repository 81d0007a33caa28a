use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::engine::{Address, Gid, Grh, Network, Op, Path, Route, SendData, SendFlags, SendRequest};
use crate::engine::{EngineConfig, Gather, ModifyQp, Outbound, PdId, QpInit, QpState, ServiceType};
use crate::link::duplex::Duplex;
use crate::link::memory::{Memory, Side};
use crate::os::tcp::Tcp;

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
    let (pd, cq) = (state.engine.alloc_pd().unwrap(), state.engine.create_cq(4096, 1).unwrap());
    for (link, count) in [(0, 4096), (1, 4096), (2, 1)] {
        send_datagrams(&mut state, (pd, cq), (link, Host::LOCAL), count);
    }
    for _ in 0..3 {
        assert!(state.progress());
    }
    assert!(peers.iter().all(|peer| !peer.is_quiet()));
}

/// Sends `count` datagrams of a kilobyte on a link that leads to a host.
fn send_datagrams(state: &mut State, (pd, cq): (PdId, CqId), (link, host): (u16, Host), count: u32) {
    let (engine, slot) = (&mut state.engine, Slot(100 + link));
    engine.handle_link_up(PeerId { host, slot }, LinkId(u32::from(link)), None);
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
        let sources = [Source::of(&[1; 1024])];
        let data = SendData::Inline(&sources);
        engine.post_datagram(qp, &request, data, &address(host, u32::from(slot.0) << 12 | 2)).unwrap();
    }
}

/// Adds a link to a process of another host, and returns its number and the other side's socket.
fn add_stream(state: &mut State) -> (LinkId, Tcp) {
    let (stream, theirs) = Stream::on_a_socket(IpAddr::V4(Ipv4Addr::LOCALHOST));
    state.wait_set.watch_socket(&stream, 9, &state.event_loop).unwrap();
    (state.add_stream(stream), theirs)
}

#[test]
fn links_to_other_hosts_and_within_the_host_send_by_turns() {
    // Each kind of link first, with more to send than all turns of the test take.
    for streams_first in [false, true] {
        let (mut state, _) = linked(0);
        let (mut peers, mut sockets) = (Vec::new(), Vec::new());
        let (pd, cq) = (state.engine.alloc_pd().unwrap(), state.engine.create_cq(4096, 1).unwrap());
        for at in 0..4 {
            let is_stream = (at % 2 == 0) == streams_first;
            let host = if is_stream {
                let (id, theirs) = add_stream(&mut state);
                assert_eq!(id, LinkId(at));
                sockets.push((at, theirs));
                Host(1)
            } else {
                let (memory, _) = Memory::create(8 << 20).unwrap();
                state.add_peer(memory.ends(Side::Acceptor), Peer::on_a_socket().0);
                peers.push((at, Duplex::new(memory.ends(Side::Opener), Peer::on_a_socket().0)));
                Host::LOCAL
            };
            send_datagrams(&mut state, (pd, cq), (u16::try_from(at).unwrap(), host), if at < 2 { 4096 } else { 1 });
        }
        for _ in 0..3 {
            assert!(state.progress());
        }
        let quiet = peers.iter().filter(|(_, peer)| peer.is_quiet()).map(|(at, _)| *at);
        let silent = sockets.iter().filter(|(_, socket)| !socket.look().0).map(|(at, _)| *at);
        let waiting: Vec<u32> = quiet.chain(silent).collect();
        assert_eq!(waiting, [0; 0], "links that have sent nothing, streams first: {streams_first}");
    }
}

#[test]
fn a_busy_link_within_the_host_does_not_keep_an_earlier_link_to_another_host_out() {
    let (mut state, _) = linked(0);
    let (pd, cq) = (state.engine.alloc_pd().unwrap(), state.engine.create_cq(4096, 1).unwrap());
    let (_, theirs) = add_stream(&mut state);
    let (memory, _) = Memory::create(8 << 20).unwrap();
    state.add_peer(memory.ends(Side::Acceptor), Peer::on_a_socket().0);
    let _peer = Duplex::new(memory.ends(Side::Opener), Peer::on_a_socket().0);
    send_datagrams(&mut state, (pd, cq), (1, Host::LOCAL), 4096);
    // The stream is behind the link that used up this turn.
    assert!(state.progress() && !theirs.look().0);
    send_datagrams(&mut state, (pd, cq), (0, Host(1)), 1);
    for _ in 0..2 {
        assert!(state.progress());
    }
    assert!(theirs.look().0, "the link within the host still has much to send");
}

proptest! {
    // A case makes descriptors and mappings.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_another_host_sends_ends_its_link_alone(
        frames in proptest::collection::vec(
            (any::<[u64; 6]>(), 0_u64..64, proptest::collection::vec(any::<u8>(), 0..100)),
            0..20,
        ),
        too_long in any::<bool>(),
    ) {
        let (mut state, mut peers) = linked(1);
        let ((bad, enemy), (good, friend)) = (add_stream(&mut state), add_stream(&mut state));
        for (link, host) in [(0, Host::LOCAL), (1, Host(1)), (2, Host(2))] {
            state.engine.handle_link_up(PeerId { host, slot: Slot(100 + link) }, LinkId(u32::from(link)), None);
        }
        let pd = state.engine.alloc_pd().unwrap();
        let cq = state.engine.create_cq(16, 1).unwrap();
        datagrams(&mut state.engine, pd, cq);
        let deadline = Instant::now() + Duration::from_secs(60);
        for (mut words, kind, payload) in frames {
            // Some have a kind that has a meaning, and name this process.
            words[0] = words[0] & !0xff | kind;
            words[1] = words[1] & !0xff_ffff | u64::from(state.slots[0].0) << 12 | words[1] & 3;
            let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
            words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
            bytes.extend_from_slice(&payload);
            enemy.write_all(&bytes, deadline).unwrap();
        }
        if too_long {
            enemy.write_all(&[0xff; 4], deadline).unwrap();
        }
        while state.progress() {}
        prop_assert_eq!(state.streams().any(|(id, _)| id == bad), !too_long);
        prop_assert!(state.streams().any(|(id, _)| id == good) && state.link(LinkId(0)).is_some());
        // The others still carry frames.
        send_datagrams(&mut state, (pd, cq), (0, Host::LOCAL), 1);
        send_datagrams(&mut state, (pd, cq), (2, Host(2)), 1);
        while state.progress() {}
        prop_assert!(!peers.remove(0).is_quiet() && friend.look().0);
    }
}

#[test]
fn a_number_is_that_of_one_link_within_the_host_or_to_another_one() {
    let (mut state, _) = linked(1);
    let (one, _ours) = add_stream(&mut state);
    let (two, _its) = add_stream(&mut state);
    assert_eq!((one, two), (LinkId(1), LinkId(2)));
    let numbers = |state: &State| {
        let links: Vec<u32> = state.links().map(|link| link.id.0).collect();
        let streams: Vec<u32> = state.streams().map(|(id, _)| id.0).collect();
        (links, streams)
    };
    let add_link = |state: &mut State| {
        let (memory, _) = Memory::create(4096).unwrap();
        state.add_peer(memory.ends(Side::Acceptor), Peer::on_a_socket().0).id
    };
    // The number of a stream goes to a link within the host, and that of a link to a stream.
    state.remove_stream(one, "test");
    assert_eq!(add_link(&mut state), one);
    state.remove_link(LinkId(0), "test");
    let (again, _theirs) = add_stream(&mut state);
    assert_eq!((again, numbers(&state)), (LinkId(0), (vec![1], vec![0, 2])));
    // A number is not removed from the wrong vector.
    state.remove_link(two, "test");
    state.remove_stream(one, "test");
    assert_eq!(numbers(&state), (vec![1], vec![0, 2]));
    assert_eq!(add_link(&mut state), LinkId(3));
    state.remove_stream(two, "test");
    assert_eq!((add_link(&mut state), numbers(&state)), (two, (vec![1, 2, 3], vec![0])));
}

#[test]
fn arrivals_from_other_hosts_do_not_end_a_nap_and_a_thread_that_goes_to_sleep_does() {
    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);
    let (mut state, _) = linked(0);
    state.agent = Agent::Ticking;
    assert!(!state.may_nap(), "without links to other hosts");
    let (_, theirs) = add_stream(&mut state);
    // The first report is about the state at the registration.
    state.event_loop.wait(Some(Duration::ZERO), |_| {});
    assert!(state.fall_asleep(), "bytes may have come before the registration");
    assert!(!state.progress() && !state.fall_asleep() && state.agent == Agent::Asleep);
    assert!(!state.may_nap(), "of an agent that sleeps until it is told");
    state.agent = Agent::Ticking;
    assert!(state.may_nap());
    let event_loop = Arc::clone(&state.event_loop);
    let nap = |time| {
        let event_loop = Arc::clone(&event_loop);
        thread::spawn(move || {
            let start = Instant::now();
            event_loop.nap(time);
            start.elapsed()
        })
    };
    theirs.write_all(&[0; 3], Instant::now() + LONG).unwrap();
    assert!(nap(SHORT).join().unwrap() >= SHORT, "something came during the nap");
    let mut tokens = Vec::new();
    event_loop.wait(Some(Duration::ZERO), |token| tokens.push(token));
    assert_eq!(tokens, [9], "the next wait tells of it");
    let napping = nap(LONG);
    // Reads what has come, and has nothing to do then.
    assert!(!state.progress() && !state.fall_asleep());
    assert!(napping.join().unwrap() < LONG);
    // The wait after the nap takes the wake. A thread that falls asleep again sends none.
    event_loop.wait(Some(Duration::ZERO), |_| {});
    assert!(!state.fall_asleep());
    assert!(nap(SHORT).join().unwrap() >= SHORT);
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

fn address(host: Host, qpn: u32) -> Address {
    let (source, destination) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    let route = Route { network: Network::Ip, source, destination, traffic_class: 0, flow_label: 0, hop_limit: 1 };
    Address { path: Path { host, grh: Grh::new(&route), group: None, sl: 0, slid: 0 }, qpn, qkey: 0 }
}

/// A process that ends takes what its own buffers hold with it.
#[test]
fn what_the_kernel_has_not_taken_is_left_to_be_said_at_the_end() {
    let (mut state, _) = linked(0);
    let (pd, cq) = (state.engine.alloc_pd().unwrap(), state.engine.create_cq(4096, 1).unwrap());
    let (_, theirs) = add_stream(&mut state);
    assert!(!state.has_words_left());
    // More than the kernel takes while the other side does not read.
    for _ in 0..4 {
        send_datagrams(&mut state, (pd, cq), (0, Host(1)), 4096);
        while state.progress() {}
    }
    assert!(state.has_words_left());
    let mut bytes = vec![0; 1 << 20];
    while state.has_words_left() {
        // The kernel may have nothing for the reader at this moment.
        let _count: os::Result<usize> = theirs.read(&mut bytes);
        state.progress();
    }
}
