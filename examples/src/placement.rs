//! The place of a process in its job: it is the launcher itself, or was started by this package's
//! launcher, by hand, by mpirun, Slurm or torchrun.

use std::net::Ipv6Addr;
use std::time::Duration;

use rdma_collectives::bootstrap::{self, Group, Place, Roles, Root, Terms};
use rdma_collectives::launchers::{self, JobPlace};
pub use rdma_collectives::placement::{Bind, bind};
use serde::Serialize;

use crate::failure::{Kind, is_launched, say};
use crate::waiting::Waiting;
use crate::{Failure, cli, environment, launcher};

/// Most local ranks; a larger number is taken for a mistake.
pub(crate) const MOST_RANKS: usize = 256;
/// Number of local ranks if no option gives one.
const RANKS: usize = 4;

/// The options that say which rank this is, or how many to start.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = cli::JOB)]
pub struct PlacementOptions {
    /// Ranks to start on this machine, in place of -g (default: 4)
    ///
    /// If mpirun, Slurm or torchrun has started this process, it is a rank, and starts none.
    #[arg(long, hide_short_help = true, value_name = "N", conflicts_with_all = ["rank", "world", "root"])]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=MOST_RANKS))]
    pub ranks: Option<usize>,
    /// Ranks to start on this machine, times -t
    ///
    /// In nccl-tests, the GPUs of each thread. Under mpirun, Slurm or torchrun, where each process
    /// is a rank, 1.
    #[arg(short = 'g', long = "ngpus", value_name = "N", conflicts_with = "ranks")]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=MOST_RANKS))]
    pub gpus: Option<usize>,
    /// Factor of -g
    ///
    /// In nccl-tests, the threads of the process. Here each rank is a process of its own.
    #[arg(short = 't', long = "nthreads", value_name = "N", conflicts_with = "ranks")]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=MOST_RANKS))]
    pub threads: Option<usize>,
    /// Rank of this process in a job that is started by hand
    ///
    /// Without the option: as set by mpirun, Slurm or torchrun.
    #[arg(long, value_name = "N", requires = "world", requires = "root")]
    #[arg(hide_short_help = true)]
    pub rank: Option<usize>,
    /// Number of ranks of the job
    #[arg(long, value_name = "N", requires = "rank")]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=bootstrap::MOST_RANKS))]
    #[arg(hide_short_help = true)]
    pub world: Option<usize>,
    /// Address at which rank 0 listens
    ///
    /// Without the option: from the environment of mpirun, Slurm or torchrun.
    #[arg(long, value_name = "HOST:PORT")]
    pub root: Option<String>,
    /// The number of the job.
    #[command(flatten)]
    pub job: JobOption,
    /// The maker of the key for TCP between hosts.
    #[command(flatten)]
    pub key: KeyOption,
    /// Seconds to wait for another rank
    ///
    /// A rank that is silent for a third of this time counts as dead.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = cli::seconds)]
    pub timeout: Duration,
    /// Pin each rank to a core
    #[arg(long, value_parser = cli::one_of::<Bind>(), default_value_t = Bind::Auto, hide_short_help = true)]
    pub bind: Bind,
}

/// The variable that names the job, in place of [`JobOption`].
const JOB_VARIABLE: &str = "RDMA_JOB";
/// The variable in place of `--job-key`.
const KEY_VARIABLE: &str = "RDMA_JOB_KEY";

/// The option that tells the jobs at an address apart.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = cli::JOB)]
pub struct JobOption {
    /// A name that all processes of the job give: connections of others are ignored [env: RDMA_JOB]
    /// (default: the port of rank 0, or the job of mpirun, Slurm or torchrun)
    #[arg(long = "job", value_name = "NAME", hide_short_help = true)]
    pub name: Option<String>,
}

impl JobOption {
    /// The name of the job, if the option or the environment gives one.
    fn name(&self) -> Option<String> {
        self.name.clone().or_else(|| environment::text(JOB_VARIABLE))
    }
}

/// The option that lets rank 0 make the key for TCP between hosts.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = cli::JOB)]
pub struct KeyOption {
    /// Let rank 0 make the key for TCP between hosts and hand it out over the connections to it
    /// [env: RDMA_JOB_KEY=1]
    ///
    /// A reader of these connections can connect to each rank. Without the option, RDMA_SOFT_KEY
    /// names the file of the key.
    #[arg(long, hide_short_help = true)]
    pub job_key: bool,
}

impl KeyOption {
    /// Whether rank 0 may hand out a key over the connections to it.
    ///
    /// # Errors
    /// If the variable is neither 0 nor 1.
    pub fn hands_out(self) -> Result<bool, Failure> {
        Ok(self.job_key || environment::setting(KEY_VARIABLE, 0..=1)? == Some(1))
    }
}

