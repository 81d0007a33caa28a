//! The cores of this process, pinning threads to one of them, and which thread a core prefers.

use std::{fs, io};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};

/// The calling thread, as an argument of the scheduler's calls.
const SELF: Pid = Pid::from_raw(0);

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
///
/// The error of `sched_getaffinity`.
pub fn cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(SELF)?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect())
}

/// Pins the calling thread, and the threads and processes that it starts later, to `core`.
///
/// # Errors
///
/// The errors of [`set`].
pub fn pin(core: usize) -> io::Result<()> {
    set(&[core])
}

/// Lets the calling thread, and the threads and processes that it starts later, run on all of
/// `cores`.
///
/// # Errors
///
/// `InvalidInput` for a core number that no set can hold; otherwise the error of
/// `sched_setaffinity`.
pub fn set(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core)?;
    }
    Ok(sched_setaffinity(SELF, &set)?)
}

/// Two different cores for the two sides of a comparison.
///
/// # Errors
///
/// If the process may use only one core: a comparison between cores would be meaningless.
pub fn two_cores() -> io::Result<(usize, usize)> {
    match cores()?[..] {
        [first, second, ..] => Ok((first, second)),
        _ => Err(io::Error::other("this benchmark needs two cores, and this process may use one")),
    }
}

/// Lets the other threads of this process run only while nothing else wants their core: as
/// `SCHED_IDLE` of sched(7), which needs no right.
///
/// # Errors
///
/// Those of `/proc/self/task` and of `sched_setscheduler`.
pub fn yield_to_this_thread() -> io::Result<()> {
    let own = gettid().as_raw();
    for task in fs::read_dir("/proc/self/task")? {
        let tid = task?.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        if tid != own {
            make_idle(tid)?;
        }
    }
    Ok(())
}

fn make_idle(tid: libc::pid_t) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_setscheduler requires a pointer to parameters (1), which it only reads.
    // 1: it is that of a local variable.
    match unsafe { libc::sched_setscheduler(tid, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        let all = cores().unwrap();
        assert!(!all.is_empty());
        std::thread::spawn(move || {
            pin(all[0]).unwrap();
            assert_eq!(cores().unwrap(), [all[0]]);
            set(&all).unwrap();
            assert_eq!(cores().unwrap(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_yields_is_idle() {
        let policy = std::thread::spawn(|| {
            make_idle(gettid().as_raw()).unwrap();
            // SAFETY: sched_getscheduler requires nothing.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(policy.join().unwrap(), libc::SCHED_IDLE);
    }

    #[test]
    fn an_absurd_core_is_refused() {
        assert_eq!(pin(1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
