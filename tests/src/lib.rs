//! What the tests that need a device share.
//!
//! They run on the device that `RDMA_TEST_DEVICE` names (`rxe0`, `mlx5_0:1`), and on the software device without it. A device that
//! was promised and is not there is a failure, never a skip. What a device cannot do is skipped by [`skip`], which says so.

use rdma::{DeviceSelector, Opened};

/// The environment variable that names the device to test on.
pub const VARIABLE: &str = "RDMA_TEST_DEVICE";

/// Opens the device to test on.
///
/// # Panics
///
/// If it is not there: a test that was promised a device fails without it.
#[must_use]
pub fn open() -> Opened {
    let name = std::env::var(VARIABLE).unwrap_or_else(|_| "soft0".into());
    let selector: DeviceSelector = name.parse().unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
    rdma::open(&selector).unwrap_or_else(|error| panic!("the device to test on: {error}"))
}

/// Says that a test did not run, and why.
pub fn skip(reason: &str) {
    // Standard error, because libtest swallows what a passing test prints through the macros' usual way.
    let thread = std::thread::current();
    let line = format!("SKIP {}: {reason}\n", thread.name().unwrap_or("test"));
    let _written = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}
