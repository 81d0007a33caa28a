//! Unreliable datagrams: a datagram arrives once, as it was sent, or is lost without an error.

use rdma_sys::{ibv_sge, ibv_wc_status as status};

use super::super::wire::{Frame, Kind};
use super::world::*;
use crate::engine::*;

pub(super) const QKEY: u32 = 0x77;
pub(super) const GROUP: Gid = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
pub(super) const LEN_ERR: u32 = status::IBV_WC_LOC_LEN_ERR.0;
const PROT_ERR: u32 = status::IBV_WC_LOC_PROT_ERR.0;
pub(super) const FLUSH: u32 = status::IBV_WC_WR_FLUSH_ERR.0;

fn path(group: Option<Gid>) -> Path {
    let source = Gid::from_ipv4([10, 0, 0, 1]);
    let destination = group.unwrap_or(source);
    let route = Route { network: Network::Ip, source, destination, traffic_class: 0, flow_label: 0, hop_limit: 1 };
    Path { host: Host::LOCAL, grh: Grh::new(&route), group, sl: 5, slid: 9 }
}

pub(super) fn to(end: End) -> Address {
    Address { path: path(None), qpn: end.qpn, qkey: QKEY }
}

pub(super) fn to_group(gid: Gid) -> Address {
    Address { path: path(Some(gid)), qpn: MULTICAST_QPN, qkey: QKEY }
}

/// Creates a world whose wires take datagrams of every legal length.
fn world() -> World {
    World::with_wires(64, 8192)
}

/// Creates a datagram queue pair in RTS.
pub(super) fn end(world: &mut World, at: usize) -> End {
    end_with(world, at, |init| init)
}

pub(super) fn end_with(world: &mut World, at: usize, tune: impl Fn(QpInit) -> QpInit) -> End {
    let init = tune(QpInit { service: ServiceType::Ud, ..init(&world.nodes[at]) });
    let (qp, qpn) = world.nodes[at].engine.create_qp(&init).unwrap();
    let end = End { at, qp, qpn };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let change = ModifyQp { state: Some(state), qkey: Some(QKEY), ..ModifyQp::default() };
        world.modify(end, &change);
    }
    end
}

pub(super) fn send(world: &mut World, from: End, wr_id: u64, list: &[ibv_sge], address: &Address) {
    let request = Post { address: Some(address), ..request(SEND, wr_id, list) };
    world.send(from, &request).unwrap();
}

/// Two datagram queue pairs at two linked nodes, with memory at both.
pub(super) struct Fixture {
    pub(super) world: World,
    pub(super) a: End,
    pub(super) b: End,
    pub(super) memory: [Memory; 2],
    keys: [u32; 2],
}

pub(super) fn linked() -> Fixture {
    let memory = [Memory::new(1 << 16), Memory::new(1 << 16)];
    let mut world = world();
    let (a, b) = (end(&mut world, 0), end(&mut world, 1));
    let keys = [0, 1].map(|at| world.register(at, &memory[at], ALL));
    memory[0].fill(3);
    send(&mut world, a, 0, &[], &to(b));
    world.settle();
    assert_eq!(world.statuses(0), [(0, 0)]);
    Fixture { world, a, b, memory, keys }
}

impl Fixture {
    fn here(&self, at: usize, len: usize) -> ibv_sge {
        sge(&self.memory[0], self.keys[0], at, len)
    }

    fn there(&self, at: usize, len: usize) -> ibv_sge {
        sge(&self.memory[1], self.keys[1], at, len)
    }

    pub(super) fn recv(&mut self, wr_id: u64, at: usize, len: usize) {
        let list = [self.there(at, len)];
        self.world.recv(self.b, wr_id, &list).unwrap();
    }

    pub(super) fn send(&mut self, wr_id: u64, len: usize) {
        let (list, address) = ([self.here(0, len)], to(self.b));
        send(&mut self.world, self.a, wr_id, &list, &address);
    }
}

