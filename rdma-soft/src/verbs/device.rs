//! `ibv_device`: the device before it is opened, the device list, names and environment variables.

use std::env;
use std::ffi::{c_char, c_int};
use std::fs;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use rdma_sys::{Variable, ibv_device, ibv_node_type, ibv_transport_type};

use super::Errno;
use super::call::{Out, OwnList, list_of_one};
use super::object::{Object, Public};

/// The device's name.
const NAME: &str = "soft0";

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

/// Private part of the device: the attributes that can be read without a context.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) guid: u64,
    pub(crate) link_layer: LinkLayer,
}

impl Public for PaddedDevice {
    const MARK: u64 = 0x0064_6576_6963_6531;
    // The device holds no descriptor, thread or ring of the process.
    const INHERITED: bool = true;
    type Private = DeviceState;
}

/// The only device, made on first use and never freed.
fn device() -> *mut PaddedDevice {
    static DEVICE: OnceLock<AtomicPtr<PaddedDevice>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut device = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..Default::default()
        };
        put(&mut device.name, NAME);
        put(&mut device.dev_name, NAME);
        put(&mut device.dev_path, "/sys/class/infiniband_verbs/soft0");
        put(&mut device.ibdev_path, "/sys/class/infiniband/soft0");
        let state = DeviceState { guid: guid(), link_layer: LinkLayer::from_env() };
        AtomicPtr::new(Object::create(PaddedDevice { device, zeroes: [0; 16] }, state))
    });
    device.load(Ordering::Relaxed)
}

/// Writes a C string into `field`, which is zeroed and longer than `text`.
fn put(field: &mut [c_char], text: &str) {
    for (to, &from) in field.iter_mut().zip(text.as_bytes()) {
        *to = from as c_char;
    }
}

/// The device's GUID: a locally administered EUI-64, made from the host's machine id or boot id, so
/// that it stays the same while the host runs.
fn guid() -> u64 {
    let host = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
    let name = host.iter().find_map(|path| fs::read(path).ok().filter(|name| !name.is_empty())).unwrap_or_default();
    // 64-bit FNV-1a hash.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash & 0x00ff_ffff_ffff_ffff) | 0x0200_0000_0000_0000
}

/// Checks the environment variables of the device. An empty variable counts as unset.
///
/// If a variable is invalid, `ibv_get_device_list` fails with `EINVAL`.
///
/// # Errors
///
/// The first variable whose value is invalid.
pub fn check_environment() -> Result<(), &'static Variable> {
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
    static RULES: [Rule; 4] = [
        (Variable { name: "RDMA_SOFT", values: "on or off" }, on_or_off),
        (Variable { name: "RDMA_SOFT_LINK_LAYER", values: "ethernet or infiniband" }, link_layer),
        (Variable { name: "RDMA_SOFT_PTRACER", values: "on or off" }, on_or_off),
        (Variable { name: "RDMA_SOFT_CM_TIMEOUT", values: "1 to 60000" }, timeout),
    ];
    for (variable, is_valid) in &RULES {
        let value = env::var_os(variable.name).filter(|value| !value.is_empty());
        if value.is_some_and(|value| !value.to_str().is_some_and(is_valid)) {
            return Err(variable);
        }
    }
    Ok(())
}

/// Whether the environment enables the device: `RDMA_SOFT` is not `off`.
fn is_wanted() -> bool {
    !env::var("RDMA_SOFT").is_ok_and(|value| value.eq_ignore_ascii_case("off"))
}

/// Whether a device is the software device.
///
/// Compares addresses only, so any pointer is allowed.
#[must_use]
pub fn is_soft(ibv_device: *const ibv_device) -> bool {
    ptr::addr_eq(ibv_device, device())
}

/// The device behind a pointer from C. Any pointer is allowed; all but the device's own give
/// `EINVAL`.
pub(crate) fn get(ibv_device: *mut ibv_device) -> Result<&'static DeviceState, Errno> {
    if !is_soft(ibv_device) {
        return Err(Errno::INVAL);
    }
    // SAFETY: `Object::get` requires a live object: `device()` made it by `Object::create` and
    // never frees it.
    let object = unsafe { Object::get(device()) }?;
    Ok(object)
}

/// The device, or `None` if `RDMA_SOFT=off` disables it. `EINVAL` if an environment variable is
/// invalid.
pub(super) fn wanted() -> Result<Option<*mut ibv_device>, Errno> {
    check_environment().map_err(|_| Errno::INVAL)?;
    Ok(is_wanted().then(|| device().cast()))
}

/// `ibv_get_device_list`.
pub(super) fn get_device_list(num_devices: Out<c_int>) -> Result<*mut *mut ibv_device, Errno> {
    let wanted = wanted()?;
    // C may pass null for `num_devices`.
    let _written = num_devices.write(c_int::from(wanted.is_some()));
    Ok(list_of_one(wanted.unwrap_or(ptr::null_mut())))
}

/// `ibv_free_device_list`.
pub(super) fn free_device_list(list: OwnList<ibv_device>) {
    list.free();
}

/// `ibv_get_device_name`.
pub(super) fn get_device_name(ibv_device: *mut ibv_device) -> Result<*const c_char, Errno> {
    const NAME_C: &std::ffi::CStr = c"soft0";
    get(ibv_device).map(|_| NAME_C.as_ptr())
}

/// `ibv_get_device_guid`.
pub(super) fn get_device_guid(ibv_device: *mut ibv_device) -> u64 {
    get(ibv_device).map_or(0, |device| device.guid.to_be())
}

/// `ibv_get_device_index`: -1, because the kernel has no index for the device.
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
        assert!(is_soft(first));
        assert!(second.is_null());
        // SAFETY: a C string that is never freed.
        assert_eq!(unsafe { CStr::from_ptr(get_device_name(first).unwrap()) }, c"soft0");
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
    fn other_pointers_are_not_the_device() {
        assert!(!is_soft(ptr::null()));
        assert!(get_device_name(ptr::null_mut()).is_err());
        assert_eq!(get_device_guid(ptr::dangling_mut()), 0);
    }

    #[test]
    fn zeroes_lie_behind_the_public_device() {
        assert_eq!(size_of::<ibv_device>(), 664);
        assert!(size_of::<PaddedDevice>() >= 664 + 64);
    }
}
