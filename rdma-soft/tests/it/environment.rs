//! Environment variables of the device. Each test runs this test program again, in its own process.

use std::ffi::CStr;
use std::ptr;

use rdma_sys::*;
use rdma_test_support::passes_alone;

use crate::common::datagram::{Datagrams, GRH, QKEY, answer_to};
use crate::common::{Config, Side, devices, open, open_nth, verbs};

fn port() -> (ibv_port_attr, ibv_gid_entry) {
    port_of(open())
}

/// The attributes and the first GID of the port of a context, which is then closed.
fn port_of(context: *mut ibv_context) -> (ibv_port_attr, ibv_gid_entry) {
    let (mut port, mut entry) = (ibv_port_attr::default(), ibv_gid_entry::default());
    // SAFETY: an open context, a valid structure.
    assert_eq!(unsafe { verbs().ibv_query_port(context, 1, &raw mut port) }, 0);
    // SAFETY: an open context, and an entry that lives during the call.
    let asked = unsafe { verbs().ibv_query_gid_ex(context, 1, 0, &raw mut entry, 0) };
    assert_eq!(asked, 0);
    // SAFETY: an open context without objects.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
    (port, entry)
}

#[test]
fn without_a_word_there_is_one_device_on_ethernet() {
    assert_eq!(devices().len(), 1);
    let (port, entry) = port();
    assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_ETHERNET);
    assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
    assert_eq!(port.lid, 0);
}

#[test]
#[ignore = "run by the_device_can_be_left_out"]
fn switched_off() {
    assert!(devices().is_empty());
    // SAFETY: null is refused.
    assert!(unsafe { (verbs().ibv_open_device)(ptr::null_mut()) }.is_null());
}

#[test]
fn the_device_can_be_left_out() {
    passes_alone(&["environment::switched_off"], &[("RDMA_SOFT", "off")]);
}

#[test]
#[ignore = "run by the_link_layer_can_be_chosen"]
fn on_infiniband() {
    let (port, entry) = port();
    assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_INFINIBAND);
    assert_eq!((port.gid_tbl_len, entry.gid_type), (1, ibv_gid_type::IBV_GID_TYPE_IB.0));
    assert_ne!(port.lid, 0);
}

#[test]
#[ignore = "run by the_link_layer_can_be_chosen"]
fn datagrams_on_infiniband() {
    let (a, b) = (Datagrams::new(), Datagrams::new());
    // Addressed by the LID alone: the 40 bytes are reserved but hold no GRH.
    let local = ibv_ah_attr { dlid: 1, port_num: 1, sl: 3, ..Default::default() };
    let to = a.try_handle(local).unwrap();
    a.side.put(0, b"local");
    b.recv(1, 0, 64);
    a.sent(2, 0, 5, &to, b.qpn());
    let wc = b.side.success(1);
    assert_eq!((wc.byte_len, wc.wc_flags, wc.sl, wc.slid), (45, 0, 3, 1));
    assert_eq!(b.side.peek(GRH, 5), b"local");
    let back = answer_to(&b, &wc, 0).unwrap();
    a.recv(3, 0, 64);
    b.sent(4, 0, 5, &back, wc.src_qp);
    a.side.success(3);
    assert_eq!(a.try_handle(ibv_ah_attr { dlid: 2, ..local }).unwrap_err(), libc::EHOSTUNREACH);
    // With a global address the datagram has a GRH.
    b.recv(5, 0, 64);
    a.sent(6, 0, 5, &a.handle(), b.qpn());
    let wc = b.side.success(5);
    assert_eq!((wc.byte_len, wc.wc_flags, wc.slid), (45, ibv_wc_flags::IBV_WC_GRH.0, 1));
    let grh = b.side.peek(0, GRH);
    // IP version 6 and the traffic class; the length from the transport headers to the checksum;
    // the next header; the hop limit.
    assert_eq!(grh[..8], [0x62, 0x80, 0, 0, 0, 32, 0x1b, 64]);
    let back = answer_to(&b, &wc, 0).unwrap();
    a.recv(7, 0, 64);
    b.sent(8, 0, 5, &back, wc.src_qp);
    a.side.success(7);
}

