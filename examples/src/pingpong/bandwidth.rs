//! How much goes through in one direction.

use std::time::{Duration, Instant};

use super::{Link, Op};
use crate::Failure;
use crate::bootstrap::Group;
use crate::table::BandwidthRow;

/// Messages before the measured ones.
const WARM_UP: u64 = 32;

/// The client sends, writes or reads `iterations` messages of `size` bytes; collective.
///
/// # Errors
/// Where the connection breaks; where contents were wrong.
pub fn measure(link: &mut Link, group: &mut Group, size: usize, iterations: usize) -> Result<BandwidthRow, Failure> {
    let client = group.rank() == 1;
    let op = link.settings().op;
    let last = WARM_UP + iterations as u64 - 1;
    if op == Op::Read {
        link.offer(0)?;
    }
    group.barrier()?;
    if client {
        for number in 0..WARM_UP {
            // A device may set up its paths in the background when they are first used.
            if number == WARM_UP / 2 {
                std::thread::sleep(Duration::from_millis(2));
            }
            message(link, number, last)?;
        }
        link.drain(0)?;
    } else if op == Op::Send {
        link.wait_told(WARM_UP)?;
    }
    group.barrier()?;
    let started = Instant::now();
    let mut peak = 0f64;
    if client {
        // The best rate is that of the best tenth.
        let part = (iterations as u64 / 10).max(1);
        let mut mark = started;
        for number in WARM_UP..=last {
            message(link, number, last)?;
            if (number - WARM_UP + 1) % part == 0 {
                let now = Instant::now();
                peak = peak.max(part as f64 / (now - mark).as_secs_f64());
                mark = now;
            }
        }
        link.drain(0)?;
    } else {
        match op {
            Op::Send => link.wait_told(last + 1)?,
            Op::Write => link.wait_told(1)?,
            Op::Read => {}
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    group.barrier()?;
    if link.settings().check {
        match (op, client) {
            (Op::Write, false) => link.inspect(true, last)?,
            (Op::Read, true) => link.inspect(false, 0)?,
            _ => {}
        }
    }
    let judged = link.verdict();
    group.agree(judged)?;
    // What was posted but not done when a part ended makes its rate too good, unless a part is many times that.
    let is_long = iterations as u64 / 10 >= 4 * link.depth();
    Ok(BandwidthRow::new(size, iterations, seconds, if is_long { peak } else { 0.0 }))
}

fn message(link: &mut Link, number: u64, last: u64) -> Result<(), Failure> {
    link.drain(link.depth() - 1)?;
    match link.settings().op {
        Op::Send => link.send(number),
        // The last one is told, so that the server knows when to look.
        Op::Write => link.write(number, number == last),
        Op::Read => link.read(),
    }
}
