//! Tests of `Peer`: the second process follows commands, and its failure fails the test.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdma_test_support::{Peer, alone, first, passes_alone, role};

#[test]
fn echo() {
    let Some(role) = role() else { return };
    let mut first = first();
    first.tell(&role);
    while let Some(line) = first.try_hear() {
        assert_ne!(line, "fail");
        first.send(line.as_bytes());
    }
}

#[test]
fn lines_and_bytes_go_both_ways() {
    let mut peer = Peer::start("echo", "a role");
    assert_eq!(peer.hear(), "a role");
    peer.tell("a line of words");
    assert_eq!(peer.receive(), b"a line of words");
    peer.stop();
    peer.tell("1 2");
    peer.resume();
    assert_eq!(peer.receive_exact(), *b"1 2");
    peer.finish();
}

#[test]
fn a_peer_that_fails_or_dies_fails_the_test() {
    let mut peer = Peer::start("echo", "");
    peer.hear();
    peer.tell("fail");
    assert!(catch_unwind(AssertUnwindSafe(|| peer.hear())).is_err());
    assert!(catch_unwind(|| peer.finish()).is_err());
    let mut peer = Peer::start("echo", "");
    peer.kill();
    assert!(catch_unwind(|| peer.finish()).is_err());
    assert!(catch_unwind(|| Peer::start("no_such_test", "").finish()).is_err());
}

#[test]
#[ignore = "run by a_test_runs_alone"]
fn has_its_own_environment() {
    assert_eq!(std::env::var("RDMA_TEST_MARK").as_deref(), Ok("set"));
}

#[test]
fn a_test_runs_alone() {
    passes_alone(&["has_its_own_environment"], &[("RDMA_TEST_MARK", "set")]);
    assert!(!alone(&["has_its_own_environment"]).output().unwrap().status.success());
    assert!(catch_unwind(|| passes_alone(&["no_such_test"], &[])).is_err());
}

#[test]
#[ignore = "run by a_launcher_starts_second_processes"]
fn is_in_a_session_of_its_own() {
    let mut peer = Peer::start("echo", "");
    peer.hear();
    assert_eq!(nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(peer.pid()))).unwrap().as_raw(), peer.pid());
    peer.finish();
}

#[test]
fn a_launcher_starts_second_processes() {
    // setsid(1) makes a session, and executes the command in its own place.
    passes_alone(&["is_in_a_session_of_its_own"], &[("RDMA_TEST_PEER_LAUNCHER", "setsid")]);
    assert!(catch_unwind(|| passes_alone(&["is_in_a_session_of_its_own"], &[])).is_err());
}
