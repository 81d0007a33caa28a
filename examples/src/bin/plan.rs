//! Predicts the time of collectives on a network, for every algorithm, and says what limits it.
//!
//! The network is a preset whose numbers options change, or a host whose numbers are fitted to
//! measured runs. The library's module `plan` documents the model.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rdma_collectives::{Algorithm, Collective};
use rdma_examples::Failure;
use rdma_examples::cli::{self, Size};
use rdma_examples::output::{JsonOptions, Output};
use rdma_examples::plan::{
    self, ALGORITHMS, Fit, FitError, Kind, Members, Network, OPERATIONS, Report, System, Training, Verdict, units,
};
use serde_json::{Value, json};

const EXIT_STATUS: &str = "Exit status: 0 success, 1 failure, 2 invalid arguments.";

/// A calculation whose numbers are those that its command prints.
const EXAMPLE: &str = "\
Example: a step of training on 64 hosts, each with eight NICs of 400 Gb/s

  $ plan --preset dgx-h100 --ranks 512 --parameters 70e9 --bytes 2 --step 200ms

  70 billion parameters of 2 bytes are 140 GB. An all-reduce among N hosts moves
  2 x 140 GB x (N-1)/N out of and into each host, 276 GB if there are 64. In a
  step of 200 ms that is 1.38 TB/s a host, so 1.4 Tb/s for each of 8 NICs. They
  have 400 Gb/s, and are 3.4 times too slow.";

/// Predicts the time of a collective on a network: for each algorithm the time, and what limits it.
///
/// Bandwidth has nccl-tests' meaning. Rates are those of one direction.
#[derive(Clone, Parser)]
#[command(version, args_override_self = true, long_about = None)]
#[command(after_long_help = format!("{EXAMPLE}\n\n{EXIT_STATUS}"))]
struct Args {
    /// The collective
    #[arg(short, long, value_parser = cli::some_of(OPERATIONS), default_value_t = Collective::AllReduce)]
    #[arg(help_heading = cli::WHAT)]
    operation: Collective,
    /// Number of ranks, each with one GPU
    #[arg(short, long, value_name = "N", default_value = "1024", value_parser = |text: &str| cli::number_in(text, 2..=1_000_000_usize))]
    #[arg(help_heading = cli::WHAT)]
    ranks: usize,
    /// Smallest size in bytes
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "1K")]
    #[arg(help_heading = cli::SIZES)]
    min: Size,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_name = "SIZE", default_value = "1G")]
    #[arg(help_heading = cli::SIZES)]
    max: Size,
    /// Each size is this many times the one before
    #[arg(short = 'f', long, value_name = "N", default_value_t = 1024)]
    #[arg(help_heading = cli::SIZES)]
    factor: usize,
    /// Predict this algorithm only
    #[arg(short, long, value_parser = cli::some_of(ALGORITHMS))]
    #[arg(help_heading = cli::WHAT)]
    algo: Option<Algorithm>,
    #[command(flatten)]
    network: NetworkOptions,
    #[command(flatten)]
    training: TrainingOptions,
    #[command(flatten)]
    fit: FitOptions,
    #[command(flatten)]
    json: JsonOptions,
    /// Draw the network with the loads of the largest size and the best algorithm
    #[arg(long, value_name = "FILE")]
    #[arg(help_heading = cli::OUTPUT)]
    #[arg(hide_short_help = true)]
    svg: Option<PathBuf>,
}

