//! Unreliable connections: bring-up without the attributes of acknowledgements.

use super::attr::QpAttr;
use super::bring_up::{self, ConnectOptions, Endpoints, InitOptions, Local};
use super::transport::{Connected, Transport, Uc};
use super::{QpBuilder, QueuePair};
use crate::context::Context;
use crate::error::Result;
use crate::pd::ProtectionDomain;
use crate::types::{Capabilities, RemoteAccess};

impl QueuePair<Uc> {
    /// Starts the configuration of an unreliable connected queue pair in a domain.
    pub fn unreliable(pd: &ProtectionDomain) -> QpBuilder<Uc> {
        QpBuilder::new(pd)
    }
}

impl Transport for Uc {
    const TYPE: rdma_sys::ibv_qp_type = rdma_sys::ibv_qp_type::IBV_QPT_UC;
    const IS_DATAGRAM: bool = false;
    type InitOptions = InitOptions;
    type Start = Local;

    fn is_supported(capabilities: &Capabilities) -> bool {
        capabilities.unreliable_connections
    }

    fn init(qp: &mut QueuePair<Self>, options: &InitOptions) -> Result<Local> {
        bring_up::init(qp, options)
    }

    fn init_with(qp: &mut QueuePair<Self>, attr: &QpAttr) -> Result<Local> {
        bring_up::init_with(qp, attr)
    }
}

impl Connected for Uc {
    fn all_access(_: &Context) -> RemoteAccess {
        RemoteAccess::WRITE
    }

    fn responder_resources(_: &Context) -> u8 {
        0
    }

    fn ready_to_receive(attr: QpAttr, _: &Endpoints, _: &ConnectOptions) -> QpAttr {
        attr
    }

    fn ready_to_send(attr: QpAttr, _: &Endpoints, _: &ConnectOptions) -> QpAttr {
        attr
    }
}
