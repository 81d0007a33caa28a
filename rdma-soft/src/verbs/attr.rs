//! Attributes of the device and of its port, GID table and P_Key table.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;

use rdma_sys::{
    _compat_ibv_port_attr, IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_atomic_cap, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_device_cap_flags, ibv_gid, ibv_gid_entry, ibv_mtu, ibv_odp_caps,
    ibv_odp_general_caps, ibv_odp_transport_cap_bits, ibv_pci_atomic_op_size, ibv_port_attr, ibv_port_cap_flags,
    ibv_port_state, ibv_query_device_ex_input, ibv_values_ex, ibv_values_mask,
};

use super::call::{Done, Handle, InConst, InOut, MinusOne, Out};
use super::context::ContextState;
use super::device::LinkLayer;
use super::qp_state::Limits;
use super::{Errno, on_demand};
use crate::engine::limits;
use crate::node::Node;
use crate::os;

/// Number of the device's only port.
pub(crate) const PORT: u8 = 1;
/// The only partition key: full membership of the default partition.
pub(crate) const PKEY: u16 = 0xffff;
pub(crate) const MTU: ibv_mtu = ibv_mtu::IBV_MTU_4096;

/// Converts a count to the `int` of the attribute structures; caps it at `INT_MAX`.
fn int(count: u32) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn device_attr(context: &ContextState) -> ibv_device_attr {
    let mut fw_ver: [c_char; 64] = [0; 64];
    for (to, &from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").as_bytes()) {
        *to = from as c_char;
    }
    let guid = context.device().guid.to_be();
    let sge = int(u32::try_from(limits::MAX_SGE).unwrap_or(u32::MAX));
    let rd_atomic = c_int::from(limits::MAX_RD_ATOMIC);
    ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX >> 1,
        page_size_cap: 0xffff_f000,
        // Not a registered vendor id.
        vendor_id: 0x00ff_ffff,
        vendor_part_id: 0,
        hw_ver: 1,
        // A process claims further slots of `QPS_PER_SLOT` queue pairs on demand.
        max_qp: int(limits::QPS_PER_SLOT.saturating_mul(16)),
        max_qp_wr: int(limits::MAX_QP_WR),
        device_cap_flags: ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID.0
            | ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0
            | ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0
            | ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0
            | ibv_device_cap_flags::IBV_DEVICE_UD_AV_PORT_ENFORCE.0,
        max_sge: sge,
        max_sge_rd: sge,
        max_cq: int(limits::MAX_CQ),
        max_cqe: int(limits::MAX_CQE),
        max_srq: int(limits::MAX_SRQ),
        max_srq_wr: int(limits::MAX_SRQ_WR),
        max_srq_sge: sge,
        max_mr: int(limits::MAX_MR),
        max_pd: int(limits::MAX_PD),
        max_qp_rd_atom: rd_atomic,
        max_res_rd_atom: rd_atomic.saturating_mul(int(limits::QPS_PER_SLOT)),
        max_qp_init_rd_atom: rd_atomic,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_GLOB,
        max_pkeys: 1,
        max_ah: int(limits::MAX_AH),
        max_mcast_grp: int(limits::MAX_GROUPS),
        max_mcast_qp_attach: int(limits::MAX_GROUP_QPS),
        max_total_mcast_qp_attach: int(limits::MAX_ATTACHMENTS),
        local_ca_ack_delay: 15,
        phys_port_cnt: PORT,
        ..Default::default()
    }
}

fn device_attr_ex(context: &ContextState) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex {
        orig_attr: device_attr(context),
        device_cap_flags_ex: 0,
        phys_port_cnt_ex: u32::from(PORT),
        ..Default::default()
    };
    attr.device_cap_flags_ex = u64::from(attr.orig_attr.device_cap_flags);
    // As with a NIC's driver, `pci_atomic_caps` says that the processor's atomics count too. UCX
    // before 1.16 takes `IBV_ATOMIC_GLOB` for a device without atomics.
    attr.orig_attr.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_HCA;
    let [fetch_add, compare_swap] = [(); 2]
        .map(|()| u16::try_from(ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0).unwrap_or(0));
    attr.pci_atomic_caps.fetch_add = fetch_add;
    attr.pci_atomic_caps.compare_swap = compare_swap;
    attr.odp_caps = odp_caps();
    attr.max_dm_size = limits::MAX_DM as u64;
    // Completions have the time of the system's monotonic clock, in nanoseconds: 10^6 kHz.
    (attr.completion_timestamp_mask, attr.hca_core_clock) = (u64::MAX, 1_000_000);
    attr
}

