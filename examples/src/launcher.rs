//! The launcher of local ranks: the program executes itself once per rank and waits for all ranks.
//!
//! Only the launcher sees how a rank ended, so it reports that. When a rank dies, the launcher ends
//! the others; when the launcher itself dies (control-C, `kill`), the kernel ends the ranks.

use std::collections::hash_map::RandomState;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use serde_json::json;
use socket2::Socket;

use crate::Failure;
use crate::failure::{Kind, LAUNCH};
use rdma_collectives::bootstrap::{self, Place, Roles, Root};

/// Time for the ranks to end by themselves after one of them died.
const GRACE: Duration = Duration::from_secs(2);

/// The place that a launcher of this package gave to this process; `None` without such a launcher.
///
/// # Errors
/// If the variable does not hold a value that a launcher sets.
pub(crate) fn launched_place() -> Result<Option<Place>, Failure> {
    let Ok(text) = env::var(LAUNCH) else { return Ok(None) };
    let place: (usize, usize, u64, i32, String) = serde_json::from_str(&text)
        .map_err(|_| Failure::new(format!("{LAUNCH} is for the launcher's own use; unset it")))?;
    let (rank, world, job, launcher, address) = place;

    // From here on the kernel ends this process with its launcher. A launcher that has already
    // ended is no longer the parent.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)?;
    if nix::unistd::getppid().as_raw() != launcher {
        return Err(Failure::peer("the launcher has ended"));
    }
    let root = match rank {
        0 => Root::Listener(Socket::from(std::io::stdin().as_fd().try_clone_to_owned()?)),
        _ => Root::Address(address),
    };
    Ok(Some(Place { rank, ranks: world, root, job }))
}

/// A running rank and its name in messages.
struct Rank {
    child: Child,
    name: String,
}

/// Runs `world` copies of this program with the same arguments, one per rank, and waits until all
/// have ended.
///
/// # Errors
/// How a rank died, why one could not be started, or a failure that a rank has already reported.
pub(crate) fn launch(world: usize, roles: Roles) -> Result<(), Failure> {
    supervise(start(world, roles, false)?)
}

/// Launches ranks as [`launch`] does, and returns what rank 0 printed on standard output.
///
/// # Errors
/// Those of [`launch`].
pub(crate) fn launch_reading(world: usize, roles: Roles) -> Result<String, Failure> {
    let mut ranks = start(world, roles, true)?;
    let output = ranks.first_mut().and_then(|first| first.child.stdout.take());
    let reader = std::thread::Builder::new().spawn(move || output.map(std::io::read_to_string));
    let reader = reader.map_err(|error| {
        end_all(&mut ranks);
        Failure::not_started("the thread that reads the output of rank 0", &error)
    })?;
    supervise(ranks)?;
    match reader.join() {
        Ok(Some(text)) => Ok(text?),
        _ => Err(Failure::new("the output of rank 0 is lost")),
    }
}

/// Starts all ranks; with `reads`, the standard output of rank 0 is a pipe to this process.
fn start(world: usize, roles: Roles, reads: bool) -> Result<Vec<Rank>, Failure> {
    // Other processes of this host can find the socket, but not this number.
    let job = RandomState::new().build_hasher().finish();
    let (listener, address) = bootstrap::listen_locally(u64::from(std::process::id()))?;
    let program = env::args_os().next().unwrap_or_else(|| OsString::from("rank"));
    // The link names this very executable, even if a new build has replaced the file.
    let link = Path::new("/proc/self/exe");
    let file = if link.exists() { link.as_os_str() } else { &program };
    let mut ranks = Vec::with_capacity(world);
    for rank in 0..world {
        let stdin = if rank == 0 { Stdio::from(OwnedFd::from(listener.try_clone()?)) } else { Stdio::null() };
        let stdout = if rank == 0 && reads { Stdio::piped() } else { Stdio::inherit() };
        let spawned = Command::new(file)
            .arg0(&program)
            .args(env::args_os().skip(1))
            .env(LAUNCH, json!([rank, world, job, std::process::id(), address]).to_string())
            .stdin(stdin)
            .stdout(stdout)
            .spawn();
        let name = roles.name(rank);
        match spawned {
            Ok(child) => ranks.push(Rank { child, name }),
            Err(error) => {
                end_all(&mut ranks);
                return Err(Failure::new(format!("{}; try fewer ranks", Failure::not_started(name, &error))));
            }
        }
    }
    Ok(ranks)
}

