//! Runs of one case: a server, a client, and a time limit.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::cases::{Case, Kind, NCCL_NET, OURS, Outcome, Peer};
use super::registry;
use crate::system::free_port;

/// Longest duration of a case. The longest takes 15 s on a machine that does nothing else.
const LIMIT: Duration = Duration::from_secs(180);
/// Time for a server to listen. A server that cannot be seen listening gets this time too.
const LISTENS: Duration = Duration::from_secs(5);
/// Time for a server to report its own failure after its client has failed.
const FAILS: Duration = Duration::from_secs(1);
/// Clock ticks, of 10 ms, after which a program has connected and exchanges messages.
const WORKING: u64 = 50;

/// The end of a case.
pub(super) enum Ended {
    Passed,
    /// The last line of the side that failed, or what else went wrong.
    Failed(String),
    /// The program is not installed.
    Missing,
}

/// `soft-rdma`, and the folders of programs.
pub(super) struct Launcher {
    /// The file of `soft-rdma`.
    pub(super) path: PathBuf,
    /// The folder that programs run in.
    pub(super) folder: PathBuf,
    /// The target folder of the workspace `thirdparty`, and of the crates from the registry.
    pub(super) crates: PathBuf,
    /// Whether the C programs of these names have been compiled.
    mpi_sums: OnceLock<bool>,
    nccl_net: OnceLock<bool>,
}

/// A running program and its output.
struct Running {
    child: Child,
    output: File,
}

impl Launcher {
    pub(super) fn new(path: PathBuf, folder: PathBuf, crates: PathBuf) -> Self {
        Self { path, folder, crates, mpi_sums: OnceLock::new(), nccl_net: OnceLock::new() }
    }

    /// The file of a program.
    fn program(&self, kind: Kind, name: &str) -> PathBuf {
        match kind {
            Kind::Compat if name == OURS => self.path.with_file_name(OURS),
            Kind::Crate => self.crates.join("debug").join(name),
            Kind::Example | Kind::ExamplePingpong | Kind::ExampleCm => self.crates.join("debug/examples").join(name),
            Kind::Suite => self.sources(name),
            Kind::Nccl if name == NCCL_NET => self.folder.join(name),
            _ => Path::new("/usr/bin").join(name),
        }
    }

    /// The folder of a crate from the registry.
    pub(super) fn sources(&self, name: &str) -> PathBuf {
        self.folder.join("crates").join(name)
    }

