//! Writes the generated files, or reports how they differ.

mod debian;
mod generate;
mod items;
mod layout;

use std::path::Path;

use super::Options;
use crate::system::{read, write};
use generate::{Generated, generate, version_of};
use items::Items;
use layout::layout;

const TYPES: &str = "rdma-sys/src/bindings.rs";
const FUNCTIONS: &str = "rdma-sys/tests/it/abi/functions.rs";
const LAYOUT: &str = "rdma-sys/tests/it/abi/layout.rs";

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    if options.check { check(&root) } else { update(&root, options) }
}

fn update(root: &Path, options: &Options) -> Result<(), String> {
    let (include, version) = match (&options.include, &options.version) {
        (Some(include), Some(version)) => (include.clone(), version.clone()),
        (_, version) => debian::fetch(root, version.as_deref())?,
    };
    let Generated { types, functions } = generate(root, &include, &version)?;
    let layout = layout(&Items::parse(&types)?, &version);
    for (path, text) in [(TYPES, types), (FUNCTIONS, functions), (LAYOUT, layout)] {
        let path = write(root.join(path), &text)?;
        println!("wrote {} from rdma-core {version}", path.display());
    }
    Ok(())
}

fn check(root: &Path) -> Result<(), String> {
    let committed = Generated { types: read(&root.join(TYPES))?, functions: read(&root.join(FUNCTIONS))? };
    let version = version_of(&committed.types).ok_or_else(|| format!("{TYPES} does not say its version"))?;
    // The list depends on the bindings alone, so this check needs no headers.
    same(LAYOUT, &read(&root.join(LAYOUT))?, &layout(&Items::parse(&committed.types)?, version))?;
    let include = match debian::fetch(root, Some(version)) {
        Ok((include, _)) => include,
        Err(error) => {
            println!("not compared: Debian's headers of rdma-core {version} cannot be had ({error})");
            return Ok(());
        }
    };
    let generated = generate(root, &include, version)?;
    same(TYPES, &committed.types, &generated.types)?;
    same(FUNCTIONS, &committed.functions, &generated.functions)?;
    println!("the headers of rdma-core {version} give the committed files");
    Ok(())
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
