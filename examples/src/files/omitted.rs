//! What a copy leaves out: things that are neither files nor directories nor links, and attributes
//! that it does not keep.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rdma_collectives::text::escaped;
use rustix::fs::llistxattr;
use rustix::io::Errno;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Most bytes of the names of a file's extended attributes (`XATTR_LIST_MAX`).
const LIST: usize = 64 << 10;

/// Why something is not copied; lines have this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    Fifo,
    Socket,
    BlockDevice,
    CharacterDevice,
    /// Something that this program does not know.
    Unknown,
    /// It has the name of the folders of unfinished files.
    Name,
    /// The system refuses to open it, with this error number.
    Unreadable(i32),
    /// A directory whose contents the system refuses to list, with this error number.
    Unlisted(i32),
    /// Another name of something that is not copied.
    NameOfSkipped,
}

impl Why {
    /// The reason if the system refuses to open one file, where others may go on; `None` for a
    /// lack of files or memory, and for what this program has found itself.
    pub(crate) fn refused(error: &io::Error) -> Option<Self> {
        let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
        error.raw_os_error().filter(|number| !lacks.contains(number)).map(Self::Unreadable)
    }

    /// The reason for something that is neither a file nor a directory nor a link.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        match () {
            () if kind.is_fifo() => Self::Fifo,
            () if kind.is_socket() => Self::Socket,
            () if kind.is_block_device() => Self::BlockDevice,
            () if kind.is_char_device() => Self::CharacterDevice,
            () => Self::Unknown,
        }
    }

    /// The reason in words, for one thing and for several.
    fn words(self) -> [Cow<'static, str>; 2] {
        let words = match self {
            Self::Fifo => [
                "it is neither a file nor a directory, but a FIFO",
                "they are neither files nor directories, but FIFOs",
            ],
            Self::Socket => [
                "it is neither a file nor a directory, but a socket",
                "they are neither files nor directories, but sockets",
            ],
            Self::BlockDevice => [
                "it is neither a file nor a directory, but a block device",
                "they are neither files nor directories, but block devices",
            ],
            Self::CharacterDevice => [
                "it is neither a file nor a directory, but a character device",
                "they are neither files nor directories, but character devices",
            ],
            Self::Unknown => ["it is neither a file nor a directory", "they are neither files nor directories"],
            Self::Name => [
                "its name is kept for folders of unfinished files",
                "their names are kept for folders of unfinished files",
            ],
            Self::NameOfSkipped => {
                ["it is another name of a file that was not", "they are other names of files that were not"]
            }
            Self::Unreadable(number) => return cannot_be_read(["it", "they"], number),
            Self::Unlisted(number) => {
                let what = ["it is a directory whose contents", "they are directories whose contents"];
                return cannot_be_read(what, number);
            }
        };
        words.map(Cow::Borrowed)
    }
}

fn cannot_be_read(what: [&str; 2], number: i32) -> [Cow<'static, str>; 2] {
    let error = io::Error::from_raw_os_error(number);
    what.map(|what| format!("{what} cannot be read: {error}").into())
}

/// Something that is not copied.
#[derive(Clone, Debug)]
pub(crate) struct Skipped {
    pub(crate) path: PathBuf,
    pub(crate) why: Why,
}

/// JSON has no bytes but those of text.
impl Serialize for Skipped {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let [why, _] = self.why.words();
        let mut object = to.serialize_struct("Skipped", 2)?;
        object.serialize_field("path", &self.path.to_string_lossy())?;
        object.serialize_field("why", &why)?;
        object.end()
    }
}

/// A sentence for each kind of things that are not copied: the first of them, and how many more.
pub(crate) fn skipped_lines(skipped: &[Skipped]) -> Vec<String> {
    let line = |why: Why| {
        let mut of_kind = skipped.iter().filter(|skipped| skipped.why == why);
        let first = escaped(&of_kind.next()?.path);
        let [one, several] = why.words();
        Some(match of_kind.count() {
            0 => format!("{first} was not copied: {one}"),
            more => format!("{first} and {more} more were not copied: {several}"),
        })
    };
    let kinds: BTreeSet<Why> = skipped.iter().map(|skipped| skipped.why).collect();
    kinds.into_iter().filter_map(line).collect()
}

