//! The drop-in library as a file of the user, under the names that programs load.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, geteuid};

use crate::failure::Failure;

/// Copies of the library that nobody has started with for this long are removed, unless programs
/// still run with them.
const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);

/// The drop-in library.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    /// The file's contents; empty in a program that was only checked.
    pub(super) bytes: &'static [u8],
    /// The name of the file, and a second name, which becomes a link to the first, as do both names
    /// without their version: the dynamic loader takes all for one library.
    pub(super) names: [&'static str; 2],
}

impl Library {
    /// Puts the library into a folder of its own, unless an earlier run has, and returns the
    /// folder.
    pub(super) fn place(&self) -> Result<PathBuf, Failure> {
        if self.bytes.is_empty() {
            return Err(Failure::new("this program was built without the library; build it with `cargo build`"));
        }
        let parent = cache();
        let place = || {
            if forbids_execution(&parent) {
                return Err(io::Error::other("its filesystem forbids execution (noexec)"));
            }
            if !can_be_listed(&parent) {
                return Err(io::Error::other("a library path cannot contain a colon, semicolon or dollar sign"));
            }
            let folder = parent.join(format!("{:016x}", hash(self.bytes)));
            make_private(&parent)?;
            make_private(&folder)?;
            self.fill(&folder)?;
            // The time says when the copy was used last, and the lock that it is in use.
            let opened = File::open(&folder)?;
            opened.set_modified(SystemTime::now())?;
            hold(opened)?;
            Ok(folder)
        };
        let folder = place().map_err(|error: io::Error| {
            let text = format!("cannot use the library in {}: {error}", parent.display());
            let other = elsewhere().map_or_else(String::new, |folder| format!(", such as {}", folder.display()));
            Failure::new(format!("{text}; XDG_CACHE_HOME sets another folder{other}"))
        })?;
        // Old copies only take space, so failures to remove them do not matter.
        let _removed = remove_unused(&parent);
        Ok(folder)
    }

    /// Writes the library, by a rename, so that another launcher never sees half of it.
    fn fill(&self, folder: &Path) -> io::Result<()> {
        let [file, link] = self.names;
        let path = folder.join(file);
        if !fs::metadata(&path).is_ok_and(|found| found.len() == self.bytes.len() as u64) {
            // Process numbers repeat in containers that share the folder, so the time is in the
            // name too, and a file that exists is not written to.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
            let new = folder.join(format!("{file}.{}.{now}", std::process::id()));
            let written = File::create_new(&new).and_then(|mut file| file.write_all(self.bytes));
            if let Err(error) = written.and_then(|()| fs::rename(&new, &path)) {
                let _removed = fs::remove_file(&new);
                return Err(error);
            }
        }
        // A program that loads the library at run time may ask for the name without a version
        // first, as NCCL does, and would find the system's with the files for development.
        let unversioned = self.names.iter().filter_map(|name| name.strip_suffix(".1"));
        for link in unversioned.chain([link]) {
            match symlink(file, folder.join(link)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }
}

/// The file that launchers lock while they look for namespaces of this user.
pub(super) fn lock() -> PathBuf {
    cache().join("namespace.lock")
}

/// The folder of all copies: in the user's cache, or else in the folder of temporary files.
fn cache() -> PathBuf {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let can_write = |folder: &Path| {
        access(folder, AccessFlags::W_OK).is_ok() && !forbids_execution(folder) && can_be_listed(folder)
    };
    // Users of containers, and such as nobody, have a home that they cannot write to, and some
    // machines forbid execution there.
    let at_home = |home: PathBuf| {
        let cache = home.join(".cache");
        let is_usable = if cache.exists() { can_write(&cache) } else { can_write(&home) };
        is_usable.then_some(cache)
    };
    match set("XDG_CACHE_HOME").or_else(|| set("HOME").and_then(at_home)) {
        Some(cache) => cache.join("soft-rdma"),
        None => env::temp_dir().join(format!("soft-rdma-{}", geteuid())),
    }
}

/// Whether the dynamic loader's list can have a folder: it ends a name at a colon or semicolon, and
/// replaces words such as `$ORIGIN`.
fn can_be_listed(folder: &Path) -> bool {
    !folder.to_string_lossy().contains([':', ';', '$'])
}

/// Whether the filesystem of a folder, or of the next one above it that exists, forbids execution:
/// the dynamic loader then maps no library of it.
fn forbids_execution(folder: &Path) -> bool {
    let existing = folder.ancestors().find(|folder| folder.exists());
    existing.and_then(|folder| statvfs(folder).ok()).is_some_and(|found| found.flags().contains(FsFlags::ST_NOEXEC))
}

/// A folder in which the library could be, for advice.
fn elsewhere() -> Option<PathBuf> {
    let folders = ["/tmp", "/var/tmp", "/dev/shm", "/opt", "/srv"].map(PathBuf::from);
    let home = env::var_os("HOME").map(PathBuf::from);
    let is_usable = |folder: &PathBuf| access(folder, AccessFlags::W_OK).is_ok() && !forbids_execution(folder);
    folders.into_iter().chain(home).find(is_usable)
}

/// Makes a folder that only this user can change. Programs run code from it, so a folder that
/// somebody else has made is an error.
fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.permissions().mode() & 0o022 == 0 {
        Ok(())
    } else {
        let text = format!("other users can write to {}", folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

/// Locks a folder against its removal, as long as this process, or a program that it becomes or
/// starts, has the descriptor.
fn hold(folder: File) -> io::Result<()> {
    fcntl(&folder, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let lock = Flock::lock(folder, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno)?;
    // The lock ends with the last copy of the descriptor, not with this value.
    Box::leak(Box::new(lock));
    Ok(())
}

/// A number that tells apart different libraries.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Removes the copies of other versions of this program that are no longer in use.
fn remove_unused(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.path() == lock() {
            continue;
        }
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        let is_free = || Flock::lock(File::open(entry.path()).ok()?, FlockArg::LockExclusiveNonblock).ok();
        if let Some(_lock) = Some(age > UNUSED).filter(|is_old| *is_old).and_then(|_| is_free()) {
            // A folder that cannot be removed does not keep the rest.
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}
