//! Where tensors are: in host memory, or in the memory of GPUs.

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::text;

named! {
    /// The memory that tensors are allocated in.
    pub enum TensorPlace {
        /// Host memory.
        Host = "host",
        /// GPUs. The device accesses their memory if it can; else messages are staged in host
        /// memory, with a warning.
        Gpu = "gpu",
        /// GPUs. Messages are staged in host memory.
        GpuStaged = "gpu-staged",
    }
}

/// The GPU of a rank, and how the rank's messages go from and to its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankGpu {
    /// The GPU's name and address.
    #[serde(deserialize_with = "text::line")]
    pub name: String,
    /// The way of the messages.
    #[serde(deserialize_with = "text::line")]
    pub way: String,
    /// The reason why messages are staged, unless it was asked for.
    #[serde(deserialize_with = "text::optional_line")]
    pub why_staged: Option<String>,
}
