//! Ownership of C objects: each object is destroyed once, or leaked together with the objects that
//! it uses.
//!
//! # Safety
//!
//! 1. A [`Handle`] owns an object that was just created, or that the caller of a `from_raw` gave
//!    up. Only the handle destroys the object.
//! 2. An [`Object`] holds its parents (an `Arc` of their handles), so a parent is destroyed after
//!    its children.
//! 3. An object that could not be destroyed is never dropped: the parents that it holds leak with
//!    it. In a forked child no object is destroyed, so every object leaks.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::errno;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::fork;

/// A pointer to a C object, for types that are used from several threads.
#[derive(Debug)]
pub(crate) struct Raw<C>(*mut C);

// SAFETY: the value is only an address; each use of its target is an unsafe operation with a SAFETY
// comment of its own.
unsafe impl<C> Send for Raw<C> {}
// SAFETY: a shared reference gives access to the address only.
unsafe impl<C> Sync for Raw<C> {}

impl<C> Clone for Raw<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Raw<C> {}

impl<C> Raw<C> {
    pub(crate) fn new(raw: *mut C) -> Self {
        Self(raw)
    }

    /// Calls a function that creates an object, or returns NULL and sets `errno`.
    pub(crate) fn created(operation: Verb, call: impl FnOnce() -> *mut C) -> Result<Self> {
        errno::created(call).map(|raw| Self(raw.as_ptr())).map_err(|errno| Error::from_errno(operation, errno))
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut C {
        self.0
    }
}

/// A C object together with the parents that it uses.
pub(crate) trait Object {
    /// The verb that destroys the object.
    const DESTROY: Verb;
    /// The object's name in the log, with an article.
    const NAME: &'static str;

    /// The [`fork::generation`] in which the object was created.
    fn made_in(&self) -> u32;

    /// Destroys the C object.
    ///
    /// # Safety
    ///
    /// The object is not destroyed yet, no other code uses it any more, and this is the process
    /// that created it.
    unsafe fn destroy(&mut self) -> Result<()>;
}

/// Owns an object, and destroys it when dropped.
pub(crate) struct Handle<T: Object>(ManuallyDrop<T>);

impl<T: Object> Handle<T> {
    /// Takes ownership of an object that nothing else destroys (1).
    pub(crate) fn new(object: T) -> Self {
        Self(ManuallyDrop::new(object))
    }

    /// Destroys the object and returns its parts. On failure the object is unchanged.
    ///
    /// # Safety
    ///
    /// After success the handle is neither used nor dropped.
    unsafe fn take(&mut self) -> Result<T> {
        fork::check(self.made_in(), T::DESTROY)?;
        // SAFETY: `destroy` requires a live object that nothing uses, in the process that made it.
        // Only this function destroys it (1), and not twice by its own contract; `&mut self` and
        // the parents' counts (2) show that nothing uses it; the generation was checked above.
        unsafe { self.0.destroy() }?;
        // SAFETY: ManuallyDrop::take requires a value that is not used again: this function's
        // contract.
        Ok(unsafe { ManuallyDrop::take(&mut self.0) })
    }

    /// Destroys the object and returns its parts.
    ///
    /// # Errors
    ///
    /// Errors of the provider, with the handle.
    pub(crate) fn into_parts(self) -> Result<T, Failed<Self>> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `take` requires the handle unused after success: `this` is not dropped then.
        unsafe { this.take() }.map_err(|error| Failed::new(error, ManuallyDrop::into_inner(this)))
    }

    /// Destroys the object if `this` is its last handle, and returns its parts.
    ///
    /// # Errors
    ///
    /// Returns the handle: `InUse` if there are others; errors of the provider.
    pub(crate) fn close(this: Arc<Self>) -> Result<T, Failed<Arc<Self>>> {
        match Arc::try_unwrap(this) {
            Ok(handle) => handle.into_parts().map_err(|failed| failed.map(Arc::new)),
            Err(this) => Err(Failed::new(Error::new(T::DESTROY, ErrorKind::InUse), this)),
        }
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: `take` requires the handle neither used nor dropped after success: this is its
        // only drop.
        match unsafe { self.take() } {
            Ok(object) => drop(object),
            Err(error) if error.kind() == ErrorKind::Forked => {}
            // Log only once the object is leaked (3): a subscriber may panic.
            Err(error) => tracing::warn!(
                name: "destroy_failed", target: "rdma",
                %error, "{} could not be destroyed; it and what it uses are leaked", T::NAME
            ),
        }
    }
}

impl<T: Object> Deref for Handle<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Object> DerefMut for Handle<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// An object that counts its destroys; the first `refusals` destroys fail.
    struct Counted {
        refusals: u32,
        destroyed: Arc<AtomicU32>,
        parent: Arc<()>,
    }

    impl Object for Counted {
        const DESTROY: Verb = Verb::DeallocPd;
        const NAME: &'static str = "a counted object";

        fn made_in(&self) -> u32 {
            fork::generation()
        }

        unsafe fn destroy(&mut self) -> Result<()> {
            if let Some(refusals) = self.refusals.checked_sub(1) {
                self.refusals = refusals;
                return Err(Error::from_errno(Self::DESTROY, libc::EBUSY));
            }
            self.destroyed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn counted(refusals: u32) -> (Arc<Handle<Counted>>, Arc<AtomicU32>, Arc<()>) {
        let (destroyed, parent) = (Arc::new(AtomicU32::new(0)), Arc::new(()));
        let object = Counted { refusals, destroyed: Arc::clone(&destroyed), parent: Arc::clone(&parent) };
        (Arc::new(Handle::new(object)), destroyed, parent)
    }

    #[test]
    fn an_object_is_destroyed_once_and_releases_its_parents() {
        let (handle, destroyed, parent) = counted(0);
        drop(handle);
        assert_eq!((destroyed.load(Ordering::Relaxed), Arc::strong_count(&parent)), (1, 1));
        let (handle, destroyed, parent) = counted(1);
        let clone = Arc::clone(&handle);
        let failed = Handle::close(handle).err().unwrap();
        assert_eq!(failed.error.kind(), ErrorKind::InUse);
        drop(clone);
        let failed = Handle::close(failed.object).err().unwrap();
        assert_eq!(failed.error.errno(), Some(libc::EBUSY));
        assert_eq!(destroyed.load(Ordering::Relaxed), 0);
        let object = Handle::close(failed.object).ok().unwrap();
        assert!(Arc::ptr_eq(&object.parent, &parent));
        drop(object);
        assert_eq!((destroyed.load(Ordering::Relaxed), Arc::strong_count(&parent)), (1, 1));
    }

    #[test]
    fn an_object_that_cannot_be_destroyed_leaks_with_its_parents() {
        let (handle, destroyed, parent) = counted(1);
        drop(handle);
        assert_eq!((destroyed.load(Ordering::Relaxed), Arc::strong_count(&parent)), (0, 2));
    }
}
