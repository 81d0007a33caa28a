//! Who may connect: a process that the kernel lets trace this one. It could read and write this
//! process's memory anyway.
//!
//! Each side puts a random token into its memory and tells the address. The other reads the token,
//! which the kernel allows under the rules of `ptrace`, and sends it back. So each side knows that
//! the other could read it, on the kernel's word alone.

use crate::os::{self, process};

/// Bytes of a token.
pub(crate) const TOKEN: usize = 32;

/// The random bytes that a peer has to read from this process's memory.
#[derive(Debug)]
pub(crate) struct Token(Box<[u8; TOKEN]>);

impl Token {
    /// A fresh token, which the peer may read. To be read it may need more than is allowed by
    /// default, which widens what debuggers may do: so it is asked for when a link is about to be
    /// made, and not if `RDMA_SOFT_PTRACER=off`.
    pub(crate) fn new() -> os::Result<Self> {
        if std::env::var_os("RDMA_SOFT_PTRACER").is_none_or(|value| value != "off") {
            process::allow_tracing();
        }
        Ok(Self(Box::new(os::random()?)))
    }

    /// Where the token is.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Whether the peer has read the token.
    pub(crate) fn is(&self, proof: &[u8; TOKEN]) -> bool {
        *self.0 == *proof
    }
}

/// Reads a peer's token.
pub(crate) fn read_token(pid: i32, address: u64) -> os::Result<[u8; TOKEN]> {
    process::read_memory(pid, address)
}
