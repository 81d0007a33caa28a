//! `pingpong` on the software device: every option, with results as perftest defines them.

use serde_json::Value;

use crate::common::*;

fn report(args: &[&str]) -> Value {
    let out = succeed("pingpong", &[&["--json"], args].concat());
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Runs both tests with contents checked; returns the row of the bandwidth test.
fn checked(args: &[&str]) -> Value {
    let report = report(&[&["--check", "-n", "20"], args].concat());
    assert_eq!(report["latency"].as_array().unwrap().len(), 1, "{args:?}");
    let row = report["bandwidth"][0].clone();
    assert!(row["BW_average"].as_f64().unwrap() > 0.0, "{args:?}");
    row
}

#[test]
fn every_operation_carries_what_was_sent() {
    for op in ["send", "write", "read"] {
        for events in [&[][..], &["--events"]] {
            for size in ["1", "7", "64", "4K", "1M"] {
                checked(&[&["--op", op, "--size", size, "--tx-depth", "8"], events].concat());
            }
        }
    }
}

#[test]
fn atomic_operations_add_and_swap() {
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP", "fetch_and_add"] {
        for more in [&[][..], &["-b", "-q", "3"]] {
            let row = checked(&[&["--op", "atomic", "-A", kind], more].concat());
            assert_eq!(row["MsgSize"], 8);
        }
    }
    let out = succeed("pingpong", &["--op", "atomic", "-A", "CMP_AND_SWAP", "-n", "20"]);
    assert!(out.contains("Atomic CMP_AND_SWAP Latency Test") && out.contains("Atomic CMP_AND_SWAP BW Test"), "{out}");
}

#[test]
fn datagrams_carry_what_was_sent() {
    for more in [&[][..], &["--events"], &["-b"], &["-q", "4"], &["-r", "2"], &["-r", "7", "-b", "-t", "200"]] {
        checked(&[&["-c", "UD", "--size", "1000", "-n", "500"], more].concat());
    }
    // All sizes up to the MTU.
    let report = report(&["-c", "UD", "-a", "-n", "20", "--test", "bw", "-m", "1024"]);
    let sizes: Vec<_> = report["bandwidth"].as_array().unwrap().iter().map(|row| row["MsgSize"].clone()).collect();
    assert_eq!(sizes, (1..=10).map(|shift| 1 << shift).collect::<Vec<u64>>());
}

#[test]
fn unreliable_connections_carry_what_was_sent() {
    for op in ["send", "write"] {
        for more in [&[][..], &["--events"], &["-b", "-q", "3"]] {
            checked(&[&["-c", "UC", "--op", op, "--size", "10000", "-n", "200"], more].concat());
        }
    }
    let out = succeed("pingpong", &["-c", "UC", "--size", "64", "-n", "50", "--test", "lat"]);
    assert!(out.contains("Connection type : UC"), "{out}");
}

#[test]
fn all_sizes_are_the_powers_of_two() {
    let report = report(&["-a", "-n", "1", "--test", "bw", "--op", "write"]);
    let sizes: Vec<_> = report["bandwidth"].as_array().unwrap().iter().map(|row| row["MsgSize"].clone()).collect();
    assert_eq!(sizes, (1..=23).map(|shift| 1 << shift).collect::<Vec<u64>>());
}

/// As in perftest, the count includes the messages of all queue pairs, but of one direction only.
#[test]
fn several_queue_pairs_and_both_directions() {
    for op in ["send", "write", "read"] {
        for (more, count) in [(&["-q", "5"][..], 100), (&["-b"], 20), (&["-q", "3", "-b"], 60)] {
            let row = checked(&[&["--op", op, "--size", "2000"], more].concat());
            assert_eq!(row["n_iterations"], count, "{op} {more:?}");
        }
    }
    let out = succeed("pingpong", &["-q", "3", "-b", "--test", "bw", "-s", "64", "-n", "20"]);
    assert!(out.contains("Send Bidirectional BW Test") && out.contains(" Number of qps   : 3\t\t"), "{out}");
    assert_eq!(out.lines().filter(|line| line.starts_with(" local address: LID 0x")).count(), 3, "{out}");
}

