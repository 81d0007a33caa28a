//! Links to other hosts over TCP, chosen by values of the program instead of the environment.
//!
//! `soft0` reaches processes on other hosts, in other containers and of other users, which hold the
//! same key. The variables `RDMA_SOFT_TCP` and `RDMA_SOFT_KEY` choose the address and the key of a
//! program that is not changed. [`listen`] takes them as values, since a program with threads
//! cannot safely set variables:
//!
//! ```
//! use rdma_soft::tcp::{self, Address, Key};
//!
//! // The processes of a job share a key: a file on each host, or bytes that they hand out.
//! let key = Key::random()?;
//! let bytes = key.to_bytes();
//! assert!(Key::from_bytes(&bytes).is_ok());
//! // Before the first open of a device: `eth0`, `auto`, or an address of this host.
//! # let port = std::net::TcpListener::bind("127.88.5.1:0")?.local_addr()?.port();
//! # let chosen = |text: &str| text.parse::<Address>().map(|address| address.with_port(port));
//! let address = tcp::listen(chosen("127.88.5.1")?, key)?;
//! assert_eq!(tcp::status().map(|status| status.address), Some(address));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Values of the program win over the variables, which are then not read. A program that wants the
//! variables to win asks for them first: [`Address::from_environment`], [`Key::from_environment`].

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::errno::Errno;

pub use crate::link::address::{Address, Error};
use crate::link::key::{self, KeyError};
use crate::link::share;
use crate::link::tls::{self, Protection};
use crate::node::Node;
pub use crate::node::chosen::KeySource;
use crate::node::chosen::{self, Chosen};
use crate::os;
use crate::verbs::{device_names, gid};

/// The key of a job: at least 32 random bytes that its processes hold and nobody else knows.
///
/// Whoever holds the key can connect to each process of the job.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp::Key;
///
/// assert!(Key::from_bytes(b"too short").is_err());
/// let key = Key::random()?;
/// assert_eq!(key.to_bytes().len(), 32);
/// assert_eq!(Key::from_bytes(&key.to_bytes())?.fingerprint(), key.fingerprint());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Key {
    bytes: Vec<u8>,
    source: KeySource,
}

impl Key {
    /// Reads a file in the form of `RDMA_SOFT_KEY`: at least 32 random bytes, not counting white
    /// space at the end, that nobody but the file's owner may read. The owner is this process's
    /// user or root. A file of root may be readable by one of the process's groups, too (mode 440
    /// or 640). A process of root takes the file of another user, who then can connect to it,
    /// unless others may write into a directory of the path.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the file breaks one of these rules, or cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = key::secret(Some(path.as_os_str()), None).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            Error::new(Errno::EINVAL, text)
        })?;
        Ok(Self { bytes, source: KeySource::File(path.to_owned()) })
    }

    /// The key that `RDMA_SOFT_KEY` or `RDMA_SOFT_KEY_FD` names; `None` if neither is set. A
    /// set-user-ID program has none.
    ///
    /// # Errors
    ///
    /// `EINVAL`, as for [`read`](Self::read), or because both variables are set.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        let found = chosen::key_from_environment()?;
        Ok(found.map(|(bytes, source)| Self { bytes, source }))
    }

    /// A key of these bytes, all of which count.
    ///
    /// # Errors
    ///
    /// `EINVAL`: fewer than 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        key::check_len(bytes).map_err(invalid)?;
        Ok(Self { bytes: bytes.to_vec(), source: KeySource::Value })
    }

    /// A new key of 32 bytes that nobody can guess.
    ///
    /// # Errors
    ///
    /// The system has no random bytes.
    pub fn random() -> Result<Self, Error> {
        let bytes: [u8; 32] = os::random().map_err(|error| Error::new(error.errno, error))?;
        Ok(Self { bytes: bytes.to_vec(), source: KeySource::Value })
    }

    /// The bytes, for other processes of the job: to be sent only where nobody else can read them.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Eight hexadecimal digits by which users see whether two hosts have the same key. They say
    /// nothing about the bytes of a random key.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.derived().map_or_else(|_| String::new(), |key| key::fingerprint(&key))
    }

    fn derived(&self) -> Result<key::Key, Error> {
        key::Key::of_bytes(&self.bytes).map_err(invalid)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn invalid(error: KeyError) -> Error {
    Error::new(Errno::EINVAL, error)
}

impl Address {
    /// The address that `RDMA_SOFT_TCP` names; `None` if the variable is unset or empty. A
    /// set-user-ID program has none.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the value is invalid.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        chosen::address_from_environment()
    }
}

