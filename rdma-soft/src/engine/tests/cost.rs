//! What the engine itself costs: no link, no lock.

use std::time::Instant;

use rdma_sys::ibv_wc;

use super::world::*;
use crate::engine::*;

/// A link that is an array: as cheap as can be.
struct Fast {
    frames: Vec<(Header, [u8; 64], usize)>,
}

impl Outbound for Fast {
    fn max_payload(&self) -> usize {
        4096
    }

    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool {
        let mut bytes = [0; 64];
        let fits = payload.copy_to(Target::of(&mut bytes));
        self.frames.push((*header, bytes, payload.len()));
        fits
    }
}

fn time(name: &str, mut round: impl FnMut()) {
    const ROUNDS: u32 = 200_000;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            round();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS));
    }
    println!("{name}: {best:.1} ns");
}

fn carry(from: &mut Engine, to: &mut Engine, link: &mut Fast) {
    while let Some(id) = from.poll_active_link() {
        from.poll_transmit(id, link);
    }
    for (header, bytes, len) in link.frames.drain(..) {
        to.handle_frame(LinkId(1), &header, Source::of(&bytes[..len]));
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -p rdma-soft cost -- --ignored --nocapture"]
fn cost_of_small_messages() {
    let (here, there) = (Memory::new(4096), Memory::new(4096));
    let mut world = World::new();
    let [a, b] = world.connect([0, 1]);
    let key = world.register(0, &here, ALL);
    let rkey = world.register(1, &there, ALL);
    let from = [sge(&here, key, 0, 64)];
    let to = [sge(&there, rkey, 0, 64)];
    let mut link = Fast { frames: Vec::with_capacity(16) };
    let mut wc = [ibv_wc::default(); 4];
    let cqs = [world.nodes[0].cq, world.nodes[1].cq];
    let [one, two] = &mut world.nodes;
    let (one, two) = (&mut one.engine, &mut two.engine);
    let send = request(SEND, 1, &from);
    time("64 B send, both sides, with its acknowledgement", || {
        two.post_recv(b.qp, 1, &to).unwrap();
        one.post_send(a.qp, &send).unwrap();
        carry(one, two, &mut link);
        assert_eq!(two.poll_cq(cqs[1], &mut wc), Ok(1));
        carry(two, one, &mut link);
        assert_eq!(one.poll_cq(cqs[0], &mut wc), Ok(1));
    });
    let write = remote(request(WRITE, 1, &from), &there, 0, rkey);
    time("64 B write, both sides, with its acknowledgement", || {
        one.post_send(a.qp, &write).unwrap();
        carry(one, two, &mut link);
        carry(two, one, &mut link);
        assert_eq!(one.poll_cq(cqs[0], &mut wc), Ok(1));
    });
    let [a, _] = world.connect([0, 0]);
    let rkey = world.register(0, &there, ALL);
    let one = &mut world.nodes[0].engine;
    let write = remote(request(WRITE, 1, &from), &there, 0, rkey);
    time("64 B write in one process", || {
        one.post_send(a.qp, &write).unwrap();
        assert_eq!(one.poll_cq(cqs[0], &mut wc), Ok(1));
    });
}
