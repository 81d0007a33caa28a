//! `cargo xtask publish`: checks that the packages can be published, and publishes nothing.
//!
//! `cargo publish --dry-run` packs every package that is not marked `publish = false`, and builds
//! each from its archive, where archives stand in for the packages that the registry lacks. So
//! `soft-rdma` is built as `cargo install` builds it, and must carry the drop-in library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::system::{at, cargo, list, metadata, output, read, remove};

/// Files that each archive has.
const FILES: [&str; 3] = ["README.md", "LICENSE", "LICENSE-APACHE"];
/// Most keywords that the registry takes.
const MOST_KEYWORDS: usize = 5;
/// What a page of the guide says if the docs lack the feature of its programs.
const STUB: &str = "This page is in docs built with the feature";
/// A program of Debian's `ibverbs-utils`, and what it prints of the software device.
const PROGRAM: (&str, &str) = ("ibv_devinfo", "soft0");

/// Runs the command.
pub(crate) fn run() -> Result<(), String> {
    let root = crate::root();
    let metadata = metadata(&root, &["--no-deps", "--locked"])?;
    let packages: Vec<_> = array(&metadata["packages"]).filter(|package| package["publish"].is_null()).collect();
    let faults: Vec<_> = packages.iter().flat_map(|package| faults(package)).collect();
    if !faults.is_empty() {
        return Err(faults.join("\n"));
    }
    let target = folder(&root)?;
    let result = archives(&root, &target, &packages)
        .and_then(|()| try_launcher(&target))
        .and_then(|()| docs(&root, &target, &packages));
    if let Some(folder) = unpacked(&target) {
        remove(&folder)?;
    }
    result?;
    println!("{} packages can be published", packages.len());
    Ok(())
}

/// What a published package's manifest lacks.
fn faults(package: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("{}: {text}", text_of(package, "name")));
    for field in ["description", "license", "readme"] {
        if package[field].is_null() {
            fault(format!("no {field}"));
        }
    }
    let (keywords, categories) = (array(&package["keywords"]).count(), array(&package["categories"]).count());
    if !(1..=MOST_KEYWORDS).contains(&keywords) || categories == 0 {
        fault(format!("{keywords} keywords and {categories} categories"));
    }
    if !package["metadata"]["docs"]["rs"].is_object() {
        fault("no [package.metadata.docs.rs]".into());
    }
    for dependency in array(&package["dependencies"]).filter(|dependency| dependency["path"].is_string()) {
        let (name, has_version) = (text_of(dependency, "name"), dependency["req"] != "*");
        // With a version, a package would have to be published before those that it depends on.
        match (dependency["kind"] == "dev", has_version) {
            (true, true) => fault(format!("the dev-dependency {name} has a version")),
            (false, false) => fault(format!("the dependency {name} has no version")),
            _ => (),
        }
    }
    faults
}

/// A new folder for each run: cargo takes an archive of the same place, name and version for the
/// same archive, and builds what it has unpacked before.
fn folder(root: &Path) -> Result<PathBuf, String> {
    let all = root.join("target/publish");
    remove(&all)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(all.join(now.as_nanos().to_string()))
}

/// The folder in cargo's home where it has unpacked this run's archives: the builds list their
/// sources. Its name begins with the empty host of a local registry.
fn unpacked(target: &Path) -> Option<PathBuf> {
    let lists = list(&target.join("debug/deps"), "d").unwrap_or_default();
    lists.iter().find_map(|list| {
        let text = read(list).ok()?;
        let (home, path) = text.split_whitespace().find_map(|path| path.split_once("/registry/src/-"))?;
        let folder = PathBuf::from(format!("{home}/registry/src/-{}", path.split('/').next()?));
        folder.is_absolute().then_some(folder)
    })
}

/// The name of a package's archive, and of the folder in it.
fn archive(package: &Value) -> String {
    format!("{}-{}", text_of(package, "name"), text_of(package, "version"))
}

/// A command of cargo that builds in the folder `target`, without debug information, which would
/// take half of the time.
fn builder(root: &Path, target: &Path) -> Command {
    let mut cargo = cargo(root);
    cargo.env("CARGO_TARGET_DIR", target).env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    cargo
}

/// Packs the packages and builds each from its archive.
fn archives(root: &Path, target: &Path, packages: &[&Value]) -> Result<(), String> {
    let publish = ["publish", "--workspace", "--dry-run", "--allow-dirty", "--locked", "--quiet"];
    output(builder(root, target).args(publish))?;
    for package in packages {
        let unpacked = target.join("package").join(archive(package));
        for file in FILES {
            let path = unpacked.join(file);
            if read(&path)?.trim().is_empty() {
                return Err(format!("{} is empty", path.display()));
            }
        }
    }
    Ok(())
}

