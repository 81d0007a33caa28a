//! The crate on systems other than Linux: no device, and the modules that the public interface
//! needs.

/// The connection manager, which has no device to connect.
pub(crate) mod cm {
    use rdma_sys::RdmaCm;

    /// The table of librdmacm's functions: all of them fail with `EOPNOTSUPP`.
    #[must_use]
    pub fn rdmacm() -> &'static RdmaCm {
        static TABLE: RdmaCm = RdmaCm::UNSUPPORTED;
        &TABLE
    }
}

/// Threads that copy memory, which no device needs.
pub(crate) mod copier {
    use std::convert::Infallible;
    use std::io;

    use rdma_mem::Copier;

    /// Threads that copy foreign memory for the software device.
    #[derive(Debug)]
    pub struct CopierThreads(Infallible);

    impl CopierThreads {
        /// Starts no thread.
        ///
        /// # Errors
        ///
        /// Always `EOPNOTSUPP`.
        pub fn start(_copier: impl Copier) -> io::Result<Self> {
            Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
        }

        /// There are no threads.
        pub(crate) fn never(&self) -> ! {
            match self.0 {}
        }
    }
}

/// The node, which cannot start.
pub(crate) mod node {
    use std::convert::Infallible;

    use crate::engine::{Engine, Errno};

    #[derive(Debug)]
    pub(crate) struct Node(Infallible);

    impl Node {
        pub(crate) fn get() -> Result<&'static Self, Errno> {
            Err(Errno(libc::EOPNOTSUPP))
        }

        pub(crate) fn with<T>(&self, _body: impl FnOnce(&mut Engine) -> T) -> T {
            match self.0 {}
        }

        pub(crate) fn with_drained<T>(&self, _body: impl FnOnce(&mut Engine) -> T) -> T {
            match self.0 {}
        }
    }
}

/// System calls, of which none is made.
pub(crate) mod os {
    /// The name of the system call that has failed: none.
    #[must_use]
    pub fn failed_call(_errno: i32) -> Option<&'static str> {
        None
    }
}

/// Links to other hosts, which no device has: every call fails with `EOPNOTSUPP`.
pub mod tcp {
    use std::convert::Infallible;
    use std::fmt;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::str::FromStr;

    /// The reason why there are no links to other hosts: the system is not Linux.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Error(());

    impl Error {
        /// `EOPNOTSUPP`.
        #[must_use]
        pub fn raw_os_error(&self) -> i32 {
            libc::EOPNOTSUPP
        }
    }

    impl fmt::Display for Error {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the software device needs Linux")
        }
    }

    impl std::error::Error for Error {}

    impl From<Error> for std::io::Error {
        fn from(error: Error) -> Self {
            Self::new(std::io::ErrorKind::Unsupported, error)
        }
    }

    /// The address at which the device would listen.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Address(SocketAddr);

    #[allow(clippy::missing_errors_doc, reason = "all of them fail")]
    impl Address {
        /// Any address.
        #[must_use]
        pub fn towards(destination: SocketAddr) -> Self {
            Self(destination)
        }

        /// False.
        #[must_use]
        pub fn is_auto(&self) -> bool {
            false
        }

        /// The same address with another port.
        #[must_use]
        pub fn with_port(mut self, port: u16) -> Self {
            self.0.set_port(port);
            self
        }

        /// The port.
        #[must_use]
        pub fn port(&self) -> u16 {
            self.0.port()
        }

        /// Fails.
        pub fn resolve(&self) -> Result<SocketAddr, Error> {
            Err(Error(()))
        }

        /// No address: no device reads the environment.
        pub fn from_environment() -> Result<Option<Self>, Error> {
            Ok(None)
        }
    }

    impl FromStr for Address {
        type Err = Error;

        fn from_str(_value: &str) -> Result<Self, Error> {
            Err(Error(()))
        }
    }

    impl From<SocketAddr> for Address {
        fn from(address: SocketAddr) -> Self {
            Self(address)
        }
    }

    impl fmt::Display for Address {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    /// The key of a job, of which there is none.
    #[derive(Clone, Debug)]
    pub struct Key(Infallible);

    #[allow(clippy::missing_errors_doc, reason = "all of them fail")]
    impl Key {
        /// Fails.
        pub fn read(_path: &Path) -> Result<Self, Error> {
            Err(Error(()))
        }

        /// No key: no device reads the environment.
        pub fn from_environment() -> Result<Option<Self>, Error> {
            Ok(None)
        }

        /// Fails.
        pub fn from_bytes(_bytes: &[u8]) -> Result<Self, Error> {
            Err(Error(()))
        }

        /// Fails.
        pub fn random() -> Result<Self, Error> {
            Err(Error(()))
        }

        /// There is no key.
        #[must_use]
        pub fn to_bytes(&self) -> Vec<u8> {
            match self.0 {}
        }

        /// There is no key.
        #[must_use]
        pub fn fingerprint(&self) -> String {
            match self.0 {}
        }
    }

    /// Where a key would come from.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum KeySource {
        /// Bytes of the program.
        Value,
        /// A file.
        File(std::path::PathBuf),
        /// The descriptor with this number.
        Descriptor(String),
    }

    impl fmt::Display for KeySource {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("none")
        }
    }

    /// How this process would reach other hosts.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Status {
        /// The device.
        pub device: String,
        /// The address.
        pub address: SocketAddr,
        /// Where the key comes from.
        pub key: KeySource,
        /// The key's fingerprint.
        pub fingerprint: String,
        /// Whether what is sent to other hosts is encrypted.
        pub is_encrypted: bool,
        /// The other hosts.
        pub hosts: Vec<std::net::IpAddr>,
    }

    impl fmt::Display for Status {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.address.fmt(f)
        }
    }

    /// `None`.
    ///
    /// # Errors
    ///
    /// Never.
    pub fn listen_from_environment() -> Result<Option<Status>, Error> {
        Ok(None)
    }

    /// False.
    #[must_use]
    pub fn can_encrypt() -> bool {
        false
    }

    /// `None`.
    #[must_use]
    pub fn status() -> Option<Status> {
        None
    }

    /// Fails.
    ///
    /// # Errors
    ///
    /// Always `EOPNOTSUPP`.
    pub fn listen(_address: Address, key: Key) -> Result<SocketAddr, Error> {
        match key.0 {}
    }
}