#[test]
fn the_first_to_a_process_wait_for_the_link_however_many_they_are() {
    const COUNT: u64 = 100;
    let memory = Memory::new(1 << 16);
    for at in [0, 1] {
        let mut world = World::with_wires(16, 8192);
        let deep = |init: QpInit| QpInit { max_send_wr: COUNT as u32, max_recv_wr: COUNT as u32, ..init };
        let (a, b) = (end_with(&mut world, 0, deep), end_with(&mut world, at, deep));
        let key = world.register(at, &memory, ALL);
        for id in 0..COUNT {
            world.recv(b, 1000 + id, &[sge(&memory, key, 100 * id as usize, 100)]).unwrap();
            let text = [id as u8; 5];
            let inline = [Source::of(&text)];
            let address = to(b);
            let post = Post { data: SendData::Inline(&inline), address: Some(&address), ..request(SEND, id, &[]) };
            world.send(a, &post).unwrap();
        }
        // The requests are pending until the link is up.
        assert!(world.poll(0).is_empty());
        assert!(world.nodes[0].engine.has_waiting_messages());
        world.settle();
        assert!(!world.nodes[0].engine.has_waiting_messages());
        let mut expected: Vec<_> = (1000..1000 + COUNT).map(|id| (id, 0)).collect();
        let mut statuses = world.statuses(at);
        if at == 1 {
            statuses.extend(world.statuses(0));
        }
        expected.extend((0..COUNT).map(|id| (id, 0)));
        statuses.sort_unstable();
        expected.sort_unstable();
        assert_eq!(statuses, expected);
        assert_eq!(memory.read(100 * 99 + 40, 5), [99; 5]);
    }
}

#[test]
fn other_destinations_are_not_delayed_by_a_process_that_takes_long_to_reach() {
    let mut f = linked();
    let slow = Address { qpn: 77 << 12 | 3, ..to(f.a) };
    f.recv(10, 0, 140);
    send(&mut f.world, f.a, 1, &[], &slow);
    f.send(2, 100);
    send(&mut f.world, f.a, 3, &[], &slow);
    let engine = &mut f.world.nodes[0].engine;
    assert_eq!(engine.poll_lookup(), Some(Lookup::Link(PeerId::local(Slot(77)))));
    f.world.settle();
    assert_eq!(f.world.statuses(1), [(10, 0)], "it has arrived");
    assert!(f.world.poll(0).is_empty(), "completions keep the order of the requests");
    f.world.run_for(999_000_000);
    assert!(f.world.poll(0).is_empty());
    f.world.run_for(1_000_000);
    assert_eq!(f.world.statuses(0), [(1, 0), (2, 0), (3, 0)], "lost, as on a network");
    // Later datagrams to this process are lost at once, for a while.
    send(&mut f.world, f.a, 4, &[], &slow);
    assert_eq!(f.world.statuses(0), [(4, 0)]);
    // A link that comes up late is used.
    f.world.nodes[0].engine.handle_link_up(PeerId::local(Slot(77)), LinkId(5), None);
    send(&mut f.world, f.a, 5, &[], &slow);
    let mut wire = Wire::with_room(4);
    assert_eq!(f.world.nodes[0].engine.poll_transmit(LinkId(5), &mut wire), Transmit::Idle);
    assert_eq!(Frame::decode(&wire.pop().unwrap().0, 40).unwrap().kind, Kind::Datagram);
    assert_eq!(f.world.statuses(0), [(5, 0)]);
}

#[test]
fn a_process_that_cannot_be_reached_is_not_asked_again_and_again() {
    let mut world = world();
    let a = end(&mut world, 0);
    let nobody = Address { qpn: 77 << 12 | 3, ..to(a) };
    let wishes = |world: &mut World| {
        let mut count = 0;
        while let Some(wish) = world.nodes[0].engine.poll_lookup() {
            assert_eq!(wish, Lookup::Link(PeerId::local(Slot(77))));
            world.nodes[0].engine.handle_unreachable(PeerId::local(Slot(77)));
            count += 1;
        }
        count
    };
    for id in 0..10 {
        send(&mut world, a, id, &[], &nobody);
        assert_eq!(wishes(&mut world), usize::from(id == 0));
    }
    assert_eq!(world.poll(0).len(), 10);
    let due = world.nodes[0].engine.poll_timeout().unwrap();
    assert_eq!(due, Time(0));
    world.run_for(99_000_000);
    send(&mut world, a, 11, &[], &nobody);
    assert_eq!(wishes(&mut world), 0);
    world.run_for(2_000_000);
    send(&mut world, a, 12, &[], &nobody);
    assert_eq!(wishes(&mut world), 1);
}