/// The transports and operations that can use on-demand regions. Atomics cannot: the kernel has no
/// atomic operation of 64 bits on memory that may be unmapped.
fn odp_caps() -> ibv_odp_caps {
    type Bits = ibv_odp_transport_cap_bits;
    let mut caps = ibv_odp_caps::default();
    if on_demand::is_supported() {
        caps.general_caps =
            u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0 | ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0);
        caps.per_transport_caps.rc_odp_caps = Bits::IBV_ODP_SUPPORT_SEND.0
            | Bits::IBV_ODP_SUPPORT_RECV.0
            | Bits::IBV_ODP_SUPPORT_WRITE.0
            | Bits::IBV_ODP_SUPPORT_READ.0
            | Bits::IBV_ODP_SUPPORT_SRQ_RECV.0;
    }
    caps
}

fn port_attr(context: &ContextState) -> ibv_port_attr {
    let (link_layer, flags, lid) = match context.link_layer() {
        LinkLayer::Ethernet => (IBV_LINK_LAYER_ETHERNET, ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0, 0),
        LinkLayer::InfiniBand => (IBV_LINK_LAYER_INFINIBAND, 0, context.device().lid()),
    };
    // 5 and 3 are "LinkUp" and "Disabled".
    let (state, phys_state) = if Node::get().is_ok_and(|node| node.with(|engine| engine.port_is_down())) {
        (ibv_port_state::IBV_PORT_DOWN, 3)
    } else {
        (ibv_port_state::IBV_PORT_ACTIVE, 5)
    };
    ibv_port_attr {
        state,
        max_mtu: MTU,
        active_mtu: MTU,
        gid_tbl_len: int(u32::try_from(context.gids().len()).unwrap_or(u32::MAX)),
        port_cap_flags: flags | ibv_port_cap_flags::IBV_PORT_CM_SUP.0,
        max_msg_sz: limits::MAX_MESSAGE,
        pkey_tbl_len: 1,
        lid,
        sm_lid: lid,
        max_vl_num: 1,
        subnet_timeout: 18,
        // 4x at 25 Gbit/s per lane: 100 Gbit/s, the order of magnitude of a memory copy.
        active_width: 2,
        active_speed: 32,
        phys_state,
        link_layer: u8::try_from(link_layer).unwrap_or(0),
        ..Default::default()
    }
}

/// Limits against which `modify_qp` checks the values of attributes.
pub(crate) fn qp_limits(context: &ContextState) -> Limits {
    Limits {
        ports: PORT,
        pkeys: 1,
        gids: context.gids().len(),
        max_mtu: MTU.0,
        max_rd_atomic: limits::MAX_RD_ATOMIC,
        max_dest_rd_atomic: limits::MAX_RD_ATOMIC,
        global_only: context.link_layer() == LinkLayer::Ethernet,
    }
}

/// `ibv_query_device`.
pub(super) fn query_device(context: Handle<ibv_context>, attr: Out<ibv_device_attr>) -> Done {
    attr.write(device_attr(context.get()?))
}

/// The context's `query_device_ex`.
pub(super) fn query_device_ex(
    context: Handle<ibv_context>,
    input: InConst<ibv_query_device_ex_input>,
    attr: Out<ibv_device_attr_ex>,
    attr_size: usize,
) -> Done {
    let context = context.get()?;
    if input.optional().is_some_and(|input| input.comp_mask != 0) || attr_size < size_of::<ibv_device_attr>() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `write_as` requires the size of the caller's structure: C passes this size with it.
    unsafe { attr.write_as(&device_attr_ex(context), attr_size) }
}

pub(super) fn check_port(port: u32) -> Done {
    if port == u32::from(PORT) { Ok(()) } else { Err(Errno::INVAL) }
}

/// The context's `query_rt_values`: the device's clock, which completions with timestamps have.
pub(super) fn query_rt_values(context: Handle<ibv_context>, mut values: InOut<ibv_values_ex>) -> Done {
    context.get()?;
    let values = values.get()?;
    let clock = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    if values.comp_mask & !clock != 0 {
        return Err(Errno::INVAL);
    }
    if values.comp_mask & clock != 0 {
        // As with mlx5, the second half has the whole value.
        let nanos = libc::c_long::try_from(os::now().0).unwrap_or(libc::c_long::MAX);
        (values.raw_clock.tv_sec, values.raw_clock.tv_nsec) = (0, nanos);
    }
    Ok(())
}

