//! How much goes through in one direction.

use std::time::Instant;

use super::{Link, Op};
use crate::Failure;
use crate::bootstrap::Group;
use crate::table::BandwidthRow;

/// The client sends, writes or reads `iterations` messages of `size` bytes; collective.
///
/// # Errors
/// Where the connection breaks; where contents were wrong.
pub fn measure(link: &mut Link, group: &mut Group, size: usize, iterations: usize) -> Result<BandwidthRow, Failure> {
    let client = group.rank() == 1;
    let op = link.settings().op;
    let total = iterations as u64;
    if op == Op::Read {
        link.offer(0)?;
    }
    group.barrier()?;
    let started = Instant::now();
    let mut peak = 0f64;
    if client {
        // The best rate is that of the best tenth.
        let part = (total / 10).max(1);
        let mut mark = started;
        for number in 0..total {
            link.drain(link.depth() - 1)?;
            match op {
                Op::Send => link.send(number)?,
                // The last one is told, so that the server knows when to look.
                Op::Write => link.write(number, number + 1 == total)?,
                Op::Read => link.read()?,
            }
            if (number + 1) % part == 0 {
                let now = Instant::now();
                peak = peak.max(part as f64 / (now - mark).as_secs_f64());
                mark = now;
            }
        }
        link.drain(0)?;
    } else {
        match op {
            Op::Send => link.wait_told(total)?,
            Op::Write => link.wait_told(1)?,
            Op::Read => {}
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    group.barrier()?;
    if link.settings().check {
        match (op, client) {
            (Op::Write, false) => link.inspect(true, total - 1)?,
            (Op::Read, true) => link.inspect(false, 0)?,
            _ => {}
        }
    }
    let judged = link.verdict();
    group.agree(judged)?;
    // What was posted but not done when a part ended makes its rate too good for one part; the whole is what counts.
    Ok(BandwidthRow::new(size, iterations, seconds, if total >= 10 * link.depth() { peak } else { 0.0 }))
}
