//! `ibv_device`: the devices before they are opened, the device list and environment variables.
//!
//! All devices share the process's engine, links and agent. They differ in identity only: name,
//! GUID, GID and LID.

use std::env;
use std::ffi::{c_char, c_int};
use std::fs;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use rdma_sys::{Variable, ibv_device, ibv_node_type, ibv_transport_type};

use super::Errno;
use super::call::{Out, OwnList, list};
use super::names::{self, MAX_DEVICES};
use super::object::{Object, Public};
use crate::link::tls::{self, Protection};
use crate::log::stderr::{self, Verbosity};
use crate::node::chosen;

/// The link layer that consumers see. The link layer changes only addresses: GIDs and LIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    Ethernet,
    InfiniBand,
}

impl LinkLayer {
    /// Reads `RDMA_SOFT_LINK_LAYER`: `infiniband` or `ethernet`, which is the default.
    fn from_env() -> Self {
        match env::var("RDMA_SOFT_LINK_LAYER") {
            Ok(value) if value.eq_ignore_ascii_case("infiniband") => Self::InfiniBand,
            _ => Self::Ethernet,
        }
    }
}

/// An `ibv_device` with zeroes behind it. libmlx5 and libefa check whether a device is theirs by
/// reading a pointer behind the `ibv_device`, so those bytes must be readable and null.
#[repr(C)]
pub(crate) struct PaddedDevice {
    device: ibv_device,
    zeroes: [u64; 16],
}

/// Private part of a device: the attributes that can be read without a context.
#[derive(Debug)]
pub(crate) struct DeviceState {
    /// The device's number, from 0.
    pub(crate) index: u8,
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) link_layer: LinkLayer,
}

impl DeviceState {
    /// Local identifier (LID) of the port if the link layer is InfiniBand; Ethernet has none.
    pub(crate) fn lid(&self) -> u16 {
        u16::from(self.index) + 1
    }
}

impl Public for PaddedDevice {
    const MARK: u64 = 0x0064_6576_6963_6531;
    // A device holds no descriptor, thread or ring of the process.
    const INHERITED: bool = true;
    type Private = DeviceState;
}

/// All devices, made on first use and never freed.
///
/// No thread waits for another one that makes them: a child that is forked meanwhile has no such
/// thread.
fn devices() -> impl ExactSizeIterator<Item = *mut PaddedDevice> {
    static DEVICES: [AtomicPtr<PaddedDevice>; MAX_DEVICES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES];
    /// The number of devices; 0 before the first use.
    static COUNT: AtomicU8 = AtomicU8::new(0);
    if COUNT.load(Ordering::Relaxed) == 0 {
        // Fails if another thread has been faster.
        let _stored = COUNT.compare_exchange(0, names::count(), Ordering::Relaxed, Ordering::Relaxed);
    }
    (0..COUNT.load(Ordering::Relaxed)).map(|index| {
        let place = &DEVICES[usize::from(index)];
        let made = place.load(Ordering::Acquire);
        if !made.is_null() {
            return made;
        }
        let new = make(index);
        match place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(made) => {
                // SAFETY: `free` requires a live object that nobody uses: it was made here, and
                // nobody else has its pointer.
                let _freed = unsafe { Object::free(new) };
                made
            }
        }
    })
}

