//! `library!()`: the bytes of the library that `rdma-soft-dropin` builds.
//!
//! Cargo has no way to name a dependency's cdylib, so a program that carries one asks the compiler:
//! the cdylib lies beside the rlib with which the program is linked, under the same name. Cargo
//! builds every crate type of a dependency, also of one from the registry. `cargo check` builds
//! neither.

use std::env;
use std::path::{Path, PathBuf};

use proc_macro::TokenStream;

/// The name of the crate in the compiler's arguments.
const EXTERN: &str = "rdma_soft_dropin=";

/// The bytes of the library, as a `&[u8]`; empty if the program is only checked.
///
/// The program must depend on `rdma-soft-dropin`.
#[proc_macro]
pub fn library(_: TokenStream) -> TokenStream {
    let text = match env::args().find_map(|argument| library_of(&argument)) {
        Some(path) if path.exists() => format!("::core::include_bytes!({path:?}).as_slice()"),
        Some(path) => format!("::core::compile_error!({:?})", format!("{} was not built", path.display())),
        None => "[].as_slice()".into(),
    };
    text.parse().unwrap_or_default()
}

/// The library's place beside the rlib that a value of `--extern` names.
fn library_of(argument: &str) -> Option<PathBuf> {
    let rlib = Path::new(argument.strip_prefix(EXTERN)?);
    let is_linked = rlib.extension().is_some_and(|extension| extension == "rlib");
    // The compiler runs in another folder than the one that a relative path is for.
    is_linked.then(|| std::path::absolute(rlib.with_extension("so")).unwrap_or_default())
}
