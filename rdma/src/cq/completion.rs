//! Completions, and the memory that they return. F, H, M and R are the invariants of
//! [`poll`](super::poll), `held`, [`mr`](crate::mr) and [`ring`](crate::ring).

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::held::Held;
use super::message::receives_messages;
use crate::mr::{Buffer, ExposedSlice, Gpu, Kind, Segment, SourceSlice};
use crate::ring::{Claimed, Info};
use crate::types::{Opcode, WcError, WcStatus};

/// Generates the methods that take the memory of a finished request; `take_if` returns the next
/// segment if it has the given kind.
macro_rules! takes {
    ($type:ty) => {
        impl $type {
            /// Takes the request's next segment, if it is a host buffer.
            #[inline]
            #[must_use = "the buffer is given up otherwise"]
            pub fn take_buffer(&mut self) -> Option<Buffer> {
                let segment = self.take_if(Kind::LocalHost)?;
                // SAFETY: Buffer::from_segment requires a segment of this kind that came from a
                // buffer and holds its place (M4): `take_if` returns only segments of this kind,
                // and they all come from buffers.
                Some(unsafe { Buffer::from_segment(segment) })
            }

            /// Takes the request's next segment, if it is a GPU buffer.
            #[must_use = "the buffer is given up otherwise"]
            pub fn take_gpu_buffer(&mut self) -> Option<Buffer<Gpu>> {
                let segment = self.take_if(Kind::LocalGpu)?;
                // SAFETY: Buffer::from_segment requires a segment of this kind that came from a
                // buffer and holds its place (M4): `take_if` returns only segments of this kind,
                // and they all come from buffers.
                Some(unsafe { Buffer::from_segment(segment) })
            }

            /// Takes the request's next segment, if it is a slice of an exposed region of host
            /// memory.
            #[must_use = "the slice is given up otherwise"]
            pub fn take_exposed(&mut self) -> Option<ExposedSlice> {
                let segment = self.take_if(Kind::ExposedHost)?;
                // SAFETY: ExposedSlice::from_segment requires a segment of this kind: `take_if`
                // returns no other.
                Some(unsafe { ExposedSlice::from_segment(segment) })
            }

            /// Takes the request's next segment, if it is a slice of a source.
            #[must_use = "the slice is given up otherwise"]
            pub fn take_source(&mut self) -> Option<SourceSlice> {
                let segment = self.take_if(Kind::Source)?;
                // SAFETY: SourceSlice::from_segment requires a segment of this kind: `take_if`
                // returns no other.
                Some(unsafe { SourceSlice::from_segment(segment) })
            }

            /// Takes the request's next segment, if it is a slice of a region of GPU memory.
            #[must_use = "the slice is given up otherwise"]
            pub fn take_gpu_slice(&mut self) -> Option<ExposedSlice<Gpu>> {
                let segment = self.take_if(Kind::ExposedGpu)?;
                // SAFETY: ExposedSlice::from_segment requires a segment of this kind: `take_if`
                // returns no other.
                Some(unsafe { ExposedSlice::from_segment(segment) })
            }
        }
    };
}
takes!(Completion<'_>);
takes!(Released<'_>);
receives_messages!(Completion<'_>);
#[cfg(feature = "aio")]
pub(crate) use takes;

/// A finished request, and the memory that it returns.
///
/// Take the memory with [`take_buffer`](Self::take_buffer) and its siblings. Memory that is not
/// taken is dropped, and the request's slot in the queue becomes free, when the poller is next used
/// or dropped.
///
/// # Examples
///
/// ```no_run
/// # fn f(poller: &mut rdma::Poller) -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::op::Opcode;
///
/// let Some(mut completion) = poller.wait(None)? else { return Ok(()) };
/// if let Err(error) = completion.status() {
///     println!("request {} failed: {error}", completion.token());
///     return Ok(());
/// }
/// match completion.opcode() {
///     Opcode::Recv => println!("{} bytes, {:?}", completion.byte_len(), completion.imm()),
///     Opcode::FetchAdd => println!("the counter was at {:?}", completion.old_value()),
///     other => println!("{other:?} is done"),
/// }
/// let buffer = completion.take_buffer();
/// // Requests that were posted unsignaled before it are done too, and give their memory back.
/// while let Some(mut released) = completion.next_unsignaled() {
///     println!("request {} too: {:?}", released.token(), released.take_buffer());
/// }
/// # drop(buffer);
/// # Ok(()) }
/// ```
pub struct Completion<'a> {
    wc: &'a ibv_wc,
    token: u64,
    info: Info,
    held: &'a mut Held,
}

impl<'a> Completion<'a> {
    #[inline(always)]
    pub(super) fn new(wc: &'a ibv_wc, token: u64, info: Info, held: &'a mut Held) -> Self {
        Self { wc, token, info, held }
    }

    /// Whether the request succeeded.
    ///
    /// # Errors
    ///
    /// The status with which the request failed. The queue pair is then in the error state.
    #[inline]
    pub fn status(&self) -> Result<(), WcError> {
        status(self.wc)
    }

    /// The token that the caller gave to the request.
    #[inline]
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The kind of operation.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        opcode(self.wc, self.info)
    }

    /// The number of bytes received, read, or written by the peer; 0 for other requests and for
    /// failed ones. For a datagram, the count includes the 40 bytes of the GRH. The device reports
    /// this number: check it before use as a length.
    #[inline]
    #[must_use]
    pub fn byte_len(&self) -> usize {
        byte_len(self.wc, self.info)
    }

    /// The immediate data of a received message or write.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, mut b, .. } = pair()?;
    /// use rdma::op::{self, Opcode};
    ///
    /// b.post_recv(pd.allocate(16)?, 0)?;
    /// a.post_send(op::send_imm_inline(b"job", 42))?;
    /// loop {
    ///     let completion = poller.wait(None)?.expect("without a timeout there is a completion");
    ///     completion.status()?;
    ///     if completion.opcode() == Opcode::Recv {
    ///         assert_eq!((completion.imm(), completion.byte_len()), (Some(42), 3));
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        imm(self.wc, self.info)
    }

    /// The queue pair's number.
    #[inline]
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.wc.qp_num
    }

    /// The peer's 8 bytes before a successful atomic operation. Call this before the memory is
    /// taken.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// use rdma::{RemoteAccess, op};
    ///
    /// let counter = pd.allocate_exposed(8, RemoteAccess::ATOMIC)?;
    /// let mut old = Some(pd.allocate(8)?);
    /// for expected in 0..3 {
    ///     let local = old.take().expect("the buffer came back");
    ///     a.post_send(op::fetch_add(local, counter.remote(..)?, 1))?;
    ///     let mut completion = poller.wait(None)?.expect("no time limit");
    ///     completion.status()?;
    ///     assert_eq!(completion.old_value(), Some(expected));
    ///     old = completion.take_buffer();
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn old_value(&self) -> Option<u64> {
        old_value(self.wc, self.info, self.held.peek())
    }

    /// The completion entry, and the slot's information about the request.
    pub(super) fn parts(&self) -> (&ibv_wc, Info) {
        (self.wc, self.info)
    }

    /// The next segment, without taking it.
    pub(super) fn peek(&self) -> Option<&Segment> {
        self.held.peek()
    }

    /// Whether no segment was taken.
    fn is_untouched(&self) -> bool {
        self.held.is_untouched()
    }

    #[inline(always)]
    fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        self.held.take_if(kind)
    }

    /// The next of the unsignaled requests that this completion releases, oldest first. If this
    /// request succeeded, they did too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// use rdma::op;
    ///
    /// for token in 0..3 {
    ///     a.post_send(op::write(pd.allocate(16)?, region.remote(..)?).token(token).unsignaled())?;
    /// }
    /// // Its completion is the only one, and gives back the memory of all four.
    /// a.post_send(op::write(pd.allocate(16)?, region.remote(..)?).token(3))?;
    /// let mut completion = poller.wait(None)?.expect("no time limit");
    /// completion.status()?;
    /// let mut tokens = Vec::new();
    /// while let Some(mut released) = completion.next_unsignaled() {
    ///     tokens.push(released.token());
    ///     assert!(released.take_buffer().is_some());
    /// }
    /// assert_eq!((tokens, completion.token()), (vec![0, 1, 2], 3));
    /// # Ok(()) }
    /// ```
    pub fn next_unsignaled(&mut self) -> Option<Released<'_>> {
        let (claimed, unsignaled) = self.held.request.as_mut()?;
        *unsignaled = None;
        *unsignaled = claimed.next_unsignaled();
        unsignaled.as_mut().map(Released::new)
    }
}

