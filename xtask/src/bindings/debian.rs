//! Headers from Debian's packages, fetched with this machine's apt configuration into a folder under `target/`.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];
/// Where a version newer than this machine's may be.
const SUITES: [&str; 3] = ["sid", "experimental", "stable-backports"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Headers and their version.
#[derive(Debug)]
pub(crate) struct Headers {
    pub(crate) include: PathBuf,
    pub(crate) version: String,
}

/// Fetches the -dev packages of that version, or of the newest one.
pub(crate) fn fetch(root: &Path, version: Option<&str>) -> Result<Headers, String> {
    let folder = root.join("target/xtask/bindings");
    let make = |path: &Path| fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()));
    for part in ["lists/partial", "cache/archives/partial"] {
        make(&folder.join(part))?;
    }
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(path)
    };
    let mirror = mirror()?;
    let sources =
        SUITES.iter().map(|suite| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n")).collect::<String>();
    let sources = write("sources.list", sources)?;
    let own = folder.display();
    let configuration = write(
        "apt.conf",
        format!(
            "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::lists \"{own}/lists\";\n\
             Dir::Cache \"{own}/cache\";\nAPT::Sandbox::User \"\";\n",
            sources.display()
        ),
    )?;
    let apt = |program: &str, arguments: &[&str], folder: &Path| {
        let mut command = Command::new(program);
        output(command.env("APT_CONFIG", &configuration).args(arguments).current_dir(folder))
    };
    apt("apt-get", &["update", "-qq"], &folder)?;
    let version = match version {
        Some(version) => version.to_owned(),
        None => newest(&apt("apt-cache", &["madison", PACKAGES[0]], &folder)?)?,
    };
    let unpacked = folder.join(format!("rdma-core-{version}"));
    make(&unpacked)?;
    for package in PACKAGES {
        apt("apt-get", &["download", "-qq", &format!("{package}={version}")], &unpacked)?;
    }
    for entry in fs::read_dir(&unpacked).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension() == Some(OsStr::new("deb")) {
            output(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&unpacked))?;
        }
    }
    Ok(Headers { include: unpacked.join("usr/include"), version })
}

/// The version of the headers that are installed.
pub(crate) fn installed_version() -> Result<String, String> {
    output(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", PACKAGES[0]]))
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

/// The newest version in `apt-cache madison`'s table, which lists the newest first.
fn newest(table: &str) -> Result<String, String> {
    let version = table.lines().find_map(|line| line.split('|').nth(1)).map(str::trim);
    version.map(Into::into).ok_or_else(|| format!("no suite has {}", PACKAGES[0]))
}

/// Runs a program and returns what it prints.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let arguments = command.get_args().map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}
