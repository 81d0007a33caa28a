//! The source of a received datagram.

use rdma_sys::{ibv_ah_attr, ibv_wc, ibv_wc_flags};

use super::Grh;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::types::{Lid, Path, Route};

/// Hop limit of an answer.
const HOPS: u8 = 64;

/// The source of a datagram, from its completion and its GRH: plain data, to answer the sender or
/// to tell peers apart.
///
/// The source is not authenticated: any host can claim to be another.
#[doc(alias = "ibv_wc")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Source {
    /// The sender's queue pair number.
    #[doc(alias = "src_qp")]
    pub qpn: u32,
    /// The sender's LID, on InfiniBand.
    #[doc(alias = "slid")]
    pub lid: Lid,
    /// The service level of the datagram, on InfiniBand.
    #[doc(alias = "sl")]
    pub service_level: u8,
    /// The low bits of our LID that the datagram was sent to, on InfiniBand.
    #[doc(alias = "dlid_path_bits")]
    pub path_bits: u8,
    /// The index of the datagram's partition key.
    pub pkey_index: u16,
    /// The datagram's GRH. `None` if it came without one (InfiniBand, within a subnet), or if the
    /// receive's first segment is too short for it or on a GPU.
    pub grh: Option<Grh>,
}

impl Source {
    pub(crate) fn new(wc: &ibv_wc, header: impl FnOnce() -> Option<Grh>) -> Self {
        let has_grh = wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
        Self {
            qpn: wc.src_qp,
            lid: Lid(wc.slid),
            service_level: wc.sl,
            path_bits: wc.dlid_path_bits,
            pkey_index: wc.pkey_index,
            grh: if has_grh { header() } else { None },
        }
    }

    /// The path back to the sender, from our GID at `source_index`; makes no query.
    #[must_use]
    pub fn path(&self, port: u8, source_index: u8) -> Path {
        let route = self.grh.map(|grh| Route {
            gid: grh.source_gid(),
            source_index,
            hop_limit: HOPS,
            traffic_class: grh.traffic_class(),
            flow_label: grh.flow_label(),
        });
        Path {
            port,
            lid: self.lid,
            route,
            service_level: self.service_level,
            source_path_bits: self.path_bits,
            static_rate: 0,
        }
    }

    /// The path back to the sender, as the library finds it: the port's GIDs are searched for the
    /// GID that the datagram was sent to.
    ///
    /// # Errors
    ///
    /// `NotFound` if that GID is not one of the port's. This includes every datagram to a multicast
    /// group: use [`path`](Self::path) for those.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn query_path(&self, context: &Context, port: u8) -> Result<Path> {
        context.inner.check(Verb::CreateAh)?;
        let not_found = Error::new(Verb::CreateAh, ErrorKind::NotFound);
        if port == 0 || port > context.port_count() || self.is_to_a_group() {
            return Err(not_found);
        }
        let flags = if self.grh.is_some() { ibv_wc_flags::IBV_WC_GRH.0 } else { 0 };
        let mut wc = ibv_wc {
            src_qp: self.qpn,
            wc_flags: flags,
            pkey_index: self.pkey_index,
            slid: self.lid.0,
            sl: self.service_level,
            dlid_path_bits: self.path_bits,
            ..ibv_wc::default()
        };
        let mut grh = self.grh.unwrap_or(Grh::from_bytes([0; Grh::LEN])).to_raw();
        let mut attr = ibv_ah_attr::default();
        let table = context.table();
        // SAFETY: ibv_init_ah_from_wc requires an open context, which `context` keeps open, a
        // completion and a header to read, and space for the attributes; this is no forked child
        // (checked above).
        let call =
            || unsafe { (table.ibv_init_ah_from_wc)(context.as_raw(), port, &raw mut wc, &raw mut grh, &raw mut attr) };
        match Error::check(Verb::CreateAh, call) {
            Ok(()) => Ok(Path::from_raw(&attr)),
            Err(error) if error.kind() == ErrorKind::NotSupported => Err(error),
            // The library's search ends when it queries past the last GID, and reports that failure
            // in different ways.
            Err(_) => Err(not_found),
        }
    }

    /// Whether the datagram was sent to a multicast group.
    #[must_use]
    pub fn is_to_a_group(&self) -> bool {
        self.grh.is_some_and(|grh| grh.destination_gid().is_multicast())
    }
}
