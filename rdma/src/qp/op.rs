//! The operations that a send queue takes: what to do, with which memory, and how to report it.
//!
//! Each is made with what it cannot do without, and has setters for the rest. All are [`Work`] with an operation and the
//! local memory as type parameters, so that a request which makes no sense (an inline read, a read into memory that is only
//! lent for reading) does not compile.
//!
//! ```
//! # fn f(buffer: rdma::Buffer, flag: rdma::RemoteSlice, data: rdma::RemoteSlice) {
//! use rdma::op::{Send, Write};
//!
//! let message = Send::new(buffer).token(7).solicited();
//! let flag = Write::inline(&1u64.to_ne_bytes(), flag).unsignaled();
//! # }
//! ```

use rdma_sys::{ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use super::local::{HostBytes, Inline, Local, Refusal, Writable};
use super::{Rc, Transport, Ud};
use crate::ah::AddressHandle;
use crate::mr::RemoteSlice;

pub use crate::types::Opcode;

pub(super) mod sealed {
    pub trait Sealed {}
}

/// What a [`Work`] does, on a queue pair of transport `T`.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{T}` cannot do `{Self}`",
    note = "datagrams (`Ud`) are sends that say where to: `Send::new(..).to(&address, qpn, qkey)`; everything else, without `to`, is for connections (`Rc`)"
)]
pub trait Operation<T: Transport = Rc>: sealed::Sealed {
    #[doc(hidden)]
    const OPCODE: Opcode;
    #[doc(hidden)]
    const IS_READ: bool = false;
    /// Whom a datagram is for.
    #[doc(hidden)]
    #[inline(always)]
    fn address(&self) -> Option<&AddressHandle> {
        None
    }
    #[doc(hidden)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal>;
}

/// A request for a send queue: an operation `O` with the local memory `L`.
///
/// Made by [`Send::new`](Work::new) and the like. `L` is a [`Buffer`](crate::Buffer), an
/// [`ExposedSlice`](crate::ExposedSlice), an array, tuple or vector of them (gathered or scattered in order), `()` for a
/// message without data, or bytes of the caller that are copied when the request is posted (`Send::inline`).
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Work<O, L> {
    pub(super) operation: O,
    pub(super) local: L,
    pub(super) token: u64,
    pub(super) flags: u32,
}

/// A message for a receive that the peer posted.
#[doc(alias = "IBV_WR_SEND")]
pub type Send<L> = Work<SendOp, L>;
/// A message with 32 bits of immediate data.
#[doc(alias = "IBV_WR_SEND_WITH_IMM")]
pub type SendImm<L> = Work<SendImmOp, L>;
/// Writes to the peer's memory, unnoticed by the peer.
#[doc(alias = "IBV_WR_RDMA_WRITE")]
pub type Write<L> = Work<WriteOp, L>;
/// Writes to the peer's memory, and consumes a receive there, which gets 32 bits of immediate data.
#[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
pub type WriteImm<L> = Work<WriteImmOp, L>;
/// Reads from the peer's memory.
#[doc(alias = "IBV_WR_RDMA_READ")]
pub type Read<L> = Work<ReadOp, L>;
/// Replaces 8 bytes of the peer's memory if they have a certain value.
#[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
pub type CompareSwap<L> = Work<CompareSwapOp, L>;
/// Adds to 8 bytes of the peer's memory.
#[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
pub type FetchAdd<L> = Work<FetchAddOp, L>;

/// The operation of [`Send`].
#[derive(Debug, Clone, Copy)]
pub struct SendOp(());
/// The operation of [`SendImm`].
#[derive(Debug, Clone, Copy)]
pub struct SendImmOp(u32);
/// The operation of [`Write`].
#[derive(Debug, Clone, Copy)]
pub struct WriteOp(RemoteSlice);
/// The operation of [`WriteImm`].
#[derive(Debug, Clone, Copy)]
pub struct WriteImmOp(RemoteSlice, u32);
/// The operation of [`Read`].
#[derive(Debug, Clone, Copy)]
pub struct ReadOp(RemoteSlice);
/// The operation of [`CompareSwap`].
#[derive(Debug, Clone, Copy)]
pub struct CompareSwapOp(RemoteSlice, u64, u64);
/// The operation of [`FetchAdd`].
#[derive(Debug, Clone, Copy)]
pub struct FetchAddOp(RemoteSlice, u64);

pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

