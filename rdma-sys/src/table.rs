//! The tables of exported functions: one list of signatures per library makes the struct, the entries that say
//! "unsupported", and the two ways to fill it.
//!
//! # Safety
//!
//! 1. An entry has the type under which the library's headers declare the symbol of that name: `check_signatures`
//!    does not compile otherwise.
//! 2. Every entry is callable at any time: an entry is a function of this crate or of a library that is never unloaded.

/// What the text functions answer when they do not exist. libibverbs, too, answers "unknown" to what it does not know.
pub(crate) const UNKNOWN: &std::ffi::CStr = c"unknown";

/// In the type that converts to all that return it.
#[allow(clippy::cast_possible_truncation, reason = "an errno value is small")]
pub(crate) const NEGATIVE: i16 = -(libc::EOPNOTSUPP as i16);

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: takes nothing, and returns a pointer to this thread's `errno` (errno(3)), valid while the thread lives.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: `location` is this thread's own, so it is valid for writes and nobody else writes it.
    unsafe { *location = errno }
}

/// Fails with `EOPNOTSUPP` in one of the error conventions of the libraries.
macro_rules! unsupported {
    (null) => {{
        $crate::table::set_errno(libc::EOPNOTSUPP);
        std::ptr::null_mut()
    }};
    (errno) => {
        libc::EOPNOTSUPP
    };
    (minus_one) => {{
        $crate::table::set_errno(libc::EOPNOTSUPP);
        -1
    }};
    (negative_errno) => {
        $crate::table::NEGATIVE.into()
    };
    (nothing) => {
        ()
    };
    (value $value:expr) => {{
        $crate::table::set_errno(libc::EOPNOTSUPP);
        $value
    }};
}

/// The documentation of an error convention.
macro_rules! convention {
    (null) => {
        "A failure is NULL, with the reason in `errno`."
    };
    (errno) => {
        "A failure is a positive errno value."
    };
    (minus_one) => {
        "A failure is -1, with the reason in `errno`."
    };
    (negative_errno) => {
        "A failure is a negative errno value."
    };
    (nothing) => {
        "Does not report failures; does nothing when the library lacks it."
    };
    (value $value:expr) => {
        concat!("Answers `", stringify!($value), "` when the library lacks it.")
    };
}

/// A function as the headers declare it; they may be too old for it if they are the system's.
macro_rules! declared {
    ($name:ident) => {
        $crate::functions::$name
    };
    ($name:ident $since:literal) => {{
        #[cfg(feature = "bindgen")]
        let declared = Self::UNSUPPORTED.$name;
        #[cfg(not(feature = "bindgen"))]
        let declared = $crate::functions::$name;
        declared
    }};
}

/// A function bound at link time, or looked up in the running program if it is newer than the oldest library that
/// feature `linked` links with (rdma-core 44).
#[cfg(feature = "linked")]
macro_rules! linked {
    ($name:ident) => {
        $crate::functions::$name
    };
    ($name:ident $since:literal) => {{
        // SAFETY: by 1, the entry's type is the symbol's; the program and what it is linked with are never unloaded.
        match unsafe { $crate::load::symbol_of_program(concat!(stringify!($name), "\0")) } {
            Some(function) => function,
            None => Self::UNSUPPORTED.$name,
        }
    }};
}

