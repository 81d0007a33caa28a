//! The symbols of the list, the library that cargo has built, and loaded libraries.

use std::ffi::{CString, c_void};
use std::path::PathBuf;

use rdma_soft_dropin::{FILE, SYMBOLS};

/// The library that cargo has built beside this test.
pub(crate) fn built() -> PathBuf {
    std::env::current_exe().expect("the path of this test").with_file_name(FILE)
}

/// The name and version of each symbol of the list.
pub(crate) fn symbols() -> Vec<(&'static str, String)> {
    let mut version = "";
    let mut symbols = Vec::new();
    for line in SYMBOLS.lines().filter(|line| !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [] => (),
            [word] => version = word,
            [name, ..] if version == "IBVERBS_PRIVATE" => {
                symbols.extend(["34", "57", "59", "64", "65"].map(|number| (name, format!("{version}_{number}"))));
            }
            [name, ..] => symbols.push((name, version.to_owned())),
        }
    }
    symbols
}

/// A loaded library, which is never unloaded.
pub(crate) struct Library(*mut c_void);

impl Library {
    pub(crate) fn open(path: &str) -> Option<Self> {
        let path = CString::new(path).expect("no NUL in the path");
        // SAFETY: dlopen requires a C string, and that the library's initialisers may run: those of
        // libibverbs and librdmacm, the system's and ours, demand nothing of a program.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Self(handle))
    }

    pub(crate) fn has(&self, name: &str, version: &str) -> bool {
        let [name, version] = [name, version].map(|text| CString::new(text).expect("no NUL in a symbol"));
        // SAFETY: dlvsym requires a loaded library and two C strings; nothing uses the result.
        !unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) }.is_null()
    }
}
