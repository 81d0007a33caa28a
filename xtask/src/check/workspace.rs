//! The packages of the workspace, and what a change of files reaches in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// Files of the root that every crate is built with.
const SHARED: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "rust-toolchain", "rust-toolchain.toml", "clippy.toml", ".clippy.toml"];
/// Files and folders that unit tests do not read, and the command that tests them.
const ELSEWHERE: [(&str, &str); 7] = [
    ("README.md", "cargo test -p rdma-tests --doc"),
    ("rdma/src/guide/", "cargo test -p rdma-verbs --all-features --doc"),
    ("rdma-net/src/guide/", "cargo test -p rdma-net --all-features --doc"),
    ("rdma-soft/dropin/UNSUPPORTED.md", "cargo test -p xtask unsupported"),
    ("rdma-soft/dropin/symbols.txt", "cargo xtask symbols"),
    ("tests/vm/", "cargo xtask vm"),
    ("thirdparty/", "cargo xtask thirdparty"),
];

/// A package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// The identifier in cargo's messages.
    pub(super) id: String,
    /// The folder of its manifest, relative to the root.
    pub(super) folder: String,
    /// The programs with unit tests, of a package without a library.
    pub(super) tested_programs: Vec<String>,
    /// Whether the library has `test = true`; `None` without a library.
    library: Option<bool>,
    /// The names of direct dependencies that the library or its build script has.
    dependencies: BTreeSet<String>,
    /// The names of direct dependencies that tests and benchmarks have.
    dev_dependencies: BTreeSet<String>,
    /// Integration tests and benchmarks.
    harnesses: Vec<Harness>,
}

impl Package {
    pub(super) fn has_unit_tests(&self) -> bool {
        self.library.unwrap_or(!self.tested_programs.is_empty())
    }

    /// Whether `test = false` stands in the manifest's `[lib]`.
    pub(super) fn has_untested_library(&self) -> bool {
        self.library == Some(false)
    }

    /// The part of the path below the package's folder, if the file is there.
    fn below<'a>(&self, file: &'a str) -> Option<&'a str> {
        file.strip_prefix(&*self.folder)?.strip_prefix('/')
    }

    /// The command that runs the integration test or the benchmark whose source the file is, or all
    /// of them if several share the file.
    fn harness_command(&self, file: &str) -> Option<String> {
        let below = self.below(file)?;
        let (folder, all) = if below.starts_with("tests/") {
            ("test", "tests")
        } else if below.starts_with("benches/") {
            ("bench", "benches")
        } else {
            return None;
        };
        let mut candidates = self.harnesses.iter().filter(|harness| harness.kind == folder).peekable();
        candidates.peek()?;
        let option = match candidates.find(|harness| harness.has(below)) {
            Some(harness) => format!("--{folder} {}", harness.name),
            None => format!("--{all}"),
        };
        // A benchmark takes long; as a test, it runs once.
        Some(format!("cargo test -p {} {option}", self.name))
    }
}

/// An integration test or a benchmark.
#[derive(Debug)]
struct Harness {
    name: String,
    kind: &'static str,
    /// The path of the source, relative to the package.
    source: String,
}

impl Harness {
    /// Whether the file, relative to the package, belongs to this harness alone: its source, or a
    /// file beside its `main.rs`.
    fn has(&self, file: &str) -> bool {
        let folder = self.source.strip_suffix("/main.rs").and_then(|folder| file.strip_prefix(folder));
        file == self.source || folder.is_some_and(|rest| rest.starts_with('/'))
    }
}

/// The packages of the workspace.
#[derive(Debug)]
pub(super) struct Workspace(Vec<Package>);

impl Workspace {
    /// Reads the output of `cargo metadata --no-deps`.
    pub(super) fn new(metadata: &Value) -> Result<Self, String> {
        let root = text(metadata, "workspace_root")?;
        let packages = array(metadata, "packages")?;
        Ok(Self(packages.iter().map(|package| parse(root, package)).collect::<Result<_, String>>()?))
    }

    pub(super) fn packages(&self) -> impl Iterator<Item = &Package> {
        self.0.iter()
    }

    /// The packages whose code a change of these files changes.
    pub(super) fn changed(&self, files: &BTreeSet<String>) -> BTreeSet<&str> {
        if files.iter().any(|file| SHARED.contains(&&**file) || file.starts_with(".cargo/")) {
            return self.packages().map(|package| &*package.name).collect();
        }
        let code = files.iter().filter(|file| !is_text(file));
        code.filter_map(|file| self.owner(file)).map(|package| &*package.name).collect()
    }

