//! Ranks of another launcher that reach each other over TCP: the launcher passes the variables on,
//! and each rank has an address of its own, as on a host of its own.

use std::process::{Command, Output, Stdio};

use crate::common::*;
use crate::launchers::{job, ranks, set};
use crate::tcp::{Variables, address, key, transport};

const SMALL: [&str; 7] = ["--json", "--max", "4K", "-f", "8", "-n", "2"];

/// The environments of two ranks on two hosts by a launcher, and the options that it needs.
struct Fake {
    launcher: &'static str,
    ranks: [Variables; 2],
    options: Vec<String>,
}

/// The address of rank 0. The port is below those of connections: all jobs of a test have
/// their addresses before the first one starts.
fn root(job: usize) -> String {
    format!("{}:18717", address(12, job))
}

/// The variables that each launcher sets on two hosts with a rank each; the first host is this one.
fn fakes(test: u8) -> Vec<Fake> {
    let number = |launcher: u32| job(20 + u32::from(test) * 2 + launcher);
    let of = |names, more: &[(&'static str, &str)]| [0, 1].map(|rank| set(rank, 2, names, more));
    let [mpi_root, hydra_root, torch] = [0, 1, 2].map(|launcher| root(usize::from(test) * 3 + launcher));
    let (host, port) = torch.split_once(':').unwrap();
    let at = |address: String| vec!["--root".to_owned(), address];
    vec![
        Fake {
            launcher: "mpirun",
            ranks: of(
                ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), ("PMIX_NAMESPACE", &number(0))],
            ),
            options: at(mpi_root),
        },
        Fake {
            launcher: "mpiexec",
            ranks: of(("PMI_RANK", "PMI_SIZE"), &[("MPI_LOCALNRANKS", "1")]),
            options: at(hydra_root),
        },
        Fake {
            launcher: "Slurm",
            ranks: of(
                ("SLURM_PROCID", "SLURM_NTASKS"),
                &[("SLURM_JOB_ID", &number(1)), ("SLURM_NNODES", "2"), ("SLURM_JOB_NODELIST", "localhos[t-x],other")],
            ),
            options: Vec::new(),
        },
        Fake {
            launcher: "torchrun",
            ranks: of(
                ("RANK", "WORLD_SIZE"),
                &[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", host), ("MASTER_PORT", port)],
            ),
            options: Vec::new(),
        },
    ]
}

/// Runs both ranks, with variables of each host.
fn run_on_two_hosts(name: &str, fake: &Fake, args: &[&str], variables: impl Fn(usize) -> Variables) -> Vec<Output> {
    let options: Vec<&str> = fake.options.iter().map(String::as_str).chain(args.iter().copied()).collect();
    let of = |rank: usize| -> Variables {
        let host = ("RDMA_HOSTID", ["a", "b"][rank].to_owned());
        fake.ranks[rank].iter().cloned().chain(variables(rank)).chain([host]).collect()
    };
    let outputs = ranks(name, &options, &[of(0), of(1)]);
    for output in &outputs {
        assert!(output.status.success(), "{} {name}: {}", fake.launcher, text(&output.stderr));
    }
    outputs
}

#[test]
fn ranks_of_each_launcher_reach_each_other_with_a_key_of_a_file() {
    let (_folder, key) = key();
    for (at, fake) in fakes(0).iter().enumerate() {
        let told = |rank| vec![("RDMA_SOFT_TCP", address(7, 2 * at + rank)), ("RDMA_SOFT_KEY", key.clone())];
        let outputs = run_on_two_hosts("all_reduce", fake, &SMALL, told);
        assert_eq!(transport(fake.launcher, &outputs[0]), "tcp", "{}", fake.launcher);
    }
}

#[test]
fn ranks_of_each_launcher_need_no_file_if_rank_0_makes_the_key() {
    for (at, fake) in fakes(1).iter().enumerate() {
        // The launcher passes the variable on, or the option stands behind the program's name.
        let by_option = at % 2 == 1;
        let told = |rank| {
            let mut told = vec![("RDMA_SOFT_TCP", address(8, 2 * at + rank))];
            told.extend((!by_option).then(|| ("RDMA_JOB_KEY", "1".to_owned())));
            told
        };
        let args = [&SMALL[..], if by_option { &["--job-key"] } else { &[] }].concat();
        let outputs = run_on_two_hosts("all_reduce", fake, &args, told);
        assert_eq!(transport(fake.launcher, &outputs[0]), "tcp", "{}", fake.launcher);
        assert!(text(&outputs[0].stderr).contains("rank 0 hands out a key"), "{}", text(&outputs[0].stderr));
    }
}

#[test]
fn pingpong_of_each_launcher_goes_over_tcp() {
    let args = ["--json", "--size", "64", "-n", "10"];
    for (at, fake) in fakes(2).iter().enumerate() {
        let told = |rank| vec![("RDMA_SOFT_TCP", address(9, 2 * at + rank)), ("RDMA_JOB_KEY", "1".to_owned())];
        let outputs = run_on_two_hosts("pingpong", fake, &args, told);
        let report: serde_json::Value = serde_json::from_str(&text(&outputs[1].stdout)).unwrap();
        assert!(report["device"].as_str().unwrap().contains("; over TCP: "), "{}: {report}", fake.launcher);
    }
}

/// Open MPI passes variables on with `-x`; each rank's host gives its own address here.
#[test]
fn mpirun_passes_the_variables_on() {
    if !has("mpirun", "openmpi-bin") {
        return;
    }
    let (_folder, key) = key();
    let own = tempfile::tempdir().unwrap();
    let mut command = Command::new("mpirun");
    command.env("OMPI_MCA_orte_tmpdir_base", own.path()).env("RDMA_SOFT_KEY", key).env("RDMA_DEVICE", "soft0");
    command.args(["--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]);
    for (rank, host) in ["a", "b"].into_iter().enumerate() {
        if rank > 0 {
            command.arg(":");
        }
        for variable in ["RDMA_SOFT_KEY".to_owned(), "RDMA_DEVICE".to_owned()] {
            command.args(["-x", &variable]);
        }
        let address = address(10, rank);
        command.args(["-n", "1", "env"]).arg(format!("RDMA_SOFT_TCP={address}")).arg(format!("RDMA_HOSTID={host}"));
        command.arg(program("all_reduce").get_program()).args(SMALL);
    }
    let output = finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert_eq!(transport("mpirun", &output), "tcp");
}
