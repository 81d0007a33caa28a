//! The log of a program without a subscriber: lines on standard error, as `RDMA_SOFT_LOG` asks.
//!
//! A C program sees a status only, and no reason why a link was refused or has failed: `soft-rdma`
//! sets the variable. A line is dropped where a write would wait for a reader.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::{env, io, process};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Level, Metadata, span};

/// The variable with the level.
pub(crate) const VARIABLE: &str = "RDMA_SOFT_LOG";
/// The values of [`VARIABLE`], for messages.
pub(crate) const VALUES: &str = "off, links, error, warn, info, debug or trace";
/// The modules that set up links and connections, and the level down to which they say why one was
/// refused or has failed.
const LINKS: [(&str, Level); 9] = [
    ("rdma_soft::node::peers", Level::WARN),
    ("rdma_soft::node::remote", Level::WARN),
    ("rdma_soft::node::callers", Level::WARN),
    ("rdma_soft::node::admission", Level::WARN),
    ("rdma_soft::node::state::streams", Level::WARN),
    ("rdma_soft::node::ports", Level::WARN),
    ("rdma_soft::cm::connect", Level::WARN),
    ("rdma_soft::cm::dial", Level::WARN),
    ("rdma_soft::cm::report", Level::INFO),
];
/// Limit of the different warnings and errors of a process that are printed.
const MAX_LINES: usize = 256;
/// Limit of a line's length: a pipe that is ready takes so much at once.
const MAX_LEN: usize = 2048;

/// The events that are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Errors, and why links and connections were refused or have failed.
    Links,
    /// Everything down to a level; nothing for [`LevelFilter::OFF`].
    Level(LevelFilter),
}

impl Verbosity {
    /// The meaning of a value of [`VARIABLE`].
    pub(crate) fn parse(value: &str) -> Option<Self> {
        match value {
            "links" => Some(Self::Links),
            "off" => Some(Self::Level(LevelFilter::OFF)),
            "error" => Some(Self::Level(LevelFilter::ERROR)),
            "warn" => Some(Self::Level(LevelFilter::WARN)),
            "info" => Some(Self::Level(LevelFilter::INFO)),
            "debug" => Some(Self::Level(LevelFilter::DEBUG)),
            "trace" => Some(Self::Level(LevelFilter::TRACE)),
            _ => None,
        }
    }

    /// What the environment asks for; nothing by default.
    fn from_environment() -> Self {
        env::var(VARIABLE).ok().and_then(|value| Self::parse(&value)).unwrap_or(Self::Level(LevelFilter::OFF))
    }

    fn includes(self, event: &Metadata<'_>) -> bool {
        match self {
            Self::Links => {
                let module = LINKS.iter().find(|(module, _)| *module == event.target());
                *event.level() <= module.map_or(Level::ERROR, |(_, level)| *level)
            }
            Self::Level(level) => *event.level() <= level,
        }
    }
}

/// A subscriber that prints the events of this crate.
#[derive(Debug)]
pub(super) struct Printer {
    verbosity: Verbosity,
    /// The warnings, errors and reasons of [`Verbosity::Links`] that were printed, each once.
    printed: Mutex<BTreeSet<String>>,
}

impl Printer {
    /// The printer that the environment asks for, if any.
    pub(super) fn from_environment() -> Option<Self> {
        let verbosity = Verbosity::from_environment();
        let is_wanted = verbosity != Verbosity::Level(LevelFilter::OFF);
        is_wanted.then(|| Self { verbosity, printed: Mutex::default() })
    }

    /// Whether a warning or an error has not been printed yet. The agent alone prints, so the lock
    /// is free, unless a fork has left it locked in this child.
    fn is_new(&self, text: &str) -> bool {
        let Ok(mut printed) = self.printed.try_lock() else { return true };
        printed.len() < MAX_LINES && printed.insert(text.to_owned())
    }
}

impl Subscriber for Printer {
    fn register_callsite(&self, event: &'static Metadata<'static>) -> Interest {
        if self.enabled(event) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, event: &Metadata<'_>) -> bool {
        event.is_event() && event.target().starts_with("rdma_soft") && self.verbosity.includes(event)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.verbosity {
            Verbosity::Links => LevelFilter::INFO,
            Verbosity::Level(level) => level,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = *event.metadata().level();
        if (level <= Level::WARN || self.verbosity == Verbosity::Links) && !self.is_new(&text.identity()) {
            return;
        }
        let level = level.as_str().to_ascii_lowercase();
        print(format!("rdma-soft {}: {level}: {text}\n", process::id()));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The parts of an event.
#[derive(Default)]
struct Text {
    /// What came of something; after a colon, what it is.
    message: String,
    /// The process that the event is about.
    pid: Option<i64>,
    fields: String,
}

impl Text {
    /// Equal for events that say the same. Two processes that cannot be linked try it from both
    /// sides, for the same cause.
    fn identity(&self) -> String {
        match (self.pid, self.message.split_once(": ")) {
            (Some(pid), Some((_, cause))) => format!("{pid} {cause}{}", self.fields),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { message, pid, fields } = self;
        write!(formatter, "{message}{fields}")?;
        pid.map_or(Ok(()), |pid| write!(formatter, " pid={pid}"))
    }
}

impl Visit for Text {
    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "pid" => self.pid = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writes to a string do not fail.
        let _written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Writes a line with one call. The caller may be the agent, on which all data waits, so the call
/// must not block: a pipe or terminal without space, and a pipe without a reader, get nothing.
fn print(mut line: String) {
    if line.len() > MAX_LEN {
        let end = (0..MAX_LEN).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
        line.truncate(end);
        line.push('\n');
    }
    let stderr = io::stderr();
    let mut polled = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    let is_ready = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|count| count > 0);
    if is_ready && polled[0].revents() == Some(PollFlags::POLLOUT) {
        // A line that cannot be printed is lost.
        let _written = write(stderr.as_fd(), line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_its_meaning() {
        for value in VALUES.split([',', ' ']).filter(|word| !["", "or"].contains(word)) {
            assert!(Verbosity::parse(value).is_some(), "{value}");
        }
        assert_eq!(Verbosity::parse("loud"), None);
    }

    #[test]
    fn the_modules_of_links_exist() {
        let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        for (module, _) in LINKS {
            let path = module.strip_prefix("rdma_soft::").unwrap().replace("::", "/");
            assert!(sources.join(path).with_extension("rs").is_file(), "{module}");
        }
    }

    #[test]
    fn one_cause_at_one_process_is_said_once() {
        let text = |message: &str, pid| Text { message: message.into(), pid, ..Text::default() };
        assert_eq!(text("no link: why", Some(7)).identity(), text("not let in: why", Some(7)).identity());
        assert_ne!(text("no link: why", Some(7)).identity(), text("no link: why", Some(8)).identity());
        assert_ne!(text("no link to 1: why", None).identity(), text("no link to 2: why", None).identity());
        assert_eq!(text("no link: why", Some(7)).to_string(), "no link: why pid=7");
    }

    #[test]
    fn a_warning_is_new_once_and_the_number_of_warnings_is_bounded() {
        let printer = Printer { verbosity: Verbosity::Links, printed: Mutex::default() };
        assert!(printer.is_new("0") && !printer.is_new("0"));
        let new = (0..2 * MAX_LINES).filter(|number| printer.is_new(&number.to_string())).count();
        assert_eq!(new, MAX_LINES - 1);
    }
}