#[test]
fn what_is_received_is_in_its_place_and_says_where_it_is_from() {
    let mut f = linked();
    let lists = [f.there(0, 10), f.there(100, 35), f.there(200, 1000)];
    f.world.recv(f.b, 1, &lists).unwrap();
    let list = [f.here(0, 3), f.here(100, 0), f.here(50, 500)];
    let address = to(f.b);
    let request = Post { imm: 99, address: Some(&address), ..request(SEND_IMM, 2, &list) };
    f.world.send(f.a, &request).unwrap();
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(2, 0)]);
    let mut out = [ibv_wc::default(); 2];
    let node = &mut f.world.nodes[1];
    assert_eq!(node.engine.poll_cq(node.cq, &mut out), Ok(1));
    let wc = out[0];
    assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp, wc.qp_num), (1, 543, f.a.qpn, f.b.qpn));
    assert_eq!((wc.sl, wc.slid, wc.wc_flags), (5, 9, 3));
    let mut sent = f.memory[0].read(0, 3);
    sent.extend(f.memory[0].read(50, 500));
    let mut got = f.memory[1].read(130, 5);
    got.extend(f.memory[1].read(200, 498));
    assert_eq!(got, sent);
    let mut grh = f.memory[1].read(0, 10);
    grh.extend(f.memory[1].read(100, 30));
    assert_eq!(grh, path(None).grh.sealed(503, true).0);
}

#[test]
fn what_is_too_long_for_its_receive_or_has_none_or_another_key() {
    let mut f = linked();
    f.send(1, 100);
    let stranger = Address { qkey: QKEY + 1, ..to(f.b) };
    f.recv(10, 0, 140);
    send(&mut f.world, f.a, 2, &[], &stranger);
    // With the upper bit set, the sender's own Q_Key is sent.
    let own = Address { qkey: 1 << 31 | 5, ..to(f.b) };
    send(&mut f.world, f.a, 3, &[], &own);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(f.world.statuses(1), [(10, 0)]);
    f.recv(11, 0, 139);
    f.recv(12, 0, 1000);
    f.send(4, 100);
    f.world.settle();
    assert_eq!(f.world.statuses(1), [(11, LEN_ERR), (12, FLUSH)]);
    assert_eq!((f.world.state(f.a), f.world.state(f.b)), (QpState::Rts, QpState::Err));
    assert!(f.world.events(1).is_empty());
}

#[test]
fn a_failed_send_stops_the_send_queue_and_a_bad_receive_all() {
    let mut f = linked();
    let (good, address) = (f.here(0, 8), to(f.b));
    let bad = ibv_sge { lkey: f.keys[0] ^ 1, ..good };
    f.world.recv(f.a, 20, &[f.here(1000, 64)]).unwrap();
    send(&mut f.world, f.a, 1, &[bad], &address);
    send(&mut f.world, f.a, 2, &[good], &address);
    assert_eq!(f.world.statuses(0), [(1, PROT_ERR), (2, FLUSH)]);
    assert_eq!(f.world.state(f.a), QpState::Sqe);
    let back = to(f.a);
    send(&mut f.world, f.b, 3, &[], &back);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(20, 0)]);
    assert_eq!(f.world.statuses(1), [(3, 0)]);
    f.world.set_state(f.a, QpState::Rts);
    let unwritable = Memory::new(64);
    let key = f.world.register(1, &unwritable, 0);
    f.world.recv(f.b, 4, &[sge(&unwritable, key, 0, 64)]).unwrap();
    f.send(5, 8);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(5, 0)]);
    assert_eq!(f.world.statuses(1), [(4, PROT_ERR)]);
    assert_eq!(f.world.state(f.b), QpState::Err);
}

#[test]
fn nothing_longer_than_the_mtu_is_sent() {
    let mut f = linked();
    f.recv(1, 0, 1 << 15);
    f.send(2, 4097);
    f.send(3, 4096);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(2, 0), (3, 0)]);
    let wcs = f.world.poll(1);
    assert_eq!((wcs.len(), wcs[0].byte_len), (1, 4136));
}

