//! Runs the programs as a user does: on the software device, with valid and invalid arguments, and
//! with ranks that die.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::*;

/// [`finish`] for a program whose standard output is not a pipe of this test.
fn finish_without_output(mut child: Child) -> Output {
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    Output { status: child.wait().unwrap(), stdout: Vec::new(), stderr: err.into_bytes() }
}

mod devinfo {
    use super::*;

    #[test]
    fn shows_the_software_device() {
        let out = succeed("devinfo", &["-d", "soft0"]);
        for part in ["hca_id:\tsoft0", "PORT_ACTIVE (4)", "GID:", "max_qp_wr:", "software:"] {
            assert!(out.contains(part), "{part:?} is not in\n{out}");
        }
        assert!(succeed("devinfo", &["--list"]).lines().any(|line| line == "soft0"));
        assert!(succeed("devinfo", &["--brief"]).len() < out.len());
    }

    #[test]
    fn shows_every_software_device() {
        let two = |args: &[&str]| {
            let mut command = program("devinfo");
            command.args(args).env("RDMA_SOFT_DEVICES", "2");
            rdma_test_support::program::has_succeeded(&format!("devinfo {args:?}"), &finish(command.spawn().unwrap()))
        };
        let list = two(&["--list"]);
        let names: Vec<_> = list.lines().filter(|name| name.starts_with("soft")).collect();
        assert_eq!(names, ["soft0", "soft1"]);
        assert!(two(&["-d", "soft1"]).contains("hca_id:\tsoft1"));
        for list in ["^soft0", "=soft1", "soft1:1"] {
            let shown = two(&["--list", "-d", list]);
            assert!(shown.contains("soft1") && !shown.contains("soft0"), "{list}: {shown}");
        }
    }

    #[test]
    fn prints_json() {
        let report: Value = serde_json::from_str(&succeed("devinfo", &["--json"])).unwrap();
        let soft = report["devices"].as_array().unwrap().iter().find(|d| d["hca_id"] == "soft0").unwrap();
        assert_eq!(soft["software"], true);
        assert!(!soft["ports"][0]["gids"].as_array().unwrap().is_empty());
    }

