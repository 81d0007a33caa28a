//! The options of the collectives' programs, with nccl-tests' letters and meanings. nccl-tests'
//! long names are aliases; what it has and these programs lack, they refuse with a reason.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Command, CommandFactory};
use serde::Serialize;

use super::nccl_tests::NcclTests;
use crate::Failure;
use crate::cli::{self, Size};
use crate::connect::ConnectionOptions;
use crate::device::{DeviceOptions, RailOptions};
use crate::output::JsonOptions;
use crate::placement::PlacementOptions;
use crate::refused::RefusedOptions;
use rdma_collectives::connect::Method;
use rdma_collectives::{Algorithm, Collective, DataType, Named, Reduction, TensorPlace, Transport, Tuning};

/// Options of every collective's program.
///
/// The fields that are serialized have to be the same at every rank.
#[derive(Clone, Debug, clap::Parser, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(version, args_override_self = true, long_about = None, after_help = crate::failure::STATUS_HELP)]
#[command(mut_arg("device", |arg| arg.short(None)), mut_arg("timeout", |arg| arg.short('T')))]
#[command(mut_arg("cm", |arg| arg.short(None)), mut_arg("gid_index", |arg| arg.short(None)))]
#[command(mut_arg("json", |arg| arg.alias("output_file")))]
pub(crate) struct Args {
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) placement: PlacementOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) device: DeviceOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) rails: RailOptions,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) connection: ConnectionOptions,
    /// Smallest size in bytes
    #[arg(short = 'b', long, alias = "minbytes", value_name = "SIZE", default_value = "8")]
    #[arg(help_heading = cli::SIZES)]
    pub(super) min: Size,
    /// Largest size in bytes
    #[arg(short = 'e', long, alias = "maxbytes", value_name = "SIZE", default_value = "16M")]
    #[arg(help_heading = cli::SIZES)]
    pub(crate) max: Size,
    /// Bytes from one size to the next (default: --factor)
    #[arg(short = 'i', long, alias = "stepbytes", value_name = "SIZE")]
    #[arg(help_heading = cli::SIZES)]
    pub(super) step_bytes: Option<Size>,
    /// Each size is this many times the one before (default: 2); 1: -i
    #[arg(short = 'f', long, alias = "stepfactor", value_name = "N")]
    #[arg(help_heading = cli::SIZES)]
    factor: Option<usize>,
    /// Timed iterations of each size (default: 20 to 1000)
    ///
    /// By default more for small sizes, and fewer where they take long.
    #[arg(short = 'n', long, value_name = "N", value_parser = cli::count)]
    #[arg(help_heading = cli::SIZES)]
    pub(super) iters: Option<usize>,
    /// Iterations before the timed ones
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N", default_value_t = 5)]
    #[arg(help_heading = cli::SIZES)]
    pub(crate) warmup: usize,
    /// Operations in each iteration; times are those of one operation
    #[arg(short = 'm', long, alias = "agg_iters", value_name = "N", default_value_t = 1, value_parser = cli::count)]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub(super) agg_iters: usize,
    /// Number of times that all sizes are measured; 0: without end, not with --json and --plot
    #[arg(short = 'N', long, alias = "run_cycles", value_name = "N", default_value_t = 1)]
    #[arg(help_heading = cli::SIZES, hide_short_help = true)]
    pub(super) run_cycles: usize,
    /// Operations after the timed ones whose results are checked
    ///
    /// 0: check nothing.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = |text: &str| cli::number_in(text, 0..=1_000_000_000_u32))]
    #[arg(help_heading = cli::SIZES)]
    pub(super) check: u32,
    /// Reduction: sum, prod, min, max, avg; all: these; and, or, xor
    ///
    /// The bitwise reductions are of integers.
    #[arg(short = 'o', long, default_value = "sum", value_parser = or_all::<Reduction>())]
    #[arg(help_heading = cli::WHAT)]
    pub(super) op: String,
    /// Element type: f32, f16, i32 ...; all: each in turn
    #[arg(short = 'd', long, alias = "datatype", default_value = "f32")]
    #[arg(value_parser = or_all::<DataType>())]
    #[arg(help_heading = cli::WHAT)]
    pub(super) dtype: String,
    /// Root rank, or all: each rank in turn
    #[arg(short = 'r', long, value_name = "N|all", default_value = "0", value_parser = root)]
    #[arg(help_heading = cli::WHAT)]
    pub(super) root_rank: Roots,
    /// The time to print: of rank 0 (0), or the mean (1), the least (2), the greatest (3) of all
    /// ranks
    #[arg(short = 'a', long, value_name = "0..3", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=3))]
    #[arg(help_heading = cli::OUTPUT, hide_short_help = true)]
    pub(super) average: u8,
    /// 1: all ranks wait for each other after each operation; 2: each operation ends before the
    /// next, also with --start; 3: all ranks wait for each other after each iteration, untimed
    #[arg(short = 'z', long, value_name = "0..3", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    pub(super) blocking: u8,
    /// Start all operations of an iteration (-m) in the background, then wait for them; without,
    /// wait for each
    #[arg(long)]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    pub(super) start: bool,
    /// Algorithm; auto: by operation, size, ranks and hosts
    #[arg(long, default_value = "auto")]
    #[arg(help_heading = cli::WHAT)]
    pub(super) algo: String,
    /// Processes that reduce and multicast for the ranks with --algo in-network, besides the ranks:
    /// the last of a job that another launcher starts (default: 1)
    #[arg(long, value_name = "N", value_parser = |text: &str| cli::number_in(text, 1..=256_usize))]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    aggregators: Option<usize>,
    /// Most aggregators below an aggregator of the tree; those without any have ranks below
    /// (default: 8)
    #[arg(long, value_name = "N", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=256_usize))]
    #[arg(help_heading = cli::WHAT)]
    radix: Option<usize>,
    /// Table of algorithms by operation, size, ranks and hosts, for --algo auto, as tune writes it;
    /// that of rank 0 holds for all ranks [env: RDMA_ALGO_TABLE]
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    pub(super) table: Option<PathBuf>,
    /// How ranks reach each other's memory
    #[arg(long, value_parser = cli::one_of::<Transport>(), default_value_t = Transport::Auto)]
    #[arg(help_heading = cli::TRANSPORT)]
    pub(crate) transport: Transport,
    /// Memory of the tensors: host, gpu, gpu-staged
    ///
    /// Each rank of a host takes the next GPU. With gpu-staged, messages go through host memory.
    #[arg(long, value_parser = cli::one_of::<TensorPlace>(), default_value_t = TensorPlace::Host, hide_possible_values = true)]
    #[arg(help_heading = cli::WHAT)]
    pub(super) memory: TensorPlace,
    /// Leave out the in-place half
    #[arg(long)]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    pub(super) out_of_place: bool,
    /// Each rank sends another number of elements to each rank
    #[arg(long)]
    #[arg(help_heading = cli::WHAT, hide_short_help = true)]
    pub(super) uneven: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) json: JsonOptions,
    /// Write the table to a file as comma-separated values
    #[arg(short = 'F', long, value_name = "FILE")]
    #[serde(skip)]
    #[arg(help_heading = cli::OUTPUT, hide_short_help = true)]
    pub(super) csv: Option<PathBuf>,
    /// Draw time and bandwidth by size
    #[arg(long, value_name = "FILE.svg")]
    #[serde(skip)]
    #[arg(help_heading = cli::OUTPUT, hide_short_help = true)]
    pub(super) plot: Option<PathBuf>,
    /// A file that --json of an earlier run wrote, to draw it too; several are possible
    #[arg(long, value_name = "FILE.json", requires = "plot")]
    #[serde(skip)]
    #[arg(help_heading = cli::OUTPUT, hide_short_help = true)]
    pub(super) plot_with: Vec<PathBuf>,
    /// Longest piece of a message
    #[arg(long, value_name = "SIZE", default_value = "128K", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::multiple(text, Size(4 << 10), Size(1 << 30)))]
    #[arg(help_heading = cli::WHAT)]
    pub(super) chunk: Size,
    /// Ticks between two steps of a block of the ring
    #[arg(long, value_name = "N", default_value = "1", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=64_usize))]
    #[arg(help_heading = cli::WHAT)]
    lead: usize,
    /// All-reduce: up to this size, everybody sends everything to everybody
    #[arg(long, value_name = "SIZE", default_value = "16K", hide_short_help = true)]
    #[arg(value_parser = |text: &str| cli::multiple(text, Size(64), Size(16 << 20)))]
    #[arg(help_heading = cli::WHAT)]
    one_step: Size,
    /// Learn of arrivals by completions, even where the device allows to watch memory
    #[arg(long, hide_short_help = true)]
    #[arg(help_heading = cli::TRANSPORT)]
    completions: bool,
    /// Tell of arrivals by messages of their own, which iWARP does in any case
    #[arg(long, hide_short_help = true)]
    #[arg(help_heading = cli::TRANSPORT)]
    messages: bool,
    /// Options of nccl-tests that are refused.
    #[command(flatten)]
    #[serde(skip)]
    refused: RefusedOptions<NcclTests>,
    /// The longest time that the iterations of one measurement may take if `--iters` is not given.
    #[arg(skip = BUDGET)]
    #[serde(skip)]
    pub(crate) budget: Duration,
}