    /// The packages that depend on `changed`, directly or through others, without those in it. A
    /// dependency of tests is the last step: nothing depends on tests.
    pub(super) fn dependents(&self, changed: &BTreeSet<&str>) -> BTreeSet<&str> {
        let mut reached: BTreeSet<&str> = self.packages().map(|package| &*package.name).collect();
        reached.retain(|name| changed.contains(name));
        loop {
            let more = self.users(&reached, |package| &package.dependencies);
            if more.is_subset(&reached) {
                break;
            }
            reached.extend(more);
        }
        reached.extend(self.users(&reached, |package| &package.dev_dependencies));
        reached.retain(|name| !changed.contains(name));
        reached
    }

    /// The packages that have one of `names` among those dependencies.
    fn users(&self, names: &BTreeSet<&str>, of: impl Fn(&Package) -> &BTreeSet<String>) -> BTreeSet<&str> {
        let users = self.packages().filter(|package| of(package).iter().any(|name| names.contains(&**name)));
        users.map(|package| &*package.name).collect()
    }

    /// Commands that test what the files contain besides code with unit tests, each with one of the
    /// files.
    pub(super) fn hints<'a>(&self, files: &[&'a str]) -> BTreeMap<String, &'a str> {
        let mut hints = BTreeMap::new();
        for file in files {
            let is_place = |place: &str| *file == place || place.ends_with('/') && file.starts_with(place);
            let elsewhere = ELSEWHERE.iter().find(|(place, _)| is_place(place));
            let command = match elsewhere {
                Some((_, command)) => Some((*command).to_owned()),
                None => self.owner(file).and_then(|package| package.harness_command(file)),
            };
            hints.extend(command.map(|command| (command, *file)));
        }
        hints
    }

    /// The innermost package whose folder has the file.
    fn owner(&self, file: &str) -> Option<&Package> {
        let owners = self.packages().filter(|package| package.below(file).is_some());
        owners.max_by_key(|package| package.folder.len())
    }
}

fn parse(root: &str, package: &Value) -> Result<Package, String> {
    let manifest = Path::new(text(package, "manifest_path")?);
    let folder = manifest.parent().unwrap_or(manifest);
    let mut library = None;
    let (mut tested_programs, mut harnesses) = (Vec::new(), Vec::new());
    for target in array(package, "targets")? {
        let name = text(target, "name")?.to_owned();
        let is_tested = target["test"] == true;
        let is = |wanted: &[&str]| wanted.iter().any(|wanted| target["kind"][0] == *wanted);
        if is(&["lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro"]) {
            library = Some(is_tested);
        } else if is(&["bin"]) && is_tested {
            tested_programs.push(name);
        } else if let Some(kind) = ["test", "bench"].into_iter().find(|kind| is(&[kind])) {
            harnesses.push(Harness { name, kind, source: relative(folder, text(target, "src_path")?) });
        }
    }
    if library.is_some() {
        tested_programs.clear();
    }
    let (mut dependencies, mut dev_dependencies) = (BTreeSet::new(), BTreeSet::new());
    for dependency in array(package, "dependencies")? {
        let of = if dependency["kind"] == "dev" { &mut dev_dependencies } else { &mut dependencies };
        of.insert(text(dependency, "name")?.to_owned());
    }
    Ok(Package {
        name: text(package, "name")?.to_owned(),
        id: text(package, "id")?.to_owned(),
        folder: relative(Path::new(root), text(package, "manifest_path")?.trim_end_matches("/Cargo.toml")),
        tested_programs,
        library,
        dependencies,
        dev_dependencies,
        harnesses,
    })
}

/// The path relative to the folder, if it is below the folder.
fn relative(folder: &Path, path: &str) -> String {
    let path = Path::new(path);
    path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned()
}

