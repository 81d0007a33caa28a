//! Posting through an extended queue pair: `ibv_wr_start`, then one call per request and one or two
//! for its data, then `ibv_wr_complete`.

use super::unchecked;
use crate::bindings::*;
use libc::{c_int, c_void};

unchecked! {
    /// Adds an atomic compare-and-swap of 8 bytes.
    fn ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) = [object] wr_atomic_cmp_swp;
    /// Adds an atomic fetch-and-add of 8 bytes.
    fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) = [object] wr_atomic_fetch_add;
    /// Adds an atomic write of the 8 bytes at `atomic_wr`.
    fn ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) = [object] wr_atomic_write;
    /// Adds a binding of a memory window.
    fn ibv_wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info) = [object] wr_bind_mw;
    /// Adds a local invalidation of a key.
    fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = [object] wr_local_inv;
    /// Adds a read.
    fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = [object] wr_rdma_read;
    /// Adds a write.
    fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = [object] wr_rdma_write;
    /// Adds a write with immediate data.
    fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32) = [object] wr_rdma_write_imm;
    /// Adds a send.
    fn ibv_wr_send(qp: *mut ibv_qp_ex) = [object] wr_send;
    /// Adds a send with immediate data.
    fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) = [object] wr_send_imm;
    /// Adds a send that invalidates a key at the receiver.
    fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = [object] wr_send_inv;
    /// Adds a send that the device cuts into TCP segments of `mss` bytes.
    fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) = [object] wr_send_tso;
    /// Sets the destination of the current request of a datagram queue pair.
    fn ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = [object] wr_set_ud_addr;
    /// Sets the shared receive queue for the current request of an XRC queue pair.
    fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) = [object] wr_set_xrc_srqn;
    /// Copies the current request's data into the queue.
    fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) = [object] wr_set_inline_data;
    /// Copies the current request's data into the queue from several places.
    fn ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) = [object] wr_set_inline_data_list;
    /// Sets the data of the current request.
    fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) = [object] wr_set_sge;
    /// Sets the data of the current request, in several places.
    fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) = [object] wr_set_sge_list;
    /// Begins a batch; other threads' batches wait until it ends.
    fn ibv_wr_start(qp: *mut ibv_qp_ex) = [object] wr_start;
    /// Ends a batch and posts all of its requests, or none and returns a positive errno value.
    fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int = [object] wr_complete;
    /// Ends a batch and drops its requests.
    fn ibv_wr_abort(qp: *mut ibv_qp_ex) = [object] wr_abort;
}

#[cfg(not(rdma_sys_without_flush))]
unchecked! {
    /// Adds a flush of remote memory.
    fn ibv_wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8) = [object] wr_flush;
}
