//! Debian packages, fetched with this machine's mirror and keys, but with separate lists, cache and
//! suites: the machine does not change, and no root is needed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::system::{list, make, output, write};

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
        apt.run("apt-get", &["update", "-qq"], folder)?;
        Ok(apt)
    }

    /// Runs `apt-cache`.
    pub(crate) fn cache(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("apt-cache", arguments, Path::new("/"))
    }

    /// Downloads packages (`name` or `name=version`) into a folder.
    pub(crate) fn download(&self, packages: &[&str], folder: &Path) -> Result<(), String> {
        make(folder)?;
        self.run("apt-get", &[&["download", "-qq"], packages].concat(), folder).map(drop)
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String, String> {
        output(Command::new(program).env("APT_CONFIG", &self.configuration).args(arguments).current_dir(folder))
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
fn mirror() -> Result<String, String> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = parts.chain(["/etc/apt/sources.list".into()]).collect();
    files.sort();
    let text: String = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut words = lines.flat_map(str::split_whitespace).filter(|word| word.contains("://"));
    let archive = words.find(|word| word.trim_end_matches('/').ends_with("/debian"));
    archive.map(str::to_owned).ok_or_else(|| "apt has no source that is a Debian archive".into())
}
