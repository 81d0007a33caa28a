//! Hosts with IPv6 addresses. Each is a process with an address of its own, as in `hosts`.

use std::ffi::OsStr;
use std::fs;
use std::net::IpAddr;
use std::process::Command;

use rdma_soft::tcp;
use rdma_sys::ibv_wr_opcode as Op;
use rdma_test_support::alone;

use crate::common::Request;
use crate::hosts::{KEY, KeyFile, SECRET, TCP, TLS, connected_to, first_gid, protections, runs_on_host, talk};

/// The hosts by IPv6, in a network namespace.
const HERE_6: &str = "fd88::1";
const THERE_6: &str = "fd88::2";

#[test]
fn operations_reach_another_host_by_ipv6() {
    // IPv6 has one loopback address. A namespace of the test's own may have more.
    const SCRIPT: &str = "ip link set lo up && ip addr add fd88::1/128 dev lo nodad && \
         ip addr add fd88::2/128 dev lo nodad && exec \"$@\"";
    let in_namespace = |program: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-c", SCRIPT, "sh"]).args(program);
        command
    };
    let probe = in_namespace(&[OsStr::new("true")]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return rdma_test_support::skip("no network namespace with IPv6 can be made here");
    }
    let key = KeyFile::new("six", SECRET, 0o600);
    for protection in protections() {
        let test = alone(&["hosts_ipv6::six"]);
        let program: Vec<_> = [test.get_program()].into_iter().chain(test.get_args()).collect();
        let mut command = in_namespace(&program);
        for (name, value) in test.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(TCP, format!("[{HERE_6}]:4791")).env(KEY, key.path()).env(TLS, protection);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    }
}

#[test]
#[ignore = "run by operations_reach_another_host_by_ipv6"]
fn six() {
    let (side, mut other) = connected_to(THERE_6);
    for round in 0..10 {
        talk(&side, &mut other, round);
    }
    let to = other.endpoint;
    let data: Vec<u8> = (0..=250_u8).cycle().take(60_000).collect();
    side.put(0, &data);
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, data.len())]).remote(to.addr, to.rkey);
    assert_eq!(side.post(&write), 0);
    side.success(1);
    side.put(0, &vec![0; data.len()]);
    let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[side.sge(0, data.len())]).remote(to.addr, to.rkey);
    assert_eq!(side.post(&read), 0);
    side.success(2);
    assert_eq!(side.peek(0, data.len()), data);
    // The two are of different hosts: a link joins them.
    assert_eq!(tcp::status().unwrap().hosts, [THERE_6.parse::<IpAddr>().unwrap()]);
    assert_eq!(first_gid(&side), Some(HERE_6.parse().unwrap()));
    other.finish();
}

#[test]
fn processes_of_a_host_with_an_ipv6_address_share_memory() {
    // Some containers have no IPv6.
    let addresses = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    if !addresses.contains("00000000000000000000000000000001 ") {
        return;
    }
    runs_on_host("hosts_ipv6::one_host", "::1");
}

#[test]
#[ignore = "run by processes_of_a_host_with_an_ipv6_address_share_memory"]
fn one_host() {
    let (side, mut other) = connected_to("::1");
    talk(&side, &mut other, 1);
    assert!(tcp::status().unwrap().hosts.is_empty());
    other.finish();
}
