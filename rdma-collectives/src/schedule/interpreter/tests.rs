//! The interpreter finds every kind of flaw.

use super::*;

fn span(place: Place, elements: Range<usize>) -> Span {
    Span { place, elements }
}

fn send(to: usize, span: Span) -> Step {
    Step::Send { to, span }
}

fn combine(sources: Vec<Source>, into: Span) -> Step {
    Step::Combine { sources, into }
}

fn input(elements: Range<usize>) -> Span {
    span(Place::Input, elements)
}

fn output(elements: Range<usize>) -> Span {
    span(Place::Output, elements)
}

fn local(span: Span) -> Source {
    Source::Local(span)
}

fn message(from: usize) -> Source {
    Source::Message { from }
}

/// Verifies steps of two ranks as an all-reduce of 4 elements.
fn flaw(steps: [Vec<Step>; 2], in_place: bool) -> Flaw {
    let schedules = steps.map(|steps| Schedule { scratch: 4, steps, ..Schedule::default() });
    let job = Job { in_place, ..Job::new(0, 2, 4) };
    verify(Collective::AllReduce, &job, &schedules, 1).unwrap_err()
}

/// The mistake in the last of some steps of rank 0.
fn mistake(steps: Vec<Step>) -> Mistake {
    match flaw([steps, Vec::new()], false) {
        Flaw::Step { rank: 0, mistake, .. } => mistake,
        other => panic!("{other}"),
    }
}

#[test]
fn a_step_must_stay_inside_its_memory() {
    assert_eq!(mistake(vec![send(1, input(1..5))]), Mistake::Bounds { length: 4 });
    assert_eq!(mistake(vec![combine(vec![local(input(0..4))], input(0..4))]), Mistake::WritesInput);
}

#[test]
fn a_peer_is_another_rank() {
    assert_eq!(mistake(vec![send(0, input(0..4))]), Mistake::Peer(0));
    assert_eq!(mistake(vec![combine(vec![message(2)], output(0..4))]), Mistake::Peer(2));
}

#[test]
fn operands_fit_the_result() {
    assert_eq!(mistake(vec![combine(vec![], output(0..4))]), Mistake::NoOperands);
    let short = combine(vec![local(input(0..3))], output(0..4));
    assert_eq!(mistake(vec![short]), Mistake::Length { operand: 3, result: 4 });
    let copy = combine(vec![local(input(0..4))], output(0..4));
    let shifted = combine(vec![local(output(0..3))], output(1..4));
    assert_eq!(mistake(vec![copy, shifted]), Mistake::PartialOverlap);
}

#[test]
fn an_element_is_written_before_it_is_read() {
    assert_eq!(mistake(vec![send(1, output(2..4))]), Mistake::Unwritten(2));
    let some = combine(vec![local(input(0..2))], output(0..2));
    assert_eq!(mistake(vec![some, combine(vec![local(output(0..4))], output(0..4))]), Mistake::Unwritten(2));
}

#[test]
fn an_element_is_reduced_with_its_counterparts_once() {
    let twice = combine(vec![local(input(0..4)), local(input(0..4))], output(0..4));
    assert_eq!(mistake(vec![twice]), Mistake::Twice(0));
    let steps = [vec![combine(vec![local(input(0..2)), message(1)], output(0..2))], vec![send(0, input(2..4))]];
    let expected = Flaw::Step { rank: 0, step: 0, mistake: Mistake::Mixed { first: 0, second: 2 } };
    assert_eq!(flaw(steps, false), expected);
}

/// Each rank overwrites its input before the other one has read it.
#[test]
fn an_exchange_in_place_deadlocks() {
    let steps = |peer: usize| {
        let sources =
            if peer == 1 { vec![local(input(0..4)), message(1)] } else { vec![message(0), local(input(0..4))] };
        vec![send(peer, input(0..4)), combine(sources, output(0..4))]
    };
    assert_eq!(flaw([steps(1), steps(0)], true), Flaw::Deadlock { rank: 0, step: 1 });
    let schedules = [steps(1), steps(0)].map(|steps| Schedule { steps, ..Schedule::default() });
    verify(Collective::AllReduce, &Job::new(0, 2, 4), &schedules, 1).unwrap();
}

#[test]
fn all_ranks_reduce_in_one_order() {
    let steps =
        |peer: usize| vec![send(peer, input(0..4)), combine(vec![local(input(0..4)), message(peer)], output(0..4))];
    let found = "reduced in another order than at rank 0";
    assert_eq!(flaw([steps(1), steps(0)], false), Flaw::Output { rank: 1, element: 0, found });
}

#[test]
fn the_output_is_complete() {
    let copy = || vec![combine(vec![local(input(0..4))], output(0..4))];
    let found = "not the reduction of all inputs";
    assert_eq!(flaw([copy(), copy()], false), Flaw::Output { rank: 0, element: 0, found });
    let part = vec![combine(vec![local(input(0..2))], output(0..2))];
    assert_eq!(flaw([part, copy()], false), Flaw::Output { rank: 0, element: 2, found: "missing" });
}

#[test]
fn every_message_is_received() {
    let flaw = flaw([vec![send(1, input(0..4))], Vec::new()], false);
    assert_eq!(flaw, Flaw::LeftOver { from: 0, to: 1 });
}

#[test]
fn a_barrier_hears_of_every_rank() {
    let empty = || span(Place::Scratch, 0..0);
    let schedules = [vec![send(1, empty())], vec![combine(vec![message(0)], empty())]];
    let schedules = schedules.map(|steps| Schedule { steps, ..Schedule::default() });
    let flaw = verify(Collective::Barrier, &Job::new(0, 2, 0), &schedules, 1).unwrap_err();
    assert_eq!(flaw, Flaw::Barrier { rank: 0, heard: 1 });
}

/// No algorithm has a step too many, and the interpreter misses none that is left out.
#[test]
fn no_step_can_be_left_out() {
    for algorithm in Algorithm::ALL {
        for &op in algorithm.collectives() {
            let counts = (1..=25).filter(|_| op == Collective::AllToAllV).collect();
            let job = Job { root: 1, chunk: 40, hosts: vec![0, 0, 0, 1, 1], counts, ..Job::new(0, 5, 100) };
            let job = Job { aggregators: 3, radix: 2, ..job };
            let schedules = build_all(op, *algorithm, &job).unwrap();
            for rank in 0..job.processes() {
                for step in 0..schedules[rank].steps.len() {
                    let mut schedules = schedules.clone();
                    let removed = schedules[rank].steps.remove(step);
                    let result = verify(op, &job, &schedules, 1);
                    assert!(result.is_err(), "{op} by {algorithm}: rank {rank} without step {step}, {removed:?}");
                }
            }
        }
    }
}

#[test]
fn the_order_of_execution_does_not_matter() {
    for algorithm in Algorithm::ALL {
        for &op in algorithm.collectives() {
            let counts = if op == Collective::AllToAllV { vec![20; 36] } else { Vec::new() };
            let job = Job { aggregators: 3, chunk: 30, counts, ..Job::new(0, 6, 100) };
            let schedules = build_all(op, *algorithm, &job).unwrap();
            let traces: Vec<_> = (0..8).map(|seed| verify(op, &job, &schedules, seed).unwrap()).collect();
            assert!(traces.iter().all(|trace| *trace == traces[0]), "{op} by {algorithm}");
        }
    }
}
