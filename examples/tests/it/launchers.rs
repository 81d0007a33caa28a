//! The programs as ranks of a job of another launcher: of mpirun, and in the environments of Slurm,
//! torchrun and Hydra. No option gives a rank its number or the number of ranks.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::common::*;

const SMALL: [&str; 7] = ["--json", "--max", "4K", "-f", "8", "-n", "2"];

/// Starts a rank for each environment, in the given order, and returns their outputs.
pub(crate) fn ranks(name: &str, args: &[&str], environments: &[Vec<(&str, String)>]) -> Vec<Output> {
    let start = |environment: &Vec<(&str, String)>| {
        let mut command = program(name);
        command.args(args);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.spawn().unwrap()
    };
    let children: Vec<_> = environments.iter().map(start).collect();
    children.into_iter().map(finish).collect()
}

fn all_succeed(outputs: &[Output]) {
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "process {rank}: {}\n{}", output.status, text(&output.stderr));
    }
}

/// Checks that these ranks have summed, and that one of them has printed the result.
fn have_summed(outputs: &[Output]) {
    all_succeed(outputs);
    let printed: Vec<String> =
        outputs.iter().map(|output| text(&output.stdout)).filter(|out| !out.is_empty()).collect();
    assert_eq!(printed.len(), 1, "one rank prints: {printed:?}");
    is_right(&printed[0], outputs.len());
}

fn is_right(out: &str, ranks: usize) {
    let report: Value = serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!(report["ranks"], ranks);
    let results = report["results"].as_array().unwrap();
    assert!(!results.is_empty() && results.iter().all(|row| row["in_place"]["nwrong"] == 0), "{out}");
}

/// A job number that no other job on this machine has; the port is derived from it.
pub(crate) fn job(test: u32) -> String {
    (u64::from(std::process::id()) * 100 + u64::from(test)).to_string()
}

