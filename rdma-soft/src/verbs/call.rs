//! Entry points: a verb is a safe function of this crate, and [`call0`] to [`call6`] turn it into a
//! C function.
//!
//! Each C argument becomes a value whose type carries C's promises about the argument: a
//! [`Handle`], an [`Own`], an [`In`], an [`Out`] and so on. [`Answer`] turns the function's result
//! into the C result. Invariants:
//!
//! 1. An argument value exists only during one call of an entry point: no function stores it. So
//!    C's promises ([`super`]) about the argument hold as long as the value exists.
//! 2. A panic does not unwind into C: an `extern "C"` function aborts the process instead.
//! 3. No cancellation of a C thread (`pthread_cancel`) unwinds Rust code: it stays pending during
//!    the call. The functions of [`fast`] leave this to those parts of the data path that call
//!    cancellation points.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Deref;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::slice;

use super::Errno;
use super::errno::set;
use super::object::{Object, Pointee};
use crate::os::thread::NoCancellation;

/// An argument of an entry point.
pub(crate) trait Argument {
    /// The argument as C passes it.
    type Raw;

    /// # Safety
    ///
    /// `raw` is an argument of a call from C, the value does not outlive that call, and C's
    /// promises about an argument of this type hold.
    unsafe fn from_c(raw: Self::Raw) -> Self;
}

/// A pointer to an object: null, or to an object that is alive during the call (promise 1).
pub(crate) struct Handle<T: Pointee>(*mut T);

impl<T: Pointee> Handle<T> {
    /// The null pointer.
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    /// The object. `EINVAL` if null, destroyed or of another kind; `ENODEV` if a parent process
    /// made it.
    #[inline]
    pub(crate) fn get(&self) -> Result<&Object<T::Object>, Errno> {
        // SAFETY: `Object::get` requires null or an object that stays alive during the borrow:
        // promise 1, and the borrow of `self` ends within the call (invariant 1).
        unsafe { Object::get(T::object(self.0)) }
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0
    }
}

/// A pointer to an object that C destroys: promise 1 holds, and nobody else uses the object during
/// or after the call.
pub(crate) struct Own<T: Pointee>(Handle<T>);

impl<T: Pointee> Own<T> {
    /// Frees the object.
    pub(crate) fn free(self) -> Result<(), Errno> {
        self.take().map(drop)
    }

    /// Frees the object and returns its private part.
    pub(crate) fn take(self) -> Result<<T::Object as super::object::Public>::Private, Errno> {
        // SAFETY: `Object::take` requires null or a live object that nobody uses afterwards: this
        // type's promise covers C, and references from `get` borrow `self`, which this call
        // consumes.
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
        // SAFETY: `as_ref` requires null, or a structure that is valid for reads and that nobody
        // writes to during the borrow: promise 2, and the borrow of `self` ends within the call
        // (invariant 1).
        unsafe { self.0.as_ref() }
    }

    /// The first fields of the structure, for callers whose version is older and shorter.
    ///
    /// # Safety
    ///
    /// Every version of `T` begins with the fields of `H`.
    pub(crate) unsafe fn get_as<H>(&self) -> Result<&H, Errno> {
        // SAFETY: `as_ref` requires null, or an `H` that is valid for reads and that nobody writes
        // to during the borrow: promise 2 for the caller's version of `T`, which begins with an `H`
        // (the caller's contract); the borrow of `self` ends within the call (invariant 1).
        unsafe { self.0.cast::<H>().as_ref() }.ok_or(Errno::INVAL)
    }
}

/// Like [`In`], for parameters that `verbs.h` declares as pointers to `const`.
pub(crate) struct InConst<T>(pub(crate) In<T>);

impl<T> Deref for InConst<T> {
    type Target = In<T>;

    fn deref(&self) -> &In<T> {
        &self.0
    }
}

/// A pointer to a structure that the verb reads and changes: null, or valid for both (promise 2).
pub(crate) struct InOut<T>(*mut T);

impl<T> InOut<T> {
    pub(crate) fn get(&mut self) -> Result<&mut T, Errno> {
        self.optional().ok_or(Errno::INVAL)
    }

