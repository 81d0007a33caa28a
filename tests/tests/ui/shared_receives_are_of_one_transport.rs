//! Receives of datagrams begin with a header, so connections do not take them.
use rdma::{ProtectionDomain, QueuePair, SharedReceiveQueue};

fn mixed(pd: &ProtectionDomain) {
    let receives = SharedReceiveQueue::datagram(pd).build().unwrap();
    let _ = QueuePair::builder(pd).shared_receives(&receives);
}

fn main() {}
