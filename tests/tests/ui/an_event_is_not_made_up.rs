//! Events come from a channel: a program cannot make one with a forged request.

use rdma::cm::{Event, EventKind, Id};
use rdma::Rc;

fn made_up(id: Id<Rc>) -> Event {
    Event { id: id.key(), kind: EventKind::Disconnected }
}

fn main() {}
