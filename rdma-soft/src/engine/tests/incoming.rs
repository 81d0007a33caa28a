//! Payloads that the driver puts in their place itself.

use rdma_sys::ibv_wc_status;

use super::super::wire::{Frame, Kind};
use super::pair::Pair;
use super::world::*;
use crate::engine::*;

const LEN: usize = 4000;
/// Bytes of the first part.
const FIRST: usize = 100;
/// The place of a write in the peer's memory.
const AT: usize = 64;

/// The frame of a request of the first side, and its payload.
fn frame_of(pair: &mut Pair, post: &Post<'_>) -> (Header, Vec<u8>) {
    let end = pair.ends[0];
    pair.world.send(end, post).unwrap();
    let mut wire = Wire::with_room(16);
    assert_eq!(pair.world.nodes[end.at].engine.poll_transmit(LINK, &mut wire), Transmit::Idle);
    wire.pop().unwrap()
}

/// A pair whose first side has sent a write, and the frame.
fn write() -> (Pair, Header, Vec<u8>) {
    let mut pair = Pair::new([0, 1]);
    pair.here.fill(1);
    let list = [sge(&pair.here, pair.keys[0], 0, LEN)];
    let post = remote(request(WRITE, 1, &list), &pair.there, AT, pair.keys[1]);
    let (header, payload) = frame_of(&mut pair, &post);
    (pair, header, payload)
}

/// Handles the first part of a frame of the second side's link; returns the header of the rest.
fn begin(pair: &mut Pair, header: &Header, payload: &[u8]) -> Header {
    let engine = &mut pair.world.nodes[1].engine;
    assert!(engine.may_cut(LINK, header, payload.len()));
    assert_eq!(engine.handle_incoming(LINK, header, payload.len(), |_| unreachable!()), None, "it begins a message");
    engine.handle_frame(LINK, header, Source::of(&payload[..FIRST]));
    header.behind(FIRST as u32)
}

/// Puts bytes in the place that the engine of a node names.
fn put(engine: &mut Engine, header: &Header, bytes: &[u8]) -> Option<usize> {
    engine.handle_incoming(LINK, header, bytes.len(), |target| {
        target.write(Source::of(bytes));
        target.len().min(bytes.len())
    })
}

#[test]
fn the_rest_of_a_write_arrives_in_its_place() {
    let (mut pair, header, payload) = write();
    let mut rest = begin(&mut pair, &header, &payload);
    let engine = &mut pair.world.nodes[1].engine;
    assert_eq!(put(engine, &rest, &payload[FIRST..2000]), Some(2000 - FIRST));
    rest = rest.behind(2000 - FIRST as u32);
    assert_eq!(engine.handle_incoming(LINK, &rest, 1, |_| 0), Some(0), "nothing has come");
    assert_eq!(put(engine, &rest, &payload[2000..]), Some(LEN - 2000));
    assert!(pair.there.read(AT, LEN) == payload && payload == pair.here.read(0, LEN));
    assert!(pair.there.read(AT + LEN, 64) == [0; 64]);
    pair.world.settle();
    assert_eq!(pair.world.statuses(0), [(1, ibv_wc_status::IBV_WC_SUCCESS.0)]);
}

#[test]
fn a_driver_that_says_more_than_fits_changes_nothing_else() {
    let (mut pair, header, payload) = write();
    let rest = begin(&mut pair, &header, &payload);
    let engine = &mut pair.world.nodes[1].engine;
    assert_eq!(engine.handle_incoming(LINK, &rest, 10, |_| usize::MAX), Some(10));
    assert_eq!(put(engine, &rest.behind(10), &payload[FIRST + 10..]), Some(LEN - FIRST - 10));
    pair.world.settle();
    assert_eq!(pair.world.statuses(0), [(1, ibv_wc_status::IBV_WC_SUCCESS.0)]);
}