impl PlacementOptions {
    /// Number of ranks that this process starts; 1 if it is a rank itself.
    ///
    /// # Errors
    /// If the options are invalid.
    pub fn local_ranks(&self) -> Result<usize, Failure> {
        let ranks = self.asked()?;
        let is_told = || !matches!(launchers::job_place(), Ok(None));
        let is_rank = self.rank.is_some() || is_launched() || ranks.is_none() && is_told();
        Ok(if is_rank { 1 } else { ranks.unwrap_or(RANKS) })
    }

    /// Number of ranks that the options ask this process to start, unless it is a rank itself;
    /// `None` if they leave it open.
    ///
    /// # Errors
    /// If there would be too many, or ranks of a rank.
    pub(crate) fn asked(&self) -> Result<Option<usize>, Failure> {
        if self.gpus.is_none() && self.threads.is_none() {
            return Ok(self.ranks);
        }
        let (gpus, threads) = (self.gpus.unwrap_or(1), self.threads());
        let ranks = gpus * threads;
        if ranks > MOST_RANKS {
            let text = format!("-g {gpus} times -t {threads} is {ranks} ranks; a machine has at most {MOST_RANKS}");
            return Err(Failure::usage(text));
        }
        // Without a launcher of their own, the options say how many ranks there are.
        let is_rank = self.rank.is_some() || matches!(launchers::job_place(), Ok(Some(place)) if place.ranks > 1);
        match (is_rank && !is_launched(), ranks) {
            (false, _) => Ok(Some(ranks)),
            (true, 1) => Ok(None),
            (true, _) => {
                let text = format!("-g {gpus} times -t {threads}: this process is one rank; give 1, and start more");
                Err(Failure::usage(text))
            }
        }
    }

    /// The option that gave this many local ranks, as it was given.
    pub(crate) fn named(&self, ranks: usize) -> String {
        match (self.gpus, self.threads) {
            (None, None) => format!("--ranks {ranks}"),
            (Some(gpus), None) => format!("-g {gpus}"),
            (None, Some(threads)) => format!("-t {threads}"),
            (Some(gpus), Some(threads)) => format!("-g {gpus} times -t {threads}"),
        }
    }

    /// nccl-tests' number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or(1)
    }

    /// This process's place; `None` if it was the launcher of a job that has ended well.
    ///
    /// # Errors
    /// If the job failed, or the options are invalid.
    pub fn place(&self) -> Result<Option<Place>, Failure> {
        self.place_with(0)
    }

    /// This process's place as [`Self::place`] finds it; local ranks have aggregators beside them,
    /// the last processes of the job.
    ///
    /// # Errors
    /// If the job failed, or the options are invalid.
    pub(crate) fn place_with(&self, aggregators: usize) -> Result<Option<Place>, Failure> {
        let place = self.find()?;
        if place.is_none() {
            let ranks = self.asked()?.unwrap_or(RANKS);
            launcher::launch(ranks + aggregators, Roles::of(ranks, aggregators))?;
        }
        Ok(place)
    }

    /// This process's place; `None` if it is to start local ranks.
    ///
    /// # Errors
    /// If the options are invalid.
    pub(crate) fn find(&self) -> Result<Option<Place>, Failure> {
        find(Roles::Ranks, self.by_hand()?, self.asked()?, self.root.as_deref(), &self.job)
    }

    /// The rank, the number of ranks and the address of rank 0, if the options say them.
    fn by_hand(&self) -> Result<Option<(usize, usize, String)>, Failure> {
        match (self.rank, self.world, &self.root) {
            (Some(rank), Some(world), _) if rank >= world => {
                Err(Failure::usage(format!("--rank {rank} of --world {world}: ranks count from 0")))
            }
            (Some(rank), Some(world), Some(root)) => Ok(Some((rank, world, root.clone()))),
            _ => Ok(None),
        }
    }
}

/// This process's place, from the first of: the launcher of this package, the options (rank, world,
/// address of rank 0), another launcher. If there is none, starts local ranks and returns `None`
/// when they have ended well.
///
/// # Errors
/// If the local ranks failed, or the options are invalid.
pub fn place(
    roles: Roles,
    by_hand: Option<(usize, usize, String)>,
    ranks: Option<usize>,
    root: Option<&str>,
    job: &JobOption,
) -> Result<Option<Place>, Failure> {
    let place = find(roles, by_hand, ranks, root, job)?;
    if place.is_none() {
        launcher::launch(ranks.unwrap_or(if roles == Roles::Ranks { RANKS } else { 2 }), roles)?;
    }
    Ok(place)
}

