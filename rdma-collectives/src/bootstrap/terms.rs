//! Terms that the processes of a job compare before they work together.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::listen::Listen;
use crate::Error;
use crate::cause::Cause;

/// Settings, keyed by the name of their option.
pub(super) type Settings = Map<String, Value>;

/// The longest timeout, some 30 years: moments beyond it may not be told.
const LONGEST: Duration = Duration::from_secs(1 << 30);

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
}

/// The way in which the ranks find rank 0, for the advice of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Each rank was given its address.
    Root,
    /// It sets its addresses in an exchange.
    Exchange,
    /// Each rank was given the addresses of all.
    Addresses,
}

/// Terms that the processes of a job compare before they work together.
#[derive(Clone, Debug)]
pub struct Terms {
    pub(super) program: &'static str,
    pub(super) settings: Settings,
    pub(super) roles: Roles,
    pub(super) timeout: Duration,
    are_options: bool,
    way: Way,
    /// The place where rank 0 listens, if it is not the usual one.
    pub(super) listen: Option<Listen>,
    pub(super) is_supervised: bool,
    pub(super) notice: fn(&str),
}

impl Terms {
    /// The terms of a program. `settings` is a structure: ranks that differ in a field refuse each
    /// other and name the field. No wait for another rank to come lasts longer than `timeout`; the
    /// guide has a [table](crate::guide::programs#times) of all times.
    pub fn new(program: &'static str, settings: &impl Serialize, roles: Roles, timeout: Duration) -> Self {
        let settings = match serde_json::to_value(settings) {
            Ok(Value::Object(settings)) => settings,
            _ => Settings::new(),
        };
        let notice = |text: &str| tracing::warn!("{text}");
        let timeout = timeout.min(LONGEST);
        let (are_options, way, listen, is_supervised) = (false, Way::Root, None, false);
        Self { program, settings, roles, timeout, are_options, way, listen, is_supervised, notice }
    }

    /// The kind of job.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// Says that the settings are options of a command line, which messages name as `--world`.
    #[must_use]
    pub fn options(self) -> Self {
        Self { are_options: true, ..self }
    }

    /// Says whether whoever started the ranks reports how each of them ended: then a rank that sees
    /// another one end leaves it to that report.
    #[must_use]
    pub fn supervised(self, is_supervised: bool) -> Self {
        Self { is_supervised, ..self }
    }

    /// Gives what a person should know and no error says, such as a stranger's connection, to
    /// `notice`. Without this it is logged at level warn.
    #[must_use]
    pub fn notices(self, notice: fn(&str)) -> Self {
        Self { notice, ..self }
    }

    /// Says where rank 0 listens if it meets the others by [`meet_by`](super::Group::meet_by) or
    /// [`meet_at`](super::Group::meet_at): at this address of its host, or at all addresses (`[::]`
    /// or, of IPv4 alone, `0.0.0.0`). Port 0 is one of the kernel's choice or, for `meet_at`, the
    /// one that all ranks know.
    #[must_use]
    pub fn listens_at(self, address: SocketAddr) -> Self {
        Self { listen: Some(Listen::At(address)), ..self }
    }

    /// Says that rank 0 listens at the first address of a network interface, such as `eth0`,
    /// instead of [an address](Self::listens_at).
    #[must_use]
    pub fn listens_on(self, interface: &str) -> Self {
        Self { listen: Some(Listen::On(interface.to_owned())), ..self }
    }

    pub(super) fn by(self, way: Way) -> Self {
        Self { way, ..self }
    }

    /// The name of a setting in messages.
    pub(super) fn named(&self, setting: &str) -> String {
        if self.are_options { format!("--{setting}") } else { format!("`{setting}`") }
    }

    /// A message that tells how to start the missing processes.
    pub(super) fn remedy(&self) -> String {
        match (self.way, self.roles) {
            (Way::Exchange, _) => "start them with the same exchange".to_owned(),
            (Way::Addresses, _) => "start them with the same addresses".to_owned(),
            (Way::Root, Roles::ServerAndClient) => "start one with this host's address as its argument".to_owned(),
            (Way::Root, Roles::Ranks | Roles::RanksAndAggregators(_)) => {
                let [world, root, job] = ["world", "root", "job"].map(|setting| self.named(setting));
                format!("start them with the same {world}, {root} and {job}")
            }
        }
    }

    /// A message that tells how to keep jobs apart.
    pub(super) fn distinction(&self) -> String {
        match self.way {
            Way::Root => {
                let [root, job] = ["root", "job"].map(|setting| self.named(setting));
                format!("give all ranks of a job the same {root} and {job}, and each job an address of its own")
            }
            Way::Exchange => "give each job an exchange of its own, or a name of its own in it".to_owned(),
            Way::Addresses => "give all ranks of a job the same addresses, and each job ports of its own".to_owned(),
        }
    }

    /// The failure for the end of another rank, which the supervisor reports if there is one.
    pub(super) fn lost(&self, why: String, cause: Cause) -> Error {
        if self.is_supervised { Error::peer(why) } else { Error::new(why) }.with_cause(cause)
    }
}

/// The first setting in which two ranks differ: its name, and both values as text.
pub(super) fn difference(ours: &Settings, theirs: &Settings) -> Option<(String, String, String)> {
    let (name, _) = ours.iter().chain(theirs).find(|(name, _)| ours.get(*name) != theirs.get(*name))?;
    let text = |settings: &Settings| match settings.get(name) {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    Some((name.clone(), text(ours), text(theirs)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_named_as_the_caller_knows_them() {
        let terms = Terms::new("x", &(), Roles::Ranks, Duration::ZERO);
        assert_eq!(terms.remedy(), "start them with the same `world`, `root` and `job`");
        assert_eq!(terms.options().remedy(), "start them with the same --world, --root and --job");
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let settings = |value: Value| Terms::new("x", &value, Roles::Ranks, Duration::ZERO).settings;
        let ours = settings(json!({ "min": "8", "max": "1K", "iters": null }));
        assert_eq!(difference(&ours, &ours), None);
        for (theirs, expected) in [
            (json!({ "min": "8", "max": "2K", "iters": null }), ("max", "1K", "2K")),
            (json!({ "min": "8", "max": "1K", "iters": 5 }), ("iters", "none", "5")),
            (json!({ "min": "8", "max": "1K", "iters": null, "check": true }), ("check", "none", "true")),
        ] {
            let (name, a, b) = difference(&ours, &settings(theirs)).unwrap();
            assert_eq!((name.as_str(), a.as_str(), b.as_str()), expected);
        }
    }
}
