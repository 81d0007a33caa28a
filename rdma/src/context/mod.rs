//! Contexts: open devices, the parents of all other objects.
//!
//! Domains, queues and regions keep their [`Context`] open. It is closed when the last handle and
//! the last child are gone.
//!
//! # Safety
//!
//! 1. A [`ContextInner`] owns a context that its table's `ibv_open_device` returned, or has it from
//!    the caller of `from_raw`, who keeps it open. Its children hold an `Arc` of its [`Handle`], so
//!    the context is closed after them.
//! 2. Functions of the table are only called with objects that the same table made.
//! 3. The descriptor of asynchronous events is non-blocking and is not lent. A caller could make it
//!    blocking or fill it, which would block the code that takes or raises an event.
//! 4. No function is called in a forked child.

mod async_event;
mod attr;
mod counters;
mod gid;
mod sharing;

use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

pub use async_event::{AsyncEvent, AsyncEventKind, EventSource};
pub use attr::{DeviceAttr, DeviceAttrEx, PortAttr};
pub use counters::PortCounters;
pub use gid::GidEntry;
use rdma_sys::{Ibverbs, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr};
pub use sharing::EventTap;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::fork;
use crate::handle::{Handle, Object, Ownership, Raw, constants, require, require_some};
use crate::types::{Capabilities, ForeignObject, Gid, PortState, TransportType};
use crate::wait::EventDescriptor;

/// An open device. Clones are handles to the same device.
///
/// # Examples
///
/// ```
/// let opened = rdma::open(&rdma::DeviceSelector::Any)?;
/// println!("using {}", opened.choice);
/// println!("{} ports", opened.context.port_count());
/// # Ok::<(), rdma::OpenError>(())
/// ```
#[doc(alias = "ibv_context")]
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Handle<ContextInner>>,
}

/// The owner of the C context (1).
pub(crate) struct ContextInner {
    pub(crate) raw: Raw<ibv_context>,
    pub(crate) table: &'static Ibverbs,
    pub(crate) device: Device,
    pub(crate) device_attr: DeviceAttr,
    /// An epoll descriptor that watches the one of asynchronous events, which is not lent (3).
    events: EventDescriptor,
    sharing: sharing::EventSharing,
    ownership: Ownership,
    pub(crate) fork: u32,
}

impl ContextInner {
    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check(&self, operation: Verb) -> Result<()> {
        fork::check(self.fork, operation)
    }

    /// Whether this process is a forked child of the one that opened the device.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.fork != fork::generation()
    }

    /// Whether the device is the kernel's software device for iWARP, which has a vendor of its own.
    pub(crate) fn is_siw(&self) -> bool {
        /// `SIW_VENDOR_ID` of the kernel: "bmt".
        const VENDOR: u32 = 0x62_6d74;
        let is_virtual = |folder: PathBuf| folder.join("device").symlink_metadata().is_err();
        self.device.transport() == TransportType::IWARP
            && (self.device_attr.vendor_id() == VENDOR || self.device.sysfs().is_some_and(is_virtual))
    }

    pub(crate) fn device_attr_ex(&self) -> Result<DeviceAttrEx> {
        self.check(Verb::QueryDevice)?;
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: ibv_query_device_ex requires an open context (1, 2), an input or NULL, and space
        // for the attributes; this is no forked child (4).
        let call = || unsafe { self.table.ibv_query_device_ex(self.raw.as_ptr(), ptr::null(), &raw mut attr) };
        Error::check(Verb::QueryDevice, call)?;
        Ok(DeviceAttrEx::from_raw(attr))
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.device.transport(), self.device_attr.atomic_capability())
    }
}

impl Object for ContextInner {
    const DESTROY: Verb = Verb::CloseDevice;
    const NAME: &'static str = "a device's context";

    fn made_in(&self) -> u32 {
        self.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        let Self { raw, table, .. } = *self;
        // SAFETY: ibv_close_device requires an open context of this table that has no children:
        // this function's contract.
        self.ownership.end(|| Error::check(Self::DESTROY, || unsafe { (table.ibv_close_device)(raw.as_ptr()) }))
    }
}

impl Device {
    /// Opens the device.
    ///
    /// There is no `ibv_fork_init` to call: since Linux 5.12 the kernel copies pinned pages for a
    /// forked child, so the parent's registered memory stays in place. On older kernels set
    /// `RDMAV_FORK_SAFE=1`. A child must open the device itself: its parent's handles fail with
    /// [`ErrorKind::Forked`].
    ///
    /// # Errors
    ///
    /// `PermissionDenied` without access to the device's file in /dev/infiniband; `NoDevice` if the
    /// device is gone; errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// let devices = rdma::Device::list()?;
    /// let context = devices.last().expect("soft0").open()?;
    /// println!("{} is open", context.name());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_open_device")]
    #[doc(alias = "ibv_fork_init")]
    pub fn open(&self) -> Result<Context> {
        Context::open(self)
    }
}

