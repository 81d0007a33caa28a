//! Only a channel creates events: a program cannot construct one with a forged request.

use rdma::cm::{Event, EventKind, Id};
use rdma::transport::Rc;

fn made_up(id: Id<Rc>) -> Event {
    Event { id: id.key(), kind: EventKind::Disconnected }
}

fn main() {}
