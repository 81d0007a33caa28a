//! Tables of exported functions. From one list of signatures per library come the struct, the
//! entries that fail as unsupported, and the two ways to fill the table.
//!
//! # Safety
//!
//! 1. An entry has the type under which the library's headers declare the symbol of that name:
//!    `check_signatures` does not compile otherwise.
//! 2. Every entry is callable at any time: an entry is a function of this crate, or of a library
//!    that is never unloaded.

/// The result of a missing text function; libibverbs too returns "unknown" for a value that it does
/// not know.
pub(crate) const UNKNOWN: &std::ffi::CStr = c"unknown";

/// `-EOPNOTSUPP`, in a type that converts to every signed integer that a function returns.
#[allow(clippy::cast_possible_truncation, reason = "an errno value is small")]
pub(crate) const NEGATIVE: i16 = -(libc::EOPNOTSUPP as i16);

/// Fails with `EOPNOTSUPP` in one of the error conventions of the libraries.
macro_rules! unsupported {
    (null) => {{
        $crate::os::set_errno(libc::EOPNOTSUPP);
        std::ptr::null_mut()
    }};
    (errno) => {
        libc::EOPNOTSUPP
    };
    (minus_one) => {{
        $crate::os::set_errno(libc::EOPNOTSUPP);
        -1
    }};
    (negative_errno) => {
        $crate::table::NEGATIVE.into()
    };
    (nothing) => {
        ()
    };
    (value $value:expr) => {{
        $crate::os::set_errno(libc::EOPNOTSUPP);
        $value
    }};
}

/// The documentation of an error convention.
macro_rules! convention {
    (null) => {
        "Fails with NULL, and the reason in `errno`."
    };
    (errno) => {
        "Fails with a positive errno value."
    };
    (minus_one) => {
        "Fails with -1, and the reason in `errno`."
    };
    (negative_errno) => {
        "Fails with a negative errno value."
    };
    (nothing) => {
        "Reports no failure; does nothing when the library lacks the function."
    };
    (value $value:expr) => {
        concat!("Answers `", stringify!($value), "` when the library lacks the function.")
    };
}

/// A function as the headers declare it. The system's headers, with feature `bindgen`, may be too
/// old for a newer function.
#[cfg(any(test, feature = "bindgen"))]
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

/// A function bound at link time; a function newer than the oldest library that feature `linked`
/// links with (rdma-core 44) is looked up in the running program.
#[cfg(feature = "linked")]
macro_rules! linked {
    ($name:ident) => {
        $name
    };
    ($name:ident $since:literal) => {{
        let program = libloading::os::unix::Library::this();
        // SAFETY: symbol requires the symbol's type, which the entry has (1), and that the function
        // stays loaded: the program and the libraries that it is linked with are never unloaded.
        match unsafe { $crate::load::symbol(&program, stringify!($name)) } {
            Some(function) => function,
            None => Self::UNSUPPORTED.$name,
        }
    }};
}

