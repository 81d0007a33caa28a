//! `cargo xtask symbols`: compares the drop-in library's list of symbols with the bindings, with
//! the table of what the software device lacks and with the lists in Debian's packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::system::{at, list, make, output, read};
use crate::unsupported;

const LIST: &str = "rdma-soft/dropin/symbols.txt";
const FUNCTIONS: &str = "rdma-sys/tests/it/abi/functions.rs";
/// The packages with the libraries; the second name is librdmacm's since Debian 13.
const PACKAGES: [&str; 3] = ["libibverbs1", "librdmacm1t64", "librdmacm1"];
/// The version of the list that stands for all private versions.
const PRIVATE: &str = "IBVERBS_PRIVATE";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Compare with the newest packages that Debian has too, not only with the installed ones.
    #[arg(long)]
    newest: bool,
}

/// A symbol and its version.
type Versioned = (String, String);

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    let text = read(&root.join(LIST))?;
    let listed = parse(&text);
    check_bindings(&text, &read(&root.join(FUNCTIONS))?)?;
    unsupported::check(&text)?;
    let mut files = installed()?;
    if options.newest {
        files.extend(newest(&root)?);
    }
    for file in &files {
        let exported = exported(&read(file)?);
        if let Some((name, version)) = exported.difference(&listed).next() {
            return Err(format!("{LIST} lacks {name}@{version}, which {} has", file.display()));
        }
        println!("{LIST} has the {} symbols of {}", exported.len(), file.display());
    }
    if files.is_empty() {
        println!("compared with the bindings only: neither libibverbs1 nor librdmacm1 is installed");
    }
    Ok(())
}

/// The symbols of the list: a line with one word begins a version, the others are `name kind`.
fn parse(text: &str) -> BTreeSet<Versioned> {
    let mut version = "";
    let mut symbols = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [word] => version = word,
            [name, _] => _ = symbols.insert((name.to_owned(), version.to_owned())),
            _ => (),
        }
    }
    symbols
}

/// Checks that every function of the headers goes to the software device.
fn check_bindings(list: &str, functions: &str) -> Result<(), String> {
    let of_device = |line: &&str| [" verbs", " cm", " cancel"].iter().any(|kind| line.ends_with(kind));
    let listed: BTreeSet<&str> =
        list.lines().filter(of_device).filter_map(|line| line.split_whitespace().next()).collect();
    let declared = functions.lines().filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next());
    let declared: BTreeSet<&str> = declared.collect();
    match declared.symmetric_difference(&listed).next() {
        Some(name) => Err(format!("{name} is either in {LIST} or in {FUNCTIONS}, not in both")),
        None => Ok(()),
    }
}

/// The symbols of a package's list, whose lines are ` name@VERSION first-package-version`.
fn exported(text: &str) -> BTreeSet<Versioned> {
    let entries = text.lines().filter_map(|line| line.strip_prefix(' ')?.split_whitespace().next()?.split_once('@'));
    // The version nodes are listed as symbols, too.
    let symbols = entries.filter(|(name, version)| name != version);
    let version = |version: &str| if version.starts_with(PRIVATE) { PRIVATE } else { version }.to_owned();
    symbols.map(|(name, of)| (name.to_owned(), version(of))).collect()
}

/// The lists of the packages that are installed here.
fn installed() -> Result<Vec<PathBuf>, String> {
    let folder = Path::new("/var/lib/dpkg/info");
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut files = list(folder, "symbols")?;
    files.retain(|file| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        PACKAGES.contains(&name.split(':').next().unwrap_or_default())
    });
    Ok(files)
}

/// The lists of Debian's newest packages.
fn newest(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join("target/xtask/symbols");
    let apt = Apt::new(&folder, &["sid"])?;
    let packages = folder.join("packages");
    make(&packages)?;
    let mut files = Vec::new();
    for package in &PACKAGES[..2] {
        // A download of the bare name would look for the installed version.
        apt.download([format!("{package}/sid")], &packages)?;
    }
    for package in list(&packages, "deb")? {
        let control = package.with_extension("control");
        output(Command::new("dpkg-deb").arg("--control").arg(&package).arg(&control))?;
        fs::remove_file(&package).map_err(at(&package))?;
        files.push(control.join("symbols"));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> BTreeSet<Versioned> {
        pairs.iter().map(|(name, version)| ((*name).into(), (*version).into())).collect()
    }

    #[test]
    fn lists_are_read() {
        let ours = "# text\nIBVERBS_1.1\n    ibv_open_device   verbs\n\nRDMACM_1.0\n    rbind minus_one\n";
        assert_eq!(parse(ours), pairs(&[("ibv_open_device", "IBVERBS_1.1"), ("rbind", "RDMACM_1.0")]));
        let debians = "libibverbs.so.1 libibverbs1 #MINVER#\n* Build-Depends-Package: libibverbs-dev\n \
                       IBVERBS_1.1@IBVERBS_1.1 1.1.6\n ibv_open_device@IBVERBS_1.1 1.1.6\n \
                       ibv_cmd_alloc_pd@IBVERBS_PRIVATE_34 34\n";
        let expected = [("ibv_open_device", "IBVERBS_1.1"), ("ibv_cmd_alloc_pd", PRIVATE)];
        assert_eq!(exported(debians), pairs(&expected));
    }

    #[test]
    fn the_list_has_the_functions_of_the_headers() {
        let root = crate::root();
        let list = read(&root.join(LIST)).unwrap();
        check_bindings(&list, &read(&root.join(FUNCTIONS)).unwrap()).unwrap();
        let error = check_bindings(&list, "pub fn ibv_new(").unwrap_err();
        assert!(error.contains(LIST), "{error}");
    }
}
