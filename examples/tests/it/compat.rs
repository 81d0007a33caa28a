//! `pingpong --compat` against itself, and against peers that are no such program.
//! `tests/vm/compat.sh` runs it against the real `ibv_rc_pingpong` and `ibv_uc_pingpong`,
//! and `cargo xtask thirdparty` against `ibv_srq_pingpong`, too.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;

use rdma::op;
use rdma::{ConnectOptions, InitOptions, QueuePair};
use serde_json::Value;

use crate::common::*;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&succeed("pingpong", &[&["--compat", "--json"], args].concat())).unwrap()
}

#[test]
fn both_sides_are_ours() {
    for events in [&[][..], &["--events"]] {
        for size in ["1", "63", "4096", "64K", "1M", "8M"] {
            let count = if size == "8M" { "2" } else { "20" };
            let report = json(&[&["--size", size, "--check", "-n", count], events].concat());
            assert_eq!(report["checked"], true, "{report}");
            let bytes = report["size"].as_u64().unwrap() * report["iterations"].as_u64().unwrap() * 2;
            assert_eq!(report["bytes"], bytes, "{report}");
            assert!(report["usec_per_iteration"].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

#[test]
fn both_sides_are_unreliable() {
    for size in ["1", "4096", "64K"] {
        let report = json(&["--connection", "UC", "--size", size, "--check", "-n", "20"]);
        assert_eq!((&report["checked"], &report["compat"]), (&true.into(), &"ibv_uc_pingpong".into()), "{report}");
    }
    let output = run("pingpong", &["--compat", "--connection", "UD"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("give RC or UC"));
}

#[test]
fn both_sides_share_their_receives() {
    for args in [&["--size", "64K"][..], &["-s", "1", "-q", "1"], &["-q", "255", "-n", "300"], &["-e", "-r", "16"]] {
        let report = json(&[&["--srq", "--check", "-n", "40"], args].concat());
        assert_eq!((&report["checked"], &report["compat"]), (&true.into(), &"ibv_srq_pingpong".into()), "{report}");
    }
    // Fewer messages than queue pairs.
    assert_eq!(json(&["--srq", "-n", "3"])["iterations"], 3);
    let says = "give both the same number (-q)";
    differ(16, &["--srq", "-q", "4"], &["--srq"], [says, "sent no address"]);
    differ(17, &["--srq", "-n", "10"], &["--srq", "-n", "5"], ["has sent 5 of 10 messages", ""]);
}

#[test]
fn every_mtu_and_depth_carries_messages() {
    for mtu in ["256", "512", "1024", "2048", "4096"] {
        assert_eq!(json(&["--size", "10000", "--check", "--mtu", mtu, "-n", "20", "--rx-depth", "1"])["checked"], true);
    }
    assert_eq!(json(&["--rx-depth", "7", "--sl", "3"])["checked"], false);
}

#[test]
fn ports_of_infiniband_go_by_lid() {
    let mut command = program("pingpong");
    command.env("RDMA_SOFT_LINK_LAYER", "infiniband").args(["--compat", "--check", "-n", "20"]);
    let output = finish(command.spawn().unwrap());
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(out.contains("GID ::\n") && out.contains("contents checked"), "{out}");
}

#[test]
fn says_what_it_measures_and_how_to_start_the_other_side() {
    let out = succeed("pingpong", &["--compat", "--size", "64", "-n", "50", "--sl", "2"]);
    for part in [
        "# using soft0",
        "speaks to: ibv_rc_pingpong -g INDEX -s 64 -n 50 -m 1024 -l 2\n",
        "local address:  LID 0x",
        "remote address: LID 0x",
        "6400 bytes in ",
        " Mbit/sec",
        "50 iters in ",
        " usec/iter",
    ] {
        assert!(out.contains(part), "{part:?} is not in\n{out}");
    }
}

#[test]
fn server_and_client_find_each_other() {
    let address = free_address(10);
    let common = ["--compat", "--size", "256", "-n", "10"];
    // The client starts first, and waits for the server.
    let client = start("pingpong", &[&[address.as_str()], &common[..]].concat());
    let server = run("pingpong", &[&["--server", &address], &common[..]].concat());
    let client = finish(client);
    for output in [&server, &client] {
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("10 iters in"));
    }
}

/// Starts a server and a client with different options. Each must fail with a line that contains
/// its part; an empty part means that the program must succeed.
fn differ(host: u8, server: &[&str], client: &[&str], parts: [&str; 2]) {
    let address = free_address(host);
    let common = ["--compat", "--timeout", "5"];
    let other = start("pingpong", &[&common[..], &["--server", &address], server].concat());
    let client = run("pingpong", &[&common[..], &[&address], client].concat());
    for (name, output, part) in [("the server", &finish(other), parts[0]), ("the client", &client, parts[1])] {
        if part.is_empty() {
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        } else {
            assert_eq!(output.status.code(), Some(1), "{name}");
            has_failed(name, output, part);
        }
    }
}

#[test]
fn other_sizes_are_said() {
    let says = "give both the same size (-s)";
    differ(11, &["-s", "64"], &["-s", "128"], [says, says]);
    // The client's message arrives with the wrong size; the client gets no answer.
    differ(12, &["-s", "128"], &["-s", "64"], [says, "has sent 0 of"]);
}

#[test]
fn other_counts_are_said() {
    differ(13, &["-n", "10"], &["-n", "5"], ["has sent 5 of 10 messages", ""]);
    differ(14, &["-n", "5"], &["-n", "10"], ["", "5 of 10 messages"]);
}

/// Without `--check`, a client sends the same contents as the C program with `-c`.
#[test]
fn a_server_may_check_alone() {
    differ(15, &["--check", "-n", "5"], &["-n", "5"], ["", ""]);
}

/// Starts a server and connects to it.
fn serving(address: &str) -> (Child, TcpStream) {
    let server = start("pingpong", &["--compat", "--server", address, "--timeout", "8"]);
    (server, connect(address))
}

#[test]
fn clients_that_are_none_are_refused() {
    let cases: [(u8, &[u8], bool, &str); 6] = [
        (20, b"", true, "sent no address"),
        (21, b"", false, "says nothing"),
        (22, b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n\r\n\r\n", false, "no pingpong of rdma-core"),
        (23, b"0000:000002:0000", true, "16 bytes where 52 are due"),
        // The line of the C program without its option `-g`.
        (24, b"0000:000002:000007:00000000000000000000000000000000\0", false, "needs -g"),
        (25, b"0000:000000:000007:00000000000000000000ffff0a090001\0", false, "number 0"),
    ];
    for (host, words, closes, part) in cases {
        let (server, mut stream) = serving(&free_address(host));
        stream.write_all(words).unwrap();
        if closes {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
        let output = finish(server);
        assert_eq!(output.status.code(), Some(1), "{part}");
        has_failed(part, &output, part);
    }
}

/// A client with the address of a queue pair that does not exist: the server waits for messages,
/// and then ends.
#[test]
fn a_client_that_only_talks_is_given_up() {
    let (server, mut stream) = serving(&free_address(26));
    // No queue pair has this number. The GID is the server's own, which only one of its lines
    // contains.
    let gid = own_gid();
    stream.write_all(format!("0001:fffffe:000007:{gid}\0").as_bytes()).unwrap();
    let mut line = [0; 52];
    // The device may notice at once that there is no such queue pair.
    if stream.read_exact(&mut line).is_ok() {
        assert!(line.ends_with(&[0]));
        drop(stream.write_all(b"done\0"));
    }
    let output = finish(server);
    assert_eq!(output.status.code(), Some(1));
    has_failed("pingpong --compat", &output, "");
}

/// A client with messages of its own: filled with one byte, as the C program's are without `-c`,
/// and more messages than the server asked for.
#[test]
fn wrong_contents_are_said() {
    let opened = rdma::open(&"soft0".parse().unwrap()).unwrap();
    let pd = opened.context.alloc_pd().unwrap();
    let cq = opened.context.create_cq(64).unwrap();
    let qp = QueuePair::builder(&pd).cq(&cq).max_send_wr(8).max_recv_wr(8).build().unwrap();
    let mut qp = qp.init(&InitOptions::new().port(opened.port)).unwrap();
    for _ in 0..8 {
        qp.post_recv(pd.allocate(64).unwrap(), 0).unwrap();
    }
    let address = free_address(27);
    let server = start("pingpong", &["--compat", "--server", &address, "-s", "64", "-n", "5", "--check"]);
    let mut stream = connect(&address);
    let end = qp.endpoint();
    let gid = u128::from_be_bytes(end.gid.unwrap().to_bytes());
    stream.write_all(format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", end.lid.0, end.qpn, end.psn).as_bytes()).unwrap();
    let mut line = [0; 52];
    stream.read_exact(&mut line).unwrap();
    stream.write_all(b"done\0").unwrap();
    let number =
        |range: std::ops::Range<usize>| u32::from_str_radix(std::str::from_utf8(&line[range]).unwrap(), 16).unwrap();
    let mut remote = end;
    (remote.qpn, remote.psn) = (number(5..11), number(12..18));
    let mut qp = qp.connect(&remote, &ConnectOptions::new()).unwrap();
    for _ in 0..8 {
        let mut message = pd.allocate(64).unwrap();
        message.fill(0x7b);
        qp.post_send(op::send(message)).unwrap();
    }
    let output = finish(server);
    assert_eq!(output.status.code(), Some(1));
    has_failed("the server", &output, "messages of 64 bytes had wrong contents, number 0 the first");
}

/// The software device's GID in the form of a line, read from a client that connects to this test.
fn own_gid() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let client = start("pingpong", &["--compat", &address]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut line = [0; 52];
    stream.read_exact(&mut line).unwrap();
    drop(stream);
    has_failed("the client", &finish(client), "closed the connection and sent no address");
    String::from_utf8(line[19..51].to_vec()).unwrap()
}

#[test]
fn servers_that_are_none_are_refused() {
    let cases: [(&[u8], &str); 3] = [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 with more of it\r\n", "SSH-2.0"),
        (b"short", "5 bytes where 52 are due"),
        (b"0000:000002:000007:00000000000000000000000000000000\0", "needs -g"),
    ];
    for (words, part) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = start("pingpong", &["--compat", &listener.local_addr().unwrap().to_string(), "--timeout", "3"]);
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = [0; 52];
        stream.read_exact(&mut line).unwrap();
        stream.write_all(words).unwrap();
        // The client may have read enough and closed the connection already.
        drop(stream.shutdown(std::net::Shutdown::Write));
        let output = finish(client);
        assert_eq!(output.status.code(), Some(1), "{part}");
        has_failed(part, &output, part);
    }
}

#[test]
fn what_the_c_program_does_not_have_is_refused() {
    let cases: [(&[&str], &str); 12] = [
        (&["--compat", "--op", "write"], "'--op'"),
        (&["--compat", "--test", "bw"], "'--test'"),
        (&["--compat", "--tx-depth", "4"], "'--tx-depth'"),
        (&["--compat", "--rx-depth", "0"], "'0' for '--rx-depth"),
        (&["--compat", "--sl", "16"], "'16' for '--sl"),
        (&["--compat", "--size", "0"], "--size 0"),
        (&["--compat", "-q", "4"], "--srq"),
        (&["--compat", "--srq", "--connection", "UC"], "leave --connection out"),
        (&["--compat", "--srq", "--rx-depth", "8"], "16 queue pairs share at least 16 receives"),
        (&["--compat", "--mtu", "1500"], "an MTU is"),
        (&["-l", "4"], "perftest has -l: each message is posted by itself"),
        (&["-g", "0"], "perftest has -g: there is no multicast here"),
    ];
    for (args, part) in cases {
        let output = run("pingpong", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        has_failed(part, &output, part);
    }
}

/// The two kinds have different options, which `--help` shows.
#[test]
fn help_says_what_belongs_to_which() {
    let (usual, compat) = (succeed("pingpong", &["--help"]), succeed("pingpong", &["--compat", "--help"]));
    assert!(
        usual.contains("see --compat --help") && usual.contains("--inline_size") && !usual.contains("--chk"),
        "{usual}"
    );
    assert!(compat.contains("ibv_rc_pingpong") && compat.contains("--chk") && !compat.contains("--op"), "{compat}");
}
