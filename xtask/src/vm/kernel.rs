//! A kernel and the user space of the RDMA stack from Debian's packages, unpacked (never installed)
//! under `target/vm`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::name_of;
use crate::{
    apt::{self, Apt},
    system,
};

/// Packages whose files overlay the host's in the guest. They were built against an old C library,
/// so they run with every newer one.
const USER_SPACE: &str = "busybox-static ibverbs-providers ibverbs-utils iproute2 libbpf1 libbsd0 libcap2 libelf1 \
    libibumad3 libibverbs1 libmd0 libmnl0 libnl-3-200 libnl-route-3-200 libpci3 librdmacm1 libxtables12 perftest \
    rdmacm-utils";
const USER_SPACE_SUITE: &str = "bookworm";

/// A kernel series that Debian has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kernel {
    /// Debian 12's.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's backport.
    #[value(name = "6.12")]
    V6_12,
    /// Debian 13's backport.
    #[value(name = "7.2")]
    V7_2,
}

impl Kernel {
    /// Whether siw can be built for this kernel here.
    pub(crate) fn has_siw(self) -> bool {
        self != Self::V7_2
    }

    fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "bookworm-backports",
            Self::V7_2 => "trixie-backports",
        }
    }
}

/// The files that a guest boots from.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    /// The folder of files that overlay the host's in the guest.
    pub(crate) packages: PathBuf,
}

/// Downloads and builds the missing parts of an image.
pub(crate) fn image(root: &Path, kernel: Kernel, with_siw: bool) -> Result<Image, String> {
    if with_siw && !kernel.has_siw() {
        let why =
            "Debian's kernels lack it, and 7.2's modules need gcc 14 and a C library of 2.38, newer than Debian 12's";
        return Err(format!("siw exists on 6.1 and 6.12 only: {why}"));
    }
    let all = root.join("target/vm");
    let packages = all.join("packages");
    once(&packages, USER_SPACE, || {
        eprintln!("vm: fetching the RDMA user space ({USER_SPACE_SUITE})");
        let apt = Apt::new(&all.join("apt-user-space"), &[USER_SPACE_SUITE])?;
        // In the host, folders of these names are links; real folders would hide the links'
        // targets.
        for name in ["lib", "bin", "sbin"] {
            let link = packages.join(name);
            std::os::unix::fs::symlink(format!("usr/{name}"), &link).map_err(system::at(&link))?;
            system::make(&packages.join("usr").join(name))?;
        }
        apt.unpack(USER_SPACE.split_whitespace(), &packages)
    })?;

    let own = all.join(name_of(kernel));
    let (unpacked, siw) = (own.join("kernel"), own.join("siw"));
    let fetch = || {
        let apt = Apt::new(&own.join("apt"), &[kernel.suite()])?;
        let image = kernel_package(&apt, kernel)?;
        eprintln!("vm: fetching {image} ({})", kernel.suite());
        apt.unpack(with_parts(&apt, &image)?, &unpacked)?;
        system::write(own.join("package"), &image).map(drop)
    };
    once(&unpacked, "", fetch)?;
    if with_siw {
        once(&siw, "", || {
            let apt = Apt::new(&own.join("apt"), &[kernel.suite()])?;
            if system::read(&own.join("package"))? != kernel_package(&apt, kernel)? {
                // The suite has a newer kernel by now, and headers for that one only.
                drop(fs::remove_file(unpacked.with_extension("complete")));
                once(&unpacked, "", fetch)?;
            }
            build_siw(root, &apt, &own, &system::read(&own.join("package"))?, kernel, &siw)
        })?;
    }

    let built = own.join(if with_siw { "image-siw" } else { "image" });
    let scripts = root.join("tests/vm");
    let (vmlinux, initrd) = (built.join("vmlinux"), built.join("initrd"));
    let mut sources = vec![scripts.join("init"), scripts.join("image.sh")];
    let folders = [&packages, &unpacked, &siw];
    sources.extend(folders[..if with_siw { 3 } else { 2 }].iter().map(|folder| folder.with_extension("complete")));
    if sources.iter().any(|source| is_newer(source, &initrd)) {
        eprintln!("vm: building the image");
        let mut command = Command::new("bash");
        command.arg(scripts.join("image.sh")).args([&unpacked, &packages, &built]).args(with_siw.then_some(&siw));
        system::output(&mut command)?;
    }
    Ok(Image { kernel: vmlinux, initrd, packages })
}

