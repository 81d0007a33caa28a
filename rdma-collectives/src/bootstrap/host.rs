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
    /// The network namespace, whose processes reach each other by loopback addresses.
    network: String,
    /// The pid namespace. Processes of a machine share memory if both namespaces are the same: each
    /// container has its own.
    processes: String,
    /// The user namespace, whose processes may read each other's memory if they are of one user.
    users: String,
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
        let [network, processes, users] = ["net", "pid", "user"].map(namespace);
        Self { machine: machine(), network, processes, users, label: name.clone().unwrap_or_else(hostname), name }
    }

    /// The name of the host in messages.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Whether both count as one host: they have the same name, or no name, and one machine and the
    /// same namespaces there.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.name == other.name && (self.name.is_some() || self.is_same_space(other))
    }

    /// Whether both are one machine and have the same namespaces, whatever the environment says.
    pub(super) fn is_same_space(&self, other: &Self) -> bool {
        self.is_same_network(other) && self.processes == other.processes
    }

    /// Whether both are one machine and have the same user namespace, so that numbers of users mean
    /// the same.
    pub(super) fn has_same_users(&self, other: &Self) -> bool {
        self.is_same_machine(other) && self.users == other.users
    }

    /// Whether both are one machine and have the same network namespace.
    pub(super) fn is_same_network(&self, other: &Self) -> bool {
        self.is_same_machine(other) && self.network == other.network
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

/// A namespace of this process; empty if /proc does not tell.
fn namespace(kind: &str) -> String {
    std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default().display().to_string()
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
            network: String::new(),
            processes: String::new(),
            users: String::new(),
            name: name.map(str::to_owned),
            label: String::new(),
        };
        let (a, b) = (host("a", None), host("b", None));
        assert!(a.is(&a) && !a.is(&b));
        let (a_as_x, a_as_y, b_as_x) = (host("a", Some("x")), host("a", Some("y")), host("b", Some("x")));
        assert!(a_as_x.is(&b_as_x) && !a_as_x.is(&a_as_y) && !a_as_x.is(&a));
        assert!(a_as_x.is_same_machine(&a_as_y) && !a_as_x.is_same_machine(&b_as_x));
    }

    #[test]
    fn containers_of_a_machine_are_hosts_of_one_machine() {
        let own = HostId { name: None, ..HostId::own() };
        assert!(own.network.starts_with("net:[") && own.processes.starts_with("pid:["), "{own:?}");
        let other = HostId { network: "net:[1]".to_owned(), ..own.clone() };
        assert!(own.is(&own) && !own.is(&other) && own.is_same_machine(&other));
        assert!(!own.is_same_space(&other) && !own.is_same_network(&other));
        let other = HostId { processes: "pid:[1]".to_owned(), ..own.clone() };
        assert!(!own.is(&other) && !own.is_same_space(&other) && own.is_same_network(&other));
        // Files that are passed by sockets are memory of both; the memory of processes is not.
        let other = HostId { users: "user:[1]".to_owned(), ..own.clone() };
        assert!(own.is(&other) && own.is_same_space(&other));
        assert!(!own.has_same_users(&other) && own.has_same_users(&own));
        assert!(own.users.starts_with("user:["), "{own:?}");
    }
}
