//! What the guide lists.

use std::path::Path;

use rdma_test_support::assert_documented;

#[test]
fn the_page_of_log_events_lists_them_all() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_documented(include_str!("observing.md"), &source, "rdma");
}
