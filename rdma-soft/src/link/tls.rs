//! Encryption of a link to another host: TLS 1.3 between the socket and the frames.
//!
//! ```text
//! hello (in the clear, with proofs) | handshake of TLS | records of TLS, which hold the frames
//! ```
//!
//! [`hello`](super::hello) proves that both sides hold the key and want TLS, and derives a seed
//! from the key and all of its messages. The seed gives a key pair (ECDSA, P-256), which both sides
//! hold and nobody else: each side signs the handshake of TLS with it, and accepts no other raw
//! public key (RFC 7250). So TLS is bound to this hello, with its nonces, addresses and slots, and
//! a connection that is spliced with another one or played again fails. The ephemeral keys (X25519)
//! keep recorded frames secret even from somebody who learns the key later.
//!
//! rustls runs the handshake (`session`), and derives the keys. The records are made and opened
//! here ([`Records`]), in buffers that stay, because rustls allocates memory for each record. The
//! cryptography is graviola's, which builds without C and needs a processor with AES instructions.
//!
//! Without the feature `tls` there is no value of [`Records`].

#[cfg(feature = "tls")]
mod records;
#[cfg(feature = "tls")]
mod session;

use std::ffi::OsStr;

use nix::errno::Errno;
use rdma_sys::Variable;

use crate::os;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Records, accept, open};
#[cfg(feature = "tls")]
pub(crate) use {
    records::Records,
    session::{accept, open},
};

/// The variable that turns encryption on or off.
pub(crate) const VARIABLE: Variable = Variable { name: "RDMA_SOFT_TLS", values: VALUES };
#[cfg(feature = "tls")]
const VALUES: &str = "on or off";
#[cfg(not(feature = "tls"))]
const VALUES: &str = "off (this build lacks the feature tls)";

/// Bytes of the seed of a key pair.
pub(crate) const SEED: usize = 32;

/// The reason why two sides that hold the key have no encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("no encryption can be agreed on: somebody on the way has changed what was sent")]
    Refused,
    #[error(transparent)]
    System(#[from] os::Error),
}

/// The reason why the protection that the environment asks for cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtectionError {
    #[error("{} must be {VALUES}", VARIABLE.name)]
    Value,
    #[error(
        "this processor lacks instructions that the encryption between hosts needs ({INSTRUCTIONS}): set {}=off on all hosts, \
         if you trust the network", VARIABLE.name
    )]
    Processor,
}

impl ProtectionError {
    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Value => Errno::EINVAL,
            Self::Processor => Errno::EOPNOTSUPP,
        }
    }
}

/// The instructions, as the error names them.
const INSTRUCTIONS: &str =
    if cfg!(target_arch = "x86_64") { "AES, PCLMULQDQ, AVX2, ADX, BMI" } else { "AES, PMULL, SHA2" };

/// What happens to the frames between two hosts. Both sides must want the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    /// They are sent as they are.
    None,
    /// They are encrypted and authenticated.
    Tls,
}

impl Protection {
    /// The one that the environment chooses: encryption, unless it is off or this build lacks it.
    ///
    /// # Errors
    ///
    /// The variable has another value, or the processor cannot encrypt.
    pub(crate) fn from_environment() -> Result<Self, ProtectionError> {
        Self::choose(rdma_sys::trusted_variable(VARIABLE.name).as_deref(), has_instructions())
    }

    /// The one that a value of the variable chooses.
    fn choose(value: Option<&OsStr>, has_instructions: bool) -> Result<Self, ProtectionError> {
        let chosen = match value {
            None if cfg!(feature = "tls") => Some(Self::Tls),
            None => Some(Self::None),
            Some(value) => value.to_str().and_then(Self::parse),
        };
        match chosen {
            None => Err(ProtectionError::Value),
            Some(Self::Tls) if !has_instructions => Err(ProtectionError::Processor),
            Some(chosen) => Ok(chosen),
        }
    }

    /// Reads a value of the variable.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let is = |word: &str| value.eq_ignore_ascii_case(word);
        match () {
            () if is("off") => Some(Self::None),
            () if is("on") && cfg!(feature = "tls") => Some(Self::Tls),
            () => None,
        }
    }
}

/// Whether this processor has all instructions that graviola uses; it panics without most of them.
pub(crate) fn has_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_all = is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_all = std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
        && std::arch::is_aarch64_feature_detected!("sha2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_all = false;
    has_all
}

/// What takes the place of the encryption where it is not compiled.
#[cfg(not(feature = "tls"))]
mod absent {
    use std::time::Instant;

    use super::{SEED, TlsError};
    use crate::engine::{Gather, Target};
    use crate::os::{self, tcp::Tcp};

    /// The encryption of a connection, of which there is none.
    #[derive(Debug)]
    pub(crate) enum Records {}

    impl Records {
        pub(crate) fn read(&mut self, _socket: &Tcp, _space: &mut [u8]) -> os::Result<usize> {
            match *self {}
        }

        pub(crate) fn read_to(&mut self, _socket: &Tcp, _target: Target<'_>, _behind: &mut [u8]) -> os::Result<usize> {
            match *self {}
        }

        pub(crate) fn write(&mut self, _socket: &Tcp, _bytes: [&[u8]; 2]) -> os::Result<usize> {
            match *self {}
        }

        pub(crate) fn has_room(&self, _len: usize) -> bool {
            match *self {}
        }

        pub(crate) fn push(&mut self, _head: &[u8], _payload: &Gather<'_>) -> os::Result<()> {
            match *self {}
        }

        pub(crate) fn read_one_by_one(&mut self) {
            match *self {}
        }

        pub(crate) fn has_bytes(&self) -> bool {
            match *self {}
        }

        pub(crate) fn has_unsent(&self) -> bool {
            match *self {}
        }

        pub(crate) fn clear(&mut self) {
            match *self {}
        }
    }

    pub(crate) fn open(_socket: &Tcp, _seed: [u8; SEED], _deadline: Instant) -> Result<Records, TlsError> {
        Err(TlsError::Refused)
    }

    pub(crate) fn accept(_socket: &Tcp, _seed: [u8; SEED], _deadline: Instant) -> Result<Records, TlsError> {
        Err(TlsError::Refused)
    }
}

#[cfg(test)]
mod choice {
    use super::*;

    #[test]
    fn a_processor_that_cannot_encrypt_is_an_error_unless_the_encryption_is_off() {
        let choose = |value: Option<&str>, can| Protection::choose(value.map(OsStr::new), can);
        let encrypts = cfg!(feature = "tls");
        assert_eq!(choose(None, true), Ok(if encrypts { Protection::Tls } else { Protection::None }));
        for can in [true, false] {
            assert_eq!(choose(Some("off"), can), Ok(Protection::None));
            assert_eq!(choose(Some("yes"), can), Err(ProtectionError::Value));
        }
        if encrypts {
            for value in [None, Some("on")] {
                let error = choose(value, false).unwrap_err();
                assert_eq!(error.errno(), Errno::EOPNOTSUPP);
                assert!(error.to_string().contains("RDMA_SOFT_TLS=off"), "{error}");
            }
        } else {
            assert_eq!(choose(None, false), Ok(Protection::None));
            assert_eq!(choose(Some("on"), false).unwrap_err().errno(), Errno::EINVAL);
        }
    }
}

#[cfg(all(test, not(loom), feature = "tls"))]
mod tests;
