//! Events come from a channel: a program cannot make one with a request that nobody sent.

use rdma::cm::{Event, EventKind, Id};
use rdma::Rc;

fn made_up(id: Id<Rc>) -> Event {
    Event { id: id.key(), kind: EventKind::Disconnected }
}

fn main() {}
