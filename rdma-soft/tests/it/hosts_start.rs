//! The beginnings of processes of two hosts: what a call costs the processes of a host.
//!
//! The hosts are loopback addresses, as in `hosts`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdma_sys::ibv_wr_opcode;
use rdma_test_support::passes_alone;

use crate::common::puppet::{self, Puppet};
use crate::common::{Config, Request, Side};
use crate::hosts::{HERE, KEY, KeyFile, SECRET, TCP, THERE, TLS, free, own, runs_on_host, talk};

/// The other process runs only this test.
#[test]
fn other_process() {
    puppet::play();
}

fn there() -> Puppet {
    there_with("")
}

/// A process of another host with further options.
fn there_with(options: &str) -> Puppet {
    let address = SocketAddr::new(THERE.parse().unwrap(), own().port()).to_string();
    Puppet::start_with("hosts_start::other_process", &format!("to={} {options}", own().ip()), |command| {
        command.env(TCP, address);
    })
}

/// The number of times that the thread of a process that lets callers in has slept.
fn sleeps(pid: i32) -> usize {
    let mut sleeps = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
        // The kernel keeps 15 characters of a thread's name.
        if read("comm").trim() == "rdma-soft-calle" {
            let status = read("status");
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sleeps += count.unwrap().trim().parse::<usize>().unwrap();
        }
    }
    sleeps
}

#[test]
#[ignore = "run by a_call_wakes_one_process_of_a_host"]
fn calls() {
    const CALLS: usize = 40;
    const PROCESSES: usize = 10;
    let all: Vec<_> = (0..PROCESSES).map(|_| there()).collect();
    let count = || all.iter().map(|process| sleeps(process.pid())).sum::<usize>();
    let address = SocketAddr::new(THERE.parse().unwrap(), own().port());
    let before = count();
    for _ in 0..CALLS {
        let mut caller = TcpStream::connect(address).unwrap();
        caller.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        caller.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // An end or a reset: this is no device.
        let ended = caller.read(&mut [0; 256]);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
    }
    // The one that takes a call sleeps until the caller says something, unless it has said it, and
    // until the next call.
    let slept = count() - before;
    assert!((CALLS / 2..CALLS * PROCESSES / 2).contains(&slept), "{slept} sleeps");
    all.into_iter().for_each(Puppet::finish);
}

#[test]
fn a_call_wakes_one_process_of_a_host() {
    runs_on_host("hosts_start::calls", HERE);
}

/// A process with so many queue pairs that it has two numbers is called by the second one, while it
/// calls itself.
#[test]
#[ignore = "run by a_process_with_two_numbers_has_one_link"]
fn two_numbers() {
    let mut other = there_with("many");
    let first = Side::new(Config { peer: Some(THERE.parse().unwrap()), timeout: 18, ..Config::default() });
    other.connect(first.endpoint());
    first.connect(other.endpoint);
    assert_eq!(first.post_recv(1, &[first.sge(64, 64)]), 0);
    // Both begin.
    assert_eq!(other.ask("send 1 0 5"), "0");
    let write = Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 2, &[first.sge(0, 5)]);
    assert_eq!(first.post(&write.remote(other.endpoint.addr, other.endpoint.rkey)), 0);
    let mut done = [first.wait(), first.wait()].map(|wc| (wc.wr_id, wc.status.0));
    done.sort_unstable();
    assert_eq!(done, [(1, 0), (2, 0)]);
    assert!(other.ask("wait").starts_with("1 0 "));
    talk(&first, &mut other, 3);
    other.finish();
}

#[test]
fn a_process_with_two_numbers_has_one_link() {
    runs_on_host("hosts_start::two_numbers", HERE);
}

/// The peer's kernel says all the time that there is no window, which is no death.
#[test]
#[ignore = "run by a_peer_that_stands_still_is_waited_for"]
fn stands_still() {
    const WRITES: u64 = 16;
    let mut other = there();
    let side = Side::new(Config { peer: Some(THERE.parse().unwrap()), ..Config::default() });
    other.connect(side.endpoint());
    let to = other.endpoint;
    side.connect(to);
    let write = |id| {
        let write = Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, id, &[side.sge(0, 60_000)]);
        assert_eq!(side.post(&write.remote(to.addr, to.rkey)), 0);
    };
    write(0);
    side.success(0);
    other.stop();
    let stopped = Instant::now();
    // More than the peer's kernel takes.
    (1..=WRITES).for_each(write);
    let mut done = 1;
    // A silent host is dead after 10 s, so this cannot be shorter.
    while stopped.elapsed() < Duration::from_secs(12) {
        while let Some(wc) = side.poll() {
            assert_eq!((wc.wr_id, wc.status.0), (done, 0), "after {:?}", stopped.elapsed());
            done += 1;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(done <= WRITES, "the peer has taken everything");
    other.resume();
    for id in done..=WRITES {
        side.success(id);
    }
    write(99);
    side.success(99);
    other.finish();
}

#[test]
fn a_peer_that_stands_still_is_waited_for() {
    // It takes long, and encryption changes nothing.
    let (key, address) = (KeyFile::new("still", SECRET, 0o600), free(HERE).to_string());
    passes_alone(&["hosts_start::stands_still"], &[(TCP, &address), (KEY, key.path()), (TLS, "off")]);
}
