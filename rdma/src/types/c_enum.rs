//! Newtypes over C enumerations.

/// Defines a newtype over a C enumeration. The newtype keeps unknown values, and prints known
/// values by name.
macro_rules! c_enum {
    ($(#[$meta:meta])* $name:ident($int:ty) { $($(#[$doc:meta])* $constant:ident = $value:expr, $text:literal;)* }) => {
        $(#[$meta])*
        ///
        /// Keeps values that this version of the crate does not know.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($int);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*

            /// The value with this number, known or not.
            #[must_use]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// The number that the C interface uses.
            #[must_use]
            pub const fn as_raw(self) -> $int {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$constant => f.pad($text),)*
                    Self(other) => f.pad(&format!("unknown ({other})")),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $(Self::$constant => f.write_str(stringify!($constant)),)*
                    Self(other) => write!(f, concat!(stringify!($name), "({})"), other),
                }
            }
        }
    };
}
pub(crate) use c_enum;
