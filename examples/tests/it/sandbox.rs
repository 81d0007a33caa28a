//! The programs in environments that lack something: the network, `/proc`, or the right to pin
//! threads; and many ranks on one terminal.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rdma_test_support::{program::has_succeeded, skip};

use crate::common::*;

/// Runs both kinds of programs with a command that runs its arguments in a sandbox.
fn run_in(sandbox: &[&str]) {
    for (name, args, last) in [
        ("all_reduce", &["-g", "3", "--max", "1K", "-n", "2"][..], "# Collective test concluded: all_reduce"),
        ("rping", &["-C", "3"], "all came back as they were"),
    ] {
        let mut command = Command::new(sandbox[0]);
        command.args(&sandbox[1..]).arg(program(name).get_program()).args(args).env("RDMA_DEVICE", "soft0");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = has_succeeded(&format!("{name} by {sandbox:?}"), &finish(child));
        assert!(out.trim_end().ends_with(last), "{out}");
    }
}

/// The options of `unshare` that work here: root's, or those of a user who may become root in a
/// namespace.
fn unshare(option: &'static str) -> Option<Vec<&'static str>> {
    let ways = [vec!["unshare", option], vec!["unshare", "--user", "--map-root-user", option]];
    let works = |way: &Vec<&str>| {
        Command::new(way[0]).args(&way[1..]).arg("true").output().is_ok_and(|output| output.status.success())
    };
    let way = ways.into_iter().find(works);
    if way.is_none() {
        skip("the kernel gives no namespace to this user");
    }
    way
}

#[test]
fn local_ranks_need_no_network() {
    if let Some(way) = unshare("--net") {
        run_in(&way);
    }
}

#[test]
fn proc_is_not_needed() {
    if let Some(mut way) = unshare("--mount") {
        way.extend(["sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
        run_in(&way);
    }
}

#[test]
fn ranks_that_may_not_be_pinned_run() {
    if !has("strace", "strace") {
        return;
    }
    let refuse = "inject=sched_setaffinity,sched_getaffinity:error=EPERM";
    run_in(&["strace", "-f", "-o", "/dev/null", "-e", refuse]);
}

/// A folder of programs for other users, who may be unable to read the build's folder.
struct Copies(PathBuf);

impl Copies {
    /// `None` if this user cannot become two others. `test` is a name of the test's own.
    fn new(test: &str) -> Option<Self> {
        if !has("setpriv", "util-linux") || !nix::unistd::getuid().is_root() {
            skip("only root can become two other users");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("rdma-{test}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        Some(Self(folder))
    }

    fn add(&self, name: &str) -> PathBuf {
        let to = self.0.join(name);
        std::fs::copy(program(name).get_program(), &to).unwrap();
        to
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A command that runs a program as a user of this number.
fn as_user(user: u32, program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={user}"), &format!("--regid={user}")]).arg(program);
    command.args(args).current_dir("/").env("RDMA_DEVICE", "soft0").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// If a process of another user listens, the client reports that, and not that no process listens.
#[test]
fn a_listener_of_another_user_is_said() {
    let Some(copies) = Copies::new("two-users") else { return };
    let (rping, cm_time) = (copies.add("rping"), copies.add("cm_time"));
    let as_user = |user, program: &Path, args: &[&str]| as_user(user, program, args).spawn().unwrap();
    let mut server = as_user(65534, &rping, &["-s", "-d", "-a", "127.0.0.1", "-p", "0", "--timeout=60"]);
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().rsplit_once(':').expect("it says where it listens").1.to_owned();
    let said = "a process of another user listens there; run both programs as the same user";
    has_failed("rping", &finish(as_user(1, &rping, &["-c", "-a", "127.0.0.1", "-p", &port])), said);
    has_failed("cm_time", &finish(as_user(1, &cm_time, &["-s", "127.0.0.1", "-p", &port])), said);
    server.kill().unwrap();
    server.wait().unwrap();
}

/// The clients of a service whose server their device cannot reach say so, by each command that
/// sets a connection up.
#[test]
fn a_service_of_another_user_is_said_to_be_one() {
    let Some(copies) = Copies::new("services") else { return };
    let [kv, rpc, file_copy] = ["kv", "rpc", "file_copy"].map(|name| copies.add(name));
    let folder = copies.0.join("received");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    let (folder, sent) = (folder.to_str().unwrap(), kv.to_str().unwrap());
    for (program, serve, command) in [
        (&kv, &["serve", "127.0.0.1", "--memory=1M", "--keys=100"][..], &["get", "key"][..]),
        (&rpc, &["serve", "127.0.0.1", "--receives=256"], &["call", "echo"]),
        (&file_copy, &["serve", "127.0.0.1", folder], &["send", sent]),
    ] {
        let server = Server::of(as_user(65534, program, serve).arg("--exchange=tcp"));
        let port = format!("--port={}", server.address.port());
        let args = [&[command[0], "127.0.0.1"], &command[1..], &[&port, "--exchange=tcp"]].concat();
        let output = finish(as_user(1, program, &args).spawn().unwrap());
        has_failed(command[0], &output, "of one user, in one container");
    }
}

/// A client in a user namespace of its own, which the server's device may not trace.
#[test]
fn a_client_in_another_namespace_is_told_why() {
    let works = |program: &str| Command::new("unshare").args(["--user", program]).output();
    if !works("true").is_ok_and(|output| output.status.success()) {
        skip("the kernel gives no namespace to this user");
        return;
    }
    let server = Server::start("kv", &["serve", "127.0.0.1", "--memory=1M", "--keys=100"]);
    let port = format!("--port={}", server.address.port());
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(program("kv").get_program());
    command.args(["get", "127.0.0.1", &port, "key"]).env("RDMA_DEVICE", "soft0").stdin(Stdio::null());
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    has_failed("get", &finish(client), "(warning: ");
}

/// Standard error has no buffer: a line written in pieces would be mixed with other ranks' lines.
#[test]
fn lines_of_ranks_are_not_mixed() {
    let loop_over = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$0\" \"$@\" & done; wait";
    let mut shell = Command::new("sh");
    shell.args(["-c", loop_over]).arg(program("all_reduce").get_program()).args(["--device", "mlx9_9", "-g", "2"]);
    let output = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let err = text(&output.stderr);
    let whole = |line: &str| line.starts_with("all_reduce: rank ") && line.matches("mlx9_9").count() == 1;
    assert!(err.lines().count() == 12 && err.lines().all(whole), "{err}");
}