/// How many entries have attributes that a copy does not keep.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct NotKept {
    /// Set-user-ID, set-group-ID and sticky bits.
    special_bits: u64,
    access_control_lists: u64,
    extended_attributes: u64,
    /// Owners or groups that the receiver's user may not set.
    pub(crate) owners: u64,
    /// Times that the receiver's user may not set.
    pub(crate) times: u64,
}

impl NotKept {
    /// Counts what the copy of an entry will lack.
    pub(crate) fn count(&mut self, path: &Path, metadata: &Metadata) {
        self.special_bits += u64::from(metadata.mode() & 0o7000 != 0);
        let (mut is_listed, mut has_more) = (false, false);
        for name in attribute_names(path).split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            is_listed |= name.starts_with(b"system.posix_acl_");
            // Labels of SELinux belong to the host: it gives every file one.
            has_more |= !name.starts_with(b"system.posix_acl_") && name != b"security.selinux";
        }
        self.access_control_lists += u64::from(is_listed);
        self.extended_attributes += u64::from(has_more);
    }

    /// A sentence for each kind of attributes.
    pub(crate) fn lines(&self) -> Vec<String> {
        let entries = |count: u64| if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") };
        let kinds = [
            (self.special_bits, "set-user-ID, set-group-ID and sticky bits", "were not kept"),
            (self.access_control_lists, "access control lists", "were not kept"),
            (self.extended_attributes, "extended attributes", "were not kept"),
            (self.owners, "owner or group", "was not kept: the receiver's user may not set it; run it as root"),
            (self.times, "time of modification", "was not kept: the receiver's user may not set it"),
        ];
        let kinds = kinds.into_iter().filter(|&(count, ..)| count > 0);
        kinds.map(|(count, what, why)| format!("{what} of {} {why}", entries(count))).collect()
    }
}

/// The names of the extended attributes of a file, each with a zero byte after it. A file system
/// that has no attributes has none to be lost.
fn attribute_names(path: &Path) -> Vec<u8> {
    let mut few = [0_u8; 256];
    match llistxattr(path, &mut few) {
        Ok(len) => few[..len].to_vec(),
        Err(Errno::RANGE) => {
            let mut names = vec![0_u8; LIST];
            let len = llistxattr(path, &mut names[..]).unwrap_or(0);
            names.truncate(len);
            names
        }
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn lost_attributes_are_counted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut lost = NotKept::default();
        let mut count = || {
            lost.count(file.path(), &file.path().metadata().unwrap());
            (lost.special_bits, lost.access_control_lists, lost.extended_attributes)
        };
        assert_eq!(count(), (0, 0, 0));
        let set = |name: &str, value: &[u8]| setxattr(file.path(), name, value, XattrFlags::empty());
        if set("user.name", b"value") == Err(Errno::OPNOTSUPP) {
            rdma_test_support::skip("the file system has no extended attributes");
            return;
        }
        assert_eq!(count(), (0, 0, 1));
        // Version 2; the owner, a user, the group, the mask and others, each with permissions.
        let entries = [(1_u16, u32::MAX), (2, 12345), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
        let entry = |&(tag, id): &(u16, u32)| [&tag.to_le_bytes()[..], &[4, 0], &id.to_le_bytes()].concat();
        let list: Vec<u8> = [2, 0, 0, 0].into_iter().chain(entries.iter().flat_map(entry)).collect();
        if set("system.posix_acl_access", &list) == Err(Errno::OPNOTSUPP) {
            rdma_test_support::skip("the file system has no access control lists");
            return;
        }
        // Names that fill more than the first buffer.
        for number in 0..30 {
            set(&format!("user.a name of an attribute, number {number}"), b"").unwrap();
        }
        assert_eq!(count(), (0, 1, 2));
    }

    #[test]
    fn each_kind_has_one_line() {
        let skipped = |path: &str, why| Skipped { path: path.into(), why };
        let lines = skipped_lines(&[
            skipped("a", Why::Socket),
            skipped("b", Why::Fifo),
            skipped("c", Why::Socket),
            skipped("d", Why::Socket),
        ]);
        assert_eq!(
            lines,
            [
                "b was not copied: it is neither a file nor a directory, but a FIFO",
                "a and 2 more were not copied: they are neither files nor directories, but sockets",
            ]
        );
        let lines = NotKept { special_bits: 1, owners: 2, ..NotKept::default() }.lines();
        assert_eq!(lines[0], "set-user-ID, set-group-ID and sticky bits of 1 entry were not kept");
        assert!(lines[1].starts_with("owner or group of 2 entries was not kept") && lines.len() == 2);
    }
}
