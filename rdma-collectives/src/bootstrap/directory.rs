//! An exchange by files of a directory that all ranks see, such as one of NFS.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::exchange::{Exchange, MAX_VALUE, not_set};
use crate::Error;
use crate::text::escaped;

/// Longest name of a file; that of a temporary one is longer, and the system allows 255 bytes.
const MAX_NAME: usize = 200;
/// First and longest pause between two looks for a file.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// An exchange by files of a directory that all ranks see, such as one of NFS.
///
/// A key is a file that its owner alone can access, so all ranks run as the same user. A file
/// appears with all of its contents. It is deleted once all ranks have met, or have failed to. If
/// rank 0 is killed before, its file stays; ranks of a later job with the same name find nobody at
/// the addresses in it, and wait for a newer file.
///
/// Files of others are refused: a file has to belong to the user of this process, or to the owner
/// of the directory.
///
/// ```no_run
/// use rdma_collectives::bootstrap::{Directory, Group, Roles, Terms};
/// use rdma_collectives::launchers;
///
/// let terms = Terms::new("sums", &(), Roles::Ranks, std::time::Duration::from_secs(30));
/// // mpirun gives each job a number of its own, and no address of rank 0.
/// if let Some(told) = launchers::job_place()?.filter(|told| told.job != 0) {
///     let mut exchange = Directory::new("/shared/meet", &format!("{:x}", told.job))?;
///     let mut group = Group::meet_by(&mut exchange, told.rank, told.ranks, &terms)?;
///     group.barrier("the start")?;
/// }
/// # Ok::<(), rdma_collectives::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    job: String,
}

impl Directory {
    /// The exchange of a job by an existing directory.
    ///
    /// `job` is a name that all ranks of a job give, and no other job at the same time: two jobs
    /// with one name would meet each other's ranks. A name that no other job ever has is best: the
    /// number that the scheduler gives to the job, with that of its step and of its restarts if it
    /// has any (`$SLURM_JOB_ID.$SLURM_STEP_ID`), or a random number that a script hands to all
    /// ranks. The number of a process is none, as hosts use the same ones.
    ///
    /// # Errors
    /// If the name is empty, or longer than about 100 characters.
    pub fn new(path: impl Into<PathBuf>, job: &str) -> Result<Self, Error> {
        if job.is_empty() {
            return Err(Error::invalid("a job that meets by a directory needs a name, which no other job has"));
        }
        let new = Self { path: path.into(), job: encoded(job) };
        // The longest key.
        new.file(&"-".repeat(100))?;
        Ok(new)
    }

    /// The name of a key's file.
    fn file(&self, key: &str) -> Result<String, Error> {
        let name = format!("rdma-{}@{}", self.job, encoded(key));
        if name.len() > MAX_NAME {
            return Err(Error::invalid(format!("the name of a file would be {name}; give the job a shorter one")));
        }
        Ok(name)
    }

    /// Opens the file of a key; `None` if there is none.
    fn open(&self, path: &Path) -> io::Result<Option<File>> {
        // An NFS client remembers for up to a minute that a file does not exist, unless it sees
        // that the directory has changed. It asks the server for that on opening the directory.
        let owner = File::open(&self.path)?.metadata()?.uid();
        // Neither a link to elsewhere nor a FIFO without a writer, which would wait.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound || is_stale(&error) => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file; delete it"));
        }
        if !is_trusted(metadata.uid(), owner, geteuid().as_raw()) {
            let text = format!("it belongs to the user {}; run all ranks as one user", metadata.uid());
            return Err(io::Error::other(text));
        }
        Ok(Some(file))
    }

    /// Reads the file of a key; `None` if there is none.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.open(path)? else { return Ok(None) };
        let mut value = Vec::new();
        match file.take(MAX_VALUE as u64 + 1).read_to_end(&mut value) {
            Ok(read) if read > MAX_VALUE => Err(io::Error::other(format!("it has more than {MAX_VALUE} bytes"))),
            // The server has deleted the file meanwhile.
            Err(error) if is_stale(&error) => Ok(None),
            read => read.map(|_| Some(value)),
        }
    }
}

impl Exchange for Directory {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        let name = self.file(key)?;
        let temporary = self.path.join(format!(".{name}.{:016x}", RandomState::new().build_hasher().finish()));
        let path = self.path.join(name);
        let written = write(&temporary, value).and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|error| {
            // Errors are ignored: the file may not exist.
            drop(fs::remove_file(&temporary));
            failed("write", &path, &error)
        })
    }

    fn get(&mut self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let path = self.path.join(self.file(key)?);
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            if let Some(value) = self.read(&path).map_err(|error| failed("read", &path, &error))? {
                return Ok(value);
            }
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(not_set(key).context(escaped(&self.path)));
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(PAUSES.1);
        }
    }

    fn delete(&mut self, key: &str) -> Result<(), Error> {
        let path = self.path.join(self.file(key)?);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("delete", &path, &error)),
            _ => Ok(()),
        }
    }
}

/// Writes a new file.
fn write(path: &Path, value: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(value)?;
    // A server may refuse the bytes as late as here.
    file.sync_all()
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(format!("cannot {verb} {}: {error}", escaped(path)))
}

/// Whether an NFS server does not know the file any more.
fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ESTALE as i32)
}

/// Whether a file is of a user who may give this one values. The owner of the directory can replace
/// its files; a server that takes all users for one makes that one the owner of both.
fn is_trusted(owner: u32, owner_of_directory: u32, own: u32) -> bool {
    owner == own || owner == owner_of_directory
}

/// A name in which a file name may have any part: letters, digits, `-` and `_` stand for
/// themselves.
fn encoded(text: &str) -> String {
    let mut name = String::new();
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' => name.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

#[cfg(test)]
mod tests;
