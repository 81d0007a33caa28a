//! The memory of a message is lent until all messages of the exchange have come.

use rdma_collectives::{Communicator, Error, Transfer};

fn exchange(comm: &mut Communicator, block: &mut [f32]) -> Result<(), Error> {
    let mut transfers = [Transfer::recv(&mut block[..], 1)];
    block[0] = 1.0;
    comm.exchange(&mut transfers)
}

fn main() {}
