//! Measures every algorithm of the collectives, and writes the table by which `--algo auto`
//! chooses.
//!
//! Without another launcher the program starts one local job after the other, with 2, 4, 8 ...
//! ranks. Rank 0 of such a job prints its records, which the starting process reads.

mod options;
mod record;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use self::options::Args;
use self::record::{Record, merge};
use crate::cli::Size;
use crate::collective_program::{Session, check_memory};
use crate::failure::is_launched;
use crate::output::Output;
use crate::program::run_as;
use crate::progress::Progress;
use crate::{Failure, launcher, placement, table};
use rdma_collectives::bootstrap::{Group, Roles};
use rdma_collectives::{AlgorithmTable, Collective, algorithm_name};

/// Runs the program.
#[must_use]
pub fn run() -> ExitCode {
    run_as("tune", options::command(), |args: Args| tune(&args))
}

fn tune(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let sizes = args.sizes()?;
    let Some(place) = args.placement.find()? else { return tune_here(args, &sizes) };
    let terms = placement::terms("tune", args, Roles::Ranks, args.placement.timeout);
    placement::run(place, &terms, |group| {
        let is_first = group.rank() == 0;
        let files = if is_first && !is_launched() { Files::open(args).map(Some) } else { Ok(None) };
        let files = group.agree("the files of the results", files)?;
        let records = measure(args, &sizes, group)?;
        match files {
            Some(files) => files.finish(args, &records),
            None if is_first => Ok(writeln!(io::stdout(), "{}", json!(records))?),
            None => Ok(()),
        }
    })
}

/// Measures local jobs of 2, 4, 8 ... ranks.
fn tune_here(args: &Args, sizes: &[Size]) -> Result<(), Failure> {
    let most = args.placement.local_ranks()?;
    if most < 2 {
        return Err(Failure::usage(format!("{}: one rank has no choice; give 2 or more", args.placement.named(most))));
    }
    check_memory(most, sizes.last().copied().unwrap_or(Size(0)), true)?;
    let files = Files::open(args)?;
    let mut records = Vec::new();
    for ranks in counts(most) {
        let printed = launcher::launch_reading(ranks, Roles::Ranks)?;
        let of_job: Result<Vec<Record>, _> = serde_json::from_str(&printed);
        records.extend(of_job.map_err(|error| Failure::new(format!("rank 0 did not print its records: {error}")))?);
    }
    files.finish(args, &records)
}

/// The powers of two up to a number of ranks, and the number.
fn counts(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(2), |ranks| Some(ranks * 2));
    powers.take_while(|&ranks| ranks < most).chain([most]).collect()
}

/// The files of the results. Measurements take long: what cannot be written is found before them.
struct Files {
    path: PathBuf,
    /// The table to which records are added.
    table: AlgorithmTable,
    json: Option<Output>,
}

impl Files {
    fn open(args: &Args) -> Result<Self, Failure> {
        let path = args.table();
        let table = if path.exists() { AlgorithmTable::read(&path)? } else { AlgorithmTable::default() };
        table.write(&path)?;
        Ok(Self { path, table, json: args.json.create()? })
    }

    /// Writes the table, and prints the records.
    fn finish(self, args: &Args, records: &[Record]) -> Result<(), Failure> {
        let Self { path, mut table, json } = self;
        merge(&mut table, records);
        table.write(&path)?;
        if let Some(mut file) = json {
            let entries = &table.entries;
            // A path need not be UTF-8.
            let name = path.display().to_string();
            let report = json!({ "program": "tune", "table": name, "records": records, "entries": entries });
            file.line(&report.to_string())?;
        }
        if args.json.is_printed() {
            return Ok(());
        }
        print(&mut io::stdout(), records)?;
        let entries = table.entries.len();
        writeln!(
            io::stdout(),
            "# {} has {entries} entries; --table or RDMA_ALGO_TABLE gives it to a program",
            path.display()
        )?;
        Ok(())
    }
}

/// Measures the collectives with the ranks of a group.
fn measure(args: &Args, sizes: &[Size], group: &mut Group) -> Result<Vec<Record>, Failure> {
    let options = args.of_collectives()?;
    let (ranks, is_first) = (group.ranks(), group.rank() == 0);
    let mut session = Session::for_comparisons(&options, group)?;
    let (hosts, transport) = session.surroundings();
    let plan = args.candidates(hosts);
    let sizes_of = |op| if op == Collective::Barrier { 1 } else { sizes.len() };
    let steps: usize = plan.iter().map(|(op, candidates)| candidates.len() * sizes_of(*op)).sum();
    let progress = Progress::new(if is_first { steps * args.rounds() } else { 0 });
    let (mut records, mut done) = (Vec::new(), 0);
    for (op, candidates) in plan {
        let step = |what: &str| {
            progress.step(what, done);
            done += 1;
        };
        for found in session.compare(op, &candidates, sizes, args.rounds(), step)? {
            let named = candidates.iter().zip(&found.times).skip(1);
            let times = named.filter_map(|(&algorithm, &time)| Some((algorithm?, time))).collect();
            records.push(Record { op, ranks, hosts, transport, bytes: found.bytes, auto: found.times[0], times });
        }
    }
    Ok(records)
}

/// Prints the fastest algorithm of each record beside the choice without a table.
fn print(out: &mut impl Write, records: &[Record]) -> io::Result<()> {
    writeln!(
        out,
        "# {:>12}  {:>5}  {:>5}  {:>9}  {:>6}  {:>9}  {:>18}  {:>9}",
        "", "", "", "", "", "auto", "fastest", "time"
    )?;
    writeln!(
        out,
        "# {:>12}  {:>5}  {:>5}  {:>9}  {:>6}  {:>9}  {:>18}  {:>9}",
        "op", "ranks", "hosts", "transport", "size", "(us)", "algorithm", "(us)"
    )?;
    for record in records {
        let (algorithm, time) = record.best();
        let Record { op, ranks, hosts, bytes, auto, .. } = record;
        let (transport, size, name) = (json!(record.transport), Size(*bytes).to_string(), algorithm_name(algorithm));
        let transport = transport.as_str().unwrap_or_default();
        let (auto, time) = (table::fit(*auto, 9), table::fit(time, 9));
        writeln!(out, "{op:>14}  {ranks:>5}  {hosts:>5}  {transport:>9}  {size:>6}  {auto:>9}  {name:>18}  {time:>9}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_double_up_to_the_most() {
        assert_eq!(counts(2), [2]);
        assert_eq!(counts(3), [2, 3]);
        assert_eq!(counts(8), [2, 4, 8]);
    }
}
