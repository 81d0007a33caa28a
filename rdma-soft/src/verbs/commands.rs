//! `cmd_fd`: the descriptor by which C imports a context.
//!
//! A kernel device makes objects at commands to this descriptor, and a duplicate of it reaches the
//! same objects, from another process too. No kernel device takes this device's commands. The
//! descriptor is of a file without a name, one for each context that C opens. The file's inode
//! tells which context C imports; its contents tell files of another process from files of others.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::uio::pread;

/// The contents of each file.
const CONTENTS: &[u8] = b"commands of a software device\n";

/// The device and the number of a file's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode(libc::dev_t, libc::ino_t);

impl Inode {
    pub(super) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let stat = fstat(fd)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

/// The command descriptor of a context.
#[derive(Debug)]
pub(super) struct Commands {
    file: File,
    inode: Inode,
}

impl Commands {
    /// The descriptor of a context that is opened.
    pub(super) fn new() -> io::Result<Self> {
        let mut file = File::from(rdma_mem::shared::memfd(c"rdma-soft-commands")?);
        file.write_all(CONTENTS)?;
        // No write succeeds, so that no command seems to.
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let inode = Inode::of(file.as_fd())?;
        Ok(Self::from_file(file, inode))
    }

    /// The descriptor of a context that is imported.
    pub(super) fn from_file(file: File, inode: Inode) -> Self {
        Self { file, inode }
    }

    pub(super) fn inode(&self) -> Inode {
        self.inode
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Whether a software device, of any process, has made this file.
pub(super) fn is_command_file(fd: BorrowedFd<'_>) -> bool {
    let is_regular =
        fstat(fd).is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG);
    let mut contents = [0; CONTENTS.len()];
    is_regular && pread(fd, &mut contents, 0) == Ok(CONTENTS.len()) && contents == CONTENTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_inode_and_contents() {
        let (one, other) = (Commands::new().unwrap(), Commands::new().unwrap());
        assert_ne!(one.inode(), other.inode());
        let copy = one.file.try_clone().unwrap();
        assert_eq!(Inode::of(copy.as_fd()).unwrap(), one.inode());
        assert!(is_command_file(one.file.as_fd()));
        assert!(!is_command_file(File::open("/dev/null").unwrap().as_fd()));
        assert!(!is_command_file(File::open("/proc/self/exe").unwrap().as_fd()));
    }

    #[test]
    fn the_file_takes_no_commands() {
        let mut commands = Commands::new().unwrap();
        assert!(commands.file.write(b"x").is_err());
        assert!(commands.file.set_len(0).is_err());
    }
}