impl<O, L> Work<O, L> {
    #[inline]
    const fn with(operation: O, local: L) -> Self {
        Self { operation, local, token: 0, flags: SIGNALED }
    }

    /// A number of the caller's choice, which the completion carries; 0 if not set.
    #[inline]
    pub fn token(mut self, token: u64) -> Self {
        self.token = token;
        self
    }

    /// Whether success is reported by a completion of its own; it is unless this is called with `false`.
    ///
    /// An unsignaled request's memory comes back with the next signaled request's completion. Failure is always reported. So
    /// that a queue of unsignaled requests does not get stuck, the queue now and then signals one of its own accord:
    /// [`Completion::is_forced`](crate::Completion::is_forced) tells.
    #[inline]
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.flags = if signaled { self.flags | SIGNALED } else { self.flags & !SIGNALED };
        self
    }

    /// The same as `signaled(false)`.
    #[inline]
    pub fn unsignaled(self) -> Self {
        self.signaled(false)
    }

    /// Starts only after the queue's earlier reads and atomic operations are done.
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        self
    }

    /// The local memory, back from a request that is not going to be posted.
    pub fn into_local(self) -> L {
        self.local
    }
}

macro_rules! solicited {
    ($($operation:ty),*) => { $(
        impl<L> Work<$operation, L> {
            /// Wakes the peer if it waits for solicited completions only.
            #[inline]
            pub fn solicited(mut self) -> Self {
                self.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
                self
            }
        }
    )* };
}
solicited!(SendOp, SendImmOp, WriteImmOp, To<'_, SendOp>, To<'_, SendImmOp>);

macro_rules! inline {
    ($($operation:ty),*) => { $(
        impl<L: HostBytes> Work<$operation, L> {
            /// Copies the data when the request is posted, at most the queue's `max_inline_data` bytes: saves the device a
            /// read of our memory.
            #[inline]
            pub fn copied(mut self) -> Self {
                self.flags |= INLINE;
                self
            }
        }
    )* };
}
inline!(SendOp, SendImmOp, WriteOp, WriteImmOp, To<'_, SendOp>, To<'_, SendImmOp>);

impl<L: Local> Work<SendOp, L> {
    /// Sends `local`.
    #[inline]
    pub const fn new(local: L) -> Self {
        Self::with(SendOp(()), local)
    }
}

impl<'a> Work<SendOp, Inline<'a>> {
    /// Sends bytes that are copied when the request is posted, at most the queue's `max_inline_data`.
    #[inline]
    pub const fn inline(bytes: &'a [u8]) -> Self {
        Self::with(SendOp(()), Inline::new(bytes))
    }
}

impl<L: Local> Work<SendImmOp, L> {
    /// Sends `local` with `imm`.
    #[inline]
    pub const fn new(local: L, imm: u32) -> Self {
        Self::with(SendImmOp(imm), local)
    }
}

impl<'a> Work<SendImmOp, Inline<'a>> {
    /// Sends bytes that are copied when the request is posted, with `imm`.
    #[inline]
    pub const fn inline(bytes: &'a [u8], imm: u32) -> Self {
        Self::with(SendImmOp(imm), Inline::new(bytes))
    }
}

impl<L: Local> Work<WriteOp, L> {
    /// Writes `local` to the front of `remote`, which must have room for it.
    #[inline]
    pub const fn new(local: L, remote: RemoteSlice) -> Self {
        Self::with(WriteOp(remote), local)
    }
}

impl<'a> Work<WriteOp, Inline<'a>> {
    /// Writes bytes that are copied when the request is posted, at most the queue's `max_inline_data`.
    #[inline]
    pub const fn inline(bytes: &'a [u8], remote: RemoteSlice) -> Self {
        Self::with(WriteOp(remote), Inline::new(bytes))
    }
}

impl<L: Local> Work<WriteImmOp, L> {
    /// Writes `local` to the front of `remote`, which must have room for it, and delivers `imm`.
    #[inline]
    pub const fn new(local: L, remote: RemoteSlice, imm: u32) -> Self {
        Self::with(WriteImmOp(remote, imm), local)
    }
}

impl<'a> Work<WriteImmOp, Inline<'a>> {
    /// Writes bytes that are copied when the request is posted, and delivers `imm`.
    #[inline]
    pub const fn inline(bytes: &'a [u8], remote: RemoteSlice, imm: u32) -> Self {
        Self::with(WriteImmOp(remote, imm), Inline::new(bytes))
    }
}

