//! The plan of a run: the device tests, each in a process of its own so that a test that hangs or
//! dies is reported by name; the programs; and scripts of cases.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::system::{self, at, cargo, list, output, read};

/// Time limit of one test or program, in seconds. It is longer than the longest wait in a test (240
/// s, for a message of 1 GiB), so that a test that waits in vain says itself what it has waited
/// for.
const LIMIT: u32 = 300;
/// Test binaries that need a compiler but no device.
const NOT_FOR_A_DEVICE: [&str; 1] = ["compile_fail"];
/// The test binary whose name items leave out: it has all tests that need no process of their own.
const COMMON: &str = "it";
/// Packages that are optimized for the guest, where an emulated processor computes checksums and
/// message contents. The other packages are shared with `cargo test`: a `--release` build takes
/// longer than it saves.
const OPTIMIZED: [&str; 8] = [
    "rdma-verbs",
    "rdma-net",
    "rdma-collectives",
    "rdma-verbs-sys",
    "rdma-mem",
    "rdma-soft",
    "rdma-tests",
    "rdma-examples",
];
/// The start of the second line of a script of cases.
const CASES: &str = "# cases:";
/// The device whose tests have two processes, each on a host of its own, and their list.
const HOSTS: &str = "hosts";
const ON_HOSTS: &str = "hosts.txt";
/// The first hosts of the networks of `namespaces.sh`, by the name of the network.
const NETWORKS: [(&str, u8); 3] = [("ipv4", 1), ("ipv6", 4), ("jumbo", 7)];
/// Prefixes of the items that run last: the fault tests disturb the device's links, and the
/// leftovers are those of all tests.
const LAST: [&str; 2] = ["faults::", LEFTOVERS];
const LEFTOVERS: &str = "leftovers::";

/// One test, program or case.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// `module::test` of the binary `it`, `binary::test`, `program::name` or `script::case`.
    pub(crate) name: String,
    /// The line that the guest's shell runs.
    pub(crate) command: String,
}

/// The folder of the stripped programs.
pub(crate) fn programs(root: &Path) -> PathBuf {
    root.join("target/vm/programs")
}

/// The tests and programs that cargo has built.
#[derive(Debug)]
pub(crate) struct Built {
    root: PathBuf,
    tests: Vec<Test>,
    with_programs: bool,
}

/// A device test.
#[derive(Clone, Debug)]
struct Test {
    /// Its name as an item.
    name: String,
    /// The file of its binary, and its name there.
    path: String,
    test: String,
}

impl Built {
    /// Builds the device tests and the programs, or finds those of the last build.
    pub(crate) fn new(root: &Path, with_programs: bool, build: bool) -> Result<Self, String> {
        let all = root.join("target/vm");
        let binaries = all.join("tests.txt");
        if build {
            let built = build_binaries(root, with_programs)?;
            system::write(binaries.clone(), &strip(&built, "test", &all.join("tests"))?)?;
            strip(&built, "bin", &programs(root))?;
            // Tests and programs look for it in their own folder.
            for folder in [all.join("tests"), programs(root)] {
                strip(&built, "cdylib", &folder)?;
            }
        }
        let mut tests = Vec::new();
        for (binary, path) in entries(&read(&binaries)?) {
            tests.extend(list_tests(binary, path)?);
        }
        // cargo reports binaries in the order in which their builds finish.
        tests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { root: root.to_owned(), tests, with_programs })
    }

    /// The plan of a device: the tests and programs of a single host, if asked for, and the cases.
    pub(crate) fn items(&self, device: &str, with_single: bool) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        if with_single {
            items.extend(self.tests.iter().map(|test| test.item(&self.root)));
        }
        if device == HOSTS {
            items.extend(self.on_hosts(&read(&self.root.join("tests/vm").join(ON_HOSTS))?)?);
        }
        if self.with_programs {
            let scripts = self.root.join("tests/vm");
            if with_single {
                items.extend(program_lines(&read(&scripts.join("programs.txt"))?, device));
            }
            items.extend(script_cases(&scripts, device)?);
        }
        items.sort_by_key(|item| {
            LAST.iter().position(|prefix| item.name.starts_with(prefix)).map_or(0, |last| last + 1)
        });
        Ok(items)
    }

    /// The tests of a list, each once in every network, without those that have a reason.
    fn on_hosts(&self, list: &str) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        for (pattern, reason) in entries(list) {
            let mut tests = self.tests.iter().filter(|test| matches(pattern, &test.name)).peekable();
            if tests.peek().is_none() {
                return Err(format!("{ON_HOSTS}: no test is named {pattern}"));
            }
            let tests = tests.filter(|_| reason.is_empty());
            items
                .extend(tests.flat_map(|test| NETWORKS.map(|(network, host)| test.on_host(&self.root, network, host))));
        }
        Ok(items)
    }
}

