//! Instruction counts: runs this executable again under valgrind's callgrind, which counts one
//! function of it.

use std::hint::black_box;
use std::io;
use std::process::Command;

/// Iterations of a counted process: enough for what the device does once in many polls.
const ITERATIONS: u32 = 10_000;

/// The function that is counted.
const COUNTED: &str = "--toggle-collect=rdma_benches::callgrind::counted*";

/// Instructions per iteration of this executable with `--count=<name> --iterations=<n>`, within
/// [`counted`]. No other thread's instructions are among them, and none of start-up and clean-up.
///
/// # Errors
///
/// `NotFound` when valgrind is not installed; otherwise the error of the run.
pub fn per_iteration(name: &str) -> io::Result<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", COUNTED])
        .arg(std::env::current_exe()?)
        .args([format!("--count={name}"), format!("--iterations={ITERATIONS}")])
        // valgrind's processor lacks instructions of the encryption.
        .env("RDMA_SOFT_TLS", "off")
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(io::Error::other(format!("under valgrind, {name} failed ({}):\n{text}", output.status)));
    }
    match collected(&text) {
        None => Err(io::Error::other(format!("no instruction count in valgrind's output:\n{text}"))),
        Some(0) => Err(io::Error::other("valgrind does not find the counted function: was the program stripped?")),
        Some(count) => Ok(f64::from(count) / f64::from(ITERATIONS)),
    }
}

/// Runs the work that callgrind counts.
// The function's name tells callgrind where to begin and to end.
#[inline(never)]
pub fn counted<R>(work: impl FnOnce() -> R) -> R {
    // Without this, the last call of `work` could be a jump out of this function.
    black_box(work())
}

/// Parses the number after `Collected :` in callgrind's report.
fn collected(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.split_once("Collected :"))?.1;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found() {
        let text = "==7== Events    : Ir\n==7== Collected : 1234567\n==7==\n";
        assert_eq!(collected(text), Some(1_234_567));
        assert_eq!(collected("nothing"), None);
    }
}
