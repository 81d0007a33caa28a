//! Instruction counts: runs this executable again under valgrind's callgrind, with N and with 2N
//! iterations.

use std::io;
use std::process::Command;

/// Instructions per iteration of this executable with `--count=<name> --iterations=<n>`.
///
/// The instructions of start-up, connection and clean-up are equal in both runs, so the difference
/// does not contain them.
///
/// # Errors
///
/// `NotFound` when valgrind is not installed; otherwise the error of a run.
pub fn per_iteration(name: &str, iterations: u32) -> io::Result<f64> {
    let once = instructions(name, iterations)?;
    let twice = instructions(name, iterations * 2)?;
    let difference = u32::try_from(twice.saturating_sub(once)).map_err(io::Error::other)?;
    Ok(f64::from(difference) / f64::from(iterations))
}

fn instructions(name: &str, iterations: u32) -> io::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args([format!("--count={name}"), format!("--iterations={iterations}")])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(io::Error::other(format!("under valgrind, {name} failed ({}):\n{text}", output.status)));
    }
    collected(&text).ok_or_else(|| io::Error::other(format!("no instruction count in valgrind's output:\n{text}")))
}

/// Parses the number after `Collected :` in callgrind's report.
fn collected(text: &str) -> Option<u64> {
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
