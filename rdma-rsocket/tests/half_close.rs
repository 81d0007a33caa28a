//! A program of its own, because faults are of a process: sides that stop sending while the device
//! is slow.

#[allow(dead_code, reason = "the helpers for other tests")]
mod common;

use std::io::{Read, Write};
use std::net::Shutdown;

use common::pair;
use rdma_soft::faults;

#[test]
fn data_arrives_although_both_ends_have_stopped_sending() {
    let (mut client, mut server) = pair();
    let data = vec![7; 20_000];
    // The client's first message is late, and with it all that follows.
    faults::inject(&"delay=500ms:write:limit=1".parse().expect("a plan")).expect("a device");
    client.write_all(&data).expect("a send");
    client.shutdown(Shutdown::Write).expect("a shutdown");
    server.shutdown(Shutdown::Write).expect("a shutdown");
    assert_eq!(client.read(&mut [0]).expect("the end of the stream"), 0);
    client.close().expect("a close");
    let mut received = Vec::new();
    server.read_to_end(&mut received).expect("the data");
    assert!(received == data, "{} bytes", received.len());
    faults::clear().expect("a device");
}
