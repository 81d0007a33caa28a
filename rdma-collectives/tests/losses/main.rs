//! Ranks that are killed, stopped or abort their job at a random moment. A program of its own,
//! because each rank is a process that runs it again.
//!
//! The other ranks of a killed, stopped or aborting rank end with an error that names this rank;
//! after a stop that is short, all operations go on. No rank hangs, gets wrong elements, or leaves
//! files behind.
//!
//! Each job follows from a seed, which a failure prints. The whole campaign, of `RDMA_TEST_RUNS`
//! seeds, is the ignored test `campaign`; `one_seed` repeats the jobs of the seed `RDMA_TEST_SEED`:
//!
//! ```sh
//! cargo test -p rdma-collectives --test losses -- --ignored --nocapture campaign
//! ```

#![cfg(feature = "soft")]

#[path = "../../src/numbers.rs"]
mod numbers;
mod rank;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdma_collectives::Transport;
use rdma_test_support::{Peer, say};

use crate::numbers::Numbers;
use crate::rank::Plan;

/// Jobs at a time of the campaign: more processes than cores.
const LANES: usize = 3;

/// What happens to one rank of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// It is killed.
    Kill,
    /// It aborts the job.
    Abort,
    /// It is stopped, and continued soon.
    Pause,
    /// It is stopped, and continued when the others have given it up.
    Stop,
}

impl Loss {
    const ALL: [Self; 4] = [Self::Kill, Self::Abort, Self::Pause, Self::Stop];
}

/// A job that loses a rank.
#[derive(Clone, Copy, Debug)]
struct Job {
    loss: Loss,
    transport: Transport,
    seed: u64,
    /// The rank is lost while the ranks start and meet, instead of amid their operations.
    is_early: bool,
}

impl Job {
    /// The time limit of the ranks for each other. A stopped rank is given up after a third of it,
    /// and one that does not come after all of it. What waits for neither has a long one, because a
    /// loaded machine may stop any rank for a while.
    fn timeout(&self) -> Duration {
        let Self { loss, is_early, .. } = *self;
        Duration::from_secs(if loss == Loss::Stop {
            6
        } else if is_early {
            10
        } else {
            90
        })
    }

    /// Runs the job, and checks how it ends.
    fn run(self) -> Ended {
        let Self { loss, transport, seed, is_early } = self;
        let folder = tempfile::tempdir().expect("a folder");
        let mut numbers = Numbers::of(seed ^ (loss as u64) << 40 ^ (transport as u64) << 48);
        let world = 2 + numbers.below(3);
        let victim = numbers.below(world);
        let moment = Duration::from_micros(numbers.next() % if is_early { 150_000 } else { 300_000 });
        let mut ranks: Vec<Peer> = (0..world)
            .map(|rank| {
                let abort = (loss == Loss::Abort && rank == victim).then_some(moment);
                let plan =
                    Plan { seed, rank, world, transport, timeout: self.timeout(), abort, aborts_early: is_early };
                Peer::start_with("rank_of_a_job", &plan.to_string(), |command| {
                    // All files of the job.
                    command.env("TMPDIR", folder.path());
                })
            })
            .collect();
        if !is_early {
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.hear(), rank::RUNNING));
        }
        sleep(moment);
        let lost_at = Instant::now();
        match loss {
            Loss::Kill => ranks[victim].kill(),
            // It does so itself.
            Loss::Abort => {}
            Loss::Pause => {
                ranks[victim].stop();
                sleep(Duration::from_micros(numbers.next() % 1_000_000));
                ranks[victim].resume();
                // Amid the operations after it.
                sleep(Duration::from_millis(50));
                ranks[0].tell("the end");
            }
            Loss::Stop => ranks[victim].stop(),
        }
        let mut reports = vec![String::new(); world];
        for rank in (0..world).filter(|rank| *rank != victim) {
            reports[rank] = report(&mut ranks[rank]);
        }
        let after = lost_at.elapsed();
        match loss {
            Loss::Kill => drop(ranks.remove(victim)),
            Loss::Stop => ranks[victim].resume(),
            Loss::Abort | Loss::Pause => {}
        }
        if loss != Loss::Kill {
            reports[victim] = report(&mut ranks[victim]);
        }
        ranks.into_iter().for_each(Peer::finish);
        let ended = Ended { job: self, victim, reports, after };
        ended.check();
        let leftovers = files(folder.path());
        // The address of a rank 0 that is killed before all have met stays.
        let may_stay = loss == Loss::Kill && victim == 0 && is_early;
        assert!(leftovers.is_empty() || may_stay, "{leftovers:?} of {ended:?}");
        ended
    }
}

