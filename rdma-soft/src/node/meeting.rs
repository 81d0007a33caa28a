//! Handshakes under way, one at a time with each process.

use std::collections::HashMap;

use super::device::{Node, Part, Who};
use super::state::State;
use crate::engine::PeerId;
use crate::link::handshake::Answer;

/// A handshake with a process. Other handshakes with the same process wait until this one is
/// dropped.
pub(super) struct Meeting {
    node: &'static Node,
    who: Who,
    part: Part,
}

impl Meeting {
    /// None if there is a link to the process, as `has_link` says, or another handshake with it is
    /// under way.
    pub(super) fn open(node: &'static Node, who: Who, has_link: impl FnOnce(&State) -> bool) -> Option<Self> {
        let mut parts = node.meetings.parts.lock();
        if parts.contains_key(&who) || has_link(&node.lock()) {
            return None;
        }
        parts.insert(who, Part::Opener);
        Some(Self { node, who, part: Part::Opener })
    }

    /// The answer to a process that requests a link. `has_link` says whether there is one.
    /// `opens_first` decides if both processes open at once: the peer applies the same rule, so one
    /// of the two handshakes goes on.
    pub(super) fn accept(
        node: &'static Node,
        who: Who,
        has_link: impl FnOnce(&State) -> bool,
        opens_first: impl FnOnce(&State) -> bool,
    ) -> (Answer, Option<Self>) {
        let mut parts = node.meetings.parts.lock();
        if let Some(answer) = refusal(&parts, &node.lock(), who, has_link, opens_first) {
            return (answer, None);
        }
        parts.insert(who, Part::Acceptor);
        (Answer::Welcome, Some(Self { node, who, part: Part::Acceptor }))
    }

    /// The answer that [`accept`](Self::accept) would give now, if it is not [`Answer::Welcome`].
    pub(super) fn refusal(
        node: &Node,
        who: Who,
        has_link: impl FnOnce(&State) -> bool,
        opens_first: impl FnOnce(&State) -> bool,
    ) -> Option<Answer> {
        refusal(&node.meetings.parts.lock(), &node.lock(), who, has_link, opens_first)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let mut parts = self.node.meetings.parts.lock();
        if parts.get(&self.who) == Some(&self.part) {
            parts.remove(&self.who);
        }
    }
}

/// The reason why a process that requests a link does not get one now.
fn refusal(
    parts: &HashMap<Who, Part>,
    state: &State,
    who: Who,
    has_link: impl FnOnce(&State) -> bool,
    opens_first: impl FnOnce(&State) -> bool,
) -> Option<Answer> {
    if has_link(state) {
        return Some(Answer::Known);
    }
    let is_busy = match parts.get(&who) {
        None => false,
        Some(Part::Acceptor) => true,
        Some(Part::Opener) => opens_first(state),
    };
    is_busy.then_some(Answer::Busy)
}

/// Tells the engine that a process cannot be reached.
pub(super) fn give_up(node: &Node, peer: PeerId) {
    let mut state = node.lock();
    state.engine.handle_unreachable(peer);
    state.after_call();
}