fn supervise(mut ranks: Vec<Rank>) -> Result<(), Failure> {
    let mut reason: Option<Failure> = None;
    let is_open = |reason: &Option<Failure>| reason.as_ref().is_none_or(|reason| reason.kind() == Kind::Peer);
    let mut deadline: Option<Instant> = None;
    while !ranks.is_empty() {
        wait_for_any(deadline);
        let mut ended = Vec::new();
        ranks.retain_mut(|rank| match rank.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push((rank.name.clone(), rank.child.id(), status));
                false
            }
            Err(_) => false,
        });
        for (name, pid, status) in ended.into_iter().filter(|(_, _, status)| !status.success()) {
            // The first rank that died is the reason; the others end because of it.
            if is_open(&reason) {
                reason = Some(judge(&name, pid, status));
            }
            deadline.get_or_insert_with(|| Instant::now() + GRACE);
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            if is_open(&reason) {
                reason = ranks.first().map(stuck).or(reason);
            }
            end_all(&mut ranks);
        }
    }
    match reason {
        None => Ok(()),
        Some(reason) if reason.kind() == Kind::Peer => {
            Err(Failure::new("the ranks have lost each other, and none of them says why; RUST_LOG=debug may tell"))
        }
        Some(reason) => Err(reason),
    }
}

/// The failure of a rank that still runs when the others have lost it.
fn stuck(rank: &Rank) -> Failure {
    let (name, pid) = (&rank.name, rank.child.id());
    Failure::new(format!("{name} (process {pid}) did not answer the other ranks, and was ended; was it stopped?"))
}

/// Blocks until a child may have ended; with a deadline, only pauses.
fn wait_for_any(deadline: Option<Instant>) {
    if deadline.is_some() {
        std::thread::sleep(Duration::from_millis(10));
    } else if waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).is_err() {
        // Interrupted, or no child: the caller checks every child anyway.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn judge(name: &str, pid: u32, status: ExitStatus) -> Failure {
    let died =
        |how: fmt::Arguments<'_>| Failure::new(format!("{name} (process {pid}) {how}; the other ranks were ended"));
    match (status.code().and_then(Failure::reported), status.signal()) {
        (Some(reported), _) => reported,
        (None, Some(signal)) => {
            let known = Signal::try_from(signal).map_or("unknown", Signal::as_str);
            let hint = if signal == Signal::SIGKILL as i32 { " (out of memory, perhaps)" } else { "" };
            died(format_args!("was killed by signal {signal}, {known}{hint}"))
        }
        _ => died(format_args!("died with {status}")),
    }
}

fn end_all(ranks: &mut Vec<Rank>) {
    for rank in ranks.iter_mut() {
        // `kill` fails only if the rank has ended by itself.
        drop(rank.child.kill());
    }
    for mut rank in ranks.drain(..) {
        drop(rank.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let killed = judge("rank 1", 7, ExitStatus::from_raw(9)).to_string();
        assert!(killed.contains("rank 1 (process 7) was killed by signal 9, SIGKILL"), "{killed}");
        let panicked = judge("rank 1", 7, ExitStatus::from_raw(101 << 8)).to_string();
        assert!(panicked.contains("101"), "{panicked}");
        assert_eq!(judge("rank 1", 7, ExitStatus::from_raw(3 << 8)).kind(), Kind::Peer);
    }
}