impl Test {
    fn item(&self, root: &Path) -> Item {
        Item { name: self.name.clone(), command: self.command(root, "") }
    }

    /// The test with its first process on this host of a network.
    fn on_host(&self, root: &Path, network: &str, host: u8) -> Item {
        let on = format!("\"$RDMA_TEST_HOSTS\"/{host}/run ");
        Item { name: format!("{network}::{}", self.name), command: self.command(root, &on) }
    }

    fn command(&self, root: &Path, launcher: &str) -> String {
        let (root, path, test) = (root.display(), &self.path, &self.test);
        format!("cd '{root}/tests' && exec {launcher}'{path}' --exact {test} --nocapture --test-threads=1")
    }
}

/// A binary that cargo has built.
struct Binary {
    /// `test`, `bin` or `cdylib`.
    kind: String,
    name: String,
    path: String,
}

/// The names of the device tests: of the files in a folder, and of its folders with a `main.rs`.
fn device_tests(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let mut tests = Vec::new();
    for entry in entries {
        let path = entry.map_err(at(folder))?.path();
        let is_test = path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
        let name = path.file_stem().and_then(|name| name.to_str());
        tests.extend(name.filter(|name| is_test && !NOT_FOR_A_DEVICE.contains(name)).map(str::to_owned));
    }
    tests.sort();
    Ok(tests)
}

/// Builds the device tests and the programs. Builds the whole workspace, because shared
/// dependencies then have the same features as in `cargo test` and need not be built again.
fn build_binaries(root: &Path, with_programs: bool) -> Result<Vec<Binary>, String> {
    let mut command = cargo(root);
    command.args(["build", "--workspace", "--message-format=json-render-diagnostics"]);
    command.args(with_programs.then_some("--bins"));
    for package in OPTIMIZED {
        command.args(["opt-level=1", "debug=false"].map(|it| format!("--config=profile.dev.package.{package}.{it}")));
    }
    let tests = device_tests(&root.join("tests/tests"))?;
    command.args(tests.iter().flat_map(|test| ["--test", test]));
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the device tests and the programs do not build".into());
    }
    // Other packages have tests with the same names.
    let ours = [("test", "tests"), ("bin", "examples"), ("bin", "soft-rdma"), ("cdylib", "rdma-cuda/stand-in")]
        .map(|(kind, folder)| (kind, root.join(folder).join("Cargo.toml")));
    let binary = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (target, manifest) = (&message["target"], Path::new(message["manifest_path"].as_str()?));
        let kind = text(&target["kind"][0])?;
        let is_ours = ours.iter().any(|ours| *ours == (&*kind, manifest.to_owned()));
        if !is_ours {
            return None;
        }
        let (name, path) = match &*kind {
            "cdylib" => library(message["filenames"].as_array()?)?,
            _ => (text(&target["name"])?, text(&message["executable"])?),
        };
        Some(Binary { kind, name, path })
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(binary).collect())
}

/// The file name and the path of the shared library among files.
fn library(files: &[Value]) -> Option<(String, String)> {
    let path = files.iter().filter_map(Value::as_str).find(|path| path.ends_with(".so"))?;
    Some((Path::new(path).file_name()?.to_str()?.to_owned(), path.to_owned()))
}