/// Makes the device with this number.
fn make(index: u8) -> *mut PaddedDevice {
    let name = names::name(index);
    let mut device = ibv_device {
        node_type: ibv_node_type::IBV_NODE_CA,
        transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
        ..Default::default()
    };
    put(&mut device.name, &name);
    put(&mut device.dev_name, &name);
    put(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{name}"));
    put(&mut device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    let state = DeviceState { index, name, guid: guid(index), link_layer: LinkLayer::from_env() };
    Object::create(PaddedDevice { device, zeroes: [0; 16] }, state)
}

/// Writes a C string into `field`, which is zeroed and longer than `text`.
fn put(field: &mut [c_char], text: &str) {
    for (to, &from) in field.iter_mut().zip(text.as_bytes()) {
        *to = from as c_char;
    }
}

/// A device's GUID: a locally administered EUI-64, made from the host's machine id or boot id, so
/// that it stays the same while the host runs. The devices of a host have consecutive GUIDs.
fn guid(index: u8) -> u64 {
    let host = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
    let name = host.iter().find_map(|path| fs::read(path).ok().filter(|name| !name.is_empty())).unwrap_or_default();
    // 64-bit FNV-1a hash.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash.wrapping_add(u64::from(index)) & 0x00ff_ffff_ffff_ffff) | 0x0200_0000_0000_0000
}

/// Checks the environment variables of the devices. An empty variable counts as unset.
///
/// If a variable is invalid, `ibv_get_device_list` fails with `EINVAL`; if it is the key's, the
/// first open does.
///
/// # Errors
///
/// The first variable whose value is invalid.
pub fn check_environment() -> Result<(), &'static Variable> {
    check_variables()?;
    chosen::check_key()
}

/// Checks the variables that a list of the devices depends on.
fn check_variables() -> Result<(), &'static Variable> {
    fn on_or_off(value: &str) -> bool {
        ["on", "off"].iter().any(|allowed| value.eq_ignore_ascii_case(allowed))
    }
    fn link_layer(value: &str) -> bool {
        ["ethernet", "infiniband"].iter().any(|allowed| value.eq_ignore_ascii_case(allowed))
    }
    fn timeout(value: &str) -> bool {
        value.parse().is_ok_and(|ms: u64| (1..=60_000).contains(&ms))
    }
    type Rule = (Variable, fn(&str) -> bool);
    static RULES: [Rule; 7] = [
        (Variable { name: "RDMA_SOFT", values: "on or off" }, on_or_off),
        (names::COUNT, |value| names::device_count(value).is_some()),
        (Variable { name: "RDMA_SOFT_LINK_LAYER", values: "ethernet or infiniband" }, link_layer),
        (Variable { name: "RDMA_SOFT_PTRACER", values: "on or off" }, on_or_off),
        (Variable { name: stderr::VARIABLE, values: stderr::VALUES }, |value| Verbosity::parse(value).is_some()),
        (tls::VARIABLE, |value| Protection::parse(value).is_some()),
        (Variable { name: "RDMA_SOFT_CM_TIMEOUT", values: "1 to 60000" }, timeout),
    ];
    crate::node::faults::from_environment()?;
    for (variable, is_valid) in &RULES {
        let value = env::var_os(variable.name).filter(|value| !value.is_empty());
        if value.is_some_and(|value| !value.to_str().is_some_and(is_valid)) {
            return Err(variable);
        }
    }
    chosen::check_address()?;
    names::check_environment()
}

/// Whether the environment enables the devices: `RDMA_SOFT` is not `off`.
fn is_wanted() -> bool {
    !env::var("RDMA_SOFT").is_ok_and(|value| value.eq_ignore_ascii_case("off"))
}

/// The device behind a pointer from C. Any pointer is allowed; all but the devices' own give
/// `EINVAL`.
pub(crate) fn get(ibv_device: *mut ibv_device) -> Result<&'static Object<PaddedDevice>, Errno> {
    let device = devices().find(|&device| ptr::addr_eq(ibv_device, device)).ok_or(Errno::INVAL)?;
    // SAFETY: `Object::get` requires a live object: `make` made it by `Object::create`, and
    // `devices` never frees it.
    unsafe { Object::get(device) }
}

/// The attributes of all devices.
pub(crate) fn all() -> impl Iterator<Item = &'static DeviceState> {
    devices().filter_map(|device| get(device.cast()).ok().map(|object| &**object))
}

