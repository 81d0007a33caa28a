//! Direct operations: one-sided operations that the requester executes itself.

use rdma_sys::{ibv_event_type as event, ibv_wc_status as status};

use super::super::wire::{Frame, Kind};
use super::world::*;
use crate::engine::*;

#[test]
fn within_a_process_they_are_complete_when_they_are_posted() {
    let (here, there) = (Memory::new(4096), Memory::new(4096));
    let mut world = World::new();
    let [a, _] = world.connect([0, 0]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(0, &there, ALL);
    here.fill(1);
    let list = [sge(&here, key, 0, 100)];
    world.send(a, &remote(request(WRITE, 1, &list), &there, 0, rkey)).unwrap();
    assert_eq!(world.statuses(0), [(1, 0)], "nobody drove the engine");
    assert_eq!(there.read(0, 100), here.read(0, 100));
    let list = [sge(&here, key, 1024, 100)];
    world.send(a, &remote(request(READ, 2, &list), &there, 0, rkey)).unwrap();
    let list = [sge(&here, key, 2048, 8)];
    world.send(a, &remote(Post { compare_add: 5, ..request(ADD, 3, &list) }, &there, 2048, rkey)).unwrap();
    assert_eq!(world.statuses(0), [(2, 0), (3, 0)]);
    assert_eq!(here.read(1024, 100), here.read(0, 100));
    assert_eq!(there.word(2048), 5);
}

/// Creates two processes; a first write has made the first process map the second one's memory.
fn mapped(access: u32) -> (World, [End; 2], [Memory; 2], [u32; 2]) {
    let memory = [Memory::new(1 << 16), Memory::shared(1 << 16)];
    let mut world = World::new();
    world.with_directories();
    let ends = world.connect([0, 1]);
    let keys = [world.register(0, &memory[0], ALL), world.register(1, &memory[1], access)];
    memory[0].fill(3);
    let list = [sge(&memory[0], keys[0], 0, 8)];
    world.send(ends[0], &remote(request(WRITE, 1, &list), &memory[1], 0, keys[1])).unwrap();
    assert!(world.poll(0).is_empty(), "not mapped yet");
    world.settle();
    assert_eq!(world.statuses(0), [(1, 0)]);
    world.events(1);
    (world, ends, memory, keys)
}

#[test]
fn mapped_memory_is_reached_while_its_process_does_nothing() {
    let (mut world, [a, _], [here, there], [key, rkey]) = mapped(ALL);
    let list = [sge(&here, key, 0, 10_000), sge(&here, key, 20_000, 5)];
    world.send(a, &remote(request(WRITE, 2, &list), &there, 100, rkey)).unwrap();
    let list = [sge(&here, key, 30_000, 10_005)];
    world.send(a, &remote(request(READ, 3, &list), &there, 100, rkey)).unwrap();
    there.write(60_000, &7_u64.to_ne_bytes());
    let list = [sge(&here, key, 50_000, 8)];
    let swap = Post { compare_add: 7, swap: 8, ..request(SWAP, 4, &list) };
    world.send(a, &remote(swap, &there, 60_000, rkey)).unwrap();
    assert_eq!(world.statuses(0), [(2, 0), (3, 0), (4, 0)]);
    let mut expected = here.read(0, 10_000);
    expected.extend(here.read(20_000, 5));
    assert_eq!(there.read(100, 10_005), expected);
    assert_eq!(here.read(30_000, 10_005), expected);
    assert_eq!((here.word(50_000), there.word(60_000)), (7, 8));
}

#[test]
fn a_mapping_is_of_no_use_for_what_the_target_does_not_allow() {
    let access_error = status::IBV_WC_REM_ACCESS_ERR.0;
    // Cases: a deregistered region, a region without the right, a queue pair without the right,
    // bytes beyond the end.
    for case in 0..4 {
        let (mut world, [a, b], [here, there], [key, rkey]) = mapped(if case == 1 { ALL - 4 } else { ALL });
        let opcode = if case == 1 { READ } else { WRITE };
        let list = [sge(&here, key, 0, 8)];
        let mut bad = remote(request(opcode, 2, &list), &there, 64, rkey);
        match case {
            0 => world.nodes[1].engine.deregister(rkey).unwrap(),
            2 => world.modify(b, &ModifyQp { access: Some(0), ..ModifyQp::default() }),
            3 => bad.remote_addr = there.addr() + there.len() as u64 - 7,
            _ => {}
        }
        world.send(a, &bad).unwrap();
        assert!(world.poll(0).is_empty());
        world.settle();
        assert_eq!(world.statuses(0), [(2, access_error)], "case {case}");
        assert_eq!(there.read(64, 8), [0; 8]);
        assert_eq!(world.events(1), [event::IBV_EVENT_QP_ACCESS_ERR.0]);
        assert_eq!(world.state(b), QpState::Err);
    }
}

#[test]
fn a_target_that_no_longer_hears_is_not_written_to() {
    let (mut world, [a, b], [here, there], [key, rkey]) = mapped(ALL);
    world.set_state(b, QpState::Err);
    let list = [sge(&here, key, 0, 8)];
    world.send(a, &remote(request(WRITE, 2, &list), &there, 64, rkey)).unwrap();
    world.run_for(8 * (4096 << 14));
    assert_eq!(world.statuses(0), [(2, status::IBV_WC_RETRY_EXC_ERR.0)]);
    assert_eq!(there.read(64, 8), [0; 8]);
}

#[test]
fn a_new_region_under_an_old_index_is_mapped_anew() {
    let (mut world, [a, _], [here, there], [key, old]) = mapped(ALL);
    world.nodes[1].engine.deregister(old).unwrap();
    let other = Memory::shared(1 << 16);
    let new = world.register(1, &other, ALL);
    assert_eq!((old >> 12, old == new), (new >> 12, false));
    let list = [sge(&here, key, 0, 8)];
    for id in 2..4 {
        world.send(a, &remote(request(WRITE, id, &list), &other, 8 * id as usize, new)).unwrap();
        if id == 2 {
            assert!(world.poll(0).is_empty());
            world.settle();
        }
        assert_eq!(world.statuses(0), [(id, 0)]);
    }
    assert_eq!(other.read(16, 16), [here.read(0, 8), here.read(0, 8)].concat());
    assert_eq!(there.read(16, 16), [0; 16]);
}

/// Keys have few bits, so a key is used again sooner or later. A requester that mapped the key's
/// earlier region must not take that mapping for the new region.
#[test]
fn a_key_that_comes_again_does_not_name_the_old_mapping() {
    let (mut world, [a, _], [here, there], [key, old]) = mapped(ALL);
    world.nodes[1].engine.deregister(old).unwrap();
    let other = Memory::shared(1 << 16);
    let mut new = world.register(1, &other, ALL);
    for _ in 0..100_000 {
        if new == old {
            break;
        }
        world.nodes[1].engine.deregister(new).unwrap();
        new = world.register(1, &other, ALL);
    }
    let list = [sge(&here, key, 0, 8)];
    for id in 2..4 {
        world.send(a, &remote(request(WRITE, id, &list), &other, 8 * id as usize, new)).unwrap();
        world.settle();
        assert_eq!(world.statuses(0), [(id, 0)]);
    }
    assert_eq!(new, old, "no key came again: this shows nothing");
    assert_eq!(other.read(16, 16), [here.read(0, 8), here.read(0, 8)].concat());
    assert_eq!(there.read(16, 16), [0; 16]);
}

#[test]
fn a_write_overtakes_sends_but_no_change_of_memory() {
    let (mut world, [a, b], [here, there], [key, rkey]) = mapped(ALL);
    for id in 0..3 {
        world.recv(b, id, &[]).unwrap();
    }
    let private = Memory::new(64);
    let unmapped = world.register(1, &private, ALL);
    let list = [sge(&here, key, 0, 8)];
    world.send(a, &request(SEND, 2, &[])).unwrap();
    world.step(0);
    world.send(a, &remote(request(WRITE, 3, &list), &there, 64, rkey)).unwrap();
    assert_eq!(there.read(64, 8), here.read(0, 8), "written past the send");
    assert!(world.poll(0).is_empty(), "but not complete before it");
    world.send(a, &remote(request(WRITE, 4, &list), &private, 0, unmapped)).unwrap();
    world.send(a, &remote(request(WRITE, 5, &list), &there, 72, rkey)).unwrap();
    world.step(0);
    assert_eq!(there.read(72, 8), [0; 8], "waits for the write before it");
    world.settle();
    assert_eq!(world.statuses(0), [(2, 0), (3, 0), (4, 0), (5, 0)]);
    assert_eq!(there.read(72, 8), here.read(0, 8));
}

#[test]
fn a_write_with_immediate_is_written_directly_and_announced_through_the_link() {
    let (mut world, [a, b], [here, there], [key, rkey]) = mapped(ALL);
    let list = [sge(&here, key, 0, 5000)];
    let write = Post { imm: 9, ..request(WRITE_IMM, 2, &list) };
    world.send(a, &remote(write, &there, 64, rkey)).unwrap();
    world.step(0);
    assert_eq!(there.read(64, 5000), here.read(0, 5000), "there before the receiver has done anything");
    world.run_for(10_000_000);
    assert!(world.poll(0).is_empty(), "no receive was posted");
    world.recv(b, 1, &[]).unwrap();
    world.run_for(10_000_000);
    let wcs = world.poll(1);
    assert_eq!((wcs[0].wr_id, wcs[0].byte_len, wcs[0].imm), (1, 5000, Some(9)));
    assert_eq!(world.statuses(0), [(2, 0)]);
}

#[test]
fn a_long_write_lets_others_run() {
    let (here, there) = (Memory::new(5 << 20), Memory::new(5 << 20));
    let mut world = World::new();
    let [a, _] = world.connect([0, 0]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(0, &there, ALL);
    here.fill(7);
    let list = [sge(&here, key, 0, 5 << 20)];
    world.send(a, &remote(request(WRITE, 1, &list), &there, 0, rkey)).unwrap();
    assert!(world.poll(0).is_empty());
    let mut steps = 0;
    while world.poll(0).is_empty() {
        world.step(0);
        steps += 1;
        assert!(steps < 20);
    }
    assert!(steps >= 4, "{steps}");
    assert_eq!(there.read(0, 5 << 20), here.read(0, 5 << 20));
}

#[test]
fn a_mapping_is_given_back_when_its_region_ends() {
    let (mut world, _, [_here, _there], [_, rkey]) = mapped(ALL);
    assert!(!world.nodes[0].engine.has_unmapped());
    world.nodes[1].engine.deregister(rkey).unwrap();
    world.settle();
    assert_eq!(world.nodes[0].engine.take_unmapped().len(), 1);
    // A forged `Revoked` frame ends no mapping.
    let mut revoked = Frame::new(Kind::Revoked, 0, 4094 << 12, 0, 0);
    for key in [rkey, 0, u32::MAX] {
        revoked.key = key;
        world.nodes[0].engine.handle_frame(LinkId(1), &revoked.encode(), Source::EMPTY);
    }
    assert!(!world.nodes[0].engine.has_unmapped());
}

#[test]
fn only_a_region_that_was_asked_for_is_wanted() {
    let (mut world, [a, _], [here, there], [key, rkey]) = mapped(ALL);
    let engine = &mut world.nodes[0].engine;
    for link in [LinkId(0), LinkId(1), LinkId(9)] {
        for key in [rkey, rkey ^ 1, 0, u32::MAX] {
            assert!(!engine.wants_mapping(link, key), "it is mapped, or was never asked for");
        }
    }
    world.nodes[1].engine.deregister(rkey).unwrap();
    let new = world.register(1, &there, ALL);
    world.send(a, &remote(request(WRITE, 2, &[sge(&here, key, 0, 8)]), &there, 64, new)).unwrap();
    let engine = &mut world.nodes[0].engine;
    assert!(engine.wants_mapping(LinkId(1), new) && !engine.wants_mapping(LinkId(0), new));
    // The region is deregistered before the grant arrives.
    world.nodes[1].engine.deregister(new).unwrap();
    world.settle();
    assert!(!world.nodes[0].engine.wants_mapping(LinkId(1), new));
    assert_eq!(world.nodes[0].engine.take_unmapped().len(), 1);
}
