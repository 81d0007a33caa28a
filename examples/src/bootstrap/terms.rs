//! Terms that the processes of a job compare before they work together.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// Settings, keyed by the name of their option.
pub(super) type Settings = Map<String, Value>;

/// The kind of job, which decides how messages name its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roles {
    /// Ranks with numbers.
    Ranks,
    /// So many ranks, and aggregators after them.
    RanksAndAggregators(usize),
    /// A server (rank 0) and its client.
    ServerAndClient,
}

impl Roles {
    /// The roles of a job of ranks, and of aggregators if there are any.
    #[must_use]
    pub fn of(ranks: usize, aggregators: usize) -> Self {
        if aggregators == 0 { Self::Ranks } else { Self::RanksAndAggregators(ranks) }
    }

    /// The name of a rank in messages.
    #[must_use]
    pub fn name(self, rank: usize) -> String {
        match (self, rank) {
            (Self::ServerAndClient, 0) => "the server".to_owned(),
            (Self::ServerAndClient, 1) => "the client".to_owned(),
            (Self::RanksAndAggregators(ranks), _) if rank >= ranks => format!("aggregator {}", rank - ranks),
            _ => format!("rank {rank}"),
        }
    }

    /// A message that names the ranks that did not come.
    pub(super) fn missing(self, missing: &[usize], world: usize) -> String {
        match self {
            Self::ServerAndClient => "the client did not come".to_owned(),
            Self::Ranks => {
                let names: Vec<String> = missing.iter().map(usize::to_string).collect();
                format!("{} of {world} ranks did not come (missing: {})", missing.len(), names.join(", "))
            }
            Self::RanksAndAggregators(_) => {
                let names: Vec<String> = missing.iter().map(|&rank| self.name(rank)).collect();
                format!("{} of {world} processes did not come (missing: {})", missing.len(), names.join(", "))
            }
        }
    }

    /// A message that tells how to start the missing processes.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::ServerAndClient => "start one with this host's address as its argument",
            Self::Ranks | Self::RanksAndAggregators(_) => "start them with the same --world, --root and --job",
        }
    }
}

/// Terms that the processes of a job compare before they work together.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) program: &'static str,
    pub(super) settings: Settings,
    pub(super) roles: Roles,
    pub(super) timeout: Duration,
}

impl Terms {
    /// The terms of a program. `settings` is a structure whose fields have the names of options:
    /// ranks that differ in one refuse each other and name the option. No wait for another rank
    /// lasts longer than `timeout`.
    pub fn new(program: &'static str, settings: &impl Serialize, roles: Roles, timeout: Duration) -> Self {
        let settings = match serde_json::to_value(settings) {
            Ok(Value::Object(settings)) => settings,
            _ => Settings::new(),
        };
        Self { program, settings, roles, timeout }
    }
}

/// The first setting in which two ranks differ: its option, and both values as text.
pub(super) fn difference(ours: &Settings, theirs: &Settings) -> Option<(String, String, String)> {
    let (name, _) = ours.iter().chain(theirs).find(|(name, _)| ours.get(*name) != theirs.get(*name))?;
    let text = |settings: &Settings| match settings.get(name) {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    Some((format!("--{name}"), text(ours), text(theirs)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let settings = |value: Value| Terms::new("x", &value, Roles::Ranks, Duration::ZERO).settings;
        let ours = settings(json!({ "min": "8", "max": "1K", "iters": null }));
        assert_eq!(difference(&ours, &ours), None);
        for (theirs, expected) in [
            (json!({ "min": "8", "max": "2K", "iters": null }), ("--max", "1K", "2K")),
            (json!({ "min": "8", "max": "1K", "iters": 5 }), ("--iters", "none", "5")),
            (json!({ "min": "8", "max": "1K", "iters": null, "check": true }), ("--check", "none", "true")),
        ] {
            let (name, a, b) = difference(&ours, &settings(theirs)).unwrap();
            assert_eq!((name.as_str(), a.as_str(), b.as_str()), expected);
        }
    }
}