/// Whether the file is documentation or a script, neither of which clippy or a unit test reads.
fn is_text(file: &str) -> bool {
    matches!(Path::new(file).extension().and_then(|extension| extension.to_str()), Some("md" | "sh"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("cargo metadata has no {key}"))
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("cargo metadata has no {key}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `top` depends on `middle`, `middle` on `base`; the tests of `side` depend on `base`, and
    /// `over` on `side`; `base/inner` and `tool` depend on nothing.
    fn workspace() -> Workspace {
        let target = |kind: &str, name: &str, path: &str, test: bool| {
            let path = format!("/root/{path}");
            json!({"kind": [kind], "name": name, "src_path": path, "test": test})
        };
        let package = |name: &str, folder: &str, dependencies: &[&str], targets: Vec<Value>| {
            let dependency = |name: &&str| match name.strip_prefix("dev ") {
                Some(name) => json!({"name": name, "kind": "dev"}),
                None => json!({"name": name, "kind": null}),
            };
            let dependencies: Vec<_> = dependencies.iter().map(dependency).collect();
            let manifest = format!("/root/{folder}/Cargo.toml");
            let id = format!("path+file:///root/{folder}#{name}");
            json!({"name": name, "id": id, "manifest_path": manifest, "dependencies": dependencies, "targets": targets})
        };
        let metadata = json!({"workspace_root": "/root", "packages": [
            package("top", "top", &["libc", "middle"], vec![
                target("lib", "top", "top/src/lib.rs", true),
                target("bin", "program", "top/src/bin/program.rs", true),
                target("test", "single", "top/tests/single.rs", true),
                target("test", "it", "top/tests/it/main.rs", true),
                target("bench", "speed", "top/benches/speed.rs", false),
            ]),
            package("middle", "middle", &["base"], vec![target("cdylib", "middle", "middle/src/lib.rs", false)]),
            package("base", "base", &["libc"], vec![target("lib", "base", "base/src/lib.rs", true)]),
            package("side", "side", &["dev base"], vec![target("lib", "side", "side/src/lib.rs", true)]),
            package("over", "over", &["side"], vec![target("lib", "over", "over/src/lib.rs", true)]),
            package("inner", "base/inner", &[], vec![target("proc-macro", "inner", "base/inner/l.rs", false)]),
            package("tool", "tool", &[], vec![target("bin", "tool", "tool/src/main.rs", true)]),
        ]});
        Workspace::new(&metadata).unwrap()
    }

    fn changed(files: &[&str]) -> Vec<String> {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        workspace().changed(&files).into_iter().map(str::to_owned).collect()
    }

    fn dependents(changed: &[&str]) -> Vec<String> {
        let changed = changed.iter().copied().collect();
        workspace().dependents(&changed).into_iter().map(str::to_owned).collect()
    }

    fn hint(file: &str) -> Option<String> {
        workspace().hints(&[file]).into_keys().next()
    }

    #[test]
    fn a_file_belongs_to_the_innermost_package() {
        assert_eq!(changed(&["base/src/lib.rs"]), ["base"]);
        assert_eq!(changed(&["base/inner/src/lib.rs"]), ["inner"]);
        assert_eq!(changed(&["base/Cargo.toml", "top/tests/data.txt"]), ["base", "top"]);
        // The start of a folder's name is not the folder.
        assert_eq!(changed(&["base-two/src/lib.rs", "LICENSE", ".ci/run"]), [""; 0]);
    }

    #[test]
    fn files_of_the_root_change_all_packages() {
        for file in ["Cargo.toml", "Cargo.lock", ".cargo/config.toml", "clippy.toml"] {
            assert_eq!(changed(&[file]), ["base", "inner", "middle", "over", "side", "tool", "top"], "{file}");
        }
        assert_eq!(changed(&["rustfmt.toml"]), [""; 0]);
    }

    #[test]
    fn documentation_and_scripts_change_no_package() {
        assert_eq!(changed(&["README.md", "base/README.md", "base/src/guide/page.md", "top/tests/run.sh"]), [""; 0]);
        assert_eq!(changed(&["base/README.md", "top/src/lib.rs"]), ["top"]);
    }

    #[test]
    fn dependents_are_found_through_others() {
        assert_eq!(dependents(&["base"]), ["middle", "side", "top"]);
        assert_eq!(dependents(&["base", "top"]), ["middle", "side"]);
        assert_eq!(dependents(&["middle"]), ["top"]);
        assert_eq!(dependents(&["side"]), ["over"]);
        assert_eq!(dependents(&["top", "tool", "inner"]), [""; 0]);
    }

    #[test]
    fn unit_tests_are_in_the_library_or_in_programs_without_one() {
        let workspace = workspace();
        let package = |name: &str| workspace.packages().find(|package| package.name == name).unwrap();
        assert!(package("top").has_unit_tests() && package("top").tested_programs.is_empty());
        assert!(package("tool").has_unit_tests() && package("tool").tested_programs == ["tool"]);
        for (name, has_untested_library) in [("middle", true), ("inner", true), ("tool", false), ("top", false)] {
            assert_eq!(package(name).has_untested_library(), has_untested_library, "{name}");
        }
        assert!(!package("middle").has_unit_tests());
    }

    #[test]
    fn a_changed_test_names_its_command() {
        for (file, command) in [
            ("top/tests/single.rs", "cargo test -p top --test single"),
            ("top/tests/it/part.rs", "cargo test -p top --test it"),
            ("top/tests/it/main.rs", "cargo test -p top --test it"),
            ("top/tests/item.rs", "cargo test -p top --tests"),
            ("top/tests/common/mod.rs", "cargo test -p top --tests"),
            ("top/benches/speed.rs", "cargo test -p top --bench speed"),
            ("thirdparty/tonic/src/main.rs", "cargo xtask thirdparty"),
            ("README.md", "cargo test -p rdma-tests --doc"),
        ] {
            assert_eq!(hint(file).as_deref(), Some(command), "{file}");
        }
        for file in ["top/src/lib.rs", "top/README.md", "base/tests/file.txt", "CHANGELOG.md"] {
            assert_eq!(hint(file), None, "{file}");
        }
    }

    #[test]
    fn files_with_a_command_of_their_own_exist() {
        for (place, _) in ELSEWHERE {
            assert!(crate::root().join(place).exists(), "{place}");
        }
    }
}
