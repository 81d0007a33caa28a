//! A datagram's post and its poll over a provider that does nothing: always to the same address,
//! and to two in turn, where each request keeps the address handle of the one before it.
//!
//! `cargo bench -p rdma-benches --bench datagrams -- [rounds=N]`

use std::error::Error;

use rdma_benches::allocations::Counting;
use rdma_benches::ways;
use rdma_benches::ways::datagrams::{Datagrams, NAMES};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(measured) = ways::measure::<Datagrams>(&NAMES, 20_000)? {
        let title = "Post and poll of one signaled 64-byte datagram, per operation";
        println!("{}", ways::table(title, "addresses", &measured));
    }
    Ok(())
}