/// Parses the name of a value, or `all`.
fn or_all<T: Named>() -> PossibleValuesParser {
    let named = T::ALL.iter().map(|value| PossibleValue::new(value.name()).aliases(value.other_names()));
    PossibleValuesParser::new(named.chain(["all".into()]))
}

/// The root ranks to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Roots {
    /// One rank.
    One(usize),
    /// Each rank in turn.
    All(()),
}

fn root(text: &str) -> Result<Roots, String> {
    match text {
        "all" => Ok(Roots::All(())),
        _ => text.parse().map(Roots::One).map_err(|_| "give a rank's number, or all".to_owned()),
    }
}

/// The file of the table of algorithms: that of the option, or else of the environment.
pub(crate) fn table_file(option: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os("RDMA_ALGO_TABLE").filter(|file| !file.is_empty()).map(PathBuf::from);
    option.map(Path::to_owned).or_else(variable)
}

/// The command of the program of a collective.
pub(super) fn command(collective: Collective, about: &'static str) -> Command {
    let algorithms = Algorithm::ALL.iter().filter(|algo| algo.collectives().contains(&collective));
    let names: Vec<&str> = ["auto"].into_iter().chain(algorithms.map(|algo| algo.name())).collect();
    let has_aggregators = names.contains(&Algorithm::InNetwork.name());
    let hides = [
        ("op", !collective.reduces()),
        ("root_rank", !collective.has_root()),
        ("uneven", collective != Collective::AllToAll),
        ("one_step", collective != Collective::AllReduce),
        ("lead", collective != Collective::AllReduce),
        ("aggregators", !has_aggregators),
        ("radix", !has_aggregators),
    ];
    let command = Args::command().name(collective.name()).about(about);
    let with_all = |names: Vec<&'static str>| names.into_iter().chain(["all"]).collect::<Vec<_>>();
    let (reductions, types) = (with_all(cli::names::<Reduction>()), with_all(cli::names::<DataType>()));
    let command = command.mut_arg("algo", |arg| cli::listing(arg, &names).value_parser(names));
    let command = command.mut_arg("op", |arg| cli::listing(arg, &reductions));
    let command = command.mut_arg("dtype", |arg| cli::listing(arg, &types));
    hides
        .into_iter()
        .filter(|(_, is_hidden)| *is_hidden)
        .fold(command, |command, (name, _)| command.mut_arg(name, |arg| arg.hide(true)))
}

