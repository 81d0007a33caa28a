//! The traffic of training a transformer on a grid of ranks: data, tensor, pipeline and expert
//! parallelism, made and verified by the collectives of this package.
//!
//! Each kind has groups of ranks and a communicator for each group. A rank waits for the operations
//! of tensor, pipeline and expert parallelism. It starts the all-reduces of gradients in the last
//! backward pass, layer by layer, and waits for them at the end of the step.

mod exchange;
mod grid;
mod model;
mod options;
mod report;
mod step;

use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Value, json};

use self::options::Args;
use self::report::{Measurements, Planner, Report};
use self::step::{Connector, Tallies, Worker};
use crate::device::announce;
use crate::failure::is_launched;
use crate::placement::MOST_RANKS;
use crate::program;
use crate::progress::Progress;
use crate::{Failure, cli, launcher, placement};
use rdma_collectives::Tuning;
use rdma_collectives::bootstrap::{Group, Roles};

/// The remedy if a machine cannot do the training.
const ADVICE: &str = "give a smaller model or grid, or --dry-run for the planner's figures alone";
/// Memory of a rank besides its tensors, for each of its groups.
const OVERHEAD: f64 = (16 << 20) as f64;

/// Runs the program.
#[must_use]
pub fn run() -> ExitCode {
    program::run("training_step", |args: Args| train(&args))
}

fn train(args: &Args) -> Result<(), Failure> {
    args.model.check(&args.grid)?;
    if args.planner.dry_run {
        let planner = Planner::new(args)?;
        return Report::new(args, planner, None)?.conclude(args.json.create()?, &json!({}));
    }
    let planner = Planner::new(args)?;
    let ranks = args.placement.asked()?.unwrap_or(args.grid.ranks());
    let Some(place) = args.placement.find()? else {
        args.grid.check_ranks(ranks)?;
        if ranks > MOST_RANKS {
            let text = format!("{ranks} ranks are too many for this machine, at most {MOST_RANKS}; {ADVICE}");
            return Err(Failure::usage(text));
        }
        check_memory(args, ranks)?;
        return launcher::launch(ranks, Roles::Ranks);
    };
    if !is_launched() {
        check_memory(args, 1)?;
    }
    let terms = placement::terms("training_step", args, Roles::Ranks, args.placement.timeout);
    placement::run(place, &terms, |group| rank(args, planner, group))
}

/// Checks that local ranks have the memory for their tensors.
fn check_memory(args: &Args, ranks: usize) -> Result<(), Failure> {
    let of_kind = |traffic: model::Traffic| match traffic.kind {
        grid::Kind::Data | grid::Kind::ExpertData => traffic.size * traffic.operations as f64,
        grid::Kind::Tensor => traffic.size,
        // Input and output, in both directions, of which a rank may have more than its share.
        grid::Kind::Pipeline | grid::Kind::Expert => 8.0 * traffic.size,
    };
    let of_rank: f64 = args.model.traffics(&args.grid).into_iter().map(|traffic| of_kind(traffic) + OVERHEAD).sum();
    let bytes = model::whole(of_rank * ranks as f64) as u128;
    cli::check_memory_for(bytes, &format!("the tensors of {ranks} ranks"), ADVICE)
}

/// Runs one rank.
fn rank(args: &Args, planner: Planner, group: &mut Group) -> Result<(), Failure> {
    group.agree("the grid", args.grid.check_ranks(group.ranks()))?;
    let json = if group.rank() == 0 { args.json.create() } else { Ok(None) };
    let json = group.agree("the file of the report", json)?;
    let (is_first, stdout_taken) = (group.rank() == 0, args.json.is_printed());
    let mut device = args.device.clone();
    device.listen(args.transport, args.placement.key.hands_out(), group)?;
    let chosen = device.open_together(group)?;
    let cores = placement::bind(group, args.placement.bind)?;
    if is_first {
        announce(&chosen.using(), stdout_taken)?;
    }
    let method = args.connection.settle(&chosen, group, 0, stdout_taken)?;
    let stall = args.placement.timeout;
    let tuning = Tuning { shared_cores: cores.shared, stall, method, transport: args.transport, ..Tuning::default() };
    let mut worker = Worker::new(&Connector { args, chosen: &chosen, tuning }, group)?;
    let measured = measure(args, &mut worker, group)?;
    if is_first {
        Report::new(args, planner, Some(&measured))?.conclude(json, &facts(&chosen.line))
    } else {
        measured.verdict()
    }
}

fn facts(device: &str) -> Value {
    json!({ "device": device })
}

/// Verifies a step, times some, and verifies one more.
fn measure(args: &Args, worker: &mut Worker<'_>, group: &mut Group) -> Result<Measurements, Failure> {
    let (steps, is_verified) = (args.step.steps, args.step.check == 1);
    let progress = Progress::new(if group.rank() == 0 { steps + 2 } else { 0 });
    let mut verified = Tallies::default();
    let mut timed = Tallies::default();
    let mut seconds = 0.0;
    for step in 0..steps + 2 {
        progress.step("a training step", step);
        let is_timed = (1..=steps).contains(&step);
        if !is_timed && step > 0 && !is_verified {
            break;
        }
        group.barrier("a training step")?;
        let started = Instant::now();
        let tallies = worker.step(!is_timed && is_verified)?;
        if is_timed {
            seconds += started.elapsed().as_secs_f64() / steps as f64;
        }
        if is_timed { timed.merge(&tallies) } else { verified.merge(&tallies) }
    }
    drop(progress);
    let slowest = group.all_gather("the time of a step", &seconds)?.into_iter().fold(0.0, f64::max);
    let timed = group.all_gather("the times by kind", &timed)?;
    let verified = group.all_gather("the verified values", &verified)?;
    Ok(Measurements { timed, verified: is_verified.then_some(verified), step: slowest })
}
