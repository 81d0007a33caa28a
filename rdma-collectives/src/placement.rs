//! The place of a process in its job, by hand or by a launcher's environment, and on the cores of
//! its machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::bootstrap::{self, Group, Place, Roles, Root, Terms, check_address};
use crate::error::{Error, JobError};
use crate::launchers::{self, JobPlace, Meeting};
use crate::named::named;
use crate::text::hash;

named! {
    /// Whether ranks are pinned to cores.
    pub enum Bind {
        /// Ranks take the cores in turn, if each has a core or all cores have equally many ranks.
        Auto = "auto",
        /// Ranks take the cores in turn.
        Core = "core",
        /// No pinning.
        None = "none",
    }
}

impl Place {
    /// The place of a rank that is given by hand; rank 0 listens at `root`, which is `host:port`.
    /// The ranks of a job give the same name of a job, or none.
    ///
    /// # Errors
    /// If the rank is not below the number of ranks, or the address has no host or port.
    pub fn by_hand(rank: usize, ranks: usize, root: &str, job: Option<&str>) -> Result<Self, Error> {
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} of {ranks}: ranks count from 0")));
        }
        check_address(root)?;
        // The ranks may name the host in different ways.
        let port = root.rsplit(':').next().unwrap_or_default();
        let job = hash(job.unwrap_or(port));
        Ok(Self { rank, ranks, root: Root::Address(root.to_owned()), job })
    }

    /// The place that mpirun, mpiexec, Slurm or torchrun gave to this process in its environment.
    /// `root`, which is `host:port`, is the address of rank 0 if the launcher does not tell it, as
    /// mpirun and mpiexec on several hosts.
    ///
    /// # Errors
    /// If no launcher has started this process, or as for [`of_launcher`](Self::of_launcher).
    pub fn of_environment(root: Option<&str>) -> Result<Self, Error> {
        let told = launchers::job_place()?.ok_or_else(|| {
            Error::invalid("no launcher has started this process: start it by mpirun, mpiexec, srun or torchrun")
        })?;
        Self::of_launcher(told, Roles::Ranks, root, None)
    }

    /// The places of ranks that are all in this process, each in a thread of its own.
    ///
    /// # Errors
    /// If there are no ranks, or rank 0 cannot listen.
    pub fn of_threads(ranks: usize) -> Result<Vec<Self>, Error> {
        /// Keeps the jobs of a process apart.
        static JOBS: AtomicU32 = AtomicU32::new(0);
        if ranks == 0 {
            return Err(Error::invalid("a job of no ranks"));
        }
        let job = u64::from(std::process::id()) << 32 | u64::from(JOBS.fetch_add(1, Ordering::Relaxed));
        let (listener, address) = bootstrap::listen_locally(job)?;
        let others = (1..ranks).map(|_| Root::Address(address.clone()));
        let roots = std::iter::once(Root::Listener(listener)).chain(others);
        Ok(roots.enumerate().map(|(rank, root)| Self { rank, ranks, root, job }).collect())
    }

    /// The place that a launcher's environment gives to this process; `root` is the address of rank
    /// 0, and `job` the name of the job, if they are not to be the environment's.
    ///
    /// # Errors
    /// If the place is invalid, or no address of rank 0 is known.
    pub fn of_launcher(told: JobPlace, roles: Roles, root: Option<&str>, job: Option<&str>) -> Result<Self, Error> {
        let JobPlace { launcher, rank, ranks: world, meeting, job: number, .. } = told;
        if roles == Roles::ServerAndClient && world != 2 {
            return Err(Error::invalid(format!("this program is for 2 processes, and the environment says {world}")));
        }
        if rank >= world {
            return Err(Error::invalid(format!(
                "this is rank {rank} of {world} by the environment of {launcher}, and ranks count from 0; unset its \
                 variables, or correct them"
            )));
        }
        let root = match (root, meeting) {
            (Some(root), _) => check_address(root).map(|()| Root::Address(root.to_owned()))?,
            (None, Some(meeting)) => meet_at(&meeting, rank)?,
            (None, None) => {
                let port = bootstrap::DEFAULT_PORT;
                return Err(Error::invalid(format!(
                    "this is rank {rank} of {world} by the environment of {launcher}, which does not say where the \
                     first of its hosts is; give the address HOST:{port} where rank 0 listens"
                )));
            }
        };
        Ok(Self { rank, ranks: world, root, job: job.map_or(number, hash) })
    }
}

