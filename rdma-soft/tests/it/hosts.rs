//! Processes of different hosts, which are different loopback addresses here: queue pairs over TCP,
//! and callers that are refused.
//!
//! Each test runs this test program again with an address, a port and a key of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rdma_soft::tcp;
use rdma_sys::*;
use rdma_test_support::{alone, holds_in_child, passes_alone};

use crate::common::datagram::{Datagrams, GRH, answer_to};
use crate::common::puppet::{self, Puppet};
use crate::common::{Config, Request, Side, devices, gid_of, verbs};
use crate::fork::is_inert;

type Op = ibv_wr_opcode;
type Status = ibv_wc_status;

/// The hosts: this process's, and that of the others.
pub(crate) const HERE: &str = "127.88.0.1";
pub(crate) const THERE: &str = "127.88.0.2";
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const TCP: &str = "RDMA_SOFT_TCP";
pub(crate) const KEY: &str = "RDMA_SOFT_KEY";
pub(crate) const TLS: &str = "RDMA_SOFT_TLS";
/// The values of `RDMA_SOFT_TLS` that this build takes, on this processor.
pub(crate) fn protections() -> &'static [&'static str] {
    if cfg!(feature = "tls") && !tcp::can_encrypt() {
        rdma_test_support::lacks("a processor that can encrypt: without encryption alone");
    }
    if tcp::can_encrypt() { &["on", "off"] } else { &["off"] }
}

/// A file with a key, removed when dropped.
pub(crate) struct KeyFile(PathBuf);

impl KeyFile {
    pub(crate) fn new(name: &str, key: &str, mode: u32) -> Self {
        let path = std::env::temp_dir().join(format!("rdma-soft-hosts-{}-{name}", std::process::id()));
        let mut file = fs::File::options().write(true).create(true).truncate(true).mode(mode).open(&path).unwrap();
        file.write_all(key.as_bytes()).unwrap();
        // The umask may have taken a right away.
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// Runs a test of this module in a process of the host [`HERE`], at a port that is free: with
/// encryption, if this build has it, and without.
fn on_a_host(test: &str) {
    runs_on_host(&format!("hosts::{test}"), HERE);
}

/// Runs an ignored test, given by its full name, in a process of a host, at a port that is free.
pub(crate) fn runs_on_host(test: &str, host: &str) {
    let key = KeyFile::new(&test.replace("::", "-"), SECRET, 0o600);
    for protection in protections() {
        let address = free(host).to_string();
        passes_alone(&[test], &[(TCP, &address), (KEY, key.path()), (TLS, protection)]);
    }
}

/// An address of a host with a port that is free.
pub(crate) fn free(host: &str) -> SocketAddr {
    TcpListener::bind((host.parse::<IpAddr>().unwrap(), 0)).unwrap().local_addr().unwrap()
}

/// The address of this process.
pub(crate) fn own() -> SocketAddr {
    std::env::var(TCP).unwrap().parse().unwrap()
}

/// The other process runs only this test.
#[test]
fn other_process() {
    puppet::play();
}

/// A process of another host.
fn there(host: &str) -> Puppet {
    let address = SocketAddr::new(host.parse().unwrap(), own().port()).to_string();
    let options = format!("to={}", own().ip());
    Puppet::start_with("hosts::other_process", &options, |command| {
        command.env(TCP, address);
    })
}

/// A queue pair whose peer is on another host.
pub(crate) fn side_to(host: &str, timeout: u8) -> Side {
    Side::new(Config { peer: Some(host.parse().unwrap()), timeout, ..Config::default() })
}

pub(crate) fn connected_to(host: &str) -> (Side, Puppet) {
    let mut other = there(host);
    let side = side_to(host, 14);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    (side, other)
}

fn connected() -> (Side, Puppet) {
    connected_to(THERE)
}

/// A round trip of messages.
pub(crate) fn talk(side: &Side, other: &mut Puppet, id: u64) {
    assert_eq!(other.ask(&format!("recv {id} 0 64")), "0");
    side.put(0, b"there");
    assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, id, &[side.sge(0, 5)])), 0);
    side.success(id);
    assert_eq!(other.ask("wait"), format!("{id} 0 5"));
    assert_eq!(side.post_recv(id, &[side.sge(64, 64)]), 0);
    assert_eq!(other.ask(&format!("send {id} 0 5")), "0");
    side.success(id);
    assert_eq!(side.peek(64, 5), b"there");
    assert!(other.ask("wait").starts_with(&format!("{id} 0 ")));
}

