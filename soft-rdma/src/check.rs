//! `--check`: what of the software device does not work here, and why.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{AccessFlags, Pid, access, geteuid};

use super::{Options, PATH, PRELOAD, SELF, copies, hosts, sysfs};
use crate::failure::{Failure, explained};
use crate::library::Library;

/// A test of this machine or of the program.
struct Finding {
    /// Name of what was tested.
    name: &'static str,
    /// Whether programs work in spite of the finding.
    works: bool,
    text: String,
}

impl Finding {
    fn new(name: &'static str, works: bool, text: impl Into<String>) -> Self {
        Self { name, works, text: text.into() }
    }
}

/// Prints the findings for this machine, and for the program if one is given.
pub(super) fn run(options: &Options, path: &OsStr, library: &Library) -> Result<(), Failure> {
    // First, because the device listens from its start on, or not at all.
    let (works, text) = hosts::outcome(options);
    let hosts = Finding::new("hosts", works, text);
    let mut findings = vec![environment(options), loader(path, library), tracing(), hosts];
    findings.extend(if options.sysfs { vec![namespaces(options)] } else { vec![nodes(options), attributes(options)] });
    match options.program.first().map(|program| executable(program)) {
        None => {}
        Some(Err(text)) => findings.push(Finding::new("program", false, text)),
        Some(Ok(program)) => {
            findings.push(links(&program, path, library));
            findings.extend(carried(&program, path, library, options.preload));
        }
    }
    let mut out = io::stdout().lock();
    for Finding { name, text, .. } in &findings {
        writeln!(out, "{name:12} {text}")?;
    }
    match findings.iter().find(|finding| !finding.works) {
        Some(Finding { name, text, .. }) => Err(Failure::new(format!("{name}: {text}"))),
        None => Ok(()),
    }
}

/// Whether the environment's variables, this process's limits and the kernel allow the device.
fn environment(options: &Options) -> Finding {
    let known = rdma_soft::device_names();
    let opened = rdma::Device::list().and_then(|mut devices| {
        devices.retain(|device| known.contains(&device.name()));
        // The first starts what all have in common.
        devices.first().map(rdma::Device::open).transpose()?;
        let names = devices.iter().map(rdma::Device::name).collect::<Vec<_>>();
        let named = options.device_names().filter(|_| !names.is_empty());
        Ok(named.unwrap_or(names).join(", "))
    });
    match opened {
        Ok(names) if names.is_empty() => Finding::new("devices", false, "none: RDMA_SOFT=off turns the device off"),
        Ok(names) => Finding::new("devices", true, names),
        Err(error) => Finding::new("devices", false, error.to_string()),
    }
}

/// The file or folder of the first device in a folder.
fn first_device(folder: &str, options: &Options) -> PathBuf {
    let names = options.device_names().unwrap_or_else(rdma_soft::device_names);
    Path::new(folder).join(names.first().map_or("soft0", String::as_str))
}

/// Whether the dynamic loader can load the library.
fn loader(path: &OsStr, library: &Library) -> Finding {
    let folder = path.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
    let file = Path::new(&folder).join(library.names[0]).display().to_string();
    // A name, because LD_PRELOAD ends a path at a space.
    let mut test = Command::new(SELF);
    test.arg("--version").env(PATH, path).env(PRELOAD, library.names[0]);
    // The loader goes on without a library that it cannot load, and says so.
    match outcome_of(&mut test) {
        Ok(output) if output.status.success() && output.stderr.is_empty() => Finding::new("library", true, file),
        Ok(output) => Finding::new("library", false, said(&output)),
        Err(text) => Finding::new("library", false, text),
    }
}

