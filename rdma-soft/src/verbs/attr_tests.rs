//! Queries on an opened device, through the table as C would make them.

use super::*;
use crate::verbs::ibverbs;
use rdma_sys::ibv_gid_type;

/// An opened device, closed at the end.
struct Opened(*mut ibv_context);

impl Opened {
    fn new() -> Self {
        let verbs = ibverbs();
        // SAFETY: null is allowed.
        let list = unsafe { (verbs.ibv_get_device_list)(ptr::null_mut()) };
        // SAFETY: the list has at least its end.
        let device = unsafe { *list };
        // SAFETY: the list's first device.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        // SAFETY: the list is not used below.
        unsafe { (verbs.ibv_free_device_list)(list) };
        assert!(!context.is_null());
        Self(context)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: open, and not used any more.
        assert_eq!(unsafe { (ibverbs().ibv_close_device)(self.0) }, 0);
    }
}

#[test]
fn structures_of_every_length_are_filled_as_far_as_they_go() {
    let opened = Opened::new();
    let mut port = ibv_port_attr::default();
    for len in [48, 52, 56] {
        // SAFETY: `port` has at least `len` bytes.
        assert_eq!(unsafe { query_port(opened.0, 1, &raw mut port, len) }, 0);
        assert_eq!((port.state, port.active_mtu, port.lid), (ibv_port_state::IBV_PORT_ACTIVE, MTU, 1));
    }
    let mut long = [0xff_u8; 72];
    // SAFETY: 72 bytes.
    assert_eq!(unsafe { query_port(opened.0, 1, long.as_mut_ptr().cast(), 72) }, 0);
    assert_eq!(long[56..], [0; 16]);
    let mut compat = [0xff_u8; 48];
    // SAFETY: 48 bytes, as the symbol's callers have.
    assert_eq!(unsafe { query_port_compat(opened.0, 1, compat.as_mut_ptr().cast()) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { query_port_compat(opened.0, 2, compat.as_mut_ptr().cast()) }, libc::EINVAL);

    let mut device = ibv_device_attr_ex::default();
    for size in [376, 384, 400] {
        // SAFETY: `device` has at least `size` bytes.
        assert_eq!(unsafe { query_device_ex(opened.0, ptr::null(), &raw mut device, size) }, 0);
        assert_eq!(device.orig_attr.phys_port_cnt, 1);
        assert_eq!(device.orig_attr.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_GLOB);
    }
    assert_eq!(device.phys_port_cnt_ex, 1);
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    // SAFETY: valid structures.
    assert_eq!(unsafe { query_device_ex(opened.0, &raw const input, &raw mut device, 400) }, libc::EINVAL);
}

#[test]
fn addresses_and_keys() {
    let opened = Opened::new();
    let mut port = ibv_port_attr::default();
    // SAFETY: 56 bytes.
    assert_eq!(unsafe { query_port(opened.0, 1, &raw mut port, 56) }, 0);
    let count = usize::try_from(port.gid_tbl_len).unwrap();
    let mut table = vec![ibv_gid_entry::default(); count];
    // SAFETY: room for `count` entries.
    let filled = unsafe { query_gid_table(opened.0, table.as_mut_ptr(), count, 0, size_of::<ibv_gid_entry>()) };
    assert_eq!(filled, isize::try_from(count).unwrap());
    // SAFETY: room for as many as it says.
    let short = unsafe { query_gid_table(opened.0, table.as_mut_ptr(), count - 1, 0, size_of::<ibv_gid_entry>()) };
    assert_eq!(short, -isize::try_from(libc::EINVAL).unwrap());
    for (index, expected) in table.iter().enumerate() {
        let mut entry = ibv_gid_entry::default();
        let number = u32::try_from(index).unwrap();
        // SAFETY: room for an entry.
        assert_eq!(unsafe { query_gid_ex(opened.0, 1, number, &raw mut entry, 0, size_of::<ibv_gid_entry>()) }, 0);
        assert_eq!((entry.gid_index, entry.port_num), (number, 1));
        assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
        let mut gid = ibv_gid::default();
        // SAFETY: room for a GID.
        assert_eq!(unsafe { query_gid(opened.0, 1, c_int::try_from(index).unwrap(), &raw mut gid) }, 0);
        // SAFETY: every bit pattern is a GID.
        let raw = |gid: ibv_gid| unsafe { gid.raw };
        assert_eq!(raw(gid), raw(entry.gid));
        assert_eq!(raw(gid), raw(expected.gid));
    }
    let mut gid = ibv_gid::default();
    for index in [-1, c_int::try_from(count).unwrap()] {
        // SAFETY: room for a GID.
        assert_eq!(unsafe { query_gid(opened.0, 1, index, &raw mut gid) }, -1);
    }
    let mut pkey = 0;
    // SAFETY: room for a key.
    assert_eq!(unsafe { query_pkey(opened.0, 1, 0, &raw mut pkey) }, 0);
    assert_eq!(pkey, 0xffff);
    // SAFETY: room for a key.
    assert_eq!(unsafe { query_pkey(opened.0, 1, 1, &raw mut pkey) }, -1);
    // SAFETY: an open context. So for the next ones.
    assert_eq!(unsafe { get_pkey_index(opened.0, 1, 0x7fff_u16.to_be()) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { get_pkey_index(opened.0, 1, 0x1234_u16.to_be()) }, -1);
    // SAFETY: null is refused.
    assert_eq!(unsafe { query_gid(ptr::null_mut(), 1, 0, &raw mut gid) }, -1);
}
