//! Runs `plan` as a user does.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use crate::common::{fail, finish, program, succeed};

#[test]
fn every_network_has_a_table() {
    for network in ["host", "fat-tree", "rail", "dragonfly"] {
        let out = succeed("plan", &["--network", network, "--ranks", "64", "--in-network"]);
        assert!(out.contains(&format!("# all_reduce on {network}: 64 GPUs in ")), "{out}");
        for part in ["ring", "halving-doubling", "limited by: ", "ports in hosts"] {
            assert!(out.contains(part), "{part:?} is not in\n{out}");
        }
        assert_eq!(out.lines().filter(|line| line.ends_with(" *")).count(), 3, "{out}");
    }
}

#[test]
fn help_says_what_the_program_does() {
    assert!(succeed("plan", &["-h"]).starts_with("Predicts the time of a collective on a network"));
}

#[test]
fn the_traffic_of_training_is_said() {
    let args = ["--parameters", "70e9", "--bytes", "2", "--step", "200ms", "--ranks", "1024"];
    let out = succeed("plan", &args);
    for part in ["are 140 GB", "2 x 140 GB x 127/128 = 278 GB out of and into each host", "140 GB  ring"] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    for part in ["1.39 TB/s a host", "3.5 times too slow; 8 NICs of 1.4 Tb/s would do", "# ring takes 822 ms"] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    // Exact numbers, which no unit rounds.
    let report: Value = serde_json::from_str(&succeed("plan", &[&args[..], &["--json"]].concat())).unwrap();
    let link = &report["verdict"]["links"][0];
    assert_eq!((&link["name"], &link["owner"]), (&json!("NICs"), &json!("host")));
    assert!((link["needed"].as_f64().unwrap() - 2.0 * 140e9 * 127.0 / 128.0 / 0.2).abs() < 1.0, "{link}");
    assert!((link["rate"].as_f64().unwrap() - 400e9).abs() < 1.0, "{link}");
    let other = succeed("plan", &[&args[..], &["-o", "alltoall"]].concat());
    assert!(other.contains("are 140 GB") && !other.contains("all-reduce"), "{other}");
}

/// The numbers that the help says are those that its example prints.
#[test]
fn the_example_of_the_help_is_right() {
    let help = succeed("plan", &["--help"]);
    let (_, example) = help.split_once("Example: ").unwrap();
    let command = example.lines().find_map(|line| line.trim().strip_prefix("$ plan ")).unwrap();
    let out = succeed("plan", &command.split_whitespace().collect::<Vec<_>>());
    let said = example.split_whitespace().collect::<Vec<_>>().join(" ");
    let cases = [
        ("70 billion parameters of 2 bytes are 140 GB", "70 billion parameters of 2 bytes are 140 GB"),
        (
            "2 x 140 GB x (N-1)/N out of and into each host, 276 GB",
            "2 x 140 GB x 63/64 = 276 GB out of and into each host",
        ),
        ("64 hosts, each with eight NICs of 400 Gb/s", "64 hosts of 8 GPUs and 8 NICs (400 Gb/s)"),
        ("1.38 TB/s a host", "NICs: needs 1.38 TB/s a host, has 0.4"),
        ("1.4 Tb/s for each of 8 NICs", "8 NICs of 1.4 Tb/s would do"),
        ("3.4 times too slow", "3.4 times too slow"),
    ];
    for (in_help, in_output) in cases {
        assert!(said.contains(in_help), "{in_help:?} is not in\n{said}");
        assert!(out.contains(in_output), "{in_output:?} is not in\n{out}");
    }
}

#[test]
fn presets_are_hosts_whose_single_numbers_options_change() {
    let hosts = |args: &[&str]| {
        let report: Value = serde_json::from_str(&succeed("plan", &[args, &["--json"]].concat())).unwrap();
        let network = &report["report"]["network"];
        let number = |value: &Value| value.as_f64().unwrap();
        let rates = (number(&network["nic"]["rate"]) * 8e-9, number(&network["intra"]["rate"]) * 1e-9);
        (network["per_host"].clone(), network["rails"].clone(), rates)
    };
    assert_eq!(hosts(&["--preset", "dgx-a100"]), (json!(8), json!(8), (200.0, 300.0)));
    assert_eq!(hosts(&["--preset", "dgx-h100"]), (json!(8), json!(8), (400.0, 450.0)));
    let changed = ["--preset", "dgx-a100", "--nic-rate", "100Gb/s", "--rails", "4"];
    assert_eq!(hosts(&changed), (json!(8), json!(4), (100.0, 300.0)));
}

