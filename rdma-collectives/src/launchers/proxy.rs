//! Hydra's process on this host, the ancestor of all ranks of its job that run here; its identity
//! tells two Hydra jobs apart.

use std::fs;

use nix::unistd::getppid;

/// Prefix of the names of Hydra's processes: `hydra_pmi_proxy`, and Intel's `hydra_bstrap_proxy`
/// above it.
const NAME: &str = "hydra_";
/// Most ancestors to examine: more than the shells and wrappers between a rank and Hydra.
const MOST_GENERATIONS: usize = 32;

/// A text that all ranks of this job on this host share and no other job there has. `None` if Hydra
/// has not started this process, or if Hydra's process is not visible, as in a container.
pub(super) fn identity() -> Option<String> {
    let mut pid = getppid().as_raw();
    for _ in 0..MOST_GENERATIONS {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let ancestor = Ancestor::from_stat(&stat)?;
        if ancestor.name.starts_with(NAME) {
            // The kernel reuses process numbers, so the start time is part of the text.
            return Some(format!("{pid} {}", ancestor.started));
        }
        pid = ancestor.parent;
    }
    None
}

/// The fields of `/proc/PID/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Ancestor<'a> {
    name: &'a str,
    parent: i32,
    /// Start time, in clock ticks since boot.
    started: &'a str,
}

impl<'a> Ancestor<'a> {
    /// Parses `PID (NAME) STATE PARENT ...`; the name may contain brackets and spaces.
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
