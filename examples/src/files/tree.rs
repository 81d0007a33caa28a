//! A directory to which a peer's paths lead, and nowhere else.
//!
//! An unfinished file has its own name, in the folder [`UNFINISHED`] beside its place: on the same
//! filesystem, so that a rename finishes it, and where no path of a peer leads. The folder exists
//! as long as it has files.

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
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The name of the folders of unfinished files: no path of a peer goes through it.
pub(crate) const UNFINISHED: &str = ".file_copy-unfinished";

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
        Ok(Target { name: name.to_owned(), parent })
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
            if name == UNFINISHED {
                return Err(io::Error::other(format!("the name {UNFINISHED} is kept for unfinished files")));
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
}

impl Target {
    /// Opens a finished file of this name to read, if there is one.
    pub(crate) fn finished(&self) -> Option<File> {
        let file = File::from(openat(&self.parent, self.name.as_os_str(), SAFE, Mode::empty()).ok()?);
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    /// Opens the unfinished file, and makes it if there is none. No other copy has it open at the
    /// same time.
    pub(crate) fn partial(&self) -> io::Result<Partial> {
        let (folder, file) = self.open_partial()?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| busy())?;
        let partial = Partial { folder, file };
        // Another copy may have finished the file before this one had the lock.
        if partial.is_called(&self.name)? { Ok(partial) } else { Err(busy()) }
    }

    fn open_partial(&self) -> io::Result<(OwnedFd, File)> {
        let (flags, mode) = (SAFE | OFlag::O_RDWR | OFlag::O_CREAT, Mode::from_bits_truncate(0o600));
        for _ in 0..ATTEMPTS {
            match mkdirat(&self.parent, UNFINISHED, Mode::from_bits_truncate(0o700)) {
                Err(Errno::EEXIST) => {}
                made => made?,
            }
            let opened = openat(&self.parent, UNFINISHED, SAFE | OFlag::O_DIRECTORY, Mode::empty())
                .and_then(|folder| openat(&folder, self.name.as_os_str(), flags, mode).map(|file| (folder, file)));
            match opened {
                Ok((folder, file)) => return Ok((folder, file.into())),
                // Another copy has finished the folder's last file and removed the folder.
                Err(Errno::ENOENT) => {}
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    return Err(io::Error::other(format!("{UNFINISHED} beside it is no directory")));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(busy())
    }

    /// Gives a complete file its name and permissions. Replaces a file of this name.
    pub(crate) fn finish(&self, partial: &Partial, mode: u32) -> io::Result<()> {
        partial.file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        if !partial.is_called(&self.name)? {
            return Err(io::Error::other(format!("another program has replaced the file in {UNFINISHED}")));
        }
        renameat(&partial.folder, self.name.as_os_str(), &self.parent, self.name.as_os_str())?;
        // The folder stays if it has other unfinished files.
        let _removed = unlinkat(&self.parent, UNFINISHED, UnlinkatFlags::RemoveDir);
        Ok(())
    }
}

/// Attempts to make an unfinished file in a folder that other copies remove meanwhile.
const ATTEMPTS: u32 = 1000;

/// An unfinished file, and its folder. Copies write, rename or remove it only while they have its
/// lock.
#[derive(Debug)]
pub(crate) struct Partial {
    folder: OwnedFd,
    file: Flock<File>,
}

impl Partial {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether this file, and not another one, has the name in the folder.
    fn is_called(&self, name: &OsStr) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        match fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) => {
                let is_same = (named.st_dev, named.st_ino) == (metadata.dev(), metadata.ino());
                Ok(is_same && metadata.is_file())
            }
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn busy() -> io::Error {
    io::Error::other("another copy writes this file")
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
        std::fs::create_dir(root.join(UNFINISHED)).unwrap();
        let below = format!("{UNFINISHED}/x");
        let hostile =
            ["", ".", "..", "/", "/etc/x", "../x", "inside/../../x", "inside//x", "inside/", "link/x", "link/", "a\0b"];
        for path in hostile.into_iter().chain([UNFINISHED, &below]) {
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
        assert!(!root.join(UNFINISHED).exists());
    }

    #[test]
    fn only_the_file_that_was_written_gets_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let partial = target.partial().unwrap();
        let path = dir.path().join(UNFINISHED).join("file");
        std::fs::write(dir.path().join("other"), "other bytes").unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(target.finish(&partial, 0o644).unwrap_err().to_string().contains("has replaced the file"));
        std::fs::remove_file(&path).unwrap();
        assert!(target.finish(&partial, 0o644).is_err());
        assert!(target.finished().is_none());
    }

    #[test]
    fn what_stands_in_the_place_of_the_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(UNFINISHED)).unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("is no directory"));
    }

    #[test]
    fn copies_of_one_folder_finish_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tree = &tree;
                scope.spawn(move || {
                    for number in 0..200 {
                        let target = tree.target(format!("{thread}-{number}").as_bytes()).unwrap();
                        target.finish(&target.partial().unwrap(), 0o600).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 800);
    }
}
