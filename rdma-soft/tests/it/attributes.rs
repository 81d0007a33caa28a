//! Attributes of an opened device, in structures of every length with which consumers were
//! compiled.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::*;

use crate::common::{open, verbs};

/// An opened device, closed when dropped.
struct Opened(*mut ibv_context);

impl Opened {
    fn ops(&self) -> &verbs_context {
        // SAFETY: an open context.
        let whole = unsafe { verbs_get_ctx(self.0) };
        // SAFETY: every context of this device lies in a `verbs_context`, which lives as long;
        // nobody writes to its op table.
        unsafe { &*whole }
    }

    fn query_port(&self, port: u8, attr: *mut ibv_port_attr, len: usize) -> c_int {
        // SAFETY: an open context; the callers have `len` bytes.
        unsafe { self.ops().query_port.unwrap()(self.0, port, attr, len) }
    }

    fn query_device(
        &self,
        input: *const ibv_query_device_ex_input,
        attr: &mut ibv_device_attr_ex,
        size: usize,
    ) -> c_int {
        assert!(size <= size_of::<ibv_device_attr_ex>());
        // SAFETY: an open context; `attr` has at least `size` bytes.
        unsafe { self.ops().query_device_ex.unwrap()(self.0, input, attr, size) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: open, and not used any more.
        assert_eq!(unsafe { (verbs().ibv_close_device)(self.0) }, 0);
    }
}

#[test]
fn structures_of_every_length_are_filled_as_far_as_they_go() {
    let opened = Opened(open());
    let mut port = ibv_port_attr::default();
    for len in [48, 52, 56] {
        assert_eq!(opened.query_port(1, &raw mut port, len), 0);
        assert_eq!(
            (port.state, port.active_mtu, port.lid),
            (ibv_port_state::IBV_PORT_ACTIVE, ibv_mtu::IBV_MTU_4096, 0)
        );
    }
    let mut long = [0xff_u8; 72];
    assert_eq!(opened.query_port(1, long.as_mut_ptr().cast(), 72), 0);
    assert_eq!(long[56..], [0; 16]);
    let mut compat = [0xff_u8; 48];
    // SAFETY: 48 bytes, the size of the older structure that the symbol's callers pass.
    assert_eq!(unsafe { (verbs().ibv_query_port)(opened.0, 1, compat.as_mut_ptr().cast()) }, 0);
    // SAFETY: an open context; nothing is written for a port that does not exist.
    assert_eq!(unsafe { (verbs().ibv_query_port)(opened.0, 2, compat.as_mut_ptr().cast()) }, libc::EINVAL);

    let mut device = ibv_device_attr_ex::default();
    for size in [376, 384, 400] {
        assert_eq!(opened.query_device(ptr::null(), &mut device, size), 0);
        assert_eq!(device.orig_attr.phys_port_cnt, 1);
        assert_eq!(device.orig_attr.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_HCA, "what UCX looks for");
    }
    assert_eq!(device.phys_port_cnt_ex, 1);
    let eight_bytes = u16::try_from(ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0).unwrap();
    let caps = device.pci_atomic_caps;
    assert_eq!((caps.fetch_add, caps.swap, caps.compare_swap), (eight_bytes, 0, eight_bytes));
    // Without `pci_atomic_caps`, this value alone says that the processor's atomics count too.
    let mut plain = ibv_device_attr::default();
    // SAFETY: an open context, and space for the attributes.
    assert_eq!(unsafe { (verbs().ibv_query_device)(opened.0, &raw mut plain) }, 0);
    assert_eq!(plain.atomic_cap, ibv_atomic_cap::IBV_ATOMIC_GLOB);
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    assert_eq!(opened.query_device(&raw const input, &mut device, 400), libc::EINVAL);
}

#[test]
fn addresses_and_keys() {
    let opened = Opened(open());
    let mut port = ibv_port_attr::default();
    assert_eq!(opened.query_port(1, &raw mut port, 56), 0);
    let count = usize::try_from(port.gid_tbl_len).unwrap();
    let mut table = vec![ibv_gid_entry::default(); count];
    // SAFETY: space for `count` entries.
    let filled =
        unsafe { (verbs()._ibv_query_gid_table)(opened.0, table.as_mut_ptr(), count, 0, size_of::<ibv_gid_entry>()) };
    assert_eq!(filled, isize::try_from(count).unwrap());
    // SAFETY: space for as many entries as the argument says.
    let short = unsafe {
        (verbs()._ibv_query_gid_table)(opened.0, table.as_mut_ptr(), count - 1, 0, size_of::<ibv_gid_entry>())
    };
    assert_eq!(short, -isize::try_from(libc::EINVAL).unwrap());
    for (index, expected) in table.iter().enumerate() {
        let mut entry = ibv_gid_entry::default();
        let number = u32::try_from(index).unwrap();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: space for an entry.
        let asked = unsafe { (verbs()._ibv_query_gid_ex)(opened.0, 1, number, &raw mut entry, 0, size) };
        assert_eq!(asked, 0);
        assert_eq!((entry.gid_index, entry.port_num), (number, 1));
        assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0);
        let mut gid = ibv_gid::default();
        // SAFETY: space for a GID.
        assert_eq!(unsafe { (verbs().ibv_query_gid)(opened.0, 1, c_int::try_from(index).unwrap(), &raw mut gid) }, 0);
        // SAFETY: every bit pattern is a valid GID.
        let raw = |gid: ibv_gid| unsafe { gid.raw };
        assert_eq!(raw(gid), raw(entry.gid));
        assert_eq!(raw(gid), raw(expected.gid));
    }
    let mut gid = ibv_gid::default();
    for index in [-1, c_int::try_from(count).unwrap()] {
        // SAFETY: space for a GID.
        assert_eq!(unsafe { (verbs().ibv_query_gid)(opened.0, 1, index, &raw mut gid) }, -1);
    }
    let mut pkey = 0;
    // SAFETY: space for a key.
    assert_eq!(unsafe { (verbs().ibv_query_pkey)(opened.0, 1, 0, &raw mut pkey) }, 0);
    assert_eq!(pkey, 0xffff);
    // SAFETY: space for a key.
    assert_eq!(unsafe { (verbs().ibv_query_pkey)(opened.0, 1, 1, &raw mut pkey) }, -1);
    // SAFETY: an open context.
    assert_eq!(unsafe { (verbs().ibv_get_pkey_index)(opened.0, 1, 0xffff_u16.to_be()) }, 0);
    // SAFETY: an open context.
    assert_eq!(unsafe { (verbs().ibv_get_pkey_index)(opened.0, 1, 0x7fff_u16.to_be()) }, -1);
    // SAFETY: an open context.
    assert_eq!(unsafe { (verbs().ibv_get_pkey_index)(opened.0, 1, 0x1234_u16.to_be()) }, -1);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (verbs().ibv_query_gid)(ptr::null_mut(), 1, 0, &raw mut gid) }, -1);
}
