//! `kv` on the software device: the commands, a server that dies, and clients that break the rules.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rdma_examples::kv::{Client, node_options, tcp};
use rdma_examples::{Failure, service};
use rdma_net::{FailureKind, Node};

use crate::common::*;

const SERVE: [&str; 3] = ["serve", "127.0.0.1", "--memory=1M"];

fn server() -> Server {
    Server::start("kv", &[&SERVE[..], &["--keys=100"]].concat())
}

fn kv(server: &Server, command: &str, args: &[&str]) -> String {
    rdma_test_support::program::has_succeeded(command, &server.client("kv", command, args))
}

fn refused(server: &Server, command: &str, args: &[&str], part: &str) {
    has_failed(command, &server.client("kv", command, args), part);
}

/// Runs a node of a client.
fn with_node<T>(work: impl AsyncFnOnce(&Node) -> Result<T, Failure>) -> Result<T, Failure> {
    let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
    service::run(Node::new(&context, &node_options(4))?, |node| async move { work(&node).await })
}

#[test]
fn keys_are_put_got_and_deleted() {
    let server = server();
    refused(&server, "get", &["colour"], "the key does not exist");
    assert_eq!(kv(&server, "put", &["colour", "red"]), "sequence number 1\n");
    assert_eq!(kv(&server, "get", &["colour", "--log=error"]), "red\n");
    refused(&server, "put", &["colour", "blue", "--expect=0"], "its sequence number is 1");
    assert_eq!(kv(&server, "put", &["colour", "blue", "--expect=1"]), "sequence number 2\n");
    let fields: serde_json::Value = serde_json::from_str(&kv(&server, "get", &["colour", "--json"])).unwrap();
    assert_eq!(fields, serde_json::json!({ "sequence": 2, "value": "blue" }));
    refused(&server, "delete", &["colour", "--expect=1"], "its sequence number is 2");
    kv(&server, "delete", &["colour"]);
    refused(&server, "delete", &["colour"], "the key does not exist");
    refused(&server, "put", &["colour", "red", "--expect=2"], "has no sequence number");
}

/// Hardware does reach them, so a machine that has some hears nothing.
#[test]
fn a_server_says_if_other_hosts_do_not_reach_its_device() {
    for (address, says) in [("0.0.0.0", true), ("127.0.0.1", false)] {
        let mut command = program("kv");
        let mut server =
            Server::of(command.args(["serve", address, "--memory=1M", "--keys=100"]).env_remove("RDMA_DEVICE"));
        let mut line = String::new();
        BufReader::new(server.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("using "), "{line}");
        let is_alone = line.starts_with("using soft0 ") && says;
        assert_eq!(line.contains("it does not reach other hosts"), is_alone, "{line}");
    }
}