/// Fills a folder and marks it as complete, together with the name of its contents. Fills a folder
/// again if a run was interrupted or the contents' name differs.
fn once(folder: &Path, contents: &str, fill: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let mark = folder.with_extension("complete");
    if fs::read_to_string(&mark).is_ok_and(|complete| complete == contents) {
        return Ok(());
    }
    system::remove(folder)?;
    system::make(folder)?;
    fill()?;
    system::write(mark, contents).map(drop)
}

/// The package of the newest kernel of the series in the suite.
fn kernel_package(apt: &Apt, kernel: Kernel) -> Result<String, String> {
    let prefix = format!("linux-image-{}.", name_of(kernel));
    let depends = apt.cache(&["depends", "linux-image-amd64"])?;
    if let Some(package) = dependencies(&depends).find(|package| package.starts_with(&prefix)) {
        return Ok(package.to_owned());
    }
    // The suite's default kernel may belong to a newer series while this series is still there.
    let names = apt.cache(&["pkgnames", &prefix])?;
    let plain = |name: &&str| name.ends_with("-amd64") && !["-cloud-", "-rt-"].iter().any(|kind| name.contains(kind));
    let newest = names.lines().filter(plain).max_by_key(|name| numbers(name)).map(str::to_owned);
    newest.ok_or_else(|| format!("{} has no kernel {} any more", kernel.suite(), name_of(kernel)))
}

/// The numbers in a name, for the comparison of versions.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|symbol: char| !symbol.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// The package itself and the packages into which newer kernels are split.
fn with_parts(apt: &Apt, image: &str) -> Result<Vec<String>, String> {
    let depends = apt.cache(&["depends", image])?;
    let is_part = |package: &&str| package.starts_with("linux-binary-") || package.starts_with("linux-modules-");
    let mut parts: Vec<_> = dependencies(&depends).filter(is_part).map(str::to_owned).collect();
    parts.push(image.to_owned());
    Ok(parts)
}

fn dependencies(depends: &str) -> impl Iterator<Item = &str> {
    depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "))
}

/// Builds siw, which Debian's kernels lack, for the kernel of that package.
fn build_siw(root: &Path, apt: &Apt, own: &Path, image: &str, kernel: Kernel, siw: &Path) -> Result<(), String> {
    eprintln!("vm: building siw (fetches the kernel's source)");
    let version = image.trim_start_matches("linux-image-");
    let abi = version.trim_end_matches("-amd64");
    let headers = [
        format!("linux-headers-{version}"),
        format!("linux-headers-{abi}-common"),
        format!("linux-kbuild-{}", kbuild(apt, version)?),
    ];
    let debs = own.join("debs-siw");
    apt.download(headers, &debs.join("headers"))?;
    apt.download([format!("linux-source-{}", name_of(kernel))], &debs.join("source"))?;
    for part in ["headers", "source"] {
        apt::unpack_all(&debs.join(part), &debs.join(part))?;
    }
    let folders = [&debs.join("headers"), &debs.join("source"), &root.join("target/vm/packages"), siw];
    system::output(Command::new("bash").arg(root.join("tests/vm/siw.sh")).args(folders))?;
    system::remove(&debs)
}

/// The version of the package with the kernel's build scripts, which is part of its name.
fn kbuild(apt: &Apt, version: &str) -> Result<String, String> {
    let depends = apt.cache(&["depends", &format!("linux-headers-{version}")])?;
    let found = dependencies(&depends).find_map(|package| package.strip_prefix("linux-kbuild-"));
    found.map(str::to_owned).ok_or_else(|| format!("linux-headers-{version} depends on no linux-kbuild"))
}

/// Whether `source` was changed after `made` was created, or `made` does not exist.
fn is_newer(source: &Path, made: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    match (time(source), time(made)) {
        (Ok(source), Ok(made)) => source > made,
        (Ok(_), Err(_)) => true,
        (Err(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let newest = ["linux-image-7.2.9+deb13-amd64", "linux-image-7.2.12+deb13-amd64"]
            .into_iter()
            .max_by_key(|name| numbers(name));
        assert_eq!(newest, Some("linux-image-7.2.12+deb13-amd64"));
    }

    #[test]
    fn a_folder_is_filled_again_when_something_else_is_wanted() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("once");
        let mut filled = 0;
        let mut fill = |what, fails: bool| {
            once(&folder, what, || {
                filled += 1;
                if fails { Err("gone".into()) } else { Ok(()) }
            })
        };
        fill("a", true).unwrap_err();
        fill("a", false).unwrap();
        fill("a", false).unwrap();
        fill("b", false).unwrap();
        assert_eq!(filled, 3);
    }
}
