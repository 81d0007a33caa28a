//! Runs `tune` on the software device, and the programs that read its table.

use std::path::PathBuf;

use serde_json::Value;

use crate::common::*;

/// A folder for the files of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rdma-tune-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs `tune` on few sizes.
fn tune(table: &str, args: &[&str]) -> String {
    succeed("tune", &[&["--quick", "--table", table, "--sizes", "64,1K"], args].concat())
}

#[test]
fn a_tuned_table_decides() {
    let folder = Folder::new("decides");
    let table = folder.file("table.json");
    let report = json(&tune(&table, &["--json", "-g", "3", "--ops", "all_reduce,broadcast,sendrecv,barrier"]));
    assert_eq!(report["program"], "tune");
    let records = report["records"].as_array().unwrap();
    let of = |op: &str, ranks: u64| records.iter().filter(|r| r["op"] == op && r["ranks"] == ranks).count();
    assert_eq!((of("all_reduce", 2), of("broadcast", 3), of("barrier", 2)), (2, 2, 1));
    // There is one algorithm of sendrecv.
    assert_eq!(of("sendrecv", 2), 0);
    for record in records {
        assert!(record["auto"].as_f64().unwrap() > 0.0 && record["transport"] == "shm", "{record}");
        let times = record["times"].as_array().unwrap();
        assert!(times.len() > 1 && times.iter().all(|time| time[1].as_f64().unwrap() > 0.0), "{record}");
    }

    // The programs do what the table says.
    let written = json(&std::fs::read_to_string(&table).unwrap());
    assert_eq!(written["entries"], report["entries"]);
    let chosen = written["entries"].as_array().unwrap().iter();
    let named = |entry: &&Value| entry["op"] == "broadcast" && entry["up_to_ranks"] == 3;
    let entry = chosen.clone().find(named).unwrap();
    let algo = |args: &[&str]| {
        let all = [&["-g", "3", "-b", "64", "-e", "64", "-n", "2", "-J"], args].concat();
        json(&succeed("broadcast", &all))["results"][0]["algo"].as_str().unwrap().to_owned()
    };
    let expected = match entry["algorithm"].as_str().unwrap() {
        "auto" => algo(&[]),
        named => named.to_owned(),
    };
    assert_eq!(algo(&["--table", &table]), expected, "{entry}");
}

#[test]
fn records_of_other_jobs_stay() {
    let folder = Folder::new("stay");
    let table = folder.file("table.json");
    let entries = || json(&std::fs::read_to_string(&table).unwrap())["entries"].as_array().unwrap().clone();
    let out = tune(&table, &["-g", "2", "--ops", "all_gather"]);
    assert!(out.contains("all_gather      2      1        shm      1K"), "{out}");
    assert!(out.contains("RDMA_ALGO_TABLE"), "{out}");
    let first = entries();
    tune(&table, &["-g", "2", "--ops", "all_gather", "--transport", "verbs"]);
    let both = entries();
    assert!(first.iter().all(|entry| both.contains(entry)), "{first:?} {both:?}");
    assert!(both.iter().any(|entry| entry["transport"] == "verbs"));
}

#[test]
fn ranks_that_are_started_by_hand_are_measured() {
    let folder = Folder::new("by-hand");
    let (table, address) = (folder.file("table.json"), free_address(91));
    let start = |rank: &str| {
        let args = ["--quick", "--sizes", "64", "--ops", "reduce", "--table", &table, "--json"];
        start("tune", &[&args[..], &["--rank", rank, "--world", "2", "--root", &address]].concat())
    };
    let [first, second] = ["0", "1"].map(start).map(finish);
    let report = json(&rdma_test_support::program::has_succeeded("rank 0", &first));
    assert_eq!(report["records"][0]["ranks"], 2);
    assert_eq!(rdma_test_support::program::has_succeeded("rank 1", &second), "");
}

#[test]
fn the_environment_names_the_table() {
    let folder = Folder::new("environment");
    let table = folder.file("table.json");
    std::fs::write(&table, r#"{"entries": [{"op": "broadcast", "algorithm": "ring"}]}"#).unwrap();
    let algo = |args: &[&str]| {
        let all = [&["-g", "2", "-b", "64", "-e", "64", "-n", "2", "-J"], args].concat();
        let child = program("broadcast").args(all).env("RDMA_ALGO_TABLE", &table).spawn().unwrap();
        let out = rdma_test_support::program::has_succeeded("broadcast", &finish(child));
        json(&out)["results"][0]["algo"].as_str().unwrap().to_owned()
    };
    assert_eq!(algo(&[]), "ring");
    assert_eq!(algo(&["--algo", "tree"]), "tree");
}

#[test]
fn bad_files_and_arguments_are_refused() {
    let folder = Folder::new("refused");
    let foreign = folder.file("foreign.json");
    std::fs::write(&foreign, "{\n\"program\": \"all_reduce\"}").unwrap();
    fail("tune", &["--table", &foreign], "unknown field `program`, expected `entries` at line 2");
    fail("tune", &["--table", "/nonexistent/table.json"], "cannot write the table of algorithms");
    let table = folder.file("table.json");
    fail("tune", &["--table", &table, "--json", "/nonexistent/x"], "cannot create /nonexistent/x");
    fail("tune", &["-g", "1"], "-g 1: one rank has no choice");
    fail("tune", &["--ranks", "1"], "--ranks 1: one rank has no choice");
    fail("tune", &["--sizes", "2"], "--sizes 2 is less than one element");
    fail("tune", &["--ops", "magic"], "invalid value 'magic'");
    fail("tune", &["--ops", "sendrecv"], "--ops sendrecv: there is one algorithm");
}

#[test]
fn a_path_need_not_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new("odd");
    let table = folder.0.join(OsStr::from_bytes(b"\xff.json"));
    let args = ["--quick", "--sizes", "64", "-g", "2", "--ops", "all_reduce", "--json", "--table"];
    let output = finish(program("tune").args(args).arg(&table).spawn().unwrap());
    let report = json(&rdma_test_support::program::has_succeeded("tune", &output));
    assert!(report["table"].as_str().unwrap().ends_with(".json") && table.exists());
}