#[test]
fn a_test_can_have_a_duration() {
    for (args, size) in
        [(&["--test", "lat"][..], 2), (&["--test", "bw"], 65536), (&["--test", "bw", "-s", "64", "-b"], 64)]
    {
        for op in ["send", "read"] {
            let begun = std::time::Instant::now();
            let report = report(&[&["-D", "1", "--op", op, "--check"], args].concat());
            assert!(begun.elapsed() >= std::time::Duration::from_secs(1));
            let row = if args[1] == "lat" { &report["latency"][0] } else { &report["bandwidth"][0] };
            assert_eq!(row["MsgSize"], size);
            assert!(row["n_iterations"].as_u64().unwrap() > 0, "{row}");
            assert_eq!(row["tps_average"].is_f64(), args[1] == "lat");
        }
    }
    let out = succeed("pingpong", &["-D", "1", "--test", "lat"]);
    assert!(out.contains("\n #bytes        #iterations       t_avg[usec]    tps average\n"), "{out}");
}

#[test]
fn prints_the_tables_of_perftest() {
    let out = succeed("pingpong", &["--size", "64", "-n", "50", "--mtu", "1024", "-I", "64", "-F", "-t", "7"]);
    for part in [
        "# using soft0",
        "                    Send Latency Test\n Dual-port       : OFF\t\tDevice         : soft0\n",
        " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n",
        " TX depth        : 1\n Mtu             : 1024[B]\n Link type       : Ethernet\n GID index       : 0\n",
        " Max inline data : 64[B]\n rdma_cm QPs\t : OFF\n Data ex. method : Ethernet\n",
        "t_typical[usec]",
        "                    Send BW Test\n",
        " TX depth        : 7\n CQ Moderation   : 1\n",
        " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n 64         50     ",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
    let out = succeed("pingpong", &["-s", "64", "-n", "50", "--test", "bw", "--report_gbits"]);
    assert!(out.contains("BW average[Gb/sec]") && out.contains(" Max inline data : 0[B]\n"), "{out}");
    let out = succeed("pingpong", &["-s", "64", "-n", "50", "--test", "lat", "--rdma_cm"]);
    assert!(out.contains(" rdma_cm QPs\t : ON\n"), "{out}");
}

#[test]
fn addresses_stand_in_order_with_their_memory() {
    let out = succeed("pingpong", &["--op", "write", "--test", "bw", "-q", "4", "-s", "64", "-n", "20"]);
    let sides: Vec<&str> =
        out.lines().filter_map(|line| line.trim_start().split_once(" address: ")).map(|it| it.0).collect();
    assert_eq!(sides, [["local"; 4], ["remote"; 4]].concat(), "{out}");
    let memory = |line: &str, head: &str| -> u64 {
        let (_, rest) = line.split_once(head).unwrap_or_else(|| panic!("{head:?} is not in {line}"));
        u64::from_str_radix(rest.split(' ').next().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let local: Vec<&str> = out.lines().filter(|line| line.starts_with(" local address: ")).collect();
    let addresses: Vec<u64> = local.iter().map(|line| memory(line, " VAddr ")).collect();
    assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] == 64) && memory(local[0], " RKey ") > 0, "{out}");
    let read = succeed("pingpong", &["--op", "read", "--test", "lat", "-s", "64", "-n", "20", "-o", "4"]);
    assert!(read.contains(" OUT 0x04 RKey 0x"), "{read}");
    let sent = succeed("pingpong", &["--test", "lat", "-s", "64", "-n", "20"]);
    assert!(!sent.contains("RKey"), "{sent}");
}

