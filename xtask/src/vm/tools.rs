//! The programs that the command needs, and which Debian package has each.

use std::{env, path::Path};

/// To run anything.
const ALWAYS: [(&str, &str); 2] = [("bash", "bash"), ("strip", "binutils")];
/// To build and to boot the guest.
const TOOLS: [(&str, &str); 7] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("gzip", "gzip"),
    ("grep", "grep"),
];
/// To build the module siw.
const COMPILER: [(&str, &str); 2] = [("make", "make"), ("gcc-12", "gcc-12")];

/// Says in one line what is missing, if anything is.
pub(crate) fn check(with_guest: bool, with_compiler: bool) -> Result<(), String> {
    let tools = if with_guest { &TOOLS[..] } else { &[] };
    let compiler = if with_compiler { &COMPILER[..] } else { &[] };
    let missing: Vec<_> =
        ALWAYS.iter().chain(tools).chain(compiler).filter(|(program, _)| !is_there(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs = missing.iter().map(|(program, _)| *program).collect::<Vec<_>>().join(", ");
    let packages = missing.iter().map(|(_, package)| *package).collect::<Vec<_>>().join(" ");
    Err(format!("missing: {programs}. On Debian: apt-get install --no-install-recommends {packages}"))
}

fn is_there(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).any(|folder| is_file(&folder.join(program)))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}
