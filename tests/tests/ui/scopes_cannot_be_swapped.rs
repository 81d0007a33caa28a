//! Scopes cannot be swapped: one could end while the other's memory is still in flight.

use std::time::Duration;

use rdma::{Poller, QueuePair};
use rdma::transport::Rc;

fn swap(a: &mut QueuePair<Rc>, b: &mut QueuePair<Rc>, polls: &mut Poller, poller: &mut Poller) {
    let limit = Duration::from_secs(1);
    a.scope(polls, limit, |outer| b.scope(poller, limit, |inner| std::mem::swap(outer, inner)).unwrap()).unwrap();
}

fn main() {}