impl Context {
    pub(crate) fn open(device: &Device) -> Result<Self> {
        fork::watch();
        let unlocked = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
        if !device.is_software() && ["MLX5_SINGLE_THREADED", "MLX4_SINGLE_THREADED"].into_iter().any(unlocked) {
            // With this setting the provider omits the locks that make our handles Send and Sync.
            tracing::error!(
                name: "unsafe_provider_setting", target: "rdma",
                "MLX5_SINGLE_THREADED=1 (or MLX4) makes the provider's queues unsafe to share: unset it"
            );
            return Err(Error::new(Verb::OpenDevice, ErrorKind::NotSupported));
        }
        let table = device.table();
        // SAFETY: ibv_open_device requires a device of the same table, which `device` keeps alive
        // (2).
        let call = || unsafe { (table.ibv_open_device)(device.as_raw()) };
        let raw = Raw::created(Verb::OpenDevice, call)?.as_ptr();
        // SAFETY: from_raw requires a context of this device that nobody else closes or takes
        // events of: just opened from this device, and nobody else has the pointer.
        unsafe { Self::from_raw(device, raw, Ownership::Destroy) }.map_err(|failed| {
            // SAFETY: ibv_close_device requires an open context of this table without children: it
            // was just opened, and nobody else has the pointer.
            unsafe { (table.ibv_close_device)(raw) };
            failed.error
        })
    }