pub(crate) fn set(
    rank: usize,
    world: usize,
    names: (&'static str, &'static str),
    more: &[(&'static str, &str)],
) -> Vec<(&'static str, String)> {
    let mut all = vec![(names.0, rank.to_string()), (names.1, world.to_string())];
    all.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    all
}

const SLURM: (&str, &str) = ("SLURM_PROCID", "SLURM_NTASKS");

#[test]
fn slurm_on_one_host() {
    let job = job(1);
    let more =
        [("SLURM_JOB_ID", job.as_str()), ("SLURM_STEP_ID", "0"), ("SLURM_NNODES", "1"), ("SLURM_NODELIST", "node7")];
    // Rank 0 starts last, so the others wait for it.
    let environments: Vec<_> = (0..4).rev().map(|rank| set(rank, 4, SLURM, &more)).collect();
    have_summed(&ranks("all_reduce", &SMALL, &environments));
}

#[test]
fn slurm_with_a_list_of_hosts() {
    let job = job(2);
    for more in [
        // This host is the first one of the list.
        [("SLURM_JOB_ID", job.as_str()), ("SLURM_NNODES", "2"), ("SLURM_JOB_NODELIST", "localhos[t-x],other")],
        [("SLURM_JOB_ID", job.as_str()), ("SLURM_NNODES", "2"), ("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")],
    ] {
        let environments: Vec<_> = (0..3).map(|rank| set(rank, 3, SLURM, &more)).collect();
        have_summed(&ranks("all_reduce", &SMALL, &environments));
    }
}

#[test]
fn two_jobs_of_one_host_do_not_meet() {
    let (one, two) = (job(3), job(4));
    let environments = |job: &str| -> Vec<_> {
        (0..2).map(|rank| set(rank, 2, SLURM, &[("SLURM_JOB_ID", job), ("SLURM_NNODES", "1")])).collect()
    };
    let (one, two) = (environments(&one), environments(&two));
    let other = std::thread::spawn(move || have_summed(&ranks("all_reduce", &SMALL, &two)));
    have_summed(&ranks("all_reduce", &SMALL, &one));
    other.join().unwrap();
}

#[test]
fn torchrun_says_where_to_meet() {
    let address = free_address(30);
    let (host, port) = address.split_once(':').unwrap();
    let torch = |rank: usize| {
        let local = rank.to_string();
        let more =
            [("LOCAL_RANK", local.as_str()), ("LOCAL_WORLD_SIZE", "3"), ("MASTER_ADDR", host), ("MASTER_PORT", port)];
        set(rank, 3, ("RANK", "WORLD_SIZE"), &more)
    };
    let environments: Vec<_> = (0..3).map(torch).collect();
    have_summed(&ranks("all_reduce", &SMALL, &environments));
}

#[test]
fn hydra_needs_a_port_of_its_own() {
    let address = free_address(31);
    let hydra = |world, local| move |rank| set(rank, world, ("PMI_RANK", "PMI_SIZE"), &[("MPI_LOCALNRANKS", local)]);
    let environments: Vec<_> = (0..3).map(hydra(3, "3")).collect();
    have_summed(&ranks("all_reduce", &[&SMALL[..], &["--root", &address]].concat(), &environments));
    // On several hosts, Hydra does not tell which host is the first.
    let environments: Vec<_> = (0..1).map(hydra(3, "1")).collect();
    has_failed("rank 0", &ranks("all_reduce", &SMALL, &environments)[0], "mpiexec, which does not say where");
}

#[test]
fn pingpong_takes_its_side_from_the_environment() {
    let job = job(5);
    let more = [("SLURM_JOB_ID", job.as_str()), ("SLURM_NNODES", "1")];
    let args = ["--json", "--size", "64", "-n", "10"];
    let outputs = ranks("pingpong", &args, &[set(1, 2, SLURM, &more), set(0, 2, SLURM, &more)]);
    all_succeed(&outputs);
    let report: Value = serde_json::from_str(&text(&outputs[0].stdout)).unwrap();
    assert_eq!(report["program"], "pingpong");
    let three = ranks("pingpong", &args, &[set(1, 3, SLURM, &more)]);
    has_failed("one of three", &three[0], "2 processes, and the environment says 3");
}

#[test]
fn a_rank_that_cannot_be_is_refused() {
    for (name, args) in [("all_reduce", &[][..]), ("pingpong", &[]), ("pingpong", &["--compat"])] {
        let set = |name: &'static str, value: &str| (name, value.to_owned());
        let environment = vec![set("RANK", "2"), set("WORLD_SIZE", "2"), set("MASTER_ADDR", "127.0.0.1")];
        let output = ranks(name, args, &[environment]).swap_remove(0);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        has_failed(name, &output, "rank 2 of 2 by the environment of torchrun");
    }
}

#[test]
fn an_environment_that_makes_no_sense_is_said() {
    let torch: [(&str, &str); 3] = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let with = |changes: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        torch.iter().chain(changes).map(|(name, value)| (*name, (*value).to_owned())).collect()
    };
    for (changes, said) in [
        (&[("MASTER_PORT", "http")][..], "MASTER_PORT is \"http\" in the environment"),
        (&[("MASTER_PORT", "70000")], "a port is a number from 1 to 65535"),
        (&[("RANK", "first")], "RANK is \"first\""),
        (&[("WORLD_SIZE", "")], "RANK is set in the environment and WORLD_SIZE is not"),
        (&[("WORLD_SIZE", "99999")], "at most 4096"),
        (&[("MASTER_ADDR", "127.0.0.1:99")], "the port is for MASTER_PORT"),
    ] {
        for name in ["all_reduce", "pingpong"] {
            if name == "pingpong" && said == "at most 4096" {
                continue;
            }
            let output = ranks(name, &[], &[with(changes)]).swap_remove(0);
            assert_eq!(output.status.code(), Some(2), "{name} {changes:?}: {output:?}");
            has_failed(name, &output, said);
        }
    }
    // With --ranks, an invalid environment is ignored.
    let output = ranks("all_reduce", &[&SMALL[..], &["--ranks", "2"]].concat(), &[with(&[("MASTER_PORT", "http")])]);
    all_succeed(&output);
    // A value that is not UTF-8 is refused like any other invalid number.
    let mut command = program("all_reduce");
    command.envs(with(&[])).env("RANK", OsStr::from_bytes(b"\xff"));
    has_failed("all_reduce", &finish(command.spawn().unwrap()), "RANK is ");
}

/// Starts a job as Hydra does: its ranks descend from a process with Hydra's name. Rank 0 starts at
/// once, and rank 1 when a line arrives on standard input.
fn hydra_job(folder: &Path) -> Child {
    let ranks = r#"
        PMI_RANK=0 "$@" & zero=$!
        read -r line
        PMI_RANK=1 sh -c '"$@" && true' sh "$@" & one=$!
        wait $zero && wait $one"#;
    let mut proxy = Command::new(folder.join("hydra_pmi_proxy"));
    proxy.args(["-c", ranks, "sh"]).arg(program("all_reduce").get_program()).args(SMALL);
    proxy.env_clear().env("PATH", "/usr/bin:/bin").env("RDMA_DEVICE", "soft0");
    proxy.env("PMI_SIZE", "2").env("MPI_LOCALNRANKS", "2");
    proxy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The environments of two Hydra jobs do not differ.
#[test]
fn two_jobs_of_hydra_do_not_meet() {
    let folder = std::env::temp_dir().join(format!("rdma-launchers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink("/bin/sh", folder.join("hydra_pmi_proxy")).unwrap();
    let go_on = |job: &mut Child| job.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut early = hydra_job(&folder);
    let mut late = hydra_job(&folder);
    go_on(&mut late);
    have_summed_together(&finish(late));
    go_on(&mut early);
    have_summed_together(&finish(early));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Checks two ranks' sums in a common output.
fn have_summed_together(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
    is_right(&text(&output.stdout), 2);
}

/// If this were allowed, each of the launcher's ranks would start a job of its own.
#[test]
fn ranks_of_another_launcher_do_not_start_ranks() {
    let more = [("SLURM_JOB_ID", "1"), ("SLURM_NNODES", "1")];
    let args = [&SMALL[..], &["--ranks", "2"]].concat();
    let output = ranks("all_reduce", &args, &[set(1, 7, SLURM, &more)]).swap_remove(0);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    has_failed(
        "--ranks 2",
        &output,
        "Slurm has started this process as rank 1 of 7; leave --ranks out, or unset SLURM_PROCID",
    );
    // A single rank counts as no job: the shell of an allocation has such an environment.
    let outputs = ranks("all_reduce", &args, &[set(0, 1, SLURM, &more)]);
    all_succeed(&outputs);
    is_right(&text(&outputs[0].stdout), 2);
}

/// Runs `count` processes of a program under Open MPI's launcher.
fn mpirun(count: &str, name: &str, args: &[&str]) -> Output {
    // Launchers that start and end at the same time race for the folder that they share by default.
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    command.env("OMPI_MCA_orte_tmpdir_base", folder.path());
    command.args(["-n", count, "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]);
    let program = program(name);
    command.arg(program.get_program()).args(args).env("RDMA_DEVICE", "soft0");
    finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn mpirun_starts_ranks() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    let output = mpirun("3", "all_reduce", &SMALL);
    assert!(output.status.success(), "{}", text(&output.stderr));
    is_right(&text(&output.stdout), 3);
}

#[test]
fn two_jobs_of_mpirun_do_not_meet() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    let jobs = ["2", "3"].map(|count| (count, std::thread::spawn(move || mpirun(count, "all_reduce", &SMALL))));
    for (count, job) in jobs {
        let output = job.join().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        is_right(&text(&output.stdout), count.parse().unwrap());
    }
}

#[test]
fn mpirun_starts_pingpong() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    let output = mpirun("2", "pingpong", &["--json", "--size", "64", "-n", "10"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    assert_eq!(report["latency"].as_array().unwrap().len(), 1);
    let compat = mpirun("2", "pingpong", &["--compat", "--check", "-n", "10"]);
    assert!(compat.status.success() && text(&compat.stdout).contains("contents checked"), "{}", text(&compat.stderr));
}

#[test]
fn mpirun_and_ranks_are_too_many() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    for (option, said) in [
        ("--ranks", "--ranks 3 starts ranks here, but mpirun has started this process as rank"),
        ("-g", "-g 3 times -t 1: this process is one rank; give 1, and start more"),
    ] {
        let output = mpirun("2", "all_reduce", &[option, "3"]);
        assert!(!output.status.success());
        let err = text(&output.stderr);
        assert!(err.contains(said), "{err}");
    }
    // A line of nccl-tests.
    let output = mpirun("2", "all_reduce", &["-b", "8", "-e", "64", "-f", "2", "-g", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(out.contains("# nThread 1 nGpus 1 ") && out.contains("#  Rank  1 Group  0 Pid "), "{out}");
}

#[test]
fn mpirun_hears_of_a_failure() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    let output = mpirun("2", "all_reduce", &["--device", "mlx9_9"]);
    assert!(!output.status.success());
    let err = text(&output.stderr);
    assert!(err.contains("all_reduce: ") && err.contains("mlx9_9"), "{err}");
}
