//! Hostile frames: frames that no engine of this version sends.

use proptest::prelude::*;
use rdma_sys::ibv_event_type;

use super::super::mr::REMOTE_WRITE;
use super::super::wire::{Frame, Kind};
use super::datagrams;
use super::world::*;
use crate::engine::*;

/// Generates the given values, which have a meaning, and arbitrary others.
fn near(values: Vec<u64>) -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (proptest::sample::select(values), -9_i64..10).prop_map(|(value, by)| value.wrapping_add_signed(by)),
        1 => any::<u64>(),
    ]
}

#[derive(Clone, Debug)]
struct Hostile {
    frame: [u64; 9],
    payload: usize,
    link: u32,
    garble: Option<(usize, u64)>,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let kind = proptest::sample::select(vec![1_u64, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21, 32, 33]);
    let frame = (
        kind,
        0_u64..8,
        near(vec![0, 1, 256, 0xffff]),
        near(vec![0xff_fffe, 0xff_ffff, 0, 1, 2]),
        0_u64..6,
        near(vec![0, 0]),
        near(vec![0, 1, 64, 4096]),
        near(vec![0, 0, 64, 300, 4096, 1 << 30]),
        near(vec![0, 0, 64, 128]),
    );
    let frame = frame.prop_map(|(a, b, c, d, e, f, g, h, i)| [a, b, c, d, e, f, g, h, i]);
    let garble = proptest::option::weighted(0.1, (0_usize..HEADER_WORDS, any::<u64>()));
    let payload = prop_oneof![Just(0_usize), Just(64), 0_usize..400];
    (frame, payload, 0_u32..3, garble).prop_map(|(frame, payload, link, garble)| Hostile {
        frame,
        payload,
        link,
        garble,
    })
}

proptest! {
    #[test]
    fn nothing_that_comes_in_makes_the_engine_panic_or_touch_memory_that_is_not_registered(
        frames in proptest::collection::vec(hostile(), 1..60),
        registered in any::<bool>(),
    ) {
        // Only the middle third is registered; the rest must keep its pattern.
        let memory = Memory::new(3 * 4096);
        memory.fill(1);
        let before = memory.read(0, memory.len());
        let mut world = World::new();
        let [a, b] = world.connect([0, 1]);
        let node = &mut world.nodes[0];
        let what = Registration {
            addr: memory.ptr().wrapping_add(4096),
            len: 4096,
            iova: memory.addr() + 4096,
            access: if registered { ALL } else { 1 },
            backing: None,
        };
        // SAFETY: `register` requires memory that stays valid: it outlives the world. The test
        // accesses the memory only while the engine does not run.
        let key = unsafe { node.engine.register(node.pd, &what) }.unwrap().lkey;
        let mut list = [sge(&memory, key, 4096, 2048)];
        for id in 0..4 {
            world.recv(a, id, &list).unwrap();
        }
        // Keep requests in flight, so that hostile answers can match one.
        list[0].length = 1000;
        world.send(a, &request(SEND, 10, &list)).unwrap();
        world.send(a, &remote(request(READ, 11, &list), &memory, 4096, key)).unwrap();
        list[0].length = 8;
        world.send(a, &remote(request(ADD, 12, &list), &memory, 4096, key)).unwrap();
        world.step(0);
        for hostile in &frames {
            let [kind, flags, epoch, number, code, addr, key_by, total, offset] = hostile.frame;
            let mut words = [0_u64; HEADER_WORDS];
            // For even values, use an epoch that this engine uses.
            let mut probe = Wire::with_room(1 << 10);
            if epoch & 1 == 0 {
                world.nodes[0].engine.poll_transmit(LinkId(1), &mut probe);
            }
            words[0] = kind | flags << 8 | (epoch & 0xffff) << 16 | (number & 0xff_ffff) << 32 | code << 56;
            words[1] = u64::from(a.qpn) | u64::from(b.qpn) << 32;
            words[2] = (memory.addr() + 4096).wrapping_add(addr);
            words[3] = u64::from(key).wrapping_add(if key_by < 60 { 0 } else { key_by }) & 0xffff_ffff | total << 32;
            words[4] = offset & 0xffff_ffff | code << 32;
            if let Some((at, value)) = hostile.garble {
                words[at] ^= value;
            }
            let (link, header, payload) = (LinkId(hostile.link), Header(words), vec![0xee_u8; hostile.payload]);
            let engine = &mut world.nodes[0].engine;
            let put = |target: Target<'_>| {
                target.write(Source::of(&payload));
                payload.len()
            };
            // Any frame may be one that a link would cut.
            let _may_cut = engine.may_cut(link, &header, payload.len());
            if engine.handle_incoming(link, &header, payload.len(), put).is_none() {
                engine.handle_frame(link, &header, Source::of(&payload));
            }
            let due = world.nodes[0].engine.poll_timeout();
            if let Some(due) = due {
                world.now = world.now.max(due);
                let now = world.now;
                world.nodes[0].engine.handle_timeout(now);
            }
        }
        let mut sink = Wire::with_room(1 << 12);
        while world.nodes[0].engine.poll_transmit(LinkId(1), &mut sink) == Transmit::More {}
        while world.nodes[0].engine.poll_event().is_some() {}
        let after = memory.read(0, memory.len());
        prop_assert_eq!(&after[..4096], &before[..4096]);
        prop_assert_eq!(&after[8192..], &before[8192..]);
        // Whatever the frames were, each posted request completes at most once.
        let mut ids: Vec<_> = world.poll(0).iter().map(|wc| wc.wr_id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), count);
    }
}

