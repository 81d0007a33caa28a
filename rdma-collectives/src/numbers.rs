//! Numbers for tests that look random, the same in every run (xorshift). The program of
//! `tests/losses` has them too.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The numbers of a seed. Neighbouring seeds give different numbers.
    pub(crate) fn of(seed: u64) -> Self {
        let mut numbers = Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            numbers.next();
        }
        numbers
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from((self.next() >> 11) % limit as u64).expect("below a usize")
    }
}
