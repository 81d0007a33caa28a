//! Copies of libibverbs and librdmacm under other names, such as
//! `libibverbs-1de1263b.so.1.14.48.0`: tools that make Python wheels self-contained rename the
//! libraries that they pack, so that the dynamic loader looks for no other one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::PATH;
use crate::library::Library;

/// Folders below a package in which libraries are looked for.
const DEPTH: usize = 2;

/// A library under another name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) path: PathBuf,
    /// Whether the program itself is linked to it.
    pub(super) is_linked: bool,
}

/// The copies that a program is linked to, and those of the packages of an interpreter.
pub(super) fn of_program(program: &Path, path: &OsStr, library: &Library) -> Vec<Copy> {
    let linked = output_of(Command::new("ldd").arg(program).env(PATH, path));
    let linked = linked.lines().filter_map(|line| copy_in(line, library));
    let mut copies: Vec<_> = linked.map(|path| Copy { path, is_linked: true }).collect();
    for folder in folders_of_packages(program) {
        for path in found_below(&folder, DEPTH, library) {
            copies.push(Copy { path, is_linked: false });
        }
    }
    copies
}

/// The file in a line of `ldd` (`name => path (address)`), if it is a copy.
fn copy_in(line: &str, library: &Library) -> Option<PathBuf> {
    let (name, found) = line.trim().split_once(" => ")?;
    let path = found.rsplit_once(" (").map_or(found, |(path, _)| path);
    is_copy(name, library).then(|| path.into())
}

/// Whether a file of this name is a copy of one of the libraries, under a name that programs load.
fn is_copy(name: &str, library: &Library) -> bool {
    let is_renamed = |own: &&str| {
        let stem = own.split('.').next().unwrap_or(own);
        name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('-') && rest.contains(".so"))
    };
    library.names.iter().any(is_renamed)
}

/// Whether a program has the name of a Python interpreter.
pub(super) fn is_python(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
}

/// The folders in which a Python interpreter looks for packages; none for another program.
fn folders_of_packages(program: &Path) -> Vec<PathBuf> {
    if !is_python(program) {
        return Vec::new();
    }
    let folders = output_of(Command::new(program).args(["-c", r"import sys; print('\n'.join(sys.path[1:]))"]));
    folders.lines().map(PathBuf::from).filter(|folder| folder.is_absolute()).collect()
}

fn found_below(folder: &Path, depth: usize, library: &Library) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Folders that cannot be read cannot be loaded from.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth > 0 {
            found.extend(found_below(&entry.path(), depth - 1, library));
        } else if !is_folder && is_copy(&entry.file_name().to_string_lossy(), library) {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// What a program prints; nothing if it cannot be run.
fn output_of(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: Library = Library { bytes: &[], names: ["libibverbs.so.1", "librdmacm.so.1"] };

    #[test]
    fn renamed_libraries_are_copies_and_others_are_not() {
        for name in ["libibverbs-1de1263b.so.1.14.48.0", "librdmacm-2a3b4c5d.so.1.3.48.0"] {
            assert!(is_copy(name, &LIBRARY), "{name}");
        }
        for name in ["libibverbs.so.1", "libibverbs.so.1.14.48.0", "libibverbs-notes.txt", "libmlx5-3f.so.1", ""] {
            assert!(!is_copy(name, &LIBRARY), "{name}");
        }
        let line = "\tlibibverbs-1de1263b.so.1.14.48.0 => /a b/libibverbs-1de1263b.so.1.14.48.0 (0x00007f0000000000)";
        let path = Path::new("/a b/libibverbs-1de1263b.so.1.14.48.0");
        assert_eq!(copy_in(line, &LIBRARY).as_deref(), Some(path));
        assert_eq!(copy_in("\tlibibverbs.so.1 => /lib/libibverbs.so.1 (0x00007f0000000000)", &LIBRARY), None);
    }
}
