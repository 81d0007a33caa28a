//! The states of ports.

use rdma_sys as sys;

use super::c_enum::c_enum;

c_enum! {
    /// The logical state of a port.
    #[doc(alias = "ibv_port_state")]
    PortState(u32) {
        /// No state.
        NOP = sys::ibv_port_state::IBV_PORT_NOP.0, "PORT_NOP";
        /// No link.
        DOWN = sys::ibv_port_state::IBV_PORT_DOWN.0, "PORT_DOWN";
        /// Linked; the subnet manager has not configured it.
        INIT = sys::ibv_port_state::IBV_PORT_INIT.0, "PORT_INIT";
        /// Configured, about to become active.
        ARMED = sys::ibv_port_state::IBV_PORT_ARMED.0, "PORT_ARMED";
        /// In use.
        ACTIVE = sys::ibv_port_state::IBV_PORT_ACTIVE.0, "PORT_ACTIVE";
        /// In use, with a link that is being repaired.
        ACTIVE_DEFER = sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER.0, "PORT_ACTIVE_DEFER";
    }
}

c_enum! {
    /// The physical state of a port.
    PhysState(u8) {
        /// Not connecting.
        SLEEP = 1, "SLEEP";
        /// Looking for a partner.
        POLLING = 2, "POLLING";
        /// Switched off.
        DISABLED = 3, "DISABLED";
        /// Training.
        TRAINING = 4, "PORT_CONFIGURATION TRAINING";
        /// The link is up.
        LINK_UP = 5, "LINK_UP";
        /// Recovering from errors.
        RECOVERY = 6, "LINK_ERROR_RECOVERY";
        /// A test of the link.
        PHY_TEST = 7, "PHY TEST";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_kept_and_shown() {
        let state = PortState::from_raw(99);
        assert_eq!(state.as_raw(), 99);
        assert_eq!(state.to_string(), "unknown (99)");
        assert_eq!(format!("{state:?}"), "PortState(99)");
        assert_eq!(format!("{:?}", PortState::ACTIVE), "ACTIVE");
    }
}
