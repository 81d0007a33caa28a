//! The path between a GPU and a NIC: which one is used, and why.

use std::fmt;
use std::str::FromStr;

use crate::detect::{Cause, Facts};
use crate::flush::FlushMethod;
use crate::topology::{Distance, Level, ParseLevelError};

/// The environment variable that overrides a program's [`Policy`].
const POLICY: &str = "RDMA_CUDA_PATH";
/// The environment variable that overrides a program's [`Level`].
const LEVEL: &str = "RDMA_CUDA_LEVEL";

/// Whether the NIC is to access the GPU's memory directly, or bytes are to be staged in host
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Direct, or an error that says why not.
    RequireDirect,
    /// Direct if it is possible and the NIC is near enough, else staged, with a warning.
    #[default]
    PreferDirect,
    /// Staged, also where a direct path is possible.
    Staged,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "direct" => Ok(Self::RequireDirect),
            "prefer" => Ok(Self::PreferDirect),
            "staged" => Ok(Self::Staged),
            _ => Err(format!("{text:?} is no path: use direct, prefer or staged")),
        }
    }
}

/// A program's demands on the path between GPU and NIC.
///
/// # Examples
///
/// ```
/// use rdma_cuda::{Distance, Level, Policy, Preference};
///
/// let preference = Preference { level: Level::up_to(Distance::Sys), ..Preference::default() };
/// assert_eq!(preference.policy, Policy::PreferDirect);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preference {
    /// Whether the path must or should be direct.
    pub policy: Policy,
    /// The greatest distance at which [`Policy::PreferDirect`] takes the direct path.
    pub level: Level,
}

impl Preference {
    /// The preference after the environment's word, which counts more: `RDMA_CUDA_PATH` is
    /// `direct`, `prefer` or `staged`, and `RDMA_CUDA_LEVEL` a [`Level`].
    ///
    /// # Errors
    ///
    /// A variable has another value.
    pub fn with_environment(self) -> Result<Self, InvalidVariable> {
        self.overridden(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn overridden(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidVariable> {
        let set = |name| variable(name).filter(|text| !text.trim().is_empty());
        if let Some(text) = set(POLICY) {
            self.policy = text.parse().map_err(|reason| InvalidVariable { name: POLICY, reason })?;
        }
        if let Some(text) = set(LEVEL) {
            let invalid = |error: ParseLevelError| InvalidVariable { name: LEVEL, reason: error.to_string() };
            self.level = text.parse().map_err(invalid)?;
        }
        Ok(self)
    }

    /// Why the direct path is not even tried, if it is not.
    pub(crate) fn reason_to_stage(&self, distance: Distance) -> Option<Reason> {
        match self.policy {
            Policy::Staged => Some(Reason::Asked),
            Policy::PreferDirect if !self.level.allows(distance) => Some(Reason::TooFar(self.level)),
            Policy::PreferDirect | Policy::RequireDirect => None,
        }
    }

    /// The way that a registration would take, as far as the facts tell. Where the policy is
    /// [`Policy::RequireDirect`] and the way is staged, the registration fails.
    #[must_use]
    pub fn plan(&self, facts: &Facts, distance: Distance) -> Way {
        if let Some(reason) = self.reason_to_stage(distance) {
            return Way::Staged(reason);
        }
        if let Some(cause) = facts.common_cause() {
            return Way::Staged(Reason::NotPossible(vec![cause]));
        }
        if facts.nic.is_software {
            return Way::Copied;
        }
        match (facts.dma_buf_cause(), facts.peer_memory_cause()) {
            (None, _) => Way::DmaBuf,
            (_, None) => Way::PeerMemory,
            (Some(dma_buf), Some(peer_memory)) => Way::Staged(Reason::NotPossible(vec![dma_buf, peer_memory])),
        }
    }
}

/// An environment variable has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct InvalidVariable {
    name: &'static str,
    reason: String,
}

/// How bytes come from a GPU to a NIC and back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// The NIC accesses the GPU's memory, which is registered by a dma-buf.
    DmaBuf,
    /// The NIC accesses the GPU's memory, which is registered by its address (`nvidia-peermem`).
    PeerMemory,
    /// The device is the software device, and the GPU's driver copies for it. Requests and peers
    /// use the memory as on a NIC.
    Copied,
    /// Bytes are copied to host memory, and sent from there.
    Staged(Reason),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DmaBuf => write!(f, "GPUDirect RDMA (dma-buf)"),
            Self::PeerMemory => write!(f, "GPUDirect RDMA (nvidia-peermem)"),
            Self::Copied => write!(f, "direct (software device, copies by the GPU's driver)"),
            Self::Staged(_) => write!(f, "staged in host memory"),
        }
    }
}

