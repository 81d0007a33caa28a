//! Hydra's process on this host, from which all ranks of a job descend that run here: what tells
//! two of its jobs apart.

use std::fs;

use nix::unistd::getppid;

/// Prefix of Hydra's process names: `hydra_pmi_proxy`, and Intel's `hydra_bstrap_proxy`
/// above it.
const NAME: &str = "hydra_";
/// More generations than shells and wrappers of a rank make.
const MOST_GENERATIONS: usize = 32;

/// A text that no other job of this host has, and all ranks of this one that run here: `None` where
/// Hydra has not started it, or the process is not to be seen, as in a container.
pub(super) fn identity() -> Option<String> {
    let mut pid = getppid().as_raw();
    for _ in 0..MOST_GENERATIONS {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let ancestor = Ancestor::from_stat(&stat)?;
        if ancestor.name.starts_with(NAME) {
            // Numbers come again.
            return Some(format!("{pid} {}", ancestor.started));
        }
        pid = ancestor.parent;
    }
    None
}

/// A line of the kernel about a process.
#[derive(Debug, PartialEq, Eq)]
struct Ancestor<'a> {
    name: &'a str,
    parent: i32,
    /// Since the machine's start.
    started: &'a str,
}

impl<'a> Ancestor<'a> {
    /// Reads `PID (NAME) STATE PARENT ...`; names may have brackets and spaces.
    fn from_stat(stat: &'a str) -> Option<Self> {
        let (front, rest) = stat.rsplit_once(") ")?;
        let (_, name) = front.split_once(" (")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self { name, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let rest = "S 14931 14932 14932 0 -1 4194304 99 0 0 0 1 2 0 0 20 0 1 0 806731 2584576 230";
        for name in ["hydra_pmi_proxy", "a (b) c", ") ", ""] {
            let stat = format!("14932 ({name}) {rest}\n");
            assert_eq!(Ancestor::from_stat(&stat), Some(Ancestor { name, parent: 14931, started: "806731" }));
        }
        for bad in ["", "5 (x", "5 (x) S", "5 (x) S one two", "5 (x) S 4 5 6"] {
            assert_eq!(Ancestor::from_stat(bad), None);
        }
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(Ancestor::from_stat(&own).unwrap().parent, getppid().as_raw());
    }
}
