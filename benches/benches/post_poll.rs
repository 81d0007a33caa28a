//! A safe, owned post and its poll beside the raw sequence: nanoseconds, instructions and
//! allocations per operation, over a provider that does nothing and over the software device within
//! one process; and a receive of a shared queue beside one of the queue pair's own.
//!
//! `cargo bench -p rdma-benches --bench post_poll -- [rounds=N]`

use std::error::Error;

use rdma_benches::allocations::Counting;
use rdma_benches::stats::{self, Spread};
use rdma_benches::table;
use rdma_benches::ways::post_poll::Case;
use rdma_benches::ways::{self, Measured};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(measured) = ways::measure(&Case::NAMES, 20_000)? {
        report(&measured);
    }
    Ok(())
}

fn report(measured: &[Measured<Case>]) {
    let title = "Post and poll of one signaled 64-byte request or receive, per operation";
    println!("{}", ways::table(title, "sequence", measured));
    let (raw, owned) = (&measured[Case::RAW_NULL], &measured[Case::OWNED_NULL]);
    let more = owned.nanoseconds_over(raw);
    let reached = stats::median(&more) <= 15.0;
    let what = "owned over raw, null provider";
    table::bar(what, "at most 15 ns more", &format!("{} ns", table::spread(Spread::of(&more))), reached);
    if let Some(more) = owned.instructions_over(raw) {
        table::bar(what, "at most 60 instructions more", &table::number(more), more <= 60.0);
    }
    if let Some(more) = measured[Case::OWNED_SOFT0].instructions_over(&measured[Case::RAW_SOFT0]) {
        let what = "owned over raw, soft0";
        table::bar(what, "at most 56 instructions more", &table::number(more), more <= 56.0);
    }
    if let Some(more) = measured[Case::SHARED_RECEIVE].instructions_over(&measured[Case::RECEIVE]) {
        let what = "shared receive over own, null provider";
        table::bar(what, "at most 26 instructions more", &table::number(more), more <= 26.0);
    }
    let allocations: u64 = measured.iter().map(|one| one.allocations).sum();
    table::bar("data path", "no allocation", &allocations.to_string(), allocations == 0);
}
