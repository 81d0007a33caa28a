//! Writes the generated files, or says how they differ.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Options, compare, debian,
    generate::{Generated, generate, version_of},
    items::Items,
    layout::layout,
};

const TYPES: &str = "rdma-sys/src/bindings.rs";
const FUNCTIONS: &str = "rdma-sys/src/functions.rs";
const LAYOUT: &str = "rdma-sys/tests/abi/layout.rs";

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    if options.check { check(&root, options) } else { update(&root, options) }
}

/// Where the headers are (`None`: the system's), and their version.
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
    for (path, text) in files(&generate(root, include.as_deref(), &version)?, &version)? {
        let path = root.join(path);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("wrote {} from rdma-core {version}", path.display());
    }
    Ok(())
}

fn files(generated: &Generated, version: &str) -> Result<[(&'static str, String); 3], String> {
    let Generated { types, functions } = generated;
    let layout = layout(&Items::parse(types)?, version);
    Ok([(TYPES, types.clone()), (FUNCTIONS, functions.clone()), (LAYOUT, layout)])
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))
}

fn check(root: &Path, options: &Options) -> Result<(), String> {
    let committed = Generated { types: read(root, TYPES)?, functions: read(root, FUNCTIONS)? };
    let version = version_of(&committed.types).ok_or_else(|| format!("{TYPES} does not say its version"))?;
    check_layout(root, &committed, version)?;

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
        for ((path, fresh), old) in
            files(&generated, &found)?.into_iter().zip([&committed.types, &committed.functions, &read(root, LAYOUT)?])
        {
            if let Some(difference) = first_difference(old, &fresh) {
                return Err(format!("{path} is not what the headers of rdma-core {version} give: {difference}"));
            }
        }
        println!("the committed files are what the headers of rdma-core {version} give");
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

/// The ABI test's list follows from the bindings, whatever headers there are.
fn check_layout(root: &Path, committed: &Generated, version: &str) -> Result<(), String> {
    let fresh = layout(&Items::parse(&committed.types)?, version);
    match first_difference(&read(root, LAYOUT)?, &fresh) {
        None => Ok(()),
        Some(difference) => Err(format!("{LAYOUT} does not fit {TYPES}: {difference}")),
    }
}

fn parse(generated: &Generated) -> Result<Items, String> {
    let mut items = Items::parse(&generated.types)?;
    items.functions = Items::parse(&generated.functions)?.functions;
    Ok(items)
}

fn first_difference(old: &str, fresh: &str) -> Option<String> {
    let mut lines = old.lines().zip(fresh.lines()).enumerate();
    match lines.find(|(_, (old, fresh))| old != fresh) {
        Some((index, (old, fresh))) => Some(format!("line {}: `{old}` should be `{fresh}`", index + 1)),
        None if old != fresh => Some("one ends before the other".into()),
        None => None,
    }
}
