//! Hosts of this machine: network namespaces, which `tests/vm/namespaces.sh` makes.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process::Command};

use crate::system::output;

/// unshare's options: namespaces in which all processes end with the first one.
const NAMESPACES: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// Its options for a user who is not root.
const AS_USER: [&str; 2] = ["--user", "--map-root-user"];

/// A command that runs bash as the first process of namespaces of its own.
pub(crate) fn bash() -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let mut command = Command::new("unshare");
    command.args(if is_root { &[] } else { &AS_USER[..] }).args(NAMESPACES).arg("bash");
    command
}

/// Whether the machine allows what the hosts need; an error says why not.
pub(crate) fn are_allowed() -> Result<(), String> {
    if !Path::new("/proc/sys/net/ipv6").exists() {
        return Err("the kernel lacks IPv6".into());
    }
    let try_all =
        "mount -t tmpfs hosts /mnt && ip link add port type veth peer name eth0 && ip link add bridge0 type bridge";
    output(bash().args(["-c", try_all])).map(drop)
}

#[cfg(test)]
mod tests {
    use crate::system::read;

    #[test]
    fn the_guide_shows_the_compose_file_of_the_hosts() {
        let text = |path: &str| read(&crate::root().join(path)).unwrap();
        let (file, page) = (text("tests/vm/compose.yaml"), text("rdma/src/guide/testing.md"));
        let contents = &file[file.find("x-host").expect("the part that all hosts have")..];
        assert!(page.contains(&format!("```yaml\n{contents}```\n")));
    }
}
