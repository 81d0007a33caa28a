//! The attributes of files, directories and symbolic links that a copy keeps.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{UtimensatFlags, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, geteuid};
use serde::{Deserialize, Serialize};

/// Permissions, owner and time of modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanoseconds: u32,
}

impl From<&Metadata> for Attributes {
    fn from(of: &Metadata) -> Self {
        let nanoseconds = u32::try_from(of.mtime_nsec()).unwrap_or(0);
        Self { mode: of.mode(), uid: of.uid(), gid: of.gid(), seconds: of.mtime(), nanoseconds }
    }
}

impl Attributes {
    /// Whether a peer's time is one: the system call gives larger numbers of nanoseconds another
    /// meaning.
    pub(crate) fn has_time(&self) -> bool {
        self.nanoseconds < 1_000_000_000
    }

    /// Whether a file has these attributes, or all of them that this user could set.
    pub(crate) fn are_of(&self, file: &Metadata) -> bool {
        let now = Self::from(file);
        let is_owner = (now.uid, now.gid) == (self.uid, self.gid) || !geteuid().is_root();
        is_owner && (now.mode ^ self.mode) & 0o777 == 0 && self.is_time_of(file)
    }

    /// Whether a symbolic link, whose permissions mean nothing, has the other attributes.
    pub(crate) fn are_of_link(&self, link: &Metadata) -> bool {
        Self { mode: link.mode(), ..*self }.are_of(link)
    }

    /// What of a file's owner and time differs.
    pub(crate) fn unset_of(&self, file: &Metadata) -> Unset {
        let owners = u64::from((file.uid(), file.gid()) != (self.uid, self.gid));
        Unset { owners, times: u64::from(!self.is_time_of(file)) }
    }

    /// Gives the attributes to a file or a directory, which keeps its own set-user-ID, set-group-ID
    /// and sticky bits and takes none over.
    pub(crate) fn set(&self, file: &File) -> io::Result<Unset> {
        let owners = self.set_owner(&file.metadata()?, |uid, gid| fchown(file, uid, gid))?;
        // After the owner, whose change may take bits of the mode away.
        set_mode(file, self.mode)?;
        let is_set = self.is_time_of(&file.metadata()?);
        let times = if is_set { Ok(()) } else { futimens(file, &TimeSpec::UTIME_OMIT, &self.time()) };
        Ok(Unset { owners, times: refused(times)? })
    }

    /// Gives the attributes to a new symbolic link.
    pub(crate) fn set_link(&self, folder: &OwnedFd, name: &str, link: &Metadata) -> io::Result<Unset> {
        let change = |uid, gid| fchownat(folder, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW);
        let owners = self.set_owner(link, change)?;
        let flag = UtimensatFlags::NoFollowSymlink;
        let times = refused(utimensat(folder, name, &TimeSpec::UTIME_OMIT, &self.time(), flag))?;
        Ok(Unset { owners, times })
    }

    /// Changes the owner if this user is root, and the group if it may: 1 if they are not set then.
    fn set_owner(
        &self,
        now: &Metadata,
        change: impl FnOnce(Option<Uid>, Option<Gid>) -> nix::Result<()>,
    ) -> io::Result<u64> {
        let is_other = now.uid() != self.uid;
        let uid = (is_other && geteuid().is_root()).then_some(Uid::from_raw(self.uid));
        let gid = (now.gid() != self.gid).then_some(Gid::from_raw(self.gid));
        let left = u64::from(is_other && uid.is_none());
        if uid.is_none() && gid.is_none() { Ok(left) } else { Ok(left.max(refused(change(uid, gid))?)) }
    }

    fn is_time_of(&self, file: &Metadata) -> bool {
        (file.mtime(), file.mtime_nsec()) == (self.seconds, i64::from(self.nanoseconds))
    }

    fn time(&self) -> TimeSpec {
        TimeSpec::new(self.seconds, self.nanoseconds.into())
    }
}

/// How many entries have another owner or group, or another time, than those of the source, since
/// the receiver's user may not set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unset {
    pub(crate) owners: u64,
    pub(crate) times: u64,
}

impl Unset {
    pub(crate) fn add(&mut self, other: Self) {
        self.owners += other.owners;
        self.times += other.times;
    }
}

/// Gives a file or a directory the permissions of `mode`. It keeps its own set-user-ID,
/// set-group-ID and sticky bits, and takes none over.
pub(crate) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    let now = file.metadata()?.mode() & 0o7777;
    let new = now & 0o7000 | mode & 0o777;
    if new == now { Ok(()) } else { file.set_permissions(Permissions::from_mode(new)) }
}

/// 1 if the user is not allowed to make a change, or its user namespace does not know the owner.
fn refused(changed: nix::Result<()>) -> io::Result<u64> {
    match changed {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(1),
        changed => Ok(changed.map(|()| 0)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_set_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_permissions(Permissions::from_mode(0o2600)).unwrap();
        let now = Attributes::from(&file.metadata().unwrap());
        // Before 1970.
        let wanted = Attributes { mode: 0o104_711, seconds: -3, nanoseconds: 999_999_999, ..now };
        assert!(now.are_of(&file.metadata().unwrap()) && !wanted.are_of(&file.metadata().unwrap()));
        assert_eq!(wanted.set(&file).unwrap(), Unset::default());
        let after = file.metadata().unwrap();
        assert!(wanted.are_of(&after));
        assert_eq!(after.mode(), 0o102_711, "it keeps its own bit, and takes none over");
        assert_eq!((after.mtime(), after.mtime_nsec()), (-3, 999_999_999));
    }

    #[test]
    fn an_owner_is_set_by_root_and_else_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("file")).unwrap();
        let now = Attributes::from(&file.metadata().unwrap());
        let wanted = Attributes { uid: 12345, gid: 54321, ..now };
        let unset = wanted.set(&file).unwrap();
        let after = file.metadata().unwrap();
        let is_set = (after.uid(), after.gid()) == (12345, 54321);
        assert_eq!(unset, Unset { owners: u64::from(!is_set), times: 0 });
        assert_eq!(wanted.unset_of(&after), unset);
    }
}
