//! `--sysfs`: a program sees the software devices in `/sys/class/infiniband` and
//! `/dev/infiniband`, as it would see a NIC.
//!
//! A folder of sysfs cannot get new entries, so the launcher mounts a new folder in its place: a
//! tmpfs with the entries of the old one, each bound or copied, and with the device's. If the old
//! folder does not exist, its parent is replaced. Devices that appear in `/dev` after the start are
//! then not visible to the program.

pub(super) mod link;
mod namespace;
mod tree;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use self::tree::{Content, FOLDERS, Tree};
pub(super) use self::tree::{DEVICES, NODES};
use crate::failure::Failure;

/// The character device that stands for the nodes of the devices.
pub(super) const NULL: &str = "/dev/null";

/// Prints the tree of the devices that this process sees, for [`enter`] in another process.
pub(super) fn print() -> Result<(), Failure> {
    let text = serde_json::to_string(&Tree::of_devices()?).map_err(|error| Failure::new(error.to_string()))?;
    println!("{text}");
    Ok(())
}

/// Moves this process into namespaces in which the devices are visible. `describe` is this program
/// with [`print()`] and the environment of the program to run: to open a device may start threads,
/// and a process with threads cannot change its user namespace.
pub(super) fn enter(describe: &mut Command, lock: &Path) -> Result<(), Failure> {
    check_node(Path::new(NULL))?;
    let described = describe.output().map_err(|error| Failure::from(error).context("soft-rdma"))?;
    if !described.status.success() {
        return Err(Failure::new(String::from_utf8_lossy(&described.stderr).trim()));
    }
    let tree: Tree = serde_json::from_slice(&described.stdout).map_err(|error| Failure::new(error.to_string()))?;
    if tree.is_in(Path::new("/")) {
        return Ok(());
    }
    if tree::is_marked(Path::new("/")) {
        return Err(Failure::new(
            "an outer soft-rdma --sysfs has other devices; give it the same --devices and --device-name",
        ));
    }
    namespace::enter(lock)?;
    build(&tree).map_err(|error| Failure::from(error).context("--sysfs"))
}

/// Checks that a file can stand for a device node.
pub(super) fn check_node(node: &Path) -> Result<(), Failure> {
    if fs::metadata(node).is_ok_and(|found| found.file_type().is_char_device()) {
        return Ok(());
    }
    let node = node.display();
    Err(Failure::new(format!(
        "{node} is no character device, and --sysfs shows it as the node of each device: make it one \
         (rm -f {node}; mknod -m 666 {node} c 1 3)"
    )))
}

/// Mounts the new folders and fills them.
fn build(tree: &Tree) -> io::Result<()> {
    let mut replaced = Vec::new();
    for folder in FOLDERS {
        make_room(Path::new(folder), &mut replaced)?;
    }
    for (path, content) in &tree.entries {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match content {
            Content::Line(text) => fs::write(path, format!("{text}\n"))?,
            Content::Link(to) => symlink(to, path)?,
            Content::Node => bind(Path::new(NULL), path)?,
        }
    }
    Ok(())
}

/// Makes `folder` a folder that can get new entries. `replaced` has the folders that can already.
fn make_room(folder: &Path, replaced: &mut Vec<PathBuf>) -> io::Result<()> {
    if folder.is_dir() {
        replaced.push(folder.to_owned());
        return replace(folder);
    }
    let parent = folder.parent().filter(|parent| parent.parent().is_some());
    let parent = parent.ok_or_else(|| io::Error::other(format!("there is no {}", folder.display())))?;
    if !replaced.iter().any(|known| known == parent) {
        make_room(parent, replaced)?;
    }
    replaced.push(folder.to_owned());
    fs::DirBuilder::new().mode(0o755).create(folder)
}

/// Mounts a tmpfs over `folder` that has the same entries.
fn replace(folder: &Path) -> io::Result<()> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let old: OwnedFd = open(folder, flags, Mode::empty())?;
    // The path of the folder below the new mount.
    let old_path = PathBuf::from(format!("/proc/self/fd/{}", old.as_raw_fd()));
    mount(Some("soft-rdma"), folder, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755"))?;
    for entry in fs::read_dir(&old_path)? {
        let entry = entry?;
        let (from, to) = (old_path.join(entry.file_name()), folder.join(entry.file_name()));
        match copy(&from, &to, entry.file_type()?) {
            // Devices come and go.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            done => done?,
        }
    }
    Ok(())
}

/// Makes `to` the same file as `from`, or an equal link.
fn copy(from: &Path, to: &Path, kind: fs::FileType) -> io::Result<()> {
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        fs::create_dir(to)?;
        bind_over(from, to)
    } else {
        bind(from, to)
    }
}

/// Makes the new file `to` the same file as `from`.
fn bind(from: &Path, to: &Path) -> io::Result<()> {
    File::create_new(to)?;
    bind_over(from, to)
}

fn bind_over(from: &Path, to: &Path) -> io::Result<()> {
    // Mounts below a folder come along: in a user namespace nothing may uncover what they hide.
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_device_stands_for_a_node() {
        assert!(check_node(Path::new(NULL)).is_ok());
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/nonexistent")] {
            let refused = check_node(path).unwrap_err().to_string();
            assert!(refused.contains("is no character device") && refused.contains("mknod"), "{refused}");
        }
    }
}
