//! Enumerations whose values have names, by which options, files and messages give them.

/// A value that has a name.
pub trait Named: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// The name.
    #[must_use]
    fn name(self) -> &'static str;

    /// What the value means, in a sentence.
    #[must_use]
    fn about(self) -> &'static str;
}

/// Defines an enumeration of named values; the documentation of a value says what it means.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[doc = $about:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[doc = $about])+ #[serde(rename = $name)] $variant,)+
        }

        impl $type {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name, by which options, files and messages give the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The value with this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        impl $crate::Named for $type {
            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($about),+).trim_ascii(),)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use super::Named as _;
    use crate::{Algorithm, Transport};

    #[test]
    fn values_have_names_and_meanings() {
        for &algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::named(algorithm.name()), Some(algorithm));
            assert_eq!(serde_json::to_string(&algorithm).unwrap(), format!("\"{algorithm}\""));
            assert!(algorithm.about().ends_with('.'), "{algorithm}");
        }
        assert_eq!(Algorithm::named("magic"), None);
        assert_eq!(Transport::Shm.about(), "Shared memory.");
    }
}
