//! Measures the latency and bandwidth of messages of one size.

use std::time::{Duration, Instant};

use super::link::Link;
use super::options::{Op, Options, Test};
use super::report::{Measured, Row};
use crate::Failure;
use crate::statistics::Summary;
use rdma_collectives::bootstrap::Group;

/// Messages before the measured ones, in each of two warm-up runs.
const WARM_UP: u64 = 16;
/// Pause between the warm-up runs, in which a device may set up its paths in the background.
const PAUSE: Duration = Duration::from_millis(2);
/// Duration of one run of a test with `--duration`.
const RUN: Duration = Duration::from_millis(50);

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    messages: u64,
    seconds: f64,
    /// The best rate of a part of the run, in messages per second.
    peak: f64,
}

/// Measures messages of `size` bytes; collective. The row has figures at the client only.
pub(super) fn run(
    link: &mut Link,
    group: &mut Group,
    options: &Options,
    (test, size): (Test, usize),
) -> Result<Measured, Failure> {
    match test {
        Test::Lat => latency(link, group, options, size),
        _ => Ok(Measured { row: bandwidth(link, group, options, size)?, samples: Vec::new() }),
    }
}

/// Measures the latency of messages.
///
/// The latency is half the round trip for sends and writes, and all of it for reads and atomic
/// operations, as in perftest.
fn latency(link: &mut Link, group: &mut Group, options: &Options, size: usize) -> Result<Measured, Failure> {
    let mut samples = Vec::new();
    let factor = if link.plan.op.is_one_sided() { 1.0 } else { 0.5 };
    let total = measure(link, group, options, (Test::Lat, size), &mut |link, group, count| {
        samples.clear();
        back_and_forth(link, group, count, &mut samples)
    })?;
    if options.duration.is_some() {
        let each = total.seconds / total.messages.max(1) as f64;
        let row = Row::latency_of_duration(size, total.messages, each * factor * 1e6, 1.0 / each);
        return Ok(Measured { row, samples: Vec::new() });
    }
    samples.iter_mut().for_each(|sample| *sample *= factor);
    // The summary sorts them.
    let row = Row::latency(size, total.messages, &Summary::of(&mut samples.clone()));
    Ok(Measured { row, samples })
}

/// Measures the message rate.
fn bandwidth(link: &mut Link, group: &mut Group, options: &Options, size: usize) -> Result<Row, Failure> {
    let both = options.bidirectional;
    let total =
        measure(link, group, options, (Test::Bw, size), &mut |link, group, count| stream(link, group, count, both))?;
    let rate = if total.seconds > 0.0 { total.messages as f64 / total.seconds } else { 0.0 };
    let peak = if options.duration.is_some() || options.no_peak { 0.0 } else { total.peak.max(rate) };
    let rates = group.all_gather("the rates", &(rate, peak))?;
    // In bidirectional tests the result is the sum of both directions.
    let counted = if both { &rates[..] } else { &rates[1..] };
    let (rate, peak) = counted.iter().fold((0.0, 0.0), |(rate, peak), one| (rate + one.0, peak + one.1));
    Ok(Row::bandwidth(size, total.messages, rate, peak, options.report_gbits))
}

/// Repeats runs until the requested amount is measured; collective.
fn measure(
    link: &mut Link,
    group: &mut Group,
    options: &Options,
    (test, size): (Test, usize),
    run: &mut dyn FnMut(&mut Link, &mut Group, u64) -> Result<Run, Failure>,
) -> Result<Run, Failure> {
    if link.plan.op == Op::Read {
        link.offer()?;
    }
    run(link, group, WARM_UP)?;
    std::thread::sleep(PAUSE);
    run(link, group, WARM_UP)?;
    let (total, messages) = match options.duration {
        None => {
            let count = options.iterations(test, size) as u64;
            (run(link, group, count)?, count)
        }
        Some(seconds) => for_a_time(link, group, (Duration::from_secs(seconds), options.margin()), run)?,
    };
    if options.check {
        let is_target = (group.rank() == 0) != (link.plan.op == Op::Read) || options.bidirectional && test == Test::Bw;
        if is_target && !(link.plan.op == Op::Send) {
            link.inspect(messages + 2 * WARM_UP)?;
        }
    }
    let judged = link.verdict();
    group.agree("the verdict", judged)?;
    Ok(total)
}

