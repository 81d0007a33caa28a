//! The programs with connections by the connection manager: the software device's here, the
//! kernel's in the virtual machine.

use serde_json::Value;

use crate::common::*;

#[test]
fn pingpong_carries_what_was_sent() {
    for op in ["send", "write", "read"] {
        for events in [&[][..], &["--events"]] {
            for size in ["1", "64", "64K"] {
                let args = [&["--cm", "--json", "-n", "20", "--op", op, "--size", size, "--check"], events].concat();
                let report: Value = serde_json::from_str(&succeed("pingpong", &args)).unwrap();
                assert_eq!(report["latency"].as_array().unwrap().len(), 1, "{args:?}");
                assert!(report["bandwidth"][0]["BW_average"].as_f64().unwrap() > 0.0, "{args:?}");
            }
        }
    }
}

#[test]
fn pingpong_shows_the_addresses() {
    let out = succeed("pingpong", &["--cm", "--size", "64", "-n", "20", "--test", "lat"]);
    let line = |name| out.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name} in\n{out}"));
    for name in ["local address: 127.0.0.1:", "remote address: 127.0.0.1:"] {
        assert!(line(name).contains(" QPN 0x"), "{out}");
    }
}

fn all_reduce(args: &[&str]) -> Value {
    let sizes =
        ["--cm", "--transport", "verbs", "--json", "--min", "8", "--max", "512K", "-f", "16", "-n", "2", "-w", "1"];
    serde_json::from_str(&succeed("all_reduce", &[&sizes[..], args].concat())).unwrap()
}

fn is_right(report: &Value, ranks: usize) {
    assert_eq!(report["ranks"], ranks);
    for row in report["results"].as_array().unwrap() {
        assert_eq!((&row["in_place"]["nwrong"], &row["out_of_place"]["nwrong"]), (&0.into(), &0.into()), "{row}");
    }
}

#[test]
fn every_number_of_ranks_sums() {
    for ranks in 1..=5 {
        is_right(&all_reduce(&["--ranks", &ranks.to_string()]), ranks);
    }
    // With 18 ranks, each is connected to its neighbours only.
    succeed("all_reduce", &["--cm", "--ranks", "18", "--max", "64", "-n", "2"]);
}

#[test]
fn every_algorithm_sums() {
    for algo in ["ring", "direct"] {
        is_right(&all_reduce(&["--ranks", "3", "--algo", algo, "--completions", "--chunk", "16K"]), 3);
    }
}

#[test]
fn ranks_started_by_hand_find_each_other() {
    let root = free_address(40);
    let rank = |rank| {
        let args = ["--cm", "--rank", rank, "--world", "3", "--root", &root, "--max", "4K", "-n", "2"];
        start("all_reduce", &args)
    };
    for output in [rank("2"), rank("1"), rank("0")].map(finish) {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

#[test]
fn the_address_can_be_chosen() {
    let out = succeed("pingpong", &["--cm-address", "127.0.0.9", "--size", "64", "-n", "20", "--test", "lat"]);
    assert!(out.contains("local address: 127.0.0.9:"), "{out}");
    is_right(&all_reduce(&["--ranks", "2", "--cm-address", "::1"]), 2);
    is_right(&all_reduce(&["--ranks", "2", "--cm-address", "[::1]:7471"]), 2);
}

#[test]
fn refuses_bad_input() {
    let cases: [(&str, &[&str], &str); 5] = [
        ("pingpong", &["--cm", "--mtu", "512"], "--mtu 512"),
        ("pingpong", &["--cm", "--compat"], "'--cm'"),
        ("pingpong", &["--cm-address", "no such host"], "no such host is not an address"),
        // An address of a documentation network, which no host has.
        ("all_reduce", &["--ranks", "2", "--cm-address", "203.0.113.7"], "--cm-address 203.0.113.7"),
        ("all_reduce", &["--ranks", "1", "--cm-address", "203.0.113.7"], "--cm-address 203.0.113.7"),
    ];
    for (name, args, part) in cases {
        fail(name, args, part);
    }
}
