//! The largest payload of a packet.

use rdma_sys as sys;

use super::c_enum::c_enum;

c_enum! {
    /// The largest payload of a packet on a path.
    #[doc(alias = "ibv_mtu")]
    Mtu(u32) {
        /// 256 bytes.
        MTU_256 = sys::ibv_mtu::IBV_MTU_256.0, "256";
        /// 512 bytes.
        MTU_512 = sys::ibv_mtu::IBV_MTU_512.0, "512";
        /// 1024 bytes.
        MTU_1024 = sys::ibv_mtu::IBV_MTU_1024.0, "1024";
        /// 2048 bytes.
        MTU_2048 = sys::ibv_mtu::IBV_MTU_2048.0, "2048";
        /// 4096 bytes.
        MTU_4096 = sys::ibv_mtu::IBV_MTU_4096.0, "4096";
    }
}

impl Mtu {
    /// The size in bytes, if the value is one of the five known.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The MTU of exactly this many bytes, if there is one.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Some(Self(bytes.trailing_zeros() - 7)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_convert_both_ways() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(Mtu::from_bytes(bytes).unwrap().bytes(), Some(bytes));
        }
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::from_raw(0).bytes(), None);
        assert_eq!(Mtu::from_raw(77).bytes(), None);
    }
}
