//! What tests share.

use rdma::DeviceSelector;

use crate::Adapter;

/// The software device.
pub(crate) fn soft0() -> Adapter {
    let opened = rdma::open(&DeviceSelector::Named { name: "soft0".to_owned(), port: None }).unwrap();
    Adapter::new(&opened.context, opened.port).unwrap()
}
