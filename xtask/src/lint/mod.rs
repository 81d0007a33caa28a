//! `cargo xtask lint`: rules of the workspace that neither the compiler nor clippy checks.

mod circles;
mod dependencies;
mod imports;
mod prose;
mod rooms;

use std::{path::Path, process::Command};

use crate::system::output;

/// Runs the command: prints each fault, and fails if there is any.
pub(crate) fn run() -> Result<(), String> {
    let faults = faults()?;
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults", faults.len())) }
}

/// Lists the faults of the workspace.
pub(crate) fn faults() -> Result<Vec<String>, String> {
    let root = crate::root();
    let mut faults = dependencies::check(&root)?;
    let files = files(&root)?;
    faults.extend(prose::check(&root, &files));
    let crates = imports::of_crates(&root, &files);
    faults.extend(circles::check(&crates));
    faults.extend(rooms::check(&root, &crates)?);
    Ok(faults)
}

/// The files that git does not ignore.
pub(crate) fn files(root: &Path) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    Ok(output(&mut git)?.lines().map(str::to_owned).collect())
}
