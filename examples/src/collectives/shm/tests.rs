//! Ranks as threads, which meet as processes do.

use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use serde_json::json;

use super::*;
use crate::bootstrap::{Group, Place, Roles, Root, Terms, listen_locally};
use crate::collectives::element::{Element, Reduction};
use crate::collectives::wait::Patience;

const LONG: Duration = Duration::from_secs(60);

/// Runs `body` in `world` ranks that share memory. `job` is a number of the test's own.
fn ranks(world: usize, job: u64, body: impl Fn(&mut Host, &mut Group) + Clone + Send + 'static) {
    let job = u64::from(std::process::id()) << 32 | job << 8 | world as u64;
    let (socket, address) = listen_locally(job).unwrap();
    let mut socket = Some(socket);
    let threads: Vec<_> = (0..world)
        .map(|rank| {
            let root = socket.take().map_or_else(|| Root::Address(address.clone()), Root::Listener);
            let (place, body) = (Place { rank, world, root, job }, body.clone());
            thread::spawn(move || {
                let terms = Terms::new("test", &json!({}), Roles::Ranks, LONG);
                let mut group = Group::meet(place, &terms).unwrap();
                let patience = Patience::new(group.watch(), true, LONG);
                let mut host = Host::connect(&mut group, patience).unwrap().unwrap();
                body(&mut host, &mut group);
                group.conclude(Ok(())).unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A rank's element; sums and products of all ranks' are exact in every type.
fn element<T: Element>(rank: usize, index: usize) -> T {
    T::from_small(1 + u16::from((rank + index) % 3 == 0))
}

fn expected<T: Element>(world: usize, count: usize, reduction: Reduction) -> Vec<T> {
    let elements = |rank| -> Vec<T> { (0..count).map(|index| element(rank, index)).collect() };
    let mut result = elements(0);
    (1..world).for_each(|rank| T::reduce(reduction, &mut result, &elements(rank)));
    reduction.finish(&mut result, world);
    result
}

/// Reduces out of place and in place, twice each.
fn check<T: Element>(host: &mut Host, group: &mut Group, counts: &[usize], reductions: &[Reduction]) {
    let bytes = counts.iter().max().unwrap() * size_of::<T>();
    let (input, output) = (host.allocate(group, bytes).unwrap(), host.allocate(group, bytes).unwrap());
    for &count in counts {
        for &reduction in reductions {
            let expected = expected::<T>(group.world(), count, reduction);
            let elements: Vec<T> = (0..count).map(|index| element(group.rank(), index)).collect();
            for input in [&input, &output, &input, &output] {
                input.copy_in(0, bytemuck::cast_slice(&elements)).unwrap();
                let bytes = count * size_of::<T>();
                AllReduce { host, input, output: &output, bytes, reduction }.run::<T>().unwrap();
                let mut result = vec![T::zeroed(); count];
                output.copy_out(0, bytemuck::cast_slice_mut(&mut result)).unwrap();
                assert!(result == expected, "{} x {count}, {reduction:?}, {} ranks", T::NAME, group.world());
            }
        }
    }
}

#[test]
fn tensors_of_every_size_are_reduced() {
    for world in [2, 3, 5] {
        ranks(world, 1, |host, group| {
            check::<f32>(host, group, &[1, 2, 1000, 1024, 1025, 5000, 300_001], &[Reduction::Sum]);
            check::<u8>(host, group, &[1, 7, 4096, 4097, 70_001], &[Reduction::Max]);
        });
    }
}

#[test]
fn every_type_and_reduction_is_reduced() {
    ranks(3, 2, |host, group| {
        let counts = [3, 5000];
        check::<f16>(host, group, &counts, &Reduction::ALL);
        check::<bf16>(host, group, &counts, &Reduction::ALL);
        check::<f32>(host, group, &counts, &Reduction::ALL);
        check::<f64>(host, group, &counts, &Reduction::ALL);
        check::<i8>(host, group, &counts, &Reduction::ALL);
        check::<u8>(host, group, &counts, &Reduction::ALL);
        check::<i32>(host, group, &counts, &Reduction::ALL);
        check::<u32>(host, group, &counts, &Reduction::ALL);
        check::<i64>(host, group, &counts, &Reduction::ALL);
        check::<u64>(host, group, &counts, &Reduction::ALL);
    });
}

#[test]
fn more_ranks_than_room_for_operands_on_the_stack() {
    ranks(10, 3, |host, group| check::<u32>(host, group, &[1, 5000], &[Reduction::Sum]));
}

#[test]
fn a_rank_that_gives_other_memory_than_agreed_is_named() {
    ranks(2, 4, |host, group| {
        let refused = host.allocate(group, 100 + group.rank()).unwrap_err().to_string();
        assert!(refused.contains("gave other memory than agreed"), "{refused}");
    });
}
