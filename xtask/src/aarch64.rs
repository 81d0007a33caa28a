//! `cargo xtask aarch64`: unit tests, and the drop-in library under Debian's programs, as programs
//! of aarch64, which QEMU's user mode runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::apt::Apt;
use crate::system::{at, cargo, free_port, make, output, read, remove, succeeds, write};
use crate::toolchain::{self, script};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's name of the architecture.
const ARCHITECTURE: &str = "arm64";
const SUITE: &str = "bookworm";
/// A C compiler for aarch64 with its C library, QEMU, and the libraries that they load.
const PACKAGES: &str = "gcc-aarch64-linux-gnu cpp-aarch64-linux-gnu gcc-12-aarch64-linux-gnu gcc-12-aarch64-linux-gnu-base \
    cpp-12-aarch64-linux-gnu gcc-12-cross-base binutils-aarch64-linux-gnu libc6-arm64-cross libc6-dev-arm64-cross \
    linux-libc-dev-arm64-cross libgcc-s1-arm64-cross libgcc-12-dev-arm64-cross qemu-user-static libbinutils \
    libgmp10 libisl23 libjansson4 libmpc3 libmpfr6";
/// Starts the unpacked C compiler, which links Rust's programs.
const LINKER: &str = r#"#!/bin/bash
usr=${0%/*}/root/usr
LD_LIBRARY_PATH=$usr/lib/x86_64-linux-gnu exec "$usr/bin/aarch64-linux-gnu-gcc" "$@"
"#;
/// Runs a program of aarch64 with the unpacked C library.
const RUNNER: &str = r#"#!/bin/bash
usr=${0%/*}/root/usr
exec "$usr/bin/qemu-aarch64-static" -L "$usr/aarch64-linux-gnu" "$@"
"#;
/// Debian's programs over libibverbs and librdmacm.
const PROGRAMS: &str = "ibverbs-utils rdmacm-utils";
/// Programs of which two processes exchange messages, and check them: the options of both sides, of
/// the server, and of the client.
const EXCHANGES: [[&str; 4]; 2] =
    [["ibv_rc_pingpong", "-g 0 -c -n 200", "", "localhost"], ["rping", "-a 127.0.0.1 -C 5 -V", "-s", "-c"]];
/// Longest run of such a program, in seconds.
const LIMIT: &str = "120";
/// Time for a server to listen.
const LISTENS: Duration = Duration::from_secs(60);
/// The unit tests: packages, their folders, and the parts of the names of those that run; without a
/// part, all run.
const TESTS: [(&str, &str, &str); 4] = [
    ("rdma-mem", "rdma-mem", ""),
    ("rdma-verbs-sys", "rdma-sys", ""),
    ("rdma-soft", "rdma-soft", "engine:: link::"),
    ("rdma-verbs", "rdma", ""),
];
/// The tests that QEMU 7.2 cannot run.
const SKIPPED: [&str; 8] = [
    // A call of this test does not return.
    "pass::tests::one_descriptor_of_many_is_kept",
    // QEMU's madvise says that a page is wiped in a child, and does nothing.
    "process::tests::a_child_has_a_number_that_no_ancestor_has",
    // QEMU's madvise asks for no huge pages.
    "options::pages_that_are_touched_may_be_huge",
    // QEMU's preadv2 has no RWF_NOWAIT, so a process is rung by a packet, and not by its bell.
    "handshake::tests::two_processes_that_mean_well_get_a_link",
    // QEMU gives abstract names a NUL at the end, so the list of names has others than were bound.
    "share::tests::a_newcomer_gets_the_socket_from_any_process_that_answers",
    // QEMU has no process_vm_readv, and a file of /proc does not tell death from a missing /proc.
    "handshake::tests::a_peer_that_has_died_is_said_to_be_dead",
    // These tests start their own program again, which the kernel of another architecture cannot.
    "scopes::a_scope_that_cannot_end_aborts_the_process",
    "scoped::memory_that_stays_registered_aborts_the_process",
];

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let tools = Tools::fetch(&root)?;
    let programs = tools.unit_tests(&root)?;
    let names = programs.iter().map(|program| output(tools.test(program).args(["--list", "--format=terse"])));
    let names = names.collect::<Result<Vec<_>, _>>()?.join("\n");
    if let Some(test) = absent(&SKIPPED, &names) {
        return Err(format!("no test is named {test}, which is to be skipped"));
    }
    for program in &programs {
        let mut tests = tools.test(program);
        tests.args(SKIPPED.iter().flat_map(|test| ["--skip", test])).arg("--quiet");
        succeeds(&mut tests, |status| format!("unit tests in {}, for aarch64: {status}", program.folder.display()))?;
    }
    let mut build = tools.cargo(&root, "build --locked -p rdma-soft-dropin");
    succeeds(&mut build, |status| format!("the drop-in library, for aarch64: {status}"))?;
    tools.try_drop_in(&root.join("target/aarch64").join(TARGET).join("debug/librdma_soft_dropin.so"))
}

/// The first of the tests that is not in a harness's list.
fn absent<'a>(tests: &[&'a str], list: &str) -> Option<&'a str> {
    let is_in =
        |test: &str| list.lines().any(|line| line.strip_suffix(": test").is_some_and(|name| name.contains(test)));
    tests.iter().copied().find(|test| !is_in(test))
}

/// A program of unit tests, the folder that it runs in, and the parts of the tests' names.
#[derive(Debug)]
struct UnitTests {
    program: String,
    folder: PathBuf,
    names: &'static str,
}

/// The programs that build for aarch64, and the one that runs what they built.
#[derive(Debug)]
struct Tools {
    rustc: PathBuf,
    linker: PathBuf,
    runner: PathBuf,
    /// The folder of Debian's programs for aarch64.
    programs: PathBuf,
}

impl Tools {
    /// Fetches the programs, unless they are there.
    fn fetch(root: &Path) -> Result<Self, String> {
        let rust = root.join("target/xtask/rust");
        let rustc = toolchain::rustc(&rust)?;
        toolchain::check(&rustc, root)?;
        toolchain::standard_library(&rust, ARCHITECTURE, TARGET)?;
        let folder = root.join("target/xtask/aarch64");
        let runner = folder.join("runner");
        let tools = Self { rustc, linker: folder.join("linker"), runner, programs: folder.join("arm64/usr/bin") };
        if !tools.runner.exists() {
            fetch(&folder)?;
            script(&tools.linker, LINKER)?;
            script(&tools.runner, RUNNER)?;
        }
        Ok(tools)
    }

    /// Creates a command for cargo, for aarch64, with these arguments, which contain no blanks.
    fn cargo(&self, root: &Path, arguments: &str) -> Command {
        let mut cargo = cargo(root);
        // QEMU copies and sums slowly. To optimize the other packages takes longer than it saves.
        cargo.arg("--config=profile.dev.package.rdma-mem.opt-level=1").args(arguments.split_whitespace());
        cargo.env("RUSTC", &self.rustc).env("CARGO_TARGET_DIR", root.join("target/aarch64"));
        cargo.env("CARGO_BUILD_TARGET", TARGET).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &self.linker);
        cargo
    }

    /// Builds the unit tests by one command, so that they share their dependencies.
    fn unit_tests(&self, root: &Path) -> Result<Vec<UnitTests>, String> {
        let mut build = self.cargo(root, "test --locked --lib --no-run --message-format=json-render-diagnostics");
        build.args(TESTS.iter().flat_map(|(package, ..)| ["--package", package]));
        build.stderr(Stdio::inherit());
        let messages = output(&mut build)?;
        let messages: Vec<Value> = messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let program = |(package, folder, names)| {
            let folder = root.join(folder);
            let manifest = folder.join("Cargo.toml");
            let is_of_it =
                |message: &&Value| message["manifest_path"].as_str().is_some_and(|path| manifest == Path::new(path));
            let mut programs = messages.iter().filter(is_of_it).filter_map(|message| message["executable"].as_str());
            let program = programs.next().ok_or_else(|| format!("cargo has built no unit tests of {package}"))?;
            Ok(UnitTests { program: program.to_owned(), folder, names })
        };
        TESTS.into_iter().map(program).collect()
    }

    /// A command that runs unit tests as cargo does.
    fn test(&self, tests: &UnitTests) -> Command {
        let mut command = Command::new(&self.runner);
        command.arg(&tests.program).args(tests.names.split_whitespace());
        command.current_dir(&tests.folder).env("CARGO_MANIFEST_DIR", &tests.folder);
        command
    }

    /// Starts Debian's programs on the drop-in library: every symbol of the programs and of the
    /// library resolves, the programs see soft0, and processes exchange messages.
    fn try_drop_in(&self, library: &Path) -> Result<(), String> {
        let libraries = self.runner.with_file_name("libraries");
        remove(&libraries)?;
        make(&libraries)?;
        for name in ["libibverbs.so.1", "librdmacm.so.1"] {
            let link = libraries.join(name);
            symlink(library, &link).map_err(at(&link))?;
        }
        let start = |program: &str| {
            let mut command = Command::new("timeout");
            command.arg(LIMIT).arg(&self.runner).args(["-E", "LD_BIND_NOW=1", "-E"]);
            command.arg(format!("LD_LIBRARY_PATH={}", libraries.display()));
            command.arg(self.programs.join(program));
            command
        };
        let devices = output(&mut start("ibv_devinfo"))?;
        if !devices.contains("soft0") || !devices.contains("PORT_ACTIVE") {
            return Err(format!("ibv_devinfo of aarch64 sees no active port of soft0: {devices}"));
        }
        // rping loads librdmacm, and describes its options when it has none.
        let usage = start("rping").output().map_err(|error| format!("cannot run QEMU: {error}"))?;
        let text = [usage.stdout, usage.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if !text.contains("rping -s") {
            return Err(format!("rping of aarch64 does not start: {text}"));
        }
        for [program, options, server, client] in EXCHANGES {
            let port = free_port().map_err(|error| format!("there is no free port: {error}"))?.to_string();
            let end = |of_end: &str| {
                let mut command = start(program);
                command.args(["-p", &port]).args([options, of_end].iter().flat_map(|text| text.split_whitespace()));
                command
            };
            exchange(&mut end(server), &mut end(client)).map_err(|why| format!("{program} of aarch64: {why}"))?;
        }
        eprintln!("Debian's programs of aarch64 exchange messages over the drop-in library");
        Ok(())
    }
}

/// Runs a server and its client, which is started again until the server listens.
fn exchange(server: &mut Command, client: &mut Command) -> Result<(), String> {
    let cannot = |error| format!("cannot run QEMU: {error}");
    let mut server = server.stdout(Stdio::null()).spawn().map_err(cannot)?;
    let deadline = Instant::now() + LISTENS;
    let mut sent = output(client);
    while sent.is_err() && Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(100));
        sent = output(client);
    }
    let status = server.wait().map_err(cannot)?;
    sent.map_err(|why| format!("the client has failed: {why}"))?;
    if status.success() { Ok(()) } else { Err(format!("the server has failed: {status}")) }
}

/// Fetches the C compiler, QEMU and the programs into `folder`.
fn fetch(folder: &Path) -> Result<(), String> {
    eprintln!("fetching a C compiler for aarch64, QEMU and programs from Debian's {SUITE}");
    let apt = Apt::foreign(&folder.join("apt"), &[SUITE], ARCHITECTURE)?;
    let (native, programs) = (folder.join("root"), folder.join("arm64"));
    remove(&native)?;
    remove(&programs)?;
    apt.unpack(PACKAGES.split_whitespace().map(|name| format!("{name}/{SUITE}")), &native)?;
    apt.unpack(PROGRAMS.split_whitespace().map(|name| format!("{name}:{ARCHITECTURE}/{SUITE}")), &programs)?;
    relocate(&native.join("usr/aarch64-linux-gnu/lib/libc.so"))
}

/// Cuts the folders out of a linker script, so that the linker searches its own.
fn relocate(path: &Path) -> Result<(), String> {
    let text = read(path)?.replace("/usr/aarch64-linux-gnu/lib/", "");
    fs::remove_file(path).map_err(at(path))?;
    write(path.to_owned(), &text).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_that_is_gone_is_found() {
        let list = "pass::tests::a_test: test\nprocess::tests::another: test\n";
        assert_eq!(absent(&["tests::another", "pass::tests::a_test"], list), None);
        assert_eq!(absent(&["tests::another", "pass::tests::a_tests"], list), Some("pass::tests::a_tests"));
    }
}
