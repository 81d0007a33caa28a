//! The table of the causes for which rdma-core's tests may skip, and of those that fail.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("skips.tsv");

/// A cause for which a test may skip, or a test that fails.
#[derive(Debug)]
pub(super) struct Cause {
    /// Whether other machines may have what lacks, such as huge pages.
    of_machine: bool,
    /// Whether the text is the name of a test that fails.
    fails: bool,
    /// The beginning of what the test says, or its name.
    text: &'static str,
    pub(super) reason: &'static str,
}

/// The causes of the table.
pub(super) fn causes() -> impl Iterator<Item = Cause> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
        [of, text, reason] => Some(Cause { of_machine: of == "machine", fails: of == "fails", text, reason }),
        _ => None,
    })
}

/// The cause of what a skipped test says.
pub(super) fn cause(said: &str) -> Option<Cause> {
    causes().find(|cause| said.starts_with(cause.text))
}

/// Whether a test is known to fail.
pub(super) fn is_known_to_fail(name: &str) -> bool {
    causes().any(|cause| cause.fails && cause.text == name)
}

/// Fails if a cause of the device is that of no test, all of which have said `said`.
pub(super) fn are_used<'a>(said: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let said: BTreeSet<&str> = said.filter_map(|said| cause(said)).map(|cause| cause.text).collect();
    match causes().find(|cause| !cause.of_machine && !said.contains(cause.text)) {
        Some(cause) => Err(format!("skips.tsv has {:?}, but no test of pyverbs skips for it", cause.text)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_table_is_a_cause() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(causes().count(), lines.count());
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            assert!(["device\t", "machine\t", "fails\t"].iter().any(|of| line.starts_with(of)), "{line}");
        }
    }

    #[test]
    fn a_cause_without_a_test_is_an_error() {
        let said: Vec<String> = causes().map(|cause| format!("{} and more", cause.text)).collect();
        are_used(said.iter()).unwrap();
        assert!(are_used([].iter()).is_err());
        assert!(cause("No such cause").is_none());
    }
}
