//! The public interface of the device's counters.

use std::io;

pub use crate::engine::Counters;
use crate::node::Node;

/// Returns what the software device did in this process.
///
/// # Errors
///
/// If the software device cannot start.
///
/// # Examples
///
/// ```
/// let counters = rdma_soft::counters()?;
/// println!("{} requests, {} bytes", counters.requests, counters.request_bytes);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn counters() -> io::Result<Counters> {
    let node = Node::get().map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    Ok(node.with(|engine| engine.counters()))
}