#[test]
fn figures_and_latencies_are_printed_alone() {
    for (test, figure) in [("lat", "latency"), ("bw", "bandwidth"), ("bw", "message_rate")] {
        let out = succeed("pingpong", &["--test", test, "-s", "64", "-n", "20", "--output", figure]);
        assert!(out.lines().count() == 1 && out.trim().parse::<f64>().is_ok_and(|figure| figure > 0.0), "{out}");
    }
    for option in ["-H", "-U"] {
        let out = succeed("pingpong", &["--test", "lat", "-s", "64", "-n", "20", option]);
        let samples: Vec<f64> = out
            .lines()
            .skip_while(|line| *line != "#, usec")
            .skip(1)
            .map_while(|line| line.split_once(", ")?.1.parse().ok())
            .collect();
        assert!(samples.len() == 20 && (option == "-U" || samples.is_sorted()), "{out}");
    }
    let report = report(&["--test", "bw", "-s", "64", "-n", "5000", "-N"]);
    assert_eq!(report["bandwidth"][0]["BW_peak"], 0.0);
}

/// Messages without a completion give their buffers back with a later one.
#[test]
fn completions_are_moderated() {
    for op in ["send", "write", "read", "atomic"] {
        for more in [&["-Q", "8"][..], &["-Q", "100", "-t", "7", "-q", "3"], &["-Q", "3", "-b", "-n", "7"]] {
            let size = if op == "atomic" { "8" } else { "300" };
            checked(&[&["--op", op, "-s", size], more].concat());
        }
    }
    let out = succeed("pingpong", &["--test", "bw", "-s", "64", "-n", "50", "-t", "7", "-Q", "100"]);
    assert!(out.contains(" TX depth        : 7\n CQ Moderation   : 7\n"), "{out}");
    checked(&["-c", "UD", "-s", "300", "-Q", "8"]);
    checked(&["-c", "UC", "-s", "300", "-Q", "8"]);
}

#[test]
fn the_object_has_the_latencies_that_are_asked_for() {
    for (letter, is_sorted) in [("-U", false), ("-H", true)] {
        let report = report(&["--test", "lat", "-s", "64", "-n", "20", letter]);
        let latencies: Vec<f64> =
            report["latency"][0]["latencies"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap()).collect();
        assert_eq!(latencies.len(), 20);
        assert!(!is_sorted || latencies.is_sorted(), "{latencies:?}");
    }
    assert!(report(&["--test", "lat", "-s", "64", "-n", "20"])["latency"][0].get("latencies").is_none());
}

#[test]
fn limits_are_checked() {
    let few = ["--test", "bw", "-s", "64", "-n", "20"];
    succeed("pingpong", &[&few[..], &["-w", "0.000001", "-y", "0.000001"]].concat());
    for (option, said) in [("-w", "is below --limit_bw 1000000000"), ("-y", "is below --limit_msgrate 1000000000")] {
        fail("pingpong", &[&few[..], &[option, "1000000000"]].concat(), said);
    }
}

#[test]
fn letters_of_perftest_mean_what_they_mean_there() {
    let out = succeed("pingpong", &["-s", "64", "-n", "20", "-u", "16", "-S", "2", "-Q", "1", "-l", "1"]);
    assert!(out.contains("Send BW Test"), "{out}");
    let report = report(&["--test", "bw", "--op", "read", "-s", "64", "-D", "1", "-f", "0", "-o", "2"]);
    assert!(report["bandwidth"][0]["n_iterations"].as_u64().unwrap() > 0);
    for (args, said) in [
        (&["-l", "8"][..], "perftest has -l: each message is posted by itself"),
        (&["-z"], "-R connects by rdma_cm"),
        (&["--rate_limit", "10"], "perftest has --rate_limit: messages are sent as fast as they go"),
        (&["--force-link", "IB"], "the link layer is the port's"),
        (&["--use_cuda", "0"], "gpu_bw measures between the memories of GPUs"),
        (&["-o", "4"], "--outs is for reads and atomic operations"),
        (&["-f", "1"], "--duration"),
        (&["-D", "4", "-f", "2"], "--duration 4 is not longer than two times --margin 2"),
        (&["--output", "latency"], "--output prints one test"),
        (&["--output", "latency", "--test", "bw"], "--test bw has bandwidth and message_rate"),
        (&["-w", "1", "--test", "lat"], "are for bandwidth tests"),
        (&["-H", "--test", "bw"], "print the latency of each message"),
        (&["--output", "latency", "--test", "lat", "--json"], "--output prints one figure, and --json all of them"),
    ] {
        fail("pingpong", args, said);
    }
}