/// Numbers of the network; those that are not given are the preset's, or typical ones.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Network")]
struct NetworkOptions {
    /// Shape of the network
    #[arg(short, long, value_enum, default_value_t = Kind::FatTree)]
    network: Kind,
    /// Hosts with the numbers of a system; options below change single ones
    #[arg(long, value_name = "SYSTEM", value_enum)]
    preset: Option<System>,
    /// GPUs of a host (default: 8; all with --network host)
    #[arg(short = 'g', long, value_name = "N", value_parser = cli::count)]
    per_host: Option<usize>,
    /// NICs of a host (default: 8)
    #[arg(long, value_name = "N", value_parser = |text: &str| cli::number_in(text, 1..=1024_usize))]
    #[arg(hide_short_help = true)]
    rails: Option<usize>,
    /// Rate of a NIC (default: 400Gb/s)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    nic_rate: Option<f64>,
    /// Latency between hosts at the same switch (default: 4us)
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    #[arg(hide_short_help = true)]
    nic_latency: Option<f64>,
    /// Rate of a GPU's port to the others of its host (default: 450GB/s)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    intra_rate: Option<f64>,
    /// Latency inside a host (default: 2us)
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    #[arg(hide_short_help = true)]
    intra_latency: Option<f64>,
    /// Rate at which all ranks of a host together exchange data, if they share memory
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    #[arg(hide_short_help = true)]
    memory_rate: Option<f64>,
    /// Latency that each further level of switches adds (default: 1us)
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    #[arg(hide_short_help = true)]
    switch_latency: Option<f64>,
    /// Hosts per leaf switch, set of rail switches, or router (default: 4, rail: 32)
    #[arg(long, value_name = "N", value_parser = |text: &str| cli::number_in(text, 1..=1_000_000_usize))]
    #[arg(hide_short_help = true)]
    leaf_hosts: Option<usize>,
    /// Leaf switches of a pod (0: none), routers of a group (default: 32; rail, dragonfly: 16)
    #[arg(long, value_name = "N", value_parser = |text: &str| cli::number_in(text, 0..=1_000_000_usize))]
    #[arg(hide_short_help = true)]
    pod_leaves: Option<usize>,
    /// Oversubscription of each level, from the hosts outwards, such as 2,1.5
    #[arg(long, value_name = "RATIO", value_delimiter = ',', num_args = 1..=2, value_parser = units::oversubscription)]
    #[arg(hide_short_help = true)]
    oversubscription: Vec<f64>,
    /// Switches reduce and multicast
    #[arg(long)]
    in_network: bool,
    /// Work per message at the sender (default: 500ns)
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    #[arg(hide_short_help = true)]
    overhead: Option<f64>,
    /// Rate at which a rank reduces what it receives (default: 1.2TB/s)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    #[arg(hide_short_help = true)]
    reduce_rate: Option<f64>,
}

/// A model whose gradients are summed in every step; their size replaces --min and --max.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Training")]
struct TrainingOptions {
    /// Parameters of the model, such as 70e9
    #[arg(long, value_name = "N", value_parser = units::positive)]
    parameters: Option<f64>,
    /// Bytes of a gradient
    #[arg(long, value_name = "N", default_value = "2", value_parser = units::positive, requires = "parameters")]
    #[arg(hide_short_help = true)]
    bytes: f64,
    /// Time of a step
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::time, requires = "parameters")]
    #[arg(hide_short_help = true)]
    step: f64,
}

/// Measured runs on one host, whose numbers replace those of --network.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Fit")]
struct FitOptions {
    /// Fit the model to runs: files that all_reduce --json wrote on this host
    ///
    /// Runs that do not name their algorithm are taken to be direct, above 16K in two steps.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    fit: Vec<PathBuf>,
    /// Print the error of the fit on runs that it does not know
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "fit")]
    #[arg(hide_short_help = true)]
    check: Vec<PathBuf>,
    /// Number of cores that the ranks of the runs shared (default: all of this machine)
    #[arg(long, value_name = "N", value_parser = cli::count, requires = "fit")]
    #[arg(hide_short_help = true)]
    cores: Option<usize>,
}

fn main() -> ExitCode {
    rdma_examples::run("plan", run)
}

fn run(args: Args) -> Result<(), Failure> {
    let mut out = io::stdout();
    let training = args.training.parameters.map(|parameters| {
        let TrainingOptions { bytes, step, .. } = args.training;
        Training { parameters, bytes, step }
    });
    let sizes = match training {
        Some(training) => vec![training.size()],
        None => cli::size_steps(args.min, args.max, args.factor, 1)?.into_iter().map(|size| size as f64).collect(),
    };
    let fitted = if args.fit.fit.is_empty() { None } else { Some(args.fit.run()?) };
    let network = match &fitted {
        Some(fitted) => fitted.fit.network(args.ranks),
        None => args.network.network(args.ranks)?,
    };
    let report = Report::new(&network, args.operation, args.algo, &sizes)?;
    let verdict = training.map(|training| Verdict::new(&training, &report)).transpose()?;
    if !args.json.is_printed() {
        fitted.iter().try_for_each(|fitted| fitted.print(&mut out))?;
        let members = Members::of(&network, report.reduces_in_network());
        // The first sentence is about the model, the others about all-reduce.
        let known = if args.operation == Collective::AllReduce { 3 } else { 1 };
        let mut sentences = training.iter().flat_map(|training| training.describe(members)).take(known);
        sentences.try_for_each(|sentence| writeln!(out, "# {sentence}"))?;
        report.print(&mut out)?;
        verdict.iter().try_for_each(|verdict| verdict.print(&mut out))?;
    }
    if let Some(mut file) = args.json.create()? {
        let fit = fitted.as_ref().map(Fitted::json);
        let json = json!({
            "program": "plan", "training": training, "fit": fit, "report": report, "verdict": verdict
        });
        file.line(&json.to_string())?;
    }
    if let (Some(path), Some(row)) = (&args.svg, report.last_best()) {
        Output::create(path)?.line(&plan::draw(&report, row))?;
    }
    Ok(())
}