    #[test]
    fn prints_the_options_of_paths() {
        let with = |args: &[&str]| {
            let mut command = program("devinfo");
            let command = command.args(args).env("RDMA_TRAFFIC_CLASS", "104").env("RDMA_RETRY_COUNT", "8");
            rdma_test_support::program::has_succeeded(&format!("devinfo {args:?}"), &finish(command.spawn().unwrap()))
        };
        let all = with(&["-d", "soft0"]);
        let line = |name: &str| {
            let found = all.lines().find(|line| line.trim_start().starts_with(&format!("{name}:")));
            found
                .unwrap_or_else(|| panic!("{name} is not in\n{all}"))
                .split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(line("traffic_class"), "104 (RDMA_TRAFFIC_CLASS)");
        assert_eq!(line("hop_limit"), "64 (default; RDMA_HOP_LIMIT)");
        assert!(line("retry_count").starts_with("invalid: RDMA_RETRY_COUNT is \"8\""), "{all}");
        let brief = with(&["--brief"]);
        assert!(brief.contains("104 (RDMA_TRAFFIC_CLASS)") && !brief.contains("hop_limit"), "{brief}");
        let report: Value = serde_json::from_str(&with(&["--json"])).unwrap();
        let path = report["path"].as_array().unwrap();
        let class = path.iter().find(|option| option["option"] == "traffic_class").unwrap();
        assert_eq!((&class["value"], &class["from"]), (&104.into(), &"RDMA_TRAFFIC_CLASS".into()));
    }

    #[test]
    fn says_why_there_is_no_hardware() {
        let said = succeed("devinfo", &["--why"]);
        let mut lines: Vec<_> = said.lines().flat_map(|line| line.split(": ")).map(str::trim).collect();
        lines.sort_unstable();
        assert!(!lines.is_empty() && lines.windows(2).all(|pair| pair[0] != pair[1]), "{said}");
        serde_json::from_str::<Value>(&succeed("devinfo", &["--why", "--json"])).unwrap();
        let missing = program("devinfo").arg("--why").env("RDMA_IBVERBS_PATH", "/nonexistent/libibverbs.so").spawn();
        let said = text(&finish(missing.unwrap()).stdout);
        let reason = said.lines().find(|line| line.contains("/nonexistent/libibverbs.so")).unwrap();
        assert_eq!(reason.matches("/nonexistent/libibverbs.so").count(), 1, "{reason}");
    }

    #[test]
    fn says_how_other_hosts_are_reached() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("job.key");
        std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
        let at = TcpListener::bind("127.88.7.1:0").unwrap().local_addr().unwrap().to_string();
        let with = |mode: u32, args: &[&str]| {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut command = program("devinfo");
            command.args(args).env("RDMA_SOFT_TCP", &at).env("RDMA_SOFT_KEY", &key);
            finish(command.spawn().unwrap())
        };
        assert!(succeed("devinfo", &["--why"]).contains("reaches no other hosts, unless RDMA_SOFT_TCP has"));
        let why = text(&with(0o600, &["--why"]).stdout);
        assert!(
            why.contains(&format!("soft0 listens at {at} for other hosts, with the key of {}", key.display())),
            "{why}"
        );
        let why = text(&with(0o644, &["--why"]).stdout);
        assert!(why.contains("does not start: ") && why.contains("chmod 600"), "{why}");
        has_failed("devinfo", &with(0o644, &["-d", "soft0"]), "chmod 600");
        let brief = text(&with(0o600, &["-d", "soft0", "--brief"]).stdout);
        assert!(brief.contains(&format!("{at}, key of {} (fingerprint ", key.display())), "{brief}");
        let json: Value = serde_json::from_slice(&with(0o600, &["-d", "soft0", "--json"]).stdout).unwrap();
        let soft0 = &json["devices"][0];
        assert_eq!(
            (&soft0["tcp"]["address"], &soft0["ports"][0]["gids"][0]["gid"]),
            (&at.as_str().into(), &"::ffff:127.88.7.1".into())
        );
    }

    #[test]
    fn refuses_bad_input() {
        fail("devinfo", &["-d", "mlx9_9"], "there is no device mlx9_9");
        fail("devinfo", &["-d", "soft0:7"], "no port 7");
        fail("devinfo", &["-d", "soft0:x"], "--device");
        fail("devinfo", &["--bogus"], "--bogus");
        let wrong = finish(program("devinfo").env("RUST_LOG", "rdma=loud").spawn().unwrap());
        has_failed("devinfo", &wrong, "RUST_LOG is \"rdma=loud\" in the environment");
        assert!(succeed("devinfo", &["-d", "soft0:1"]).contains("port:\t1"));
    }

    #[test]
    fn a_full_disk_is_said() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = finish_without_output(program("devinfo").stdout(full).spawn().unwrap());
        has_failed("devinfo", &output, "cannot write the output");
    }
}

mod all_reduce {
    use super::*;

    fn json(args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let out = succeed("all_reduce", &all);
        assert_eq!(out.lines().count(), 1, "{out}");
        serde_json::from_str(&out).unwrap()
    }

