//! The project's `all_reduce`, out of place, beside Open MPI's `MPI_Allreduce`, interleaved.
//!
//! `cargo bench -p rdma-benches --bench all_reduce_vs_mpi -- [rounds=N] [ranks=N] [ours=PATH]`

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rdma_benches::mpi::{self, Point, Program};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{mode, quiet};

fn main() -> Result<(), Box<dyn Error>> {
    let smoke = mode::is_smoke();
    let rounds = match mode::option("rounds") {
        Some(rounds) => rounds.parse()?,
        None => 7,
    };
    let ours = match mode::option("ours") {
        Some(path) => path.into(),
        // A smoke run must not start a build of its own: the lock on the build folder may be held.
        None if smoke => return skip("a smoke run needs ours=PATH"),
        None => mpi::build_ours()?,
    };
    let mut programs = vec![Program::Ours { executable: ours }];
    match mpi::compile(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(executable) => {
            let no_single_copy = &["--mca", "btl_vader_single_copy_mechanism", "none"];
            programs.push(Program::OpenMpi { executable: executable.clone(), name: "Open MPI", settings: &[] });
            programs.push(Program::OpenMpi { executable, name: "Open MPI, no single copy", settings: no_single_copy });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => println!("1 skipped: Open MPI is not installed"),
        Err(error) => return Err(error.into()),
    }
    for ranks in [2, 4] {
        if mode::option("ranks").is_some_and(|only| only != ranks.to_string()) {
            continue;
        }
        let mut report = Report::new(ranks, &programs);
        for (size, iterations) in [(8, 20_000), (64 << 10, 4_000), (1 << 20, 400), (16 << 20, 25)] {
            let iterations = if smoke { 2 } else { iterations * 2 / ranks };
            let point = Point { ranks, size, iterations, warmup: iterations / 10 + 1 };
            report.add(&programs, point, if smoke { 1 } else { rounds })?;
        }
        println!("{}", report.table);
        report.bars();
    }
    Ok(())
}

fn skip(why: &str) -> Result<(), Box<dyn Error>> {
    println!("1 skipped: {why}");
    Ok(())
}

/// The table for one number of ranks, and the values for its bars.
struct Report {
    ranks: usize,
    table: Table,
    bars: Vec<(usize, f64, Option<Spread>)>,
}

impl Report {
    fn new(ranks: usize, programs: &[Program]) -> Self {
        let mut heads = vec!["size".to_owned()];
        heads.extend(programs.iter().map(|program| format!("{}, us", program.name())));
        heads.extend(programs.iter().skip(1).map(|program| format!("{} / ours", program.name())));
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let title = format!("all_reduce, f32 sum, out of place, {ranks} ranks: median (min-max)");
        Self { ranks, table: Table::new(title, &heads), bars: Vec::new() }
    }

    fn add(&mut self, programs: &[Program], point: Point, rounds: usize) -> io::Result<()> {
        let mut times: Vec<Vec<f64>> = vec![Vec::with_capacity(rounds); programs.len()];
        for round in 0..rounds {
            // The first program changes, so that no program always runs on the caches that the same
            // other one left.
            for step in 0..programs.len() {
                let index = (round + step) % programs.len();
                quiet::wait(Duration::from_secs(if rounds > 1 { 2 } else { 0 }));
                times[index].push(programs[index].time(point)?);
            }
            eprint!(".");
            io::stderr().flush()?;
        }
        eprintln!();
        let ratios: Vec<Option<Spread>> = times[1..].iter().map(|theirs| paired_ratio(theirs, &times[0])).collect();
        let mut row = vec![table::bytes(point.size)];
        row.extend(times.iter().map(|times| table::spread(Spread::of(times))));
        row.extend(ratios.iter().map(|&ratio| table::spread(ratio)));
        self.table.row(row);
        let median = Spread::of(&times[0]).map_or(0.0, |spread| spread.median);
        self.bars.push((point.size, median, ratios.first().copied().flatten()));
        Ok(())
    }

    fn bars(&self) {
        for &(size, time, ratio) in &self.bars {
            let what = format!("{} ranks, {}", self.ranks, table::bytes(size));
            if size == 8 {
                if self.ranks == 4 {
                    table::bar(&what, "under 20 us", &format!("{} us", table::number(time)), time < 20.0);
                }
            } else if let Some(ratio) = ratio {
                let measured = format!("{} times as fast", table::spread(Some(ratio)));
                table::bar(&what, "faster than Open MPI's default", &measured, ratio.median > 1.0);
            }
        }
    }
}
