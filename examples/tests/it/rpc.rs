//! `rpc` on the software device: calls, deadlines, and clients that break the rules.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rdma_examples::message::encode;
use rdma_examples::rpc::{Client, MAX_CALLS, Method, node_options};
use rdma_examples::{Failure, service};
use rdma_net::Node;
use tokio::task::JoinHandle;

use crate::common::*;

/// Time for anything that must happen.
const LONG: Duration = Duration::from_secs(60);

fn server() -> Server {
    Server::start("rpc", &["serve", "127.0.0.1", "--receives=256"])
}

/// Runs a node of clients.
fn with_node<T>(work: impl AsyncFnOnce(&Node) -> Result<T, Failure>) -> T {
    let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
    service::run(Node::new(&context, &node_options(32)).unwrap(), |node| async move { work(&node).await }).unwrap()
}

async fn checks_in(client: &Client) {
    assert_eq!(client.call(Method::Sum, b"1 2 39", LONG).await.unwrap(), b"42");
}

/// Starts calls that take longer than any test.
fn sleeping(client: &Client, time: Duration) -> Vec<JoinHandle<Result<Vec<u8>, Failure>>> {
    let call = |client: Client| async move { client.call(Method::Sleep, b"600000", time).await };
    (0..8).map(|_| tokio::spawn(call(client.clone()))).collect()
}

#[test]
fn methods_are_called() {
    let server = server();
    let call = |args: &[&str]| rdma_test_support::program::has_succeeded("call", &server.client("rpc", "call", args));
    let refused = |args: &[&str], part: &str| has_failed("call", &server.client("rpc", "call", args), part);
    assert_eq!(call(&["echo", "hello"]), "hello\n");
    assert_eq!(call(&["sum", "1 2 39", "--json"]), "{\"result\":\"42\"}\n");
    assert_eq!(call(&["sleep", "1"]), "\n");
    refused(&["sum", "1 two"], "the server: \"two\" is not a number");
    refused(&["sleep", "60000", "--deadline=50"], "no answer came within 50 ms");
    refused(&["nothing"], "nothing");
}

#[test]
fn the_deadline_of_a_call_covers_connecting() {
    let mut server = server();
    send(Signal::SIGSTOP, server.child.id());
    let output = server.client("rpc", "call", &["echo", "hello", "--deadline=50"]);
    has_failed("call", &output, "no answer came within 50 ms");
    server.kill();
}

