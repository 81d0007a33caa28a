//! A program of its own, because a process loads one library of a name, and `programs.rs` loads the
//! system's: the library exports every symbol of `symbols.txt` in its versions.

mod common;

use common::{Library, built, symbols};

#[test]
fn every_symbol_has_its_versions() {
    let library = Library::open(built().to_str().expect("UTF-8")).expect("our library can be loaded");
    let missing: Vec<_> = symbols().into_iter().filter(|(name, version)| !library.has(name, version)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!library.has("ibv_open_device", "IBVERBS_1.2"));
}