/// Starts the software device, which listens at `address` for processes that hold `key`, and
/// reaches those at other addresses. The variables `RDMA_SOFT_TCP`, `RDMA_SOFT_KEY` and
/// `RDMA_SOFT_KEY_FD` are not read; `RDMA_SOFT_TLS` is.
///
/// The call comes before the first open of a device. Children that are forked later listen there,
/// too, once they open a device. Processes of one user share an address. A second call with the
/// same values changes nothing.
///
/// Returns the address and the port.
///
/// # Errors
///
/// `EBUSY`: a device has been opened without these values, or an earlier call had others.
/// `EADDRINUSE`: another user or another program listens at the address. `EADDRNOTAVAIL`: this host
/// does not have the address. `EINVAL`: `RDMA_SOFT_LINK_LAYER` is `infiniband`, or the address is
/// that of `soft1` or another software device. `EOPNOTSUPP`: this processor lacks instructions that
/// the encryption needs ([`can_encrypt`]). Those of [`Address::resolve`], too. After an
/// error other than `EBUSY`, the device is as before the call.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp::{self, Address, Key};
///
/// let root = "127.0.0.1:7000".parse()?;
/// let address = Address::towards(root);
/// # let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
/// # let address = address.with_port(port);
/// let key = Key::random()?;
/// tcp::listen(address.clone(), key.clone())?;
/// tcp::listen(address.clone(), key)?;
/// // Another key comes too late.
/// assert_eq!(tcp::listen(address, Key::random()?).unwrap_err().raw_os_error(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn listen(address: Address, key: Key) -> Result<SocketAddr, Error> {
    let address = address.resolve()?;
    let derived = key.derived()?;
    start(Chosen { address, key: derived, source: key.source })
}

/// Starts the software device as the first open of a device does, with the values of the
/// environment, and says how it reaches other hosts: in words why it does not, where the open has
/// an error number alone. `None`: the environment names no address, or a device was opened before
/// without one.
///
/// # Errors
///
/// Those of [`listen`]; and `EINVAL`: `RDMA_SOFT_TCP` is invalid, or there is no valid key. After
/// an error, the device is as before the call.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp;
///
/// match tcp::listen_from_environment() {
///     Ok(Some(status)) => println!("{status}"),
///     Ok(None) => println!("RDMA_SOFT_TCP is not set"),
///     Err(error) => println!("{error}"),
/// }
/// # assert_eq!(tcp::listen_from_environment(), Ok(None));
/// ```
pub fn listen_from_environment() -> Result<Option<Status>, Error> {
    if Node::started().is_none() {
        if let Some(chosen) = chosen::get()? {
            start(chosen)?;
        }
    }
    Ok(status())
}

/// Starts the device with these values, or checks that it was started with them.
fn start(wanted: Chosen) -> Result<SocketAddr, Error> {
    let Chosen { address, key, .. } = wanted.clone();
    gid::can_listen(address.ip()).map_err(|why| Error::new(Errno::EINVAL, format_args!("{address}: {why}")))?;
    Protection::from_environment().map_err(|error| Error::new(error.errno(), error))?;
    let chosen = chosen::choose(wanted);
    if !chosen.is_same(address, &key) {
        let text = format!("this process listens at {} already, or with another key there", chosen.address);
        return Err(Error::new(Errno::EBUSY, text));
    }
    let node = Node::get().map_err(|errno| {
        chosen::forget(chosen);
        cannot_listen(address, Errno::from_raw(errno.0))
    })?;
    if node.remote.as_ref().is_some_and(|remote| remote.is_of(address, &key)) {
        return Ok(address);
    }
    chosen::forget(chosen);
    let text = format!("a device was opened before the process was to listen at {address}: call listen first");
    Err(Error::new(Errno::EBUSY, text))
}

