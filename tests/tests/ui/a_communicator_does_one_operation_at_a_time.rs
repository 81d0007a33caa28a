//! The order of operations is the same at all ranks, so two threads cannot share a communicator.

use rdma_collectives::Communicator;

fn meet(comm: &Communicator) {
    std::thread::scope(|scope| {
        scope.spawn(|| comm.barrier());
        scope.spawn(|| comm.barrier());
    });
}

fn main() {}
