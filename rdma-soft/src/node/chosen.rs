//! The address and the key by which this process reaches other hosts: values of the program
//! ([`choose`]), else those of the environment. A forked child has its parent's values.
//!
//! Invariants:
//!
//! 1. [`CHOSEN`] is null or a pointer of a box that [`choose`] has stored. Such a box is never freed,
//!    also when [`forget`] takes it out, and nobody writes to it.
//! 2. Only the call of [`choose`] that made a box has its pointer until the pointer is stored.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use nix::errno::Errno;
use rdma_sys::Variable;

use crate::link::address::{Address, Error, VALUES};
use crate::link::key::{self, Key};

/// The variable with the address.
pub(crate) const VARIABLE: Variable = Variable { name: "RDMA_SOFT_TCP", values: VALUES };

/// The values of the program; null if it has chosen none. Boxes, which are never freed.
static CHOSEN: AtomicPtr<Chosen> = AtomicPtr::new(ptr::null_mut());

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// Bytes of the program.
    Value,
    /// A file.
    File(PathBuf),
    /// The descriptor with this number.
    Descriptor(String),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value => f.write_str("a value of the program"),
            Self::File(path) => path.display().fmt(f),
            Self::Descriptor(number) => write!(f, "descriptor {number}"),
        }
    }
}

/// An address of this host, and the key of the job.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) address: SocketAddr,
    pub(crate) key: Key,
    pub(crate) source: KeySource,
}

impl Chosen {
    /// Whether both name the same address and hold the same key.
    pub(crate) fn is_same(&self, address: SocketAddr, key: &Key) -> bool {
        self.address == address && self.key.is_same(key)
    }
}

/// Sets the values of the program; returns them, or those that it has set before.
pub(crate) fn choose(chosen: Chosen) -> &'static Chosen {
    let fresh = Box::into_raw(Box::new(chosen));
    let stored = CHOSEN.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
    let current = match stored {
        Ok(_) => fresh,
        Err(current) => {
            // SAFETY: `Box::from_raw` requires the pointer of a box, once: `fresh` is one, which
            // nobody else has (2), since the failed exchange has not stored it.
            drop(unsafe { Box::from_raw(fresh) });
            current
        }
    };
    // SAFETY: the reference requires a live value that nobody writes to, for ever: `current` is or
    // was stored, so its box is neither freed nor written to (1).
    unsafe { &*current }
}

/// Takes back values with which the device could not start.
pub(crate) fn forget(chosen: &'static Chosen) {
    let pointer = ptr::from_ref(chosen).cast_mut();
    // Leaked: a thread may be reading them. Fails if other values have taken their place.
    let _forgotten = CHOSEN.compare_exchange(pointer, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
}

/// The values of the program, if it has set them.
pub(crate) fn values() -> Option<&'static Chosen> {
    // SAFETY: as_ref requires null or a pointer to a live value that nobody writes to, for ever:
    // the box of a stored pointer is neither freed nor written to (1).
    unsafe { CHOSEN.load(Ordering::Acquire).as_ref() }
}

/// The values of the program, else those of the environment; `None` if there are none.
///
/// # Errors
///
/// The address or the key is invalid.
pub(crate) fn get() -> Result<Option<Chosen>, Error> {
    if let Some(chosen) = values() {
        return Ok(Some(chosen.clone()));
    }
    let Some(address) = address_from_environment()? else { return Ok(None) };
    let named = |error: Error| {
        Error::new(Errno::from_raw(error.raw_os_error()), format_args!("{}={address}: {error}", VARIABLE.name))
    };
    let resolved = address.resolve().map_err(named)?;
    let (bytes, source) =
        key_from_environment().map_err(named)?.ok_or_else(|| named(invalid(key::KeyError::Missing)))?;
    let key = Key::of_bytes(&bytes).map_err(|error| named(invalid(error)))?;
    Ok(Some(Chosen { address: resolved, key, source }))
}

fn invalid(error: key::KeyError) -> Error {
    Error::new(Errno::EINVAL, error)
}

/// The address that the environment names. A set-user-ID program takes none: its caller would
/// choose who is let in.
pub(crate) fn address_from_environment() -> Result<Option<Address>, Error> {
    let Some(value) = rdma_sys::trusted_variable(VARIABLE.name) else { return Ok(None) };
    let parsed = value.to_string_lossy().parse();
    parsed.map(Some).map_err(|error: Error| Error::new(Errno::EINVAL, format_args!("{}: {error}", VARIABLE.name)))
}

/// The bytes of the key that the environment names, and where they are.
pub(crate) fn key_from_environment() -> Result<Option<(Vec<u8>, KeySource)>, Error> {
    let [path, descriptor] = ["RDMA_SOFT_KEY", "RDMA_SOFT_KEY_FD"].map(rdma_sys::trusted_variable);
    let source = match (&path, &descriptor) {
        (None, None) => return Ok(None),
        (Some(path), _) => KeySource::File(path.into()),
        (None, Some(number)) => KeySource::Descriptor(number.to_string_lossy().into_owned()),
    };
    let bytes = key::secret(path.as_deref(), descriptor.as_deref()).map_err(invalid)?;
    Ok(Some((bytes, source)))
}

/// Checks the address that the environment names. Values of the program make it meaningless.
///
/// # Errors
///
/// The variable, and what is wrong with it.
pub(crate) fn check_address() -> Result<(), &'static Variable> {
    /// What is wrong, described once, so that it can be leaked.
    static INVALID: OnceLock<Variable> = OnceLock::new();
    if values().is_some() {
        return Ok(());
    }
    let checked = address_from_environment().map_err(|_| &VARIABLE)?.map(|address| address.resolve());
    match checked {
        Some(Err(why)) => {
            Err(INVALID.get_or_init(|| Variable { name: VARIABLE.name, values: format!("{VALUES}; {why}").leak() }))
        }
        _ => Ok(()),
    }
}

/// Checks that the environment names a key if it names an address. A descriptor is not read: it may
/// be a pipe, whose bytes can be read once.
///
/// # Errors
///
/// The variable, and what is wrong with it.
pub(crate) fn check_key() -> Result<(), &'static Variable> {
    /// What is wrong, described once, so that it can be leaked.
    static INVALID: OnceLock<Variable> = OnceLock::new();
    let is_set = |name| rdma_sys::trusted_variable(name).is_some();
    let has_descriptor_alone = is_set("RDMA_SOFT_KEY_FD") && !is_set("RDMA_SOFT_KEY");
    if values().is_some() || !is_set(VARIABLE.name) || has_descriptor_alone {
        return Ok(());
    }
    let why = match key_from_environment() {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => invalid(key::KeyError::Missing),
        Err(why) => why,
    };
    Err(INVALID.get_or_init(|| Variable {
        name: "RDMA_SOFT_KEY",
        values: format!("a file with at least 32 random bytes that only its owner may read; {why}").leak(),
    }))
}