/// Lets an arbitrary responder answer an engine's requests.
fn answered_with(answer: impl Fn(&mut Frame)) -> u32 {
    let memory = Memory::new(4096);
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &memory, ALL);
    world.send(a, &remote(request(READ, 1, &[sge(&memory, key, 0, 64)]), &memory, 0, 1)).unwrap();
    world.send(a, &request(SEND, 2, &[])).unwrap();
    let mut sent = Wire::with_room(16);
    world.nodes[0].engine.poll_transmit(LinkId(1), &mut sent);
    let asked = Frame::decode(&sent.pop().unwrap().0, 0).unwrap();
    let mut frame = Frame::new(Kind::Ack, a.qpn, b.qpn, asked.number, asked.epoch);
    answer(&mut frame);
    world.nodes[0].engine.handle_frame(LinkId(1), &frame.encode(), Source::of(&[1; 64][..frame.code as usize]));
    world.poll(0).first().map_or(u32::MAX, |wc| wc.status)
}

const FLUSHED: u32 = rdma_sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0;
const BAD_RESPONSE: u32 = rdma_sys::ibv_wc_status::IBV_WC_BAD_RESP_ERR.0;

#[test]
fn a_read_that_is_acknowledged_without_its_data_is_a_bad_response() {
    assert_eq!(answered_with(|_| {}), BAD_RESPONSE);
    assert_eq!(answered_with(|frame| frame.number = wire::after(frame.number)), BAD_RESPONSE);
}

#[test]
fn a_read_that_is_answered_with_something_else_is_a_bad_response() {
    assert_eq!(answered_with(|frame| frame.kind = Kind::AtomicData), BAD_RESPONSE);
    let short = |frame: &mut Frame| (frame.kind, frame.total, frame.code) = (Kind::ReadData, 32, 32);
    assert_eq!(answered_with(short), BAD_RESPONSE);
}

#[test]
fn answers_of_another_life_or_from_another_queue_pair_are_ignored() {
    assert_eq!(answered_with(|frame| frame.epoch ^= 0x100), u32::MAX);
    assert_eq!(answered_with(|frame| frame.from += 1), u32::MAX);
    assert_eq!(answered_with(|frame| frame.number = frame.number.wrapping_sub(1)), u32::MAX);
}