/// Whether this build and this processor can encrypt what goes to other hosts: the feature `tls`,
/// and on x86_64 AES, PCLMULQDQ, AVX2, ADX and BMI, on aarch64 AES, PMULL and SHA2. Otherwise a
/// process with the feature listens with `RDMA_SOFT_TLS=off` alone.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp::{self, Key};
///
/// # let port = std::net::TcpListener::bind("127.88.5.3:0")?.local_addr()?;
/// # let address: tcp::Address = port.into();
/// if tcp::can_encrypt() {
///     tcp::listen(address, Key::random()?)?;
///     assert!(tcp::status().is_some_and(|status| status.is_encrypted));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn can_encrypt() -> bool {
    cfg!(feature = "tls") && tls::has_instructions()
}

/// How this process reaches other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The device that reaches other hosts: `soft0`, unless the devices have other names.
    pub device: String,
    /// The address and the port at which this process listens, and from whose address it connects.
    pub address: SocketAddr,
    /// Where the key comes from.
    pub key: KeySource,
    /// The key's [`fingerprint`](Key::fingerprint).
    pub fingerprint: String,
    /// Whether what is sent to other hosts is encrypted and authenticated (`RDMA_SOFT_TLS`). Hosts
    /// that differ in it do not reach each other.
    pub is_encrypted: bool,
    /// The addresses of the other hosts that queue pairs, address handles or links of this process
    /// use now.
    pub hosts: Vec<IpAddr>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, address, key, fingerprint, is_encrypted, hosts } = self;
        write!(f, "{device} listens at {address} for other hosts, with the key of {key} (fingerprint {fingerprint})")?;
        f.write_str(if *is_encrypted { ", encrypted" } else { ", not encrypted" })?;
        if hosts.is_empty() {
            return Ok(());
        }
        let hosts: Vec<_> = hosts.iter().map(IpAddr::to_string).collect();
        write!(f, ", and reaches {}", hosts.join(", "))
    }
}

/// How this process reaches other hosts; `None` if it does not, or has not opened a device yet.
///
/// # Examples
///
/// ```
/// use rdma_soft::tcp::{self, Key};
///
/// let key = Key::random()?;
/// let fingerprint = key.fingerprint();
/// assert!(tcp::status().is_none());
/// # let free = std::net::TcpListener::bind("127.88.5.2:0")?.local_addr()?;
/// # let address: tcp::Address = free.into();
/// let address = tcp::listen(address, key)?;
/// let status = tcp::status().ok_or("no status")?;
/// assert_eq!((status.address, status.fingerprint), (address, fingerprint));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn status() -> Option<Status> {
    let remote = Node::started()?.remote.as_ref()?;
    Some(Status {
        device: device_names().into_iter().next().unwrap_or_default(),
        address: remote.address,
        key: remote.source.clone(),
        fingerprint: remote.fingerprint(),
        is_encrypted: remote.protection == Protection::Tls,
        hosts: remote.hosts.in_use(),
    })
}

/// Why the device could not start.
fn cannot_listen(address: SocketAddr, errno: Errno) -> Error {
    let call = os::failed_call(errno as i32).unwrap_or("the start of the device");
    let advice = match errno {
        Errno::EADDRINUSE => format!(": {}", share::in_use(address)),
        Errno::EADDRNOTAVAIL => ": this host does not have the address".to_owned(),
        _ => String::new(),
    };
    let why = std::io::Error::from(errno);
    Error::new(errno, format_args!("this process cannot listen at {address}: {call}: {why}{advice}"))
}