#[test]
#[ignore = "run by operations_reach_another_host"]
fn operations() {
    let (side, mut other) = connected();
    let to = other.endpoint;
    for round in 0..50 {
        talk(&side, &mut other, round);
    }
    // The other process waits for its next command and does not poll.
    let start = u64::from_ne_bytes(*b"there\0\0\0");
    let data: Vec<u8> = (0..=250_u8).cycle().take(60_000).collect();
    for round in 0..20_u64 {
        side.put(0, &data);
        let write = Request::new(Op::IBV_WR_RDMA_WRITE, 1, &[side.sge(0, data.len())]).remote(to.addr + 8, to.rkey);
        assert_eq!(side.post(&write), 0);
        side.success(1);
        side.put(0, &vec![0; data.len()]);
        let read = Request::new(Op::IBV_WR_RDMA_READ, 2, &[side.sge(0, data.len())]).remote(to.addr + 8, to.rkey);
        assert_eq!(side.post(&read), 0);
        side.success(2);
        assert_eq!(side.peek(0, data.len()), data);
        let add = Request::new(Op::IBV_WR_ATOMIC_FETCH_AND_ADD, 3, &[side.sge(0, 8)]).operands(3, 0);
        assert_eq!(side.post(&add.remote(to.addr, to.rkey)), 0);
        side.success(3);
        assert_eq!(side.word(0), start + round * 3);
    }
    // A wrong key ends the connection, as on one host.
    let write = Request::new(Op::IBV_WR_RDMA_WRITE, 4, &[side.sge(0, 8)]).remote(to.addr, to.rkey ^ 1);
    assert_eq!(side.post(&write), 0);
    side.expect(4, Status::IBV_WC_REM_ACCESS_ERR);
    other.finish();
}

#[test]
fn operations_reach_another_host() {
    on_a_host("operations");
}

/// Each process of a host takes the calls for all of them.
#[test]
#[ignore = "run by a_forked_child_has_connections_of_its_own"]
fn family() {
    let (side, mut other) = connected();
    talk(&side, &mut other, 10);
    for round in 20..24 {
        assert!(holds_in_child(|| {
            // The child listens at its parent's address, too.
            let is_inert = is_inert(&side);
            let (own, mut its) = connected();
            talk(&own, &mut its, round);
            is_inert
        }));
        talk(&side, &mut other, round);
    }
}

#[test]
fn a_forked_child_has_connections_of_its_own() {
    on_a_host("family");
}

#[test]
#[ignore = "run by many_processes_of_a_host_are_reached"]
fn many_processes() {
    let mut all: Vec<_> = (0..12).map(|_| connected()).collect();
    for (side, other) in &mut all {
        talk(side, other, 1);
    }
    // A process that stands still takes no calls, and gives the listening socket to nobody; another
    // process of its host does.
    let (_, stopped) = all.pop().unwrap();
    stopped.stop();
    all.truncate(1);
    let (side, mut other) = connected();
    talk(&side, &mut other, 2);
    other.finish();
    stopped.resume();
    stopped.finish();
}

#[test]
fn many_processes_of_a_host_are_reached() {
    on_a_host("many_processes");
}