#[test]
fn the_rest_has_no_place_once_the_target_is_gone() {
    type Change = fn(&mut Pair);
    let changes: [(&str, Change); 6] = [
        ("deregistered", |pair| pair.world.nodes[1].engine.deregister(pair.keys[1]).unwrap()),
        ("reset", |pair| pair.world.set_state(pair.ends[1], QpState::Reset)),
        ("failed", |pair| pair.world.set_state(pair.ends[1], QpState::Err)),
        ("destroyed", |pair| pair.world.nodes[1].engine.destroy_qp(pair.ends[1].qp).unwrap()),
        ("without the right", |pair| {
            pair.world.modify(pair.ends[1], &ModifyQp { access: Some(1), ..ModifyQp::default() });
        }),
        ("on a link that is down", |pair| pair.world.nodes[1].engine.handle_link_down(LINK)),
    ];
    for (name, change) in changes {
        let (mut pair, header, payload) = write();
        let rest = begin(&mut pair, &header, &payload);
        change(&mut pair);
        let engine = &mut pair.world.nodes[1].engine;
        let placed = engine.handle_incoming(LINK, &rest, LEN - FIRST, |_| unreachable!("{name}"));
        assert_eq!(placed, None, "{name}");
        engine.handle_frame(LINK, &rest, Source::of(&payload[FIRST..]));
        assert!(pair.there.read(AT + FIRST, LEN - FIRST).iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn only_the_next_bytes_of_the_message_in_progress_have_a_place() {
    type Change = fn(&mut Frame);
    let changes: [(&str, Change); 11] = [
        ("another message", |frame| frame.number = (frame.number + 1) & 0xff_ffff),
        ("another attempt", |frame| frame.epoch ^= 1),
        ("another offset", |frame| frame.a += 1),
        ("an earlier offset", |frame| frame.a = 0),
        ("another length", |frame| frame.total += 1),
        ("another kind", |frame| frame.kind = Kind::Send),
        ("an answer", |frame| frame.kind = Kind::ReadData),
        ("another key", |frame| frame.key ^= 1),
        ("another place, in part outside of the region", |frame| frame.addr += 1 << 16),
        ("another sender", |frame| frame.from += 1),
        ("another receiver", |frame| frame.to += 1),
    ];
    let (mut pair, header, payload) = write();
    let rest = begin(&mut pair, &header, &payload);
    for (name, change) in changes {
        let mut frame = Frame::decode(&rest, LEN - FIRST).unwrap();
        change(&mut frame);
        let engine = &mut pair.world.nodes[1].engine;
        let placed = engine.handle_incoming(LINK, &frame.encode(), 1000, |_| unreachable!("{name}"));
        assert_eq!(placed, None, "{name}");
    }
    let engine = &mut pair.world.nodes[1].engine;
    for link in [LinkId(0), LinkId(2)] {
        assert_eq!(engine.handle_incoming(link, &rest, 1000, |_| unreachable!("another link")), None);
    }
    assert_eq!(put(engine, &rest, &payload[FIRST..]), Some(LEN - FIRST), "the message itself goes on");
}

#[test]
fn the_rest_of_a_send_arrives_in_the_entries_of_its_receive() {
    let mut pair = Pair::new([0, 1]);
    pair.here.fill(1);
    let end = pair.ends[1];
    let receive = [sge(&pair.there, pair.keys[1], 8, 1000), sge(&pair.there, pair.keys[1], 3000, LEN)];
    let list = [sge(&pair.here, pair.keys[0], 0, LEN)];
    let (header, payload) = frame_of(&mut pair, &request(SEND, 1, &list));
    assert!(!pair.world.nodes[1].engine.may_cut(LINK, &header, LEN), "no receive is posted");
    pair.world.recv(end, 2, &receive).unwrap();
    let rest = begin(&mut pair, &header, &payload);
    let engine = &mut pair.world.nodes[1].engine;
    assert_eq!(put(engine, &rest, &payload[FIRST..]), Some(1000 - FIRST), "to the end of the first entry");
    assert_eq!(put(engine, &rest.behind(1000 - FIRST as u32), &payload[1000..]), Some(LEN - 1000));
    assert!([pair.there.read(8, 1000), pair.there.read(3000, LEN - 1000)].concat() == payload);
    assert_eq!(pair.world.statuses(1), [(2, ibv_wc_status::IBV_WC_SUCCESS.0)]);
}

#[test]
fn the_rest_of_a_read_arrives_where_the_request_says() {
    let mut pair = Pair::new([1, 0]);
    pair.there.fill(1);
    let list = [sge(&pair.here, pair.keys[0], 8, LEN)];
    let end = pair.ends[0];
    pair.world.send(end, &remote(request(READ, 1, &list), &pair.there, 16, pair.keys[1])).unwrap();
    let mut wire = Wire::with_room(16);
    pair.world.nodes[1].engine.poll_transmit(LINK, &mut wire);
    pair.world.nodes[0].engine.handle_frame(LINK, &wire.pop().unwrap().0, Source::EMPTY);
    pair.world.nodes[0].engine.poll_transmit(LINK, &mut wire);
    let (header, payload) = wire.pop().unwrap();
    let rest = begin(&mut pair, &header, &payload);
    assert_eq!(put(&mut pair.world.nodes[1].engine, &rest, &payload[FIRST..]), Some(LEN - FIRST));
    assert!(pair.here.read(8, LEN) == payload && payload == pair.there.read(16, LEN));
    assert_eq!(pair.world.statuses(1), [(1, ibv_wc_status::IBV_WC_SUCCESS.0)]);
}

#[test]
fn links_to_other_hosts_put_large_payloads_in_their_place() {
    const LARGE: usize = 300_000;
    let (here, there) = (Memory::new(LARGE), Memory::new(LARGE));
    here.fill(1);
    let mut world = World::with_streams(7);
    let [a, _] = world.connect([0, 1]);
    let keys = [world.register(0, &here, ALL), world.register(1, &there, ALL)];
    world.send(a, &remote(request(WRITE, 1, &[sge(&here, keys[0], 0, LARGE)]), &there, 0, keys[1])).unwrap();
    world.settle();
    assert_eq!(world.statuses(0), [(1, ibv_wc_status::IBV_WC_SUCCESS.0)]);
    assert!(world.has_placed(0) && there.read(0, LARGE) == here.read(0, LARGE));
}
