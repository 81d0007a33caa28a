//! The systems on which there are devices.

/// Whether this system can have devices.
pub(crate) const HAS_DEVICES: bool = cfg!(target_os = "linux");

/// What a device needs: the advice of errors on other systems.
pub(crate) const NEEDS_LINUX: &str = "RDMA verbs and the software device need Linux";

/// Why a system, named as in [`std::env::consts::OS`], has no device; `None` for Linux.
pub(crate) fn obstacle(system: &str) -> Option<String> {
    (system != "linux").then(|| format!("{NEEDS_LINUX}; this is {system}"))
}
