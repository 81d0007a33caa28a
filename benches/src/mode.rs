//! The mode and the options of a benchmark.

use std::str::FromStr;

/// Whether this is a smoke run, which runs everything once and briefly to show that it works.
///
/// Cargo passes `--bench` for `cargo bench`, and nothing (or `--test`) when it runs a benchmark as
/// a test.
#[must_use]
pub fn is_smoke() -> bool {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    has("--test") || !has("--bench")
}

/// The value of the argument `name=value`.
#[must_use]
pub fn option(name: &str) -> Option<String> {
    std::env::args().find_map(|argument| Some(argument.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The number of the argument `name=value`, or the default.
///
/// # Errors
///
/// If the value is no number.
pub fn number<T: FromStr>(name: &str, default: T) -> Result<T, T::Err> {
    option(name).map_or(Ok(default), |text| text.parse())
}
