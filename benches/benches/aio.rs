//! The price of futures: a send and its receive between two queue pairs of one process, polled by
//! hand and through `rdma::aio`, in nanoseconds, instructions and allocations.
//!
//! `cargo bench -p rdma-benches --bench aio -- [rounds=N]`

use std::error::Error;

use rdma_benches::allocations::Counting;
use rdma_benches::stats::{self, Spread};
use rdma_benches::table;
use rdma_benches::ways::send_receive::{Case, NAMES};
use rdma_benches::ways::{self, Measured};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(measured) = ways::measure(&NAMES, 10_000)? {
        report(&measured);
    }
    Ok(())
}

fn report(measured: &[Measured<Case>]) {
    println!("{}", ways::table("Send and receive of 64 bytes within one process, soft0", "way", measured));
    let [by_hand, by_futures] = measured else { return };
    let more = by_futures.nanoseconds_over(by_hand);
    let reached = stats::median(&more) <= 60.0;
    let what = "futures over polling by hand";
    table::bar(what, "at most 60 ns more", &format!("{} ns", table::spread(Spread::of(&more))), reached);
    let allocations = by_futures.allocations;
    table::bar("futures", "no allocation", &allocations.to_string(), allocations == 0);
}