/// Finds rank 0's address. Rank 0 listens on all addresses: a host's own name may resolve to
/// loopback there.
fn meet_at(meeting: &Meeting, rank: usize) -> Result<Root, Error> {
    let Meeting { host, port } = meeting;
    let bracketed =
        if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    check_address(&bracketed)?;
    let is_local = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match (rank, is_local) {
        (0, true) => bootstrap::listen(&bracketed).map(Root::Listener),
        (0, false) => bootstrap::listen_everywhere(*port).map(Root::Listener),
        _ => Ok(Root::Address(bracketed)),
    }
    .map_err(|error| error.context("where the environment says that rank 0 listens"))
}

/// Runs one rank: meets the others, does the work, and ends together with them.
///
/// # Errors
/// If this rank or another failed.
pub fn run<T, E: JobError>(place: Place, terms: &Terms, work: impl FnOnce(&mut Group) -> Result<T, E>) -> Result<T, E> {
    let mut group = Group::meet(place, terms)?;
    let result = work(&mut group);
    group.conclude_as(result)
}

/// Runs a job whose ranks are threads of this process, as [`run`] runs one rank, and returns what
/// each rank has returned, in the order of ranks: for tests, and for a first try. It is NCCL's
/// `ncclCommInitAll`.
///
/// # Errors
/// The error of the first rank that has one; if a thread cannot be started.
///
/// # Panics
/// If `work` panics in a thread; the other ranks get an error then.
#[doc(alias = "ncclCommInitAll")]
pub fn run_threads<T: Send, E: JobError + Send>(
    ranks: usize,
    terms: &Terms,
    work: impl Fn(&mut Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let named = |place: Place| (thread::Builder::new().name(format!("rank {}", place.rank)), place);
    run_places(Place::of_threads(ranks)?.into_iter().map(named).collect(), terms, work)
}

/// Runs a job whose ranks are threads with these properties.
fn run_places<T: Send, E: JobError + Send>(
    places: Vec<(thread::Builder, Place)>,
    terms: &Terms,
    work: impl Fn(&mut Group) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let work = &work;
    thread::scope(|scope| {
        let (mut started, mut begin) = (Vec::new(), Vec::new());
        for (thread, place) in places {
            // The ranks begin when all threads have started: they would wait in vain for one that
            // has not. If the sender is dropped instead, the thread ends.
            let (told, begins) = channel();
            let rank = move || begins.recv().ok().map(|()| run(place, terms, work));
            let thread = thread.spawn_scoped(scope, rank);
            started.push(thread.map_err(|error| Error::not_started("the thread of a rank", &error))?);
            begin.push(told);
        }
        for told in begin {
            told.send(()).map_err(|_| Error::new("the thread of a rank has ended before its work began"))?;
        }
        // All threads have ended before a panic goes on, and it goes before the errors.
        let ended: Vec<_> = started.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let results = ended.into_iter().filter_map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)));
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// How the ranks of one host share its cores.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Whether there are more ranks than cores.
    pub shared: bool,
    /// The core to which this rank is pinned.
    pub pinned: Option<usize>,
}