/// Runs a program by the launcher that was built from its archive.
fn try_launcher(target: &Path) -> Result<(), String> {
    let mut launcher = Command::new(target.join("debug/soft-rdma"));
    launcher.arg(PROGRAM.0).env("XDG_CACHE_HOME", target.join("cache"));
    let printed = output(&mut launcher)?;
    if printed.contains(PROGRAM.1) {
        return Ok(());
    }
    Err(format!("{} shows no {} under soft-rdma:\n{printed}", PROGRAM.0, PROGRAM.1))
}

/// Builds the docs with the features of docs.rs, and looks for pages that lack theirs. For packages
/// that it builds with their default features, CI's stage `doc` does the same.
fn docs(root: &Path, target: &Path, packages: &[&Value]) -> Result<(), String> {
    let names = packages.iter().filter(|package| has_more_features(package));
    let names = names.flat_map(|package| ["--package", text_of(package, "name")]);
    let mut doc = builder(root, target);
    doc.args(["doc", "--no-deps", "--all-features", "--locked", "--quiet"]).args(names);
    output(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    let folder = target.join("doc");
    // Of the sources, one has the sentence itself.
    remove(&folder.join("src"))?;
    match stubs(&folder)?.first() {
        Some(page) => Err(format!("{}: on docs.rs, this page would lack its text", page.display())),
        None => Ok(()),
    }
}

/// Whether docs.rs builds the package's docs with all features, of which it has more than defaults.
fn has_more_features(package: &Value) -> bool {
    let has_any = package["features"].as_object().is_some_and(|features| !features.is_empty());
    has_any && package["metadata"]["docs"]["rs"]["all-features"] == true
}

/// The pages below a folder that have no text because a feature is missing.
fn stubs(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            found.extend(stubs(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "html") && read(&path)?.contains(STUB) {
            found.push(path);
        }
    }
    Ok(found)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package() -> Value {
        json!({
            "name": "one", "description": "A", "license": "MIT", "readme": "README.md", "keywords": ["rdma"],
            "categories": ["emulators"], "features": {}, "metadata": { "docs": { "rs": { "all-features": true } } },
            "dependencies": [
                { "name": "two", "path": "/two", "kind": null, "req": "^0.1.0" },
                { "name": "tests", "path": "/tests", "kind": "dev", "req": "*" },
                { "name": "libc", "kind": null, "req": "^0.2" },
            ],
        })
    }

    #[test]
    fn a_manifest_has_what_the_registry_asks_for() {
        assert_eq!(faults(&package()), [""; 0]);
        let mut package = package();
        package["readme"] = Value::Null;
        package["keywords"] = json!(["a", "b", "c", "d", "e", "f"]);
        package["metadata"] = Value::Null;
        let expected = ["one: no readme", "one: 6 keywords and 1 categories", "one: no [package.metadata.docs.rs]"];
        assert_eq!(faults(&package), expected);
    }

    #[test]
    fn dependencies_have_versions_and_dev_dependencies_none() {
        let mut package = package();
        package["dependencies"][0]["req"] = "*".into();
        package["dependencies"][1]["req"] = "^0.1.0".into();
        let expected = ["one: the dependency two has no version", "one: the dev-dependency tests has a version"];
        assert_eq!(faults(&package), expected);
    }

    #[test]
    fn docs_are_built_of_packages_with_features() {
        let mut package = package();
        assert!(!has_more_features(&package));
        package["features"] = json!({ "soft": [] });
        assert!(has_more_features(&package));
        package["metadata"]["docs"]["rs"] = json!({ "targets": [] });
        assert!(!has_more_features(&package));
    }

    #[test]
    fn unpacked_archives_are_where_the_builds_found_them() {
        let target = tempfile::tempdir().unwrap();
        let deps = target.path().join("debug/deps");
        assert_eq!(unpacked(target.path()), None);
        fs::create_dir_all(&deps).unwrap();
        let sources = |name: &str, text: &str| fs::write(deps.join(name), text).unwrap();
        sources("libc-1.d", "/t/libc.rlib: /home/.cargo/registry/src/index-1f/libc-0.2.1/src/lib.rs\n");
        assert_eq!(unpacked(target.path()), None);
        sources("one-1.d", "/t/one.rlib: /home/.cargo/registry/src/-5a/one-0.1.0/src/lib.rs /t/out\n");
        assert_eq!(unpacked(target.path()), Some(PathBuf::from("/home/.cargo/registry/src/-5a")));
    }

    #[test]
    fn pages_without_their_text_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("guide")).unwrap();
        page("index.html", "<p>whole</p>");
        page("search.js", STUB);
        assert!(stubs(folder.path()).unwrap().is_empty());
        page("guide/index.html", &format!("<p>{STUB} <code>net</code>.</p>"));
        assert_eq!(stubs(folder.path()).unwrap(), [folder.path().join("guide/index.html")]);
    }

    #[test]
    fn the_guide_has_the_sentence_that_is_looked_for() {
        assert!(read(&crate::root().join("rdma/src/guide/mod.rs")).unwrap().contains(STUB));
    }
}
