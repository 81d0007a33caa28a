//! What other launchers say in the environment: mpirun (Open MPI), mpiexec (Hydra: MPICH, Intel MPI), srun (Slurm), torchrun.
//!
//! All say which rank a process is and how many there are. Where rank 0 is, torchrun says; Slurm lists the hosts; the others say at
//! least whether all ranks are on one host.

use std::env;
use std::net::Ipv4Addr;

use crate::bootstrap;

/// A place in a job, as a launcher tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Who.
    pub launcher: &'static str,
    /// This process, from 0.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// Where rank 0 is, if that can be known.
    pub meeting: Option<Meeting>,
    /// A number that the ranks of one job have in common, or 0.
    pub job: u64,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The host of rank 0: a name or an address.
    pub host: String,
    /// A port of it that, with some luck, is free.
    pub port: u16,
}

/// The names of a launcher's variables, in the order of preference.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world: &'static [&'static str],
    /// How many of the ranks are on this host.
    local: &'static [&'static str],
    /// How many hosts there are.
    hosts: &'static [&'static str],
    /// Lists of the hosts, the first of which has rank 0; or its address.
    list: &'static [&'static str],
    /// What tells jobs apart: all of them together.
    job: &'static [&'static str],
}

/// In this order: mpirun under Slurm sets Slurm's as well.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        world: &["OMPI_COMM_WORLD_SIZE"],
        local: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        list: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        name: "mpiexec",
        rank: "PMI_RANK",
        world: &["PMI_SIZE"],
        local: &["MPI_LOCALNRANKS"],
        hosts: &[],
        list: &[],
        job: &[],
    },
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"],
        list: &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    Launcher {
        name: "torchrun",
        rank: "RANK",
        world: &["WORLD_SIZE"],
        local: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        list: &[],
        job: &["TORCHELASTIC_RUN_ID"],
    },
];

/// What the environment of this process says; `None` where no launcher has been there.
#[must_use]
pub fn told() -> Option<Told> {
    told_by(|name| env::var(name).ok())
}

fn told_by(variable: impl Fn(&str) -> Option<String>) -> Option<Told> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    let first = |names: &[&str]| names.iter().find_map(|name| number(name));
    let (launcher, rank, world) =
        LAUNCHERS.iter().find_map(|launcher| Some((launcher, number(launcher.rank)?, first(launcher.world)?)))?;
    let identity: Vec<String> = launcher.job.iter().filter_map(|name| variable(name)).collect();
    let job = if identity.is_empty() { 0 } else { hash(&identity.join(" ")) };

    let one_host = first(launcher.local) == Some(world) || first(launcher.hosts) == Some(1);
    let given = variable("MASTER_ADDR").filter(|host| !host.is_empty());
    let listed = || launcher.list.iter().find_map(|name| first_host(&variable(name)?));
    let local = || one_host.then(|| Ipv4Addr::LOCALHOST.to_string());
    let host = given.or_else(local).or_else(listed);
    let port = match number("MASTER_PORT").and_then(|port| u16::try_from(port).ok()) {
        // torchrun may listen there itself.
        Some(port) if variable("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") => port.saturating_add(1),
        Some(port) => port,
        None => free_port(job),
    };
    let meeting = host.map(|host| Meeting { host, port });
    Some(Told { launcher: launcher.name, rank, world, meeting, job })
}

/// A port below those that the kernel gives to connections, different for most jobs.
fn free_port(job: u64) -> u16 {
    match job {
        0 => bootstrap::DEFAULT_PORT,
        job => 20_000 + u16::try_from(job % 12_000).unwrap_or(0),
    }
}

