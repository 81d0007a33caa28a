//! SipHash-2-4 of one number: a keyed hash whose values a peer that knows some of them cannot
//! predict.
//!
//! The standard library has this function only as `std::hash::SipHasher`, which is deprecated, and
//! whose successors promise no strength.

/// A key of the hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct SipHash([u64; 2]);

/// The state that a message and the key are mixed into.
struct State([u64; 4]);

impl State {
    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32);
        c = c.wrapping_add(b);
        a = a.wrapping_add(d);
        b = b.rotate_left(17) ^ c;
        d = d.rotate_left(21) ^ a;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }

    const fn mix(&mut self, block: u64) {
        self.0[3] ^= block;
        self.round();
        self.round();
        self.0[0] ^= block;
    }
}

impl SipHash {
    /// The hash with a key, which has to come from the kernel's random source.
    pub(super) const fn new(key: [u64; 2]) -> Self {
        Self(key)
    }

    /// Returns the hash of the eight bytes of a number, the lowest byte first.
    pub(super) const fn of(self, number: u64) -> u64 {
        let [low, high] = self.0;
        let mut state = State([
            low ^ 0x736f_6d65_7073_6575,
            high ^ 0x646f_7261_6e64_6f6d,
            low ^ 0x6c79_6765_6e65_7261,
            high ^ 0x7465_6462_7974_6573,
        ]);
        state.mix(number);
        // The last block holds the message's length of eight bytes.
        state.mix(8 << 56);
        state.0[2] ^= 0xff;
        state.round();
        state.round();
        state.round();
        state.round();
        let [a, b, c, d] = state.0;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_authors() {
        // The reference implementation's vector of length 8: key 00 01 .. 0f, message 00 .. 07.
        let hash = SipHash::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(hash.of(0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    #[expect(deprecated, reason = "a second implementation of this very function")]
    fn the_hash_is_that_of_the_standard_library() {
        use std::hash::{Hasher, SipHasher};
        for at in 0..1000_u64 {
            let number = |part: u64| (at * 4 + part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut theirs = SipHasher::new_with_keys(number(0), number(1));
            theirs.write(&number(2).to_le_bytes());
            assert_eq!(SipHash::new([number(0), number(1)]).of(number(2)), theirs.finish());
        }
    }
}
