//! Faults on demand: an unmodified program meets the errors that a network, a peer or a device
//! causes, so that its error paths can be tested.
//!
//! A [`FaultPlan`] says which requests of this process fail, and how; [`HELP`] has the grammar. The
//! environment variable `RDMA_SOFT_FAULT` sets the plan of a process that opens a device, and
//! [`inject`] replaces it at any time. The same plan picks the same requests in every run of a
//! program that posts its requests in the same order. Each fault is logged at level INFO.
//!
//! ```
//! use rdma_soft::faults;
//!
//! faults::inject(&"seed=42; loss=2:send:p=0.1; rnr:recv:every=50".parse()?)?;
//! // ... a program that uses the device ...
//! let report = faults::report()?;
//! assert_eq!(report.rules[1].rule, "rnr:recv:every=50");
//! assert_eq!(report.injected(), 0);
//! faults::clear()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;

pub use crate::engine::fault::{FaultPlan, FaultReport, HELP, ParseFaultError, RuleReport, VARIABLE};
use crate::node::Node;

/// Sets the plan of this process, in place of an earlier one, and sets its counts to 0.
///
/// Requests that were posted before are not judged again. Delays of the earlier plan end.
///
/// # Errors
///
/// If the software device cannot start.
pub fn inject(plan: &FaultPlan) -> io::Result<()> {
    set(Some(plan))
}

/// Ends all faults: requests that are posted or arrive from now on meet none.
///
/// # Errors
///
/// If the software device cannot start.
pub fn clear() -> io::Result<()> {
    set(None)
}

fn set(plan: Option<&FaultPlan>) -> io::Result<()> {
    node()?.with_drained(|engine| engine.set_faults(plan));
    Ok(())
}

/// Returns how often the plan has picked requests; without a plan, a report without rules.
///
/// # Errors
///
/// If the software device cannot start.
pub fn report() -> io::Result<FaultReport> {
    Ok(node()?.with(|engine| engine.fault_report()))
}

fn node() -> io::Result<&'static Node> {
    Node::get().map_err(|errno| io::Error::from_raw_os_error(errno.0))
}
