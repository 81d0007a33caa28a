//! `kv` and `rpc` with `--metrics`: the page, other paths, and clients that are slow or many.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::*;

const KV: [&str; 5] = ["serve", "127.0.0.1", "--memory=1M", "--keys=100", "--metrics=127.0.0.1:0"];
const RPC: [&str; 4] = ["serve", "127.0.0.1", "--receives=256", "--metrics=127.0.0.1:0"];

/// The address in the URL that a server has printed.
fn metrics_of(server: &Server) -> SocketAddr {
    let url = server.fields["metrics"].as_str().unwrap();
    url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap().parse().unwrap()
}

/// Sends a request, and returns the head and the body of the response.
fn ask(to: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The samples of a page, which must be one as Prometheus demands.
fn samples(to: SocketAddr) -> HashMap<String, f64> {
    let (head, body) = ask(to, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    let (mut kinds, mut helped, mut samples) = (BTreeMap::new(), None, HashMap::new());
    for line in body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = Some(help.split_once(' ').unwrap().0.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped.as_deref(), Some(name), "the help comes first");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            assert_eq!(helped.as_deref(), Some(name), "{line}");
            assert!(samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(), "{sample} comes twice");
        }
    }
    assert!(body.ends_with('\n'));
    samples
}

#[test]
fn the_counters_of_a_service_grow_with_its_work() {
    let server = Server::start("kv", &KV);
    let at = metrics_of(&server);
    let before = samples(at);
    assert_eq!(before["rdma_node_connections_opened_total"], 0.0);
    assert!(before["process_resident_memory_bytes"] > 1e6 && before["process_open_fds"] > 3.0, "{before:?}");
    assert!(before["process_start_time_seconds"] > 1e9, "{before:?}");
    let _put = rdma_test_support::program::has_succeeded("put", &server.client("kv", "put", &["colour", "red"]));
    let after = samples(at);
    assert_eq!(after["rdma_node_connections_opened_total"], 1.0);
    for name in ["sent_messages", "received_messages", "sent_bytes", "received_bytes"] {
        assert!(after[&format!("rdma_connections_{name}_total")] > 0.0, "{name}: {after:?}");
    }
    assert!(after["rdma_completions_total"] > 0.0);
    assert_eq!(after["rdma_completions_failed_total{reason=\"rnr_retry_exceeded\"}"], 0.0);
    assert!(after["rdma_port_requests_total{device=\"soft0\",port=\"1\"}"] > 0.0, "{after:?}");
    for (sample, value) in before {
        if sample.split('{').next().unwrap().ends_with("_total") {
            assert!(after[&sample] >= value, "{sample}");
        }
    }
}

#[test]
fn other_requests_are_refused() {
    let server = Server::start("rpc", &RPC);
    let at = metrics_of(&server);
    let status = |request: &str| ask(at, request).0.lines().next().unwrap().to_owned();
    assert!(samples(at).contains_key("rdma_node_connections"));
    assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("GET /metrics/x HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("DELETE /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status("nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    let (head, body) = ask(at, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && body.is_empty());
    // A request without an end.
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&[b'x'; 64 << 10]).unwrap();
    let mut answer = Vec::new();
    let _len = stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 431 ") && answer.len() < 1000);
    drop(stream);
    assert!(samples(at).contains_key("rdma_node_connections"));
}

#[test]
fn slow_and_many_clients_keep_neither_the_service_nor_the_metrics() {
    let server = Server::start("kv", &KV);
    let at = metrics_of(&server);
    // Some send nothing, and some only a part of a request.
    let slow: Vec<_> = (0..6)
        .map(|number| {
            let mut stream = TcpStream::connect(at).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /met").unwrap();
            }
            stream
        })
        .collect();
    let _put = rdma_test_support::program::has_succeeded("put", &server.client("kv", "put", &["colour", "red"]));
    assert_eq!(samples(at)["rdma_node_connections_opened_total"], 1.0);
    drop(slow);
}

#[test]
fn an_address_that_cannot_be_served_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = format!("--metrics={}", taken.local_addr().unwrap());
    for (program, rest) in [("kv", &KV[1..4]), ("rpc", &RPC[1..3])] {
        let serve = |option: &str| finish(start(program, &[&["serve"], rest, &["--port=0", option]].concat()));
        let output = serve(&option);
        has_failed("a taken port", &output, "cannot serve metrics on 127.0.0.1:");
        assert_eq!(output.status.code(), Some(1));
        for wrong in ["--metrics=nowhere", "--metrics=127.0.0.1", "--metrics=127.0.0.1:99999"] {
            let output = serve(wrong);
            has_failed(wrong, &output, "--metrics");
            assert_eq!(output.status.code(), Some(2), "{wrong}");
        }
    }
}

#[test]
fn without_the_option_nothing_is_served() {
    assert!(Server::start("kv", &KV[..4]).fields.get("metrics").is_none());
}