impl<L: Local + Writable> Work<ReadOp, L> {
    /// Fills `local` from the front of `remote`, which must be at least as long.
    ///
    /// On iWARP the sink of a read must be open to remote writes: only an [`ExposedSlice`](crate::ExposedSlice) of a region
    /// with [`RemoteAccess::WRITE`](crate::RemoteAccess::WRITE) is accepted there.
    #[inline]
    pub const fn new(local: L, remote: RemoteSlice) -> Self {
        Self::with(ReadOp(remote), local)
    }
}

impl<L: Local + Writable> Work<CompareSwapOp, L> {
    /// Replaces the 8 bytes at `remote` by `swap` if they are `compare`. What they were goes to `local`, which is one piece of 8
    /// bytes. The remote address is a multiple of 8.
    #[inline]
    pub const fn new(local: L, remote: RemoteSlice, compare: u64, swap: u64) -> Self {
        Self::with(CompareSwapOp(remote, compare, swap), local)
    }
}

impl<L: Local + Writable> Work<FetchAddOp, L> {
    /// Adds `add` to the 8 bytes at `remote`. What they were goes to `local`, which is one piece of 8 bytes. The remote address
    /// is a multiple of 8.
    #[inline]
    pub const fn new(local: L, remote: RemoteSlice, add: u64) -> Self {
        Self::with(FetchAddOp(remote, add), local)
    }
}

impl sealed::Sealed for SendOp {}
impl sealed::Sealed for SendImmOp {}
impl sealed::Sealed for WriteOp {}
impl sealed::Sealed for WriteImmOp {}
impl sealed::Sealed for ReadOp {}
impl sealed::Sealed for CompareSwapOp {}
impl sealed::Sealed for FetchAddOp {}

impl Operation for SendOp {
    const OPCODE: Opcode = Opcode::Send;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, _: u64, _: i32) -> Result<(), Refusal> {
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        Ok(())
    }
}

impl Operation for SendImmOp {
    const OPCODE: Opcode = Opcode::Send;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, _: u64, _: i32) -> Result<(), Refusal> {
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        wr.__bindgen_anon_1.imm_data = self.0.to_be();
        Ok(())
    }
}

#[inline(always)]
fn fill_rdma(wr: &mut ibv_send_wr, opcode: ibv_wr_opcode, remote: &RemoteSlice, len: u64) -> Result<(), Refusal> {
    if len > remote.len() {
        return Err(Refusal::OutOfBounds);
    }
    wr.opcode = opcode;
    wr.wr.rdma.remote_addr = remote.address();
    wr.wr.rdma.rkey = remote.rkey();
    Ok(())
}

impl Operation for WriteOp {
    const OPCODE: Opcode = Opcode::Write;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, _: i32) -> Result<(), Refusal> {
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &self.0, len)
    }
}

impl Operation for WriteImmOp {
    const OPCODE: Opcode = Opcode::Write;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, _: i32) -> Result<(), Refusal> {
        wr.__bindgen_anon_1.imm_data = self.1.to_be();
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, &self.0, len)
    }
}

impl Operation for ReadOp {
    const OPCODE: Opcode = Opcode::Read;
    const IS_READ: bool = true;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, _: i32) -> Result<(), Refusal> {
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_READ, &self.0, len)
    }
}

/// The 8 bytes that atomic operations work on.
const WORD: u64 = 8;

#[inline]
fn fill_atomic(
    wr: &mut ibv_send_wr,
    opcode: ibv_wr_opcode,
    remote: &RemoteSlice,
    (compare_add, swap): (u64, u64),
    (len, segments): (u64, i32),
) -> Result<(), Refusal> {
    if len != WORD || segments != 1 || remote.address() % WORD != 0 {
        return Err(Refusal::InvalidInput);
    }
    if remote.len() < WORD {
        return Err(Refusal::OutOfBounds);
    }
    wr.opcode = opcode;
    wr.wr.atomic.remote_addr = remote.address();
    wr.wr.atomic.rkey = remote.rkey();
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    Ok(())
}

impl Operation for CompareSwapOp {
    const OPCODE: Opcode = Opcode::CompareSwap;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal> {
        let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        fill_atomic(wr, opcode, &self.0, (self.1, self.2), (len, segments))
    }
}

impl Operation for FetchAddOp {
    const OPCODE: Opcode = Opcode::FetchAdd;

    #[inline(always)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal> {
        fill_atomic(wr, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &self.0, (self.1, 0), (len, segments))
    }
}

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