/// Whether processes may prove to each other that they are of one user, which takes the right to
/// trace the peer.
fn tracing() -> Finding {
    // Address 0 is never readable: a system that allows the call fails with EFAULT.
    let nowhere = RemoteIoVec { base: 0, len: 1 };
    let read = match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut [0])], &[nowhere]) {
        // The device takes this file instead.
        Err(Errno::ENOSYS) if fs::File::open("/proc/self/mem").is_ok() => Err(Errno::EFAULT),
        read => read,
    };
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let (works, text) = match (read, scope.trim()) {
        (Err(Errno::EFAULT), "2") if !geteuid().is_root() => {
            (false, "only root: kernel.yama.ptrace_scope is 2; set it to 0 or 1")
        }
        (Err(Errno::EFAULT), "3") => (false, "never: kernel.yama.ptrace_scope is 3 until the next boot"),
        (Err(Errno::EFAULT), _) => return Finding::new("processes", true, neighbours()),
        (Err(Errno::EPERM | Errno::ENOSYS), _) => {
            (false, "a seccomp filter refuses process_vm_readv: processes do not reach each other")
        }
        _ => (true, "unknown"),
    };
    Finding::new("processes", works, text)
}

/// The processes that this one's devices reach.
fn neighbours() -> String {
    let user = geteuid();
    let names = ["net", "pid", "user"].map(|kind| fs::read_link(Path::new("/proc/self/ns").join(kind)));
    let names: Vec<_> = names.iter().flatten().map(|name| name.display().to_string()).collect();
    let namespaces = match names.len() {
        3 => format!("those with {} in /proc/PID/ns", names.join(", ")),
        _ => "those in one network, pid and user namespace".to_owned(),
    };
    format!("processes of user {user} in one container reach each other: {namespaces}")
}

/// Whether a program can get the files of `--sysfs`.
fn namespaces(options: &Options) -> Finding {
    if let Err(failure) = sysfs::check_node(Path::new(sysfs::NULL)) {
        return Finding::new("sysfs", false, failure.to_string());
    }
    let mut test = Command::new(SELF);
    options.prepare(&mut test).args(["--sysfs", SELF, "--version"]);
    match outcome_of(&mut test).and_then(|output| if output.status.success() { Ok(()) } else { Err(said(&output)) }) {
        Ok(()) => {
            let [folder, node] = [sysfs::DEVICES, sysfs::NODES].map(|folder| first_device(folder, options));
            let text = format!("--sysfs shows {} and {}", folder.display(), node.display());
            Finding::new("sysfs", true, text)
        }
        Err(text) => Finding::new("sysfs", false, text),
    }
}

/// Runs a program to its end. The error is the reason why it cannot be started.
fn outcome_of(test: &mut Command) -> Result<Output, String> {
    test.stdin(Stdio::null()).output().map_err(|error| explained(&error))
}

/// The text that a program has written to standard error; if it has written none, its exit status.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if text.is_empty() { output.status.to_string() } else { text }
}

/// Whether programs find the device nodes that hardware has.
fn nodes(options: &Options) -> Finding {
    let node = first_device(sysfs::NODES, options);
    let advice = "UCX and Mooncake ignore the device and take TCP without a word; --sysfs shows it";
    Finding::new("node", true, found_or(&node, advice))
}

/// Whether programs find the sysfs folder that hardware has.
fn attributes(options: &Options) -> Finding {
    let folder = first_device(sysfs::DEVICES, options);
    let advice = "NCCL needs NCCL_IB_GID_INDEX, and pyverbs skips tests; --sysfs shows it";
    Finding::new("sysfs", true, found_or(&folder, advice))
}

/// The path if it exists, or else what lacks it.
fn found_or(path: &Path, advice: &str) -> String {
    let name = path.display();
    if path.exists() { name.to_string() } else { format!("no {name}: {advice}") }
}

