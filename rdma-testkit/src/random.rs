//! Random programs, which a seed repeats.

use std::hash::{BuildHasher, RandomState};
use std::panic::{RefUnwindSafe, catch_unwind};

/// A small generator of random numbers (SplitMix64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) >> 33).unwrap() % limit
    }
}

/// Runs `program` with `count` seeds. A failure names its seed, with which `RDMA_TEST_SEED` begins.
pub fn run_random(count: u64, program: impl Fn(&mut Random) + RefUnwindSafe) {
    let first = std::env::var("RDMA_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or_else(|| RandomState::new().hash_one("seed"));
    for seed in (0..count).map(|number| first.wrapping_add(number)) {
        assert!(catch_unwind(|| program(&mut Random(seed))).is_ok(), "RDMA_TEST_SEED={seed}");
    }
}