/// Makes a table from a list of `fn name(argument: type, ...) -> type, convention;`, where the
/// convention says how the function reports an error. A function that is newer than rdma-core 44
/// ends with the first version that has it.
macro_rules! function_table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident from $library:ident;
        $(
            $(#[$doc:meta])*
            fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?,
                $convention:ident $(($value:expr))? $(, since $since:literal)?;
        )*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[allow(non_snake_case, reason = "the symbols' own names")]
        pub struct $table {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\n", convention!($convention $($value)?))]
                $(#[doc = concat!("\n\nNot in rdma-core before version ", $since, ".")])?
                pub $name: unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,
            )*
        }

        impl $table {
            /// Every entry fails with `EOPNOTSUPP` in its own error convention.
            ///
            /// An implementation in Rust starts from this table: `..UNSUPPORTED`.
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

            /// The system's library. By default it is loaded at the first call, from the path in
            /// [`LoadError::variable`](crate::LoadError::variable) if that is set, otherwise from
            /// where the dynamic loader finds it. The library is never unloaded; a function that an
            /// older library lacks fails with `EOPNOTSUPP` when called. With feature `linked` it is
            /// the library with which this program is linked.
            ///
            /// # Errors
            ///
            /// The library cannot be loaded. The error says which paths were tried, and the next
            /// call tries again. With feature `linked` there is no error.
            pub fn system() -> Result<&'static Self, $crate::LoadError> {
                static TABLE: std::sync::OnceLock<$table> = std::sync::OnceLock::new();
                #[cfg(not(feature = "linked"))]
                let table = $crate::load::load_once(&TABLE, $crate::load::$library, Self::from_library);
                #[cfg(feature = "linked")]
                let table = Ok(TABLE.get_or_init(Self::from_program));
                table
            }

            /// Looks every symbol up in `library`.
            #[cfg(not(feature = "linked"))]
            fn from_library(library: &'static libloading::os::unix::Library) -> Self {
                Self {
                    // SAFETY: symbol requires the symbol's type, which the entry has (1), and a
                    // library that stays loaded: this one is borrowed forever.
                    $($name: match unsafe { $crate::load::symbol(library, stringify!($name)) } {
                        Some(function) => function,
                        None => Self::UNSUPPORTED.$name,
                    },)*
                }
            }

            /// The functions that the linker bound.
            #[cfg(feature = "linked")]
            fn from_program() -> Self {
                #[allow(dead_code, reason = "newer functions are looked up")]
                unsafe extern "C" {
                    $(fn $name($($arg: $ty),*) $(-> $ret)?;)*
                }
                Self { $($name: linked!($name $($since)?),)* }
            }

            /// Does not compile when an entry's type is not the one that the headers declare.
            /// Generic, so that it is never instantiated: the linker would look for the symbols.
            #[cfg(any(test, feature = "bindgen"))]
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

    /// The result of an unsupported function, and the `errno` after the call.
    macro_rules! answer {
        ($table:ident . $name:ident ( $($arg:expr),* )) => {{
            crate::os::set_errno(0);
            // SAFETY: the entries of UNSUPPORTED are functions of this crate that use no argument.
            let answer = unsafe { ($table::UNSUPPORTED.$name)($($arg),*) };
            (answer, std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
        }};
    }

    #[test]
    fn a_missing_function_fails_in_its_own_convention() {
        const UNSUPPORTED: i32 = libc::EOPNOTSUPP;
        assert_eq!(answer!(Ibverbs.ibv_alloc_pd(null_mut())), (null_mut(), UNSUPPORTED));
        assert_eq!(answer!(Ibverbs.ibv_dealloc_pd(null_mut())), (UNSUPPORTED, 0));
        assert_eq!(answer!(Ibverbs.ibv_query_gid(null_mut(), 1, 0, null_mut())), (-1, UNSUPPORTED));
        let table = answer!(Ibverbs._ibv_query_gid_table(null_mut(), null_mut(), 0, 0, 0));
        assert_eq!(table, (-(UNSUPPORTED as isize), 0));
        assert_eq!(answer!(Ibverbs.ibv_unimport_pd(null_mut())), ((), 0));
        assert_eq!(answer!(RdmaCm.rdma_listen(null_mut(), 1)), (-1, UNSUPPORTED));
    }

    #[test]
    fn a_missing_text_function_answers_a_text() {
        let (text, _) = answer!(Ibverbs.ibv_wc_status_str(ibv_wc_status::IBV_WC_SUCCESS));
        // SAFETY: from_ptr requires a NUL-terminated string that lives: the answer is a constant.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"unknown");
    }

    /// `ibv_static_providers` aside, which has no entry.
    #[test]
    #[cfg(not(feature = "bindgen"))]
    fn the_tables_have_every_function_of_the_headers() {
        let declared: Vec<&str> = include_str!("../tests/it/abi/functions.rs")
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next())
            .collect();
        let (mut entries, mut expected) = ([Ibverbs::NAMES, RdmaCm::NAMES].concat(), declared);
        entries.sort_unstable();
        expected.sort_unstable();
        assert_eq!(entries, expected);
    }
}
