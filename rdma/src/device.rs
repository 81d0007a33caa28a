//! RDMA devices of this machine: what can be opened.
//!
//! [`Device::list`] gives the hardware that the system's libibverbs knows, then the software device
//! `soft0`, marked by [`Device::is_software`]. The environment variable `RDMA_SOFT=off` leaves the
//! latter out.
//!
//! # Safety
//!
//! 1. A [`DeviceList`] owns the array that `ibv_get_device_list` of its table returned. Every
//!    [`Device`] of it holds an `Arc` of its [`Handle`], so the array is freed after them. All
//!    devices in the array are valid until then, and never change.
//! 2. Functions of a table are only called with objects that the same table made.

use std::ffi::CStr;
use std::sync::Arc;

use rdma_sys::{Ibverbs, ibv_device};

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::fork;
use crate::handle::{Handle, Object, Raw};
use crate::types::{Guid, NodeType, TransportType};

/// What `ibv_get_device_list` returned (1).
struct DeviceList {
    table: &'static Ibverbs,
    array: Raw<*mut ibv_device>,
    software: bool,
    fork: u32,
}

impl Object for DeviceList {
    const DESTROY: Operation = Operation::ListDevices;
    const NAME: &'static str = "a list of devices";

    fn made_in(&self) -> u32 {
        self.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_free_device_list wants an array of this table that is not freed yet: this
        // function's contract.
        unsafe { (self.table.ibv_free_device_list)(self.array.as_ptr()) };
        Ok(())
    }
}

/// An RDMA device that can be opened.
///
/// Cheap to clone; keeps what the library knows about it alive, but does not open it.
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
    /// All devices: hardware first, then the software device.
    ///
    /// No hardware is not an error: [`HardwareAbsence`](crate::HardwareAbsence) says why there is
    /// none.
    ///
    /// # Errors
    ///
    /// The software device could not be set up; an environment variable names no library, or no
    /// setting of the device.
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
        devices.extend(Self::software()?);
        Ok(devices)
    }

    /// The devices of the system's libibverbs; none without a libibverbs.
    ///
    /// Fails if `RDMA_IBVERBS_PATH` is set and leads to no library: the program was told to use
    /// that one.
    pub(crate) fn hardware() -> Result<Vec<Self>> {
        let listed = match Ibverbs::system() {
            Ok(table) => Self::list_of(table, false),
            Err(error) if std::env::var_os(error.variable().name).is_some_and(|path| !path.is_empty()) => {
                tracing::warn!(%error, "no hardware devices");
                return Err(Error::new(Operation::LoadLibrary, ErrorKind::InvalidVariable(error.variable())));
            }
            Err(_) => Err(Error::new(Operation::LoadLibrary, ErrorKind::NotSupported)),
        };
        Ok(listed.unwrap_or_else(|error| {
            tracing::debug!(%error, "no hardware devices");
            Vec::new()
        }))
    }

    /// Whether `RDMA_SOFT=off` leaves out the software device of this build.
    pub(crate) fn software_is_off() -> bool {
        cfg!(feature = "soft") && std::env::var("RDMA_SOFT").is_ok_and(|value| value.eq_ignore_ascii_case("off"))
    }

    /// An error if a variable of the software device has a value that means nothing, whichever
    /// device is used in the end.
    pub(crate) fn check_environment() -> Result<()> {
        #[cfg(feature = "soft")]
        if !Self::software_is_off() {
            rdma_soft::check_environment()
                .map_err(|variable| Error::new(Operation::ListDevices, ErrorKind::InvalidVariable(variable)))?;
        }
        Ok(())
    }

    /// The software device, if it is in the build and not switched off.
    #[cfg(feature = "soft")]
    pub(crate) fn software() -> Result<Vec<Self>> {
        Self::check_environment()?;
        if Self::software_is_off() { Ok(Vec::new()) } else { Self::list_of(rdma_soft::ibverbs(), true) }
    }

    /// The software device: not in this build.
    #[cfg(not(feature = "soft"))]
    #[allow(clippy::unnecessary_wraps, reason = "as with the software device")]
    pub(crate) fn software() -> Result<Vec<Self>> {
        Ok(Vec::new())
    }

    /// The devices that one library, or one implementation in Rust, has.
    pub(crate) fn list_of(table: &'static Ibverbs, software: bool) -> Result<Vec<Self>> {
        fork::watch();
        let mut count = 0;
        // SAFETY: ibv_get_device_list wants a place for the count, or NULL.
        let array = unsafe { (table.ibv_get_device_list)(&raw mut count) };
        let array = Raw::created(Operation::ListDevices, array)?;
        let list = Arc::new(Handle::new(DeviceList { table, array, software, fork: fork::generation() }));
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the library returned an array of `count` devices (and a NULL), which the list
        // keeps (1).
        let raw = unsafe { std::slice::from_raw_parts(list.array.as_ptr(), count) };
        let devices = raw.iter().filter(|raw| !raw.is_null());
        Ok(devices.map(|&raw| Self { list: Arc::clone(&list), raw: Raw::new(raw) }).collect())
    }

    /// The name that the kernel, or the software device, gave it: `mlx5_0`, `rxe0`, `soft0`.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> String {
        // SAFETY: ibv_get_device_name wants a device of the same table (1, 2).
        let name = unsafe { (self.list.table.ibv_get_device_name)(self.raw.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the returned string is NUL-terminated and part of the device, which `self` keeps
        // alive (1).
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The device's globally unique name.
    #[must_use]
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        // SAFETY: ibv_get_device_guid wants a device of the same table (1, 2).
        Guid::from_be(unsafe { (self.list.table.ibv_get_device_guid)(self.raw.as_ptr()) })
    }

    /// What kind of node it is.
    #[must_use]
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the device is valid (1) and this field does not change.
        NodeType::from_raw(unsafe { (*self.raw.as_ptr()).node_type }.0)
    }

    /// The transport protocol that it speaks.
    #[must_use]
    pub fn transport(&self) -> TransportType {
        // SAFETY: the device is valid (1) and this field does not change.
        TransportType::from_raw(unsafe { (*self.raw.as_ptr()).transport_type }.0)
    }

    /// Whether it is the software device of this crate.
    ///
    /// The kernel's software devices (rxe, siw) are devices like any other.
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

    getters! { |this|
        /// The C object. It is valid as long as this value, or a clone, lives.
        as_raw: *mut ibv_device = this.raw.as_ptr();
        /// The functions that this device belongs to.
        table: &'static Ibverbs = this.list.table;
    }
}

debug_by_methods!(Device: name, is_software);
