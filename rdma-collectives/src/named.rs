//! Enumerations whose values have names, by which options, files and messages give them.

/// A value that has a name.
pub trait Named: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// The name.
    #[must_use]
    fn name(self) -> &'static str;

    /// Other names that are taken for it.
    #[must_use]
    fn other_names(self) -> &'static [&'static str];

    /// What the value means, in a sentence.
    #[must_use]
    fn about(self) -> &'static str;
}

/// Defines an enumeration of named values; the documentation of a value says what it means. Other
/// names that are taken for a value follow its name.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[doc = $about:literal])+ $variant:ident = $name:literal $(| $other:literal)*,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[doc = $about])+ #[serde(rename = $name $(, alias = $other)*)] $variant,)+
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

            /// The value with this name, or with another name that is taken for it.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                use $crate::Named as _;
                let is_it = |value: &Self| value.name() == name || value.other_names().contains(&name);
                Self::ALL.iter().copied().find(is_it)
            }
        }

        impl $crate::Named for $type {
            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }

            fn other_names(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($other),*],)+
                }
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
    use crate::{Algorithm, Collective, DataType, Transport};

    #[test]
    fn values_have_names_and_meanings() {
        for &algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::named(algorithm.name()), Some(algorithm));
            assert_eq!(serde_json::to_string(&algorithm).unwrap(), format!("\"{algorithm}\""));
            assert!(algorithm.about().ends_with('.'), "{algorithm}");
        }
        assert_eq!(DataType::named("float"), Some(DataType::F32));
        assert_eq!(serde_json::from_str::<DataType>("\"float\"").unwrap(), DataType::F32);
        assert_eq!(serde_json::to_string(&DataType::F32).unwrap(), "\"f32\"");
        assert_eq!(Collective::named("alltoall"), Some(Collective::AllToAll));
        assert_eq!(Collective::AllToAllV.name(), "all_to_all_v");
        assert_eq!(Algorithm::named("magic"), None);
        assert_eq!(Transport::Shm.about(), "Shared memory.");
    }
}
