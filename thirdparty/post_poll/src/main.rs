//! Post and poll of 64-byte messages within one process: `rdma`'s owned, safe way beside the unsafe
//! ways of the crates `ibverbs` and `sideway`, all on the soft0 of one libibverbs.so.1.
//! Nanoseconds, instructions and allocations per operation.
//!
//! In this program, `ibverbs` creates its objects through a library that `sideway` links and that
//! loads libibverbs.so.1; posts and polls go to the device without a detour.
//!
//! `soft-rdma post_poll --bench [rounds=N]`; without `--bench`, a short run without instructions.

mod owned;

use std::error::Error;
use std::io;

use pingpong::End;
use rdma_benches::allocations::Counting;
use rdma_benches::stats;
use rdma_benches::table;
use rdma_benches::ways::{self, Measured, Way};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One way, ready to run: does an operation that many times.
struct Case(Box<dyn FnMut(u64) -> io::Result<()>>);

impl Case {
    const NAMES: [&str; 5] = ["rdma, send", "ibverbs, send", "sideway, send", "rdma, write", "sideway, write"];
    /// Ours and another way of the same operation, by index. `ibverbs` has no write.
    const BARS: [(usize, usize); 3] = [(0, 1), (0, 2), (3, 4)];

    fn new(mut operation: impl FnMut() -> io::Result<()> + 'static) -> Self {
        Self(Box::new(move |iterations| (0..iterations).try_for_each(|_| operation())))
    }

    /// Sends, each with its receive.
    fn sends<E: End + 'static>((mut from, mut to): (E, E)) -> Self {
        Self::new(move || from.send(&mut to))
    }
}

impl Way for Case {
    fn named(name: &str) -> io::Result<Self> {
        Ok(match name {
            "rdma, send" => Self::sends(owned::connect()?),
            "ibverbs, send" => Self::sends(ibverbs()?),
            "sideway, send" => Self::sends(sideway()?),
            "rdma, write" => {
                let (mut from, to) = owned::connect()?;
                let memory = to.exposed()?;
                Self::new(move || {
                    let _memory = &to;
                    from.write(memory)
                })
            }
            "sideway, write" => {
                let (mut from, mut to) = sideway()?;
                Self::new(move || from.write(&mut to))
            }
            other => return Err(io::Error::other(format!("no way is named {other}"))),
        })
    }

    fn run(&mut self, iterations: u64) -> io::Result<()> {
        (self.0)(iterations)
    }
}

/// Two sides of the crate `ibverbs`. The objects that they borrow live as long as the process.
fn ibverbs() -> io::Result<(thirdparty_ibverbs::End<'static>, thirdparty_ibverbs::End<'static>)> {
    let context = Box::leak(Box::new(thirdparty_ibverbs::open()?));
    let objects = || Ok::<_, io::Error>(Box::leak(Box::new(thirdparty_ibverbs::Objects::new(context)?)));
    thirdparty_ibverbs::connect(objects()?, objects()?)
}

fn sideway() -> io::Result<(thirdparty_sideway::End, thirdparty_sideway::End)> {
    thirdparty_sideway::open().and_then(|context| thirdparty_sideway::connect(&context)).map_err(io::Error::other)
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(measured) = ways::measure::<Case>(&Case::NAMES, 20_000)? else {
        return Ok(());
    };
    let title = "Post and poll of a 64-byte send with its receive, or of a write, per operation";
    println!("{}", ways::table(title, "way", &measured));
    for (ours, other) in Case::BARS {
        compare(&measured, ours, other);
    }
    Ok(())
}

/// Prints the bars: ours takes no more time and no more instructions than the other way.
fn compare(measured: &[Measured<Case>], ours: usize, other: usize) {
    let what = format!("{} over {}", Case::NAMES[ours], Case::NAMES[other]);
    let (ours, other) = (&measured[ours], &measured[other]);
    let more = stats::median(&ours.nanoseconds_over(other));
    table::bar(&what, "no slower", &format!("{} ns", table::number(more)), more <= 0.0);
    if let Some(more) = ours.instructions_over(other) {
        table::bar(&what, "no more instructions", &table::number(more), more <= 0.0);
    }
}
