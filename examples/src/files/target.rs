//! The place of a file or a link in a [`Tree`](super::tree::Tree).
//!
//! An unfinished file has its own name, in the folder [`UNFINISHED`] beside its place: on the same
//! filesystem, so that a rename finishes it, and where no path of a peer leads. The folder exists
//! as long as it has files. It and its files belong to this user alone: a folder that another user
//! has made or may write is refused, and a file with another owner or another name is replaced.
//!
//! A link is made in a folder within that one, whose name no file has, and renamed to its place
//! too: what stood there before is replaced at once, or stays.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, readlinkat, renameat};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{Pid, UnlinkatFlags, geteuid, linkat, symlinkat, unlinkat};

use super::attributes::{Attributes, Unset};
use super::tree::{SAFE, UNFINISHED};

/// The place of a file, and of what there is of it before it is complete.
#[derive(Debug)]
pub(crate) struct Target {
    parent: OwnedFd,
    name: OsString,
}

impl Target {
    pub(super) fn new(parent: OwnedFd, name: OsString) -> Self {
        Self { parent, name }
    }

    /// Opens a finished file of this name and length to read, if there is one that has these
    /// attributes or may get them: one that this user may change, without another name.
    pub(crate) fn finished(&self, len: u64, attributes: &Attributes) -> Option<File> {
        let file = File::from(openat(&self.parent, self.name.as_os_str(), SAFE, Mode::empty()).ok()?);
        let found = file.metadata().ok().filter(|found| found.is_file() && found.len() == len)?;
        (is_changeable(&found) || attributes.are_of(&found)).then_some(file)
    }

