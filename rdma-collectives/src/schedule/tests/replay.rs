//! Schedules on real elements: the results are right for every type, and the same bits on every
//! rank.

use std::collections::VecDeque;
use std::ops::Range;

use half::{bf16, f16};

use crate::element::{Element, Reduction};
use crate::schedule::interpreter::build_all;
use crate::schedule::step::{Place, Schedule, Source, Span, Step};
use crate::{Algorithm, Collective, Job, Layout};

/// One rank's memory; input and output are one vector in place.
struct Player<T> {
    memories: [Vec<T>; 3],
    layout: Layout,
    in_place: bool,
    next: usize,
}

impl<T: Element> Player<T> {
    fn new(op: Collective, job: &Job, schedule: &Schedule, input: &[T]) -> Self {
        let (layout, blank) = (job.layout(op), T::from_small(99));
        let mut memories = [Vec::new(), vec![blank; layout.output.len()], vec![blank; schedule.scratch]];
        if job.in_place {
            memories[1] = vec![blank; layout.memory()];
            memories[1][layout.input.clone()].copy_from_slice(&input[..layout.input.len()]);
        } else {
            memories[0] = input[..layout.input.len()].to_vec();
        }
        Self { memories, layout, in_place: job.in_place, next: 0 }
    }

    fn elements(&mut self, span: &Span) -> &mut [T] {
        let Range { start, end } = span.elements;
        let (memory, offset) = match span.place {
            Place::Scratch => (2, 0),
            Place::Input if self.in_place => (1, self.layout.input.start),
            Place::Output if self.in_place => (1, self.layout.output.start),
            Place::Input => (0, 0),
            Place::Output => (1, 0),
        };
        &mut self.memories[memory][offset + start..offset + end]
    }

    fn output(&mut self) -> Vec<T> {
        let whole = Span { place: Place::Output, elements: 0..self.layout.output.len() };
        self.elements(&whole).to_vec()
    }
}

/// Runs verified schedules. Messages are copied when they are sent, which the interpreter has shown
/// to make no difference.
fn play<T: Element>(
    op: Collective,
    algorithm: Algorithm,
    job: &Job,
    with: Reduction,
    inputs: &[Vec<T>],
) -> Vec<Vec<T>> {
    let schedules = build_all(op, algorithm, job).unwrap();
    let processes = job.processes();
    let input = |rank: usize| inputs.get(rank).map_or(&[][..], Vec::as_slice);
    let player = |rank: usize| Player::new(op, &job.at(rank), &schedules[rank], input(rank));
    let mut players: Vec<_> = (0..processes).map(player).collect();
    let mut wires = vec![vec![VecDeque::<Vec<T>>::new(); processes]; processes];
    loop {
        let mut moved = false;
        for rank in 0..processes {
            let player = &mut players[rank];
            let Some(step) = schedules[rank].steps.get(player.next) else { continue };
            match step {
                Step::Send { to, span } => wires[rank][*to].push_back(player.elements(span).to_vec()),
                Step::Combine { sources, into } => {
                    let missing =
                        |source: &Source| matches!(source, Source::Message { from } if wires[*from][rank].is_empty());
                    if sources.iter().any(missing) {
                        continue;
                    }
                    let mut operands = sources.iter().map(|source| match source {
                        Source::Local(span) => player.elements(span).to_vec(),
                        Source::Message { from } => wires[*from][rank].pop_front().unwrap(),
                    });
                    let mut result = operands.next().unwrap();
                    operands.for_each(|operand| T::reduce(with, &mut result, &operand));
                    player.elements(into).copy_from_slice(&result);
                }
            }
            player.next += 1;
            moved = true;
        }
        if !moved {
            return players.iter_mut().take(job.ranks).map(Player::output).collect();
        }
    }
}

/// Small whole numbers, whose sums are exact in every type.
fn small<T: Element>(rank: usize, element: usize) -> T {
    T::from_small(u16::try_from((rank * 3 + element) % 4).unwrap())
}

