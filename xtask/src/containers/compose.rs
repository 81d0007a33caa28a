//! The services of a compose file, as far as ours uses its YAML: one line for each key of a
//! service, and commands as lists.

/// A service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) name: String,
    /// The words of its command.
    pub(super) command: Vec<String>,
    /// The service whose network namespace it is in, if that is not its own.
    network: Option<String>,
    /// The service whose pid namespace it is in, if that is not its own.
    pid: Option<String>,
}

impl Service {
    /// The service in whose network and pid namespace it is, if it has none of its own.
    pub(super) fn host(&self) -> Result<Option<&str>, String> {
        if self.network == self.pid {
            Ok(self.network.as_deref())
        } else {
            Err(format!("{}: network_mode and pid name different services", self.name))
        }
    }
}

/// Reads the services, in order.
pub(super) fn services(text: &str) -> Result<Vec<Service>, String> {
    let mut services: Vec<Service> = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty()) {
        let not_understood = || format!("{line:?} is not understood here");
        let indent = line.len() - line.trim_start().len();
        let (key, value) = line.trim().split_once(':').ok_or_else(not_understood)?;
        let value = value.trim();
        let of_service = || value.strip_prefix("service:").map(str::to_owned).ok_or_else(not_understood);
        match (indent, key, services.last_mut()) {
            (0, "services", None) => {}
            (2, name, _) if value.is_empty() => {
                services.push(Service { name: name.to_owned(), ..Service::default() });
            }
            (4, "command", Some(service)) => {
                service.command = serde_json::from_str(value).map_err(|error| format!("{line}: {error}"))?;
            }
            (4, "network_mode", Some(service)) => service.network = Some(of_service()?),
            (4, "pid", Some(service)) => service.pid = Some(of_service()?),
            // Every service has the Dockerfile's image and starts in the order of the file. No
            // seccomp filter is in force here.
            (4, "build", Some(_)) if value == "." => {}
            (4, "cap_add", Some(_)) if value == "[SYS_PTRACE]" => {}
            (4, "init" | "depends_on", Some(_)) => {}
            _ => return Err(not_understood()),
        }
    }
    Ok(services)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_commands_and_share_namespaces() {
        let text = "# c\nservices:\n  a:\n    build: .\n    command: [\"p\"]\n  b:\n    network_mode: service:a\n    \
                    pid: service:a\n    command: [\"q\", \"r: s\"]\n";
        let parsed = services(text).unwrap();
        assert_eq!(parsed.iter().map(|service| service.host().unwrap()).collect::<Vec<_>>(), [None, Some("a")]);
        assert_eq!(parsed[1].command, ["q", "r: s"]);
        let half = services("services:\n  a:\n    pid: service:b\n").unwrap();
        assert!(half[0].host().unwrap_err().starts_with("a: "));
        assert!(services("services:\n  a:\n    volumes: []\n").unwrap_err().contains("volumes"));
    }
}
