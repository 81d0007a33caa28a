//! Entry points: a verb is a safe function of this crate, and [`call0`] to [`call6`] make the C
//! function of it.
//!
//! Each argument of C becomes a value whose type carries C's promises about it: a [`Handle`], an
//! [`Own`], an [`In`] or an [`Out`]. The function's result becomes C's: see [`Answer`].
//! Invariants:
//!
//! 1. An argument exists for one call of an entry point and no longer: its function does not keep
//!    it. So C's promises ([`super`]) hold of it as long as it exists.
//! 2. A panic does not unwind into C: `extern "C"` aborts.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::slice;

use super::Errno;
use super::errno::set;
use super::object::{Object, Pointee};

/// An argument of an entry point.
pub(crate) trait Argument {
    /// The argument as C passes it.
    type Raw;

    /// # Safety
    ///
    /// `raw` is an argument of a call from C that lasts as long as the value exists, and C's
    /// promises about an argument of this type hold.
    unsafe fn from_c(raw: Self::Raw) -> Self;
}

/// A pointer to an object: null, or alive during the call (promise 1).
pub(crate) struct Handle<T: Pointee>(*mut T);

impl<T: Pointee> Handle<T> {
    /// No object.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// The object, if it is one of this process and not destroyed.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Object<T::Object>, Errno> {
        // SAFETY: `Object::get` wants null or a live object: promise 1, by invariant 1.
        unsafe { Object::get(T::object(self.0)) }
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }
}

/// A pointer to an object that C gives back: promise 1, and nobody else uses the object any more.
pub(crate) struct Own<T: Pointee>(Handle<T>);

impl<T: Pointee> Own<T> {
    /// Frees the object.
    pub(crate) fn free(self) -> Result<(), Errno> {
        self.take().map(drop)
    }

    /// Frees the object and returns the device's part of it.
    pub(crate) fn take(self) -> Result<<T::Object as super::object::Public>::Private, Errno> {
        // SAFETY: `Object::take` wants null or a live object that nobody uses: promise 1 for such
        // an argument; references from `get` borrow `self`, which ends here.
        unsafe { Object::take(T::object(self.raw())) }
    }
}

impl<T: Pointee> Deref for Own<T> {
    type Target = Handle<T>;

    fn deref(&self) -> &Handle<T> {
        &self.0
    }
}

/// A pointer to a structure that the verb reads: null or valid (promise 2).
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    pub(crate) fn get(&self) -> Result<&T, Errno> {
        self.optional().ok_or(Errno::INVAL)
    }

    /// `None` for null.
    pub(crate) fn optional(&self) -> Option<&T> {
        // SAFETY: `as_ref` wants null or a pointer that is valid for reads and that nobody writes
        // to during the borrow: promise 2, by invariant 1.
        unsafe { self.0.as_ref() }
    }
}

impl<T> In<T> {
    /// The beginning of the structure, of which C may have an older and shorter version.
    ///
    /// # Safety
    ///
    /// Every version of `T` begins with the fields of `H`.
    pub(crate) unsafe fn get_as<H>(&self) -> Result<&H, Errno> {
        // SAFETY: `as_ref` wants null or a pointer that is valid for reads of an `H` and that
        // nobody writes to during the borrow: promise 2, and the caller's contract.
        unsafe { self.0.cast::<H>().as_ref() }.ok_or(Errno::INVAL)
    }
}

/// As [`In`], for parameters that C has as pointers to constants.
pub(crate) struct InConst<T>(pub(crate) In<T>);

impl<T> Deref for InConst<T> {
    type Target = In<T>;

    fn deref(&self) -> &In<T> {
        &self.0
    }
}

/// A pointer to a structure that the verb reads and changes: null or valid (promise 2).
pub(crate) struct InOut<T>(*mut T);

impl<T> InOut<T> {
    pub(crate) fn get(&mut self) -> Result<&mut T, Errno> {
        self.optional().ok_or(Errno::INVAL)
    }