#[test]
fn a_full_link_is_waited_for_once() {
    let memory = Memory::new(4096);
    let mut world = World::with_wires(4, 8192);
    let (a, b, near) = (end(&mut world, 0), end(&mut world, 1), end(&mut world, 0));
    let key = world.register(1, &memory, ALL);
    let key_near = world.register(0, &memory, ALL);
    send(&mut world, a, 0, &[], &to(b));
    send(&mut world, a, 0, &[], &to(near));
    world.settle();
    world.poll(0);
    // The other node makes no step from here on.
    for id in 1..8 {
        send(&mut world, a, id, &[], &to(b));
    }
    world.recv(near, 100, &[sge(&memory, key_near, 0, 64)]).unwrap();
    send(&mut world, a, 8, &[], &to(near));
    let alone = |world: &mut World| while world.step(0) {};
    alone(&mut world);
    let done = world.statuses(0);
    assert_eq!(done, [(1, 0), (2, 0), (3, 0), (4, 0)], "the wire takes four");
    world.now = world.now.after(19_000_000);
    alone(&mut world);
    assert!(world.poll(0).is_empty());
    world.now = world.now.after(2_000_000);
    alone(&mut world);
    assert_eq!(world.statuses(0), [(5, 0), (6, 0), (7, 0), (8, 0), (100, 0)]);
    // From now on a datagram for the full link is lost at once,
    send(&mut world, a, 9, &[], &to(b));
    alone(&mut world);
    assert_eq!(world.statuses(0), [(9, 0)]);
    // until the link has space again.
    for id in 0..5 {
        world.recv(b, 200 + id, &[sge(&memory, key, 0, 64)]).unwrap();
    }
    world.settle();
    assert_eq!(world.statuses(1), [(200, 0), (201, 0), (202, 0), (203, 0)]);
    send(&mut world, a, 10, &[], &to(b));
    world.settle();
    assert_eq!((world.statuses(0), world.statuses(1)), (vec![(10, 0)], vec![(204, 0)]));
}

#[test]
fn a_wait_ends_with_the_queue_pair_and_with_the_peer() {
    for case in 0..4 {
        let mut world = World::with_wires(1, 8192);
        let (a, b) = (end(&mut world, 0), end(&mut world, 1));
        send(&mut world, a, 0, &[], &to(b));
        world.settle();
        for id in 1..4 {
            send(&mut world, a, id, &[], &to(b));
        }
        while world.step(0) {}
        assert_eq!(world.statuses(0), [(0, 0), (1, 0)]);
        match case {
            0 => world.set_state(a, QpState::Reset),
            1 => world.set_state(a, QpState::Err),
            2 => world.nodes[0].engine.destroy_qp(a.qp).unwrap(),
            _ => world.kill(1, true),
        }
        while world.step(0) {}
        let rest = world.statuses(0);
        match case {
            0 | 2 => assert!(rest.is_empty()),
            1 => assert_eq!(rest, [(2, FLUSH), (3, FLUSH)]),
            _ => assert_eq!(rest, [(2, 0), (3, 0)], "lost with the link"),
        }
        world.run_for(1_000_000_000);
        assert!(world.poll(0).is_empty());
    }
}

#[test]
fn draining_holds_back_what_has_not_begun() {
    let mut f = linked();
    f.world.set_state(f.a, QpState::Sqd);
    f.send(1, 8);
    f.world.settle();
    assert!(f.world.poll(0).is_empty());
    f.world.set_state(f.a, QpState::Rts);
    f.world.settle();
    assert_eq!(f.world.statuses(0), [(1, 0)]);
}

#[test]
fn only_sends_with_an_address_are_taken() {
    let mut f = linked();
    assert_eq!(f.world.send(f.a, &request(SEND, 1, &[])), Err(Errno::INVAL));
    let address = to(f.b);
    for opcode in [WRITE, READ, ADD, WRITE_IMM] {
        let request = Post { address: Some(&address), ..request(opcode, 1, &[]) };
        assert_eq!(f.world.send(f.a, &request), Err(Errno::INVAL));
    }
    let nowhere = [(0, None), (1, None), (4095 << 12, None), (MULTICAST_QPN, None), (f.b.qpn, Some(GROUP))];
    for (qpn, group) in nowhere {
        send(&mut f.world, f.a, 2, &[], &Address { path: path(group), qpn, qkey: QKEY });
        assert_eq!(f.world.nodes[0].engine.poll_lookup(), None);
        assert_eq!(f.world.statuses(0), [(2, 0)]);
    }
}

