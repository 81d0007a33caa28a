//! A listing of files, directories and links.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::attributes::Attributes;
use super::omitted::{NotKept, Skipped, Why};
use super::tree;
use crate::Failure;
use rdma_collectives::text::escaped;

/// The numbers of a file's device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

/// A file, a directory or a link to be copied.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Where it is.
    pub(crate) source: PathBuf,
    /// Its path at the receiver.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) attributes: Attributes,
    /// Which inode it was, if that has other names.
    pub(crate) shared: Option<Identity>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File {
        len: u64,
    },
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// Another name of the file or the symbolic link that the entry of this number is.
    HardLink(usize),
}

/// All that is to be copied; a directory comes before its contents.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) entries: Vec<Entry>,
    /// Devices and other things that are no files, folders of [`tree::UNFINISHED`] files, and what
    /// cannot be read.
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) not_kept: NotKept,
    /// The first entry of each inode with several names.
    firsts: HashMap<Identity, usize>,
}

impl Listing {
    /// Lists paths and all that is below them. A path that cannot be found is left out, as what is
    /// removed meanwhile.
    ///
    /// # Errors
    /// If the system lacks files, or if two paths would have the same place at the receiver.
    pub(crate) fn of(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut listing = Self::default();
        let mut named: HashMap<OsString, &Path> = HashMap::new();
        for path in paths {
            // Follows a link that the user names, and gives `.` a name.
            let whole = match path.canonicalize() {
                Ok(whole) => whole,
                Err(error) => {
                    listing.skip(path, &error)?;
                    continue;
                }
            };
            let name = whole.file_name().ok_or_else(|| Failure::usage("/ has no name; give its directories"))?;
            if let Some(other) = named.insert(name.to_owned(), path) {
                let both = format!("{} and {}", escaped(other), escaped(path));
                return Err(Failure::usage(format!("{both} have the same last name; copy them to two directories")));
            }
            listing.add(&whole, name.as_bytes().to_vec())?;
        }
        Ok(listing)
    }

    fn add(&mut self, source: &Path, path: Vec<u8>) -> Result<(), Failure> {
        let metadata = match fs::symlink_metadata(source) {
            Ok(metadata) => metadata,
            Err(error) => return self.skip(source, &error),
        };
        let is_unfinished = source.file_name().is_some_and(tree::is_unfinished);
        let kind = match metadata.file_type() {
            _ if is_unfinished => Err(Why::Name),
            kind if kind.is_dir() => Ok(Kind::Directory),
            kind if kind.is_file() => Ok(Kind::File { len: metadata.len() }),
            kind if kind.is_symlink() => match fs::read_link(source) {
                Ok(to) => Ok(Kind::Link(to.into_os_string().into_vec())),
                Err(error) => return self.skip(source, &error),
            },
            _ => Err(Why::of(&metadata)),
        };
        let kind = match kind {
            Ok(kind) => kind,
            Err(why) => {
                self.skipped.push(Skipped { path: source.to_owned(), why });
                return Ok(());
            }
        };
        let is_directory = kind == Kind::Directory;
        let shared = (!is_directory && metadata.nlink() > 1).then(|| Identity::of(&metadata));
        let first = shared.map_or(self.entries.len(), |id| *self.firsts.entry(id).or_insert(self.entries.len()));
        let is_first = first == self.entries.len();
        let kind = if is_first { kind } else { Kind::HardLink(first) };
        if is_first {
            self.not_kept.count(source, &metadata);
        }
        let attributes = Attributes::from(&metadata);
        self.entries.push(Entry { source: source.to_owned(), path: path.clone(), kind, attributes, shared });
        if !is_directory {
            return Ok(());
        }
        let children = fs::read_dir(source).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let children = match children {
            Ok(children) => children,
            Err(error) => {
                let why = Why::refused(&error).ok_or_else(|| cannot_read(source, &error))?;
                let why = if let Why::Unreadable(number) = why { Why::Unlisted(number) } else { why };
                self.skipped.push(Skipped { path: source.to_owned(), why });
                return Ok(());
            }
        };
        let mut names: Vec<_> = children.iter().map(fs::DirEntry::file_name).collect();
        names.sort();
        names.iter().try_for_each(|name| self.add(&source.join(name), [&path, &b"/"[..], name.as_bytes()].concat()))
    }

    /// Leaves out what the system refuses to read.
    fn skip(&mut self, source: &Path, error: &std::io::Error) -> Result<(), Failure> {
        let why = Why::refused(error).ok_or_else(|| cannot_read(source, error))?;
        self.skipped.push(Skipped { path: source.to_owned(), why });
        Ok(())
    }

    /// Bytes of all files.
    pub(crate) fn bytes(entries: &[Entry]) -> u64 {
        let len = |entry: &Entry| if let Kind::File { len } = entry.kind { len } else { 0 };
        entries.iter().map(len).fold(0, u64::saturating_add)
    }
}

pub(crate) fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot read {}: {error}", escaped(path)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::failure;

    #[test]
    fn two_paths_with_the_same_last_name_are_a_usage_error() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["a/x", "b/x"].map(|path| folder.path().join(path));
        let make_file = |path: &Path| fs::write(path, "contents").unwrap();
        let make_folder = |path: &Path| fs::create_dir(path).unwrap();
        for make in [&make_file as &dyn Fn(&Path), &make_folder] {
            for path in [&one, &other] {
                fs::create_dir(path.parent().unwrap()).unwrap();
                make(path);
            }
            let failed = Listing::of(&[one.clone(), folder.path().join("a"), other.clone()]).unwrap_err();
            assert_eq!(failed.kind(), failure::Kind::Usage);
            let both = format!("{} and {} have the same last name", one.display(), other.display());
            assert!(failed.to_string().contains(&both), "{failed}");
            for path in ["a", "b"] {
                fs::remove_dir_all(folder.path().join(path)).unwrap();
            }
        }
    }

    #[test]
    fn a_name_forges_no_line_of_an_error() {
        let path = Path::new(OsStr::from_bytes(b"/nonexistent/\x1b[2J\nfile_copy: all is well\xff"));
        let failed = cannot_read(path, &std::io::Error::other("why")).to_string();
        assert_eq!(failed, "cannot read /nonexistent/\\u{1b}[2J\\nfile_copy: all is well\u{fffd}: why");
    }

    #[test]
    fn a_path_that_does_not_exist_is_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let missing = file.path().with_extension("missing");
        let listing = Listing::of(&[missing.clone(), file.path().to_owned(), missing.join("too")]).unwrap();
        assert_eq!((listing.entries.len(), listing.skipped.len()), (1, 2));
        assert_eq!(listing.entries[0].source, file.path().canonicalize().unwrap());
        let refused = Why::Unreadable(nix::errno::Errno::ENOENT as i32);
        assert!(listing.skipped.iter().all(|skipped| skipped.why == refused));
        assert_eq!(listing.skipped[0].path, missing);
    }
}
