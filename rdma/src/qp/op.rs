//! The operations of a send queue, each with its local memory and its completion options.
//!
//! A function takes all that its request needs; setters add the rest. All requests are [`Work`]
//! with an operation and the local memory as type parameters, so that an invalid request (an inline
//! read, a read into memory that is lent for reading only) does not compile.
//!
//! ```
//! # fn f(buffer: rdma::Buffer, flag: rdma::RemoteSlice, data: rdma::RemoteSlice) {
//! use rdma::op;
//!
//! let message = op::send(buffer).token(7).solicited();
//! let flag = op::write_inline(&1u64.to_ne_bytes(), flag).unsignaled();
//! # }
//! ```

// An operation is a type: `Operation` says which transports can do it. Datagrams are sends wrapped
// in `To`, so the data path of connections does not test for them.
//
// A new operation, in this order; each step with its tests:
//
// 1. rdma-soft, engine: a variant of `types::Op` and, if the peer must see the request, of
//    `wire::Kind`; `rc/requester.rs` sends it, `rc/responder.rs` executes it; tests in
//    `engine/tests`, with the oracle's rules.
// 2. rdma-soft, verbs: `post.rs` decodes the C opcode, `qp_ex.rs` has the `ibv_wr_*` call;
//    `fault::Operations`, if rules are to name it.
// 3. Here an entry of `operations!` for a reliable connection, or a type of its own that implements
//    `Operation<T>`; its opcode in `types/completion.rs`; tests in `ownership`.
// 4. `tests/tests/it/rc.rs` and `random.rs`, which run on rxe and siw too; a line in
//    `tests/vm/exclude-*.txt` for a driver that lacks it.

use rdma_sys::{ibv_send_flags, ibv_send_wr, ibv_wr_opcode};

use super::local::{HostBytes, Inline, Local, Refusal, Sendable, Writable};
use super::transport::{Connected, Rc, Transport, Ud};
use crate::ah::AddressHandle;
use crate::mr::RemoteSlice;

pub use crate::types::Opcode;

/// The operation of a [`Work`], on a queue pair of transport `T`.
#[diagnostic::on_unimplemented(
    message = "a queue pair of transport `{T}` cannot do `{Self}`",
    note = "datagrams (`Ud`) are sends that say where to: `op::send(..).to(&address, qpn, qkey)`; everything else, without `to`, is for connections (`Rc`, `Uc`), and reads and atomics for reliable ones (`Rc`)"
)]
// Sealed: code outside this crate cannot name `Refusal`.
pub trait Operation<T: Transport = Rc> {
    #[doc(hidden)]
    const OPCODE: Opcode;
    /// The destination of a datagram.
    #[doc(hidden)]
    #[inline(always)]
    fn address(&self) -> Option<&AddressHandle> {
        None
    }
    /// Fills in a request whose list has `len` bytes in `segments` segments.
    #[doc(hidden)]
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal>;
}

/// A request for a send queue: an operation `O` with the local memory `L`.
///
/// [`send()`] and its siblings make it. `L` is a [`Buffer`](crate::Buffer),
/// [part](crate::Buffer::part) of one, an [`ExposedSlice`](crate::ExposedSlice), an array, tuple or
/// vector of them (gathered or scattered in order), `()` for a message without data, or bytes of
/// the caller that are copied when the request is posted ([`send_inline`]).
#[derive(Debug)]
#[must_use = "it does nothing until it is posted"]
pub struct Work<O, L> {
    pub(super) operation: O,
    pub(super) local: L,
    pub(super) token: u64,
    pub(super) flags: u32,
}

pub(super) const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
pub(super) const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

impl<O, L> Work<O, L> {
    #[inline]
    const fn with(operation: O, local: L) -> Self {
        Self { operation, local, token: 0, flags: SIGNALED }
    }

    /// The memory of a request that is not posted.
    #[cfg(feature = "aio")]
    pub(crate) fn into_local(self) -> L {
        self.local
    }

    /// Sets a number chosen by the caller, which the completion carries; 0 by default.
    #[inline]
    pub fn token(mut self, token: u64) -> Self {
        self.token = token;
        self
    }

    /// Whether the request's success generates its own completion; true by default.
    ///
    /// An unsignaled request's memory comes back with the completion of the next signaled request.
    /// Failures always generate a completion. So that unsignaled requests cannot fill the queue,
    /// the queue itself signals one now and then.
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