#[test]
#[ignore = "run by a_process_that_is_killed_on_another_host_is_noticed"]
fn killed() {
    let (side, mut other) = connected();
    talk(&side, &mut other, 1);
    for id in 2..4 {
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, id, &[])), 0);
    }
    other.kill();
    side.expect(2, Status::IBV_WC_RETRY_EXC_ERR);
    side.expect(3, Status::IBV_WC_WR_FLUSH_ERR);
    // The host and the port are there for the next process.
    let (side, mut other) = connected();
    talk(&side, &mut other, 5);
    other.finish();
}

#[test]
fn a_process_that_is_killed_on_another_host_is_noticed() {
    on_a_host("killed");
}

#[test]
#[ignore = "run by who_is_not_there_or_has_another_key_is_not_reached"]
fn unreached() {
    let refused = |side: &Side, qpn: u32| {
        let mut peer = side.endpoint();
        peer.qpn = qpn;
        side.connect(peer);
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
        side.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    };
    // Nobody listens at that address.
    refused(&side_to("127.88.0.9", 10), 77 << 12 | 1);
    let other = there(THERE);
    let slot = other.endpoint.qpn >> 12;
    // Nobody has that slot.
    refused(&side_to(THERE, 10), (slot ^ 0x800) << 12 | 1);
    // The process with that slot listens at another address of that host.
    let elsewhere = there("127.88.0.4");
    refused(&side_to(THERE, 10), elsewhere.endpoint.qpn);
    elsewhere.finish();
    // The process there has another key.
    let key = KeyFile::new("other", &SECRET.to_uppercase(), 0o600);
    let address = SocketAddr::new("127.88.0.3".parse().unwrap(), own().port()).to_string();
    let stranger = Puppet::start_with("hosts::other_process", "", |command| {
        command.env(TCP, address).env(KEY, key.path());
    });
    refused(&side_to("127.88.0.3", 10), stranger.endpoint.qpn);
    stranger.finish();
    // The process there encrypts, and this one does not, or the other way round.
    let encrypts = tcp::status().unwrap().is_encrypted;
    assert_eq!(encrypts, std::env::var(TLS).unwrap() == "on");
    if tcp::can_encrypt() {
        let address = SocketAddr::new("127.88.0.5".parse().unwrap(), own().port()).to_string();
        let mut differs = Puppet::start_with("hosts::other_process", &format!("to={HERE}"), |command| {
            command.env(TCP, address).env(TLS, if encrypts { "off" } else { "on" });
        });
        let side = side_to("127.88.0.5", 10);
        refused(&side, differs.endpoint.qpn);
        // It cannot call here either.
        let side = side_to("127.88.0.5", 10);
        differs.connect(side.endpoint());
        assert_eq!(differs.ask("send 7 0 5"), "0");
        assert!(differs.ask("wait").starts_with(&format!("7 {} ", Status::IBV_WC_RETRY_EXC_ERR.0)));
        differs.finish();
    }
    other.finish();
}

#[test]
fn who_is_not_there_or_has_another_key_is_not_reached() {
    on_a_host("unreached");
}

#[test]
#[ignore = "run by strangers_keep_nobody_out"]
fn strangers() {
    let mut other = there(THERE);
    let address = SocketAddr::new(THERE.parse().unwrap(), own().port());
    // More than the process lets wait; some say something.
    let mut callers: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (caller, text) in callers.iter_mut().zip(["GET / HTTP/1.1\r\n\r\n", "RDMAsoft", "\0"].iter().cycle()) {
        caller.write_all(text.repeat(20).as_bytes()).unwrap();
    }
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let side = side_to(THERE, 14);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    talk(&side, &mut other, 1);
    // All of them are sent away: an answer to another version, the end, or a reset because of what
    // they have said.
    for mut caller in callers.into_iter().chain(silent) {
        caller.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ended = caller.read(&mut [0; 256]);
        assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{ended:?}");
    }
    talk(&side, &mut other, 2);
    other.finish();
}

