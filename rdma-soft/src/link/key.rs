//! The key that the processes of a job share, and proofs that a process holds it.
//!
//! The key is a file, or an open descriptor. Its bytes are used once, to derive the key of the
//! proofs (HMAC-SHA-256), so that another use of the same file gives away nothing here.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sha2::Sha256;

use crate::os;

/// The fewest bytes of a key, not counting white space at its end.
const MIN_LEN: usize = 32;
/// The most bytes that are read.
const MAX_LEN: usize = 4096;
/// How long the writer of a pipe may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a proof.
pub(crate) const PROOF: usize = 32;
/// What the key of the proofs is derived for. A change of the messages needs another text.
const PURPOSE: &[u8] = b"rdma-soft tcp proof 1";

/// The reason why there is no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error(
        "no key: set RDMA_SOFT_KEY to a file of at least {MIN_LEN} random bytes that only its owner may read, or RDMA_SOFT_KEY_FD to a descriptor"
    )]
    Missing,
    #[error("RDMA_SOFT_KEY and RDMA_SOFT_KEY_FD are both set; set one of them")]
    Both,
    #[error("RDMA_SOFT_KEY_FD is not the number of an open descriptor")]
    NoDescriptor,
    #[error(
        "the key has mode {mode:03o}, so others may read or change it; run chmod 600 on the file (for a secret of Kubernetes: defaultMode: 0400). \
         A group may read a key of root alone (mode 440 or 640), if this process is of the group"
    )]
    Exposed { mode: u32 },
    #[error("the key is neither a file nor a pipe nor a socket")]
    NoFile,
    #[error("the key has not come within {} s: whoever writes it must close the pipe", PATIENCE.as_secs())]
    Late,
    #[error(
        "the key belongs to user {0}, neither to this process's user nor to root; change its owner, or run the process as that user \
         (docker run --user {0})"
    )]
    Foreign(u32),
    #[error(
        "the key belongs to user {0}, and others may put files into a directory of its path, so root does not take it; change its owner, \
         move it, or open it for the process (RDMA_SOFT_KEY_FD=3 3<FILE)"
    )]
    Planted(u32),
    #[error(
        "the key has {0} bytes; it needs at least {MIN_LEN} random ones, such as `head -c 32 /dev/urandom | base64` prints"
    )]
    Short(usize),
    #[error("the key is longer than {MAX_LEN} bytes")]
    Long,
    #[error("the key cannot be read: {0}")]
    Unreadable(#[from] io::Error),
}

/// The key of the proofs.
#[derive(Clone)]
pub(crate) struct Key(Hmac<Sha256>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key of these bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        check_len(bytes)?;
        let derived = mac(bytes).chain_update(PURPOSE).finalize().into_bytes();
        Ok(Self(mac(&derived)))
    }

    /// Whether another key gives the same proofs.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_proof(&[], &other.prove(&[]))
    }

    /// The proof of the parts of a message. Callers give each part a fixed length.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF] {
        self.over(parts).finalize().into_bytes().into()
    }

    /// Whether a proof is right, in a time that does not depend on the proof.
    pub(crate) fn is_proof(&self, parts: &[&[u8]], proof: &[u8; PROOF]) -> bool {
        self.over(parts).verify(proof.into()).is_ok()
    }

    fn over(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        parts.iter().fold(self.0.clone(), |mac, part| mac.chain_update(part))
    }
}

#[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

/// Reads the bytes of the key in a file or at a descriptor, without white space at the end.
pub(crate) fn secret(path: Option<&OsStr>, descriptor: Option<&OsStr>) -> Result<Vec<u8>, KeyError> {
    match (path, descriptor) {
        (None, None) => Err(KeyError::Missing),
        (Some(_), Some(_)) => Err(KeyError::Both),
        (Some(path), None) => {
            let path = Path::new(path);
            of_file(&open(path)?, Some(path))
        }
        (None, Some(number)) => {
            let number = number.to_str().and_then(|number| number.parse().ok());
            let file = number.and_then(os::copy_of).ok_or(KeyError::NoDescriptor)?;
            of_file(&file.into(), None)
        }
    }
}

fn of_file(file: &File, path: Option<&Path>) -> Result<Vec<u8>, KeyError> {
    check_file(file, path, &Account::this_process())?;
    let mut bytes = contents(file, PATIENCE)?;
    if bytes.len() > MAX_LEN {
        return Err(KeyError::Long);
    }
    bytes.truncate(bytes.trim_ascii_end().len());
    check_len(&bytes)?;
    Ok(bytes)
}

/// Refuses a key that is too short.
pub(crate) fn check_len(bytes: &[u8]) -> Result<(), KeyError> {
    if bytes.len() < MIN_LEN { Err(KeyError::Short(bytes.len())) } else { Ok(()) }
}