/// The length of a completion is that of memory which the peer could write to.
#[test]
fn a_write_that_is_only_announced_names_memory_of_its_length() {
    const ACCESS: u32 = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR.0;
    for (len, past, rights) in [(1 << 30, 0, ALL), (4097, 0, ALL), (8, 4089, ALL), (8, 0, ALL & !REMOTE_WRITE)] {
        let memory = Memory::new(4096);
        let mut world = World::new();
        let [a, b] = world.connect([0, 1]);
        let key = world.register(0, &memory, rights);
        let announce = |world: &mut World, total, at| {
            let mut frame = Frame::new(Kind::WriteDone, a.qpn, b.qpn, 0xff_fffe, 0);
            (frame.flags, frame.total, frame.addr, frame.key) = (wire::IMM, total, memory.addr() + at, key);
            world.nodes[0].engine.handle_frame(LinkId(1), &frame.encode(), Source::EMPTY);
        };
        world.recv(a, 1, &[]).unwrap();
        announce(&mut world, len, past);
        assert_eq!(world.statuses(0), [(1, FLUSHED)], "{len} bytes");
        assert!(world.events(0).contains(&ACCESS));
    }
}

#[test]
fn nobody_speaks_for_another_process() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    world.recv(a, 1, &[]).unwrap();
    // The loopback is up, but does not lead to the peer.
    world.nodes[0].engine.handle_link_up(PeerId::local(Slot(5)), LinkId(0), None);
    let send = Frame::new(Kind::Send, a.qpn, b.qpn, 0xff_fffe, 0).encode();
    for link in [0, 2, 77] {
        world.nodes[0].engine.handle_frame(LinkId(link), &send, Source::EMPTY);
    }
    assert!(world.poll(0).is_empty());
    world.nodes[0].engine.handle_frame(LinkId(1), &send, Source::EMPTY);
    assert_eq!(world.statuses(0), [(1, 0)]);
}

/// Slots are unique within a host only.
#[test]
fn nobody_speaks_for_a_process_of_another_host() {
    for (service, kind) in [(ServiceType::Rc, Kind::Send), (ServiceType::Uc, Kind::UcSend)] {
        let mut world = World::new();
        let [a, b] = world.connect_with([0, 1], |_, init| init.service = service, |_, _| {});
        world.recv(a, 1, &[]).unwrap();
        let other = PeerId { host: Host(1), slot: Slot::of_qpn(b.qpn) };
        world.nodes[0].engine.handle_link_up(other, LinkId(9), None);
        let send = Frame::new(kind, a.qpn, b.qpn, 0xff_fffe, 0).encode();
        world.nodes[0].engine.handle_frame(LinkId(9), &send, Source::EMPTY);
        assert!(world.poll(0).is_empty(), "{service:?}");
        world.nodes[0].engine.handle_frame(LinkId(1), &send, Source::EMPTY);
        assert_eq!(world.statuses(0), [(1, 0)], "{service:?}");
    }
}

