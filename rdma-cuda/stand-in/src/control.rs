//! The side of the stand-in that tests link: where the library is, and how to control it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::knobs::{FailNext, Live};

/// The path of the stand-in. Cargo builds it beside the programs that depend on this crate.
///
/// # Panics
///
/// If the library is not there.
#[must_use]
pub fn path() -> PathBuf {
    let program = std::env::current_exe().expect("the path of this program");
    let folder = program.parent().expect("a program lies in a folder");
    let name = "librdma_cuda_stand_in.so";
    // Tests lie in `deps`, programs in the folder above, examples in a folder beside `deps`.
    let candidates = [folder.join(name), folder.join("deps").join(name), folder.join("../deps").join(name)];
    candidates
        .iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is not in {}", folder.display()))
        .clone()
}

/// Writes a stand-in that lacks functions, and returns its path, in `folder`.
///
/// # Panics
///
/// If the stand-in has no such function, or the file cannot be written.
#[must_use]
pub fn without(functions: &[&str], folder: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut library = std::fs::read(path()).expect("the stand-in");
    for function in functions {
        let name = format!("\0{function}\0").into_bytes();
        // Most places are told apart by the first bytes, which is fast even without optimisation.
        let is_candidate = |at: &usize| library[*at] == name[0] && library.get(at + 1) == Some(&name[1]);
        let places = (0..library.len()).filter(is_candidate);
        let found: Vec<_> = places.filter(|&at| library[at..].starts_with(&name)).collect();
        assert!(!found.is_empty(), "the stand-in has no function {function}");
        // The dynamic loader compares names: one other letter hides the function.
        found.into_iter().for_each(|at| library[at + function.len()] = b'_');
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("libcuda-{}-{number}.so", std::process::id()));
    std::fs::write(&path, library).expect("a folder for the library");
    path
}

/// Controls the stand-in that is loaded in this process.
#[derive(Debug)]
pub struct Control {
    fail_next: FailNext,
    live: Live,
}

impl Control {
    /// Finds the functions of the stand-in.
    ///
    /// # Panics
    ///
    /// If the stand-in is not built.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: open requires that the library's initialisers may run: a Rust library has none.
        let library = unsafe { Library::open(Some(path()), RTLD_NOW | RTLD_LOCAL) }.expect("the stand-in");
        // SAFETY: get requires the function's type, which is `FailNext` (knobs.rs).
        let fail_next = *unsafe { library.get::<FailNext>(b"stand_in_fail_next") }.expect("a function of the stand-in");
        // SAFETY: get requires the function's type, which is `Live`.
        let live = *unsafe { library.get::<Live>(b"stand_in_live") }.expect("a function of the stand-in");
        // The function pointers must stay valid, so the library stays loaded.
        Box::leak(Box::new(library));
        Self { fail_next, live }
    }

    /// Makes the next call of a function by the calling thread fail with a code.
    pub fn fail_next(&self, function: &str, code: i32) {
        // SAFETY: stand_in_fail_next requires a name of the given length.
        unsafe { (self.fail_next)(function.as_ptr(), function.len(), code) };
    }

    /// The number of objects that the process has: allocations, ranges of addresses, pinned memory,
    /// modules, streams and events.
    #[must_use]
    pub fn live(&self) -> usize {
        (self.live)()
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}
