//! Credits: how many data messages each side may send.
//!
//! Each side counts the data receives that it has posted since the start, and tells the peer that
//! number as a limit in every message. A limit is absolute, so a later one replaces an earlier one.

use super::violation::Violation;
use super::wire::{Flags, Header, Kind};

/// The credits of one side.
#[derive(Debug, Clone)]
pub(super) struct Credit {
    /// Data receives of each side.
    window: u32,
    /// Data messages sent.
    sent: u32,
    /// Data messages that the peer lets this side send.
    limit: u32,
    /// Data messages received.
    received: u32,
    /// Data receives posted.
    posted: u32,
    /// The value of `posted` that the peer was told last.
    advertised: u32,
    /// Whether the peer has not answered this side's last UPDATE (N5).
    update_unanswered: bool,
    /// Whether the peer's last UPDATE waits for an ECHO.
    owes_echo: bool,
}

impl Credit {
    /// Begins with `initial` posted receives of this side, and `limit` of the peer.
    pub(super) fn new(window: u32, initial: u32, limit: u32) -> Self {
        Self {
            window,
            sent: 0,
            limit,
            received: 0,
            posted: initial,
            advertised: initial,
            update_unanswered: false,
            owes_echo: false,
        }
    }

    /// The number of data messages that may be sent now (N1).
    pub(super) fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Whether the peer has used all credits that it was told of.
    pub(super) fn is_used_up(&self) -> bool {
        self.advertised == self.received && self.posted == self.advertised
    }

    /// Counts a data receive that was posted in place of a consumed one, or beyond the first ones.
    pub(super) fn add_posted(&mut self) {
        let next = self.posted.wrapping_add(1);
        debug_assert!(next.wrapping_sub(self.received) <= self.window, "more receives than were consumed");
        self.posted = next;
    }

    /// Whether the peer must be told the limit by a message of its own (N5).
    pub(super) fn wants_update(&self) -> bool {
        let owed = self.posted.wrapping_sub(self.advertised);
        let peer_is_blocked = self.advertised == self.received;
        let threshold = if peer_is_blocked { 1 } else { (self.window / 2).max(1) };
        !self.update_unanswered && owed >= threshold
    }

    /// Completes the header of a message that is sent now (N2).
    pub(super) fn stamp(&mut self, header: &mut Header) {
        header.limit = self.posted;
        self.advertised = self.posted;
        if self.owes_echo {
            header.flags |= Flags::ECHO;
            self.owes_echo = false;
        }
        if header.kind.needs_credit() {
            self.sent = self.sent.wrapping_add(1);
        }
        self.update_unanswered |= header.kind == Kind::Update;
    }

    /// Takes what a received header says about credits (N1, N3, N5).
    pub(super) fn accept(&mut self, header: &Header) -> Result<(), Violation> {
        let ahead = header.limit.wrapping_sub(self.sent);
        if ahead > self.window || ahead < self.available() {
            return Err(Violation::WrongLimit);
        }
        if header.flags.contains(Flags::ECHO) && !self.update_unanswered {
            return Err(Violation::UnexpectedEcho);
        }
        if header.kind == Kind::Update && self.owes_echo {
            return Err(Violation::UpdateUnanswered);
        }
        if header.kind.needs_credit() && self.received == self.advertised {
            return Err(Violation::NoCredit);
        }
        self.limit = header.limit;
        if header.flags.contains(Flags::ECHO) {
            self.update_unanswered = false;
        }
        self.owes_echo |= header.kind == Kind::Update;
        if header.kind.needs_credit() {
            self.received = self.received.wrapping_add(1);
        }
        Ok(())
    }

    /// The counters relative to each other, for tests that compare states.
    #[cfg(test)]
    pub(super) fn key(&self) -> [u32; 5] {
        [
            self.available(),
            self.posted.wrapping_sub(self.advertised),
            self.advertised.wrapping_sub(self.received),
            u32::from(self.update_unanswered),
            u32::from(self.owes_echo),
        ]
    }

    /// How far a limit in flight is ahead of the limit that this side knows, for tests.
    #[cfg(test)]
    pub(super) fn raise(&self, limit: u32) -> u32 {
        limit.wrapping_sub(self.limit)
    }

    /// Counts the posted receives as told to the peer, for tests.
    #[cfg(test)]
    pub(super) fn grant_silently(&mut self) {
        self.advertised = self.posted;
    }

    /// Begins near the end of the counters' range, for tests.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, start: u32) {
        for counter in [&mut self.sent, &mut self.limit, &mut self.received, &mut self.posted, &mut self.advertised] {
            *counter = counter.wrapping_add(start);
        }
    }
}
