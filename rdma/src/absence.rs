//! Diagnosis of missing RDMA hardware: the reasons, with a remedy for each.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use rdma_sys::{Ibverbs, LoadError, Obstacle};

use crate::device::Device;
use crate::os;
use crate::platform::HAS_DEVICES;

/// One reason why hardware cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The system's libibverbs cannot be loaded.
    NoLibrary(LoadError),
    /// The kernel has no RDMA subsystem: /sys/class/infiniband does not exist.
    NoSubsystem,
    /// The kernel has no RDMA device.
    NoDevice,
    /// The kernel has devices, but no /dev/infiniband/uverbs* gives access to them.
    NoDeviceFile {
        /// The kernel's devices.
        devices: Vec<String>,
    },
    /// The process may not open a device file.
    NoPermission {
        /// The file.
        path: PathBuf,
    },
    /// libibverbs has no provider for the kernel's devices.
    NoProvider {
        /// The kernel's devices.
        devices: Vec<String>,
    },
    /// The limit of locked memory is too low to register large buffers.
    LowMemlock {
        /// The limit in bytes.
        limit: u64,
    },
}

impl Finding {
    /// The finding in a few words, for a line that lists several.
    fn summary(&self) -> String {
        match self {
            Self::NoLibrary(error) => {
                error.obstacle().map_or_else(|| format!("no {}", error.library()), |obstacle| obstacle.to_string())
            }
            Self::NoSubsystem => "no RDMA in the kernel".into(),
            Self::NoDevice => "no RDMA device in the kernel".into(),
            other => other.to_string(),
        }
    }

    /// Advice on how to fix the finding.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoLibrary(error) => error
                .obstacle()
                .map_or("install libibverbs (rdma-core), or set RDMA_IBVERBS_PATH to it", Obstacle::remedy),
            Self::NoSubsystem => "load the RDMA modules (modprobe ib_uverbs) on a kernel that has them",
            Self::NoDevice => {
                "load the NIC's RDMA driver (mlx5_ib, irdma ...), or add a software one: rdma link add rxe0 type rxe netdev eth0"
            }
            Self::NoDeviceFile { .. } => "modprobe ib_uverbs; in a container, pass --device=/dev/infiniband",
            Self::NoPermission { .. } => {
                "give this user read and write access to the file (rdma-core's udev rules make it 0666)"
            }
            Self::NoProvider { .. } => "install the provider library (package ibverbs-providers)",
            Self::LowMemlock { .. } => "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary(error) => error.fmt(f),
            Self::NoSubsystem => f.write_str("the kernel has no RDMA subsystem loaded (no /sys/class/infiniband)"),
            Self::NoDevice => f.write_str("the kernel knows no RDMA device (/sys/class/infiniband is empty)"),
            Self::NoDeviceFile { devices } => {
                write!(f, "the kernel has {}, but there is no /dev/infiniband/uverbs*", devices.join(", "))
            }
            Self::NoPermission { path } => write!(f, "no permission to open {}", path.display()),
            Self::NoProvider { devices } => {
                write!(f, "the kernel has {}, but libibverbs has no provider for it", devices.join(", "))
            }
            Self::LowMemlock { limit } => {
                write!(f, "the limit of locked memory is {} KiB: little memory can be registered", limit / 1024)
            }
        }
    }
}

/// The reasons why no RDMA hardware can be used.
///
/// # Examples
///
/// ```
/// match rdma::HardwareAbsence::diagnose() {
///     Some(absence) => println!("no hardware: {absence}"),
///     None => println!("there is hardware"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardwareAbsence {
    findings: Vec<Finding>,
    is_installed: bool,
}

/// A lower limit of locked memory, in bytes, is too small for the buffers of most programs.
const ENOUGH_MEMLOCK: u64 = 16 << 20;