#[test]
fn the_link_layer_can_be_chosen() {
    passes_alone(&["environment::on_infiniband"], &[("RDMA_SOFT_LINK_LAYER", "infiniband")]);
    passes_alone(&["environment::datagrams_on_infiniband"], &[("RDMA_SOFT_LINK_LAYER", "infiniband")]);
}

#[test]
#[ignore = "run by a_plan_of_faults_is_for_the_process"]
fn with_a_plan_of_faults() {
    open();
    let report = rdma_soft::faults::report().unwrap();
    assert_eq!(report.rules.iter().map(|rule| rule.rule.as_str()).collect::<Vec<_>>(), ["loss:p=0.5", "die:at=3600s"]);
}

#[test]
#[ignore = "run by a_plan_of_faults_is_for_the_process"]
fn with_a_wrong_plan_of_faults() {
    let variable = rdma_soft::check_environment().unwrap_err();
    assert_eq!(variable.name, rdma_soft::faults::VARIABLE);
    assert!(variable.values.contains("at 5, `lose`: there is no such fault"), "{}", variable.values);
    // SAFETY: null is allowed for the count.
    assert!(unsafe { (verbs().ibv_get_device_list)(ptr::null_mut()) }.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn a_plan_of_faults_is_for_the_process() {
    passes_alone(&["environment::with_a_plan_of_faults"], &[("RDMA_SOFT_FAULT", "loss:p=0.5; die:at=3600s")]);
    passes_alone(&["environment::with_a_wrong_plan_of_faults"], &[("RDMA_SOFT_FAULT", "loss;lose")]);
}

/// A device as the list and its port show it.
#[derive(Debug)]
struct Listed {
    name: String,
    guid: u64,
    gid: [u8; 16],
    lid: u16,
}

fn listed() -> Vec<Listed> {
    let describe = |device| {
        // SAFETY: a device of the list.
        let name = unsafe { (verbs().ibv_get_device_name)(device) };
        // SAFETY: a C string that lives as long as the process.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
        // SAFETY: a device of the list.
        let guid = unsafe { (verbs().ibv_get_device_guid)(device) };
        // SAFETY: a device of the list.
        let (port, entry) = port_of(unsafe { (verbs().ibv_open_device)(device) });
        // SAFETY: 16 bytes of any value are a GID.
        Listed { name, guid, gid: unsafe { entry.gid.raw }, lid: port.lid }
    };
    devices().into_iter().map(describe).collect()
}

#[test]
#[ignore = "run by there_can_be_several_devices"]
fn three_devices() {
    let all = listed();
    assert_eq!(all.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["soft0", "soft1", "soft2"]);
    for (index, a) in all.iter().enumerate() {
        for b in &all[..index] {
            assert!(a.guid != b.guid && a.gid != b.gid, "{a:?} {b:?}");
            assert_eq!(a.lid == b.lid, a.lid == 0, "{a:?} {b:?}");
        }
    }
}

#[test]
#[ignore = "run by there_can_be_several_devices"]
fn sixty_four_devices() {
    let all = listed();
    assert_eq!(all.last().map(|last| (last.name.as_str(), all.len())), Some(("soft63", 64)));
}

/// Datagrams, whose address handles hold GIDs and LIDs, from one device to another and back.
#[test]
#[ignore = "run by there_can_be_several_devices"]
fn datagrams_between_devices() {
    let (first, second) = (Datagrams::new(), Datagrams::with(Config { device: 1, ..Config::default() }, false));
    second.bring_up(QKEY);
    let to = first.try_handle(first.route_to(second.gid(0))).unwrap();
    first.side.put(0, b"across");
    second.recv(1, 0, 64);
    first.sent(2, 0, 6, &to, second.qpn());
    let wc = second.side.success(1);
    assert_eq!(second.side.peek(GRH, 6), b"across");
    let back = answer_to(&second, &wc, 0).unwrap();
    first.recv(3, 0, 64);
    second.sent(4, 0, 6, &back, wc.src_qp);
    first.side.success(3);
    let (port, _) = port_of(open_nth(1));
    if port.lid != 0 {
        let by_lid = ibv_ah_attr { dlid: port.lid, port_num: 1, ..Default::default() };
        second.recv(5, 0, 64);
        first.sent(6, 0, 6, &first.try_handle(by_lid).unwrap(), second.qpn());
        second.side.success(5);
    }
}

/// The objects of two devices do not mix.
#[test]
#[ignore = "run by there_can_be_several_devices"]
fn a_queue_pair_has_a_completion_queue_of_its_device() {
    let (first, second) = (Side::new(Config::default()), Side::new(Config { device: 1, ..Config::default() }));
    let mut init = ibv_qp_init_attr { recv_cq: second.cq, ..first.init_attr() };
    // SAFETY: live objects, a valid structure.
    assert!(unsafe { (verbs().ibv_create_qp)(first.pd, &raw mut init) }.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn there_can_be_several_devices() {
    for link_layer in ["ethernet", "infiniband"] {
        let environment = |count| [("RDMA_SOFT_DEVICES", count), ("RDMA_SOFT_LINK_LAYER", link_layer)];
        passes_alone(&["environment::three_devices"], &environment("3"));
        let pairs = [
            "environment::datagrams_between_devices",
            "environment::a_queue_pair_has_a_completion_queue_of_its_device",
        ];
        passes_alone(&pairs, &environment("2"));
    }
    passes_alone(&["environment::sixty_four_devices"], &[("RDMA_SOFT_DEVICES", "64")]);
}

#[test]
#[ignore = "run by devices_have_the_names_that_programs_insist_on"]
fn two_names() {
    let name = |&device: &*mut ibv_device| {
        // SAFETY: a device of the list.
        let name = unsafe { (verbs().ibv_get_device_name)(device) };
        // SAFETY: a C string that is never freed.
        unsafe { CStr::from_ptr(name) }
    };
    assert_eq!(devices().iter().map(name).collect::<Vec<_>>(), [c"mlx5_0", c"mlx5_1"]);
    assert_eq!(rdma_soft::device_names(), ["mlx5_0", "mlx5_1"]);
    let (port, _) = port_of(open_nth(1));
    assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
}

#[test]
fn devices_have_the_names_that_programs_insist_on() {
    let names = ("RDMA_SOFT_NAMES", "mlx5_0,mlx5_1");
    passes_alone(&["environment::two_names"], &[names]);
    passes_alone(&["environment::two_names"], &[names, ("RDMA_SOFT_DEVICES", "2")]);
    passes_alone(&["environment::refused"], &[names, ("RDMA_SOFT_DEVICES", "3")]);
}

#[test]
#[ignore = "run by a_value_that_means_nothing_is_an_error"]
fn refused() {
    let mut count = -1;
    // SAFETY: valid for writes.
    assert!(unsafe { (verbs().ibv_get_device_list)(&raw mut count) }.is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    let invalid = rdma_soft::check_environment().unwrap_err();
    assert!(std::env::var_os(invalid.name).is_some());
}

#[test]
fn a_value_that_means_nothing_is_an_error() {
    for (name, value) in [
        ("RDMA_SOFT", "maybe"),
        ("RDMA_SOFT_LINK_LAYER", "foo"),
        ("RDMA_SOFT_DEVICES", "0"),
        ("RDMA_SOFT_DEVICES", "65"),
        ("RDMA_SOFT_DEVICES", "two"),
        ("RDMA_SOFT_NAMES", "mlx5_0,mlx5_0"),
        ("RDMA_SOFT_NAMES", "mlx5/0"),
        ("RDMA_SOFT_PTRACER", "no"),
        ("RDMA_SOFT_CM_TIMEOUT", "0"),
        ("RDMA_SOFT_LOG", "loud"),
    ] {
        passes_alone(&["environment::refused"], &[(name, value)]);
        passes_alone(&["environment::without_a_word_there_is_one_device_on_ethernet"], &[(name, "")]);
    }
}