/// The first message of a stranger that calls the process with a slot (`link/hello.rs`).
fn call_to(slot: u32) -> Vec<u8> {
    let slot = u16::try_from(slot).unwrap();
    [&b"RDMAsoft"[..], &1_u32.to_le_bytes(), &1_u32.to_le_bytes(), &slot.to_le_bytes(), &77_u16.to_le_bytes(), &[7; 80]]
        .concat()
        .into_iter()
        .enumerate()
        // The subject, which a call for a link lacks.
        .map(|(at, byte)| if at >= 68 { 0 } else { byte })
        .collect()
}

/// Strangers that keep to the protocol as far as they can without the key.
fn strangers_to(slot: u32, count: usize) -> Vec<TcpStream> {
    let address = SocketAddr::new(THERE.parse().unwrap(), own().port());
    let call = || {
        let mut caller = TcpStream::connect(address).unwrap();
        // It may have been sent away already.
        let _reset = caller.write_all(&call_to(slot));
        caller
    };
    (0..count).map(|_| call()).collect()
}

/// Waits until a caller is sent away, whatever it is told before.
fn is_sent_away(caller: &mut TcpStream) {
    caller.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    loop {
        match caller.read(&mut [0; 256]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
                return;
            }
        }
    }
}

fn threads_of(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
#[ignore = "run by two_hundred_callers_without_the_key_cost_little"]
fn two_hundred() {
    let (mut other, mut second) = (there(THERE), there(THERE));
    let mut callers = strangers_to(other.endpoint.qpn >> 12, 200);
    let mut most = 0;
    for (other, id) in [(&mut other, 1), (&mut second, 2)] {
        let side = side_to(THERE, 14);
        other.connect(side.endpoint());
        side.connect(other.endpoint);
        most = most.max(threads_of(other.pid()));
        talk(&side, other, id);
    }
    assert!(most < 150, "{most} threads");
    callers.iter_mut().for_each(is_sent_away);
    other.finish();
    second.finish();
}

#[test]
fn two_hundred_callers_without_the_key_cost_little() {
    on_a_host("two_hundred");
}

#[test]
#[ignore = "run by callers_of_a_process_that_stands_still_keep_nobody_out"]
fn standing_still() {
    let (mut other, mut stopped) = (there(THERE), there(THERE));
    stopped.stop();
    let mut callers = strangers_to(stopped.endpoint.qpn >> 12, 100);
    let side = side_to(THERE, 14);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    talk(&side, &mut other, 1);
    callers.iter_mut().for_each(is_sent_away);
    // It takes what has waited, and is as reachable as before.
    stopped.resume();
    let side = side_to(THERE, 14);
    stopped.connect(side.endpoint());
    side.connect(stopped.endpoint);
    talk(&side, &mut stopped, 2);
    other.finish();
    stopped.finish();
}

#[test]
fn callers_of_a_process_that_stands_still_keep_nobody_out() {
    on_a_host("standing_still");
}

/// The process that accepts a call may die at any step of the hand-over, and the one that is
/// called, too.
#[test]
#[ignore = "run by processes_that_are_killed_while_they_pass_calls_on_are_replaced"]
fn killed_at_each_step() {
    for round in 0..8_usize {
        let (mut survivor, mut killed) = (there(THERE), there(THERE));
        let call = call_to((if round % 2 == 0 { &survivor } else { &killed }).endpoint.qpn >> 12);
        let address = SocketAddr::new(THERE.parse().unwrap(), own().port());
        let cut = [0, 11, 40, call.len()][round / 2];
        let mut callers: Vec<_> = (0..12).map(|_| TcpStream::connect(address).unwrap()).collect();
        for caller in &mut callers {
            caller.write_all(&call[..cut]).unwrap();
        }
        let side = side_to(THERE, 14);
        survivor.connect(side.endpoint());
        side.connect(survivor.endpoint);
        assert_eq!(survivor.ask("recv 1 0 64"), "0");
        // The call begins, and either of the two accepts it.
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 1, &[side.sge(0, 5)])), 0);
        killed.kill();
        side.success(1);
        assert_eq!(survivor.ask("wait"), "1 0 5");
        talk(&side, &mut survivor, 2);
        survivor.finish();
    }
}

