//! Memory of a started collective moves into it, and comes back from its future.

use rdma_collectives::{Queue, Reduction};

fn start(queue: &Queue, sums: Vec<f32>) {
    let _pending = queue.all_reduce_in_place(sums, Reduction::Sum);
    println!("{}", sums[0]);
}

fn main() {}
