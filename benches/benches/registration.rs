//! Registration of one large region: the time until the region is registered and all of its pages
//! are there. Once they come by the first writes after the registration, one after the other, and
//! once threads touch them before it. Beside it what a plain program does, without a device: `mmap`
//! and first writes, and `mmap`, `madvise` for huge pages and first writes of threads.
//!
//! `soft0` pins no page, so a registration there takes no page's time: what is measured is the
//! kernel's part, which allocates and zeroes the pages. A NIC's driver pins them in addition, in
//! either case. `mlock` stands in for it: it walks the same way through each page
//! (`get_user_pages`), but does not map the pages for a device.
//!
//! `cargo bench -p rdma-benches --bench registration -- [rounds=N] [mib=N] [threads=N]`

use std::error::Error;
use std::time::Instant;
use std::{io, thread};

use memmap2::{Advice, MmapMut, MmapOptions};
use nix::sys::resource::{UsageWho, getrusage};
use rdma::{ProtectionDomain, RegisterOptions};
use rdma_benches::stats::{Spread, paired_ratio};
use rdma_benches::table::{self, Table};
use rdma_benches::{device, mode};

/// A way to memory whose pages are all there.
#[derive(Clone, Copy)]
enum Pages {
    /// A registered region. As many threads touch the pages before the registration; none leave
    /// that to the first writes after it, or to `mlock`.
    Registered { threads: usize, is_locked: bool },
    /// A mapping of a program without a device, which so many threads write.
    Mapped { threads: usize, is_huge: bool },
}

/// A way, and its times.
struct Way {
    name: String,
    pages: Pages,
    /// Milliseconds of each round.
    rounds: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (rounds, mib) =
        if mode::is_smoke() { (1, 16) } else { (mode::number("rounds", 9)?, mode::number("mib", 1024)?) };
    let threads = mode::number("threads", thread::available_parallelism()?.get())?.max(1);
    let len = usize::checked_mul(mib, 1 << 20).ok_or("mib is too large")?;
    let opened = device::open()?;
    let pd = opened.context.alloc_pd()?;

    let registered = |threads| Pages::Registered { threads, is_locked: false };
    let mut ways = vec![
        way("first writes after the registration", registered(0)),
        way("1 thread before it", registered(1)),
        way(format!("{threads} threads before it"), registered(threads)),
        way("no device: mmap, first writes", Pages::Mapped { threads: 1, is_huge: false }),
        way(
            format!("no device: mmap, MADV_HUGEPAGE, first writes of {threads} threads"),
            Pages::Mapped { threads, is_huge: true },
        ),
    ];
    match lock_memory(&pd.allocate(len)?) {
        Ok(()) => {
            let locked = |threads| Pages::Registered { threads, is_locked: true };
            ways.push(way("mlock after the registration", locked(0)));
            ways.push(way(format!("{threads} threads before it, mlock after it"), locked(threads)));
        }
        Err(error) => println!("no row with mlock: {error}"),
    }
    // The first round warms up.
    for round in 0..=rounds {
        for way in &mut ways {
            let time = match way.pages {
                Pages::Registered { threads, is_locked } => register(&pd, len, threads, is_locked)?,
                Pages::Mapped { threads, is_huge } => map(len, threads, is_huge)?,
            };
            if round > 0 {
                way.rounds.push(time);
            }
        }
    }
    report(&ways, len);
    Ok(())
}

fn way(name: impl Into<String>, pages: Pages) -> Way {
    Way { name: name.into(), pages, rounds: Vec::new() }
}

/// Milliseconds until a new region is registered and has its pages. The region ends afterwards.
fn register(pd: &ProtectionDomain, len: usize, threads: usize, is_locked: bool) -> Result<f64, Box<dyn Error>> {
    let options = RegisterOptions::new().touch_threads(threads);
    let start = Instant::now();
    let mut buffer = pd.allocate_with(len, &options)?;
    if is_locked {
        lock_memory(&buffer)?;
    } else if threads == 0 {
        write_each_page(&mut buffer);
    }
    let time = start.elapsed().as_secs_f64() * 1e3;
    all_are_there(&mut buffer)?;
    Ok(time)
}

/// Milliseconds until a new mapping has its pages.
fn map(len: usize, threads: usize, is_huge: bool) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut map: MmapMut = MmapOptions::new().len(len).map_anon()?;
    if is_huge {
        // A kernel without such pages refuses it.
        let _refused = map.advise(Advice::HugePage);
    }
    let each = len.div_ceil(threads).next_multiple_of(2 << 20);
    thread::scope(|scope| {
        let mut parts = map.chunks_mut(each);
        let first = parts.next();
        for part in parts {
            scope.spawn(|| write_each_page(part));
        }
        first.map(write_each_page);
    });
    let time = start.elapsed().as_secs_f64() * 1e3;
    all_are_there(&mut map)?;
    Ok(time)
}

/// Locks memory until it is unmapped.
fn lock_memory(memory: &[u8]) -> io::Result<()> {
    // SAFETY: mlock requires a range of mapped memory: the slice's. It changes no contents.
    match unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fails if a way has left pages out.
fn all_are_there(memory: &mut [u8]) -> Result<(), Box<dyn Error>> {
    let before = faults()?;
    write_each_page(memory);
    let (missing, pages) = (faults()? - before, memory.len() / rdma_mem::page_size());
    assert!(missing <= i64::try_from(pages / 100)?, "{missing} of {pages} pages were not there");
    Ok(())
}

/// Writes a byte of each page, which is what has the kernel allocate those that are not there.
fn write_each_page(memory: &mut [u8]) {
    for page in memory.chunks_mut(rdma_mem::page_size()) {
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
