//! A program of its own, because it sets the log subscriber of the process: one that calls the
//! device and panics.

mod cm_support;
mod common;

use std::fmt::{self, Write};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use cm_support::{Channel, connected, listener, loopback, until};
use common::{Config, Side};
use rdma_sys::*;
use rdma_test_support::OnEvent;
use tracing::Event;
use tracing::field::{Field, Visit};

/// The messages logged so far; added only after the subscriber's own calls have returned.
static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

/// Uses the device at an event of the device, and then panics.
fn use_and_panic(event: &Event<'_>) {
    if !event.metadata().target().starts_with("rdma_soft") {
        return;
    }
    let mut text = Text(String::new());
    event.record(&mut text);
    let side = Side::new(Config::default());
    assert!(side.poll().is_none());
    let channel = Channel::new();
    assert_eq!(channel.tcp().bind(loopback(0)), 0);
    HEARD.lock().unwrap().push(text.0);
    panic!("a subscriber's panic, which the test wants");
}

fn wait_for(what: &str) {
    until(what, || HEARD.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|text| text.contains(what)));
}

/// Connects to a listener's socket without sending a request.
fn knock(port: u16) {
    // SAFETY: the function has no requirement.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just made, and nobody else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid value of this plain structure.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
    let name = format!("rdma-soft-cm1/tcp/{port}/127.0.0.1");
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = libc::socklen_t::try_from(offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()).unwrap();
    // SAFETY: reads `len` bytes of a live address.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    assert_eq!(connected, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_subscriber_may_use_the_device_and_panic() {
    tracing::subscriber::set_global_default(OnEvent(use_and_panic)).unwrap();
    // Logged in a call of the application.
    let side = Side::new(Config::default());
    assert_eq!(side.set_state(ibv_qp_state::IBV_QPS_RTS), libc::EINVAL);
    wait_for("modify_qp is refused");
    // Logged by the node.
    wait_for("software RDMA device starts");
    // Logged by the connection manager's thread.
    let (id, _channel, _) = listener(rdma_port_space::RDMA_PS_TCP, 8);
    knock(id.port());
    wait_for("a connection ends before a request");
    // The device still works.
    let (a, b) = common::pair(Config::default());
    assert_eq!(b.post_recv(1, &[b.sge(0, 8)]), 0);
    assert_eq!(a.post(&common::Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[a.sge(0, 8)])), 0);
    b.success(1);
    drop(connected());
}