/// The called process is killed in each step of an honest call: the caller learns of it, and
/// reaches the next process.
#[test]
#[ignore = "run by a_process_that_is_killed_while_it_is_called_fails_the_call_alone"]
fn killed_while_called() {
    let mut survivor = there(THERE);
    for round in 0..12_u32 {
        let mut called = there(THERE);
        let side = side_to(THERE, 10);
        side.connect(called.endpoint);
        // The other process accepts the call then, which waits in the queue of the one that stands
        // still.
        let is_stopped = round % 2 == 0;
        if is_stopped {
            called.stop();
        }
        assert_eq!(side.post(&Request::new(Op::IBV_WR_SEND, 1, &[side.sge(0, 5)])), 0);
        // Steps take some hundred microseconds each, and much longer on a machine that is busy.
        std::thread::sleep(Duration::from_micros(100 << round));
        called.kill();
        // Nothing was there to receive the message.
        side.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        let mut next = there(THERE);
        for other in [&mut survivor, &mut next] {
            let side = side_to(THERE, 14);
            // The survivor's queue pair is a new one, too.
            assert_eq!(other.ask("renew"), "done");
            other.connect(side.endpoint());
            side.connect(other.endpoint);
            talk(&side, other, 2);
        }
        next.finish();
    }
    survivor.finish();
}

#[test]
fn a_process_that_is_killed_while_it_is_called_fails_the_call_alone() {
    on_a_host("killed_while_called");
}

#[test]
fn processes_that_are_killed_while_they_pass_calls_on_are_replaced() {
    on_a_host("killed_at_each_step");
}

/// Processes of two users reach each other by two addresses, and neither gets the other's calls.
#[test]
#[ignore = "run by two_users_of_one_host_are_two_hosts"]
fn two_users() {
    const NOBODY: u32 = 65_534;
    // A key of its own, with the same bytes: each user reads only its own file.
    let key = KeyFile::new("nobody", SECRET, 0o600);
    std::os::unix::fs::chown(&key.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let user = |host: &str| {
        let address = SocketAddr::new(host.parse().unwrap(), own().port()).to_string();
        Puppet::start_with("hosts::other_process", &format!("nobody to={}", own().ip()), |command| {
            command.env(TCP, address).env(KEY, key.path());
        })
    };
    let mut other = user(THERE);
    let side = side_to(THERE, 14);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    talk(&side, &mut other, 1);
    // A process of this user at a third address passes no call on to the other user's process.
    let ours = there("127.88.0.3");
    let mut peer = side.endpoint();
    peer.qpn = other.endpoint.qpn;
    let wrong = side_to("127.88.0.3", 10);
    wrong.connect(peer);
    assert_eq!(wrong.post(&Request::new(Op::IBV_WR_SEND, 1, &[])), 0);
    wrong.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    talk(&side, &mut other, 2);
    ours.finish();
    other.finish();
}

#[test]
fn two_users_of_one_host_are_two_hosts() {
    // SAFETY: geteuid has no requirement.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can start a process of another user");
        return;
    }
    on_a_host("two_users");
}

#[test]
fn strangers_keep_nobody_out() {
    on_a_host("strangers");
}

#[test]
#[ignore = "run by datagrams_reach_another_host"]
fn datagrams() {
    // Two datagram queue pairs of one process: one host. The address handle names that host.
    let (a, b) = (Datagrams::new(), Datagrams::new());
    a.side.put(0, b"own");
    b.recv(1, 0, 64);
    a.sent(2, 0, 3, &a.handle(), b.qpn());
    let wc = b.side.success(1);
    assert_eq!(b.side.peek(GRH, 3), b"own");
    // An IPv4 header lies in the second half of the GRH, and ends with both addresses.
    assert_eq!(b.side.peek(32, 4), gid_bytes(own().ip())[12..]);
    let back = answer_to(&b, &wc, 0).unwrap();
    a.recv(3, 0, 64);
    b.sent(4, 0, 3, &back, wc.src_qp);
    a.side.success(3);
    // To a host without a process: lost, and the sender does not learn of it.
    let far = a.try_handle(a.route_to(gid_of(THERE.parse().unwrap()))).unwrap();
    let start = Instant::now();
    a.sent(5, 0, 3, &far, 77 << 12 | 5);
    assert!(start.elapsed() < Duration::from_secs(30));
    // From another address than the one at which this process listens, nobody could answer.
    let mut from = a.route_to(gid_of(THERE.parse().unwrap()));
    from.grh.sgid_index = u8::try_from(last_gid(&a.side)).unwrap();
    assert_eq!(a.try_handle(from).unwrap_err(), libc::EHOSTUNREACH);
}