/// The verbs of a library that lists no device.
pub(crate) mod verbs {
    use std::ptr::null_mut;
    use std::sync::atomic::AtomicPtr;

    use libc::c_int;
    use rdma_sys::{Ibverbs, Variable, ibv_device, ibv_mr, ibv_pd};

    use super::copier::CopierThreads;

    /// The table of libibverbs' functions: the list of devices is empty, and all else fails with
    /// `EOPNOTSUPP`.
    #[must_use]
    pub fn ibverbs() -> &'static Ibverbs {
        static TABLE: Ibverbs = Ibverbs {
            ibv_get_device_list: get_device_list,
            ibv_free_device_list: free_device_list,
            ..Ibverbs::UNSUPPORTED
        };
        &TABLE
    }

    /// # Safety
    ///
    /// `count` is null, or valid for a write.
    unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
        /// The NULL that ends the list.
        static END: AtomicPtr<ibv_device> = AtomicPtr::new(null_mut());
        if !count.is_null() {
            // SAFETY: `count` is valid for a write, by this function's condition.
            unsafe { count.write(0) };
        }
        END.as_ptr()
    }

    extern "C" fn free_device_list(_list: *mut *mut ibv_device) {}

    /// Checks nothing: no device reads the environment.
    ///
    /// # Errors
    ///
    /// None.
    pub fn check_environment() -> Result<(), &'static Variable> {
        Ok(())
    }

    /// Registers nothing: there is no copier.
    ///
    /// # Safety
    ///
    /// None.
    pub unsafe fn register_foreign(
        _pd: *mut ibv_pd,
        copier: &CopierThreads,
        _address: u64,
        _len: usize,
        _access: u32,
    ) -> *mut ibv_mr {
        copier.never()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::{cm, node, tcp, verbs};
    use crate::engine::Errno;

    #[test]
    fn the_list_of_devices_is_empty_and_all_else_fails() {
        let table = verbs::ibverbs();
        let mut count = 7;
        // SAFETY: ibv_get_device_list requires space for the count: a local.
        let list = unsafe { (table.ibv_get_device_list)(&raw mut count) };
        assert_eq!(count, 0);
        // SAFETY: the read requires an array that ends with NULL: the list is one.
        assert!(unsafe { *list }.is_null());
        // SAFETY: ibv_free_device_list requires a list of the same table, which is not used later.
        unsafe { (table.ibv_free_device_list)(list) };
        // SAFETY: ibv_get_device_list takes NULL for the count, too.
        assert!(!unsafe { (table.ibv_get_device_list)(null_mut()) }.is_null());
        // SAFETY: the entries of UNSUPPORTED use no argument.
        assert!(unsafe { (table.ibv_open_device)(null_mut()) }.is_null());
        // SAFETY: the entries of UNSUPPORTED use no argument.
        assert!(unsafe { (cm::rdmacm().rdma_create_event_channel)() }.is_null());
        assert!(matches!(node::Node::get(), Err(Errno(libc::EOPNOTSUPP))));
        assert_eq!(verbs::check_environment(), Ok(()));
        assert_eq!(tcp::Key::from_bytes(&[1; 32]).unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
        assert!("127.0.0.1".parse::<tcp::Address>().is_err());
    }
}