    /// `None` for null.
    pub(crate) fn optional(&mut self) -> Option<&mut T> {
        // SAFETY: `as_mut` requires null, or a structure that is valid for reads and writes and
        // that nobody else uses during the borrow: promise 2, and the borrow of `self` ends within
        // the call (invariant 1).
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
        self.check()?;
        // SAFETY: `write` requires a pointer that is valid for writes: checked for null above, and
        // promise 2.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Fails for a null pointer.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.0.is_null() { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Writes the value that `make` returns. With a null pointer fails before it calls `make`.
    pub(crate) fn fill<E: From<Errno>>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<(), E> {
        self.check()?;
        Ok(self.write(make()?)?)
    }

    /// Writes as much of `value` as fits into the caller's structure and zeroes the rest of that
    /// structure: the caller's headers may be older or newer than ours.
    ///
    /// # Safety
    ///
    /// `len` is the size in bytes that C passed for its structure.
    pub(crate) unsafe fn write_as(&self, value: &T, len: usize) -> Result<(), Errno> {
        self.check()?;
        let ours = len.min(size_of::<T>());
        let rest = self.0.wrapping_byte_add(ours).cast::<u8>();
        // SAFETY: `copy_nonoverlapping` requires `ours` readable bytes, as many writable ones, and
        // no overlap: `ours` is at most the size of `value`; it is also at most `len`, the size of
        // C's structure (contract), which is valid for writes (promise 2; not null); `value` is not
        // in C's structure.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), self.0.cast(), ours) };
        // SAFETY: `write_bytes` requires writable bytes: these are the remaining `len - ours` of
        // the `len` bytes of C's structure (contract and promise 2).
        unsafe { ptr::write_bytes(rest, 0, len - ours) };
        Ok(())
    }

    /// The out parameter of type `U` that lies `offset` bytes into the structure.
    ///
    /// # Safety
    ///
    /// C's promise for the pointer covers a `U` at that offset.
    pub(crate) unsafe fn at<U>(&self, offset: usize) -> Out<U> {
        Out(self.0.wrapping_byte_add(offset).cast())
    }
}

/// A pointer to bytes that C declares as a structure, aligned or not: null, or valid for reads
/// (promise 2).
pub(crate) struct Bytes<T>(*const T);

impl<T> Bytes<T> {
    /// The first bytes of the structure.
    pub(crate) fn get<const LEN: usize>(&self) -> Result<[u8; LEN], Errno> {
        const { assert!(LEN <= size_of::<T>()) };
        if self.0.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: `read_unaligned` requires `LEN` readable bytes: the pointer is not null, a `T`
        // has at least `LEN` bytes (asserted above), and all of them are readable (promise 2).
        Ok(unsafe { self.0.cast::<[u8; LEN]>().read_unaligned() })
    }
}

/// Like [`Bytes`], for parameters that `verbs.h` declares as pointers to `const`.
pub(crate) struct BytesConst<T>(pub(crate) Bytes<T>);

/// A pointer to a list or to bytes: valid for reads of the length that another argument gives
/// (promise 2).
pub(crate) struct List<T>(*const T);

impl<T> List<T> {
    /// The entries; an empty slice for null.
    ///
    /// # Safety
    ///
    /// `len` is the number of entries that the call's other argument gives.
    pub(crate) unsafe fn get(&self, len: usize) -> &[T] {
        if len == 0
            || self.0.is_null()
            || len.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err())
        {
            return &[];
        }
        // SAFETY: `from_raw_parts` requires a non-null pointer to `len` entries of at most
        // `isize::MAX` bytes (checked above) that are readable and that nobody writes to during the
        // borrow (promise 2 and the caller's contract; the borrow of `self` ends within the call,
        // invariant 1).
        unsafe { slice::from_raw_parts(self.0, len) }
    }

    /// The entries. `EINVAL` if there are some, and the pointer is null or the length impossible.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get).
    pub(crate) unsafe fn get_all(&self, len: usize) -> Result<&[T], Errno> {
        // SAFETY: `get` has the same contract.
        let entries = unsafe { self.get(len) };
        if entries.len() == len { Ok(entries) } else { Err(Errno::INVAL) }
    }
}

