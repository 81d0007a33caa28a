//! The mode and the options of a benchmark.

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
