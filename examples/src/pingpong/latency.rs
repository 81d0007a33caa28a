//! How long a message takes.

use std::time::{Duration, Instant};

use super::{Link, Op};
use crate::Failure;
use crate::bootstrap::Group;
use crate::statistics::Summary;
use crate::table::LatencyRow;

/// Messages before the measured ones.
const WARM_UP: u64 = 20;

/// Sends `iterations` messages of `size` bytes back and forth; collective.
///
/// Half the round trip for sends and writes, all of it for reads, like perftest. The row has figures at the client only.
///
/// # Errors
/// Where the connection breaks; where contents were wrong.
pub fn measure(link: &mut Link, group: &mut Group, size: usize, iterations: usize) -> Result<LatencyRow, Failure> {
    let client = group.rank() == 1;
    let total = WARM_UP + iterations as u64;
    let op = link.settings().op;
    if op == Op::Read {
        link.offer(0)?;
    }
    group.barrier()?;
    let mut samples = Vec::with_capacity(iterations);
    let mut last = Instant::now();
    for number in 0..total {
        if client && number == WARM_UP / 2 {
            // A device may set up its paths in the background when they are first used.
            std::thread::sleep(Duration::from_millis(2));
        }
        match (op, client) {
            (Op::Read, true) => {
                link.read()?;
                link.drain(0)?;
                if link.settings().check {
                    link.inspect(false, 0)?;
                }
            }
            // Nothing tells the server of a read: it waits at the barrier, without a core.
            (Op::Read, false) => break,
            (_, true) => {
                message(link, number)?;
                link.wait_for_message(number)?;
            }
            (_, false) => {
                link.wait_for_message(number)?;
                message(link, number)?;
            }
        }
        let now = Instant::now();
        if number >= WARM_UP {
            samples.push((now - last).as_secs_f64() * 1e6);
        }
        last = now;
    }
    link.drain(0)?;
    group.barrier()?;
    let judged = link.verdict();
    group.agree(judged)?;
    let factor = if op == Op::Read { 1.0 } else { 0.5 };
    Ok(LatencyRow::new(size, iterations, Summary::of(&mut samples).scaled(factor)))
}

fn message(link: &mut Link, number: u64) -> Result<(), Failure> {
    // The answer to a message says that it has come, so one under way is the most there is; completions are late news.
    link.drain(1)?;
    if link.settings().op == Op::Send { link.send(number) } else { link.write(number, link.needs_telling()) }
}