/// Like [`List`], for parameters that `verbs.h` declares as pointers to what is not `const`.
pub(crate) struct ListMut<T>(List<T>);

impl<T> Deref for ListMut<T> {
    type Target = List<T>;

    fn deref(&self) -> &List<T> {
        &self.0
    }
}

/// A [`List`] of bytes that C passes as `void *`.
pub(crate) struct Data(pub(crate) List<u8>);

/// A [`List`] of bytes that C passes as `const void *`.
pub(crate) struct DataConst(pub(crate) List<u8>);

/// A C string: null, or valid for reads up to its terminating NUL (promise 2).
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn raw(&self) -> *const c_char {
        self.0
    }
}

/// Largest number of entries in a list for C.
pub(crate) const LIST_LEN: usize = 64;

/// A null-terminated list for C. All lists have the same length, so that one can be freed whatever
/// C has written to it.
type ListForC<T> = [*mut T; LIST_LEN + 1];

/// Null, or a list that [`list`] made and that C frees (promise 1).
pub(crate) struct OwnList<T>(*mut *mut T);

impl<T> OwnList<T> {
    pub(crate) fn free(self) {
        if !self.0.is_null() {
            // SAFETY: `Box::from_raw` requires the pointer of a box of this type, once: `list`
            // leaked this box, and C frees it only once (promise 1).
            drop(unsafe { Box::from_raw(self.0.cast::<ListForC<T>>()) });
        }
    }
}

/// Makes a null-terminated list of at most [`LIST_LEN`] entries for C.
pub(crate) fn list<T>(entries: &[*mut T]) -> *mut *mut T {
    debug_assert!(entries.len() <= LIST_LEN, "a null follows the entries");
    let mut list: Box<ListForC<T>> = Box::new([ptr::null_mut(); LIST_LEN + 1]);
    for (to, &entry) in list[..LIST_LEN].iter_mut().zip(entries) {
        *to = entry;
    }
    Box::into_raw(list).cast()
}

/// The address of memory that C registers. The memory stays mapped, with the length and access
/// rights of the call, until the region is deregistered (promise 3); memory of an on-demand region
/// need not stay mapped.
#[derive(Clone, Copy)]
pub(crate) struct Memory(pub(crate) *mut c_void);

/// A descriptor that C gives away unless the call refuses it: negative, or open (promise 5).
pub(crate) struct GivenFd(RawFd);

impl GivenFd {
    /// `EINVAL` if negative.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.0 < 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: `borrow_raw` requires a descriptor that is open during the borrow and is not -1:
        // promise 5 and the check; the borrow of `self` ends within the call (invariant 1).
        Ok(unsafe { BorrowedFd::borrow_raw(self.0) })
    }

    /// Takes the descriptor over. `EINVAL` if negative.
    pub(crate) fn take(self) -> Result<OwnedFd, Errno> {
        self.get()?;
        // SAFETY: `from_raw_fd` requires an open descriptor with no other owner: promise 5, and the
        // caller gives its own up.
        Ok(unsafe { OwnedFd::from_raw_fd(self.0) })
    }
}

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
    [T] ListMut<T>: *mut T = |raw| Self(List(raw));
    [T] OwnList<T>: *mut *mut T = |raw| Self(raw);
    [] Text: *const c_char = |raw| Self(raw);
    [] DataConst: *const c_void = |raw| Self(List(raw.cast()));
    [] Data: *mut c_void = |raw| Self(List(raw.cast_const().cast()));
    [] Memory: *mut c_void = |raw| Self(raw);
    [] GivenFd: c_int = |raw| Self(raw);
    [T] *mut T: *mut T = |raw| raw;
    [T] *const T: *const T = |raw| raw;
}

/// Argument and result types that C and Rust share.
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
    rdma_sys::ib_uverbs_advise_mr_advice, rdma_sys::ibv_wc_status, rdma_sys::ibv_node_type, rdma_sys::ibv_port_state, rdma_sys::ibv_rate,
}

