//! A macro for methods that many types repeat.

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