impl Args {
    /// Refuses options that mean nothing for a collective.
    ///
    /// # Errors
    /// If one was given.
    pub(super) fn check(&self, collective: Collective) -> Result<(), Failure> {
        if let Some(rank) = self.placement.root.as_ref().filter(|root| root.parse::<usize>().is_ok()) {
            let text = "is no HOST:PORT of rank 0; nccl-tests' --root is -r or --root-rank here";
            return Err(Failure::usage(format!("--root {rank} {text}")));
        }
        let refuse = |option: &str| Err(Failure::usage(format!("{option} means nothing for {}", collective.name())));
        if self.uneven && collective != Collective::AllToAll {
            return refuse("--uneven");
        }
        if self.root_rank != Roots::One(0) && !collective.has_root() {
            return refuse("--root-rank");
        }
        if self.op != "sum" && !collective.reduces() {
            return refuse("--op");
        }
        for reduction in self.reductions() {
            let refused = self.dtypes().into_iter().find_map(|dtype| reduction.check(dtype).err());
            if let Some(error) = refused {
                return Err(Failure::usage(format!("--op {reduction}: {error}; give --dtype an integer type, or all")));
            }
        }
        if self.plot.is_some() && collective == Collective::Barrier {
            return Err(Failure::usage("--plot draws times by size, and a barrier has no sizes"));
        }
        if let (Some(factor @ 2..), Some(step)) = (self.factor, self.step_bytes.filter(|step| step.0 > 0)) {
            let text = format!("--step-bytes {step} cannot be used with --factor {factor}, which nccl-tests follows");
            return Err(Failure::usage(format!("{text}; leave one of them out")));
        }
        for (option, is_given) in [("--json", self.json.is_given()), ("--plot", self.plot.is_some())] {
            if is_given && self.run_cycles == 0 {
                let text = "--run-cycles 0 has no end, at which it would be written; --csv writes each row at once";
                return Err(Failure::usage(format!("{option}: {text}")));
            }
        }
        for (option, is_given) in [("--aggregators", self.aggregators.is_some()), ("--radix", self.radix.is_some())] {
            if is_given && self.algorithm() != Some(Algorithm::InNetwork) {
                return Err(Failure::usage(format!("{option} needs --algo in-network")));
            }
        }
        if self.memory != TensorPlace::Host && self.transport == Transport::Shm {
            return Err(Failure::usage("--transport shm: ranks share host memory only (--memory host)"));
        }
        Ok(())
    }