debug_by_methods!(Completion<'_>: status, opcode, token);

/// A request without a completion of its own, and the memory that it returns: the request was
/// posted unsignaled, or the device did not accept it.
pub struct Released<'a> {
    claimed: &'a mut Claimed,
}

impl<'a> Released<'a> {
    pub(crate) fn new(claimed: &'a mut Claimed) -> Self {
        Self { claimed }
    }

    /// The token that the caller gave to the request.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.claimed.token
    }

    /// The kind of operation.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        self.claimed.info.opcode()
    }

    fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.claimed.peek()?.kind() == kind { self.claimed.take() } else { None }
    }
}

debug_by_methods!(Released<'_>: token, opcode);

/// Whether the request of a completion entry succeeded.
#[inline(always)]
pub(crate) fn status(wc: &ibv_wc) -> Result<(), WcError> {
    if wc.status == ibv_wc_status::IBV_WC_SUCCESS { Ok(()) } else { Err(failure(wc)) }
}

// Not inlined, so that a success costs one comparison with memory.
#[cold]
#[inline(never)]
fn failure(wc: &ibv_wc) -> WcError {
    WcError { status: WcStatus::from_raw(wc.status.0), vendor_err: wc.vendor_err }
}

/// The operation of a completion entry, whose slot has this information.
#[inline(always)]
pub(crate) fn opcode(wc: &ibv_wc, info: Info) -> Opcode {
    let is_write = wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    if info.opcode() == Opcode::Recv && is_write && status(wc).is_ok() {
        return Opcode::RecvWriteImm;
    }
    info.opcode()
}

/// The number of bytes that a completion entry reports.
#[inline(always)]
pub(crate) fn byte_len(wc: &ibv_wc, info: Info) -> usize {
    match info.opcode() {
        Opcode::Send | Opcode::Write => 0,
        _ if status(wc).is_err() => 0,
        _ => wc.byte_len as usize,
    }
}

/// The immediate data of a completion entry.
#[inline(always)]
pub(crate) fn imm(wc: &ibv_wc, info: Info) -> Option<u32> {
    let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    if info.opcode() != Opcode::Recv || !with_imm || status(wc).is_err() {
        return None;
    }
    // SAFETY: the read of a union field requires initialised bytes that are valid for the type: an
    // entry is initialised, and any 32 bits are a `u32`. The flag says that the field holds
    // immediate data.
    Some(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }))
}

/// The peer's 8 bytes before an atomic operation, which are in the request's first segment.
pub(crate) fn old_value(wc: &ibv_wc, info: Info, first: Option<&Segment>) -> Option<u64> {
    let is_atomic = matches!(info.opcode(), Opcode::CompareSwap | Opcode::FetchAdd);
    if !is_atomic || status(wc).is_err() {
        return None;
    }
    first.and_then(Segment::word)
}