#[test]
fn load_fits_the_defaults_of_the_server() {
    let (server, load) = (server(), ["--seconds=1", "--keys=100", "--clients=2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&kv(&server, "load", &load)).unwrap();
    let transports: Vec<_> = report["rows"].as_array().unwrap().iter().map(|row| &row["transport"]).collect();
    assert_eq!(transports, ["rdma"]);
}

#[test]
fn an_address_may_have_a_port() {
    let server = server();
    succeed("kv", &["put", &server.address.to_string(), "colour", "red"]);
    assert_eq!(kv(&server, "get", &["colour"]), "red\n");
}

#[test]
fn connections_are_set_up_by_tcp() {
    let tcp = "--exchange=tcp";
    let server = Server::start("kv", &[&SERVE[..], &["--keys=100", tcp]].concat());
    assert_eq!(kv(&server, "put", &["colour", "red", tcp]), "sequence number 1\n");
    assert_eq!(kv(&server, "get", &["colour", tcp]), "red\n");
    refused(&server, "get", &["colour"], "the peer refused the connection");
    let output = succeed("kv", &["load", tcp, "--transport=rdma", "--seconds=1", "--keys=100", "--clients=2"]);
    assert!(output.contains("rdma"), "{output}");
    let taken = "the port is taken on iWARP and with --exchange tcp";
    fail("kv", &[&SERVE[..], &["--keys=100", "--port=0", "--tcp", tcp]].concat(), taken);
}

#[test]
fn impossible_arguments_are_refused() {
    fail("kv", &[], "give a command: serve, get, put");
    fail("kv", &["serve", "127.0.0.1", "--memory=4K", "--keys=1000"], "give more --memory or fewer --keys");
    fail("kv", &["serve", "127.0.0.1", "--keys=0"], "--keys");
    fail("kv", &["get", "127.0.0.1:80", "key"], "server 127.0.0.1:80: ");
    let server = server();
    refused(&server, "get", &[&"k".repeat(1025)], "a key has at most 1024 bytes");
    let address = server.address;
    let port = format!("--port={}", address.port());
    fail("kv", &[&SERVE[..], &["--keys=100", &port]].concat(), &format!("cannot listen on {address}"));
    drop(server);
    fail("kv", &["get", "127.0.0.1", &port, "key"], &format!("server {address}: "));
}

#[test]
fn a_server_without_room_says_so_and_goes_on() {
    let server = server();
    let long = "v".repeat(100_000);
    let refusals = (0..20).filter(|number| {
        let output = server.client("kv", "put", &[&number.to_string(), &long]);
        text(&output.stderr).contains("the server has no room for the key")
    });
    assert!(refusals.count() > 5, "the table has 1 MiB");
    assert_eq!(kv(&server, "get", &["0"]).trim_end(), long);
}

#[test]
fn the_death_of_the_server_ends_every_request() {
    let mut server = server();
    let address = server.address;
    let failures = with_node(async |node| {
        let mut clients = [Client::connect(node, address).await?, Client::connect(node, address).await?];
        for client in &mut clients {
            client.put(b"key", b"value", None).await?;
        }
        server.kill();
        let [mut one, mut two] = clients;
        Ok([one.get(b"key").await.map(drop), two.put(b"key", b"value", None).await.map(drop)])
    });
    for failed in failures.unwrap() {
        let text = failed.expect_err("the server is dead").to_string();
        assert!(text.contains("the peer is gone"), "{text}");
    }
}

#[test]
fn a_malformed_request_ends_its_client_only() {
    let server = server();
    let address = server.address;
    let ended = with_node(async |node| {
        let mut good = Client::connect(node, address).await?;
        let mut bad = node.connect(address).await?;
        bad.send(b"nonsense").await?;
        let ended = bad.next().await.map(|message| message.is_some());
        good.put(b"key", b"value", None).await?;
        assert_eq!(good.get(b"key").await?.expect("it was put").bytes[..], *b"value");
        Ok(ended)
    });
    match ended.unwrap() {
        Ok(is_answer) => assert!(!is_answer),
        Err(failure) => assert_eq!(failure.kind(), FailureKind::Closed),
    }
}

#[test]
fn a_client_that_sends_nothing_more_is_disconnected() {
    let server = Server::start("kv", &[&SERVE[..], &["--keys=100", "--idle=1"]].concat());
    let ended = with_node(async |node| {
        let mut client = node.connect(server.address).await?;
        // The request that asks where the table is.
        client.send([0]).await?;
        client.next().await?.expect("where the table is");
        // Nothing else ends this wait.
        Ok(client.next().await.map(|message| message.is_some()))
    });
    assert_ne!(ended.unwrap(), Ok(true));
}

/// A limit that leaves space for the table, and none for what comes after it.
#[test]
fn a_table_that_leaves_no_memory_is_refused() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 110000; exec \"$0\" load --seconds=1", env!("CARGO_BIN_EXE_kv")]);
    has_failed("kv", &command.output().unwrap(), "(`ulimit -v`)");
}

#[test]
fn clients_over_tcp_that_do_nothing_more_are_disconnected() {
    let server = Server::start("kv", &[&SERVE[..], &["--keys=100", "--idle=1", "--tcp"]].concat());
    let (mut silent, mut deaf) = [(); 2].map(|()| TcpStream::connect(server.address).unwrap()).into();
    // The request that asks where the table is. Without the server's limit this never ends.
    let requests = [1, 0, 0, 0, 0].repeat(10_000);
    while deaf.write_all(&requests).is_ok() {}
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
}

