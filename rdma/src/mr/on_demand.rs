//! Memory on demand: pages that are fetched before they are needed, and all memory of the process
//! as one region.

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::{NoUninit, Pod};
use rdma_sys::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    IBV_ADVISE_MR_FLAG_FLUSH, ib_uverbs_advise_mr_advice, ibv_access_flags, ibv_advise_mr, ibv_mr,
    ibv_odp_general_caps, ibv_sge,
};

use super::Region;
use super::buffer::Buffer;
use super::exposed::{ExposedRegion, ExposedSlice};
use super::local::{Lent, LentSlice, LentSliceMut};
use super::memory::Host;
use super::source::SourceSlice;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Object, Raw};
use crate::pd::{PdInner, ProtectionDomain};
use crate::types::OptionLimit;

static IMPLICIT: OptionLimit =
    OptionLimit::new("on_demand", "for memory that is given only: the device has no implicit on-demand regions");

/// The longest element of a list of advice.
const LONGEST: usize = 1 << 30;
/// The most elements of one call.
const ELEMENTS: usize = 16;

/// What a device is to fetch pages for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prefetch {
    /// The device will read the memory.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH")]
    Read,
    /// The device will write the memory.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE")]
    Write,
    /// The device will access those pages that are in memory already: no page is allocated or
    /// loaded.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT")]
    NoFault,
}

impl Prefetch {
    fn advice(self) -> ib_uverbs_advise_mr_advice {
        match self {
            Self::Read => IBV_ADVISE_MR_ADVICE_PREFETCH,
            Self::Write => IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
            Self::NoFault => IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
        }
    }
}

/// Bytes of a region, as the device knows them.
#[derive(Debug, Clone, Copy)]
struct Range {
    iova: u64,
    len: usize,
    lkey: u32,
}

/// Advises the device about a range of a region of this domain.
fn advise(pd: &PdInner, mut range: Range, purpose: Prefetch, waits: bool) -> Result<()> {
    pd.context.check(Verb::AdviseMr)?;
    let flags = if waits { IBV_ADVISE_MR_FLAG_FLUSH } else { 0 };
    while range.len != 0 {
        let mut list = [ibv_sge { addr: 0, length: 0, lkey: range.lkey }; ELEMENTS];
        let mut count = 0;
        for element in &mut list {
            if range.len == 0 {
                break;
            }
            let len = range.len.min(LONGEST);
            (element.addr, element.length) = (range.iova, u32::try_from(len).unwrap_or(u32::MAX));
            range = Range { iova: range.iova.wrapping_add(len as u64), len: range.len - len, ..range };
            count += 1;
        }
        // SAFETY: ibv_advise_mr requires a live domain, which `pd` is, of a context that is
        // extended or not as libibverbs marks it, and a list of `count` elements. It changes no
        // contents, and looks the regions up by their keys.
        let call = || unsafe { ibv_advise_mr(pd.raw.as_ptr(), purpose.advice(), flags, list.as_mut_ptr(), count) };
        Error::check(Verb::AdviseMr, call)?;
    }
    Ok(())
}

/// Advises the device about a part of a region, unless its pages are pinned.
fn advise_region(region: &Region, pointer: NonNull<u8>, len: usize, purpose: Prefetch, waits: bool) -> Result<()> {
    if !region.is_on_demand {
        return Ok(());
    }
    let iova = (pointer.as_ptr().addr() as u64).wrapping_add(region.shift);
    advise(&region.pd, Range { iova, len, lkey: region.lkey }, purpose, waits)
}

macro_rules! prefetched {
    ($($memory:ty, |$this:ident| $region:expr, $pointer:expr, $len:expr;)*) => { $(
        impl $memory {
            /// Asks the device to fetch the pages of memory
            /// [on demand](super::RegisterOptions::on_demand) before requests need them. The call
            /// does not wait for that, and a page that cannot be fetched is left to the request
            /// that needs it. Pinned memory is there: nothing is asked.
            ///
            /// # Errors
            ///
            /// `NotSupported` if the device takes no advice; errors of the device.
            #[doc(alias = "ibv_advise_mr")]
            pub fn prefetch(&self, purpose: Prefetch) -> Result<()> {
                let $this = self;
                advise_region($region, $pointer, $len, purpose, false)
            }

            /// Lets the device fetch the pages, as [`prefetch`](Self::prefetch) does, and waits
            /// until they are there.
            ///
            /// # Errors
            ///
            /// `Os` with `EFAULT` if a page cannot be fetched; otherwise as for
            /// [`prefetch`](Self::prefetch).
            #[doc(alias = "IBV_ADVISE_MR_FLAG_FLUSH")]
            pub fn prefetch_and_wait(&self, purpose: Prefetch) -> Result<()> {
                let $this = self;
                advise_region($region, $pointer, $len, purpose, true)
            }
        }
    )* };
}
prefetched! {
    Buffer<Host>, |this| &this.segment().region, this.segment().pointer, this.len();
    ExposedSlice<Host>, |this| &this.segment().region, this.segment().pointer, this.len();
    ExposedRegion<Host>, |this| this.region(), this.region().address, this.len();
    SourceSlice, |this| &this.segment().region, this.segment().pointer, this.len();
}

/// The owner of the C region.
struct ImplicitInner {
    raw: Raw<ibv_mr>,
    pd: Arc<Handle<PdInner>>,
}

impl Object for ImplicitInner {
    const DESTROY: Verb = Verb::DeregisterMr;
    const NAME: &'static str = "an implicit memory region";