    fn is_right(report: &Value, rows: usize) {
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), rows);
        for row in results {
            for side in ["out_of_place", "in_place"] {
                assert_eq!(row[side]["nwrong"], 0, "{row}");
                assert!(row[side]["time"].as_f64().unwrap() > 0.0);
            }
        }
    }

    #[test]
    fn every_number_of_ranks_sums() {
        for (ranks, transport) in ["1", "2", "3", "4", "5"].into_iter().flat_map(|r| [(r, "shm"), (r, "verbs")]) {
            let sizes = ["--min", "4", "--max", "1M", "-f", "8", "-n", "3", "-w", "1"];
            let report = json(&[&sizes[..], &["-g", ranks, "--transport", transport]].concat());
            assert_eq!(report["ranks"].to_string(), ranks);
            assert_eq!(report["transport"], if ranks == "1" { "verbs" } else { transport });
            is_right(&report, 7);
        }
    }

    #[test]
    fn every_element_type_sums() {
        for dtype in ["float", "double", "int32", "uint32", "int64", "uint64"] {
            is_right(&json(&["-g", "2", "--min", "1000", "--max", "100000", "-f", "10", "-n", "2", "-d", dtype]), 3);
        }
    }

    #[test]
    fn small_chunks_and_deep_pipelines_sum() {
        let cases = [("4K", "1"), ("4K", "5"), ("16K", "2"), ("1M", "3")];
        for (algo, (chunk, lead)) in ["ring", "direct"].into_iter().flat_map(|algo| cases.map(|case| (algo, case))) {
            let sizes = ["--min", "100000", "--max", "900000", "-f", "3", "-n", "2"];
            let more = ["-g", "3", "--chunk", chunk, "--lead", lead, "--algo", algo, "--transport", "verbs"];
            let args = [&sizes[..], &more].concat();
            is_right(&json(&args), 3);
        }
    }

    #[test]
    fn arrivals_told_by_completions_sum() {
        for algo in ["auto", "ring", "direct"] {
            for ranks in ["2", "4"] {
                let sizes = ["-g", ranks, "--min", "8", "--max", "2M", "-f", "64", "-n", "3", "--chunk", "64K"];
                let report = json(&[&sizes[..], &["--completions", "--algo", algo, "--transport", "verbs"]].concat());
                assert_eq!(report["notice"], "told by completions");
                is_right(&report, 4);
            }
        }
    }

    /// As on iWARP, with more messages than may be unconfirmed at a time.
    #[test]
    fn arrivals_told_by_messages_sum() {
        for algo in ["auto", "ring", "direct"] {
            for ranks in ["2", "4"] {
                let sizes = ["-g", ranks, "--min", "8", "--max", "2M", "-f", "64", "-n", "3", "--chunk", "8K"];
                let report = json(&[&sizes[..], &["--messages", "--algo", algo, "--transport", "verbs"]].concat());
                assert_eq!(report["notice"], "told by messages");
                is_right(&report, 4);
            }
        }
    }

    #[test]
    fn prints_the_table_of_nccl_tests() {
        let out = succeed("all_reduce", &["-g", "2", "--min", "64", "--max", "128", "-n", "2"]);
        assert!(out.lines().next().unwrap().starts_with("# using soft0"), "{out}");
        assert!(out.contains("out-of-place"), "{out}");
        assert!(out.contains("# Out of bounds values : 0 OK"), "{out}");
        assert_eq!(out.lines().filter(|line| line.contains("float     sum      -1")).count(), 2, "{out}");
    }

    #[test]
    fn ranks_started_by_hand_find_each_other() {
        let root = free_address(2);
        let rank = |rank| {
            let args = ["--rank", rank, "--world", "3", "--root", &root, "--max", "4K", "-n", "2"];
            start("all_reduce", &args)
        };
        // Rank 0 starts last, so the others have to wait for it.
        let ranks = [rank("1"), rank("2"), rank("0")].map(finish);
        for output in &ranks {
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        assert!(text(&ranks[2].stdout).contains("0 OK"));
    }

    #[test]
    fn refuses_bad_input() {
        let cases: [(&[&str], &str); 25] = [
            (&["--dtype", "quarter"], "[possible values: f32, f64, f16"),
            (&["--chunk", "5000"], "give a multiple of 4K, at most 1G"),
            (&["--one-step", "32M"], "give a multiple of 64, at most 16M"),
            (&["--lead", "65"], "give 1 to 64"),
            (&["--device", "mlx9_9"], "mlx9_9"),
            (&["--port", "0"], "'0' for '--port"),
            (&["--rank", "0", "--world", "2", "--root", "127.0.0.1:65536"], "no port from 1 to 65535"),
            (&["--device", "soft0:7"], "port"),
            (&["--port", "9"], "port"),
            (&["--gid-index", "200"], "GID"),
            (&["--ranks", "0"], "'0' for '--ranks <N>': give 1 to 256"),
            (&["--ranks", "100000"], "'100000' for '--ranks <N>'"),
            (&["--ranks", "-1"], "-1"),
            (&["--min", "1M", "--max", "1K"], "--min 1M"),
            (&["--min", "0"], "--min 0"),
            (&["--max", "12Q"], "12Q"),
            (&["--max", "1000G"], "no memory"),
            (&["--max", "1T"], "no memory"),
            (&["--rank", "0", "--world", "4000000000", "--root", "127.0.0.1:1234"], "'4000000000' for '--world <N>'"),
            (&["--factor", "1"], "--factor 1"),
            (&["--iters", "0"], "'0' for '--iters"),
            (&["--rank", "0"], "--world"),
            (&["--rank", "3", "--world", "2", "--root", "127.0.0.1:1234"], "--rank 3"),
            (&["--rank", "0", "--world", "2", "--root", "nonsense"], "host:port"),
            (&["--rank", "1", "--world", "2", "--root", "127.0.0.1:9", "--timeout", "1"], "cannot reach rank 0"),
        ];
        for (args, part) in cases {
            fail("all_reduce", args, part);
        }
    }

    #[test]
    fn a_device_that_the_environment_leaves_out_is_said() {
        let with = |name: &str, value: &str| {
            let mut command = program("all_reduce");
            command.env_remove("RDMA_DEVICE").env(name, value).args(["-g", "1", "--max", "64"]);
            finish(command.spawn().unwrap())
        };
        // A machine with hardware uses it.
        let off = with("RDMA_SOFT", "OFF");
        if !off.status.success() {
            has_failed("RDMA_SOFT=OFF", &off, "unset RDMA_SOFT");
        }
        for (name, value) in [
            ("RDMA_DEVICE", "a b"),
            ("RDMA_SOFT", "maybe"),
            ("RDMA_SOFT_DEVICES", "65"),
            ("RDMA_SOFT_LINK_LAYER", "foo"),
            ("RDMA_IBVERBS_PATH", "/nonexistent/libibverbs.so"),
        ] {
            has_failed(&format!("{name}={value}"), &with(name, value), name);
        }
        assert!(with("RDMA_DEVICE", "").status.success());
    }

    #[test]
    fn the_settings_come_from_options_and_the_environment() {
        let with = |args: &[&str], variables: &[(&str, &str)]| {
            let mut command = program("all_reduce");
            let rank = ["-g", "2", "--max", "64", "-n", "2"];
            command.env("RDMA_SOFT_DEVICES", "2").envs(variables.iter().copied()).args(rank).args(args);
            finish(command.spawn().unwrap())
        };
        let first_line = |args: &[&str], variables: &[(&str, &str)]| {
            let out =
                rdma_test_support::program::has_succeeded(&format!("{args:?} {variables:?}"), &with(args, variables));
            out.lines().next().unwrap_or_default().to_owned()
        };
        let all = ["--traffic-class", "106", "--service-level", "3", "--ack-timeout", "16", "--retry-count", "2"];
        assert!(first_line(&all, &[]).starts_with("# using soft0 port 1"));
        assert!(
            first_line(&["--cm", "--tclass", "106", "--retry-count", "2"], &[("RDMA_ACK_TIMEOUT", "16")])
                .contains("soft0")
        );
        for (list, device) in [("^soft0", "soft1"), ("=soft1:1", "soft1"), ("soft", "soft0"), ("^=soft1", "soft0")] {
            let line = first_line(&[], &[("RDMA_DEVICE", list), ("RDMA_GID_INDEX", "-1"), ("RDMA_TRAFFIC_CLASS", "")]);
            // A machine with hardware uses it where the list allows it.
            assert!(list.contains('^') || line.starts_with(&format!("# using {device} port 1")), "{list}: {line}");
        }
        for (name, value, said) in [
            ("RDMA_TRAFFIC_CLASS", "256", "give 0 to 255"),
            ("RDMA_SERVICE_LEVEL", "16", "give 0 to 15"),
            ("RDMA_ACK_TIMEOUT", "x", "give 0 to 31"),
            ("RDMA_RETRY_COUNT", "8", "give 0 to 7"),
            ("RDMA_RNR_RETRY_COUNT", "8", "give 0 to 7"),
            ("RDMA_MIN_RNR_TIMER", "32", "give 0 to 31"),
            ("RDMA_FLOW_LABEL", "1048576", "give 0 to 1048575"),
            ("RDMA_UDP_SOURCE_PORT", "4791", "give 49152 to 65535"),
            ("RDMA_HOP_LIMIT", "-1", "give 0 to 255"),
            ("RDMA_GID_INDEX", "256", "give -1 to 255"),
            ("RDMA_GID_INDEX", "200", "no GID 200"),
            ("RDMA_DEVICE", "^soft,mlx5,rxe,siw", "leaves no device"),
            ("RDMA_DEVICE", "soft0,^soft1", "in front of the whole list"),
        ] {
            let ended = with(&[], &[(name, value)]);
            has_failed(&format!("{name}={value}"), &ended, said);
        }
        assert!(first_line(&["--cm", "--sl", "1", "--hop-limit", "9"], &[]).contains("soft0"));
        let both = [("RDMA_FLOW_LABEL", "1"), ("RDMA_UDP_SOURCE_PORT", "50000")];
        has_failed("a label and a port", &with(&[], &both), "the option udp_source_port");
        let output = with(&["--log", "info"], &[]);
        let logged = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && logged.contains("INFO") && logged.contains("soft0"), "{logged}");
        has_failed("--log", &with(&["--log", "all"], &[]), "--log <LEVEL>");
        has_failed("--sl", &with(&["--sl", "16"], &[]), "--service-level <0..15>");
    }

    /// A peer that connects to rank 0, sends some bytes and stays does not delay rank 0 beyond its
    /// timeout.
    #[test]
    fn a_stranger_at_the_door_does_not_keep_it_open() {
        let root = free_address(6);
        let common = ["--world", "2", "--root", &root, "--timeout", "3", "--max", "64"];
        let rank = start("all_reduce", &[&common[..], &["--rank", "0"]].concat());
        let mut stream = connect(&root);
        // The head of an introduction, at one byte per third of a second.
        let begun = Instant::now();
        for byte in b"rdma-job\0\0\0\x06\0\0\0\0\0\0\0\0".iter().cycle() {
            if stream.write_all(&[*byte]).is_err() || begun.elapsed() > Duration::from_secs(30) {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let output = finish(rank);
        assert!(begun.elapsed() < Duration::from_secs(30));
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("it does not introduce itself") && err.contains("missing: 1"), "{err}");
    }

    #[test]
    fn a_port_in_use_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let root = listener.local_addr().unwrap().to_string();
        fail("all_reduce", &["--rank", "0", "--world", "2", "--root", &root], "in use");
    }

    /// A stranger of another version, and a process of another job, do not end the job.
    #[test]
    fn only_the_ranks_of_a_job_can_end_it() {
        let root = free_address(3);
        let rank = |rank: &str, job: &str| {
            let args = ["--rank", rank, "--world", "2", "--root", &root, "--job", job, "--max", "64", "-n", "2"];
            start("all_reduce", &args)
        };
        let zero = rank("0", "mine");
        connect(&root).write_all(b"rdma-job\0\0\x03\xe7").unwrap();
        has_failed("a rank of another job", &finish(rank("1", "another")), "another job");
        let one = finish(rank("1", "mine"));
        assert!(one.status.success(), "{}", text(&one.stderr));
        let zero = finish(zero);
        let err = text(&zero.stderr);
        assert!(zero.status.success() && err.contains("ignored a connection"), "{err}");
    }

    #[test]
    fn different_settings_are_refused() {
        let root = free_address(4);
        let common = ["--world", "2", "--root", &root];
        let zero = start("all_reduce", &[&common[..], &["--rank", "0", "--max", "1K"]].concat());
        let one = run("all_reduce", &[&common[..], &["--rank", "1", "--max", "2K"]].concat());
        let said = "--max is 1K at rank 0 and 2K at rank 1; give all the same options";
        has_failed("rank 1", &one, said);
        has_failed("rank 0", &finish(zero), said);
    }

    /// The child processes of a program.
    fn children(of: u32) -> Vec<u32> {
        let path = format!("/proc/{of}/task/{of}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    fn send(signal: Signal, pid: u32) {
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Starts a job that would take very long, and waits until it works.
    fn endless(more: &[&str]) -> (Child, Vec<u32>, impl BufRead + use<>) {
        let args = ["-g", "3", "--min", "64K", "--max", "64K", "-n", "100000000", "-c", "0", "--transport", "verbs"];
        let mut job = start("all_reduce", &[&args, more].concat());
        let mut out = BufReader::new(job.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("(elements)") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "it ended early");
        }
        let ranks = children(job.id());
        assert_eq!(ranks.len(), 3);
        (job, ranks, out)
    }

    fn is_gone(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    }

    fn wait_until_gone(pids: &[u32]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !pids.iter().all(|&pid| is_gone(pid)) {
            assert!(Instant::now() < deadline, "ranks are left behind");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_killed_rank_ends_the_others() {
        for victim in 0..3 {
            let (mut job, ranks, out) = endless(&[]);
            std::thread::sleep(Duration::from_millis(100));
            send(Signal::SIGKILL, ranks[victim]);
            let killed = Instant::now();
            let status = job.wait().unwrap();
            assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
            let mut err = String::new();
            job.stderr.take().unwrap().read_to_string(&mut err).unwrap();
            drop(out);
            let output = Output { status, stdout: Vec::new(), stderr: err.into_bytes() };
            has_failed(
                "the job",
                &output,
                &format!("rank {victim} (process {}) was killed by signal 9", ranks[victim]),
            );
            wait_until_gone(&ranks);
        }
    }

    /// Stops a rank during an operation, or during set-up: a stopped process keeps its sockets
    /// open.
    #[test]
    fn a_stopped_rank_is_named() {
        for victim in 0..3 {
            let (job, ranks, out) = endless(&["--timeout", "9"]);
            send(Signal::SIGSTOP, ranks[victim]);
            has_failed("the job", &finish_without_output(job), &format!("rank {victim} has been silent for 3 s"));
            drop(out);
            wait_until_gone(&ranks);
        }
    }

    #[test]
    fn a_rank_that_stops_during_set_up_is_named() {
        let root = free_address(7);
        let start = |rank| start("all_reduce", &["--rank", rank, "--world", "2", "--root", &root, "--timeout", "9"]);
        for victim in ["0", "1"] {
            let (stopped, other) = (start(victim), start(if victim == "0" { "1" } else { "0" }));
            // The victim may or may not have introduced itself by now.
            std::thread::sleep(Duration::from_millis(30));
            send(Signal::SIGSTOP, stopped.id());
            let err = text(&finish(other).stderr);
            let parts = ["has been silent for 3 s", "did not come", "cannot reach rank 0", "does not answer"];
            assert!(parts.iter().any(|part| err.contains(part)) && err.contains(victim), "{err}");
            send(Signal::SIGKILL, stopped.id());
            assert!(!finish(stopped).status.success());
        }
    }

    #[test]
    fn ranks_die_with_their_launcher() {
        let (mut job, ranks, _out) = endless(&[]);
        send(Signal::SIGKILL, job.id());
        job.wait().unwrap();
        wait_until_gone(&ranks);
    }

    #[test]
    fn a_reader_that_leaves_is_no_failure() {
        let mut job = start("all_reduce", &["-g", "2", "--max", "4K", "-n", "10"]);
        drop(job.stdout.take());
        let mut err = String::new();
        job.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(job.wait().unwrap().success());
        assert_eq!(err, "");
    }
}

fn limited(limit: &str, program: &str, args: &str) -> Output {
    let shell = format!("{limit}; exec {program} {args}");
    let mut command = Command::new("sh");
    command.args(["-c", &shell]).env("RDMA_DEVICE", "soft0").stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

#[test]
fn limits_of_memory_and_files_are_said() {
    has_failed("all_reduce", &limited("ulimit -n 20", env!("CARGO_BIN_EXE_all_reduce"), ""), "ulimit -n");
    // The allocation of buffers fails at both sides; one line reports the failure.
    let output = limited("ulimit -v 100000", env!("CARGO_BIN_EXE_pingpong"), "--size 8M");
    has_failed("pingpong", &output, "memory");
}
