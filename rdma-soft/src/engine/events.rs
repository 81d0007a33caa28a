//! What waits to be told to the process.

use std::collections::VecDeque;

use super::types::{CqId, Element, Event, QpId};

/// Events in the order in which they happened.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// Forgets what a destroyed queue pair had to say.
    pub(super) fn forget_qp(&mut self, qp: QpId) {
        self.queue.retain(|event| !matches!(event, Event::Async { element: Element::Qp(id, _), .. } if *id == qp));
    }

    /// Forgets what a destroyed completion queue had to say.
    pub(super) fn forget_cq(&mut self, cq: CqId) {
        self.queue.retain(|event| match event {
            Event::Completion { cq: id, .. } => *id != cq,
            Event::Async { element: Element::Cq(id, _), .. } => *id != cq,
            Event::Async { .. } => true,
        });
    }
}
