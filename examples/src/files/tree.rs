//! A directory to which a peer's paths lead, and nowhere else.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

use super::attributes::{Attributes, Unset, set_mode};
use super::target::{Target, remove_stale};

/// The name of the folders of unfinished files: no path of a peer goes through it.
pub(crate) const UNFINISHED: &str = ".file_copy-unfinished";

/// Whether this is the name of such a folder, also on filesystems that do not tell cases apart.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    name.as_bytes().eq_ignore_ascii_case(UNFINISHED.as_bytes())
}

/// Flags with which every file is opened: a symbolic link is an error, and nothing blocks.
pub(super) const SAFE: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// A directory. Paths in it go through real directories only: neither `..` nor a symbolic link
/// leaves it, whoever has made the link.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

impl Tree {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: File::open(root).and_then(directory)?.into() })
    }

    /// Creates a directory that only this user can use. One that exists loses the permissions that
    /// are not in `mode`, and this user gets all: its contents are yet to come.
    pub(crate) fn create_directory(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let Place { parent, name } = self.place(path)?;
        match mkdirat(&parent, name, Mode::S_IRWXU) {
            Err(Errno::EEXIST) => {
                let directory = match descend(&parent, name) {
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_own(&parent, name)?,
                    found => found?,
                };
                let directory = File::from(directory);
                let now = directory.metadata()?.mode();
                set_mode(&directory, now & mode | 0o700)
            }
            made => Ok(made?),
        }
    }

    /// Gives a directory its attributes, after its contents.
    pub(crate) fn finish_directory(&self, path: &[u8], attributes: &Attributes) -> io::Result<Unset> {
        let Place { parent, name } = self.place(path)?;
        let directory = File::from(descend(&parent, name)?);
        // Before the time is set.
        remove_stale(&directory);
        attributes.set(&directory)
    }

    /// Opens the place of a file or a link.
    pub(crate) fn target(&self, path: &[u8]) -> io::Result<Target> {
        let Place { parent, name } = self.place(path)?;
        Ok(Target::new(parent, name.to_owned()))
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
            if is_unfinished(name) {
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

/// Opens a directory that this user owns and may not read, by giving this user the permissions.
fn open_own(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    // Needs no permission to read, and is no link.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let place = File::from(openat(parent, name, flags, Mode::empty())?);
    let now = place.metadata()?.mode();
    // fchmod(2) refuses such a descriptor.
    let itself = format!("/proc/self/fd/{}", place.as_raw_fd());
    fs::set_permissions(itself, Permissions::from_mode(now & 0o7777 | 0o700))?;
    descend(parent, name)
}

fn directory(file: File) -> io::Result<File> {
    if file.metadata()?.is_dir() { Ok(file) } else { Err(Errno::ENOTDIR.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        let tree = Tree::open(&root).unwrap();
        tree.create_directory(b"inside", 0o755).unwrap();
        tree.create_directory(b"inside", 0o755).unwrap();
        fs::create_dir(root.join(UNFINISHED)).unwrap();
        let below = format!("{UNFINISHED}/x");
        let hostile =
            ["", ".", "..", "/", "/etc/x", "../x", "inside/../../x", "inside//x", "inside/", "link/x", "link/", "a\0b"];
        let attributes = Attributes::from(&root.metadata().unwrap());
        for path in hostile.into_iter().chain([UNFINISHED, &below]) {
            assert!(tree.target(path.as_bytes()).is_err(), "{path:?} as a file");
            assert!(tree.create_directory(path.as_bytes(), 0o755).is_err(), "{path:?} as a directory");
            assert!(
                tree.finish_directory(path.as_bytes(), &attributes).is_err(),
                "{path:?} as a directory's attributes"
            );
        }
        assert!(tree.create_directory(b"link", 0o755).is_err(), "a link to a directory is none");
        assert!(tree.target(b"nowhere/x").is_err());
        assert!(fs::read_dir(dir.path().join("outside")).unwrap().next().is_none());
    }
}