    /// `None` for null.
    pub(crate) fn optional(&mut self) -> Option<&mut T> {
        // SAFETY: `as_mut` wants null or a pointer that is valid for reads and writes and that
        // nobody else uses during the borrow: promise 2, by invariant 1.
        unsafe { self.0.as_mut() }
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }
}

/// An out parameter: null or valid for writes (promise 2).
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn write(&self, value: T) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `write` wants a pointer that is valid for writes: not null, and promise 2.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the value that `make` returns; does not call it if the pointer is null.
    pub(crate) fn fill<E: From<Errno>>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        if self.0.is_null() {
            return Err(Errno::INVAL.into());
        }
        Ok(self.write(make()?)?)
    }

    /// Writes as much of `value` as the caller's structure has room for, and zeroes the
    /// rest of it: its headers may be older or newer than ours.
    ///
    /// # Safety
    ///
    /// `len` is the structure's size, as C gives it.
    pub(crate) unsafe fn write_as(&self, value: &T, len: usize) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        let ours = len.min(size_of::<T>());
        let rest = self.0.wrapping_byte_add(ours).cast::<u8>();
        // SAFETY: `ours` bytes are in bounds of `value` by the line above, and valid for writes at
        // the caller's (not null; promise 2, and the contract); `value` is not C's, so they do not
        // overlap.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), self.0.cast(), ours) };
        // SAFETY: the rest of the caller's `len` bytes.
        unsafe { ptr::write_bytes(rest, 0, len - ours) };
        Ok(())
    }

    /// The structure at an offset in bytes, or the same one under another name.
    ///
    /// # Safety
    ///
    /// C's promise for the pointer covers that structure.
    pub(crate) unsafe fn at<U>(&self, offset: usize) -> Out<U> {
        Out(self.0.wrapping_byte_add(offset).cast())
    }
}

/// A pointer to plain bytes under another name, aligned or not: null or valid for reads (promise
/// 2).
pub(crate) struct Bytes<T>(*const T);

impl<T> Bytes<T> {
    /// The first bytes of the structure.
    pub(crate) fn get<const LEN: usize>(&self) -> Result<[u8; LEN], Errno> {
        const { assert!(LEN <= size_of::<T>()) };
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `read_unaligned` wants as many readable bytes: not null, the structure is as
        // long (asserted above) and valid for reads (promise 2).
        Ok(unsafe { self.0.cast::<[u8; LEN]>().read_unaligned() })
    }
}

/// As [`Bytes`], for parameters that C has as pointers to constants.
pub(crate) struct BytesConst<T>(pub(crate) Bytes<T>);

/// A pointer to a list or to bytes: valid for reads as far as another argument says (promise 2).
pub(crate) struct List<T>(*const T);

impl<T> List<T> {
    /// The entries; none for null.
    ///
    /// # Safety
    ///
    /// `len` is the number that the call's other argument says.
    pub(crate) unsafe fn get(&self, len: usize) -> &[T] {
        if len == 0
            || self.0.is_null()
            || len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err())
        {
            return &[];
        }
        // SAFETY: `from_raw_parts` wants `len` entries that are readable and not written to during
        // the borrow, of at most `isize::MAX` bytes: checked above, promise 2 and the caller's
        // contract.
        unsafe { slice::from_raw_parts(self.0, len) }
    }
}

/// As [`List`], of bytes that C has as a pointer to anything.
pub(crate) struct Data(pub(crate) List<u8>);

/// As [`Data`], for parameters that C has as pointers to constants.
pub(crate) struct DataConst(pub(crate) List<u8>);

/// A C string: null, or valid for reads up to its end (promise 2).
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn raw(&self) -> *const c_char {
        self.0
    }
}

/// A list that [`list_of_one`] made and that C gives back (promise 1), or null.
pub(crate) struct OwnList<T>(*mut *mut T);

impl<T> OwnList<T> {
    pub(crate) fn free(self) {
        if !self.0.is_null() {
            // SAFETY: `from_raw` wants the pointer of a box of this type, once: `list_of_one` made
            // it, and promise 1.
            drop(unsafe { Box::from_raw(self.0.cast::<[*mut T; 2]>()) });
        }
    }
}

