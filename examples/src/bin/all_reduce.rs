//! Sums tensors over ranks with RDMA writes, checks every element of every result, and prints
//! nccl-tests' table.
//!
//! Without arguments the program starts four ranks on this machine; `--rank --world --root` start
//! one rank of a job.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rdma_examples::Failure;
use rdma_examples::bootstrap::{Group, Roles, Terms};
use rdma_examples::cli::{self, Size};
use rdma_examples::collectives::{Communicator, Element, Pattern, Reduction, Tensor, Tuning};
use rdma_examples::connect::{ConnectionOptions, Method};
use rdma_examples::device::{DeviceOptions, announce};
use rdma_examples::failure::is_launched;
use rdma_examples::placement::{self, PlacementOptions};
use rdma_examples::progress::Progress;
use rdma_examples::table::{self, CollectiveRow, CollectiveTime};
use serde::Serialize;
use serde_json::json;

/// All-reduce over RDMA: every rank ends with the sum of what all contributed.
///
/// The fields that are serialized have to be the same at every rank.
#[derive(Clone, Parser, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(version, args_override_self = true, about, long_about = None, after_help = rdma_examples::failure::STATUS_HELP)]
struct Args {
    #[command(flatten)]
    #[serde(skip)]
    placement: PlacementOptions,
    #[command(flatten)]
    #[serde(skip)]
    device: DeviceOptions,
    #[command(flatten)]
    #[serde(skip)]
    connection: ConnectionOptions,
    /// Smallest size in bytes
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "8")]
    min: Size,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "16M")]
    max: Size,
    /// Each size is this many times the one before
    #[arg(short = 'f', long, value_name = "N", default_value_t = 2)]
    factor: usize,
    /// Timed iterations of each size (default: 20 to 1000, more for small sizes; fewer, where they
    /// take long)
    #[arg(short = 'n', long, value_name = "N", value_parser = cli::count)]
    iters: Option<usize>,
    /// Iterations before the timed ones
    #[arg(short = 'w', long, value_name = "N", default_value_t = 5)]
    warmup: usize,
    /// Check results (1) or not (0)
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// Element type
    #[arg(short = 't', long, default_value = "float")]
    #[arg(value_parser = ["float", "double", "int32", "uint32", "int64", "uint64"])]
    dtype: String,
    /// Leave out the in-place half
    #[arg(long)]
    out_of_place: bool,
    /// Print one JSON object in place of the table
    #[arg(short = 'J', long)]
    #[serde(skip)]
    json: bool,
    /// Longest message of the ring
    #[arg(long, value_name = "SIZE", default_value = "128K", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::multiple(text, Size(4 << 10), Size(1 << 30)))]
    chunk: Size,
    /// Ticks between two steps of a block
    #[arg(long, value_name = "N", default_value = "1", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=64_usize))]
    lead: usize,
    /// Up to this size, everybody sends everything to everybody
    #[arg(long, value_name = "SIZE", default_value = "16K", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::multiple(text, Size(64), Size(16 << 20)))]
    one_step: Size,
    /// Learn of arrivals by completions, even where the device allows to watch memory
    #[arg(long, hide_short_help = true)]
    completions: bool,
    /// Tell of arrivals by messages of their own, which iWARP does in any case
    #[arg(long, hide_short_help = true)]
    messages: bool,
    /// How to do it; auto: by size
    #[arg(short, long, value_enum, default_value_t = Algo::Auto)]
    algo: Algo,
}

/// The longest time that the iterations of one measurement may take if `--iters` is not given. On
/// busy, shared cores one iteration may take a hundred times as long as on idle ones.
const BUDGET: Duration = Duration::from_millis(500);
/// The least number of iterations that counts as a measurement.
const FEWEST: usize = 5;

/// Memory of a rank besides its tensors: scratch memory, and memory for the device.
const OVERHEAD: u128 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Algo {
    /// Direct where all are connected to all, else the ring
    Auto,
    /// Messages to the right neighbour only
    Ring,
    /// One or two steps, with messages to all
    Direct,
}

fn main() -> ExitCode {
    rdma_examples::run("all_reduce", run)
}