#[test]
fn a_group_is_all_that_are_in_it() {
    let memory = Memory::new(1 << 16);
    let mut world = world();
    let ends: Vec<End> = [0, 0, 1, 1, 1].into_iter().map(|at| end(&mut world, at)).collect();
    let keys = [0, 1].map(|at| world.register(at, &memory, ALL));
    world.members = vec![Slot(4094), Slot(5), Slot(5)];
    for end in &ends {
        for id in 0..2 {
            world.recv(*end, id, &[sge(&memory, keys[end.at], 0, 64)]).unwrap();
        }
    }
    let attach = |world: &mut World, index: usize| {
        let end: End = ends[index];
        world.nodes[end.at].engine.attach(end.qp, GROUP).unwrap()
    };
    assert_eq!([0, 1, 2, 3, 3].map(|index| attach(&mut world, index)), [true, false, true, false, false]);
    send(&mut world, ends[0], 7, &[], &to_group(GROUP));
    assert!(world.nodes[0].engine.has_waiting_messages());
    world.settle();
    let of = |wcs: Vec<Wc>| {
        let mut got: Vec<_> = wcs.iter().map(|wc| (wc.qpn, wc.wr_id)).collect();
        got.sort_unstable();
        got
    };
    let mut expected = vec![(ends[0].qpn, 0), (ends[0].qpn, 7), (ends[1].qpn, 0)];
    expected.sort_unstable();
    assert_eq!(of(world.poll(0)), expected);
    let mut expected = vec![(ends[2].qpn, 0), (ends[3].qpn, 0)];
    expected.sort_unstable();
    assert_eq!(of(world.poll(1)), expected);
    // A queue pair in a group cannot be destroyed, and one that was detached gets no more
    // datagrams.
    assert_eq!(world.nodes[0].engine.destroy_qp(ends[0].qp), Err(Errno::BUSY));
    assert_eq!(world.nodes[0].engine.group_of(ends[0].qp), Some(GROUP));
    let detach = |world: &mut World, index: usize| world.nodes[ends[index].at].engine.detach(ends[index].qp, GROUP);
    assert_eq!([2, 3, 3].map(|index| detach(&mut world, index)), [Ok(false), Ok(true), Err(Errno::INVAL)]);
    send(&mut world, ends[4], 8, &[], &to_group(GROUP));
    world.settle();
    assert_eq!(world.poll(1).len(), 1);
    assert_eq!(world.poll(0).len(), 2);
}

#[test]
fn who_is_in_a_group_is_asked_again_after_a_while() {
    let mut world = world();
    let (a, _) = (end(&mut world, 0), end(&mut world, 1));
    let group = to_group(GROUP);
    let asked = |world: &mut World| world.nodes[0].engine.poll_lookup() == Some(Lookup::Members(GROUP));
    send(&mut world, a, 1, &[], &group);
    send(&mut world, a, 2, &[], &group);
    assert!(asked(&mut world) && !asked(&mut world));
    assert!(world.poll(0).is_empty());
    world.nodes[0].engine.handle_members(GROUP, &[], 1_000_000);
    assert_eq!(world.statuses(0), [(1, 0), (2, 0)]);
    world.run_for(900_000);
    send(&mut world, a, 3, &[], &group);
    assert!(!asked(&mut world));
    world.run_for(200_000);
    send(&mut world, a, 4, &[], &group);
    assert!(asked(&mut world));
    assert_eq!(world.statuses(0), [(3, 0)]);
    // A reset ends the wait for the group's members.
    world.set_state(a, QpState::Reset);
    assert!(!world.nodes[0].engine.has_waiting_messages());
    world.nodes[0].engine.handle_members(GROUP, &[Slot(0), Slot(4095)], 1_000_000);
    world.nodes[0].engine.handle_members(Gid([1; 16]), &[Slot(1)], 1_000_000);
    assert!(world.poll(0).is_empty());
}

