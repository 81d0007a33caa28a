//! The copies move the bytes of the range, access nothing outside, and store the last word last.

use core::sync::atomic::{AtomicBool, Ordering};

use super::*;

const SIZES: &[usize] = if cfg!(miri) {
    &[0, 1, 3, 7, 8, 9, 16, 17, 33, 65]
} else {
    &[
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 23, 24, 31, 32, 33, 40, 47, 48, 63, 64, 65, 100, 127, 128,
        129, 1000, 4096, 5000, 65537,
    ]
};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 255).unwrap() + 1).collect()
}

fn check(copy: unsafe fn(*mut u8, *const u8, usize)) {
    for &len in SIZES {
        for from in 0..9 {
            for to in 0..9 {
                let source = pattern(len + 16);
                let mut target = vec![0_u8; len + 32];
                // SAFETY: copies require two valid ranges (1) that do not overlap (2) and no plain
                // access (3): `from` and `to` are at most 8, so `len` bytes lie in each of two
                // vectors, which nothing else touches during the call.
                unsafe { copy(target.as_mut_ptr().wrapping_add(to), source.as_ptr().wrapping_add(from), len) };
                assert_eq!(target[to..to + len], source[from..from + len], "len {len} from {from} to {to}");
                assert!(target[..to].iter().all(|&b| b == 0), "wrote before the target: len {len} from {from} to {to}");
                assert!(target[to + len..].iter().all(|&b| b == 0), "wrote behind: len {len} from {from} to {to}");
            }
        }
    }
}

#[test]
fn copies_every_byte_and_nothing_else() {
    check(copy);
}

#[test]
fn ordered_copies_every_byte_and_nothing_else() {
    check(copy_ordered);
}

#[test]
fn copies_for_a_peer_have_every_byte_and_nothing_else() {
    check(copy_for_peer);
    // Shorter copies than this function passes on, too: they have no whole line, or one.
    check(imp::copy_for_peer);
}

#[test]
fn copies_from_a_peer_have_every_byte_and_nothing_else() {
    check(copy_from_peer);
}

#[test]
fn portable_copies_every_byte_and_nothing_else() {
    check(portable::copy);
}

#[test]
fn long_copies_are_whole() {
    let len = if cfg!(miri) { 300 } else { 40 << 20 };
    let source = pattern(len);
    let mut target = vec![0_u8; len];
    // SAFETY: copy requires two valid ranges (1) that do not overlap (2) and no plain access (3):
    // two vectors of `len` bytes, which nothing else touches during the call.
    unsafe { copy(target.as_mut_ptr(), source.as_ptr(), len) };
    assert!(target == source);
}

/// Every word of a message is the round's number: a reader that sees the last word must see all.
#[test]
fn the_last_word_is_visible_last() {
    const WORDS: usize = if cfg!(miri) { 9 } else { 625 };
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 20_000 };
    let mut memory = vec![0_u64; WORDS];
    let base = memory.as_mut_ptr();
    let address = base.expose_provenance();
    let seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let message = vec![round; WORDS];
                let base: *mut u8 = core::ptr::with_exposed_provenance_mut(address);
                // SAFETY: copy_ordered requires two valid ranges (1): `message` and `memory` have
                // WORDS words, and `memory` outlives the scope. They are two vectors (2), and the
                // other thread reads `memory` by this crate alone (3).
                unsafe { copy_ordered(base, message.as_ptr().cast(), WORDS * 8) };
                while !seen.swap(false, Ordering::AcqRel) {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=ROUNDS {
            let base: *mut u64 = core::ptr::with_exposed_provenance_mut(address);
            // SAFETY: load_u64 requires a valid, aligned word without plain accesses: the last of
            // `memory`, to which the other thread writes by this crate.
            while unsafe { crate::word::load_u64(base.wrapping_add(WORDS - 1), Ordering::Acquire) } != round {
                std::thread::yield_now();
            }
            let mut copied = vec![0_u64; WORDS];
            // SAFETY: copy requires two valid ranges (1): WORDS words of two vectors (2); the other
            // thread writes `memory` by this crate alone (3).
            unsafe { copy(copied.as_mut_ptr().cast(), base.cast(), WORDS * 8) };
            assert!(copied.iter().all(|&word| word == round), "torn in round {round}");
            seen.store(true, Ordering::Release);
        }
    });
}