/// Makes a table from a list of `fn name(argument: type, ...) -> type, convention;`, where the convention says how the
/// function reports an error. A function that came after rdma-core 44 ends with the version in which it came.
macro_rules! function_table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident;
        $(
            fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?,
                $convention:ident $(($value:expr))? $(, since $since:literal)?;
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "the symbols' own names")]
        pub struct $table {
            $(
                #[doc = concat!("The symbol `", stringify!($name), "`. ", convention!($convention $($value)?))]
                $(#[doc = concat!("\n\nNot in rdma-core before version ", $since, ".")])?
                pub $name: unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,
            )*
        }

        impl $table {
            /// Every entry fails with `EOPNOTSUPP` in its own error convention.
            ///
            /// An implementation in Rust starts from it: `..UNSUPPORTED`.
            pub const UNSUPPORTED: Self = Self {
                $($name: {
                    unsafe extern "C" fn $name($(_: $ty),*) $(-> $ret)? {
                        unsupported!($convention $($value)?)
                    }
                    $name
                },)*
            };

            /// The names of all entries, in the order of the list.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// Looks every symbol up in `library`; what it lacks fails with `EOPNOTSUPP` when called.
            #[cfg(not(feature = "linked"))]
            fn from_library(library: &'static libloading::os::unix::Library) -> Self {
                Self {
                    // SAFETY: by 1, the entry's type is the symbol's; `library` is never unloaded.
                    $($name: match unsafe { $crate::load::symbol(library, concat!(stringify!($name), "\0")) } {
                        Some(function) => function,
                        None => Self::UNSUPPORTED.$name,
                    },)*
                }
            }

            /// The functions that the linker bound.
            #[cfg(feature = "linked")]
            fn from_program() -> Self {
                Self { $($name: linked!($name $($since)?),)* }
            }

            /// Does not compile when an entry's type is not the one that the headers declare. Generic, so that it is
            /// never instantiated: that would make the linker look for the symbols.
            #[allow(dead_code, clippy::extra_unused_type_parameters, reason = "checked, never called")]
            fn check_signatures<T>() -> Self {
                Self { $($name: declared!($name $($since)?),)* }
            }
        }

        impl std::fmt::Debug for $table {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($table)).finish_non_exhaustive()
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Ibverbs, RdmaCm, bindings::*};
    use std::{ffi::CStr, ptr::null_mut};

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn what_is_missing_fails_in_its_own_convention() {
        let Ibverbs { ibv_alloc_pd, ibv_dealloc_pd, ibv_query_gid, _ibv_query_gid_table, ibv_unimport_pd, .. } =
            Ibverbs::UNSUPPORTED;
        super::set_errno(0);
        // SAFETY: the functions that stand in look at no argument.
        assert_eq!((unsafe { ibv_alloc_pd(null_mut()) }, errno()), (null_mut(), libc::EOPNOTSUPP));
        super::set_errno(0);
        // SAFETY: as above.
        assert_eq!((unsafe { ibv_dealloc_pd(null_mut()) }, errno()), (libc::EOPNOTSUPP, 0));
        // SAFETY: as above.
        assert_eq!((unsafe { ibv_query_gid(null_mut(), 1, 0, null_mut()) }, errno()), (-1, libc::EOPNOTSUPP));
        super::set_errno(0);
        // SAFETY: as above.
        assert_eq!(unsafe { _ibv_query_gid_table(null_mut(), null_mut(), 0, 0, 0) }, -(libc::EOPNOTSUPP as isize));
        // SAFETY: as above.
        unsafe { ibv_unimport_pd(null_mut()) };
        assert_eq!(errno(), 0);
        // SAFETY: as above.
        assert_eq!((unsafe { (RdmaCm::UNSUPPORTED.rdma_listen)(null_mut(), 1) }, errno()), (-1, libc::EOPNOTSUPP));
    }

    #[test]
    fn a_text_function_that_is_missing_answers_a_text() {
        // SAFETY: the function that stands in looks at no argument.
        let text = unsafe { (Ibverbs::UNSUPPORTED.ibv_wc_status_str)(ibv_wc_status::IBV_WC_SUCCESS) };
        // SAFETY: it returned a constant.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"unknown");
    }

    /// `ibv_static_providers` aside, which has no entry.
    #[test]
    #[cfg(not(feature = "bindgen"))]
    fn the_tables_have_every_function_of_the_headers() {
        let declared: Vec<&str> = include_str!("functions.rs")
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next())
            .collect();
        let (mut entries, mut expected) = ([Ibverbs::NAMES, RdmaCm::NAMES].concat(), declared);
        entries.sort_unstable();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }
}
