//! The inline functions of the headers in Rust against the same functions in C: same objects, same
//! arguments, same answers, same `errno`, same calls of the operations behind them.
//!
//! # Safety
//!
//! Rules that the blocks of this test cite:
//!
//! 1. Objects and the memory of arguments come from `leak`, a `Pointee` or a `Live`: C structs that
//!    are zeroed or filled, that live for ever, and that only the one thread of the test uses.
//! 2. An operation slot, an entry of a table or a hook holds NULL or a fake of its own type. A fake
//!    records its arguments, and touches no memory unless it says so.
//! 3. A C function, a hook and a variable of the library are looked up under the type that the
//!    headers, or the source of the library, declare. The library is never unloaded.

#![cfg(not(feature = "bindgen"))]
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "arguments are compared as words")]

use std::collections::BTreeSet;

mod library;
mod rdmacm;
mod regular;
mod special;
mod world;

use library::Twins;

/// How many inline functions the headers have from which the bindings were made (rdma-core 65).
const INLINE: usize = 116;

#[test]
fn every_inline_function_of_the_headers_has_a_twin_that_does_the_same() {
    let cases = || regular::cases().chain(special::CASES).chain(rdmacm::CASES);
    let compared: BTreeSet<&str> = cases().map(|(name, _)| *name).collect();
    assert_eq!(compared.len(), INLINE, "every twin is compared");

    let Some(twins) = Twins::build("twins") else { return };
    for name in &twins.names {
        assert!(compared.contains(name.as_str()), "{name} of the headers has no twin here");
    }
    let mut lacking = Vec::new();
    for (name, compare) in cases() {
        if !compare(&twins) {
            lacking.push(name);
        }
    }
    rdma_test_support::say(&format!(
        "twins: {} compared; this header lacks {lacking:?}",
        compared.len() - lacking.len()
    ));
    assert_eq!(twins.names.len() + lacking.len(), INLINE);
    assert!(!twins.newest || lacking.is_empty());
}
