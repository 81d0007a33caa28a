//! Work that the engine leaves to its driver.

use std::sync::Arc;

use rdma_mem::Backing;

use super::fault::Injected;
use super::foreign::CopyJob;
use super::types::LinkId;

/// Work that the engine leaves to its driver.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Give a peer a region to map.
    Grant(Grant),
    /// Copy foreign memory.
    Copy(CopyJob),
    /// Log a fault, and end the process if the fault says so.
    Fault(Injected),
}

/// The answer to a peer that asked to map a region of this engine: the file, and the part of it to
/// map.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// The link on which the peer asked.
    pub(crate) link: LinkId,
    /// The region's key.
    pub(crate) rkey: u32,
    /// The shared file that holds the region.
    pub(crate) backing: Arc<Backing>,
    /// The offset in the file at which the region begins.
    pub(crate) offset: u64,
    /// The region's length in bytes.
    pub(crate) len: usize,
}
