//! The RDMA devices of this machine, before they are opened.
//!
//! [`Device::list`] returns the hardware that the system's libibverbs lists, then the software
//! device `soft0`, for which [`Device::is_software`] is true. The environment variable
//! `RDMA_SOFT=off` excludes the software device.
//!
//! # Safety
//!
//! 1. A [`DeviceList`] owns the array that `ibv_get_device_list` of its table returned. Every
//!    [`Device`] of it holds an `Arc` of its [`Handle`], so the array is freed after them. Until
//!    then all devices in the array are valid and constant.
//! 2. Functions of a table are only called with objects that the same table made.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rdma_sys::{Ibverbs, RdmaCm, ibv_device};

use crate::error::{Error, ErrorKind, Result, Verb};
use crate::fork;
use crate::handle::{Handle, Object, Raw};
use crate::platform::HAS_DEVICES;
use crate::types::{Guid, NodeType, TransportType};

/// An array that `ibv_get_device_list` returned (1).
struct DeviceList {
    table: &'static Ibverbs,
    /// The connection manager that was given with the table.
    manager: Option<&'static RdmaCm>,
    array: Raw<*mut ibv_device>,
    software: bool,
    fork: u32,
}

impl Object for DeviceList {
    const DESTROY: Verb = Verb::ListDevices;
    const NAME: &'static str = "a list of devices";

    fn made_in(&self) -> u32 {
        self.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_free_device_list requires an array of this table that is not freed yet: this
        // function's contract.
        unsafe { (self.table.ibv_free_device_list)(self.array.as_ptr()) };
        Ok(())
    }
}

/// An RDMA device that can be opened.
///
/// Cheap to clone. Keeps the library's record of the device alive, but does not open the device.
///
/// # Examples
///
/// ```
/// for device in rdma::Device::list()? {
///     let kind = if device.is_software() { "software" } else { "hardware" };
///     println!("{} {} ({kind})", device.name(), device.guid());
/// }
/// # Ok::<(), rdma::Error>(())
/// ```
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    list: Arc<Handle<DeviceList>>,
    raw: Raw<ibv_device>,
}

impl Device {
    /// All devices: hardware first, then the software device. None on a system other than Linux.
    ///
    /// Missing hardware is not an error: [`HardwareAbsence`](crate::HardwareAbsence) says why there
    /// is none.
    ///
    /// # Errors
    ///
    /// The software device could not be set up, or an environment variable has an invalid value: a
    /// library that cannot be loaded, or an invalid setting of the software device.
    ///
    /// # Examples
    ///
    /// ```
    /// for device in rdma::Device::list()? {
    ///     println!("{}", device.name());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_get_device_list")]
    pub fn list() -> Result<Vec<Self>> {
        let mut devices = Self::hardware()?;
        let mut software = Self::software()?;
        // The system's library may be the software device too: under `soft-rdma`.
        let names = |device: &Self| (device.guid(), device.name());
        software.retain(|own| !devices.iter().any(|other| names(other) == names(own)));
        devices.append(&mut software);
        Ok(devices)
    }

    /// The devices of the system's libibverbs; empty if libibverbs cannot be loaded.
    ///
    /// Fails if `RDMA_IBVERBS_PATH` is set and no library can be loaded from it: the user asked for
    /// that library.
    pub(crate) fn hardware() -> Result<Vec<Self>> {
        let listed = match Ibverbs::system() {
            Ok(table) => Self::list_of(table, None, false),
            Err(error) if HAS_DEVICES && rdma_sys::trusted_variable(error.variable().name).is_some() => {
                tracing::warn!(name: "library_not_loaded", target: "rdma", %error, "no hardware devices");
                return Err(Error::new(Verb::LoadLibrary, ErrorKind::InvalidVariable(error.variable())));
            }
            Err(_) => Err(Error::new(Verb::LoadLibrary, ErrorKind::NotSupported)),
        };
        Ok(listed.unwrap_or_else(|error| {
            tracing::debug!(name: "no_hardware", target: "rdma", %error, "no hardware devices");
            Vec::new()
        }))
    }

    /// Whether this build has the software device and `RDMA_SOFT=off` excludes it.
    pub(crate) fn software_is_off() -> bool {
        cfg!(feature = "soft") && std::env::var("RDMA_SOFT").is_ok_and(|value| value.eq_ignore_ascii_case("off"))
    }

    /// Fails if a variable of the software device has an invalid value, whichever device is opened
    /// in the end.
    pub(crate) fn check_environment() -> Result<()> {
        #[cfg(feature = "soft")]
        if !Self::software_is_off() {
            rdma_soft::check_environment()
                .map_err(|variable| Error::new(Verb::ListDevices, ErrorKind::InvalidVariable(variable)))?;
        }
        Ok(())
    }

    /// The software device, if `RDMA_SOFT` does not exclude it.
    #[cfg(feature = "soft")]
    pub(crate) fn software() -> Result<Vec<Self>> {
        Self::check_environment()?;
        if Self::software_is_off() { Ok(Vec::new()) } else { Self::list_of(rdma_soft::ibverbs(), None, true) }
    }

    /// Returns no device: this build has no software device.
    #[cfg(not(feature = "soft"))]
    #[allow(clippy::unnecessary_wraps, reason = "as with the software device")]
    pub(crate) fn software() -> Result<Vec<Self>> {
        Ok(Vec::new())
    }