/// A list for C, with a null pointer behind its only entry.
pub(crate) fn list_of_one<T>(entry: *mut T) -> *mut *mut T {
    Box::into_raw(Box::new([entry, ptr::null_mut()])).cast()
}

/// The address of memory that C registers: mapped, in the length and with the rights of the call,
/// until the region ends (promise 3).
#[derive(Clone, Copy)]
pub(crate) struct Memory(pub(crate) *mut c_void);

macro_rules! arguments {
    ($([$($generics:tt)*] $argument:ty: $raw:ty = |$from:ident| $make:expr;)*) => {
        $(impl<$($generics)*> Argument for $argument {
            type Raw = $raw;

            #[inline]
            unsafe fn from_c($from: $raw) -> Self {
                $make
            }
        })*
    };
}

arguments! {
    [T: Pointee] Handle<T>: *mut T = |raw| Self(raw);
    [T: Pointee] Own<T>: *mut T = |raw| Self(Handle(raw));
    [T] In<T>: *mut T = |raw| Self(raw);
    [T] InConst<T>: *const T = |raw| Self(In(raw));
    [T] InOut<T>: *mut T = |raw| Self(raw);
    [T] Out<T>: *mut T = |raw| Self(raw);
    [T] Bytes<T>: *mut T = |raw| Self(raw);
    [T] BytesConst<T>: *const T = |raw| Self(Bytes(raw));
    [T] List<T>: *const T = |raw| Self(raw);
    [T] OwnList<T>: *mut *mut T = |raw| Self(raw);
    [] Text: *const c_char = |raw| Self(raw);
    [] DataConst: *const c_void = |raw| Self(List(raw.cast()));
    [] Data: *mut c_void = |raw| Self(List(raw.cast_const().cast()));
    [] Memory: *mut c_void = |raw| Self(raw);
    [T] *mut T: *mut T = |raw| raw;
    [T] *const T: *const T = |raw| raw;
}

/// Arguments and results that are the same in C.
macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        $(impl Argument for $type {
            type Raw = Self;

            #[inline]
            unsafe fn from_c(raw: Self) -> Self {
                raw
            }
        }

        impl Answer for $type {
            type Raw = Self;

            #[inline]
            fn into_c(self) -> Self {
                self
            }
        })*
    };
}

plain! {
    (), u8, u16, u32, u64, usize, c_int, isize,
    rdma_sys::ibv_wr_opcode, rdma_sys::ibv_wc_opcode, rdma_sys::ibv_event_type,
    rdma_sys::rdma_port_space, rdma_sys::rdma_cm_event_type, rdma_sys::ibv_fork_status,
    rdma_sys::ibv_wc_status, rdma_sys::ibv_node_type, rdma_sys::ibv_port_state, rdma_sys::ibv_rate,
}

/// The result of an entry point.
pub(crate) trait Answer {
    /// The result as C has it.
    type Raw;

    fn into_c(self) -> Self::Raw;
}

/// The result of most verbs.
pub(crate) type Done = Result<(), Errno>;

/// The convention of most verbs: 0, or a positive error number.
impl Answer for Done {
    type Raw = c_int;

    fn into_c(self) -> c_int {
        self.map_or_else(|errno| errno.0, |()| 0)
    }
}

/// An error of the verbs that read an event or a table, and of librdmacm: -1, with `errno` set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MinusOne(pub(crate) Errno);

impl<E: Into<Errno>> From<E> for MinusOne {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl Answer for Result<(), MinusOne> {
    type Raw = c_int;

    fn into_c(self) -> c_int {
        self.map_or_else(
            |MinusOne(errno)| {
                set(errno);
                -1
            },
            |()| 0,
        )
    }
}

/// The result of verbs that make an object.
pub(crate) type Made<T> = Result<*mut T, Errno>;

/// The convention of the verbs that make an object: a pointer, or null with `errno` set.
impl<T> Answer for Made<T> {
    type Raw = *mut T;

