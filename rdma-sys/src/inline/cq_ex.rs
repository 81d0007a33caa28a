//! Polling an extended completion queue: `ibv_start_poll`, then readers and `ibv_next_poll`, then
//! `ibv_end_poll`.

use super::unchecked;
use crate::bindings::*;
use libc::{c_int, c_uint};

/// Converts an extended completion queue to the plain form of the same queue.
#[inline]
#[must_use]
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

unchecked! {
    /// Begins to poll and moves to the first completion: 0, `ENOENT` if there is none, or another
    /// errno value. After 0 the poll must be ended; otherwise it must not.
    fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int = [object] start_poll;
    /// Moves to the next completion: 0, `ENOENT` if there is none, or another errno value.
    fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int = [object] next_poll;
    /// Ends a poll.
    fn ibv_end_poll(cq: *mut ibv_cq_ex) = [object] end_poll;
    /// The operation that completed.
    fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode = [object] read_opcode;
    /// The vendor's error code.
    fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 = [object] read_vendor_err;
    /// The number of bytes.
    fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 = [object] read_byte_len;
    /// The immediate data.
    fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 = [object] read_imm_data;
    /// The key that the peer invalidated, from the slot of the immediate data.
    fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 = [object] read_imm_data;
    /// The local queue pair's number.
    fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 = [object] read_qp_num;
    /// The sending queue pair's number (UD).
    fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 = [object] read_src_qp;
    /// The flags, of [`ibv_wc_flags`].
    fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint = [object] read_wc_flags;
    /// The sender's LID (UD).
    fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 = [object] read_slid;
    /// The service level (UD).
    fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 = [object] read_sl;
    /// The path bits of the destination LID (UD).
    fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 = [object] read_dlid_path_bits;
    /// The device's time of the completion, in its clock's ticks.
    fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 = [object] read_completion_ts;
    /// The wall clock's time of the completion, in nanoseconds.
    fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 = [object] read_completion_wallclock_ns;
    /// The VLAN tag.
    fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 = [object] read_cvlan;
    /// The tag that a flow rule gave the packet.
    fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 = [object] read_flow_tag;
    /// The tag and the application's data of a matched message.
    fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) = [object] read_tm_info;
}
