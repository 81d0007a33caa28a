//! The identity of a host.

use std::env;

use serde::{Deserialize, Serialize};

use crate::text;

/// The variable that names the host of a process, in place of the machine's identity.
const VARIABLE: &str = "RDMA_HOSTID";

/// The host of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostId {
    /// Identity of the machine, equal in all of its processes.
    machine: String,
    /// The name that the environment gives to the host.
    name: Option<String>,
    /// The name of the host in messages.
    #[serde(deserialize_with = "text::line")]
    label: String,
}

impl HostId {
    /// The host of this process.
    pub(super) fn own() -> Self {
        let name = env::var_os(VARIABLE).map(|name| name.to_string_lossy().trim().to_owned());
        let name = name.filter(|name| !name.is_empty());
        Self { machine: machine(), label: name.clone().unwrap_or_else(hostname), name }
    }

    /// The name of the host in messages.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Whether both count as one host: they have the same name, or no name and one machine.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name && (self.name.is_some() || self.is_same_machine(other))
    }

    /// Whether both are one machine, whatever the environment says.
    pub(super) fn is_same_machine(&self, other: &Self) -> bool {
        self.machine == other.machine
    }
}

fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    boot.map_or_else(hostname, |boot| boot.trim().to_owned())
}

fn hostname() -> String {
    nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_before_the_machine() {
        let host = |machine: &str, name: Option<&str>| HostId {
            machine: machine.to_owned(),
            name: name.map(str::to_owned),
            label: String::new(),
        };
        let (a, b) = (host("a", None), host("b", None));
        assert!(a.is(&a) && !a.is(&b));
        let (a_as_x, a_as_y, b_as_x) = (host("a", Some("x")), host("a", Some("y")), host("b", Some("x")));
        assert!(a_as_x.is(&b_as_x) && !a_as_x.is(&a_as_y) && !a_as_x.is(&a));
        assert!(a_as_x.is_same_machine(&a_as_y) && !a_as_x.is_same_machine(&b_as_x));
    }
}