/// Copies the binaries of a kind into a folder without their debug information, which an emulated
/// machine is slow to map. Returns lines with a name and a path each.
fn strip(binaries: &[Binary], kind: &str, folder: &Path) -> Result<String, String> {
    system::make(folder)?;
    let mut lines = String::new();
    for Binary { name, path, .. } in binaries.iter().filter(|binary| binary.kind == kind) {
        let to = folder.join(name);
        output(Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(path))?;
        lines += &format!("{name} {}\n", to.display());
    }
    Ok(lines)
}

/// The tests of a binary that are not ignored.
fn list_tests(binary: &str, path: &str) -> Result<Vec<Test>, String> {
    let list = |more: &[&str]| output(Command::new(path).args(["--list", "--format=terse"]).args(more));
    let (all, ignored) = (list(&[])?, list(&["--ignored"])?);
    let test = |test: &str| Test { name: item_name(binary, test), path: path.to_owned(), test: test.to_owned() };
    Ok(names(&all).filter(|test| !names(&ignored).any(|ignored| ignored == *test)).map(test).collect())
}

/// The name of an item for a test of a binary.
fn item_name(binary: &str, test: &str) -> String {
    if binary == COMMON { test.to_owned() } else { format!("{binary}::{test}") }
}

/// The names of the tests in the harness's list.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// The items of `programs.txt` for a device. `NAME COMMAND` applies to every device, `rxe,siw: NAME
/// COMMAND` to the named ones.
fn program_lines(text: &str, device: &str) -> Vec<Item> {
    let line = |(first, rest): (&str, &str)| {
        let (name, command) = match first.strip_suffix(':') {
            Some(devices) if !devices.split(',').any(|one| one == device) => return None,
            Some(_) => entry(rest),
            None => (first, rest),
        };
        Some(Item { name: format!("program::{name}"), command: command.to_owned() })
    };
    entries(text).filter_map(line).collect()
}

/// The cases of the scripts in a folder: `bash SCRIPT list DEVICE` prints their names, and `bash
/// SCRIPT run CASE` runs one.
fn script_cases(folder: &Path, device: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    for path in list(folder, "sh")? {
        if !read(&path)?.lines().nth(1).is_some_and(|line| line.starts_with(CASES)) {
            continue;
        }
        let script = path.file_stem().unwrap_or_default().to_string_lossy();
        for case in output(Command::new("bash").arg(&path).args(["list", device]))?.lines() {
            if case.is_empty() || !case.chars().all(|symbol| symbol.is_ascii_alphanumeric() || symbol == '_') {
                return Err(format!("{}: {case:?} is no name for a case", path.display()));
            }
            let command = format!("bash '{}' run {case}", path.display());
            items.push(Item { name: format!("{script}::{case}"), command });
        }
    }
    Ok(items)
}

/// Known faults: tests that are not run, and kernel messages with other causes. Each line of a file
/// has one name and one reason.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// File name, item name and reason of each entry.
    entries: Vec<(String, String, String)>,
}

impl Known {
    /// Reads `exclude-DEVICE.txt`, the tests that do not apply to the device, and
    /// `exclude-KERNEL-DEVICE.txt`, the faults of that kernel.
    pub(crate) fn read(folder: &Path, device: &str, kernel: &str) -> Result<Self, String> {
        let mut known = Self::default();
        for file in [format!("exclude-{device}.txt"), format!("exclude-{kernel}-{device}.txt")] {
            let path = folder.join(&file);
            if path.exists() {
                known.add(&file, &read(&path)?)?;
            }
        }
        Ok(known)
    }

    fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        for (name, reason) in entries(text) {
            if reason.is_empty() {
                return Err(format!("{file}: {name} has no reason"));
            }
            self.entries.push((file.to_owned(), name.to_owned(), reason.to_owned()));
        }
        Ok(())
    }

    /// Checks the lists in a folder of every device and kernel, also of those that do not run: each
    /// entry names an item of its device's plan, or a message of a kernel.
    pub(crate) fn check_all(folder: &Path, built: &Built) -> Result<(), String> {
        for path in list(folder, "txt")? {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(run) = file.strip_prefix("exclude-").and_then(|file| file.strip_suffix(".txt")) else { continue };
            let device = run.rsplit('-').next().unwrap_or(run);
            let mut known = Self::default();
            known.add(&file, &read(&path)?)?;
            known.exclude(&mut built.items(device, true)?)?;
        }
        Ok(())
    }

    /// Removes the listed items from the plan; returns each removed item with the reason.
    pub(crate) fn exclude(&self, items: &mut Vec<Item>) -> Result<Vec<(String, String)>, String> {
        let mut excluded = Vec::new();
        let with_programs = items.iter().any(|item| item.name.starts_with("program::"));
        for (file, pattern, reason) in self.entries.iter().filter(|entry| !entry.1.starts_with("kernel::")) {
            let (gone, left): (Vec<_>, _) = items.drain(..).partition(|item| matches(pattern, &item.name));
            *items = left;
            if gone.is_empty() && with_programs {
                return Err(format!("{file}: nothing is named {pattern} ({reason})"));
            }
            excluded.extend(gone.into_iter().map(|item| (item.name, reason.clone())));
        }
        Ok(excluded)
    }

    /// The reason for a known message of the kernel: an entry `kernel::TEXT` whose text the message
    /// contains.
    pub(crate) fn complaint(&self, line: &str) -> Option<&str> {
        let texts = self.entries.iter().filter_map(|(_, name, reason)| Some((name.strip_prefix("kernel::")?, reason)));
        texts.filter(|(text, _)| line.contains(text)).map(|(_, reason)| reason.as_str()).next()
    }
}

/// Whether the item examines what all items of the run have left behind, so that it would pass by
/// itself.
pub(crate) fn judges_all(name: &str) -> bool {
    name.starts_with(LEFTOVERS)
}

/// Formats the plan for `guest.sh`.
pub(crate) fn lines(items: &[Item]) -> String {
    items.iter().map(|item| format!("{LIMIT}\t{}\t{}\n", item.name, item.command)).collect()
}

/// Parses lines of a name and a rest; skips comment lines that start with `#`.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(entry)
}

/// Splits a line into a name and the rest.
fn entry(line: &str) -> (&str, &str) {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (name, rest.trim())
}

