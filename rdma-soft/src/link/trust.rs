//! Who may connect: who the kernel lets trace us, as it could read and write our memory anyway.
//!
//! Each side puts a random token into its memory and says where. The other reads it, which the kernel allows under the rules of
//! `ptrace`, and sends it back. So each knows that the other could, and nothing but the kernel's own answer is relied on.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;

/// Bytes of a token.
pub(crate) const TOKEN: usize = 32;

/// What a peer has to read from this process's memory.
#[derive(Debug)]
pub(crate) struct Token(Box<[u8; TOKEN]>);

impl Token {
    /// A fresh one.
    pub(crate) fn new() -> io::Result<Self> {
        allow_tracing();
        let mut bytes = Box::new([0; TOKEN]);
        // SAFETY: getrandom writes at most TOKEN bytes into a live array.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), TOKEN, 0) };
        if usize::try_from(got) != Ok(TOKEN) {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(bytes))
    }

    /// Where it is.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Whether the peer has read it.
    pub(crate) fn is(&self, proof: &[u8; TOKEN]) -> bool {
        *self.0 == *proof
    }
}

/// Reads a peer's token.
pub(crate) fn read_token(pid: i32, address: u64) -> io::Result<[u8; TOKEN]> {
    let mut token = [0_u8; TOKEN];
    let local = libc::iovec { iov_base: token.as_mut_ptr().cast(), iov_len: TOKEN };
    let remote = libc::iovec {
        iov_base: core::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0)),
        iov_len: TOKEN,
    };
    // SAFETY: writes at most TOKEN bytes to a live array; the remote address is not of this process, and checked by the
    // kernel.
    let got = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    match usize::try_from(got) {
        Ok(TOKEN) => Ok(token),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Where the Yama module restricts tracing to descendants, asks it to let others with the same rights trace us. It widens
/// what debuggers may do, so it is done only when a link is about to be made, and not if `RDMA_SOFT_PTRACER=off`.
fn allow_tracing() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("RDMA_SOFT_PTRACER").is_some_and(|value| value == "off") {
            return;
        }
        // SAFETY: sets a flag of this process; EINVAL without Yama.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    });
}

/// A process, as the kernel knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its process id in our namespace.
    pub(crate) pid: i32,
    /// Its effective user.
    pub(crate) uid: u32,
}

/// Who is at the other end of a socket: who connected, or who listened.
pub(crate) fn peer_of(socket: &impl AsRawFd) -> io::Result<Credentials> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    get_option(socket, libc::SO_PEERCRED, &mut cred)?;
    Ok(Credentials { pid: cred.pid, uid: cred.uid })
}

/// Something that becomes readable when the process at the other end of a socket dies. To be opened before the tokens are
/// read: who dies in between, so that another gets its number, fails to prove anything.
pub(crate) fn watch(socket: &OwnedFd, pid: i32) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    if get_option(socket, SO_PEERPIDFD, &mut fd).is_err() {
        return open_process(pid);
    }
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: the kernel just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The same for a process by its number.
pub(crate) fn open_process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open has no conditions; its descriptor is closed on exec.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = libc::c_int::try_from(result).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: from_raw_fd wants an open descriptor that nobody else owns: the kernel just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process of a descriptor of [`watch`] has died. Does not wait.
pub(crate) fn has_died(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: poll reads and writes one pollfd, which is live.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Whether a process is stopped, by a signal or a debugger: then it cannot answer, and it is no fault of its own.
pub(crate) fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Our effective user.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: no conditions.
    unsafe { libc::geteuid() }
}

/// Reads a socket option into a value of plain data.
fn get_option<T: Copy>(socket: &impl AsRawFd, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let to = (&raw mut *value).cast();
    // SAFETY: getsockopt writes at most `len` bytes to a live value; both callers' types are plain integers.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, to, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
