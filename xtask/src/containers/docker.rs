//! Docker: the daemon of this machine or, where root has installed one that does not run, a daemon
//! in namespaces of its own, which changes nothing outside and ends with this program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::compose::Service;
use super::root::Root;
use crate::system::{at, make, output, read, remove, write};

/// Seconds until a script is stopped.
const LIMIT: &str = "600";
/// The time that the daemon may take to start.
const START: Duration = Duration::from_secs(60);
/// Starts the daemon with the folder $1 and the socket $2. Its own network has no way out, because
/// nothing is pulled.
const DAEMON: &str = r#"set -e
ip link set lo up
mount -t tmpfs run /run
exec dockerd --data-root "$1/data" --exec-root /run/docker --pidfile /run/docker.pid --host "$2""#;
/// Stands before the lines of a page, for a machine with the older `docker-compose`.
const OLDER: &str = r#"docker() {
    if [ "$1" != compose ]; then command docker "$@"; return; fi
    if [ "$2" = run ]; then docker-compose run -T "${@:3}"; else docker-compose "${@:2}"; fi
}
"#;

/// A daemon, and the image of the programs.
#[derive(Debug)]
pub(super) struct Docker {
    /// The folder for what is built and for the compose files.
    folder: PathBuf,
    /// The address of the daemon, if it is not the machine's.
    host: Option<String>,
    daemon: Option<Child>,
    /// The name of the image and of the projects, which no other run has: a user's own stay as they
    /// are.
    name: String,
    /// The text before the lines of a script.
    prelude: &'static str,
}

impl Docker {
    /// Finds a daemon or starts one; the inner error is the reason why this machine has none.
    pub(super) fn find(folder: &Path) -> Result<Result<Self, String>, String> {
        remove(folder)?;
        make(folder)?;
        let name = format!("soft-rdma-xtask-{}", std::process::id());
        let mut docker = Self { folder: folder.to_owned(), host: None, daemon: None, name, prelude: "" };
        if let Err(error) = docker.run(&["docker", "info"]) {
            if output(Command::new("dockerd").arg("--version")).is_err() {
                return Ok(Err(format!("{}; and dockerd is not installed", first_line(&error))));
            }
            docker.start()?;
        }
        if docker.run(&["docker", "compose", "version"]).is_err() {
            docker.prelude = OLDER;
            docker.run(&["docker-compose", "version"]).map_err(|error| first_line(&error))?;
        }
        Ok(Ok(docker))
    }

    fn start(&mut self) -> Result<(), String> {
        let (log, socket) = (self.folder.join("log"), format!("unix://{}/socket", self.folder.display()));
        let mut daemon = Command::new("unshare");
        daemon.args([
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            DAEMON,
            "bash",
        ]);
        daemon.arg(&self.folder).arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        daemon.stderr(File::create(&log).map_err(at(&log))?);
        self.daemon = Some(daemon.spawn().map_err(|error| format!("cannot run unshare: {error}"))?);
        self.host = Some(socket);
        let deadline = Instant::now() + START;
        loop {
            let ended = self.daemon.as_mut().is_some_and(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            match self.run(&["docker", "info"]) {
                Ok(_) => return Ok(()),
                Err(_) if !ended && Instant::now() < deadline => std::thread::sleep(Duration::from_millis(200)),
                Err(_) => {
                    let said = read(&log)?;
                    return Err(format!("dockerd does not start: {}", said.lines().last().unwrap_or_default()));
                }
            }
        }
    }

    /// Makes the image of a system: `FROM scratch`, with an archive of its files.
    pub(super) fn image(&self, system: &Root) -> Result<(), String> {
        let context = self.folder.join("image");
        make(&context)?;
        write(context.join("Dockerfile"), "FROM scratch\nADD system.tar /\n")?;
        system.archive(&context.join("system.tar"))?;
        let context = context.to_string_lossy();
        self.run(&["docker", "build", "--quiet", "--tag", &self.name, &*context])?;
        remove(Path::new(&*context))
    }

    /// A folder with a compose file whose services take the image.
    pub(super) fn project(&self, name: &str, compose: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        make(&folder)?;
        let image = format!("image: {}", self.name);
        let ours =
            compose.replace("build: .\n", &format!("{image}\n")).replace("image: soft-rdma\n", &format!("{image}\n"));
        write(folder.join("compose.yaml"), &ours)?;
        Ok(folder)
    }

    /// Types lines into a shell in a project's folder; the project ends with them. Returns the
    /// output. A service that has ended by itself must have succeeded.
    pub(super) fn type_lines(&self, project: &Path, lines: &str, services: &[Service]) -> Result<String, String> {
        println!("{lines}");
        // A process that a failure leaves in the background would hold the output open.
        let script = format!("set -e\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n{}{lines}\n", self.prelude);
        let typed = self.shell(project, &script);
        let checked = typed.and_then(|text| {
            for service in services {
                // Compose may name a container `PROJECT-NAME-1` or `PROJECT_NAME_1`.
                let id =
                    self.shell(project, &format!("{}docker compose ps --all --quiet {}", self.prelude, service.name))?;
                let said =
                    self.run(&["docker", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", &id])?;
                if said != "exited 0" {
                    return Err(format!("the service {} is: {said}\n{text}", service.name));
                }
            }
            Ok(text)
        });
        let ended = self.shell(project, &format!("{}docker compose down --timeout 1", self.prelude));
        let text = checked?;
        ended.map(|_| text)
    }

    fn shell(&self, folder: &Path, script: &str) -> Result<String, String> {
        let mut command = self.command("timeout");
        output(command.args([LIMIT, "bash", "-c", script]).current_dir(folder).stdin(Stdio::null()))
    }

    fn run(&self, words: &[&str]) -> Result<String, String> {
        let (program, arguments) = words.split_first().ok_or("no program")?;
        output(self.command(program).args(arguments))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // The builder that needs no plug-in.
        command.env("DOCKER_BUILDKIT", "0").env("COMPOSE_PROJECT_NAME", &self.name);
        if let Some(host) = &self.host {
            command.env("DOCKER_HOST", host);
        }
        command
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _removed = self.run(&["docker", "image", "rm", "--force", &self.name]);
        if let Some(daemon) = &mut self.daemon {
            // The kernel kills all processes of the pid namespace with its first.
            let _killed = daemon.kill().and_then(|()| daemon.wait());
        }
        let _removed = remove(&self.folder);
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
