//! `os.rs` for systems other than Linux: every call fails, as if the kernel lacked it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapRaw};
use nix::errno::Errno;

/// Seals of a memfd: a file has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seals;

pub(crate) const SIZE_SEALS: Seals = Seals;
pub(crate) const SEAL_SEAL: Seals = Seals;
pub(crate) const WRITE_SEAL: Seals = Seals;

impl Seals {
    pub(crate) const fn union(self, _other: Self) -> Self {
        self
    }

    pub(crate) const fn contains(self, _other: Self) -> bool {
        false
    }
}

pub(crate) fn memfd(_name: &CStr) -> nix::Result<OwnedFd> {
    Err(Errno::ENOSYS)
}

pub(crate) fn fallocate(_fd: &OwnedFd, _size: libc::off_t) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub(crate) fn add_seals(_fd: &OwnedFd, _seals: Seals) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub(crate) fn seals(_fd: BorrowedFd<'_>) -> Seals {
    Seals
}

pub(crate) fn is_tmpfs(_fd: BorrowedFd<'_>) -> nix::Result<bool> {
    Err(Errno::ENOSYS)
}

/// # Safety
///
/// None: nothing is moved.
pub(crate) unsafe fn move_pages(_from: NonNull<u8>, _len: usize, _to: NonNull<u8>) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub(crate) fn wipe_in_children(_page: &mut MmapMut) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

pub(crate) fn hide_from_children(_map: &MmapRaw) -> io::Result<()> {
    Err(Errno::ENOSYS.into())
}

pub(crate) fn prefer_huge_pages(_map: &MmapRaw) -> io::Result<()> {
    Err(Errno::ENOSYS.into())
}

pub(crate) fn populate(_map: &MmapRaw, _offset: usize, _len: usize) -> io::Result<()> {
    Err(Errno::ENOSYS.into())
}

pub(crate) fn send_some(_socket: &UnixStream, _bytes: &[u8], _fds: &[RawFd]) -> nix::Result<usize> {
    Err(Errno::ENOSYS)
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) len: usize,
    pub(crate) control_len: usize,
    pub(crate) flags: libc::c_int,
}

pub(crate) fn recvmsg(
    _socket: BorrowedFd<'_>,
    _bytes: &mut [u8],
    _control: &mut [usize],
    _never_waits: bool,
) -> io::Result<Message> {
    Err(Errno::ENOSYS.into())
}
