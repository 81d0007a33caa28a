//! Runs the programs of the collectives on the software device: every program, element type,
//! reduction and algorithm, and with ranks that die.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::*;

/// The programs besides `all_reduce`, which `programs.rs` runs.
const PROGRAMS: [&str; 10] = [
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
    "barrier",
];

/// Few iterations of few sizes, of which some are odd.
const FEW: [&str; 8] = ["-n", "2", "-w", "1", "-b", "36", "-f", "50"];

fn rows(program: &str, args: &[&str]) -> Vec<Value> {
    let out = succeed(program, &[&["--json"], &FEW[..], args].concat());
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["program"], program);
    let rows = report["results"].as_array().unwrap().clone();
    for row in &rows {
        for side in ["out_of_place", "in_place"] {
            if side == "out_of_place" || program != "barrier" {
                assert_eq!(row[side]["nwrong"], 0, "{program} {args:?}: {row}");
            }
        }
    }
    rows
}

#[test]
fn every_program_is_right_with_any_number_of_ranks() {
    for program in PROGRAMS {
        for ranks in ["2", "5"] {
            let rows = rows(program, &["-g", ranks, "-e", "100K"]);
            assert_eq!(rows.len(), if program == "barrier" { 1 } else { 3 });
        }
    }
    for (program, ranks) in [("all_gather", "1"), ("all_to_all", "3"), ("hypercube", "4"), ("reduce", "4")] {
        rows(program, &["-g", ranks, "-e", "100K"]);
    }
}

/// Messages of many pieces, with more of them under way than a rank has slots.
#[test]
fn long_messages_are_right() {
    for program in ["all_gather", "all_to_all", "reduce", "sendrecv"] {
        for transport in ["shm", "verbs"] {
            rows(program, &["-g", "3", "-b", "700K", "-e", "700K", "--chunk", "4K", "--transport", transport]);
            rows(program, &["-g", "2", "-b", "3M", "-e", "3M", "--transport", transport]);
        }
    }
}

#[test]
fn started_operations_are_right() {
    for transport in ["shm", "verbs"] {
        for (program, blocking) in [("all_gather", "0"), ("all_to_all", "1"), ("reduce", "0"), ("barrier", "0")] {
            rows(program, &["--start", "-m", "4", "-z", blocking, "-g", "3", "-e", "100K", "--transport", transport]);
        }
    }
}

