//! The cores of this process, and pinning threads to one of them.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

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
    fn an_absurd_core_is_refused() {
        assert_eq!(pin(1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