    fn into_c(self) -> *mut T {
        self.unwrap_or_else(|errno| {
            set(errno);
            ptr::null_mut()
        })
    }
}

impl<T> Answer for Result<*const T, Errno> {
    type Raw = *const T;

    fn into_c(self) -> *const T {
        self.map(<*const T>::cast_mut).into_c()
    }
}

macro_rules! pointers {
    ($([$($generics:tt)*] $pointer:ty),*) => {
        $(impl<$($generics)*> Answer for $pointer {
            type Raw = Self;

            fn into_c(self) -> Self {
                self
            }
        })*
    };
}

pointers! { [T] *mut T, [T] *const T }

/// A value of a type without bytes.
///
/// # Safety
///
/// The type is inhabited.
#[inline]
unsafe fn unit<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "an entry point is a function, and captures nothing") };
    // SAFETY: `read` wants an aligned pointer to a valid value: any such pointer is one to no bytes
    // (asserted above), the type has a value (the caller's contract), and `Copy` allows one more.
    unsafe { NonNull::dangling().read() }
}

macro_rules! entry_points {
    ($($name:ident($($argument:ident: $kind:ident),*);)*) => {
        $(
            /// The C function of a safe one with so many arguments.
            pub(crate) const fn $name<F, R, $($kind),*>(
                _function: F,
            ) -> unsafe extern "C" fn($($kind::Raw),*) -> R::Raw
            where
                F: Fn($($kind),*) -> R + Copy,
                R: Answer,
                $($kind: Argument),*
            {
                unsafe extern "C" fn entry<F, R, $($kind),*>($($argument: $kind::Raw),*) -> R::Raw
                where
                    F: Fn($($kind),*) -> R + Copy,
                    R: Answer,
                    $($kind: Argument),*
                {
                    // SAFETY: `unit` wants an inhabited type: `_function` was a value of it.
                    let function = unsafe { unit::<F>() };
                    // SAFETY: of `from_c`: an argument of this call, of which C keeps its promises.
                    $(let $argument = unsafe { $kind::from_c($argument) };)*
                    function($($argument),*).into_c()
                }
                entry::<F, R, $($kind),*>
            }
        )*
    };
}

entry_points! {
    call0();
    call1(a: A);
    call2(a: A, b: B);
    call3(a: A, b: B, c: C);
    call4(a: A, b: B, c: C, d: D);
    call5(a: A, b: B, c: C, d: D, e: E);
    call6(a: A, b: B, c: C, d: D, e: E, f: G);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn last_errno() -> Option<i32> {
        io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn the_three_conventions() {
        assert_eq!(Ok::<(), Errno>(()).into_c(), 0);
        assert_eq!(Err::<(), _>(Errno::BUSY).into_c(), libc::EBUSY);
        assert_eq!(Err::<(), _>(MinusOne(Errno(libc::EFAULT))).into_c(), -1);
        assert_eq!(last_errno(), Some(libc::EFAULT));
        assert!(Err::<*mut u8, _>(Errno::NOMEM).into_c().is_null());
        assert_eq!(last_errno(), Some(libc::ENOMEM));
    }

    #[test]
    fn a_safe_function_becomes_an_entry_point() {
        fn halve(number: u32, half: Out<u32>) -> Result<(), Errno> {
            if number % 2 == 0 { half.write(number / 2) } else { Err(Errno::BUSY) }
        }
        let halve: unsafe extern "C" fn(u32, *mut u32) -> c_int = call2(halve);
        let mut half = 0;
        // SAFETY: the out parameter is valid for writes.
        assert_eq!(unsafe { halve(6, &raw mut half) }, 0);
        assert_eq!(half, 3);
        // SAFETY: an out parameter may be null.
        assert_eq!(unsafe { halve(6, ptr::null_mut()) }, libc::EINVAL);
        // SAFETY: the out parameter is valid for writes.
        assert_eq!(unsafe { halve(5, &raw mut half) }, libc::EBUSY);
    }
}
