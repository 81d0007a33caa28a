//! Queue pairs.

use super::{Unsupported, checked, unchecked};
use crate::bindings::*;
use libc::c_int;

unchecked! {
    /// Posts a list of send requests. On failure `bad_wr` is the first request that was not taken.
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int = [context] post_send;
    /// Posts a list of receive requests. On failure `bad_wr` is the first request that was not
    /// taken.
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int = [context] post_recv;
}

checked! {
    /// Opens a shareable queue pair.
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = extended [context] open_qp;
    /// Limits a queue pair's rate.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = extended [qp.context] modify_qp_rate_limit;
}

/// Whether a mask of queue pair types, such as `ibv_rss_caps::supported_qpts`, has this type.
#[inline]
#[must_use]
pub fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> c_int {
    // On the supported targets C shifts by the low five bits of the type.
    c_int::from(caps & 1u32.wrapping_shl(qpt.0) != 0)
}

/// The UDP source port of RoCE v2 for an IPv6 flow label.
#[inline]
#[must_use]
pub fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    let low = (fl & 0x03fff) ^ ((fl & 0xfc000) >> 14);
    #[allow(clippy::cast_possible_truncation, reason = "14 bits, and the two that mark the port range")]
    let port = (low | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN) as u16;
    port
}