/// A gigabit is 10^9 bits, and a mebibyte 2^20 bytes.
#[test]
fn gigabits_are_counted_as_perftest_does() {
    for (args, unit) in [(&[][..], 1048576.0), (&["--report_gbits"], 125e6)] {
        let row = checked(&[&["--size", "64K"], args].concat());
        let (average, rate) = (row["BW_average"].as_f64().unwrap(), row["MsgRate"].as_f64().unwrap());
        assert!((average - rate * 1e6 * 65536.0 / unit).abs() < average / 1e6, "{row}");
    }
}

#[test]
fn server_and_client_find_each_other() {
    let address = free_address(5);
    let (host, port) = address.rsplit_once(':').unwrap();
    let common = ["--size", "256", "-n", "10"];
    for (server, client) in [([address.as_str(), "-F"], [address.as_str(), "-F"]), ([host, "-p"], [host, "-p"])] {
        let more: &[&str] = if server[1] == "-p" { &[port] } else { &[] };
        let server = start("pingpong", &[&["--server"], &server[..], more, &common].concat());
        let client = run("pingpong", &[&client[..], more, &common].concat());
        assert!(client.status.success(), "{}", text(&client.stderr));
        assert!(text(&client.stdout).contains("Send BW Test"));
        assert!(finish(server).status.success());
    }
}

#[test]
fn different_settings_are_named() {
    let address = free_address(9);
    let server = start("pingpong", &["--server", &address, "--size", "64", "-D", "5"]);
    let client = run("pingpong", &[&address, "--size", "64", "-D", "7"]);
    let said = "--duration is 5 at the server and 7 at the client; give all the same options";
    has_failed("the server", &finish(server), said);
    has_failed("the client", &client, said);
}

#[test]
fn refuses_bad_input() {
    let cases: [(&[&str], &str); 27] = [
        (&["--device", "mlx9_9"], "mlx9_9"),
        (&["--size", "0"], "--size 0"),
        (&["--size", "4G"], "--size 4G"),
        (&["--iters", "0"], "'0' for '--iters"),
        (&["--iters", "99999999999999999999"], "for '--iters"),
        (&["--mtu", "1500"], "an MTU is 256, 512, 1024, 2048 or 4096"),
        (&["--tx-depth", "0"], "'0' for '--tx-depth"),
        (&["--rx-depth", "1"], "'1' for '--rx-depth"),
        (&["--inline_size", "1025"], "'1025' for '--inline_size"),
        (&["--qp", "0"], "'0' for '--qp"),
        (&["--port", "0"], "'0' for '--port"),
        (&["--ib-port", "9"], "port 9"),
        (&["--gid-index", "200"], "GID 200"),
        (&["--op", "shout"], "shout"),
        (&["--connection", "XRC"], "'XRC' for '--connection"),
        (&["--op", "atomic", "-s", "16"], "8 bytes"),
        (&["--op", "atomic", "-a"], "8 bytes"),
        (&["-c", "UD", "--op", "write"], "--op send"),
        (&["-c", "UD", "-R"], "leave --rdma_cm out"),
        (&["-c", "UC", "--op", "read"], "send and write"),
        (&["-c", "UC", "-R"], "leave --rdma_cm out"),
        (&["-c", "UD", "-s", "1M"], "a datagram has at most 4096 bytes"),
        (&["--test", "lat", "-q", "2"], "bandwidth tests"),
        (&["-D", "1", "-a"], "cannot be used with"),
        (&["-D", "0"], "'0' for '--duration"),
        (&["--server", "127.0.0.1:1x"], "host:port"),
        (&["127.0.0.1:9", "--timeout", "1"], "cannot reach"),
    ];
    for (args, part) in cases {
        fail("pingpong", args, part);
    }
}
