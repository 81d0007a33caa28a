//! What is run in the guest: the device tests, one process each so that one that hangs or dies says its name, and the programs.

use std::{fs, path::Path, process::Command};

use crate::apt;

/// Seconds that one test or program may take in an emulated machine.
const LIMIT: u32 = 120;
/// Test binaries that need a compiler and no device.
const NOT_FOR_A_DEVICE: [&str; 1] = ["compile_fail"];

/// One thing to run.
#[derive(Debug)]
pub(crate) struct Item {
    /// `binary::test`, or `program::name`.
    pub(crate) name: String,
    /// A line for the guest's shell.
    pub(crate) command: String,
}

/// Builds the device tests and lists them.
pub(crate) fn tests(root: &Path) -> Result<Vec<Item>, String> {
    let mut cargo = cargo(root);
    let output = cargo
        .args(["test", "--package", "rdma-tests", "--tests", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the device tests do not build".into());
    }
    let mut items = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let is_test = message["target"]["kind"][0] == "test";
        let (Some(path), Some(binary)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        if !is_test || NOT_FOR_A_DEVICE.contains(&binary) {
            continue;
        }
        let list = |more: &[&str]| apt::output(Command::new(path).args(["--list", "--format=terse"]).args(more));
        let ignored = list(&["--ignored"])?;
        for test in names(&list(&[])?).filter(|test| !names(&ignored).any(|ignored| ignored == *test)) {
            let command =
                format!("cd '{}/tests' && '{path}' --exact {test} --nocapture --test-threads=1", root.display());
            items.push(Item { name: format!("{binary}::{test}"), command });
        }
    }
    // cargo reports its binaries in the order in which they were done.
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(items)
}

/// The tests in the harness' list.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// Builds the programs, and reads from `tests/vm/programs.txt` how to run them.
pub(crate) fn programs(root: &Path) -> Result<Vec<Item>, String> {
    let status = cargo(root).args(["build", "--release", "--package", "rdma-examples", "--bins"]).status();
    if !status.map_err(|error| format!("cannot run cargo: {error}"))?.success() {
        return Err("the programs do not build".into());
    }
    let metadata = apt::output(cargo(root).args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    let list = read(&root.join("tests/vm/programs.txt"))?;
    Ok(entries(&list)
        .map(|(name, command)| Item {
            name: format!("program::{name}"),
            command: format!("PATH='{target}/release':$PATH; {command}"),
        })
        .collect())
}

/// Takes out what the list of known faults names, and returns each with the reason.
pub(crate) fn exclude(items: &mut Vec<Item>, list: &Path) -> Result<Vec<String>, String> {
    let text = if list.exists() { read(list)? } else { String::new() };
    exclude_entries(items, &text).map_err(|error| format!("{}: {error}", list.display()))
}

fn exclude_entries(items: &mut Vec<Item>, text: &str) -> Result<Vec<String>, String> {
    let mut excluded = Vec::new();
    for (pattern, reason) in entries(text) {
        let known = items.len();
        items.retain(|item| {
            let is_excluded = matches(pattern, &item.name);
            if is_excluded {
                excluded.push(format!("{}: {reason}", item.name));
            }
            !is_excluded
        });
        let is_left_out = pattern.starts_with("program::") && !items.iter().any(is_program);
        if items.len() == known && !is_left_out {
            return Err(format!("nothing is named {pattern} ({reason})"));
        }
    }
    Ok(excluded)
}

fn is_program(item: &Item) -> bool {
    item.name.starts_with("program::")
}

/// The plan as `guest.sh` reads it.
pub(crate) fn lines(items: &[Item]) -> String {
    items.iter().map(|item| format!("{LIMIT}\t{}\t{}\n", item.name, item.command)).collect()
}

/// Lines of a name and the rest; `#` begins a comment.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(char::is_whitespace).unwrap_or((line, ""))).map(|(name, rest)| (name, rest.trim()))
}

/// Whether the name is the pattern, or begins with it up to its final `*`.
fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items() -> Vec<Item> {
        ["rc::a", "rc::b", "control::a"].map(|name| Item { name: name.into(), command: String::new() }).into()
    }

    fn exclude_by(text: &str) -> Result<Vec<String>, String> {
        let mut items = items();
        exclude_entries(&mut items, text).map(|_| items.into_iter().map(|item| item.name).collect())
    }

    #[test]
    fn exclusions_name_one_or_all_that_begin_so() {
        assert_eq!(exclude_by("# why\n\nrc::b  it is so\n").unwrap(), ["rc::a", "control::a"]);
        assert_eq!(exclude_by("rc::*  none").unwrap(), ["control::a"]);
    }

    #[test]
    fn an_exclusion_of_nothing_is_a_mistake() {
        assert!(exclude_by("rc::c  gone").unwrap_err().contains("rc::c"));
    }
}