    /// Starts the request only after the queue's earlier reads and atomic operations are done.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// use std::sync::atomic::Ordering::Relaxed;
    ///
    /// use rdma::RemoteAccess;
    /// use rdma::op;
    ///
    /// let region = pd.allocate_exposed(16, RemoteAccess::ATOMIC | RemoteAccess::WRITE)?;
    /// let (counter, flag) = (region.remote(..8)?, region.remote(8..)?);
    /// let mut one = pd.allocate(8)?;
    /// one.copy_from_slice(&1_u64.to_ne_bytes());
    /// a.post_send(op::fetch_add(pd.allocate(8)?, counter, 1).unsignaled())?;
    /// // The peer that sees the flag finds the counter increased.
    /// a.post_send(op::write(one, flag).fence())?;
    /// poller.wait(None)?.expect("no time limit").status()?;
    /// assert_eq!((region.load_u64(0, Relaxed)?, region.load_u64(8, Relaxed)?), (1, 1));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        self
    }
}

/// An operation that consumes a receive of the peer.
#[doc(hidden)]
pub trait Consumes {}

impl<O: Consumes, L> Work<O, L> {
    /// Marks the message as solicited: it wakes a peer that waits for solicited completions only.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        self
    }
}

/// An operation that gathers data from the local memory.
#[doc(hidden)]
pub trait Gathers {}

impl<O: Gathers, L: HostBytes> Work<O, L> {
    /// Copies the data when the request is posted, which saves the device a read of local memory.
    /// The data may have at most the queue's `max_inline_data` bytes.
    #[inline]
    pub fn copied(mut self) -> Self {
        self.flags |= INLINE;
        self
    }
}

/// The request of an operation, on every transport that has the operation.
trait Request {
    const OPCODE: Opcode;
    fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal>;
}

/// The items of an `impl Operation` for an operation with a [`Request`].
macro_rules! as_requested {
    () => {
        const OPCODE: Opcode = <Self as Request>::OPCODE;

        #[inline(always)]
        fn fill(&self, wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal> {
            Request::fill(self, wr, len, segments)
        }
    };
}

macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        $name:ident($memory:ident) -> $request:ident = $op:ident { $($field:ident: $type:ty),* }, $opcode:ident,
            |$this:ident, $wr:ident, $size:ident| $fill:expr;
    )*) => { $(
        $(#[$doc])*
        #[inline]
        pub const fn $name<L: Local + $memory>(local: L $(, $field: $type)*) -> $request<L> {
            Work::with($op { $($field),* }, local)
        }

        #[doc = concat!("The request that [`", stringify!($name), "()`] makes.")]
        pub type $request<L> = Work<$op, L>;

        #[doc = concat!("The operation of a [`", stringify!($request), "`].")]
        #[derive(Debug, Clone, Copy)]
        pub struct $op { $($field: $type),* }

        impl Request for $op {
            const OPCODE: Opcode = Opcode::$opcode;

            #[inline(always)]
            fn fill(&self, $wr: &mut ibv_send_wr, len: u64, segments: i32) -> Result<(), Refusal> {
                let ($this, $size) = (self, (len, segments));
                $fill
            }
        }
    )* };
}

