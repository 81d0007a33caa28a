//! Memory that other code has registered. Numbers cite the invariants of [`super`].

use std::sync::Arc;

use rdma_sys::ibv_mr;

use super::buffer::Buffer;
use super::exposed::ExposedRegion;
use super::memory::{Host, MemoryOwner, Placement, RawMemory, SourceOwner};
use super::source::SourceSlice;
use super::{Kind, Region};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Ownership, Raw, constants, require, require_some};
use crate::pd::ProtectionDomain;
use crate::types::{ForeignObject, RemoteAccess};

impl<M: Placement> Buffer<M> {
    /// Makes a buffer of memory that other code has registered with the domain, for the local
    /// device only.
    ///
    /// `owner` is the owner of the registered bytes, or of a part of them. It is private, as a
    /// vector is: shared memory could not be made so any more.
    ///
    /// # Errors
    ///
    /// With the owner and the `Ownership`; the region is as it was. `Foreign` for NULL, for a
    /// region of another context or domain, and for memory outside of the region; `InvalidInput`
    /// if there are no bytes; `NotSupported` of [`MakePrivate`](Verb::MakePrivate) for memory to
    /// which others keep their access; `Forked`.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`]; and:
    ///
    /// 5. The device reaches the memory by its address: it was registered by `ibv_reg_mr`, or with
    ///    an iova that is the address.
    /// 6. While a handle, a buffer or a request of this crate uses the region, no request of other
    ///    code and no peer uses its keys.
    /// 7. Other code that keeps the region uses its keys after that no more either, unless the
    ///    owner stays valid and unused meanwhile: the owner is dropped or given back as soon as the
    ///    region has ended here. Of `KeepAlive`, the value is dropped before that, and may
    ///    deregister the memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let pd = context.alloc_pd()?;
    /// use rdma::sys::ibv_access_flags;
    /// use rdma::{Buffer, Ownership};
    ///
    /// let mut bytes = vec![7_u8; 4096];
    /// let write = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    /// // SAFETY: ibv_reg_mr requires a live domain, and memory that stays until it is deregistered.
    /// let raw = unsafe { context.table().ibv_reg_mr(pd.as_raw(), bytes.as_mut_ptr().cast(), 4096, write) };
    /// // SAFETY: the region was just registered, of the vector's bytes, and nobody else has it.
    /// let buffer = unsafe { Buffer::from_raw(&pd, raw, bytes, Ownership::Destroy)? };
    /// assert_eq!(buffer.deregister::<Vec<u8>>()?, [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw<O: MemoryOwner<Placement = M>>(
        pd: &ProtectionDomain,
        raw: *mut ibv_mr,
        owner: O,
        ownership: Ownership,
    ) -> Result<Self, Failed<(O, Ownership)>> {
        let what = (Kind::local::<M>(), RemoteAccess::empty());
        // SAFETY: `adopt` has the same contract as this function.
        let region = unsafe { Region::adopt(pd, raw, RawMemory::new(owner), what, ownership) };
        // `Buffer::whole` requires a region of `M`'s kind: the kind was made from it.
        region.map(Self::whole).map_err(|refused| refused.map(|(memory, ownership)| (memory.give_back(), ownership)))
    }
}

