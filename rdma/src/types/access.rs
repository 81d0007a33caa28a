//! What peers may do.

use rdma_sys::ibv_access_flags;

bitflags::bitflags! {
    /// The operations that peers may do.
    ///
    /// Rights are given twice: to a region, for its memory, and to a queue pair, as a limit for its
    /// peer. An operation needs both.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RemoteAccess: u32 {
        /// RDMA reads.
        const READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// RDMA writes.
        const WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Compare-and-swap and fetch-and-add.
        const ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_kept() {
        assert_eq!(RemoteAccess::from_bits_retain(1 << 30).bits(), 1 << 30);
    }
}
