//! Macros for methods and impls that many types repeat.

/// Setters of an options type, each named after its field.
macro_rules! setters {
    ($($(#[$meta:meta])* $field:ident($argument:ident: $type:ty) = $value:expr;)*) => {$(
        $(#[$meta])*
        pub fn $field(mut self, $argument: $type) -> Self {
            self.$field = $value;
            self
        }
    )*};
}

/// Getters, computed from the value or from the C structure that the type wraps.
macro_rules! getters {
    (|$this:ident| $($(#[$meta:meta])* $name:ident: $type:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub fn $name(&self) -> $type {
            let $this = self;
            $value
        }
    )*};
    ($raw:ident => $($(#[$meta:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        getters! { |this| $($(#[$meta])* $name: $type = { let $raw = &this.0; $value };)* }
    };
}

/// Implements `Debug` with the results of the given methods as fields.
macro_rules! debug_by_methods {
    ($type:ident $(<$lifetime:lifetime>)? $(<$parameter:ident: $bound:path>)?: $($method:ident),*) => {
        impl $(<$parameter: $bound>)? ::std::fmt::Debug for $type $(<$lifetime>)? $(<$parameter>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($method), &self.$method()))*
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Implements `Debug` of errors as `Display`, because `main` prints the error that it returns with
/// `Debug`.
macro_rules! debug_is_display {
    ($($error:ty),*) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// Implements `AsFd` and `AsRawFd` with the descriptor of a field.
macro_rules! lends_descriptor {
    ($(#[$meta:meta])* $type:ident $(<$parameter:ident: $bound:path>)?, $($field:ident).+) => {
        $(#[$meta])*
        impl $(<$parameter: $bound>)? ::std::os::fd::AsFd for $type $(<$parameter>)? {
            fn as_fd(&self) -> ::std::os::fd::BorrowedFd<'_> {
                self.$($field).+.as_fd()
            }
        }

        $(#[$meta])*
        impl $(<$parameter: $bound>)? ::std::os::fd::AsRawFd for $type $(<$parameter>)? {
            fn as_raw_fd(&self) -> ::std::os::fd::RawFd {
                ::std::os::fd::AsRawFd::as_raw_fd(&::std::os::fd::AsFd::as_fd(self))
            }
        }
    };
}