    /// The algorithm that was asked for; `None` if the program chooses.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::named(&self.algo)
    }

    /// Number of aggregators.
    pub(super) fn aggregators(&self) -> usize {
        if self.algorithm() == Some(Algorithm::InNetwork) { self.aggregators.unwrap_or(1) } else { 0 }
    }

    /// Most aggregators below an aggregator.
    pub(super) fn radix(&self) -> usize {
        self.radix.unwrap_or(RADIX)
    }

    /// The element types to measure.
    pub(super) fn dtypes(&self) -> Vec<DataType> {
        let reductions = self.reductions();
        let has_all = |dtype: &DataType| reductions.iter().all(|reduction| reduction.supports(*dtype));
        match DataType::named(&self.dtype) {
            Some(dtype) => vec![dtype],
            None => DataType::ALL.iter().copied().filter(has_all).collect(),
        }
    }

    /// The reductions to measure; a collective without one counts as a sum.
    pub(super) fn reductions(&self) -> Vec<Reduction> {
        let is_general = |reduction: &Reduction| DataType::ALL.iter().all(|dtype| reduction.supports(*dtype));
        match Reduction::named(&self.op) {
            Some(reduction) => vec![reduction],
            None => Reduction::ALL.iter().copied().filter(is_general).collect(),
        }
    }

    /// The root ranks to measure.
    ///
    /// # Errors
    /// If the job has no such rank.
    pub(super) fn roots(&self, world: usize) -> Result<Vec<usize>, Failure> {
        match self.root_rank {
            Roots::All(()) => Ok((0..world).collect()),
            Roots::One(root) if root < world => Ok(vec![root]),
            Roots::One(root) => {
                Err(Failure::usage(format!("--root-rank {root}: there are {world} ranks, and they count from 0")))
            }
        }
    }

    /// The sizes to measure, in bytes.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub(super) fn sizes(&self, element: usize) -> Result<Vec<usize>, Failure> {
        match self.step() {
            SizeStep::Factor(factor) => cli::size_steps(self.min, self.max, factor, element),
            SizeStep::Bytes(step) => cli::size_increments(self.min, self.max, step, element),
        }
    }

    /// The step from one size to the next. As in nccl-tests, a factor of 1 leaves it to the bytes,
    /// and bytes of 0 leave it to the factor.
    pub(super) fn step(&self) -> SizeStep {
        match (self.factor, self.step_bytes) {
            (None | Some(1), Some(step)) if step.0 > 0 || self.factor.is_none() => SizeStep::Bytes(step),
            (factor, _) => SizeStep::Factor(factor.unwrap_or(2)),
        }
    }

    /// The parameters of the collectives.
    pub(super) fn tuning(&self, shared_cores: bool, method: Method, schedules: bool, direct: bool) -> Tuning {
        let (one_step, two_steps) = if direct { (self.one_step.0, usize::MAX) } else { (0, 0) };
        Tuning {
            chunk: self.chunk.0,
            lead: self.lead,
            one_step,
            two_steps,
            schedules,
            watch_memory: !self.completions,
            by_messages: self.messages,
            shared_cores,
            stall: self.placement.timeout,
            method,
            // Tensors on GPUs are not in shared memory.
            transport: match self.transport {
                Transport::Auto if self.memory != TensorPlace::Host => Transport::Verbs,
                transport => transport,
            },
            ..Tuning::default()
        }
    }

    /// The number of iterations to time for a size, if one iteration takes `one`.
    pub(super) fn iterations(&self, size: usize, one: Duration) -> usize {
        let in_time = self.budget.as_nanos() / one.as_nanos().max(1);
        let in_time = usize::try_from(in_time).unwrap_or(usize::MAX);
        self.iters.unwrap_or_else(|| ((64 << 20) / size.max(1)).clamp(20, 1000).min(in_time).max(FEWEST))
    }

    /// The steps of an iteration.
    pub(super) fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let of_operation: &[Step] = match self.blocking {
            1 => &[Step::Operation, Step::Barrier],
            2 => &[Step::Operation, Step::Wait],
            _ => &[Step::Operation],
        };
        (0..self.agg_iters).flat_map(move |_| of_operation).copied()
    }

    /// Whether all ranks wait for each other between iterations, outside the measured time.
    pub(super) fn waits_between(&self) -> bool {
        self.blocking == 3
    }

    /// The time to print, of the times of all ranks.
    pub(super) fn average(&self, times: &[f64]) -> f64 {
        match self.average {
            0 => times[0],
            1 => times.iter().sum::<f64>() / times.len() as f64,
            2 => times.iter().copied().fold(f64::INFINITY, f64::min),
            _ => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// The step from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeStep {
    /// Each size is this many times the one before.
    Factor(usize),
    /// Each size has this many bytes more.
    Bytes(Size),
}

/// A step of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The operation that is measured.
    Operation,
    /// All ranks wait for each other.
    Barrier,
    /// The operations before have ended.
    Wait,
}

