//! The measurement of a rank.

use std::time::Instant;

use super::Writes;
use super::rank::Rank;
use super::traffic::{self, Method};

/// Measures the fastest method, and leaves the results in shared memory.
pub(super) fn measure(mut rank: Rank, writes: Writes) {
    let point = rank.point;
    rank.fill();
    let methods = Method::of(point, writes);
    let mut best = (f64::INFINITY, methods[0]);
    for &method in &methods {
        time(&mut rank, method, point.warmup);
        let time = time(&mut rank, method, point.warmup);
        let all = rank.mean(time);
        best = if all < best.0 { (all, method) } else { best };
    }
    let time = time(&mut rank, best.1, point.iterations);
    rank.fill();
    rank.barrier();
    traffic::run(&mut rank, best.1);
    rank.barrier();
    rank.leave_results(time, count_wrong(&rank));
}

/// Nanoseconds of an operation.
fn time(rank: &mut Rank, method: Method, iterations: usize) -> f64 {
    rank.barrier();
    let start = Instant::now();
    for _ in 0..iterations {
        traffic::run(rank, method);
    }
    let time = crate::pair::per_iteration(start.elapsed(), iterations as u64);
    rank.barrier();
    time
}

fn count_wrong(rank: &Rank) -> u64 {
    let is_wrong = |index: &usize| {
        // SAFETY: read requires a readable number, which nothing writes: it lies in this rank's
        // output, and the operation has ended.
        let found = unsafe { rank.output(rank.rank).wrapping_add(*index).read() };
        found != traffic::expected(rank, *index)
    };
    traffic::results(rank).filter(is_wrong).count() as u64
}
