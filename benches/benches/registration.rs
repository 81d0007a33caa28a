//! Registration of one large region: the time until the region is registered and all of its pages
//! are there. Once they come by the first writes after the registration, one after the other, and
//! once threads touch them before it.
//!
//! `soft0` pins no page, so a registration there takes no page's time: what is measured is the
//! kernel's part, which allocates and zeroes the pages. A NIC's driver pins them in addition, in
//! either case.
//!
//! `cargo bench -p rdma-benches --bench registration -- [rounds=N] [mib=N] [threads=N]`

use std::error::Error;
use std::thread;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use rdma::{Buffer, ProtectionDomain, RegisterOptions};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// One way to a registered region whose pages are all there.
struct Way {
    name: String,
    /// 0 for the first writes.
    threads: usize,
    /// Milliseconds of each round.
    rounds: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (rounds, mib) =
        if mode::is_smoke() { (1, 16) } else { (mode::number("rounds", 9)?, mode::number("mib", 1024)?) };
    let threads = mode::number("threads", thread::available_parallelism()?.get())?;
    let len = usize::checked_mul(mib, 1 << 20).ok_or("mib is too large")?;
    let opened = device::open()?;
    let pd = opened.context.alloc_pd()?;

    let mut ways = vec![way("first writes after the registration", 0), way("1 thread before it", 1)];
    if threads > 1 {
        ways.push(way(format!("{threads} threads before it"), threads));
    }
    // The first round warms up.
    for round in 0..=rounds {
        for way in &mut ways {
            let time = register(&pd, len, way.threads)?;
            if round > 0 {
                way.rounds.push(time);
            }
        }
    }
    report(&ways, len);
    Ok(())
}

fn way(name: impl Into<String>, threads: usize) -> Way {
    Way { name: name.into(), threads, rounds: Vec::new() }
}

/// Milliseconds until a new region is registered and has its pages. The region ends afterwards.
fn register(pd: &ProtectionDomain, len: usize, threads: usize) -> Result<f64, Box<dyn Error>> {
    let options = RegisterOptions::new().touch_threads(threads);
    let start = Instant::now();
    let mut buffer = pd.allocate_with(len, &options)?;
    if threads == 0 {
        write_each_page(&mut buffer);
    }
    let time = start.elapsed().as_secs_f64() * 1e3;
    // No way may have left pages out.
    let before = faults()?;
    write_each_page(&mut buffer);
    let missing = faults()? - before;
    let pages = len / rdma_mem::page_size();
    assert!(missing <= i64::try_from(pages / 100)?, "{missing} of {pages} pages were not there");
    Ok(time)
}

/// Writes a byte of each page, which is what has the kernel allocate those that are not there.
fn write_each_page(buffer: &mut Buffer) {
    for page in buffer.chunks_mut(rdma_mem::page_size()) {
        std::hint::black_box(&mut page[0]);
        page[0] = 1;
        std::hint::black_box(page);
    }
}

/// The page faults of this thread that took no input.
fn faults() -> Result<i64, Box<dyn Error>> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.minor_page_faults())
}

fn report(ways: &[Way], len: usize) {
    let title = format!("Registration of {} until all pages are there", table::bytes(len));
    let mut table = Table::new(title, &["pages come by", "ms, median (min-max)", "x first writes"]);
    let Some(untouched) = ways.first() else { return };
    for way in ways {
        table.row([
            way.name.clone(),
            table::spread(Spread::of(&way.rounds)),
            table::spread(paired_ratio(&way.rounds, &untouched.rounds)),
        ]);
    }
    println!("{table}");
}