fn run(args: Args) -> Result<(), Failure> {
    match args.dtype.as_str() {
        <f32 as Element>::NAME => job::<f32>(&args),
        <f64 as Element>::NAME => job::<f64>(&args),
        <i32 as Element>::NAME => job::<i32>(&args),
        <u32 as Element>::NAME => job::<u32>(&args),
        <i64 as Element>::NAME => job::<i64>(&args),
        _ => job::<u64>(&args),
    }
}

fn job<T: Element>(args: &Args) -> Result<(), Failure> {
    let sizes = cli::size_steps(args.min, args.max, args.factor, size_of::<T>())?;
    if !is_launched() {
        let local = args.placement.local_ranks();
        let needed = local as u128 * (2 * args.max.0 as u128 + OVERHEAD);
        cli::check_memory(needed, &format!("two tensors of {} for {local} ranks", args.max))?;
    }
    let Some(place) = args.placement.place()? else { return Ok(()) };
    let terms = Terms::new("all_reduce", args, Roles::Ranks, args.placement.timeout);
    placement::run(place, &terms, |group| rank::<T>(args, &sizes, group))
}

impl Args {
    fn tuning(&self, shared_cores: bool, method: Method) -> Tuning {
        let (one_step, two_steps) = if self.algo == Algo::Ring { (0, 0) } else { (self.one_step.0, usize::MAX) };
        Tuning {
            chunk: self.chunk.0,
            lead: self.lead,
            one_step,
            two_steps,
            schedules: false,
            watch_memory: !self.completions,
            by_messages: self.messages,
            shared_cores,
            stall: self.placement.timeout,
            method,
        }
    }

    /// The number of iterations to time for a size, if one iteration takes `one`.
    fn iterations(&self, size: usize, one: Duration) -> usize {
        let in_time = BUDGET.as_nanos() / one.as_nanos().max(1);
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        self.iters.unwrap_or_else(|| ((64 << 20) / size.max(1)).clamp(20, 1000).min(in_time).max(FEWEST))
    }
}

/// Runs one rank.
fn rank<T: Element>(args: &Args, sizes: &[usize], group: &mut Group) -> Result<(), Failure> {
    let chosen = args.device.open_together(group)?;
    let cores = placement::bind(group, args.placement.bind);
    let first = group.rank() == 0;
    if first {
        announce(&chosen.using(), args.json)?;
    }
    let method = args.connection.settle(&chosen, group, 0, args.json)?;
    let tuning = args.tuning(cores.shared, method);
    let mut comm = Communicator::new(&chosen, group, tuning)?;
    let count = sizes.last().map_or(0, |bytes| bytes / size_of::<T>());
    let input = comm.allocate::<T>(group, count)?;
    let output = comm.allocate::<T>(group, count)?;
    if first && !args.json {
        heading(args, group.world(), comm.notice())?;
    }
    warm_up(&mut comm, sizes, &input, &output)?;
    let mut rows = Vec::new();
    let progress = Progress::new(if first { sizes.len() } else { 0 });
    for (done, &size) in sizes.iter().enumerate() {
        let (count, what) = (size / size_of::<T>(), format!("all-reduce of {}", Size(size)));
        if first {
            progress.step(&what, done);
        }
        let mut bench = Bench { args, comm: &mut comm, group, what: &what, size, count };
        let out_of_place = Some(bench.measure(&input, &output)?);
        let in_place = if args.out_of_place { None } else { Some(bench.measure(&output, &output)?) };
        let row = CollectiveRow { size, count, dtype: T::NAME, redop: "sum", root: -1, out_of_place, in_place };
        if first && !args.json {
            progress.print(|| table::collective_row(&mut io::stdout(), &row))?;
        }
        rows.push(row);
    }
    drop(progress);
    if first {
        let mut out = io::stdout();
        if args.json {
            let report = json!({
                "program": "all_reduce", "ranks": group.world(), "device": chosen.line, "notice": comm.notice(),
                "results": rows,
            });
            writeln!(out, "{report}")?;
        } else {
            table::collective_foot(&mut out, &rows)?;
            writeln!(out, "# Collective test concluded: all_reduce")?;
        }
    }
    verdict(&rows, first)
}

