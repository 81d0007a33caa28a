//! Callers of other hosts, which are other loopback addresses.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::{fs, io::Write};

use super::*;
use crate::link::handshake::Answer;
use crate::link::hello::{self, First, Identity, Purpose, Route};
use crate::link::tls::Protection;
use crate::os::tcp::Tcp;

/// Two links of two processes would end each other.
#[test]
#[ignore = "run by a_process_is_called_by_its_first_number"]
fn second_number() {
    let node = Node::get().unwrap();
    node.add_slot().unwrap();
    let slots = node.lock().slots().to_vec();
    let remote = node.remote.as_ref().unwrap();
    let caller: IpAddr = "127.89.0.2".parse().unwrap();
    let soon = Instant::now() + LONG;
    let socket = Tcp::connect(caller, remote.address, soon).unwrap();
    let opener = Identity { slot: Slot(77), instance: [7; 16] };
    let first =
        First { purpose: Purpose::Link, protection: Protection::None, target: slots[1], opener, nonce: [9; 32] };
    let route = Route::of_opener(&socket).unwrap();
    let opened = hello::open(&socket, &remote.key, route, &first, soon).unwrap();
    assert_eq!((opened.acceptor.slot, opened.answer), (slots[0], Answer::Known));
}

#[test]
fn a_process_is_called_by_its_first_number() {
    let path = std::env::temp_dir().join(format!("rdma-soft-far-{}", std::process::id()));
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(&[b'k'; 32]).unwrap();
    let free = TcpListener::bind(("127.89.0.1", 0)).unwrap().local_addr().unwrap();
    let address = SocketAddr::to_string(&free);
    let variables =
        [("RDMA_SOFT_TCP", address.as_str()), ("RDMA_SOFT_KEY", path.to_str().unwrap()), ("RDMA_SOFT_TLS", "off")];
    passes_alone(&["node::tests::far::second_number"], &variables);
    fs::remove_file(&path).unwrap();
}
