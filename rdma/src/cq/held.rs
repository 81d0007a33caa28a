//! What the present completion of a poller gives back.

use std::ptr;

use rdma_sys::ibv_wc;

use crate::mr::{Kind, Segment};
use crate::qp::ring::{Claimed, Info, Single};

/// What the present completion gives back. It stays here, so that forgetting the completion is no
/// harm.
///
/// Invariant **H1**: `single` says which of the two there is: a request with one segment and
/// nothing before it, or `request`, where it is [`Single::none`].
pub(super) struct Held {
    single: Option<Single>,
    /// Any other request, and one of the unsignaled ones before it.
    pub(super) request: Option<(Claimed, Option<Claimed>)>,
}

/// Where a completion lies, and what its slot said.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// In the poller's batch.
    pub(super) wc: *const ibv_wc,
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

    /// Replaces nothing.
    #[inline(always)]
    pub(super) fn set(&mut self, single: Single) {
        debug_assert!(self.single.is_none());
        // SAFETY: valid for writes. None needs no drop, and should there ever be something, it is
        // leaked.
        unsafe { ptr::write(&raw mut self.single, Some(single)) };
    }

    /// Replaces nothing.
    pub(super) fn set_request(&mut self, claimed: Claimed) {
        self.single = Some(Single::none());
        self.request = Some((claimed, None));
    }

    /// The next segment, to look at.
    #[inline]
    pub(super) fn peek(&self) -> Option<&Segment> {
        match &self.request {
            Some((claimed, _)) => claimed.peek(),
            None => self.single.as_ref().map(Single::segment),
        }
    }

    /// The next segment, if it is of that kind.
    #[inline(always)]
    pub(super) fn take_if(&mut self, info: Info, kind: Kind) -> Option<Segment> {
        if !info.is_single() {
            return self.take_other_if(kind);
        }
        let single = self.single.as_ref()?;
        if single.segment().kind() != kind {
            return None;
        }
        // SAFETY: valid for reads; replaced below before anything can see or drop it, so it is
        // moved out once.
        let single = unsafe { ptr::read(single) };
        // SAFETY: valid for writes. What was there was moved out.
        unsafe { ptr::write(&raw mut self.single, None) };
        Some(single.take())
    }

    #[cold]
    fn take_other_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.peek()?.kind() != kind {
            return None;
        }
        match &mut self.request {
            Some((claimed, _)) => claimed.take(),
            // There was an address handle beside it.
            None => self.single.take().map(Single::take),
        }
    }
}
