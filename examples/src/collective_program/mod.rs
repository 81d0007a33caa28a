//! The program of a collective: measures it by size as nccl-tests does, checks every element of
//! every result, and prints nccl-tests' table.
//!
//! Without arguments the program starts four ranks on this machine; `--rank --world --root` start
//! one rank of a job.

mod case;
mod compare;
mod measure;
mod nccl_tests;
mod options;
mod plot;
mod report;
mod shape;

use std::process::ExitCode;

use serde_json::{Value, json};

pub(crate) use self::case::Case;
pub(crate) use self::measure::Session;
use self::nccl_tests::RankDevice;
pub(crate) use self::options::{Args, table_file};
use self::report::Report;
use crate::Failure;
use crate::cli::{self, Size};
use crate::device::{RailSettings, announce};
use crate::failure::is_launched;
use crate::placement;
use crate::program::run_as;
use rdma_collectives::bootstrap::{Group, Roles};
use rdma_collectives::{Algorithm, AlgorithmTable, Collective, Communicator, Rail, RankGpu, TensorPlace, Tuning};

/// Memory of a rank besides its tensors: scratch memory, and memory for the device.
const OVERHEAD: u128 = 32 << 20;

/// Runs the program of a collective; `about` is the first line of its help.
#[must_use]
pub fn run(collective: Collective, about: &'static str) -> ExitCode {
    run_as(collective.name(), options::command(collective, about), |args: Args| job(collective, &args))
}

fn job(collective: Collective, args: &Args) -> Result<(), Failure> {
    args.check(collective)?;
    for dtype in args.dtypes() {
        args.sizes(dtype.size())?;
    }
    if !is_launched() {
        check_memory(args.placement.local_ranks()?, args.max, args.uneven)?;
    }
    let aggregators = args.aggregators();
    let Some(place) = args.placement.place_with(aggregators)? else { return Ok(()) };
    let ranks = place.ranks.saturating_sub(aggregators);
    if ranks == 0 {
        let text = format!("--aggregators {aggregators} leaves no rank of {} processes; start more", place.ranks);
        return Err(Failure::usage(text));
    }
    let roles = Roles::of(ranks, aggregators);
    let terms = placement::terms(collective.name(), args, roles, args.placement.timeout);
    placement::run(place, &terms, |group| rank(collective, args, ranks, group))
}

/// Checks that local ranks have the memory for tensors of a size.
pub(crate) fn check_memory(ranks: usize, size: Size, is_uneven: bool) -> Result<(), Failure> {
    // In an uneven all-to-all a rank sends and receives up to two blocks for each other rank.
    let largest = size.0 as u128 * if is_uneven { 2 } else { 1 };
    let needed = ranks as u128 * (2 * largest + OVERHEAD);
    cli::check_memory(needed, &format!("two tensors of {size} for {ranks} ranks"))
}

/// Runs one of the ranks, or one of the aggregators after them.
fn rank(collective: Collective, args: &Args, ranks: usize, group: &mut Group) -> Result<(), Failure> {
    let roots = group.agree("the root", args.roots(ranks))?;
    let is_first = group.rank() == 0;
    let is_json_printed = args.json.is_printed();
    let steps = steps(collective, args, roots.len())?;
    let report = Report::new(collective.name(), args, is_first, steps);
    let report = group.agree("the files of the report", report)?;
    let table = table(args, group)?;
    let is_tuned = is_tuned(collective, args.algorithm());
    let schedules = !is_tuned || table.is_some() || args.memory != TensorPlace::Host;
    let Connected { mut comm, device, devices } = connect(args, group, (ranks, schedules), is_json_printed)?;
    comm.set_aggregators(args.aggregators(), args.radix())?;
    comm.set_table(table.unwrap_or_default());
    report.heading(args, &devices, comm.notice())?;
    let mut facts = json!({
        "program": collective.name(), "algo": args.algo, "ranks": ranks, "aggregators": args.aggregators(),
        "device": device, "devices": devices, "notice": comm.notice(), "transport": comm.transports().name(), "memory": args.memory,
    });
    let collective = if args.uneven { Collective::AllToAllV } else { collective };
    let (algorithm, executor, comm) = (args.algorithm(), None, Some(comm));
    let mut session = Session { args, collective, ranks, algorithm, executor, comm, group, report, roots };
    let mut cycle = 0;
    while args.run_cycles == 0 || cycle < args.run_cycles {
        for dtype in args.dtypes() {
            session.measure_type(dtype)?;
        }
        cycle += 1;
    }
    let Session { comm, report, .. } = session;
    if let Some(comm) = &comm {
        facts["rails"] = report.print(|| rails_report(comm, is_first, is_json_printed))?;
    }
    report.conclude(facts)
}