    fn made_in(&self) -> u32 {
        self.pd.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_dereg_mr requires a live region of this table: this function's contract.
        Error::check(Self::DESTROY, || unsafe { (self.pd.context.table.ibv_dereg_mr)(self.raw.as_ptr()) })
    }
}

impl ProtectionDomain {
    /// Registers all memory of the process on demand, what is mapped later included, for the local
    /// device only: an *implicit* region. No page is pinned.
    ///
    /// Any slice can then be lent to the device for the duration of a
    /// [scope](crate::QueuePair::scope), without a registration of its own.
    ///
    /// # Errors
    ///
    /// `UnsupportedOption` if the device has no such regions; errors of the device.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::READ)?;
    /// # region.copy_in(0, &[1; 64])?;
    /// use std::time::Duration;
    ///
    /// use rdma::{ErrorKind, op};
    ///
    /// let everything = match pd.register_implicit() {
    ///     Ok(region) => region,
    ///     Err(error) if matches!(error.kind(), ErrorKind::UnsupportedOption(_)) => return Ok(()),
    ///     Err(error) => return Err(error.into()),
    /// };
    /// let mut counters = [0_u32; 8];
    /// let (remote, lent) = (region.remote(..32)?, everything.lend_mut(&mut counters));
    /// a.scope(&mut poller, Duration::from_secs(5), |scope| {
    ///     scope.post_send(op::read(lent, remote)).map_err(|refused| refused.error())
    /// })??;
    /// assert_eq!(counters, [0x0101_0101; 8]);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    pub fn register_implicit(&self) -> Result<ImplicitRegion> {
        let PdInner { context, raw, .. } = &**self.inner;
        context.check(Verb::RegisterMr)?;
        let unsupported = Error::new(Verb::RegisterMr, ErrorKind::UnsupportedOption(&IMPLICIT));
        let caps = self.context().device_attr_ex().map_err(|_| unsupported)?.as_raw().odp_caps.general_caps;
        if caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0) == 0 {
            return Err(unsupported);
        }
        let flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        // SAFETY: ibv_reg_mr requires a live domain of this table, which `self` is, and memory that
        // stays valid while requests use it: the region pins none, and requests use what is lent
        // (`ImplicitRegion::lend`) or, by the key, what an unsafe post names.
        let call = || unsafe { context.table.ibv_reg_mr(raw.as_ptr(), ptr::null_mut(), usize::MAX, flags) };
        let made = Raw::created(Verb::RegisterMr, call)?;
        // SAFETY: the reference requires a live region that nobody writes to: it was just
        // registered, and its key is constant.
        let lkey = unsafe { &*made.as_ptr() }.lkey;
        let inner = Arc::new(Handle::new(ImplicitInner { raw: made, pd: Arc::clone(&self.inner) }));
        Ok(ImplicitRegion { inner, lkey })
    }
}

/// All memory of the process, registered on demand for the local device.
///
/// Clones are handles to the same region, which ends with the last of them.
///
/// A peer has no right to it, and a request reaches only what was lent to it.
#[derive(Clone)]
pub struct ImplicitRegion {
    inner: Arc<Handle<ImplicitInner>>,
    lkey: u32,
}

impl ImplicitRegion {
    /// Lends elements to the device, to read, for the duration of a
    /// [scope](crate::QueuePair::scope).
    #[must_use]
    pub fn lend<'a, T: NoUninit>(&'a self, elements: &'a [T]) -> LentSlice<'a> {
        LentSlice::of_lent(self.lent(NonNull::from(elements).cast(), size_of_val(elements)))
    }

    /// Lends elements to the device, to write, for the duration of a
    /// [scope](crate::QueuePair::scope).
    #[must_use]
    pub fn lend_mut<'a, T: Pod>(&'a self, elements: &'a mut [T]) -> LentSliceMut<'a> {
        let len = size_of_val(elements);
        LentSliceMut::of_lent(self.lent(NonNull::from(elements).cast(), len))
    }

    fn lent(&self, pointer: NonNull<u8>, len: usize) -> Lent {
        // The device accesses the memory by its numeric address.
        pointer.as_ptr().expose_provenance();
        Lent::of_key(pointer, len, self.lkey, self.inner.pd.identity())
    }

    /// Asks the device to fetch the pages of elements before requests need them.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::prefetch`].
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch<T: NoUninit>(&self, elements: &[T], purpose: Prefetch) -> Result<()> {
        advise(&self.inner.pd, self.range(elements), purpose, false)
    }

    /// Lets the device fetch the pages of elements, and waits until they are there.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::prefetch_and_wait`].
    pub fn prefetch_and_wait<T: NoUninit>(&self, elements: &[T], purpose: Prefetch) -> Result<()> {
        advise(&self.inner.pd, self.range(elements), purpose, true)
    }

    fn range<T>(&self, elements: &[T]) -> Range {
        let iova = elements.as_ptr().expose_provenance() as u64;
        Range { iova, len: size_of_val(elements), lkey: self.lkey }
    }

    /// The region's local key, for requests of a raw queue pair.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Deregisters the region. Dropping the last handle does so, too; this reports errors.
    ///
    /// # Errors
    ///
    /// With the handle: `InUse` if there are clones; errors of the device.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        let lkey = self.lkey;
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner, lkey }))
    }
}

impl fmt::Debug for ImplicitRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImplicitRegion").field("lkey", &self.lkey).finish_non_exhaustive()
    }
}