    /// Makes a handle of a context that was opened elsewhere. The descriptor of its asynchronous
    /// events becomes non-blocking.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the context is as it was. `Foreign` for NULL, and for a context of a
    /// device of another name; errors of querying the device and of creating an epoll.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`], where the functions are those of the device's
    /// [`table`](Device::table); and:
    ///
    /// 5. No other code takes the context's asynchronous events while the handle lives.
    ///
    /// # Examples
    ///
    /// ```
    /// # let soft0 = rdma::open(&"soft0".parse()?)?.context.device().clone();
    /// use rdma::{Context, Ownership};
    ///
    /// // SAFETY: ibv_open_device requires a device of the same table, which `soft0` keeps.
    /// let raw = unsafe { (soft0.table().ibv_open_device)(soft0.as_raw()) };
    /// // SAFETY: the context was just opened, and nobody else has it.
    /// let context = unsafe { Context::from_raw(&soft0, raw, Ownership::Destroy)? };
    /// assert_eq!(context.name(), "soft0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(
        device: &Device,
        raw: *mut ibv_context,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` has the same contract as this function.
        match unsafe { Self::adopt(device, raw) } {
            Ok((events, device_attr)) => {
                let inner = ContextInner {
                    raw: Raw::new(raw),
                    table: device.table(),
                    device: device.clone(),
                    device_attr,
                    events,
                    sharing: sharing::EventSharing::default(),
                    ownership,
                    fork: fork::generation(),
                };
                Ok(Self { inner: Arc::new(Handle::new(inner)) })
            }
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }

    /// What a handle needs of a context.
    ///
    /// # Safety
    ///
    /// As for [`from_raw`](Self::from_raw). The descriptor is used no longer than the context
    /// lives.
    unsafe fn adopt(device: &Device, raw: *mut ibv_context) -> Result<(EventDescriptor, DeviceAttr)> {
        require_some(raw)?;
        // `constants` requires a live object: not NULL, so this function's contract says so.
        let (opened, async_fd) = constants!(raw => device, async_fd);
        require(!opened.is_null(), ForeignObject::OtherContext)?;
        // SAFETY: ibv_get_device_name requires a live device: that of an open context, not NULL.
        let name = unsafe { (device.table().ibv_get_device_name)(opened) };
        require(!name.is_null(), ForeignObject::OtherContext)?;
        // SAFETY: from_ptr requires a NUL-terminated string: the name of a device, which the
        // context keeps.
        let name = unsafe { CStr::from_ptr(name) };
        require(name.to_bytes() == device.name().as_bytes(), ForeignObject::OtherContext)?;
        let mut attr = ibv_device_attr::default();
        // SAFETY: ibv_query_device requires an open context (1) and space for the attributes.
        let call = || unsafe { (device.table().ibv_query_device)(raw, &raw mut attr) };
        Error::check(Verb::QueryDevice, call)?;
        // SAFETY: EventDescriptor::new requires a descriptor that stays open while it is used: that
        // of the context, which the new value keeps open (1).
        let events = unsafe { EventDescriptor::new(async_fd) }?;
        Ok((events, DeviceAttr::from_raw(attr)))
    }

    /// The device that was opened.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// assert_eq!(context.device().name(), context.name());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    getters! { |this|
        /// The device's name.
        name: String = this.inner.device.name();
        /// Whether the device is this crate's software device.
        is_software: bool = this.inner.device.is_software();
    }

    /// The device's limits and capabilities.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let attr = context.device_attr();
    /// println!("queues of up to {} requests, {} segments each", attr.max_qp_wr(), attr.max_sge());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> &DeviceAttr {
        &self.inner.device_attr
    }

    /// The capabilities that [`device_attr`](Self::device_attr) lacks: clocks, paging, offloads.
    ///
    /// # Errors
    ///
    /// `NotSupported` if neither the provider nor the library has the call; errors of the provider.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let attr = context.device_attr_ex()?;
    /// println!("time stamps count {} kHz", attr.core_clock_khz());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_device_ex")]
    pub fn device_attr_ex(&self) -> Result<DeviceAttrEx> {
        self.inner.device_attr_ex()
    }

    getters! { |this|
        /// The capabilities of the device's transport.
        capabilities: Capabilities = this.inner.capabilities();
        /// The number of ports, which are numbered from 1.
        port_count: u8 = this.inner.device_attr.port_count();
    }

    /// The number of completion vectors: interrupts among which completion queues can be spread.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the read requires an open context (1); the field is constant.
        u32::try_from(unsafe { (*self.as_raw()).num_comp_vectors }).unwrap_or(0)
    }

    /// The attributes and state of a port.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let attr = context.port_attr(1)?;
    /// println!("port 1: {}, {}, MTU {}", attr.state(), attr.link_layer(), attr.active_mtu());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self, port: u8) -> Result<PortAttr> {
        self.inner.check(Verb::QueryPort)?;
        if port == 0 || port > self.port_count() {
            return Err(Error::new(Verb::QueryPort, ErrorKind::NotFound));
        }
        let mut attr = ibv_port_attr::default();
        // SAFETY: ibv_query_port requires an open context (1, 2) and space for the attributes; this
        // is no forked child (4).
        let call = || unsafe { self.inner.table.ibv_query_port(self.as_raw(), port, &raw mut attr) };
        Error::check(Verb::QueryPort, call)?;
        Ok(PortAttr::from_raw(attr))
    }

    /// The lowest-numbered active port.
    pub(crate) fn first_active_port(&self) -> Result<Option<u8>> {
        for port in 1..=self.port_count() {
            if self.port_attr(port)?.state() == PortState::ACTIVE {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }

    /// All GIDs of a port, without the empty entries.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// for entry in context.gid_table(1)? {
    ///     println!("{}: {} ({})", entry.index, entry.gid, entry.kind);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        gid::table(self, port)
    }

    /// The GID at an index.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port or index does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let first = context.gid_table(1)?[0];
    /// assert_eq!(context.gid(1, first.index)?, first.gid);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self, port: u8, index: u32) -> Result<Gid> {
        gid::query(self, port, index)
    }

    /// The GID at an index, with its protocol and interface.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port or index does not exist, or if the entry is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let best = context.best_gid(1)?.expect("the port has a GID");
    /// assert_eq!(context.gid_entry(1, best.index)?, best);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gid_entry(&self, port: u8, index: u32) -> Result<GidEntry> {
        let found = self.gid_table(port)?.into_iter().find(|entry| entry.index == index);
        found.ok_or(Error::new(Verb::QueryGid, ErrorKind::NotFound))
    }

    /// The GID with the widest reach. On Ethernet, RoCE v2 comes before v1, and within a protocol
    /// IPv4-mapped addresses before other IPv6 addresses before link-local ones. On InfiniBand, the
    /// first GID; so of the software device, whose first GID is the address at which it listens for
    /// other hosts (`rdma::soft::tcp`) if it does.
    ///
    /// # Errors
    ///
    /// As for [`gid_table`](Self::gid_table).
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let gid = context.best_gid(1)?.expect("the port has a GID");
    /// println!("GID index {}: {}", gid.index, gid.gid);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn best_gid(&self, port: u8) -> Result<Option<GidEntry>> {
        let layer = self.port_attr(port)?.link_layer();
        Ok(gid::best(self.gid_table(port)?, gid::is_in_order(self, layer)))
    }

    /// The partition key at an index of a port's table.
    ///
    /// # Errors
    ///
    /// `NotFound` if the port or index does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// assert_eq!(context.pkey(1, 0)? | 0x8000, 0xffff, "the default partition");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let table_len = self.port_attr(port)?.pkey_table_len();
        if index >= table_len {
            return Err(Error::new(Verb::QueryPkey, ErrorKind::NotFound));
        }
        let mut pkey = 0;
        let (table, index) = (self.inner.table, i32::from(index));
        // SAFETY: ibv_query_pkey requires an open context (1, 2) and space for the key.
        let call = || unsafe { (table.ibv_query_pkey)(self.as_raw(), port, index, &raw mut pkey) };
        Error::check(Verb::QueryPkey, call)?;
        Ok(u16::from_be(pkey))
    }

    /// Closes the device.
    ///
    /// Dropping the last handle closes the device too; this reports errors.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone, a domain, a queue or a region of the device lives.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let pd = context.alloc_pd()?;
    /// let failed = context.close().unwrap_err();
    /// assert_eq!(failed.error.kind(), rdma::ErrorKind::InUse);
    /// drop(pd);
    /// failed.object.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    getters! { |this|
        /// The C object, valid while this handle lives.
        as_raw: *mut ibv_context = this.inner.raw.as_ptr();
        /// The function table of this context and its children.
        table: &'static Ibverbs = this.inner.table;
    }
}

lends_descriptor! {
    /// A descriptor that is readable while asynchronous events wait, for poll, epoll and async
    /// runtimes. It is an epoll descriptor that watches the provider's, and has no other use.
    Context, inner.events
}

debug_by_methods!(Context: name);

#[cfg(test)]
mod tests;
