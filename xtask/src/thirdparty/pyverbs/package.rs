//! Debian's package of rdma-core's tests, with the Python that its modules are built for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::system::{at, list, make, output, read, remove, write};

const PACKAGE: &str = "python3-pyverbs";
/// Tests of one vendor's hardware, or of memory that a GPU's driver shares, are left out.
const OF_VENDORS: [&str; 3] = ["mlx5", "efa", "cuda"];
/// The program that runs tests and prints their ends.
const LINES: &str = include_str!("lines.py");
/// Packages that the modules and a Python of another suite need, besides those of Python itself.
const LIBRARIES: [&str; 5] = ["ibverbs-providers", "libc6", "libgcc-s1", "libexpat1", "zlib1g"];
/// Starts the program `$2` by the dynamic loader `$0`, with the drop-in library and those in `$1`.
const BY_LOADER: &str = "of=$1; shift; exec \"$0\" --library-path \"$LD_LIBRARY_PATH:$of\" \"$@\"";

/// The package, unpacked.
#[derive(Debug)]
pub(super) struct Package {
    folder: PathBuf,
    /// The version of rdma-core.
    pub(super) version: u32,
    /// The folder of the libraries that came with the package, if it has a Python of its own.
    libraries: Option<PathBuf>,
}

impl Package {
    /// Fetches the package of a Debian suite, unless it is in `folder`, and not older than the
    /// version `known`: an older one is an error. `of_machine` says that the modules are built for
    /// this machine's Python.
    pub(super) fn fetch(folder: &Path, suite: &str, of_machine: bool, known: u32) -> Result<Self, String> {
        let (root, tests, version) = (folder.join("root"), folder.join("tests"), folder.join("version"));
        let cached = || read(&version).ok()?.trim().parse::<u32>().ok();
        if !tests.exists() || cached().is_none_or(|cached| cached < known) {
            let apt = Apt::new(&folder.join("apt"), &[suite])?;
            let about = apt.cache(&["show", &format!("{PACKAGE}/{suite}")])?;
            let mut packages = vec![PACKAGE.to_owned()];
            if !of_machine {
                let python = python(&about).ok_or_else(|| format!("{PACKAGE} of {suite} depends on no Python"))?;
                packages.extend(["-minimal", ""].map(|part| format!("lib{python}{part}")));
                packages.extend([format!("lib{python}-stdlib"), format!("{python}-minimal")]);
                packages.extend(LIBRARIES.map(str::to_owned));
            }
            let number = number(&about).ok_or_else(|| format!("{PACKAGE} of {suite} has no version"))?;
            if number < known {
                return Err(format!("{PACKAGE} of {suite} is of rdma-core {number}, older than {known}"));
            }
            remove(&root)?;
            apt.unpack(packages.iter().map(|package| format!("{package}/{suite}")), &root)?;
            unpack(&root, &tests)?;
            write(version.clone(), &number.to_string())?;
        }
        write(tests.join("lines.py"), LINES)?;
        let libraries = if of_machine { None } else { Some(libraries(&root)?) };
        let version = cached().ok_or_else(|| format!("{} has no version", version.display()))?;
        Ok(Self { folder: folder.to_owned(), version, libraries })
    }

    /// The program and the arguments that start Python.
    pub(super) fn python(&self) -> Result<Vec<PathBuf>, String> {
        let Some(libraries) = &self.libraries else { return Ok(vec!["/usr/bin/python3".into()]) };
        let find = |folder: &Path, start: &str| {
            let mut files = fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path());
            let is_wanted =
                |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start));
            files.find(is_wanted).ok_or_else(|| format!("{} has no {start}", folder.display()))
        };
        let (loader, python) = (find(libraries, "ld-linux")?, find(&self.root().join("bin"), "python3")?);
        Ok(vec!["sh".into(), "-c".into(), BY_LOADER.into(), loader, libraries.clone(), python])
    }

    /// Gives a program the folders of Python and its modules.
    pub(super) fn prepare(&self, command: &mut Command) {
        command.current_dir(&self.folder).env("PYTHONPATH", self.root().join("lib/python3/dist-packages"));
        if self.libraries.is_some() {
            command.env("PYTHONHOME", self.root());
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root/usr")
    }
}

/// Unpacks the tests among the package's files into a folder.
fn unpack(root: &Path, tests: &Path) -> Result<(), String> {
    // An interrupted run leaves no folder that looks complete.
    let new = tests.with_extension("new");
    remove(&new)?;
    make(&new)?;
    let all = root.join("usr/share/doc/rdma-core/tests");
    let mut files: Vec<PathBuf> = list(&all, "py")?;
    files.extend(list(&all, "gz")?);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if OF_VENDORS.iter().any(|vendor| name.starts_with(&format!("test_{vendor}"))) {
            continue;
        }
        let to = new.join(name.trim_end_matches(".gz"));
        let text = if name.ends_with(".gz") {
            output(Command::new("gzip").arg("-dc").arg(&file))?
        } else {
            fs::read_to_string(&file).map_err(at(&file))?
        };
        fs::write(&to, text).map_err(at(&to))?;
    }
    remove(tests)?;
    fs::rename(&new, tests).map_err(at(tests))
}

/// The folder of the machine's architecture, with the dynamic loader.
fn libraries(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join("usr/lib");
    let mut folders = fs::read_dir(&folder).map_err(at(&folder))?.flatten().map(|entry| entry.path());
    let of_machine = folders.find(|folder| folder.to_string_lossy().ends_with("-linux-gnu"));
    of_machine.ok_or_else(|| format!("{} has no libraries", folder.display()))
}

/// A field of a package's description.
fn field<'a>(about: &'a str, name: &str) -> Option<&'a str> {
    about.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The first number of a package's version.
fn number(about: &str) -> Option<u32> {
    field(about, "Version")?.split('.').next()?.parse().ok()
}

/// The Python that a package depends on, such as `python3.14`.
fn python(about: &str) -> Option<&str> {
    let names = field(about, "Depends")?.split(", ").filter_map(|name| name.split(' ').next());
    names.filter_map(|name| name.strip_prefix("lib")).find(|name| name.starts_with("python3."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_of_a_package_is_the_one_that_it_depends_on() {
        let about = "Package: python3-pyverbs\nVersion: 65.0-1.1\n\
                     Depends: rdma-core (>= 21), python3 (<< 3.15), python3:any, libpython3.14 (>= 3.14.1)\n";
        assert_eq!(python(about), Some("python3.14"));
        assert_eq!(number(about), Some(65));
        assert_eq!((number("Version: \n"), number("Package: rdma-core\n")), (None, None));
        assert_eq!(python("Depends: libc6 (>= 2.14)\n"), None);
    }

    #[test]
    fn a_package_that_is_there_is_not_fetched() {
        let folder = tempfile::tempdir().unwrap();
        make(&folder.path().join("tests")).unwrap();
        write(folder.path().join("version"), "100\n").unwrap();
        // The suite does not exist.
        let package = Package::fetch(folder.path(), "no-such-suite", true, 99).unwrap();
        assert_eq!(package.version, 100);
    }
}
