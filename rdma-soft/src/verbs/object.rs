//! Objects to which C holds pointers: a public part, laid out as in `verbs.h`, with a private part
//! of the device in front of it.
//!
//! [`Object::get`] checks a pointer from C as far as this is cheap and refuses with `EINVAL` a
//! pointer that is null, misaligned or to another kind of object, and one to an object that ended
//! with its context, or that is freed and whose memory is not reused yet. These checks help to find
//! bugs and guarantee nothing: a pointer that never was an object's is undefined behaviour here as
//! in libibverbs. Invariants:
//!
//! 1. Every object is a leaked `Box<Object<T>>`. C gets a pointer to its public part that has the
//!    provenance of the whole box.
//! 2. An object belongs to the process that made it, unless its kind is [`Public::INHERITED`]. A
//!    forked child has a copy of the object, but the copy's descriptors, threads and rings are the
//!    parent's: [`Object::get`] refuses the copy in the child.
//! 3. The mark is `T::MARK` from [`Object::create`] to [`Object::free`] or [`Object::abandon`], and
//!    `DEAD` afterwards, until the memory is reused.
//! 4. The device accesses the public part only through raw pointers, because C may read and write
//!    it at any time.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Errno;
use crate::os::fork;

/// The mark of a freed or abandoned object.
const DEAD: u64 = 0x6465_6164_dead_dead;

/// The public part of a kind of object: the structure that `verbs.h` declares.
pub(crate) trait Public: Sized {
    /// Marks live objects of this kind.
    const MARK: u64;
    /// Whether a forked child may use the objects of its parent.
    const INHERITED: bool = false;
    /// The device's own part of such an object.
    type Private: Sync;
}

/// A type by which C points to an object: the public part itself, its beginning, or a field inside
/// it.
pub(crate) trait Pointee: Sized {
    type Object: Public;

    /// The pointer to the whole public part.
    fn object(pointer: *mut Self) -> *mut Self::Object;
}

impl<T: Public> Pointee for T {
    type Object = Self;

    #[inline]
    fn object(pointer: *mut Self) -> *mut Self {
        pointer
    }
}

/// Reads a public field of a live [`Object`].
macro_rules! get_field {
    ($object:expr, $($field:ident).+) => {{
        let public = $crate::verbs::object::Object::public($object);
        // SAFETY: a place expression through `public` requires a pointer in bounds: the object
        // lives as long as the borrow (invariant 1); `&raw` makes no reference.
        let field = unsafe { &raw const (*public).$($field).+ };
        // SAFETY: `read` requires a valid, aligned pointer and no concurrent write: a field of a
        // live object, and no other thread writes to it during the call (promise 4).
        unsafe { field.read() }
    }};
}
pub(crate) use get_field;

/// Writes a public field of a live [`Object`].
macro_rules! set_field {
    ($object:expr, $($field:ident).+, $value:expr) => {{
        let (public, value) = ($crate::verbs::object::Object::public($object), $value);
        // SAFETY: a place expression through `public` requires a pointer in bounds: the object
        // lives as long as the borrow (invariant 1); `&raw` makes no reference.
        let field = unsafe { &raw mut (*public).$($field).+ };
        // SAFETY: `write` requires a valid, aligned pointer and no concurrent access: a field of a
        // live object, and no other thread uses it during the call (promise 4).
        unsafe { field.write(value) };
    }};
}
pub(crate) use set_field;

/// A public counter of a live [`Object`] as an atomic: the device changes it while C may read it.
macro_rules! counter {
    ($object:expr, $($field:ident).+: $atomic:ty) => {{
        let object = $object;
        let public = $crate::verbs::object::Object::public(object);
        // SAFETY: a place expression through `public` requires a pointer in bounds: the object
        // lives as long as the borrow (invariant 1); `&raw` makes no reference.
        let field = unsafe { &raw mut (*public).$($field).+ };
        // SAFETY: `from_ptr` requires an aligned pointer that is valid as long as the borrow, and
        // no non-atomic access that conflicts: it is a field of the live object, the device
        // accesses the field only through this macro, and C only reads it.
        unsafe { <$atomic>::from_ptr(field) }
    }};
}
pub(crate) use counter;

/// An object: the private part, the checks of [`Object::get`] and the public part.
#[repr(C)]
pub(crate) struct Object<T: Public> {
    private: T::Private,
    mark: AtomicU64,
    process: u64,
    public: UnsafeCell<T>,
}

impl<T: Public> Object<T> {
    /// Makes an object and returns the pointer for C.
    pub(crate) fn create(public: T, private: T::Private) -> *mut T {
        let (mark, process) = (AtomicU64::new(T::MARK), fork::process());
        let object = Box::new(Self { private, mark, process, public: UnsafeCell::new(public) });
        let object = Box::into_raw(object);
        // SAFETY: a place expression through `object` requires a pointer in bounds: the box is
        // alive; `&raw` makes no reference.
        unsafe { UnsafeCell::raw_get(&raw const (*object).public) }
    }

