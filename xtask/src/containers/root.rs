//! Debian systems in folders.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

/// Its number in the pid namespace of its caller, whose `/proc` it still sees.
const NUMBER: &str = "read -r pid rest </proc/self/stat";
/// Holds namespaces of its own, whose processes are killed with it.
const HOLD: &str = "echo $pid; exec sleep infinity";
/// Makes the hosts of namespaces.sh in the folder $1, with a route to everywhere, as a container
/// has.
const HOSTS: &str = "mount -t proc proc /proc; . tests/vm/namespaces.sh; make_hosts \"$1\"
for host in 1 2 3; do enter_host $host ip route add default dev eth0; done";

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

/// A network and a pid namespace, in which systems run programs at the same time; or one with
/// several hosts, which have network namespaces of their own.
#[derive(Debug)]
pub(super) struct Pod {
    /// The holder of the namespaces.
    holder: Child,
    /// The number of the first process of the pid namespace.
    first: String,
    /// The folder of its hosts, if it has several.
    hosts: PathBuf,
}

impl Pod {
    pub(super) fn new() -> Result<Self, String> {
        Self::with("ip link set lo up", Path::new("/"), Path::new(""))
    }

    /// The hosts of tests/vm/namespaces.sh, in an empty folder.
    pub(super) fn of_hosts(checkout: &Path, folder: &Path) -> Result<Self, String> {
        make(folder)?;
        Self::with(HOSTS, checkout, folder)
    }

    fn with(script: &str, current: &Path, hosts: &Path) -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c"]).current_dir(current);
        unshare.arg(format!("set -e\n{NUMBER}\n{script}\n{HOLD}")).arg("bash").arg(hosts).stdout(Stdio::piped());
        let holder = unshare.spawn().map_err(|error| format!("cannot run unshare: {error}"))?;
        let mut pod = Self { holder, first: String::new(), hosts: hosts.to_owned() };
        let out = pod.holder.stdout.take().ok_or("unshare has no output")?;
        BufReader::new(out).read_line(&mut pod.first).map_err(|error| error.to_string())?;
        pod.first.truncate(pod.first.trim_end().len());
        if pod.first.is_empty() { Err("cannot make a network and a pid namespace".to_owned()) } else { Ok(pod) }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // The kernel kills all processes of the pid namespace with its first.
        let _killed = self.holder.kill().and_then(|()| self.holder.wait());
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
        command.args([LIMIT, "unshare", "--mount", "--pid", "--fork", "--kill-child"]);
        self.enter(&mut command, folder).arg(program).args(arguments);
        output(&mut command).map(drop).map_err(|error| error.replace(ENTER, "…"))
    }

    /// A command for a program in the namespaces of a pod and, as a container has them, in mount,
    /// ipc, host name and cgroup namespaces of its own.
    pub(super) fn command_in(&self, pod: &Pod, words: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command.args([LIMIT, "nsenter", "--target", &pod.first, "--net", "--pid"]);
        command.args(["unshare", "--mount", "--ipc", "--uts", "--cgroup"]);
        self.enter(&mut command, "/").args(words);
        command
    }

    /// A command for a program on one of the hosts of a pod and, as a container has them, in mount,
    /// ipc, pid and cgroup namespaces of its own.
    pub(super) fn command_on(&self, pod: &Pod, host: usize, words: &[String]) -> Command {
        let namespace = |kind: &str| format!("--{kind}={}/{host}/{kind}", pod.hosts.display());
        let mut command = Command::new("timeout");
        command.args([LIMIT, "nsenter", "--target", &pod.first, "--mount", "--pid"]);
        command.args(["nsenter", &namespace("net"), &namespace("uts")]);
        command.args(["unshare", "--mount", "--ipc", "--cgroup", "--pid", "--fork", "--kill-child"]);
        self.enter(&mut command, "/").args(words);
        command
    }

    /// Packs its files, without what only this machine needs.
    pub(super) fn archive(&self, to: &Path) -> Result<(), String> {
        let mut tar = Command::new("tar");
        tar.args(["--create", "--one-file-system", "--numeric-owner"]);
        tar.args(["certificates", "github-path", "shared", "src"].map(|name| format!("--exclude=./{name}")));
        output(tar.arg("--file").arg(to).arg("--directory").arg(&self.folder).arg(".")).map(drop)
    }

    /// Adds the words that enter the system, and sets its environment.
    fn enter<'a>(&self, command: &'a mut Command, folder: &str) -> &'a mut Command {
        command.args(["bash", "-c", ENTER, "enter"]).arg(&self.folder).arg(&self.shared).arg(folder);
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
        command
    }

    /// A copy of the system, in another folder beside it.
    pub(super) fn duplicate(&self, name: &str) -> Result<Self, String> {
        let folder = self.folder.with_file_name(name);
        remove(&folder)?;
        output(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&self.folder).arg(&folder))?;
        Ok(Self { folder, shared: self.shared.clone() })
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
