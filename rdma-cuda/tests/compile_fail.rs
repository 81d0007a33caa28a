//! Programs that must not compile: one in each file in `ui/`, with the compiler's message.

/// The compiler release whose messages are recorded: other releases word them differently.
const RECORDED_WITH: &str = "rustc 1.95.";

#[test]
fn mistakes_do_not_compile() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = std::process::Command::new(rustc).arg("-V").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with(RECORDED_WITH) {
        let reason = format!("messages are recorded with {RECORDED_WITH}x, this is {}", version.trim());
        return rdma_test_support::skip(&reason);
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
