//! Debian systems in folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt;
use crate::system::{at, make, output, remove, write};

/// The suite of the systems.
const SUITE: &str = "trixie";
/// Seconds until a command is stopped.
const LIMIT: &str = "1500";
/// Starts the command "${@:4}" in the folder $3 of the system $1, with the shared folder $2. The
/// shared folder holds what cargo fetches and builds, once for all systems.
const ENTER: &str = r#"set -e
mount -t proc proc "$1/proc"
mount -t tmpfs tmpfs "$1/dev/shm"
mkdir -p "$1/shared"
mount --bind "$2" "$1/shared"
exec chroot "$1" bash -c 'PATH=$PATH:$(tr "\n" : <"$GITHUB_PATH"); cd "$0"; exec "$@"' "${@:3}""#;

/// Makes systems.
#[derive(Debug)]
pub(super) struct Machine {
    folder: PathBuf,
}

/// A system: the folder that is its root folder.
#[derive(Debug)]
pub(super) struct Root {
    folder: PathBuf,
    shared: PathBuf,
}

impl Machine {
    /// Makes the empty system, unless it is in `folder` already.
    pub(super) fn new(folder: &Path) -> Result<Self, String> {
        make(&folder.join("shared"))?;
        let (empty, part) = (folder.join("empty"), folder.join("empty.part"));
        if !empty.exists() {
            remove(&part)?;
            eprintln!("making a Debian system");
            let mut debootstrap = Command::new("debootstrap");
            debootstrap.args(["--variant=minbase", SUITE]).arg(&part).arg(apt::mirror()?);
            output(&mut debootstrap)?;
            fs::rename(&part, &empty).map_err(at(&part))?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// A new copy of the empty system.
    pub(super) fn system(&self, name: &str) -> Result<Root, String> {
        let root = Root { folder: self.folder.join(name), shared: self.folder.join("shared") };
        remove(&root.folder)?;
        output(Command::new("cp").args(["-a", "--reflink=auto"]).arg(self.folder.join("empty")).arg(&root.folder))?;
        write(root.path("/github-path"), "")?;
        write(root.path("/etc/hosts"), "127.0.0.1 localhost\n")?;
        // A machine's own certificates and name servers belong to its network.
        for (from, to) in [(Some("/etc/resolv.conf".into()), "/etc/resolv.conf"), (certificates(), "/certificates")] {
            if let Some(from) = from.filter(|from: &PathBuf| from.exists()) {
                fs::copy(&from, root.path(to)).map_err(at(&from))?;
            }
        }
        Ok(root)
    }
}

/// The certificates that this machine's programs are told to use.
fn certificates() -> Option<PathBuf> {
    std::env::var_os("SSL_CERT_FILE").map(PathBuf::from)
}

impl Root {
    /// The path, on this machine, of a path in the system.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    /// Runs a line by a shell, in a folder, which is made if it is not there.
    pub(super) fn run(&self, shell: &[&str], line: &str, folder: &str) -> Result<(), String> {
        println!("{line}");
        let (program, options) = shell.split_first().ok_or("no shell")?;
        let arguments: Vec<_> = options.iter().map(|&option| option.to_owned()).chain([line.to_owned()]).collect();
        self.exec(program, &arguments, folder)
    }

    /// Runs a program.
    pub(super) fn exec(&self, program: &str, arguments: &[String], folder: &str) -> Result<(), String> {
        make(&self.path(folder))?;
        let mut command = Command::new("timeout");
        command.args([LIMIT, "unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter"]);
        command.arg(&self.folder).arg(&self.shared).arg(folder).arg(program).args(arguments);
        command.env_clear().envs([
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/root"),
            ("CI", "true"),
            ("DEBIAN_FRONTEND", "noninteractive"),
            ("CARGO_HOME", "/shared/cargo"),
            ("CARGO_TARGET_DIR", "/shared/target"),
            ("GITHUB_ACTION_PATH", "/src"),
            ("GITHUB_PATH", "/github-path"),
        ]);
        if self.path("/certificates").exists() {
            command.env("CARGO_HTTP_CAINFO", "/certificates");
        }
        output(&mut command).map(drop).map_err(|error| error.replace(ENTER, "…"))
    }

    /// Copies a file or folder of this machine to a path of the system, as COPY does: of a folder
    /// the contents are copied, and a file goes into a folder that is there.
    pub(super) fn copy(&self, from: &Path, to: &str) -> Result<(), String> {
        let to = self.path(to);
        make(if from.is_dir() { &to } else { to.parent().unwrap_or(&to) })?;
        let from = if from.is_dir() { from.join(".") } else { from.to_owned() };
        output(Command::new("cp").arg("-a").arg(from).arg(to)).map(drop)
    }
}
