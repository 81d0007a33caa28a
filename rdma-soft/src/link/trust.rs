//! The rule that decides which process may connect: one that the kernel lets trace this process.
//! Such a process could read and write this process's memory anyway.
//!
//! Each side puts a random token into its memory and sends the token's address. The other side
//! reads the token, which the kernel allows under the rules of `ptrace`, and sends the token back.
//! So each side learns from the kernel alone that the other side may read its memory.
//!
//! Both processes also belong to one user (`link/handshake.rs`): tracing alone would admit a
//! process of another user by a capability that it holds for a different purpose.

use crate::os::{self, process};

/// Bytes of a token.
pub(crate) const TOKEN: usize = 32;

/// The random bytes that a peer has to read from this process's memory.
#[derive(Debug)]
pub(crate) struct Token(Box<[u8; TOKEN]>);

impl Token {
    /// Makes a fresh token. Unless `RDMA_SOFT_PTRACER=off`, also lets peers trace this process
    /// where Yama restricts tracing. This permission widens what debuggers may do, so it is given
    /// only when a link is about to be made.
    pub(crate) fn new() -> os::Result<Self> {
        if std::env::var_os("RDMA_SOFT_PTRACER").is_none_or(|value| value != "off") {
            process::allow_tracing();
        }
        Ok(Self(Box::new(os::random()?)))
    }

    /// Address of the token in this process.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Whether `proof` is the token, which the peer can only know by reading this process's memory.
    pub(crate) fn is(&self, proof: &[u8; TOKEN]) -> bool {
        *self.0 == *proof
    }
}

/// Reads a token at an address of a peer's memory.
pub(crate) fn read_token(pid: i32, address: u64) -> os::Result<[u8; TOKEN]> {
    process::read_memory(pid, address)
}
