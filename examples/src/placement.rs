//! The place of a process in its job: it is the launcher itself, or was started by this package's
//! launcher, by hand, by mpirun, Slurm or torchrun.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::bootstrap::{self, Group, Place, Roles, Root, Terms};
use crate::environment::{self, JobPlace, Meeting};
use crate::failure::{is_launched, say};
use crate::{Failure, cli, launcher};

/// Most local ranks; a larger number is taken for a mistake.
pub(crate) const MOST_RANKS: usize = 256;
/// Number of local ranks if no option gives one.
const RANKS: usize = 4;

/// The options that say which rank this is, or how many to start.
#[derive(Clone, Debug, clap::Args)]
pub struct PlacementOptions {
    /// Ranks to start on this machine (default: 4, unless mpirun, Slurm or torchrun has started
    /// this process)
    #[arg(short = 'r', long, value_name = "N", conflicts_with_all = ["rank", "world", "root"])]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=MOST_RANKS))]
    pub ranks: Option<usize>,
    /// Rank of this process in a job that is started by hand (default: as set by mpirun, Slurm or
    /// torchrun)
    #[arg(long, value_name = "N", requires = "world", requires = "root")]
    pub rank: Option<usize>,
    /// Number of ranks of the job
    #[arg(long, value_name = "N", requires = "rank")]
    #[arg(value_parser = |text: &str| cli::number_in(text, 1..=bootstrap::MOST_RANKS))]
    pub world: Option<usize>,
    /// Address at which rank 0 listens (default: from the environment of mpirun, Slurm or torchrun)
    #[arg(long, value_name = "HOST:PORT")]
    pub root: Option<String>,
    /// The number of the job.
    #[command(flatten)]
    pub job: JobOption,
    /// Seconds to wait for another rank; a rank that is silent for a third of this time counts as
    /// dead
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = cli::seconds)]
    pub timeout: Duration,
    /// Pin each rank to a core
    #[arg(long, value_enum, default_value_t = Bind::Auto)]
    pub bind: Bind,
}

/// The variable that names the job, in place of [`JobOption`].
const JOB_VARIABLE: &str = "RDMA_JOB";

/// The option that tells the jobs at an address apart.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct JobOption {
    /// A name that all processes of the job give: connections of others are ignored [env: RDMA_JOB]
    /// (default: the port of rank 0, or the job of mpirun, Slurm or torchrun)
    #[arg(long = "job", value_name = "NAME")]
    pub name: Option<String>,
}

impl JobOption {
    /// The number of the job: that of its name, or `otherwise`.
    fn number(&self, otherwise: u64) -> u64 {
        let name = self.name.clone().or_else(|| environment::text(JOB_VARIABLE));
        name.map_or(otherwise, |name| environment::hash(&name))
    }
}

/// Whether ranks are pinned to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Bind {
    /// Ranks take the cores in turn, if each has a core or all cores have equally many ranks
    Auto,
    /// Ranks take the cores in turn.
    Core,
    /// No pinning.
    None,
}

impl PlacementOptions {
    /// Number of ranks that this process starts; 1 if it is a rank itself.
    #[must_use]
    pub fn local_ranks(&self) -> usize {
        let is_told = || !matches!(environment::job_place(), Ok(None));
        let is_rank = self.rank.is_some() || is_launched() || self.ranks.is_none() && is_told();
        if is_rank { 1 } else { self.ranks.unwrap_or(RANKS) }
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
            let ranks = self.ranks.unwrap_or(RANKS);
            launcher::launch(ranks + aggregators, Roles::of(ranks, aggregators))?;
        }
        Ok(place)
    }

    /// This process's place; `None` if it is to start local ranks.
    ///
    /// # Errors
    /// If the options are invalid.
    pub(crate) fn find(&self) -> Result<Option<Place>, Failure> {
        find(Roles::Ranks, self.by_hand()?, self.ranks, self.root.as_deref(), &self.job)
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
        check_address(&address)?;
        // The ranks may name the host in different ways.
        let port = address.rsplit(':').next().unwrap_or_default();
        let job = job.number(environment::hash(port));
        return Ok(Some(Place { rank, world, root: Root::Address(address), job }));
    }
    match (ranks, environment::job_place()) {
        (None, told) => {
            if let Some(told) = told? {
                let place = place_of(told, roles, root)?;
                return Ok(Some(Place { job: job.number(place.job), ..place }));
            }
        }
        // Without this check each rank of the other launcher would start a job of its own.
        (Some(ranks), Ok(Some(JobPlace { launcher, rank, world, variable, .. }))) if world > 1 => {
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

/// The place that another launcher has given to this process. `root` overrides the environment's
/// meeting address.
///
/// # Errors
/// If the place is invalid, or no meeting address is known.
fn place_of(told: JobPlace, roles: Roles, root: Option<&str>) -> Result<Place, Failure> {
    let JobPlace { launcher, rank, world, meeting, job, .. } = told;
    if roles == Roles::ServerAndClient && world != 2 {
        return Err(Failure::usage(format!("this program is for 2 processes, and the environment says {world}")));
    }
    if rank >= world {
        return Err(Failure::usage(format!(
            "this is rank {rank} of {world} by the environment of {launcher}, and ranks count from 0; unset its \
             variables, or correct them"
        )));
    }
    let root = match (root, meeting) {
        (Some(root), _) => check_address(root).map(|()| Root::Address(root.to_owned()))?,
        (None, Some(meeting)) => meet_at(&meeting, rank)?,
        (None, None) => {
            let port = bootstrap::DEFAULT_PORT;
            return Err(Failure::usage(format!(
                "this is rank {rank} of {world} by the environment of {launcher}, which does not say where the first \
                 of its hosts is; say with --root HOST:{port} where rank 0 listens"
            )));
        }
    };
    Ok(Place { rank, world, root, job })
}

/// Finds rank 0's address. Rank 0 listens on all addresses: a host's own name may resolve to
/// loopback there.
fn meet_at(meeting: &Meeting, rank: usize) -> Result<Root, Failure> {
    let Meeting { host, port } = meeting;
    let bracketed =
        if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    check_address(&bracketed)?;
    let is_local = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match (rank, is_local) {
        (0, true) => bootstrap::listen(&bracketed).map(Root::Listener),
        // Listens on IPv6 and IPv4 if the host has both.
        (0, false) => bootstrap::listen(&format!("[::]:{port}"))
            .or_else(|_| bootstrap::listen(&format!("0.0.0.0:{port}")))
            .map(Root::Listener),
        _ => Ok(Root::Address(bracketed)),
    }
    .map_err(|failure| failure.context("where the environment says that rank 0 listens (--root says otherwise)"))
}

/// Runs one rank: meets the others, does the work, and ends together with them.
///
/// # Errors
/// If this rank or another failed.
pub fn run(place: Place, terms: &Terms, work: impl FnOnce(&mut Group) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut group = Group::meet(place, terms)?;
    let result = work(&mut group);
    group.conclude(result)
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

/// Checks that an address has a host and a port.
///
/// # Errors
/// If one of the two is missing or invalid.
pub(crate) fn check_address(address: &str) -> Result<(), Failure> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if port != 0 => Ok(()),
        Some(_) if address.ends_with(|last: char| last.is_ascii_digit()) => {
            Err(Failure::usage(format!("{address} has no port from 1 to 65535; give host:port, such as node1:18515")))
        }
        _ => Err(Failure::usage(format!("{address} is not an address; give host:port, such as node1:18515"))),
    }
}

/// How the ranks of one host share its cores.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Whether there are more ranks than cores.
    pub shared: bool,
    /// The core to which this rank is pinned.
    pub pinned: Option<usize>,
}

