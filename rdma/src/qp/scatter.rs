//! Providers that deliver short messages with the processor.
//!
//! mlx5 puts the data of a short receive into the completion, and `ibv_poll_cq` copies it to the
//! receive's memory. It does the same for reads and atomic operations of queue pairs that signal
//! every request. Memory of a GPU would fault in that copy, and the peer would choose when. The
//! environment variable `MLX5_SCATTER_TO_CQE=0` turns this off.

use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::context::ContextInner;

/// Whether the provider may write the memory of a new queue pair's requests with the processor.
pub(super) fn processor_writes(context: &ContextInner) -> bool {
    scatters(driver(context).as_deref(), env::var_os("MLX5_SCATTER_TO_CQE").as_deref())
}

/// A driver that cannot be found out is not mlx5, which has a PCI device.
fn scatters(driver: Option<&OsStr>, variable: Option<&OsStr>) -> bool {
    driver == Some(OsStr::new("mlx5_core")) && variable != Some(OsStr::new("0"))
}

/// The name of the kernel's driver, from sysfs.
fn driver(context: &ContextInner) -> Option<OsString> {
    // SAFETY: the reference wants a live context, which this is; `device` is constant.
    let device = unsafe { &*context.raw.as_ptr() }.device;
    // SAFETY: the reference wants a live device: the context's, which the context keeps. Its paths
    // are constant.
    let path = unsafe { &(*device).ibdev_path }.map(|byte| byte.to_ne_bytes()[0]);
    let path = CStr::from_bytes_until_nul(&path).ok().filter(|path| !path.is_empty())?;
    let link = Path::new(OsStr::from_bytes(path.to_bytes())).join("device/driver");
    link.read_link().ok()?.file_name().map(OsStr::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mlx5_scatters_unless_it_is_told_not_to() {
        let is = |driver: &str, variable: Option<&str>| scatters(Some(OsStr::new(driver)), variable.map(OsStr::new));
        assert!(is("mlx5_core", None) && is("mlx5_core", Some("1")) && is("mlx5_core", Some("")));
        assert!(!is("mlx5_core", Some("0")) && !is("bnxt_re", None));
        assert!(!scatters(None, None));
    }

    #[test]
    fn a_device_without_a_path_has_no_driver() {
        let context = crate::testing::context();
        assert_eq!(driver(&context.inner), None);
    }
}