    /// The devices of a libibverbs and a librdmacm that the program brings: a library that it has
    /// loaded itself, or a provider in memory for tests. They count as hardware.
    ///
    /// A program without a librdmacm gives [`RdmaCm::UNSUPPORTED`].
    ///
    /// # Safety
    ///
    /// * Each function of the tables keeps the contract of the C function of its name, on every
    ///   thread, for as long as the process lives. An entry that fails as unsupported keeps it.
    /// * The functions in the objects that the tables make, such as those of `ibv_context`, do so,
    ///   too.
    /// * `manager` takes the objects that `verbs` makes.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_device_list`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma::sys::{Ibverbs, RdmaCm};
    ///
    /// // Tables without functions: every call fails.
    /// // SAFETY: a function that fails as unsupported keeps the contract of every function.
    /// let listed = unsafe { rdma::Device::list_of_tables(&Ibverbs::UNSUPPORTED, &RdmaCm::UNSUPPORTED) };
    /// assert!(listed.is_err());
    /// ```
    pub unsafe fn list_of_tables(verbs: &'static Ibverbs, manager: &'static RdmaCm) -> Result<Vec<Self>> {
        Self::list_of(verbs, Some(manager), false)
    }

    /// The devices that the library of this one lists now.
    pub(crate) fn list_again(&self) -> Result<Vec<Self>> {
        Self::list_of(self.list.table, self.list.manager, self.list.software)
    }

    /// The devices of one function table: a library's, or the software device's.
    fn list_of(table: &'static Ibverbs, manager: Option<&'static RdmaCm>, software: bool) -> Result<Vec<Self>> {
        fork::watch();
        let mut count = 0;
        // SAFETY: ibv_get_device_list requires space for the count, or NULL.
        let call = || unsafe { (table.ibv_get_device_list)(&raw mut count) };
        let array = Raw::created(Verb::ListDevices, call)?;
        let list = Arc::new(Handle::new(DeviceList { table, manager, array, software, fork: fork::generation() }));
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: from_raw_parts requires `count` readable pointers that stay unchanged: the
        // library returned an array of `count` devices and a NULL, which the list keeps (1).
        let raw = unsafe { std::slice::from_raw_parts(list.array.as_ptr(), count) };
        let devices = raw.iter().filter(|raw| !raw.is_null());
        Ok(devices.map(|&raw| Self { list: Arc::clone(&list), raw: Raw::new(raw) }).collect())
    }

    /// The device's name from the kernel, or `soft0`: for example `mlx5_0` or `rxe0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> String {
        // SAFETY: ibv_get_device_name requires a device of the same table (1, 2).
        let name = unsafe { (self.list.table.ibv_get_device_name)(self.raw.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: from_ptr requires a NUL-terminated string that stays unchanged: the name is part
        // of the device, which `self` keeps alive (1).
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The device's globally unique identifier.
    #[must_use]
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        // SAFETY: ibv_get_device_guid requires a device of the same table (1, 2).
        Guid::from_be(unsafe { (self.list.table.ibv_get_device_guid)(self.raw.as_ptr()) })
    }

    /// The kind of node.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the read requires a valid device that nobody writes to (1).
        NodeType::from_raw(unsafe { (*self.raw.as_ptr()).node_type }.0)
    }

    /// The device's transport protocol.
    #[must_use]
    pub fn transport(&self) -> TransportType {
        // SAFETY: the read requires a valid device that nobody writes to (1).
        TransportType::from_raw(unsafe { (*self.raw.as_ptr()).transport_type }.0)
    }

    /// The device's folder in sysfs, if the provider names one.
    pub(crate) fn sysfs(&self) -> Option<PathBuf> {
        // SAFETY: the reference requires a live device, whose path nobody writes to (1).
        let path = unsafe { &(*self.raw.as_ptr()).ibdev_path }.map(|byte| byte.to_ne_bytes()[0]);
        let path = CStr::from_bytes_until_nul(&path).ok().filter(|path| !path.is_empty())?;
        Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
    }

    /// The NUMA node that the device is near to, if it has one and the system knows it: memory
    /// [there](crate::RegisterOptions::numa_node) is the nearest. Software devices have none.
    ///
    /// # Examples
    ///
    /// ```
    /// for device in rdma::Device::list()? {
    ///     println!("{}: node {:?}", device.name(), device.numa_node());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let node = std::fs::read_to_string(self.sysfs()?.join("device/numa_node")).ok()?;
        // -1 is no node.
        node.trim().parse().ok()
    }

    /// Whether the device is this crate's software device.
    ///
    /// The kernel's software devices (rxe, siw) count as hardware.
    ///
    /// # Examples
    ///
    /// ```
    /// let devices = rdma::Device::list()?;
    /// let hardware = devices.iter().filter(|device| !device.is_software()).count();
    /// println!("{hardware} hardware devices");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.list.software
    }

    /// The address at which this device, which is open, listens for other hosts, if it is the
    /// software device that does.
    #[cfg(feature = "soft")]
    pub(crate) fn address_for_hosts(&self) -> Option<std::net::SocketAddr> {
        let status = rdma_soft::tcp::status().filter(|_| self.is_software())?;
        (status.device == self.name()).then_some(status.address)
    }

    /// Returns no address: this build has no software device.
    #[cfg(not(feature = "soft"))]
    #[allow(clippy::unused_self, reason = "as with the software device")]
    pub(crate) fn address_for_hosts(&self) -> Option<std::net::SocketAddr> {
        None
    }

    /// The connection manager that was given with the device's table, if one was.
    pub(crate) fn manager(&self) -> Option<&'static RdmaCm> {
        self.list.manager
    }

    getters! { |this|
        /// The C object, valid while this value or a clone of it lives.
        as_raw: *mut ibv_device = this.raw.as_ptr();
        /// The function table that the device belongs to.
        table: &'static Ibverbs = this.list.table;
    }
}

debug_by_methods!(Device: name, is_software);