/// The bytes that this rank has sent by each rail; printed if there is more than one connection.
fn rails_report(comm: &Communicator, is_first: bool, stdout_taken: bool) -> Result<Value, Failure> {
    let sent = comm.stats().rails;
    if is_first && comm.connections() > 1 {
        let rails: Vec<String> = sent.iter().map(|(name, bytes)| format!("{bytes} bytes by {name}")).collect();
        let line = format!("rank 0 sent {} ({} queue pairs to each rank)", rails.join(", "), comm.connections());
        announce(&line, stdout_taken)?;
    }
    Ok(sent.into_iter().map(|(name, sent)| json!({ "rail": name, "sent": sent })).collect())
}

/// The connected ranks of a job.
struct Connected {
    comm: Communicator,
    /// The devices and the reasons for their choice.
    device: String,
    /// The processes and devices of all ranks.
    devices: Vec<RankDevice>,
}

/// Opens the devices and connects all ranks; collective. Rank 0 says which devices and transports
/// it uses, on standard error if standard output is taken.
fn connect(
    args: &Args,
    group: &mut Group,
    (ranks, schedules): (usize, bool),
    stdout_taken: bool,
) -> Result<Connected, Failure> {
    let is_first = group.rank() == 0;
    let settings = group.agree("the settings of the rails", args.rails.settle())?;
    let mut device = match args.memory {
        TensorPlace::Host => args.device.clone(),
        TensorPlace::Gpu | TensorPlace::GpuStaged => args.device.clone().near_gpu(group.position_on_host()),
    };
    device.listen(args.transport, args.placement.key.hands_out(), group)?;
    let chosen = device.open_rails(settings.rails, group)?;
    let cores = placement::bind(group, args.placement.bind)?;
    if is_first {
        chosen.iter().try_for_each(|chosen| announce(&chosen.using(), stdout_taken))?;
    }
    let method = args.connection.settle(&chosen[0], group, 0, stdout_taken)?;
    let rails =
        chosen.iter().map(|chosen| Ok(Rail::new(&chosen.adapter, args.connection.method_for(chosen, method)?)?));
    let rails = group.agree("the rails", rails.collect::<Result<Vec<_>, Failure>>())?;
    let RailSettings { queue_pairs, cross_rail, .. } = settings;
    let tuning = args.tuning(cores.shared, method, schedules, args.algorithm() != Some(Algorithm::Ring));
    let mut comm = Communicator::on_rails(rails, group, Tuning { queue_pairs, cross_rail, ..tuning })?;
    if is_first {
        announce(&format!("transport: {}", comm.transports()), stdout_taken)?;
    }
    let mut gpu = None;
    if args.memory != TensorPlace::Host {
        let gpus = comm.use_gpus(args.memory)?;
        if is_first {
            memory_lines(&gpus).iter().try_for_each(|line| announce(line, stdout_taken))?;
        }
        gpu = gpus.get(group.rank()).map(|gpu| gpu.name.clone());
    }
    let device = chosen.iter().map(|chosen| chosen.line.as_str()).collect::<Vec<_>>().join("; ");
    let devices = RankDevice::gather(&chosen[0], gpu, group, ranks)?;
    Ok(Connected { comm, device, devices })
}

/// The number of rows of the table, or of one cycle if there is no end.
fn steps(collective: Collective, args: &Args, roots: usize) -> Result<usize, Failure> {
    let mut sizes = 0;
    for dtype in args.dtypes() {
        sizes += if collective == Collective::Barrier { 1 } else { args.sizes(dtype.size())?.len() };
    }
    let reductions = if collective.reduces() { args.reductions().len() } else { 1 };
    Ok((sizes * reductions * roots).saturating_mul(args.run_cycles.max(1)))
}

/// The table of algorithms that rank 0 was given, if any.
fn table(args: &Args, group: &mut Group) -> Result<Option<AlgorithmTable>, Failure> {
    let path = table_file(args.table.as_deref()).filter(|_| group.rank() == 0 && args.algorithm().is_none());
    let table = group.agree("the table of algorithms", path.as_deref().map(AlgorithmTable::read).transpose())?;
    Ok(group.all_gather("the table of algorithms", &table)?.swap_remove(0))
}

/// The number of hosts.
fn hosts(group: &Group) -> usize {
    group.hosts().into_iter().enumerate().filter(|&(rank, host)| rank == host).count()
}

/// The lines that say which GPU each rank has, how its messages go, and why they are staged if that
/// was not asked for.
fn memory_lines(gpus: &[RankGpu]) -> Vec<String> {
    let gpu = |(rank, RankGpu { name, way, .. }): (usize, &RankGpu)| format!("memory: rank {rank}: {name}, {way}");
    let mut lines: Vec<String> = gpus.iter().enumerate().map(gpu).collect();
    let mut reasons: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.why_staged.as_deref()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    lines.extend(reasons.iter().map(|why| format!("warning: messages are staged in host memory: {why}")));
    lines
}

/// Whether the communicator's own all-reduce does what is asked for, if ranks are connected by
/// verbs.
fn is_tuned(collective: Collective, algorithm: Option<Algorithm>) -> bool {
    collective == Collective::AllReduce && matches!(algorithm, None | Some(Algorithm::Ring | Algorithm::Direct))
}
