//! Address handles that other code has made.

use rdma_sys::ibv_ah;

use super::AddressHandle;
use crate::error::{Failed, Result, Verb};
use crate::handle::{Ownership, Raw, constants, require, require_some};
use crate::pd::ProtectionDomain;
use crate::types::{ForeignObject, Path};

impl AddressHandle {
    /// Makes a handle of an address handle that was created elsewhere. `path` is what
    /// [`path`](Self::path) returns: C keeps no record of it.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the address handle is as it was. `Foreign` for NULL, and for an
    /// address handle of another context or domain; `Forked`.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`].
    ///
    /// # Examples
    ///
    /// ```
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// # let pd = context.alloc_pd()?;
    /// use rdma::{AddressHandle, Ownership, Path, Route};
    ///
    /// let gid = context.best_gid(1)?.expect("the port has a GID").gid;
    /// let path = Path::new(1).route(Route::new(gid));
    /// let mut attr = path.to_raw();
    /// // SAFETY: ibv_create_ah requires a live domain and attributes that live during the call.
    /// let raw = unsafe { (context.table().ibv_create_ah)(pd.as_raw(), &raw mut attr) };
    /// // SAFETY: the address handle was just created, and nobody else has it.
    /// let address = unsafe { AddressHandle::from_raw(&pd, raw, &path, Ownership::Destroy)? };
    /// assert_eq!(address.path(), path);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub unsafe fn from_raw(
        pd: &ProtectionDomain,
        raw: *mut ibv_ah,
        path: &Path,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        let check = || {
            let context = &pd.inner.context;
            context.check(Verb::FromRaw)?;
            require_some(raw)?;
            // `constants` requires a live object: not NULL, so this function's contract says so.
            let (of, domain) = constants!(raw => context, pd);
            require(of == context.raw.as_ptr(), ForeignObject::OtherContext)?;
            require(domain == pd.as_raw(), ForeignObject::OtherDomain)
        };
        match check() {
            Ok(()) => Ok(Self::new(Raw::new(raw), *path, &pd.inner, ownership)),
            Err(error) => Err(Failed::new(error, ownership)),
        }
    }
}
