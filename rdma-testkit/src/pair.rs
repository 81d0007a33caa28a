//! What stands on `rdma`: contexts of the provider in memory, and connected queue pairs.

use rdma::{Context, Device};

/// An open context of the provider's device.
pub fn context() -> Context {
    // SAFETY: list_of_tables requires tables whose functions keep the contracts of the C libraries,
    // and a connection manager that knows the objects of these verbs: this crate's own.
    let devices = unsafe { Device::list_of_tables(crate::ibverbs(), crate::rdmacm()) };
    devices.unwrap().remove(0).open().unwrap()
}
