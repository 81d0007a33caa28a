//! Debian packages, fetched with this machine's mirror and keys, but with separate lists, cache and
//! suites: the machine does not change, and no root is needed.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::system::{list, make, output, remove, write};

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Script that unpacks the package `$1` into the folder `$2`. `dpkg-deb -x` would replace a link
/// from lib to usr/lib by a folder.
const UNPACK: &str = "set -o pipefail
dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink --no-same-owner -C \"$2\"";

/// An apt with a configuration of its own.
#[derive(Debug)]
pub(crate) struct Apt {
    configuration: PathBuf,
}

impl Apt {
    /// Sets up an apt in `folder` for these suites, and fetches their lists.
    pub(crate) fn new(folder: &Path, suites: &[&str]) -> Result<Self, String> {
        Self::with(folder, suites, "")
    }

    /// Like `new`, with the packages of a second architecture, named `NAME:ARCHITECTURE`.
    pub(crate) fn foreign(folder: &Path, suites: &[&str], architecture: &str) -> Result<Self, String> {
        let native = output(Command::new("dpkg").arg("--print-architecture"))?;
        Self::with(folder, suites, &format!("APT::Architectures {{ \"{native}\"; \"{architecture}\"; }};\n"))
    }

    fn with(folder: &Path, suites: &[&str], settings: &str) -> Result<Self, String> {
        for part in ["lists/partial", "cache/archives/partial"] {
            make(&folder.join(part))?;
        }
        let mirror = mirror()?;
        let sources: String =
            suites.iter().map(|suite| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n")).collect();
        write(folder.join("sources.list"), &sources)?;
        let own = folder.display();
        let configuration = write(
            folder.join("apt.conf"),
            &format!(
                "Dir::Etc::sourcelist \"{own}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
                 Dir::State::lists \"{own}/lists\";\nDir::Cache \"{own}/cache\";\nAPT::Sandbox::User \"\";\n\
                 Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n{settings}"
            ),
        )?;
        let apt = Self { configuration };
        output(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    /// Runs `apt-cache`.
    pub(crate) fn cache(&self, arguments: &[&str]) -> Result<String, String> {
        output(self.command("apt-cache").args(arguments))
    }

    /// Downloads packages (`name`, `name=version` or `name/suite`) into a folder.
    pub(crate) fn download<P: AsRef<OsStr>>(
        &self,
        packages: impl IntoIterator<Item = P>,
        folder: &Path,
    ) -> Result<(), String> {
        make(folder)?;
        output(self.command("apt-get").args(["download", "-qq"]).args(packages).current_dir(folder)).map(drop)
    }

    /// Downloads packages and unpacks them into `target`, beside which they lie meanwhile.
    pub(crate) fn unpack<P: AsRef<OsStr>>(
        &self,
        packages: impl IntoIterator<Item = P>,
        target: &Path,
    ) -> Result<(), String> {
        let debs = target.with_extension("debs");
        remove(&debs)?;
        self.download(packages, &debs)?;
        unpack_all(&debs, target)?;
        remove(&debs)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.configuration);
        command
    }
}

/// Unpacks every package in `packages` into `target`.
pub(crate) fn unpack_all(packages: &Path, target: &Path) -> Result<(), String> {
    make(target)?;
    for package in list(packages, "deb")? {
        output(Command::new("bash").args(["-c", UNPACK, "unpack"]).arg(package).arg(target))?;
    }
    Ok(())
}

/// Finds the Debian mirror of this machine's apt.
pub(crate) fn mirror() -> Result<String, String> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = parts.chain(["/etc/apt/sources.list".into()]).collect();
    files.sort();
    let text: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut words = lines.flat_map(str::split_whitespace).filter(|word| word.contains("://"));
    let archive = words.find(|word| word.trim_end_matches('/').ends_with("/debian"));
    archive.map(str::to_owned).ok_or_else(|| "apt has no source that is a Debian archive".into())
}