operations! {
    /// Sends `local`, as a message for a receive that the peer posted.
    ///
    /// ```
    /// # use rdma::{Buffer, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, mut buffer: Buffer) -> Result<(), rdma::Error> {
    /// use rdma::op;
    ///
    /// buffer[..5].copy_from_slice(b"hello");
    /// qp.post_send(op::send(buffer).token(1))?;
    /// qp.post_send(op::send_inline(b"and this is copied at once").unsignaled())?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_SEND")]
    send(Sendable) -> SendRequest = SendOp {}, Send, |_this, wr, _size| { wr.opcode = ibv_wr_opcode::IBV_WR_SEND; Ok(()) };

    /// Sends `local` with 32 bits of immediate data, which the completion of the peer's receive
    /// carries.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    send_imm(Sendable) -> SendImmRequest = SendImmOp { imm: u32 }, Send, |this, wr, _size| {
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        wr.__bindgen_anon_1.imm_data = this.imm.to_be();
        Ok(())
    };

    /// Writes `local` to the front of `remote`, which must be at least as long.
    ///
    /// The peer gets no completion.
    ///
    /// ```
    /// # fn f(qp: &mut rdma::QueuePair<rdma::transport::Rc>, buffer: rdma::Buffer, target: rdma::RemoteSlice)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use rdma::op;
    ///
    /// let (data, flag) = (target.slice(..4096)?, target.slice(4096..4104)?);
    /// qp.post_send(op::write(buffer, data).unsignaled())?;
    /// // Writes are done in order: once the peer sees the flag, the data is there.
    /// qp.post_send(op::write_inline(&1u64.to_ne_bytes(), flag))?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    write(Sendable) -> WriteRequest = WriteOp { remote: RemoteSlice }, Write, |this, wr, size| {
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &this.remote, size)
    };

    /// Writes `local` to the front of `remote`, and consumes one of the peer's receives.
    ///
    /// The completion of that receive has the opcode [`RecvWriteImm`](Opcode::RecvWriteImm), the 32
    /// bits of immediate data, and the length of the write. The bytes go to `remote` and not to the
    /// receive's memory, so the receive needs none: post `()` for it. Its completion says that the
    /// bytes are there. Without a posted receive the write waits as a send does (RNR). A receive
    /// that is posted with memory gives it back unchanged; a message may use it as well, so a peer
    /// that gets both posts memory for each.
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
    /// use rdma::op::{self, Opcode};
    ///
    /// // Side `b` exposes memory, and posts receives without memory for the notices.
    /// let region = pd.allocate_exposed(4096, rdma::RemoteAccess::WRITE)?;
    /// let mut buffer = Some(pd.allocate(64)?);
    /// for number in 0..3 {
    ///     b.post_recv((), 0)?;
    ///     let mut local = buffer.take().expect("the buffer came back");
    ///     local.fill(number);
    ///     let target = region.remote(64 * usize::from(number)..)?;
    ///     a.post_send(op::write_imm(local, target, number.into()))?;
    ///     for _ in 0..2 {
    ///         let mut completion = poller.wait(None)?.expect("no time limit");
    ///         completion.status()?;
    ///         match completion.opcode() {
    ///             Opcode::RecvWriteImm => assert_eq!(completion.imm(), Some(number.into())),
    ///             // The write: its buffer is free for the next.
    ///             _ => buffer = completion.take_buffer(),
    ///         }
    ///     }
    ///     let mut arrived = [0; 64];
    ///     region.copy_out(64 * usize::from(number), &mut arrived)?;
    ///     assert_eq!(arrived, [number; 64]);
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    write_imm(Sendable) -> WriteImmRequest = WriteImmOp { remote: RemoteSlice, imm: u32 }, Write, |this, wr, size| {
        wr.__bindgen_anon_1.imm_data = this.imm.to_be();
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, &this.remote, size)
    };

    /// Fills `local` from the front of `remote`, which must be at least as long.
    ///
    /// On iWARP the sink of a read must be open to remote writes: only an
    /// [`ExposedSlice`](crate::ExposedSlice) of a region with
    /// [`RemoteAccess::WRITE`](crate::RemoteAccess::WRITE) is accepted there.
    ///
    /// ```
    /// # use rdma::{Buffer, Poller, QueuePair, RemoteSlice};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, buffer: Buffer, source: RemoteSlice, poller: &mut Poller)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// qp.post_send(rdma::op::read(buffer, source))?;
    /// let mut completion = poller.wait(None)?.expect("no time limit");
    /// completion.status()?;
    /// println!("{:?}", &completion.take_buffer().expect("the buffer of the read")[..]);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_RDMA_READ")]
    read(Writable) -> ReadRequest = ReadOp { remote: RemoteSlice }, Read, |this, wr, size| {
        fill_rdma(wr, ibv_wr_opcode::IBV_WR_RDMA_READ, &this.remote, size)
    };

    /// Replaces the 8 bytes at `remote` by `swap` if they equal `compare`.
    ///
    /// The old value is written to `local`, which must be one segment of 8 bytes. The remote
    /// address must be a multiple of 8.
    ///
    /// ```
    /// # use rdma::{Buffer, Poller, QueuePair, RemoteSlice};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, old: Buffer, lock: RemoteSlice, poller: &mut Poller)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let mut old = Some(old);
    /// loop {
    ///     // From 0, free, to our number. Each try uses the buffer of the one before.
    ///     let local = old.take().expect("the buffer came back");
    ///     qp.post_send(rdma::op::compare_swap(local, lock, 0, 7))?;
    ///     let mut completion = poller.wait(None)?.expect("no time limit");
    ///     completion.status()?;
    ///     if completion.old_value() == Some(0) {
    ///         break;
    ///     }
    ///     old = completion.take_buffer();
    /// }
    /// println!("locked");
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    compare_swap(Writable) -> CompareSwapRequest = CompareSwapOp { remote: RemoteSlice, compare: u64, swap: u64 }, CompareSwap, |this, wr, size| {
        fill_atomic(wr, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &this.remote, (this.compare, this.swap), size)
    };

    /// Adds `add` to the 8 bytes at `remote`.
    ///
    /// The old value is written to `local`, which must be one segment of 8 bytes. The remote
    /// address must be a multiple of 8.
    ///
    /// ```
    /// # use rdma::{Buffer, Poller, QueuePair, RemoteSlice};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, old: Buffer, counter: RemoteSlice, poller: &mut Poller)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let mut old = Some(old);
    /// for _ in 0..10 {
    ///     let local = old.take().expect("the buffer came back");
    ///     qp.post_send(rdma::op::fetch_add(local, counter, 1))?;
    ///     let mut completion = poller.wait(None)?.expect("no time limit");
    ///     completion.status()?;
    ///     println!("it was {}", completion.old_value().expect("it went well"));
    ///     // For the next operation: a buffer of its own would be a region of its own.
    ///     old = completion.take_buffer();
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    fetch_add(Writable) -> FetchAddRequest = FetchAddOp { remote: RemoteSlice, add: u64 }, FetchAdd, |this, wr, size| {
        fill_atomic(wr, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &this.remote, (this.add, 0), size)
    };
}

