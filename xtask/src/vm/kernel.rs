//! A kernel and the user space of the RDMA stack, from Debian's packages, unpacked (never installed) under `target/vm`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::apt::{self, Apt};

/// What goes over the host's files in the guest. Built against an old C library, so they run on every newer system's.
const USER_SPACE: [&str; 14] = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libbpf1",
    "libbsd0",
    "libelf1",
    "libibverbs1",
    "libmd0",
    "libmnl0",
    "libnl-3-200",
    "libnl-route-3-200",
    "librdmacm1",
    "rdmacm-utils",
];
const USER_SPACE_SUITE: &str = "bookworm";

/// A series of kernels that Debian has.
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
    pub(crate) fn series(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_2 => "7.2",
        }
    }

    fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "bookworm-backports",
            Self::V7_2 => "trixie-backports",
        }
    }
}

/// What a guest is booted from.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    /// Lies over the host's files in the guest.
    pub(crate) packages: PathBuf,
}

/// Builds what is not there yet.
pub(crate) fn image(root: &Path, kernel: Kernel, with_siw: bool) -> Result<Image, String> {
    let all = root.join("target/vm");
    let packages = all.join("packages");
    once(&packages, || {
        eprintln!("vm: fetching the RDMA user space ({USER_SPACE_SUITE})");
        let apt = Apt::new(&all.join("apt-user-space"), &[USER_SPACE_SUITE])?;
        let debs = all.join("apt-user-space/debs");
        apt.download(&USER_SPACE, &debs)?;
        // The host's folders of these names are links; a folder would hide what is in them.
        for name in ["lib", "bin", "sbin"] {
            let link = packages.join(name);
            std::os::unix::fs::symlink(format!("usr/{name}"), &link)
                .map_err(|error| format!("{}: {error}", link.display()))?;
            apt::make(&packages.join("usr").join(name))?;
        }
        apt::unpack_all(&debs, &packages)?;
        drop(fs::remove_dir_all(debs));
        Ok(())
    })?;

    let own = all.join(kernel.series());
    let unpacked = own.join("kernel");
    let siw = own.join("siw");
    once(&unpacked, || {
        eprintln!("vm: fetching the kernel ({} of {})", kernel.series(), kernel.suite());
        let (apt, image) = kernel_package(&own, kernel)?;
        let debs = own.join("debs");
        let parts = with_parts(&apt, &image)?;
        apt.download(&parts.iter().map(String::as_str).collect::<Vec<_>>(), &debs)?;
        apt::unpack_all(&debs, &unpacked)?;
        drop(fs::remove_dir_all(debs));
        apt::write(own.join("package"), &image).map(drop)
    })?;
    if with_siw {
        once(&siw, || build_siw(root, &own, kernel, &siw))?;
    }

    let built = own.join(if with_siw { "image-siw" } else { "image" });
    let scripts = root.join("tests/vm");
    let (vmlinux, initrd) = (built.join("vmlinux"), built.join("initrd"));
    let sources = [scripts.join("init"), scripts.join("image.sh"), packages.with_extension("complete")];
    if sources.iter().any(|source| is_newer(source, &initrd)) {
        eprintln!("vm: building the image");
        let mut command = Command::new("bash");
        command.arg(scripts.join("image.sh")).args([&unpacked, &packages, &built]);
        if with_siw {
            command.arg(&siw);
        }
        apt::output(&mut command)?;
    }
    Ok(Image { kernel: vmlinux, initrd, packages })
}

/// Fills a folder, and remembers that it is complete: what an interrupted run has left is thrown away.
fn once(folder: &Path, fill: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let mark = folder.with_extension("complete");
    if mark.exists() {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    apt::make(folder)?;
    fill()?;
    apt::write(mark, "").map(drop)
}

/// The package of the newest kernel of the suite.
fn kernel_package(own: &Path, kernel: Kernel) -> Result<(Apt, String), String> {
    let apt = Apt::new(&own.join("apt"), &[kernel.suite()])?;
    let depends = apt.cache(&["depends", "linux-image-amd64"])?;
    let prefix = format!("linux-image-{}.", kernel.series());
    let image = dependencies(&depends).find(|package| package.starts_with(&prefix)).map(str::to_owned);
    let image = image.ok_or_else(|| format!("{} has no kernel {} any more", kernel.suite(), kernel.series()))?;
    Ok((apt, image))
}

/// The package, and those that newer kernels are divided into.
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

/// Builds siw, which Debian's kernels do not have.
fn build_siw(root: &Path, own: &Path, kernel: Kernel, siw: &Path) -> Result<(), String> {
    if kernel == Kernel::V7_2 {
        return Err("siw: Debian's kernels lack it, and it is built here for 6.1 and 6.12 only".into());
    }
    eprintln!("vm: building siw (fetches the kernel's source)");
    let (apt, newest) = kernel_package(own, kernel)?;
    let image = fs::read_to_string(own.join("package")).map_err(|error| format!("the kernel's package: {error}"))?;
    if image != newest {
        let folder = own.display();
        return Err(format!("the kernel in {folder} is {image}, and there is {newest} now: remove that folder"));
    }
    let version = image.trim_start_matches("linux-image-");
    let abi = version.trim_end_matches("-amd64");
    let headers = [
        format!("linux-headers-{version}"),
        format!("linux-headers-{abi}-common"),
        format!("linux-kbuild-{}", kbuild(&apt, version)?),
    ];
    let debs = own.join("debs-siw");
    apt.download(&headers.each_ref().map(String::as_str), &debs.join("headers"))?;
    apt.download(&[&format!("linux-source-{}", kernel.series())], &debs.join("source"))?;
    for part in ["headers", "source"] {
        apt::unpack_all(&debs.join(part), &debs.join(part))?;
    }
    let mut build = Command::new("bash");
    build.arg(root.join("tests/vm/siw.sh")).args([&debs.join("headers"), &debs.join("source"), siw]);
    apt::output(&mut build)?;
    drop(fs::remove_dir_all(debs));
    Ok(())
}

/// The version in the name of the build scripts' package.
fn kbuild(apt: &Apt, version: &str) -> Result<String, String> {
    let depends = apt.cache(&["depends", &format!("linux-headers-{version}")])?;
    let found = dependencies(&depends).find_map(|package| package.strip_prefix("linux-kbuild-"));
    found.map(str::to_owned).ok_or_else(|| format!("linux-headers-{version} depends on no linux-kbuild"))
}

/// Whether `source` has changed since `made` was made, or that was never made.
fn is_newer(source: &Path, made: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    match (time(source), time(made)) {
        (Ok(source), Ok(made)) => source > made,
        (Ok(_), Err(_)) => true,
        (Err(_), _) => false,
    }
}
