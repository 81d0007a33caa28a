//! The programs that the command needs, and their Debian packages.

use std::process::Command;

/// Programs needed for every run.
const ALWAYS: [(&str, &str); 2] = [("bash", "bash"), ("strip", "binutils")];
/// Programs needed to fetch, build and boot a guest.
const TOOLS: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("gzip", "gzip"),
    ("grep", "grep"),
];
/// Programs needed to build the siw module.
const COMPILER: [(&str, &str); 2] = [("make", "make"), ("gcc-12", "gcc-12")];

/// Programs needed to make hosts of network namespaces.
const NAMESPACES: [(&str, &str); 3] = [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")];

/// Fails with a list of every missing program and its package.
pub(crate) fn check(with_guest: bool, with_compiler: bool, with_hosts: bool) -> Result<(), String> {
    let tools = if with_guest { &TOOLS[..] } else { &[] };
    let namespaces = if with_hosts { &NAMESPACES[..] } else { &[] };
    let compiler = if with_compiler { &COMPILER[..] } else { &[] };
    let missing: Vec<_> = ALWAYS
        .iter()
        .chain(tools)
        .chain(compiler)
        .chain(namespaces)
        .filter(|(program, _)| !is_there(program))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs = missing.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", ");
    let packages = missing.iter().map(|(_, package)| *package).collect::<Vec<_>>().join(" ");
    Err(format!("missing: {programs}. On Debian: apt-get install --no-install-recommends {packages}"))
}

fn is_there(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", "PATH=$PATH:/usr/sbin:/sbin; command -v \"$0\" >/dev/null", program]).status();
    found.is_ok_and(|status| status.success())
}