/// Pins this rank as `bind` asks, if the kernel permits it; collective. A rank that is pinned
/// already, by a launcher or by an earlier call, stays on its cores.
///
/// # Errors
/// If another rank has failed.
pub fn bind(group: &mut Group, bind: Bind) -> Result<Cores, Error> {
    let us = Pid::from_raw(0);
    let cores: Vec<usize> = sched_getaffinity(us).map_or_else(
        // A sandbox may refuse this call.
        |_| Vec::new(),
        |allowed| (0..CpuSet::count()).filter(|&core| allowed.is_set(core).unwrap_or(false)).collect(),
    );
    // No rank is pinned before every rank has looked.
    let all = group.all_gather("the cores of the ranks", &ranges(&cores))?;
    let on_machine = all.into_iter().enumerate().filter(|(rank, _)| group.is_on_machine(*rank));
    let (ranks, sets): (Vec<usize>, Vec<Vec<Range<usize>>>) = on_machine.unzip();
    let spread = Spread::new(&sets, parallelism());
    let place = ranks.iter().position(|&rank| rank == group.rank()).unwrap_or(0);
    let wanted = if cores.is_empty() { None } else { spread.core_of(bind, place) };
    let shared = spread.is_shared();
    let pin = |core: usize| {
        let mut set = CpuSet::new();
        set.set(core)?;
        sched_setaffinity(us, &set)
    };
    let is_pinned = wanted.is_some_and(|core| pin(core).is_ok());
    if bind == Bind::Core && !is_pinned {
        (group.notices())(&format!("rank {} is not pinned to a core: the kernel refuses", group.rank()));
    }
    Ok(Cores { shared, pinned: wanted.filter(|_| is_pinned) })
}

/// Increasing numbers of cores as ranges.
fn ranges(cores: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some(last) if last.end == core => last.end += 1,
            _ => ranges.push(core..core + 1),
        }
    }
    ranges
}

/// The ranks of a machine on their cores. Every rank computes the same.
struct Spread {
    /// The cores on which each rank may run.
    sets: Vec<Vec<usize>>,
    /// The core of each rank.
    cores: Vec<usize>,
    /// The number of ranks on each core that has some.
    loads: BTreeMap<usize, usize>,
}

impl Spread {
    /// Gives each rank the core of its own on which the fewest ranks are. Those with the fewest
    /// cores come first, because they have no choice. A rank that does not know its cores has
    /// `unknown` of them.
    fn new(ranks: &[Vec<Range<usize>>], unknown: usize) -> Self {
        let cores_of = |ranges: &Vec<Range<usize>>| -> Vec<usize> {
            // A peer may say anything.
            let known = ranges.iter().flat_map(|range| range.start..range.end.min(CpuSet::count()));
            let known: BTreeSet<usize> = known.collect();
            if known.is_empty() { (0..unknown.max(1)).collect() } else { known.into_iter().collect() }
        };
        let sets: Vec<Vec<usize>> = ranks.iter().map(cores_of).collect();
        let mut order: Vec<usize> = (0..sets.len()).collect();
        order.sort_by_key(|&rank| sets[rank].len());
        let (mut cores, mut loads) = (vec![0; sets.len()], BTreeMap::new());
        for rank in order {
            let load = |core: &&usize| loads.get(*core).copied().unwrap_or(0);
            cores[rank] = sets[rank].iter().min_by_key(load).copied().unwrap_or(0);
            *loads.entry(cores[rank]).or_insert(0) += 1;
        }
        Self { sets, cores, loads }
    }

    /// Whether two ranks are on one core.
    fn is_shared(&self) -> bool {
        self.loads.values().any(|&load| load > 1)
    }

    /// The core of a rank; `None` if it is not pinned.
    ///
    /// Ranks that share cores evenly are pinned too: they wait for each other, so if the scheduler
    /// put one more on a core, all would wait for that core, half as long again with 4 ranks on 2
    /// cores.
    fn core_of(&self, bind: Bind, rank: usize) -> Option<usize> {
        let load = |core: &usize| self.loads.get(core).copied().unwrap_or(0);
        let loads: Vec<usize> = self.sets.get(rank)?.iter().map(load).collect();
        let is_even = loads.iter().all(|&load| load <= 1) || loads.iter().all(|&load| load == loads[0]);
        match bind {
            Bind::None => None,
            Bind::Auto if !is_even => None,
            Bind::Auto | Bind::Core => self.cores.get(rank).copied(),
        }
    }
}