impl ExposedRegion<Host> {
    /// Makes a region of memory that other code has registered with the domain, and that peers may
    /// access.
    ///
    /// `owner` is the owner of the registered bytes, or of a part of them: a
    /// [`RawOwner`](super::RawOwner) for memory that something else keeps. `access` is what the
    /// region allows to peers.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::from_raw`], except for `NotSupported`: others may access the memory.
    ///
    /// # Safety
    ///
    /// Promises 1 to 5 and 7 of [`Buffer::from_raw`]; of promise 7, peers with a key of the region
    /// count as other code. Other code whose requests name the region meanwhile accesses the memory
    /// as peers do.
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let pd = context.alloc_pd()?;
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    /// use std::sync::atomic::AtomicU64;
    ///
    /// use rdma::sys::ibv_access_flags;
    /// use rdma::{ExposedRegion, Ownership, RawOwner, RemoteAccess};
    ///
    /// let counters: Arc<[AtomicU64]> = (0..512).map(AtomicU64::new).collect();
    /// let at: NonNull<u8> = NonNull::from(&counters[..]).cast();
    /// let (len, read) = (size_of_val(&counters[..]), ibv_access_flags::IBV_ACCESS_REMOTE_READ.0);
    /// // SAFETY: ibv_reg_mr requires a live domain, and memory that stays until it is deregistered.
    /// let raw = unsafe { context.table().ibv_reg_mr(pd.as_raw(), at.as_ptr().cast(), len, read) };
    /// // SAFETY: the counters stay in place while the Arc keeps them, and are accessed in atomic
    /// // words alone.
    /// let owner = unsafe { RawOwner::new(at, len, counters) };
    /// // SAFETY: the region was just registered, of the owner's bytes, and nobody else has it.
    /// let region = unsafe { ExposedRegion::from_raw(&pd, raw, owner, RemoteAccess::READ, Ownership::Destroy)? };
    /// let advertised = region.remote(..64)?.to_bytes();
    /// # let _ = advertised;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw<O: MemoryOwner<Placement = Host>>(
        pd: &ProtectionDomain,
        raw: *mut ibv_mr,
        owner: O,
        access: RemoteAccess,
        ownership: Ownership,
    ) -> Result<Self, Failed<(O, Ownership)>> {
        let what = (Kind::ExposedHost, access & RemoteAccess::all());
        // SAFETY: `adopt` has the same contract as this function.
        let region = unsafe { Region::adopt(pd, raw, RawMemory::new(owner), what, ownership) };
        region.map(Self::new).map_err(|refused| refused.map(|(memory, ownership)| (memory.give_back(), ownership)))
    }
}

impl SourceSlice {
    /// Makes a source of memory that other code has registered with the domain, and that nobody
    /// writes.
    ///
    /// `owner` is the owner of the registered bytes, or of a part of them. `access` is what the
    /// region allows to peers: [`READ`](RemoteAccess::READ) or nothing.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::from_raw`], except for `NotSupported`; `InvalidInput` for other rights.
    ///
    /// # Safety
    ///
    /// Promises 1 to 5 and 7 of [`Buffer::from_raw`], the last for access that writes; and no
    /// request of other code and no peer writes by the region's keys meanwhile.
    pub unsafe fn from_raw<O: SourceOwner>(
        pd: &ProtectionDomain,
        raw: *mut ibv_mr,
        owner: O,
        access: RemoteAccess,
        ownership: Ownership,
    ) -> Result<Self, Failed<(O, Ownership)>> {
        if !RemoteAccess::READ.contains(access) {
            return Err(Failed::new(Error::new(Verb::FromRaw, ErrorKind::InvalidInput), (owner, ownership)));
        }
        let memory = RawMemory::of_source(owner);
        // SAFETY: `adopt` has the same contract as this function.
        let region = unsafe { Region::adopt(pd, raw, memory, (Kind::Source, access), ownership) };
        let give_back = |(memory, ownership): (RawMemory, Ownership)| (memory.give_back_source(), ownership);
        region.map(Self::whole).map_err(|refused| refused.map(give_back))
    }
}

impl Region {
    /// The handle of foreign registered memory.
    ///
    /// # Safety
    ///
    /// As for the `from_raw` of the kind of region.
    unsafe fn adopt(
        pd: &ProtectionDomain,
        raw: *mut ibv_mr,
        mut memory: RawMemory,
        (kind, access): (Kind, RemoteAccess),
        ownership: Ownership,
    ) -> Result<Arc<Handle<Self>>, Failed<(RawMemory, Ownership)>> {
        let (pd, context) = (&pd.inner, &pd.inner.context);
        let mut check = || {
            Self::check(pd, &memory, Verb::FromRaw)?;
            require_some(raw)?;
            // `constants` requires a live object: not NULL, so this function's contract says so.
            let (of, domain, address, length) = constants!(raw => context, pd, addr, length);
            require(of == context.raw.as_ptr(), ForeignObject::OtherContext)?;
            require(domain == pd.raw.as_ptr(), ForeignObject::OtherDomain)?;
            let offset = memory.address().as_ptr().addr().checked_sub(address.addr());
            let end = offset.and_then(|offset| offset.checked_add(memory.len()));
            require(end.is_some_and(|end| end <= length), ForeignObject::OtherMemory)?;
            if matches!(kind, Kind::LocalHost | Kind::LocalGpu) { memory.make_private() } else { Ok(()) }
        };
        match check() {
            Ok(()) => Ok(Self::of(pd, Raw::new(raw), memory, (kind, access), (0, false), ownership)),
            Err(error) => Err(Failed::new(error, (memory, ownership))),
        }
    }
}
