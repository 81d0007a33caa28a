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
//! 4. An object with an [`Ownership`] other than `Destroy` is destroyed by other code, after its
//!    handle has ended: the promise of the caller of its `from_raw`. Its handle ends only once no
//!    request of this crate uses it. Its parents may end here before it: the verb that destroys
//!    them refuses while it is there, and they leak. It receives nothing by then (that promise).

use std::any::Any;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::errno;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::fork;
use crate::types::ForeignObject;

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

/// The choice of who destroys a C object that other code has made and a `from_raw` takes.
///
/// Every `from_raw` checks what can be checked: NULL, an object of another context or domain, a
/// queue pair of another transport or with other queues is an error
/// ([`ErrorKind::Foreign`]), which leaves the object as it is and gives the `Ownership` back.
///
/// # Contract
///
/// The caller of each `from_raw` promises, beside what the function adds:
///
/// 1. **Live.** The pointer is NULL, or points to an object that lives and that the functions of
///    the context's [`table`](crate::Context::table) have made in this process.
/// 2. **One owner.** With `Destroy`, no other code destroys the object, and no acknowledgement of
///    an event of it is missing. With `Keep`, other code destroys it only after the last handle and
///    the last object that uses it here have gone; with `KeepAlive`, only after that value was
///    dropped. The same holds for what the object itself uses: its context, domain and queues.
///    With `Keep`, the object is destroyed before the last handles of the domain, queues and
///    context that it uses are dropped, and receives nothing until then: a verb that destroys one
///    of them would find it in use.
/// 3. **One handle.** No other object of this crate stands for the same C object meanwhile: what
///    this crate has made itself is not given to a `from_raw`.
/// 4. **Any thread.** The object's functions may be called by any thread, and by several at a time.
///    That is so unless the object was made without locks: in a thread domain
///    (`ibv_alloc_td`), as a single-threaded completion queue
///    (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`), or with `MLX5_SINGLE_THREADED` in the environment.
///
/// # Examples
///
/// A domain that C code has made, and that it frees itself:
///
/// ```
/// # let context = rdma::open(&"soft0".parse()?)?.context;
/// use rdma::{Ownership, ProtectionDomain};
///
/// // SAFETY: ibv_alloc_pd requires an open context, which `context` keeps open.
/// let raw = unsafe { (context.table().ibv_alloc_pd)(context.as_raw()) };
/// // SAFETY: the domain was just made in this context; it is freed below, after the handle.
/// let pd = unsafe { ProtectionDomain::from_raw(&context, raw, Ownership::Keep)? };
/// drop((pd.allocate(4096)?, pd));
/// // SAFETY: ibv_dealloc_pd requires a live domain that nothing uses any more.
/// assert_eq!(unsafe { (context.table().ibv_dealloc_pd)(raw) }, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
#[non_exhaustive]
pub enum Ownership {
    /// The last handle destroys the object.
    #[default]
    Destroy,
    /// Other code destroys the object. The last handle only lets go of it.
    ///
    /// A queue that still has requests of this crate in flight cannot be let go of: `close` fails
    /// with [`ErrorKind::InUse`], and a drop leaks the memory of these requests.
    ///
    /// A [scope](crate::QueuePair::scope) whose requests do not end resets such a queue pair
    /// instead of destroying it. On iWARP no reset ends requests: the scope then aborts the
    /// process.
    Keep,
    /// As `Keep`. The value is dropped once this crate has let go of the object: it may be what
    /// owns the object, and destroys it. If the object cannot be let go of, the value leaks.
    KeepAlive(Box<dyn Any + Send + Sync>),
}

impl Ownership {
    /// Other code destroys the object, after `owner` was dropped: [`Ownership::KeepAlive`].
    pub fn keep_alive(owner: impl Send + Sync + 'static) -> Self {
        Self::KeepAlive(Box::new(owner))
    }

    /// Whether other code destroys the object.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self, Self::Destroy)
    }

    /// Ends the object: destroys it with `destroy`, or drops the value that keeps it.
    pub(crate) fn end(&mut self, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.is_kept() {
            return destroy();
        }
        drop(mem::replace(self, Self::Keep));
        Ok(())
    }
}

impl fmt::Debug for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Destroy => "Destroy",
            Self::Keep => "Keep",
            Self::KeepAlive(_) => "KeepAlive",
        })
    }
}

/// Fails with `reason` unless `is_right`.
pub(crate) fn require(is_right: bool, reason: ForeignObject) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::new(Verb::FromRaw, ErrorKind::Foreign(reason))) }
}

/// Fails for NULL.
pub(crate) fn require_some<C>(raw: *mut C) -> Result<()> {
    require(!raw.is_null(), ForeignObject::Null)
}

/// Reads fields of a C object through a pointer of which the caller knows that the object lives,
/// and that no code writes to these fields.
macro_rules! constants {
    ($raw:expr => $($field:ident),+) => {
        ($(
            // SAFETY: the read requires a live object whose field no thread writes: the caller of
            // the macro knows both.
            unsafe { (*$raw).$field }
        ),+)
    };
}
pub(crate) use constants;

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
