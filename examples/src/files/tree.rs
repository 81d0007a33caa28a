//! A directory to which a peer's paths lead, and nowhere else.
//!
//! An unfinished file has its own name, in the folder [`UNFINISHED`] beside its place: on the same
//! filesystem, so that a rename finishes it, and where no path of a peer leads. The folder exists
//! as long as it has files. It and its files belong to this user alone: a folder that another user
//! has made or may write is refused, and a file with another owner or another name is replaced.

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
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

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

    /// Creates a directory that only this user can use. One that exists loses the permissions that
    /// are not in `mode`, and this user gets all: its contents are yet to come.
    pub(crate) fn create_directory(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let Place { parent, name } = self.place(path)?;
        match mkdirat(&parent, name, Mode::S_IRWXU) {
            Err(Errno::EEXIST) => {
                let directory = File::from(descend(&parent, name)?);
                let now = directory.metadata()?.mode();
                set_mode(&directory, now & mode | 0o700)
            }
            made => Ok(made?),
        }
    }

    /// Gives a directory its permissions.
    pub(crate) fn set_permissions(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let Place { parent, name } = self.place(path)?;
        set_mode(&File::from(descend(&parent, name)?), mode)
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

/// Gives a file or a directory the permissions of `mode`. It keeps its own set-user-ID,
/// set-group-ID and sticky bits, and takes none over.
pub(crate) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    let now = file.metadata()?.mode() & 0o7777;
    let new = now & 0o7000 | mode & 0o777;
    if new == now { Ok(()) } else { file.set_permissions(Permissions::from_mode(new)) }
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
    /// Opens a finished file of this name and length to read, if there is one that has these
    /// permissions or may get them: one of this user, without another name.
    pub(crate) fn finished(&self, len: u64, mode: u32) -> Option<File> {
        let file = File::from(openat(&self.parent, self.name.as_os_str(), SAFE, Mode::empty()).ok()?);
        let found = file.metadata().ok().filter(|found| found.is_file() && found.len() == len)?;
        let is_own = found.uid() == geteuid().as_raw() && found.nlink() == 1;
        (is_own || (found.mode() ^ mode) & 0o777 == 0).then_some(file)
    }

    /// Opens the unfinished file, and makes it if there is none. No other copy has it open at the
    /// same time, and no other user has it or its folder open to write.
    pub(crate) fn partial(&self) -> io::Result<Partial> {
        for _ in 0..ATTEMPTS {
            let Some(folder) = self.own_folder()? else { continue };
            let Some(file) = self.open_partial(&folder)? else { continue };
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| busy())?;
            let partial = Partial { folder, file };
            // Another copy may have finished the file before this one had the lock.
            if !partial.is_called(&self.name)? {
                return Err(busy());
            }
            if partial.is_own()? {
                return Ok(partial);
            }
            // A copy makes only files of its own, so nobody's unfinished file is lost.
            unlinkat(&partial.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?;
        }
        Err(busy())
    }

    /// Opens the folder of unfinished files, and makes it if there is none; `None` if another copy
    /// has removed it meanwhile.
    fn own_folder(&self) -> io::Result<Option<OwnedFd>> {
        match mkdirat(&self.parent, UNFINISHED, Mode::S_IRWXU) {
            Err(Errno::EEXIST) => {}
            made => made?,
        }
        let refused = |why: &str| Err(io::Error::other(format!("the folder {UNFINISHED} beside it {why}; remove it")));
        let folder = match openat(&self.parent, UNFINISHED, SAFE | OFlag::O_DIRECTORY, Mode::empty()) {
            Ok(folder) => File::from(folder),
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ENOTDIR | Errno::ELOOP) => return refused("is no directory"),
            Err(errno) => return Err(errno.into()),
        };
        let metadata = folder.metadata()?;
        if metadata.uid() != geteuid().as_raw() {
            return refused("belongs to another user");
        }
        if metadata.mode() & 0o022 != 0 {
            return refused("can be written by others");
        }
        if metadata.mode() & 0o777 != 0o700 {
            folder.set_permissions(Permissions::from_mode(0o700))?;
        }
        Ok(Some(folder.into()))
    }

    /// Opens what has the file's name in the folder, or makes a new file; `None` if another copy
    /// has made or removed it meanwhile.
    fn open_partial(&self, folder: &OwnedFd) -> io::Result<Option<File>> {
        let name = self.name.as_os_str();
        let flags = SAFE | OFlag::O_RDWR;
        match openat(folder, name, flags, Mode::empty()) {
            Err(Errno::ENOENT) => {}
            // A link, a socket, or a file that this user may not write.
            Err(Errno::ELOOP | Errno::ENXIO | Errno::EACCES) => unlinkat(folder, name, UnlinkatFlags::NoRemoveDir)?,
            opened => return Ok(Some(opened?.into())),
        }
        match openat(folder, name, flags | OFlag::O_CREAT | OFlag::O_EXCL, Mode::S_IRUSR | Mode::S_IWUSR) {
            Err(Errno::EEXIST | Errno::ENOENT) => Ok(None),
            made => Ok(Some(made?.into())),
        }
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

    /// Whether the file is a regular one of this user without another name. Gives it the mode of an
    /// unfinished file.
    fn is_own(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        let is_own = metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.nlink() == 1;
        if is_own && metadata.mode() & 0o777 != 0o600 {
            self.file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(is_own)
    }

    /// Whether this file, and not another one, has the name in the folder.
    fn is_called(&self, name: &OsStr) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        match fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (metadata.dev(), metadata.ino())),
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
        tree.create_directory(b"inside", 0o755).unwrap();
        tree.create_directory(b"inside", 0o755).unwrap();
        std::fs::create_dir(root.join(UNFINISHED)).unwrap();
        let below = format!("{UNFINISHED}/x");
        let hostile =
            ["", ".", "..", "/", "/etc/x", "../x", "inside/../../x", "inside//x", "inside/", "link/x", "link/", "a\0b"];
        for path in hostile.into_iter().chain([UNFINISHED, &below]) {
            assert!(tree.target(path.as_bytes()).is_err(), "{path:?} as a file");
            assert!(tree.create_directory(path.as_bytes(), 0o755).is_err(), "{path:?} as a directory");
            assert!(tree.set_permissions(path.as_bytes(), 0o755).is_err(), "{path:?} as a directory's permissions");
        }
        assert!(tree.create_directory(b"link", 0o755).is_err(), "a link to a directory is none");
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
        assert!(target.finished(8, 0o755).is_none());
        let partial = target.partial().unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("another copy"));
        target.finish(&partial, 0o4755).unwrap();
        assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
        assert_eq!(std::fs::symlink_metadata(root.join("file")).unwrap().permissions().mode(), 0o100_755);
        assert!(target.finished(0, 0o755).is_some());
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
        assert!(target.finished(0, 0o644).is_none());
    }

    #[test]
    fn what_stands_in_the_place_of_the_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(UNFINISHED)).unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("is no directory"));
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let folder = dir.path().join(UNFINISHED);
        std::fs::create_dir(&folder).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o720, 0o702] {
            set_mode(mode);
            assert!(target.partial().unwrap_err().to_string().contains("can be written by others; remove it"));
        }
        set_mode(0o755);
        target.partial().unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        if geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(12345), None).unwrap();
            assert!(target.partial().unwrap_err().to_string().contains("belongs to another user; remove it"));
        }
    }

    #[test]
    fn an_unfinished_file_that_others_know_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join(UNFINISHED), dir.path().join("outside"));
        let place = folder.join("file");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&outside, "precious").unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let is_fresh = |what: &str| {
            let partial = target.partial().unwrap();
            let metadata = partial.file().metadata().unwrap();
            assert_eq!((metadata.len(), metadata.nlink(), metadata.mode()), (0, 1, 0o100_600), "{what}");
            assert_eq!(metadata.uid(), geteuid().as_raw(), "{what}");
            std::fs::remove_file(&place).unwrap();
        };
        std::fs::hard_link(&outside, &place).unwrap();
        is_fresh("another name of a file");
        std::os::unix::fs::symlink(&outside, &place).unwrap();
        is_fresh("a link");
        nix::unistd::mkfifo(&place, Mode::S_IRWXU).unwrap();
        is_fresh("a FIFO");
        if geteuid().is_root() {
            std::fs::write(&place, "another user's").unwrap();
            std::os::unix::fs::chown(&place, Some(12345), None).unwrap();
            is_fresh("another user's file");
        }
        std::fs::write(&place, "front").unwrap();
        std::fs::set_permissions(&place, Permissions::from_mode(0o666)).unwrap();
        let partial = target.partial().unwrap();
        let metadata = partial.file().metadata().unwrap();
        assert_eq!((metadata.len(), metadata.mode()), (5, 0o100_600), "an own file is kept");
        assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
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