fn parallelism() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cores of ranks with these sets of cores, and whether they share some.
    fn spread(bind: Bind, sets: &[&[usize]]) -> (Vec<Option<usize>>, bool) {
        let sets: Vec<_> = sets.iter().map(|cores| ranges(cores)).collect();
        let spread = Spread::new(&sets, 2);
        ((0..sets.len()).map(|rank| spread.core_of(bind, rank)).collect(), spread.is_shared())
    }

    #[test]
    fn ranks_that_share_cores_evenly_are_pinned() {
        let cores = |bind, ranks| spread(bind, &vec![&[1, 3][..]; ranks]);
        assert_eq!(cores(Bind::Auto, 2), (vec![Some(1), Some(3)], false));
        assert_eq!(cores(Bind::Auto, 4), (vec![Some(1), Some(3), Some(1), Some(3)], true));
        assert_eq!(cores(Bind::Auto, 3), (vec![None; 3], true));
        assert_eq!(cores(Bind::Core, 3), (vec![Some(1), Some(3), Some(1)], true));
        assert_eq!(cores(Bind::None, 2), (vec![None; 2], false));
    }

    /// As launchers bind them: to sockets by turns, to cores, or not at all.
    #[test]
    fn ranks_with_different_cores_are_spread_over_them() {
        let (low, high): (&[usize], &[usize]) = (&[0, 1], &[2, 3]);
        let in_turns = spread(Bind::Auto, &[low, high, low, high]);
        assert_eq!(in_turns, (vec![Some(0), Some(2), Some(1), Some(3)], false));
        assert_eq!(spread(Bind::Auto, &[low, low, low, high]), (vec![None, None, None, Some(2)], true));
        assert_eq!(spread(Bind::Auto, &[&[4, 5], &[4]]), (vec![Some(5), Some(4)], false));
        assert_eq!(spread(Bind::Core, &[&[4], &[4], &[5, 6]]), (vec![Some(4), Some(4), Some(5)], true));
        // A rank that does not know its cores may be on any.
        assert!(!spread(Bind::None, &[&[], &[0]]).1 && spread(Bind::None, &[&[], &[0], &[1]]).1);
    }

    /// The others do not wait for a rank that has no thread.
    #[test]
    fn a_thread_that_cannot_be_started_ends_all_at_once() {
        let terms = Terms::new("test", &(), Roles::Ranks, crate::testing::LONG);
        // No machine has memory for the stack of the last one.
        let stack =
            |place: Place| (thread::Builder::new().stack_size(if place.rank == 2 { 1 << 60 } else { 1 << 20 }), place);
        let places = Place::of_threads(3).unwrap().into_iter().map(stack).collect();
        let error = run_places(places, &terms, |_| Ok::<_, Error>(())).unwrap_err();
        assert!(error.to_string().starts_with("cannot start the thread of a rank: "), "{error}");
        assert!(matches!(error.cause(), crate::Cause::System { errno: Some(_) }), "{:?}", error.cause());
    }

    #[test]
    fn ranges_hold_cores_and_a_peer_may_claim_any() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
        let spread = Spread::new(&[vec![1..3, 5..usize::MAX]], 2);
        assert_eq!((spread.sets[0].len(), spread.cores[0]), (CpuSet::count() - 3, 1));
    }

    /// The second call finds ranks that are pinned.
    #[test]
    fn ranks_that_are_pinned_already_share_cores_only_with_each_other() {
        let ranks = parallelism().min(2);
        let terms = Terms::new("test", &(), Roles::Ranks, crate::testing::LONG);
        let both = |group: &mut Group| {
            let [first, second] = [bind(group, Bind::Core)?, bind(group, Bind::Core)?];
            Ok::<_, Error>((first, second))
        };
        for (first, second) in run_threads(ranks, &terms, both).unwrap() {
            assert!(!first.shared && !second.shared, "{first:?}, {second:?}");
            assert_eq!(first.pinned, second.pinned);
        }
    }

    #[test]
    fn jobs_that_are_started_by_hand_have_numbers() {
        let job = |root: &str, name| Place::by_hand(1, 2, root, name).unwrap().job;
        let usual = job("node1:18515", None);
        // Ranks may give rank 0's host different names.
        assert_eq!(usual, job("10.0.0.1:18515", None));
        assert!(usual != 0 && usual != job("node1:18516", None));
        let named = job("node1:18515", Some("a name"));
        assert!(named != usual && named != job("node1:18515", Some("another")));
        assert_eq!(named, job("node1:18516", Some("a name")));
    }
}
