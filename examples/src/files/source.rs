//! A file to read that other programs may change meanwhile.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;

use super::attributes::Attributes;
use super::extents::{Extent, extent};
use super::listing::Identity;
use super::sum::{Reading, Sum};

/// An open file, with what was known of it when it was opened.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    before: Metadata,
}

impl Source {
    /// Opens a file. What is no file any more is an error: a FIFO does not block, and a link is not
    /// followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let other = || io::Error::other("it is no longer a file");
        let file = match open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // A link; a socket, or a device without a driver.
            Err(Errno::ELOOP | Errno::ENXIO) => return Err(other()),
            Err(errno) => return Err(errno.into()),
        };
        let before = file.metadata()?;
        if !before.is_file() {
            return Err(other());
        }
        // Only the open call must not block.
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(Self { file, before })
    }

    /// Length of the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.before.len()
    }

    /// Attributes of the file when it was opened.
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes::from(&self.before)
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(&self.before)
    }

    /// The extent of the file that begins at an offset.
    pub(crate) fn extent(&self, offset: u64) -> io::Result<Extent> {
        extent(&self.file, offset..self.len())
    }

    /// Fills `bytes` with those at an offset.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| self.explain(error))
    }

    /// Adds the next bytes to the checksum of the file's first `len`, and returns how many were
    /// read.
    pub(crate) fn add_to(&self, sum: &mut Sum, len: u64, reading: &mut Reading) -> io::Result<u64> {
        sum.read(&self.file, len, reading).map_err(|error| self.explain(error))
    }

    /// Succeeds if the file ends where it ended when it was opened, and if its times say that
    /// nobody has changed it since then.
    pub(crate) fn check_unchanged(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        let times = |of: &Metadata| [of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()];
        if now.len() != self.before.len() || times(&now) != times(&self.before) {
            return Err(io::Error::other("it changes while it is read"));
        }
        // Files of /proc have a length of 0.
        match self.file.read_at(&mut [0], self.before.len())? {
            0 => Ok(()),
            _ => Err(io::Error::other("it has more bytes than its length says")),
        }
    }

    /// The reason why the file ends too early, if that is the error.
    fn explain(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::UnexpectedEof {
            return error;
        }
        let fewer = || io::Error::other("it has fewer bytes than its length says");
        self.check_unchanged().err().unwrap_or_else(fewer)
    }
}
