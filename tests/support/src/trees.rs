//! Compares two trees of files as `lstat` and the extents of the files show them.
//!
//! This shares no code with a program that copies trees, whose faults it would share.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

/// Sectors by which the space of two files with the same extents may differ: blocks of a file
/// system's own.
const SLACK: u64 = 16;
/// Bytes that are compared at a time.
const PART: u64 = 1 << 20;

/// What differs between two trees, a sentence for each: names, types, permissions, owners, times
/// of modification, which names are of one inode, targets of links, data, holes and space.
///
/// # Errors
///
/// If something cannot be read.
pub fn differences(one: &Path, other: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let trees = [Tree::of(one)?, Tree::of(other)?];
    let [ours, theirs] = trees.each_ref().map(|tree| &tree.entries);
    found.extend(ours.keys().filter(|name| !theirs.contains_key(*name)).map(|name| format!("missing: {name:?}")));
    found.extend(theirs.keys().filter(|name| !ours.contains_key(*name)).map(|name| format!("new: {name:?}")));
    for (name, before) in ours {
        let Some(after) = theirs.get(name) else { continue };
        let mut note = |what: &str, before: String, after: String| {
            if before != after {
                found.push(format!("{what} of {name:?}: {before} and {after}"));
            }
        };
        note("mode", format!("{:o}", before.mode()), format!("{:o}", after.mode()));
        let owner = |of: &Metadata| format!("{}:{}", of.uid(), of.gid());
        note("owner", owner(before), owner(after));
        let time = |of: &Metadata| format!("{}.{:09}", of.mtime(), of.mtime_nsec());
        note("time", time(before), time(after));
        note("names", format!("{:?}", trees[0].names(before)), format!("{:?}", trees[1].names(after)));
        let paths = [one.join(name), other.join(name)];
        let [before_path, after_path] = &paths;
        if before.is_symlink() && after.is_symlink() {
            let target = |path: &PathBuf| fs::read_link(path).map(|target| format!("{target:?}"));
            note("target", target(before_path)?, target(after_path)?);
        }
        if before.is_file() && after.is_file() {
            note("length", before.len().to_string(), after.len().to_string());
            if before.blocks().abs_diff(after.blocks()) > SLACK {
                note("sectors", before.blocks().to_string(), after.blocks().to_string());
            }
            let files = [File::open(before_path)?, File::open(after_path)?];
            let [before, after] = [extents(&files[0], before.len())?, extents(&files[1], after.len())?];
            note("extents", format!("{before:?}"), format!("{after:?}"));
            if before == after && !have_same_bytes(&files, &before)? {
                found.push(format!("bytes of {name:?}"));
            }
        }
    }
    Ok(found)
}

/// The entries below a path, and its own, with paths relative to it.
struct Tree {
    entries: BTreeMap<PathBuf, Metadata>,
    /// The names of each inode with several.
    inodes: BTreeMap<(u64, u64), Vec<PathBuf>>,
}

impl Tree {
    fn of(root: &Path) -> io::Result<Self> {
        let mut tree = Self { entries: BTreeMap::new(), inodes: BTreeMap::new() };
        let mut waiting = vec![PathBuf::new()];
        while let Some(name) = waiting.pop() {
            let whole = if name.as_os_str().is_empty() { root.to_owned() } else { root.join(&name) };
            let metadata = fs::symlink_metadata(&whole)?;
            if metadata.is_dir() {
                for child in fs::read_dir(&whole)? {
                    let child: OsString = child?.file_name();
                    waiting.push(name.join(child));
                }
            } else {
                tree.inodes.entry((metadata.dev(), metadata.ino())).or_default().push(name.clone());
            }
            tree.entries.insert(name, metadata);
        }
        tree.inodes.values_mut().for_each(|names| names.sort());
        Ok(tree)
    }

    /// The names of an inode in this tree.
    fn names(&self, of: &Metadata) -> Option<&Vec<PathBuf>> {
        self.inodes.get(&(of.dev(), of.ino()))
    }
}

/// The beginning and the end of each extent of data.
fn extents(file: &File, len: u64) -> io::Result<Vec<(u64, u64)>> {
    let (mut extents, mut offset) = (Vec::new(), 0);
    while offset < len {
        let data = match lseek(file, i64::try_from(offset).expect("a length"), Whence::SeekData) {
            Err(Errno::ENXIO) => break,
            data => data?,
        };
        let hole = lseek(file, data, Whence::SeekHole)?;
        extents.push((data.unsigned_abs(), hole.unsigned_abs()));
        offset = hole.unsigned_abs();
    }
    Ok(extents)
}

fn have_same_bytes(files: &[File; 2], extents: &[(u64, u64)]) -> io::Result<bool> {
    for &(start, end) in extents {
        let mut offset = start;
        while offset < end {
            let len = PART.min(end - offset);
            let read = |file: &File| {
                let mut bytes = vec![0; usize::try_from(len).expect("a part")];
                file.read_exact_at(&mut bytes, offset).map(|()| bytes)
            };
            if read(&files[0])? != read(&files[1])? {
                return Ok(false);
            }
            offset += len;
        }
    }
    Ok(true)
}