/// Most aggregators below an aggregator if no option says.
const RADIX: usize = 8;
/// The time for the iterations of one measurement. On busy, shared cores one iteration may take a
/// hundred times as long as on idle ones.
const BUDGET: Duration = Duration::from_millis(500);
/// The least number of iterations that counts as a measurement.
const FEWEST: usize = 5;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_factor_of_one_and_bytes_of_zero_leave_the_step_to_the_other() {
        let (factor, bytes) = (SizeStep::Factor, |count| SizeStep::Bytes(Size(count)));
        let cases: [(&[&str], SizeStep); 6] = [
            (&[], factor(2)),
            (&["-f", "4"], factor(4)),
            (&["-i", "64"], bytes(64)),
            (&["-i", "64", "-f", "1"], bytes(64)),
            (&["-i", "0", "-f", "2"], factor(2)),
            (&["-i", "0"], bytes(0)),
        ];
        for (args, step) in cases {
            let args = Args::try_parse_from([&["all_reduce"], args].concat()).unwrap();
            assert_eq!(args.step(), step);
            assert!(args.check(Collective::AllReduce).is_ok());
        }
    }

    /// As in nccl-tests, which synchronizes inside the loop of aggregated operations.
    #[test]
    fn ranks_wait_for_each_other_after_each_operation() {
        let steps = |args: &[&str]| Args::try_parse_from(args).unwrap().steps().collect::<Vec<_>>();
        let (operation, barrier, wait) = (Step::Operation, Step::Barrier, Step::Wait);
        assert_eq!(steps(&["test", "-m", "2"]), [operation, operation]);
        assert_eq!(steps(&["test", "-m", "2", "-z", "1"]), [operation, barrier, operation, barrier]);
        assert_eq!(steps(&["test", "-m", "2", "-z", "2"]), [operation, wait, operation, wait]);
        assert_eq!(steps(&["test", "-m", "2", "-z", "3"]), [operation, operation]);
    }
}
