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
    for part in ["are 140 GB", "2 x 140 GB x 1023/1024 = 280 GB a rank", "1.4 TB/s", "140000000000  ring"] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
}

#[test]
fn files_are_written() {
    let folder = std::env::temp_dir().join(format!("rdma-plan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (json, svg) = (folder.join("plan.json"), folder.join("plan.svg"));
    let (json_path, svg_path) = (json.to_str().unwrap(), svg.to_str().unwrap());
    succeed("plan", &["-r", "256", "-n", "rail", "--json", json_path, "--svg", svg_path, "-o", "all_to_all"]);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["report"]["operation"], "all_to_all");
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
        (&["-o", "all_to_all", "--algo", "tree"], "does not exist for this operation"),
        (&["--min", "2G", "--max", "1G"], "--min"),
        (&["--parameters", "many"], "70e9"),
        (&["--fit", "/nonexistent"], "cannot read /nonexistent"),
    ];
    for (args, part) in cases {
        fail("plan", args, part);
    }
}
