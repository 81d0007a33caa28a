//! What a device and its ports can do, as they report it.

use std::ffi::CStr;
use std::fmt;

use rdma_sys::{ibv_device_attr, ibv_device_attr_ex, ibv_odp_general_caps, ibv_port_attr};

use crate::types::{AtomicCapability, Guid, Lid, LinkLayer, Mtu, PhysState, PortState};

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $field:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> u32 {
            u32::try_from(self.0.$field).unwrap_or(0)
        }
    )*};
}

/// What a device can do.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Copy, Default)]
pub struct DeviceAttr(ibv_device_attr);

impl DeviceAttr {
    pub(crate) fn from_raw(raw: ibv_device_attr) -> Self {
        Self(raw)
    }

    /// The C structure.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_device_attr {
        &self.0
    }

    /// The firmware's version.
    #[must_use]
    pub fn firmware(&self) -> String {
        let bytes = self.0.fw_ver.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes()));
        CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The node's globally unique name.
    #[must_use]
    pub fn node_guid(&self) -> Guid {
        Guid::from_be(self.0.node_guid)
    }

    /// The system's globally unique name, shared by the devices of one card.
    #[must_use]
    pub fn system_guid(&self) -> Guid {
        Guid::from_be(self.0.sys_image_guid)
    }

    /// The largest memory region, in bytes.
    #[must_use]
    pub fn max_mr_size(&self) -> u64 {
        self.0.max_mr_size
    }

    /// The page sizes that it supports, one bit each.
    #[must_use]
    pub fn page_sizes(&self) -> u64 {
        self.0.page_size_cap
    }

    /// With whom its atomic operations are atomic.
    #[must_use]
    pub fn atomic_capability(&self) -> AtomicCapability {
        AtomicCapability::from_raw(self.0.atomic_cap.0)
    }

    /// The number of ports.
    #[must_use]
    pub fn port_count(&self) -> u8 {
        self.0.phys_port_cnt
    }

    limits! {
        /// The vendor's number.
        vendor_id = vendor_id;
        /// The vendor's number for the part.
        vendor_part_id = vendor_part_id;
        /// The hardware's version.
        hardware_version = hw_ver;
        /// Capability bits (`ibv_device_cap_flags`).
        capabilities = device_cap_flags;
        /// Queue pairs.
        max_qp = max_qp;
        /// Work requests outstanding in one queue.
        max_qp_wr = max_qp_wr;
        /// Scatter/gather entries of one request.
        max_sge = max_sge;
        /// Scatter/gather entries of one RDMA read.
        max_sge_rd = max_sge_rd;
        /// Completion queues.
        max_cq = max_cq;
        /// Entries of one completion queue.
        max_cqe = max_cqe;
        /// Memory regions.
        max_mr = max_mr;
        /// Protection domains.
        max_pd = max_pd;
        /// RDMA reads and atomics that one queue pair can have in service as the responder.
        max_qp_rd_atom = max_qp_rd_atom;
        /// RDMA reads and atomics in service in all queue pairs.
        max_res_rd_atom = max_res_rd_atom;
        /// RDMA reads and atomics that one queue pair can have outstanding as the requester.
        max_qp_init_rd_atom = max_qp_init_rd_atom;
        /// Memory windows.
        max_mw = max_mw;
        /// Address handles.
        max_ah = max_ah;
        /// Shared receive queues.
        max_srq = max_srq;
        /// Work requests in one shared receive queue.
        max_srq_wr = max_srq_wr;
        /// Scatter/gather entries of one shared receive.
        max_srq_sge = max_srq_sge;
        /// Entries of the P_Key tables.
        max_pkeys = max_pkeys;
    }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttr")
            .field("node_guid", &self.node_guid())
            .field("port_count", &self.port_count())
            .field("atomic_capability", &self.atomic_capability())
            .field("max_qp_wr", &self.max_qp_wr())
            .field("max_sge", &self.max_sge())
            .field("max_cqe", &self.max_cqe())
            .finish_non_exhaustive()
    }
}

/// What a device can do beyond [`DeviceAttr`]: [`Context::device_attr_ex`](crate::Context::device_attr_ex).
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Copy)]
pub struct DeviceAttrEx(ibv_device_attr_ex);