impl NetworkOptions {
    /// The preset with the given numbers.
    fn network(&self, ranks: usize) -> Result<Network, Failure> {
        // Clap counts options, not the parts of a list.
        if self.oversubscription.len() > 2 {
            let given = self.oversubscription.len();
            return Err(Failure::usage(format!(
                "--oversubscription has {given} ratios; a network has two levels at most"
            )));
        }
        let mut network = Network::preset(self.network, ranks);
        self.preset.into_iter().for_each(|system| network.set_system(system));
        let (leaf, pod) = self.network.tiers();
        network.set_tiers(self.leaf_hosts.unwrap_or(leaf), self.pod_leaves.unwrap_or(pod), &self.oversubscription);
        let set = |number: &mut f64, option: Option<f64>| *number = option.unwrap_or(*number);
        set(&mut network.nic.rate, self.nic_rate);
        set(&mut network.nic.latency, self.nic_latency);
        set(&mut network.intra.rate, self.intra_rate);
        set(&mut network.intra.latency, self.intra_latency);
        set(&mut network.overhead, self.overhead);
        set(&mut network.reduce_rate, self.reduce_rate);
        network.tiers.iter_mut().for_each(|tier| set(&mut tier.latency, self.switch_latency));
        network.per_host = self.per_host.unwrap_or(network.per_host);
        network.rails = self.rails.unwrap_or(network.rails);
        network.memory = self.memory_rate;
        network.in_network = self.in_network;
        network.validate()?;
        Ok(network)
    }
}

/// A fit and its errors.
struct Fitted {
    fit: Fit,
    known: FitError,
    /// The errors on the files that were held out.
    held_out: Vec<(PathBuf, FitError)>,
}

impl FitOptions {
    fn run(&self) -> Result<Fitted, Failure> {
        let cores = self.cores.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
        let known = self.fit.iter().map(|path| plan::read_rows(path)).collect::<Result<Vec<_>, _>>()?.concat();
        let fit = Fit::new(&known, cores)?;
        let held_out = self.check.iter().map(|path| Ok((path.clone(), fit.error(&plan::read_rows(path)?)?)));
        Ok(Fitted { fit, known: fit.error(&known)?, held_out: held_out.collect::<Result<_, Failure>>()? })
    }
}

impl Fitted {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Fit { alpha, beta, gamma, cores } = self.fit;
        let rate = |seconds: f64| units::show_rate(1.0 / seconds);
        let (alpha, beta, gamma) = (units::show_time(alpha), rate(beta), rate(gamma));
        writeln!(out, "# Fit: {alpha} a message, {beta} sent, {gamma} reduced, by ranks that share {cores} cores")?;
        print_error(out, "fitted", &self.known)?;
        self.held_out.iter().try_for_each(|(path, error)| print_error(out, &path.display().to_string(), error))
    }

    fn json(&self) -> Value {
        let held_out: Vec<Value> = self
            .held_out
            .iter()
            .map(|(path, error)| json!({"file": path.display().to_string(), "error": error}))
            .collect();
        json!({"parameters": self.fit, "error": self.known, "held_out": held_out})
    }
}

fn print_error(out: &mut dyn Write, rows: &str, error: &FitError) -> io::Result<()> {
    let (median, worst) = (100.0 * error.median, 100.0 * error.worst);
    let (count, size) = (error.rows, error.worst_size);
    writeln!(out, "# Error on {count} rows, {rows}: median {median:.0} %, worst {worst:.0} % at {size:.0} bytes")
}
