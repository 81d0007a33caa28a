//! Sends that say where to: the address handle of a datagram, and how long it is kept.
//!
//! # Invariants
//!
//! * **A1.** An address handle that a posted datagram names lives until that request has ended, or the queue pair was reset or
//!   destroyed. A queue keeps the handle of its latest datagram. A datagram to another one takes its place, and keeps it in the
//!   slot of its own request: requests of a send queue end in order, so when that one has ended, so have all that the
//!   earlier handle was for. A datagram to the same handle as the one before it counts nothing and keeps nothing.
//! * **A2.** Of requests that the device did not take, the first that keeps a handle puts it back: those that were taken may
//!   still need it. The others keep handles that no request in flight names.

use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;

use rdma_sys::ibv_send_wr;

use super::gather::{Local, Refusal};
use super::op::{Operation, SendImmOp, SendOp, Work, sealed};
use super::{Rc, Ud};
use crate::ah::{AddressHandle, AhInner};
use crate::handle::Handle;
use crate::types::Opcode;

/// A message to a queue pair of one's choice: [`Work::to`].
pub type SendTo<'a, L> = Work<To<'a, SendOp>, L>;
/// A message with 32 bits of immediate data to a queue pair of one's choice: [`Work::to`].
pub type SendImmTo<'a, L> = Work<To<'a, SendImmOp>, L>;

/// An operation, and whom it is for.
#[derive(Debug, Clone, Copy)]
pub struct To<'a, O> {
    operation: O,
    address: &'a AddressHandle,
    qpn: u32,
    qkey: u32,
}

macro_rules! to {
    ($($operation:ty),*) => { $(
        impl<L: Local> Work<$operation, L> {
            /// Makes it a datagram for the queue pair `qpn` at `address`, whose Q_Key is `qkey`: what a queue pair of transport
            /// [`Ud`](crate::Ud) sends.
            ///
            /// [`MULTICAST_QPN`](crate::MULTICAST_QPN) is the number for multicast groups. Where the highest bit of `qkey` is
            /// set, the sender's own Q_Key is sent instead. The request keeps the handle as long as it needs it.
            ///
            /// ```
            /// # fn f(qp: &mut rdma::QueuePair<rdma::Ud>, buffer: rdma::Buffer, address: &rdma::AddressHandle)
            /// #     -> Result<(), rdma::Error> {
            /// qp.post_send(rdma::op::Send::new(buffer).to(address, 0x11, 0x1234_5678))?;
            /// # Ok(()) }
            /// ```
            #[inline]
            pub fn to(self, address: &AddressHandle, qpn: u32, qkey: u32) -> Work<To<'_, $operation>, L> {
                let Self { operation, local, token, flags } = self;
                Work { operation: To { operation, address, qpn, qkey }, local, token, flags }
            }
        }
    )* };
}
to!(SendOp, SendImmOp);

impl<O: sealed::Sealed> sealed::Sealed for To<'_, O> {}

impl<O: Operation<Rc>> Operation<Ud> for To<'_, O> {
    const OPCODE: Opcode = O::OPCODE;

    #[inline(always)]
    fn address(&self) -> Option<&AddressHandle> {
        Some(self.address)
    }

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal> {
        self.operation.fill(wr, len, segments)?;
        wr.wr.ud.ah = self.address.as_raw();
        wr.wr.ud.remote_qpn = self.qpn;
        wr.wr.ud.remote_qkey = self.qkey;
        Ok(())
    }
}

/// The address handle of a queue's latest datagram (A1).
pub(super) struct LastAddress(Option<Arc<Handle<AhInner>>>);

impl LastAddress {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// For a datagram to `next`: the handle that its request must keep, if it is another one.
    #[inline(always)]
    pub(super) fn replace(&mut self, next: &AddressHandle) -> Option<Arc<Handle<AhInner>>> {
        match &self.0 {
            Some(last) if ptr::eq(Arc::as_ptr(last), Arc::as_ptr(&next.inner)) => None,
            _ => self.0.replace(Arc::clone(&next.inner)),
        }
    }

    /// Puts back what [`replace`](Self::replace) gave (A2).
    pub(super) fn restore(&mut self, earlier: Arc<Handle<AhInner>>) {
        self.0 = Some(earlier);
    }

    /// The place, for who takes requests back.
    pub(super) fn place(&mut self) -> &mut Option<Arc<Handle<AhInner>>> {
        &mut self.0
    }

    /// Keeps the handle for ever.
    #[allow(clippy::mem_forget, reason = "requests that the device still has need it")]
    pub(super) fn leak(&mut self) {
        mem::forget(self.0.take());
    }
}

impl fmt::Debug for LastAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LastAddress").field(&self.0.as_ref().map(|address| address.raw.as_ptr())).finish()
    }
}