impl DeviceAttrEx {
    pub(crate) fn from_raw(raw: ibv_device_attr_ex) -> Self {
        Self(raw)
    }

    /// The C structure. What a provider does not know is zero.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_device_attr_ex {
        &self.0
    }

    /// The bits that a completion's time stamp has; 0 if it has none.
    #[must_use]
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.0.completion_timestamp_mask
    }

    /// The frequency of the clock that makes time stamps, in kHz.
    #[must_use]
    pub fn core_clock_khz(&self) -> u64 {
        self.0.hca_core_clock
    }

    /// Whether memory can be registered that is not pinned (on-demand paging).
    #[must_use]
    pub fn on_demand_paging(&self) -> bool {
        self.0.odp_caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0
    }

    /// The device's own memory that programs can allocate, in bytes.
    #[must_use]
    pub fn max_device_memory(&self) -> u64 {
        self.0.max_dm_size
    }
}

impl fmt::Debug for DeviceAttrEx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttrEx")
            .field("completion_timestamp_mask", &self.completion_timestamp_mask())
            .field("core_clock_khz", &self.core_clock_khz())
            .field("on_demand_paging", &self.on_demand_paging())
            .field("max_device_memory", &self.max_device_memory())
            .finish_non_exhaustive()
    }
}

/// The state of a port.
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Copy)]
pub struct PortAttr(ibv_port_attr);

impl PortAttr {
    pub(crate) fn from_raw(raw: ibv_port_attr) -> Self {
        Self(raw)
    }

    /// The C structure.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_port_attr {
        &self.0
    }

    /// The logical state.
    #[must_use]
    pub fn state(&self) -> PortState {
        PortState::from_raw(self.0.state.0)
    }

    /// The physical state.
    #[must_use]
    pub fn phys_state(&self) -> PhysState {
        PhysState::from_raw(self.0.phys_state)
    }

    /// The largest MTU that it supports.
    #[must_use]
    pub fn max_mtu(&self) -> Mtu {
        Mtu::from_raw(self.0.max_mtu.0)
    }

    /// The MTU in use.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        Mtu::from_raw(self.0.active_mtu.0)
    }

    /// The kind of network.
    #[must_use]
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.0.link_layer)
    }

    /// The local identifier.
    #[must_use]
    pub fn lid(&self) -> Lid {
        Lid(self.0.lid)
    }

    /// How many low bits of the LID are free for path selection.
    #[must_use]
    pub fn lmc(&self) -> u8 {
        self.0.lmc
    }

    /// The subnet manager's LID.
    #[must_use]
    pub fn sm_lid(&self) -> Lid {
        Lid(self.0.sm_lid)
    }

    /// The longest message, in bytes.
    #[must_use]
    pub fn max_message_size(&self) -> u32 {
        self.0.max_msg_sz
    }

    /// The number of entries of the GID table.
    #[must_use]
    pub fn gid_table_len(&self) -> u32 {
        u32::try_from(self.0.gid_tbl_len).unwrap_or(0)
    }

    /// The number of entries of the P_Key table.
    #[must_use]
    pub fn pkey_table_len(&self) -> u16 {
        self.0.pkey_tbl_len
    }

    /// The number of lanes, if known.
    #[must_use]
    pub fn lanes(&self) -> Option<u8> {
        match self.0.active_width {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }

    /// The speed of one lane in tenths of Gbit/s, if known.
    #[must_use]
    pub fn lane_speed(&self) -> Option<u32> {
        let code = if self.0.active_speed_ex != 0 { self.0.active_speed_ex } else { u32::from(self.0.active_speed) };
        match code {
            1 => Some(25),
            2 => Some(50),
            4 | 8 => Some(100),
            16 => Some(140),
            32 => Some(250),
            64 => Some(500),
            128 => Some(1000),
            256 => Some(2000),
            _ => None,
        }
    }
}

impl fmt::Debug for PortAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortAttr")
            .field("state", &self.state())
            .field("link_layer", &self.link_layer())
            .field("active_mtu", &self.active_mtu())
            .field("lid", &self.lid())
            .finish_non_exhaustive()
    }
}
