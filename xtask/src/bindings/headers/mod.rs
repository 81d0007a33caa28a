//! Writes the generated files, or says how they differ.

mod compare;
mod debian;
mod generate;
mod items;
mod layout;

use std::path::{Path, PathBuf};

use super::Options;
use crate::system::{read, write};
use generate::{Generated, generate, version_of};
use items::Items;
use layout::layout;

const TYPES: &str = "rdma-sys/src/bindings.rs";
const FUNCTIONS: &str = "rdma-sys/tests/abi/functions.rs";
const LAYOUT: &str = "rdma-sys/tests/abi/layout.rs";

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    if options.check { check(&root, options) } else { update(&root, options) }
}

/// The folder of the headers (`None`: the system's), and their version.
type Headers = (Option<PathBuf>, String);

fn given(options: &Options) -> Result<Headers, String> {
    match (&options.version, &options.include) {
        (Some(version), include) => Ok((include.clone(), version.clone())),
        (None, Some(_)) => Err("--include needs --version: the files say which version they come from".into()),
        // Not every system has dpkg; a check can do without.
        (None, None) if options.check => Ok((None, debian::installed_version().unwrap_or_else(|_| "?".into()))),
        (None, None) => Ok((None, debian::installed_version()?)),
    }
}

fn fetched(root: &Path, version: Option<&str>) -> Result<Headers, String> {
    let debian::Headers { include, version } = debian::fetch(root, version)?;
    Ok((Some(include), version))
}

fn update(root: &Path, options: &Options) -> Result<(), String> {
    let (include, version) = if options.fetch { fetched(root, options.version.as_deref())? } else { given(options)? };
    let Generated { types, functions } = generate(root, include.as_deref(), &version)?;
    let layout = layout(&Items::parse(&types)?, &version);
    for (path, text) in [(TYPES, types), (FUNCTIONS, functions), (LAYOUT, layout)] {
        let path = write(root.join(path), &text)?;
        println!("wrote {} from rdma-core {version}", path.display());
    }
    Ok(())
}

fn check(root: &Path, options: &Options) -> Result<(), String> {
    let committed = Generated { types: read(&root.join(TYPES))?, functions: read(&root.join(FUNCTIONS))? };
    let version = version_of(&committed.types).ok_or_else(|| format!("{TYPES} does not say its version"))?;
    // The list follows from the bindings, with any headers.
    same(LAYOUT, &read(&root.join(LAYOUT))?, &layout(&Items::parse(&committed.types)?, version))?;

    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let (include, found) = if options.include.is_none() && (options.fetch || in_ci) {
        match fetched(root, Some(version)) {
            Ok(headers) => headers,
            Err(error) if options.fetch => return Err(error),
            Err(error) => {
                println!("rdma-core {version} cannot be had ({error}); taking the system's headers");
                given(options)?
            }
        }
    } else {
        given(options)?
    };
    let generated = generate(root, include.as_deref(), &found)?;
    if found == version {
        same(TYPES, &committed.types, &generated.types)?;
        same(FUNCTIONS, &committed.functions, &generated.functions)?;
        println!("the headers of rdma-core {version} give the committed files");
        return Ok(());
    }
    let older = parse(&generated)?;
    match compare::compare(&older, &parse(&committed)?) {
        Ok(compare::Agreement { constants, types, functions, grown }) => {
            println!(
                "the headers of rdma-core {found} agree with the committed bindings, of {version}: {constants} \
                 constants, {types} types, {functions} functions; grown since: {}",
                grown.join(", ")
            );
            Ok(())
        }
        Err(faults) => Err(format!(
            "the headers of rdma-core {found} and the committed bindings, of {version}, disagree:\n  {}",
            faults.join("\n  ")
        )),
    }
}

fn parse(generated: &Generated) -> Result<Items, String> {
    let mut items = Items::parse(&generated.types)?;
    items.functions = Items::parse(&generated.functions)?.functions;
    Ok(items)
}

/// An error that names the first difference between a committed file and its fresh text.
fn same(path: &str, committed: &str, fresh: &str) -> Result<(), String> {
    let mut lines = committed.lines().zip(fresh.lines()).enumerate();
    match lines.find(|(_, (old, new))| old != new) {
        Some((index, (old, new))) => Err(format!("{path} line {}: `{old}` should be `{new}`", index + 1)),
        None if committed != fresh => Err(format!("{path} should have another length")),
        None => Ok(()),
    }
}
