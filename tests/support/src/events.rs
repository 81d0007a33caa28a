//! The log events of a crate, as its source and its docs have them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A log event: its name, its level in lower case, and its fields in alphabetical order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedEvent {
    /// The name.
    pub name: String,
    /// The level, in lower case.
    pub level: String,
    /// The fields without the message, in alphabetical order.
    pub fields: Vec<String>,
}

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

impl LoggedEvent {
    fn new(name: &str, level: &str, fields: impl Iterator<Item = String>) -> Self {
        let fields: BTreeSet<_> = fields.filter(|field| field != "message").collect();
        Self { name: name.to_owned(), level: level.to_lowercase(), fields: fields.into_iter().collect() }
    }

    /// An event that a subscriber got.
    #[must_use]
    pub fn of(metadata: &tracing::Metadata<'static>) -> Self {
        let fields = metadata.fields().iter().map(|field| field.name().to_owned());
        Self::new(metadata.name(), metadata.level().as_str(), fields)
    }

    /// The events in the tables of a page: rows of a name, a level, fields, and an explanation.
    #[must_use]
    pub fn of_page(page: &str) -> BTreeSet<Self> {
        let row = |line: &str| {
            let cells: Vec<_> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
            let [name, level, fields, ..] = cells[..] else { return None };
            let fields = fields.split(',').map(|field| field.trim().trim_matches('`').to_owned());
            let name = name.strip_prefix('`')?.strip_suffix('`')?;
            LEVELS.contains(&level).then(|| Self::new(name, level, fields.filter(|field| !field.is_empty())))
        };
        page.lines().filter_map(row).collect()
    }

    /// The events in the source of a crate.
    ///
    /// # Panics
    ///
    /// If an event has no name, or not this target.
    #[must_use]
    pub fn of_source(folder: &Path, target: &str) -> BTreeSet<Self> {
        let mut events = BTreeSet::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                events.extend(Self::of_source(&path, target));
            } else if name.ends_with(".rs") && !name.contains("tests") && !folder.ends_with("tests") {
                let source = fs::read_to_string(&path).unwrap();
                for level in LEVELS {
                    for call in source.split(&format!("tracing::{level}!(")).skip(1) {
                        events.insert(Self::of_call(level, call, target).unwrap_or_else(|| {
                            panic!("{}: an event without a name, or of another target:\n{call:.200}", path.display())
                        }));
                    }
                }
            }
        }
        events
    }

    /// The event of a call's arguments: `name: "x", target: "y", field, field = value, "message"`.
    fn of_call(level: &str, call: &str, target: &str) -> Option<Self> {
        let (name, rest) = call.trim_start().strip_prefix("name: \"")?.split_once('"')?;
        let rest = rest.strip_prefix(", target: \"")?.strip_prefix(target)?.strip_prefix('"')?;
        let fields = rest.split_once('"').map_or(rest, |(fields, _message)| fields);
        let mut depth = 0;
        let arguments = fields.split(|c| {
            depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
            c == ',' && depth == 0
        });
        let field = |argument: &str| {
            let name = argument.split('=').next()?.trim().trim_start_matches(['%', '?']);
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            is_name.then(|| name.to_owned())
        };
        Some(Self::new(name, level, arguments.filter_map(field)))
    }
}

/// Asserts that a page lists the events in the source of a crate, and no others.
///
/// # Panics
///
/// If not; the message has the events of one side only.
pub fn assert_documented(page: &str, folder: &Path, target: &str) {
    let (documented, logged) = (LoggedEvent::of_page(page), LoggedEvent::of_source(folder, target));
    assert!(!logged.is_empty(), "no events in {}", folder.display());
    let missing: Vec<_> = logged.difference(&documented).collect();
    let surplus: Vec<_> = documented.difference(&logged).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "not in the docs: {missing:#?}\nonly in the docs: {surplus:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_same_name_level_and_fields_in_source_and_docs() {
        let call =
            "\n name: \"gone\", target: \"me\", parent: &self.span,\n ?peer, code = f(a, b), sent, \"so, it is\");";
        let event = LoggedEvent::of_call("debug", call, "me").unwrap();
        assert_eq!(event.fields, ["code", "peer", "sent"]);
        let page = "| Event | Level | Fields | When |\n| `gone` | debug | `peer`, `code`, `sent` | at times |\n";
        assert_eq!(LoggedEvent::of_page(page).into_iter().collect::<Vec<_>>(), [event]);
        assert_eq!(LoggedEvent::of_call("debug", "name: \"gone\", target: \"other\", x);", "me"), None);
        assert_eq!(LoggedEvent::of_call("debug", "%error, \"no name\");", "me"), None);
    }
}
