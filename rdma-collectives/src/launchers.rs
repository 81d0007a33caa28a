//! The place in a job that another launcher gives to this process in the environment: mpirun (Open
//! MPI), mpiexec (Hydra: MPICH, Intel MPI), srun (Slurm), torchrun.
//!
//! All of them give the rank and the number of ranks. torchrun gives the host of rank 0, and Slurm
//! lists the hosts; the others at least tell whether all ranks are on one host. Each but Hydra
//! gives an identity of the job; for Hydra, the identity of its process on this host serves.
//!
//! Where a launcher does not say where rank 0 is, as mpirun with several hosts, the ranks can find
//! it by [a directory](crate::bootstrap::Directory) or [another
//! exchange](crate::bootstrap::Exchange).

mod proxy;

use std::env;
use std::net::Ipv4Addr;

use crate::text::hash;
use crate::{Error, bootstrap};

/// The place of this process in a job, as a launcher gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlace {
    /// The launcher's name.
    pub launcher: &'static str,
    /// The variable that holds the rank.
    pub variable: &'static str,
    /// Number of this process, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The place where rank 0 listens, if it is known.
    pub meeting: Option<Meeting>,
    /// A number that the ranks of one job share, or 0.
    pub job: u64,
}

/// The address at which the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The host of rank 0: a name or an IP address.
    pub host: String,
    /// A port of that host that is probably free.
    pub port: u16,
}

/// The names of a launcher's variables, in order of preference.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    world: &'static [&'static str],
    /// Number of ranks on this host.
    local: &'static [&'static str],
    /// Number of hosts.
    hosts: &'static [&'static str],
    /// Lists of hosts, of which the first runs rank 0; or the address of that host.
    list: &'static [&'static str],
    /// Variables that together identify the job.
    job: &'static [&'static str],
}

/// The order matters: mpirun under Slurm sets Slurm's variables as well.
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
        job: &["PMI_JOBID", "FLUX_JOB_ID"],
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

/// The place that the environment gives to this process; `None` without a launcher.
///
/// # Errors
/// If a relevant variable is set and invalid, by itself or together with another one. A fallback
/// would misread such an environment.
pub fn job_place() -> Result<Option<JobPlace>, Error> {
    let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    job_place_by(&Variables(&variable), proxy::identity)
}

/// The environment; an empty variable counts as unset.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.0(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn number(&self, name: &str) -> Result<Option<usize>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Error::variable(name, &text, "it is to be a number"))
    }

    /// The value of the first of these variables that is set.
    fn first(&self, names: &[&'static str]) -> Result<Option<usize>, Error> {
        names.iter().find(|name| self.is_set(name)).map_or(Ok(None), |name| self.number(name))
    }

    /// The port that the environment gives to the ranks.
    fn port(&self) -> Result<Option<u16>, Error> {
        let name = "MASTER_PORT";
        let Some(text) = self.text(name) else { return Ok(None) };
        let port = text.parse().ok().filter(|&port| port != 0);
        let port: u16 = port.ok_or_else(|| Error::variable(name, &text, "a port is a number from 1 to 65535"))?;
        if self.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() != Some("True") {
            return Ok(Some(port));
        }
        // torchrun itself listens on MASTER_PORT.
        let next = port.checked_add(1);
        next.map(Some).ok_or_else(|| {
            Error::variable(name, &text, "torchrun has that port, the ranks the next, and there is none")
        })
    }

    /// The host that the environment gives to the ranks.
    fn host(&self) -> Result<Option<String>, Error> {
        let name = "MASTER_ADDR";
        let host = self.text(name);
        let has_port = |host: &String| {
            host.rsplit_once(':').is_some_and(|(front, _)| !front.contains(':') || front.ends_with(']'))
        };
        match host.as_ref().filter(|host| has_port(host)) {
            Some(host) => Err(Error::variable(name, host, "the port is for MASTER_PORT")),
            None => Ok(host),
        }
    }
}

impl Launcher {
    /// Whether this launcher has started this process: it has set both the rank and the number of
    /// ranks.
    ///
    /// # Errors
    /// If only one of the two is set.
    fn has_been_here(&self, variables: &Variables<'_>) -> Result<bool, Error> {
        let (rank, world) = (variables.is_set(self.rank), self.world.iter().any(|name| variables.is_set(name)));
        // srun in the role of mpiexec: Slurm's own variables are more specific.
        let is_other = self.name == "mpiexec"
            && variables.is_set("PMI_JOBID")
            && variables.text("SLURM_PROCID") == variables.text(self.rank);
        if rank == world || is_other {
            return Ok(rank && !is_other);
        }
        let is_meant = match self.name {
            // A shell of an allocation has one of the two variables.
            "Slurm" => false,
            // A shell may also use these names for another purpose.
            "torchrun" => ["MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"].iter().any(|name| variables.is_set(name)),
            _ => true,
        };
        let (there, missing) = if rank { (self.rank, self.world[0]) } else { (self.world[0], self.rank) };
        let name = self.name;
        let complaint = format!(
            "{there} is set in the environment and {missing} is not, and {name} sets both; set it, or unset the other"
        );
        if is_meant { Err(Error::invalid(complaint)) } else { Ok(false) }
    }
}

fn job_place_by(variables: &Variables<'_>, proxy: impl Fn() -> Option<String>) -> Result<Option<JobPlace>, Error> {
    let mut found = None;
    for launcher in &LAUNCHERS {
        if launcher.has_been_here(variables)? {
            found = Some(launcher);
            break;
        }
    }
    let Some(launcher) = found else { return Ok(None) };
    let (Some(rank), Some(world)) = (variables.number(launcher.rank)?, variables.first(launcher.world)?) else {
        return Ok(None);
    };
    let (local, hosts) = (variables.first(launcher.local)?, variables.first(launcher.hosts)?);
    if local.is_some_and(|local| local > world) {
        let (local_name, local) = (launcher.local[0], local.unwrap_or_default());
        let what = format!("there are only {world} ranks by {}", launcher.world[0]);
        return Err(Error::variable(local_name, &local.to_string(), &what));
    }
    let one_host = local == Some(world) || hosts == Some(1);
    let mut identity: Vec<String> = launcher.job.iter().filter_map(|name| variables.text(name)).collect();
    if identity.is_empty() && one_host {
        // With several hosts there is one such process on each, so its identity is not that of the
        // job.
        identity.extend(proxy());
    }
    let job = if identity.is_empty() { 0 } else { hash(&identity.join(" ")) };

    let given = variables.host()?;
    let listed = || launcher.list.iter().find_map(|name| first_host(&variables.text(name)?));
    let local = || one_host.then(|| Ipv4Addr::LOCALHOST.to_string());
    let host = given.or_else(local).or_else(listed);
    let port = variables.port()?.unwrap_or_else(|| free_port(job));
    let meeting = host.map(|host| Meeting { host, port });
    Ok(Some(JobPlace { launcher: launcher.name, variable: launcher.rank, rank, ranks: world, meeting, job }))
}

/// A port below the kernel's ephemeral ports; different for most jobs.
fn free_port(job: u64) -> u16 {
    match job {
        0 => bootstrap::DEFAULT_PORT,
        job => 20_000 + u16::try_from(job % 12_000).unwrap_or(0),
    }
}

/// The first host of a Slurm list: `node003-ib` for `node[003-005,7]-ib,other`. Each pair of
/// brackets contributes its first number.
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
mod tests;
