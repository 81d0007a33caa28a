//! The address and the key by which this process reaches other hosts: values of the program
//! ([`choose`]), else those of the environment. A forked child has its parent's values.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::errno::Errno;
use rdma_sys::Variable;

use crate::link::address::{Address, Error, VALUES};
use crate::link::key::{self, Key};
use crate::os::fork::PerProcess;
use crate::os::lock::Lock;
use crate::os::published::Published;

/// The variable with the address.
pub(crate) const VARIABLE: Variable = Variable { name: "RDMA_SOFT_TCP", values: VALUES };

/// The values of the program, if it has chosen some.
static CHOSEN: Published<Chosen> = Published::new();
/// The bytes read from the descriptor of `RDMA_SOFT_KEY_FD`, which may be a pipe: a second read, of
/// another thread or of a child, would find it empty.
static READ: Published<(String, Vec<u8>)> = Published::new();
/// Held by the thread that reads the descriptor.
static READING: PerProcess<Lock<()>> = PerProcess::new();

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
    CHOSEN.set(chosen)
}

/// Takes back values with which the device could not start.
pub(crate) fn forget(chosen: &'static Chosen) {
    CHOSEN.forget(chosen);
}

/// The values of the program, if it has set them.
pub(crate) fn values() -> Option<&'static Chosen> {
    CHOSEN.get()
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
    let bytes = match &source {
        KeySource::Descriptor(number) => of_descriptor(number),
        _ => key::secret(path.as_deref(), descriptor.as_deref()),
    };
    Ok(Some((bytes.map_err(invalid)?, source)))
}

/// The key at a descriptor, which is read once.
fn of_descriptor(number: &str) -> Result<Vec<u8>, key::KeyError> {
    let _reading = READING.get_or_default().lock();
    if let Some((_, bytes)) = READ.get().filter(|(before, _)| before == number) {
        return Ok(bytes.clone());
    }
    let bytes = key::secret(None, Some(number.as_ref()))?;
    READ.set((number.to_owned(), bytes.clone()));
    Ok(bytes)
}

/// Checks the address that the environment names. Values of the program make it meaningless.
///
/// # Errors
///
/// The variable, and what is wrong with it.
pub(crate) fn check_address() -> Result<(), &'static Variable> {
    /// The fault, described once, so that the text can be leaked.
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
    /// The fault, described once, so that the text can be leaked.
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