/// Runs some operations before any measurement: a device may set up its paths in the background
/// when they are first used.
fn warm_up<T: Element>(
    comm: &mut Communicator,
    sizes: &[usize],
    input: &Tensor<T>,
    output: &Tensor<T>,
) -> Result<(), Failure> {
    let (Some(&smallest), Some(&largest)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    for _ in 0..4 {
        for size in [smallest, largest.min(1 << 20)] {
            let count = size / size_of::<T>();
            comm.all_reduce(input, output, count, Reduction::Sum)?;
            comm.all_reduce(output, input, count, Reduction::Sum)?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn heading(args: &Args, world: usize, notice: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    let Args { min, max, factor, warmup, check, .. } = args;
    let iters = args.iters.map_or_else(|| "auto".to_owned(), |n| n.to_string());
    writeln!(out, "# Collective test starting: all_reduce")?;
    writeln!(
        out,
        "# nRanks {world} minBytes {} maxBytes {} step: {factor}(factor) warmup iters: {warmup} iters: {iters} \
         validation: {check} arrivals: {notice}",
        min.0, max.0
    )?;
    table::collective_head(&mut out)?;
    Ok(())
}

fn verdict(rows: &[CollectiveRow], first: bool) -> Result<(), Failure> {
    let wrong: u64 = rows.iter().flat_map(|r| [r.out_of_place, r.in_place]).flatten().filter_map(|t| t.nwrong).sum();
    match (wrong, first) {
        (0, _) => Ok(()),
        (_, true) => Err(Failure::new(format!("{wrong} elements have wrong values"))),
        (_, false) => Err(Failure::peer("there are wrong values")),
    }
}

/// The measurement of one tensor size.
struct Bench<'a> {
    args: &'a Args,
    comm: &'a mut Communicator,
    group: &'a mut Group,
    what: &'a str,
    size: usize,
    count: usize,
}

impl Bench<'_> {
    /// Times operations back to back as nccl-tests does and averages over ranks, then checks one
    /// result.
    fn measure<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>) -> Result<CollectiveTime, Failure> {
        let (world, count) = (self.group.world(), self.count);
        let pattern = Pattern::<T>::new(world, self.size, Reduction::Sum);
        input.fill(0..count, |start, elements| pattern.fill(self.group.rank(), start, elements))?;
        self.group.barrier(self.what)?;
        let warming = Instant::now();
        for _ in 0..self.args.warmup {
            self.comm.all_reduce(input, output, count, Reduction::Sum)?;
        }
        // All ranks must run the same number of iterations: the slowest rank decides.
        let warming = warming.elapsed() / u32::try_from(self.args.warmup.max(1)).unwrap_or(u32::MAX);
        let slowest = self.group.all_gather(self.what, &warming)?.into_iter().max();
        let iterations = self.args.iterations(self.size, slowest.unwrap_or_default());
        self.comm.barrier()?;
        let started = Instant::now();
        for _ in 0..iterations {
            self.comm.all_reduce(input, output, count, Reduction::Sum)?;
        }
        let mine = started.elapsed().as_secs_f64() / iterations as f64;
        let seconds = self.group.all_gather(self.what, &mine)?.iter().sum::<f64>();
        let nwrong = if self.args.check == 1 { Some(self.check(input, output, &pattern)?) } else { None };
        Ok(CollectiveTime::all_reduce(seconds / world as f64, self.size, world, nwrong))
    }

    /// Runs one more operation, with known input and with an output that cannot be right by chance;
    /// returns the number of wrong elements over all ranks.
    fn check<T: Element>(
        &mut self,
        input: &Tensor<T>,
        output: &Tensor<T>,
        pattern: &Pattern<T>,
    ) -> Result<u64, Failure> {
        let count = self.count;
        output.fill(0..count, |_, elements| elements.fill(T::from_small(u16::MAX)))?;
        input.fill(0..count, |start, elements| pattern.fill(self.group.rank(), start, elements))?;
        self.group.barrier(self.what)?;
        self.comm.all_reduce(input, output, count, Reduction::Sum)?;
        let mut wrong = 0_u64;
        output.for_each(0..count, |start, elements| wrong += pattern.count_wrong(start, elements))?;
        Ok(self.group.all_gather(self.what, &wrong)?.iter().sum())
    }
}