/// A short text by which users compare keys. It says nothing about a key that is random.
pub(crate) fn fingerprint(key: &Key) -> String {
    let hash = key.prove(&[b"fingerprint"]);
    hash[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens a file; if the path names a pipe, without waiting for a writer.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// The first bytes of a file, at most one more than [`MAX_LEN`]. Processes that share the
/// descriptor of a regular file, or of a memfd, all read it from its start. Waits for the writer of
/// a pipe, `patience` at most.
fn contents(mut file: &File, patience: Duration) -> Result<Vec<u8>, KeyError> {
    let is_file = file.metadata()?.is_file();
    let deadline = Instant::now() + patience;
    let (mut bytes, mut filled) = (vec![0; MAX_LEN + 1], 0);
    while filled < bytes.len() {
        if !is_file {
            await_bytes(file, deadline)?;
        }
        let rest = &mut bytes[filled..];
        let read = if is_file { file.read_at(rest, filled as u64) } else { file.read(rest) };
        match read {
            Ok(0) => break,
            Ok(count) => filled += count,
            // Another process that shares the pipe may have taken the bytes.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Waits until a pipe or a socket has bytes or its writer has closed it.
fn await_bytes(file: &File, deadline: Instant) -> Result<(), KeyError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up: a wait of less than a millisecond would spin.
        let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if left.is_zero() => return Err(KeyError::Late),
            Ok(0) | Err(Errno::EINTR) => {}
            ready => return ready.map(drop).map_err(|errno| io::Error::from(errno).into()),
        }
    }
}

/// The user and the groups of a process.
struct Account {
    uid: u32,
    groups: Vec<u32>,
}

impl Account {
    fn this_process() -> Self {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        let groups = groups.into_iter().chain([nix::unistd::getegid()]).map(nix::unistd::Gid::as_raw).collect();
        Self { uid: nix::unistd::geteuid().as_raw(), groups }
    }
}

/// Refuses a key that another user may read or has chosen; `path` is where it was found, if it was
/// not opened by whoever started this process. Sockets, memfds and deleted files pass whatever
/// their mode is: they have no name by which others could open them. The pipe of a shell (`<(...)`)
/// has mode 600.
fn check_file(file: &File, path: Option<&Path>, us: &Account) -> Result<(), KeyError> {
    let about = file.metadata()?;
    let kind = about.file_type();
    let has_name = match (kind.is_file(), kind.is_fifo(), kind.is_socket()) {
        (true, ..) => about.nlink() != 0,
        (_, true, _) => true,
        (.., true) => false,
        _ => return Err(KeyError::NoFile),
    };
    if has_name {
        check_mode(about.uid(), about.gid(), about.mode() & 0o777, us)?;
    }
    check_owner(about.uid(), us, || path.is_none_or(is_out_of_reach))
}

/// Refuses a file that others than its owner and root may read or change. The group may read a file
/// of root if it is one of ours: then root has chosen who is in it, and a secret of Kubernetes has
/// no other form for a container that does not run as root (`fsGroup`).
fn check_mode(uid: u32, gid: u32, mode: u32, us: &Account) -> Result<(), KeyError> {
    let may_group_read = uid == 0 && us.groups.contains(&gid);
    let refused = if may_group_read { 0o037 } else { 0o077 };
    if mode & refused == 0 { Ok(()) } else { Err(KeyError::Exposed { mode }) }
}

/// Refuses a file that another user has chosen, who then could connect to this process. Root may
/// take a user's key, as it must in a container that gets the file from its host; but not one that
/// somebody may have put in the place of another (`is_out_of_reach` is false), as in `/tmp`.
fn check_owner(uid: u32, us: &Account, is_out_of_reach: impl FnOnce() -> bool) -> Result<(), KeyError> {
    match us.uid {
        _ if uid == 0 || uid == us.uid => Ok(()),
        0 if is_out_of_reach() => Ok(()),
        0 => Err(KeyError::Planted(uid)),
        _ => Err(KeyError::Foreign(uid)),
    }
}

/// Whether only the owners of the directories of a path may put files there: the directories that
/// the path names, and those where it leads by symbolic links.
fn is_out_of_reach(path: &Path) -> bool {
    is_out_of_reach_below(path, Path::new("/"))
}

/// Judges only the directories in `top`, and `top` itself.
fn is_out_of_reach_below(path: &Path, top: &Path) -> bool {
    let is_closed = |directory: &Path| directory.metadata().is_ok_and(|about| about.mode() & 0o022 == 0);
    let are_closed = |path: io::Result<PathBuf>| {
        let judged = |directory: &&Path| directory.starts_with(top);
        path.is_ok_and(|path| path.ancestors().skip(1).take_while(judged).all(is_closed))
    };
    are_closed(std::path::absolute(path)) && are_closed(path.canonicalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    /// A file with these bytes and this mode.
    fn file(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rdma-soft-key-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// What reading a file with these bytes and this mode says.
    fn said(name: &str, bytes: &[u8], mode: u32) -> String {
        let path = file(name, bytes, mode);
        let key = secret(Some(path.as_os_str()), None);
        fs::remove_file(path).unwrap();
        key.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_key_is_long_and_private() {
        assert_eq!(said("good", SECRET, 0o600), "");
        assert_eq!(said("newline", &[SECRET, b"\n"].concat(), 0o400), "");
        assert!(said("short", &SECRET[1..], 0o600).contains("31 bytes"));
        assert!(said("blank", &[b' '; 100], 0o600).contains("0 bytes"), "white space is no key");
        assert!(said("long", &[1; MAX_LEN + 1], 0o600).contains("longer"));
        for mode in [0o604, 0o610, 0o620, 0o602, 0o644, 0o660] {
            assert!(said("exposed", SECRET, mode).contains("chmod 600"), "{mode:o}");
        }
        let error = |path: Option<&str>, fd: Option<&str>| {
            secret(path.map(OsStr::new), fd.map(OsStr::new)).unwrap_err().to_string()
        };
        assert!(error(None, None).contains("RDMA_SOFT_KEY"));
        assert!(error(Some("/a"), Some("3")).contains("both"));
        assert!(error(Some("/does/not/exist"), None).contains("cannot be read"));
        for fd in ["-1", "x", "1000000"] {
            assert!(error(None, Some(fd)).contains("descriptor"), "{fd}");
        }
    }

    #[test]
    fn the_group_may_read_a_key_of_root_if_it_is_one_of_ours() {
        let user = Account { uid: 1000, groups: vec![1000, 2000] };
        let check = |uid, gid, mode| check_mode(uid, gid, mode, &user);
        for mode in [0o400, 0o600, 0o440, 0o640] {
            assert!(check(0, 2000, mode).is_ok(), "{mode:o}");
        }
        for mode in [0o444, 0o644, 0o460, 0o660, 0o450, 0o441, 0o442, 0o777] {
            assert!(matches!(check(0, 2000, mode), Err(KeyError::Exposed { .. })), "{mode:o}");
        }
        for (uid, gid) in [(0, 3000), (1000, 1000), (1000, 2000), (7, 2000)] {
            let error = check(uid, gid, 0o440).unwrap_err().to_string();
            assert!(error.contains("mode 440") && error.contains("chmod 600"), "{error}");
            assert!(check(uid, gid, 0o400).is_ok());
        }
        // Root is of the group, too, or it is none of its business.
        let root = Account { uid: 0, groups: vec![0] };
        assert!(check_mode(0, 0, 0o640, &root).is_ok());
        assert!(check_mode(0, 2000, 0o640, &root).is_err());
        // The groups are those of this process.
        let us = Account::this_process();
        assert!(us.groups.contains(&nix::unistd::getegid().as_raw()));
        assert_eq!(said("group", SECRET, 0o640).is_empty(), us.uid == 0);
    }

    #[test]
    fn root_takes_the_key_of_a_user_where_nobody_can_have_put_it() {
        let (user, root) = (Account { uid: 1000, groups: vec![] }, Account { uid: 0, groups: vec![] });
        let out_of_reach = || true;
        for (uid, us, is_good) in [(0, &user, true), (1000, &user, true), (1001, &user, false), (1001, &root, true)] {
            assert_eq!(check_owner(uid, us, out_of_reach).is_ok(), is_good, "{uid} {}", us.uid);
        }
        assert!(check_owner(1001, &user, out_of_reach).unwrap_err().to_string().contains("--user 1001"));
        let planted = check_owner(1001, &root, || false).unwrap_err();
        assert!(planted.to_string().contains("RDMA_SOFT_KEY_FD"), "{planted}");
        assert!(check_owner(0, &root, || panic!("the path does not matter")).is_ok());
    }

    #[test]
    fn a_path_is_out_of_reach_if_all_of_its_directories_are() {
        use std::os::unix::fs::symlink;
        let closed = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let top = std::env::temp_dir().join(format!("rdma-soft-key-{}-path", std::process::id()));
        fs::create_dir_all(&top).unwrap();
        // The directory of temporary files is open to all, as a rule, so paths are judged below.
        let top = top.canonicalize().unwrap();
        let (inner, open) = (top.join("inner"), top.join("open"));
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(&open).unwrap();
        let is_good = |path: &Path| is_out_of_reach_below(path, &top);
        for directory in [&top, &inner] {
            closed(directory, 0o755);
        }
        closed(&open, 0o1777);
        for directory in [&inner, &open] {
            fs::write(directory.join("key"), SECRET).unwrap();
        }
        symlink(inner.join("key"), open.join("to-closed")).unwrap();
        symlink(open.join("key"), inner.join("to-open")).unwrap();
        symlink(&open, inner.join("to-directory")).unwrap();
        let judged = [
            (inner.join("key"), true),
            (inner.join("absent"), false),
            (open.join("key"), false),
            (open.join("to-closed"), false),
            (inner.join("to-open"), false),
            (inner.join("to-directory/key"), false),
        ]
        .map(|(path, expected)| (is_good(&path), expected, path));
        closed(&inner, 0o775);
        let is_group_refused = !is_good(&inner.join("key"));
        fs::remove_dir_all(&top).unwrap();
        for (is_good, expected, path) in judged {
            assert_eq!(is_good, expected, "{}", path.display());
        }
        assert!(is_group_refused);
    }

    #[test]
    fn a_descriptor_is_read_from_its_start_by_every_process_and_stays_open() {
        let path = file("descriptor", SECRET, 0o600);
        let opened = File::open(&path).unwrap();
        fs::remove_file(path).unwrap();
        let number = opened.as_raw_fd().to_string();
        let read = [(); 2].map(|()| secret(None, Some(OsStr::new(&number))).unwrap());
        assert_eq!(read, [SECRET; 2]);
        assert!(opened.metadata().is_ok());
    }

    /// What a descriptor gives.
    fn of_fd(fd: impl Into<std::os::fd::OwnedFd>, patience: Duration) -> Result<Vec<u8>, KeyError> {
        let file = File::from(fd.into());
        check_file(&file, None, &Account::this_process())?;
        contents(&file, patience)
    }

    #[test]
    fn a_pipe_or_a_socket_gives_the_key_when_its_writer_closes_it() {
        // A child that another test forks may have a copy of a writer's end for a moment.
        let soon = Duration::from_secs(20);
        let pipe = || nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let (from, to) = pipe();
        File::from(to).write_all(SECRET).unwrap();
        assert_eq!(of_fd(from, soon).unwrap(), SECRET);
        let (from, mut to) = std::os::unix::net::UnixStream::pair().unwrap();
        to.write_all(SECRET).unwrap();
        drop(to);
        assert_eq!(of_fd(from, soon).unwrap(), SECRET);
        // A writer that never closes it holds nobody up for ever.
        let (from, to) = pipe();
        assert!(matches!(of_fd(from, Duration::from_millis(2)), Err(KeyError::Late)));
        drop(to);
        assert!(matches!(of_fd(File::open("/dev/null").unwrap(), soon), Err(KeyError::NoFile)));
        assert!(matches!(of_fd(File::open("/").unwrap(), soon), Err(KeyError::NoFile)));
        let memory = nix::sys::memfd::memfd_create(c"key", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let memory = File::from(memory);
        (&memory).write_all(SECRET).unwrap();
        assert_eq!(of_fd(memory, soon).unwrap(), SECRET);
    }

    #[test]
    fn a_pipe_with_a_name_has_the_mode_of_a_key_and_may_be_opened_before_its_writer() {
        let path = std::env::temp_dir().join(format!("rdma-soft-key-{}-fifo", std::process::id()));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = std::thread::scope(|scope| {
            let reading = scope.spawn(|| secret(Some(path.as_os_str()), None));
            // Waits for the reader.
            File::options().write(true).open(&path).unwrap().write_all(SECRET).unwrap();
            reading.join().unwrap()
        });
        assert_eq!(read.unwrap(), SECRET);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        let error = secret(Some(path.as_os_str()), None).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(error.contains("mode 622") && error.contains("defaultMode: 0400"), "{error}");
    }

    #[test]
    fn proofs_are_hmac_sha_256() {
        // RFC 4231, test case 2.
        let vector = mac(b"Jefe").chain_update(b"what do ya want for nothing?").finalize().into_bytes();
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(vector.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
        let key = Key::of_bytes(SECRET).unwrap();
        let proof = key.prove(&[b"one", b"two"]);
        assert!(key.is_proof(&[b"one", b"two"], &proof));
        assert!(!key.is_proof(&[b"one", b"twp"], &proof));
        let other = Key::of_bytes(&[7; 32]).unwrap();
        assert!(!other.is_proof(&[b"one", b"two"], &proof));
        assert!(key.is_same(&key.clone()) && !key.is_same(&other));
        assert_ne!(fingerprint(&key), fingerprint(&other));
        for at in 0..8 * PROOF {
            let mut wrong = proof;
            wrong[at / 8] ^= 1 << (at % 8);
            assert!(!key.is_proof(&[b"one", b"two"], &wrong));
        }
    }
}