/// A receiver answers to the addresses of the header, so a link to another host carries datagrams
/// between its two addresses alone.
#[test]
fn nobody_sends_datagrams_in_the_name_of_another_host_or_to_its_groups() {
    let mut world = World::with_wires(64, 8192);
    let b = datagrams::end(&mut world, 0);
    let memory = Memory::new(4096);
    let key = world.register(0, &memory, ALL);
    for id in 0..4 {
        world.recv(b, id, &[sge(&memory, key, 0, 64)]).unwrap();
    }
    let engine = &mut world.nodes[0].engine;
    engine.attach(b.qp, datagrams::GROUP).unwrap();
    let [theirs, ours, other] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(Gid::from_ipv4);
    let (far, link) = (PeerId { host: Host(1), slot: Slot(17) }, LinkId(9));
    engine.handle_link_up(far, link, None);
    let send = |engine: &mut Engine, to: u32, source: Gid, destination: Gid| {
        let network = Network::Ip;
        let route = Route { network, source, destination, traffic_class: 0, flow_label: 0, hop_limit: 1 };
        let mut datagram = Frame::new(Kind::Datagram, to, 17 << 12 | 1, 0, 0);
        (datagram.total, datagram.key) = (40, datagrams::QKEY);
        let grh = if source == Gid([0; 16]) { Grh::NONE } else { Grh::new(&route).sealed(0, false) };
        engine.handle_frame(link, &datagram.encode(), Source::of(&grh.0));
    };
    // A link of which the engine knows no addresses carries none.
    send(engine, b.qpn, theirs, ours);
    engine.handle_link_route(link, theirs, ours);
    for (source, destination) in [(other, ours), (ours, theirs), (theirs, other), (Gid([0; 16]), ours)] {
        send(engine, b.qpn, source, destination);
    }
    for destination in [ours, datagrams::GROUP] {
        send(engine, MULTICAST_QPN, theirs, destination);
    }
    engine.handle_link_route(link, theirs, datagrams::GROUP);
    send(engine, MULTICAST_QPN, theirs, datagrams::GROUP);
    // The number of a link that has ended may be that of another one.
    engine.handle_link_down(link);
    engine.handle_link_up(far, link, None);
    send(engine, b.qpn, theirs, ours);
    assert!(world.poll(0).is_empty());
    let engine = &mut world.nodes[0].engine;
    engine.handle_link_route(link, theirs, ours);
    send(engine, b.qpn, theirs, ours);
    assert_eq!(world.statuses(0), [(0, 0)]);
}

/// Each look-up takes a thread.
#[test]
fn the_frames_of_a_peer_have_few_processes_looked_for_at_a_time() {
    let mut world = World::new();
    let [a, _] = world.connect([0, 1]);
    let engine = &mut world.nodes[0].engine;
    let look_ups = |slots: std::ops::Range<u32>, engine: &mut Engine| {
        for slot in slots {
            for kind in [Kind::UcSend, Kind::Send] {
                let frame = Frame::new(kind, a.qpn, slot << 12 | 5, 0, 0);
                engine.handle_frame(LinkId(1), &frame.encode(), Source::EMPTY);
            }
        }
        let peer = |engine: &mut Engine| match engine.poll_lookup() {
            Some(Lookup::Link(peer)) => Some(peer),
            _ => None,
        };
        std::iter::from_fn(|| peer(engine)).collect::<Vec<_>>()
    };
    let first = look_ups(100..4000, engine);
    assert!((1..=16).contains(&first.len()), "{}", first.len());
    assert!(look_ups(100..4000, engine).is_empty());
    // Each answer makes space for one more.
    engine.handle_unreachable(first[0]);
    engine.handle_link_up(first[1], LinkId(1), None);
    assert_eq!(look_ups(3000..4000, engine).len(), 2);
}

#[test]
fn a_process_with_a_new_slot_is_looked_for_and_heard_the_next_time() {
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    world.set_state(a, QpState::Reset);
    let other = 17 << 12 | 5;
    world.bring_up(a, other, |_| {});
    world.recv(a, 1, &[]).unwrap();
    while world.nodes[0].engine.poll_lookup().is_some() {}
    world.nodes[0].engine.handle_unreachable(PeerId::local(Slot(17)));
    let mut send = Frame::new(Kind::Send, a.qpn, other, 0xff_fffe, 0);
    let engine = &mut world.nodes[0].engine;
    engine.handle_frame(LinkId(1), &send.encode(), Source::EMPTY);
    assert_eq!(engine.poll_lookup(), Some(Lookup::Link(PeerId::local(Slot(17)))));
    let mut answers = Wire::with_room(4);
    engine.poll_transmit(LinkId(1), &mut answers);
    assert_eq!(Frame::decode(&answers.pop().unwrap().0, 0).unwrap().kind, Kind::Dropped);
    engine.handle_link_up(PeerId::local(Slot(17)), LinkId(1), None);
    send.epoch = 1;
    engine.handle_frame(LinkId(1), &send.encode(), Source::EMPTY);
    assert_eq!(world.statuses(0), [(1, 0)]);
    let _ = b;
}
