//! `libibverbs.so.1` and `librdmacm.so.1` on the software device: one library with the symbols of
//! both, in the versions that rdma-core 44 to 65 exports.
//!
//! A program in any language that the dynamic loader gives this library instead of the system's
//! runs on `soft0`, without a NIC, a kernel module or root. Programs load it by the name
//! [`IBVERBS`]; the name [`RDMACM`] is a link to the same file, which glibc loads once. The
//! launcher `soft-rdma` arranges this.
//!
//! `symbols.txt` lists every symbol and the function behind it; the build script makes a trampoline
//! for each. An unsupported function fails with `EOPNOTSUPP` in its own error convention: no
//! program stops for an unresolved symbol.
//!
//! The functions are for the dynamic loader. Rust programs call [`rdma_soft`] or the `rdma` crate.

/// The name of the file that cargo builds.
pub const FILE: &str = "librdma_soft_dropin.so";
/// The name under which programs load libibverbs.
pub const IBVERBS: &str = "libibverbs.so.1";
/// The name under which programs load librdmacm.
pub const RDMACM: &str = "librdmacm.so.1";
/// The list of the symbols.
pub const SYMBOLS: &str = include_str!("../symbols.txt");

mod cancel;
mod own;
mod rsocket;
mod unsupported;
#[macro_use]
mod trampoline;

static VERBS: rdma_sys::Ibverbs = *rdma_soft::ibverbs();
static CM: rdma_sys::RdmaCm = *rdma_soft::rdmacm();

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