/// The place that [`place`] finds, without starting ranks if there is none.
fn find(
    roles: Roles,
    by_hand: Option<(usize, usize, String)>,
    ranks: Option<usize>,
    root: Option<&str>,
    job: &JobOption,
) -> Result<Option<Place>, Failure> {
    if let Some(place) = launcher::launched_place()? {
        return Ok(Some(place));
    }
    if let Some((rank, world, address)) = by_hand {
        return Ok(Some(Place::by_hand(rank, world, &address, job.name().as_deref())?));
    }
    match (ranks, launchers::job_place()) {
        (None, told) => {
            if let Some(told) = told? {
                let is_known = root.is_some() || told.meeting.is_some();
                let place = Place::of_launcher(told, roles, root, job.name().as_deref()).map_err(Failure::from);
                return place.map(Some).map_err(|failure| match (failure.kind(), is_known) {
                    (Kind::Failed, _) => Failure::new(format!("{failure} (--root says otherwise)")),
                    (_, false) => Failure::usage(format!("{failure} by --root")),
                    _ => failure,
                });
            }
        }
        // Without this check each rank of the other launcher would start a job of its own.
        (Some(ranks), Ok(Some(JobPlace { launcher, rank, ranks: world, variable, .. }))) if world > 1 => {
            return Err(Failure::usage(format!(
                "--ranks {ranks} starts ranks here, but {launcher} has started this process as rank {rank} of \
                 {world}; leave --ranks out, or unset {variable}"
            )));
        }
        (Some(_), _) => {}
    }
    match (root, roles) {
        (None, _) => Ok(None),
        (Some(root), Roles::ServerAndClient) => {
            let text = format!("--root {root} is for mpirun, Slurm and torchrun; give it to --server");
            Err(Failure::usage(text))
        }
        (Some(root), _) => Err(Failure::usage(format!("--root {root} needs --rank and --world"))),
    }
}

/// The terms of a program, whose settings are options and whose ranks may be this package's
/// launcher's.
pub fn terms(program: &'static str, settings: &impl Serialize, roles: Roles, timeout: Duration) -> Terms {
    Terms::new(program, settings, roles, timeout).options().supervised(is_launched()).notices(say)
}

/// Meets the other ranks, does `work` and ends the job; says on standard error if the others do not
/// come at once.
///
/// # Errors
/// If the ranks do not meet; the failure of any of them.
pub fn run(place: Place, terms: &Terms, work: impl FnOnce(&mut Group) -> Result<(), Failure>) -> Result<(), Failure> {
    // Of many ranks that another launcher starts, two are enough.
    let speaks = place.rank < 2 || matches!(launchers::job_place(), Ok(None));
    let waiting = speaks.then(|| Waiting::for_peer(awaited(&place, terms.roles())));
    rdma_collectives::placement::run(place, terms, |group| {
        drop(waiting);
        work(group)
    })
}

/// What a rank waits for before the job begins.
fn awaited(place: &Place, roles: Roles) -> String {
    let others = if place.ranks == 2 { "the other process" } else { "the other ranks" };
    match (&place.root, place.rank) {
        // `pingpong --server` listens on all addresses, unless it is told otherwise.
        (Root::Address(address), 0) if roles == Roles::ServerAndClient && address.starts_with("0.0.0.0:") => {
            format!("a client on port {}", &address["0.0.0.0:".len()..])
        }
        (Root::Address(address), 0) if !address.starts_with('@') => format!("{others} at {address}"),
        (_, 0) => others.to_owned(),
        (Root::Address(address), _) if !address.starts_with('@') => address.clone(),
        _ => "rank 0".to_owned(),
    }
}

/// Starts a server (rank 0) and its client on this host, each of which does `work`, and waits for
/// both.
///
/// # Errors
/// If one of them failed.
pub fn run_pair(terms: &Terms, work: impl FnOnce(&mut Group) -> Result<(), Failure>) -> Result<(), Failure> {
    match launcher::launched_place()? {
        Some(place) => run(place, terms, work),
        None => launcher::launch(2, Roles::ServerAndClient),
    }
}

/// Appends `port` to an address without a port. An IPv6 address may stand in brackets.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    if address.parse::<Ipv6Addr>().is_ok() {
        format!("[{address}]:{port}")
    } else if address.ends_with(']') || !address.contains(':') {
        format!("{address}:{port}")
    } else {
        address.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_waits_for_a_client() {
        for (address, roles, awaits) in [
            ("0.0.0.0:5", Roles::ServerAndClient, "a client on port 5"),
            ("0.0.0.0:5", Roles::Ranks, "the other process at 0.0.0.0:5"),
            ("127.0.0.1:5", Roles::ServerAndClient, "the other process at 127.0.0.1:5"),
        ] {
            assert_eq!(awaited(&Place::by_hand(0, 2, address, None).unwrap(), roles), awaits);
        }
    }

    #[test]
    fn addresses_get_the_usual_port() {
        for (given, full) in [
            ("node1", "node1:18515"),
            ("node1:5", "node1:5"),
            ("::1", "[::1]:18515"),
            ("[::1]", "[::1]:18515"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(with_port(given, 18515), full);
        }
    }
}
