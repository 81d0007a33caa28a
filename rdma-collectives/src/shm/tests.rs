//! Ranks as threads, which meet as processes do.

use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use serde_json::json;

use super::*;
use crate::blocks::Blocks;
use crate::bootstrap::{Group, Place, Roles, Root, Terms, listen_locally};
use crate::element::{Element, Reduction};
use crate::execute::{Execution, Memory};
use crate::link::{Links, Slice};
use crate::numbers::Numbers;
use crate::wait::Patience;
use crate::{Algorithm, Collective, Job, build};

const LONG: Duration = Duration::from_secs(60);

/// Runs `body` in `world` ranks that share memory. `job` is a number of the test's own.
pub(super) fn ranks(world: usize, job: u64, body: impl Fn(&mut Host, &mut Group) + Clone + Send + 'static) {
    patient_ranks(world, job, LONG, body);
}

/// Runs `body` as [`ranks`] does; a rank waits for another's memory to change for at most `stall`.
fn patient_ranks(
    world: usize,
    job: u64,
    stall: Duration,
    body: impl Fn(&mut Host, &mut Group) + Clone + Send + 'static,
) {
    let job = u64::from(std::process::id()) << 32 | job << 8 | world as u64;
    let (socket, address) = listen_locally(job).unwrap();
    let mut socket = Some(socket);
    let threads: Vec<_> = (0..world)
        .map(|rank| {
            let root = socket.take().map_or_else(|| Root::Address(address.clone()), Root::Listener);
            let (place, body) = (Place { rank, ranks: world, root, job }, body.clone());
            thread::spawn(move || {
                let terms = Terms::new("test", &json!({}), Roles::Ranks, LONG);
                let mut group = Group::meet(place, &terms).unwrap();
                let patience = Patience::new(group.watch(), true, stall);
                let (mut host, why_not) = Host::connect(&mut group, patience).unwrap();
                assert!(host.is_whole(), "{why_not:?}");
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

/// Reduces out of place and in place, twice each, with those reductions that the type has.
fn check<T: Element>(host: &mut Host, group: &mut Group, counts: &[usize], reductions: &[Reduction]) {
    let bytes = counts.iter().max().unwrap() * size_of::<T>();
    let (input, output) = (host.allocate(group, bytes).unwrap(), host.allocate(group, bytes).unwrap());
    for &count in counts {
        for &reduction in reductions.iter().filter(|reduction| reduction.supports(T::TYPE)) {
            let expected = expected::<T>(group.ranks(), count, reduction);
            let elements: Vec<T> = (0..count).map(|index| element(group.rank(), index)).collect();
            for input in [&input, &output, &input, &output] {
                input.copy_in(0, bytemuck::cast_slice(&elements)).unwrap();
                let bytes = count * size_of::<T>();
                AllReduce { host, input, output: &output, bytes, reduction }.run::<T>().unwrap();
                let mut result = vec![T::zeroed(); count];
                output.copy_out(0, bytemuck::cast_slice_mut(&mut result)).unwrap();
                assert!(result == expected, "{} x {count}, {reduction:?}, {} ranks", T::NAME, group.ranks());
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

/// Nothing but the collective keeps a rank from overwriting what another one still reads.
#[test]
fn reductions_in_place_follow_each_other() {
    const COUNT: usize = 20_000;
    for world in [2, 3] {
        ranks(world, 7, move |host, group| {
            let tensor = host.allocate(group, 4 * COUNT).unwrap();
            let elements = |rank: usize| (0..COUNT).map(move |index| u32::try_from(rank + index).unwrap());
            tensor.copy_in(0, bytemuck::cast_slice(&elements(group.rank()).collect::<Vec<_>>())).unwrap();
            let mut expected: Vec<u32> = elements(0).collect();
            for rank in 1..world {
                expected.iter_mut().zip(elements(rank)).for_each(|(sum, element)| *sum += element);
            }
            for round in 0..300 {
                let bytes = 4 * if round == 0 { COUNT } else { COUNT - 100 * (round * 7 % 190) };
                let reduction = Reduction::Sum;
                AllReduce { host, input: &tensor, output: &tensor, bytes, reduction }.run::<u32>().unwrap();
                if round > 0 {
                    let factor = u32::try_from(world).unwrap();
                    expected[..bytes / 4].iter_mut().for_each(|sum| *sum = sum.wrapping_mul(factor));
                }
            }
            let mut found = vec![0_u32; COUNT];
            tensor.copy_out(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
            assert!(found == expected, "{world} ranks");
        });
    }
}

#[test]
fn every_type_and_reduction_is_reduced() {
    ranks(3, 2, |host, group| {
        let counts = [3, 5000];
        check::<f16>(host, group, &counts, Reduction::ALL);
        check::<bf16>(host, group, &counts, Reduction::ALL);
        check::<f32>(host, group, &counts, Reduction::ALL);
        check::<f64>(host, group, &counts, Reduction::ALL);
        check::<i8>(host, group, &counts, Reduction::ALL);
        check::<u8>(host, group, &counts, Reduction::ALL);
        check::<i32>(host, group, &counts, Reduction::ALL);
        check::<u32>(host, group, &counts, Reduction::ALL);
        check::<i64>(host, group, &counts, Reduction::ALL);
        check::<u64>(host, group, &counts, Reduction::ALL);
    });
}

/// Runs schedules of all-reduce, some of which use scratch memory, and all of which share links.
fn check_schedules(host: &mut Host, group: &mut Group, counts: &[usize], piece: usize) {
    let most = counts.iter().max().unwrap() * size_of::<f32>();
    let (input, output) = (host.allocate(group, most).unwrap(), host.allocate(group, most).unwrap());
    let (mut blocks, mut runs) = (Blocks::new(), 0);
    for (&algorithm, &count) in Algorithm::ALL.iter().flat_map(|a| counts.iter().map(move |c| (a, c))) {
        let mut job = Job::new(group.rank(), group.ranks(), count);
        job.chunk = 1000;
        let Ok(schedule) = build(Collective::AllReduce, algorithm, &job) else { continue };
        runs += 1;
        let elements: Vec<f32> = (0..count).map(|index| element(group.rank(), index)).collect();
        input.copy_in(0, bytemuck::cast_slice(&elements)).unwrap();
        let slice = |tensor: &SharedTensor| tensor.slice(0..count * size_of::<f32>()).unwrap();
        let scratch = host.scratch(schedule.scratch * size_of::<f32>()).unwrap();
        let memory = Memory { input: slice(&input), output: slice(&output), scratch };
        let mut links = HostLinks::new(host, [&input, &output].into_iter(), piece).unwrap();
        Execution::new(&mut links, &mut blocks, &memory, Reduction::Sum).run::<f32>(&schedule).unwrap();
        let mut result = vec![0_f32; count];
        output.copy_out(0, bytemuck::cast_slice_mut(&mut result)).unwrap();
        assert!(result == expected::<f32>(group.ranks(), count, Reduction::Sum), "{algorithm:?} x {count}");
    }
    assert!(runs >= 4 * counts.len());
}

#[test]
fn schedules_read_messages_where_they_lie() {
    for world in [2, 4, 5] {
        ranks(world, 5, |host, group| {
            check_schedules(host, group, &[1, 17, 5000, 20_011], UNCUT);
            // A tensor that is allocated after scratch memory was given; messages in pieces.
            check_schedules(host, group, &[40_000], 4096);
        });
    }
}

#[test]
fn more_ranks_than_room_for_operands_on_the_stack() {
    ranks(10, 3, |host, group| check::<u32>(host, group, &[1, 5000], &[Reduction::Sum]));
}

#[test]
fn a_rank_that_gives_other_memory_than_agreed_is_named() {
    ranks(2, 4, |host, group| {
        let refused = host.allocate(group, 100 + group.rank()).unwrap_err().to_string();
        assert!(refused.contains("gave other memory than agreed: "), "{refused}");
        assert!(refused.contains("100 ") && refused.contains("101 "), "{refused}");
    });
}

/// A word of the kinds that a rank might store: small, near a limit, or any.
fn word(numbers: &mut Numbers, of: &[u64]) -> u64 {
    let any = numbers.next();
    match any % 4 {
        0 => any >> 32 & 0xff,
        1 => any,
        2 => (1 << (any >> 32 & 0x3f)) - (any >> 40 & 1),
        _ => of[usize::try_from(any >> 8).unwrap() % of.len()],
    }
}

/// Whatever a rank announces, the other one gets bytes of the memory that it has mapped, or an
/// error that does not take long.
#[test]
fn announcements_of_any_words_name_memory_or_fail() {
    const LEN: usize = 64;
    patient_ranks(2, 12, Duration::from_millis(20), |host, group| {
        let tensor = host.allocate(group, 4096).unwrap();
        host.scratch(5000).unwrap();
        let mut numbers = Numbers::of(1);
        let mut found = 0;
        for _ in 0..20 {
            group.barrier("announcements").unwrap();
            if group.rank() == 1 {
                for _ in 0..8 {
                    let segment = word(&mut numbers, &[tensor.number(), tensor.number(), 1 << 63 | 1]);
                    let (start, len) = (word(&mut numbers, &[0, 4032, 4033]), word(&mut numbers, &[64, 64, 65]));
                    host.post(0, mail::Announcement { segment, start, len }).unwrap();
                }
            }
            group.barrier("announcements").unwrap();
            for _ in 0..if group.rank() == 0 { 8 } else { 0 } {
                let mut links = HostLinks::new(host, std::iter::once(&tensor), UNCUT).unwrap();
                match links.arrived(1, LEN) {
                    Ok(Some(slice)) => {
                        assert_eq!(slice.len(), LEN);
                        slice.addresses().unwrap();
                        links.release(1).unwrap();
                        found += 1;
                    }
                    Ok(None) => panic!("an announcement is lost"),
                    Err(_) => host.mail().take(1).unwrap(),
                }
            }
        }
        assert!(group.rank() == 1 || found > 0);
    });
}

/// A rank that counts as it likes neither stops another one for longer than its patience nor makes
/// it touch other memory.
#[test]
fn counters_of_any_value_let_the_others_end() {
    patient_ranks(2, 8, Duration::from_millis(20), |host, group| {
        let tensor = host.allocate(group, 8192).unwrap();
        let mut numbers = Numbers::of(2);
        for round in 0..20 {
            group.barrier("counters").unwrap();
            if group.rank() == 1 {
                for _ in 0..100 {
                    host.clock().publish(word(&mut numbers, &[u64::MAX, 1])).unwrap();
                    host.clock().end(word(&mut numbers, &[u64::MAX, 1])).unwrap();
                }
            } else {
                let bytes = if round % 2 == 0 { 64 } else { 8192 };
                let all = AllReduce { host, input: &tensor, output: &tensor, bytes, reduction: Reduction::Sum };
                // The result is wrong, if there is one.
                drop(all.run::<f32>());
            }
        }
    });
}
