//! `cargo xtask nccl`: runs the network transport of NVIDIA's own NCCL library between two
//! processes on the software device, without a GPU.
//!
//! The library calls its transport only for GPUs; `transport.c` looks it up in the library's file
//! and calls it, as NCCL's thread for the network does. The variables of each run are NCCL's. Where
//! a GPU is, two ranks on it reduce by NCCL itself, too (`all_reduce.c`).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use crate::system::{cargo, make, output, target, write};

/// The package of the Python registry that has the library.
const PACKAGE: &str = "nvidia-nccl-cu12==2.32.3";
/// The library in that package.
const LIBRARY: &str = "nvidia/nccl/lib/libnccl.so.2";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The library (2.30 or later), in place of that of the Python registry's package
    /// nvidia-nccl-cu12.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// A run of the transport.
#[derive(Debug)]
struct Run {
    /// Options of `soft-rdma`.
    options: &'static [&'static str],
    /// Variables of the environment.
    variables: &'static [(&'static str, &'static str)],
    /// The most messages that one request has.
    group: &'static str,
    /// The program fails with one of these texts, and NCCL names the reason; empty if it succeeds.
    fails: &'static [&'static str],
    /// NCCL's log has one of these texts.
    log: &'static [&'static str],
}

/// A run that succeeds.
const fn passes(variables: &'static [(&'static str, &'static str)], log: &'static [&'static str]) -> Run {
    Run { options: &["--sysfs"], variables, group: "8", fails: &[], log }
}

const USING: &[&str] = &["NET/IB : Using [0]soft0:1/RoCE [RO]"];
const FAILED_OVER: &[&str] = &["marked as failed"];
/// Each process sends with a fault and is sent to by one. It ends with what it hears first: the
/// completion of its write, that of its receive, or the event of the receiving queue pair.
const REFUSED: &[&str] =
    &["status=IBV_WC_REM_ACCESS_ERR(10)", "status=IBV_WC_WR_FLUSH_ERR(5)", "async fatal event on QP"];
/// The calls of which one then fails, as the program reports it.
const CALLS: &[&str] = &[": net->test(", ": net->send(", ": net->receive(", ": net->flush("];
/// NCCL goes on with another device.
const FAILOVER: &[(&str, &str)] = &[
    ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1"),
    ("NCCL_IB_TIMEOUT", "10"),
    ("NCCL_IB_RETRY_CNT", "2"),
    ("RDMA_SOFT_DEVICES", "2"),
];

static RUNS: &[Run] = &[
    passes(&[], USING),
    passes(&[("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")], USING),
    // NCCL asks for inline space for the credit of one message, also if a request has several.
    Run { group: "1", ..passes(&[("NCCL_IB_USE_INLINE", "1")], USING) },
    passes(&[("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_TC", "106"), ("NCCL_IB_SL", "3")], USING),
    passes(&[("NCCL_IB_PCI_RELAXED_ORDERING", "0")], &["NET/IB : Using [0]soft0:1/RoCE ;"]),
    passes(
        &[
            ("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "1"),
            ("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "1"),
            ("NCCL_IB_QPS_PER_CONNECTION", "3"),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ],
        &["Receive work requests will be pre-posted"],
    ),
    passes(&[("RDMA_SOFT_DEVICES", "2")], &["Made virtual device [2] name=soft0+soft1"]),
    passes(&[("RDMA_SOFT_LINK_LAYER", "infiniband")], &["NET/IB : Using [0]soft0:1/IB [RO]"]),
    Run { options: &[], ..passes(&[("NCCL_IB_GID_INDEX", "0")], USING) },
    Run { options: &["--sysfs", "--fault", "loss=all:write:nth=700"], ..passes(FAILOVER, FAILED_OVER) },
    Run { options: &["--sysfs", "--fault", "loss=all:write:nth=701"], ..passes(FAILOVER, FAILED_OVER) },
    Run { options: &["--sysfs", "--fault", "access:write:nth=700"], fails: CALLS, ..passes(&[], REFUSED) },
    Run { fails: &["NCCL finds no device"], ..passes(&[("NCCL_IB_HCA", "^soft0")], &["NET/IB : No device found."]) },
];

/// Two ranks on one GPU use the network if they may not share memory. The level keeps the device
/// from the GPU's memory, which NCCL believes possible where nvidia-peermem is loaded.
const ALL_REDUCE: Run = passes(
    &[
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_NET", "IB"),
        ("NCCL_NET_GDR_LEVEL", "LOC"),
    ],
    USING,
);
/// The exit status of `all_reduce` without a GPU.
const NO_GPU: i32 = 77;

impl Run {
    fn text(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}={value}"));
        let options = self.options.iter().map(|option| (*option).to_owned());
        variables.chain(options).collect::<Vec<_>>().join(" ")
    }

    /// Runs a program; the result is what both processes have printed, and the reason of a failure.
    fn examine(&self, launcher: &Path, program: &Path, library: &Path) -> Result<Ended, String> {
        let mut command = Command::new(launcher);
        command.args(self.options).args([program, library]).arg(self.group).stdin(Stdio::null());
        command.envs([("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")]).envs(self.variables.iter().copied());
        let output = command.output().map_err(|error| format!("{}: {error}", launcher.display()))?;
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if output.status.code() == Some(NO_GPU) {
            return Ok(Ended::NoGpu);
        }
        let failure = self.failure(output.status, &printed);
        Ok(failure.map_or(Ended::AsExpected, |why| Ended::Failed { why, printed }))
    }

    /// The reason why an end of the program is not the expected one.
    fn failure(&self, status: ExitStatus, printed: &str) -> Option<String> {
        let has_one = |texts: &[&str]| texts.iter().any(|text| printed.contains(text));
        // A signal, of a crash or of the program's own limit, is no failure that a run may expect.
        if status.code() != Some(i32::from(!self.fails.is_empty())) {
            Some(status.to_string())
        } else if !self.fails.is_empty() && !has_one(self.fails) {
            Some(format!("the program has failed with none of {:?}", self.fails))
        } else if !has_one(self.log) {
            Some(format!("NCCL's log has none of {:?}", self.log))
        } else {
            None
        }
    }
}

/// The end of a run.
enum Ended {
    AsExpected,
    NoGpu,
    Failed { why: String, printed: String },
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let root = crate::root();
    let folder = root.join("target/xtask/nccl");
    make(&folder)?;
    let library = match &options.library {
        Some(library) => std::path::absolute(library).map_err(|error| error.to_string())?,
        None => fetch(&folder)?,
    };
    let [transport, all_reduce] = ["transport", "all_reduce"].map(|name| compile(&root, &folder, name));
    let (transport, all_reduce) = (transport?, all_reduce?);
    output(cargo(&root).args(["build", "--quiet", "--package", "soft-rdma"]))?;
    let launcher = target(&root)?.join("debug/soft-rdma");
    let mut failed = Vec::new();
    println!("{:>7}  {:<7}  variables and options", "seconds", "result");
    let all = RUNS.iter().map(|run| (run, &transport)).chain([(&ALL_REDUCE, &all_reduce)]);
    for (number, (run, program)) in all.enumerate() {
        let start = Instant::now();
        let result = match run.examine(&launcher, program, &library)? {
            Ended::AsExpected => "passes",
            Ended::NoGpu => {
                println!("there is no GPU, so the all-reduce of two ranks on one GPU has not run");
                continue;
            }
            Ended::Failed { why, printed } => {
                let log = write(folder.join(format!("{number}.log")), &printed)?;
                failed.push(format!("{}: {why} ({})", run.text(), log.display()));
                "FAILED"
            }
        };
        println!("{:7.1}  {result:<7}  {}", start.elapsed().as_secs_f64(), run.text());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The library in `folder`, into which it is fetched if it is not there.
fn fetch(folder: &Path) -> Result<PathBuf, String> {
    // Another version has another folder.
    let folder = folder.join(PACKAGE);
    let library = folder.join(LIBRARY);
    if !library.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&folder).arg(PACKAGE);
        output(&mut pip)?;
    }
    Ok(library)
}

/// Compiles a program of this folder.
fn compile(root: &Path, folder: &Path, name: &str) -> Result<PathBuf, String> {
    let program = folder.join(name);
    let source = root.join("xtask/src/nccl").join(name).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root.join("rdma-soft/dropin/tests"));
    output(cc.arg("-o").arg(&program).arg(source).arg("-ldl"))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_run_that_is_to_fail_fails_in_the_expected_way() {
        let [succeeds, fails] = [passes(&[], USING), Run { fails: CALLS, ..passes(&[], REFUSED) }];
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let refused = "status=IBV_WC_REM_ACCESS_ERR(10)\ntransport.c:200: net->test(*request, &is_done, sizes) == 0";
        assert_eq!(succeeds.failure(exited(0), USING[0]), None);
        assert_eq!(fails.failure(exited(1), refused), None);
        for (status, printed) in [
            // It succeeds; it is killed by its limit or crashes; the launcher refuses its options.
            (exited(0), refused),
            (ExitStatus::from_raw(14), refused),
            (ExitStatus::from_raw(11), refused),
            (exited(2), refused),
            // Another check of the program, or another reason.
            (exited(1), "status=IBV_WC_REM_ACCESS_ERR(10)\ntransport.c:230: lengths[i] == size_of(0, size)"),
            (exited(1), "transport.c:200: net->test(*request, &is_done, sizes) == 0"),
        ] {
            assert!(fails.failure(status, printed).is_some(), "{status}: {printed}");
        }
        assert!(succeeds.failure(exited(1), USING[0]).is_some() && succeeds.failure(exited(0), "").is_some());
    }
}
