//! Namespaces of a program: a mount namespace of its own and, for a caller who may not mount, a
//! user namespace that all programs of the user share.
//!
//! The user namespace is shared because processes of sibling user namespaces may not trace each
//! other, which the software device requires of peers. No process keeps it: a launcher joins the
//! namespace of a program that still runs, and makes a new one if there is none.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid};

use super::tree::is_marked;
use crate::failure::Failure;

/// Moves this process, which must have one thread, into a mount namespace in which it may mount.
/// `lock` is a file of the user: launchers that look for a user namespace at the same time wait for
/// each other.
pub(super) fn enter(lock: &Path) -> Result<(), Failure> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => (),
        Err(Errno::EPERM) => {
            let opened = File::options().write(true).create(true).truncate(false).open(lock);
            let opened = opened.map_err(|error| Failure::new(format!("{}: {error}", lock.display())))?;
            let locked = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
            // Becoming the program closes the file, which ends the lock: from then on others see
            // the program in its namespace.
            Box::leak(Box::new(locked));
            join_or_make()?;
            unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| refused("a mount namespace", errno))?;
        }
        Err(errno) => return Err(refused("a mount namespace", errno)),
    }
    // The program's mounts must not reach the host; the host's may reach the program.
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(|errno| refused("a mount", errno))
}

/// Joins the user namespace of another program, or makes one.
fn join_or_make() -> Result<(), Failure> {
    let (user, group) = (geteuid(), getegid());
    for process in candidates()? {
        let Ok(namespace) = File::open(process.join("ns/user")) else { continue };
        let groups = fs::read_to_string(process.join("gid_map")).unwrap_or_default();
        if setns(namespace.as_fd(), CloneFlags::CLONE_NEWUSER).is_ok() {
            return if maps(&groups, group.as_raw()) { Ok(()) } else { Err(other_group(&groups)) };
        }
    }
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| refused("a user namespace", errno))?;
    // A group map requires that the process can no longer drop groups.
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (file, text) in maps {
        fs::write(Path::new("/proc/self").join(file), text)
            .map_err(|error| refused("a user namespace", Errno::from_raw(error.raw_os_error().unwrap_or(0))))?;
    }
    Ok(())
}

/// Whether the namespace with this `gid_map`, which maps single groups to themselves, has a group.
fn maps(groups: &str, group: u32) -> bool {
    groups.lines().any(|line| line.split_whitespace().next() == Some(&group.to_string()))
}

fn other_group(groups: &str) -> Failure {
    let group = groups.split_whitespace().next().unwrap_or("?");
    Failure::new(format!("a program under --sysfs runs with group {group}: start this one with the same primary group"))
}

/// The folders in `/proc` of the processes of this user that run in another user namespace and have
/// the files of a software device.
fn candidates() -> io::Result<Vec<PathBuf>> {
    let own = fs::read_link("/proc/self/ns/user")?;
    let user = geteuid().as_raw();
    let processes =
        fs::read_dir("/proc")?.flatten().filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == user));
    let is_candidate = |process: &PathBuf| {
        let namespace = fs::read_link(process.join("ns/user"));
        namespace.is_ok_and(|namespace| namespace != own) && is_marked(&process.join("root"))
    };
    Ok(processes.map(|entry| entry.path()).filter(is_candidate).collect())
}

/// Explains why the kernel refuses `thing`.
fn refused(thing: &str, errno: Errno) -> Failure {
    let setting = |name: &str| fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
    let is = |name, value| setting(name).trim() == value;
    let cause = match errno {
        Errno::ENOSPC => "user.max_user_namespaces or user.max_mnt_namespaces is too small",
        Errno::EINVAL => "the kernel is built without user namespaces",
        _ if is("kernel/unprivileged_userns_clone", "0") => "kernel.unprivileged_userns_clone is 0",
        _ if is("kernel/apparmor_restrict_unprivileged_userns", "1") => {
            "AppArmor restricts user namespaces: kernel.apparmor_restrict_unprivileged_userns is 1"
        }
        Errno::EPERM => "a seccomp filter of a container, or a chroot, refuses namespaces",
        errno => errno.desc(),
    };
    Failure::new(format!("--sysfs needs {thing}: {cause}; root needs only CAP_SYS_ADMIN"))
}