#[test]
fn every_algorithm_is_right() {
    let cases: [(&str, &[&str]); 7] = [
        (
            "all_reduce",
            &[
                "tree",
                "recursive-doubling",
                "halving-doubling",
                "two-step",
                "binomial",
                "hierarchical",
                "hierarchical-halving",
            ],
        ),
        ("all_gather", &["ring", "recursive-doubling", "bruck", "pat", "hierarchical", "hierarchical-halving"]),
        ("reduce_scatter", &["ring", "halving-doubling", "bruck", "pat", "hierarchical", "hierarchical-halving"]),
        ("all_to_all", &["pairwise"]),
        ("broadcast", &["ring", "tree", "two-step", "binomial"]),
        ("reduce", &["direct", "ring", "tree", "two-step", "binomial"]),
        ("barrier", &["direct", "recursive-doubling", "bruck"]),
    ];
    for (program, algorithms) in cases {
        for algorithm in algorithms {
            for transport in ["shm", "verbs"] {
                let more = ["--algo", algorithm, "--transport", transport];
                let rows = rows(program, &[&["-g", "4", "-e", "100K", "--chunk", "8K"], &more[..]].concat());
                assert!(rows.iter().all(|row| row["algo"] == *algorithm));
            }
        }
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    for (program, algorithm) in [("all_reduce", "auto"), ("reduce_scatter", "direct"), ("reduce", "tree")] {
        let rows = rows(program, &["-g", "3", "-b", "2K", "-e", "2K", "-d", "all", "-o", "all", "--algo", algorithm]);
        assert_eq!(rows.len(), 10 * 5);
        for (name, count) in [("bfloat16", 5), ("uint8", 5), ("avg", 10), ("prod", 10)] {
            let has = |row: &&Value| row["type"] == name || row["redop"] == name;
            assert_eq!(rows.iter().filter(has).count(), count, "{program} {name}");
        }
    }
    assert_eq!(rows("all_gather", &["-g", "2", "-b", "2K", "-e", "2K", "-d", "all"]).len(), 10);
}

#[test]
fn bitwise_reductions_are_of_integers() {
    for (reduction, algorithm, transport) in [("and", "auto", "shm"), ("or", "tree", "shm"), ("xor", "ring", "verbs")] {
        let more = ["-d", "all", "-o", reduction, "--algo", algorithm, "--transport", transport];
        let rows = rows("all_reduce", &[&["-g", "3", "-b", "2K", "-e", "2K"], &more[..]].concat());
        let types: Vec<&str> = rows.iter().map(|row| row["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["int8", "uint8", "int32", "uint32", "int64", "uint64"]);
        assert!(rows.iter().all(|row| row["redop"] == reduction));
    }
    assert_eq!(rows("reduce", &["-g", "2", "-b", "2K", "-e", "2K", "-d", "uint8", "-o", "and"]).len(), 1);
}

#[test]
fn every_rank_can_be_the_root() {
    for program in ["broadcast", "reduce", "gather", "scatter"] {
        let rows = rows(program, &["-g", "3", "-b", "2K", "-e", "2K", "--root-rank", "all"]);
        let roots: Vec<i64> = rows.iter().map(|row| row["root"].as_i64().unwrap()).collect();
        assert_eq!(roots, [0, 1, 2]);
        fail(program, &["-g", "2", "--root-rank", "2"], "--root-rank 2: there are 2 ranks");
    }
}

#[test]
fn uneven_blocks_are_right() {
    for ranks in ["2", "3", "5"] {
        let algorithm = if ranks == "3" { "pairwise" } else { "direct" };
        rows("all_to_all", &["-g", ranks, "-e", "100K", "--uneven", "--algo", algorithm]);
    }
}

/// As on iWARP, and as on a device that does not say that writes land in order.
#[test]
fn arrivals_told_otherwise_are_right() {
    for notice in ["--messages", "--completions"] {
        for program in ["all_to_all", "all_gather", "barrier", "reduce"] {
            rows(program, &["-g", "3", "-e", "300K", "--chunk", "4K", "--transport", "verbs", notice]);
        }
    }
}

#[test]
fn options_have_the_meaning_of_nccl_tests() {
    let sizes = |args: &[&str]| -> Vec<i64> {
        rows("sendrecv", &[&["-g", "2"], args].concat()).iter().map(|row| row["size"].as_i64().unwrap()).collect()
    };
    let rate = |args: &[&str]| sizes(&[&["-b", "1K", "-e", "1K"], args].concat());
    for blocking in ["1", "2", "3"] {
        assert_eq!(rate(&["-m", "3", "-z", blocking]), [1024]);
        assert_eq!(rate(&["-m", "3", "-z", blocking, "--start"]), [1024]);
    }
    assert_eq!(rate(&["-N", "3"]), [1024; 3]);
    for average in ["0", "1", "2", "3"] {
        assert_eq!(rate(&["-a", average, "-T", "20"]), [1024]);
    }
    for long_names in [false, true] {
        let [min, max, step] =
            if long_names { ["--minbytes", "--maxbytes", "--stepbytes"] } else { ["-b", "-e", "-i"] };
        let steps = succeed("sendrecv", &["-g", "2", min, "1K", max, "3K", step, "1K", "-n", "2", "-J"]);
        let steps: Value = serde_json::from_str(&steps).unwrap();
        assert_eq!(steps["results"].as_array().unwrap().len(), 3);
    }
    let others = ["--stepfactor", "4", "--iters", "2", "--warmup_iters", "1", "--agg_iters", "2", "--run_cycles", "1"];
    assert_eq!(rate(&others), [1024]);
    assert_eq!(rate(&["-c", "3"]), [1024]);
    let unchecked = succeed("sendrecv", &[&["-g", "2", "-e", "2K", "-c", "0", "-J"], &FEW[..]].concat());
    assert!(unchecked.contains(r#""nwrong":null"#), "{unchecked}");
}

#[test]
fn a_line_of_nccl_tests_works() {
    let line = "-b 8 -e 2K -f 4 -g 2 -t 2 -n 2 -w 1 -m 2 -N 1 -c 1 -a 3 -z 0 -d half -o max -T 60 -p 0 -G 0 -C 0 -R 0";
    let args: Vec<&str> = line.split(' ').collect();
    let out = succeed("all_reduce", &args);
    let head = "# nThread 2 nGpus 2 minBytes 8 maxBytes 2048 step: 4(factor) warmup iters: 1 iters: 2 agg iters: 2 \
                validation: 1 graph: 0 unalign: 0";
    assert!(out.lines().any(|line| line == head), "{out}");
    let devices: Vec<&str> = out.lines().skip_while(|line| *line != "# Using devices").skip(1).take(5).collect();
    for (rank, line) in devices[..4].iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "Rank", number, "Group", "0", "Pid", pid, "on", _, "device", _, address, name] = words[..] else {
            panic!("{line}")
        };
        assert_eq!(number, rank.to_string());
        assert!(pid.parse::<u32>().is_ok_and(|pid| pid > 0), "{line}");
        assert_eq!((address, name), ("[0000:00:00]", "soft0:1"));
    }
    assert_eq!(devices[4], "#");
    let rows: Vec<&str> = out.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(rows.len() == 5 && rows[0].starts_with("           8             4      half     max      -1  "), "{out}");
    let broadcast = succeed("broadcast", &[&FEW[..], &["-r", "2", "-g", "3", "-b", "64", "-e", "64"]].concat());
    assert!(broadcast.lines().any(|line| line.starts_with("          64            16     float    none       2 ")));
}

#[test]
fn options_of_nccl_tests_without_a_counterpart_say_why() {
    for (args, part) in [
        (&["-G", "1"][..], "nccl-tests has -G: no CUDA graph"),
        (&["--cudagraph", "1"], "nccl-tests has -G: no CUDA graph"),
        (&["-p", "1"], "all connect at the same time"),
        (&["-R", "1"], "to connect by rdma_cm, give --cm"),
        (&["-C", "1"], "leave it out"),
        (&["-x", "2"], "--gid-index chooses the GID"),
        (&["--root", "1"], "--root 1 is no HOST:PORT of rank 0; nccl-tests' --root is -r or --root-rank here"),
        (&["-g", "64", "-t", "8"], "-g 64 times -t 8 is 512 ranks; a machine has at most 256"),
        (&["-g", "2", "--ranks", "2"], "cannot be used with"),
    ] {
        fail("all_reduce", args, part);
    }
}

#[test]
fn a_table_chooses_the_algorithm() {
    let path = std::env::temp_dir().join(format!("rdma-algorithms-{}.json", std::process::id()));
    let entries = r#"[{"op": "all_gather", "up_to_bytes": 100, "algorithm": "ring"},
                      {"op": "all_gather", "algorithm": "pat"},
                      {"op": "all_reduce", "algorithm": "tree"}]"#;
    std::fs::write(&path, format!(r#"{{"entries": {entries}}}"#)).unwrap();
    let file = path.to_str().unwrap();
    let algos = |program: &str| -> Vec<String> {
        let rows = rows(program, &["-g", "2", "-e", "2K", "--table", file]);
        rows.iter().map(|row| row["algo"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(algos("all_gather"), ["ring", "pat"]);
    assert_eq!(algos("all_reduce"), ["tree", "tree"]);
    std::fs::write(&path, r#"{"entries": [{"op": "all_reduce", "algorithm": "in-network"}]}"#).unwrap();
    fail("all_reduce", &["-g", "2", "--table", file], "in-network needs aggregators");
    std::fs::remove_file(&path).unwrap();
    fail("all_gather", &["-g", "2", "--table", file], "cannot read the table of algorithms");
}

#[test]
fn reports_are_written_to_files() {
    let folder = std::env::temp_dir().join(format!("rdma-collectives-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (json, csv) = (path("x.json"), path("x.csv"));
    let run = |args: &[&str]| succeed("broadcast", &[&["-g", "2", "-e", "2K"], args, &FEW[..]].concat());
    let out = run(&["--json", &json, "--csv", &csv]);
    assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    let lines: Vec<String> = std::fs::read_to_string(csv).unwrap().lines().map(str::to_owned).collect();
    assert!(lines.len() == 3 && lines[0].starts_with("size,count,type"), "{lines:?}");
    assert!(lines[1].starts_with("36,9,float,none,0,"), "{lines:?}");
    let svg = path("x.svg");
    // The report of the last run is replaced, and is in the picture all the same.
    run(&["--plot", &svg, "--plot-with", &json, "--json", &json]);
    let picture = std::fs::read_to_string(svg).unwrap();
    assert!(picture.contains("x: broadcast") && picture.contains("this run: broadcast"), "{picture}");
    fail("broadcast", &["-g", "2", "--plot", &path("y.svg"), "--plot-with", &path("x.csv")], "x.csv is no report");
    std::fs::remove_dir_all(folder).unwrap();
    fail("broadcast", &["-g", "2", "--csv", "/nonexistent/x.csv"], "cannot create /nonexistent/x.csv");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    for (program, args, part) in [
        ("broadcast", &["--uneven"][..], "--uneven means nothing for broadcast"),
        ("all_reduce", &["-N", "0", "-J"], "--json: --run-cycles 0 has no end"),
        ("all_reduce", &["-N", "0", "--plot", "/nonexistent/x"], "--plot: --run-cycles 0 has no end"),
        ("all_gather", &["--op", "max"], "--op means nothing for all_gather"),
        ("all_reduce", &["--op", "xor"], "--op xor: the bitwise reduction xor is for integers, not for f32"),
        ("all_to_all", &["--root-rank", "1"], "--root-rank means nothing for all_to_all"),
        ("all_to_all", &["--algo", "tree"], "[possible values: auto, direct, pairwise]"),
        ("all_to_all", &["--root-rank", "x"], "give a rank's number, or all"),
        ("reduce", &["-b", "1", "-d", "all"], "--min 1 is less than one element"),
        ("reduce", &["-i", "1"], "--step-bytes 1 is less than one element"),
        ("reduce", &["-i", "64", "-f", "2"], "cannot be used with"),
        ("reduce", &["--radix", "4"], "--radix needs --algo in-network"),
        ("barrier", &["--plot", "x.svg"], "--plot draws times by size, and a barrier has no sizes"),
    ] {
        fail(program, args, part);
    }
}

#[test]
fn a_killed_rank_is_named() {
    for (victim, program) in ["all_to_all", "broadcast", "reduce"].into_iter().enumerate() {
        let (job, ranks, out) = endless(program, &[], 3);
        std::thread::sleep(Duration::from_millis(50));
        send(Signal::SIGKILL, ranks[victim]);
        let killed = Instant::now();
        let said = format!("rank {victim} (process {}) was killed by signal 9", ranks[victim]);
        has_failed(program, &end(job), &said);
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        drop(out);
    }
}

#[test]
fn a_stopped_rank_is_named() {
    let (job, ranks, out) = endless("all_gather", &["--timeout", "9", "--algo", "ring"], 3);
    send(Signal::SIGSTOP, ranks[1]);
    has_failed("all_gather", &end(job), "rank 1 has been silent for 3 s");
    drop(out);
}
