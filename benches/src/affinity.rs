//! Which cores this process may use, and pinning a thread to one of them.

use std::io;

/// The cores that the calling thread may run on, in ascending order.
///
/// # Errors
///
/// What `sched_getaffinity` reports.
pub fn cores() -> io::Result<Vec<usize>> {
    // SAFETY: `cpu_set_t` is plain data (an array of integers), for which all zeros is a value: the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: pid 0 is the calling thread; `set` is writable for the `size_of_val(&set)` bytes that the call is told of.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: `CPU_ISSET` indexes the set's words; every index is below `CPU_SETSIZE`.
    Ok((0..limit).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Pins the calling thread, and what it spawns from now on, to `core`.
///
/// # Errors
///
/// As [`set`].
pub fn pin(core: usize) -> io::Result<()> {
    set(&[core])
}

/// Lets the calling thread, and what it spawns from now on, run on all of `cores`.
///
/// # Errors
///
/// `InvalidInput` for a core number that no set can hold; otherwise what `sched_setaffinity` reports.
pub fn set(cores: &[usize]) -> io::Result<()> {
    // SAFETY: as in `cores`: all zeros is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    for &core in cores {
        if core >= limit {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("core {core}: at most {limit} are known")));
        }
        // SAFETY: `CPU_SET` indexes the set's words; `core` was checked to be below `CPU_SETSIZE`.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: pid 0 is the calling thread; `set` is readable for the `size_of_val(&set)` bytes that the call is told of.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if rc != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Two different cores for the two ends of a comparison.
///
/// # Errors
///
/// When the process may use only one core: a comparison between cores would mean nothing there.
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