/// Pins this rank as `bind` asks, if the kernel permits it.
#[must_use]
pub fn bind(group: &Group, bind: Bind) -> Cores {
    let us = Pid::from_raw(0);
    let (place, ranks) = group.place_on_machine();
    let cores: Vec<usize> = sched_getaffinity(us).map_or_else(
        // A sandbox may refuse this call.
        |_| Vec::new(),
        |allowed| (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false)).collect(),
    );
    let shared = ranks > if cores.is_empty() { parallelism() } else { cores.len() };
    let wanted = core_of(bind, place, ranks, &cores);
    let pin = |core: usize| {
        let mut set = CpuSet::new();
        set.set(core)?;
        sched_setaffinity(us, &set)
    };
    let is_pinned = wanted.is_some_and(|core| pin(core).is_ok());
    if bind == Bind::Core && !is_pinned {
        say(&format!("rank {} is not pinned to a core: the kernel refuses", group.rank()));
    }
    Cores { shared, pinned: wanted.filter(|_| is_pinned) }
}

/// The core of the `place`-th of some ranks; `None` if it is not pinned.
///
/// Ranks that share cores evenly are pinned too: they wait for each other, so if the scheduler put
/// one more on a core, all would wait for that core, half as long again with 4 ranks on 2 cores.
fn core_of(bind: Bind, place: usize, ranks: usize, cores: &[usize]) -> Option<usize> {
    let count = cores.len().max(1);
    let is_even = ranks <= count || ranks % count == 0;
    match bind {
        Bind::None => None,
        Bind::Auto if !is_even => None,
        Bind::Auto | Bind::Core => cores.get(place % count).copied(),
    }
}

fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(check_address(full).is_ok());
        }
    }

    #[test]
    fn ranks_that_share_cores_evenly_are_pinned() {
        let cores = |bind, ranks| (0..ranks).map(|place| core_of(bind, place, ranks, &[1, 3])).collect::<Vec<_>>();
        assert_eq!(cores(Bind::Auto, 2), [Some(1), Some(3)]);
        assert_eq!(cores(Bind::Auto, 4), [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(cores(Bind::Auto, 3), [None; 3]);
        assert_eq!(cores(Bind::Core, 3), [Some(1), Some(3), Some(1)]);
        assert_eq!(cores(Bind::None, 2), [None; 2]);
        assert_eq!(core_of(Bind::Auto, 0, 1, &[]), None);
    }

    #[test]
    fn jobs_that_are_started_by_hand_have_numbers() {
        let job = |address: &str, name: Option<&str>| {
            let by_hand = Some((1, 2, address.to_owned()));
            let option = JobOption { name: name.map(str::to_owned) };
            find(Roles::Ranks, by_hand, None, None, &option).unwrap().unwrap().job
        };
        let usual = job("node1:18515", None);
        // Ranks may give rank 0's host different names.
        assert_eq!(usual, job("10.0.0.1:18515", None));
        assert!(usual != 0 && usual != job("node1:18516", None));
        let named = job("node1:18515", Some("a name"));
        assert!(named != usual && named != job("node1:18515", Some("another")));
        assert_eq!(named, job("node1:18516", Some("a name")));
    }

    #[test]
    fn addresses_need_host_and_port() {
        for good in ["node1:18515", "127.0.0.1:1", "[::1]:80"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in ["", "node1", ":80", "node1:", "node1:0", "node1:70000", "node1:x"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
