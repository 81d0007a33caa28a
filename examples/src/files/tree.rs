//! A directory to which a peer's paths lead, and nowhere else.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use xxhash_rust::xxh64::xxh64;

/// Flags with which every file is opened: a symbolic link is an error, and nothing blocks.
const SAFE: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// A directory. Paths in it go through real directories only: neither `..` nor a symbolic link
/// leaves it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

impl Tree {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: File::open(root).and_then(directory)?.into() })
    }

    /// Creates a directory, unless it exists.
    pub(crate) fn create_directory(&self, path: &[u8]) -> io::Result<()> {
        let Place { parent, name } = self.place(path)?;
        match mkdirat(&parent, name, Mode::from_bits_truncate(0o777)) {
            Err(Errno::EEXIST) => {}
            made => made?,
        }
        descend(&parent, name).map(drop)
    }

    /// Opens the place of a file.
    pub(crate) fn target(&self, path: &[u8]) -> io::Result<Target> {
        let Place { parent, name } = self.place(path)?;
        // The name of an unfinished file has the same length whatever the file's own.
        let partial = format!(".{:016x}.part", xxh64(name.as_bytes(), 0)).into();
        Ok(Target { name: name.to_owned(), parent, partial })
    }

    /// The directory and the name that a path leads to.
    fn place<'a>(&self, path: &'a [u8]) -> io::Result<Place<'a>> {
        let mut parent = self.root.try_clone()?;
        let mut names = path.split(|&byte| byte == b'/').peekable();
        while let Some(name) = names.next() {
            let is_name = !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
            let name = OsStr::from_bytes(name);
            if !is_name {
                break;
            }
            if names.peek().is_none() {
                return Ok(Place { parent, name });
            }
            parent = descend(&parent, name)?;
        }
        Err(io::Error::other("the path is not one of names below a directory"))
    }
}

struct Place<'a> {
    parent: OwnedFd,
    name: &'a OsStr,
}

fn descend(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    Ok(openat(parent, name, SAFE | OFlag::O_DIRECTORY, Mode::empty())?)
}

fn directory(file: File) -> io::Result<File> {
    if file.metadata()?.is_dir() { Ok(file) } else { Err(Errno::ENOTDIR.into()) }
}

/// The place of a file, and of what there is of it before it is complete.
#[derive(Debug)]
pub(crate) struct Target {
    parent: OwnedFd,
    name: OsString,
    partial: OsString,
}

impl Target {
    /// Opens a finished file of this name to read, if there is one.
    pub(crate) fn finished(&self) -> Option<File> {
        let file = File::from(openat(&self.parent, self.name.as_os_str(), SAFE, Mode::empty()).ok()?);
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    /// Opens the unfinished file, and makes it if there is none. No other copy has it open at the
    /// same time.
    pub(crate) fn partial(&self) -> io::Result<Flock<File>> {
        let (flags, mode) = (SAFE | OFlag::O_RDWR | OFlag::O_CREAT, Mode::from_bits_truncate(0o600));
        let file = File::from(openat(&self.parent, self.partial.as_os_str(), flags, mode)?);
        let busy = || io::Error::other("another copy writes this file");
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| busy())?;
        // Another copy may have finished the file before this one had the lock.
        let named = fstatat(&self.parent, self.partial.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || named.st_ino != metadata.ino() {
            return Err(busy());
        }
        Ok(file)
    }

    /// Gives a complete file its name and permissions. Replaces a file of this name.
    pub(crate) fn finish(&self, file: &File, mode: u32) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        Ok(renameat(&self.parent, self.partial.as_os_str(), &self.parent, self.name.as_os_str())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(dir.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        let tree = Tree::open(&root).unwrap();
        tree.create_directory(b"inside").unwrap();
        tree.create_directory(b"inside").unwrap();
        for path in
            ["", ".", "..", "/", "/etc/x", "../x", "inside/../../x", "inside//x", "inside/", "link/x", "link/", "a\0b"]
        {
            assert!(tree.target(path.as_bytes()).is_err(), "{path:?} as a file");
            assert!(tree.create_directory(path.as_bytes()).is_err(), "{path:?} as a directory");
        }
        assert!(tree.create_directory(b"link").is_err(), "a link to a directory is none");
        assert!(tree.target(b"nowhere/x").is_err());
        assert!(std::fs::read_dir(dir.path().join("outside")).unwrap().next().is_none());
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "precious").unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("file")).unwrap();
        let target = Tree::open(&root).unwrap().target(b"file").unwrap();
        assert!(target.finished().is_none());
        let partial = target.partial().unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("another copy"));
        target.finish(&partial, 0o4755).unwrap();
        assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
        assert_eq!(std::fs::symlink_metadata(root.join("file")).unwrap().permissions().mode(), 0o100_755);
        assert!(target.finished().is_some());
    }
}
