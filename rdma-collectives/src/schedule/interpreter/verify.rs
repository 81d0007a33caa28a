//! Verifies the schedules of all ranks together.

use super::{Flaw, Machine, SymbolRun, Trace};
use crate::{Collective, Job, Schedule};

/// Consecutive elements of an output as the collective demands them.
struct ExpectedRun {
    length: usize,
    /// The rank whose input they are, or nothing for the reduction of all inputs.
    from: Option<usize>,
    /// The first of the input's elements.
    first: usize,
}

/// Runs the schedules of all ranks on symbols: each element of the output must be the right one of
/// the inputs, or the reduction of all ranks' inputs, each once. In an all-reduce all ranks must
/// reduce in the same order. The order of execution depends on the seed.
///
/// # Errors
/// [`Flaw`] names the rank and the step that break a rule, or the wrong element.
pub fn verify(op: Collective, job: &Job, schedules: &[Schedule], seed: u64) -> Result<Trace, Flaw> {
    job.at(0).check(op)?;
    if schedules.len() != job.processes() {
        return Err(Flaw::Schedules { given: schedules.len(), ranks: job.processes() });
    }
    let mut machine = Machine::new(op, job, schedules);
    machine.run(seed)?;
    let mut first_output = None;
    for rank in 0..job.ranks {
        let output = check_output(op, &job.at(rank), &machine)?;
        let same = first_output.get_or_insert_with(|| output.clone());
        if op == Collective::AllReduce && *same != output {
            let (a, b) = (same.iter(), output.iter());
            let element = a.zip(b).find(|(a, b)| a != b).map_or(0, |(_, run)| run.elements.start);
            return Err(Flaw::Output { rank, element, found: "reduced in another order than at rank 0" });
        }
        if op == Collective::Barrier && machine.heard(rank) < job.ranks {
            return Err(Flaw::Barrier { rank, heard: machine.heard(rank) });
        }
    }
    Ok(machine.trace())
}

fn check_output(op: Collective, job: &Job, machine: &Machine<'_>) -> Result<Vec<SymbolRun>, Flaw> {
    let rank = job.rank;
    let wrong = |element, found| Flaw::Output { rank, element, found };
    let output = machine.output(rank).map_err(|element| wrong(element, "missing"))?;
    let mut start = 0;
    for expected in expected(op, job) {
        let end = start + expected.length;
        for run in output.iter().filter(|run| run.elements.start < end && start < run.elements.end) {
            let element = run.elements.start.max(start);
            if run.first + element - run.elements.start != expected.first + element - start {
                return Err(wrong(element, "another element of the inputs"));
            }
            match expected.from {
                Some(from) if !Machine::is_input_of(run.symbol, from) => {
                    return Err(wrong(element, "not the input of the right rank"));
                }
                None if !machine.is_complete(run.symbol) => {
                    return Err(wrong(element, "not the reduction of all inputs"));
                }
                _ => {}
            }
        }
        start = end;
    }
    Ok(output)
}

/// The output that a collective demands at the job's rank.
fn expected(op: Collective, job: &Job) -> Vec<ExpectedRun> {
    let (rank, n, count) = (job.rank, job.ranks, job.count);
    let all = |length, from, first| vec![ExpectedRun { length, from, first }];
    let block = |rank: usize| job.block(rank);
    let blocks = || (0..n).map(|from| ExpectedRun { length: block(from).len(), from: Some(from), first: 0 }).collect();
    let at_root = |expected: Vec<ExpectedRun>| if rank == job.root { expected } else { Vec::new() };
    match op {
        Collective::AllReduce => all(count, None, 0),
        Collective::Reduce => at_root(all(count, None, 0)),
        Collective::ReduceScatter => all(block(rank).len(), None, block(rank).start),
        Collective::AllGather | Collective::HyperCube => blocks(),
        Collective::Gather => at_root(blocks()),
        Collective::Broadcast => all(count, Some(job.root), 0),
        Collective::Scatter => all(block(rank).len(), Some(job.root), block(rank).start),
        Collective::SendRecv => all(count, Some((rank + n - 1) % n), 0),
        Collective::AllToAll | Collective::AllToAllV => (0..n)
            .map(|from| {
                let length = job.received(op, from).len();
                ExpectedRun { length, from: Some(from), first: job.at(from).sent(op, rank).start }
            })
            .collect(),
        Collective::Barrier => Vec::new(),
    }
}