#[test]
fn a_group_of_pretenders_keeps_no_datagram_from_a_new_process() {
    let memory = Memory::new(4096);
    let mut world = world();
    let (a, b) = (end(&mut world, 0), end(&mut world, 1));
    let key = world.register(1, &memory, ALL);
    world.recv(b, 10, &[sge(&memory, key, 0, 100)]).unwrap();
    send(&mut world, a, 1, &[], &to_group(GROUP));
    assert_eq!(world.nodes[0].engine.poll_lookup(), Some(Lookup::Members(GROUP)));
    let pretenders: Vec<Slot> = (1000..2000).map(Slot).collect();
    let engine = &mut world.nodes[0].engine;
    engine.handle_members(GROUP, &pretenders, 1_000_000);
    // The driver is still connecting to these processes.
    let mut tried = 0;
    while let Some(Lookup::Link(peer)) = engine.poll_lookup() {
        assert!(pretenders.contains(&peer.slot));
        tried += 1;
    }
    assert!(tried > 0);
    send(&mut world, a, 2, &[], &to(b));
    world.settle();
    assert_eq!((world.statuses(0), world.statuses(1)), (vec![], vec![(10, 0)]));
    world.run_for(100_000_000);
    assert_eq!(world.statuses(0), [(1, 0), (2, 0)]);
}

#[test]
fn members_that_are_reached_late_get_what_the_others_have_got_once() {
    let mut world = world();
    let a = end(&mut world, 0);
    send(&mut world, a, 1, &[], &to_group(GROUP));
    let engine = &mut world.nodes[0].engine;
    assert_eq!(engine.poll_lookup(), Some(Lookup::Members(GROUP)));
    let [early, late, never] = [100, 200, 300].map(Slot);
    engine.handle_link_up(PeerId::local(early), LinkId(3), None);
    engine.handle_members(GROUP, &[early, late, never], 1_000_000_000);
    let mut wires = [3, 4].map(|link| (LinkId(link), Wire::with_room(4)));
    let mut turn = |engine: &mut Engine| {
        while engine.poll_active_link().is_some() {}
        for (link, wire) in &mut wires {
            engine.poll_transmit(*link, wire);
        }
        [0, 1].map(|index| std::iter::from_fn(|| wires[index].1.pop()).count())
    };
    assert_eq!(turn(engine), [1, 0]);
    engine.handle_link_up(PeerId::local(late), LinkId(4), None);
    assert_eq!(turn(engine), [0, 1]);
    assert!(world.poll(0).is_empty());
    let engine = &mut world.nodes[0].engine;
    engine.handle_unreachable(PeerId::local(never));
    assert_eq!(turn(engine), [0, 0]);
    assert_eq!(world.statuses(0), [(1, 0)]);
}

#[test]
fn only_datagram_queue_pairs_are_in_groups() {
    let mut world = world();
    let [a, _] = world.connect([0, 0]);
    let b = end(&mut world, 0);
    let engine = &mut world.nodes[0].engine;
    assert_eq!(engine.attach(a.qp, GROUP), Err(Errno::INVAL));
    assert_eq!(engine.attach(b.qp, Gid::from_ipv4([10, 0, 0, 1])), Err(Errno::INVAL));
    assert_eq!(engine.attach(QpId(4000), GROUP), Err(Errno::INVAL));
}

#[test]
fn a_sender_under_another_slot_of_the_process_is_heard() {
    let memory = Memory::new(4096);
    for late in [false, true] {
        let mut world = world();
        let b = end(&mut world, 0);
        let key = world.register(0, &memory, ALL);
        world.recv(b, 1, &[sge(&memory, key, 0, 64)]).unwrap();
        if late {
            send(&mut world, b, 9, &[], &to(b));
            world.settle();
            assert_eq!(world.poll(0).len(), 2);
            world.recv(b, 1, &[sge(&memory, key, 0, 64)]).unwrap();
        }
        world.nodes[0].engine.add_slot(Slot(6));
        let mut a = b;
        while Slot::of_qpn(a.qpn) != Slot(6) {
            let init = QpInit { max_send_wr: 1, max_recv_wr: 1, ..init(&world.nodes[0]) };
            let init = QpInit { service: ServiceType::Ud, ..init };
            let (qp, qpn) = world.nodes[0].engine.create_qp(&init).unwrap();
            a = End { at: 0, qp, qpn };
        }
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            world.set_state(a, state);
        }
        send(&mut world, a, 2, &[], &to(b));
        world.settle();
        assert_eq!(world.statuses(0).len(), 2);
    }
}