/// The context's `query_port`.
pub(super) fn query_port(context: Handle<ibv_context>, port: u8, attr: Out<ibv_port_attr>, len: usize) -> Done {
    let context = context.get()?;
    check_port(u32::from(port))?;
    // SAFETY: `write_as` requires the size of the caller's structure: C passes this size with it.
    unsafe { attr.write_as(&port_attr(context), len) }
}

/// `ibv_query_port` as an exported symbol. Callers pass the older structure, which ends with
/// `flags`.
pub(super) fn query_port_compat(context: Handle<ibv_context>, port: u8, attr: Out<_compat_ibv_port_attr>) -> Done {
    // SAFETY: `at` requires that promise 2 covers the structure: the older one is the beginning of
    // the newer one, and `query_port` writes no more than the length passed here.
    query_port(context, port, unsafe { attr.at(0) }, offset_of!(ibv_port_attr, port_cap_flags2))
}

/// `ibv_query_port_speed`, in units of 100 Mbit/s.
pub(super) fn query_port_speed(context: Handle<ibv_context>, port: u32, speed: Out<u64>) -> Done {
    context.get()?;
    check_port(port)?;
    speed.write(1000)
}

fn gid_entry(context: &ContextState, index: usize) -> Result<ibv_gid_entry, Errno> {
    let entry = context.gids().get(index).ok_or(Errno::INVAL)?;
    Ok(ibv_gid_entry {
        gid: entry.gid,
        gid_index: u32::try_from(index).map_err(|_| Errno::INVAL)?,
        port_num: u32::from(PORT),
        gid_type: entry.gid_type.0,
        ndev_ifindex: entry.interface,
    })
}

/// `ibv_query_gid`.
pub(super) fn query_gid(
    context: Handle<ibv_context>,
    port: u8,
    index: c_int,
    gid: Out<ibv_gid>,
) -> Result<(), MinusOne> {
    let context = context.get()?;
    check_port(u32::from(port))?;
    let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
    Ok(gid.write(gid_entry(context, index)?.gid)?)
}

/// `_ibv_query_gid_ex`.
pub(super) fn query_gid_ex(
    context: Handle<ibv_context>,
    port: u32,
    index: u32,
    entry: Out<ibv_gid_entry>,
    flags: u32,
    entry_size: usize,
) -> Done {
    let context = context.get()?;
    check_port(port)?;
    if flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let found = gid_entry(context, usize::try_from(index).map_err(|_| Errno::INVAL)?)?;
    // SAFETY: `write_as` requires the size of the caller's structure: C passes this size with it.
    unsafe { entry.write_as(&found, entry_size) }
}

/// `_ibv_query_gid_table`: returns the number of entries written, or a negative error number.
pub(super) fn query_gid_table(
    context: Handle<ibv_context>,
    entries: Out<ibv_gid_entry>,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let filled = context.get().and_then(|context| {
        let count = context.gids().len();
        if flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let is_sane = entry_size != 0 && entry_size.checked_mul(count).is_some_and(|len| isize::try_from(len).is_ok());
        if count > max_entries || !is_sane {
            return Err(Errno::INVAL);
        }
        for index in 0..count {
            // SAFETY: `at` requires that promise 2 covers the entry: C's array has `max_entries`
            // entries of `entry_size` bytes, and `index < count <= max_entries`.
            let entry = unsafe { entries.at(index * entry_size) };
            // SAFETY: `write_as` requires the size of the caller's structure: C passes
            // `entry_size`.
            unsafe { entry.write_as(&gid_entry(context, index)?, entry_size) }?;
        }
        Ok(count)
    });
    match filled {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        Err(errno) => isize::try_from(-errno.0).unwrap_or(-1),
    }
}

/// `ibv_query_pkey`.
pub(super) fn query_pkey(context: Handle<ibv_context>, port: u8, index: c_int, pkey: Out<u16>) -> Result<(), MinusOne> {
    context.get()?;
    check_port(u32::from(port))?;
    if index == 0 { Ok(pkey.write(PKEY.to_be())?) } else { Err(Errno::INVAL.into()) }
}

/// `ibv_get_pkey_index`. `pkey` is in network byte order; as in libibverbs, the membership bit at
/// its top counts too.
pub(super) fn get_pkey_index(context: Handle<ibv_context>, port: u8, pkey: u16) -> Result<(), MinusOne> {
    context.get()?;
    check_port(u32::from(port))?;
    if u16::from_be(pkey) == PKEY { Ok(()) } else { Err(Errno::INVAL.into()) }
}
