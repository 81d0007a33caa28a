//! Events that wait for the process.

use std::collections::VecDeque;

use super::types::{CqId, Element, Event, QpId, SrqId};

/// A queue of events, in the order in which they happened.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// Removes the events of a destroyed queue pair.
    pub(super) fn forget_qp(&mut self, qp: QpId) {
        self.queue.retain(|event| !matches!(event, Event::Async { element: Element::Qp(id, _), .. } if *id == qp));
    }

    /// Removes the events of a destroyed shared receive queue.
    pub(super) fn forget_srq(&mut self, srq: SrqId) {
        self.queue.retain(|event| !matches!(event, Event::Async { element: Element::Srq(id, _), .. } if *id == srq));
    }

    /// Removes the events of a destroyed completion queue.
    pub(super) fn forget_cq(&mut self, cq: CqId) {
        self.queue.retain(|event| match event {
            Event::Completion { cq: id, .. } => *id != cq,
            Event::Async { element: Element::Cq(id, _), .. } => *id != cq,
            Event::Async { .. } => true,
        });
    }
}
