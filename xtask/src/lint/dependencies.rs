//! Rules for dependencies: each one is used, none needs a newer compiler than the workspace's
//! minimum, and none builds C.

use std::{collections::HashSet, path::Path, process::Command};

use serde_json::Value;

use crate::system::{cargo, metadata, output, read};

/// Packages that run a C compiler, cmake or libclang when a dependent package is built.
const C_BUILDERS: [&str; 6] = ["autotools", "bindgen", "cc", "clang-sys", "cmake", "pkg-config"];
/// Packages that say that they link Python, and do not: a module finds Python's functions in the
/// process that loads it.
const MODULES_OF_PYTHON: [&str; 2] = ["pyo3", "pyo3-ffi"];
/// The targets of the committed bindings.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Lists the faults of the workspace in `root`.
pub(super) fn check(root: &Path) -> Result<Vec<String>, String> {
    let manifest = read(&root.join("Cargo.toml"))?;
    let default = packages(root, &[])?;
    let all = packages(root, &["--all-features"])?;
    let (members, _): (Vec<_>, Vec<_>) = all.iter().partition(|package| package["source"].is_null());
    let minimum = members.iter().find_map(|member| version(member)).ok_or("no rust-version in Cargo.toml")?;

    let mut faults = unused_in_workspace(&manifest, &members);
    faults.extend(members.iter().flat_map(|member| unused_in_member(member)));
    faults.extend(all.iter().filter_map(|package| too_new(package, minimum)));
    let built = built(root)?;
    let links = |package: &Value| !package["links"].is_null() && !MODULES_OF_PYTHON.contains(&name(package));
    let builds_c = |package: &&Value| C_BUILDERS.contains(&name(package)) || links(package);
    faults.extend(default.iter().filter(|package| built.contains(name(package))).filter(builds_c).map(|package| {
        let name = name(package);
        format!("{name} builds or links C code; cargo tree --workspace --edges all --invert {name} shows for whom")
    }));
    Ok(faults)
}

/// Entries of `[workspace.dependencies]` that no member uses.
fn unused_in_workspace(manifest: &str, members: &[&Value]) -> Vec<String> {
    let table = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let entries = table.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once(" = "));
    let is_used = |entry: &str| members.iter().any(|member| dependencies(member).any(|used| used == entry));
    let unused = entries.map(|(entry, _)| entry).filter(|entry| !is_used(entry));
    unused.map(|entry| format!("Cargo.toml: no crate uses the workspace's dependency {entry}")).collect()
}

/// Dependencies of a member that none of its sources mentions.
fn unused_in_member(member: &Value) -> impl Iterator<Item = String> {
    let manifest = text(member, "manifest_path");
    let names = |dependency: &&str| {
        let mut git = Command::new("git");
        git.current_dir(Path::new(manifest).parent().unwrap_or(Path::new(".")));
        git.args(["grep", "--untracked", "--quiet", "--word-regexp", &dependency.replace('-', "_")]);
        git.args(["--", "*.rs", "src/*.md"]);
        git.status().is_ok_and(|status| status.success())
    };
    let unused = dependencies(member).filter(move |dependency| !names(dependency));
    unused.map(move |dependency| format!("{manifest}: no source names the dependency {dependency}"))
}

/// The fault of a package that needs a newer compiler than `minimum`, if it does.
fn too_new(package: &Value, minimum: (u32, u32)) -> Option<String> {
    let needed = version(package).filter(|needed| *needed > minimum)?;
    Some(format!("{} needs Rust {}.{}, newer than ours, 1.{}", name(package), needed.0, needed.1, minimum.1))
}

/// The packages in `cargo metadata` that are built for `TARGETS`.
fn packages(root: &Path, options: &[&str]) -> Result<Vec<Value>, String> {
    let platforms = TARGETS.map(|target| ["--filter-platform", target]);
    match metadata(root, &[&["--locked"], options, platforms.as_flattened()].concat())?["packages"].take() {
        Value::Array(packages) => Ok(packages),
        other => Err(format!("cargo metadata lists no packages: {other}")),
    }
}

/// The names of the packages that a default build has. `cargo metadata` lists more: packages that
/// weak features name and nothing enables.
fn built(root: &Path) -> Result<HashSet<String>, String> {
    let mut cargo = cargo(root);
    cargo.args("tree --workspace --locked --edges normal,build,dev --prefix none --format {p}".split(' '));
    cargo.args(TARGETS.iter().flat_map(|target| ["--target", *target]));
    let tree = output(&mut cargo)?;
    Ok(tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// The names by which a package knows its dependencies.
fn dependencies(package: &Value) -> impl Iterator<Item = &str> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies.map(|dependency| dependency["rename"].as_str().unwrap_or(name(dependency)))
}

fn name(package: &Value) -> &str {
    text(package, "name")
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// The `rust-version` of a package, if it has one.
fn version(package: &Value) -> Option<(u32, u32)> {
    let mut numbers = package["rust_version"].as_str()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_workspace_dependency_without_a_user_is_a_fault() {
        let manifest = "[workspace]\na = 1\n\n[workspace.dependencies]\nused = \"1\"\n\nidle = { version = \"2\" }\n\n[x]\nb = 1\n";
        let member =
            json!({ "dependencies": [{ "name": "package", "rename": "used" }, { "name": "other", "rename": null }] });
        let faults = unused_in_workspace(manifest, &[&member]);
        assert_eq!(faults, ["Cargo.toml: no crate uses the workspace's dependency idle"]);
    }

    #[test]
    fn a_dependency_that_needs_a_newer_compiler_is_a_fault() {
        let fault = |needed| too_new(&json!({ "name": "new", "rust_version": needed }), (1, 85));
        assert_eq!(fault(Some("1.86.0")).unwrap(), "new needs Rust 1.86, newer than ours, 1.85");
        for needed in [Some("1.85.1"), Some("1.9"), None] {
            assert_eq!(fault(needed), None);
        }
    }
}
