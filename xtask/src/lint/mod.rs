//! `cargo xtask lint`: rules of the workspace that neither the compiler nor clippy knows.

mod dependencies;
mod prose;

/// Without an option: the rules of dependencies.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Check comments and documents too: the length of lines, and SAFETY comments that argue
    /// nothing.
    #[arg(long)]
    prose: bool,
}

/// Runs the command: prints each fault, and fails if there is one.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    let mut faults = dependencies::check(&root)?;
    if options.prose {
        faults.extend(prose::check(&root)?);
    }
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults", faults.len())) }
}
