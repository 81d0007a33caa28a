//! The verbs that convert codes to text and rates to multiples or Mbit/s; they use no device.

use std::ffi::{CStr, c_char, c_int};

use rdma_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_rate, ibv_wc_status, ibv_wr_opcode};

/// The text for `code`, or `other` if the table has none.
fn word(table: &[&'static CStr], code: u32, other: &'static CStr) -> *const c_char {
    let index = usize::try_from(code).unwrap_or(usize::MAX);
    table.get(index).copied().unwrap_or(other).as_ptr()
}

/// `ibv_wc_status_str`.
pub(super) fn wc_status_str(status: ibv_wc_status) -> *const c_char {
    const WORDS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&WORDS, status.0, c"unknown")
}

/// `ibv_event_type_str`.
pub(super) fn event_type_str(event: ibv_event_type) -> *const c_char {
    const WORDS: [&CStr; 21] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    word(&WORDS, event.0, c"unknown")
}

/// `ibv_node_type_str`.
pub(super) fn node_type_str(node_type: ibv_node_type) -> *const c_char {
    const WORDS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(&WORDS, node_type.0 as u32, c"unknown")
}

/// `ibv_port_state_str`.
pub(super) fn port_state_str(state: ibv_port_state) -> *const c_char {
    const WORDS: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(&WORDS, state.0, c"unknown")
}

/// `ibv_wr_opcode_str`.
pub(super) fn wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    const WORDS: [&CStr; 16] = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    word(&WORDS, opcode.0, c"unknown")
}

/// The multiple of rates to which libibverbs gives none.
const NONE: c_int = -1;

/// Each rate with its multiple of 2.5 Gbit/s, as libibverbs rounds it, and its speed in Mbit/s.
const RATES: [(ibv_rate, c_int, c_int); 23] = [
    (ibv_rate::IBV_RATE_2_5_GBPS, 1, 2_500),
    (ibv_rate::IBV_RATE_5_GBPS, 2, 5_000),
    (ibv_rate::IBV_RATE_10_GBPS, 4, 10_000),
    (ibv_rate::IBV_RATE_20_GBPS, 8, 20_000),
    (ibv_rate::IBV_RATE_30_GBPS, 12, 30_000),
    (ibv_rate::IBV_RATE_40_GBPS, 16, 40_000),
    (ibv_rate::IBV_RATE_60_GBPS, 24, 60_000),
    (ibv_rate::IBV_RATE_80_GBPS, 32, 80_000),
    (ibv_rate::IBV_RATE_120_GBPS, 48, 120_000),
    (ibv_rate::IBV_RATE_14_GBPS, NONE, 14_062),
    (ibv_rate::IBV_RATE_56_GBPS, NONE, 56_250),
    (ibv_rate::IBV_RATE_112_GBPS, NONE, 112_500),
    (ibv_rate::IBV_RATE_168_GBPS, NONE, 168_750),
    (ibv_rate::IBV_RATE_25_GBPS, NONE, 25_781),
    (ibv_rate::IBV_RATE_100_GBPS, NONE, 103_125),
    (ibv_rate::IBV_RATE_200_GBPS, NONE, 206_250),
    (ibv_rate::IBV_RATE_300_GBPS, NONE, 309_375),
    (ibv_rate::IBV_RATE_28_GBPS, 11, 28_125),
    (ibv_rate::IBV_RATE_50_GBPS, 20, 53_125),
    (ibv_rate::IBV_RATE_400_GBPS, 160, 425_000),
    (ibv_rate::IBV_RATE_600_GBPS, 240, 637_500),
    (ibv_rate::IBV_RATE_800_GBPS, 320, 850_000),
    (ibv_rate::IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// `ibv_rate_to_mult`.
pub(super) fn rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate).map_or(NONE, |entry| entry.1)
}

/// `mult_to_ibv_rate`.
pub(super) fn mult_to_rate(mult: c_int) -> ibv_rate {
    let known = RATES.iter().find(|entry| mult != NONE && entry.1 == mult);
    known.map_or(ibv_rate::IBV_RATE_MAX, |entry| entry.0)
}

/// `ibv_rate_to_mbps`.
pub(super) fn rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|entry| entry.0 == rate).map_or(-1, |entry| entry.2)
}

/// `mbps_to_ibv_rate`.
pub(super) fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|entry| entry.2 == mbps).map_or(ibv_rate::IBV_RATE_MAX, |entry| entry.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> &'static str {
        // SAFETY: every function of this module returns a literal.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    }

    #[test]
    fn words() {
        assert_eq!(text(wc_status_str(ibv_wc_status::IBV_WC_SUCCESS)), "success");
        assert_eq!(text(wc_status_str(ibv_wc_status::IBV_WC_RETRY_EXC_ERR)), "transport retry counter exceeded");
        assert_eq!(text(wc_status_str(ibv_wc_status(99))), "unknown");
        assert_eq!(text(event_type_str(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED)), "last WQE reached");
        assert_eq!(text(node_type_str(ibv_node_type::IBV_NODE_CA)), "InfiniBand channel adapter");
        assert_eq!(text(node_type_str(ibv_node_type::IBV_NODE_UNKNOWN)), "unknown");
        assert_eq!(text(port_state_str(ibv_port_state::IBV_PORT_ACTIVE)), "active");
        assert_eq!(text(wr_opcode_str(ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM)), "rdma-write-with-imm");
        assert_eq!(text(wr_opcode_str(ibv_wr_opcode::IBV_WR_ATOMIC_WRITE)), "atomic-write");
        assert_eq!(text(wr_opcode_str(ibv_wr_opcode(12))), "unknown");
        assert_eq!(text(event_type_str(ibv_event_type::IBV_EVENT_DEVICE_SPEED_CHANGE)), "Device link speed change");
    }

    #[test]
    fn rates_go_both_ways() {
        for (rate, mult, mbps) in RATES {
            assert_eq!((rate_to_mult(rate), rate_to_mbps(rate)), (mult, mbps));
            assert_eq!(mbps_to_rate(mbps), rate);
            assert_eq!(mult_to_rate(mult), if mult == NONE { ibv_rate::IBV_RATE_MAX } else { rate });
        }
        assert_eq!(rate_to_mult(ibv_rate::IBV_RATE_MAX), -1);
        assert_eq!(rate_to_mult(ibv_rate::IBV_RATE_100_GBPS), -1);
        assert_eq!(mbps_to_rate(1), ibv_rate::IBV_RATE_MAX);
    }
}
