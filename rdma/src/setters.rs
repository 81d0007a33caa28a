//! Setters of options, which are moved from call to call.

/// Makes a setter from each line: `name(argument: type) = value;` stores the value in the field
/// `name`.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $type:ty) = $value:expr;)*) => { $(
        $(#[$doc])*
        pub fn $name(mut self, $argument: $type) -> Self {
            self.$name = $value;
            self
        }
    )* };
}
pub(crate) use setters;
