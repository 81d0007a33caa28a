//! The calls of a C program for one operation: fill in a request, post it, poll until its
//! completion arrives.
//!
//! Invariants:
//! 1. `qp`, `cq` and `mr` are live objects of one context: `new` requires the first two of its
//!    caller for as long as the sequence exists, and creates `mr` itself.
//! 2. `source` is the memory of `mr`: `LEN` bytes, which nothing else uses while a request is in
//!    flight.

use std::io;
use std::ptr;

use rdma_sys::{
    Ibverbs, ibv_access_flags, ibv_cq, ibv_mr, ibv_pd, ibv_poll_cq, ibv_post_send, ibv_qp, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wc, ibv_wc_status, ibv_wr_opcode,
};

/// Bytes in a message.
const LEN: u32 = 64;

/// The remote memory of a one-sided write.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The address at the peer.
    pub address: u64,
    /// The rkey of the address.
    pub rkey: u32,
}

/// Posts one signaled request at a time, on queues that nothing else posts to or polls.
#[derive(Debug)]
pub struct RawSequence {
    table: &'static Ibverbs,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    mr: *mut ibv_mr,
    source: Box<[u8; LEN as usize]>,
    remote: Option<Remote>,
    next_id: u64,
}

impl RawSequence {
    /// Creates a sequence of sends of 64 bytes through `qp`, or of writes if `remote` is given.
    ///
    /// # Safety
    ///
    /// `pd`, `qp` and `cq` are objects that `table` created, live until the sequence is dropped.
    /// `cq` is the completion queue for sends of `qp`. Nothing else uses these queues while
    /// [`Self::run`] runs.
    ///
    /// # Errors
    ///
    /// If the memory cannot be registered.
    pub unsafe fn new(
        table: &'static Ibverbs,
        pd: *mut ibv_pd,
        qp: *mut ibv_qp,
        cq: *mut ibv_cq,
        remote: Option<Remote>,
    ) -> io::Result<Self> {
        let mut source = Box::new([0x5a; LEN as usize]);
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        // SAFETY: ibv_reg_mr requires a live domain, which is this function's condition, and memory
        // that stays valid until it is deregistered: the box's memory, which the sequence keeps
        // until its drop, which deregisters it.
        let mr = unsafe { table.ibv_reg_mr(pd, source.as_mut_ptr().cast(), source.len(), access) };
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { table, qp, cq, mr, source, remote, next_id: 0 })
    }

    /// Posts and polls `iterations` times.
    ///
    /// # Errors
    ///
    /// If a post is refused or an operation fails.
    #[inline(never)]
    pub fn run(&mut self, iterations: u64) -> io::Result<()> {
        for _ in 0..iterations {
            self.post()?;
            self.poll()?;
        }
        Ok(())
    }

    #[inline]
    fn post(&mut self) -> io::Result<()> {
        // SAFETY: the read requires a live region (1).
        let lkey = unsafe { (*self.mr).lkey };
        let mut sge = ibv_sge { addr: self.source.as_ptr().addr() as u64, length: LEN, lkey };
        let mut wr = ibv_send_wr {
            wr_id: self.next_id,
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        if let Some(remote) = self.remote {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            wr.wr.rdma.remote_addr = remote.address;
            wr.wr.rdma.rkey = remote.rkey;
        }
        self.next_id += 1;
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send requires a live queue pair (1), a chain of requests with lists that
        // live during the call, which are locals, and memory that stays registered and unchanged
        // until the completion (2): `run` polls before it posts again.
        match unsafe { ibv_post_send(self.qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    #[inline]
    fn poll(&mut self) -> io::Result<()> {
        let mut wc = ibv_wc::default();
        loop {
            // SAFETY: ibv_poll_cq requires a live queue (1) and space for one completion: `wc` is a
            // local.
            match unsafe { ibv_poll_cq(self.cq, 1, &raw mut wc) } {
                0 => {}
                1 if wc.status == ibv_wc_status::IBV_WC_SUCCESS && wc.wr_id == self.next_id - 1 => return Ok(()),
                1 => return Err(io::Error::other(format!("request {} completed with {:?}", wc.wr_id, wc.status))),
                other => return Err(io::Error::from_raw_os_error(-other)),
            }
        }
    }
}

impl Drop for RawSequence {
    fn drop(&mut self) {
        // SAFETY: ibv_dereg_mr requires a live region (1) that no request uses: `run` returns after
        // the last completion, or with an error that has ended the queue pair.
        unsafe { (self.table.ibv_dereg_mr)(self.mr) };
    }
}