/// The result of an entry point.
pub(crate) trait Answer {
    /// The result as C receives it.
    type Raw;

    fn into_c(self) -> Self::Raw;
}

/// The result of most verbs.
pub(crate) type Done = Result<(), Errno>;

/// Returns 0 or a positive error number, the convention of most verbs.
impl Answer for Done {
    type Raw = c_int;

    fn into_c(self) -> c_int {
        self.map_or_else(|errno| errno.0, |()| 0)
    }
}

/// Error of the verbs that read an event or a table, and of librdmacm: C receives -1, with `errno`
/// set.
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

/// Result of a part: the caller reads the descriptor and calls the part again.
pub const READ: c_int = 1;

/// Outcome of a part of a verb that waits for an event. The caller reads the descriptor between the
/// parts, outside of Rust code that a cancelled thread must not unwind ([`crate::parts`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The verb has succeeded.
    Done,
    /// The caller reads 8 bytes of the descriptor and calls the next part.
    Read,
}

impl Answer for Result<Next, MinusOne> {
    type Raw = c_int;

    fn into_c(self) -> c_int {
        match self {
            Ok(Next::Read) => READ,
            done => done.map(drop).into_c(),
        }
    }
}

/// The result of verbs that create an object.
pub(crate) type Made<T> = Result<*mut T, Errno>;

/// Returns a pointer, or null with `errno` set: the convention of the verbs that create an object.
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

/// Makes a value of the zero-sized type `F`.
///
/// # Safety
///
/// The type is inhabited.
#[inline]
unsafe fn unit<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "an entry point is a function, and captures nothing") };
    // SAFETY: `read` requires an aligned pointer to a valid value: `dangling` is aligned and a
    // value of no bytes (asserted above) may lie at any address; the type is inhabited (the
    // caller's contract), and `Copy` allows one more value of it.
    unsafe { NonNull::dangling().read() }
}

macro_rules! entry_points {
    ($guard:expr; $($name:ident($($argument:ident: $kind:ident),*);)*) => {
        $(
            /// Turns a safe function with this many arguments into a C function.
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
                    let _guard = $guard;
                    // SAFETY: `unit` requires an inhabited type: `_function` was a value of `F`.
                    let function = unsafe { unit::<F>() };
                    // SAFETY: `from_c` requires an argument from C about which C's promises hold
                    // during the value's life: C passed it to this call, and `function` does not
                    // store it (invariant 1).
                    $(let $argument = unsafe { $kind::from_c($argument) };)*
                    function($($argument),*).into_c()
                }
                entry::<F, R, $($kind),*>
            }
        )*
    };
}

entry_points! {
    NoCancellation::new();
    call0();
    call1(a: A);
    call2(a: A, b: B);
    call3(a: A, b: B, c: C);
    call4(a: A, b: B, c: C, d: D);
    call5(a: A, b: B, c: C, d: D, e: E);
    call6(a: A, b: B, c: C, d: D, e: E, f: G);
}

/// The same for functions of the data path, without the two calls that disable and enable
/// cancellation, and for functions whose caller has disabled it.
pub(crate) mod fast {
    use super::{Answer, Argument, unit};

    entry_points! {
        ();
        call1(a: A);
        call2(a: A, b: B);
        call3(a: A, b: B, c: C);
        call4(a: A, b: B, c: C, d: D);
        call5(a: A, b: B, c: C, d: D, e: E);
        call6(a: A, b: B, c: C, d: D, e: E, f: G);
    }
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
        // SAFETY: the entry point requires an out parameter that is null or valid for writes:
        // `half` is a local.
        assert_eq!(unsafe { halve(6, &raw mut half) }, 0);
        assert_eq!(half, 3);
        // SAFETY: the entry point accepts a null out parameter.
        assert_eq!(unsafe { halve(6, ptr::null_mut()) }, libc::EINVAL);
        // SAFETY: the entry point requires an out parameter that is null or valid for writes:
        // `half` is a local.
        assert_eq!(unsafe { halve(5, &raw mut half) }, libc::EBUSY);
    }
}