/// How the ranks of a job have ended.
#[derive(Debug)]
struct Ended {
    job: Job,
    victim: usize,
    /// The reports of all ranks; empty if the rank was killed.
    reports: Vec<String>,
    /// Time from the loss to the end of the last other rank.
    after: Duration,
}

impl Ended {
    fn check(&self) {
        for (rank, report) in self.reports.iter().enumerate() {
            let is_victim = rank == self.victim;
            let is_right = match self.job.loss {
                Loss::Pause => report.starts_with(rank::DONE),
                Loss::Kill if is_victim => report.is_empty(),
                // The others have ended the job without it.
                Loss::Stop if is_victim => report.starts_with(rank::FAILED),
                Loss::Abort if is_victim => report.starts_with(rank::FAILED) && report.contains(rank::REASON),
                Loss::Abort => self.names_victim(report) && report.contains(rank::REASON),
                Loss::Kill | Loss::Stop => self.names_victim(report),
            };
            assert!(is_right, "rank {rank} learned something else: {self:#?}");
        }
    }

    /// Whether a report is a failure of the victim.
    fn names_victim(&self, report: &str) -> bool {
        report.starts_with(rank::FAILED) && report.contains(&format!("rank: Some({})", self.victim))
    }
}

/// The last report of a rank.
fn report(rank: &mut Peer) -> String {
    loop {
        let line = rank.try_hear().expect("a rank ended without a report, or with wrong elements: see above");
        if line != rank::RUNNING {
            return line;
        }
    }
}

/// The files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Runs jobs in several lanes; returns, for each kind of loss and transport, the number of jobs and
/// the longest time from the loss to the end of the others. Fails when all have run.
fn run_all(jobs: &[Job], lanes: usize) -> BTreeMap<String, (u32, Duration)> {
    let (jobs, results) = (Mutex::new(jobs.iter()), Mutex::new((BTreeMap::new(), Vec::new())));
    let next = || jobs.lock().expect("no panic under the lock").next();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let ended = catch_unwind(|| job.run());
                    let (counts, failures) = &mut *results.lock().expect("no panic under the lock");
                    let Ok(Ended { after, .. }) = ended else {
                        failures.push(*job);
                        continue;
                    };
                    let moment = if job.is_early { "at the start" } else { "amid operations" };
                    let what = format!("{:?} over {} {moment}", job.loss, job.transport);
                    let (count, longest) = counts.entry(what).or_insert((0, Duration::ZERO));
                    (*count, *longest) = (*count + 1, after.max(*longest));
                }
            });
        }
    });
    let (counts, failures) = results.into_inner().expect("no panic under the lock");
    assert!(failures.is_empty(), "after {counts:#?}: {failures:#?}");
    counts
}

/// Each of some losses over each transport. Of four seeds, one is that of early losses.
fn jobs(losses: &[Loss], seed: u64) -> impl Iterator<Item = Job> {
    let is_early = seed % 4 == 0;
    let over = move |loss| [Transport::Shm, Transport::Verbs].map(|transport| Job { loss, transport, seed, is_early });
    losses.iter().copied().flat_map(over)
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn the_other_ranks_learn_which_rank_is_lost() {
    let seed = u64::from(std::process::id()) * 4 + 1;
    let jobs: Vec<_> = jobs(&[Loss::Kill, Loss::Abort, Loss::Pause], seed).collect();
    run_all(&jobs, 2);
}

#[test]
#[ignore = "takes minutes; some of its limits are too short for a loaded machine"]
fn campaign() {
    let first = environment("RDMA_TEST_SEED").unwrap_or(1);
    let seeds = first..first + environment("RDMA_TEST_RUNS").unwrap_or(50);
    let jobs: Vec<_> = seeds.flat_map(|seed| jobs(&Loss::ALL, seed)).collect();
    for (what, (count, longest)) in run_all(&jobs, LANES) {
        say(&format!("{count:4} x {what}: the others ended within {longest:.1?}"));
    }
}

#[test]
#[ignore = "repeats the jobs of RDMA_TEST_SEED"]
fn one_seed() {
    let seed = environment("RDMA_TEST_SEED").expect("a seed");
    jobs(&Loss::ALL, seed).for_each(|job| say(&format!("{:#?}", job.run())));
}

#[test]
#[ignore = "a rank of a job that another test starts"]
fn rank_of_a_job() {
    if let Some(plan) = rdma_test_support::role() {
        rank::main(&plan.parse().expect("a plan"));
    }
}