    /// Gives a file that was finished before its attributes.
    pub(crate) fn finish_again(file: &File, attributes: &Attributes) -> io::Result<Unset> {
        let now = file.metadata()?;
        if is_changeable(&now) { attributes.set(file) } else { Ok(attributes.unset_of(&now)) }
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

    fn own_folder(&self) -> io::Result<Option<OwnedFd>> {
        own_folder(&self.parent)
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

    /// Gives a complete file its attributes and its name. Replaces a file of this name.
    pub(crate) fn finish(&self, partial: &Partial, attributes: &Attributes) -> io::Result<Unset> {
        // An unfinished file that was found may have other bits than permissions.
        partial.file.set_permissions(Permissions::from_mode(0o600))?;
        let unset = attributes.set(&partial.file)?;
        if !partial.is_called(&self.name)? {
            return Err(io::Error::other(format!("another program has replaced the file in {UNFINISHED}")));
        }
        renameat(&partial.folder, self.name.as_os_str(), &self.parent, self.name.as_os_str())?;
        self.remove_folder();
        Ok(unset)
    }

    /// Makes a symbolic link. Replaces a file or a link of this name.
    pub(crate) fn link(&self, to: &OsStr, attributes: &Attributes) -> io::Result<Unset> {
        if let Some(link) = self.found()?.filter(|found| found.is_symlink() && attributes.are_of_link(found)) {
            if readlinkat(&self.parent, self.name.as_os_str())? == to {
                return Ok(attributes.unset_of(&link));
            }
        }
        self.replace(|folder, name| {
            symlinkat(to, folder, name)?;
            attributes.set_link(folder, name, &metadata(folder, OsStr::new(name))?)
        })
    }

    /// Makes another name of a file or a symbolic link. Replaces a file or a link of this name.
    pub(crate) fn hard_link(&self, first: &Self) -> io::Result<()> {
        let of = first.found()?.filter(|of| !of.is_dir());
        let of = of.ok_or_else(|| io::Error::other("there is no file of which it would be another name"))?;
        if self.found()?.is_some_and(|found| (found.dev(), found.ino()) == (of.dev(), of.ino())) {
            return Ok(());
        }
        // Another name may lie where more users reach the program.
        if of.is_file() && of.mode() & 0o6000 != 0 {
            return Err(io::Error::other(
                "the receiver has a set-user-ID or set-group-ID program there, which gets no further name",
            ));
        }
        // Without AT_SYMLINK_FOLLOW: the name of a symbolic link is one of that link.
        self.replace(|folder, name| {
            linkat(&first.parent, first.name.as_os_str(), folder, name, AtFlags::empty()).map_err(Into::into)
        })
    }

    /// The metadata of the file or directory with this name; `None` if there is none.
    fn found(&self) -> io::Result<Option<Metadata>> {
        match metadata(&self.parent, &self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Gives this name to what `make` makes in a folder, with another name.
    fn replace<T>(&self, make: impl Fn(&OwnedFd, &str) -> io::Result<T>) -> io::Result<T> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let Some(outer) = self.own_folder()? else { continue };
            let inner = match own_folder(&outer) {
                Ok(Some(inner)) => inner,
                Ok(None) => continue,
                // Another copy has removed the outer folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let name = format!("{}-{}", std::process::id(), LINKS.fetch_add(1, Ordering::Relaxed));
            let made = make(&inner, &name).and_then(|made| {
                renameat(&inner, name.as_str(), &self.parent, self.name.as_os_str())?;
                Ok(made)
            });
            // If a process of this number that was killed has left a link there, that goes too.
            let is_taken = made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
            if made.is_err() {
                let _removed = unlinkat(&inner, name.as_str(), UnlinkatFlags::NoRemoveDir);
            }
            remove_links(&outer, &inner);
            self.remove_folder();
            match made {
                // Another copy has removed the folder, or what is to be linked is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => last = Some(error),
                Err(_) if is_taken => {}
                made => return made,
            }
        }
        Err(last.unwrap_or_else(busy))
    }

    /// Removes the folder of unfinished files unless it has others.
    fn remove_folder(&self) {
        let _removed = unlinkat(&self.parent, UNFINISHED, UnlinkatFlags::RemoveDir);
    }
}

/// Numbers of the links that this process has made, for their first names.
static LINKS: AtomicU64 = AtomicU64::new(0);

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
        if is_own && metadata.mode() & 0o7777 != 0o600 {
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

/// Opens the folder of unfinished files, and makes it if there is none; `None` if another copy
/// has removed it meanwhile.
fn own_folder(parent: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match mkdirat(parent, UNFINISHED, Mode::S_IRWXU) {
        Err(Errno::EEXIST) => {}
        made => made?,
    }
    let refused = |why: &str| Err(io::Error::other(format!("the folder {UNFINISHED} beside it {why}; remove it")));
    let folder = match openat(parent, UNFINISHED, SAFE | OFlag::O_DIRECTORY, Mode::empty()) {
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

/// Removes what a copy that was killed has left of its links in a directory, and the folders of
/// unfinished files if they have no others.
pub(super) fn remove_stale(parent: &impl AsFd) {
    let open = |folder: BorrowedFd<'_>| openat(folder, UNFINISHED, SAFE | OFlag::O_DIRECTORY, Mode::empty());
    if let Ok(outer) = open(parent.as_fd()) {
        if let Ok(inner) = open(outer.as_fd()) {
            remove_links(&outer, &inner);
        }
        let _removed = unlinkat(parent, UNFINISHED, UnlinkatFlags::RemoveDir);
    }
}

/// Removes the folder of links unless it has others. Links of processes that were killed are
/// removed with it: a living one whose link is taken for one of these makes it again.
fn remove_links(outer: &OwnedFd, inner: &OwnedFd) {
    let remove = || unlinkat(outer, UNFINISHED, UnlinkatFlags::RemoveDir);
    if remove() != Err(Errno::ENOTEMPTY) {
        return;
    }
    // This very folder, wherever its name leads by now.
    let listed = fs::read_dir(format!("/proc/self/fd/{}", inner.as_raw_fd()));
    for entry in listed.into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        if name.to_str().is_some_and(is_stale) {
            let _removed = unlinkat(inner, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
    let _removed = remove();
}

/// Whether a link's first name is one of a process that has ended.
fn is_stale(name: &str) -> bool {
    let Some((pid, number)) = name.split_once('-') else { return false };
    let (Ok(pid), Ok(number)) = (pid.parse::<i32>(), number.parse::<u64>()) else { return false };
    if u32::try_from(pid) == Ok(std::process::id()) {
        // An earlier process had this number: this one has not come so far.
        return number >= LINKS.load(Ordering::Relaxed);
    }
    pid > 0 && kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)
}

/// Metadata of what has a name in a folder; a symbolic link is not followed.
fn metadata(folder: &OwnedFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    File::from(openat(folder, name, flags, Mode::empty())?).metadata()
}

/// Whether this user may change a file's attributes, and changes those of no other name. A sender
/// must not give a set-user-ID program to more users.
fn is_changeable(file: &Metadata) -> bool {
    let is_ours = file.uid() == geteuid().as_raw() || geteuid().is_root();
    is_ours && file.nlink() == 1 && file.mode() & 0o6000 == 0
}

fn busy() -> io::Error {
    io::Error::other("another copy writes this file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::super::tree::Tree;
    use super::*;

    /// Attributes of a file that this process would make.
    fn attributes(mode: u32) -> Attributes {
        let mut attributes = Attributes::from(&tempfile::tempfile().unwrap().metadata().unwrap());
        attributes.mode = mode;
        attributes
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "precious").unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        symlink(&outside, root.join("file")).unwrap();
        let target = Tree::open(&root).unwrap().target(b"file").unwrap();
        assert!(target.finished(8, &attributes(0o755)).is_none());
        let partial = target.partial().unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("another copy"));
        target.finish(&partial, &attributes(0o4755)).unwrap();
        assert_eq!(fs::read(&outside).unwrap(), b"precious");
        assert_eq!(fs::symlink_metadata(root.join("file")).unwrap().permissions().mode(), 0o100_755);
        assert!(target.finished(0, &attributes(0o755)).is_some());
        assert!(!root.join(UNFINISHED).exists());
    }

    #[test]
    fn only_the_file_that_was_written_gets_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let partial = target.partial().unwrap();
        let path = dir.path().join(UNFINISHED).join("file");
        fs::write(dir.path().join("other"), "other bytes").unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(target.finish(&partial, &attributes(0o644)).unwrap_err().to_string().contains("has replaced the file"));
        fs::remove_file(&path).unwrap();
        assert!(target.finish(&partial, &attributes(0o644)).is_err());
        assert!(target.finished(0, &attributes(0o644)).is_none());
    }

    #[test]
    fn what_stands_in_the_place_of_the_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        symlink("/tmp", dir.path().join(UNFINISHED)).unwrap();
        assert!(target.partial().unwrap_err().to_string().contains("is no directory"));
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let folder = dir.path().join(UNFINISHED);
        fs::create_dir(&folder).unwrap();
        let set_mode = |mode| fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o720, 0o702] {
            set_mode(mode);
            assert!(target.partial().unwrap_err().to_string().contains("can be written by others; remove it"));
        }
        set_mode(0o755);
        target.partial().unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        if geteuid().is_root() {
            chown(&folder, Some(12345), None).unwrap();
            assert!(target.partial().unwrap_err().to_string().contains("belongs to another user; remove it"));
        }
    }

    #[test]
    fn an_unfinished_file_that_others_know_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join(UNFINISHED), dir.path().join("outside"));
        let place = folder.join("file");
        fs::create_dir(&folder).unwrap();
        fs::write(&outside, "precious").unwrap();
        let target = Tree::open(dir.path()).unwrap().target(b"file").unwrap();
        let is_fresh = |what: &str| {
            let partial = target.partial().unwrap();
            let metadata = partial.file().metadata().unwrap();
            assert_eq!((metadata.len(), metadata.nlink(), metadata.mode()), (0, 1, 0o100_600), "{what}");
            assert_eq!(metadata.uid(), geteuid().as_raw(), "{what}");
            fs::remove_file(&place).unwrap();
        };
        fs::hard_link(&outside, &place).unwrap();
        is_fresh("another name of a file");
        symlink(&outside, &place).unwrap();
        is_fresh("a link");
        nix::unistd::mkfifo(&place, Mode::S_IRWXU).unwrap();
        is_fresh("a FIFO");
        if geteuid().is_root() {
            fs::write(&place, "another user's").unwrap();
            chown(&place, Some(12345), None).unwrap();
            is_fresh("another user's file");
        }
        fs::write(&place, "front").unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o666)).unwrap();
        let partial = target.partial().unwrap();
        let metadata = partial.file().metadata().unwrap();
        assert_eq!((metadata.len(), metadata.mode()), (5, 0o100_600), "an own file is kept");
        assert_eq!(fs::read(&outside).unwrap(), b"precious");
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
                        target.finish(&target.partial().unwrap(), &attributes(0o600)).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 800);
    }

    #[test]
    fn links_are_made_where_the_path_leads_and_replace_what_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir(&root).unwrap();
        fs::write(&outside, "precious").unwrap();
        let tree = Tree::open(&root).unwrap();
        let link = |name: &str, to: &str| tree.target(name.as_bytes()).unwrap().link(to.as_ref(), &attributes(0o777));
        let hard_link = |name: &str, of: &str| {
            let of = tree.target(of.as_bytes()).unwrap();
            tree.target(name.as_bytes()).unwrap().hard_link(&of)
        };
        link("link", outside.to_str().unwrap()).unwrap();
        link("link", "/elsewhere").unwrap();
        link("link", outside.to_str().unwrap()).unwrap();
        assert_eq!(fs::read_link(root.join("link")).unwrap(), outside);
        fs::write(root.join("file"), "contents").unwrap();
        hard_link("again", "file").unwrap();
        hard_link("again", "file").unwrap();
        assert_eq!(fs::metadata(root.join("again")).unwrap().nlink(), 2);
        // The link itself has another name, not what it leads to.
        hard_link("again", "link").unwrap();
        assert_eq!(fs::read_link(root.join("again")).unwrap(), outside);
        assert_eq!(fs::metadata(&outside).unwrap().nlink(), 1);
        // Files replace links, and the other way round.
        let target = tree.target(b"link").unwrap();
        target.finish(&target.partial().unwrap(), &attributes(0o600)).unwrap();
        assert_eq!(fs::read(&outside).unwrap(), b"precious");
        assert!(fs::symlink_metadata(root.join("link")).unwrap().is_file());
        link("file", "nowhere").unwrap();
        // A directory stays.
        fs::create_dir(root.join("folder")).unwrap();
        assert!(link("folder", "nowhere").is_err() && hard_link("folder", "link").is_err());
        assert!(hard_link("new", "folder").is_err() && hard_link("new", "missing").is_err());
        let names: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn links_of_a_process_that_was_killed_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join(UNFINISHED).join(UNFINISHED);
        let leave = |name: String| {
            fs::create_dir_all(&inner).unwrap();
            for folder in [inner.parent().unwrap(), &inner] {
                fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
            }
            symlink("nowhere", inner.join(name)).unwrap();
        };
        let ours = format!("{}-{}", std::process::id(), u64::MAX);
        let living = format!("{}-0", nix::unistd::getppid());
        let tree = Tree::open(dir.path()).unwrap();
        for name in ["99999999-3".to_owned(), ours.clone()] {
            leave(name);
            tree.target(b"link").unwrap().link("to".as_ref(), &attributes(0o777)).unwrap();
            assert!(!dir.path().join(UNFINISHED).exists());
            fs::remove_file(dir.path().join("link")).unwrap();
        }
        leave(living.clone());
        leave(ours);
        remove_stale(&File::open(dir.path()).unwrap());
        assert!(fs::symlink_metadata(inner.join(&living)).is_ok());
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn a_set_user_id_program_gets_no_further_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "program").unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        let link = || tree.target(b"other").unwrap().hard_link(&tree.target(b"program").unwrap());
        for mode in [0o4700, 0o2710] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(link().unwrap_err().to_string().contains("gets no further name"));
            assert!(!dir.path().join("other").exists() && !dir.path().join(UNFINISHED).exists());
        }
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        link().unwrap();
    }

    #[test]
    fn a_set_user_id_program_is_not_given_to_more_users() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "program").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o4750)).unwrap();
        let now = Attributes::from(&path.metadata().unwrap());
        let target = Tree::open(dir.path()).unwrap().target(b"program").unwrap();
        assert!(target.finished(7, &now).is_some());
        assert!(target.finished(7, &attributes(0o755)).is_none());
        target.finish(&target.partial().unwrap(), &attributes(0o755)).unwrap();
        assert_eq!(path.metadata().unwrap().mode(), 0o100_755);
    }

    #[test]
    fn a_link_that_is_right_stays_and_gets_its_time() {
        let dir = tempfile::tempdir().unwrap();
        symlink("target", dir.path().join("link")).unwrap();
        let found = || fs::symlink_metadata(dir.path().join("link")).unwrap();
        let before = found();
        let target = Tree::open(dir.path()).unwrap().target(b"link").unwrap();
        target.link("target".as_ref(), &Attributes::from(&before)).unwrap();
        assert_eq!(found().ino(), before.ino());
        let old = tempfile::tempfile().unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
        target.link("target".as_ref(), &Attributes::from(&old.metadata().unwrap())).unwrap();
        assert_eq!(found().mtime(), 0);
    }

    #[test]
    fn copies_make_links_in_one_folder_at_the_same_time() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tree = &tree;
                scope.spawn(move || {
                    for number in 0..100 {
                        let name = format!("{thread}-{number}");
                        let target = tree.target(name.as_bytes()).unwrap();
                        target.link(name.as_ref(), &attributes(0o777)).unwrap();
                    }
                });
            }
        });
        let entries: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(entries.len(), 400);
        assert!(entries.iter().all(|entry| fs::read_link(entry.path()).unwrap() == entry.file_name()));
    }
}
