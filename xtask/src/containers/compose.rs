//! The services of a compose file, with the keys that ours use.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_yaml_ng::{Mapping, Value, from_str, from_value};

/// A service.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Service {
    #[serde(skip)]
    pub(super) name: String,
    /// The words of its command.
    #[serde(deserialize_with = "words")]
    pub(super) command: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    /// Files of the machine, as `FROM:TO:ro`.
    pub(super) volumes: Vec<String>,
    /// The service whose network namespace it is in, if that is not its own.
    network_mode: Option<String>,
    /// The service whose pid namespace it is in, if that is not its own.
    pid: Option<String>,
    /// What one service needs of the engine. Every service has the Dockerfile's image and starts in
    /// the order of the file, and no seccomp filter is in force, where there is no engine.
    build: Option<String>,
    image: Option<String>,
    init: bool,
    depends_on: Vec<String>,
    cap_add: Vec<String>,
}

impl Service {
    /// A service with namespaces of its own.
    pub(super) fn new(name: String, command: Vec<String>, environment: BTreeMap<String, String>) -> Self {
        Self { name, command, environment, ..Self::default() }
    }

    /// The service in whose network and pid namespace it is, if it has none of its own.
    pub(super) fn host(&self) -> Result<Option<&str>, String> {
        let of_service = |value: &Option<String>| match value.as_deref() {
            None => Ok(None),
            Some(text) => text.strip_prefix("service:").map(|name| Some(name.to_owned())).ok_or(text.to_owned()),
        };
        let not_understood = |text| format!("{}: the namespace {text:?} is not understood here", self.name);
        if of_service(&self.network_mode).map_err(not_understood)? != of_service(&self.pid).map_err(not_understood)? {
            return Err(format!("{}: network_mode and pid name different services", self.name));
        }
        Ok(self.pid.as_deref().and_then(|text| text.strip_prefix("service:")))
    }
}

/// A command: a list of words, or words with spaces between them.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        List(Vec<String>),
        Text(String),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::List(words) => words,
        Words::Text(text) => text.split_whitespace().map(str::to_owned).collect(),
    })
}

/// Reads the services, in order.
pub(super) fn services(text: &str) -> Result<Vec<Service>, String> {
    let mut file: Value = from_str(text).map_err(|error| error.to_string())?;
    // `<<: *host`
    file.apply_merge().map_err(|error| error.to_string())?;
    let file: Mapping = from_value(file).map_err(|error| error.to_string())?;
    let mut services = Vec::new();
    for (key, value) in file {
        match key.as_str() {
            Some("services") => {
                for (name, value) in from_value::<Mapping>(value).map_err(|error| error.to_string())? {
                    let name = name.as_str().ok_or_else(|| format!("the service {name:?} has no name"))?.to_owned();
                    let service: Service = from_value(value).map_err(|error| format!("{name}: {error}"))?;
                    services.push(Service { name, ..service });
                }
            }
            Some(key) if key.starts_with("x-") => {}
            _ => return Err(format!("{key:?} is not understood here")),
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
        let other = services("services:\n  a:\n    pid: host\n").unwrap();
        assert!(other[0].host().unwrap_err().contains("\"host\""));
        assert!(services("services:\n  a:\n    ports: []\n").unwrap_err().contains("ports"));
    }

    #[test]
    fn services_take_what_all_of_them_have() {
        let text = "x-all: &all\n  volumes: [\"./a:/b:ro\"]\n  environment: {C: d}\nservices:\n  a:\n    <<: *all\n    \
                    command: p --q 1\n";
        let parsed = services(text).unwrap();
        assert_eq!((&parsed[0].name[..], &parsed[0].volumes[..]), ("a", &["./a:/b:ro".to_owned()][..]));
        assert_eq!(parsed[0].command, ["p", "--q", "1"]);
        assert_eq!(parsed[0].environment["C"], "d");
    }
}
