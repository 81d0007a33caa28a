//! Credits: how many data messages each side may send.
//!
//! Each side counts the data receives that it has posted since the start, and tells the peer that
//! number as a limit in every message. A limit is absolute, so a later one replaces an earlier one.
//! [`rdma::credit`] counts; the UPDATEs and their ECHOs are this protocol's.
//!
//! A notification has no header, and so neither a limit nor an ECHO. A notification that needs a
//! credit of an UPDATE answers it: both sides count the messages that the credits before the UPDATE
//! allow, and see which notification is the first beyond them.

use rdma::credit::{ReceiveWindow, SendWindow};

use super::violation::Violation;
use super::wire::{Flags, Header, Kind};

/// The credits of one side, and its UPDATEs.
#[derive(Debug, Clone)]
pub(super) struct Credit {
    sends: SendWindow,
    receives: ReceiveWindow,
    /// While the peer has not answered this side's last UPDATE (N5): the messages that the peer may
    /// still send without the credits of the UPDATE.
    unanswered: Option<u32>,
    /// While the peer's last UPDATE waits for an answer: the messages that this side may still send
    /// without the credits of the UPDATE.
    owed_echo: Option<u32>,
    /// Whether a notification has used a credit after all messages that have.
    is_notified_last: bool,
}

impl Credit {
    /// Begins with `initial` posted receives of this side, and `limit` of the peer.
    pub(super) fn new(window: u32, initial: u32, limit: u32) -> Self {
        Self {
            sends: SendWindow::new(window, limit),
            receives: ReceiveWindow::new(window, initial),
            unanswered: None,
            owed_echo: None,
            is_notified_last: false,
        }
    }

    /// The number of data messages that may be sent now (N1).
    pub(super) fn available(&self) -> u32 {
        self.sends.available()
    }

    /// Whether a notification has used a credit after all messages that have.
    pub(super) fn is_notified_last(&self) -> bool {
        self.is_notified_last
    }

    /// Whether the peer has used all credits that it was told of, and no others are there.
    pub(super) fn is_used_up(&self) -> bool {
        self.receives.is_peer_blocked() && self.receives.owed() == 0
    }

    /// Counts a data receive that was posted in place of a consumed one, or beyond the first ones.
    pub(super) fn add_posted(&mut self) {
        let is_counted = self.receives.post();
        debug_assert!(is_counted, "more receives than were consumed");
    }

    /// Whether the peer must be told the limit by a message of its own (N5). The application may
    /// hold messages, so a peer that is blocked is told of each receive.
    pub(super) fn wants_update(&self) -> bool {
        let is_due = self.receives.is_due() || self.receives.is_peer_blocked() && self.receives.owed() > 0;
        is_due && self.unanswered.is_none()
    }

    /// Completes the header of a message that is sent now (N2).
    pub(super) fn stamp(&mut self, header: &mut Header) {
        let granted = self.receives.granted();
        header.limit = self.receives.grant_limit();
        if self.owed_echo.take().is_some() {
            header.flags |= Flags::ECHO;
        }
        if header.kind.needs_credit() {
            let has_credit = self.sends.spend();
            debug_assert!(has_credit, "a message without a credit");
            self.is_notified_last = false;
        }
        if header.kind == Kind::Update {
            self.unanswered = Some(granted);
        }
    }

    /// Counts a notification that is sent now; false if there is no credit for it.
    pub(super) fn notify(&mut self) -> bool {
        let has_credit = self.sends.spend();
        if has_credit {
            self.is_notified_last = true;
            self.owed_echo = self.owed_echo.and_then(|left| left.checked_sub(1));
        }
        has_credit
    }

    /// Takes a notification of the peer.
    pub(super) fn accept_notification(&mut self) -> Result<(), Violation> {
        self.receive()
    }

    /// Counts a message that needed a credit, and maybe one of the last UPDATE (N5).
    fn receive(&mut self) -> Result<(), Violation> {
        self.receives.receive().map_err(|_| Violation::NoCredit)?;
        self.unanswered = self.unanswered.and_then(|left| left.checked_sub(1));
        Ok(())
    }

    /// Takes what a received header says about credits (N1, N3, N5).
    pub(super) fn accept(&mut self, header: &Header) -> Result<(), Violation> {
        let available = self.sends.available();
        self.sends.accept_limit(header.limit).map_err(|_| Violation::WrongLimit)?;
        if header.flags.contains(Flags::ECHO) && self.unanswered.take().is_none() {
            return Err(Violation::UnexpectedEcho);
        }
        if header.kind == Kind::Update && self.owed_echo.replace(available).is_some() {
            return Err(Violation::UpdateUnanswered);
        }
        if header.kind.needs_credit() { self.receive() } else { Ok(()) }
    }

    /// The counters relative to each other, for tests that compare states.
    #[cfg(test)]
    pub(super) fn key(&self) -> [u32; 5] {
        [
            self.available(),
            self.receives.owed(),
            self.receives.granted(),
            self.unanswered.map_or(0, |left| left + 1),
            self.owed_echo.map_or(0, |left| left + 1),
        ]
    }

    /// How far a limit in flight is ahead of the limit that this side knows, for tests.
    #[cfg(test)]
    pub(super) fn raise(&self, limit: u32) -> u32 {
        limit.wrapping_sub(self.sends.limit())
    }

    /// Counts the posted receives as told to the peer, for tests.
    #[cfg(test)]
    pub(super) fn grant_silently(&mut self) {
        _ = self.receives.grant_limit();
    }

    /// Begins near the end of the counters' range, for tests.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, start: u32) {
        self.sends = self.sends.clone().starting_at(start);
        self.receives = self.receives.clone().starting_at(start);
    }
}