    /// A command that starts a program through `soft-rdma`.
    pub(super) fn command(&self, options: &[&str], program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).args(options).arg(program).stdin(Stdio::null());
        command
    }

    /// The file of what a program of the last run has printed. Unlike a pipe, it never fills.
    fn output(&self, peer: Peer) -> PathBuf {
        self.folder.join(match peer {
            Peer::Server => "server.out",
            Peer::Client => "client.out",
        })
    }

    /// What each program of the last run has printed, each line with the program's role.
    pub(super) fn printed(&self) -> String {
        let lines = |(name, peer)| {
            let text = fs::read(self.output(peer)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            text.lines().map(|line| format!("{name}: {line}\n")).collect::<String>()
        };
        [("server", Peer::Server), ("client", Peer::Client)].map(lines).concat()
    }

    /// Runs a case, and measures its time.
    pub(super) fn run(&self, case: &Case) -> (Ended, Duration) {
        let start = Instant::now();
        let is_installed = |name: &&str| self.program(case.kind, name).exists();
        let ended = if !self.has_program(case.kind) || ![case.program, case.client].iter().all(is_installed) {
            Ended::Missing
        } else {
            let runs = if matches!(case.outcome, Outcome::Races(_)) { 3 } else { 1 };
            let first = self.attempt(case);
            (1..runs).fold(first, |ended, _| if let Ended::Failed(_) = ended { self.attempt(case) } else { ended })
        };
        (ended, start.elapsed())
    }

    /// Compiles the C program of a kind, once; false if the compiler or headers are missing.
    fn has_program(&self, kind: Kind) -> bool {
        let (built, compile): (_, fn(&Self) -> bool) = match kind {
            Kind::Mpi => (&self.mpi_sums, Self::compile_mpi_sums),
            Kind::Nccl => (&self.nccl_net, Self::compile_nccl_net),
            _ => return true,
        };
        *built.get_or_init(|| compile(self))
    }

    fn compile_mpi_sums(&self) -> bool {
        let source = crate::root().join("xtask/src/thirdparty/mpi_sums.c");
        has_compiled(Command::new("mpicc").arg("-o").arg(self.folder.join("mpi_sums")).arg(source))
    }

    /// The program loads libibverbs by itself, so it is not linked to it.
    fn compile_nccl_net(&self) -> bool {
        let root = crate::root();
        let folder = root.join("xtask/src/thirdparty/nccl");
        let sources =
            ["main", "verbs", "device", "connect", "transfer"].map(|name| folder.join(name).with_extension("c"));
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(root.join("rdma-soft/dropin/tests"));
        has_compiled(cc.arg("-o").arg(self.folder.join("nccl_net")).args(sources).arg("-ldl"))
    }

    fn attempt(&self, case: &Case) -> Ended {
        match self.failure(case, Instant::now() + LIMIT) {
            Ok(None) => Ended::Passed,
            Ok(Some(why)) => Ended::Failed(why),
            Err(error) => Ended::Failed(error.to_string()),
        }
    }

    /// Runs a case; the result is the reason of its failure.
    fn failure(&self, case: &Case, deadline: Instant) -> io::Result<Option<String>> {
        // A program of the last run may still write to its file, so the new ones are others.
        for peer in [Peer::Server, Peer::Client] {
            drop(fs::remove_file(self.output(peer)));
        }
        let port = free_port()?;
        let (server, client) = case.arguments(port);
        let mut server = self.start(Peer::Server, case, &server)?;
        if case.kind == Kind::Suite {
            let failure = server.failure(deadline)?;
            return Ok(failure.or((registry::passed(&server.text()?) == 0).then(|| "no test has run".to_owned())));
        }
        if matches!(case.kind, Kind::Alone | Kind::Crate | Kind::Example | Kind::Mpi) {
            return server.failure(deadline);
        }
        server.await_listener(port)?;
        // Without rsockets the library takes sockets, and says nothing.
        if case.kind == Kind::Rsockets && listens(port)? {
            return Ok(Some("the server listens at a socket of TCP".to_owned()));
        }
        let mut client = self.start(Peer::Client, case, &client)?;
        if let Outcome::Loses(peer) = case.outcome {
            return lose(peer, server, client, deadline);
        }
        let failure = match client.failure(deadline)? {
            Some(why) => Some(format!("client: {why}{}", server.failure_too()?)),
            None if matches!(case.kind, Kind::CmService | Kind::ExampleCm) => None,
            None => server.failure(deadline)?.map(|why| format!("server: {why}")),
        };
        Ok(failure)
    }

    /// Starts one of a case's programs.
    fn start(&self, peer: Peer, case: &Case, more: &str) -> io::Result<Running> {
        let program = match peer {
            Peer::Server => case.program,
            Peer::Client => case.client,
        };
        let output = File::options().read(true).append(true).create_new(true).open(self.output(peer))?;
        let mut command = match case.kind {
            Kind::Suite => {
                let test = registry::test(self, program);
                let mut command = self.command(case.kind.launch_options(), test.get_program());
                command.args(test.get_args()).current_dir(self.sources(program));
                command
            }
            _ => self.command(case.kind.launch_options(), self.program(case.kind, program)),
        };
        // A container's only user may be root.
        command.envs(["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name, "1")));
        command.args(case.options.split_whitespace()).args(more.split_whitespace());
        command.envs(case.variable.split_once('='));
        if case.kind == Kind::Rsockets {
            command.env("LD_PRELOAD", rsockets().ok_or_else(|| io::Error::other("no librspreload is installed"))?);
        }
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        Ok(Running { child: command.spawn()?, output })
    }
}

/// Whether a compiler has succeeded. If it starts and fails, its messages are shown.
fn has_compiled(compiler: &mut Command) -> bool {
    let output = compiler.output();
    if let Ok(output) = &output {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    output.is_ok_and(|output| output.status.success())
}

/// rdma-core's library that makes sockets rsockets, in the folder of the machine's architecture.
fn rsockets() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|folder| folder.path().join("rsocket/librspreload.so")).find(|library| library.exists())
}

impl Running {
    /// Waits until the program listens at the port, or at a port of its own choice: a TCP socket,
    /// or the connection manager's Unix socket.
    fn await_listener(&mut self, port: u16) -> io::Result<()> {
        let deadline = Instant::now() + LISTENS;
        while Instant::now() < deadline && self.child.try_wait()?.is_none() {
            if listens(port)? || has_cm_listener(self.child.id())? {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for the program's end; the result is the reason of its failure.
    fn failure(&mut self, deadline: Instant) -> io::Result<Option<String>> {
        match self.end(deadline)? {
            Some(status) if status.success() => Ok(None),
            Some(status) => self.last_line(status).map(Some),
            None => Ok(Some(format!("still runs after {LIMIT:?}"))),
        }
    }

    /// The reason why a server has failed beside its client. A server may wait for another client
    /// without end, which is no failure.
    fn failure_too(&mut self) -> io::Result<String> {
        match self.end(Instant::now() + FAILS)? {
            Some(status) if !status.success() => Ok(format!("; server: {}", self.last_line(status)?)),
            _ => Ok(String::new()),
        }
    }

    /// Waits for the program's end; nothing if it still runs at the deadline.
    fn end(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() > deadline {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the program has run for a while; the result is the reason why it has not.
    fn await_work(&mut self, deadline: Instant) -> io::Result<Option<String>> {
        while ticks(self.child.id())? < WORKING {
            if let Some(status) = self.child.try_wait()? {
                return self.last_line(status).map(Some);
            }
            if Instant::now() > deadline {
                return Ok(Some(format!("waits for its peer after {LIMIT:?}")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    /// The output so far.
    fn text(&mut self) -> io::Result<String> {
        let mut text = Vec::new();
        self.output.seek(SeekFrom::Start(0))?;
        self.output.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn last_line(&mut self, status: ExitStatus) -> io::Result<String> {
        let text = self.text()?;
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no output");
        Ok(format!("{status}: {last}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if the program has ended, and then there is nothing to end.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Kills one side at work; the result is the reason why the other one has not reported an error.
fn lose(peer: Peer, mut server: Running, mut client: Running, deadline: Instant) -> io::Result<Option<String>> {
    // A server may sleep while the client works.
    if let Some(why) = client.await_work(deadline)? {
        return Ok(Some(format!("before the kill: {why}")));
    }
    for end in [&mut server, &mut client] {
        if let Some(status) = end.child.try_wait()? {
            return Ok(Some(format!("before the kill: {}", end.last_line(status)?)));
        }
    }
    let (victim, mut survivor) = match peer {
        Peer::Server => (server, client),
        Peer::Client => (client, server),
    };
    drop(victim);
    match survivor.end(deadline)? {
        Some(status) if status.success() => Ok(Some("the survivor succeeds without its peer".to_owned())),
        // A signal has no code: the survivor crashed.
        Some(status) if status.code().is_none() => survivor.last_line(status).map(Some),
        Some(_) => Ok(None),
        None => Ok(Some("the survivor does not notice".to_owned())),
    }
}

/// The clock ticks that a process has run.
fn ticks(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program's name, in parentheses, may contain spaces. User and system time are the 12th and
    // 13th words after it.
    let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    Ok(words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum())
}

/// Whether a TCP socket listens at the port.
fn listens(port: u16) -> io::Result<bool> {
    let tables = fs::read_to_string("/proc/net/tcp")? + &fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
    // Local address, remote address, state: 0A is LISTEN.
    let listener = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
    };
    Ok(tables.lines().any(listener))
}

/// Whether a process has a listening socket of the software device's connection manager.
fn has_cm_listener(pid: u32) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/net/unix")?;
    // The flag 00010000 is that of a listening socket; the inode stands before the name.
    let listeners = table.lines().filter(|line| line.contains("@rdma-soft-cm") && line.contains(" 00010000 "));
    let inodes: Vec<&str> = listeners.filter_map(|line| line.split_whitespace().nth(6)).collect();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    Ok(targets.any(|target| {
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    }))
}