/// The bytes of a GID.
fn gid_bytes(address: IpAddr) -> Vec<u8> {
    // SAFETY: any bytes are a GID.
    unsafe { gid_of(address).raw }.to_vec()
}

/// Index of the last entry of the GID table: the device's loopback address.
fn last_gid(side: &Side) -> i32 {
    let mut port = ibv_port_attr::default();
    // SAFETY: an open context, a valid structure.
    assert_eq!(unsafe { verbs().ibv_query_port(side.context, 1, &raw mut port) }, 0);
    port.gid_tbl_len - 1
}

#[test]
fn datagrams_reach_another_host() {
    on_a_host("datagrams");
}

#[test]
#[ignore = "run by an_address_without_a_good_key_opens_nothing"]
fn refused() {
    let device = devices()[0];
    // SAFETY: a device of the list.
    let context = unsafe { (verbs().ibv_open_device)(device) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert!(context.is_null());
    assert_eq!(error, Some(std::env::var("EXPECTED").unwrap().parse().unwrap()));
}

#[test]
fn an_address_without_a_good_key_opens_nothing() {
    let refused = |expected: i32, variables: &[(&str, &str)]| {
        let expected = expected.to_string();
        let all: Vec<_> = [&[("EXPECTED", expected.as_str())], variables].concat();
        passes_alone(&["hosts::refused"], &all);
    };
    let (good, short) = (KeyFile::new("good", SECRET, 0o600), KeyFile::new("short", "secret", 0o600));
    let open = KeyFile::new("open", SECRET, 0o644);
    refused(libc::EINVAL, &[(TCP, HERE)]);
    for key in [&short, &open] {
        refused(libc::EINVAL, &[(TCP, HERE), (KEY, key.path())]);
    }
    refused(libc::EINVAL, &[(TCP, HERE), (KEY, good.path()), ("RDMA_SOFT_LINK_LAYER", "infiniband")]);
    refused(libc::EINVAL, &[(TCP, "127.0.0.2"), (KEY, good.path()), ("RDMA_SOFT_DEVICES", "2")]);
    // An address that this host lacks (RFC 5737), if it may not use such ones.
    let may_lack = fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind").is_ok_and(|value| value.trim() == "1");
    if !may_lack {
        refused(libc::EADDRNOTAVAIL, &[(TCP, "192.0.2.1"), (KEY, good.path())]);
    }
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    refused(libc::EADDRINUSE, &[(TCP, &taken), (KEY, good.path())]);
    drop(listener);
}

#[test]
#[ignore = "run by a_key_in_a_pipe_serves_all_threads_and_children"]
fn key_in_a_pipe() {
    let opens = || {
        let _side = Side::new(Config::default());
        tcp::status().is_some_and(|status| status.key.to_string() == "descriptor 0")
    };
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(opens));
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    });
    assert!(holds_in_child(opens));
}

