//! A datagram's post and its poll over a provider that does nothing: always to the same address,
//! and to two in turn, where each request keeps the address handle of the one before it.
//!
//! A program of its own: in one with `post_poll` the compiler would lay out both in another way.
//!
//! `cargo bench -p rdma-benches --bench datagrams`

use std::error::Error;
use std::io;
use std::time::Instant;

use rdma::op::Send;
use rdma::{AddressHandle, Buffer, DatagramOptions, Poller, QueuePair, Ud};
use rdma_benches::allocations::{self, Counting};
use rdma_benches::stats::Spread;
use rdma_benches::table::{self, Table};
use rdma_benches::{affinity, callgrind, device, mode, null, pair};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes in a message.
const LEN: usize = 64;
/// Iterations under callgrind, and twice that.
const COUNTED: u32 = 20_000;
/// How many addresses take turns.
const CASES: [(&str, usize); 2] = [("one", 1), ("two", 2)];

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = mode::option("--count") {
        let iterations = mode::option("--iterations").and_then(|n| n.parse().ok()).unwrap_or(1);
        let addresses = CASES.iter().find(|case| case.0 == name).map_or(1, |case| case.1);
        Datagrams::new(addresses)?.run(iterations)?;
        return Ok(());
    }
    let (blocks, iterations) = if mode::is_smoke() { (1, 10) } else { (25, 20_000) };
    affinity::pin(affinity::two_cores()?.0)?;
    let heads = ["addresses", "ns, median (min-max)", "instructions", "allocations"];
    let mut table = Table::new("Post and poll of one signaled 64-byte datagram, null provider, per operation", &heads);
    for (name, addresses) in CASES {
        let mut datagrams = Datagrams::new(addresses)?;
        datagrams.run(100)?;
        let mut times = Vec::with_capacity(blocks);
        let before = allocations::count();
        for _ in 0..blocks {
            let start = Instant::now();
            datagrams.run(iterations)?;
            times.push(pair::per_iteration(start.elapsed(), iterations));
        }
        let allocated = allocations::count() - before;
        let instructions = match mode::is_smoke() {
            true => String::new(),
            false => table::number(callgrind::per_iteration(name, COUNTED)?),
        };
        table.row([name.to_owned(), table::spread(Spread::of(&times)), instructions, allocated.to_string()]);
    }
    println!("{table}");
    Ok(())
}

/// A queue pair that sends to itself, as far as it knows.
struct Datagrams {
    qp: QueuePair<Ud>,
    poller: Poller,
    buffer: Option<Buffer>,
    addresses: Vec<AddressHandle>,
}

impl Datagrams {
    fn new(addresses: usize) -> io::Result<Self> {
        let opened = device::open()?;
        let pd = opened.context.alloc_pd()?;
        let cq = opened.context.create_cq(2 * device::DEPTH)?;
        let options = DatagramOptions::new(1).port(opened.port);
        let qp = QueuePair::datagram(&pd).cq(&cq).max_send_wr(device::DEPTH).build()?.init(&options)?.ready()?;
        let to = qp.endpoint()?;
        let addresses = (0..addresses).map(|_| qp.address_of(&to)).collect::<Result<_, _>>()?;
        // SAFETY: install wants a live context that no other thread uses: it was opened above for
        // this value alone.
        unsafe { null::install(opened.context.as_raw()) };
        Ok(Self { qp, poller: cq.poller(), buffer: Some(pd.allocate(LEN)?), addresses })
    }

    #[inline(never)]
    fn run(&mut self, iterations: u64) -> io::Result<()> {
        let lost = || io::Error::other("the buffer did not come back");
        let mut buffer = self.buffer.take().ok_or_else(lost)?;
        let mut to = 0;
        for _ in 0..iterations {
            self.qp.post_send(Send::new(buffer).to(&self.addresses[to], 1, 1))?;
            to = if to + 1 == self.addresses.len() { 0 } else { to + 1 };
            buffer = loop {
                if let Some(mut completion) = self.poller.poll()? {
                    completion.status().map_err(io::Error::other)?;
                    break completion.take_buffer().ok_or_else(lost)?;
                }
            };
        }
        self.buffer = Some(buffer);
        Ok(())
    }
}