/// Nothing else ends this wait: the limit between requests is minutes.
#[test]
fn a_client_over_tcp_that_asks_nothing_is_disconnected() {
    let server = Server::start("kv", &[&SERVE[..], &["--keys=100", "--tcp"]].concat());
    let mut silent = TcpStream::connect(server.address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    match silent.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_broken_completion_queue_is_a_failure_of_this_end() {
    let server = server();
    let mut command = program("kv");
    command.args(["get", "127.0.0.1", &format!("--port={}", server.address.port()), "key"]);
    let output = command.env("RDMA_SOFT_FAULT", "cq-error:send:nth=1").output().unwrap();
    let text = text(&output.stderr);
    // The driver learns it from the device's event or from its next poll, whichever is first.
    let causes = ["this end failed: the device reports: completion queue error", "ibv_poll_cq: Input/output error"];
    assert!(causes.iter().any(|cause| text.contains(cause)), "{text}");
}

#[test]
fn load_is_measured_over_both_transports() {
    let args = ["--seconds=1", "--clients=3", "--keys=50", "--read-share=0.5"];
    let out = succeed("kv", &[&["load", "--json"], &args[..]].concat());
    let fields: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = fields["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["transport"].as_str().unwrap()).collect::<Vec<_>>(), ["rdma", "tcp"]);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("rate") > 0.0 && number("p50") <= number("p99.9") && number("p99.9") <= number("max"), "{row}");
    }
    let server = Server::start("kv", &["serve", "127.0.0.1", "--tcp"]);
    let out = kv(&server, "load", &[&args[..], &["--rate=500", "--transport=tcp,rdma"]].concat());
    assert!(out.contains("open loop of 500 requests/s") && out.lines().count() == 4, "{out}");
}

#[test]
fn the_options_of_the_path_stand_anywhere_and_are_checked() {
    let server = Server::start("kv", &["serve", "127.0.0.1", "--traffic-class", "104", "--hop-limit", "9"]);
    kv(&server, "put", &["--traffic-class=104", "a", "1"]);
    for (args, said) in [
        (["--rnr-retry-count=7", "--hop-limit=1"], "the option rnr_retry_count has an invalid value: it may be 0 to 6"),
        (["--flow-label=1", "--udp-source-port=50000"], "the option udp_source_port"),
        (["--udp-source-port=4791", "--hop-limit=1"], "--udp-source-port <49152..65535>"),
        (
            ["--completion-vector=4", "--hop-limit=1"],
            "the option completion_vector has an invalid value: it may be 0 to 3",
        ),
    ] {
        refused(&server, "get", &[&["a"][..], &args].concat(), said);
    }
}

/// A server that may have a few open files only.
fn server_with_few_files(option: &str) -> Server {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(program("kv").get_program());
    command.args(SERVE).args(["--keys=100", option]).env_clear().env("RDMA_DEVICE", "soft0");
    Server::of(command.stderr(Stdio::piped()))
}

/// Connections that take all files of a server.
fn flood(server: &Server) -> Vec<TcpStream> {
    let flood = (0..100).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let (start, files) = (Instant::now(), format!("/proc/{}/fd", server.child.id()));
    while std::fs::read_dir(&files).unwrap().count() < 64 {
        assert!(start.elapsed() < Duration::from_secs(60), "the server has files left");
        thread::sleep(Duration::from_millis(5));
    }
    flood
}

#[test]
fn a_server_without_files_refuses_clients_at_once() {
    let server = server_with_few_files("--exchange=tcp");
    let start = Instant::now();
    loop {
        let _flood = flood(&server);
        let output = server.client("kv", "get", &["key", "--exchange=tcp"]);
        if text(&output.stderr).contains("(Busy): the node has no descriptor for another connection") {
            return;
        }
        // The server has cut off the flood, which sends nothing, before the client came.
        assert!(start.elapsed() < Duration::from_secs(60), "{}", text(&output.stderr));
    }
}

/// Silent clients over TCP, which take all files, keep the others out for a few seconds only.
#[test]
fn a_shortage_of_files_is_said_and_ends() {
    let mut server = server_with_few_files("--tcp");
    let mut said = BufReader::new(server.child.stderr.take().unwrap());
    let _flood = flood(&server);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("kv: clients over TCP wait: ") && line.contains("(`ulimit -n`)"), "{line}");
    let start = Instant::now();
    loop {
        let output = server.client("kv", "get", &["key"]);
        if text(&output.stderr).contains("the key does not exist") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{}", text(&output.stderr));
    }
    server.kill();
    let mut more = String::new();
    said.read_to_string(&mut more).unwrap();
    // Not each time that the server tries again, twenty times in a second.
    assert!(more.matches("clients over TCP wait").count() < 5, "{more}");
}

/// A link needs more files than the two that the server has left.
#[test]
fn a_link_without_files_is_said_at_both_ends() {
    if !has("prlimit", "util-linux") {
        return;
    }
    let mut command = program("kv");
    command.args(SERVE).arg("--keys=100").stderr(Stdio::piped());
    let mut server = Server::of(&mut command);
    let pid = server.child.id();
    let is_free = |file: &u32| !std::fs::exists(format!("/proc/{pid}/fd/{file}")).unwrap();
    let limit = (0..).filter(is_free).nth(2).unwrap();
    let args = [format!("--pid={pid}"), format!("--nofile={limit}:")];
    assert!(Command::new("prlimit").args(args).status().unwrap().success());
    has_failed("get", &server.client("kv", "get", &["key"]), "Too many open files");
    let mut line = String::new();
    BufReader::new(server.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("Too many open files"), "{line}");
    server.kill();
}

#[test]
fn clients_over_tcp_are_served_after_a_shortage_of_files() {
    let server = server_with_few_files("--tcp");
    drop(flood(&server));
    let put = async { tcp::Client::connect(server.address).await?.put(b"key", b"value").await };
    assert_eq!(service::runtime().unwrap().block_on(put).unwrap(), 1);
}
