//! Headers from Debian's packages, fetched into a folder under `target/`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    apt::{Apt, unpack_all},
    system::output,
};

const PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];
/// Suites that may have a newer version than this machine's.
const SUITES: [&str; 3] = ["sid", "experimental", "stable-backports"];

/// Headers and their version.
#[derive(Debug)]
pub(crate) struct Headers {
    pub(crate) include: PathBuf,
    pub(crate) version: String,
}

/// Fetches the -dev packages of that version, or of the newest one.
pub(crate) fn fetch(root: &Path, version: Option<&str>) -> Result<Headers, String> {
    let folder = root.join("target/xtask/bindings");
    let apt = Apt::new(&folder, &SUITES)?;
    let version = match version {
        Some(version) => version.to_owned(),
        None => newest(&apt.cache(&["madison", PACKAGES[0]])?)?,
    };
    let unpacked = folder.join(format!("rdma-core-{version}"));
    let wanted = PACKAGES.map(|package| format!("{package}={version}"));
    apt.download(&wanted.each_ref().map(String::as_str), &unpacked)?;
    unpack_all(&unpacked, &unpacked)?;
    Ok(Headers { include: unpacked.join("usr/include"), version })
}

/// The version of the headers that are installed.
pub(crate) fn installed_version() -> Result<String, String> {
    output(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", PACKAGES[0]]))
}

/// The newest version in `apt-cache madison`'s table, which lists the newest first.
fn newest(table: &str) -> Result<String, String> {
    let version = table.lines().find_map(|line| line.split('|').nth(1)).map(str::trim);
    version.map(Into::into).ok_or_else(|| format!("no suite has {}", PACKAGES[0]))
}
