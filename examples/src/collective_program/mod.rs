//! The program of a collective: measures it by size as nccl-tests does, checks every element of
//! every result, and prints nccl-tests' table.
//!
//! Without arguments the program starts four ranks on this machine; `--rank --world --root` start
//! one rank of a job.

mod case;
mod measure;
mod options;
mod plot;
mod report;
mod shape;

use std::process::ExitCode;

use half::{bf16, f16};
use serde_json::json;

use self::case::Way;
use self::measure::Session;
use self::options::Args;
use self::report::Report;
use crate::Failure;
use crate::bootstrap::{Group, Roles, Terms};
use crate::cli;
use crate::collectives::{Algorithm, AlgorithmTable, Collective, Communicator, Element, Transport, choose};
use crate::device::announce;
use crate::failure::{is_launched, run_as};
use crate::placement;

/// Memory of a rank besides its tensors: scratch memory, and memory for the device.
const OVERHEAD: u128 = 32 << 20;

/// Runs the program of a collective; `about` is the first line of its help.
#[must_use]
pub fn run(collective: Collective, about: &'static str) -> ExitCode {
    run_as(collective.name(), options::command(collective, about), |args: Args| job(collective, &args))
}

/// The bytes of an element of a type, by nccl-tests' name.
fn element_size(dtype: &str) -> usize {
    match dtype {
        <i8 as Element>::NAME | <u8 as Element>::NAME => 1,
        <f16 as Element>::NAME | <bf16 as Element>::NAME => 2,
        <f32 as Element>::NAME | <i32 as Element>::NAME | <u32 as Element>::NAME => 4,
        _ => 8,
    }
}

fn job(collective: Collective, args: &Args) -> Result<(), Failure> {
    args.check(collective)?;
    for dtype in args.dtypes() {
        args.sizes(element_size(dtype))?;
    }
    if !is_launched() {
        let local = args.placement.local_ranks();
        // In an uneven all-to-all a rank sends and receives up to two blocks for each other rank.
        let largest = args.max.0 as u128 * if args.uneven { 2 } else { 1 };
        let needed = local as u128 * (2 * largest + OVERHEAD);
        cli::check_memory(needed, &format!("two tensors of {} for {local} ranks", args.max))?;
    }
    let Some(place) = args.placement.place()? else { return Ok(()) };
    let terms = Terms::new(collective.name(), args, Roles::Ranks, args.placement.timeout);
    placement::run(place, &terms, |group| rank(collective, args, group))
}

/// Runs one rank.
fn rank(collective: Collective, args: &Args, group: &mut Group) -> Result<(), Failure> {
    let roots = group.agree("the root", args.roots(group.world()))?;
    let is_first = group.rank() == 0;
    let is_json_printed = args.is_json_printed();
    let steps = steps(collective, args, roots.len())?;
    let report = Report::new(collective.name(), args, is_first, steps);
    let report = group.agree("the files of the report", report)?;
    let chosen = args.device.open_together(group)?;
    let cores = placement::bind(group, args.placement.bind);
    if is_first {
        announce(&chosen.using(), is_json_printed)?;
    }
    let method = args.connection.settle(&chosen, group, 0, is_json_printed)?;
    let table = table(args, group)?;
    let is_tuned = is_tuned(collective, args.algorithm(), table.as_ref());
    let tuning = args.tuning(cores.shared, method, !is_tuned, args.algorithm() != Some(Algorithm::Ring));
    let mut comm = Communicator::new(&chosen, group, tuning)?;
    let (transport, why) = comm.choose_transport(group, args.transport)?;
    if is_first {
        announce(&transport_line(transport, &why), is_json_printed)?;
    }
    report.heading(args, group.world(), comm.notice())?;
    let facts = json!({
        "program": collective.name(), "ranks": group.world(), "device": chosen.line, "notice": comm.notice(),
        "transport": transport,
    });
    let collective = if args.uneven { Collective::AllToAllV } else { collective };
    // In shared memory there is one such all-reduce, and it is none of the named algorithms.
    let is_tuned = is_tuned && (transport != Transport::Shm || args.algorithm().is_none());
    let chooser = Chooser { is_tuned, algorithm: args.algorithm(), table, hosts: hosts(group) };
    let mut session = Session { args, collective, chooser, comm, group, report, roots };
    let mut cycle = 0;
    while args.run_cycles == 0 || cycle < args.run_cycles {
        for dtype in args.dtypes() {
            session.measure_type(dtype)?;
        }
        cycle += 1;
    }
    session.report.conclude(facts)
}

/// The number of rows of the table, or of one cycle if there is no end.
fn steps(collective: Collective, args: &Args, roots: usize) -> Result<usize, Failure> {
    let mut sizes = 0;
    for dtype in args.dtypes() {
        sizes += if collective == Collective::Barrier { 1 } else { args.sizes(element_size(dtype))?.len() };
    }
    let reductions = if collective.reduces() { args.reductions().len() } else { 1 };
    Ok(sizes * reductions * roots * args.run_cycles.max(1))
}

/// The table of algorithms that rank 0 was given, if any.
fn table(args: &Args, group: &mut Group) -> Result<Option<AlgorithmTable>, Failure> {
    let path = args.table.as_deref().filter(|_| group.rank() == 0);
    let table = group.agree("the table of algorithms", path.map(AlgorithmTable::read).transpose())?;
    Ok(group.all_gather("the table of algorithms", &table)?.swap_remove(0))
}

/// The number of hosts.
fn hosts(group: &Group) -> usize {
    group.hosts().into_iter().enumerate().filter(|&(rank, host)| rank == host).count()
}

/// The line that says how ranks reach each other's memory.
fn transport_line(transport: Transport, why: &str) -> String {
    match transport {
        Transport::Shm => "transport: shared memory".to_owned(),
        _ if why.is_empty() => "transport: verbs".to_owned(),
        _ => format!("transport: verbs ({why})"),
    }
}

/// Whether the communicator's own all-reduce is used, if ranks are connected by verbs.
fn is_tuned(collective: Collective, algorithm: Option<Algorithm>, table: Option<&AlgorithmTable>) -> bool {
    let is_known = match algorithm {
        None => table.is_none(),
        Some(algorithm) => matches!(algorithm, Algorithm::Ring | Algorithm::Direct),
    };
    collective == Collective::AllReduce && is_known
}

/// Chooses how a collective is done; equal at all ranks.
#[derive(Debug)]
struct Chooser {
    /// Whether the communicator's own all-reduce is used.
    is_tuned: bool,
    /// The algorithm that was asked for.
    algorithm: Option<Algorithm>,
    table: Option<AlgorithmTable>,
    hosts: usize,
}

impl Chooser {
    /// The way to do a collective on `size` bytes.
    fn way(&self, collective: Collective, size: usize, ranks: usize) -> Way {
        if self.is_tuned {
            return Way::Tuned;
        }
        let chosen = || {
            let none = AlgorithmTable::default();
            choose(collective, size as u64, ranks, self.hosts, self.table.as_ref().unwrap_or(&none))
        };
        Way::Algorithm(self.algorithm.unwrap_or_else(chosen))
    }
}
