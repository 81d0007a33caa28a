//! `cargo xtask lint`: rules of the workspace that neither the compiler nor clippy checks.

mod dependencies;
mod prose;

/// Runs the command: prints each fault, and fails if there is any.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let mut faults = dependencies::check(&root)?;
    faults.extend(prose::check(&root)?);
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults", faults.len())) }
}
