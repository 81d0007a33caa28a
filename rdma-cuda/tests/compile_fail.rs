//! A program of its own, because it runs cargo and uses no device: programs that must not compile,
//! one in each file in `ui/`, with the compiler's message.

#[test]
fn mistakes_do_not_compile() {
    if rdma_test_support::has_recorded_compiler() {
        trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
    }
}