impl HardwareAbsence {
    /// Looks for reasons; returns `None` if there is hardware and nothing prevents its use.
    #[must_use]
    pub fn diagnose() -> Option<Self> {
        let mut findings = Vec::new();
        let listed = match Ibverbs::system() {
            Ok(_) => Device::hardware().map(|devices| devices.len()).unwrap_or(0),
            Err(error) => {
                findings.push(Finding::NoLibrary(error));
                0
            }
        };
        if !HAS_DEVICES {
            return Some(Self { findings, is_installed: false });
        }
        let in_kernel = look(Path::new("/sys/class/infiniband"), Path::new("/dev/infiniband"), listed, &mut findings);
        if !findings.is_empty() || listed > 0 {
            if let Some(limit) = memlock_limit().filter(|&limit| limit < ENOUGH_MEMLOCK) {
                findings.push(Finding::LowMemlock { limit });
            }
        }
        (!findings.is_empty()).then_some(Self { findings, is_installed: in_kernel || listed > 0 })
    }

    /// Whether there is hardware, whose use something prevents: the kernel or libibverbs lists a
    /// device.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.is_installed
    }

    /// The reasons in a few words; `Display` prints them in full.
    #[must_use]
    pub fn summary(&self) -> String {
        self.findings.iter().map(Finding::summary).collect::<Vec<_>>().join(", ")
    }

    /// The reasons, in the order in which to fix them.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// Examines the file system; `listed` is the number of devices that libibverbs listed. Returns
/// whether the kernel has a device.
fn look(sys: &Path, dev: &Path, listed: usize, findings: &mut Vec<Finding>) -> bool {
    let names = |path: &Path| -> Option<Vec<String>> {
        let mut names: Vec<_> =
            fs::read_dir(path).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Some(names)
    };
    let Some(devices) = names(sys) else {
        if listed == 0 {
            findings.push(Finding::NoSubsystem);
        }
        return false;
    };
    if devices.is_empty() {
        if listed == 0 {
            findings.push(Finding::NoDevice);
        }
        return false;
    }
    let files: Vec<_> = names(dev).unwrap_or_default().into_iter().filter(|name| name.starts_with("uverbs")).collect();
    if files.is_empty() {
        findings.push(Finding::NoDeviceFile { devices });
        return true;
    }
    for file in files {
        let path = dev.join(file);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        if opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
            findings.push(Finding::NoPermission { path });
        }
    }
    if listed == 0 && findings.is_empty() {
        findings.push(Finding::NoProvider { devices });
    }
    true
}

/// The soft limit of locked memory in bytes; `None` if it is unlimited or does not bind this
/// process.
fn memlock_limit() -> Option<u64> {
    let limit = os::memlock_limit()?;
    // CAP_IPC_LOCK (14) lifts the limit.
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim();
    let capable = u64::from_str_radix(effective, 16).is_ok_and(|mask| mask & (1 << 14) != 0);
    (!capable).then_some(limit)
}

impl fmt::Display for HardwareAbsence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.findings.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{finding}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("rdma-absence-{}-{name}", std::process::id()));
            for file in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        /// The findings, and whether the kernel has a device.
        fn look(&self, listed: usize) -> (Vec<Finding>, bool) {
            let mut findings = Vec::new();
            let in_kernel = look(&self.0.join("sys"), &self.0.join("dev"), listed, &mut findings);
            (findings, in_kernel)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_missing_thing_is_found() {
        assert_eq!(Tree::new("empty", &[]).look(0), (vec![Finding::NoSubsystem], false));
        let tree = Tree::new("no-device", &["sys/x"]);
        fs::remove_file(tree.0.join("sys/x")).unwrap();
        assert_eq!(tree.look(0), (vec![Finding::NoDevice], false));
        let devices = vec![String::from("mlx5_0")];
        let tree = Tree::new("no-file", &["sys/mlx5_0"]);
        assert_eq!(tree.look(0), (vec![Finding::NoDeviceFile { devices: devices.clone() }], true));
        let tree = Tree::new("no-provider", &["sys/mlx5_0", "dev/uverbs0"]);
        assert_eq!(tree.look(0), (vec![Finding::NoProvider { devices }], true));
        assert_eq!(tree.look(1), (vec![], true));
    }

    #[test]
    fn the_text_has_a_remedy() {
        let absence = HardwareAbsence {
            findings: vec![Finding::NoSubsystem, Finding::LowMemlock { limit: 65536 }],
            is_installed: false,
        };
        assert!(absence.to_string().contains("64 KiB"), "{absence}");
        assert!(absence.findings().iter().all(|finding| !finding.remedy().is_empty()));
    }
}