/// The names of all devices, in the order of their numbers.
///
/// Also of devices that `RDMA_SOFT=off` excludes from the device list.
#[must_use]
pub fn device_names() -> Vec<String> {
    all().map(|device| device.name.clone()).collect()
}

/// The devices in the order of their numbers; none if `RDMA_SOFT=off` disables them. `EINVAL` if an
/// environment variable is invalid.
pub(super) fn wanted() -> Result<Vec<*mut ibv_device>, Errno> {
    check_variables().map_err(|_| Errno::INVAL)?;
    Ok(if is_wanted() { devices().map(<*mut PaddedDevice>::cast).collect() } else { Vec::new() })
}

/// `ibv_get_device_list`.
pub(super) fn get_device_list(num_devices: Out<c_int>) -> Result<*mut *mut ibv_device, Errno> {
    let wanted = wanted();
    let count = wanted.as_ref().map_or(0, Vec::len);
    // C may pass null for `num_devices`.
    let _written = num_devices.write(c_int::try_from(count).unwrap_or(c_int::MAX));
    wanted.map(|wanted| list(&wanted))
}

/// `ibv_free_device_list`.
pub(super) fn free_device_list(list: OwnList<ibv_device>) {
    list.free();
}

/// `ibv_get_device_name`: the structure's field. As in libibverbs, the structure may be one that
/// the program has made.
pub(super) fn get_device_name(ibv_device: *mut ibv_device) -> Result<*const c_char, Errno> {
    if ibv_device.is_null() {
        return Err(Errno::INVAL);
    }
    Ok(ibv_device.wrapping_byte_add(offset_of!(ibv_device, name)).cast_const().cast())
}

/// `ibv_get_device_guid`.
pub(super) fn get_device_guid(ibv_device: *mut ibv_device) -> u64 {
    get(ibv_device).map_or(0, |device| device.guid.to_be())
}

/// `ibv_get_device_index`: -1, because the kernel has no index for a software device.
pub(super) fn get_device_index(_: *mut ibv_device) -> c_int {
    -1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_list_has_the_device_once() {
        let mut count = 0;
        let verbs = crate::ibverbs();
        // SAFETY: `count` is valid for writes.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        // SAFETY: the list has two entries.
        let (first, second) = unsafe { *list.cast::<(*mut ibv_device, *mut ibv_device)>() };
        assert_eq!(count, 1);
        assert!(get(first).is_ok());
        assert!(second.is_null());
        // SAFETY: a C string that is never freed.
        assert_eq!(unsafe { CStr::from_ptr(get_device_name(first).unwrap()) }, c"soft0");
        assert_eq!(all().map(|device| (device.index, device.lid())).collect::<Vec<_>>(), [(0, 1)]);
        // SAFETY: the device is alive and nobody writes to it.
        let public = unsafe { &*first };
        assert_eq!(public.node_type, ibv_node_type::IBV_NODE_CA);
        assert!(public._ops._dummy1.is_none() && public._ops._dummy2.is_none());
        // SAFETY: a C string: the name is zero-terminated, and the device is never freed.
        assert_eq!(unsafe { CStr::from_ptr(public.dev_name.as_ptr()) }, c"soft0");
        assert_ne!(get_device_guid(first), 0);
        // SAFETY: a list that was just made.
        unsafe { (verbs.ibv_free_device_list)(list) };
    }

    #[test]
    fn guids_differ_by_device() {
        assert_ne!(guid(0), guid(1));
        assert_eq!(guid(63) >> 56, 2);
    }

    #[test]
    fn other_pointers_are_not_the_device() {
        assert!(get(ptr::null_mut()).is_err());
        assert!(get_device_name(ptr::null_mut()).is_err());
        assert_eq!(get_device_guid(ptr::dangling_mut()), 0);
    }

    #[test]
    fn zeroes_lie_behind_the_public_device() {
        assert_eq!(size_of::<ibv_device>(), 664);
        assert!(size_of::<PaddedDevice>() >= 664 + 64);
    }
}
