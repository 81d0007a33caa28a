//! Runs all-reduce programs: Open MPI's, compiled from `mpi/allreduce.c`, and the project's own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::affinity;

/// One point of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Number of processes.
    pub ranks: usize,
    /// Bytes that every rank contributes.
    pub size: usize,
    /// All-reduces in the timed loop.
    pub iterations: usize,
    /// All-reduces before the timed loop.
    pub warmup: usize,
}

/// An all-reduce program to be timed.
#[derive(Clone, Debug)]
pub enum Program {
    /// Open MPI, run by `mpirun` with extra arguments.
    OpenMpi {
        /// The compiled `allreduce.c`.
        executable: PathBuf,
        /// The name in the table.
        name: &'static str,
        /// The extra arguments: `--mca ...`.
        settings: &'static [&'static str],
    },
    /// The project's own `all_reduce` on the software device.
    Ours {
        /// The release binary.
        executable: PathBuf,
    },
}

impl Program {
    /// The name in the table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::OpenMpi { name, .. } => name,
            Self::Ours { .. } => "all_reduce (soft0)",
        }
    }

    /// Microseconds per all-reduce, averaged over the ranks.
    ///
    /// # Errors
    ///
    /// If the program fails, prints other output, or reports wrong elements.
    pub fn time(&self, point: Point) -> io::Result<f64> {
        let Point { ranks, size, iterations, warmup } = point;
        match self {
            Self::OpenMpi { executable, settings, .. } => {
                let enough = affinity::cores()?.len() >= ranks;
                let placement: &[&str] =
                    if enough { &["--bind-to", "core"] } else { &["--oversubscribe", "--bind-to", "none"] };
                let mut command = Command::new("mpirun");
                command.args(["--allow-run-as-root", "-n", &ranks.to_string()]).args(placement).args(*settings);
                command.arg(executable).args([size, iterations, warmup, 1].map(|n| n.to_string()));
                let output = run(&mut command)?;
                mpi_time(&String::from_utf8_lossy(&output.stdout), size)
            }
            Self::Ours { executable } => {
                let mut command = Command::new(executable);
                command.args(["--device", "soft0", "--json", "--out-of-place"]);
                for (flag, value) in [("--ranks", ranks), ("--min", size), ("--max", size)] {
                    command.args([flag, &value.to_string()]);
                }
                command.args(["--iters", &iterations.to_string(), "--warmup", &warmup.to_string()]);
                let output = run(&mut command)?;
                our_time(&output.stdout, size)
            }
        }
    }
}

/// Runs `command` to its end; its output becomes the error's text if it fails.
fn run(command: &mut Command) -> io::Result<Output> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?} failed ({}):\n{text}", output.status)))
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the output of an all-reduce: {text}"))
}

/// Parses the time in a line of `allreduce.c`: bytes, microseconds, wrong elements.
fn mpi_time(text: &str, size: usize) -> io::Result<f64> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    match fields[..] {
        [bytes, time, "0"] if bytes == size.to_string() => time.parse().map_err(|_| malformed(text)),
        _ => Err(malformed(text)),
    }
}

/// Parses the out-of-place time in the JSON of the project's `all_reduce`.
fn our_time(json: &[u8], size: usize) -> io::Result<f64> {
    let value: serde_json::Value = serde_json::from_slice(json)?;
    let result = &value["results"][0];
    let half = &result["out_of_place"];
    match (result["size"].as_u64(), half["time"].as_f64(), half["nwrong"].as_u64()) {
        (Some(reported), Some(time), None | Some(0)) if usize::try_from(reported) == Ok(size) => Ok(time),
        _ => Err(malformed(&value.to_string())),
    }
}

/// Compiles `allreduce.c` with `mpicc` into `folder`.
///
/// # Errors
///
/// `NotFound` when `mpicc` or `mpirun` is not installed; otherwise the compiler's error.
pub fn compile(folder: &Path) -> io::Result<PathBuf> {
    run(Command::new("mpirun").arg("--version"))?;
    std::fs::create_dir_all(folder)?;
    let executable = folder.join("mpi_allreduce");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/allreduce.c");
    run(Command::new("mpicc").args(["-O3", "-Wall", "-Wextra", "-o"]).arg(&executable).arg(source))?;
    Ok(executable)
}

/// Builds the project's `all_reduce` in release mode and returns its path.
///
/// # Errors
///
/// The build's error.
pub fn build_ours() -> io::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.args(["build", "--release", "-p", "rdma-examples", "--bin", "all_reduce", "--message-format=json"]);
    let output = run(&mut command)?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .find(|path| path.file_name() == Some(OsStr::new("all_reduce")))
        .ok_or_else(|| io::Error::other("cargo did not say where all_reduce is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read() {
        assert!((mpi_time("65536 9.8125 0\n", 65536).unwrap() - 9.8125).abs() < 1e-9);
        let json = br#"{"ranks":2,"results":[{"size":8,"out_of_place":{"time":1.5,"nwrong":0}}]}"#;
        assert!((our_time(json, 8).unwrap() - 1.5).abs() < 1e-9);
    }

    #[test]
    fn wrong_results_and_other_sizes_are_errors() {
        assert!(mpi_time("65536 9.8 3", 65536).is_err());
        assert!(mpi_time("8 9.8 0", 65536).is_err());
        assert!(our_time(br#"{"results":[{"size":8,"out_of_place":{"time":1.5,"nwrong":2}}]}"#, 8).is_err());
        assert!(our_time(b"{}", 8).is_err());
    }
}
