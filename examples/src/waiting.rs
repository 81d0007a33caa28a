//! A line about a wait that takes long.

use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::failure::{is_launched, say};

/// The time after which a wait is said.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// A wait for a peer. If it is not dropped within a second, it is said on standard error.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting {
    /// Ends the thread that would say it; `None` if nobody does.
    _over: Option<Sender<()>>,
}

impl Waiting {
    /// Begins a wait for what `what` names, such as `127.0.0.1:18515`.
    ///
    /// A process that a launcher of this package has started says nothing: its peers are started
    /// by the same launcher.
    pub fn for_peer(what: impl fmt::Display) -> Self {
        if is_launched() {
            return Self { _over: None };
        }
        let text = format!("waiting for {what}");
        let (over, end) = channel();
        let speaks = move || {
            if end.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
                say(&text);
            }
        };
        // Without a thread, the wait is not said.
        let speaker = thread::Builder::new().name("waiting".to_owned()).spawn(speaks);
        Self { _over: speaker.is_ok().then_some(over) }
    }
}
