//! The crates `ibverbs` and `sideway`, as they are in the registry: their own tests and examples.
//!
//! The sources are those that cargo has fetched for the workspace `thirdparty`. They are copied,
//! because cargo and the test of `sideway` that runs the compiler write beside them, and built with
//! the lock files of their own that they bring.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::NO_DEBUG;
use super::run::Launcher;
use crate::system::{at, cargo, make, metadata, output, remove};

/// The crates.
pub(super) const CRATES: [&str; 2] = ["ibverbs", "sideway"];

/// Copies the sources of the crates, and builds their tests and examples.
pub(super) fn build(root: &Path, launcher: &Launcher) -> Result<(), String> {
    let metadata = metadata(&root.join("thirdparty"), &["--locked"])?;
    for name in CRATES {
        let from = source(&metadata, name).ok_or_else(|| format!("thirdparty/ does not use the crate {name}"))?;
        copy(&from, &launcher.sources(name))?;
        output(test(launcher, name).arg("--no-run"))?;
    }
    Ok(())
}

/// `cargo test` of a crate.
pub(super) fn test(launcher: &Launcher, name: &str) -> Command {
    let mut test = cargo(&launcher.sources(name));
    test.args(["test", "--locked", NO_DEBUG, "--target-dir"]).arg(&launcher.crates);
    test
}

/// The folder of a crate from the registry.
fn source(metadata: &Value, name: &str) -> Option<PathBuf> {
    let is_wanted = |package: &&Value| package["name"] == name && package["source"].is_string();
    let package = metadata["packages"].as_array()?.iter().find(is_wanted)?;
    Some(Path::new(package["manifest_path"].as_str()?).parent()?.to_owned())
}

/// Copies a folder, unless a whole copy of the same version is there.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let version = |folder: &Path| std::fs::read(folder.join("Cargo.toml")).map_err(at(folder));
    if version(to).is_ok_and(|copied| version(from).is_ok_and(|source| source == copied)) {
        return Ok(());
    }
    // An interrupted copy leaves no folder that looks complete.
    let new = to.with_extension("new");
    remove(&new)?;
    remove(to)?;
    make(new.parent().unwrap_or(Path::new("/")))?;
    output(Command::new("cp").arg("-r").arg(from).arg(&new))?;
    std::fs::rename(&new, to).map_err(at(to))
}

/// The number of tests that have passed, in what `cargo test` prints.
pub(super) fn passed(text: &str) -> u32 {
    let results = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|result| result.split(' ').next()?.parse::<u32>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... ok\n\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\n\
                    test result: ok. 3 passed; 0 failed\ntest result: FAILED. 5 passed; 1 failed\n";
        assert_eq!(passed(text), 5);
        assert_eq!(passed("running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored\n"), 0);
    }

    #[test]
    fn sources_are_those_of_the_registry() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages": [{"name": "a", "source": null, "manifest_path": "/here/a/Cargo.toml"},
                {"name": "a", "source": "registry", "manifest_path": "/registry/a-1.0.0/Cargo.toml"}]}"#,
        )
        .unwrap();
        assert_eq!(source(&metadata, "a").unwrap(), Path::new("/registry/a-1.0.0"));
        assert_eq!(source(&metadata, "b"), None);
    }
}