/// The operations that bring no data back: they can be inline, and need no answer of the peer.
macro_rules! gathering_operations {
    ($($inline:ident, $name:ident, $op:ident { $($field:ident: $type:ty),* };)*) => { $(
        impl Gathers for $op {}

        impl<T: Connected> Operation<T> for $op {
            as_requested!();
        }

        #[doc = concat!("The same as [`", stringify!($name), "()`], with bytes that are copied when the request is")]
        /// posted: at most the queue's `max_inline_data`.
        #[inline]
        pub const fn $inline<'a>(bytes: &'a [u8] $(, $field: $type)*) -> Work<$op, Inline<'a>> {
            Work::with($op { $($field),* }, Inline::new(bytes))
        }
    )* };
}
gathering_operations! {
    send_inline, send, SendOp {};
    send_imm_inline, send_imm, SendImmOp { imm: u32 };
    write_inline, write, WriteOp { remote: RemoteSlice };
    write_imm_inline, write_imm, WriteImmOp { remote: RemoteSlice, imm: u32 };
}

// The peer's answer brings the data back.
impl Operation<Rc> for ReadOp {
    as_requested!();
}
impl Operation<Rc> for CompareSwapOp {
    as_requested!();
}
impl Operation<Rc> for FetchAddOp {
    as_requested!();
}

impl Consumes for SendOp {}
impl Consumes for SendImmOp {}
impl Consumes for WriteImmOp {}
impl<O: Consumes> Consumes for To<'_, O> {}
impl<O: Gathers> Gathers for To<'_, O> {}

#[inline(always)]
fn fill_rdma(
    wr: &mut ibv_send_wr,
    opcode: ibv_wr_opcode,
    remote: &RemoteSlice,
    (len, _): (u64, i32),
) -> Result<(), Refusal> {
    if len > remote.len() {
        return Err(Refusal::OutOfBounds);
    }
    wr.opcode = opcode;
    wr.wr.rdma.remote_addr = remote.address();
    wr.wr.rdma.rkey = remote.rkey();
    Ok(())
}

/// The number of bytes that atomic operations work on.
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

/// A message to a given queue pair: [`Work::to`].
pub type SendToRequest<'a, L> = Work<To<'a, SendOp>, L>;
/// A message with 32 bits of immediate data to a given queue pair: [`Work::to`].
pub type SendImmToRequest<'a, L> = Work<To<'a, SendImmOp>, L>;

/// An operation with its destination.
#[derive(Debug, Clone, Copy)]
pub struct To<'a, O> {
    operation: O,
    address: &'a AddressHandle,
    qpn: u32,
    qkey: u32,
}

/// An operation that can be a datagram.
#[doc(hidden)]
pub trait Message {}
impl Message for SendOp {}
impl Message for SendImmOp {}

impl<O: Message, L: Local> Work<O, L> {
    /// Makes the request a datagram for the queue pair `qpn` at `address`, whose Q_Key is `qkey`.
    /// The request can be posted to a queue pair of transport [`Ud`].
    ///
    /// [`MULTICAST_QPN`](crate::MULTICAST_QPN) is the number for multicast groups. If the highest
    /// bit of `qkey` is set, the sender's own Q_Key is sent instead. The request keeps the address
    /// handle alive as long as it needs it.
    ///
    /// ```
    /// # use rdma::{AddressHandle, Buffer, QueuePair};
    /// # use rdma::transport::Ud;
    /// # fn f(qp: &mut QueuePair<Ud>, buffer: Buffer, address: &AddressHandle)
    /// #     -> Result<(), rdma::Error> {
    /// qp.post_send(rdma::op::send(buffer).to(address, 0x11, 0x1234_5678))?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn to(self, address: &AddressHandle, qpn: u32, qkey: u32) -> Work<To<'_, O>, L> {
        let Self { operation, local, token, flags } = self;
        Work { operation: To { operation, address, qpn, qkey }, local, token, flags }
    }
}

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
