//! Attributes of devices and ports: limits and capabilities.

use std::ffi::CStr;

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

/// The limits and capabilities of a device.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let attr = context.device_attr();
/// println!("firmware {}, up to {} queue pairs", attr.firmware(), attr.max_qp());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    getters! { raw =>
        /// The node's globally unique identifier.
        node_guid: Guid = Guid::from_be(raw.node_guid);
        /// The system's globally unique identifier, shared by the devices of one card.
        system_guid: Guid = Guid::from_be(raw.sys_image_guid);
        /// The largest memory region, in bytes.
        max_mr_size: u64 = raw.max_mr_size;
        /// The supported page sizes, one bit each.
        page_sizes: u64 = raw.page_size_cap;
        /// The operations with which the device's atomic operations are atomic.
        atomic_capability: AtomicCapability = AtomicCapability::from_raw(raw.atomic_cap.0);
        /// The number of ports.
        port_count: u8 = raw.phys_port_cnt;
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

debug_by_methods!(DeviceAttr: node_guid, port_count, atomic_capability, max_qp_wr, max_sge, max_cqe);

/// The capabilities that [`DeviceAttr`] lacks, from
/// [`Context::device_attr_ex`](crate::Context::device_attr_ex).
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// if context.device_attr_ex()?.on_demand_paging() {
///     println!("memory need not be pinned");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Clone, Copy)]
pub struct DeviceAttrEx(ibv_device_attr_ex);

impl DeviceAttrEx {
    pub(crate) fn from_raw(raw: ibv_device_attr_ex) -> Self {
        Self(raw)
    }

    /// The C structure. Fields that the provider does not fill are zero.
    #[must_use]
    pub fn as_raw(&self) -> &ibv_device_attr_ex {
        &self.0
    }

    getters! { raw =>
        /// The valid bits of a completion's time stamp; 0 if completions have none.
        completion_timestamp_mask: u64 = raw.completion_timestamp_mask;
        /// The frequency of the time stamp clock, in kHz.
        core_clock_khz: u64 = raw.hca_core_clock;
        /// Whether memory can be registered without pinning (on-demand paging).
        on_demand_paging: bool = raw.odp_caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0;
        /// Device memory that programs can allocate, in bytes.
        max_device_memory: u64 = raw.max_dm_size;
    }
}

debug_by_methods!(DeviceAttrEx: completion_timestamp_mask, core_clock_khz, on_demand_paging, max_device_memory);

/// The attributes of a port.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// use rdma::PortState;
///
/// let attr = context.port_attr(1)?;
/// if attr.state() == PortState::ACTIVE {
///     println!("messages of up to {} bytes", attr.max_message_size());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

    getters! { raw =>
        /// The logical state.
        state: PortState = PortState::from_raw(raw.state.0);
        /// The physical state.
        phys_state: PhysState = PhysState::from_raw(raw.phys_state);
        /// The largest MTU that the port supports.
        max_mtu: Mtu = Mtu::from_raw(raw.max_mtu.0);
        /// The MTU in use.
        active_mtu: Mtu = Mtu::from_raw(raw.active_mtu.0);
        /// The kind of network of the port.
        link_layer: LinkLayer = LinkLayer::from_raw(raw.link_layer);
        /// The local identifier.
        lid: Lid = Lid(raw.lid);
        /// The number of low LID bits that are free for path selection.
        lmc: u8 = raw.lmc;
        /// The subnet manager's LID.
        sm_lid: Lid = Lid(raw.sm_lid);
        /// The longest message, in bytes.
        max_message_size: u32 = raw.max_msg_sz;
        /// The number of entries of the GID table.
        gid_table_len: u32 = u32::try_from(raw.gid_tbl_len).unwrap_or(0);
        /// The number of entries of the P_Key table.
        pkey_table_len: u16 = raw.pkey_tbl_len;
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

debug_by_methods!(PortAttr: state, link_layer, active_mtu, lid);
