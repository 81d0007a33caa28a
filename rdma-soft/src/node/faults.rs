//! The plan of faults in the environment, and the faults that concern the whole process.

use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rdma_sys::Variable;

use crate::engine::fault::{FaultPlan, Injected, VARIABLE};
use crate::log::log;

/// Returns the plan in the environment, which a set-user-ID program ignores: a plan can end the
/// process.
pub(crate) fn from_environment() -> Result<Option<FaultPlan>, &'static Variable> {
    let Some(text) = rdma_sys::trusted_variable(VARIABLE) else { return Ok(None) };
    match text.to_str().map(str::parse) {
        Some(Ok(plan)) => Ok(Some(plan)),
        Some(Err(error)) => Err(invalid(&error)),
        None => Err(invalid(&"it is not text")),
    }
}

/// Describes the variable's mistake. The description is made once, so that it can be leaked.
fn invalid(why: &dyn std::fmt::Display) -> &'static Variable {
    static INVALID: OnceLock<Variable> = OnceLock::new();
    INVALID.get_or_init(|| Variable { name: VARIABLE, values: format!("a plan of faults; {why}").leak() })
}

/// Logs a fault that begins; ends the process if the fault says so. May be called under any lock.
pub(crate) fn carry_out(injected: Injected) {
    let Injected { name, qpn, inbound, dies } = injected;
    log!(INFO, fault = name, qpn, inbound, "a fault is injected");
    if dies {
        // As a crash, without a chance to clean up. The kernel ends the process before or while
        // `abort` runs.
        let _killed = kill(Pid::this(), Signal::SIGKILL);
        std::process::abort();
    }
}