    /// Finds the object behind a pointer from C. `EINVAL` for a pointer that the checks of this
    /// module refuse, `ENODEV` for an object of the parent process.
    ///
    /// # Safety
    ///
    /// `public` is null, or came from [`Object::create`] for the same `T`, and its object is not
    /// freed during `'a`.
    pub(crate) unsafe fn get<'a>(public: *mut T) -> Result<&'a Self, Errno> {
        if public.is_null() || !public.is_aligned() {
            return Err(Errno::INVAL);
        }
        let object = Self::around(public);
        // SAFETY: a shared reference requires a live, aligned value within the pointer's provenance
        // that nobody changes except through interior mutability: by the caller's contract and
        // invariant 1 the object is a live box, all of it within the provenance; its private part
        // is `Sync`, its mark is atomic and its public part is in an `UnsafeCell`, so other threads
        // and C may use the object meanwhile.
        let object = unsafe { &*object };
        if object.mark.load(Ordering::Relaxed) != T::MARK {
            return Err(Errno::INVAL);
        }
        let is_ours = T::INHERITED || object.process == fork::process();
        if is_ours { Ok(object) } else { Err(Errno(libc::ENODEV)) }
    }

    /// Ends an object and frees its memory. A second call is refused as long as the memory is not
    /// reused.
    ///
    /// # Safety
    ///
    /// As for [`Object::get`], and nobody uses the object or a reference to it from now on.
    pub(crate) unsafe fn free(public: *mut T) -> Result<(), Errno> {
        // SAFETY: `take` has the same contract.
        unsafe { Self::take(public) }.map(drop)
    }

    /// Like [`free`](Self::free), and returns the private part of the object.
    ///
    /// # Safety
    ///
    /// As for [`Object::free`].
    pub(crate) unsafe fn take(public: *mut T) -> Result<T::Private, Errno> {
        // SAFETY: `get` requires null or a live object: the caller's contract.
        unsafe { Self::get(public) }?.unmark()?;
        // SAFETY: `Box::from_raw` requires the pointer of a box, once: invariant 1, and `unmark`
        // succeeds only once per object.
        let object = unsafe { Box::from_raw(Self::around(public)) };
        Ok(object.private)
    }

    /// Ends an object but leaks its memory: for the objects of a closed context, to which C may
    /// still hold pointers. [`Object::get`] refuses these pointers from now on.
    pub(crate) fn abandon(&self) {
        // Fails if another thread has ended the object already, which is as good.
        let _unmarked = self.unmark();
    }

    /// The public part, for [`get_field!`] and [`set_field!`].
    pub(crate) fn public(&self) -> *mut T {
        self.public.get()
    }

    fn unmark(&self) -> Result<(), Errno> {
        let unmarked = self.mark.compare_exchange(T::MARK, DEAD, Ordering::AcqRel, Ordering::Relaxed);
        unmarked.map(drop).map_err(|_| Errno::INVAL)
    }

    fn around(public: *mut T) -> *mut Self {
        public.wrapping_byte_sub(offset_of!(Self, public)).cast()
    }
}

impl<T: Public> Deref for Object<T> {
    type Target = T::Private;

    #[inline]
    fn deref(&self) -> &T::Private {
        &self.private
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;
    use std::sync::Arc;

    struct Apple(u32);
    struct Pear(#[allow(dead_code, reason = "layout")] u32);

    impl Public for Apple {
        const MARK: u64 = 1;
        type Private = Arc<u8>;
    }

    impl Public for Pear {
        const MARK: u64 = 2;
        type Private = Arc<u8>;
    }

    #[test]
    fn an_object_lives_from_create_to_free() {
        let kept = Arc::new(5);
        let apple = Object::create(Apple(7), Arc::clone(&kept));
        // SAFETY: just created.
        let object = unsafe { Object::get(apple) }.unwrap();
        assert_eq!(***object, 5);
        // SAFETY: the object is alive and nobody writes to it.
        assert_eq!(unsafe { (*apple).0 }, 7);
        // SAFETY: no reference is used any more.
        unsafe { Object::free(apple) }.unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn wrong_pointers_are_refused() {
        // SAFETY: null is allowed.
        assert!(unsafe { Object::<Apple>::get(ptr::null_mut()) }.is_err());
        let pear = Object::create(Pear(0), Arc::default());
        // SAFETY: `get` reads the mark before anything else: a pear is alive and has the layout of
        // an apple.
        assert!(unsafe { Object::<Apple>::get(pear.cast()) }.is_err());
        // SAFETY: `get` does not read through a misaligned pointer.
        assert!(unsafe { Object::<Apple>::get(pear.cast::<Apple>().wrapping_byte_add(1)) }.is_err());
        // SAFETY: a live pear.
        unsafe { Object::get(pear) }.unwrap().abandon();
        // SAFETY: abandoned, so its memory is still there.
        assert!(unsafe { Object::get(pear) }.is_err());
        // SAFETY: an abandoned object's memory is still there.
        assert!(unsafe { Object::free(pear) }.is_err());
        // SAFETY: the memory of an abandoned object is a leaked box; the test takes it back.
        drop(unsafe { Box::from_raw(Object::<Pear>::around(pear)) });
    }
}