/// The same in every build, which the standard library's hashes need not be: FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The first host of Slurm's `node[003-005,7]-ib,other`: `node003-ib`. In each pair of brackets it is the first number.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut characters = list.trim().chars();
    while let Some(character) = characters.next() {
        match character {
            ',' => break,
            '[' => {
                let inside: String = characters.by_ref().take_while(|&character| character != ']').collect();
                host.extend(inside.chars().take_while(|character| !matches!(character, '-' | ',')));
            }
            _ => host.push(character),
        }
    }
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(set: &[(&str, &str)]) -> Option<Told> {
        told_by(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    fn place(set: &[(&str, &str)]) -> (usize, usize, Option<String>) {
        let Told { rank, world, meeting, .. } = found(set).unwrap();
        (rank, world, meeting.map(|Meeting { host, port }| format!("{host}:{port}")))
    }

    #[test]
    fn half_an_environment_is_none() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("SLURM_PROCID", "3")]), None);
        assert_eq!(found(&[("RANK", "one"), ("WORLD_SIZE", "2")]), None);
        assert_eq!(found(&[("MASTER_ADDR", "node7"), ("MASTER_PORT", "99")]), None);
    }

    #[test]
    fn mpirun_and_mpiexec_say_whether_all_are_on_one_host() {
        let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3"), ("PMIX_NAMESPACE", "635568129")];
        assert_eq!(place(&mpirun), (1, 3, None));
        let (rank, world, root) = place(&[&mpirun[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "3")]].concat());
        let root = root.unwrap();
        assert!((rank, world) == (1, 3) && root.starts_with("127.0.0.1:2"), "{root}");
        let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "6")];
        assert_eq!(place(&hydra), (0, 2, Some("127.0.0.1:18515".to_owned())));
        assert_eq!(place(&[("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")]).2, None);
    }

    #[test]
    fn slurm_lists_its_hosts() {
        let task = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77"), ("SLURM_STEP_ID", "0")];
        let host = |more: &[(&str, &str)]| found(&[&task[..], more].concat()).unwrap().meeting.map(|m| m.host);
        assert_eq!(host(&[]), None);
        assert_eq!(host(&[("SLURM_NNODES", "1"), ("SLURM_NODELIST", "n5")]).as_deref(), Some("127.0.0.1"));
        let two = ("SLURM_NNODES", "2");
        assert_eq!(host(&[two, ("SLURM_NODELIST", "n[5-6]")]).as_deref(), Some("n5"));
        assert_eq!(host(&[two, ("SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3")]).as_deref(), Some("10.1.2.3"));
        let both = [two, ("SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3"), ("SLURM_JOB_NODELIST", "a,b")];
        assert_eq!(host(&both).as_deref(), Some("a"));
        assert_eq!(host(&[two, ("SLURM_NODELIST", "a"), ("MASTER_ADDR", "b")]).as_deref(), Some("b"));
        // A step has its own count of tasks.
        assert_eq!(found(&[&task[..], &[("SLURM_STEP_NUM_TASKS", "4")]].concat()).unwrap().world, 4);
        let step = |step| found(&[&task[..3], &[("SLURM_STEP_ID", step)]].concat()).unwrap().job;
        assert_ne!(step("0"), step("1"));
    }

    #[test]
    fn host_lists_are_read_to_their_first_host() {
        for (list, host) in [
            ("tux", "tux"),
            ("tux,other", "tux"),
            ("tux[1-3]", "tux1"),
            ("tux[003-005,7],other", "tux003"),
            ("tux[7,9]", "tux7"),
            ("r[1-2]n[04-10]-ib", "r1n04-ib"),
            ("tux[3", "tux3"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for nothing in ["", " ", ",a", "[]"] {
            assert_eq!(first_host(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn torchrun_says_where_to_meet() {
        let torch = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "99")];
        assert_eq!(place(&torch), (1, 2, Some("node7:99".to_owned())));
        let agent = [&torch[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(place(&agent), (1, 2, Some("node7:100".to_owned())));
    }

    #[test]
    fn mpirun_goes_before_slurm_which_it_may_run_under() {
        let set = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        assert_eq!(found(&set).map(|told| (told.launcher, told.rank, told.world)), Some(("mpirun", 2, 4)));
    }

    #[test]
    fn ports_are_below_those_of_connections() {
        for job in [1, 11_999, 12_000, u64::MAX] {
            assert!((20_000..32_000).contains(&free_port(job)));
        }
    }
}