/// Whether the dynamic loader gives the program the library.
fn links(found: &Path, path: &OsStr, library: &Library) -> Finding {
    if is_privileged(found) {
        let text = format!("{} has rights of its own, so the loader ignores {PATH}", shown(found));
        return Finding::new("program", false, text);
    }
    let Ok(output) = Command::new("ldd").arg(found).env(PATH, path).output() else {
        return Finding::new("program", true, format!("{}: no ldd to examine it", shown(found)));
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let loaded: Vec<_> = text.lines().filter(|line| library.names.iter().any(|name| line.contains(name))).collect();
    let folder = path.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
    match loaded.iter().find(|line| !line.contains(&folder)) {
        Some(line) => Finding::new("program", false, format!("has a path of its own to a library: {}", line.trim())),
        None if loaded.is_empty() => {
            let text = format!("{} is not linked to libibverbs; it may load it later", shown(found));
            Finding::new("program", true, text)
        }
        None => Finding::new("program", true, format!("{} uses the library", shown(found))),
    }
}

/// Whether the program, or a package of an interpreter, carries the libraries under other names:
/// the dynamic loader then takes those. `None` if there are no such copies.
fn carried(program: &Path, path: &OsStr, library: &Library, preload: bool) -> Option<Finding> {
    let copies = copies::of_program(program, path, library);
    let (first, more) = (copies.first()?, copies.len() - 1);
    let name = shown(&first.path);
    let others = if more == 0 { String::new() } else { format!(", and {more} more") };
    Some(if preload {
        Finding::new("copies", true, format!("{name}{others}: --preload loads the library before it"))
    } else {
        // What a package carries matters to programs that use the package.
        let works = copies.iter().all(|copy| !copy.is_linked);
        let text =
            format!("{name}{others} is a library under another name, which is taken in place of ours: give --preload");
        Finding::new("copies", works, text)
    })
}

/// A name of the file system on one line: it may have control characters.
fn shown(name: &Path) -> String {
    name.to_string_lossy().escape_debug().to_string()
}

/// The file that is loaded for a program: of a script, its interpreter, unless the script stands
/// for Python. The error says why there is none.
fn executable(program: &OsStr) -> Result<PathBuf, String> {
    let found = find(program)?;
    let Some(interpreter) = interpreter(&found).filter(|_| !copies::is_python(&found)) else { return Ok(found) };
    find(&interpreter).map_err(|why| format!("{} is a script: {why}", shown(&found)))
}

/// The file that a shell would run.
fn find(program: &OsStr) -> Result<PathBuf, String> {
    let name = shown(Path::new(program));
    if program.to_string_lossy().contains('/') {
        let path = PathBuf::from(program);
        return match path.metadata() {
            Err(error) => Err(format!("{name}: {}", explained(&error))),
            Ok(found) if found.is_dir() => Err(format!("{name} is a folder; give a program in it")),
            Ok(_) if !can_execute(&path) => Err(format!("{name} is not executable; `chmod +x` makes it so")),
            Ok(_) => Ok(path),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path).map(|folder| folder.join(program));
    let is_program = |file: &PathBuf| file.is_file() && can_execute(file);
    files.find(is_program).ok_or_else(|| format!("{name} is not in PATH"))
}

fn can_execute(file: &Path) -> bool {
    access(file, AccessFlags::X_OK).is_ok()
}

/// The interpreter that a script names in its first line, by `env` or itself; `None` for a program
/// that is no script.
fn interpreter(program: &Path) -> Option<OsString> {
    let mut start = Vec::new();
    fs::File::open(program).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let is_env = Path::new(first).file_name().is_some_and(|name| name == "env");
    let named = words.find(|word| !word.starts_with('-') && !word.contains('='));
    Some(if is_env { named? } else { first }.into())
}

/// Whether a program runs with other rights than its caller's: those of its owner, or capabilities
/// of the file. Where `getcap` is missing, the file counts as one without.
fn is_privileged(program: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_setuid = fs::metadata(program).is_ok_and(|found| found.permissions().mode() & 0o6000 != 0);
    // A user's path often lacks the folder of getcap.
    let has_capabilities =
        |getcap: &&str| Command::new(getcap).arg(program).output().is_ok_and(|output| !output.stdout.is_empty());
    is_setuid || ["getcap", "/usr/sbin/getcap", "/sbin/getcap"].iter().any(has_capabilities)
}