fn reduces<T: Element>() {
    let (ranks, count) = (5, 100);
    let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| (0..count).map(|i| small(rank, i)).collect()).collect();
    for with in [Reduction::Sum, Reduction::Prod, Reduction::Min, Reduction::Max] {
        let mut expected = inputs[0].clone();
        inputs[1..].iter().for_each(|input| T::reduce(with, &mut expected, input));
        for &algorithm in Algorithm::ALL {
            for in_place in [false, true] {
                let hosts = vec![0, 1, 0, 1, 1];
                let job = Job { in_place, aggregators: 3, chunk: 33, hosts, ..Job::new(0, ranks, count) };
                if algorithm.supports(Collective::AllReduce, &job).is_ok() {
                    let outputs = play(Collective::AllReduce, algorithm, &job, with, &inputs);
                    assert!(outputs.iter().all(|output| *output == expected), "{algorithm} of {}", T::NAME);
                }
            }
        }
    }
}

#[test]
fn every_type_reduces() {
    reduces::<f32>();
    reduces::<f64>();
    reduces::<f16>();
    reduces::<bf16>();
    reduces::<i8>();
    reduces::<u8>();
    reduces::<i32>();
    reduces::<u32>();
    reduces::<i64>();
    reduces::<u64>();
}

/// Sums of these numbers depend on the order of addition.
#[test]
fn all_ranks_get_the_same_bits() {
    let (ranks, count) = (7, 500);
    let value = |rank: usize, i: usize| {
        ((rank * 7919 + i * 104_729) % 1009) as f32 * 1e-3 + 10f32.powi(i32::try_from(rank % 5).unwrap())
    };
    let inputs: Vec<Vec<f32>> = (0..ranks).map(|rank| (0..count).map(|i| value(rank, i)).collect()).collect();
    for &algorithm in Algorithm::ALL {
        let hosts = vec![0, 0, 1, 1, 1, 2, 2];
        let job = Job { aggregators: 5, radix: 2, hosts, ..Job::new(0, ranks, count) };
        if algorithm.supports(Collective::AllReduce, &job).is_err() {
            continue;
        }
        let bits = |job: &Job| -> Vec<Vec<u32>> {
            let outputs = play(Collective::AllReduce, algorithm, job, Reduction::Sum, &inputs);
            outputs.into_iter().map(|output| output.into_iter().map(f32::to_bits).collect()).collect()
        };
        let outputs = bits(&job);
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{algorithm}");
        // Neither the length of messages nor the place of the output changes the result.
        let other = Job { in_place: true, chunk: 17, ..job };
        assert_eq!(bits(&other), outputs, "{algorithm}");
    }
}

#[test]
fn blocks_arrive_where_they_belong() {
    let (ranks, count) = (6, 40);
    let inputs: Vec<Vec<u32>> =
        (0..ranks).map(|rank| (0..ranks * count).map(|i| u32::try_from(rank * 1000 + i).unwrap()).collect()).collect();
    for &algorithm in Algorithm::ALL {
        let job = Job { chunk: 30, ..Job::new(0, ranks, count) };
        if algorithm.collectives().contains(&Collective::AllGather) {
            let outputs = play(Collective::AllGather, algorithm, &job, Reduction::Sum, &inputs);
            let expected: Vec<u32> = inputs.iter().flat_map(|input| &input[..count]).copied().collect();
            assert!(outputs.iter().all(|output| *output == expected), "{algorithm}");
        }
        if algorithm.collectives().contains(&Collective::AllToAll) {
            let outputs = play(Collective::AllToAll, algorithm, &job, Reduction::Sum, &inputs);
            for (rank, output) in outputs.iter().enumerate() {
                let block = rank * count..(rank + 1) * count;
                let expected: Vec<u32> = inputs.iter().flat_map(|input| &input[block.clone()]).copied().collect();
                assert_eq!(*output, expected, "{algorithm}");
            }
        }
    }
}
