//! Objects that C holds pointers to: a public part, laid out as `verbs.h` says, with the
//! device's own part in front of it.
//!
//! A pointer that C hands in is checked as far as that is cheap: null, misaligned, of another kind,
//! closed with its context, or freed and not yet reused pointers are refused with `EINVAL`. This is
//! a diagnosis, not a guarantee: a pointer that was never an object's is undefined behaviour here
//! as it is in libibverbs. Invariants:
//!
//! 1. Every object is a leaked `Box<Object<T>>`; C sees the address of its public part, with the
//!    provenance of the whole box.
//! 2. An object belongs to the process that made it, unless its kind is [`Public::INHERITED`]. A
//!    forked child has a copy, whose descriptors, threads and rings are the parent's: no function
//!    there gets at the copy.
//! 3. The mark is `T::MARK` from [`Object::create`] to [`Object::free`] or [`Object::abandon`], and
//!    never afterwards.
//! 4. The public part is only ever touched through raw pointers, since C code may read and write it
//!    at any time.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Errno;
use crate::os::fork;

/// The mark of an object that is no more.
const DEAD: u64 = 0x6465_6164_dead_dead;

/// The public part of a kind of objects.
pub(crate) trait Public: Sized {
    /// Marks live objects of this kind.
    const MARK: u64;
    /// Whether forked children use the objects of their parents.
    const INHERITED: bool = false;
    /// The device's part of each of them.
    type Private: Sync;
}

/// A type that C has pointers of to objects: the public part itself, or the beginning of it, or a
/// part in its middle.
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
        // SAFETY: `public` points to the public part of an object that lives as long as the borrow;
        // no reference is made.
        let field = unsafe { &raw const (*public).$($field).+ };
        // SAFETY: in bounds and aligned, and no other thread writes to the field during the call
        // (promise 4).
        unsafe { field.read() }
    }};
}
pub(crate) use get_field;

/// Writes a public field of a live [`Object`].
macro_rules! set_field {
    ($object:expr, $($field:ident).+, $value:expr) => {{
        let (public, value) = ($crate::verbs::object::Object::public($object), $value);
        // SAFETY: `public` points to the public part of an object that lives as long as the borrow;
        // no reference is made.
        let field = unsafe { &raw mut (*public).$($field).+ };
        // SAFETY: in bounds and aligned, and no other thread uses the field during the call
        // (promise 4).
        unsafe { field.write(value) };
    }};
}
pub(crate) use set_field;

/// A public counter of a live [`Object`], which the device changes while C may read it.
macro_rules! counter {
    ($object:expr, $($field:ident).+: $atomic:ty) => {{
        let object = $object;
        let public = $crate::verbs::object::Object::public(object);
        // SAFETY: `public` points to the public part of an object that lives as long as the borrow;
        // no reference is made.
        let field = unsafe { &raw mut (*public).$($field).+ };
        // SAFETY: `from_ptr` wants a field that is aligned, valid as long as the object is, and
        // used by atomic accesses only: the device uses it by this macro alone, and C only reads
        // it.
        unsafe { <$atomic>::from_ptr(field) }
    }};
}
pub(crate) use counter;

/// An object, seen from the inside.
#[repr(C)]
pub(crate) struct Object<T: Public> {
    private: T::Private,
    mark: AtomicU64,
    process: u64,
    public: UnsafeCell<T>,
}

impl<T: Public> Object<T> {
    /// Makes an object and returns the pointer that C shall have.
    pub(crate) fn create(public: T, private: T::Private) -> *mut T {
        let (mark, process) = (AtomicU64::new(T::MARK), fork::process());
        let object = Box::new(Self { private, mark, process, public: UnsafeCell::new(public) });
        let object = Box::into_raw(object);
        // SAFETY: the box is alive, so its field is in bounds; no reference is made.
        unsafe { UnsafeCell::raw_get(&raw const (*object).public) }
    }

    /// Finds the object behind a pointer from C.
    ///
    /// # Safety
    ///
    /// `public` is null, or came from [`Object::create`] for the same `T` and is not freed while
    /// `'a` lasts.
    pub(crate) unsafe fn get<'a>(public: *mut T) -> Result<&'a Self, Errno> {
        if public.is_null() || !public.is_aligned() {
            return Err(Errno::INVAL);
        }
        let object = Self::around(public);
        // SAFETY: by the caller's contract and invariant 1 the object is a live box, all of it
        // within the pointer's provenance; its private part is `Sync`, its mark atomic and its
        // public part in an `UnsafeCell`, so a shared reference is right while other threads, or C,
        // use the object.
        let object = unsafe { &*object };
        if object.mark.load(Ordering::Relaxed) != T::MARK {
            return Err(Errno::INVAL);
        }
        let is_ours = T::INHERITED || object.process == fork::process();
        if is_ours { Ok(object) } else { Err(Errno(libc::ENODEV)) }
    }

    /// Ends an object and its memory. Of two calls the second is refused, if the memory is not in
    /// use again.
    ///
    /// # Safety
    ///
    /// As for [`Object::get`], and nobody uses the object, or a reference to it, from now on.
    pub(crate) unsafe fn free(public: *mut T) -> Result<(), Errno> {
        // SAFETY: `take` has the same contract.
        unsafe { Self::take(public) }.map(drop)
    }

    /// As [`free`](Self::free), and returns the device's part of the object.
    ///
    /// # Safety
    ///
    /// As for [`Object::free`].
    pub(crate) unsafe fn take(public: *mut T) -> Result<T::Private, Errno> {
        // SAFETY: `get` wants null or a live object: the caller's contract.
        unsafe { Self::get(public) }?.unmark()?;
        // SAFETY: `from_raw` wants the pointer of a box, once: invariant 1, and of two calls only
        // one gets past `unmark`.
        let object = unsafe { Box::from_raw(Self::around(public)) };
        Ok(object.private)
    }

    /// Ends an object but leaves its memory: for the children of a context that is closed under
    /// them, whose pointers C may still hold. They are refused from now on.
    pub(crate) fn abandon(&self) {
        // Of two that end an object, one does.
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
        // SAFETY: not an apple, but of the same layout, and alive.
        assert!(unsafe { Object::<Apple>::get(pear.cast()) }.is_err());
        // SAFETY: misaligned pointers are not read.
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
