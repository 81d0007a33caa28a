//! The library exports every symbol of `symbols.txt` in its versions.
//!
//! A process loads one library of a name, so the system's libraries have a test program of their
//! own.

mod common;

use common::{Library, built, symbols};

#[test]
fn every_symbol_has_its_versions() {
    let library = Library::open(built().to_str().expect("UTF-8")).expect("our library can be loaded");
    let missing: Vec<_> = symbols().into_iter().filter(|(name, version)| !library.has(name, version)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!library.has("ibv_open_device", "IBVERBS_1.2"));
}