/// Whether the name equals the pattern, or starts with the part of the pattern before a final `*`.
fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Item> {
        ["rc::a", "rc::b", "control::a", "program::p"]
            .map(|name| Item { name: name.into(), command: String::new() })
            .into()
    }

    fn built(root: &Path, tests: &[&str]) -> Built {
        let test = |name: &&str| Test { name: (*name).to_owned(), path: "/it".into(), test: (*name).to_owned() };
        Built { root: root.to_owned(), tests: tests.iter().map(test).collect(), with_programs: true }
    }

    #[test]
    fn listed_tests_run_in_every_network_of_hosts() {
        let built = built(Path::new("/work"), &["rc::a", "rc::b", "cm::a"]);
        let names =
            |list| built.on_hosts(list).map(|items| items.into_iter().map(|item| item.name).collect::<Vec<_>>());
        assert_eq!(
            names("rc::*\ncm::a  why\n").unwrap(),
            ["ipv4::rc::a", "ipv6::rc::a", "jumbo::rc::a", "ipv4::rc::b", "ipv6::rc::b", "jumbo::rc::b"]
        );
        assert!(names("rc::c").unwrap_err().contains("rc::c"));
        let command = &built.on_hosts("cm::a").unwrap()[1].command;
        assert!(command.contains("exec \"$RDMA_TEST_HOSTS\"/4/run '/it' --exact cm::a "), "{command}");
    }

    #[test]
    fn every_file_with_second_processes_is_in_the_list_of_hosts() {
        let root = crate::root();
        let list = read(&root.join("tests/vm").join(ON_HOSTS)).unwrap();
        let mut files = 0;
        for folder in ["tests/tests", "tests/tests/it"] {
            for path in system::list(&root.join(folder), "rs").unwrap() {
                if read(&path).unwrap().contains("Peer::start") {
                    files += 1;
                    let prefix = format!("{}::", path.file_stem().unwrap().to_str().unwrap());
                    assert!(entries(&list).any(|(name, _)| name.starts_with(&prefix)), "{ON_HOSTS} lacks {prefix}*");
                }
            }
        }
        assert!(files >= 8, "{files}");
    }

    #[test]
    fn folders_with_a_main_file_are_tests_too() {
        let tests = device_tests(&crate::root().join("tests/tests")).unwrap();
        let has = |name: &str| tests.iter().any(|test| test == name);
        assert!(has(COMMON) && has("net"), "{tests:?}");
        assert!(!has("compile_fail") && !has("ui"), "{tests:?}");
    }

    #[test]
    fn a_test_is_called_by_its_module_or_by_its_binary() {
        assert_eq!(item_name("it", "rc::a_test"), "rc::a_test");
        assert_eq!(item_name("net", "a_test"), "net::a_test");
    }

    fn exclude_by(text: &str) -> Result<Vec<String>, String> {
        let mut items = items();
        let mut known = Known::default();
        known.add("list", text)?;
        known.exclude(&mut items).map(|_| items.into_iter().map(|item| item.name).collect())
    }

    #[test]
    fn exclusions_name_one_or_all_that_begin_so() {
        assert_eq!(exclude_by("# why\n\nrc::b  it is so\n").unwrap(), ["rc::a", "control::a", "program::p"]);
        assert_eq!(exclude_by("rc::*  none").unwrap(), ["control::a", "program::p"]);
    }

    #[test]
    fn an_exclusion_of_nothing_or_without_a_reason_is_a_mistake() {
        assert!(exclude_by("rc::c  gone").unwrap_err().contains("rc::c"));
        assert!(exclude_by("rc::a").unwrap_err().contains("no reason"));
    }

    #[test]
    fn lists_of_kernels_that_do_not_run_are_checked_too() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("tests/vm");
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("programs.txt", "p  run\n");
        write("exclude-rxe.txt", "control::a  so\n");
        write("exclude-6.12-siw.txt", "rc::a  so\nprogram::p  so\n");
        let built = built(root.path(), &["rc::a", "rc::b", "control::a"]);
        Known::check_all(&folder, &built).unwrap();
        write("exclude-7.2-rxe.txt", "rc::c  gone\n");
        let error = Known::check_all(&folder, &built).unwrap_err();
        assert!(error.contains("exclude-7.2-rxe.txt") && error.contains("rc::c"), "{error}");
    }

    #[test]
    fn complaints_of_the_kernel_are_known_by_a_part_of_them() {
        let mut known = Known::default();
        known.add("list", "kernel::rxe_resp.c:12  it is so").unwrap();
        assert_eq!(known.complaint("WARNING: CPU: 0 at drivers/rxe_resp.c:12 f+0x1"), Some("it is so"));
        assert_eq!(known.complaint("WARNING: CPU: 0 at drivers/rxe_req.c:12 f+0x1"), None);
        assert!(known.exclude(&mut items()).unwrap().is_empty());
    }

    #[test]
    fn program_lines_may_name_devices() {
        let text = "a  run $X\nrxe,soft: b  other\nsiw: c  third\n";
        let names = |device| program_lines(text, device).into_iter().map(|item| item.name).collect::<Vec<_>>();
        assert_eq!(names("rxe"), ["program::a", "program::b"]);
        assert_eq!(names("siw"), ["program::a", "program::c"]);
        assert_eq!(names("soft"), ["program::a", "program::b"]);
    }

    #[test]
    fn scripts_list_their_cases() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        script("some.sh", "#!/bin/bash\n# cases: two\necho \"one_$2\"; echo two\n");
        script("none.sh", "#!/bin/bash\nexit 1\n");
        let names =
            script_cases(folder.path(), "rxe").map(|items| items.into_iter().map(|item| item.name).collect::<Vec<_>>());
        assert_eq!(names.unwrap(), ["some::one_rxe", "some::two"]);
        script("bad.sh", "#!/bin/bash\n# cases: a bad one\necho 'a; b'\n");
        assert!(script_cases(folder.path(), "rxe").unwrap_err().contains("no name for a case"));
    }
}
