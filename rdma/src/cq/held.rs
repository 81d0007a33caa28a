//! The memory that a poller's current completion returns.

use std::ptr::{self, NonNull};

use rdma_sys::ibv_wc;

use crate::mr::{Kind, Segment};
use crate::ring::{Claimed, Info, Single};

/// The memory that the current completion returns. The poller owns it, so forgetting the completion
/// leaks nothing.
///
/// Invariant **H1**: `single` tells which field is in use. A request with one segment and no
/// unsignaled requests before it is in `single`; for any other request, `single` is
/// [`Single::none`] and `request` holds it.
pub(super) struct Held {
    single: Option<Single>,
    /// Any other request, and the current one of the unsignaled requests before it.
    pub(super) request: Option<(Claimed, Option<Claimed>)>,
}

/// The location of a completion, and its slot's information about the request.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// An entry of the poller's batch.
    pub(super) wc: NonNull<ibv_wc>,
    pub(super) token: u64,
    pub(super) info: Info,
}

impl Held {
    pub(super) const NOTHING: Self = Self { single: None, request: None };

    #[inline(always)]
    pub(super) fn give_up(&mut self) {
        if self.single.is_some() {
            self.give_up_rest();
        }
    }

    #[cold]
    fn give_up_rest(&mut self) {
        self.single = None;
        self.request = None;
    }

    /// Holds a single segment. Nothing is held before the call.
    #[inline(always)]
    pub(super) fn set(&mut self, single: Single) {
        debug_assert!(self.single.is_none());
        // SAFETY: ptr::write requires a place valid for writes: a field of `self`. The overwritten
        // value is not dropped: it is `None`, and any other value would be leaked, which is safe.
        unsafe { ptr::write(&raw mut self.single, Some(single)) };
    }

    /// Holds any other request. Nothing is held before the call.
    pub(super) fn set_request(&mut self, claimed: Claimed) {
        self.single = Some(Single::none());
        self.request = Some((claimed, None));
    }

    /// The next segment, without taking it.
    #[inline]
    pub(super) fn peek(&self) -> Option<&Segment> {
        match &self.request {
            Some((claimed, _)) => claimed.peek(),
            None => self.single.as_ref().map(Single::segment),
        }
    }

    /// Whether the next segment is the request's first one.
    pub(super) fn is_untouched(&self) -> bool {
        match &self.request {
            Some((claimed, _)) => claimed.is_untouched(),
            None => self.single.is_some(),
        }
    }

    /// Takes the next segment, if it is of kind `kind`.
    #[inline(always)]
    pub(super) fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        let Some(single) = self.single.as_ref().filter(|single| !single.is_none()) else {
            return self.take_other_if(kind);
        };
        if single.segment().kind() != kind {
            return None;
        }
        // SAFETY: ptr::read requires an initialised value that is used once: the field is replaced
        // below before any code can read or drop it, since `take` does not panic, so the value is
        // moved out once.
        let segment = unsafe { ptr::read(single) }.take();
        // SAFETY: ptr::write requires a place valid for writes: a field of `self`. The old value
        // was just moved out, so it needs no drop.
        unsafe { ptr::write(&raw mut self.single, None) };
        Some(segment)
    }

    #[cold]
    fn take_other_if(&mut self, kind: Kind) -> Option<Segment> {
        let (claimed, _) = self.request.as_mut()?;
        if claimed.peek()?.kind() == kind { claimed.take() } else { None }
    }
}
