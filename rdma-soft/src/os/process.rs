//! Other processes, as the kernel identifies them.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, geteuid};

use super::{Error, Named, Result};

/// A process, as the kernel identifies it to the other side of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The process id in this pid namespace; 0 for a process outside it.
    pub(crate) pid: i32,
    /// The effective user.
    pub(crate) uid: u32,
}

impl Credentials {
    /// Whether the process has this process's effective user.
    pub(crate) fn is_own_user(self) -> bool {
        self.uid == geteuid().as_raw()
    }
}

/// Reads another process's memory, if the kernel lets this process trace it.
pub(crate) fn read_memory<const N: usize>(pid: i32, address: u64) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let from = RemoteIoVec { base: usize::try_from(address).unwrap_or(0), len: N };
    let read = match process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(&mut bytes)], &[from]) {
        // Kernels without CROSS_MEMORY_ATTACH, and QEMU's user mode, lack the call. The file
        // demands the right to trace, too.
        Err(Errno::ENOSYS) => read_file(pid, &mut bytes, address)?,
        read => read.named("process_vm_readv")?,
    };
    match read {
        read if read == N => Ok(bytes),
        _ => Err(Error { call: "process_vm_readv", errno: Errno::EFAULT }),
    }
}

/// Reads another process's memory through the file that the kernel makes of it.
fn read_file(pid: i32, bytes: &mut [u8], address: u64) -> Result<usize> {
    let memory = File::open(format!("/proc/{pid}/mem")).named("open of /proc/PID/mem")?;
    memory.read_at(bytes, address).named("read of /proc/PID/mem")
}

/// Lets processes with this process's rights trace this process where the Yama module restricts
/// tracing to ancestors.
pub(crate) fn allow_tracing() {
    // `nix` lacks this option of prctl. The call fails without Yama, where tracing is not
    // restricted.
    // SAFETY: PR_SET_PTRACER takes a number and reads no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// A descriptor that becomes readable when a process dies.
pub(crate) fn open_pidfd(pid: i32) -> Result<OwnedFd> {
    // `nix` has no pidfd_open.
    // SAFETY: pidfd_open takes two numbers and reads no memory.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).named("pidfd_open")?;
    // SAFETY: from_raw_fd requires an open descriptor that has no other owner: pidfd_open has just
    // made this one.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1)) })
}

/// Whether the process of a pidfd has died.
pub(crate) fn has_died(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(1)
}

/// Whether a process is stopped, by a signal or a debugger.
pub(crate) fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name, in parentheses, may contain any characters, so the search starts at the
    // end.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read_the_same_memory() {
        let (word, pid) = (0x0123_4567_89ab_cdef_u64, nix::unistd::getpid().as_raw());
        let address = std::ptr::from_ref(&word).expose_provenance() as u64;
        assert_eq!(read_memory(pid, address).map(u64::from_ne_bytes).ok(), Some(word));
        let mut bytes = [0; 8];
        assert_eq!(read_file(pid, &mut bytes, address).ok(), Some(8));
        assert_eq!(u64::from_ne_bytes(bytes), word);
        assert!(read_file(pid, &mut bytes, 0).is_err());
        assert!(read_file(pid, &mut bytes, u64::MAX).is_err());
    }
}