#[test]
fn lines_have_at_most_100_columns() {
    let training = ["--parameters", "1.23e12", "--bytes", "4", "--step", "1.5s"];
    let mut outputs = vec![succeed("plan", &["--help"])];
    for network in ["host", "fat-tree", "rail", "dragonfly"] {
        let args = ["-n", network, "-r", "4096", "--in-network", "--memory-rate", "100GB/s"];
        outputs.push(succeed("plan", &args));
        outputs.push(succeed("plan", &[&args[..], &training].concat()));
        outputs.push(succeed("plan", &[&args[..], &["-o", "reduce_scatter", "-f", "3", "-e", "512G"]].concat()));
    }
    for line in outputs.iter().flat_map(|out| out.lines()) {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn files_are_written() {
    let folder = std::env::temp_dir().join(format!("rdma-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (json, svg) = (folder.join("plan.json"), folder.join("plan.svg"));
    let (json_path, svg_path) = (json.to_str().unwrap(), svg.to_str().unwrap());
    succeed("plan", &["-r", "256", "-n", "rail", "--json", json_path, "--svg", svg_path, "-o", "alltoall"]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["report"]["operation"], "alltoall");
    assert_eq!(report["report"]["network"]["kind"], "rail");
    assert!(report["report"]["results"][0]["prediction"]["levels"][0]["bytes"].as_f64().unwrap() > 0.0);
    assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    std::fs::remove_dir_all(&folder).unwrap();
    fail("plan", &["--svg", svg_path], &format!("cannot create {svg_path}"));

    for printed in [&["--json", "-"][..], &["--json"]] {
        let out = succeed("plan", printed);
        assert_eq!(out.lines().count(), 1, "{out}");
        serde_json::from_str::<Value>(&out).unwrap();
    }
}

/// Rows of an all-reduce whose time is 2 us per message and 1 ns per byte sent.
fn measured(ranks: u64) -> String {
    let row = |size: u64| {
        let others = (ranks - 1) as f64;
        let (steps, bytes) = if size <= 16384 { (1.0, others) } else { (2.0, 2.0 * others / ranks as f64) };
        json!({"size": size, "out_of_place": {"time": 2.0 * others * steps + 1e-3 * bytes * size as f64}})
    };
    let rows: Vec<Value> = (3..24).map(|bit| row(1 << bit)).collect();
    json!({"program": "all_reduce", "ranks": ranks, "results": rows}).to_string()
}

#[test]
fn a_fit_says_its_error_on_other_runs() {
    let folder = std::env::temp_dir().join(format!("rdma-plan-fit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |ranks: u64| {
        let path = folder.join(format!("{ranks}.json"));
        std::fs::write(&path, measured(ranks)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let args = ["--fit", &path(2), &path(4), "--check", &path(3), "--cores", "8", "-r", "4"];
    let out = succeed("plan", &args);
    assert!(out.contains("# Fit: 2 us a message"), "{out}");
    assert!(out.contains("# Error on 42 rows, fitted: median 0 %"), "{out}");
    assert!(out.contains("# Error on 21 rows, ") && out.contains("3.json: median 0 %"), "{out}");
    // A path need not be text.
    let odd = folder.join(OsStr::from_bytes(b"\xff.json"));
    std::fs::write(&odd, measured(3)).unwrap();
    let output =
        finish(program("plan").args(["--fit", &path(2), &path(4), "--json", "--check"]).arg(&odd).spawn().unwrap());
    let report: Value = serde_json::from_str(&rdma_test_support::program::has_succeeded("plan", &output)).unwrap();
    assert!(report["fit"]["held_out"][0]["file"].as_str().unwrap().ends_with(".json"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn bad_input_is_refused() {
    let cases: [(&[&str], &str); 13] = [
        (&["-r", "1"], "give 2 to 1000000"),
        (&["-r", "100"], "--ranks 100 is no multiple of --per-host 8"),
        (&["--network", "torus"], "torus"),
        (&["--network", "host", "--per-host", "8"], "one host"),
        (&["--nic-rate", "400"], "400Gb/s"),
        (&["--oversubscription", "0.1"], "ratio"),
        (&["--oversubscription", "1,2,3"], "--oversubscription has 3 ratios"),
        (&["--leaf-hosts", "0"], "give 1 to"),
        (&["--algo", "in-network"], "--in-network"),
        (&["-o", "alltoall", "--algo", "tree"], "does not exist for this operation"),
        (&["--min", "2G", "--max", "1G"], "--min"),
        (&["--parameters", "many"], "70e9"),
        (&["--fit", "/nonexistent"], "cannot read /nonexistent"),
    ];
    for (args, part) in cases {
        fail("plan", args, part);
    }
}
