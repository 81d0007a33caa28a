//! Headers from Debian's packages, fetched into a folder under `target/`.

use std::path::{Path, PathBuf};

use crate::apt::{Apt, unpack_all};

const PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];
/// Suites that may have a newer version than this machine's.
const SUITES: [&str; 3] = ["sid", "experimental", "stable-backports"];

/// Fetches the -dev packages of that version, or of the newest one. Returns the folder of the
/// headers and their version.
pub(crate) fn fetch(root: &Path, version: Option<&str>) -> Result<(PathBuf, String), String> {
    let folder = root.join("target/xtask/bindings");
    let apt = Apt::new(&folder, &SUITES)?;
    let version = match version {
        Some(version) => version.to_owned(),
        None => newest(&apt.cache(&["madison", PACKAGES[0]])?)?,
    };
    let unpacked = folder.join(format!("rdma-core-{version}"));
    let wanted = PACKAGES.map(|package| format!("{package}={version}"));
    apt.download(&wanted, &unpacked)?;
    unpack_all(&unpacked, &unpacked)?;
    Ok((unpacked.join("usr/include"), version))
}

/// Finds the newest version in the table of `apt-cache madison`, which lists the newest first.
fn newest(table: &str) -> Result<String, String> {
    let version = table.lines().find_map(|line| line.split('|').nth(1)).map(str::trim);
    version.map(Into::into).ok_or_else(|| format!("no suite has {}", PACKAGES[0]))
}