#[test]
fn a_key_in_a_pipe_serves_all_threads_and_children() {
    let mut command = alone(&["hosts::key_in_a_pipe"]);
    command.env(TCP, free(HERE).to_string()).env("RDMA_SOFT_KEY_FD", "0");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    process.stdin.take().unwrap().write_all(SECRET.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by a_value_that_names_no_address_or_protection_is_refused"]
fn no_devices() {
    assert!(rdma_soft::check_environment().is_err_and(|variable| [TCP, TLS].contains(&variable.name)));
}

#[test]
fn a_value_that_names_no_address_or_protection_is_refused() {
    for value in ["0.0.0.0", "eth/0", "nosuch0", "10.0.0.1:0", "auto:0"] {
        passes_alone(&["hosts::no_devices"], &[(TCP, value)]);
    }
    // Encryption that this build lacks is an error, too.
    for value in if cfg!(feature = "tls") { &["yes", "1"][..] } else { &["yes", "on"] } {
        passes_alone(&["hosts::no_devices"], &[(TLS, value)]);
    }
}

#[test]
#[ignore = "run by what_is_wrong_with_the_environment_is_said"]
fn said() {
    let expected = std::env::var("EXPECTED").unwrap();
    let variable = rdma_soft::check_environment().map_or_else(|variable| variable.values, |()| "");
    let error = tcp::listen_from_environment().unwrap_err().to_string();
    // Whether the address is taken is not checked before the device listens.
    assert!(variable.to_lowercase().contains(&expected) || expected.contains("in use"), "{variable}");
    assert!(error.to_lowercase().contains(&expected), "{error}");
    assert!(tcp::status().is_none());
}

#[test]
fn what_is_wrong_with_the_environment_is_said() {
    let said = |expected: &str, variables: &[(&str, &str)]| {
        passes_alone(&["hosts::said"], &[&[("EXPECTED", expected)], variables].concat());
    };
    let (good, short) = (KeyFile::new("right", SECRET, 0o600), KeyFile::new("few", "secret", 0o600));
    let open = KeyFile::new("readable", SECRET, 0o644);
    said("rdma_soft_key", &[(TCP, HERE)]);
    said("6 bytes", &[(TCP, HERE), (KEY, short.path())]);
    said("chmod 600", &[(TCP, HERE), (KEY, open.path())]);
    // SAFETY: geteuid has no requirement.
    if unsafe { libc::geteuid() } == 0 {
        // A user may have put it into the directory of temporary files, where root would find it.
        let planted = KeyFile::new("planted", SECRET, 0o600);
        std::os::unix::fs::chown(&planted.0, Some(65_534), None).unwrap();
        let is_open_to_all = std::env::temp_dir().metadata().unwrap().permissions().mode() & 0o002 != 0;
        if is_open_to_all {
            said("directory of its path", &[(TCP, HERE), (KEY, planted.path())]);
        }
    }
    said("there is no network interface nosuch0", &[(TCP, "nosuch0"), (KEY, good.path())]);
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    said("in use", &[(TCP, &taken), (KEY, good.path())]);
    drop(listener);
}

#[test]
#[ignore = "run by an_interface_names_its_address"]
fn by_interface() {
    let chosen: tcp::Address = std::env::var(TCP).unwrap().parse().unwrap();
    // Both processes have the variable, and find the same address.
    let (side, mut other) = connected_to_same();
    talk(&side, &mut other, 1);
    assert!(matches!(tcp::status().unwrap().key, tcp::KeySource::File(_)));
    assert_eq!(Some(chosen.resolve().unwrap().ip()), first_gid(&side));
    other.finish();
}

/// Another process with the same variables, connected to this one.
fn connected_to_same() -> (Side, Puppet) {
    let ip = tcp::Address::from_environment().unwrap().unwrap().resolve().unwrap().ip();
    let mut other = Puppet::start_with("hosts::other_process", &format!("to={ip}"), |_| {});
    let side = side_to(&ip.to_string(), 14);
    other.connect(side.endpoint());
    side.connect(other.endpoint);
    (side, other)
}

#[test]
fn an_interface_names_its_address() {
    let key = KeyFile::new("interface", SECRET, 0o600);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    passes_alone(&["hosts::by_interface"], &[(TCP, &format!("lo:{port}")), (KEY, key.path())]);
}

/// The address that the first GID names.
pub(crate) fn first_gid(side: &Side) -> Option<IpAddr> {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: an open context, a valid GID.
    let queried = unsafe { (verbs().ibv_query_gid)(side.context, 1, 0, &raw mut gid) };
    // SAFETY: any bytes are a GID.
    (queried == 0).then(|| std::net::Ipv6Addr::from(unsafe { gid.raw }).to_canonical())
}

#[test]
#[ignore = "run by a_program_chooses_by_values"]
fn values() {
    let key = tcp::Key::from_bytes(SECRET.as_bytes()).unwrap();
    let other = tcp::Key::random().unwrap();
    let code = |result: Result<SocketAddr, tcp::Error>| result.unwrap_err().raw_os_error();
    let listen = |address: &str, key: &tcp::Key| tcp::listen(address.parse().unwrap(), key.clone());
    let at = SocketAddr::new(HERE.parse().unwrap(), std::env::var("PORT").unwrap().parse().unwrap());
    // A call that fails leaves the device as it was.
    let taken = TcpListener::bind((HERE, 0)).unwrap();
    let error = listen(&taken.local_addr().unwrap().to_string(), &key).unwrap_err();
    assert_eq!(error.raw_os_error(), libc::EADDRINUSE);
    assert!(error.to_string().contains("listens there"), "{error}");
    assert_eq!(code(listen("nosuch0", &key)), libc::ENODEV);
    // RFC 5737: this host lacks it.
    assert_eq!(code(listen("192.0.2.1", &key)), libc::EADDRNOTAVAIL);
    // The variables name another host and no key: they are not read.
    assert_eq!(listen(&at.to_string(), &key), Ok(at));
    assert_eq!(listen(&at.to_string(), &key), Ok(at));
    assert_eq!(code(listen(&at.to_string(), &other)), libc::EBUSY);
    assert_eq!(code(listen("127.0.0.2", &key)), libc::EBUSY);
    let status = tcp::status().unwrap();
    assert_eq!((status.address, status.key, status.fingerprint), (at, tcp::KeySource::Value, key.fingerprint()));
    assert_eq!((status.device.as_str(), status.hosts.len()), ("soft0", 0));
    assert_eq!(tcp::listen_from_environment().unwrap().map(|status| status.address), Some(at));
    let file = KeyFile::new("values", SECRET, 0o600);
    let mut there = Puppet::start_with("hosts::other_process", &format!("to={HERE}"), |command| {
        command.env(TCP, SocketAddr::new(THERE.parse().unwrap(), at.port()).to_string()).env(KEY, file.path());
    });
    let side = side_to(THERE, 14);
    there.connect(side.endpoint());
    side.connect(there.endpoint);
    talk(&side, &mut there, 1);
    let status = tcp::status().unwrap();
    assert_eq!(status.hosts, [THERE.parse::<IpAddr>().unwrap()]);
    assert!(status.to_string().ends_with(&format!(", and reaches {THERE}")), "{status}");
    there.finish();
    // A child has the values of its parent.
    assert!(holds_in_child(|| listen(&at.to_string(), &key) == Ok(at)
        && listen(&at.to_string(), &other).is_err_and(|error| error.raw_os_error() == libc::EBUSY)));
}

#[test]
fn a_program_chooses_by_values() {
    let port = TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port().to_string();
    passes_alone(&["hosts::values"], &[(TCP, "127.88.0.7"), ("PORT", &port)]);
}

#[test]
#[ignore = "run by a_choice_after_the_first_open_is_refused"]
fn too_late() {
    let side = Side::new(Config::default());
    let late = tcp::listen("127.88.0.8".parse().unwrap(), tcp::Key::random().unwrap()).unwrap_err();
    assert_eq!(late.raw_os_error(), libc::EBUSY);
    assert!(late.to_string().contains("before"), "{late}");
    drop(side);
}

#[test]
fn a_choice_after_the_first_open_is_refused() {
    passes_alone(&["hosts::too_late"], &[]);
}
