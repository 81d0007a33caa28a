//! XXH64, the 64-bit checksum of `xxhsum -H1`: finds damage, and is no protection against forgery.

const PRIMES: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
/// Bytes that one step of the four lanes takes.
const STRIPE: usize = 32;

/// The XXH64 checksum of `bytes`. The checksum of one part as the seed of the next part's makes a
/// checksum of a sequence of parts.
#[must_use]
pub fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let stripes = bytes.chunks_exact(STRIPE);
    let rest = stripes.remainder();
    let start = if bytes.len() < STRIPE { seed.wrapping_add(PRIMES[4]) } else { converge(stripes, seed) };
    avalanche(finish(start.wrapping_add(bytes.len() as u64), rest))
}

/// Runs the four lanes over all whole stripes, and combines them.
fn converge<'a>(stripes: impl Iterator<Item = &'a [u8]>, seed: u64) -> u64 {
    let [one, two, ..] = PRIMES;
    let mut lanes = [seed.wrapping_add(one).wrapping_add(two), seed.wrapping_add(two), seed, seed.wrapping_sub(one)];
    for stripe in stripes {
        for (lane, word) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
            *lane = round(*lane, little_endian(word));
        }
    }
    let sum = lanes.iter().zip([1, 7, 12, 18]).fold(0u64, |sum, (lane, by)| sum.wrapping_add(lane.rotate_left(by)));
    lanes.iter().fold(sum, |sum, &lane| (sum ^ round(0, lane)).wrapping_mul(one).wrapping_add(PRIMES[3]))
}

/// Adds the bytes after the last whole stripe.
fn finish(mut sum: u64, rest: &[u8]) -> u64 {
    let [one, two, three, four, five] = PRIMES;
    let words = rest.chunks_exact(8);
    let mut rest = words.remainder();
    for word in words {
        sum = (sum ^ round(0, little_endian(word))).rotate_left(27).wrapping_mul(one).wrapping_add(four);
    }
    if let Some((half, last)) = rest.split_at_checked(4) {
        sum = (sum ^ little_endian(half).wrapping_mul(one)).rotate_left(23).wrapping_mul(two).wrapping_add(three);
        rest = last;
    }
    rest.iter().fold(sum, |sum, &byte| (sum ^ u64::from(byte).wrapping_mul(five)).rotate_left(11).wrapping_mul(one))
}

fn round(sum: u64, word: u64) -> u64 {
    sum.wrapping_add(word.wrapping_mul(PRIMES[1])).rotate_left(31).wrapping_mul(PRIMES[0])
}

fn avalanche(mut sum: u64) -> u64 {
    sum = (sum ^ (sum >> 33)).wrapping_mul(PRIMES[1]);
    sum = (sum ^ (sum >> 29)).wrapping_mul(PRIMES[2]);
    sum ^ (sum >> 32)
}

/// Up to 8 bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        let known: [(&[u8], u64); 4] = [
            (b"", 0xef46_db37_51d8_e999),
            (b"a", 0xd24e_c4f1_a98c_6e5b),
            (b"abc", 0x44bc_2cf5_ad77_0999),
            (b"Nobody inspects the spammish repetition", 0xfbce_a83c_8a37_8bf1),
        ];
        for (bytes, sum) in known {
            assert_eq!(xxh64(bytes, 0), sum, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn every_bit_and_the_seed_change_the_checksum() {
        let bytes: Vec<u8> = (0..100).collect();
        let sum = xxh64(&bytes, 0);
        assert_ne!(xxh64(&bytes, 1), sum);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(xxh64(&other, 0), sum, "bit {bit}");
        }
    }
}