#[test]
fn a_client_that_calls_no_more_is_disconnected_unless_it_waits() {
    let server = Server::start("rpc", &["serve", "127.0.0.1", "--receives=256", "--idle=1"]);
    with_node(async |node| {
        // The answer comes after three times the limit. On a machine under load even the call may
        // come after it.
        let mut is_answered = false;
        for _ in 0..5 {
            let busy = Client::connect(node, server.address).await?;
            is_answered |= busy.call(Method::Sleep, b"3000", LONG).await.is_ok();
            if is_answered {
                break;
            }
        }
        assert!(is_answered);
        let idle = Client::connect(node, server.address).await?;
        let _answer = idle.call(Method::Echo, b"early", LONG).await;
        // Each call shows the server that the client is there, so they are further and further
        // apart.
        let mut pause = Duration::from_secs(1);
        while idle.call(Method::Echo, b"late", LONG).await.is_ok() {
            assert!(pause < LONG, "the client is still served");
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    });
}

/// A client counts as silent from its last answer on. The answer comes at twice the limit, when
/// the server looks whether the client waits.
#[test]
fn a_client_that_has_just_got_its_answer_is_served() {
    let server = Server::start("rpc", &["serve", "127.0.0.1", "--receives=256", "--idle=2"]);
    with_node(async |node| {
        let mut calls = Vec::new();
        for _ in 0..12 {
            let client = Client::connect(node, server.address).await?;
            calls.push(tokio::spawn(async move {
                client.call(Method::Sleep, b"4000", LONG).await?;
                client.call(Method::Echo, b"next", LONG).await
            }));
        }
        for call in calls {
            assert_eq!(call.await.unwrap()?, b"next");
        }
        Ok(())
    });
}

/// The last messages of a program that has given up need not leave.
#[test]
fn a_deadline_that_has_passed_ends_the_program() {
    let server = server();
    let (address, pid) = (server.address, server.child.id());
    // The time that the program took after its work, which is short unless the machine is busy.
    let mut took = Duration::MAX;
    for _ in 0..10 {
        let context = rdma::open(&"soft0".parse().unwrap()).unwrap().context;
        let node = Node::new(&context, &node_options(32)).unwrap();
        let mut late = Instant::now();
        let done = service::run_until(node, Some(late), |node| {
            let late = &mut late;
            async move {
                let client = Client::connect(&node, address).await?;
                checks_in(&client).await;
                send(Signal::SIGSTOP, pid);
                let result = client.call(Method::Sleep, b"600000", Duration::from_millis(1)).await;
                *late = Instant::now();
                result
            }
        });
        took = took.min(late.elapsed());
        send(Signal::SIGCONT, pid);
        assert!(done.unwrap_err().to_string().contains("no answer came within 1 ms"));
        if took < Duration::from_secs(1) {
            return;
        }
    }
    panic!("it went on for {took:?}");
}

#[test]
fn connections_are_set_up_by_tcp() {
    let server = Server::start("rpc", &["serve", "127.0.0.1", "--receives=256", "--exchange=tcp"]);
    let output = server.client("rpc", "call", &["sum", "1 2 39", "--exchange=tcp"]);
    assert_eq!(rdma_test_support::program::has_succeeded("call", &output), "42\n");
    let output = succeed("rpc", &["load", "--seconds=1", "--clients=2", "--exchange=tcp"]);
    assert!(output.contains("2 clients"), "{output}");
}

#[test]
fn a_late_call_delays_no_other() {
    let server = server();
    with_node(async |node| {
        let client = Client::connect(node, server.address).await?;
        let time = Duration::from_millis(300);
        let slow = sleeping(&client, time);
        for _ in 0..20 {
            checks_in(&client).await;
        }
        for call in slow {
            let failure = call.await.unwrap().unwrap_err().to_string();
            assert!(failure.contains("no answer came within 300 ms"), "{failure}");
        }
        Ok(())
    });
}

#[test]
fn bad_clients_harm_nobody() {
    let server = server();
    with_node(async |node| {
        let good = Client::connect(node, server.address).await?;
        checks_in(&good).await;
        // Clients that send what is no call are disconnected.
        for _ in 0..5 {
            let mut bad = node.connect(server.address).await?;
            bad.send(b"nonsense").await?;
            while let Ok(Some(_)) = bad.next().await {}
            checks_in(&good).await;
        }
        // A client that reads no answer stops itself once the server has no more space for it.
        let deaf = node.connect(server.address).await?;
        let echo = encode(&(1u32, LONG, 0u8, &[7u8; 900][..]))?;
        let mut sent = 0;
        while tokio::time::timeout(Duration::from_millis(500), deaf.send(&echo)).await.is_ok() {
            sent += 1;
            assert!(sent < 10 * MAX_CALLS, "the server takes calls without end");
        }
        checks_in(&good).await;
        Ok(())
    });
}

#[test]
fn calls_that_have_begun_are_answered_after_the_last_one() {
    let server = server();
    with_node(async |node| {
        // The client ends its data, or sends what is no call.
        for last in [None, Some(b"nonsense")] {
            let (to, mut from) = node.connect(server.address).await?.split();
            to.send(encode(&(7u32, LONG, Method::Sleep as u8, &b"300"[..]))?).await?;
            if let Some(last) = last {
                to.send(last).await?;
            }
            drop(to);
            let answer = from.next().await?.expect("an answer");
            assert_eq!(answer[0], 7, "the number of the call");
        }
        Ok(())
    });
}

#[test]
fn the_death_of_the_server_ends_every_call() {
    let mut server = server();
    with_node(async |node| {
        let client = Client::connect(node, server.address).await?;
        checks_in(&client).await;
        let calls = sleeping(&client, LONG);
        tokio::task::yield_now().await;
        server.kill();
        for call in calls {
            let failure = call.await.unwrap().unwrap_err().to_string();
            assert!(failure.contains("the peer is gone"), "{failure}");
        }
        Ok(())
    });
}

#[test]
fn load_is_measured() {
    let args = ["--seconds=1", "--clients=20", "--in-flight=3", "--json"];
    let out = succeed("rpc", &[&["load"], &args[..]].concat());
    let fields: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(fields["row"]["rate"].as_f64().unwrap() > 0.0, "{fields}");
    let server = server();
    let out = server.client("rpc", "load", &["--seconds=1", "--clients=4", "--rate=400"]);
    assert!(text(&out.stdout).contains("open loop of 400 requests/s"), "{}", text(&out.stderr));
}