/// Why bytes are staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The program or the environment asked for it.
    Asked,
    /// GPU and NIC are farther apart than this level allows.
    TooFar(Level),
    /// The NIC cannot access the memory.
    NotPossible(Vec<Cause>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => write!(f, "as asked for"),
            Self::TooFar(level) => write!(f, "GPU and NIC are farther apart than {level} ({LEVEL}=SYS allows it)"),
            Self::NotPossible(causes) => f.write_str(&listed(causes)),
        }
    }
}

/// Causes and what to do about them, as one sentence.
pub(crate) fn listed(causes: &[Cause]) -> String {
    causes.iter().map(|cause| format!("{cause} ({})", cause.remedy())).collect::<Vec<_>>().join("; and ")
}

/// The path between memory of a GPU and a NIC. `Display` says which one it is, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// How bytes come from one to the other.
    pub way: Way,
    /// The PCI address of the GPU.
    pub gpu: String,
    /// The name of the NIC.
    pub nic: String,
    /// The distance between GPU and NIC.
    pub distance: Distance,
    /// The method that makes the NIC's writes visible to the GPU, if the path is direct.
    pub flush: FlushMethod,
}

impl Path {
    /// Whether requests name the GPU's memory, and peers may be given access to it.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        !matches!(self.way, Way::Staged(_))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { way, gpu, nic, distance, flush } = self;
        write!(f, "{way}, GPU {gpu} <-> {nic}, {distance}")?;
        match way {
            Way::Staged(reason) => write!(f, "; can halve the bandwidth: {reason}"),
            Way::DmaBuf | Way::PeerMemory | Way::Copied => write!(f, ", flush: {flush}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overridden(variables: &[(&str, &str)]) -> Result<Preference, InvalidVariable> {
        let value = |name: &str| variables.iter().find(|entry| entry.0 == name).map(|entry| entry.1.to_owned());
        Preference::default().overridden(value)
    }

    #[test]
    fn the_environment_overrides_the_program() {
        let preference = overridden(&[(POLICY, "direct"), (LEVEL, "phb")]).unwrap();
        let expected = Preference { policy: Policy::RequireDirect, level: Level::up_to(Distance::Phb) };
        assert_eq!(preference, expected);
        assert_eq!(overridden(&[(POLICY, ""), (LEVEL, " ")]), Ok(Preference::default()));
        let error = overridden(&[(POLICY, "gpu")]).unwrap_err().to_string();
        assert_eq!(error, "RDMA_CUDA_PATH: \"gpu\" is no path: use direct, prefer or staged");
        let error = overridden(&[(LEVEL, "near")]).unwrap_err().to_string();
        assert!(error.starts_with("RDMA_CUDA_LEVEL: \"near\" is no distance"), "{error}");
    }

    #[test]
    fn a_far_nic_is_staged_unless_direct_is_required() {
        let reason = |policy, distance| Preference { policy, ..Preference::default() }.reason_to_stage(distance);
        assert_eq!(reason(Policy::PreferDirect, Distance::Pxb), None);
        assert_eq!(reason(Policy::PreferDirect, Distance::Unknown), None);
        assert_eq!(reason(Policy::PreferDirect, Distance::Phb), Some(Reason::TooFar(Level::default())));
        assert_eq!(reason(Policy::RequireDirect, Distance::Sys), None);
        assert_eq!(reason(Policy::Staged, Distance::Pix), Some(Reason::Asked));
    }

    #[test]
    fn a_path_says_what_and_why() {
        let path = |way| Path {
            way,
            gpu: "0000:1b:00.0".into(),
            nic: "mlx5_0".into(),
            distance: Distance::Pix,
            flush: FlushMethod::None,
        };
        assert_eq!(
            path(Way::DmaBuf).to_string(),
            "GPUDirect RDMA (dma-buf), GPU 0000:1b:00.0 <-> mlx5_0, PIX, flush: none"
        );
        let staged = path(Way::Staged(Reason::NotPossible(vec![Cause::GeForce, Cause::NoPeerMemory])));
        assert!(!staged.is_direct());
        assert_eq!(
            staged.to_string(),
            "staged in host memory, GPU 0000:1b:00.0 <-> mlx5_0, PIX; can halve the bandwidth: the driver refuses \
             RDMA for GeForce GPUs (use a data-centre or professional GPU, or stage); and no peer memory module \
             (nvidia-peermem) is loaded (run `modprobe nvidia-peermem` as root)"
        );
    }
}