/// Repeats runs until the time is over. Returns the sum of the runs that begin at least the margin
/// after its begin and before its end, and the number of messages of all runs.
fn for_a_time(
    link: &mut Link,
    group: &mut Group,
    (duration, margin): (Duration, Duration),
    run: &mut dyn FnMut(&mut Link, &mut Group, u64) -> Result<Run, Failure>,
) -> Result<(Run, u64), Failure> {
    let (begun, mut count, mut all) = (Instant::now(), 2 * WARM_UP, 0);
    let (mut counted, mut last) = (Run::default(), Run::default());
    loop {
        // The client's clock decides.
        let at = begun.elapsed();
        let next = if at < duration { count } else { 0 };
        count = group.all_gather("the next run", &next)?[1];
        if count == 0 {
            // If a run takes very long, none may have begun between the margins.
            return Ok((if counted.messages > 0 { counted } else { last }, all));
        }
        last = run(link, group, count)?;
        all += count;
        if (margin..duration - margin).contains(&at) {
            counted.messages += last.messages;
            counted.seconds += last.seconds;
        }
        let in_time = RUN.as_secs_f64() / (last.seconds / count as f64).max(1e-9);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is a small number")]
        let in_time = in_time as u64;
        count = in_time.clamp(1, 1 << 24);
    }
}

/// Sends messages back and forth on the first queue pair.
fn back_and_forth(link: &mut Link, group: &mut Group, count: u64, samples: &mut Vec<f64>) -> Result<Run, Failure> {
    let is_client = group.rank() == 1;
    let first = link.sent();
    group.barrier("the other side")?;
    let begun = Instant::now();
    let mut last = begun;
    for number in first..first + count {
        match (link.plan.op.is_one_sided(), is_client) {
            (true, true) => {
                link.post(0, true, true)?;
                link.drain(0)?;
            }
            // The server does not see these messages: it waits for their end without using a core.
            (true, false) => break,
            (false, true) => {
                message(link)?;
                link.wait_for_message(number)?;
            }
            (false, false) => {
                link.wait_for_message(number)?;
                message(link)?;
            }
        }
        let now = Instant::now();
        samples.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    let seconds = begun.elapsed().as_secs_f64();
    link.drain(0)?;
    group.wait_for_work("the messages")?;
    Ok(Run { messages: count, seconds, peak: 0.0 })
}

fn message(link: &mut Link) -> Result<(), Failure> {
    // The peer's answer proves that a message arrived, often before its send completes. At most one
    // send is outstanding, so the completion need not be waited for.
    link.drain(1)?;
    while !link.has_room(0) {
        link.take_next()?;
    }
    link.post(0, true, true)
}

/// Sends `count` messages on each queue pair, from the client or from both sides.
fn stream(link: &mut Link, group: &mut Group, count: u64, both: bool) -> Result<Run, Failure> {
    let is_client = group.rank() == 1;
    let lanes = link.plan.lanes;
    let all = count * lanes as u64;
    let to_send = if is_client || both { count } else { 0 };
    let expected = if link.plan.op == Op::Send && (!is_client || both) { link.arrived() + all } else { 0 };
    let mut left = vec![to_send; lanes];
    group.barrier("the other side")?;
    let begun = Instant::now();
    // The peak rate is that of the best tenth of the messages.
    let part = (all / 10).max(1);
    let (mut sent, mut mark, mut peak) = (0_u64, begun, 0_f64);
    while left.iter().any(|&left| left > 0) || link.is_busy() || link.arrived() < expected {
        let mut has_posted = false;
        for (lane, left) in left.iter_mut().enumerate() {
            if *left > 0 && link.has_room(lane) {
                *left -= 1;
                link.post(lane, false, *left == 0)?;
                has_posted = true;
                sent += 1;
                if sent % part == 0 {
                    let now = Instant::now();
                    peak = peak.max(part as f64 / (now - mark).as_secs_f64());
                    mark = now;
                }
            }
        }
        if !link.take()? && !has_posted {
            link.take_next()?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    group.wait_for_work("the messages")?;
    // Messages posted but not complete at the end of a part make its rate too high, unless a part
    // is many times the depth.
    let is_long = part >= 4 * u64::from(link.plan.depth) * lanes as u64;
    Ok(Run { messages: all, seconds, peak: if is_long { peak } else { 0.0 } })
}
