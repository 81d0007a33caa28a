//! Providers that deliver short messages with the processor.
//!
//! mlx5 puts the data of a short receive into the completion, and `ibv_poll_cq` copies it to the
//! receive's memory. It does the same for reads and atomic operations of queue pairs that signal
//! every request. Memory of a GPU would fault in that copy, and the peer would choose when. The
//! environment variable `MLX5_SCATTER_TO_CQE=0` turns this off. Other providers do the like (hns),
//! so only those that are known not to copy are trusted.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::context::ContextInner;

/// Kernel drivers of devices whose providers never copy received data.
const DIRECT: [&str; 4] = ["bnxt_en", "efa", "i40e", "ice"];

/// The kernel's driver of a device.
#[derive(Debug, PartialEq, Eq)]
enum Driver {
    /// The driver of the device's hardware.
    Named(OsString),
    /// The device has no hardware (rxe, siw): the kernel copies received data itself.
    Virtual,
    /// The device is not in sysfs, or sysfs cannot be read.
    Unknown,
}

/// Whether the provider may write the memory of a new queue pair's requests with the processor.
pub(super) fn processor_writes(context: &ContextInner) -> bool {
    !context.device.is_software() && scatters(&driver(context), env::var_os("MLX5_SCATTER_TO_CQE").as_deref())
}

fn scatters(driver: &Driver, variable: Option<&OsStr>) -> bool {
    match driver {
        Driver::Named(name) if DIRECT.iter().any(|direct| name == direct) => false,
        // The driver of a sub-function has a name of its own after the dot.
        Driver::Named(name) if name == "mlx5_core" || name.as_bytes().starts_with(b"mlx5_core.") => {
            variable != Some(OsStr::new("0"))
        }
        Driver::Named(_) | Driver::Unknown => true,
        Driver::Virtual => false,
    }
}

/// The kernel's driver, from sysfs.
fn driver(context: &ContextInner) -> Driver {
    context.device.sysfs().map_or(Driver::Unknown, |folder| driver_at(&folder))
}

/// The driver of the device whose folder in sysfs is `path`.
fn driver_at(path: &Path) -> Driver {
    let name = |link: std::path::PathBuf| link.file_name().map(OsStr::to_owned);
    match path.join("device/driver").read_link().ok().and_then(name) {
        Some(name) => Driver::Named(name),
        None if path.is_dir() && path.join("device").symlink_metadata().is_err() => Driver::Virtual,
        None => Driver::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_providers_that_are_known_not_to_copy_are_trusted() {
        let is =
            |driver: &str, variable: Option<&str>| scatters(&Driver::Named(driver.into()), variable.map(OsStr::new));
        for mlx5 in ["mlx5_core", "mlx5_core.sf"] {
            assert!(is(mlx5, None) && is(mlx5, Some("1")) && is(mlx5, Some("")));
            assert!(!is(mlx5, Some("0")));
        }
        assert!(!is("bnxt_en", None));
        assert!(is("hns3", Some("0")) && is("mlx5_corex", Some("0")));
        assert!(scatters(&Driver::Unknown, Some(OsStr::new("0"))) && !scatters(&Driver::Virtual, None));
    }

    #[test]
    fn the_driver_is_read_from_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("mlx5_0");
        assert_eq!(driver_at(&device), Driver::Unknown);
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(driver_at(&device), Driver::Virtual);
        let parent = device.join("device");
        std::fs::create_dir(&parent).unwrap();
        assert_eq!(driver_at(&device), Driver::Unknown);
        std::os::unix::fs::symlink("../../../bus/pci/drivers/mlx5_core", parent.join("driver")).unwrap();
        assert_eq!(driver_at(&device), Driver::Named("mlx5_core".into()));
    }

    #[test]
    fn a_device_without_a_path_is_not_trusted() {
        let context = crate::testing::context();
        assert_eq!(driver(&context.inner), Driver::Unknown);
        assert!(processor_writes(&context.inner));
    }
}
