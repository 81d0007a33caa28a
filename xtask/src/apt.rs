//! Debian packages fetched into a folder of ours: with this machine's mirror and keys, but with lists, cache and suites of our own,
//! so that nothing of the machine is changed and no root is needed.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt of our own.
#[derive(Debug)]
pub(crate) struct Apt {
    configuration: PathBuf,
}

impl Apt {
    /// Sets up an apt in `folder` that knows these suites, and fetches their lists.
    pub(crate) fn new(folder: &Path, suites: &[&str]) -> Result<Self, String> {
        for part in ["lists/partial", "cache/archives/partial"] {
            make(&folder.join(part))?;
        }
        let mirror = mirror()?;
        let sources =
            suites.iter().map(|suite| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n")).collect::<String>();
        let list = write(folder.join("sources.list"), &sources)?;
        let own = folder.display();
        let configuration = write(
            folder.join("apt.conf"),
            &format!(
                "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists \"{own}/lists\";\n\
                 Dir::Cache \"{own}/cache\";\nAPT::Sandbox::User \"\";\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\n",
                list.display()
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
    for entry in fs::read_dir(packages).map_err(|error| format!("{}: {error}", packages.display()))? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension() != Some(OsStr::new("deb")) {
            continue;
        }
        // Not `dpkg-deb -x`, which replaces a link from lib to usr/lib by a folder.
        let mut unpack = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run dpkg-deb: {error}"))?;
        let stream = unpack.stdout.take().ok_or("no output of dpkg-deb")?;
        let written = output(
            Command::new("tar")
                .args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"])
                .arg(target)
                .stdin(stream),
        );
        let status = unpack.wait().map_err(|error| error.to_string())?;
        written?;
        if !status.success() {
            return Err(format!("{} is not a Debian package", path.display()));
        }
    }
    Ok(())
}

/// The Debian mirror that this machine's apt uses.
fn mirror() -> Result<String, String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    files.extend(parts.map(|entry| entry.path()));
    files.sort();
    let is_archive = |word: &&str| {
        word.contains("://") && word.trim_end_matches('/').rsplit('/').next().is_some_and(|last| last == "debian")
    };
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
        if let Some(uri) = lines.flat_map(str::split_whitespace).find(is_archive) {
            return Ok(uri.to_owned());
        }
    }
    Err("apt has no source that is a Debian archive".into())
}

/// Makes a folder and its parents.
pub(crate) fn make(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file and returns its path.
pub(crate) fn write(path: PathBuf, text: &str) -> Result<PathBuf, String> {
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Runs a program and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let arguments = command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