#[test]
fn frames_of_one_kind_do_nothing_to_queue_pairs_of_the_other() {
    let mut f = linked();
    let [connected, _] = f.world.connect([1, 0]);
    let (from, to_ud, to_rc) = (f.a.qpn, f.b.qpn, connected.qpn);
    f.recv(1, 0, 64);
    f.world.recv(connected, 2, &[]).unwrap();
    let link = LinkId(1);
    let engine = &mut f.world.nodes[1].engine;
    for kind in [Kind::Send, Kind::Write, Kind::Read, Kind::FetchAdd, Kind::Ack, Kind::Nak, Kind::ReadData] {
        for from in [from, 0, 1, 4095 << 12] {
            let frame = Frame::new(kind, to_ud, from, 0, 0);
            engine.handle_frame(link, &frame.encode(), Source::EMPTY);
        }
    }
    let payload = [0; 40];
    let mut datagram = Frame::new(Kind::Datagram, to_rc, from, 0, 0);
    (datagram.total, datagram.key) = (40, 0);
    engine.handle_frame(link, &datagram.encode(), Source::of(&payload));
    assert!(f.world.poll(1).is_empty());
    assert_eq!((f.world.state(f.b), f.world.state(connected)), (QpState::Rts, QpState::Rts));
    // Slots 0 and 4095 belong to no process: a link to them is ignored.
    f.world.nodes[1].engine.handle_link_up(PeerId::local(Slot(0)), LinkId(7), None);
    f.world.nodes[1].engine.handle_link_up(PeerId::local(Slot(4095)), LinkId(7), None);
    let send = Frame::new(Kind::Send, to_ud, 0, 0, 0);
    f.world.nodes[1].engine.handle_frame(LinkId(7), &send.encode(), Source::EMPTY);
    assert!(f.world.poll(1).is_empty());
}

#[test]
fn a_sender_whose_slot_is_not_known_is_looked_for() {
    let mut f = linked();
    f.recv(1, 0, 64);
    let payload = [0; 40];
    let mut datagram = Frame::new(Kind::Datagram, f.b.qpn, 17 << 12, 0, 0);
    (datagram.total, datagram.key) = (40, QKEY);
    let engine = &mut f.world.nodes[1].engine;
    engine.handle_frame(LinkId(1), &datagram.encode(), Source::of(&payload));
    assert_eq!(engine.poll_lookup(), Some(Lookup::Link(PeerId::local(Slot(17)))));
    engine.handle_link_up(PeerId::local(Slot(17)), LinkId(1), None);
    engine.handle_frame(LinkId(1), &datagram.encode(), Source::of(&payload));
    assert_eq!(f.world.statuses(1), [(1, 0)]);
}

/// A sender that is faster than its peer waits, as long as the peer takes frames.
#[test]
fn what_has_a_receive_is_not_lost_to_a_short_ring() {
    let memory = Memory::new(4096);
    let mut world = World::with_wires(2, 8192);
    let (a, b) = (end(&mut world, 0), end(&mut world, 1));
    let key = world.register(1, &memory, ALL);
    for id in 0..16 {
        world.recv(b, id, &[sge(&memory, key, 0, 64)]).unwrap();
        send(&mut world, a, id, &[], &to(b));
    }
    world.settle();
    let all: Vec<(u64, u32)> = (0..16).map(|id| (id, 0)).collect();
    assert_eq!((world.statuses(0), world.statuses(1)), (all.clone(), all));
}

#[test]
fn address_handles_are_limited_and_keep_their_domain() {
    let node = &mut world().nodes[0];
    let pd = node.engine.alloc_pd().unwrap();
    for _ in 0..limits::MAX_AH {
        node.engine.hold_ah(pd).unwrap();
    }
    assert_eq!(node.engine.hold_ah(pd), Err(Errno::NOMEM));
    node.engine.release_ah(pd);
    node.engine.hold_ah(pd).unwrap();
    assert_eq!(node.engine.hold_ah(PdId(pd.0 + 1)), Err(Errno::NOMEM));
    (0..limits::MAX_AH).for_each(|_| {
        assert_eq!(node.engine.dealloc_pd(pd), Err(Errno::BUSY));
        node.engine.release_ah(pd);
    });
    assert_eq!(node.engine.hold_ah(PdId(pd.0 + 1)), Err(Errno::INVAL), "no such domain, and not counted");
    assert_eq!(node.engine.dealloc_pd(pd), Ok(()));
}
